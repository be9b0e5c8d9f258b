//! The kernel's ranges for automatic and privileged ports (ip(7)).
//! [`crate::sys::ports`] takes port numbers by these rules.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

/// The range of automatic ports: the kernel's setting, read once.
pub(crate) fn dynamic() -> RangeInclusive<u16> {
    static RANGE: OnceLock<RangeInclusive<u16>> = OnceLock::new();
    let range = RANGE.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        text.ok().and_then(|text| parse(&text)).unwrap_or(32768..=60999)
    });
    range.clone()
}

/// Parses the first and last port of the file.
fn parse(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let (first, last) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (1..=last).contains(&first).then_some(first..=last)
}

/// Whether this process may bind a port by number.
pub(crate) fn may_bind(port: u16) -> bool {
    port >= first_unprivileged() || may_bind_privileged()
}

/// The first port that needs no privilege.
fn first_unprivileged() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// Whether the calling thread has `CAP_NET_BIND_SERVICE` in effect.
fn may_bind_privileged() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    let sets = capabilities(None);
    sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_BIND_SERVICE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_as_the_kernel_writes_it() {
        assert_eq!(parse("32768\t60999\n"), Some(32768..=60999));
        for nonsense in ["", "7", "0 9", "9 7", "a b", "1 65536"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn ports_of_the_system_are_for_those_who_have_the_capability() {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a set");
        let effective = u64::from_str_radix(line.trim(), 16).expect("bits");
        // `CAP_NET_BIND_SERVICE` of `<linux/capability.h>`.
        assert_eq!(may_bind_privileged(), effective & (1 << 10) != 0);
        assert!(may_bind(65535));
    }
}
