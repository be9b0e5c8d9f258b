//! The page of a range that cannot be registered, from the text of /proc/PID/maps
//! (proc_pid_maps(5)).

/// The reason why a page cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The page is not mapped.
    Unmapped {
        /// Address of the first such page.
        page: u64,
    },
    /// The mapping lacks a right.
    Rights {
        /// Address of the first such page.
        page: u64,
        /// The rights, such as `rwxp`.
        rights: String,
        /// The mapped object: a path, `[heap]`, or empty.
        name: String,
    },
}

impl Fault {
    /// The text for a message.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Unmapped { page } => {
                format!("the page {page:#x} is not mapped (/proc/self/maps)")
            }
            Self::Rights { page, rights, name } => {
                let of = if name.is_empty() { "anonymous memory" } else { name };
                format!("the page {page:#x} of {of} has the rights {rights} (/proc/self/maps)")
            }
        }
    }
}

/// The first page of `[addr, addr + length)` that is not mapped, not readable, or not writable
/// although `written` is true.
pub(crate) fn fault(maps: &str, addr: u64, length: u64, written: bool) -> Option<Fault> {
    let end = addr.checked_add(length)?;
    let mut at = addr & !(cface::mem::page_size() as u64 - 1);
    for (from, to, rights, name) in maps.lines().filter_map(mapping) {
        if at >= end {
            break;
        }
        if to <= at {
            continue;
        }
        if from > at {
            break;
        }
        let has = |right| rights.contains(right);
        if !has('r') || (written && !has('w')) {
            return Some(Fault::Rights { page: at, rights: rights.into(), name: name.into() });
        }
        at = to;
    }
    (at < end).then_some(Fault::Unmapped { page: at })
}

/// Begin, end, rights and name of a line.
fn mapping(line: &str) -> Option<(u64, u64, &str, &str)> {
    let mut words = line.splitn(6, ' ');
    let (from, to) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let name = words.nth(3).unwrap_or_default().trim();
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, rights, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0                                  [heap]
3000-4000 r--p 00000000 08:01 42                                 /usr/lib/a file.so
5000-6000 ---p 00000000 00:00 0
6000-8000 rw-p 00000000 00:00 0
";

    #[test]
    fn memory_that_is_there_has_no_fault() {
        assert_eq!(fault(MAPS, 0x1000, 0x2000, true), None);
        assert_eq!(fault(MAPS, 0x1001, 0x2fff, false), None);
        assert_eq!(fault(MAPS, 0x6fff, 1, true), None);
    }

    #[test]
    fn the_first_page_that_is_not_there_is_named() {
        assert_eq!(fault(MAPS, 0x10, 8, false), Some(Fault::Unmapped { page: 0 }));
        assert_eq!(fault(MAPS, 0x3800, 0x1000, false), Some(Fault::Unmapped { page: 0x4000 }));
        assert_eq!(fault(MAPS, 0x7ff8, 9, true), Some(Fault::Unmapped { page: 0x8000 }));
        assert_eq!(fault("", 0x7ff8, 9, true), Some(Fault::Unmapped { page: 0x7000 }));
    }

    #[test]
    fn a_mapping_without_a_right_is_named_with_what_it_is() {
        let found = fault(MAPS, 0x2000, 0x2000, true).expect("a page");
        assert_eq!(
            found.text(),
            "the page 0x3000 of /usr/lib/a file.so has the rights r--p (/proc/self/maps)"
        );
        assert_eq!(fault(MAPS, 0x2000, 0x2000, false), None, "it is only read");
        let guarded = fault(MAPS, 0x5000, 1, false).expect("a page");
        assert_eq!(
            guarded.text(),
            "the page 0x5000 of anonymous memory has the rights ---p (/proc/self/maps)"
        );
    }

    #[test]
    fn a_line_that_is_none_is_passed_over() {
        assert_eq!(mapping("nonsense"), None);
        assert_eq!(fault("x\n1000-2000 rw-p 0 0 0\n", 0x1000, 8, true), None);
    }
}
