//! Pure checks: functions from facts and a request to findings. `layer_records::checks` has the
//! list of all checks.

pub(crate) use layer_records::checks::*;

pub(crate) mod ends;
pub(crate) mod given;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod others;
pub(crate) mod pairs;
pub(crate) mod posting;
pub(crate) mod queues;
