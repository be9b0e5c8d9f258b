//! The verbs front-end.

mod export;
mod ffi;
mod kabi;
