//! The system below [`crate::host`]: the processes that share a device, the names that they
//! publish, and probes of other hosts.
//! The agent owns one value for its device.

use crate::host::peer::Peer;
use crate::host::{HostNames, HostSystem, PROCESS_BITS, Watch};
use crate::sys::objects::Context;
use crate::sys::ports::{self, Name};
use crate::sys::probe_sockets::ProbeSockets;
use crate::sys::processes::{ProcessWatches, Processes};
use crate::sys::random;
use cface::Errno;
use ferroverbs_cm::wire::ServiceId;
use std::net::{IpAddr, Ipv6Addr};

/// The host of this process, as a device and the names of the network namespace show it.
#[derive(Debug)]
pub(crate) struct LocalHost {
    processes: Processes,
    watches: ProcessWatches,
    /// The host-wide role of answering MADs whose process does not exist, if this process holds the
    /// role.
    responder_role: Option<Name>,
    probe_sockets: ProbeSockets<Peer>,
}

impl LocalHost {
    /// The host, as seen from a device.
    ///
    /// # Errors
    /// `EOPNOTSUPP` the plugin of the device does not number processes; else the errno of the
    /// plugin or system.
    pub(crate) fn of(context: Context) -> Result<Self, Errno> {
        Ok(Self {
            processes: Processes::of(context, (1 << PROCESS_BITS) - 1)?,
            watches: ProcessWatches::new()?,
            responder_role: None,
            probe_sockets: ProbeSockets::default(),
        })
    }

    /// The number of this process.
    pub(crate) const fn own_number(&self) -> u32 {
        self.processes.own_number()
    }

    /// The descriptor that is readable when a watched process has ended.
    pub(crate) fn fd(&self) -> i32 {
        self.watches.fd()
    }
}

impl HostNames for LocalHost {
    fn is_responder(&mut self) -> bool {
        if self.responder_role.is_none() {
            self.responder_role = ports::claim_name("responder").ok();
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

impl HostSystem for LocalHost {
    type Announcement = Name;

    fn is_process(&self, number: u32) -> bool {
        self.processes.is_process(number)
    }

    fn watch(&mut self, number: u32) -> Watch {
        match self.watches.add(&self.processes, number) {
            Ok(()) => Watch::Reported,
            Err(why) if why == Errno::ESRCH => Watch::Ended,
            // Descriptors may be missing, or the process is in another pid namespace.
            Err(_) => Watch::Unreported,
        }
    }

    fn ended(&mut self) -> Vec<u32> {
        self.watches.take_ended()
    }

    fn announce(&mut self, service: ServiceId) -> Option<Name> {
        ports::announce_unanswered(service, random::number()).ok()
    }

    fn probe(&mut self, peer: Peer) -> Option<bool> {
        let address = |gid| Ipv6Addr::from(gid).to_canonical();
        self.probe_sockets.probe(peer, address(peer.local), address(peer.remote))
    }

    fn end_probes(&mut self, peer: Peer) {
        self.probe_sockets.close(peer);
    }
}
