//! Reports about unreachable peers: on another host, in another network namespace, of another user
//! or fabric. Connecting and sending call the `note_*` functions. Requests to such peers only time
//! out, so the report gives the reason.
#![forbid(unsafe_code)]

use crate::config;
use crate::engine::adapter::Adapter;
use crate::engine::adapter::port::UnreachableReports;
use crate::host::PortHolder;
use crate::net::{GID_TABLE, Gids, may_send_to};
use soft_local::fabric::{DIR_VARIABLE, FRONT, PeerError, Refusal};
use soft_sys::map::WINDOW;
use soft_sys::notice;
use soft_sys::{Errno, process};
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::Ordering;

/// An address that does not belong to this host.
const ADDRESS: u8 = 1;
/// A QP number that does not exist on this host.
const NUMBER: u8 = 1 << 1;
/// A process that refused the connection.
const REFUSAL: u8 = 1 << 2;
/// Not enough memory or descriptors for a process.
const RESOURCES: u8 = 1 << 3;
/// The wire to other hosts is unavailable.
const WIRE: u8 = 1 << 4;
/// A host excluded by the limits.
const PEER: u8 = 1 << 5;
/// A route with too small an MTU.
const MTU: u8 = 1 << 6;
/// The process changed its user after it opened the device.
const USER: u8 = 1 << 7;

impl UnreachableReports {
    fn is_first_report(&self, kind: u8) -> bool {
        let said = self.reported_kinds.load(Ordering::Relaxed) & kind != 0;
        !said
            && self.reported_kinds.fetch_or(kind, Ordering::Relaxed) & kind == 0
            && !config::is_quiet()
    }

    /// Reports a route to `gid`, which is not an address of this host.
    #[cold]
    pub(crate) fn note_address(&self, adapter: &Adapter, gid: &[u8; 16]) {
        if !may_send_to(gid) {
            if self.is_first_report(PEER) {
                let name = config::PEERS.name;
                notice!("{} is none of those that {name} names, and is not reached", address(gid));
            }
            return;
        }
        if self.is_first_report(ADDRESS) {
            notice!(
                "{} is another host or network namespace{}",
                address(gid),
                reached(adapter, "soft reaches this one only")
            );
        }
    }

    /// Reports that packets with `bytes` of data to `host` exceed the MTU of the route: `carried`
    /// bytes with all headers. A path MTU of `fits` would fit.
    #[cold]
    pub(crate) fn note_mtu(&self, host: IpAddr, bytes: u32, carried: u32, fits: Option<u32>) {
        if self.is_first_report(MTU) {
            let remedy = fits.map_or_else(String::new, |fits| format!(" (path_mtu {fits} fits)"));
            notice!(
                "packets with {bytes} bytes do not fit the route to {host}, which carries {carried}: requests with such end with IBV_WC_RETRY_EXC_ERR{remedy}"
            );
        }
    }

    /// Reports that the wire to other hosts is unavailable.
    #[cold]
    pub(crate) fn note_wire(&self, adapter: &Adapter, why: Errno) {
        if self.is_first_report(WIRE) {
            let taken = "it is taken, by the kernel's rxe or by a process of another user";
            match (adapter.wire.port_holder(), why) {
                (Some(holder), _) => {
                    notice!("{}", port_report(&holder, &adapter.fabric.config().dir))
                }
                (None, Errno::EADDRINUSE) => notice!(
                    "UDP port 4791: {taken}; other hosts are not reached (ss -ulpn 'sport = 4791')"
                ),
                (None, why) => notice!("UDP port 4791: {why}; other hosts are not reached"),
            }
        }
    }

    /// Reports that the process of QP `qpn` cannot be reached.
    #[cold]
    pub(crate) fn note_failure(&self, adapter: &Adapter, qpn: u32, why: PeerError) {
        let may_be_the_user = match why {
            PeerError::System(errno) => [Errno::EACCES, Errno::EPERM].contains(&errno),
            PeerError::Refused(refusal) => refusal == Refusal::User,
            _ => false,
        };
        if may_be_the_user && self.user != process::user() {
            if self.is_first_report(USER) {
                let folder = adapter.fabric.directory();
                notice!("{}", changed_user(qpn, self.user, process::user(), folder));
            }
            return;
        }
        match why {
            PeerError::Nobody => self.note_number(adapter, qpn),
            PeerError::Refused(Refusal::Resources) if self.is_first_report(RESOURCES) => {
                notice!(
                    "QP {qpn:#08x} is of a process that cannot be met: it, or this one, has no memory or descriptors for it (ulimit -v, ulimit -n)"
                );
            }
            // Already reported, and a refusal of another kind.
            PeerError::Refused(Refusal::Resources) => {}
            PeerError::System(errno) if self.is_first_report(RESOURCES) => {
                // Two windows of its rings: the window of the ring of the QP, and the window of the
                // bounce buffers.
                let least = adapter.fabric.tables().len() + FRONT + 2 * WINDOW;
                notice!(
                    "QP {qpn:#08x} is of a process that cannot be met: {errno}; each takes {} MiB of address space at least, and 4 descriptors (ulimit -v, ulimit -n)",
                    least.div_ceil(1 << 20)
                );
            }
            PeerError::Refused(why) if self.is_first_report(REFUSAL) => {
                notice!(
                    "QP {qpn:#08x} is of a process of {} with which this one shares nothing: {why}",
                    adapter.fabric.directory().display()
                );
            }
            // The process is gone, or slow.
            _ => {}
        }
    }

