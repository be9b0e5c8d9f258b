//! The connection manager on virtual time: processes on a network that loses, repeats, reorders and damages.

mod datagrams;
mod floods;
mod kills;
mod limits;
mod losses;
mod sim;
mod states;
mod torture;
