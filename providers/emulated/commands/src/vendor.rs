//! The form of a vendor's engine: commands in, answers out; doorbells in, requests out; completions
//! in, completion entries out.
//!
//! Map of this file: memory of queues; requests and receives; completions; creation of objects; the
//! trait `Vendor`, which an engine implements. No state, no lock.

use crate::carrier::Address;
use crate::refusal::Refusal;

/// Where a byte of a queue, record or doorbell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the file that the provider maps (`cmd_fd`), by offset.
    File(u64),
    /// In memory of the provider, by address.
    Process(u64),
}

impl Location {
    /// The location `bytes` further; wraps, so that the memory refuses it.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        match self {
            Self::File(offset) => Self::File(offset.wrapping_add(bytes)),
            Self::Process(address) => Self::Process(address.wrapping_add(bytes)),
        }
    }
}

/// A location outside of the file, or an address that the process does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside;

/// Memory that the provider and the engine share.
pub trait QueueMemory {
    /// Zeroed, page-aligned room in the file; the result is its offset.
    ///
    /// # Errors
    /// [`Refusal::NoMemory`].
    fn allocate(&mut self, len: u64) -> Result<u64, Refusal>;

    /// Gives room back; the provider may still have it mapped.
    fn release(&mut self, offset: u64, len: u64);

    /// Reads bytes, in any order.
    ///
    /// # Errors
    /// [`Outside`].
    fn read(&self, at: Location, bytes: &mut [u8]) -> Result<(), Outside>;

    /// Loads an aligned word with acquire order: what the provider stored before is visible.
    ///
    /// # Errors
    /// [`Outside`], also for a location that is not aligned.
    fn load(&self, at: Location) -> Result<u32, Outside>;

    /// Writes bytes, in any order.
    ///
    /// # Errors
    /// [`Outside`].
    fn write(&mut self, at: Location, bytes: &[u8]) -> Result<(), Outside>;

    /// Stores 8 aligned bytes at once with release order, after all earlier writes.
    ///
    /// # Errors
    /// [`Outside`], also for a location that is not aligned.
    fn publish(&mut self, at: Location, bytes: [u8; 8]) -> Result<(), Outside>;

    /// Admits a buffer that the provider named in a command and keeps until [`Self::dismiss`].
    ///
    /// # Errors
    /// [`Refusal::Fault`] for pages that are not mapped; [`Refusal::Invalid`] for no bytes, and for
    /// a buffer that begins like another; [`Refusal::Unsupported`] for memory without buffers.
    fn admit(&mut self, _address: u64, _len: usize) -> Result<(), Refusal> {
        Err(Refusal::Unsupported)
    }

    /// Gives a buffer back to the provider.
    fn dismiss(&mut self, _address: u64) {}
}

/// Which of a QP's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queue {
    /// The send queue.
    #[default]
    Send,
    /// The receive queue.
    Receive,
}

/// The result of a request, from which each vendor makes its own code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Done.
    #[default]
    Success,
    /// The QP is in the error state.
    Flushed,
    /// An entry that the adapter cannot read.
    Malformed,
    /// An operation that the QP does not have.
    Unsupported,
    /// No such address handle.
    BadAddressHandle,
    /// An lkey of no region, or a range outside of the region.
    LocalProtection,
    /// A message too long for the QP, or entries of wrong lengths.
    LocalLength,
    /// An rkey of no region, or a range or right that the region does not have.
    RemoteAccess,
    /// The remote end refused the request.
    RemoteAbort,
    /// No such QP at the address.
    NoRemoteQp,
    /// The remote QP has no receive, after all retries.
    NotReady,
    /// The receive is shorter than the message.
    RemoteLength,
    /// The remote end answered in an unknown way.
    BadResponse,
    /// The remote end answered before, and answers no more.
    Unresponsive,
    /// The remote end never answered.
    Unreachable,
}

/// A range of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The first byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The key, as the vendor's entry has it.
    pub lkey: u32,
}

/// A range of remote memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The first byte.
    pub address: u64,
    /// The key.
    pub rkey: u32,
}

/// What a request does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// A message to a receive.
    #[default]
    Send,
    /// RDMA READ of as many bytes as the segments have.
    Read(Remote),
    /// RDMA WRITE.
    Write(Remote),
    /// Compare and swap of 8 bytes.
    CompareSwap {
        /// The remote word.
        remote: Remote,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Fetch and add of 8 bytes.
    FetchAdd {
        /// The remote word.
        remote: Remote,
        /// The addend.
        add: u64,
    },
}

/// The way to the destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The number of an address handle.
    Handle(u32),
    /// The address itself.
    Address(Address),
}

impl Default for Route {
    fn default() -> Self {
        Self::Handle(0)
    }
}

/// The destination of a request of a QP that is not connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// The way.
    pub route: Route,
    /// The remote QP.
    pub qp: u32,
    /// The Q_Key.
    pub qkey: u32,
}

