//! The connection manager on virtual time, over a network that loses, repeats, reorders and damages
//! messages.
//! Tests of the crate's public interface.

mod datagrams;
mod floods;
mod kills;
mod limits;
mod losses;
mod sim;
mod states;
mod torture;
