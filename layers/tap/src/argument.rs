//! The arguments and results of a call, as values that a watcher reads without unsafe code.
//!
//! A program's pointer is NULL, or valid until its call returns: the manual page of each call
//! requires it. [`Arg`] carries this promise, and only the tap makes one.
//!
//! Map of this file: `Arg` and what can be read by it, extended structures first, then objects by
//! their kind, then librdmacm; `Argument`, the form of each type of argument; `Next` and
//! `Returned`; tests.

use core::ffi::c_int;
use core::marker::PhantomData;

use abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ,
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TM, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_WQ_ATTR_FLAGS, IBV_WQ_INIT_ATTR_FLAGS, QpAttrMask, Zeroed, ibv_async_event,
    ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_gid, ibv_mr, ibv_mw, ibv_mw_bind,
    ibv_mw_bind_info, ibv_ops_wr, ibv_parent_domain_init_attr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr_ex, ibv_wq_attr, ibv_wq_init_attr,
    rdma_cm_event, rdma_cm_id, rdma_event_channel, verbs_mr,
};

use crate::requests::Requests;

/// A pointer that a program passed: NULL, or valid until the call returns.
#[derive(Debug)]
pub struct Arg<'a, T> {
    at: *mut T,
    call: PhantomData<&'a T>,
}

impl<T> Clone for Arg<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Arg<'_, T> {}

/// A structure of a call that every version of its header has in full.
///
/// # Safety
/// Each value of the bytes is a value of the type.
pub unsafe trait Structure: Copy {}

macro_rules! structures {
    ($($name:ident)+) => {$(
        // SAFETY: the structure has numbers and pointers only, and no version is shorter.
        unsafe impl Structure for abi::$name {}
    )+};
}

structures! {
    ibv_ah_attr ibv_alloc_dm_attr ibv_comp_cntr_init_attr ibv_counter_attach_attr
    ibv_counters_init_attr ibv_ece ibv_flow_action_esp_attr ibv_flow_attr ibv_gid
    ibv_modify_cq_attr ibv_mr_init_attr ibv_qp_attach_comp_cntr_attr ibv_qp_init_attr
    ibv_qp_open_attr ibv_qp_rate_limit_attr ibv_query_device_ex_input
    ibv_rwq_ind_table_init_attr ibv_srq_attr ibv_srq_init_attr ibv_td_init_attr ibv_values_ex
    ibv_xrcd_init_attr rdma_conn_param
}

impl<'a, T> Arg<'a, T> {
    /// # Safety
    /// `at` is NULL, or valid to read for `'a`. An object is live for `'a`.
    pub(crate) const unsafe fn new(at: *mut T) -> Self {
        Self { at, call: PhantomData }
    }

    /// The address.
    #[must_use]
    #[inline]
    pub fn at(self) -> usize {
        self.at.expose_provenance()
    }

    /// Whether the pointer is NULL.
    #[must_use]
    #[inline]
    pub const fn is_null(self) -> bool {
        self.at.is_null()
    }

    /// The pointer, for a call of the provider.
    #[must_use]
    #[inline]
    pub const fn as_ptr(self) -> *mut T {
        self.at
    }

    /// A copy of the structure; `None` for NULL.
    #[must_use]
    pub fn read(self) -> Option<T>
    where
        T: Structure,
    {
        // SAFETY: NULL or readable, by the contract of `new`.
        unsafe { self.at.as_ref() }.copied()
    }

    /// A member of an object or of a structure, or the zero value for NULL.
    ///
    /// # Safety
    /// `member` reads what is valid.
    unsafe fn member<R: Default>(self, member: impl FnOnce(*mut T) -> R) -> R {
        if self.at.is_null() { R::default() } else { member(self.at) }
    }
}

