//! The atomics and the mutex of the protocols in this folder. The models (`providers/soft/loom`) compile the same protocols
//! over loom's instead.

pub(crate) use cface::sync::Mutex;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
