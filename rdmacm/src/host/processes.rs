//! The processes of a host: their numbers, their life, and the one that answers for dead processes.
//! Numbers, life and role are names of sockets, as ports are ([`crate::host::ports`]).

use crate::host::ports::{self, Name, claim_name, full_name, is_taken};
use crate::host::unclaimed::HostNames;
use crate::sys::process::{effective_id, is_group};
use cface::Errno;
use cface::names::{self, Life};
use ferroverbs_cm::wire::ServiceId;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// The number of upper bits of a communication id that contain the process number.
pub(crate) const PROCESS_BITS: u32 = 12;

/// The number of a process, from 1.
#[derive(Debug)]
pub(crate) struct ProcessNumber {
    pub(crate) number: u32,
    _name: Name,
    /// The socket at which other processes of this host observe the end of this process.
    _life: Life,
}

/// Takes a process number.
///
/// # Errors
/// `EAGAIN` all numbers are taken; else the errno of the system.
pub(crate) fn take_number(random: u64) -> Result<ProcessNumber, Errno> {
    let most = (1_u64 << PROCESS_BITS) - 1;
    for step in 0..most {
        let number = (1 + random.wrapping_add(step) % most) as u32;
        let taken = claim_name(&format!("process/{number}")).and_then(|name| {
            Ok(ProcessNumber {
                number,
                _name: name,
                _life: Life::show(&full_name(&life_name(number)))?,
            })
        });
        match taken {
            Err(why) if why.raw() == libc::EADDRINUSE => {}
            done => return done,
        }
    }
    Err(Errno::EAGAIN)
}

fn life_name(number: u32) -> String {
    format!("life/{number}")
}

/// A descriptor on which the kernel reports a hang-up when the process with the number ends.
///
/// # Errors
/// `ECONNREFUSED` the process has ended; `EAGAIN` too many watchers; else the errno of the system.
pub(crate) fn watch(number: u32) -> Result<OwnedFd, Errno> {
    // The members of a group have different users.
    let own = effective_id();
    names::watch(&full_name(&life_name(number)), |uid| is_group() || uid == own)
}

/// The names that the processes of this host have published, and the role of this process.
#[derive(Debug, Default)]
pub(crate) struct PublishedNames {
    /// The host-wide role of answering MADs whose process does not exist, if this process holds the
    /// role.
    responder_role: Option<Name>,
}

impl HostNames for PublishedNames {
    fn is_responder(&mut self) -> bool {
        if self.responder_role.is_none() {
            self.responder_role = claim_name("speaker").ok();
        }
        self.responder_role.is_some()
    }

    fn is_listened_to(&self, service: ServiceId, to: IpAddr) -> Result<bool, Errno> {
        ports::is_listened_to(service, to)
    }

    fn unanswered_services(&self) -> Result<Vec<ServiceId>, Errno> {
        ports::unanswered_services()
    }
}

/// Whether the process with the number lives. If the state cannot be determined the result is true,
/// so that no process answers in its name.
pub(crate) fn is_alive(number: u32) -> bool {
    is_taken(&format!("process/{number}")).unwrap_or(true)
}
