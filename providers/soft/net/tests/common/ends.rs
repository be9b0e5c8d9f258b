//! A sender, a receiver and a path between them, for tests. The tests that need no protocol engine
//! use them.

use crate::packets::{CLASS, HOPS, ReceivedPacket, receive};
use ferroverbs_net::*;
use std::net::IpAddr;

pub(crate) struct Ends {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) target: Target,
    pub(crate) path: Path,
}

impl Ends {
    /// Both ends at `address`, on any port.
    pub(crate) fn new(address: &str, segment: bool, merge: bool) -> Self {
        let address: IpAddr = address.parse().expect("an address");
        let receiver =
            Receiver::bind(Bind { port: 0, merge, ..Bind::new(address) }).expect("a port");
        let port = receiver.port().expect("bound");
        let mut sender = Sender::new(segment);
        assert_eq!(sender.segments(), segment, "this kernel cuts datagrams");
        let (interface, traffic_class, hop_limit) = (0, CLASS, HOPS);
        let target =
            Target { source: address, destination: address, interface, traffic_class, hop_limit };
        let lane = sender.select_lane(address, 0x1234).expect("a lane");
        let path = Path::new(&target, lane).expect("a path").to_port(port);
        Self { sender, receiver, address, port, target, path }
    }

    /// The next `count` packets.
    pub(crate) fn receive(&mut self, count: usize) -> Vec<ReceivedPacket> {
        receive(&mut self.receiver, count)
    }
}