/// Copies the members that every version of an extended structure has, and those that the mask
/// names. The remaining members are zero: an older program's structure may end before them.
macro_rules! extended {
    ($type:ident, $mask:ident: $($always:ident)+; $($bit:ident $named:ident)*) => {
        impl Arg<'_, $type> {
            /// A copy of the structure, in which members that its mask does not name are zero;
            /// `None` for NULL.
            #[must_use]
            pub fn read_named(self) -> Option<$type> {
                if self.at.is_null() {
                    return None;
                }
                let mut all = $type::zeroed();
                // SAFETY: readable by the contract of `new`, where the mask names a member.
                unsafe {
                    all.$mask = (*self.at).$mask;
                    $(all.$always = (*self.at).$always;)+
                    $(if u64::from(all.$mask) & u64::from($bit) != 0 {
                        all.$named = (*self.at).$named;
                    })*
                }
                Some(all)
            }
        }
    };
}

extended! { ibv_wq_attr, attr_mask: wq_state curr_wq_state; IBV_WQ_ATTR_FLAGS flags
IBV_WQ_ATTR_FLAGS flags_mask }
extended! { ibv_qp_init_attr_ex, comp_mask: qp_context send_cq recv_cq srq cap qp_type sq_sig_all;
    IBV_QP_INIT_ATTR_PD pd
    IBV_QP_INIT_ATTR_XRCD xrcd
    IBV_QP_INIT_ATTR_CREATE_FLAGS create_flags
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER max_tso_header
    IBV_QP_INIT_ATTR_IND_TABLE rwq_ind_tbl
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS send_ops_flags
}
extended! { ibv_cq_init_attr_ex, comp_mask: cqe cq_context channel comp_vector wc_flags;
    IBV_CQ_INIT_ATTR_MASK_FLAGS flags
    IBV_CQ_INIT_ATTR_MASK_PD parent_domain
}
extended! { ibv_srq_init_attr_ex, comp_mask: srq_context attr;
    IBV_SRQ_INIT_ATTR_TYPE srq_type
    IBV_SRQ_INIT_ATTR_PD pd
    IBV_SRQ_INIT_ATTR_XRCD xrcd
    IBV_SRQ_INIT_ATTR_CQ cq
    IBV_SRQ_INIT_ATTR_TM tm_cap
}
extended! { ibv_parent_domain_init_attr, comp_mask: pd td;
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS alloc
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS free
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT pd_context
}
extended! { ibv_wq_init_attr, comp_mask: wq_context wq_type max_wr max_sge pd cq;
    IBV_WQ_INIT_ATTR_FLAGS create_flags
}

impl Arg<'_, ibv_qp_attr> {
    /// A copy of the structure, in which members that `mask` does not name are zero; `None` for
    /// NULL.
    #[must_use]
    pub fn read_named(self, mask: QpAttrMask) -> Option<ibv_qp_attr> {
        if self.at.is_null() {
            return None;
        }
        let mut all = ibv_qp_attr::zeroed();
        macro_rules! named {
            ($($bit:ident $($member:ident)+;)+) => {$(
                if mask.contains(QpAttrMask::$bit) {
                    // SAFETY: readable by the contract of `new`, as the mask names the members.
                    unsafe { $(all.$member = (*self.at).$member;)+ }
                }
            )+};
        }
        named! {
            STATE qp_state;
            CUR_STATE cur_qp_state;
            EN_SQD_ASYNC_NOTIFY en_sqd_async_notify;
            ACCESS_FLAGS qp_access_flags;
            PKEY_INDEX pkey_index;
            PORT port_num;
            QKEY qkey;
            AV ah_attr;
            PATH_MTU path_mtu;
            TIMEOUT timeout;
            RETRY_CNT retry_cnt;
            RNR_RETRY rnr_retry;
            RQ_PSN rq_psn;
            MAX_QP_RD_ATOMIC max_rd_atomic;
            ALT_PATH alt_ah_attr alt_pkey_index alt_port_num alt_timeout;
            MIN_RNR_TIMER min_rnr_timer;
            SQ_PSN sq_psn;
            MAX_DEST_RD_ATOMIC max_dest_rd_atomic;
            PATH_MIG_STATE path_mig_state;
            CAP cap;
            DEST_QPN dest_qp_num;
            RATE_LIMIT rate_limit;
        }
        Some(all)
    }
}

