//! System calls of the software adapter, turned into small types that return [`Errno`].
//!
//! One file per concern, and no policy: what a segment, a slot or a peer *means* is decided above. What touches an application's
//! memory is not here but in `soft_memory`.

pub mod addresses;
pub mod clock;
pub mod closing;
pub mod dir;
pub mod errno;
pub mod eventfd;
pub mod fifo;
pub mod futex;
pub mod host;
pub mod interface;
pub mod lock;
pub mod loop_socket;
pub mod map;
pub mod membarrier;
pub mod memfd;
pub mod notice;
pub mod poll;
pub mod process;
pub mod spin_lock;
pub mod thread;
pub mod unguessable;
pub mod unix;
pub mod unshared;

pub use errno::Errno;
pub use map::Mapping;
