//! Calls that were refused with EINVAL, EFAULT, ENOMEM or EBUSY, and that no check has explained:
//! the tables of `checks` say which argument is wrong.

use core::cell::Cell;
use core::ffi::c_int;

use cface::Errno;

use crate::checks::Id;
use crate::checks::given::{Facts, Given, Open, errno_name};
use crate::report::{Message, tell};
use crate::state::{AHS, CQS, Ctx, PDS, QPS, Qp, SRQS};

thread_local! {
    /// Findings of this thread so far, whether or not they were shown.
    static FOUND: Cell<u32> = const { Cell::new(0) };
}

/// A check found something in a call of this thread.
pub(crate) fn found() {
    let _ = FOUND.try_with(|found| found.set(found.get().wrapping_add(1)));
}

fn count() -> u32 {
    FOUND.try_with(Cell::get).unwrap_or(0)
}

/// A call that may be refused, from its beginning.
pub(crate) struct Watch {
    call: &'static str,
    found: u32,
}

/// What the call is about, for the message: the check of the call, the object, and the queue pair
/// if it is one.
pub(crate) struct About<'a> {
    pub(crate) id: Id,
    pub(crate) object: String,
    pub(crate) qp: Option<&'a Qp>,
}

impl About<'_> {
    /// A call that has no object yet.
    pub(crate) const fn none(id: Id) -> Self {
        About { id, object: String::new(), qp: None }
    }

    /// An object of no queue pair.
    pub(crate) const fn object(id: Id, object: String) -> Self {
        About { id, object, qp: None }
    }
}

impl<'a> About<'a> {
    /// A queue pair.
    pub(crate) fn qp(id: Id, qp: &'a Qp) -> Self {
        About { id, object: qp.name(), qp: Some(qp) }
    }
}

impl Watch {
    /// Before the checks of a call.
    pub(crate) fn begin(call: &'static str) -> Self {
        Self { call, found: count() }
    }

    /// The call was refused with `errno`; `judge` is its table.
    #[cold]
    pub(crate) fn refused(
        &self,
        ctx: &Ctx,
        errno: c_int,
        about: &About<'_>,
        judge: impl FnOnce(&Facts<'_>) -> Given,
    ) {
        let Some(name) = errno_name(errno) else { return };
        if count() != self.found {
            return;
        }
        // Some callers look at errno, which the provider left.
        let left = Errno::last();
        let facts = Facts {
            device: ctx.device.as_ref(),
            ports: &ctx.ports,
            vectors: ctx.vectors,
            open: open(ctx),
        };
        let remedy = "compare the arguments with the page of the call; a device may have rules of its own (dmesg)";
        for (id, text, remedy) in judge(&facts).findings(name, about.id, remedy) {
            let message = Message {
                id,
                call: self.call,
                object: about.object.clone(),
                text,
                remedy,
                also: None,
            };
            tell(&message, about.qp);
        }
        left.set();
    }

    /// A call that returns an object failed; `errno` stays as the provider left it.
    #[cold]
    pub(crate) fn failed(
        &self,
        ctx: &Ctx,
        about: &About<'_>,
        judge: impl FnOnce(&Facts<'_>, c_int) -> Given,
    ) {
        let errno = Errno::last().raw();
        self.refused(ctx, errno, about, |facts| judge(facts, errno));
    }
}

/// Objects of a context that this layer saw made.
fn open(ctx: &Ctx) -> Open {
    let (regions, windows) = crate::mr::of_context(ctx.at, false);
    Open {
        qps: QPS.all().iter().filter(|qp| qp.ctx.at == ctx.at).count(),
        cqs: CQS.all().iter().filter(|cq| cq.ctx.at == ctx.at).count(),
        srqs: SRQS.all().iter().filter(|srq| srq.ctx.at == ctx.at).count(),
        pds: PDS.all().iter().filter(|pd| pd.ctx == ctx.at).count(),
        ahs: AHS.all().iter().filter(|ah| ah.ctx == ctx.at).count(),
        regions: regions.len(),
        windows,
    }
}

/// /proc/self/maps, where it matters.
pub(crate) fn maps(errno: c_int) -> String {
    match errno {
        libc::EFAULT => std::fs::read_to_string("/proc/self/maps").unwrap_or_default(),
        _ => String::new(),
    }
}
