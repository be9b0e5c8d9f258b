//! Finds, explains and loads provider plugins of rdma-core's verbs stack.
//!
//! - [`config`]: which drivers the administrator enabled (`/etc/libibverbs.d`, one `driver NAME` per line).
//! - [`places`]: where configuration and plugins are looked for, relative to the library first.
//! - [`Loader`]: opens a plugin, trying each place and each generation of the private ABI in order, and
//!   says in one line what went wrong when none opens.
//!
//! Nothing is printed here; the caller decides whether a [`Failure`] matters.

pub mod config;
mod dl;
mod elf;
mod failure;
mod loader;
pub mod places;

pub use dl::Plugin;
pub use failure::Failure;
pub use loader::Loader;
