//! Shared parts of the commands of `cargo xtask`, the system tests and the benchmarks: starting and
//! watching programs over a staged tree, their packages, and the making of installed trees,
//! packages, headers and matrices.

pub mod architecture;
pub mod cargo;
pub mod clauses;
pub mod clean;
pub mod coverage;
pub mod demo;
pub mod dist;
pub mod files;
pub mod floor;
pub mod foreign;
pub mod fuzz;
pub mod headers;
pub mod hostile;
pub mod launch;
pub mod limits;
pub mod manpage;
pub mod matrix;
pub mod namespaces;
pub mod packages;
pub mod pair;
pub mod paths;
pub mod perftest;
pub mod process;
pub mod progress;
pub mod reproducible;
pub mod run;
pub mod scratch;
pub mod soak;
pub mod sockets;
pub mod stage;
pub mod stuck;
pub mod table;
pub mod test;
pub mod vm;

/// A result whose error is a message for a person.
pub type Result<T> = std::result::Result<T, String>;
