//! Decides which sockets become rsockets, by the rules in `/etc/rdma/rsocket/preload_config`. A
//! line is: program domain type protocol; `*` matches anything (rsocket(7)). The module `table` (of
//! open sockets) calls `Choice::takes` for each new TCP socket.
//!
//! Without the file, or without a valid line in it, all stream sockets become rsockets, but no
//! datagram sockets: those mostly go to name servers.

use std::ffi::c_int;

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    program: Option<String>,
    domain: Option<c_int>,
    socket_type: Option<c_int>,
    protocol: Option<c_int>,
}

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice(Vec<Rule>);

/// Parses a word. The outer `None` means that `names` lacks the word, so the line is invalid. The
/// inner `None` means `*`, which matches any number. A prefix up to `_` (as in `PF_INET`) is
/// ignored.
fn number(word: &str, names: &[(&str, c_int)]) -> Option<Option<c_int>> {
    if word == "*" {
        return Some(None);
    }
    let bare = word.rsplit('_').next().unwrap_or(word);
    let known = names.iter().find(|(name, _)| name.eq_ignore_ascii_case(bare));
    known.map(|(_, number)| Some(*number))
}

impl Choice {
    /// Parses the text of the file; invalid lines are ignored.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let line = |line: &str| {
            if line.starts_with('#') {
                return None;
            }
            let mut words = line.split_whitespace();
            let program = words.next()?;
            Some(Rule {
                program: (program != "*").then(|| program.to_owned()),
                domain: number(
                    words.next()?,
                    &[("INET", libc::AF_INET), ("INET6", libc::AF_INET6)],
                )?,
                socket_type: number(
                    words.next()?,
                    &[("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)],
                )?,
                protocol: number(
                    words.next()?,
                    &[("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)],
                )?,
            })
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// Whether a socket of a program becomes an rsocket. The caller has removed `SOCK_NONBLOCK` and
    /// `SOCK_CLOEXEC` from `kind`.
    #[must_use]
    pub fn takes(&self, program: &str, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        let protocol = match (protocol, kind) {
            (0, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
            (0, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
            (known, _) => known,
        };
        // A line's program matches every program whose name begins with it, in any case.
        let begins = |name: &str| {
            program.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
        };
        (self.0.is_empty() && kind == libc::SOCK_STREAM)
            || self.0.iter().any(|line| {
                line.program.as_deref().is_none_or(begins)
                    && line.domain.is_none_or(|one| one == domain)
                    && line.socket_type.is_none_or(|one| one == kind)
                    && line.protocol.is_none_or(|one| one == protocol)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_lines_all_streams_are_taken() {
        for text in ["", "# iperf * * *\n", "nonsense\n", "a INET SEQPACKET *\n"] {
            assert!(
                Choice::parse(text).takes("curl", libc::AF_INET, libc::SOCK_STREAM, 0),
                "{text}"
            );
            assert!(!Choice::parse(text).takes("dig", libc::AF_INET, libc::SOCK_DGRAM, 0));
        }
    }

    #[test]
    fn a_line_takes_what_it_names_and_nothing_else() {
        let choice =
            Choice::parse("# of programs\niperf PF_INET sock_stream IPPROTO_TCP\ncurl * * *\n");
        assert!(choice.takes("iperf3", libc::AF_INET, libc::SOCK_STREAM, 0));
        assert!(!choice.takes("iperf3", libc::AF_INET6, libc::SOCK_STREAM, 0));
        assert!(!choice.takes("iperf3", libc::AF_INET, libc::SOCK_DGRAM, 0));
        assert!(choice.takes("CURL", libc::AF_INET6, libc::SOCK_DGRAM, 0));
        assert!(!choice.takes("cur", libc::AF_INET, libc::SOCK_STREAM, 0));
    }
}
