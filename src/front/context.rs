//! An open device as the front-end sees it: the `ibv_context` an application holds, and the private
//! block behind it.
//!
//! The front-end allocates a provider's own context structure, which contains a `verbs_context`
//! that ends with the `ibv_context`. The fixed point is the `ibv_context`; all fields have a
//! constant distance from it (see [`super::generation`]). Map of this file: [`ContextState`], the
//! block behind a context; [`Context`] with lookup, installation of operations, and the end of a
//! context; [`Shadow`], the context of a 1.0 binary; [`store`] and [`load`] of table entries.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use abi::{
    VERBS_ABI_IS_EXTENDED, Zeroed, ferroverbs_emulation, ferroverbs_plugin_ext, ibv_context,
    ibv_context_1_0, verbs_context, verbs_context_ops, verbs_device,
};

use once_cell::sync::OnceCell;

use super::generation::Generation;
use super::layers::Chain;
use super::op::{OP_COUNT, OPS, Slot, operations};
use cface::Errno;

/// The front-end's state of a context; reached through `verbs_context.priv`, opaque to other code.
#[derive(Debug)]
pub(crate) struct ContextState {
    /// Layouts of the provider that owns the context.
    pub(crate) generation: &'static Generation,
    /// `RDMA_DRIVER_*`, sent with every ioctl.
    pub(crate) driver_id: u32,
    /// The extension of the plugin, when the device has no kernel device.
    pub(crate) ext: Option<&'static ferroverbs_plugin_ext>,
    /// The plugin's functions in place of the kernel, for an emulated device.
    pub(crate) emulation: Option<&'static ferroverbs_emulation>,
    /// The kernel takes write commands wrapped in an ioctl.
    pub(crate) use_ioctl_write: AtomicBool,
    /// Made by `ibv_import_device(3)`: objects must name the event descriptor, so only ioctls will
    /// do.
    pub(crate) imported: AtomicBool,
    /// Ioctls the kernel refused for good, one bit per [`Op`](super::op::Op).
    unsupported: [AtomicU64; OP_COUNT.div_ceil(64)],
    /// Canonical table. Only touched by [`load`] and [`store`]: a provider may replace entries at
    /// any time.
    ops: core::cell::UnsafeCell<verbs_context_ops>,
    /// The layers between the table above and the provider; set while the context is opened, if at
    /// all.
    chain: OnceCell<Chain>,
    /// The function that `ibv_get_cq_event(3)` calls before reading: the plugin's
    /// `await_comp_event`, or a layer's.
    awaits: AtomicPtr<c_void>,
}

/// A function that may sleep until a completion channel has a record; returns 0 or an errno.
pub(crate) type AwaitEvent =
    unsafe extern "C-unwind" fn(context: *mut ibv_context, fd: c_int) -> c_int;

// SAFETY: the table is plain function pointers, each read and written at once (`load`, `store`);
// all else is atomic or constant.
unsafe impl Sync for ContextState {}

impl ContextState {
    /// A block with no operation installed.
    pub(crate) fn new(
        generation: &'static Generation,
        driver_id: u32,
        ext: Option<&'static ferroverbs_plugin_ext>,
    ) -> Self {
        Self {
            generation,
            driver_id,
            ext,
            emulation: None,
            use_ioctl_write: AtomicBool::new(false),
            imported: AtomicBool::new(false),
            unsupported: [const { AtomicU64::new(0) }; OP_COUNT.div_ceil(64)],
            ops: core::cell::UnsafeCell::new(verbs_context_ops::zeroed()),
            chain: OnceCell::new(),
            awaits: AtomicPtr::new(
                ext.and_then(|ext| ext.await_comp_event)
                    .map_or(core::ptr::null_mut(), |function: AwaitEvent| function as *mut c_void),
            ),
        }
    }

    /// The function to call before a completion channel is read, with the context and the channel's
    /// descriptor.
    pub(crate) fn awaits(&self) -> Option<AwaitEvent> {
        // Relaxed: it is set while the context is opened.
        let function = self.awaits.load(Ordering::Relaxed);
        // SAFETY: NULL, which is `None`, or a function of that type: nothing else is stored.
        unsafe { core::mem::transmute::<*mut c_void, Option<AwaitEvent>>(function) }
    }

