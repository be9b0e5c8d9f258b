//! What the layer asks of the provider beneath, of its plugin and of libibverbs, and what it reads
//! in C objects, as safe functions.

use core::ffi::{c_int, c_void};
use core::net::Ipv6Addr;
use std::sync::OnceLock;

use abi::{
    IBV_FORK_DISABLED, QpAttrMask as M, Zeroed, ferroverbs_other_end, ibv_context, ibv_cq,
    ibv_cq_ex, ibv_device_attr, ibv_device_attr_ex, ibv_fork_status, ibv_gid_entry, ibv_port_attr,
    ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, verbs_context_ops,
};
use layer_tap::{beneath, plugin};

use crate::checks::address::GidEntry;
use crate::checks::change::{AlternatePath, QpChange};
use crate::native;

type Waiting = unsafe extern "C" fn(cq: *mut ibv_cq) -> c_int;
type OtherEnd =
    unsafe extern "C" fn(qp: *mut ibv_qp, rkey: u32, end: *mut ferroverbs_other_end) -> c_int;

/// The functions beneath the layer: operations of a context, and the extension of its plugin.
pub(crate) struct Provider {
    context: usize,
    next: *const verbs_context_ops,
    waiting: Option<Waiting>,
    other_end: Option<OtherEnd>,
    async_fd: c_int,
    /// `num_comp_vectors` of the context.
    pub(crate) vectors: i32,
    /// Whether the plugin has an extension table, so that it writes memory itself.
    pub(crate) has_extension: bool,
}

// SAFETY: the table lives as long as the context, and is only read, entry by entry.
unsafe impl Send for Provider {}
// SAFETY: any thread may read the table, because each entry is a word that is read at once.
unsafe impl Sync for Provider {}

impl Provider {
    /// The functions beneath the layer.
    ///
    /// # Safety
    /// The context is open, and `next` is the complete table beneath this layer. Both are used as
    /// long as the context is open.
    pub(crate) unsafe fn new(context: *mut ibv_context, next: *const verbs_context_ops) -> Self {
        // SAFETY: per the caller.
        let (ext, vectors, async_fd) =
            unsafe { (plugin::ext_of(next), (*context).num_comp_vectors, (*context).async_fd) };
        Self {
            context: context.expose_provenance(),
            next,
            waiting: ext.as_ref().and_then(|ext| ext.waiting),
            other_end: ext.as_ref().and_then(|ext| ext.other_end),
            async_fd,
            vectors,
            has_extension: ext.is_some(),
        }
    }

    /// The operations beneath the layer.
    pub(crate) const fn next(&self) -> *const verbs_context_ops {
        self.next
    }

    /// The limits of the device and of its ports.
    pub(crate) fn limits(&self) -> (Option<ibv_device_attr>, Vec<ibv_port_attr>) {
        let context = core::ptr::with_exposed_provenance_mut(self.context);
        let mut attr = ibv_device_attr_ex::zeroed();
        // SAFETY: the context is open; both structures are local.
        unsafe {
            let Some(query) = (*self.next).query_device_ex else { return (None, Vec::new()) };
            let size = size_of::<ibv_device_attr_ex>();
            if query(context, core::ptr::null(), &raw mut attr, size) != 0 {
                return (None, Vec::new());
            }
            let mut ports = Vec::new();
            for number in 1..=attr.orig_attr.phys_port_cnt {
                let mut port = ibv_port_attr::zeroed();
                let Some(query) = (*self.next).query_port else { break };
                if query(context, number, &raw mut port) != 0 {
                    break;
                }
                ports.push(port);
            }
            (Some(attr.orig_attr), ports)
        }
    }

    /// The number of unpolled completions of a CQ; `None` if the plugin cannot tell.
    ///
    /// The caller holds the lock of `channels`, so that no thread destroys the CQ meanwhile, or
    /// the program's call names the CQ.
    pub(crate) fn waiting(&self, cq: usize) -> Option<c_int> {
        let at = core::ptr::with_exposed_provenance_mut(cq);
        // SAFETY: the function belongs to the plugin that created the CQ, and the CQ is live.
        self.waiting.map(|waiting| unsafe { waiting(at) })
    }

    /// The plugin's knowledge of the peer of a QP; `None` if the plugin cannot tell. `rkey` is the
    /// key in a request, or 0. The caller holds the list of the QP's CQ, so that no thread destroys
    /// the QP meanwhile.
    pub(crate) fn other_end(&self, qp: usize, rkey: u32) -> Option<ferroverbs_other_end> {
        let ask = self.other_end?;
        let mut answer = ferroverbs_other_end::zeroed();
        answer.size = size_of::<ferroverbs_other_end>();
        let at = core::ptr::with_exposed_provenance_mut(qp);
        // SAFETY: the function belongs to the plugin that created the QP, and the QP is live.
        let result = unsafe { ask(at, rkey, &raw mut answer) };
        (result == 0).then_some(answer)
    }

