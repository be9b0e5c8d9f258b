//! Refused requests in which no check before the call found an error: ibv_post_send(3),
//! ibv_post_recv(3).

use super::given::Judged;

/// A refused request, and its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted<'a> {
    /// Name of the operation.
    pub(crate) opcode: &'a str,
    /// `send_flags`; `None` for a receive.
    pub(crate) flags: Option<u32>,
    pub(crate) elements: i64,
    pub(crate) most_elements: u32,
    pub(crate) bytes: u64,
    pub(crate) most_inline: u32,
    /// Name of the QP's state; empty for an SRQ.
    pub(crate) state: &'a str,
    /// Requests in flight, and the length of the queue.
    pub(crate) in_flight: usize,
    pub(crate) most_in_flight: u32,
}

/// Bits of `send_flags`.
const FLAGS: u64 = 0x1f;

/// ibv_post_send(3), ibv_post_recv(3) and ibv_post_srq_recv(3).
pub(crate) fn post(asked: &Posted<'_>, errno: i32) -> Judged {
    let mut given = Judged::default();
    let is_full = asked.in_flight >= usize::try_from(asked.most_in_flight).unwrap_or(usize::MAX);
    if errno == libc::ENOMEM && is_full {
        given.add_wrong(
            format!(
                "{} requests are in flight, and the queue takes {}",
                asked.in_flight, asked.most_in_flight
            ),
            "poll completions before posting more",
        );
    }
    if errno == libc::ENOMEM && !is_full {
        let (there, most) = (asked.in_flight, asked.most_in_flight);
        given.add_plausible("requests in flight", format_args!("{there} of {most}"));
    }
    given.add_plausible("opcode", asked.opcode);
    if let Some(flags) = asked.flags {
        given.flags("send_flags", flags.into(), FLAGS);
    }
    let limit = "as the queue was made";
    given.number("num_sge", asked.elements, 0..=asked.most_elements.into(), limit);
    given.add_plausible("bytes", asked.bytes);
    given.add_plausible("max_inline_data", asked.most_inline);
    if !asked.state.is_empty() {
        given.add_plausible("state", asked.state);
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::given::testing::wrong_texts;

    const GOOD: Posted<'_> = Posted {
        opcode: "SEND",
        flags: Some(2),
        elements: 1,
        most_elements: 2,
        bytes: 64,
        most_inline: 64,
        state: "RTS",
        in_flight: 3,
        most_in_flight: 32,
    };

    #[test]
    fn all_that_a_request_says_is_told() {
        let given = post(&GOOD, libc::EINVAL);
        assert!(given.wrong_arguments.is_empty());
        assert!(given.plausible_arguments.contains(&"opcode SEND".to_owned()), "{given:?}");
    }

    #[test]
    fn a_request_with_too_many_elements_or_unknown_flags_is_told() {
        let given = post(&Posted { elements: 3, flags: Some(0x82), ..GOOD }, libc::EINVAL);
        assert_eq!(given.wrong_arguments.len(), 2);
    }

    #[test]
    fn a_full_queue_is_told_with_its_length() {
        let given = post(&Posted { in_flight: 32, ..GOOD }, libc::ENOMEM);
        assert_eq!(wrong_texts(&given), ["32 requests are in flight, and the queue takes 32"]);
        let given = post(&GOOD, libc::ENOMEM);
        assert!(given.wrong_arguments.is_empty());
        assert!(
            given.plausible_arguments.contains(&"requests in flight 3 of 32".to_owned()),
            "{given:?}"
        );
    }
}
