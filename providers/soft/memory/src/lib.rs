//! Access to application memory for the software adapter. No other crate of the adapter touches its
//! bytes.
//!
//! The application's threads may change the memory at any time. The memory may be unmapped while it
//! is registered, and it may belong to another process. Hence no function makes a Rust reference to
//! it: addresses are numbers or raw pointers, and each function states its caller's obligations.
//!
//! - [`Range`] is a checked run of bytes, [`ranges`] the scatter/gather list of a work request.
//! - [`guard`] ends copies that fault; [`careful`] asks the kernel before a copy; [`pages`]
//!   populates and queries pages.
//! - [`cma`] copies to and from other processes, [`witness`] identifies their address spaces,
//!   [`foreign`] maps their shared memory.
//!
//! ```
//! use soft_memory::Range;
//!
//! let (mut from, mut to) = ([7_u8; 4], [0_u8; 4]);
//! assert!(Range::of(&mut from).copy_to(Range::of(&mut to)));
//! assert_eq!(to, [7; 4]);
//! ```

pub mod careful;
pub mod cma;
pub mod foreign;
pub mod guard;
pub mod pages;
pub mod populate;
pub mod range;
pub mod ranges;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod witness;

pub use range::Range;
pub use ranges::{MAX_SGE, Ranges};