    /// Has `function` called instead, while the context is opened.
    pub(crate) fn replace_await(&self, function: AwaitEvent) {
        self.awaits.store(function as *mut c_void, Ordering::Relaxed);
    }

    /// The layers of the context; unset when there are none.
    pub(crate) fn chain(&self) -> &OnceCell<Chain> {
        &self.chain
    }

    /// The canonical table; [`load`] single entries, never form a reference to it.
    pub(crate) fn ops(&self) -> *const verbs_context_ops {
        self.ops.get()
    }

    /// Whether the ioctl behind operation number `op` was refused before.
    pub(crate) fn is_ioctl_unsupported(&self, op: usize) -> bool {
        // Relaxed: a lost race costs one more refused ioctl.
        self.unsupported
            .get(op / 64)
            .is_some_and(|word| word.load(Ordering::Relaxed) >> (op % 64) & 1 != 0)
    }

    /// Remembers that the ioctl behind operation number `op` is refused.
    pub(crate) fn mark_ioctl_unsupported(&self, op: usize) {
        if let Some(word) = self.unsupported.get(op / 64) {
            word.fetch_or(1 << (op % 64), Ordering::Relaxed);
        }
    }

    /// Remembers that the kernel takes no ioctl at all.
    pub(crate) fn mark_all_ioctls_unsupported(&self) {
        for word in &self.unsupported {
            word.store(u64::MAX, Ordering::Relaxed);
        }
    }
}

/// A live extended context. Copies are the same context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context(NonNull<ibv_context>);

impl Context {
    /// `EINVAL` for NULL and for a context of another library.
    ///
    /// # Safety
    /// `context` is NULL or points to a context that stays open while the value is used.
    pub(crate) unsafe fn new(context: *mut ibv_context) -> Result<Self, Errno> {
        let mut context = Self(NonNull::new(context).ok_or(Errno::EINVAL)?);
        // SAFETY: non-NULL, and live by the contract above.
        let mut abi_compat = unsafe { (*context.as_ptr()).abi_compat };
        if core::ptr::eq(abi_compat, Shadow::unique_address()) {
            // SAFETY: only shadows have the tag; each names a context with the same lifetime.
            let real = unsafe { (*context.as_ptr().cast::<ibv_context_1_0>()).real_context };
            context = Self(NonNull::new(real).ok_or(Errno::EINVAL)?);
            // SAFETY: non-NULL, and live (see above).
            abi_compat = unsafe { (*context.as_ptr()).abi_compat };
        }
        // Only an extended context has slots in front, so check the marker first.
        if abi_compat.addr() != VERBS_ABI_IS_EXTENDED || context.private_slot().is_null() {
            return Err(Errno::EINVAL);
        }
        Ok(context)
    }

    /// The context at `verbs`, as passed by a plugin of private ABI `pabi`.
    ///
    /// # Safety
    /// `verbs` is NULL, or an open `verbs_context` of that ABI that outlives the value.
    pub(crate) unsafe fn from_verbs(
        verbs: *mut verbs_context,
        generation: &Generation,
    ) -> Result<Self, Errno> {
        if verbs.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the `ibv_context` of this generation's verbs_context has that offset.
        let context = unsafe { verbs.byte_add(generation.context_offset) };
        // SAFETY: the `ibv_context` inside the caller's `verbs_context`, which stays open while the
        // value is used.
        unsafe { Self::new(context.cast()) }
    }

    /// The pointer that applications and providers know.
    pub(crate) const fn as_ptr(self) -> *mut ibv_context {
        self.0.as_ptr()
    }

    /// The slot this many bytes before the `ibv_context`; in bounds only when the generation has
    /// it.
    const fn slot_before(self, distance: usize) -> *mut *mut c_void {
        self.as_ptr().wrapping_byte_sub(distance).cast()
    }

    fn private_slot(self) -> *mut ContextState {
        let slot = self.slot_before(distance_to_context(offset_of!(verbs_context, priv_)));
        // SAFETY: every generation has the slot at the same distance; only the front-end writes it.
        unsafe { *slot }.cast()
    }

    /// The private block.
    pub(crate) fn private(&self) -> &ContextState {
        // SAFETY: `new` checked the pointer; the block lives until the provider ends the context,
        // after the last use of this value (contract of `new`).
        unsafe { &*self.private_slot() }
    }