    /// Reports that QP `qpn` does not exist.
    #[cold]
    pub(crate) fn note_number(&self, adapter: &Adapter, qpn: u32) {
        if self.is_first_report(NUMBER) {
            let gids = Gids::of_this_host(adapter.identity.guid(), 0);
            notice!(
                "QP {qpn:#08x} is on another host or in another network namespace, user or fabric, or gone{}{}",
                reached(adapter, "without a GID, or by GID index 0, soft reaches this one only"),
                indices(&gids)
            );
        }
    }
}

/// The report about the process that occupies the port, for processes that meet in `directory`.
fn port_report(holder: &PortHolder, directory: &Path) -> String {
    format!(
        "UDP port 4791 is had by {holder}; processes that meet in {} do not reach other hosts beside it (one {DIR_VARIABLE} for all: see MEETING in ferroverbs-soft(7))",
        directory.display()
    )
}

/// The reachable part of the fabric, and the directories of further fabrics.
fn reached(adapter: &Adapter, what: &str) -> String {
    let fabric = &adapter.fabric;
    let who = match fabric.config().group {
        Some(group) => format!("group {group}"),
        None => format!("user {}", process::user()),
    };
    let mut text = format!(": {what} ({who} in {}", fabric.directory().display());
    let others = fabric.other_directories();
    for (at, other) in others.iter().take(MOST).enumerate() {
        let before = if at == 0 { "; others meet in" } else { "," };
        let _ = write!(text, "{before} {}", other.display());
    }
    if others.len() > MOST {
        text.push_str(", ...");
    }
    text.push_str("); see MEETING in ferroverbs-soft(7)");
    text
}

/// The report for a process that changed its user after it opened the device.
fn changed_user(qpn: u32, before: u32, now: u32, folder: &Path) -> String {
    format!(
        "QP {qpn:#08x} is not reached: this process opened the device as user {before} and is user {now} now, and the \
         processes that meet in {} accept user {before} only; change the user before ibv_open_device, or set \
         FERROVERBS_FABRIC_GROUP",
        folder.display()
    )
}

/// The GID indices that reach other hosts, as a remedy at the end of a report; empty if no
/// interface has an address.
fn indices(gids: &Gids) -> String {
    let address_of = |index: usize| -> Option<IpAddr> {
        let v6 = Ipv6Addr::from(gids.get(index)?.raw);
        let address = v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4);
        let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        (!address.is_loopback() && !is_link_local).then_some(address)
    };
    let usable: Vec<(usize, IpAddr)> =
        (1..GID_TABLE).filter_map(|index| Some((index, address_of(index)?))).collect();
    let Some((first, _)) = usable.first() else { return String::new() };
    let all: Vec<String> = usable
        .iter()
        .take(MOST)
        .map(|(index, address)| format!("GID index {index} ({address})"))
        .collect();
    format!(
        "; another host is reached by {}: use -g {first} (perftest: -x {first})",
        all.join(" or ")
    )
}

/// A GID in the usual notation.
fn address(gid: &[u8; 16]) -> String {
    let v6 = Ipv6Addr::from(*gid);
    v6.to_ipv4_mapped().map_or_else(|| v6.to_string(), |v4| v4.to_string())
}

/// Number of directories in a report.
const MOST: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn each_kind_of_problem_is_reported_once() {
        let unreachable = UnreachableReports::default();
        assert!(unreachable.is_first_report(ADDRESS));
        assert!(!unreachable.is_first_report(ADDRESS));
        assert!(unreachable.is_first_report(NUMBER));
    }

    #[test]
    fn the_gid_indices_with_an_address_are_named() {
        let gid = |address: &str| {
            let address: IpAddr = address.parse().expect("an address");
            match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            }
        };
        let table = |addresses: &[&str]| Gids::with_addresses(addresses.iter().map(|a| gid(a)));
        assert_eq!(indices(&table(&["127.0.0.1", "::1", "fe80::1"])), "");
        assert_eq!(
            indices(&table(&["fe80::1", "10.99.0.1", "2001:db8::1"])),
            "; another host is reached by GID index 2 (10.99.0.1) or GID index 3 (2001:db8::1): use -g 2 (perftest: -x 2)"
        );
    }

    #[test]
    fn a_process_with_another_user_is_told_both_users() {
        let line = changed_user(0x50ed16, 0, 65534, Path::new("/tmp/ferroverbs-0"));
        assert!(line.contains("as user 0 and is user 65534 now"), "{line}");
        assert!(line.contains("/tmp/ferroverbs-0") && line.contains("0x50ed16"), "{line}");
    }

    #[test]
    fn addresses_are_written_in_the_usual_notation() {
        assert_eq!(address(&Ipv4Addr::new(10, 99, 0, 1).to_ipv6_mapped().octets()), "10.99.0.1");
        assert_eq!(address(&Ipv6Addr::LOCALHOST.octets()), "::1");
    }
}
