//! `librspreload.so`: unmodified TCP programs over rsockets (rsocket(7)).
//! The library is preloaded, so its socket functions precede those of libc.
//!
//! | | |
//! |---|---|
//! | `calls` | functions that precede those of libc |
//! | `waiting` | poll(2) and select(2) |
//! | `epoll`, `interest` | epoll(7) |
//! | `forking` | servers that fork after accept(2) |
//! | `table` | descriptors that are rsockets |
//! | `choice` | sockets that become rsockets: `/etc/rdma/rsocket/preload_config` |
//! | `real` | libc's own functions |
//! | `rdma` | functions of librdmacm.so.1 |
//!
//! The program's descriptor is a placeholder, an eventfd(2), and a table maps it to an rsocket. If
//! rsockets cannot do what the program asks for, an ordinary socket takes the placeholder's
//! descriptor.

#[cfg(not(test))]
pub mod calls;
#[cfg(not(test))]
pub mod epoll;
#[cfg(not(test))]
mod forking;
#[cfg(not(test))]
mod rdma;
#[cfg(not(test))]
mod real;
#[cfg(not(test))]
mod table;
#[cfg(not(test))]
pub mod waiting;

pub mod choice;
pub mod interest;
