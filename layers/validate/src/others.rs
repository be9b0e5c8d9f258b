//! Verbs whose only check explains a refusal: OB-09, CQ-14, MR-19 and QP-21. Each function calls
//! the layer beneath, and judges the arguments if the call fails.

use core::ffi::c_int;

use abi::{
    ibv_alloc_dm_attr, ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context,
    ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_cq, ibv_device_attr_ex,
    ibv_dm, ibv_ece, ibv_flow, ibv_flow_action, ibv_flow_action_esp_attr, ibv_flow_attr,
    ibv_modify_cq_attr, ibv_ops_wr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attach_comp_cntr_attr,
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_open_attr, ibv_qp_rate_limit_attr,
    ibv_query_device_ex_input, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_srq,
    ibv_srq_attr, ibv_td, ibv_td_init_attr, ibv_values_ex, ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
    ibv_xrcd, ibv_xrcd_init_attr,
};
use layer_tap::beneath;

use crate::checks::given::Judged;
use crate::checks::{Id, memory, others, pairs, queues};
use crate::refusal::{Subject, WatchedCall};
use crate::state::{QPS, Qp, SRQS, context};
use crate::wr::named;

/// Defines functions that return a pointer, and explain a refusal by a function of `checks`.
///
/// `of` is the context of the call. The caller's structures are readable, as the provider
/// requires.
macro_rules! explained {
    ($(
        $call:literal $id:ident
        fn $name:ident($($arg:ident: $type:ty),*) -> *mut $made:ty;
        of $of:expr; |$facts:ident, $errno:ident| $judge:expr;
    )*) => {$(
        #[allow(unused_unsafe, reason = "some contexts and tables need none")]
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> *mut $made {
            // SAFETY: the caller's objects are live.
            let Some(ctx) = context(unsafe { $of }) else { return core::ptr::null_mut() };
            let watch = WatchedCall::begin($call);
            // SAFETY: the caller's arguments, passed on.
            let made = unsafe { beneath!(ctx.next(), $name)($($arg),*) };
            if made.is_null() {
                // SAFETY: the caller's structures are readable.
                watch.failed(ctx, &Subject::none(Id::$id), |$facts, $errno| unsafe { $judge });
            }
            made
        }
    )*};
}

/// As `explained`, for calls that return an errno.
macro_rules! explained_errno {
    ($(
        $call:literal $id:ident
        fn $name:ident($($arg:ident: $type:ty),*);
        of $of:expr; |$facts:ident, $errno:ident| $judge:expr;
    )*) => {$(
        #[allow(unused_unsafe, reason = "some contexts and tables need none")]
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller's objects are live.
            let Some(ctx) = context(unsafe { $of }) else { return libc::EINVAL };
            let watch = WatchedCall::begin($call);
            // SAFETY: the caller's arguments, passed on.
            let result = unsafe { beneath!(ctx.next(), $name)($($arg),*) };
            if result != 0 {
                let $errno = result;
                let about = Subject::none(Id::$id);
                // SAFETY: the caller's structures are readable.
                watch.refused(ctx, result, &about, |$facts| unsafe { $judge });
            }
            result
        }
    )*};
}

/// Judges a structure, or reports a NULL pointer.
///
/// # Safety
/// `at` is NULL or readable.
unsafe fn judge<T>(name: &str, at: *const T, judge: impl FnOnce(&T) -> Judged) -> Judged {
    // SAFETY: per the caller.
    match unsafe { at.as_ref() } {
        Some(attr) => judge(attr),
        None => {
            let mut given = Judged::default();
            given.needed(name, false, "give the structure that the page of the call describes");
            given
        }
    }
}

/// The last known state of a QP.
fn state_of(qp: *mut ibv_qp) -> Option<u32> {
    QPS.get(qp as usize).map(Qp::state)
}

/// The arguments of an ESP action.
fn esp_action(attr: &ibv_flow_action_esp_attr) -> others::EspAction {
    others::EspAction {
        comp_mask: attr.comp_mask,
        has_attr: !attr.esp_attr.is_null(),
        keymat_proto: attr.keymat_proto,
        keymat_len: attr.keymat_len,
        has_keymat: !attr.keymat_ptr.is_null(),
        replay_proto: attr.replay_proto,
        replay_len: attr.replay_len,
        has_replay: !attr.replay_ptr.is_null(),
        esn: attr.esn,
    }
}

/// Judges the operation on a tag list that a refused call names.
///
/// # Safety
/// `op` is NULL or a live list, and `bad` is the call's result.
unsafe fn judge_operation(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad: *mut *mut ibv_ops_wr,
    errno: c_int,
) -> Judged {
    // SAFETY: per the caller; a list of the program has fewer operations.
    let named = unsafe { named(op, *bad, 1 << 16, |op| (*op).next) };
    let known = SRQS.get(srq as usize);
    let (is_basic, most) = known.map_or((false, u32::MAX), |known| (known.basic, known.max_sge));
    // SAFETY: `named` is NULL or an operation of the list.
    unsafe {
        judge("op", named, |op| {
            let operation = queues::TagOperation {
                opcode: op.opcode,
                flags: op.flags.cast_unsigned(),
                handle: op.tm.handle,
                elements: op.tm.add.num_sge,
                has_list: !op.tm.add.sg_list.is_null(),
            };
            queues::post_srq_ops(&operation, is_basic, most, errno)
        })
    }
}

