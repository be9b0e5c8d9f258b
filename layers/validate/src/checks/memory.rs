//! Refusals of memory regions, windows and device memory: ibv_reg_mr(3), ibv_rereg_mr(3),
//! ibv_alloc_mw(3), ibv_bind_mw(3), ibv_advise_mr(3), ibv_alloc_dm(3).
//!
//! Map of this file: `Registration` and its parts; registering again; deregistering; device memory;
//! windows; advice; tests. No state, no lock.

use abi::{
    AccessFlags, IBV_ACCESS_OPTIONAL_RANGE, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_FLAG_FLUSH, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2A,
    IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_FLAGS_SUPPORTED,
};

use super::Id;
use super::given::{Facts, Judged};
use super::maps;

/// Bits of `access` with a name, and bits that a kernel may ignore.
const ACCESS: u64 = 0x3ff | IBV_ACCESS_OPTIONAL_RANGE as u64;

/// The arguments of a registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) iova: u64,
    pub(crate) access: u32,
}

/// Judges `access`.
fn access(given: &mut Judged, access: u32) {
    let flags = AccessFlags::from_bits_retain(access);
    let changes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if flags.intersects(changes) && !flags.contains(AccessFlags::LOCAL_WRITE) {
        let text =
            format!("access {access:#x} has REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE");
        return given.wrong_by(Id::Mr05, text, "add IBV_ACCESS_LOCAL_WRITE");
    }
    if flags.contains(AccessFlags::FLUSH_PERSISTENT) {
        let text =
            format!("access {access:#x} has FLUSH_PERSISTENT, and the memory is not persistent");
        return given.add_wrong(text, "use IBV_ACCESS_FLUSH_GLOBAL");
    }
    given.flags("access", access.into(), ACCESS);
}

/// Judges `addr`, `length` and `iova`.
fn range(given: &mut Judged, facts: &Facts<'_>, asked: &Registration) {
    let Registration { addr, length, iova, .. } = *asked;
    let is_implicit = length == u64::try_from(usize::MAX).unwrap_or(u64::MAX);
    if is_implicit {
        let on_demand = asked.access & AccessFlags::ON_DEMAND.bits() != 0;
        if addr != 0 || !on_demand {
            let text = format!(
                "length {length:#x} stands for all memory, and addr is {addr:#x}, access {:#x}",
                asked.access
            );
            given.add_wrong(text, "all memory needs addr NULL and IBV_ACCESS_ON_DEMAND");
        }
        return;
    }
    if length == 0 {
        let text = "length 0: a region of no bytes".to_owned();
        given.wrong_by(Id::Mr16, text, "register 1 byte at least, or nothing");
    }
    for (name, begin) in [("addr", addr), ("iova", iova)] {
        if begin.checked_add(length).is_none() {
            given.add_wrong(
                format!("{name} {begin:#x} + length {length:#x} exceeds the address space"),
                "correct the address or the length; was the length computed from a negative number?",
            );
        } else {
            given.add_plausible(name, format_args!("{begin:#x}"));
        }
    }
    let is_zero_based = asked.access & AccessFlags::ZERO_BASED.bits() != 0;
    let page = cface::mem::page_size() as u64;
    if (addr ^ iova) % page != 0 && !is_zero_based {
        let text = format!(
            "iova {iova:#x} is {:#x} bytes behind the beginning of a page, and addr {addr:#x} is {:#x}",
            iova % page,
            addr % page
        );
        given.wrong_by(Id::Mr17, text, "give the iova the same offset within its page as addr has");
    }
    match facts.device {
        Some(device) if device.max_mr_size != 0 && length > device.max_mr_size => given.add_wrong(
            format!(
                "length {length:#x} exceeds {:#x} (max_mr_size of ibv_query_device)",
                device.max_mr_size
            ),
            "register the memory in parts",
        ),
        _ if length > 0 => given.add_plausible("length", length),
        _ => {}
    }
}