/// A count of acknowledged events in a live object, or in none. `ibv_ack_cq_events(3)` and
/// `ibv_ack_async_event(3)` of other threads change it.
#[derive(Clone, Copy, Debug)]
pub struct AcknowledgedEvents<'a> {
    count: *const u32,
    call: PhantomData<&'a u32>,
}

impl AcknowledgedEvents<'_> {
    /// The count now; 0 for NULL.
    #[must_use]
    pub fn read(self) -> u32 {
        if self.count.is_null() {
            return 0;
        }
        // SAFETY: a word of an object that is live for the lifetime; it is read at once.
        unsafe { self.count.read_volatile() }
    }
}

macro_rules! acknowledged {
    ($($(#[$doc:meta])* $type:ident $name:ident $member:ident;)+) => {$(
        impl<'a> Arg<'a, $type> {
            $(#[$doc])*
            #[must_use]
            pub fn $name(self) -> AcknowledgedEvents<'a> {
                let count = if self.at.is_null() {
                    core::ptr::null()
                } else {
                    // SAFETY: the object is live, by the contract of `new`.
                    unsafe { &raw const (*self.at).$member }
                };
                AcknowledgedEvents { count, call: PhantomData }
            }
        }
    )+};
}

acknowledged! {
    /// Completion events of the CQ that the program acknowledged.
    ibv_cq acknowledged_completions comp_events_completed;
    /// Asynchronous events of the CQ that the program acknowledged.
    ibv_cq acknowledged_asynchronous async_events_completed;
    /// Asynchronous events of the QP that the program acknowledged.
    ibv_qp acknowledged_asynchronous events_completed;
    /// Asynchronous events of the SRQ that the program acknowledged.
    ibv_srq acknowledged_asynchronous events_completed;
}

impl<'a> Arg<'a, ibv_cq_ex> {
    /// The CQ as `ibv_cq_ex_to_cq(3)` gives it.
    #[must_use]
    pub const fn plain(self) -> Arg<'a, ibv_cq> {
        Arg { at: self.at.cast(), call: PhantomData }
    }
}

impl Arg<'_, ibv_cq> {
    /// The number of entries (`ibv_cq.cqe`).
    #[must_use]
    pub fn entries(self) -> c_int {
        // SAFETY: the CQ is live.
        unsafe { self.member(|cq| (*cq).cqe) }
    }

    /// Whether the CQ was created with a channel.
    #[must_use]
    pub fn has_channel(self) -> bool {
        // SAFETY: the CQ is live.
        unsafe { self.member(|cq| !(*cq).channel.is_null()) }
    }
}

/// A channel: its descriptor, and the address of its context.
#[derive(Clone, Copy, Debug)]
pub struct ChannelParts {
    /// The descriptor of its events.
    pub fd: c_int,
    /// Address of the `ibv_context`.
    pub context: usize,
}

/// The parts of a channel that a structure of a call names; `None` for NULL.
fn parts_of(channel: *const ibv_comp_channel) -> Option<ChannelParts> {
    // SAFETY: NULL, or live during the call that names the channel.
    let channel = unsafe { channel.as_ref() }?;
    Some(ChannelParts { fd: channel.fd, context: channel.context as usize })
}

impl Arg<'_, ibv_comp_channel> {
    /// The parts of the channel; `None` for NULL.
    #[must_use]
    pub fn parts(self) -> Option<ChannelParts> {
        parts_of(self.at)
    }
}

impl Arg<'_, ibv_cq_init_attr_ex> {
    /// The parts of the channel that the structure names; `None` for NULL.
    #[must_use]
    pub fn channel(self) -> Option<ChannelParts> {
        if self.at.is_null() {
            return None;
        }
        // SAFETY: not NULL (checked above), so readable as far as the program's version of the
        // structure reaches; every version has the member.
        parts_of(unsafe { (*self.at).channel })
    }
}

impl Arg<'_, ibv_pd> {
    /// Address of the PD's context; 0 for NULL.
    #[must_use]
    pub fn context(self) -> usize {
        // SAFETY: the PD is live.
        unsafe { self.member(|pd| (*pd).context as usize) }
    }
}