explained! {
    "ibv_create_comp_cntr" Ob09
    fn create_comp_cntr(at: *mut ibv_context, attr: *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr;
    of at; |_facts, _errno| judge("init_attr", attr, |attr| {
        others::create_counter(attr.comp_mask, attr.type_, attr.flags)
    });

    "ibv_create_flow_action_esp" Ob09
    fn create_flow_action_esp(at: *mut ibv_context, attr: *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action;
    of at; |_facts, _errno| judge("esp", attr, |attr| others::esp_action(&esp_action(attr), true));

    "ibv_alloc_td" Ob09
    fn alloc_td(at: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td;
    of at; |_facts, _errno| judge("init_attr", attr, |attr| others::only_mask(attr.comp_mask));

    "ibv_alloc_dm" Mr19
    fn alloc_dm(at: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm;
    of at; |_facts, _errno| judge("attr", attr, |attr| {
        memory::allocate_device_memory(attr.length as u64, attr.log_align_req, attr.comp_mask)
    });

    "ibv_create_counters" Ob09
    fn create_counters(at: *mut ibv_context, attr: *mut ibv_counters_init_attr) -> *mut ibv_counters;
    of at; |_facts, _errno| judge("init_attr", attr, |attr| others::only_mask(attr.comp_mask));

    "ibv_create_flow" Ob09
    fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow;
    of (*qp).context; |facts, _errno| judge("flow", attr, |attr| others::create_flow(facts, attr));

    "ibv_create_rwq_ind_table" Ob09
    fn create_rwq_ind_table(at: *mut ibv_context, attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table;
    of at; |_facts, _errno| judge("init_attr", attr, |attr| {
        queues::create_table(attr.log_ind_tbl_size, !attr.ind_tbl.is_null(), attr.comp_mask)
    });

    "ibv_create_wq" Ob09
    fn create_wq(at: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq;
    of at; |facts, _errno| judge("wq_init_attr", attr, |attr| {
        let asked = queues::WantedWq {
            kind: attr.wq_type,
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            comp_mask: attr.comp_mask,
            has_pd: !attr.pd.is_null(),
            has_cq: !attr.cq.is_null(),
        };
        queues::create_wq(facts, &asked)
    });

    "ibv_import_dm" Mr19
    fn import_dm(at: *mut ibv_context, handle: u32) -> *mut ibv_dm;
    of at; |_facts, _errno| others::import("device memory", handle);

    "ibv_import_pd" Ob09
    fn import_pd(at: *mut ibv_context, handle: u32) -> *mut ibv_pd;
    of at; |_facts, _errno| others::import("PD", handle);

    "ibv_open_qp" Qp21
    fn open_qp(at: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp;
    of at; |_facts, _errno| judge("qp_open_attr", attr, |attr| {
        pairs::open_qp(attr.comp_mask, attr.qp_type, !attr.xrcd.is_null(), attr.qp_num)
    });

    "ibv_open_xrcd" Ob09
    fn open_xrcd(at: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd;
    of at; |_facts, _errno| judge("xrcd_init_attr", attr, |attr| {
        others::open_xrcd(attr, libc::fcntl(attr.fd, libc::F_GETFD) != -1)
    });
}

explained_errno! {
    "ibv_attach_counters_point_flow" Ob09
    fn attach_counters_point_flow(counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow);
    of (*counters).context; |_facts, errno| judge("attr", attr, |attr| {
        others::attach_counters(attr.counter_desc, attr.index, attr.comp_mask, errno)
    });

    "ibv_close_xrcd" Ob09
    fn close_xrcd(xrcd: *mut ibv_xrcd);
    of (*xrcd).context; |_facts, errno| others::busy(errno, "XRC_RECV QPs and SRQs of the domain");

    "ibv_dealloc_td" Ob09
    fn dealloc_td(td: *mut ibv_td);
    of (*td).context; |_facts, errno| others::busy(errno, "parent domains");

    "ibv_destroy_counters" Ob09
    fn destroy_counters(counters: *mut ibv_counters);
    of (*counters).context; |_facts, errno| others::busy(errno, "steering rules");

    "ibv_destroy_rwq_ind_table" Ob09
    fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table);
    of (*table).context; |_facts, errno| others::busy(errno, "QPs that spread frames by the table");

    "ibv_destroy_wq" Ob09
    fn destroy_wq(wq: *mut ibv_wq);
    of (*wq).context; |_facts, errno| others::busy(errno, "indirection tables");

    "ibv_free_dm" Mr19
    fn free_dm(dm: *mut ibv_dm);
    of (*dm).context; |_facts, errno| others::busy(errno, "regions over the device memory");

    "ibv_modify_cq" Cq14
    fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr);
    of (*cq).context; |_facts, _errno| judge("attr", attr, |attr| {
        queues::modify_cq(attr.attr_mask, attr.moderate.cq_count, attr.moderate.cq_period)
    });

    "ibv_modify_wq" Ob09
    fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr);
    of (*wq).context; |_facts, _errno| judge("wq_attr", attr, queues::modify_wq);

    "ibv_read_counters" Ob09
    fn read_counters(counters: *mut ibv_counters, values: *mut u64, count: u32, flags: u32);
    of (*counters).context; |_facts, _errno| others::read_counters(count, flags);

    "ibv_destroy_comp_cntr" Ob09
    fn destroy_comp_cntr(counter: *mut ibv_comp_cntr);
    of (*counter).context; |_facts, errno| others::busy(errno, "QPs with the counter attached");

    "ibv_set_comp_cntr" Ob09
    fn set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64);
    of (*counter).context; |_facts, errno| others::change_counter("value", value, errno);

    "ibv_set_err_comp_cntr" Ob09
    fn set_err_comp_cntr(counter: *mut ibv_comp_cntr, value: u64);
    of (*counter).context; |_facts, errno| others::change_counter("value", value, errno);

    "ibv_inc_comp_cntr" Ob09
    fn inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64);
    of (*counter).context; |_facts, errno| others::change_counter("amount", amount, errno);

    "ibv_inc_err_comp_cntr" Ob09
    fn inc_err_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64);
    of (*counter).context; |_facts, errno| others::change_counter("amount", amount, errno);

    "ibv_read_comp_cntr" Ob09
    fn read_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64);
    of (*counter).context; |_facts, _errno| others::read_counter(!value.is_null());

    "ibv_read_err_comp_cntr" Ob09
    fn read_err_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64);
    of (*counter).context; |_facts, _errno| others::read_counter(!value.is_null());

    "ibv_query_comp_cntr_caps" Ob09
    fn query_comp_cntr_caps(at: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, size: usize);
    of at; |_facts, _errno| others::query_counter_limits(!caps.is_null() && size != 0);

    "ibv_qp_attach_comp_cntr" Qp21
    fn qp_attach_comp_cntr(qp: *mut ibv_qp, counter: *mut ibv_comp_cntr, attr: *mut ibv_qp_attach_comp_cntr_attr);
    of (*qp).context; |_facts, errno| judge("attr", attr, |attr| {
        pairs::attach_counter(attr.comp_mask, attr.op_mask, errno)
    });

    "ibv_modify_qp_rate_limit" Qp21
    fn modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr);
    of (*qp).context; |_facts, _errno| judge("attr", attr, |attr| pairs::rate_limit(state_of(qp), attr));

    "ibv_set_ece" Qp21
    fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece);
    of (*qp).context; |_facts, _errno| judge("ece", ece, |ece| pairs::ece(state_of(qp), true, ece));

    "ibv_query_ece" Qp21
    fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece);
    of (*qp).context; |_facts, _errno| judge("ece", ece, |ece| pairs::ece(state_of(qp), false, ece));

    "ibv_query_qp" Qp21
    fn query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr);
    of (*qp).context; |_facts, _errno| {
        pairs::query_qp(mask.cast_unsigned(), !attr.is_null(), !init.is_null())
    };

    "ibv_query_srq" Ob07
    fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr);
    of (*srq).context; |_facts, _errno| queues::query_srq(!attr.is_null());

    "ibv_post_srq_ops" Wr18
    fn post_srq_ops(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad: *mut *mut ibv_ops_wr);
    of (*srq).context; |_facts, errno| judge_operation(srq, op, bad, errno);

    "ibv_query_device_ex" Ob09
    fn query_device_ex(at: *mut ibv_context, input: *const ibv_query_device_ex_input, attr: *mut ibv_device_attr_ex, size: usize);
    of at; |_facts, _errno| others::query_device(size, input.as_ref().map(|input| input.comp_mask));

    "ibv_query_rt_values_ex" Ob09
    fn query_rt_values(at: *mut ibv_context, values: *mut ibv_values_ex);
    of at; |_facts, _errno| judge("values", values, |values| others::query_values(values.comp_mask));

    "ibv_query_port_speed" Ob09
    fn query_port_speed(at: *mut ibv_context, port: u32, speed: *mut u64);
    of at; |facts, _errno| others::query_port(facts, port);

    "ibv_modify_flow_action_esp" Ob09
    fn modify_flow_action_esp(action: *mut ibv_flow_action, attr: *mut ibv_flow_action_esp_attr);
    of (*action).context; |_facts, _errno| judge("esp", attr, |attr| {
        others::esp_action(&esp_action(attr), false)
    });

    "ibv_destroy_flow_action" Ob09
    fn destroy_flow_action(action: *mut ibv_flow_action);
    of (*action).context; |_facts, errno| others::busy(errno, "steering rules");

    "ibv_query_port" Ob09
    fn query_port(at: *mut ibv_context, port: u8, attr: *mut ibv_port_attr);
    of at; |facts, _errno| others::query_port(facts, port.into());
}
