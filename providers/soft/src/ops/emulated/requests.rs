//! Requests and receives of an emulated QP that the adapter has, by the ids of the adapter's work
//! requests, and the translation of results.
#![forbid(unsafe_code)]

use super::objects::{Ah, Qp, SendRequest};
use abi::*;
use arrayvec::ArrayVec;
use emulated_commands::vendor::{Operation, Status};
use soft_sys::Errno;
use std::collections::BTreeMap;

pub(super) use emulated_efa::entries::MAX_SEGMENTS;

/// Bytes of inline data of a request of EFA.
pub(super) const MAX_INLINE: u32 = emulated_efa::entries::MAX_INLINE as u32;
/// Bytes before a datagram in a receive.
pub(super) const HEADER: usize = 40;

/// Segments with keys of the adapter.
pub(super) type Segments = ArrayVec<ibv_sge, MAX_SEGMENTS>;

/// What a work request of the adapter is for. The upper two bits of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A request of the program.
    Send,
    /// A receive of the program.
    Receive,
    /// A receive of a handshake, with the number of its buffer.
    HandshakeReceive(usize),
    /// A message of a handshake.
    HandshakeSend,
}

impl Purpose {
    const SHIFT: u32 = 62;
    const SEND: u64 = 0;
    const RECEIVE: u64 = 1 << Self::SHIFT;
    const HANDSHAKE_RECEIVE: u64 = 2 << Self::SHIFT;
    pub(super) const HANDSHAKE_SEND: u64 = 3 << Self::SHIFT;

    /// The id of the receive of a handshake.
    pub(super) const fn handshake_receive(buffer: usize) -> u64 {
        Self::HANDSHAKE_RECEIVE | buffer as u64
    }

    /// The purpose of the work request with this id.
    pub(super) const fn of(id: u64) -> Self {
        match id >> Self::SHIFT << Self::SHIFT {
            Self::SEND => Self::Send,
            Self::RECEIVE => Self::Receive,
            Self::HANDSHAKE_RECEIVE => {
                Self::HandshakeReceive((id & !Self::HANDSHAKE_RECEIVE) as usize)
            }
            _ => Self::HandshakeSend,
        }
    }
}

/// A request of the program, with keys of the adapter.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// What the completion entry names.
    pub(super) id: u64,
    pub(super) operation: Operation,
    /// In host order.
    pub(super) immediate: Option<u32>,
    pub(super) segments: Segments,
    pub(super) inline: Option<Vec<u8>>,
}

impl Request {
    /// Posts the request to `qp` as work request `id`. `to`: the address, number and Q_Key of a
    /// datagram's destination.
    ///
    /// # Errors
    /// Of ibv_post_send(3).
    pub(super) fn post(&self, qp: &Qp, id: u64, to: Option<(&Ah, u32, u32)>) -> Result<(), Errno> {
        let (mut whole, is_inline) = match &self.inline {
            Some(bytes) => {
                let mut list = Segments::new();
                if !bytes.is_empty() {
                    let addr = bytes.as_ptr().expose_provenance() as u64;
                    list.push(ibv_sge { addr, length: bytes.len() as u32, lkey: 0 });
                }
                (list, true)
            }
            None => (self.segments.clone(), false),
        };
        let opcode = match (self.operation, self.immediate) {
            (Operation::Send, None) => IBV_WR_SEND,
            (Operation::Send, Some(_)) => IBV_WR_SEND_WITH_IMM,
            (Operation::Read(_), _) => IBV_WR_RDMA_READ,
            (Operation::Write(_), None) => IBV_WR_RDMA_WRITE,
            (Operation::Write(_), Some(_)) => IBV_WR_RDMA_WRITE_WITH_IMM,
            // EFA has no atomics.
            (Operation::CompareSwap { .. } | Operation::FetchAdd { .. }, _) => {
                return Err(Errno::EOPNOTSUPP);
            }
        };
        let mut request = SendRequest::new(id, opcode, &mut whole);
        if is_inline {
            request.inline();
        }
        if let Some(immediate) = self.immediate {
            request.immediate(immediate);
        }
        if let Operation::Read(remote) | Operation::Write(remote) = self.operation {
            request.remote(remote.address, remote.rkey);
        }
        if let Some((ah, number, qkey)) = to {
            request.set_destination(ah, number, qkey);
        }
        qp.post_send(&mut request)
    }
}

/// Whether the adapter refused a request because its queue is full (ibv_post_send(3)).
pub(super) const fn is_full_queue(errno: Errno) -> bool {
    errno.raw() == libc::ENOMEM
}

/// The result of a request that the adapter refuses to take.
pub(super) fn refused(errno: Errno) -> Status {
    match errno.raw() {
        libc::EINVAL | libc::EMSGSIZE => Status::LocalLength,
        _ => Status::Malformed,
    }
}

/// The result of a completion of the adapter (`IBV_WC_*`).
pub(super) const fn status_of(status: u32) -> Status {
    match status {
        IBV_WC_SUCCESS => Status::Success,
        IBV_WC_LOC_LEN_ERR => Status::LocalLength,
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR => Status::LocalProtection,
        IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        IBV_WC_BAD_RESP_ERR => Status::BadResponse,
        IBV_WC_REM_INV_REQ_ERR => Status::RemoteLength,
        IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        IBV_WC_REM_OP_ERR => Status::RemoteAbort,
        IBV_WC_RETRY_EXC_ERR => Status::Unresponsive,
        IBV_WC_RNR_RETRY_EXC_ERR => Status::NotReady,
        _ => Status::Malformed,
    }
}

