//! Work queues and indirection tables (ibv_create_wq(3), ibv_create_rwq_ind_table(3)), and QPs that spread frames over them.

use super::cq::wait_for_acks;
use super::pd::Pd;
use super::post::post_list;
use super::query::{MAX_QP_WR, MAX_SGE};
use super::state::Context;
use super::{object, status};
use crate::adapter::count_up;
use crate::engine::ethernet::toeplitz::{Hash, KEY_BYTES};
use crate::engine::objects::cq::Cq;
use crate::engine::objects::wq::{IndirectionTable, Rss, Wq};
use crate::engine::wq::{MAX_TABLE, MAX_TABLES, Wanted};
use abi::*;
use soft_local::shm::layout::split_qpn;
use soft_sys::Errno;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Flags that a work queue can be created with.
const FLAGS: u32 = IBV_WQ_FLAGS_CVLAN_STRIPPING | IBV_WQ_FLAGS_SCATTER_FCS;

impl Wq {
    /// # Safety
    /// `wq` is a live work queue of this provider.
    unsafe fn of<'a>(wq: *mut ibv_wq) -> &'a Self {
        // SAFETY: create_wq made it, and the C object is the first member.
        unsafe { &*wq.cast::<Self>() }
    }

    /// Another owner of the queue behind a C handle.
    ///
    /// # Safety
    /// `wq` is a live work queue of this provider.
    unsafe fn share(wq: *mut ibv_wq) -> Arc<Self> {
        let this = wq.cast::<Self>().cast_const();
        // SAFETY: the handle is an Arc that create_wq turned into a pointer, and destroy_wq has not taken back.
        unsafe {
            Arc::increment_strong_count(this);
            Arc::from_raw(this)
        }
    }
}

/// ibv_create_wq(3): EINVAL for another type or sizes that the device does not have; EOPNOTSUPP for flags that it does not have (dropping late,
/// padding).
///
/// # Safety
/// `context` is open; `attr` is readable and writable, and names live objects of this provider.
pub(super) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    object(|| {
        // SAFETY: `attr` is NULL, which is refused, or the caller's, readable and writable, and nobody else uses it
        // during this call.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::EINVAL)?;
        let has_flags = attr.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0;
        let flags = if has_flags { attr.create_flags } else { 0 };
        if attr.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0
            || attr.wq_type != IBV_WQT_RQ
            || !(1..=MAX_QP_WR).contains(&attr.max_wr)
            || attr.max_sge > MAX_SGE
            || attr.pd.is_null()
            || attr.cq.is_null()
        {
            return Err(Errno::EINVAL);
        }
        if flags & !FLAGS != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: `attr.pd` and `attr.cq` are not NULL (checked above), and the caller says that they are live objects
        // of this provider; its context is open.
        let (domain, cq, report) =
            unsafe { (Pd::of(attr.pd), Cq::share(attr.cq), Context::of(context).report.clone()) };
        let held = domain.hold()?;
        let (_, number) = domain.adapter.reserve_qp().ok_or(Errno::ENOMEM)?;
        let (max_wr, max_sge) = (attr.max_wr, attr.max_sge.max(1));
        attr.max_sge = max_sge;
        let wanted = Wanted { max_wr, max_sge, flags, pd: domain.number, cq, number, report };
        let wq = Wq::new(&domain.adapter, wanted)?;
        held.keep();
        // SAFETY: nobody else has the handle yet; mutex, condition and the application's pointer are libibverbs's to set.
        unsafe {
            let verbs = wq.handle();
            (*verbs).context = context;
            (*verbs).pd = attr.pd;
            (*verbs).cq = attr.cq;
            (*verbs).wq_num = number;
            (*verbs).handle = split_qpn(number).1 as u32;
            (*verbs).state = IBV_WQS_RESET;
            (*verbs).wq_type = IBV_WQT_RQ;
            (*verbs).post_recv = Some(post_recv);
        }
        Ok(Arc::into_raw(wq).cast_mut().cast())
    })
}