    /// The state of a QP that the device reports; the program's call names the QP.
    pub(crate) fn state_of(&self, qp: usize) -> Option<u32> {
        let (mut now, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        let mask = M::STATE.bits().cast_signed();
        let qp = core::ptr::with_exposed_provenance_mut(qp);
        // SAFETY: the QP is live; both structures are local.
        let result =
            unsafe { beneath!(self.next, query_qp)(qp, &raw mut now, mask, &raw mut init) };
        (result == 0).then_some(now.qp_state)
    }

    /// Whether an asynchronous event waits.
    pub(crate) fn has_async_event(&self) -> bool {
        native::poll(self.async_fd, 0).is_ok_and(|events| events & libc::POLLIN != 0)
    }

    /// An entry of a port's GID table; `None` if the entry is empty or cannot be read. The table is
    /// no operation of a device, so the layer asks libibverbs.
    pub(crate) fn gid(&self, port: u8, index: u8) -> Option<GidEntry> {
        type Query =
            unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> i32;
        static QUERY: OnceLock<Option<Query>> = OnceLock::new();
        let query = QUERY.get_or_init(|| {
            let found = native::symbol_of(c"libibverbs.so.1", c"_ibv_query_gid_ex")?;
            // SAFETY: the function of ibv_query_gid_ex(3) has this prototype.
            Some(unsafe { core::mem::transmute::<*mut c_void, Query>(found) })
        });
        let mut entry = ibv_gid_entry::zeroed();
        let context = core::ptr::with_exposed_provenance_mut(self.context);
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the context is open, and the entry has the size that is passed.
        let result =
            unsafe { (*query)?(context, port.into(), index.into(), &raw mut entry, 0, size) };
        let address = Ipv6Addr::from(entry.gid.bytes());
        (result == 0).then_some(GidEntry { address, kind: entry.gid_type })
    }
}

/// Whether fork support of libibverbs is off; `None` if libibverbs cannot tell.
pub(crate) fn fork_support_is_off() -> Option<bool> {
    type Status = unsafe extern "C" fn() -> ibv_fork_status;
    let found = native::symbol(c"ibv_is_fork_initialized")?;
    // SAFETY: libibverbs exports the function with this prototype.
    let status = unsafe { core::mem::transmute::<*mut c_void, Status>(found)() };
    Some(status == IBV_FORK_DISABLED)
}

/// A count of acknowledged events in a live C object, which other threads may change.
#[derive(Clone, Copy)]
pub(crate) struct AcknowledgedEvents(*const u32);

impl AcknowledgedEvents {
    /// # Safety
    /// `count` is a word of an object that lives as long as this value is used.
    pub(crate) const unsafe fn new(count: *const u32) -> Self {
        Self(count)
    }

    pub(crate) fn read(self) -> u32 {
        // SAFETY: by the contract of `new`; the word is read at once.
        unsafe { self.0.read_volatile() }
    }
}

/// The provider's pointers of an extended QP (`wr_*`).
pub(crate) struct BuilderPointers(ibv_qp_ex);

// SAFETY: only the function pointers of the copied structure are read.
unsafe impl Send for BuilderPointers {}

impl BuilderPointers {
    pub(crate) fn none() -> Self {
        Self(ibv_qp_ex::zeroed())
    }

    pub(crate) const fn get(&self) -> &ibv_qp_ex {
        &self.0
    }

    pub(crate) const fn get_mut(&mut self) -> &mut ibv_qp_ex {
        &mut self.0
    }
}

/// The provider's pointers of an extended CQ. The copy is never written after its creation.
pub(crate) struct IteratorPointers(ibv_cq_ex);

// SAFETY: only the function pointers of the copied structure are read.
unsafe impl Send for IteratorPointers {}
// SAFETY: the copy is never written after its creation.
unsafe impl Sync for IteratorPointers {}

impl IteratorPointers {
    pub(crate) const fn new(pointers: ibv_cq_ex) -> Self {
        Self(pointers)
    }

    pub(crate) const fn get(&self) -> &ibv_cq_ex {
        &self.0
    }
}

/// Reads the attributes of ibv_modify_qp(3) that `mask` names.
///
/// # Safety
/// `attr` is readable where `mask` names a member.
pub(crate) unsafe fn read_change(attr: *const ibv_qp_attr, mask: M) -> QpChange {
    macro_rules! member {
        ($bit:ident $field:ident) => {
            // SAFETY: the mask names the member.
            mask.contains(M::$bit).then(|| unsafe { (*attr).$field })
        };
    }
    QpChange {
        mask: mask.bits(),
        qp_state: member!(STATE qp_state),
        cur_qp_state: member!(CUR_STATE cur_qp_state),
        path_mtu: member!(PATH_MTU path_mtu),
        port_num: member!(PORT port_num),
        timeout: member!(TIMEOUT timeout),
        retry_cnt: member!(RETRY_CNT retry_cnt),
        rnr_retry: member!(RNR_RETRY rnr_retry),
        min_rnr_timer: member!(MIN_RNR_TIMER min_rnr_timer),
        rq_psn: member!(RQ_PSN rq_psn),
        sq_psn: member!(SQ_PSN sq_psn),
        dest_qp_num: member!(DEST_QPN dest_qp_num),
        qkey: member!(QKEY qkey),
        pkey_index: member!(PKEY_INDEX pkey_index),
        max_rd_atomic: member!(MAX_QP_RD_ATOMIC max_rd_atomic),
        max_dest_rd_atomic: member!(MAX_DEST_RD_ATOMIC max_dest_rd_atomic),
        qp_access_flags: member!(ACCESS_FLAGS qp_access_flags),
        ah_attr: member!(AV ah_attr),
        alternate: mask.contains(M::ALT_PATH).then(|| {
            // SAFETY: the mask names these members.
            unsafe {
                AlternatePath {
                    ah_attr: (*attr).alt_ah_attr,
                    port_num: (*attr).alt_port_num,
                    timeout: (*attr).alt_timeout,
                    pkey_index: (*attr).alt_pkey_index,
                }
            }
        }),
        path_mig_state: member!(PATH_MIG_STATE path_mig_state),
        en_sqd_async_notify: member!(EN_SQD_ASYNC_NOTIFY en_sqd_async_notify),
        rate_limit: member!(RATE_LIMIT rate_limit),
    }
}
