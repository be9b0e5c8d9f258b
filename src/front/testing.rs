//! Devices and contexts for unit tests, made as a provider of any generation would make them. The
//! tests of `verbs`, `kabi`, `export` and `front` share them.

use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr::NonNull;

use abi::{ibv_context, verbs_device, verbs_device_ops};

use super::context::{Context, ContextState};
use super::dummies::DUMMIES;
use super::generation::{Generation, NEWEST};
use cface::mem;

/// Bytes before and behind the context that must stay unchanged.
const FENCE: usize = 512;
const FENCE_BYTE: u8 = 0xa5;

/// A context in memory of its own, between two fences.
#[derive(Debug)]
pub(crate) struct TestContext {
    memory: NonNull<c_void>,
    device: NonNull<verbs_device>,
    generation: &'static Generation,
    context: Context,
}

impl TestContext {
    pub(crate) fn new(generation: &'static Generation) -> Self {
        let size = generation.context_size();
        let memory = mem::calloc_bytes(size + 2 * FENCE).expect("memory");
        let device = mem::calloc::<verbs_device>().expect("memory");
        let bytes: *mut u8 = memory.as_ptr().cast();
        // SAFETY: within the allocation.
        unsafe {
            bytes.write_bytes(FENCE_BYTE, FENCE);
            bytes.add(FENCE + size).write_bytes(FENCE_BYTE, FENCE);
        }
        // SAFETY: within the allocation.
        let raw: NonNull<ibv_context> =
            unsafe { memory.byte_add(FENCE + generation.context_offset) }.cast();
        let private = Box::new(ContextState::new(generation, 0, None));
        // SAFETY: zeroed memory with the extended context in front of it; a live device.
        let context = unsafe { Context::init(raw, device.as_ptr(), -1, private) };
        // SAFETY: the canonical table.
        unsafe { context.install(&raw const DUMMIES, NEWEST) };
        Self { memory, device, generation, context }
    }

    pub(crate) fn context(&self) -> Context {
        self.context
    }

    /// The word at `distance` bytes before the `ibv_context`.
    pub(crate) fn word_before(&self, distance: usize) -> usize {
        // SAFETY: callers stay within the context; the memory is ours.
        unsafe { self.context.as_ptr().wrapping_byte_sub(distance).cast::<usize>().read() }
    }

    /// Whether something wrote outside of the context.
    pub(crate) fn fences_hold(&self) -> bool {
        let size = self.generation.context_size();
        let at = |start: usize| {
            // SAFETY: within the allocation, always initialised.
            let fence = unsafe {
                core::slice::from_raw_parts(self.memory.as_ptr().cast::<u8>().add(start), FENCE)
            };
            fence.iter().all(|&byte| byte == FENCE_BYTE)
        };
        at(0) && at(FENCE + size)
    }
}

impl Drop for TestContext {
    fn drop(&mut self) {
        // SAFETY: the test is over.
        unsafe { self.context.free_private_block() };
        // SAFETY: allocated in new; the context in it is forgotten.
        unsafe { mem::free(self.memory.as_ptr()) };
        // SAFETY: allocated in new, and the context is forgotten.
        unsafe { mem::free(self.device.as_ptr().cast()) };
    }
}

/// A device without a kernel device, with one reference, of the driver `ops`.
pub(crate) fn device(ops: &'static verbs_device_ops) -> NonNull<verbs_device> {
    let device = mem::calloc::<verbs_device>().expect("memory");
    // SAFETY: fresh memory.
    unsafe {
        (*device.as_ptr()).ops = ops;
        (*device.as_ptr()).refcount = 1;
    }
    device
}

/// Distance of a field of the newest extended context in front of its `ibv_context`.
pub(crate) const fn distance(field: usize) -> usize {
    offset_of!(abi::verbs_context, context) - field
}
