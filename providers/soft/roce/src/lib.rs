//! RoCE v2 without sockets.
#![forbid(unsafe_code)]

pub mod wire;
