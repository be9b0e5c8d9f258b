//! The data path of emulated devices, which executes requests and has the rules of verbs: the
//! software adapter.

use crate::refusal::Refusal;
use crate::vendor::{Capabilities, Receive, Service, Status, WorkRequest};

/// A region to register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The protection domain's handle.
    pub pd: u32,
    /// The first byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// The address by which requests name the first byte.
    pub iova: u64,
    /// `IBV_ACCESS_*`.
    pub access: u32,
}

/// The keys of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// For local segments.
    pub lkey: u32,
    /// For remote requests.
    pub rkey: u32,
}

/// A change of a QP, as the core request has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// `IBV_QP_*`: the valid members.
    pub mask: u32,
    /// `IBV_QPS_*`.
    pub state: u8,
    /// The Q_Key.
    pub qkey: u32,
    /// The PSN of the first request.
    pub sq_psn: u32,
    /// Rights of remote requests.
    pub access: u32,
    /// The index in the table of P_Keys.
    pub pkey_index: u16,
    /// The port, from 1.
    pub port: u8,
    /// Retries when the receiver is not ready.
    pub rnr_retry: u8,
    /// The remote end of a connection.
    pub remote: Address,
    /// The remote QP of a connection.
    pub remote_qp: u32,
    /// The PSN of the first request of the remote end.
    pub rq_psn: u32,
    /// `IBV_MTU_*`.
    pub path_mtu: u8,
    /// READs and atomics in flight to the remote end.
    pub max_rd_atomic: u8,
    /// READs and atomics in flight from the remote end.
    pub max_dest_rd_atomic: u8,
    /// The code of the pause that a sender makes when the QP is not ready.
    pub min_rnr_timer: u8,
    /// The code of the time until a request is repeated.
    pub timeout: u8,
    /// Repetitions of a request without an answer.
    pub retry_count: u8,
    /// The state that the caller assumes, `IBV_QPS_*`.
    pub current_state: u8,
}

/// The remote end of an address handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The destination GID.
    pub dgid: [u8; 16],
    /// The index of the source GID.
    pub sgid_index: u8,
    /// The port, from 1.
    pub port: u8,
    /// The address has a GID.
    pub is_global: bool,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label.
    pub flow_label: u32,
}

/// A port, for the core response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// `IBV_PORT_*`.
    pub state: u8,
    /// `IBV_MTU_*`.
    pub mtu: u8,
    /// Entries of the GID table.
    pub gids: u32,
    /// Entries of the table of P_Keys.
    pub pkeys: u16,
}

/// The data path of one context. Objects are named by their handles, QPs also by their numbers.
pub trait Carrier {
    /// The node's GUID, big endian.
    fn node_guid(&self) -> u64;

    /// A port; `None` beyond the last.
    fn port(&self, port: u8) -> Option<Port>;

    /// The descriptor that delivers asynchronous events.
    ///
    /// # Errors
    /// The errno of its creation.
    fn open_events(&mut self) -> Result<i32, Refusal>;

    /// The descriptor of a new completion channel.
    ///
    /// # Errors
    /// The errno of its creation.
    fn open_channel(&mut self) -> Result<i32, Refusal>;

    /// Whether a descriptor is a completion channel of this context.
    fn has_channel(&self, channel: i32) -> bool;

    /// Delivers the event of a CQ, whose provider's object is `user_handle`.
    fn notify(&mut self, channel: i32, user_handle: u64);

    /// Removes the unread events of a CQ from a channel; how many events were read.
    fn forget_notifications(&mut self, channel: i32, user_handle: u64) -> u32;

    /// Delivers an asynchronous event (`IBV_EVENT_*`) of an object.
    fn report(&mut self, user_handle: u64, event: u32);

    /// Removes the unread asynchronous events of an object; how many were read.
    fn forget_reports(&mut self, user_handle: u64) -> u32;

    /// Makes a protection domain.
    ///
    /// # Errors
    /// The errno of the software adapter.
    fn alloc_pd(&mut self, pd: u32) -> Result<(), Refusal>;

    /// Ends a protection domain.
    fn dealloc_pd(&mut self, pd: u32);

    /// Registers a region.
    ///
    /// # Errors
    /// The errno of the software adapter.
    fn register(&mut self, mr: u32, region: &Region) -> Result<Keys, Refusal>;

    /// Ends a region.
    fn deregister(&mut self, mr: u32);

    /// Makes an address handle.
    ///
    /// # Errors
    /// The errno of the software adapter.
    fn create_ah(&mut self, ah: u32, pd: u32, address: &Address) -> Result<(), Refusal>;

    /// Ends an address handle.
    fn destroy_ah(&mut self, ah: u32);

    /// Makes an SRQ of `max_wr` receives.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`], or the errno of the software adapter.
    fn create_srq(
        &mut self,
        _srq: u32,
        _pd: u32,
        _max_wr: u32,
        _max_sge: u32,
    ) -> Result<(), Refusal> {
        Err(Refusal::Unsupported)
    }

    /// Ends an SRQ, which no QP uses.
    fn destroy_srq(&mut self, _srq: u32) {}

    /// Posts a receive to an SRQ. Its completion comes later, as one of a QP.
    ///
    /// # Errors
    /// The result, when it is known at once.
    fn shared_receive(&mut self, _srq: u32, _receive: &Receive) -> Result<(), Status> {
        Err(Status::Unsupported)
    }

    /// Makes a QP, whose receives are those of an SRQ if there is one; the result is its number.
    ///
    /// # Errors
    /// The errno of the software adapter.
    fn create_qp(
        &mut self,
        qp: u32,
        pd: u32,
        service: Service,
        capabilities: &Capabilities,
        srq: Option<u32>,
    ) -> Result<u32, Refusal>;

    /// The state of a QP, `IBV_QPS_*`, if the data path changes it by itself.
    fn state(&self, _qp: u32) -> Option<u8> {
        None
    }

    /// Changes a QP. Checks the transition.
    ///
    /// # Errors
    /// The errno of the software adapter.
    fn modify_qp(&mut self, qp: u32, change: &Change) -> Result<(), Refusal>;

    /// Ends a QP. Its requests and receives have no completions any more.
    fn destroy_qp(&mut self, qp: u32);

    /// Begins a request. Its completion comes later.
    ///
    /// # Errors
    /// The result, when it is known at once.
    fn send(&mut self, qp: u32, request: &WorkRequest) -> Result<(), Status>;

    /// Posts a receive. Its completion comes later.
    ///
    /// # Errors
    /// The result, when it is known at once.
    fn receive(&mut self, qp: u32, receive: &Receive) -> Result<(), Status>;
}
