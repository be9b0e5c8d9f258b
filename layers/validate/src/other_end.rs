//! Asks a device about the peer of a QP (`ferroverbs_plugin_ext.other_end`). `checks::peer` turns
//! the answer into words.

use std::sync::Arc;

use abi::{IBV_QPS_ERR, Zeroed, ferroverbs_other_end};

use crate::checks::peer::{Peer, process_name};
use crate::state::{QPS, Qp};

/// The peer's QP, if the QP is in this process. Both QPs name each other.
pub(crate) fn local(qp: &Qp) -> Option<Arc<Qp>> {
    let number = qp.attr.lock().dest_qp_num;
    QPS.all().into_iter().find(|peer| {
        peer.number == number && peer.kind == qp.kind && peer.attr.lock().dest_qp_num == qp.number
    })
}

/// Asks the device of `qp`, which stays live during the call. `rkey` is the key in a request, or 0.
pub(crate) fn of(qp: &Qp, rkey: u32) -> Option<Peer> {
    let ask = qp.ctx.other_end?;
    let mut answer = ferroverbs_other_end::zeroed();
    answer.size = size_of::<ferroverbs_other_end>();
    let (number, address) = {
        let attr = qp.attr.lock();
        (attr.dest_qp_num, attr.ah_attr.grh.dgid.bytes().into())
    };
    let at = core::ptr::with_exposed_provenance_mut(qp.at);
    // SAFETY: the function belongs to the plugin that created the QP. The QP is live: the polling
    // thread holds the list of its CQ, and a destroyed QP is removed from the list first.
    let result = unsafe { ask(at, rkey, &raw mut answer) };
    if result != 0 {
        return None;
    }
    let name = std::fs::read_to_string(format!("/proc/{}/comm", answer.pid)).unwrap_or_default();
    // A failed QP loses its receives, so their number is unknown.
    let receives = local(qp).filter(|peer| peer.srq.is_none() && peer.state() != IBV_QPS_ERR);
    Some(Peer {
        process: process_name(answer.place, answer.pid, &name),
        answer,
        number,
        own: qp.number,
        address,
        receives: receives.map(|peer| peer.recv.lock().flights.len()),
    })
}
