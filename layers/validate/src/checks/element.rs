//! MR-01 to MR-06: the memory that requests name, from the records of regions.
//!
//! Map of this file: `Mr`, the facts about a region; `wrong_region` for a known lkey and
//! `unknown_key` for any other; `window`; then regions in use, regions that are left, locked and
//! unmapped memory; tests.

use abi::{AccessFlags, ibv_sge};

use super::Id;
use super::finding::{Finding, Findings, Stack};

/// The record of a memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mr {
    /// Address of the `ibv_mr`.
    pub(crate) address_of_mr: usize,
    /// Address of the context.
    pub(crate) ctx: usize,
    /// Address of the PD in which the region is registered.
    pub(crate) pd: usize,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// First address, and address after the last, as requests name addresses; `None` if unknown
    /// (imported, device memory, implicit).
    pub(crate) range: Option<(u64, u64)>,
    /// Access of the region; `None` if unknown.
    pub(crate) access: Option<u32>,
    /// The difference of the address in the process to the address in a request; `None` if unknown.
    pub(crate) shift: Option<u64>,
    /// Stack of the registration.
    pub(crate) registered_by: Stack,
}

impl Mr {
    #[inline]
    fn contains(&self, sge: &ibv_sge) -> bool {
        self.range.is_none_or(|(start, end)| {
            sge.addr >= start
                && end.checked_sub(sge.addr).is_some_and(|room| room >= u64::from(sge.length))
        })
    }

    #[inline]
    fn is_writable(&self) -> bool {
        self.access.is_none_or(|access| access & AccessFlags::LOCAL_WRITE.bits() != 0)
    }
}

const REGISTERED: &str = "the region was registered";

/// MR-05: the access of a registration.
pub(crate) fn access(access: u32) -> Option<Finding> {
    let flags = AccessFlags::from_bits_retain(access);
    let needs = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    (flags.intersects(needs) && !flags.contains(AccessFlags::LOCAL_WRITE)).then(|| {
        Finding::new(
            Id::Mr05,
            format!(
                "access {access:#x} has REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE: EINVAL"
            ),
            "add IBV_ACCESS_LOCAL_WRITE",
        )
    })
}

/// Whether an element may use a region. `pd` is the domain of the queue, 0 if unknown; `written`
/// tells whether the device writes the memory.
#[inline]
pub(crate) fn is_good(sge: &ibv_sge, mr: &Mr, pd: usize, written: bool) -> bool {
    mr.contains(sge) && (!written || mr.is_writable()) && (mr.pd == pd || pd == 0)
}

/// MR-02, MR-03, MR-04: the reasons why [`is_good`] is false. `written` names the data that the
/// device writes.
pub(crate) fn wrong_region(
    index: usize,
    sge: &ibv_sge,
    mr: &Mr,
    pd: usize,
    written: Option<&str>,
) -> Findings {
    let mut found = Findings::new();
    let mut add = |id, text: String, remedy: &str| {
        found.push(Finding::new(id, text, remedy).from(Some((REGISTERED, mr.registered_by))));
    };
    if mr.pd != pd && pd != 0 {
        add(
            Id::Mr03,
            format!(
                "sge {index}: lkey {:#x} is of mr {:#x} in PD {:#x}, the queue is in PD {pd:#x}",
                sge.lkey, mr.address_of_mr, mr.pd
            ),
            "register the memory in the queue's PD",
        );
    }
    if let (false, Some((start, end))) = (mr.contains(sge), mr.range) {
        let (first, last) = (sge.addr, sge.addr.wrapping_add(u64::from(sge.length)));
        let beyond = if first < start { start - first } else { last.saturating_sub(end) };
        add(
            Id::Mr02,
            format!(
                "sge {index}: bytes [{first:#x}, {last:#x}) leave mr {:#x}, which is [{start:#x}, {end:#x}), by {beyond}",
                mr.address_of_mr
            ),
            "correct address or length, or register more",
        );
    }
    if let (false, Some(role)) = (mr.is_writable(), written) {
        add(
            Id::Mr04,
            format!(
                "sge {index}: {role} is written to mr {:#x}, whose access {:#x} lacks IBV_ACCESS_LOCAL_WRITE",
                mr.address_of_mr,
                mr.access.unwrap_or(0)
            ),
            "add IBV_ACCESS_LOCAL_WRITE to ibv_reg_mr",
        );
    }
    found
}

