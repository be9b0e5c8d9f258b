//! The greeting: how two ends find out that both speak the extension, and prove their identity.
//!
//! Three packets make a greeting. Hello carries the sender's nonce. Welcome repeats that nonce and
//! carries its own sender's. Confirm repeats the latter. An end trusts its peer only after its own
//! nonce came back, which it had sent to the peer's address alone. A forged Hello therefore has no
//! effect: the peer receives an unexpected Welcome and drops it.

use crate::wire::{ExtensionMessage, Nonce};

/// The proofs that this end and its peer have exchanged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greeting {
    /// `None`: this end does not speak the extension.
    own_nonce: Option<Nonce>,
    /// The peer's nonce, once the peer has repeated ours.
    peer: Option<Nonce>,
    /// The nonce to which the last Welcome was sent.
    welcomed: Option<Nonce>,
    /// A greeting that waits to be sent.
    answer: Option<ExtensionMessage>,
}

impl Greeting {
    pub(super) const fn new(own: Option<Nonce>) -> Self {
        Self { own_nonce: own, peer: None, welcomed: None, answer: None }
    }

    /// The peer's nonce, if the peer has proved that it supports the extension.
    pub(super) const fn peer(&self) -> Option<Nonce> {
        self.peer
    }

    /// The reserved header bits of packets to the peer.
    pub(super) fn proof(&self) -> u16 {
        self.peer.map_or(0, Nonce::proof)
    }

    /// Whether the reserved header bits are those that this end announced.
    pub(super) fn is_proved(&self, proof: u16) -> bool {
        self.own_nonce.is_some_and(|own| own.proof() == proof)
    }

    /// Whether a packet of the extension is credible: it repeats our nonce, or is a Hello.
    pub(super) fn admits(&self, ours: &ExtensionMessage) -> bool {
        match *ours {
            ExtensionMessage::Hello { .. } => self.own_nonce.is_some(),
            ExtensionMessage::Welcome { receiver_nonce: to, .. }
            | ExtensionMessage::Confirm { receiver_nonce: to, .. }
            | ExtensionMessage::Selective { receiver_nonce: to, .. }
            | ExtensionMessage::PiggybackedAck { receiver_nonce: to, .. } => {
                self.own_nonce == Some(to)
            }
        }
    }

    /// The greeting for a peer that may not know us.
    pub(super) fn begin(&self) -> Option<ExtensionMessage> {
        let from = self.own_nonce?;
        Some(match self.peer {
            Some(to) => ExtensionMessage::Confirm { receiver_nonce: to, sender_nonce: from },
            None => ExtensionMessage::Hello { sender_nonce: from },
        })
    }

    /// Handles a greeting that was [admitted](Self::admits).
    pub(super) fn receive(&mut self, greeting: &ExtensionMessage) {
        let Some(own) = self.own_nonce else { return };
        match *greeting {
            ExtensionMessage::Hello { sender_nonce: from } => {
                self.welcomed = Some(from);
                self.answer =
                    Some(ExtensionMessage::Welcome { receiver_nonce: from, sender_nonce: own });
            }
            ExtensionMessage::Welcome { sender_nonce: from, .. } => {
                // If both ends greet at once, this end's Welcome replaces its Confirm.
                let is_told = self.peer == Some(from) || self.welcomed == Some(from);
                self.peer = Some(from);
                if !is_told {
                    self.answer =
                        Some(ExtensionMessage::Confirm { receiver_nonce: from, sender_nonce: own });
                }
            }
            ExtensionMessage::Confirm { sender_nonce: from, .. } => self.peer = Some(from),
            ExtensionMessage::Selective { .. } | ExtensionMessage::PiggybackedAck { .. } => {}
        }
    }

    /// Whether a greeting waits to be sent.
    pub(super) const fn has_greeting_to_send(&self) -> bool {
        self.answer.is_some()
    }

    /// Takes the greeting that waits to be sent.
    pub(super) const fn take_greeting(&mut self) -> Option<ExtensionMessage> {
        self.answer.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(random: u64) -> Greeting {
        Greeting::new(Nonce::new(random))
    }

    /// Delivers `packet` to `to`.
    fn hear(to: &mut Greeting, packet: &ExtensionMessage) {
        assert!(to.admits(packet), "{packet:?}");
        to.receive(packet);
    }

    #[test]
    fn three_packets_make_two_ends_known_to_each_other() {
        let (mut a, mut b) = (end(1), end(2));
        hear(&mut b, &a.begin().expect("a Hello"));
        assert_eq!(b.peer(), None, "a Hello proves nothing");
        hear(&mut a, &b.take_greeting().expect("a Welcome"));
        hear(&mut b, &a.take_greeting().expect("a Confirm"));
        assert_eq!((a.peer(), b.peer()), (Nonce::new(2), Nonce::new(1)));
        assert!(!a.has_greeting_to_send() && !b.has_greeting_to_send());
        assert!(a.is_proved(b.proof()) && b.is_proved(a.proof()) && !a.is_proved(0));
    }

    #[test]
    fn both_may_greet_at_once() {
        let (mut a, mut b) = (end(1), end(2));
        let (one, other) = (a.begin().expect("a Hello"), b.begin().expect("a Hello"));
        hear(&mut b, &one);
        hear(&mut a, &other);
        let (one, other) =
            (a.take_greeting().expect("Welcome"), b.take_greeting().expect("Welcome"));
        hear(&mut b, &one);
        hear(&mut a, &other);
        assert_eq!((a.peer(), b.peer()), (Nonce::new(2), Nonce::new(1)));
        assert!(!a.has_greeting_to_send() && !b.has_greeting_to_send());
    }

    #[test]
    fn an_end_that_draws_another_nonce_is_known_by_that_one() {
        let (mut a, mut b) = (end(1), end(2));
        for mut again in [end(1), end(3)] {
            hear(&mut b, &again.begin().expect("a Hello"));
            hear(&mut again, &b.take_greeting().expect("a Welcome"));
            hear(&mut b, &again.take_greeting().expect("a Confirm"));
            a = again;
        }
        assert_eq!((a.peer(), b.peer()), (Nonce::new(2), Nonce::new(3)));
    }

    #[test]
    fn forged_packets_are_not_admitted_and_a_forged_hello_changes_nothing() {
        let mut a = end(1);
        let forged = Nonce::new(9).expect("not 0");
        hear(&mut a, &ExtensionMessage::Hello { sender_nonce: forged });
        assert_eq!((a.peer(), a.proof()), (None, 0));
        for greeting in [
            ExtensionMessage::Welcome { receiver_nonce: forged, sender_nonce: forged },
            ExtensionMessage::Confirm { receiver_nonce: forged, sender_nonce: forged },
            ExtensionMessage::Selective {
                receiver_nonce: forged,
                held_packets: crate::wire::HeldPackets::NONE,
            },
        ] {
            assert!(!a.admits(&greeting));
        }
        let silent = Greeting::new(None);
        assert!(
            !silent.admits(&ExtensionMessage::Hello { sender_nonce: forged })
                && silent.begin().is_none()
        );
    }
}
