//! Work queues, indirection tables (ibv_create_wq(3), ibv_create_rwq_ind_table(3)) and RSS QPs. The
//! C entry points of `engine/queues/wq/receives`.

use super::cq::wait_for_acks;
use super::pd::Pd;
use super::post::post_list;
use super::query::{MAX_QP_WR, MAX_SGE};
use super::state::Context;
use super::{object, status};
use crate::engine::queues::cq::Cq;
use crate::engine::queues::wq::receives::{MAX_TABLE, MAX_TABLES, WqParameters};
use crate::engine::queues::wq::{IndirectionTable, Rss, Wq};
use crate::engine::verbs_cell::VerbsCell;
use abi::*;
use soft_local::shm::layout::split_qpn;
use soft_semantics::frames::toeplitz::{Hash, KEY_BYTES};
use soft_sys::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The flags supported at creation.
const FLAGS: u32 = IBV_WQ_FLAGS_CVLAN_STRIPPING | IBV_WQ_FLAGS_SCATTER_FCS;

impl Wq {
    /// # Safety
    /// `wq` is a live work queue of this provider.
    unsafe fn of<'a>(wq: *mut ibv_wq) -> &'a Self {
        // SAFETY: create_wq made the queue, and the C object is the first member.
        unsafe { &*wq.cast::<Self>() }
    }

    /// A further owner of the queue behind a C handle.
    ///
    /// # Safety
    /// `wq` is a live work queue of this provider.
    unsafe fn share(wq: *mut ibv_wq) -> Arc<Self> {
        let this = wq.cast::<Self>().cast_const();
        // SAFETY: the handle is an Arc that create_wq turned into a pointer, and destroy_wq has not
        // taken back.
        unsafe {
            Arc::increment_strong_count(this);
            Arc::from_raw(this)
        }
    }
}

