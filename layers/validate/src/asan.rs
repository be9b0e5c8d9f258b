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

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use crate::checks::Id;
use crate::native::{OnReport, Sanitizer};
use crate::report::is_enabled;

/// The suppression that `soft` needs.
const SUPPRESSION: &str = "interceptor_via_lib:libsoft";
/// Bytes of memory for each shadow byte.
const GRANULE: u64 = 8;
/// Shadow byte of memory that a user poisoned (`kAsanUserPoisonedMemoryMagic`). Freed memory has
/// another value.
const POISONED: u8 = 0xf7;

/// `None` if the process has no sanitizer.
static SANITIZER: OnceLock<Option<Sanitizer>> = OnceLock::new();

/// Whether a device was opened whose writes the sanitizer would report.
static OFF: AtomicBool = AtomicBool::new(false);

/// Prepares MR-10 when a device is opened. `writes_itself` is true for a plugin without a kernel
/// driver. The sanitizer calls `on_report` after a report. Returns whether poisoning ends, so that
/// the caller must unpoison all buffers.
pub(crate) fn begin(writes_itself: bool, on_report: OnReport) -> bool {
    if !is_enabled(Id::Mr10) || SANITIZER.get_or_init(|| find_sanitizer(on_report)).is_none() {
        return false;
    }
    let ends = writes_itself && !is_suppressed() && !OFF.swap(true, Ordering::Relaxed);
    if ends {
        print_notice(
            "suppressions of AddressSanitizer need a line interceptor_via_lib:libsoft (ASAN_OPTIONS=suppressions=FILE), or it takes the software device for the program",
        );
    }
    ends
}

fn print_notice(why: &str) {
    cface::say!("ferroverbs validate: MR-10 tells nothing: {why}");
}

/// Whether buffers are poisoned.
pub(crate) fn is_on() -> bool {
    is_enabled(Id::Mr10) && !OFF.load(Ordering::Relaxed) && matches!(SANITIZER.get(), Some(Some(_)))
}

fn find_sanitizer(callback: OnReport) -> Option<Sanitizer> {
    let sanitizer = Sanitizer::find(callback);
    if sanitizer.is_none() {
        print_notice("the program is not built with -fsanitize=address");
    }
    sanitizer
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
        sanitizer.poison(span.start, span.end - span.start);
    }
}

/// Unpoisons bytes, except those that the program has freed meanwhile.
pub(crate) fn unpoison(span: &Range<u64>) {
    let Some(Some(sanitizer)) = SANITIZER.get() else { return };
    for at in granules(span).step_by(GRANULE as usize) {
        if sanitizer.shadow(at) == POISONED {
            sanitizer.unpoison(at, GRANULE);
        }
    }
}

/// The address of the last report; valid in the callback.
pub(crate) fn report_address() -> Option<u64> {
    SANITIZER.get()?.as_ref().map(Sanitizer::report_address)
}
