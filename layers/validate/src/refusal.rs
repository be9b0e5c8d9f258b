//! Explanation of calls that were refused with EINVAL, EFAULT, ENOMEM or EBUSY. If no check has
//! reported the reason before, the functions of `checks` judge the arguments.

use core::ffi::c_int;

use cface::Errno;

use crate::checks::Id;
use crate::checks::given::{Facts, Judged, ObjectCounts, errno_name};
use crate::regions;
use crate::report::{finding_count, report};
use crate::state::{AHS, CQS, Ctx, PDS, QPS, Qp, SRQS};

/// A call that may be refused, from its beginning.
pub(crate) struct WatchedCall {
    call: &'static str,
    findings_before: u32,
}

/// The subject of the message: the usual check of the call, the object, and the queue pair if the
/// object is a queue pair.
pub(crate) struct Subject<'a> {
    pub(crate) id: Id,
    pub(crate) object: String,
    pub(crate) qp: Option<&'a Qp>,
}

impl Subject<'_> {
    /// A call that has no object yet.
    pub(crate) const fn without_object(id: Id) -> Self {
        Subject { id, object: String::new(), qp: None }
    }

    /// An object other than a queue pair.
    pub(crate) const fn object(id: Id, object: String) -> Self {
        Subject { id, object, qp: None }
    }
}

impl<'a> Subject<'a> {
    /// A queue pair.
    pub(crate) fn qp(id: Id, qp: &'a Qp) -> Self {
        Subject { id, object: qp.name(), qp: Some(qp) }
    }
}

impl WatchedCall {
    /// Begins before the checks of a call.
    #[inline]
    pub(crate) fn begin(call: &'static str) -> Self {
        Self { call, findings_before: finding_count() }
    }

    /// Explains a call that was refused with `errno`; `judge` judges its arguments.
    #[cold]
    pub(crate) fn refused(
        &self,
        ctx: &Ctx,
        errno: c_int,
        about: &Subject<'_>,
        judge: impl FnOnce(&Facts<'_>) -> Judged,
    ) {
        let Some(name) = errno_name(errno) else { return };
        if finding_count() != self.findings_before {
            return;
        }
        // Some callers read errno, which keeps the provider's value.
        let left = Errno::last();
        let facts = Facts {
            device: ctx.device.as_ref(),
            ports: &ctx.ports,
            vectors: ctx.provider.vectors,
            counts: counts(ctx),
        };
        let remedy = "compare the arguments with the page of the call; a device may have rules of its own (dmesg)";
        let findings = judge(&facts).findings(name, about.id, remedy);
        report(
            self.call,
            || about.object.clone(),
            findings,
            about.qp.and_then(Qp::message_subject),
        );
        left.set();
    }

    /// Explains a failed call that returns a pointer. `errno` keeps the provider's value.
    #[cold]
    pub(crate) fn failed(
        &self,
        ctx: &Ctx,
        about: &Subject<'_>,
        judge: impl FnOnce(&Facts<'_>, c_int) -> Judged,
    ) {
        let errno = Errno::last().raw();
        self.refused(ctx, errno, about, |facts| judge(facts, errno));
    }
}

/// Numbers of objects of the context whose creation this layer saw.
fn counts(ctx: &Ctx) -> ObjectCounts {
    let (regions, windows) = regions::of_context(ctx.address, false);
    ObjectCounts {
        qps: QPS.all().iter().filter(|qp| qp.ctx.address == ctx.address).count(),
        cqs: CQS.all().iter().filter(|cq| cq.ctx.address == ctx.address).count(),
        srqs: SRQS.all().iter().filter(|srq| srq.ctx.address == ctx.address).count(),
        pds: PDS.all().iter().filter(|pd| pd.ctx == ctx.address).count(),
        ahs: AHS.all().iter().filter(|ah| ah.ctx == ctx.address).count(),
        regions: regions.len(),
        windows,
    }
}

/// The text of /proc/self/maps for EFAULT, otherwise empty.
pub(crate) fn maps(errno: c_int) -> String {
    match errno {
        libc::EFAULT => std::fs::read_to_string("/proc/self/maps").unwrap_or_default(),
        _ => String::new(),
    }
}
