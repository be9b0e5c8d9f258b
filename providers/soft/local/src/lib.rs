//! The wire of one host: how processes of the software adapter meet, and the memory that they share.
//!
//! `fabric` is how they find each other, map each other's segments, wake each other and learn of deaths. `shm` is what lies in the segments, and
//! the steps by which processes and threads pass things to each other there, which the models in `providers/soft/loom` run, too. Nothing
//! here reads the environment: settings are arguments.

pub mod fabric;
pub mod shm;
