//! The paths between processes of one host: how processes of the software adapter meet, and the
//! memory that they share.
//!
//! - [`fabric`]: processes find each other, map each other's segments, wake each other and learn of
//!   deaths. A member owns a numbered *slot*; another member is a *peer*.
//! - [`shm`]: the contents of the two shared segments. Only the owner writes *tables* (QP states,
//!   regions, keys). Peers write *rings* too (receive rings, doorbells, bounce buffers). `protocol`
//!   and `tenure` hold the steps that depend on memory order; loom models in `providers/soft/loom`
//!   run the same steps.
//! - [`names`]: names by which other processes recognise the files of a process.
//!
//! Nothing here reads the environment: settings are arguments.
//!
//! ```no_run
//! use soft_local::fabric::{Fabric, FabricConfig, Handler};
//! use soft_local::shm::layout::{RINGS_LEN, TABLES_LEN};
//! # fn run(handler: std::sync::Arc<dyn Handler>) -> Result<(), Box<dyn std::error::Error>> {
//! let fabric = Fabric::join(FabricConfig::new("/tmp/example"), TABLES_LEN, RINGS_LEN, handler)?;
//! let peer = fabric.peer(2)?;
//! peer.kick();
//! fabric.leave();
//! # Ok(())
//! # }
//! ```

pub mod fabric;
pub mod names;
pub mod shm;
