//! rping, which every test of the connection manager begins with, and the one fault of it that tests meet.

/// What rping says when its thread for events asks for the next one just as its main thread, whose work is done, destroys their channel: the
/// thread ends the program with 255. That is between two threads of its own, whatever the library.
pub const MET_ITSELF: &str = "rdma_get_cm_event: Bad file descriptor";

/// Whether a test that failed did so because rping met itself.
pub fn met_itself<T>(outcome: &Result<T, String>) -> bool {
    outcome.as_ref().is_err_and(|why| why.contains(MET_ITSELF))
}

/// Runs something with rping in it; again, and once more, while its outcome shows that rping met itself.
pub fn again<T>(mut run: impl FnMut() -> T, met_itself: impl Fn(&T) -> bool) -> T {
    for _ in 0..2 {
        let outcome = run();
        if !met_itself(&outcome) {
            return outcome;
        }
    }
    run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_met_itself_runs_again_and_not_for_ever() {
        let runs = |says: &[&str]| {
            let mut said = says.iter();
            let mut count = 0;
            let last = again(
                || {
                    count += 1;
                    said.next().copied().unwrap_or(MET_ITSELF)
                },
                |said| said.contains(MET_ITSELF),
            );
            (count, last.to_owned())
        };
        assert_eq!(runs(&["well"]), (1, "well".into()));
        assert_eq!(runs(&["another fault"]), (1, "another fault".into()));
        assert_eq!(runs(&[MET_ITSELF, "well"]), (2, "well".into()));
        assert_eq!(runs(&[]), (3, MET_ITSELF.into()));
    }
}
