//! The kernel's side of uverbs, without a kernel: commands of an unmodified provider in, answers
//! out (docs/design/emulated.md).
//!
//! Everything works on bytes and numbers. Functions touch no memory of the provider, make no system
//! call, take no lock and read no clock: [`vendor::QueueMemory`] and [`carrier::Carrier`] stand for
//! the memory and for the data path.
//!
//! - [`message`]: an ioctl as its bytes, and the write command inside.
//! - [`fields`]: integers of C structures in bytes.
//! - [`refusal`]: the errors that the kernel gives.
//! - [`table`]: objects and their handles.
//! - [`vendor`]: the trait of a vendor's engine, with the requests and completions that it decodes
//!   and encodes.
//! - [`carrier`]: the trait of the data path.
//! - [`kernel`]: the objects of one context, and the commands on them.
#![forbid(unsafe_code)]

pub mod carrier;
pub mod fields;
pub mod kernel;
pub mod message;
pub mod refusal;
pub mod table;
pub mod vendor;
