//! The interface for layers: shared objects between a program and its provider. A layer exports one
//! *data* symbol, [`LAYER_SYMBOL`], of type [`ferroverbs_layer`]; docs/reference/layers.md and
//! ferroverbs-layers(7) have the rules for layers.
//!
//! `attach` gets two tables, which live until `free_context` of `next` is called. `next` has the
//! functions beneath the layer: no entry is NULL. An entry may change while the context is open, so
//! each call must load the entry again (as an atomic word). `mine` is all NULL at first. A function
//! that the layer stores there replaces the entry of `next`; a NULL entry passes calls on. `attach`
//! returns 0, or an errno, which excludes the layer from this context.

use core::ffi::{c_char, c_int};

use crate::ext::adopt_known;
use crate::{ibv_context, verbs_context_ops};

/// Name of the data symbol; the number changes only with an incompatible layout, growth is told by
/// [`ferroverbs_layer::size`].
pub const LAYER_SYMBOL: &core::ffi::CStr = c"ferroverbs_layer_v1";

/// The exported table of a layer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ferroverbs_layer {
    /// Bytes of this struct the layer was built with; fields beyond are absent.
    pub size: usize,
    /// The private generation whose [`verbs_context_ops`] the layer was built with (65).
    pub generation: u32,
    /// 0.
    pub reserved: u32,
    /// The layer's name in messages, NUL terminated.
    pub name: *const c_char,
    /// Called once for each context, after the provider made it and before the program has it: see
    /// the module.
    pub attach: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            next: *const verbs_context_ops,
            mine: *mut verbs_context_ops,
        ) -> c_int,
    >,
    /// NULL, or called by `ibv_get_cq_event(3)` before it reads `fd`, the descriptor of a
    /// completion channel of this context, and possibly sleeps. All attached layers are called in
    /// order. 0: continue; an errno, for example `EINTR`, becomes the error of the call. No
    /// cancellation point.
    pub awaits: Option<unsafe extern "C" fn(context: *mut ibv_context, fd: c_int) -> c_int>,
    /// NULL, or called when libibverbs itself refuses a call because of an argument, before any
    /// operation of a table is called. All layers of the process are called in order, also when
    /// the call names no context. `refusal` is valid during the call. No cancellation point.
    pub refused: Option<unsafe extern "C" fn(refusal: *const ferroverbs_refusal)>,
}
layout!(ferroverbs_layer: 48 { size @ 0, generation @ 8, reserved @ 12, name @ 16, attach @ 24, awaits @ 32, refused @ 40 });

/// A call that libibverbs refused because of an argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ferroverbs_refusal {
    /// Bytes of this struct; fields beyond are absent.
    pub size: usize,
    /// The name of the call, such as `ibv_create_srq`, NUL terminated.
    pub call: *const c_char,
    /// The argument, or the member of a structure, such as `attr` or `attr->wc_flags`.
    pub argument: *const c_char,
    /// What is wrong, in a few words that follow the argument's name, such as `is NULL`.
    pub problem: *const c_char,
    /// What the program should do, as a sentence without a full stop.
    pub remedy: *const c_char,
    /// The argument's value. Meaningful only if `has_value` is not 0.
    pub value: u64,
    /// Whether `value` adds something to `problem`.
    pub has_value: u32,
    /// The errno that the call fails with.
    pub error: c_int,
}
layout!(ferroverbs_refusal: 56 { size @ 0, call @ 8, argument @ 16, problem @ 24, remedy @ 32, value @ 40, has_value @ 48, error @ 52 });

/// Bytes of the table's first version: all fields up to `attach`.
pub const LAYER_SIZE_LEAST: usize = 32;

impl ferroverbs_layer {
    /// A complete copy of a layer's table; fields beyond the layer's size are absent.
    ///
    /// # Safety
    /// `table` points to constant data of a plugin that is never unloaded, with the length of its
    /// `size`.
    #[must_use]
    pub unsafe fn adopt(table: *const Self) -> Self {
        // SAFETY: per the caller; the first field is the size.
        unsafe { adopt_known(table) }
    }
}

// SAFETY: constant data of a layer that is never unloaded, pointing only at such data.
unsafe impl Sync for ferroverbs_layer {}