impl<'a> Arg<'a, verbs_mr> {
    /// The region as programs see it, with which the provider's structure begins.
    #[must_use]
    pub const fn public(self) -> Arg<'a, ibv_mr> {
        Arg { at: self.at.cast(), call: PhantomData }
    }

    /// The region's public members.
    #[must_use]
    pub fn region(self) -> Option<ibv_mr> {
        // SAFETY: NULL or live.
        unsafe { self.at.as_ref() }.map(|region| region.ibv_mr)
    }
}

impl Arg<'_, ibv_mr> {
    /// The lkey and the rkey.
    #[must_use]
    pub fn keys(self) -> (u32, u32) {
        // SAFETY: the region is live.
        unsafe { self.member(|mr| ((*mr).lkey, (*mr).rkey)) }
    }
}

impl Arg<'_, ibv_mw> {
    /// The rkey of the window.
    #[must_use]
    pub fn rkey(self) -> u32 {
        // SAFETY: the window is live.
        unsafe { self.member(|mw| (*mw).rkey) }
    }
}

impl Arg<'_, ibv_qp> {
    /// Number of the QP; 0 for NULL.
    #[must_use]
    pub fn number(self) -> u32 {
        // SAFETY: the QP is live.
        unsafe { self.member(|qp| (*qp).qp_num) }
    }
}

/// A bind of a window.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// The program's `wr_id`.
    pub wr_id: u64,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// The range and its access.
    pub info: ibv_mw_bind_info,
    /// The lkey of the region; `None` for NULL.
    pub lkey: Option<u32>,
}

impl Arg<'_, ibv_mw_bind> {
    /// The bind; `None` for NULL.
    #[must_use]
    pub fn bind(self) -> Option<Bind> {
        // SAFETY: NULL or readable.
        let bind = unsafe { self.at.as_ref() }?;
        // SAFETY: the region is NULL or live.
        let lkey = unsafe { bind.bind_info.mr.as_ref() }.map(|mr| mr.lkey);
        Some(Bind { wr_id: bind.wr_id, flags: bind.send_flags, info: bind.bind_info, lkey })
    }
}

impl Arg<'_, ibv_async_event> {
    /// The type of the event, and the address of its object.
    #[must_use]
    pub fn type_and_object(self) -> (u32, usize) {
        // SAFETY: the front-end has filled in the event. Each view of the union is one word.
        unsafe { self.member(|event| ((*event).event_type, (*event).element.cq as usize)) }
    }
}

/// An operation on a tag list.
#[derive(Clone, Copy, Debug)]
pub struct TagListOperation {
    /// `ibv_ops_wr_opcode`.
    pub opcode: u32,
    /// `ibv_ops_flags`.
    pub flags: u32,
    /// The handle of the entry.
    pub handle: u32,
    /// Number of elements of an entry that is added.
    pub elements: c_int,
    /// Whether the entry has a list of elements.
    pub has_list: bool,
}

impl Arg<'_, ibv_ops_wr> {
    /// The operation that a refused call names: `bad` if `bad` is in the list, else the first.
    /// `None` for NULL.
    #[must_use]
    pub fn named_by(self, bad: Arg<'_, *mut ibv_ops_wr>) -> Option<TagListOperation> {
        // SAFETY: the operations of the program's list are live during the call.
        let named = unsafe { Requests::new(self.at) }.named(bad, 1 << 16);
        named.map(|op| TagListOperation {
            opcode: op.opcode,
            flags: op.flags.cast_unsigned(),
            // SAFETY: both members of the structure are plain numbers.
            handle: op.tm.handle,
            elements: op.tm.add.num_sge,
            has_list: !op.tm.add.sg_list.is_null(),
        })
    }
}

impl Arg<'_, ibv_gid> {
    /// The bytes of the GID; `None` for NULL.
    #[must_use]
    pub fn bytes(self) -> Option<[u8; 16]> {
        self.read().map(|gid| gid.bytes())
    }
}

