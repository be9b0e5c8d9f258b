//! Our interface for layers: shared objects that stand between a program and its provider. A layer exports one *data*
//! symbol, [`LAYER_SYMBOL`], of type [`ferroverbs_layer`]; docs/reference/layers.md and ferroverbs-layers(7) say what it may do.
//!
//! `attach` gets two tables, which live until `free_context` of `next` is called. `next` is that of what lies beneath: no entry is NULL, and an entry may
//! change as long as the context is open, so that each call reads its entry anew (as an atomic word). `mine` is all NULL: what the layer puts there is
//! called in place of the entry of `next`; what it leaves NULL is passed on. It returns 0, or an errno: then the layer is left out of this context.

use core::ffi::{c_char, c_int};

use crate::{ibv_context, verbs_context_ops};

/// Name of the data symbol; the number changes only with an incompatible layout, growth is told by
/// [`ferroverbs_layer::size`].
pub const LAYER_SYMBOL: &core::ffi::CStr = c"ferroverbs_layer_v1";

/// What a layer exports.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ferroverbs_layer {
    /// Bytes of this struct the layer was built with; fields beyond are absent.
    pub size: usize,
    /// The private generation whose [`verbs_context_ops`] the layer was built with (65).
    pub generation: u32,
    /// 0.
    pub reserved: u32,
    /// What diagnoses call it, NUL terminated.
    pub name: *const c_char,
    /// Called once for each context, after the provider made it and before the program has it: see the module.
    pub attach: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            next: *const verbs_context_ops,
            mine: *mut verbs_context_ops,
        ) -> c_int,
    >,
    /// NULL, or called by `ibv_get_cq_event(3)` before it reads `fd`, the descriptor of a completion channel of this context, and maybe sleeps there:
    /// of all layers in their order, whose device's `attach` returned 0. 0: go on; an errno is what the call fails with, `EINTR` for example. The
    /// thread cannot be cancelled in it.
    pub awaits: Option<unsafe extern "C" fn(context: *mut ibv_context, fd: c_int) -> c_int>,
}
layout!(ferroverbs_layer: 40 { size @ 0, generation @ 8, reserved @ 12, name @ 16, attach @ 24, awaits @ 32 });

/// Bytes that the first version of it had: all up to `attach`.
pub const LAYER_SIZE_LEAST: usize = 32;

// SAFETY: constant data of a layer that is never unloaded, and it points at such data.
unsafe impl Sync for ferroverbs_layer {}