/// A receive that the adapter has.
#[derive(Clone, Debug)]
pub(super) struct PostedReceive {
    /// What the completion entry names.
    pub(super) id: u64,
    pub(super) segments: Segments,
}

/// The work requests of a QP that the adapter has. `S` is what is kept of a request.
#[derive(Debug)]
pub(super) struct Outstanding<S> {
    next: u64,
    sends: BTreeMap<u64, S>,
    receives: BTreeMap<u64, PostedReceive>,
    max_sends: usize,
    max_receives: usize,
}

impl<S> Outstanding<S> {
    pub(super) const fn new(max_sends: u32, max_receives: u32) -> Self {
        let (max_sends, max_receives) = (max_sends as usize, max_receives as usize);
        Self { next: 0, sends: BTreeMap::new(), receives: BTreeMap::new(), max_sends, max_receives }
    }

    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// An id for a request of the program. A program that rings for more requests than its queue
    /// has loses the request.
    ///
    /// # Errors
    /// [`Status::Malformed`] the queue is full.
    pub(super) fn send_id(&mut self) -> Result<u64, Status> {
        if self.sends.len() < self.max_sends { Ok(self.next_id()) } else { Err(Status::Malformed) }
    }

    /// As [`Self::send_id`], for a receive.
    ///
    /// # Errors
    /// [`Status::Malformed`] the queue is full.
    pub(super) fn receive_id(&mut self) -> Result<u64, Status> {
        let is_full = self.receives.len() >= self.max_receives;
        if is_full { Err(Status::Malformed) } else { Ok(Purpose::RECEIVE | self.next_id()) }
    }

    pub(super) fn add_send(&mut self, id: u64, send: S) {
        self.sends.insert(id, send);
    }

    pub(super) fn add_receive(&mut self, id: u64, receive: PostedReceive) {
        self.receives.insert(id, receive);
    }

    /// The request of a completion; None after [`Self::take_all`].
    pub(super) fn take_send(&mut self, id: u64) -> Option<S> {
        self.sends.remove(&id)
    }

    /// The receive of a completion; None after [`Self::take_all`].
    pub(super) fn take_receive(&mut self, id: u64) -> Option<PostedReceive> {
        self.receives.remove(&id)
    }

    /// All requests and receives, in the order of posting. Later completions find none of them.
    pub(super) fn take_all(&mut self) -> (Vec<S>, Vec<PostedReceive>) {
        let sends = std::mem::take(&mut self.sends).into_values().collect();
        (sends, std::mem::take(&mut self.receives).into_values().collect())
    }
}

/// The sender's GID in the 40 bytes before a datagram: a global route header, or an IPv4 header in
/// the last 20 bytes (RoCE v2 annex, A17.4.5.2).
pub(super) fn source_gid(header: &[u8; HEADER]) -> Option<[u8; 16]> {
    let part = |at: usize, len: usize| header.get(at..at + len);
    if header[0] >> 4 == 6 {
        return part(8, 16)?.try_into().ok();
    }
    let [a, b, c, d] = part(32, 4)?.try_into().ok()?;
    (header[20] >> 4 == 4).then(|| std::net::Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_purposes() {
        let mut outstanding = Outstanding::<()>::new(1, 1);
        let send = outstanding.send_id().expect("room");
        outstanding.add_send(send, ());
        assert_eq!(outstanding.send_id(), Err(Status::Malformed));
        let receive = outstanding.receive_id().expect("room");
        assert_eq!((Purpose::of(send), Purpose::of(receive)), (Purpose::Send, Purpose::Receive));
        let handshake = Purpose::of(Purpose::handshake_receive(7));
        assert_eq!(handshake, Purpose::HandshakeReceive(7));
        assert_eq!(Purpose::of(Purpose::HANDSHAKE_SEND), Purpose::HandshakeSend);
        assert_eq!(outstanding.take_all().0.len(), 1);
        assert!(outstanding.take_send(send).is_none());
    }

    #[test]
    fn only_a_full_queue_lets_a_request_wait() {
        assert!(is_full_queue(Errno::ENOMEM));
        let others = [Errno::EINVAL, Errno::EOPNOTSUPP, Errno::ENODEV];
        assert!(others.iter().all(|errno| !is_full_queue(*errno)));
        assert_eq!(refused(Errno::EINVAL), Status::LocalLength);
        assert_eq!(refused(Errno::ENODEV), Status::Malformed);
    }

    #[test]
    fn the_header_of_a_datagram_names_the_sender() {
        let mut header = [0; 40];
        assert_eq!(source_gid(&header), None);
        header[20] = 0x45;
        header[32..36].copy_from_slice(&[10, 0, 0, 1]);
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        assert_eq!(source_gid(&header), Some(mapped));
        header[0] = 0x60;
        header[8..24].copy_from_slice(&[7; 16]);
        assert_eq!(source_gid(&header), Some([7; 16]));
    }
}
