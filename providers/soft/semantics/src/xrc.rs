//! What a request of an XRC QP names (IBTA vol 1, annex A14): a shared receive queue of the domain that the receiving QP belongs to.

/// The protection domain in which a request's keys are looked up, and its receives posted: that of the shared receive queue that it names.
///
/// `life` is what the queue's owner publishes: 0, there is no queue; otherwise the protection domain in its lower half. `None`: there is
/// none, or it is of another XRC domain (`of`) than the QP (`asked`): the request is refused (A14.5: invalid RD request).
#[inline]
pub fn names<Domain: PartialEq>(life: u64, of: &Domain, asked: &Domain) -> Option<u32> {
    (life != 0 && of == asked).then_some(life as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_named_only_within_its_domain_and_while_it_lives() {
        assert_eq!(names(1 << 32 | 5, &(1, 2), &(1, 2)), Some(5));
        assert_eq!(names(1 << 32, &(1, 2), &(1, 2)), Some(0), "the first protection domain");
        assert_eq!(names(0, &(1, 2), &(1, 2)), None);
        assert_eq!(names(1 << 32 | 5, &(1, 3), &(1, 2)), None);
    }
}
