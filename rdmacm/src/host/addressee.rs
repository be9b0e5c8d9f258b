//! The process of the host that a MAD is for.
//! [`crate::host`] asks here for each received MAD.

use super::HostSystem;
use ferroverbs_cm::wire::{CommId, Destination, MAD_LEN, ServiceId};
use std::net::IpAddr;

/// The number of upper bits of a communication id that contain the number of its process.
pub(crate) const PROCESS_BITS: u32 = 12;

/// The receiver of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addressee {
    /// The listener to the service at this address.
    Service(ServiceId, IpAddr),
    /// The process with the number.
    Process(u32),
    /// Unknown, perhaps a connection of any process: a REJ from a client that gave up its REQ.
    AnyProcess,
    /// A process that does not exist. One process of the host answers.
    NoProcess,
}

impl Addressee {
    /// The receiver of a MAD.
    pub(super) fn of(mad: &[u8; MAD_LEN]) -> Self {
        let (id, is_reject) = match Destination::of(mad) {
            Destination::Service(service, to) => return Self::Service(service, to),
            Destination::Rejected(id) => (id, true),
            Destination::Connection(id) => (id, false),
        };
        match process_of(id) {
            // A REJ has no answer, so every process may accept it.
            0 if is_reject => Self::AnyProcess,
            0 => Self::NoProcess,
            process => Self::Process(process),
        }
    }

    /// Whether the process `this` accepts a MAD that is for no service. At most one process of a
    /// host accepts a MAD that is answered.
    pub(super) fn is_accepted_by(self, this: u32, system: &mut impl HostSystem) -> bool {
        match self {
            Self::Service(..) => false,
            Self::AnyProcess => true,
            Self::Process(process) => {
                process == this || (!system.is_process(process) && system.is_responder())
            }
            Self::NoProcess => system.is_responder(),
        }
    }
}

/// The process number in a communication id; 0: no process of this library.
pub(super) const fn process_of(id: CommId) -> u32 {
    id.0 >> (32 - PROCESS_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests::TestHost;
    use ferroverbs_cm::wire::{
        Acknowledge, DisconnectRequest, LoadPath, Mad, Message, Ready, Reply,
    };

    fn addressee(message: Message) -> Addressee {
        Addressee::of(&Mad { transaction: 1, message }.emit())
    }

    #[test]
    fn a_communication_id_names_its_process() {
        let remote_id = CommId(0x0030_0001);
        let ready = Message::Ready(Ready { remote_id, ..Ready::default() });
        assert_eq!(addressee(ready), Addressee::Process(3));
        assert_eq!(addressee(Message::Ready(Ready::default())), Addressee::NoProcess);
        assert_eq!(addressee(Message::Reject(Box::default())), Addressee::AnyProcess);
    }

    #[test]
    fn a_host_gives_at_most_one_answer_to_what_is_for_none_of_its_processes() {
        let local_id = CommId(7);
        let without_a_process = [
            Message::DisconnectRequest(DisconnectRequest { local_id, ..Default::default() }),
            Message::LoadPath(Box::new(LoadPath { local_id, ..LoadPath::default() })),
            Message::Reply(Box::new(Reply { local_id, ..Reply::default() })),
            Message::Acknowledge(Acknowledge { local_id, ..Acknowledge::default() }),
        ];
        // The processes that accept a MAD, of the living processes from `first` to 12.
        let takers = |addressee: Addressee, first: u32, responder: u32| -> Vec<u32> {
            let accepts = |this: &u32| {
                let mut host = TestHost::default();
                host.processes = (first..=12).collect();
                host.role_is_taken = *this != responder;
                addressee.is_accepted_by(*this, &mut host)
            };
            (first..=12).filter(accepts).collect()
        };
        for message in without_a_process {
            let addressee = addressee(message.clone());
            assert_eq!(takers(addressee, 1, 5), [5], "{message:?}");
            assert_eq!(takers(addressee, 1, 99), [], "{message:?}");
        }
        // A MAD for a living process is for that process alone; a MAD for a dead process is for the
        // answering process.
        assert_eq!(takers(Addressee::Process(3), 1, 5), [3]);
        assert_eq!(takers(Addressee::Process(3), 4, 5), [5]);
    }
}