impl<T> Arg<'_, *mut T> {
    /// The address that a successful call stored; 0 for NULL.
    #[must_use]
    pub fn stored(self) -> usize {
        // SAFETY: NULL, or where the call stored a pointer.
        unsafe { self.at.as_ref() }.map_or(0, |stored| *stored as usize)
    }
}

/// An id of librdmacm.
#[derive(Clone, Copy, Debug)]
pub struct CmIdParts {
    /// Address of its `ibv_context`; 0 for none.
    pub context: usize,
    /// `rdma_port_space`.
    pub port_space: u32,
    /// Address of its `ibv_qp`; 0 for none.
    pub qp: usize,
    /// The port to which the id is bound, as in `rdma_get_src_port(3)`.
    pub port: u16,
}

impl Arg<'_, rdma_cm_id> {
    /// The parts of the id; `None` for NULL.
    #[must_use]
    pub fn parts(self) -> Option<CmIdParts> {
        // SAFETY: NULL or live.
        let id = unsafe { self.at.as_ref() }?;
        let source: *const [u8; 4] = (&raw const id.route.addr.src_storage).cast();
        // SAFETY: a socket address begins with its family, and both families have the port next.
        let [_, _, high, low] = unsafe { source.read() };
        Some(CmIdParts {
            context: id.verbs as usize,
            port_space: id.ps,
            qp: id.qp as usize,
            port: u16::from_be_bytes([high, low]),
        })
    }
}

/// An event of librdmacm.
#[derive(Clone, Copy, Debug)]
pub struct CmEventParts {
    /// Address of the `rdma_cm_event`.
    pub at: usize,
    /// Address of its id.
    pub id: usize,
    /// Address of the listening id of a connection request; otherwise 0.
    pub listener: usize,
    /// `rdma_cm_event_type`.
    pub event: u32,
}

impl Arg<'_, *mut rdma_cm_event> {
    /// The event that a successful call stored.
    #[must_use]
    pub fn event(self) -> Option<CmEventParts> {
        // SAFETY: NULL, or where the call stored the event.
        let at = *unsafe { self.at.as_ref() }?;
        // SAFETY: NULL, or an event that the program has not acknowledged.
        unsafe { at.as_ref() }.map(|event| CmEventParts {
            at: at as usize,
            id: event.id as usize,
            listener: event.listen_id as usize,
            event: event.event,
        })
    }
}

impl Arg<'_, rdma_event_channel> {
    /// The descriptor of the channel; `None` for NULL.
    #[must_use]
    pub fn descriptor(self) -> Option<c_int> {
        // SAFETY: NULL or live.
        unsafe { self.at.as_ref() }.map(|channel| channel.fd)
    }
}

/// A type of an argument, and its form for watchers.
pub trait Argument {
    /// What a watcher gets.
    type Safe<'a>;

    /// # Safety
    /// A pointer is NULL, or valid to read for `'a`.
    unsafe fn safe<'a>(self) -> Self::Safe<'a>;
}

impl<T: 'static> Argument for *mut T {
    type Safe<'a> = Arg<'a, T>;

    #[inline(always)]
    unsafe fn safe<'a>(self) -> Arg<'a, T> {
        // SAFETY: per the caller.
        unsafe { Arg::new(self) }
    }
}

impl<T: 'static> Argument for *const T {
    type Safe<'a> = Arg<'a, T>;

    #[inline(always)]
    unsafe fn safe<'a>(self) -> Arg<'a, T> {
        // SAFETY: per the caller. Nothing writes through an `Arg`.
        unsafe { Arg::new(self.cast_mut()) }
    }
}

macro_rules! numbers {
    ($($type:ty)+) => {$(
        impl Argument for $type {
            type Safe<'a> = $type;

            #[inline(always)]
            unsafe fn safe<'a>(self) -> Self::Safe<'a> {
                self
            }
        }
    )+};
}
numbers!(u8 u16 u32 u64 usize i32);

/// The function beneath the layer, with the arguments of a call. A watcher calls it once.
#[derive(Debug)]
pub struct Next<F>(F);

/// What a call returned. Only a call of the function beneath makes one ([`Next::call`], and the
/// same of the data path), so a watcher can neither leave the call out nor change its result.
#[derive(Debug)]
pub struct Returned<R>(R);

