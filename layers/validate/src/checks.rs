//! Pure checks: functions from facts and a request to findings. `layer_records::checks` has the
//! list of all checks. The other modules gather the facts, and `report` writes the findings.
#![forbid(unsafe_code)]

pub(crate) use layer_records::checks::*;

pub(crate) mod address;
pub(crate) mod buffers;
pub(crate) mod change;
pub(crate) mod completion;
pub(crate) mod connections;
pub(crate) mod element;
pub(crate) mod ends;
pub(crate) mod events;
pub(crate) mod finding;
pub(crate) mod given;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod objects;
pub(crate) mod others;
pub(crate) mod pairs;
pub(crate) mod peer;
pub(crate) mod posting;
pub(crate) mod protocol;
pub(crate) mod queue;
pub(crate) mod queues;
pub(crate) mod refused_call;
pub(crate) mod refused_change;
pub(crate) mod request;
pub(crate) mod send;
pub(crate) mod transitions;