/// A request of a send queue. Engines fill a value that the caller keeps, so that a request needs
/// no new memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkRequest {
    /// What the completion entry names.
    pub id: u64,
    /// What the request does.
    pub operation: Operation,
    /// For the receiver's completion; in host order.
    pub immediate: Option<u32>,
    /// For a QP that is not connected.
    pub destination: Option<Destination>,
    /// Local memory; empty for inline data.
    pub segments: Vec<Segment>,
    /// The data, when the entry has them itself.
    pub inline: Option<Vec<u8>>,
    /// Whether success has a completion entry.
    pub is_signalled: bool,
    /// Whether the receiver's completion is solicited.
    pub is_solicited: bool,
    /// Whether the request waits for earlier READs and atomics.
    pub is_fenced: bool,
}

impl WorkRequest {
    /// Makes an empty request of `id`, which keeps its memory.
    pub fn clear(&mut self, id: u64) {
        let mut segments = core::mem::take(&mut self.segments);
        segments.clear();
        *self = Self { id, segments, is_signalled: true, ..Self::default() };
    }

    /// Bytes of the message.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.inline {
            Some(bytes) => bytes.len() as u64,
            None => self.segments.iter().map(|segment| u64::from(segment.length)).sum(),
        }
    }

    /// Whether the message has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A receive of a receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receive {
    /// What the completion entry names.
    pub id: u64,
    /// Local memory.
    pub segments: Vec<Segment>,
}

/// The next entry of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The doorbell tells of no further entry.
    Nothing,
    /// An entry was decoded.
    Decoded,
    /// An entry was consumed and cannot be executed: its id and the result.
    Failed(u64, Status),
}

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The sender's QP.
    pub qp: u32,
    /// The receiver's address handle for the sender, if it has one.
    pub ah: Option<u32>,
    /// The sender's GID.
    pub gid: [u8; 16],
}

/// The end of a request or receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The number of the QP.
    pub qp: u32,
    /// The queue of the entry.
    pub queue: Queue,
    /// The id of the request or receive; `None`: a WRITE with immediate that used no receive.
    pub id: Option<u64>,
    /// The result.
    pub status: Status,
    /// What the request did; for a receive, what the sender's request did.
    pub operation: Operation,
    /// Bytes of a received message.
    pub len: u32,
    /// Immediate data of a received message, in host order.
    pub immediate: Option<u32>,
    /// The sender of a received message.
    pub source: Option<Source>,
}

/// A completion queue without room: the entry is lost, and the CQ is in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// A request to create a CQ, without the vendor's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewCq {
    /// The provider's object, which events name.
    pub user_handle: u64,
    /// Entries, as the provider asks for them.
    pub entries: u32,
    /// The descriptor of a completion channel.
    pub channel: Option<i32>,
    /// The number that the CQ will have.
    pub number: u32,
}

/// A request to create an SRQ, without the vendor's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSrq {
    /// Receives in the queue.
    pub max_wr: u32,
    /// Segments of a receive.
    pub max_sge: u32,
    /// The number that the SRQ will have.
    pub number: u32,
}

/// The sizes of a QP's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Requests in the send queue.
    pub max_send_wr: u32,
    /// Receives in the receive queue.
    pub max_recv_wr: u32,
    /// Segments of a request.
    pub max_send_sge: u32,
    /// Segments of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// A request to create a QP, without the vendor's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewQp {
    /// The provider's object, which events name.
    pub user_handle: u64,
    /// `IBV_QPT_*`, of which a vendor's own type is 255.
    pub qp_type: u8,
    /// The sizes that the provider asks for.
    pub capabilities: Capabilities,
    /// An SRQ.
    pub srq: Option<u32>,
    /// Each request has a completion entry.
    pub signals_all: bool,
}

/// The sizes of a new QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The service.
    pub service: Service,
    /// What the response shows.
    pub reported: Capabilities,
    /// What the data path needs.
    pub queues: Capabilities,
}

/// The response to a method of the vendor's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MethodAnswer {
    /// An attribute, and the handle of a new object that its data gets.
    pub handle: Option<(u16, u32)>,
    /// Attributes, and the bytes for the room that they name.
    pub values: Vec<(u16, Vec<u8>)>,
}

/// The kind of a QP for the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Unreliable datagrams.
    Ud,
    /// Reliable, without order and connections.
    Srd,
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
}

/// A vendor's object with the vendor's part of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made<T> {
    /// The engine's state of the object.
    pub object: T,
    /// The bytes for `UVERBS_ATTR_UHW_OUT`.
    pub response: Vec<u8>,
}

/// Limits of a device, for the core responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// PCI vendor.
    pub vendor_id: u32,
    /// PCI device.
    pub part_id: u32,
    /// The firmware's version as 8 bytes.
    pub firmware: [u8; 8],
    /// QPs.
    pub max_qp: u32,
    /// Requests of a queue.
    pub max_qp_wr: u32,
    /// Segments.
    pub max_sge: u32,
    /// Segments of a READ.
    pub max_sge_rd: u32,
    /// CQs.
    pub max_cq: u32,
    /// Entries of a CQ.
    pub max_cqe: u32,
    /// Regions.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Bytes of the largest region.
    pub max_mr_size: u64,
    /// Bytes of the longest message.
    pub max_message: u32,
    /// SRQs.
    pub max_srq: u32,
    /// READs and atomics in flight of a QP, in each direction.
    pub max_reads: u32,
    /// `IBV_ATOMIC_*`.
    pub atomic_cap: u32,
    /// `IBV_LINK_LAYER_*`.
    pub link_layer: u8,
}

