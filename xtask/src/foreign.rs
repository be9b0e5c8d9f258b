//! Defects of foreign programs that tests meet. A test runs a program again for one of these, and
//! for nothing else; each entry names the place in the program's source.

/// A defect that ends a run of a foreign program, whatever the library below does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramDefect {
    /// The program and its defect.
    pub what: &'static str,
    /// The file and the functions of the program's source.
    pub source: &'static str,
    /// The words by which a run shows the defect.
    pub symptom: &'static str,
}

/// A run ends with 255 although its work is done.
pub const RPING_CHANNEL: ProgramDefect = ProgramDefect {
    what: "rping: the thread for events asks for the next event while the main thread destroys \
           the event channel",
    source: "rdma-core, librdmacm/examples/rping.c: cm_thread, run_client",
    symptom: "rdma_get_cm_event: Bad file descriptor",
};

/// A run ends before it reads the event of its disconnection.
pub const RPING_COMPLETION: ProgramDefect = ProgramDefect {
    what: "rping: the thread for completions ends the program on a failed request before the \
           thread for events has read the event DISCONNECTED",
    source: "rdma-core, librdmacm/examples/rping.c: cq_thread, rping_cq_event_handler",
    symptom: "completion failed",
};

/// A run never ends. The symptom is the time limit, so the program gets a separate limit.
pub const UDPONG_ECHO: ProgramDefect = ProgramDefect {
    what: "udpong: after a millisecond without an answer it sends its request again from the \
           buffer of answers; an old answer in it makes the program ask for that one for ever",
    source: "rdma-core, librdmacm/examples/udpong.c: client_send_recv",
    symptom: "killed at its time limit",
};

/// A run prints no rates, or ends with an error, as its frequency of the clock is zero.
pub const PERFTEST_CLOCK: ProgramDefect = ProgramDefect {
    what: "perftest: a measurement of the processor's clock on a busy machine gives no line, and \
           the program computes with zero",
    source: "perftest, src/get_clock.c: sample_get_cpu_mhz",
    symptom: "Correlation coefficient r^2",
};

/// How often a run that shows a defect is repeated.
const REPETITIONS: u32 = 2;

impl ProgramDefect {
    /// Whether the words of a run show the defect.
    pub fn shows_in(&self, said: &str) -> bool {
        said.contains(self.symptom)
    }

    /// Whether a run failed, and its report shows the defect.
    pub fn failed<T>(&self, outcome: &Result<T, String>) -> bool {
        outcome.as_ref().is_err_and(|why| self.shows_in(why))
    }
}

/// Repeats `run`, twice at most, while `shows_defect` finds a [`ProgramDefect`] in its outcome.
pub fn again<T>(mut run: impl FnMut() -> T, shows_defect: impl Fn(&T) -> bool) -> T {
    for _ in 0..REPETITIONS {
        let outcome = run();
        if !shows_defect(&outcome) {
            return outcome;
        }
    }
    run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_that_shows_the_defect_is_repeated_and_at_most_twice() {
        let runs = |outcomes: &[Result<(), String>]| {
            let mut left = outcomes.iter();
            let mut count = 0;
            let run = || {
                count += 1;
                left.next().cloned().unwrap_or_else(|| Err(RPING_CHANNEL.symptom.to_owned()))
            };
            let last = again(run, |outcome| RPING_CHANNEL.failed(outcome));
            (count, last)
        };
        let other = Err("another fault".to_owned());
        let defect = Err(format!("rping: {}", RPING_CHANNEL.symptom));
        assert_eq!(runs(&[Ok(())]), (1, Ok(())));
        assert_eq!(runs(std::slice::from_ref(&other)), (1, other));
        assert_eq!(runs(&[defect, Ok(())]), (2, Ok(())));
        assert_eq!(runs(&[]), (3, Err(RPING_CHANNEL.symptom.to_owned())));
    }
}