    /// The device of the context.
    pub(crate) fn device(self) -> *mut verbs_device {
        // SAFETY: the context of `new` is open and holds its device, which starts a verbs_device.
        unsafe { (*self.as_ptr()).device.cast() }
    }

    /// Stores a front-end function in the extended context. `field` is the offset in the newest
    /// `verbs_context`.
    fn store_extended(self, field: usize, function: *mut c_void) {
        let distance = distance_to_context(field);
        if distance <= self.private().generation.context_offset {
            // SAFETY: within the extended context of this generation (checked).
            unsafe { store(self.slot_before(distance), function) };
        }
    }

    /// Copies every non-NULL entry of `table`, in the order of `generation`, into our table and
    /// into the slots that inline code reads.
    ///
    /// # Safety
    /// `table` is an operations table of that generation.
    pub(crate) unsafe fn install(self, table: *const verbs_context_ops, generation: &Generation) {
        let table: *const *mut c_void = table.cast();
        for (index, op) in operations(generation).enumerate() {
            // SAFETY: the table has an entry for each operation of its generation.
            let function = unsafe { table.add(index).read() };
            if function.is_null() {
                continue;
            }
            match self.private().chain.get() {
                Some(chain) => chain.install(op, function, |top| self.install_one(op, top)),
                None => self.install_one(op, function),
            }
        }
    }

    /// Makes `function` the implementation of operation `op`, in our table and in the slot that
    /// inline code reads.
    pub(super) fn install_one(self, op: usize, function: *mut c_void) {
        let Some(info) = OPS.get(op) else { return };
        let ours: *mut *mut c_void = self.private().ops.get().cast();
        // SAFETY: `op` numbers an entry of the newest table (checked), which ours is.
        unsafe { store(ours.add(op), function) };
        match info.slot {
            Slot::Extended(distance) if distance <= self.private().generation.context_offset => {
                // SAFETY: within the extended context of this generation (checked).
                unsafe { store(self.slot_before(distance), function) };
            }
            Slot::Inline(offset) => {
                // SAFETY: the offset of a pointer field of ibv_context.
                unsafe { store(self.as_ptr().byte_add(offset).cast(), function) };
            }
            _ => {}
        }
    }

    /// Turns fresh, zeroed memory into an extended context: the part of `verbs_init_context` that
    /// does not depend on a provider. The device reference is the caller's to take.
    ///
    /// # Safety
    /// `context` is the `ibv_context` inside zeroed memory with `private.generation.context_offset`
    /// bytes of `verbs_context` in front of it; `device` is a live device.
    pub(crate) unsafe fn init(
        context: NonNull<ibv_context>,
        device: *mut verbs_device,
        cmd_fd: c_int,
        private: Box<ContextState>,
    ) -> Self {
        let this = Self(context);
        let size = private.generation.context_size();
        let raw = context.as_ptr();
        // SAFETY: ours to write by the contract above; a zeroed mutex may be initialised.
        unsafe {
            (*raw).device = device.cast();
            (*raw).cmd_fd = cmd_fd;
            (*raw).async_fd = -1;
            libc::pthread_mutex_init(&raw mut (*raw).mutex, core::ptr::null());
            (*raw).abi_compat = core::ptr::without_provenance_mut(VERBS_ABI_IS_EXTENDED);
            let sz = this.slot_before(distance_to_context(offset_of!(verbs_context, sz)));
            sz.cast::<usize>().write(size);
            let slot = this.slot_before(distance_to_context(offset_of!(verbs_context, priv_)));
            slot.write(Box::into_raw(private).cast());
        }
        this
    }

    /// Frees the private block; the context leaves our control.
    ///
    /// # Safety
    /// The context is not used through the front-end afterwards.
    pub(crate) unsafe fn free_private_block(self) {
        let private = self.private_slot();
        // SAFETY: the slot exists in each generation; the block came from Box::into_raw in `init`
        // and is dropped once, as the slot is cleared first.
        unsafe {
            self.slot_before(distance_to_context(offset_of!(verbs_context, priv_)))
                .write(core::ptr::null_mut());
            drop(Box::from_raw(private));
        }
    }

