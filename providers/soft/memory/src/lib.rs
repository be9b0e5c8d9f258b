//! The memory of applications, as the software adapter reads and writes it. Nothing else of the adapter touches their bytes.
//!
//! Memory of an application can be changed by its threads at any time, can be unmapped while it is registered, and can belong to another
//! process. So nothing here makes a reference to it: addresses are numbers or raw pointers, and each function says what its caller answers for.

pub mod careful;
pub mod cma;
pub mod foreign;
pub mod guard;
pub mod pages;
pub mod range;
pub mod ranges;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod witness;

pub use range::Range;
pub use ranges::{MAX_SGE, Ranges};
