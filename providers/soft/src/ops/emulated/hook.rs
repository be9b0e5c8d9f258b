//! The layer directly above the provider. After each post and arming of the provider, the layer
//! reads the doorbell. Inline code calls some functions through the QP or the CQ itself. The layer
//! replaces `start_poll` when a CQ is created, and `wr_complete` when a QP changes its state,
//! because programs post after this change.

use super::context::{self, Context};
use abi::{
    ferroverbs_layer, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr,
    ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, verbs_context_ops,
};
use cface::sync::Mutex;
use soft_sys::Errno;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// The plugin's hook.
pub(super) static HOOK: ferroverbs_layer = ferroverbs_layer {
    size: size_of::<ferroverbs_layer>(),
    generation: 65,
    reserved: 0,
    name: c"emulated".as_ptr(),
    attach: Some(attach),
    awaits: None,
    refused: None,
};

type StartPoll = unsafe extern "C" fn(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int;
type WrComplete = unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> c_int;

/// The functions beneath, by the address of the context.
static TABLES_BENEATH: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
/// The provider's `start_poll`, by the address of the CQ.
static STARTS: Mutex<BTreeMap<usize, StartPoll>> = Mutex::new(BTreeMap::new());
/// The provider's latest `wr_complete`, by the address of the QP.
static COMPLETES: Mutex<BTreeMap<usize, WrComplete>> = Mutex::new(BTreeMap::new());

/// # Safety
/// As `ferroverbs_layer` says: an open context with its tables.
unsafe extern "C" fn attach(
    context: *mut ibv_context,
    next: *const verbs_context_ops,
    mine: *mut verbs_context_ops,
) -> c_int {
    let mut beneath = TABLES_BENEATH.lock();
    beneath.insert(context.addr(), next.expose_provenance());
    // SAFETY: our table.
    let mine = unsafe { &mut *mine };
    mine.post_send = Some(post_send);
    mine.post_recv = Some(post_recv);
    mine.post_srq_recv = Some(post_srq_recv);
    mine.create_cq_ex = Some(create_cq_ex);
    mine.destroy_cq = Some(destroy_cq);
    mine.poll_cq = Some(poll_cq);
    mine.req_notify_cq = Some(req_notify_cq);
    mine.free_context = Some(free_context);
    mine.modify_qp = Some(modify_qp);
    mine.destroy_qp = Some(destroy_qp);
    0
}

/// The functions beneath a context. The table stays as long as the context.
///
/// # Safety
/// `context` is open and was attached.
unsafe fn table_beneath(context: *mut ibv_context) -> &'static verbs_context_ops {
    let beneath = TABLES_BENEATH.lock();
    let table = beneath.get(&context.addr()).copied().unwrap_or(0);
    // SAFETY: a table that lives as long as the context; `attach` stored it.
    unsafe { &*std::ptr::with_exposed_provenance(table) }
}

/// Calls `with` on the emulated context behind a context of the provider, and then writes
/// the completion entries that are due.
///
/// # Safety
/// `context` is open.
unsafe fn with(context: *mut ibv_context, with: impl FnOnce(&mut Context)) {
    // SAFETY: per the caller.
    let cmd_fd = unsafe { (*context).cmd_fd };
    context::with(cmd_fd, with);
}

/// # Safety
/// `qp` is live.
unsafe fn ring(qp: *mut ibv_qp) {
    // SAFETY: a live QP with an open context.
    unsafe { with((*qp).context, |context| context.ring(qp.addr() as u64)) };
}

/// Calls a function beneath the hook.
macro_rules! call {
    ($of:ident . $name:ident ( $($argument:expr),* )) => {{
        // SAFETY: a live object with an open context.
        let beneath = unsafe { table_beneath((*$of).context) };
        match beneath.$name {
            // SAFETY: the provider's function, with the arguments of its caller.
            Some(function) => unsafe { function($($argument),*) },
            None => libc::EOPNOTSUPP,
        }
    }};
}

/// # Safety
/// As `ibv_post_send(3)`.
unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let result = call!(qp.post_send(qp, wr, bad));
    // SAFETY: a live QP.
    unsafe { ring(qp) };
    result
}

/// # Safety
/// As `ibv_post_recv(3)`.
unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let result = call!(qp.post_recv(qp, wr, bad));
    // SAFETY: a live QP.
    unsafe { ring(qp) };
    result
}

/// # Safety
/// As `ibv_post_srq_recv(3)`.
unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let result = call!(srq.post_srq_recv(srq, wr, bad));
    // SAFETY: a live SRQ with an open context.
    unsafe { with((*srq).context, |context| context.ring_srq(srq.addr() as u64)) };
    result
}

/// # Safety
/// As `ibv_create_cq_ex(3)`.
unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: an open context, which was attached.
    let create = unsafe { table_beneath(context) }.create_cq_ex;
    let Some(create) = create else {
        Errno::EOPNOTSUPP.set();
        return std::ptr::null_mut();
    };
    // SAFETY: the provider's function, with the arguments of its caller.
    let cq = unsafe { create(context, attr) };
    // SAFETY: NULL, or a live CQ, whose functions the provider has set.
    if let Some(provider) = unsafe { cq.as_ref() }.and_then(|cq| cq.start_poll) {
        STARTS.lock().insert(cq.addr(), provider);
        // SAFETY: as above. No other thread has the CQ.
        unsafe { (*cq).start_poll = Some(start_poll) };
    }
    cq
}

