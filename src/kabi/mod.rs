//! The functions that provider plugins call: one file per object, with the same names as in
//! `verbs`. They are exported by `export::table`.

pub(crate) mod cmd;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod driver;