/// The reason why no region of the context has an lkey.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyFault {
    /// The key is the rkey of this region.
    Rkey(Mr),
    /// The region of the key was deregistered at this place.
    Deregistered(Stack),
    /// The key is the lkey of this region of another context.
    OtherContext(Mr),
    /// No recorded region has the key.
    Unknown,
}

/// MR-01: an element whose lkey names no region.
pub(crate) fn unknown_key(index: usize, lkey: u32, fault: &KeyFault) -> Finding {
    let (text, remedy, origin) = match fault {
        KeyFault::Rkey(mr) => (
            format!("it is the rkey of mr {:#x}", mr.address_of_mr),
            format!("use mr->lkey, {:#x}", mr.lkey),
            Some((REGISTERED, mr.registered_by)),
        ),
        KeyFault::Deregistered(stack) => (
            "its region was deregistered".to_owned(),
            "deregister after the last completion, or register again and use the new key".into(),
            Some(("the region was deregistered", *stack)),
        ),
        KeyFault::OtherContext(mr) => (
            format!("it is the lkey of mr {:#x} of another context", mr.address_of_mr),
            "register the memory with this device as well".into(),
            Some((REGISTERED, mr.registered_by)),
        ),
        KeyFault::Unknown => (
            "no region that this layer saw has it".to_owned(),
            "set lkey to mr->lkey of the region that holds the buffer".into(),
            None,
        ),
    };
    let text = format!("sge {index}: lkey {lkey:#x} is not registered: {text}");
    Finding::new(Id::Mr01, text, remedy).from(origin)
}

/// MR-04: a window with the access `window` over a region that local writes may not change.
pub(crate) fn window(mr: &Mr, window: u32, length: u64) -> Option<Finding> {
    let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let access = mr.access?;
    let is_wrong = window & writes.bits() != 0 && length != 0 && !mr.is_writable();
    is_wrong.then(|| {
        let text = format!(
            "the window is for writing to mr {:#x}, whose access {access:#x} lacks IBV_ACCESS_LOCAL_WRITE",
            mr.address_of_mr
        );
        Finding::new(Id::Mr04, text, "add IBV_ACCESS_LOCAL_WRITE to ibv_reg_mr")
            .from(Some((REGISTERED, mr.registered_by)))
    })
}

/// MR-06: requests in flight that use the key of a region. `what` is "send" or "receive"; `qp` is
/// the QP's name with its type.
pub(crate) fn in_flight(
    count: usize,
    what: &str,
    qp: &str,
    wr_id: u64,
    posted: Option<Stack>,
) -> Finding {
    Finding::new(
        Id::Mr06,
        format!("{count} {what} requests of {qp} still use it, the first with wr_id {wr_id:#x}"),
        "poll their completions, or destroy the QP, before the region goes",
    )
    .from(posted.map(|stack| ("which was posted", stack)))
}

/// MR-13: regions that are left when their device is closed.
pub(crate) fn left(regions: &[Mr]) -> Option<Finding> {
    let first = regions.first()?;
    let bytes: u64 = regions.iter().filter_map(|mr| mr.range).map(|(start, end)| end - start).sum();
    let mut places: Vec<_> = regions.iter().map(|mr| mr.registered_by).collect();
    places.sort_unstable();
    places.dedup();
    let places = match places.len() {
        1 => String::new(),
        more => format!(", registered at {more} places"),
    };
    let text = format!(
        "{} regions of {bytes} bytes were never deregistered{places}; the first has lkey {:#x}",
        regions.len(),
        first.lkey
    );
    let remedy = "ibv_dereg_mr each of them, and then ibv_dealloc_pd";
    Some(
        Finding::new(Id::Mr13, text, remedy)
            .from(Some(("that region was registered", first.registered_by))),
    )
}

/// MR-12: a refused registration of `asked` bytes, of a process that may lock `limit` bytes and has
/// registered `held`.
pub(crate) fn locked_memory(limit: u64, held: u64, asked: u64) -> Option<Finding> {
    if held.saturating_add(asked) <= limit {
        return None;
    }
    let kib = |bytes: u64| bytes.div_ceil(1024);
    let text = format!(
        "ENOMEM: {} KiB may be locked, {} KiB are registered, and this one has {} KiB",
        limit / 1024,
        kib(held),
        kib(asked)
    );
    let remedy = "raise RLIMIT_MEMLOCK: ulimit -l unlimited, /etc/security/limits.d, LimitMEMLOCK=infinity, --ulimit memlock=-1";
    Some(Finding::new(Id::Mr12, text, remedy))
}

