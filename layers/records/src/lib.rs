//! The formats that the layers and the command `ferroverbs` share: the records of `trace`, the
//! counters of `stats`, the packets of `capture`, the list of checks of `validate`, and all
//! settings.
//!
//! A layer writes records and counters into a file that the process has mapped. The command and
//! the layer read the file with this crate, while the writer runs or after its death. Readers
//! trust no byte: the writer may have died within a record, and two writers may have written the
//! same record.
#![forbid(unsafe_code)]

pub mod calls;
pub mod checks;
pub mod file;
pub mod histogram;
pub mod names;
pub mod pcapng;
pub mod rest;
pub mod settings;
pub mod stats;
pub mod text;
pub mod trace;
