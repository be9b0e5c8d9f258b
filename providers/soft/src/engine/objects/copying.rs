//! What is known of the cost of a connection's long messages.
#![forbid(unsafe_code)]

use std::cell::Cell;

/// What a sender knows of a connection.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    /// Nanoseconds for a whole chunk; 0: not known.
    pub(in crate::engine) filling: u32,
    pub(in crate::engine) messages: u32,
}

/// What a receiver knows of a connection: nanoseconds for as many bytes as a chunk has; 0: not known.
#[derive(Debug, Default)]
pub(in crate::engine) struct Costs {
    pub(in crate::engine) fetching: Cell<u32>,
    pub(in crate::engine) emptying: Cell<u32>,
}
