//! The processes of a host: their numbers, whether they live, and which of them speaks for those that do not. All of that are names, as ports are ([`crate::ports`]).

use crate::owner::owner;
use crate::ports::{Name, address, is_taken, take};
use cface::Errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;

/// Upper bits of the names of connections: which process of the host they are of.
pub(crate) const OWNER_BITS: u32 = 12;

/// The number of a process, from 1.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) number: u32,
    _name: Name,
    /// What others of this host see the end of this process by: they connect, nobody accepts, and the kernel closes it with the process.
    _life: UnixListener,
}

/// Takes a number for this process.
///
/// # Errors
/// `EAGAIN` all are taken; the system's.
pub(crate) fn own(random: u64) -> Result<Own, Errno> {
    let most = (1_u64 << OWNER_BITS) - 1;
    for step in 0..most {
        let number = (1 + random.wrapping_add(step) % most) as u32;
        let taken = take(&format!("process/{number}"))
            .and_then(|name| Ok(Own { number, _name: name, _life: show_life(number)? }));
        match taken {
            Err(why) if why.raw() == libc::EADDRINUSE => {}
            done => return done,
        }
    }
    Err(Errno::EAGAIN)
}

fn show_life(number: u32) -> Result<UnixListener, Errno> {
    Ok(UnixListener::bind_addr(&address(&life(number))?)?)
}

fn life(number: u32) -> String {
    format!("life/{number}")
}

/// A descriptor on which the kernel hangs up when the process of that number ends.
///
/// # Errors
/// `ECONNREFUSED` it is gone; `EAGAIN` too many watch it; the system's.
pub(crate) fn watch(number: u32) -> Result<OwnedFd, Errno> {
    let name = format!("ferroverbs-rdmacm/{}/{}", owner(), life(number));
    let mut to = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    // An abstract name begins with a zero.
    for (place, byte) in to.sun_path.iter_mut().skip(1).zip(name.bytes()) {
        *place = byte.cast_signed();
    }
    let len = (size_of::<libc::sa_family_t>() + 1 + name.len()) as libc::socklen_t;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket has no requirements; what it made is ours; `to` has as many bytes, since the name is far shorter than the path.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, kind, 0);
        if fd < 0 {
            return Err(Errno::last());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        match libc::connect(fd.as_raw_fd(), (&raw const to).cast(), len) {
            0 => Ok(fd),
            _ => Err(Errno::last()),
        }
    }
}

/// Becomes the one who answers for those that nobody is, or that are gone; `None`: another process is that already.
pub(crate) fn speak() -> Option<Name> {
    take("speaker").ok()
}

/// Whether the process of that number lives; one that cannot be seen is taken for alive, so that nobody answers in its name.
pub(crate) fn lives(number: u32) -> bool {
    is_taken(&format!("process/{number}")).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_is_seen_by_who_watches_it() {
        // A number that `own` gives to nobody.
        let number = 1_000_000 + std::process::id();
        assert_eq!(watch(number).map(drop), Err(Errno::from_raw(libc::ECONNREFUSED)));
        let life = show_life(number).expect("nobody has the name");
        let watched = watch(number).expect("it lives");
        let hangs_up = |wait| {
            let mut fd = libc::pollfd { fd: watched.as_raw_fd(), events: 0, revents: 0 };
            // SAFETY: `fd` is one entry.
            unsafe { libc::poll(&raw mut fd, 1, wait) == 1 && fd.revents & libc::POLLHUP != 0 }
        };
        assert!(!hangs_up(0));
        drop(life);
        assert!(hangs_up(10_000));
    }
}
