//! Measured costs of the two paths of a connection's long messages. `engine/ring/copying.rs`
//! updates them and selects the path of the next message.
#![forbid(unsafe_code)]

use std::cell::Cell;

/// Costs measured by the sender.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    /// Nanoseconds to fill a whole chunk; 0: unknown.
    pub(in crate::engine) filling: u32,
    pub(in crate::engine) messages: u32,
}

/// Costs measured by the receiver, in nanoseconds for the bytes of a chunk; 0: unknown.
#[derive(Debug, Default)]
pub(in crate::engine) struct Costs {
    pub(in crate::engine) fetching: Cell<u32>,
    pub(in crate::engine) emptying: Cell<u32>,
}
