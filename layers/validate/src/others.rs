//! Verbs whose only check explains a refusal: OB-09, CQ-14, MR-19 and QP-21. If the call fails, a
//! function of `checks` judges the arguments.

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
use layer_tap::{Arg, Device, Next, OtherCalls, Returned};

use crate::checks::given::Judged;
use crate::checks::{Id, memory, others, pairs, queues};
use crate::native;
use crate::refusal::{Subject, WatchedCall};
use crate::state::{QPS, Qp, SRQS, context};
use crate::watcher::Validate;

/// Defines the calls of the tap that only explain a refusal, by a function of `checks`.
macro_rules! explained {
    ($(
        $call:literal $id:ident
        fn $name:ident($($arg:ident: $type:ty),*) -> *mut $made:ty;
        |$facts:ident, $errno:ident| $judge:expr;
    )*) => {$(
        fn $name<F: FnOnce() -> *mut $made>(device: &'static Device, $($arg: $type),*, next: Next<F>) -> Returned<*mut $made> {
            let watch = WatchedCall::begin($call);
            let made = next.call();
            if made.failed() && let Some(ctx) = context(device.at) {
                watch.failed(ctx, &Subject::without_object(Id::$id), |$facts, $errno| $judge);
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
        |$facts:ident, $errno:ident| $judge:expr;
    )*) => {$(
        fn $name<F: FnOnce() -> c_int>(device: &'static Device, $($arg: $type),*, next: Next<F>) -> Returned<c_int> {
            let watch = WatchedCall::begin($call);
            let result = next.call();
            if result.get() != 0 && let Some(ctx) = context(device.at) {
                let $errno = result.get();
                watch.refused(ctx, $errno, &Subject::without_object(Id::$id), |$facts| $judge);
            }
            result
        }
    )*};
}

/// Judges a structure, or reports a NULL pointer.
fn judge_structure<T>(name: &str, given: Option<T>, judge: impl FnOnce(&T) -> Judged) -> Judged {
    match given {
        Some(given) => judge(&given),
        None => {
            let mut given = Judged::default();
            given.add_required(
                name,
                false,
                "give the structure that the page of the call describes",
            );
            given
        }
    }
}

/// The last known state of a QP.
fn state_of(qp: Arg<'_, ibv_qp>) -> Option<u32> {
    QPS.get(qp.at()).map(Qp::state)
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
fn judge_operation(
    srq: Arg<'_, ibv_srq>,
    op: Arg<'_, ibv_ops_wr>,
    bad: Arg<'_, *mut ibv_ops_wr>,
    errno: c_int,
) -> Judged {
    let known = SRQS.get(srq.at());
    let (is_basic, most) = known.map_or((false, u32::MAX), |known| (known.basic, known.max_sge));
    judge_structure("op", op.named_by(bad), |op| queues::post_srq_ops(op, is_basic, most, errno))
}

#[allow(unused_variables, reason = "most explanations need some of the arguments")]
impl OtherCalls for Validate {
    explained! {
        "ibv_create_comp_cntr" Ob09
        fn create_comp_cntr(at: Arg<'_, ibv_context>, attr: Arg<'_, ibv_comp_cntr_init_attr>) -> *mut ibv_comp_cntr;
        |_facts, _errno| judge_structure("init_attr", attr.read(), |attr| {
            others::create_counter(attr.comp_mask, attr.type_, attr.flags)
        });

        "ibv_create_flow_action_esp" Ob09
        fn create_flow_action_esp(at: Arg<'_, ibv_context>, attr: Arg<'_, ibv_flow_action_esp_attr>) -> *mut ibv_flow_action;
        |_facts, _errno| judge_structure("esp", attr.read(), |attr| others::esp_action(&esp_action(attr), true));

        "ibv_alloc_td" Ob09
        fn alloc_td(at: Arg<'_, ibv_context>, attr: Arg<'_, ibv_td_init_attr>) -> *mut ibv_td;
        |_facts, _errno| judge_structure("init_attr", attr.read(), |attr| others::only_mask(attr.comp_mask));

        "ibv_alloc_dm" Mr19
        fn alloc_dm(at: Arg<'_, ibv_context>, attr: Arg<'_, ibv_alloc_dm_attr>) -> *mut ibv_dm;
        |_facts, _errno| judge_structure("attr", attr.read(), |attr| {
            memory::allocate_device_memory(attr.length as u64, attr.log_align_req, attr.comp_mask)
        });

        "ibv_create_counters" Ob09
        fn create_counters(at: Arg<'_, ibv_context>, attr: Arg<'_, ibv_counters_init_attr>) -> *mut ibv_counters;
        |_facts, _errno| judge_structure("init_attr", attr.read(), |attr| others::only_mask(attr.comp_mask));

        "ibv_create_flow" Ob09
        fn create_flow(qp: Arg<'_, ibv_qp>, attr: Arg<'_, ibv_flow_attr>) -> *mut ibv_flow;
        |facts, _errno| judge_structure("flow", attr.read(), |attr| others::create_flow(facts, attr));

        "ibv_create_rwq_ind_table" Ob09
        fn create_rwq_ind_table(at: Arg<'_, ibv_context>, attr: Arg<'_, ibv_rwq_ind_table_init_attr>) -> *mut ibv_rwq_ind_table;
        |_facts, _errno| judge_structure("init_attr", attr.read(), |attr| {
            queues::create_table(attr.log_ind_tbl_size, !attr.ind_tbl.is_null(), attr.comp_mask)
        });

        "ibv_create_wq" Ob09
        fn create_wq(at: Arg<'_, ibv_context>, attr: Arg<'_, ibv_wq_init_attr>) -> *mut ibv_wq;
        |facts, _errno| judge_structure("wq_init_attr", attr.read_named(), |attr| {
            let asked = queues::WantedWq {
                wq_type: attr.wq_type,
                max_wr: attr.max_wr,
                max_sge: attr.max_sge,
                comp_mask: attr.comp_mask,
                has_pd: !attr.pd.is_null(),
                has_cq: !attr.cq.is_null(),
            };
            queues::create_wq(facts, &asked)
        });

        "ibv_import_dm" Mr19
        fn import_dm(at: Arg<'_, ibv_context>, handle: u32) -> *mut ibv_dm;
        |_facts, _errno| others::import("device memory", handle);

        "ibv_import_pd" Ob09
        fn import_pd(at: Arg<'_, ibv_context>, handle: u32) -> *mut ibv_pd;
        |_facts, _errno| others::import("PD", handle);

        "ibv_open_qp" Qp21
        fn open_qp(at: Arg<'_, ibv_context>, attr: Arg<'_, ibv_qp_open_attr>) -> *mut ibv_qp;
        |_facts, _errno| judge_structure("qp_open_attr", attr.read(), |attr| {
            pairs::open_qp(attr.comp_mask, attr.qp_type, !attr.xrcd.is_null(), attr.qp_num)
        });

        "ibv_open_xrcd" Ob09
        fn open_xrcd(at: Arg<'_, ibv_context>, attr: Arg<'_, ibv_xrcd_init_attr>) -> *mut ibv_xrcd;
        |_facts, _errno| judge_structure("xrcd_init_attr", attr.read(), |attr| {
            others::open_xrcd(attr, native::is_open(attr.fd))
        });
    }

    explained_errno! {
        "ibv_attach_counters_point_flow" Ob09
        fn attach_counters_point_flow(counters: Arg<'_, ibv_counters>, attr: Arg<'_, ibv_counter_attach_attr>, flow: Arg<'_, ibv_flow>);
        |_facts, errno| judge_structure("attr", attr.read(), |attr| {
            others::attach_counters(attr.counter_desc, attr.index, attr.comp_mask, errno)
        });

        "ibv_close_xrcd" Ob09
        fn close_xrcd(xrcd: Arg<'_, ibv_xrcd>);
        |_facts, errno| others::busy(errno, "XRC_RECV QPs and SRQs of the domain");

        "ibv_dealloc_td" Ob09
        fn dealloc_td(td: Arg<'_, ibv_td>);
        |_facts, errno| others::busy(errno, "parent domains");

        "ibv_destroy_counters" Ob09
        fn destroy_counters(counters: Arg<'_, ibv_counters>);
        |_facts, errno| others::busy(errno, "steering rules");

        "ibv_destroy_rwq_ind_table" Ob09
        fn destroy_rwq_ind_table(table: Arg<'_, ibv_rwq_ind_table>);
        |_facts, errno| others::busy(errno, "QPs that spread frames by the table");

        "ibv_destroy_wq" Ob09
        fn destroy_wq(wq: Arg<'_, ibv_wq>);
        |_facts, errno| others::busy(errno, "indirection tables");

        "ibv_free_dm" Mr19
        fn free_dm(dm: Arg<'_, ibv_dm>);
        |_facts, errno| others::busy(errno, "regions over the device memory");

        "ibv_modify_cq" Cq14
        fn modify_cq(cq: Arg<'_, ibv_cq>, attr: Arg<'_, ibv_modify_cq_attr>);
        |_facts, _errno| judge_structure("attr", attr.read(), |attr| {
            queues::modify_cq(attr.attr_mask, attr.moderate.cq_count, attr.moderate.cq_period)
        });

        "ibv_modify_wq" Ob09
        fn modify_wq(wq: Arg<'_, ibv_wq>, attr: Arg<'_, ibv_wq_attr>);
        |_facts, _errno| judge_structure("wq_attr", attr.read_named(), queues::modify_wq);

        "ibv_read_counters" Ob09
        fn read_counters(counters: Arg<'_, ibv_counters>, values: Arg<'_, u64>, count: u32, flags: u32);
        |_facts, _errno| others::read_counters(count, flags);

        "ibv_destroy_comp_cntr" Ob09
        fn destroy_comp_cntr(counter: Arg<'_, ibv_comp_cntr>);
        |_facts, errno| others::busy(errno, "QPs with the counter attached");

        "ibv_set_comp_cntr" Ob09
        fn set_comp_cntr(counter: Arg<'_, ibv_comp_cntr>, value: u64);
        |_facts, errno| others::change_counter("value", value, errno);

        "ibv_set_err_comp_cntr" Ob09
        fn set_err_comp_cntr(counter: Arg<'_, ibv_comp_cntr>, value: u64);
        |_facts, errno| others::change_counter("value", value, errno);

        "ibv_inc_comp_cntr" Ob09
        fn inc_comp_cntr(counter: Arg<'_, ibv_comp_cntr>, amount: u64);
        |_facts, errno| others::change_counter("amount", amount, errno);

        "ibv_inc_err_comp_cntr" Ob09
        fn inc_err_comp_cntr(counter: Arg<'_, ibv_comp_cntr>, amount: u64);
        |_facts, errno| others::change_counter("amount", amount, errno);

        "ibv_read_comp_cntr" Ob09
        fn read_comp_cntr(counter: Arg<'_, ibv_comp_cntr>, value: Arg<'_, u64>);
        |_facts, _errno| others::read_counter(!value.is_null());

        "ibv_read_err_comp_cntr" Ob09
        fn read_err_comp_cntr(counter: Arg<'_, ibv_comp_cntr>, value: Arg<'_, u64>);
        |_facts, _errno| others::read_counter(!value.is_null());

        "ibv_query_comp_cntr_caps" Ob09
        fn query_comp_cntr_caps(at: Arg<'_, ibv_context>, caps: Arg<'_, ibv_comp_cntr_caps>, size: usize);
        |_facts, _errno| others::query_counter_limits(!caps.is_null() && size != 0);

        "ibv_qp_attach_comp_cntr" Qp21
        fn qp_attach_comp_cntr(qp: Arg<'_, ibv_qp>, counter: Arg<'_, ibv_comp_cntr>, attr: Arg<'_, ibv_qp_attach_comp_cntr_attr>);
        |_facts, errno| judge_structure("attr", attr.read(), |attr| {
            pairs::attach_counter(attr.comp_mask, attr.op_mask, errno)
        });

        "ibv_modify_qp_rate_limit" Qp21
        fn modify_qp_rate_limit(qp: Arg<'_, ibv_qp>, attr: Arg<'_, ibv_qp_rate_limit_attr>);
        |_facts, _errno| judge_structure("attr", attr.read(), |attr| pairs::rate_limit(state_of(qp), attr));

        "ibv_set_ece" Qp21
        fn set_ece(qp: Arg<'_, ibv_qp>, ece: Arg<'_, ibv_ece>);
        |_facts, _errno| judge_structure("ece", ece.read(), |ece| pairs::ece(state_of(qp), true, ece));

        "ibv_query_ece" Qp21
        fn query_ece(qp: Arg<'_, ibv_qp>, ece: Arg<'_, ibv_ece>);
        |_facts, _errno| judge_structure("ece", ece.read(), |ece| pairs::ece(state_of(qp), false, ece));

        "ibv_query_qp" Qp21
        fn query_qp(qp: Arg<'_, ibv_qp>, attr: Arg<'_, ibv_qp_attr>, mask: c_int, init: Arg<'_, ibv_qp_init_attr>);
        |_facts, _errno| {
            pairs::query_qp(mask.cast_unsigned(), !attr.is_null(), !init.is_null())
        };

        "ibv_query_srq" Ob07
        fn query_srq(srq: Arg<'_, ibv_srq>, attr: Arg<'_, ibv_srq_attr>);
        |_facts, _errno| queues::query_srq(!attr.is_null());

        "ibv_post_srq_ops" Wr18
        fn post_srq_ops(srq: Arg<'_, ibv_srq>, op: Arg<'_, ibv_ops_wr>, bad: Arg<'_, *mut ibv_ops_wr>);
        |_facts, errno| judge_operation(srq, op, bad, errno);

        "ibv_query_device_ex" Ob09
        fn query_device_ex(at: Arg<'_, ibv_context>, input: Arg<'_, ibv_query_device_ex_input>, attr: Arg<'_, ibv_device_attr_ex>, size: usize);
        |_facts, _errno| others::query_device(size, input.read().map(|input| input.comp_mask));

        "ibv_query_rt_values_ex" Ob09
        fn query_rt_values(at: Arg<'_, ibv_context>, values: Arg<'_, ibv_values_ex>);
        |_facts, _errno| judge_structure("values", values.read(), |values| others::query_values(values.comp_mask));

        "ibv_query_port_speed" Ob09
        fn query_port_speed(at: Arg<'_, ibv_context>, port: u32, speed: Arg<'_, u64>);
        |facts, _errno| others::query_port(facts, port);

        "ibv_modify_flow_action_esp" Ob09
        fn modify_flow_action_esp(action: Arg<'_, ibv_flow_action>, attr: Arg<'_, ibv_flow_action_esp_attr>);
        |_facts, _errno| judge_structure("esp", attr.read(), |attr| {
            others::esp_action(&esp_action(attr), false)
        });

        "ibv_destroy_flow_action" Ob09
        fn destroy_flow_action(action: Arg<'_, ibv_flow_action>);
        |_facts, errno| others::busy(errno, "steering rules");

        "ibv_query_port" Ob09
        fn query_port(at: Arg<'_, ibv_context>, port: u8, attr: Arg<'_, ibv_port_attr>);
        |facts, _errno| others::query_port(facts, port.into());
    }
}