/// ibv_reg_mr(3). `maps` is the text of /proc/self/maps, read for EFAULT.
pub(crate) fn register(facts: &Facts<'_>, asked: &Registration, errno: i32, maps: &str) -> Judged {
    let mut given = Judged::default();
    if errno == libc::EFAULT {
        let written = asked.access & AccessFlags::LOCAL_WRITE.bits() != 0;
        match maps::fault(maps, asked.addr, asked.length, written) {
            Some(fault @ maps::Fault::Unmapped { .. }) => given.add_wrong(
                fault.text(),
                "register memory that is mapped: is the pointer right, and was the memory freed or unmapped?",
            ),
            Some(fault @ maps::Fault::Rights { .. }) => given.add_wrong(
                fault.text(),
                "mprotect(2) it, or ask for no more in access: IBV_ACCESS_LOCAL_WRITE needs memory that can be written",
            ),
            None => {}
        }
    }
    if errno == libc::ENOMEM {
        regions(&mut given, facts);
    }
    access(&mut given, asked.access);
    range(&mut given, facts, asked);
    given
}

/// Explains ENOMEM of calls that make a region.
fn regions(given: &mut Judged, facts: &Facts<'_>) {
    let most = facts.device.map(|device| device.max_mr);
    given.full("regions", facts.counts.regions, most, "max_mr");
}

/// ibv_rereg_mr(3). `other_context` tells whether the PD belongs to another context.
pub(crate) fn register_again(
    facts: &Facts<'_>,
    flags: u32,
    asked: &Registration,
    other_context: bool,
    errno: i32,
    maps: &str,
) -> Judged {
    let translates = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let mut given =
        if translates { register(facts, asked, errno, maps) } else { Judged::default() };
    if flags == 0 {
        let text = "flags 0: nothing is to be changed".to_owned();
        given.wrong_by(
            Id::Mr18,
            text,
            "name what changes: IBV_REREG_MR_CHANGE_ACCESS, for example",
        );
    } else {
        given.flags("flags", flags.into(), IBV_REREG_MR_FLAGS_SUPPORTED.into());
    }
    if !translates && flags & abi::IBV_REREG_MR_CHANGE_ACCESS != 0 {
        access(&mut given, asked.access);
    }
    if flags & IBV_REREG_MR_CHANGE_PD != 0 && other_context {
        given.add_wrong("pd is of another context", "use a PD of the region's own context");
    }
    if errno == libc::EBUSY {
        given.add_wrong(
            "memory windows are bound to the region",
            "invalidate or deallocate the windows first",
        );
    }
    given
}

/// ibv_dereg_mr(3): `EBUSY`, or `EINVAL` of an imported region.
pub(crate) fn deregister(errno: i32) -> Judged {
    let mut given = Judged::default();
    if errno == libc::EBUSY {
        given.add_wrong(
            "memory windows are bound to the region",
            "ibv_dealloc_mw, or invalidate, each window that is bound to it first",
        );
    } else {
        given.add_wrong(
            "an imported region is not deregistered",
            "ibv_unimport_mr for what ibv_import_mr gave",
        );
    }
    given
}

/// ibv_reg_dm_mr(3).
pub(crate) fn register_device_memory(
    facts: &Facts<'_>,
    offset: u64,
    length: u64,
    rights: u32,
    errno: i32,
) -> Judged {
    let mut given = Judged::default();
    if errno == libc::ENOMEM {
        regions(&mut given, facts);
    }
    access(&mut given, rights);
    if rights & AccessFlags::ZERO_BASED.bits() == 0 {
        let text = format!("access {rights:#x} lacks ZERO_BASED, which device memory needs");
        given.add_wrong(text, "add IBV_ACCESS_ZERO_BASED");
    }
    for (name, value) in [("dm_offset", offset), ("length", length)] {
        if value % 4 == 0 {
            given.add_plausible(name, value);
        } else {
            given.add_wrong(
                format!("{name} {value} is not a multiple of 4"),
                "device memory is used in words of 4 bytes",
            );
        }
    }
    given
}

/// ibv_alloc_dm(3).
pub(crate) fn allocate_device_memory(length: u64, log_align: u32, mask: u32) -> Judged {
    let mut given = Judged::default();
    given.number("log_align_req", log_align.into(), 0..=12, "powers of two up to a page");
    given.flags("comp_mask", mask.into(), 0);
    if length == 0 {
        given.add_wrong("length 0: memory of no bytes", "ask for 1 byte at least");
    } else {
        let limit = "max_dm_size of ibv_query_device_ex";
        given.add_plausible("length", format_args!("{length} (the limit is {limit})"));
    }
    given
}

