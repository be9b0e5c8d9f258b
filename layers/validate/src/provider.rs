//! What the layer asks of the provider beneath, of its plugin and of libibverbs, and what it reads
//! in C objects, as safe functions.

use core::ffi::{c_int, c_void};
use core::net::Ipv6Addr;
use std::sync::OnceLock;

use abi::{
    IBV_FORK_DISABLED, QpAttrMask as M, Zeroed, ferroverbs_other_end, ibv_context, ibv_cq,
    ibv_device_attr, ibv_device_attr_ex, ibv_fork_status, ibv_gid_entry, ibv_pd, ibv_port_attr,
    ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, verbs_context_ops,
};
use layer_tap::{Arg, Operations, beneath, plugin};

use crate::checks::address::GidEntry;
use crate::native;

type Waiting = unsafe extern "C" fn(cq: *mut ibv_cq) -> c_int;
type OtherEnd =
    unsafe extern "C" fn(qp: *mut ibv_qp, rkey: u32, end: *mut ferroverbs_other_end) -> c_int;

/// The functions beneath the layer: operations of a context, and the extension of its plugin.
pub(crate) struct Provider {
    operations: Operations,
    waiting: Option<Waiting>,
    other_end: Option<OtherEnd>,
    async_fd: c_int,
    /// `num_comp_vectors` of the context.
    pub(crate) vectors: i32,
    /// Whether the plugin has an extension table, so that it writes memory itself.
    pub(crate) has_extension: bool,
}

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
            // SAFETY: per the caller.
            operations: unsafe { Operations::new(context, next) },
            waiting: ext.as_ref().and_then(|ext| ext.waiting),
            other_end: ext.as_ref().and_then(|ext| ext.other_end),
            async_fd,
            vectors,
            has_extension: ext.is_some(),
        }
    }

    /// The operations beneath the layer, for calls of the data path.
    #[inline]
    pub(crate) const fn operations(&self) -> Operations {
        self.operations
    }

    /// The limits of the device and of its ports.
    pub(crate) fn limits(&self) -> (Option<ibv_device_attr>, Vec<ibv_port_attr>) {
        let context = core::ptr::with_exposed_provenance_mut(self.operations.context());
        let mut attr = ibv_device_attr_ex::zeroed();
        // SAFETY: the context is open; both structures are local.
        unsafe {
            let Some(query) = (*self.operations.table_beneath()).query_device_ex else {
                return (None, Vec::new());
            };
            let size = size_of::<ibv_device_attr_ex>();
            if query(context, core::ptr::null(), &raw mut attr, size) != 0 {
                return (None, Vec::new());
            }
            let mut ports = Vec::new();
            for number in 1..=attr.orig_attr.phys_port_cnt {
                let mut port = ibv_port_attr::zeroed();
                let Some(query) = (*self.operations.table_beneath()).query_port else { break };
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
        let result = unsafe {
            beneath!(self.operations.table_beneath(), query_qp)(
                qp,
                &raw mut now,
                mask,
                &raw mut init,
            )
        };
        (result == 0).then_some(now.qp_state)
    }

    /// Whether the provider creates a QP with these attributes. The QP is destroyed at once.
    pub(crate) fn can_create_qp(&self, pd: Arg<'_, ibv_pd>, mut attr: ibv_qp_init_attr) -> bool {
        // SAFETY: the domain is the caller's, and the attributes are a copy.
        let made = unsafe {
            beneath!(self.operations.table_beneath(), create_qp)(pd.as_ptr(), &raw mut attr)
        };
        self.destroy_qp(made)
    }

    /// Whether the provider creates a QP with these attributes but the capacities `cap`. The QP is
    /// destroyed at once.
    pub(crate) fn can_create_qp_ex(
        &self,
        context: Arg<'_, ibv_context>,
        attr: Arg<'_, ibv_qp_init_attr_ex>,
        cap: ibv_qp_cap,
    ) -> bool {
        let (context, attr) = (context.as_ptr(), attr.as_ptr());
        if attr.is_null() {
            return false;
        }
        // SAFETY: the structure is writable during the call, and is restored here.
        let made = unsafe {
            let place = &raw mut (*attr).cap;
            let before = *place;
            *place = cap;
            let made = beneath!(self.operations.table_beneath(), create_qp_ex)(context, attr);
            *place = before;
            made
        };
        self.destroy_qp(made)
    }

    /// Destroys a QP that was just created; false for NULL.
    fn destroy_qp(&self, qp: *mut ibv_qp) -> bool {
        // SAFETY: no other thread has the address of the QP.
        !qp.is_null() && unsafe { beneath!(self.operations.table_beneath(), destroy_qp)(qp) } == 0
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
        let context = core::ptr::with_exposed_provenance_mut(self.operations.context());
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the context is open, and the entry has the size that is passed.
        let result =
            unsafe { (*query)?(context, port.into(), index.into(), &raw mut entry, 0, size) };
        let address = Ipv6Addr::from(entry.gid.bytes());
        (result == 0).then_some(GidEntry { address, gid_type: entry.gid_type })
    }
}

/// Whether fork support of libibverbs is off; `None` if libibverbs cannot tell.
pub(crate) fn fork_support_is_off() -> Option<bool> {
    type Status = unsafe extern "C" fn() -> ibv_fork_status;
    let found = native::symbol_of(c"libibverbs.so.1", c"ibv_is_fork_initialized")?;
    // SAFETY: libibverbs exports the function with this prototype.
    let status = unsafe { core::mem::transmute::<*mut c_void, Status>(found)() };
    Some(status == IBV_FORK_DISABLED)
}
