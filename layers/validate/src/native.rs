//! What the layer asks of the system, of the C library and of the address sanitizer, as safe
//! functions.

use core::ffi::{CStr, c_char, c_int, c_short, c_void};
use core::mem::MaybeUninit;

/// The errno of the last call.
fn last_error() -> Option<c_int> {
    std::io::Error::last_os_error().raw_os_error()
}

/// Whether a page of the range is not mapped (mincore(2)).
pub(crate) fn is_unmapped(first: usize, last: usize) -> bool {
    let page = cface::mem::page_size();
    /// Pages of one `mincore` call.
    const PAGES: usize = 1 << 14;
    let mut seen = vec![0_u8; PAGES];
    let mut at = first & !(page - 1);
    while at < last {
        let length = (last - at).min(PAGES * page);
        // SAFETY: mincore(2) reads no memory of the range, and `seen` has a byte for each page.
        let result = unsafe { libc::mincore(at as *mut c_void, length, seen.as_mut_ptr()) };
        if result != 0 && last_error() == Some(libc::ENOMEM) {
            return true;
        }
        at = at.saturating_add(length);
    }
    false
}

/// Copies memory of this process. Returns false if the memory cannot be read: the kernel checks the
/// address, so that unmapped memory is an error and no signal.
pub(crate) fn read_memory(at: u64, to: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: at as *mut _, iov_len: to.len() };
    // SAFETY: `local` has the length of `to`.
    let read = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    read == to.len() as isize
}

/// Bytes that this process may lock; `None` without a limit.
pub(crate) fn locked_memory_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local variable.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Whether a reader of a descriptor sleeps if nothing waits; false for a closed descriptor.
pub(crate) fn blocks(fd: c_int) -> bool {
    // SAFETY: F_GETFL takes no argument.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK == 0
}

/// Whether the number is an open descriptor.
pub(crate) fn is_open(fd: c_int) -> bool {
    // SAFETY: F_GETFD takes no argument.
    unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
}

/// Waits for input or an error of a descriptor, at most `milliseconds`. Returns the events of
/// poll(2); 0 after the time.
///
/// # Errors
/// The errno of an interrupted wait.
pub(crate) fn poll(fd: c_int, milliseconds: c_int) -> Result<c_short, c_int> {
    let mut watched = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry.
    let ready = unsafe { libc::poll(&raw mut watched, 1, milliseconds) };
    if ready < 0 {
        return Err(last_error().unwrap_or(libc::EINTR));
    }
    Ok(if ready > 0 { watched.revents } else { 0 })
}

/// Flushes the streams of the C library, and ends the process at once.
pub(crate) fn exit(status: c_int) -> ! {
    // SAFETY: the call flushes stdio's buffers; the process ends as planned.
    unsafe {
        libc::fflush(core::ptr::null_mut());
        libc::_exit(status)
    }
}

/// The address of a name that the program or its libraries export.
pub(crate) fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The address of a name of a library that is loaded. A program that opened the library with
/// dlopen(3) does not have its names in the global scope.
pub(crate) fn symbol_of(library: &CStr, name: &CStr) -> Option<*mut c_void> {
    symbol(name).or_else(|| {
        // SAFETY: the names end with a NUL, and RTLD_NOLOAD loads nothing. The handle stays open.
        unsafe {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            let found = if handle.is_null() { handle } else { libc::dlsym(handle, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        }
    })
}

/// Calls `frame` with the address of each frame of this thread, the innermost first, until `frame`
/// returns false. `frame` takes no lock of the unwinder.
#[inline(always)]
pub(crate) fn trace(mut frame: impl FnMut(usize) -> bool) {
    // SAFETY: the thread holds no lock of the unwinder, and the closure takes none.
    unsafe { backtrace::trace_unsynchronized(|found| frame(found.ip() as usize)) };
}

/// Load address and file of the object that contains an address.
pub(crate) fn object_of(address: usize) -> Option<(usize, &'static CStr)> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address.
    let found = unsafe { libc::dladdr(address as *const c_void, info.as_mut_ptr()) };
    // SAFETY: the structure is zeroed or filled by dladdr; both are valid.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name ends with a NUL, and the object is on the stack.
    Some((info.dli_fbase as usize, unsafe { CStr::from_ptr(info.dli_fname) }))
}

type Change = unsafe extern "C" fn(*const c_void, usize);
/// The callback of the sanitizer, which gets the text of its report.
pub(crate) type OnReport = unsafe extern "C" fn(*const c_char);

/// Functions of the sanitizer (sanitizer/asan_interface.h).
pub(crate) struct Sanitizer {
    poison: Change,
    unpoison: Change,
    report_address: unsafe extern "C" fn() -> *const c_void,
    /// The shadow byte of an address is at `(address >> scale) + offset`.
    scale: usize,
    offset: usize,
}

impl Sanitizer {
    /// The sanitizer of this process, which calls `callback` after a report; `None` without one.
    pub(crate) fn find(callback: OnReport) -> Option<Self> {
        let poison = symbol(c"__asan_poison_memory_region")?;
        let unpoison = symbol(c"__asan_unpoison_memory_region")?;
        let report_address = symbol(c"__asan_get_report_address")?;
        let mapping = symbol(c"__asan_get_shadow_mapping")?;
        let on_report = symbol(c"__asan_set_error_report_callback")?;
        let (mut scale, mut offset) = (0_usize, 0_usize);
        // SAFETY: the functions have the prototypes of the sanitizer's header.
        unsafe {
            type Mapping = unsafe extern "C" fn(*mut usize, *mut usize);
            let mapping = core::mem::transmute::<*mut c_void, Mapping>(mapping);
            mapping(&raw mut scale, &raw mut offset);
            type SetCallback = unsafe extern "C" fn(OnReport);
            core::mem::transmute::<*mut c_void, SetCallback>(on_report)(callback);
            Some(Self {
                poison: core::mem::transmute::<*mut c_void, Change>(poison),
                unpoison: core::mem::transmute::<*mut c_void, Change>(unpoison),
                report_address: core::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn() -> *const c_void,
                >(report_address),
                scale,
                offset,
            })
        }
    }

    /// Marks memory that the program may not use.
    pub(crate) fn poison(&self, at: u64, bytes: u64) {
        // SAFETY: the range is registered memory of the program; the sanitizer marks it only.
        unsafe { (self.poison)(at as *const c_void, bytes as usize) };
    }

    /// Removes the mark of memory.
    pub(crate) fn unpoison(&self, at: u64, bytes: u64) {
        // SAFETY: as in `poison`.
        unsafe { (self.unpoison)(at as *const c_void, bytes as usize) };
    }

    /// The shadow byte of memory that was in use.
    pub(crate) fn shadow(&self, at: u64) -> u8 {
        let byte = ((at as usize) >> self.scale).wrapping_add(self.offset) as *const u8;
        // SAFETY: shadow memory stays mapped for an address that was in use. Other threads may
        // write it.
        unsafe { byte.read_volatile() }
    }

    /// The address of the last report; valid in the callback.
    pub(crate) fn report_address(&self) -> u64 {
        // SAFETY: the sanitizer's function may be called after a report.
        unsafe { (self.report_address)() as u64 }
    }
}
