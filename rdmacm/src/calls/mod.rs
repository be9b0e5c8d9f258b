//! Entry points of the program, a file for each group.
//! Entry points check arguments, then call `id`, the agent or `kernel`.

pub(crate) mod channel;
pub(crate) mod connect;
pub(crate) mod devices;
pub(crate) mod ep;
pub(crate) mod id;
pub(crate) mod info;
pub(crate) mod multicast;
pub(crate) mod options;
pub(crate) mod qp;
pub(crate) mod resolve;
pub(crate) mod srq;

use crate::core::id::Id;
use abi::*;
use cface::{Errno, MinusOne};
use std::sync::Arc;

/// For a synchronous id, waits for the event of the call, and keeps the event until the next call.
fn complete(id: &Arc<Id>) -> Result<MinusOne, Errno> {
    let state = id.lock();
    let (synchronous, channel) = (state.synchronous, Arc::clone(&state.channel));
    drop(state);
    if !synchronous {
        return Ok(MinusOne(0));
    }
    // SAFETY: the program uses a synchronous id from one thread at a time, so the last event
    // belongs to this call.
    let event = unsafe {
        let id = id.as_c();
        if !(*id).event.is_null() {
            channel::free_event((*id).event);
            (*id).event = std::ptr::null_mut();
        }
        (*id).event = channel::next(&channel)?;
        (*id).event
    };
    // SAFETY: the event is live until the next call for this id.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    match status {
        0 => Ok(MinusOne(0)),
        _ if kind == RDMA_CM_EVENT_REJECTED => Err(Errno::ECONNREFUSED),
        1.. => Err(Errno::EIO),
        _ => Err(Errno::from_raw(status.saturating_neg())),
    }
}
