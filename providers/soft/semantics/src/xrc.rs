//! The shared receive queue that a request of an XRC QP names (IBTA 1.7 A14). The provider loads
//! the two words and the domains, and asks this function.

/// The protection domain of the shared receive queue that a request names. Keys are looked up, and
/// receives taken, in this domain.
///
/// `life` is the word that the queue's owner publishes: 0 for no queue, otherwise the protection
/// domain in its lower half. `None`: there is no queue, or its XRC domain (`of`) differs from the
/// QP's (`requested`). The request is then refused (IBTA 1.7 A14.5: invalid RD request).
#[inline]
pub fn srq_domain<Domain: PartialEq>(life: u64, of: &Domain, requested: &Domain) -> Option<u32> {
    (life != 0 && of == requested).then_some(life as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA 1.7 A14.5.
    #[test]
    fn a_queue_is_named_only_within_its_domain_and_while_it_lives() {
        assert_eq!(srq_domain(1 << 32 | 5, &(1, 2), &(1, 2)), Some(5));
        assert_eq!(srq_domain(1 << 32, &(1, 2), &(1, 2)), Some(0), "the first protection domain");
        assert_eq!(srq_domain(0, &(1, 2), &(1, 2)), None);
        assert_eq!(srq_domain(1 << 32 | 5, &(1, 3), &(1, 2)), None);
    }
}
