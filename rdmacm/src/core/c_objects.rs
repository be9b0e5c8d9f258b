//! The C objects of ids, channels and events, which programs read and hold pointers to.
//! The library's own object begins with its C object, so one address serves both.
//!
//! The program reads members of an id after the call or the event that announces them, and makes no
//! concurrent calls for the members that it changes (rdma_cm(7)). So the members are read and
//! written here, member by member, and no reference to the C object exists.
//!
//! Map of this file: `CId`, the C part of an id; ids and channels as pointers of the program
//! (`id_of`, `give_id`, `take_id_back`, `channel_of`); `CEvent`, the C part of an event; what an id
//! keeps for its program (`QpTemplate`, `ResolvedInfo`).

use crate::core::channel::{Channel, Event, EventSource};
use crate::core::id::Id;
use crate::sys::address::GivenAddress;
use crate::sys::objects::{Context, Domain, check_errno};
use crate::sys::verbs;
use abi::*;
use cface::{Errno, mem};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::Arc;

/// The C object of an id.
#[repr(transparent)]
pub(crate) struct CId(UnsafeCell<rdma_cm_id>);

// SAFETY: the program uses the C object under the rules of rdma_cm(7).
unsafe impl Sync for CId {}
// SAFETY: the pointers are addresses of process-wide objects; no object belongs to a thread.
unsafe impl Send for CId {}

/// Defines functions that read a member.
macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident -> $type:ty { $($member:ident).+ })+) => {$(
        $(#[$doc])*
        pub(crate) fn $name(&self) -> $type {
            // SAFETY: by the rules of the module.
            unsafe { (*self.as_c()).$($member).+ }
        }
    )+};
}

impl CId {
    pub(crate) const fn new(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> Self {
        Self(UnsafeCell::new(rdma_cm_id {
            channel,
            context,
            ps,
            qp_type,
            verbs: null_mut(),
            qp: null_mut(),
            // SAFETY: zeros are valid: the members are numbers, bytes and NULL pointers.
            route: unsafe { std::mem::zeroed() },
            port_num: 0,
            event: null_mut(),
            send_cq_channel: null_mut(),
            send_cq: null_mut(),
            recv_cq_channel: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            pd: null_mut(),
        }))
    }

    /// The address that C code has.
    pub(crate) const fn as_c(&self) -> *mut rdma_cm_id {
        self.0.get()
    }

    readers! {
        port_space -> rdma_port_space { ps }
        qp_type -> ibv_qp_type { qp_type }
        /// The context that the program gave.
        program_context -> *mut c_void { context }
        qp -> *mut ibv_qp { qp }
        port -> u8 { port_num }
        pkey -> u16 { route.addr.addr.pkey }
    }

    /// The device; `None` before the id has one.
    pub(crate) fn context(&self) -> Option<Context> {
        // SAFETY: by the rules of the module. Devices of ids are never closed.
        unsafe { Context::of((*self.as_c()).verbs) }
    }

    /// The domain of the id's objects; `None` before the id has a device.
    pub(crate) fn domain(&self) -> Option<Domain> {
        // SAFETY: by the rules of the module. The program keeps a domain that it gave.
        unsafe { Domain::of((*self.as_c()).pd) }
    }

    /// Whether the id has a queue pair.
    pub(crate) fn has_qp(&self) -> bool {
        !self.qp().is_null()
    }

    /// The number of the queue pair, and whether it has a shared receive queue.
    pub(crate) fn qp_number(&self) -> Option<(u32, bool)> {
        // SAFETY: by the rules of the module; the queue pair of an id is live.
        unsafe { self.qp().as_ref().map(|qp| (qp.qp_num, !qp.srq.is_null())) }
    }

    /// Replaces the event that a synchronous id keeps.
    pub(crate) fn replace_event(&self, event: Option<Box<Event>>) -> Option<Box<Event>> {
        let event = event.map_or(null_mut(), give_event);
        // SAFETY: by the rules of the module: one thread at a time uses a synchronous id. The
        // member is NULL or from `give_event`.
        unsafe {
            let before = std::mem::replace(&mut (*self.as_c()).event, event);
            (!before.is_null()).then(|| take_event_back(before))
        }
    }

    /// Changes the queue pair.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn modify_qp(&self, attr: &mut ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        // SAFETY: the queue pair of an id is live; `attr` is readable.
        check_errno(unsafe { verbs::ibv_modify_qp(self.qp(), attr, mask.cast_signed()) })
    }