    /// Fills the pointers that belong to the front-end, after the provider is done:
    /// `verbs_context.query_port` and `create_cq_ex`, and what binaries of libibverbs 1.1 look for.
    pub(crate) fn install_front_end(self, functions: &FrontEnd) {
        self.store_extended(offset_of!(verbs_context, query_port), functions.query_port.cast_mut());
        self.store_extended(
            offset_of!(verbs_context, create_cq_ex),
            functions.create_cq_ex.cast_mut(),
        );
        for (from, to) in [
            (
                offset_of!(verbs_context, ibv_create_flow),
                offset_of!(verbs_context, abi_placeholder1),
            ),
            (
                offset_of!(verbs_context, ibv_destroy_flow),
                offset_of!(verbs_context, abi_placeholder2),
            ),
        ] {
            // SAFETY: every generation has both slots at these distances.
            let function = unsafe { self.slot_before(distance_to_context(from)).read() };
            self.store_extended(to, function);
        }
        let ops = offset_of!(ibv_context, ops);
        for (offset, function) in [
            (offset_of!(abi::ibv_context_ops, _compat_query_port), functions.compat_query_port),
            (offset_of!(abi::ibv_context_ops, _compat_query_device), functions.compat_query_device),
        ] {
            // SAFETY: the offset of a pointer field of ibv_context.
            unsafe {
                store(self.as_ptr().byte_add(ops + offset).cast(), function.cast_mut());
            }
        }
    }
}

/// The context of a libibverbs 1.0 binary, with room for a whole `ibv_context`. Functions without a
/// version for such binaries recognise the tag at the offset of `abi_compat`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Shadow {
    /// The structure of the binary.
    pub(crate) context: ibv_context_1_0,
    room: [u8; offset_of!(ibv_context, abi_compat) - size_of::<ibv_context_1_0>()],
    tag: *mut c_void,
}

const _: () = assert!(offset_of!(Shadow, tag) == offset_of!(ibv_context, abi_compat));

impl Shadow {
    /// A complete shadow.
    pub(crate) fn new(context: ibv_context_1_0) -> Self {
        let room = [0; offset_of!(ibv_context, abi_compat) - size_of::<ibv_context_1_0>()];
        Self { context, room, tag: Self::unique_address() }
    }

    /// A unique address.
    fn unique_address() -> *mut c_void {
        static TAG: u8 = 0;
        (&raw const TAG).cast_mut().cast()
    }
}

/// Addresses of the front-end's own entries of a context; named here because `front` does not
/// depend on `verbs`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrontEnd {
    /// `verbs_context.query_port`.
    pub(crate) query_port: *const c_void,
    /// `verbs_context.create_cq_ex`.
    pub(crate) create_cq_ex: *const c_void,
    /// `ibv_context.ops._compat_query_port`.
    pub(crate) compat_query_port: *const c_void,
    /// `ibv_context.ops._compat_query_device`.
    pub(crate) compat_query_device: *const c_void,
}

/// Distance of a field of the newest `verbs_context` in front of its `ibv_context`; the same in
/// every generation that has the field.
const fn distance_to_context(field: usize) -> usize {
    offset_of!(verbs_context, context) - field
}

/// Writes an entry of a table of operations while other threads may read the entry.
///
/// # Safety
/// A word of a live table or context, accessed only by this function, `load`, and C code that
/// reads.
pub(super) unsafe fn store(entry: *mut *mut c_void, function: *mut c_void) {
    // SAFETY: a live, aligned word, which C code only reads. Release: pairs with `load`, so the
    // function's data is visible to its callers.
    unsafe { AtomicPtr::from_ptr(entry) }.store(function, Ordering::Release);
}

/// Reads an entry of a table of operations that another thread may be writing.
///
/// # Safety
/// As `store`; `F` is a nullable function pointer.
pub(crate) unsafe fn load<F: Copy>(entry: *const F) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a live, aligned word that only `store` changes. Acquire: pairs with `store`.
    let function = unsafe { AtomicPtr::<c_void>::from_ptr(entry.cast_mut().cast()) };
    let function = function.load(Ordering::Acquire);
    // SAFETY: same size, and by contract the word is an F.
    unsafe { core::mem::transmute_copy(&function) }
}

