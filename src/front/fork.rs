//! Fork support: `ibv_fork_init(3)`, `ibv_is_fork_initialized(3)`, `ibv_dontfork_range`,
//! `ibv_dofork_range`.

use core::ffi::{c_int, c_void};
use core::ops::Range;

use abi::{IBV_FORK_DISABLED, IBV_FORK_ENABLED, IBV_FORK_UNNEEDED, ibv_fork_status};

use super::fork_map::ForkMap;
use crate::sys::smaps;
use cface::lock::Guard;
use cface::shared::StaticMutex;
use cface::{Errno, mem};
use netlink::rdma;

#[derive(Debug)]
struct ForkState {
    map: Option<ForkMap>,
    /// A range was used before fork support was on, which excludes turning it on later.
    too_late: bool,
    /// Ranges may lie in huge pages: each mapping's own page size counts.
    huge: bool,
}

/// Innermost lock: only `madvise`, a look at `/proc` and a question to the kernel by netlink happen
/// while it is held.
static STATE: StaticMutex<ForkState> =
    StaticMutex::new(ForkState { map: None, too_late: false, huge: false });

/// Waits for the ranges' lock, to fork.
pub(crate) fn hold() -> Guard {
    STATE.hold()
}

/// Turns fork support on. Kernels that copy registered pages at fork need none.
///
/// # Errors
/// `EINVAL` too late, `ENOSYS` no `madvise`, `ENOMEM`.
pub(crate) fn init() -> Result<(), Errno> {
    let mut state = STATE.lock();
    if std::env::var_os("RDMAV_HUGEPAGES_SAFE").is_some() {
        state.huge = true;
    }
    if state.map.is_some() {
        return Ok(());
    }
    if rdma::copies_on_fork() {
        return Ok(());
    }
    if state.too_late {
        return Err(Errno::EINVAL);
    }
    probe(state.huge)?;
    state.map = Some(ForkMap::new());
    Ok(())
}

/// Whether forking is safe, and by whose doing.
pub(crate) fn status() -> ibv_fork_status {
    if rdma::copies_on_fork() {
        return IBV_FORK_UNNEEDED;
    }
    let state = STATE.lock();
    if state.map.is_some() { IBV_FORK_ENABLED } else { IBV_FORK_DISABLED }
}

/// A device is about to use this memory.
///
/// # Errors
/// Of `madvise`.
pub(crate) fn dont_fork(base: *mut c_void, size: usize) -> Result<(), Errno> {
    let mut state = STATE.lock();
    let Some(range) = range_of(&mut state, base, size) else { return Ok(()) };
    let Some(map) = &mut state.map else { return Ok(()) };
    map.add(range, |part| advise(part, libc::MADV_DONTFORK), inherit)
}

/// A device is done with this memory.
pub(crate) fn do_fork(base: *mut c_void, size: usize) {
    let mut state = STATE.lock();
    let Some(range) = range_of(&mut state, base, size) else { return };
    if let Some(map) = &mut state.map {
        map.remove(range, inherit);
    }
}

/// The pages of a range; `None` when there is nothing to do.
fn range_of(state: &mut ForkState, base: *mut c_void, size: usize) -> Option<Range<usize>> {
    if state.map.is_none() {
        state.too_late = true;
        return None;
    }
    if size == 0 || base.is_null() {
        return None;
    }
    let page = if state.huge { smaps::page_size_at(base.addr()) } else { mem::page_size() };
    let start = base.addr() & !(page - 1);
    let end = base.addr().checked_add(size)?.checked_next_multiple_of(page)?;
    Some(start..end)
}

fn advise(range: Range<usize>, advice: c_int) -> Result<(), Errno> {
    let start = core::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: both advices only change what a child inherits; no memory of this process changes.
    let result = unsafe { libc::madvise(start, range.len(), advice) };
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Lets children inherit a range again. A part may be unmapped by now, which is no error: then each
/// page is tried separately.
fn inherit(range: Range<usize>) {
    let page = mem::page_size();
    if advise(range.clone(), libc::MADV_DOFORK).is_ok() || range.len() <= page {
        return;
    }
    for start in range.step_by(page) {
        let _ = advise(start..start + page, libc::MADV_DOFORK);
    }
}

/// Checks on a private page that the kernel supports the advice.
fn probe(huge: bool) -> Result<(), Errno> {
    let page = mem::alloc_pages(mem::page_size())?;
    let size = if huge { smaps::page_size_at(page.addr().get()) } else { mem::page_size() };
    let start = page.as_ptr().expose_provenance() & !(size - 1);
    let result = advise(start..start + size, libc::MADV_DONTFORK)
        .and_then(|()| advise(start..start + size, libc::MADV_DOFORK));
    // SAFETY: allocated a few lines above, for this test of the kernel alone.
    unsafe { mem::free(page.as_ptr()) };
    result.map_err(|_| Errno::ENOSYS)
}
