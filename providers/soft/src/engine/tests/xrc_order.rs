//! Tests that a request completes before the reply to it does, whichever ring a thread reads first.
//! The two rings belong to different QPs of one XRC endpoint (`xrc::rings`).

use super::*;
use crate::engine::xrc::DomainId;

/// One end of an XRC connection: the sending QP, and the receiving QP with its SRQ and its CQ.
pub(super) struct End {
    pub(super) send: Side,
    pub(super) recv: Side,
    pub(super) srq: Arc<Srq>,
}

impl End {
    pub(super) fn new(adapter: &Arc<Adapter>, domain: DomainId) -> Self {
        let send = Side::new(adapter, QpType::XrcSend, 64);
        let spare = Side::new(adapter, QpType::Rc, 64);
        let report = Reporter(Arc::new(Channel::new(2).expect("a channel")));
        let wanted = SrqParameters {
            pd: spare.qp.pd(),
            max_wr: 8,
            max_sge: 1,
            domain: Some(domain),
            cq: Some(Arc::clone(&spare.cq)),
            tags: None,
            report: report.clone(),
        };
        let srq = Srq::new(adapter, wanted).expect("a number");
        let wanted = QpParameters::receiver(Role::receiver(domain), report);
        let qp = Qp::new(adapter, wanted).expect("a number");
        let mut recv = spare;
        recv.qp.retire();
        recv.qp = qp;
        Self { send, recv, srq }
    }

    pub(super) fn connect(&self, to: &Self) {
        self.recv.connect(to.send.qp.qpn(), 7);
        self.send.connect(to.recv.qp.qpn(), 7);
    }

    pub(super) fn send(&self, to: &Self) {
        let message = Request { srqn: to.srq.number, ..request(IBV_WR_SEND, &to.recv) };
        self.send.send(message, &[self.send.sge(0, 8)]);
    }

    /// Whether a message was received, and whether a request completed. Reads the CQs only, and
    /// advances no ring.
    fn got(&self) -> [bool; 2] {
        [&self.recv, &self.send].map(|side| side.cq.pop_stamped().is_some())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.srq.retire();
    }
}

#[test]
fn an_xrc_request_completes_before_the_answer_that_comes_by_another_qp() {
    let adapter = adapter(true);
    let domain = adapter.xrc.open_domain(&adapter, None, true, false).expect("a domain");
    let (a, b) = (End::new(&adapter, domain), End::new(&adapter, domain));
    a.connect(&b);
    b.connect(&a);
    adapter.xrc.await_events();
    for round in 0..200 {
        for end in [&a, &b] {
            end.srq.post(round, &[end.recv.sge(0, 8)]).expect("room");
            end.srq.receives_posted();
        }
        a.send(&b);
        b.recv.qp.advance_receive(ServedBy::Application);
        b.send(&a);
        // This is the order of a thread that looked for acknowledgements before there was one.
        a.recv.qp.advance_receive(ServedBy::Application);
        assert_eq!(a.got(), [true, true], "round {round}");
        a.recv.qp.send_due_ack();
        b.send.qp.advance_send();
        assert_eq!(b.got(), [true, true], "round {round}");
    }
}