/// MR-07: a region whose memory is no longer mapped.
pub(crate) fn unmapped(addr: u64, end: u64, registered: Option<Stack>) -> Finding {
    Finding::new(
        Id::Mr07,
        format!("memory of [{addr:#x}, {end:#x}) is not mapped any more"),
        "deregister before munmap(2) or free(3): a device may go on writing to what was there",
    )
    .from(registered.map(|stack| (REGISTERED, stack)))
}

/// MR-14: a fork while memory is registered, without fork support.
pub(crate) fn fork(registered: Stack) -> Finding {
    Finding::new(
        Id::Mr14,
        "memory is registered, and fork support is off: what the parent writes first is copied, and an adapter goes on with the old page",
        "ibv_fork_init before the first registration (or RDMAV_FORK_SAFE=1), and buffers in pages of their own; not needed if the child calls exec at once",
    )
    .from(Some(("a region was registered", registered)))
}

#[cfg(test)]
mod tests {
    use super::super::finding::testing::{ids, text};
    use super::*;

    const MR: Mr = Mr {
        address_of_mr: 0xa,
        ctx: 1,
        pd: 2,
        lkey: 0x10,
        rkey: 0x11,
        range: Some((0x1000, 0x2000)),
        access: Some(1),
        shift: Some(0),
        registered_by: [7; 8],
    };

    fn sge(addr: u64, length: u32) -> ibv_sge {
        ibv_sge { addr, length, lkey: 0x10 }
    }

    fn wrong(sge: ibv_sge, mr: Mr, written: Option<&str>) -> Findings {
        wrong_region(0, &sge, &mr, 2, written)
    }

    #[test]
    fn an_element_within_its_region_is_good() {
        for (addr, length) in [(0x1000, 0x1000), (0x1fff, 1), (0x1800, 8)] {
            assert!(is_good(&sge(addr, length), &MR, 2, true), "{addr:#x} {length:#x}");
        }
    }

    #[test]
    fn an_element_that_ends_behind_its_region_leaves_it_by_so_many_bytes() {
        let long = sge(0x1ff8, 16);
        assert!(!is_good(&long, &MR, 2, false));
        let found = wrong(long, MR, None);
        assert_eq!(ids(&found), [Id::Mr02]);
        assert!(text(&found).ends_with("which is [0x1000, 0x2000), by 8"), "{found:?}");
    }

    #[test]
    fn an_element_that_begins_before_its_region_leaves_it_by_so_many_bytes() {
        let found = wrong(sge(0xff0, 32), MR, None);
        assert!(text(&found).ends_with("by 16"), "{found:?}");
    }

    #[test]
    fn an_element_at_the_end_of_the_address_space_does_not_wrap() {
        assert!(!is_good(&sge(u64::MAX - 3, 8), &MR, 2, false));
        assert_eq!(ids(&wrong(sge(u64::MAX - 3, 8), MR, None)), [Id::Mr02]);
    }

    #[test]
    fn a_region_of_unknown_range_contains_each_element() {
        let implicit = Mr { range: None, ..MR };
        assert!(is_good(&sge(0, u32::MAX), &implicit, 2, true));
    }

    #[test]
    fn a_region_of_another_domain_is_found_with_both_domains() {
        let other = Mr { pd: 3, ..MR };
        assert!(!is_good(&sge(0x1000, 8), &other, 2, false));
        let found = wrong(sge(0x1000, 8), other, None);
        assert_eq!(text(&found), "sge 0: lkey 0x10 is of mr 0xa in PD 0x3, the queue is in PD 0x2");
        assert!(is_good(&sge(0x1000, 8), &other, 0, false), "the queue's domain is unknown");
    }

    #[test]
    fn memory_that_the_device_writes_needs_local_write() {
        let read_only = Mr { access: Some(4), ..MR };
        assert!(is_good(&sge(0x1000, 8), &read_only, 2, false));
        assert!(!is_good(&sge(0x1000, 8), &read_only, 2, true));
        let found = wrong(sge(0x1000, 8), read_only, Some("what arrives"));
        assert_eq!(ids(&found), [Id::Mr04]);
        assert!(text(&found).starts_with("sge 0: what arrives is written to mr 0xa"));
    }

