//! XRC: the outstanding request of a connection to the process of a shared receive queue.
//! Part of the receiving half (`packets`); `engine::host_qp::xrc_requests` makes the requests.
#![forbid(unsafe_code)]

use ferroverbs_roce::wire::Psn;
use std::collections::VecDeque;

/// Requests of one connection to different processes of this host.
#[derive(Debug, Default)]
pub(super) struct SrqRequests {
    outstanding: Option<OutstandingSrqRequest>,
    /// Packets that have arrived since the request, oldest first.
    delayed_packets: VecDeque<Box<[u8]>>,
}

/// A request without a reply.
#[derive(Debug)]
pub(crate) struct OutstandingSrqRequest {
    number: u64,
    slot: u16,
    /// PSN of the packet that the request carries.
    psn: Psn,
    /// READ: number of the READ, and the queue.
    read: Option<(u64, u32)>,
    /// The request as sent.
    frame: Vec<u8>,
}

/// Capacity of kept packets for each connection. Further packets are lost, and the peer repeats
/// them.
const MAX_DELAYED_PACKETS: usize = 256;

impl OutstandingSrqRequest {
    /// Request `number`, sent to process `slot` as `frame` for a packet. `read` has the number of a
    /// READ and the queue.
    pub(crate) fn new(
        number: u64,
        slot: u16,
        packet: &[u8],
        read: Option<(u64, u32)>,
        frame: Vec<u8>,
    ) -> Self {
        Self { number, slot, psn: psn_of(packet), read, frame }
    }

    /// READ: number of the READ, and the queue.
    pub(super) const fn read(&self) -> Option<(u64, u32)> {
        self.read
    }
}

impl SrqRequests {
    pub(super) fn begin(&mut self, request: OutstandingSrqRequest) {
        self.outstanding = Some(request);
    }

    /// Takes the outstanding request if process `slot` has replied to its number.
    pub(super) fn take(&mut self, slot: u16, number: u64) -> Option<OutstandingSrqRequest> {
        self.outstanding.take_if(|request| (request.number, request.slot) == (number, slot))
    }

    /// Keeps a packet that arrives during a request. Returns process and frame of the request if
    /// the peer has repeated the packet of the request or an earlier packet.
    pub(super) fn keep_packet(&mut self, packet: &[u8]) -> Option<(u16, &[u8])> {
        let request = self.outstanding.as_ref()?;
        // A repeated packet is kept as well: its acknowledgement bit may differ.
        if self.delayed_packets.len() < MAX_DELAYED_PACKETS {
            self.delayed_packets.push_back(packet.into());
        }
        let is_repeated = psn_of(packet).since(request.psn) <= 0;
        is_repeated.then_some((request.slot, &request.frame))
    }

    /// Takes the oldest kept packet, unless a request is outstanding.
    pub(super) fn next_packet(&mut self) -> Option<Box<[u8]>> {
        if self.outstanding.is_some() {
            return None;
        }
        self.delayed_packets.pop_front()
    }
}

/// The PSN in the base header of a packet.
fn psn_of(packet: &[u8]) -> Psn {
    match packet.get(9..12) {
        Some(&[high, middle, low]) => Psn::new(u32::from_be_bytes([0, high, middle, low])),
        _ => Psn::new(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(psn: u8) -> [u8; 12] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, psn]
    }

    #[test]
    fn packets_wait_for_the_reply_and_a_repeated_packet_repeats_the_request() {
        let mut requests = SrqRequests::default();
        assert_eq!(requests.keep_packet(&packet(7)), None, "no request is outstanding");
        requests.begin(OutstandingSrqRequest::new(1, 3, &packet(7), None, vec![9]));
        assert_eq!(requests.keep_packet(&packet(8)), None);
        assert_eq!(requests.keep_packet(&packet(7)), Some((3, &[9][..])));
        assert_eq!(requests.keep_packet(&packet(6)), Some((3, &[9][..])));
        assert!(requests.next_packet().is_none());
        assert!(requests.take(3, 2).is_none() && requests.take(4, 1).is_none());
        assert!(requests.take(3, 1).is_some());
        let kept: Vec<_> = std::iter::from_fn(|| requests.next_packet()).collect();
        let kept: Vec<_> = kept.iter().map(|packet| packet[11]).collect();
        assert_eq!(kept, [8, 7, 6]);
    }

    #[test]
    fn kept_packets_have_a_limit() {
        let mut requests = SrqRequests::default();
        requests.begin(OutstandingSrqRequest::new(1, 3, &packet(0), None, vec![]));
        for _ in 0..2 * MAX_DELAYED_PACKETS {
            let _ = requests.keep_packet(&packet(1));
        }
        requests.take(3, 1).expect("outstanding");
        assert_eq!(std::iter::from_fn(|| requests.next_packet()).count(), MAX_DELAYED_PACKETS);
    }
}
