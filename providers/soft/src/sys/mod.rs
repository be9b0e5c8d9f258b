//! System calls of the software adapter, turned into small types that return [`Errno`].
//!
//! One file per concern, and no policy: what a segment, a slot or a peer *means* is decided in
//! [`crate::fabric`]. This is the only place of the fabric that calls libc.

pub mod brief;
pub mod careful;
pub mod clock;
pub mod cma;
pub mod dir;
pub mod errno;
pub mod eventfd;
pub mod fifo;
pub mod foreign;
pub mod futex;
pub mod host;
pub mod lock;
pub mod map;
pub mod membarrier;
pub mod memfd;
pub mod memory;
pub(crate) mod notice;
pub mod poll;
pub mod process;
pub mod thread;
pub mod unix;

pub use errno::Errno;
pub use map::Mapping;
