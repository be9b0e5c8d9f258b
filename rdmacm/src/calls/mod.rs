//! Entry points of the program, a file for each group.
//! Entry points check arguments, then call `id`, the agent or `kernel`.

pub(crate) mod channel;
pub(crate) mod connect;
pub(crate) mod ep;
pub(crate) mod id;
pub(crate) mod info;
pub(crate) mod multicast;
pub(crate) mod options;
pub(crate) mod qp;
pub(crate) mod resolve;
