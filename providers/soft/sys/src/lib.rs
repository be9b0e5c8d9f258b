//! System calls of the software adapter, as small types that return [`Errno`].
//!
//! Each file covers one concern, and none contains policy: other crates decide what a segment, a
//! slot or a peer *means*. Access to application memory is in `soft_memory`.
//!
//! - Descriptors and files: [`dir`], [`memfd`], [`memory_file`], [`map`], [`fifo`], [`closing`],
//!   [`unshared`].
//! - Wake-ups and waiting: [`eventfd`], [`futex`], [`poll`], [`loop_socket`], [`unix`].
//! - Locks and order: [`lock`] (between processes), [`spin_lock`], [`membarrier`].
//! - Host and process: [`host`], [`interface`], [`process`], [`thread`], [`clock`].
//!
//! ```
//! use soft_sys::eventfd::EventFd;
//!
//! # fn main() -> Result<(), soft_sys::Errno> {
//! let event = EventFd::new()?;
//! event.notify();
//! assert!(event.drain() && !event.drain());
//! # Ok(())
//! # }
//! ```

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
pub mod memory_file;
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
