//! Tests that QPs without a CQ of their own use none. These are XRC receive QPs and RSS QPs.

use super::*;
use crate::engine::queues::wq::receives::WqParameters;
use crate::engine::queues::wq::{IndirectionTable, Rss, Wq};
use crate::engine::verbs_cell::VerbsCell;
use soft_semantics::frames::toeplitz::{Hash, KEY_BYTES};
use std::sync::atomic::AtomicUsize;

#[test]
fn an_xrc_receive_qp_has_no_completion_queue() {
    let adapter = adapter(true);
    let domain = adapter.xrc.open_domain(&adapter, None, true, false).expect("a domain");
    let _used = queue(&adapter);
    let before = adapter.registry.cq_count();
    let wanted = QpParameters::receiver(Role::receiver(domain), reporter());
    let qp = Qp::new(&adapter, wanted).expect("a number");
    assert_eq!(adapter.registry.cq_count(), before, "the application may have as many as before");
    qp.retire();
    assert_eq!(adapter.registry.cq_count(), before);
}

#[test]
fn an_rss_qp_uses_its_indirection_table_and_no_completion_queue() {
    let adapter = adapter(true);
    let cq = queue(&adapter);
    let wanted = WqParameters {
        max_wr: 1,
        max_sge: 1,
        flags: 0,
        pd: 1,
        cq: Arc::clone(&cq),
        number: 1,
        report: reporter(),
    };
    let work_queue = Wq::new(&adapter, wanted).expect("memory");
    let users = || cq.users.load(Ordering::Relaxed);
    assert_eq!(users(), 1, "the work queue");
    let table = Arc::new(IndirectionTable {
        verbs: VerbsCell::new(Zeroed::zeroed()),
        queues: Box::new([Arc::clone(&work_queue)]),
        users: AtomicUsize::new(0),
    });
    let rss = Rss { table: Arc::clone(&table), hash: Hash { key: [0; KEY_BYTES], fields: 0 } };
    let wanted = QpParameters::spreader(1, rss, Zeroed::zeroed(), reporter());
    let qp = Qp::new(&adapter, wanted).expect("a number");
    assert_eq!((users(), table.users.load(Ordering::Relaxed)), (1, 1));
    qp.retire();
    assert_eq!((users(), table.users.load(Ordering::Relaxed)), (1, 0));
    work_queue.retire();
}
