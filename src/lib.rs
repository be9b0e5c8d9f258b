//! The verbs front-end.

mod export;
mod ffi;
mod front;
mod kabi;
mod sys;
mod verbs;