/// ibv_destroy_wq(3): EBUSY while a table names the queue; waits until all events that were got are acknowledged.
///
/// # Safety
/// `wq` is a live work queue of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    status(|| {
        // SAFETY: `wq` is live until its handle is given back at the end of this function; the reference is not used
        // after that.
        let queue = unsafe { Wq::of(wq) };
        if queue.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        queue.retire();
        let got = queue.report.0.end(&queue.events, wq as u64);
        // SAFETY: libibverbs made mutex and condition after creation, and counts acknowledgements under the mutex; a queue holds its
        // domain; the handle is the Arc that creation turned into a pointer.
        unsafe {
            wait_for_acks(&raw mut (*wq).mutex, &raw mut (*wq).cond, || {
                (*wq).events_completed == got
            });
            let domain = Pd::of((*wq).pd);
            domain.adapter.free_qp(split_qpn(queue.number).1);
            domain.release();
            drop(Arc::from_raw(wq.cast::<Wq>().cast_const()));
        }
        Ok(())
    })
}

/// ibv_modify_wq(3): EINVAL for unknown bits, a wrong present state or a transition that does not exist; EOPNOTSUPP for flags other than VLAN
/// stripping.
///
/// # Safety
/// `wq` is a live work queue of this provider; `attr` is readable.
pub(super) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    status(|| {
        // SAFETY: `wq` is a live queue of this provider; `attr` is NULL, which is refused, or readable during this
        // call.
        let (queue, attr) = unsafe { (Wq::of(wq), attr.as_ref().ok_or(Errno::EINVAL)?) };
        let has = |bit| attr.attr_mask & bit != 0;
        let known = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_FLAGS;
        if attr.attr_mask & !known != 0
            || (has(IBV_WQ_ATTR_CURR_STATE) && attr.curr_wq_state != queue.state())
        {
            return Err(Errno::EINVAL);
        }
        if has(IBV_WQ_ATTR_FLAGS) {
            if attr.flags_mask & !IBV_WQ_FLAGS_CVLAN_STRIPPING != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            let kept = queue.flags.load(Ordering::Relaxed) & !attr.flags_mask;
            queue.flags.store(kept | attr.flags & attr.flags_mask, Ordering::Relaxed);
        }
        if has(IBV_WQ_ATTR_STATE) {
            queue.change(attr.wq_state)?;
            // SAFETY: the application changes the queue from one thread at a time.
            unsafe { (*wq).state = attr.wq_state };
        }
        Ok(())
    })
}

/// ibv_post_wq_recv(3).
///
/// # Safety
/// `wq` is a live work queue of this provider, `list` a list of requests, `bad` writable.
unsafe extern "C" fn post_recv(
    wq: *mut ibv_wq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `wq` is a live queue of this provider: the application does not destroy it while it posts to it.
    let queue = unsafe { Wq::of(wq) };
    // SAFETY: `list`, the scatter/gather lists in it and `bad` are the caller's until this call returns, which is what
    // `post_list` asks for.
    let result = unsafe { post_list(list, bad, |wr_id, sges| queue.post(wr_id, sges)) };
    queue.posted();
    result
}

/// ibv_create_rwq_ind_table(3): EINVAL for a size that the device does not have; ENOMEM when the process has as many as it says.
///
/// # Safety
/// `context` is open; `init` is readable, with as many live work queues as it says.
pub(super) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    object(|| {
        // SAFETY: `init` is NULL, which is refused, or the caller's, readable for the whole call.
        let init = unsafe { init.as_ref() }.ok_or(Errno::EINVAL)?;
        let size = 1u32.checked_shl(init.log_ind_tbl_size).ok_or(Errno::EINVAL)?;
        if init.comp_mask != 0 || size > MAX_TABLE || init.ind_tbl.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `ind_tbl` is not NULL (checked above), and the caller says that it has as many elements as
        // `log_ind_tbl_size` says, at most `MAX_TABLE`; nobody changes them during this call.
        let named = unsafe { std::slice::from_raw_parts(init.ind_tbl, size as usize) };
        if named.iter().any(|wq| wq.is_null()) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's context is open for the whole call.
        let adapter = unsafe { &Context::of(context).adapter };
        count_up(&adapter.indirection_tables, MAX_TABLES as usize)?;
        // SAFETY: no element is NULL (checked above), and the caller says that each is a live work queue of this
        // provider; from here on the table owns a share of it.
        let queues: Box<[_]> = named.iter().map(|wq| unsafe { Wq::share(*wq) }).collect();
        for wq in queues.iter() {
            wq.users.fetch_add(1, Ordering::AcqRel);
        }
        let number = queues.first().map_or(0, |wq| wq.number) as c_int;
        let verbs = ibv_rwq_ind_table {
            context,
            ind_tbl_handle: number,
            ind_tbl_num: number,
            comp_mask: 0,
        };
        let table =
            IndirectionTable { verbs: UnsafeCell::new(verbs), queues, users: AtomicUsize::new(0) };
        Ok(Arc::into_raw(Arc::new(table)).cast_mut().cast())
    })
}