    /// Attaches the queue pair to a multicast group.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn attach(&self, (gid, lid): (ibv_gid, u16)) -> Result<(), Errno> {
        // SAFETY: the queue pair of an id is live; `gid` is readable.
        check_errno(unsafe { verbs::ibv_attach_mcast(self.qp(), &raw const gid, lid) })
    }

    /// Detaches the queue pair from a multicast group.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn detach(&self, (gid, lid): (ibv_gid, u16)) -> Result<(), Errno> {
        // SAFETY: the queue pair of an id is live; `gid` is readable.
        check_errno(unsafe { verbs::ibv_detach_mcast(self.qp(), &raw const gid, lid) })
    }

    /// The ECE options of the queue pair; `None`: the device has no ECE.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn ece(&self) -> Result<Option<ibv_ece>, Errno> {
        let mut ece = ibv_ece::zeroed();
        // SAFETY: the queue pair of an id is live; `ece` is writable.
        match unsafe { verbs::ibv_query_ece(self.qp(), &raw mut ece) } {
            libc::EOPNOTSUPP => Ok(None),
            error => check_errno(error).map(|()| Some(ece)),
        }
    }

    /// Sets the ECE options of the queue pair. A device without ECE is no error.
    ///
    /// # Errors
    /// The errno of the device.
    pub(crate) fn set_ece(&self, mut ece: ibv_ece) -> Result<(), Errno> {
        // SAFETY: the queue pair of an id is live; `ece` is readable.
        match unsafe { verbs::ibv_set_ece(self.qp(), &raw mut ece) } {
            libc::EOPNOTSUPP => Ok(()),
            error => check_errno(error),
        }
    }

    pub(crate) fn set_channel(&self, channel: &Channel) {
        // SAFETY: by the rules of the module.
        unsafe { (*self.as_c()).channel = channel.as_c() };
    }

    /// Sets the device. A domain that the id has already stays, unless `pd_too`.
    pub(crate) fn set_device(&self, context: Context, pd: Domain, port: u8, pd_too: bool) {
        let at = self.as_c();
        // SAFETY: by the rules of the module.
        unsafe {
            ((*at).verbs, (*at).port_num) = (context.as_c(), port);
            if pd_too || (*at).pd.is_null() {
                (*at).pd = pd.as_c();
            }
        }
    }

    pub(crate) fn set_pkey(&self, pkey: u16) {
        // SAFETY: by the rules of the module.
        unsafe { (*self.as_c()).route.addr.addr.pkey = pkey };
    }

    pub(crate) fn set_own_gid(&self, gid: [u8; 16]) {
        // SAFETY: by the rules of the module.
        unsafe { (*self.as_c()).route.addr.addr.sgid.raw = gid };
    }

    pub(crate) fn set_peer_gid(&self, gid: [u8; 16]) {
        // SAFETY: by the rules of the module.
        unsafe { (*self.as_c()).route.addr.addr.dgid.raw = gid };
    }

    pub(crate) fn set_source(&self, source: &GivenAddress) {
        // SAFETY: by the rules of the module; the storage has room for any address.
        unsafe { source.write(&raw mut (*self.as_c()).route.addr.src_storage) };
    }

    pub(crate) fn set_destination(&self, destination: &GivenAddress) {
        // SAFETY: by the rules of the module; the storage has room for any address.
        unsafe { destination.write(&raw mut (*self.as_c()).route.addr.dst_storage) };
    }

    /// The source address; zeros before the id is bound.
    pub(crate) fn source(&self) -> GivenAddress {
        // SAFETY: by the rules of the module; the storage contains an address or zeros.
        unsafe { GivenAddress::stored(&raw const (*self.as_c()).route.addr.src_storage) }
    }

    /// The destination address; zeros before the id is resolved.
    pub(crate) fn destination(&self) -> GivenAddress {
        // SAFETY: by the rules of the module; the storage contains an address or zeros.
        unsafe { GivenAddress::stored(&raw const (*self.as_c()).route.addr.dst_storage) }
    }

    /// The first path; `None` before the route is resolved.
    pub(crate) fn path(&self) -> Option<ibv_sa_path_rec> {
        // SAFETY: by the rules of the module; the array has `num_paths` records.
        unsafe {
            let route = &raw const (*self.as_c()).route;
            if (*route).num_paths > 0 { (*route).path_rec.as_ref().copied() } else { None }
        }
    }

    /// Replaces the paths. A single path stays where the program may have found it.
    ///
    /// # Errors
    /// `ENOMEM` no memory.
    pub(crate) fn set_paths(&self, paths: &[ibv_sa_path_rec]) -> Result<(), Errno> {
        // SAFETY: by the rules of the module. An array of this library has room for `num_paths`
        // records, and a new array for all of `paths`.
        unsafe {
            let route = &raw mut (*self.as_c()).route;
            if (*route).num_paths != 1 || paths.len() != 1 {
                let bytes = size_of_val(paths).max(size_of::<ibv_sa_path_rec>());
                let made = mem::calloc_bytes(bytes)?;
                mem::free((*route).path_rec.cast());
                (*route).path_rec = made.cast().as_ptr();
            }
            (*route).path_rec.copy_from_nonoverlapping(paths.as_ptr(), paths.len());
            (*route).num_paths = i32::try_from(paths.len()).unwrap_or(0);
        }
        Ok(())
    }
}

