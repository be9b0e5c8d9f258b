//! What layers leave for others to read: the records of `trace`, the counters of `stats`, the packets of `capture`. A layer writes them into a file that it has mapped; whoever looks at the file, the
//! process itself or another one while it runs or after it died, reads them by this crate. What is read is not trusted: a process may have died
//! within a record, or two may have written the same one.
#![forbid(unsafe_code)]

pub mod calls;
pub mod file;
pub mod histogram;
pub mod names;
pub mod pcapng;
pub mod rest;
pub mod stats;
pub mod text;
pub mod trace;
