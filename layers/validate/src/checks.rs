//! Tables of pure functions: facts and a request go in, and what is wrong comes out. The list of
//! checks is `layer_records::checks`.

pub(crate) use layer_records::checks::*;

pub(crate) mod ends;
pub(crate) mod given;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod others;
pub(crate) mod pairs;
pub(crate) mod posting;
pub(crate) mod queues;
