//! OB-02, MR-13: domains, address handles and shared receive queues, and the objects that are left
//! when a device is closed.
//!
//! Map of this file: `explain`; the calls of the tap; the users of a PD; the objects that are left;
//! helpers of address handles and SRQs.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use abi::{
    IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, IBV_SRQT_TM, ibv_ah, ibv_ah_attr, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
};

use crate::acknowledgements;
use crate::arguments::{live_pd, still_used};
use crate::checks::events::Unacknowledged;
use crate::checks::finding::Origin;
use crate::checks::pairs::{self, Address};
use crate::checks::queues::{self, WantedSrq, WantedSrqEx};
use crate::checks::{Id, element, objects, others};
use crate::flights;
use crate::refusal::{Subject, WatchedCall};
use crate::regions;
use crate::report::report;
use crate::stack;
use crate::state::{
    AHS, Ah, CONTEXTS, CQS, Ctx, PDS, Pd, QPS, SRQS, Srq, context, record_destruction, root_of,
    shared,
};
use layer_tap::spin::Spin;
use layer_tap::{Arg, Device, Next, ObjectCalls, Returned};

use crate::checks::given::{Facts, Judged};
use crate::watcher::Validate;

/// Explains a call that made no object.
#[cold]
fn explain(
    device: &Device,
    watch: &WatchedCall,
    id: Id,
    judge: impl FnOnce(&Facts<'_>, c_int) -> Judged,
) {
    if let Some(ctx) = context(device.at) {
        watch.failed(ctx, &Subject::without_object(id), judge);
    }
}

impl ObjectCalls for Validate {
    fn alloc_pd<F: FnOnce() -> *mut ibv_pd>(
        device: &'static Device,
        _at: Arg<'_, ibv_context>,
        next: Next<F>,
    ) -> Returned<*mut ibv_pd> {
        let watch = WatchedCall::begin("ibv_alloc_pd");
        let made = next.call();
        match made.object() {
            None => explain(device, &watch, Id::Ob09, others::alloc_pd),
            Some(pd) => {
                let (at, made) = (pd.at(), stack::current_stack());
                PDS.insert(
                    at,
                    Arc::new(Pd {
                        address: at,
                        ctx: device.at,
                        root: at,
                        single: false,
                        created_by: made,
                    }),
                );
            }
        }
        made
    }

    fn alloc_parent_domain<F: FnOnce() -> *mut ibv_pd>(
        device: &'static Device,
        _at: Arg<'_, ibv_context>,
        attr: Arg<'_, ibv_parent_domain_init_attr>,
        next: Next<F>,
    ) -> Returned<*mut ibv_pd> {
        let watch = WatchedCall::begin("ibv_alloc_parent_domain");
        let given = attr.read_named();
        let parent = given.map_or(0, |attr| attr.pd as usize);
        let made = next.call();
        match made.object() {
            None => {
                let mask = given.map_or(0, |attr| attr.comp_mask);
                explain(device, &watch, Id::Ob09, |_, _| {
                    others::alloc_parent_domain(mask, parent != 0)
                });
            }
            Some(pd) => {
                let (at, made) = (pd.at(), stack::current_stack());
                let single = given.is_some_and(|attr| !attr.td.is_null());
                let root = root_of(parent);
                PDS.insert(
                    at,
                    Arc::new(Pd { address: at, ctx: device.at, root, single, created_by: made }),
                );
            }
        }
        made
    }

    fn dealloc_pd<F: FnOnce() -> c_int>(
        _device: &'static Device,
        pd: Arg<'_, ibv_pd>,
        next: Next<F>,
    ) -> Returned<c_int> {
        let at = pd.at();
        let known = PDS.share(at);
        // The record is removed before the call, because another thread may get the address at
        // once.
        PDS.remove(at);
        let result = next.call();
        if result.get() == 0 {
            record_destruction("pd", at);
            return result;
        }
        if let Some(known) = known {
            PDS.insert(at, known);
        }
        let (users, origin) = users_of_pd(at);
        let found = objects::used_pd(&users, origin);
        report("ibv_dealloc_pd", || format!("pd {at:#x}"), found, None);
        result
    }

    fn free_context<F: FnOnce()>(
        device: &'static Device,
        _at: Arg<'_, ibv_context>,
        next: Next<F>,
    ) -> Returned<()> {
        if let Some(ctx) = shared(device.at) {
            crate::advice::unread("ibv_close_device", format!("context {:#x}", ctx.address), &ctx);
            left(&ctx, "ibv_close_device");
            CONTEXTS.remove(ctx.address);
        }
        next.call()
    }

    fn create_ah<F: FnOnce() -> *mut ibv_ah>(
        device: &'static Device,
        pd: Arg<'_, ibv_pd>,
        attr: Arg<'_, ibv_ah_attr>,
        next: Next<F>,
    ) -> Returned<*mut ibv_ah> {
        let watch = WatchedCall::begin("ibv_create_ah");
        let asked = context(device.at).zip(attr.read());
        if let Some((ctx, attr)) = &asked {
            crate::gid::check("ibv_create_ah", "", ctx, attr.port_num, attr, None);
        }
        let made = next.call();
        match (made.object(), &asked) {
            (Some(ah), _) => {
                let at = ah.at();
                AHS.insert(at, Arc::new(Ah { address: at, ctx: device.at, pd: pd.at() }));
            }
            (None, Some((ctx, attr))) => {
                explain(device, &watch, Id::Ob08, |facts, errno| {
                    pairs::create_ah(facts, &address(ctx, attr), errno)
                });
            }
            (None, None) => {}
        }
        made
    }

    fn destroy_ah<F: FnOnce() -> c_int>(
        device: &'static Device,
        ah: Arg<'_, ibv_ah>,
        next: Next<F>,
    ) -> Returned<c_int> {
        if let Some(ctx) = context(device.at) {
            flights::check_ah_in_flight(ctx, ah.at());
        }
        AHS.remove(ah.at());
        record_destruction("ah", ah.at());
        next.call()
    }

    fn create_srq<F: FnOnce() -> *mut ibv_srq>(
        device: &'static Device,
        pd: Arg<'_, ibv_pd>,
        attr: Arg<'_, ibv_srq_init_attr>,
        next: Next<F>,
    ) -> Returned<*mut ibv_srq> {
        let watch = WatchedCall::begin("ibv_create_srq");
        live_pd("ibv_create_srq", pd);
        let asked = attr.read();
        let made = next.call();
        match (made.object(), asked, attr.read()) {
            // The provider has filled in the attributes.
            (Some(srq), _, Some(granted)) => {
                remember_srq(device, srq.at(), pd.at(), &granted.attr, true);
            }
            (None, Some(asked), _) => {
                let asked = WantedSrq { attr: asked.attr, extended: None };
                explain(device, &watch, Id::Ob07, |facts, errno| {
                    queues::create_srq(facts, &asked, errno)
                });
            }
            _ => {}
        }
        made
    }

    fn create_srq_ex<F: FnOnce() -> *mut ibv_srq>(
        device: &'static Device,
        _at: Arg<'_, ibv_context>,
        attr: Arg<'_, ibv_srq_init_attr_ex>,
        next: Next<F>,
    ) -> Returned<*mut ibv_srq> {
        let watch = WatchedCall::begin("ibv_create_srq_ex");
        let asked = attr.read_named();
        let made = next.call();
        match (made.object(), asked, attr.read_named()) {
            // The provider has filled in the attributes.
            (Some(srq), _, Some(granted)) => {
                let mut given = granted.attr;
                let kind = kind_of(&granted);
                if kind == IBV_SRQT_TM {
                    // Tag matching also uses buffers of another kind, so free entries cannot be
                    // counted.
                    given.max_wr = u32::MAX;
                }
                let (pd, is_basic) = (granted.pd as usize, kind == IBV_SRQT_BASIC);
                remember_srq(device, srq.at(), pd, &given, is_basic);
            }
            (None, Some(asked), _) => {
                let asked = wanted_srq(&asked);
                explain(device, &watch, Id::Ob07, |facts, errno| {
                    queues::create_srq(facts, &asked, errno)
                });
            }
            _ => {}
        }
        made
    }

    fn modify_srq<F: FnOnce() -> c_int>(
        device: &'static Device,
        srq: Arg<'_, ibv_srq>,
        attr: Arg<'_, ibv_srq_attr>,
        mask: c_int,
        next: Next<F>,
    ) -> Returned<c_int> {
        let watch = WatchedCall::begin("ibv_modify_srq");
        let result = next.call();
        let known = SRQS.get(srq.at());
        let (Some(ctx), Some(attr)) = (context(device.at), attr.read()) else { return result };
        if result.get() != 0 {
            let room = known.map(|known| known.max_wr.load(Ordering::Relaxed));
            let posted = known.map(Srq::receives);
            let about = Subject::object(Id::Ob07, format!("srq {:#x}", srq.at()));
            watch.refused(ctx, result.get(), &about, |facts| {
                queues::modify_srq(facts, mask.cast_unsigned(), &attr, room, posted)
            });
        } else if let Some(known) = known {
            if mask.cast_unsigned() & abi::IBV_SRQ_LIMIT != 0 {
                known.limit_passed.store(false, Ordering::Relaxed);
            }
            if mask.cast_unsigned() & abi::IBV_SRQ_MAX_WR != 0 {
                known.max_wr.store(attr.max_wr, Ordering::Relaxed);
            }
        }
        result
    }

    fn destroy_srq<F: FnOnce() -> c_int>(
        _device: &'static Device,
        srq: Arg<'_, ibv_srq>,
        next: Next<F>,
    ) -> Returned<c_int> {
        let at = srq.at();
        let known = SRQS.share(at);
        if let Some(known) = &known {
            let acked = srq.acknowledged_asynchronous();
            let (events, got) = (Unacknowledged::Asynchronous, &known.async_got);
            acknowledgements::waits(events, "ibv_destroy_srq", &known.name(), got, acked);
            crate::advice::limit_is_over(known);
        }
        SRQS.remove(at);
        let result = next.call();
        match known {
            Some(known) if result.get() != 0 => {
                let users = QPS.all();
                let users: Vec<_> = users
                    .iter()
                    .filter(|qp| qp.srq.as_ref().is_some_and(|srq| srq.address == at))
                    .collect();
                still_used("ibv_destroy_srq", "srq", at, &users);
                SRQS.insert(at, known);
            }
            _ => {
                crate::overlap::clear_queue(at);
                record_destruction("srq", at);
            }
        }
        result
    }
}

/// The names of the objects of a PD, and the place where the first was made.
fn users_of_pd(at: usize) -> (Vec<String>, Option<Origin>) {
    let (regions, windows) = regions::of_pd(at);
    let mut origin = regions.first().map(|mr| ("that region was registered", mr.registered_by));
    let mut names: Vec<String> = regions
        .iter()
        .map(|mr| format!("mr {:#x} (lkey {:#x})", mr.address_of_mr, mr.lkey))
        .collect();
    for qp in QPS.all().iter().filter(|qp| qp.pd == at) {
        names.push(qp.name());
        origin = origin.or(Some(("that QP was created", qp.created_by)));
    }
    for srq in SRQS.all().iter().filter(|srq| srq.pd == at) {
        names.push(srq.name());
        origin = origin.or(Some(("that SRQ was created", srq.created_by)));
    }
    for ah in AHS.all().iter().filter(|ah| ah.pd == at) {
        names.push(format!("ah {:#x}", ah.address));
    }
    for pd in PDS.all().iter().filter(|pd| pd.root == at && pd.address != at) {
        names.push(format!("parent domain {:#x}", pd.address));
        origin = origin.or(Some(("that domain was made", pd.created_by)));
    }
    if windows > 0 {
        names.push(format!("{windows} memory windows"));
    }
    (names, origin)
}

/// Reports at exit the objects of contexts that are not closed, if the settings ask for the
/// report.
pub(crate) fn left_at_exit() {
    for ctx in CONTEXTS.all() {
        left(&ctx, "exit");
    }
}

/// MR-13 and OB-02: reports the objects that are left in a context, and removes their records.
fn left(ctx: &Ctx, call: &str) {
    let (regions, windows) = regions::of_context(ctx.address, true);
    let object = || format!("context {:#x}", ctx.address);
    report(call, object, element::left(&regions), None);
    let mut names: Vec<String> = Vec::new();
    let mut origin = None;
    for qp in QPS.all().iter().filter(|qp| qp.ctx.address == ctx.address) {
        names.push(qp.name());
        origin = origin.or(Some(("that QP was created", qp.created_by)));
        QPS.remove(qp.address);
    }
    for cq in CQS.all().iter().filter(|cq| cq.ctx.address == ctx.address) {
        names.push(cq.name());
        origin = origin.or(Some(("that CQ was created", cq.created_by)));
        CQS.remove(cq.address);
        cq.leave_channel();
    }
    for srq in SRQS.all().iter().filter(|srq| srq.ctx.address == ctx.address) {
        names.push(srq.name());
        SRQS.remove(srq.address);
    }
    for ah in AHS.all().iter().filter(|ah| ah.ctx == ctx.address) {
        names.push(format!("ah {:#x}", ah.address));
        AHS.remove(ah.address);
    }
    for pd in PDS.all().iter().filter(|pd| pd.ctx == ctx.address) {
        // A PD with regions cannot be deallocated before them.
        if regions.iter().all(|mr| mr.pd != pd.root) {
            names.push(format!("pd {:#x}", pd.address));
        }
        PDS.remove(pd.address);
    }
    if windows > 0 {
        names.push(format!("{windows} memory windows"));
    }
    report(call, object, objects::left(&names, origin), None);
}

/// The arguments of an address, and the entry of the GID table.
fn address(ctx: &Ctx, attr: &ibv_ah_attr) -> Address {
    let port = attr.port_num;
    let index = attr.grh.sgid_index;
    let is_global = attr.is_global != 0;
    Address {
        port,
        is_global,
        dgid: attr.grh.dgid.bytes().into(),
        sgid_index: index,
        is_empty: is_global && ctx.port(port).is_some() && crate::gid::is_empty(ctx, port, index),
        sl: attr.sl,
    }
}

/// Records an SRQ with the capacities that the provider granted.
fn remember_srq(device: &Device, at: usize, pd: usize, attr: &ibv_srq_attr, basic: bool) {
    let Some(ctx) = shared(device.at) else { return };
    let srq = Srq {
        address: at,
        ctx,
        pd,
        max_wr: AtomicU32::new(attr.max_wr),
        max_sge: attr.max_sge,
        basic,
        posted: AtomicU64::new(0),
        received: AtomicU64::new(0),
        cache: Spin::new(regions::Cache::default()),
        async_got: AtomicU32::new(0),
        limit_passed: AtomicBool::new(false),
        created_by: stack::current_stack(),
    };
    SRQS.insert(at, Arc::new(srq));
}

/// The type of an extended SRQ.
fn kind_of(attr: &ibv_srq_init_attr_ex) -> u32 {
    match attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE {
        0 => IBV_SRQT_BASIC,
        _ => attr.srq_type,
    }
}

/// The arguments of an extended SRQ. Members that the mask does not name are zero.
fn wanted_srq(attr: &ibv_srq_init_attr_ex) -> WantedSrq {
    let extended = WantedSrqEx {
        comp_mask: attr.comp_mask,
        srq_type: kind_of(attr),
        has_pd: !attr.pd.is_null(),
        has_xrcd: !attr.xrcd.is_null(),
        has_cq: !attr.cq.is_null(),
        max_num_tags: attr.tm_cap.max_num_tags,
    };
    WantedSrq { attr: attr.attr, extended: Some(extended) }
}