/// ibv_destroy_rwq_ind_table(3): EBUSY while a QP uses the table.
///
/// # Safety
/// `table` is a live table of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    status(|| {
        let this = table.cast::<IndirectionTable>().cast_const();
        // SAFETY: `table` is live; create_rwq_ind_table made it, and the C object is the first member. The reference
        // ends with this line.
        if unsafe { &*this }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: the handle is the Arc that create_rwq_ind_table turned into a pointer. It is given back once, here:
        // no QP uses the table, and the application uses it no more.
        let table = unsafe { Arc::from_raw(this) };
        // SAFETY: the table's context is open while it has tables.
        let adapter = unsafe { &Context::of((*table.verbs.get()).context).adapter };
        adapter.indirection_tables.fetch_sub(1, Ordering::AcqRel);
        for wq in table.queues.iter() {
            wq.users.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    })
}

/// How a QP is to spread frames, if it is one that does.
///
/// # Errors
/// `EINVAL` table without hash or hash without table, queues of its own, another key length than Toeplitz has, fields that do not go together;
/// `EOPNOTSUPP` another hash function.
///
/// # Safety
/// What `init` names is live, and the key readable.
pub(super) unsafe fn spreading(init: &ibv_qp_init_attr_ex) -> Result<Option<Rss>, Errno> {
    let (table, hash) = (IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_RX_HASH);
    if init.comp_mask & (table | hash) == 0 {
        return Ok(None);
    }
    let conf = &init.rx_hash_conf;
    let cap = &init.cap;
    if init.comp_mask & (table | hash) != table | hash
        || init.rwq_ind_tbl.is_null()
        || conf.rx_hash_key.is_null()
        || usize::from(conf.rx_hash_key_len) != KEY_BYTES
        || cap.max_send_wr | cap.max_recv_wr | cap.max_send_sge | cap.max_recv_sge != 0
        || !init.srq.is_null()
        || init.comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER != 0
    {
        return Err(Errno::EINVAL);
    }
    if u32::from(conf.rx_hash_function) != IBV_RX_HASH_FUNC_TOEPLITZ {
        return Err(Errno::EOPNOTSUPP);
    }
    let fields = u32::try_from(conf.rx_hash_fields_mask).map_err(|_| Errno::EINVAL)?;
    let this = init.rwq_ind_tbl.cast::<IndirectionTable>().cast_const();
    // SAFETY: table and key are not NULL, and the key has `KEY_BYTES` bytes (checked above); the caller says that the
    // key is readable and the table live. Its handle is an Arc that create_rwq_ind_table turned into a pointer, of
    // which one more share is counted before it is taken.
    let (table, key) = unsafe {
        Arc::increment_strong_count(this);
        (Arc::from_raw(this), conf.rx_hash_key.cast::<[u8; KEY_BYTES]>().read())
    };
    // Nothing to hash is nothing to spread.
    if !Hash::permits(fields) || (fields == 0 && table.queues.len() > 1) {
        return Err(Errno::EINVAL);
    }
    Ok(Some(Rss { table, hash: Hash { key, fields } }))
}