impl Drop for CId {
    fn drop(&mut self) {
        let record = self.0.get_mut().route.path_rec;
        // SAFETY: the record is NULL or from calloc, and only this id refers to it.
        unsafe { mem::free(record.cast()) };
    }
}

/// The address of the id that C code has, as an address in messages and tables.
pub(crate) fn address_of(id: &Id) -> usize {
    id.as_c().addr()
}

/// The id behind a C pointer.
///
/// # Errors
/// `EINVAL` NULL.
///
/// # Safety
/// `id` is NULL or a live id of this library.
pub(crate) unsafe fn id_of(id: *mut rdma_cm_id) -> Result<Arc<Id>, Errno> {
    if id.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the pointer comes from an Arc; the program holds one count until it destroys the id.
    unsafe {
        let at = id.cast::<Id>().cast_const();
        Arc::increment_strong_count(at);
        Ok(Arc::from_raw(at))
    }
}

/// Passes one count of an id to the program.
pub(crate) fn give_id(id: Arc<Id>) -> *mut rdma_cm_id {
    Arc::into_raw(id).cast_mut().cast()
}

/// Takes the count of the program back.
///
/// # Safety
/// `id` is from [`give_id`], and is returned once.
pub(crate) unsafe fn take_id_back(id: *mut rdma_cm_id) -> Arc<Id> {
    // SAFETY: by the contract above.
    unsafe { Arc::from_raw(id.cast::<Id>().cast_const()) }
}

/// The channel behind a C pointer.
///
/// # Safety
/// `channel` is a live channel of this library.
pub(crate) unsafe fn channel_of(channel: *mut rdma_event_channel) -> Arc<Channel> {
    // SAFETY: `give_channel` made the pointer from an Arc; the C object holds one count until it is
    // destroyed.
    unsafe {
        let at = channel.cast::<Channel>().cast_const();
        Arc::increment_strong_count(at);
        Arc::from_raw(at)
    }
}

/// The event sources, and the descriptor that C code has. Takes no reference, because the calling
/// thread may be cancelled.
///
/// # Safety
/// `channel` is a live channel of this library.
pub(crate) unsafe fn source_of(channel: *const rdma_event_channel) -> (EventSource, i32) {
    // SAFETY: by the contract above; both values are constant.
    unsafe { (*channel.cast::<Channel>()).source() }
}

/// The C object of a channel. The caller returns it by [`take_channel_back`].
pub(crate) fn give_channel(channel: Arc<Channel>) -> *mut rdma_event_channel {
    Arc::into_raw(channel).cast_mut().cast()
}

/// Takes the count of the program back.
///
/// # Safety
/// `channel` is from [`give_channel`], and is returned once.
pub(crate) unsafe fn take_channel_back(channel: *mut rdma_event_channel) -> Arc<Channel> {
    // SAFETY: by the contract above.
    unsafe { Arc::from_raw(channel.cast::<Channel>().cast_const()) }
}