    #[test]
    fn a_region_of_unknown_access_may_be_written() {
        assert!(is_good(&sge(0x1000, 8), &Mr { access: None, ..MR }, 2, true));
    }

    #[test]
    fn all_errors_of_an_element_are_found() {
        let other = Mr { pd: 3, access: Some(0), ..MR };
        let found = wrong(sge(0x10, 8), other, Some("what arrives"));
        assert_eq!(ids(&found), [Id::Mr03, Id::Mr02, Id::Mr04]);
        assert!(found.iter().all(|finding| finding.origin == Some((REGISTERED, [7; 8]))));
    }

    #[test]
    fn an_rkey_in_place_of_an_lkey_is_found_with_the_lkey() {
        let found = unknown_key(1, 0x11, &KeyFault::Rkey(MR));
        assert_eq!(found.text, "sge 1: lkey 0x11 is not registered: it is the rkey of mr 0xa");
        assert_eq!(found.remedy, "use mr->lkey, 0x10");
    }

    #[test]
    fn a_key_of_a_deregistered_region_is_found_with_the_place() {
        let found = unknown_key(0, 0x10, &KeyFault::Deregistered([5; 8]));
        assert!(found.text.ends_with("its region was deregistered"));
        assert_eq!(found.origin, Some(("the region was deregistered", [5; 8])));
    }

    #[test]
    fn a_key_of_another_context_is_found() {
        let found = unknown_key(0, 0x10, &KeyFault::OtherContext(MR));
        assert!(found.text.ends_with("it is the lkey of mr 0xa of another context"));
    }

    #[test]
    fn a_key_of_no_region_has_no_second_place() {
        assert_eq!(unknown_key(0, 9, &KeyFault::Unknown).origin, None);
    }

    #[test]
    fn remote_writes_need_local_write() {
        assert_eq!(access(2).map(|found| found.id), Some(Id::Mr05));
        assert_eq!(access(8).map(|found| found.id), Some(Id::Mr05));
        assert_eq!(access(3), None);
        assert_eq!(access(4), None);
    }

    #[test]
    fn a_window_for_writes_needs_a_region_with_local_write() {
        let read_only = Mr { access: Some(0x14), ..MR };
        assert_eq!(window(&read_only, 2, 8).map(|found| found.id), Some(Id::Mr04));
        assert_eq!(window(&read_only, 4, 8), None, "the window is for reading");
        assert_eq!(window(&read_only, 2, 0), None, "the window is taken back");
        assert_eq!(window(&MR, 2, 8), None);
        assert_eq!(window(&Mr { access: None, ..MR }, 2, 8), None);
    }

    #[test]
    fn requests_in_flight_are_counted_with_the_first_of_them() {
        let found = in_flight(3, "send", "qp 0x5 (RC)", 0x7, None);
        assert_eq!(
            found.text,
            "3 send requests of qp 0x5 (RC) still use it, the first with wr_id 0x7"
        );
        assert_eq!(found.origin, None);
    }

    #[test]
    fn regions_that_are_left_are_counted_with_their_bytes_and_places() {
        assert_eq!(left(&[]), None);
        let one = left(&[MR]).expect("a finding");
        assert_eq!(
            one.text,
            "1 regions of 4096 bytes were never deregistered; the first has lkey 0x10"
        );
        let two = left(&[MR, Mr { registered_by: [8; 8], range: None, ..MR }]).expect("a finding");
        assert!(two.text.contains("2 regions of 4096 bytes"), "{}", two.text);
        assert!(two.text.contains(", registered at 2 places;"), "{}", two.text);
    }

    #[test]
    fn only_a_limit_that_is_too_small_explains_a_refused_registration() {
        assert_eq!(locked_memory(8 << 20, 4 << 20, 4 << 20), None);
        let found = locked_memory(8 << 20, 4 << 20, (4 << 20) + 1).expect("too much");
        assert_eq!(
            found.text,
            "ENOMEM: 8192 KiB may be locked, 4096 KiB are registered, and this one has 4097 KiB"
        );
        assert!(locked_memory(65536, u64::MAX, u64::MAX).is_some());
    }

    #[test]
    fn unmapped_memory_is_named_by_its_range() {
        let found = unmapped(0x1000, 0x3000, None);
        assert_eq!(found.text, "memory of [0x1000, 0x3000) is not mapped any more");
        assert_eq!(fork([3; 8]).origin, Some(("a region was registered", [3; 8])));
    }
}
