//! The kernel's ranges for automatic and privileged ports (ip(7)).
//! [`crate::host::ports`] takes port numbers by these rules.

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
    port >= first_unprivileged() || has_capability(CAP_NET_BIND_SERVICE)
}

/// The first port that needs no privilege.
fn first_unprivileged() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// `CAP_NET_BIND_SERVICE` of `<linux/capability.h>`.
const CAP_NET_BIND_SERVICE: u32 = 10;

/// Whether a capability below 32 is in effect for the calling thread (`capget(2)`).
fn has_capability(number: u32) -> bool {
    /// `_LINUX_CAPABILITY_VERSION_3`: two entries, each with an effective, permitted and
    /// inheritable set.
    const VERSION: u32 = 0x2008_0522;
    let mut header = [VERSION, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: header and both entries are writable, with the sizes of this version; 0 is the
    // calling thread.
    let error = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    error == 0 && sets.first().is_some_and(|effective| effective & (1 << number) != 0)
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
        for number in 0..32 {
            assert_eq!(has_capability(number), effective & (1 << number) != 0, "{number}");
        }
        assert!(may_bind(65535));
    }
}