/// Writes the completion entries that are due before the provider looks for them.
///
/// # Safety
/// As `ibv_start_poll` of `ibv_create_cq_ex(3)`.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: a live CQ with an open context.
    unsafe { with((*cq).context, |_| ()) };
    let provider = STARTS.lock().get(&cq.addr()).copied();
    match provider {
        // SAFETY: the provider's function, with the arguments of its caller.
        Some(provider) => unsafe { provider(cq, attr) },
        None => libc::ENOENT,
    }
}

/// # Safety
/// As `ibv_destroy_cq(3)`.
unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // Removed first: a new CQ may get the address as soon as the old one is gone.
    let start = STARTS.lock().remove(&cq.addr());
    let result = call!(cq.destroy_cq(cq));
    if let Some(start) = start.filter(|_| result != 0) {
        STARTS.lock().insert(cq.addr(), start);
    }
    result
}

/// Writes the completion entries that are due before the provider looks for them.
///
/// # Safety
/// As `ibv_poll_cq(3)`.
unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a live CQ with an open context.
    unsafe { with((*cq).context, |_| ()) };
    call!(cq.poll_cq(cq, count, wc))
}

/// # Safety
/// `context` is an open context that nobody uses any more.
unsafe extern "C" fn free_context(context: *mut ibv_context) {
    // SAFETY: attached, and still open.
    let free = unsafe { table_beneath(context) }.free_context;
    TABLES_BENEATH.lock().remove(&context.addr());
    if let Some(free) = free {
        // SAFETY: the provider's function, with its context.
        unsafe { free(context) };
    }
}

/// # Safety
/// As `ibv_req_notify_cq(3)`.
unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let result = call!(cq.req_notify_cq(cq, solicited_only));
    // SAFETY: a live CQ with an open context.
    unsafe { with((*cq).context, |context| context.arm(cq.addr() as u64)) };
    result
}

/// # Safety
/// As `ibv_modify_qp(3)`.
unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let result = call!(qp.modify_qp(qp, attr, mask));
    if result == 0
        && let Some(extended) = extended(qp)
    {
        // SAFETY: a live extended QP, whose functions the provider has set.
        let provider = unsafe { (*extended).wr_complete };
        // libmlx5 sets the function again at RTS.
        if provider.is_none_or(|provider| !is_hook(provider)) {
            COMPLETES.lock().insert(extended.addr(), provider.unwrap_or(unsupported));
            // SAFETY: as above. Nothing posts before the QP is in RTS.
            unsafe { (*extended).wr_complete = Some(wr_complete) };
        }
    }
    result
}

/// Whether a function of a QP is that of the hook.
fn is_hook(function: WrComplete) -> bool {
    std::ptr::fn_addr_eq(function, wr_complete as WrComplete)
}

/// The same QP as an `ibv_qp_ex`, or `None` for a QP without work request builder. The library
/// knows the layout of each generation of providers.
fn extended(qp: *mut ibv_qp) -> Option<*mut ibv_qp_ex> {
    type Convert = unsafe extern "C" fn(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    static CONVERT: OnceLock<Option<Convert>> = OnceLock::new();
    let convert = (*CONVERT.get_or_init(|| {
        let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
        // SAFETY: a name; the library is loaded, because it called this function.
        let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), flags) };
        // SAFETY: a name; a library that stays loaded, or NULL: every library of the program.
        let found = unsafe { libc::dlsym(library, c"ibv_qp_to_qp_ex".as_ptr()) };
        // SAFETY: the function of that name.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Convert>(found) })
    }))?;
    // SAFETY: a live QP.
    let extended = unsafe { convert(qp) };
    (!extended.is_null()).then_some(extended)
}

/// # Safety
/// None: the QP is not used.
unsafe extern "C" fn unsupported(_: *mut ibv_qp_ex) -> c_int {
    libc::EOPNOTSUPP
}

/// # Safety
/// As `ibv_wr_complete(3)`.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let completes = COMPLETES.lock();
    let provider = completes.get(&qp.addr()).copied().unwrap_or(unsupported);
    drop(completes);
    // SAFETY: the provider's function, with its QP.
    let result = unsafe { provider(qp) };
    // SAFETY: a live QP, which begins the extended one.
    unsafe { ring(qp.cast()) };
    result
}

/// # Safety
/// As `ibv_destroy_qp(3)`.
unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let extended = extended(qp);
    // Removed first: a new QP may get the address as soon as the old one is gone.
    let complete = extended.and_then(|qp| Some((qp.addr(), COMPLETES.lock().remove(&qp.addr())?)));
    let result = call!(qp.destroy_qp(qp));
    if let Some((address, complete)) = complete.filter(|_| result != 0) {
        COMPLETES.lock().insert(address, complete);
    }
    result
}
