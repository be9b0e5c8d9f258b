//! The front-end behind `verbs` and `kabi`: drivers, devices, contexts, and the generations of the
//! provider ABI.

pub(crate) mod ah_from_wc;
mod at_fork;
pub(crate) mod command;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod disassociate;
pub(crate) mod dummies;
pub(crate) mod enumerate;
pub(crate) mod eth;
pub(crate) mod ext;
pub(crate) mod fork;
mod fork_map;
pub(crate) mod generation;
pub(crate) mod gid;
mod init;
pub(crate) mod layers;
pub(crate) mod list;
mod matching;
pub(crate) mod op;
mod plugins;
pub(crate) mod refusal;
pub(crate) mod registry;
#[cfg(test)]
pub(crate) mod testing;
