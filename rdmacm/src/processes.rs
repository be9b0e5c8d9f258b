//! The processes of a host: their numbers, whether they live, and which of them speaks for those that do not. All of that are names, as ports are ([`crate::ports`]).

use crate::owner::is_group;
use crate::ports::{Name, is_taken, take, whole};
use cface::Errno;
use cface::names::{self, Life};
use std::os::fd::OwnedFd;

/// Upper bits of the names of connections: which process of the host they are of.
pub(crate) const OWNER_BITS: u32 = 12;

/// The number of a process, from 1.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) number: u32,
    _name: Name,
    /// Where other processes of this host see the end of this one.
    _life: Life,
}

/// Takes a number for this process.
///
/// # Errors
/// `EAGAIN` all are taken; the system's.
pub(crate) fn own(random: u64) -> Result<Own, Errno> {
    let most = (1_u64 << OWNER_BITS) - 1;
    for step in 0..most {
        let number = (1 + random.wrapping_add(step) % most) as u32;
        let taken = take(&format!("process/{number}")).and_then(|name| {
            Ok(Own { number, _name: name, _life: Life::show(&whole(&life(number)))? })
        });
        match taken {
            Err(why) if why.raw() == libc::EADDRINUSE => {}
            done => return done,
        }
    }
    Err(Errno::EAGAIN)
}

fn life(number: u32) -> String {
    format!("life/{number}")
}

/// A descriptor on which the kernel hangs up when the process of that number ends.
///
/// # Errors
/// `ECONNREFUSED` it is gone; `EAGAIN` too many watch it; the system's.
pub(crate) fn watch(number: u32) -> Result<OwnedFd, Errno> {
    // Members of a group have several users.
    // SAFETY: geteuid has no requirements.
    let own = unsafe { libc::geteuid() };
    names::watch(&whole(&life(number)), |uid| is_group() || uid == own)
}

/// Becomes the one who answers for those that nobody is, or that are gone; `None`: another process is that already.
pub(crate) fn speak() -> Option<Name> {
    take("speaker").ok()
}

/// Whether the process of that number lives; one that cannot be seen is taken for alive, so that nobody answers in its name.
pub(crate) fn lives(number: u32) -> bool {
    is_taken(&format!("process/{number}")).unwrap_or(true)
}
