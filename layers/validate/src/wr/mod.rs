//! QP-01, QP-08, QP-12, WR-01 to WR-18, OB-05: the calls of the data path.
//!
//! `send` and `receive` have the calls that post lists of requests, `cq` the poll. `flights` checks
//! and records the requests.

mod list;
mod receive;
mod send;

use core::ffi::c_int;

use abi::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq};
use layer_tap::requests::{CallSite, Requests};
use layer_tap::{Arg, DataCalls, NextPoll, NextPost, Operations, Returned};

use crate::state;
use crate::watcher::Validate;

impl DataCalls for Validate {
    fn operations(context: usize) -> Option<Operations> {
        state::context(context).map(|ctx| ctx.provider.operations())
    }

    #[inline(always)]
    fn post_send<F: FnOnce(Option<Operations>) -> c_int>(
        qp: Arg<'_, ibv_qp>,
        list: Requests<'_, ibv_send_wr>,
        bad: Arg<'_, *mut ibv_send_wr>,
        site: CallSite,
        next: NextPost<F>,
    ) -> Returned<c_int> {
        send::post_send(qp, list, bad, site, next)
    }

    #[inline(always)]
    fn post_recv<F: FnOnce(Option<Operations>) -> c_int>(
        qp: Arg<'_, ibv_qp>,
        list: Requests<'_, ibv_recv_wr>,
        bad: Arg<'_, *mut ibv_recv_wr>,
        site: CallSite,
        next: NextPost<F>,
    ) -> Returned<c_int> {
        receive::post_recv(qp, list, bad, site, next)
    }

    #[inline(always)]
    fn post_srq_recv<F: FnOnce(Option<Operations>) -> c_int>(
        srq: Arg<'_, ibv_srq>,
        list: Requests<'_, ibv_recv_wr>,
        bad: Arg<'_, *mut ibv_recv_wr>,
        next: NextPost<F>,
    ) -> Returned<c_int> {
        receive::post_srq_recv(srq, list, bad, next)
    }

    #[inline(always)]
    fn poll_cq<F: FnOnce(Option<Operations>) -> c_int>(
        cq: Arg<'_, ibv_cq>,
        next: NextPoll<'_, F>,
    ) -> Returned<c_int> {
        crate::cq::poll_cq(cq, next)
    }
}
