//! The position of each process's sockets among the sockets of port 4791, as published by each
//! process.
//! Read when a steering program is made (`steering`).
//!
//! A process publishes its positions in an abstract Unix name, as in `port_claim`. Each process can
//! read the names without a connection, even those of a stopped process, and the kernel removes
//! them when their owner ends. A name can be outdated or forged by another user. A wrong position
//! costs a forwarded packet, and loses nothing.

use super::port_claim::{abstract_names, bind_abstract_name};
use super::sockets::V4;
use cface::names::Name;
use cface::sync::Mutex;
use soft_local::shm::layout::SLOTS;
use soft_sys::unshared::Unshared;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Positions of the IPv4 and the IPv6 socket, plus one. 0: no socket, or an unknown position.
type FamilyPositions = [u32; 2];

/// The positions of this process's sockets, and the published name.
#[derive(Debug)]
pub(super) struct SocketPositions {
    /// Identity of the fabric; `None` where abstract names are not available.
    fabric: Option<String>,
    slot: u16,
    seen_positions: [AtomicU32; 2],
    moved: AtomicBool,
    published: Mutex<PublishedPositions>,
}

#[derive(Debug, Default)]
struct PublishedPositions {
    positions: FamilyPositions,
    /// A child of fork(2) closes the descriptor. Dropped before `name`.
    unshared: Option<Unshared>,
    name: Option<Name>,
    has_left: bool,
}

/// Prefix of all names.
const STEM: &str = "ferroverbs-soft/places/";

impl SocketPositions {
    pub(super) fn new(fabric: Option<String>, slot: u16) -> Self {
        Self {
            fabric,
            slot,
            seen_positions: [const { AtomicU32::new(0) }; 2],
            moved: AtomicBool::new(false),
            published: Mutex::default(),
        }
    }

    /// Records the position of the socket of a family. Returns true if the position has changed.
    pub(super) fn set_position(&self, family: u8, position: u16) -> bool {
        let now = u32::from(position) + 1;
        let moved = self.seen_positions[family_index(family)].swap(now, Ordering::Relaxed) != now;
        if moved {
            self.moved.store(true, Ordering::Relaxed);
        }
        moved
    }

    /// Publishes the positions if they have changed. Returns true if the name is new.
    pub(super) fn publish(&self) -> bool {
        let Some(fabric) = &self.fabric else { return false };
        if !self.moved.swap(false, Ordering::Relaxed) {
            return false;
        }
        let mut published = self.published.lock();
        let positions =
            self.seen_positions.each_ref().map(|position| position.load(Ordering::Relaxed));
        if published.has_left || published.positions == positions {
            return false;
        }
        // Without the name, packets of this process are forwarded.
        let name = bind_abstract_name(&name(fabric, self.slot, positions)).ok();
        published.unshared = None;
        published.unshared = name.as_ref().map(|name| Unshared::new(name.as_fd()));
        (published.name, published.positions) = (name, positions);
        true
    }

    /// Removes the name for good.
    pub(super) fn remove_name(&self) {
        *self.published.lock() =
            PublishedPositions { has_left: true, ..PublishedPositions::default() };
    }

    /// The published positions of a family: pairs of slot and position in this fabric.
    ///
    /// # Errors
    /// Abstract names are not available or cannot be read.
    pub(super) fn read_all(&self, family: u8) -> io::Result<Vec<(u32, u16)>> {
        let Some(fabric) = &self.fabric else { return Err(io::ErrorKind::Unsupported.into()) };
        Ok(parse_names(&abstract_names()?, fabric, family_index(family)))
    }
}

/// Whether the rows have `count` different positions without a gap.
pub(super) fn is_complete(rows: &[(u32, u16)], count: usize) -> bool {
    let mut positions: Vec<_> = rows.iter().map(|row| usize::from(row.1)).collect();
    positions.sort_unstable();
    positions.into_iter().eq(0..count)
}

const fn family_index(family: u8) -> usize {
    (family != V4) as usize
}

fn name(fabric: &str, slot: u16, [v4, v6]: FamilyPositions) -> String {
    format!("{STEM}{fabric}/{slot}/{v4}/{v6}")
}

/// Pairs of slot and position of one fabric and family, from the kernel's list of names
/// (`/proc/net/unix`, `proc(5)`). A process that has just moved may have two names; the later line
/// counts.
fn parse_names(list: &str, fabric: &str, family: usize) -> Vec<(u32, u16)> {
    let stem = format!("@{STEM}{fabric}/");
    let row = |line: &str| {
        let mut parts = line.split_once(&stem)?.1.split('/');
        let slot = parts.next()?.parse::<u16>().ok().filter(|slot| usize::from(*slot) < SLOTS)?;
        let position = parts.nth(family)?.parse::<u32>().ok()?.checked_sub(1)?;
        Some((u32::from(slot), u16::try_from(position).ok()?))
    };
    list.lines().filter_map(row).collect::<BTreeMap<_, _>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::sockets::V6;

    #[test]
    fn valid_names_are_parsed_and_invalid_names_are_skipped() {
        let line = |name: &str| format!("0: 2 0 0 0002 01 12 @{name}\n");
        let positions = name("fe00.2a", 7, [3, 0]);
        let list: String = [
            line(&positions),
            line(&name("fe00.2b", 8, [1, 1])),
            line(&name("fe00.2a", 9, [1, 2])),
            line(&name("fe00.2a", 10, [u32::MAX, 5])),
            line(&name("fe00.2a", SLOTS as u16, [1, 1])),
            line(&format!("{STEM}fe00.2a/x/1/1")),
            line(&format!("{STEM}fe00.2a/11/1")),
            line(&format!("{STEM}fe00.2a")),
            line("/tmp/.X11-unix/X0"),
        ]
        .concat();
        assert_eq!(parse_names(&list, "fe00.2a", 0), [(7, 2), (9, 0), (11, 0)]);
        assert_eq!(parse_names(&list, "fe00.2a", 1), [(9, 1), (10, 4)]);
        assert!(parse_names("", "fe00.2a", 0).is_empty());
    }

    #[test]
    fn a_process_publishes_its_positions_until_it_leaves() {
        let fabric = format!("test.{}", std::process::id());
        let [one, other] = [5, 6].map(|slot| SocketPositions::new(Some(fabric.clone()), slot));
        assert!(!one.publish(), "it knows nothing");
        assert!(one.set_position(V4, 0) && !one.set_position(V4, 0) && other.set_position(V4, 1));
        assert!(one.publish() && other.publish() && !one.publish());
        let rows = |family| one.read_all(family).expect("a list");
        assert_eq!(rows(V4), [(5, 0), (6, 1)]);
        assert!(rows(V6).is_empty());
        // The first socket is closed, and the kernel moves the last socket to its position.
        one.remove_name();
        assert!(other.set_position(V4, 0) && other.publish());
        assert!(one.set_position(V4, 1) && !one.publish(), "served_by has left says nothing");
        assert_eq!(rows(V4), [(6, 0)]);
    }

    #[test]
    fn positions_are_complete_without_gaps_and_duplicates() {
        assert!(is_complete(&[(9, 1), (3, 0)], 2));
        for (rows, count) in [
            (&[(9, 1), (3, 1)][..], 2),
            (&[(9, 1), (3, 2)], 2),
            (&[(9, 0)], 2),
            (&[(9, 0), (3, 1)], 1),
        ] {
            assert!(!is_complete(rows, count));
        }
    }
}