/// A vendor's engine. Numbers are those that the vendor's entries have.
pub trait Vendor {
    /// The engine's state of a CQ.
    type Cq;
    /// The engine's state of a QP.
    type Qp;
    /// The engine's state of an SRQ.
    type Srq;

    /// Limits of the device.
    fn limits(&self) -> Limits;

    /// Whether the entries of a queue complete in order. The data path then completes all of them,
    /// also those of a QP in the error state.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Executes a method of the vendor's own.
    ///
    /// # Errors
    /// [`Refusal::NoMethod`] for a method that the adapter does not have.
    fn method(&self, _object: u16, _method: u16) -> Result<MethodAnswer, Refusal> {
        Err(Refusal::NoMethod)
    }

    /// The response to MODIFY_QP.
    fn modified(&self) -> Vec<u8> {
        Vec::new()
    }

    /// The response to GET_CONTEXT.
    ///
    /// # Errors
    /// A request that the adapter does not serve.
    fn open(&self, request: &[u8]) -> Result<Vec<u8>, Refusal>;

    /// The response to QUERY_DEVICE.
    fn device(&self) -> Vec<u8>;

    /// The response to ALLOC_PD.
    fn pd(&self, number: u32) -> Vec<u8>;

    /// The response to CREATE_AH.
    fn ah(&self, number: u32) -> Vec<u8>;

    /// Makes a CQ with its memory.
    ///
    /// # Errors
    /// A request that the adapter does not serve, or [`Refusal::NoMemory`].
    fn create_cq(
        &self,
        core: &NewCq,
        request: &[u8],
        memory: &mut dyn QueueMemory,
    ) -> Result<Made<Self::Cq>, Refusal>;

    /// Gives the memory of a CQ back.
    fn destroy_cq(&self, cq: Self::Cq, memory: &mut dyn QueueMemory);

    /// Makes an SRQ with its memory.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] for a device without SRQs; a request that the adapter does not
    /// serve, or [`Refusal::NoMemory`].
    fn create_srq(
        &self,
        _core: &NewSrq,
        _request: &[u8],
        _memory: &mut dyn QueueMemory,
    ) -> Result<Made<Self::Srq>, Refusal> {
        Err(Refusal::Unsupported)
    }

    /// Gives the memory of an SRQ back.
    fn destroy_srq(&self, _srq: Self::Srq, _memory: &mut dyn QueueMemory) {}

    /// Decodes the next receive behind the doorbell of an SRQ into `receive`. `Failed`: the queue
    /// is broken, and has no further receives.
    fn next_shared_receive(
        &self,
        _srq: &mut Self::Srq,
        _memory: &dyn QueueMemory,
        _receive: &mut Receive,
    ) -> Next {
        Next::Nothing
    }

    /// The service and the sizes of a new QP.
    ///
    /// # Errors
    /// A request that the adapter does not serve.
    fn plan_qp(&self, core: &NewQp, request: &[u8]) -> Result<Plan, Refusal>;

    /// Makes a QP with its memory. [`Vendor::plan_qp`] accepted the request.
    ///
    /// # Errors
    /// As above, or [`Refusal::NoMemory`].
    fn create_qp(
        &self,
        core: &NewQp,
        number: u32,
        request: &[u8],
        memory: &mut dyn QueueMemory,
    ) -> Result<Made<Self::Qp>, Refusal>;

    /// Gives the memory of a QP back.
    fn destroy_qp(&self, qp: Self::Qp, memory: &mut dyn QueueMemory);

    /// The provider took the QP to RESET: its queues begin anew.
    fn reset_qp(&self, qp: &mut Self::Qp, memory: &mut dyn QueueMemory);

    /// Decodes the next request behind a doorbell into `request`.
    fn next_send(
        &self,
        qp: &mut Self::Qp,
        memory: &dyn QueueMemory,
        request: &mut WorkRequest,
    ) -> Next;

    /// Decodes the next receive behind a doorbell into `receive`.
    fn next_receive(
        &self,
        qp: &mut Self::Qp,
        memory: &dyn QueueMemory,
        receive: &mut Receive,
    ) -> Next;

    /// The queue of the request or receive that ended. The default is what the data path says.
    fn queue_of(&self, completion: &Completion) -> Queue {
        completion.queue
    }

    /// Writes the completion entry of a request or receive of `qp`.
    ///
    /// # Errors
    /// [`Overrun`].
    fn complete(
        &self,
        cq: &mut Self::Cq,
        qp: &Self::Qp,
        completion: &Completion,
        memory: &mut dyn QueueMemory,
    ) -> Result<(), Overrun>;

    /// Whether an event is due now: the provider armed the CQ, and it has entries since. Reads the
    /// arming doorbell, which later doorbells may overwrite.
    fn take_event(&self, cq: &mut Self::Cq, memory: &dyn QueueMemory) -> bool;
}
