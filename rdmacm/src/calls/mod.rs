//! What programs call, a file for each kind.

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

use crate::id::Id;
use abi::*;
use cface::{Errno, MinusOne};
use std::sync::Arc;

/// A synchronous id waits for the event of what it began, and keeps it until the next one.
fn complete(id: &Arc<Id>) -> Result<MinusOne, Errno> {
    let state = id.lock();
    let (synchronous, channel) = (state.synchronous, Arc::clone(&state.channel));
    drop(state);
    if !synchronous {
        return Ok(MinusOne(0));
    }
    // SAFETY: the program calls for a synchronous id from one thread at a time, so its last event is this call's.
    let event = unsafe {
        let id = id.as_c();
        if !(*id).event.is_null() {
            channel::give_back((*id).event);
            (*id).event = std::ptr::null_mut();
        }
        (*id).event = channel::next(&channel)?;
        (*id).event
    };
    // SAFETY: live until the next call of this id.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    match status {
        0 => Ok(MinusOne(0)),
        _ if kind == RDMA_CM_EVENT_REJECTED => Err(Errno::ECONNREFUSED),
        1.. => Err(Errno::EIO),
        _ => Err(Errno::from_raw(status.saturating_neg())),
    }
}
