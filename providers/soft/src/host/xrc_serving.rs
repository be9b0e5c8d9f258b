//! XRC: requests that reach another process of this host by the wire, for shared receive queues of ours (`asking` is the other side).
//!
//! They are served as by the stand-in that a sender of this host has here, but that this one has no sender in the fabric, and no ring. It belongs to one
//! incarnation of the receiving QP, whose owner's tables say what the sender may do. Anybody may write into rings, so that who asks gets no further than
//! the sender could.
#![forbid(unsafe_code)]

use super::xrc_messages::{Question, Saying, Served};
use crate::engine::objects::adapter::Adapter;
use crate::engine::objects::qp::Qp;
use crate::engine::objects::served_by::ServedBy;
use soft_local::shm::layout::split_qpn;
use soft_semantics::inbound::Verdict;

/// Process `slot` asks; `false`: for a QP that is not its own, or with too many others.
pub(crate) fn ask(
    adapter: &Adapter,
    slot: u16,
    question: Question,
    frame: &[u8],
    who: ServedBy,
) -> bool {
    if split_qpn(question.of).0 != slot || slot == adapter.fabric.slot() {
        return false;
    }
    match adapter.xrc.remote_stand_in(question.of) {
        Some(guest) if guest.serves_incarnation(question.generation) => {
            serve(adapter, Ok(&guest), &question, frame, who);
            true
        }
        // The service thread makes one.
        _ => adapter.xrc.queue_request(adapter, question, frame),
    }
}

/// Serves a question by `guest`, or says what is to be said where there is none. One that is over is told nothing.
pub(crate) fn serve(
    adapter: &Adapter,
    guest: Result<&Qp, Verdict>,
    question: &Question,
    frame: &[u8],
    who: ServedBy,
) {
    let served = match guest {
        Ok(guest) => guest.serve_guest(question, frame, who),
        Err(verdict) => Some(Served::Verdict(verdict)),
    };
    let Some(served) = served else { return };
    let saying = Saying { number: question.number, of: question.of, served };
    adapter.wire.say(adapter, split_qpn(question.of).0, &saying);
}

impl Qp {
    /// Serves a question, unless it is the last one once more: that one is only said again. `None`: it is one from before that, of which a copy waited for a
    /// stand-in while the answer to another made who asks go on. Numbers grow, and who asks has one question at a time.
    fn serve_guest(&self, question: &Question, frame: &[u8], who: ServedBy) -> Option<Served> {
        let mut responder = self.responder.lock();
        let inbound = &mut responder.inbound;
        if let Some((last, served)) = inbound.last_reply
            && question.number <= last
        {
            return (question.number == last).then_some(served);
        }
        inbound.begin_serving(who == ServedBy::Library);
        let served = self.serve_for(inbound, question.srqn, &question.ask, frame);
        inbound.last_reply = Some((question.number, served));
        Some(served)
    }
}
