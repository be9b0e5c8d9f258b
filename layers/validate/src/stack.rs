//! Call stacks for messages. A stack costs a microsecond, more than a post. The data path
//! therefore records only the call site, and takes a stack when the site is new.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(crate) use crate::checks::finding::Stack;
use crate::checks::finding::{DEPTH, Origin};
use crate::native::{self, object_of};

/// Call sites that are remembered; a new site replaces an older one.
const SITES: usize = 1024;

/// A call site of the data path; 0 for none.
pub(crate) type Site = u64;

struct Slot {
    site: AtomicU64,
    frames: [AtomicUsize; DEPTH],
}

static SLOTS: [Slot; SITES] =
    [const { Slot { site: AtomicU64::new(0), frames: [const { AtomicUsize::new(0) }; DEPTH] } };
        SITES];

/// The stack of the calling thread, without frames of this library and of libibverbs.
#[inline(never)]
pub(crate) fn current_stack() -> Stack {
    let mut stack = [0; DEPTH];
    let (mut found, mut skipped) = (0, 0);
    native::trace(|address| {
        skipped += 1;
        if found == 0 && skipped < 24 && is_between(address) {
            return true;
        }
        if let Some(place) = stack.get_mut(found) {
            *place = address;
            found += 1;
        }
        found < DEPTH
    });
    stack
}

/// Whether an address is in this library or in libibverbs.
fn is_between(address: usize) -> bool {
    let Some((base, file)) = object_of(address) else { return false };
    object_of(is_between as *const c_void as usize).is_some_and(|(own, _)| own == base)
        || file.to_bytes().windows(11).any(|part| part == b"libibverbs.")
}

/// The call site with this return address and frame. A new site records its stack.
#[inline]
pub(crate) fn site(caller: usize, frame: usize) -> Site {
    let site = (caller as u64).rotate_left(20) ^ frame as u64;
    let slot = &SLOTS[index(site)];
    if slot.site.load(Ordering::Acquire) != site {
        cache_site(slot, site);
    }
    site
}

fn index(site: Site) -> usize {
    (site.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
}

#[cold]
#[inline(never)]
fn cache_site(slot: &Slot, site: Site) {
    let stack = current_stack();
    // Two threads at once may mix their stacks, which affects only a message.
    slot.site.store(0, Ordering::Release);
    for (place, frame) in slot.frames.iter().zip(stack) {
        place.store(frame, Ordering::Relaxed);
    }
    slot.site.store(site, Ordering::Release);
}

/// The stack of a call site; `None` if another site has replaced it.
pub(crate) fn stack_at(site: Site) -> Option<Stack> {
    let slot = &SLOTS[index(site)];
    if site == 0 || slot.site.load(Ordering::Acquire) != site {
        return None;
    }
    Some(core::array::from_fn(|i| slot.frames[i].load(Ordering::Relaxed)))
}

/// The place where a request was posted, as the second place of a message.
pub(crate) fn posted(site: Site) -> Option<Origin> {
    stack_at(site).map(|stack| ("which was posted", stack))
}

/// One line for each function of each frame, including inlined functions: name, file and line.
pub(crate) fn lines(stack: &Stack) -> Vec<String> {
    let mut lines = Vec::new();
    for &address in stack.iter().take_while(|address| **address != 0) {
        let before = lines.len();
        // A return address may belong to the next line, hence the address before.
        backtrace::resolve((address - 1) as *mut c_void, |symbol| {
            let Some(name) = symbol.name() else { return };
            let place = symbol.filename().zip(symbol.lineno());
            let place = place.map(|(file, number)| format!(" ({}:{number})", file.display()));
            lines.push(format!("{name:#}{}", place.unwrap_or_default()));
        });
        if lines.len() == before {
            lines.push(nameless(address));
        }
        // Frames outside main carry no information.
        if lines[before].starts_with("__libc_start") || lines[before].starts_with("_start") {
            lines.truncate(before);
            break;
        }
        if lines.last().is_some_and(|line| line == "main" || line.starts_with("main (")) {
            break;
        }
    }
    lines
}

fn nameless(address: usize) -> String {
    match object_of(address) {
        Some((base, file)) => format!("{}+{:#x}", file.to_string_lossy(), address - base),
        None => format!("{address:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(always)]
    fn inlined() -> Stack {
        let (mut stack, mut found) = ([0; DEPTH], 0);
        backtrace::trace(|frame| {
            stack[found] = frame.ip() as usize;
            found += 1;
            found < DEPTH
        });
        stack
    }

    #[inline(never)]
    fn outer() -> Stack {
        inlined()
    }

    #[test]
    fn a_function_that_was_inlined_hides_nobody() {
        let told = lines(&outer());
        // With line tables only, the name has no path.
        let is_told = |name: &str| {
            let mut names =
                told.iter().filter_map(|line| line.split_once(" (")?.0.rsplit("::").next());
            names.any(|it| it == name)
        };
        assert!(is_told("inlined") && is_told("outer"), "{told:#?}");
    }
}
