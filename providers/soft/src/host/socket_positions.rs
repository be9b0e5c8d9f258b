//! Where each process's sockets are among those that share the port, as it says itself.
//!
//! It says so by the name of an abstract Unix socket, as it says of which fabric it is (`claim`): such names are of a network namespace, as the port is,
//! whoever comes can read them without meeting anybody, also those of a process that is stopped, and the kernel forgets them with their owner. A name may
//! be outdated, or a lie of another user's; what comes of that is a copy.

use super::port_claim::{bind, names};
use super::state::V4;
use cface::names::Name;
use cface::sync::Mutex;
use soft_local::shm::layout::SLOTS;
use soft_sys::unshared::Unshared;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The place of a process's socket of each family, IPv4 and IPv6, and one more; 0: it has none, or none that it knows.
type Pair = [u32; 2];

/// Where this process's sockets are, and what it says of that.
#[derive(Debug)]
pub(super) struct Places {
    /// Which fabric it is; `None`: names cannot be had.
    fabric: Option<String>,
    slot: u16,
    heard: [AtomicU32; 2],
    moved: AtomicBool,
    saying: Mutex<Saying>,
}

#[derive(Debug, Default)]
struct Saying {
    said: Pair,
    /// Children do not keep it; forgotten before it is closed.
    unshared: Option<Unshared>,
    name: Option<Name>,
    is_over: bool,
}

/// What names begin with.
const STEM: &str = "ferroverbs-soft/places/";

impl Places {
    pub(super) fn new(fabric: Option<String>, slot: u16) -> Self {
        Self {
            fabric,
            slot,
            heard: [const { AtomicU32::new(0) }; 2],
            moved: AtomicBool::new(false),
            saying: Mutex::default(),
        }
    }

    /// The socket of a family is in this place; whether it was in another one.
    pub(super) fn stands(&self, family: u8, place: u16) -> bool {
        let now = u32::from(place) + 1;
        let moved = self.heard[of(family)].swap(now, Ordering::Relaxed) != now;
        if moved {
            self.moved.store(true, Ordering::Relaxed);
        }
        moved
    }

    /// Says where the sockets are, if that is not what was said last; whether anything is new.
    pub(super) fn say(&self) -> bool {
        let Some(fabric) = &self.fabric else { return false };
        if !self.moved.swap(false, Ordering::Relaxed) {
            return false;
        }
        let mut saying = self.saying.lock();
        let places = self.heard.each_ref().map(|place| place.load(Ordering::Relaxed));
        if saying.is_over || saying.said == places {
            return false;
        }
        // Where that fails others pass on what is ours.
        let name = bind(&name(fabric, self.slot, places)).ok();
        saying.unshared = None;
        saying.unshared = name.as_ref().map(|name| Unshared::new(name.as_fd()));
        (saying.name, saying.said) = (name, places);
        true
    }

    /// Says nothing any more.
    pub(super) fn leave(&self) {
        *self.saying.lock() = Saying { is_over: true, ..Saying::default() };
    }

    /// What is said of the sockets of a family: slots of this fabric, and places.
    ///
    /// # Errors
    /// Names cannot be had, or not be read.
    pub(super) fn told(&self, family: u8) -> io::Result<Vec<(u32, u16)>> {
        let Some(fabric) = &self.fabric else { return Err(io::ErrorKind::Unsupported.into()) };
        Ok(table(&names()?, fabric, of(family)))
    }
}

/// Whether everybody said another place, and no place of so many is missing.
pub(super) fn are_all(rows: &[(u32, u16)], count: usize) -> bool {
    let mut places: Vec<_> = rows.iter().map(|row| usize::from(row.1)).collect();
    places.sort_unstable();
    places.into_iter().eq(0..count)
}

const fn of(family: u8) -> usize {
    (family != V4) as usize
}

fn name(fabric: &str, slot: u16, [v4, v6]: Pair) -> String {
    format!("{STEM}{fabric}/{slot}/{v4}/{v6}")
}

/// What the kernel's list of names (`/proc/net/unix`, `proc(5)`) says of a fabric's sockets of a family. Of who has just changed his place one of two
/// names is taken.
fn table(list: &str, fabric: &str, family: usize) -> Vec<(u32, u16)> {
    let stem = format!("@{STEM}{fabric}/");
    let row = |line: &str| {
        let mut parts = line.split_once(&stem)?.1.split('/');
        let slot = parts.next()?.parse::<u16>().ok().filter(|slot| usize::from(*slot) < SLOTS)?;
        let place = parts.nth(family)?.parse::<u32>().ok()?.checked_sub(1)?;
        Some((u32::from(slot), u16::try_from(place).ok()?))
    };
    list.lines().filter_map(row).collect::<BTreeMap<_, _>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::state::V6;

    #[test]
    fn what_is_said_is_read_and_what_is_of_no_use_is_not() {
        let line = |name: &str| format!("0: 2 0 0 0002 01 12 @{name}\n");
        let said = name("fe00.2a", 7, [3, 0]);
        let list: String = [
            line(&said),
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
        assert_eq!(table(&list, "fe00.2a", 0), [(7, 2), (9, 0), (11, 0)]);
        assert_eq!(table(&list, "fe00.2a", 1), [(9, 1), (10, 4)]);
        assert!(table("", "fe00.2a", 0).is_empty());
    }

    #[test]
    fn a_process_says_where_it_is_until_it_leaves() {
        let fabric = format!("test.{}", std::process::id());
        let [one, other] = [5, 6].map(|slot| Places::new(Some(fabric.clone()), slot));
        assert!(!one.say(), "it knows nothing");
        assert!(one.stands(V4, 0) && !one.stands(V4, 0) && other.stands(V4, 1));
        assert!(one.say() && other.say() && !one.say());
        let rows = |family| one.told(family).expect("a list");
        assert_eq!(rows(V4), [(5, 0), (6, 1)]);
        assert!(rows(V6).is_empty());
        // The first socket is closed, and the last takes its place.
        one.leave();
        assert!(other.stands(V4, 0) && other.say());
        assert!(one.stands(V4, 1) && !one.say(), "who has left says nothing");
        assert_eq!(rows(V4), [(6, 0)]);
    }

    #[test]
    fn places_are_all_there_or_not() {
        assert!(are_all(&[(9, 1), (3, 0)], 2));
        for (rows, count) in [
            (&[(9, 1), (3, 1)][..], 2),
            (&[(9, 1), (3, 2)], 2),
            (&[(9, 0)], 2),
            (&[(9, 0), (3, 1)], 1),
        ] {
            assert!(!are_all(rows, count));
        }
    }
}
