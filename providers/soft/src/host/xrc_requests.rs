//! XRC: requests from another host that name a shared receive queue of another process of this one.
//!
//! The receiving QP's process has the transport, and with it the one order of packets. Only the queue's process can take its receives and write its
//! completions, and knows its keys. So the first asks the second for each packet, and the transport waits for what that one says. What comes
//! meanwhile is kept here, so that it need not be sent again.
//!
//! A question or what is said to it can be lost. It is asked again when the sender repeats the packet or one before it, as for a packet that is lost on the way.
#![forbid(unsafe_code)]

use super::connection::{Connection, Whose};
use super::receive::Reply;
use super::send::{Outcome, Owed};
use super::sockets::Ports;
use super::xrc_messages::{Question, Saying, Served};
use super::xrc_pending::{Asked, Elsewhere};
use crate::engine::objects::connection::{Inbound, Requester};
use crate::engine::objects::qp::Qp;
use crate::engine::objects::served_by::ServedBy;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{Arrival, Ask};
use ferroverbs_roce::wire::Psn;
use soft_local::shm::layout::{Life, split_qpn};
use soft_semantics::inbound::{Nak, Verdict};
use std::sync::atomic::{AtomicU64, Ordering};

/// Packets of a connection that are kept at most: what comes then is lost, and sent again.
const LATER_MOST: usize = 256;

/// The number of the next question of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Qp {
    /// Asks the process of shared receive queue `number` what a packet comes to. Returns whether the QP went to error: nobody is there.
    #[cold]
    pub(super) fn ask_elsewhere(
        &self,
        connection: &mut Connection,
        srqn: u32,
        ask: &Ask,
        packet: &[u8],
    ) -> bool {
        let (slot, _) = split_qpn(srqn);
        let read = match ask {
            Ask::Read { read, .. } => Some((*read, srqn)),
            _ => None,
        };
        let question = Question {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            of: self.qpn,
            generation: Life::unpack(self.entry().life.load(Ordering::Relaxed)).generation,
            srqn,
            ask: ask.clone(),
        };
        let frame = question.emit(packet);
        if !self.adapter.wire.ask(&self.adapter, slot, &frame) {
            return self.nobody_there(connection);
        }
        let asked = Asked { number: question.number, slot, psn: psn_of(packet), read, frame };
        connection.elsewhere.get_or_insert_default().asked = Some(asked);
        false
    }

    /// A packet came while the transport waits for an answer.
    #[cold]
    pub(super) fn came_meanwhile(&self, connection: &mut Connection, packet: &[u8]) -> bool {
        let Some(Elsewhere { asked: Some(asked), later }) = connection.elsewhere.as_deref_mut()
        else {
            return false;
        };
        // Also one that came before: it may ask for an acknowledgement where that one did not.
        if later.len() < LATER_MOST {
            later.push_back(packet.into());
        }
        if psn_of(packet).since(asked.psn) > 0 {
            return false;
        }
        // The sender repeats this packet, or one before it, since it has heard nothing for long: the question may be lost, or what was said to it.
        if self.adapter.wire.ask(&self.adapter, asked.slot, &asked.frame) {
            return false;
        }
        self.nobody_there(connection)
    }

    /// The process of the queue is gone: as if there were no such queue.
    fn nobody_there(&self, connection: &mut Connection) -> bool {
        connection.elsewhere = None;
        self.answer(connection, Served::Verdict(Verdict::Refuse(Nak::InvalidRd)))
    }

    /// Answers the transport. Returns whether the QP went to error.
    fn answer(&self, connection: &mut Connection, served: Served) -> bool {
        let (reply, failed) = self.reply(served);
        match reply {
            Reply::Answer(answer) => connection.transport.answer(answer),
            Reply::Silence => connection.transport.fail(),
        }
        failed
    }

    /// Process `slot` says something to a question; `false`: it is none that was asked there.
    pub(super) fn told(&self, ports: &Ports, slot: u16, said: &Saying, who: ServedBy) -> bool {
        let mut was_asked = false;
        let now = ports.now();
        self.turn(ports, now, Owed::Goes, |requester, connection, inbound| {
            inbound.begin_serving(who == ServedBy::Library);
            let elsewhere = connection.elsewhere.as_deref_mut();
            let asked = elsewhere.and_then(|elsewhere| {
                elsewhere.asked.take_if(|asked| (asked.number, asked.slot) == (said.number, slot))
            });
            let Some(asked) = asked else { return (false, Outcome::default()) };
            was_asked = true;
            if connection.is_over() {
                return (false, Outcome::default());
            }
            if let (Some((read, srqn)), Served::Verdict(Verdict::Done)) = (asked.read, said.served)
            {
                connection.note_read(read, Whose::Queue(srqn));
            }
            let failed = self.answer(connection, said.served);
            let outcome = self.go_on(ports, requester, connection, inbound, now);
            (failed | outcome.0, outcome.1)
        });
        was_asked
    }

    /// Takes what waited for an answer, as far as it goes.
    fn go_on(
        &self,
        ports: &Ports,
        requester: &mut Requester,
        connection: &mut Connection,
        inbound: &mut Inbound,
        now: Time,
    ) -> (bool, Outcome) {
        let Some(far) = connection.far.as_ref() else { return (false, Outcome::default()) };
        let addresses = far.addresses.reversed();
        let mut outcome = self.pump_answers(ports, requester, connection, now);
        let mut failed = self.release(inbound, requester, connection, now, addresses);
        loop {
            outcome = outcome.and(self.pump_answers(ports, requester, connection, now));
            let next = match connection.elsewhere.as_deref_mut() {
                Some(Elsewhere { asked: None, later }) => later.pop_front(),
                _ => None,
            };
            let Some(packet) = next else { return (failed, outcome) };
            let arrival = Arrival { addresses, congested: false, packet: &packet };
            failed |= self.take_packet(inbound, requester, connection, now, &arrival);
        }
    }
}

/// The PSN of a packet, as it stands in its base header.
fn psn_of(packet: &[u8]) -> Psn {
    match packet.get(9..12) {
        Some(&[high, middle, low]) => Psn::new(u32::from_be_bytes([0, high, middle, low])),
        _ => Psn::new(0),
    }
}
