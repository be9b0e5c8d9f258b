//! The formats that the layers and the command `ferroverbs` share: the records of `trace`, the counters
//! of `stats`, the packets of `capture`, the list of checks of `validate`, and the settings of all four.
//!
//! A layer writes records and counters into a file that the process has mapped. Readers use this crate,
//! in the same process or in another one, while the writer runs or after it died. The reader trusts no
//! byte: the writer may have died within a record, and two writers may have written the same record.
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