/// ibv_alloc_mw(3).
pub(crate) fn allocate_window(facts: &Facts<'_>, kind: u32, errno: i32) -> Judged {
    let mut given = Judged::default();
    if errno == libc::ENOMEM {
        let most = facts.device.map(|device| device.max_mw);
        given.full("windows", facts.counts.windows, most, "max_mw");
    }
    let flags = facts.device.map_or(u32::MAX, |device| device.device_cap_flags);
    let second = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    let lacks = match kind {
        IBV_MW_TYPE_1 => flags & IBV_DEVICE_MEM_WINDOW == 0,
        IBV_MW_TYPE_2 => flags & second == 0,
        _ => false,
    };
    if lacks {
        let text =
            format!("the device has no windows of type {kind} (device_cap_flags {flags:#x})");
        given.add_wrong(text, "ask ibv_query_device which types there are");
    } else {
        given.number("type", kind.into(), 1..=2, "IBV_MW_TYPE_1 and IBV_MW_TYPE_2");
    }
    given
}

/// The region of a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundTo {
    /// Addresses of the region; `None` if unknown.
    pub(crate) range: Option<(u64, u64)>,
    /// Access of the region; `None` if unknown.
    pub(crate) access: Option<u32>,
}

/// The arguments of a bind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    /// `None` if the program names no region.
    pub(crate) region: Option<BoundTo>,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
}

/// ibv_bind_mw(3).
pub(crate) fn bind_window(asked: &Binding, errno: i32) -> Judged {
    let mut given = Judged::default();
    let Binding { region, addr, length, access } = *asked;
    if errno == libc::ENOMEM {
        given.add_wrong(
            "the send queue is full",
            "poll completions first: a bind takes a place there",
        );
    }
    if length == 0 {
        given.add_plausible("bind_info.length", "0 (it takes the window back)");
        return given;
    }
    let Some(region) = region else {
        given.add_wrong(
            "bind_info.mr is NULL, and length is not 0",
            "name the region that the window opens",
        );
        return given;
    };
    let writes = (AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC).bits();
    match region.access {
        Some(rights) if rights & AccessFlags::MW_BIND.bits() == 0 => given.add_wrong(
            format!("the access of the region, {rights:#x}, lacks MW_BIND"),
            "register the region with IBV_ACCESS_MW_BIND",
        ),
        Some(rights) if rights & AccessFlags::ZERO_BASED.bits() != 0 => given.add_wrong(
            "the region is zero-based",
            "register the region without IBV_ACCESS_ZERO_BASED",
        ),
        Some(rights) if access & writes != 0 && rights & AccessFlags::LOCAL_WRITE.bits() == 0 => {
            given.add_wrong(
                format!("the access of the region, {rights:#x}, lacks LOCAL_WRITE, and the window is for writing"),
                "register the region with IBV_ACCESS_LOCAL_WRITE",
            );
        }
        _ => {}
    }
    if let Some((start, end)) = region.range {
        let last = addr.checked_add(length);
        if addr < start || last.is_none_or(|last| last > end) {
            let text = format!(
                "[{addr:#x}, {addr:#x} + {length:#x}) is not within the region, [{start:#x}, {end:#x})"
            );
            given.add_wrong(text, "bind the window to bytes of its region");
        }
    }
    let rights = AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
        | AccessFlags::ZERO_BASED;
    given.flags("bind_info.mw_access_flags", access.into(), rights.bits().into());
    given
}

