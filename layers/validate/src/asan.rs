//! MR-10: reports access to a buffer before its completion is polled, by means of
//! AddressSanitizer.
//!
//! The sanitizer reports accesses to *poisoned* memory. The layer poisons the buffers of receives
//! and READs while they are in flight (`overlap` tracks these buffers). The sanitizer's report has
//! the stack of the access, and the layer adds the request.
//!
//! Writes of a kernel device bypass the sanitizer. `soft` writes within the process, by C library
//! functions that the sanitizer intercepts. The sanitizer accepts these writes only with a
//! suppression, which is read at process start. Without the suppression the layer poisons nothing.

use core::ffi::{c_char, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use crate::checks::Id;
use crate::report::wanted;

/// The suppression that `soft` needs.
const SUPPRESSION: &str = "interceptor_via_lib:libsoft";
/// Bytes of memory for each shadow byte.
const GRANULE: u64 = 8;
/// Shadow byte of memory that a user poisoned (`kAsanUserPoisonedMemoryMagic`). Freed memory has
/// another value.
const POISONED: u8 = 0xf7;

type Change = unsafe extern "C" fn(*const c_void, usize);
/// The callback of the sanitizer, which gets the text of its report.
pub(crate) type OnReport = unsafe extern "C" fn(*const c_char);

/// Functions of the sanitizer (sanitizer/asan_interface.h).
struct Sanitizer {
    poison: Change,
    unpoison: Change,
    report_address: unsafe extern "C" fn() -> *const c_void,
    /// The shadow byte of an address is at `(address >> scale) + offset`.
    scale: usize,
    offset: usize,
}

/// `None` if the process has no sanitizer.
static SANITIZER: OnceLock<Option<Sanitizer>> = OnceLock::new();

/// Whether a device was opened whose writes the sanitizer would report.
static OFF: AtomicBool = AtomicBool::new(false);

/// Prepares MR-10 when a device is opened. `writes_itself` is true for a plugin without a kernel
/// driver. The sanitizer calls `on_report` after a report. Returns whether poisoning ends, so that
/// the caller must unpoison all buffers.
pub(crate) fn begin(writes_itself: bool, on_report: OnReport) -> bool {
    if !wanted(Id::Mr10) || SANITIZER.get_or_init(|| find(on_report)).is_none() {
        return false;
    }
    let ends = writes_itself && !is_suppressed() && !OFF.swap(true, Ordering::Relaxed);
    if ends {
        say(
            "suppressions of AddressSanitizer need a line interceptor_via_lib:libsoft (ASAN_OPTIONS=suppressions=FILE), or it takes the software device for the program",
        );
    }
    ends
}

fn say(why: &str) {
    cface::say!("ferroverbs validate: MR-10 tells nothing: {why}");
}

/// Whether buffers are poisoned.
pub(crate) fn is_on() -> bool {
    wanted(Id::Mr10) && !OFF.load(Ordering::Relaxed) && matches!(SANITIZER.get(), Some(Some(_)))
}

fn find(callback: OnReport) -> Option<Sanitizer> {
    let functions = [
        c"__asan_poison_memory_region",
        c"__asan_unpoison_memory_region",
        c"__asan_get_report_address",
        c"__asan_get_shadow_mapping",
        c"__asan_set_error_report_callback",
    ]
    // SAFETY: the names end with a NUL.
    .map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
    if functions.iter().any(|function| function.is_null()) {
        say("the program is not built with -fsanitize=address");
        return None;
    }
    let [poison, unpoison, report_address, mapping, on_report] = functions;
    let (mut scale, mut offset) = (0_usize, 0_usize);
    // SAFETY: the functions have the prototypes of the sanitizer's header.
    unsafe {
        let mapping: unsafe extern "C" fn(*mut usize, *mut usize) = core::mem::transmute(mapping);
        mapping(&raw mut scale, &raw mut offset);
        let on_report: unsafe extern "C" fn(OnReport) = core::mem::transmute(on_report);
        on_report(callback);
        Some(Sanitizer {
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

/// Whether the process was started with the suppression.
fn is_suppressed() -> bool {
    let options = std::env::var("ASAN_OPTIONS").unwrap_or_default();
    let file = options.split([':', ',', ' ']).find_map(|word| word.strip_prefix("suppressions="));
    let file = file.map(|file| file.trim_matches(['"', '\'']));
    let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    text.lines().any(|line| line.trim().starts_with(SUPPRESSION))
}

/// The complete granules of a range. Its first and last bytes may share a granule with a
/// neighbour.
fn granules(span: &Range<u64>) -> Range<u64> {
    span.start.next_multiple_of(GRANULE)..span.end / GRANULE * GRANULE
}

/// Poisons the bytes of a request that is posted.
pub(crate) fn poison(span: &Range<u64>) {
    let span = granules(span);
    if let (true, Some(Some(sanitizer))) = (is_on() && !span.is_empty(), SANITIZER.get()) {
        // SAFETY: the range is registered memory of the program; the sanitizer marks it only.
        unsafe {
            (sanitizer.poison)(span.start as *const c_void, (span.end - span.start) as usize)
        };
    }
}

/// Unpoisons bytes, except those that the program has freed meanwhile.
pub(crate) fn unpoison(span: &Range<u64>) {
    let Some(Some(sanitizer)) = SANITIZER.get() else { return };
    for at in granules(span).step_by(GRANULE as usize) {
        let byte = ((at as usize) >> sanitizer.scale).wrapping_add(sanitizer.offset) as *const u8;
        // SAFETY: shadow memory stays mapped for an address that was in use. Other threads may
        // write it.
        if unsafe { byte.read_volatile() } == POISONED {
            // SAFETY: as in `poison`.
            unsafe { (sanitizer.unpoison)(at as *const c_void, GRANULE as usize) };
        }
    }
}

/// The address of the last report; valid in the callback.
pub(crate) fn report_address() -> Option<u64> {
    let sanitizer = SANITIZER.get()?.as_ref()?;
    // SAFETY: the sanitizer's function may be called after a report.
    Some(unsafe { (sanitizer.report_address)() } as u64)
}
