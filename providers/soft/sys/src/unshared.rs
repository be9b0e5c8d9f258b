//! Descriptors that a forked child must not keep (`fork(2)`).
//!
//! A bound socket lives while any process has it, and receives what the kernel delivers. A child
//! that does not know the socket would keep the port, and its packets, after its parent's end.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The largest number of such descriptors in a process; a child keeps further ones.
const MOST: usize = 8;
const NONE: RawFd = -1;

static DESCRIPTORS: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];

/// Registers a descriptor that children must not keep, until the drop, which must precede the
/// descriptor's close.
#[derive(Debug)]
pub struct Unshared(Option<&'static AtomicI32>);

impl Unshared {
    /// Registers a descriptor that stays open while the result lives.
    #[must_use]
    pub fn new(descriptor: BorrowedFd<'_>) -> Self {
        let fd = descriptor.as_raw_fd();
        // Relaxed, here and below: a forked child has its own copy of the array, and a single
        // thread.
        let is_free = |place: &&AtomicI32| {
            place.compare_exchange(NONE, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        Self(DESCRIPTORS.iter().find(is_free))
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(NONE, Ordering::Relaxed);
        }
    }
}

/// In a child after fork(2): replaces each registered descriptor by an unreachable one. The numbers
/// stay occupied, because copies of the parent's objects may close them. Async-signal-safe.
pub fn give_up_in_child() {
    let mut nothing = NONE;
    for place in &DESCRIPTORS {
        let fd = place.swap(NONE, Ordering::Relaxed);
        if fd == NONE {
            continue;
        }
        // SAFETY: plain integers. `fd` is this child's copy of its parent's descriptor, which the
        // child does not use.
        unsafe {
            if nothing == NONE {
                nothing = libc::eventfd(0, libc::EFD_CLOEXEC);
            }
            // If descriptors are exhausted, the child keeps the copies.
            if nothing != NONE {
                libc::dup3(nothing, fd, libc::O_CLOEXEC);
            }
        }
    }
    if nothing != NONE {
        // SAFETY: created above, without another owner.
        unsafe { libc::close(nothing) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn a_forked_child_gives_up_the_parents_port_and_the_parent_keeps_it() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let kept = Unshared::new(socket.as_fd());
        let address = socket.local_addr().expect("bound");
        let fd = socket.as_raw_fd();
        // SAFETY: the child only makes async-signal-safe calls, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            give_up_in_child();
            // SAFETY: plain integers; the child ends here.
            unsafe {
                let mut kind: libc::c_int = 0;
                let mut len = size_of::<libc::c_int>() as libc::socklen_t;
                let kind_at = (&raw mut kind).cast();
                let answered =
                    libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, kind_at, &raw mut len);
                let is_open = libc::fcntl(fd, libc::F_GETFD) >= 0;
                libc::_exit(libc::c_int::from(answered == 0 || !is_open));
            }
        }
        let mut status = 0;
        // SAFETY: our child, and a variable for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "its copy is no socket, and its number is taken");
        assert!(UdpSocket::bind(address).is_err(), "the parent has the port");
        drop(kept);
        drop(socket);
        assert!(UdpSocket::bind(address).is_ok(), "nobody has it");
    }
}
