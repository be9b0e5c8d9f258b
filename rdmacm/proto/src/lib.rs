//! The connection manager of InfiniBand and RoCE without sockets (IBTA vol 1, chapter 12).
//!
//! [`wire`] has the messages.

#![forbid(unsafe_code)]

pub mod wire;