/// Reads one operation of a [`Context`]; `EOPNOTSUPP` when there is none.
macro_rules! op {
    ($context:expr, $name:ident) => {{
        let ops = $context.private().ops();
        // SAFETY: the table lives as long as the context, and consists of nullable function
        // pointers.
        unsafe { $crate::front::context::load(&raw const (*ops).$name) }
            .ok_or(cface::Errno::EOPNOTSUPP)
    }};
}
pub(crate) use op;

#[cfg(test)]
mod tests {
    use super::super::generation::{GENERATIONS, NEWEST};
    use super::super::testing::{TestContext, distance};
    use super::*;

    #[test]
    fn a_table_of_every_generation_reaches_the_right_slots_and_nothing_else() {
        for generation in &GENERATIONS {
            let test = TestContext::new(generation);
            let count = operations(generation).count();
            // Entry n of the provider's own table is the "function" 0x1000 + n; every third is
            // NULL.
            let table: Vec<usize> =
                (0..count).map(|n| if n % 3 == 2 { 0 } else { 0x1000 + n }).collect();
            // SAFETY: a table with as many entries as the generation has; nothing is called.
            unsafe { test.context().install(table.as_ptr().cast(), generation) };

            let ours: *const usize = test.context().private().ops().cast();
            let dummies: *const usize = (&raw const super::super::dummies::DUMMIES).cast();
            let mut entries = table.iter();
            for (op, info) in OPS.iter().enumerate() {
                let entry = if info.first_variant <= generation.variant {
                    *entries.next().expect("an entry")
                } else {
                    0
                };
                // SAFETY: both tables have OP_COUNT words.
                let (found, dummy) = unsafe { (ours.add(op).read(), dummies.add(op).read()) };
                let expected = if entry == 0 { dummy } else { entry };
                assert_eq!(found, expected, "{:?} operation {op}", generation.variant);
                match info.slot {
                    Slot::Extended(distance) if distance <= generation.context_offset => {
                        assert_eq!(test.word_before(distance), expected, "operation {op}");
                    }
                    Slot::Inline(offset) => {
                        // SAFETY: a word inside the live ibv_context.
                        let word = unsafe {
                            test.context().as_ptr().byte_add(offset).cast::<usize>().read()
                        };
                        assert_eq!(word, expected, "operation {op}");
                    }
                    _ => {}
                }
            }
            assert_eq!(
                test.word_before(distance(offset_of!(verbs_context, sz))),
                generation.context_size()
            );
            assert!(test.fences_hold(), "{:?} wrote outside of the context", generation.variant);
        }
    }

    #[test]
    fn the_front_ends_own_slots_are_filled_in_every_generation() {
        for generation in &GENERATIONS {
            let test = TestContext::new(generation);
            let at = |address: usize| core::ptr::without_provenance(address);
            test.context().install_front_end(&FrontEnd {
                query_port: at(0x11),
                create_cq_ex: at(0x12),
                compat_query_port: at(0x13),
                compat_query_device: at(0x14),
            });
            let slot = |field: usize| test.word_before(distance(field));
            assert_eq!(slot(offset_of!(verbs_context, query_port)), 0x11);
            assert_eq!(slot(offset_of!(verbs_context, create_cq_ex)), 0x12);
            assert_eq!(
                slot(offset_of!(verbs_context, abi_placeholder1)),
                slot(offset_of!(verbs_context, ibv_create_flow))
            );
            assert!(test.fences_hold(), "{:?}", generation.variant);
        }
    }

    #[test]
    fn a_refused_ioctl_is_remembered_alone() {
        let test = TestContext::new(NEWEST);
        let context = test.context();
        context.private().mark_ioctl_unsupported(70);
        let refused: Vec<usize> =
            (0..OP_COUNT).filter(|&op| context.private().is_ioctl_unsupported(op)).collect();
        assert_eq!(refused, [70]);
        context.private().mark_all_ioctls_unsupported();
        assert!((0..OP_COUNT).all(|op| context.private().is_ioctl_unsupported(op)));
    }

    #[test]
    fn a_context_that_is_not_ours_is_refused() {
        let mut foreign = ibv_context::zeroed();
        // SAFETY: live memory of the right type.
        let result = unsafe { Context::new(&raw mut foreign) };
        assert_eq!(result, Err(Errno::EINVAL));
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { Context::new(core::ptr::null_mut()) }, Err(Errno::EINVAL));
    }
}
