//! What a provider plugin calls: one file per object, the same stems as in `verbs`.

pub(crate) mod cmd;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod driver;