impl<F> Next<F> {
    pub(crate) const fn new(call: F) -> Self {
        Self(call)
    }

    /// Calls the function beneath the layer.
    #[inline(always)]
    pub fn call<R>(self) -> Returned<R>
    where
        F: FnOnce() -> R,
    {
        Returned(self.0())
    }
}

impl<R: Copy> Returned<R> {
    pub(crate) const fn new(result: R) -> Self {
        Self(result)
    }

    /// The result.
    #[inline(always)]
    pub const fn get(&self) -> R {
        self.0
    }
}

impl<T> Returned<*mut T> {
    /// Whether the call failed.
    #[must_use]
    pub const fn failed(&self) -> bool {
        self.0.is_null()
    }

    /// The object that the call made; `None` if it failed. The program does not have the object
    /// yet, so that the object is live as long as the result is borrowed.
    #[must_use]
    pub fn object(&self) -> Option<Arg<'_, T>> {
        // SAFETY: made by the call, which has not returned to the program.
        (!self.0.is_null()).then(|| unsafe { Arg::new(self.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_the_mask_does_not_name_are_not_read() {
        let mut attr = ibv_qp_attr::zeroed();
        (attr.port_num, attr.rate_limit, attr.qp_state) = (1, 7, 3);
        // SAFETY: the structure is live.
        let arg = unsafe { Arg::new(&raw mut attr) };
        let seen = arg.read_named(QpAttrMask::STATE | QpAttrMask::PORT).unwrap();
        assert_eq!((seen.qp_state, seen.port_num, seen.rate_limit), (3, 1, 0));
        let mut extended = ibv_srq_init_attr_ex::zeroed();
        (extended.comp_mask, extended.srq_type) = (IBV_SRQ_INIT_ATTR_CQ, 2);
        extended.attr.max_wr = 9;
        // SAFETY: the structure is live.
        let seen = unsafe { Arg::new(&raw mut extended) }.read_named().unwrap();
        assert_eq!((seen.comp_mask, seen.srq_type, seen.attr.max_wr), (IBV_SRQ_INIT_ATTR_CQ, 0, 9));
    }

    #[test]
    fn an_older_structure_may_end_before_the_members_that_its_mask_does_not_name() {
        let mut attr = ibv_wq_init_attr::zeroed();
        (attr.max_wr, attr.create_flags) = (9, 1);
        // SAFETY: the structure is live.
        let read = |attr: &mut ibv_wq_init_attr| unsafe { Arg::new(attr) }.read_named().unwrap();
        assert_eq!((read(&mut attr).max_wr, read(&mut attr).create_flags), (9, 0));
        attr.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
        assert_eq!(read(&mut attr).create_flags, 1);
        let mut attr = ibv_parent_domain_init_attr::zeroed();
        attr.pd_context = core::ptr::without_provenance_mut(8);
        // SAFETY: the structure is live.
        let seen = unsafe { Arg::new(&raw mut attr) }.read_named().unwrap();
        assert!(seen.pd_context.is_null() && seen.alloc.is_none());
    }

    #[test]
    fn null_has_no_acknowledged_events_and_no_iterator() {
        // SAFETY: NULL.
        let (cq, qp) = unsafe {
            (Arg::<ibv_cq>::new(core::ptr::null_mut()), Arg::<ibv_qp>::new(core::ptr::null_mut()))
        };
        assert_eq!(cq.acknowledged_completions().read(), 0);
        assert_eq!(qp.acknowledged_asynchronous().read(), 0);
        // SAFETY: NULL.
        let extended = unsafe { Arg::<ibv_cq_ex>::new(core::ptr::null_mut()) };
        assert!(crate::IteratorPointers::of(extended).is_none());
    }

    #[test]
    fn null_has_no_members() {
        // SAFETY: NULL.
        let null = unsafe { Arg::<ibv_pd>::new(core::ptr::null_mut()) };
        assert!(null.is_null() && null.at() == 0);
        assert_eq!(null.context(), 0);
    }
}