/// ibv_advise_mr(3).
pub(crate) fn advise(advice: u32, flags: u32, has_list: bool, count: u32) -> Judged {
    let mut given = Judged::default();
    let most = i64::from(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT);
    given.number("advice", advice.into(), 0..=most, "ibv_advise_mr_advice");
    given.flags("flags", flags.into(), IBV_ADVISE_MR_FLAG_FLUSH.into());
    given.add_required("sg_list", has_list, "give a list of ranges");
    given.number("num_sge", count.into(), 1..=i64::from(u32::MAX), "a list of ranges");
    if given.wrong_arguments.is_empty() {
        given.add_plausible(
            "each range",
            "must lie in a region with IBV_ACCESS_ON_DEMAND of this PD",
        );
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::given::ObjectCounts;
    use crate::checks::given::testing::{judge_with, wrong_texts};

    const GOOD: Registration =
        Registration { addr: 0x10_0000, length: 4096, iova: 0x10_0000, access: 1 };

    fn refused(asked: Registration, errno: i32) -> Judged {
        judge_with(ObjectCounts { regions: 5, ..ObjectCounts::default() }, |facts| {
            register(facts, &asked, errno, "")
        })
    }

    #[test]
    fn a_good_registration_has_nothing_wrong() {
        let given = refused(GOOD, libc::EINVAL);
        assert!(given.wrong_arguments.is_empty(), "{given:?}");
        assert_eq!(
            given.plausible_arguments,
            ["access 0x1", "addr 0x100000", "iova 0x100000", "length 4096"]
        );
    }

    #[test]
    fn memory_that_is_not_mapped_is_named_by_its_page() {
        let given = refused(GOOD, libc::EFAULT);
        assert_eq!(wrong_texts(&given), ["the page 0x100000 is not mapped (/proc/self/maps)"]);
    }

    #[test]
    fn read_only_memory_is_named_with_its_rights() {
        let maps = "100000-102000 r--p 00000000 00:00 0 \n";
        let given =
            judge_with(ObjectCounts::default(), |facts| register(facts, &GOOD, libc::EFAULT, maps));
        let text = "the page 0x100000 of anonymous memory has the rights r--p (/proc/self/maps)";
        assert_eq!(wrong_texts(&given), [text]);
        assert!(given.wrong_arguments[0].remedy.contains("IBV_ACCESS_LOCAL_WRITE"));
    }

    #[test]
    fn as_many_regions_as_the_device_has_are_told() {
        assert_eq!(
            wrong_texts(&refused(GOOD, libc::ENOMEM)),
            ["5 regions are open, and max_mr is 5"]
        );
    }

    #[test]
    fn an_unknown_right_is_told_with_its_bit() {
        let given = refused(Registration { access: 0x1001, ..GOOD }, libc::EINVAL);
        assert!(wrong_texts(&given)[0].contains("0x1000"), "{given:?}");
        let optional = refused(Registration { access: 1 | 1 << 20, ..GOOD }, libc::EINVAL);
        assert!(optional.wrong_arguments.is_empty(), "a kernel may ignore it");
    }

    #[test]
    fn an_empty_region_and_an_iova_of_another_offset_have_checks_of_their_own() {
        let given = refused(Registration { length: 0, ..GOOD }, libc::EINVAL);
        assert_eq!(given.wrong_arguments[0].id, Some(Id::Mr16));
        let given = refused(Registration { iova: 0x20_0008, ..GOOD }, libc::EINVAL);
        assert_eq!(given.wrong_arguments[0].id, Some(Id::Mr17));
        let same = refused(Registration { addr: 0x10_0008, iova: 0x20_0008, ..GOOD }, libc::EINVAL);
        assert!(same.wrong_arguments.is_empty());
    }

    #[test]
    fn a_range_that_leaves_the_address_space_is_told() {
        let at = u64::MAX - 63;
        let given = refused(Registration { addr: at, iova: at, length: 128, ..GOOD }, libc::EINVAL);
        assert_eq!(given.wrong_arguments.len(), 2, "addr and iova");
        assert!(wrong_texts(&given)[0].starts_with("addr 0xffffffffffffffc0 + length 0x80"));
    }

    #[test]
    fn a_region_longer_than_the_device_takes_is_told() {
        let given = refused(Registration { length: (1 << 30) + 1, ..GOOD }, libc::EINVAL);
        assert!(wrong_texts(&given)[0].contains("max_mr_size"));
    }

    #[test]
    fn all_memory_needs_no_address_and_pages_on_demand() {
        let all = u64::try_from(usize::MAX).expect("64 bits");
        let given = refused(Registration { length: all, ..GOOD }, libc::EINVAL);
        assert!(wrong_texts(&given)[0].contains("stands for all memory"));
        let good = Registration { addr: 0, iova: 0, length: all, access: 1 | 1 << 6 };
        assert!(refused(good, libc::EINVAL).wrong_arguments.is_empty());
    }

    #[test]
    fn a_remote_write_without_a_local_one_is_told_by_its_check() {
        let given = refused(Registration { access: 2, ..GOOD }, libc::EINVAL);
        assert_eq!(given.wrong_arguments[0].id, Some(Id::Mr05));
    }

    fn again(flags: u32, errno: i32, other: bool) -> Judged {
        judge_with(ObjectCounts::default(), |facts| {
            register_again(facts, flags, &GOOD, other, errno, "")
        })
    }

    #[test]
    fn registering_again_needs_flags() {
        assert_eq!(again(0, libc::EINVAL, false).wrong_arguments[0].id, Some(Id::Mr18));
        assert!(wrong_texts(&again(8, libc::EINVAL, false))[0].contains("0x8"));
        assert!(wrong_texts(&again(2, libc::EINVAL, true))[0].contains("another context"));
        assert!(wrong_texts(&again(4, libc::EBUSY, false))[0].contains("windows"));
        assert!(wrong_texts(&again(1, libc::EFAULT, false))[0].contains("not mapped"));
    }

    #[test]
    fn a_region_with_windows_is_busy() {
        assert!(wrong_texts(&deregister(libc::EBUSY))[0].contains("windows"));
        assert!(wrong_texts(&deregister(libc::EINVAL))[0].contains("imported"));
    }

    #[test]
    fn device_memory_is_used_in_words_and_from_0() {
        let given = judge_with(ObjectCounts::default(), |facts| {
            register_device_memory(facts, 2, 8, 1, libc::EINVAL)
        });
        assert_eq!(given.wrong_arguments.len(), 2, "{given:?}");
        assert!(!allocate_device_memory(0, 40, 1).wrong_arguments.is_empty());
        assert_eq!(allocate_device_memory(0, 40, 1).wrong_arguments.len(), 3);
        assert!(allocate_device_memory(64, 3, 0).wrong_arguments.is_empty());
    }

    #[test]
    fn a_window_has_type_1_or_2_and_the_device_has_so_many() {
        let with = |kind, errno, windows| {
            judge_with(ObjectCounts { windows, ..ObjectCounts::default() }, |facts| {
                allocate_window(facts, kind, errno)
            })
        };
        assert_eq!(
            wrong_texts(&with(9, libc::EINVAL, 0)),
            ["type 9 is not in 1..=2 (IBV_MW_TYPE_1 and IBV_MW_TYPE_2)"]
        );
        assert!(wrong_texts(&with(1, libc::EINVAL, 0))[0].contains("no windows of type 1"));
        assert!(wrong_texts(&with(2, libc::ENOMEM, 2))[0].contains("max_mw is 2"));
    }

    #[test]
    fn a_window_opens_bytes_of_a_region_that_can_be_bound() {
        let region = BoundTo { range: Some((0x1000, 0x2000)), access: Some(0x11) };
        let good = Binding { region: Some(region), addr: 0x1000, length: 0x1000, access: 2 };
        let told = |asked: Binding| bind_window(&asked, libc::EINVAL);
        assert!(told(good).wrong_arguments.is_empty());
        assert!(wrong_texts(&told(Binding { region: None, ..good }))[0].contains("NULL"));
        assert!(wrong_texts(&told(Binding { length: 0x1001, ..good }))[0].contains("not within"));
        assert!(wrong_texts(&told(Binding { access: 1, ..good }))[0].contains("mw_access_flags"));
        let unbindable = BoundTo { access: Some(1), ..region };
        assert!(
            wrong_texts(&told(Binding { region: Some(unbindable), ..good }))[0].contains("MW_BIND")
        );
        let read_only = BoundTo { access: Some(0x10), ..region };
        assert!(
            wrong_texts(&told(Binding { region: Some(read_only), ..good }))[0]
                .contains("LOCAL_WRITE")
        );
        let based = BoundTo { access: Some(0x31), ..region };
        assert!(
            wrong_texts(&told(Binding { region: Some(based), ..good }))[0].contains("zero-based")
        );
        assert!(told(Binding { length: 0, region: None, ..good }).wrong_arguments.is_empty());
        assert!(wrong_texts(&bind_window(&good, libc::ENOMEM))[0].contains("send queue is full"));
    }

    #[test]
    fn advice_is_about_a_list_of_ranges() {
        assert!(advise(0, 1, true, 1).wrong_arguments.is_empty());
        assert_eq!(advise(9, 2, false, 0).wrong_arguments.len(), 4);
    }
}