/// ibv_create_wq(3): EINVAL for another type or unsupported sizes; EOPNOTSUPP for unsupported flags
/// (delayed drop, padding).
///
/// # Safety
/// `context` is open; `attr` is readable and writable, and names live objects of this provider.
pub(super) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    object(|| {
        // SAFETY: `attr` is NULL (refused) or readable and writable, and no other thread uses it
        // during the call.
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
        // SAFETY: `attr.pd` and `attr.cq` are not NULL (checked above), and the caller states that
        // they are live objects of this provider, with an open context.
        let (domain, cq, report) =
            unsafe { (Pd::of(attr.pd), Cq::share(attr.cq), Context::of(context).report.clone()) };
        let held = domain.hold_for_object()?;
        let (_, number) = domain.adapter.registry.reserve_qp().ok_or(Errno::ENOMEM)?;
        let (max_wr, max_sge) = (attr.max_wr, attr.max_sge.max(1));
        attr.max_sge = max_sge;
        let wanted = WqParameters { max_wr, max_sge, flags, pd: domain.number, cq, number, report };
        let wq = Wq::new(&domain.adapter, wanted)?;
        held.keep_for_object();
        // SAFETY: no other thread has the handle yet; libibverbs sets mutex, condition and the
        // application's pointer.
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

/// ibv_destroy_wq(3): EBUSY while a table names the queue; waits until all events read by the
/// application are acknowledged.
///
/// # Safety
/// `wq` is a live work queue of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    status(|| {
        // SAFETY: `wq` is live until its handle is returned at the end of the function; the
        // reference is not used afterwards.
        let queue = unsafe { Wq::of(wq) };
        if queue.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        queue.retire();
        let got = queue.report.0.end_events(&queue.events, wq as u64);
        // SAFETY: libibverbs made mutex and condition after creation, and counts acknowledgements
        // under the mutex; a queue holds its domain; the handle is the Arc that creation turned
        // into a pointer.
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

/// ibv_modify_wq(3): EINVAL for unknown bits, a wrong current state or an invalid transition;
/// EOPNOTSUPP for flags except VLAN stripping.
///
/// # Safety
/// `wq` is a live work queue of this provider; `attr` is readable.
pub(super) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    status(|| {
        // SAFETY: `wq` is a live queue of this provider; `attr` is NULL (refused) or readable
        // during the call.
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
            queue.change_state(attr.wq_state)?;
            // SAFETY: the application changes a queue from a single thread at a time.
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
    // SAFETY: `wq` is a live queue of this provider: the application does not destroy a queue while
    // it posts to the queue.
    let queue = unsafe { Wq::of(wq) };
    // SAFETY: `list`, its scatter/gather lists and `bad` are valid until the call returns, as
    // `post_list` requires.
    let result = unsafe { post_list(list, bad, |wr_id, sges| queue.post(wr_id, sges)) };
    queue.receives_posted();
    result
}

/// ibv_create_rwq_ind_table(3): EINVAL for an unsupported size; ENOMEM above the limit of the
/// device.
///
/// # Safety
/// `context` is open; `init` is readable, with the stated number of live work queues.
pub(super) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    object(|| {
        // SAFETY: `init` is NULL (refused) or readable for the whole call.
        let init = unsafe { init.as_ref() }.ok_or(Errno::EINVAL)?;
        let size = 1u32.checked_shl(init.log_ind_tbl_size).ok_or(Errno::EINVAL)?;
        if init.comp_mask != 0 || size > MAX_TABLE || init.ind_tbl.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `ind_tbl` is not NULL (checked above), and the caller states that it has `1 <<
        // log_ind_tbl_size` elements, at most `MAX_TABLE`, unchanged during the call.
        let named = unsafe { std::slice::from_raw_parts(init.ind_tbl, size as usize) };
        if named.iter().any(|wq| wq.is_null()) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's context is open for the whole call.
        let adapter = unsafe { &Context::of(context).adapter };
        adapter.registry.indirection_tables().count_new(MAX_TABLES as usize)?;
        // SAFETY: no element is NULL (checked above), and the caller states that each is a live
        // work queue of this provider; from here on the table owns a share of each.
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
            IndirectionTable { verbs: VerbsCell::new(verbs), queues, users: AtomicUsize::new(0) };
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
        // SAFETY: `table` is live; create_rwq_ind_table made it, and the C object is the first
        // member. The reference ends with the line.
        if unsafe { &*this }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: the handle is the Arc that create_rwq_ind_table turned into a pointer. It is
        // returned once, here: no QP and no application uses the table any more.
        let table = unsafe { Arc::from_raw(this) };
        // SAFETY: the context of a table is open while the table lives.
        let adapter = unsafe { &Context::of((*table.verbs.get()).context).adapter };
        adapter.registry.indirection_tables().give_back();
        for wq in table.queues.iter() {
            wq.users.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    })
}

/// The RSS configuration of a QP, if given.
///
/// # Errors
/// `EINVAL` a table without hash or a hash without table, queues of its own, a key length other
/// than Toeplitz requires, or incompatible fields; `EOPNOTSUPP` an unknown hash function.
///
/// # Safety
/// The objects named by `init` are live, and the key is readable.
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
    // SAFETY: table and key are not NULL, and the key has `KEY_BYTES` bytes (checked above); the
    // caller states that the key is readable and the table live. The handle is an Arc that
    // create_rwq_ind_table turned into a pointer; a further share is counted before it is taken.
    let (table, key) = unsafe {
        Arc::increment_strong_count(this);
        (Arc::from_raw(this), conf.rx_hash_key.cast::<[u8; KEY_BYTES]>().read())
    };
    // Without fields to hash, all frames would go to one queue.
    if !Hash::permits(fields) || (fields == 0 && table.queues.len() > 1) {
        return Err(Errno::EINVAL);
    }
    Ok(Some(Rss { table, hash: Hash { key, fields } }))
}
