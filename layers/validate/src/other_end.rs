//! Asks a device about the peer of a QP (`ferroverbs_plugin_ext.other_end`). `checks::peer` turns
//! the answer into words.

use std::sync::Arc;

use abi::IBV_QPS_ERR;

use crate::checks::peer::{Peer, process_name};
use crate::state::{QPS, Qp};

/// The peer's QP, if the QP is in this process. Both QPs name each other.
pub(crate) fn local(qp: &Qp) -> Option<Arc<Qp>> {
    let number = qp.attr.lock().dest_qp_num;
    QPS.all().into_iter().find(|peer| {
        peer.number == number
            && peer.qp_type == qp.qp_type
            && peer.attr.lock().dest_qp_num == qp.number
    })
}

/// Asks the device of `qp`, which stays live during the call. `rkey` is the key in a request, or 0.
pub(crate) fn of(qp: &Qp, rkey: u32) -> Option<Peer> {
    let answer = qp.ctx.provider.other_end(qp.address, rkey)?;
    let (number, address) = {
        let attr = qp.attr.lock();
        (attr.dest_qp_num, attr.ah_attr.grh.dgid.bytes().into())
    };
    let name = std::fs::read_to_string(format!("/proc/{}/comm", answer.pid)).unwrap_or_default();
    // A failed QP loses its receives, so their number is unknown.
    let receives = local(qp).filter(|peer| peer.srq.is_none() && peer.state() != IBV_QPS_ERR);
    Some(Peer {
        process: process_name(answer.place, answer.pid, &name),
        answer,
        number,
        local_number: qp.number,
        address,
        receives: receives.map(|peer| peer.recv.lock().flights.len()),
    })
}
