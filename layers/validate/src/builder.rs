//! WR-15, and the checks of requests that a program builds with `ibv_wr_*`.
//!
//! Locks: the builder of the QP, then its send queue. Neither is held while the provider's
//! functions run.

use core::ffi::c_int;

use abi::{IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, ibv_qp_ex};
use layer_tap::requests::CallSite;
use layer_tap::{Arg, BegunRequest, BuilderCalls, BuilderPointers, RequestPart, Returned, thread};

use crate::building::{Builder, Building, OpenRequest, SGES};
use crate::checks::protocol;
use crate::digest;
use crate::flights::{check_send, check_send_state, check_window, not_posted, push};
use crate::report::report;
use crate::stack;
use crate::state::{QPS, Qp};
use crate::watcher::Validate;

#[inline(always)]
fn records_of(qp: usize) -> Option<(&'static Qp, &'static Builder)> {
    let known = QPS.get(qp)?;
    Some((known, known.builder.as_deref()?))
}

/// WR-15: reports a call of a thread that is not between start and complete.
#[inline(always)]
fn check_started(qp: &Qp, builder: &Builder, call: &str) {
    let found = protocol::not_started(builder.owner(), thread());
    report(call, || qp.name(), found, qp.message_subject());
}

/// Checks and records the request that is complete.
fn close(qp: &Qp, building: &mut Building, call: &'static str) {
    let Some(open) = building.open.take() else { return };
    let request = open.request();
    let mut queue = qp.send.lock();
    check_send(qp, call, &mut queue, &request);
    push(qp, call, &mut queue, &request, building.site);
    building.ids.push(request.wr_id);
}

/// Enters a part of a request.
#[inline(always)]
fn enter(open: &mut OpenRequest, part: RequestPart<'_>) {
    match part {
        RequestPart::Destination(ah, _, qkey) => (open.ah, open.qkey) = (ah, qkey),
        RequestPart::XrcQueue(_) | RequestPart::InlineList(_, None) => {}
        RequestPart::Inline(data) => open.inline = Some(data.length as u64),
        RequestPart::InlineList(_, Some(list)) => {
            open.inline = Some(list.iter().map(|data| data.length as u64).sum());
        }
        RequestPart::Elements(count, list) => {
            open.set_elements(count, list.get(..SGES).unwrap_or(list));
        }
    }
}

impl BuilderCalls for Validate {
    fn pointers(qp: usize, act: &mut dyn FnMut(&mut BuilderPointers)) {
        if let Some((_, builder)) = records_of(qp) {
            act(&mut builder.lock().pointers);
        }
    }

    #[inline(always)]
    fn begin<R>(
        qp: usize,
        call: &'static str,
        request: &BegunRequest,
        pick: impl FnOnce(&BuilderPointers) -> R,
    ) -> Option<R> {
        let (known, builder) = records_of(qp)?;
        check_started(known, builder, call);
        let BegunRequest { wr_id, flags, opcode, remote, rkey, .. } = *request;
        // A bind and an invalidation have a key of this process.
        let rkey = if matches!(opcode, IBV_WR_BIND_MW | IBV_WR_LOCAL_INV) { 0 } else { rkey };
        let mut building = builder.lock();
        close(known, &mut building, call);
        building.open = Some(OpenRequest::new((wr_id, flags), opcode, remote, rkey));
        let picked = pick(&building.pointers);
        drop(building);
        if let Some((info, lkey)) = &request.bind {
            check_window(known, call, wr_id, info, *lkey);
        }
        Some(picked)
    }

    #[inline(always)]
    fn set<R>(
        qp: usize,
        call: &'static str,
        part: RequestPart<'_>,
        pick: impl FnOnce(&BuilderPointers) -> R,
    ) -> Option<R> {
        let (known, builder) = records_of(qp)?;
        check_started(known, builder, call);
        let mut building = builder.lock();
        match &mut building.open {
            Some(open) => enter(open, part),
            None => {
                report(call, || known.name(), [protocol::no_request()], known.message_subject())
            }
        }
        Some(pick(&building.pointers))
    }

    #[inline(always)]
    fn start(qp: Arg<'_, ibv_qp_ex>, site: CallSite) {
        const CALL: &str = "ibv_wr_start";
        let Some((known, builder)) = records_of(qp.at()) else { return };
        let me = thread();
        let found = protocol::started_twice(builder.owner(), me);
        report(CALL, || known.name(), found, known.message_subject());
        let start = builder.lock().pointers.start();
        start.call(qp);
        // The provider has admitted this thread.
        builder.set_owner(me);
        check_send_state(known, CALL, 0);
        let mut building = builder.lock();
        building.open = None;
        building.ids.clear();
        building.site = stack::site(site.caller, site.frame);
    }

    #[inline(always)]
    fn complete(qp: Arg<'_, ibv_qp_ex>) -> Option<Returned<c_int>> {
        const CALL: &str = "ibv_wr_complete";
        let (known, builder) = records_of(qp.at())?;
        check_started(known, builder, CALL);
        let (complete, ids) = {
            let mut building = builder.lock();
            close(known, &mut building, CALL);
            // The vector is given back below if all is posted, to keep its capacity.
            (building.pointers.complete(), core::mem::take(&mut building.ids))
        };
        builder.set_owner(0);
        let result = complete.call(qp)?;
        if result.get() != 0 {
            not_posted(known, CALL, result.get(), &ids);
        } else {
            let mut building = builder.lock();
            // Another thread may have begun meanwhile; then its vector stays.
            if building.ids.capacity() == 0 {
                building.ids = ids;
                building.ids.clear();
            }
        }
        Some(result)
    }

    fn abort(qp: Arg<'_, ibv_qp_ex>) {
        let Some((known, builder)) = records_of(qp.at()) else { return };
        check_started(known, builder, "ibv_wr_abort");
        let abort = {
            let mut building = builder.lock();
            building.open = None;
            known.send.lock().take_back(&building.ids);
            if digest::is_on() {
                known.digests.lock().take_back(&building.ids);
            }
            building.ids.clear();
            building.pointers.abort()
        };
        builder.set_owner(0);
        abort.call(qp);
    }
}
