//! Descriptors that a child made by `fork(2)` does not keep. A socket at a port lives as long as any process has it, and gets what the kernel gives it: a child that
//! knows nothing of it would have the port, and what comes there, when its parent is gone.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// So many at most in a process; a child keeps those beyond.
const MOST: usize = 8;
const NONE: RawFd = -1;

static DESCRIPTORS: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];

/// A descriptor that children do not keep, from now until this is dropped, which is to be before it is closed.
#[derive(Debug)]
pub struct Unshared(Option<&'static AtomicI32>);

impl Unshared {
    /// Of a descriptor that stays open for as long as this is there.
    #[must_use]
    pub fn new(descriptor: BorrowedFd<'_>) -> Self {
        let fd = descriptor.as_raw_fd();
        // Relaxed, here and below: whoever forks has what is his own, and a child has one thread.
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

/// In a child that was just forked: something else that nobody reaches takes the place of each such descriptor. Their numbers stay taken, as copies of the parent's
/// objects may close them. Calls nothing that is not safe in a signal handler.
pub fn give_up_in_child() {
    let mut nothing = NONE;
    for place in &DESCRIPTORS {
        let fd = place.swap(NONE, Ordering::Relaxed);
        if fd == NONE {
            continue;
        }
        // SAFETY: plain integers. `fd` is this child's copy of a descriptor of its parent's, which nothing in the child uses.
        unsafe {
            if nothing == NONE {
                nothing = libc::eventfd(0, libc::EFD_CLOEXEC);
            }
            // Without descriptors it keeps them.
            if nothing != NONE {
                libc::dup3(nothing, fd, libc::O_CLOEXEC);
            }
        }
    }
    if nothing != NONE {
        // SAFETY: it was made above, and nobody else knows it.
        unsafe { libc::close(nothing) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn a_child_leaves_the_port_to_others_and_the_parent_keeps_it() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let kept = Unshared::new(socket.as_fd());
        let address = socket.local_addr().expect("bound");
        let fd = socket.as_raw_fd();
        // SAFETY: the child calls what is safe in a signal handler, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            give_up_in_child();
            // SAFETY: plain integers; the child ends here.
            unsafe {
                let mut kind: libc::c_int = 0;
                let mut len = size_of::<libc::c_int>() as libc::socklen_t;
                let kind_at = (&raw mut kind).cast();
                let asked =
                    libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, kind_at, &raw mut len);
                let is_open = libc::fcntl(fd, libc::F_GETFD) >= 0;
                libc::_exit(libc::c_int::from(asked == 0 || !is_open));
            }
        }
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "its copy is no socket, and its number is taken");
        assert!(UdpSocket::bind(address).is_err(), "the parent has the port");
        drop(kept);
        drop(socket);
        assert!(UdpSocket::bind(address).is_ok(), "nobody has it");
    }
}
