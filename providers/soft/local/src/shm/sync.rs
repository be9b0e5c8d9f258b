//! The atomics and the mutex that the protocols in this folder use.
//!
//! The models in `providers/soft/loom` compile the same protocols over loom's types instead.

pub(crate) use cface::sync::Mutex;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
