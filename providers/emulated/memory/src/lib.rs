//! The memory of an emulated device: everything that touches bytes which a vendor's provider reads
//! or writes at the same time. The other crates of `providers/emulated` have no unsafe code.
//!
//! - [`shared`]: [`SharedMemory`], the file that the provider maps, and the provider's own buffers.
//! - `words`: loads and stores of memory that others change.
//! - [`call`]: the bytes of a command, and its response.

pub mod call;
pub mod shared;
mod words;

pub use shared::SharedMemory;
