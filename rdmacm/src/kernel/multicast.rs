//! Multicast groups on kernel devices: the kernel joins, and an event reports the group's GID.
//! `calls::multicast` enters here for kernel ids.

use super::command::send_query;
use super::{kernel_of, part, registry, takes_any_family};
use crate::core::channel::CountAcknowledgement;
use crate::core::id::Id;
use crate::sys::address::GivenAddress;
use abi::*;
use cface::Errno;
use cface::sync::Mutex;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The membership of an id in a group.
pub(crate) struct Group {
    pub(super) id: Weak<Id>,
    /// The program's context, which the group's events carry.
    pub(super) context: usize,
    pub(super) sends_only: bool,
    address: GivenAddress,
    handle: AtomicU32,
    /// GID and LID, after the event of the kernel.
    pub(super) gid_and_lid: Mutex<(ibv_gid, u16)>,
    /// The number of events that the program has acknowledged.
    acknowledged: AtomicU64,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl Group {
    fn needs_detach(&self) -> bool {
        !self.sends_only
    }
}

impl CountAcknowledgement for Group {
    /// Counts an acknowledgement. The id's own acknowledgement, which follows, wakes a waiting
    /// thread.
    fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

/// Joins a group; an event reports the result.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn join(
    id: &Arc<Id>,
    address: &GivenAddress,
    flags: u16,
    context: *mut c_void,
) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let group = Arc::new(Group {
        id: Arc::downgrade(id),
        context: context as usize,
        sends_only: u32::from(flags) == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
        address: *address,
        handle: AtomicU32::new(0),
        gid_and_lid: Mutex::new((ibv_gid { raw: [0; 16] }, 0)),
        acknowledged: AtomicU64::new(0),
    });
    let uid = registry::add_group(&group);
    // The event may arrive before the command returns.
    kernel.state.lock().groups.insert(0, Arc::clone(&group));
    let answered = rdma_ucm_create_id_resp { id: 0 };
    let joined = if takes_any_family() {
        let command_body = rdma_ucm_join_mcast {
            response: 0,
            uid,
            id: kernel.handle(),
            addr_size: address.bytes().len() as u16,
            join_flags: flags,
            addr: address.as_kernel(),
        };
        send_query(fd, RDMA_USER_CM_CMD_JOIN_MCAST, command_body, answered)
    } else {
        let addr = address.as_six();
        let command_body = rdma_ucm_join_ip_mcast { response: 0, uid, addr, id: kernel.handle() };
        send_query(fd, RDMA_USER_CM_CMD_JOIN_IP_MCAST, command_body, answered)
    };
    let answered = joined.inspect_err(|_| {
        kernel.state.lock().groups.retain(|other| !Arc::ptr_eq(other, &group));
        registry::remove_group(uid);
    })?;
    group.handle.store(answered.id, Ordering::Relaxed);
    Ok(())
}

/// Leaves a group, and waits until the program has acknowledged the group's events.
///
/// # Errors
/// `EADDRNOTAVAIL` the id is no member; else the errno of the kernel.
pub(crate) fn leave_group(id: &Arc<Id>, address: &GivenAddress) -> Result<(), Errno> {
    let (kernel, fd) = part(id)?;
    let group = {
        let mut known = kernel.state.lock();
        let is_it = |group: &Arc<Group>| group.address.bytes() == address.bytes();
        let at = known.groups.iter().position(is_it);
        known.groups.remove(at.ok_or(Errno::from_raw(libc::EADDRNOTAVAIL))?)
    };
    detach(id, &group);
    let handle = group.handle.load(Ordering::Relaxed);
    let command_body = rdma_ucm_destroy_id { response: 0, id: handle, reserved: 0 };
    let answered = rdma_ucm_destroy_id_resp { events_reported: 0 };
    let left = send_query(fd, RDMA_USER_CM_CMD_LEAVE_MCAST, command_body, answered);
    if let Ok(answered) = &left {
        let told = u64::from(answered.events_reported);
        let is_groups =
            |kind| [RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_MULTICAST_ERROR].contains(&kind);
        id.wait_until("rdma_leave_multicast", is_groups, |_| {
            group.acknowledged.load(Ordering::Relaxed) >= told
        });
    }
    registry::remove_group(Arc::as_ptr(&group) as u64);
    left.map(drop)
}

/// Forgets all groups of an ending id: the kernel leaves groups together with its id.
pub(crate) fn forget_all(id: &Id) {
    let Some(kernel) = kernel_of(id) else { return };
    for group in std::mem::take(&mut kernel.state.lock().groups) {
        registry::remove_group(Arc::as_ptr(&group) as u64);
    }
}

/// Attaches the queue pair of the id to a joined group.
///
/// # Errors
/// The errno of the device.
pub(super) fn attach(id: &Id, group: &Group) -> Result<(), Errno> {
    if !id.c().has_qp() || group.sends_only {
        return Ok(());
    }
    id.c().attach(*group.gid_and_lid.lock())
}

fn detach(id: &Id, group: &Group) {
    if id.c().has_qp() && group.needs_detach() {
        // The result is ignored: the kernel leaves the group in any case.
        let _detached = id.c().detach(*group.gid_and_lid.lock());
    }
}