/// The C object of an event.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct CEvent(rdma_cm_event);

// SAFETY: the pointers are addresses of process-wide objects; no object belongs to a thread.
unsafe impl Send for CEvent {}
// SAFETY: as above.
unsafe impl Sync for CEvent {}

impl CEvent {
    pub(crate) const fn new(event: rdma_cm_event) -> Self {
        Self(event)
    }

    /// Takes the program's count of the new id of a connection request, which this library keeps.
    /// `None` if the count was taken before.
    pub(crate) fn take_new_id(&mut self) -> Option<Arc<Id>> {
        if self.0.event != RDMA_CM_EVENT_CONNECT_REQUEST {
            return None;
        }
        let id = std::mem::replace(&mut self.0.id, null_mut());
        // SAFETY: the event of a request that was taken off its channel holds the program's count,
        // and the pointer is cleared with it.
        (!id.is_null()).then(|| unsafe { take_id_back(id) })
    }

    /// The group of a multicast event, whose parameters are those of datagrams.
    pub(crate) const fn group(&self) -> (ibv_gid, u16) {
        // SAFETY: all bytes of the parameters are initialised, and any number is a value.
        let to = unsafe { self.0.param.ud.ah_attr };
        (to.grh.dgid, to.dlid)
    }

    /// Sets the private data of datagram parameters to the context that the program gave.
    pub(crate) const fn set_group_context(&mut self, context: usize) {
        self.0.param.ud.private_data = std::ptr::without_provenance(context);
    }
}

impl Deref for CEvent {
    type Target = rdma_cm_event;

    fn deref(&self) -> &rdma_cm_event {
        &self.0
    }
}

impl DerefMut for CEvent {
    fn deref_mut(&mut self) -> &mut rdma_cm_event {
        &mut self.0
    }
}

/// Passes an event to the program.
pub(crate) fn give_event(event: Box<Event>) -> *mut rdma_cm_event {
    Box::into_raw(event).cast()
}

/// Takes an event back that the program acknowledges.
///
/// # Safety
/// `event` is from [`give_event`], and is returned once.
pub(crate) unsafe fn take_event_back(event: *mut rdma_cm_event) -> Box<Event> {
    // SAFETY: by the contract above.
    unsafe { Box::from_raw(event.cast()) }
}

/// From rdma_create_ep(3): the domain and the attributes for the queue pairs of incoming requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpTemplate {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) init: ibv_qp_init_attr,
}

// SAFETY: the members name objects of the process, which any thread may use.
unsafe impl Send for QpTemplate {}

/// The resolved addresses of an id (`rdma_resolve_addrinfo(3)`), which live as long as the id.
#[derive(Debug)]
pub(crate) struct ResolvedInfo(*mut rdma_addrinfo);

// SAFETY: the list belongs to this value.
unsafe impl Send for ResolvedInfo {}

impl ResolvedInfo {
    /// # Safety
    /// `list` is from `rdma_getaddrinfo(3)`, and the program does not have it.
    pub(crate) const unsafe fn new(list: *mut rdma_addrinfo) -> Self {
        Self(list)
    }

    /// Passes the list to the program, which frees it.
    pub(crate) fn into_raw(self) -> *mut rdma_addrinfo {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for ResolvedInfo {
    fn drop(&mut self) {
        // SAFETY: by the contract of `new`.
        unsafe { free_list(self.0) };
    }
}

/// Frees a list of addresses.
///
/// # Safety
/// `info` is NULL or from `rdma_getaddrinfo(3)`, and not used afterwards.
pub(crate) unsafe fn free_list(info: *mut rdma_addrinfo) {
    let mut at = info;
    // SAFETY: by the contract above; all members are from calloc(3), or NULL.
    unsafe {
        while !at.is_null() {
            let next = (*at).ai_next;
            mem::free((*at).ai_src_addr.cast());
            mem::free((*at).ai_dst_addr.cast());
            mem::free((*at).ai_src_canonname.cast());
            mem::free((*at).ai_dst_canonname.cast());
            mem::free((*at).ai_route);
            mem::free((*at).ai_connect);
            mem::free(at.cast());
            at = next;
        }
    }
}
