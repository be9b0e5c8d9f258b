//! Multicast groups: `rdma_join_multicast(3)`, `rdma_leave_multicast(3)`.
//! Entry points that attach and detach the queue pair of an id.
//!
//! No subnet manager takes part: the group GID follows from the address, and a queue pair that
//! attaches to the GID is a member.

use super::channel::complete;
use crate::core::c_objects::id_of;
use crate::core::channel::{Event, PendingAction};
use crate::core::id::{Backend, Group, Id};
use crate::kernel;
use crate::kernel::id::supported;
use crate::sys::address::{self, GivenAddress};
use abi::*;
use cface::{Errno, MinusOne, verb};
use std::ffi::c_void;
use std::sync::Arc;

/// The destination queue pair number of multicast datagrams (IBTA 1.7 10.5.2).
const GROUP_QPN: u32 = 0xff_ffff;

fn join(
    id: &Arc<Id>,
    address: &GivenAddress,
    flags: u32,
    context: *mut c_void,
) -> Result<MinusOne, Errno> {
    if id.backend() == Backend::Kernel {
        kernel::multicast::join(id, supported(address)?, flags as u16, context)?;
        return complete(id);
    }
    let address = address.ip()?;
    let mut state = id.lock();
    let local = state.local.ok_or(Errno::EINVAL)?;
    if !address.ip().is_multicast() {
        return Err(Errno::EINVAL);
    }
    let gid = address::gid(address.ip());
    state.groups.push(Group { address, gid, attached: false });
    let ud = rdma_ud_param {
        private_data: context,
        private_data_len: 0,
        ah_attr: Id::address_vector_to(local, gid, state.type_of_service),
        qp_num: GROUP_QPN,
        qkey: state.qkey,
    };
    drop(state);
    let mut event = Event::new(id, RDMA_CM_EVENT_MULTICAST_JOIN, 0);
    event.verbs.param.ud = ud;
    if flags != RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER {
        event.action = PendingAction::AttachGroup;
    }
    id.push(event);
    complete(id)
}

/// Attaches the queue pair to a joined group, before the program gets the event.
pub(crate) fn attach(id: &Arc<Id>, event: &mut Event) {
    if !id.c().has_qp() {
        return;
    }
    let (gid, _) = event.verbs.group();
    if let Err(why) = id.c().attach((gid, 0)) {
        event.verbs.event = RDMA_CM_EVENT_MULTICAST_ERROR;
        event.verbs.status = -why.raw();
        return;
    }
    let mut state = id.lock();
    for group in state.groups.iter_mut().filter(|group| group.gid == gid.bytes()) {
        group.attached = true;
    }
}

/// Detaches the queue pair of an id from a group.
fn detach(id: &Id, group: Group) {
    if group.attached && id.c().has_qp() {
        // The membership ends in any case: the id forgets the group.
        let _detached = id.c().detach((ibv_gid { raw: group.gid }, 0));
    }
}

/// Detaches the id's queue pair from all groups.
pub(crate) fn detach_all(id: &Arc<Id>) {
    let mut groups = std::mem::take(&mut id.lock().groups);
    for group in &mut groups {
        detach(id, *group);
        group.attached = false;
    }
    id.lock().groups = groups;
}

/// Leaves all groups of the id.
pub(crate) fn leave_all(id: &Arc<Id>) {
    for group in std::mem::take(&mut id.lock().groups) {
        detach(id, group);
    }
}

verb! {
    /// `rdma_join_multicast(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `addr` is NULL or readable.
    pub(crate) fn join_c(
        id: *mut rdma_cm_id,
        addr: *mut libc::sockaddr,
        context: *mut c_void,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, address) = unsafe { (id_of(id)?, GivenAddress::read(addr)) };
        join(&id, &address, RDMA_MC_JOIN_FLAG_FULLMEMBER, context)
    }

    /// `rdma_join_multicast_ex(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `attr` is NULL or readable, with its address.
    pub(crate) fn join_ex(
        id: *mut rdma_cm_id,
        attr: *mut rdma_cm_join_mc_attr_ex,
        context: *mut c_void,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, attr) = unsafe { (id_of(id)?, attr.as_ref().ok_or(Errno::EINVAL)?) };
        let both = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        if attr.comp_mask & both != both {
            return Err(Errno::EINVAL);
        }
        match attr.join_flags {
            flags @ (RDMA_MC_JOIN_FLAG_FULLMEMBER | RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER) => {
                // SAFETY: by the contract above.
                let address = unsafe { GivenAddress::read(attr.addr) };
                join(&id, &address, flags, context)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// `rdma_leave_multicast(3)`: `EADDRNOTAVAIL` the id is no member.
    ///
    /// # Safety
    /// `id` is NULL or live; `addr` is NULL or readable.
    pub(crate) fn leave(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, address) = unsafe { (id_of(id)?, GivenAddress::read(addr)) };
        if id.backend() == Backend::Kernel {
            kernel::multicast::leave_group(&id, supported(&address)?)?;
            return Ok(MinusOne(0));
        }
        let address = address.ip()?;
        let left = {
            let mut state = id.lock();
            let at = state.groups.iter().position(|group| group.address.ip() == address.ip());
            at.map(|at| state.groups.swap_remove(at))
        };
        detach(&id, left.ok_or(Errno::from_raw(libc::EADDRNOTAVAIL))?);
        Ok(MinusOne(0))
    }
}
