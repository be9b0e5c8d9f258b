//! MR-10: a buffer is read before what arrives there was polled. Compilers see reads, and AddressSanitizer tells of those that touch memory which somebody
//! *poisoned*: so the buffers of receives and READs are poisoned while they are in flight (`overlap` knows which these are). Its report has the stack of who
//! reads; ours says which request the buffer is of.
//!
//! A device of the kernel writes past the sanitizer. `soft` writes in the process itself, by functions of the C library that the sanitizer intercepts: that is
//! no error only where its suppressions say so, which are read when the process starts. Without them nothing is poisoned.

use core::ffi::{c_char, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use crate::checks::Id;
use crate::overlap::InFlight;
use crate::report::{Message, tell, wanted};

/// What a sanitizer suppresses accesses by.
const SUPPRESSION: &str = "interceptor_via_lib:libsoft";
/// Bytes of memory for each of the sanitizer's own.
const GRANULE: u64 = 8;
/// What such a byte is where memory was poisoned by its user, `kAsanUserPoisonedMemoryMagic`: memory that was freed meanwhile has another.
const POISONED: u8 = 0xf7;

type Change = unsafe extern "C" fn(*const c_void, usize);

/// Functions of the sanitizer in the process (sanitizer/asan_interface.h).
struct Sanitizer {
    poison: Change,
    unpoison: Change,
    report_address: unsafe extern "C" fn() -> *const c_void,
    /// Where the sanitizer's own byte for an address is: `address >> scale`, plus this.
    scale: usize,
    offset: usize,
}

/// `None`: there is no sanitizer.
static SANITIZER: OnceLock<Option<Sanitizer>> = OnceLock::new();

/// A device was opened whose writes the sanitizer would tell of.
static OFF: AtomicBool = AtomicBool::new(false);

/// A device was opened. `writes_itself`: its plugin is no driver of the kernel's.
pub(crate) fn begin(writes_itself: bool) {
    if !wanted(Id::Mr10) || SANITIZER.get_or_init(find).is_none() {
        return;
    }
    if writes_itself && !is_suppressed() && !OFF.swap(true, Ordering::Relaxed) {
        say(
            "suppressions of AddressSanitizer need a line interceptor_via_lib:libsoft (ASAN_OPTIONS=suppressions=FILE), or it takes the software device for the program",
        );
        crate::overlap::unregistered(&(0..u64::MAX));
    }
}

fn say(why: &str) {
    cface::say!("ferroverbs validate: MR-10 tells nothing: {why}");
}

/// Whether buffers are poisoned.
pub(crate) fn is_on() -> bool {
    wanted(Id::Mr10) && !OFF.load(Ordering::Relaxed) && matches!(SANITIZER.get(), Some(Some(_)))
}

fn find() -> Option<Sanitizer> {
    let functions = [
        c"__asan_poison_memory_region",
        c"__asan_unpoison_memory_region",
        c"__asan_get_report_address",
        c"__asan_get_shadow_mapping",
        c"__asan_set_error_report_callback",
    ]
    // SAFETY: names that end with a zero.
    .map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
    if functions.iter().any(|function| function.is_null()) {
        say("the program is not built with -fsanitize=address");
        return None;
    }
    let [poison, unpoison, report_address, mapping, on_report] = functions;
    let (mut scale, mut offset) = (0_usize, 0_usize);
    // SAFETY: the sanitizer's functions, as its header declares them.
    unsafe {
        let mapping: unsafe extern "C" fn(*mut usize, *mut usize) = core::mem::transmute(mapping);
        mapping(&raw mut scale, &raw mut offset);
        let on_report: unsafe extern "C" fn(unsafe extern "C" fn(*const c_char)) =
            core::mem::transmute(on_report);
        on_report(reported);
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

/// Whether the suppressions that the process was started with have ours.
fn is_suppressed() -> bool {
    let options = std::env::var("ASAN_OPTIONS").unwrap_or_default();
    let file = options.split([':', ',', ' ']).find_map(|word| word.strip_prefix("suppressions="));
    let file = file.map(|file| file.trim_matches(['"', '\'']));
    let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    text.lines().any(|line| line.trim().starts_with(SUPPRESSION))
}

/// Whole granules of a range: the first and the last bytes may share theirs with a neighbour.
fn granules(span: &Range<u64>) -> Range<u64> {
    span.start.next_multiple_of(GRANULE)..span.end / GRANULE * GRANULE
}

/// These bytes are in flight from now on.
pub(crate) fn poison(span: &Range<u64>) {
    let span = granules(span);
    if let (true, Some(Some(sanitizer))) = (is_on() && !span.is_empty(), SANITIZER.get()) {
        // SAFETY: memory of the program, registered, and not ours to access either.
        unsafe {
            (sanitizer.poison)(span.start as *const c_void, (span.end - span.start) as usize)
        };
    }
}

/// They are the program's again, but for what it has freed.
pub(crate) fn unpoison(span: &Range<u64>) {
    let Some(Some(sanitizer)) = SANITIZER.get() else { return };
    for at in granules(span).step_by(GRANULE as usize) {
        let byte = ((at as usize) >> sanitizer.scale).wrapping_add(sanitizer.offset) as *const u8;
        // SAFETY: the sanitizer's memory for an address that was in use, which stays mapped; other threads may write it.
        if unsafe { byte.read_volatile() } == POISONED {
            // SAFETY: as `poison`.
            unsafe { (sanitizer.unpoison)(at as *const c_void, GRANULE as usize) };
        }
    }
}

/// The sanitizer has written a report.
unsafe extern "C" fn reported(_report: *const c_char) {
    let Some(Some(sanitizer)) = SANITIZER.get() else { return };
    // SAFETY: the sanitizer's function, in its callback.
    let at = unsafe { (sanitizer.report_address)() } as u64;
    let Some(found) = crate::overlap::in_flight_at(at) else { return };
    let InFlight { queue, wr_id, what, posted } = found;
    let message = Message {
        id: Id::Mr10,
        call: "a read or a write of the program",
        object: format!("{queue} wr_id {wr_id:#x}"),
        text: format!(
            "byte {at:#x} is of the buffer of {what}, whose completion was not polled: AddressSanitizer says above who touches it"
        ),
        remedy: "leave the buffer alone until ibv_poll_cq has given its completion".into(),
        also: posted.map(|stack| ("which was posted", stack)),
    };
    tell(&message, None);
}
