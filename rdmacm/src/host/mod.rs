//! The processes of a host: ports, process numbers, and the receivers of MADs.
//! Between the system and the ids: the agent asks this floor which process a MAD is for, and which
//! process answers for a dead one.

#![forbid(unsafe_code)]

pub(crate) mod neighbour_connections;
pub(crate) mod neighbours;
pub(crate) mod peer;
pub(crate) mod ports;
pub(crate) mod probes;
pub(crate) mod processes;
pub(crate) mod sorting;
pub(crate) mod unclaimed;
pub(crate) mod unserved;
