//! The data path of a watcher that judges calls: the functions that post requests and poll CQs. The
//! watcher finds its own record of the object, and takes the operations beneath from the record, so
//! the tap looks nothing up. The code of this file neither allocates nor locks.
//!
//! `ibv_post_send` and `ibv_post_recv` enter by a few instructions of assembly, which add the
//! return address and the stack pointer of the program's call to the arguments, and jump.

use core::ffi::c_int;
use core::marker::PhantomData;

use abi::{
    ibv_context, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, verbs_context_ops,
};

use crate::argument::{Arg, Argument, Returned};
use crate::requests::{CallSite, Requests};

/// The operations beneath a layer, for the objects of one context.
#[derive(Clone, Copy, Debug)]
pub struct Operations {
    context: usize,
    next: *const verbs_context_ops,
}

// SAFETY: the table lives as long as the context, and is only read, entry by entry.
unsafe impl Send for Operations {}
// SAFETY: any thread may read the table, because each entry is a word that is read at once.
unsafe impl Sync for Operations {}

impl Operations {
    /// # Safety
    /// `next` is the complete table beneath the layer. It is used as long as the context is open.
    #[must_use]
    pub unsafe fn new(context: *mut ibv_context, next: *const verbs_context_ops) -> Self {
        Self { context: context.expose_provenance(), next }
    }

    /// Address of the context.
    #[must_use]
    pub const fn context(self) -> usize {
        self.context
    }

    /// The table beneath the layer.
    #[must_use]
    pub const fn table_beneath(self) -> *const verbs_context_ops {
        self.next
    }

    /// The table for an object of `context`: the one that the watcher named if it is of this
    /// context, else the one that the watcher has for the context.
    #[inline(always)]
    fn table<W: DataCalls>(
        named: Option<Self>,
        context: *mut ibv_context,
    ) -> Option<*const verbs_context_ops> {
        match named {
            Some(named) if named.context == context as usize => Some(named.next),
            _ => W::operations(context as usize).map(|known| known.next),
        }
    }
}

/// The function beneath the layer for a call of the data path. A watcher calls it once, with the
/// operations of the object's context; `None` if the watcher has no record of the object.
#[derive(Debug)]
pub struct NextPost<F>(F);

impl<F: FnOnce(Option<Operations>) -> c_int> NextPost<F> {
    /// Calls the function beneath.
    #[inline(always)]
    pub fn call(self, operations: Option<Operations>) -> Returned<c_int> {
        Returned::new(self.0(operations))
    }
}

/// As [`NextPost`], for a poll.
#[derive(Debug)]
pub struct NextPoll<'a, F> {
    call: F,
    wc: *mut ibv_wc,
    life: PhantomData<&'a mut ibv_wc>,
}

impl<'a, F: FnOnce(Option<Operations>) -> c_int> NextPoll<'a, F> {
    /// Calls the function beneath, and returns the completions that it found.
    #[inline(always)]
    pub fn call(self, operations: Option<Operations>) -> (Returned<c_int>, &'a mut [ibv_wc]) {
        let found = (self.call)(operations);
        let all: &mut [ibv_wc] = match usize::try_from(found) {
            // SAFETY: the provider filled `found` entries, which belong to this thread until the
            // call returns.
            Ok(count) if count > 0 => unsafe { core::slice::from_raw_parts_mut(self.wc, count) },
            _ => &mut [],
        };
        (Returned::new(found), all)
    }
}

/// Calls of the data path of a watcher that judges calls. A watcher that records gets requests and
/// completions by `Watcher::posted` and `Watcher::completed`.
pub trait DataCalls: 'static {
    /// The operations beneath the layer, for the objects of a context; `None` if the watcher does
    /// not know the context.
    fn operations(_context: usize) -> Option<Operations> {
        None
    }

    /// `ibv_post_send`.
    #[inline(always)]
    fn post_send<F: FnOnce(Option<Operations>) -> c_int>(
        _qp: Arg<'_, ibv_qp>,
        _list: Requests<'_, ibv_send_wr>,
        _bad: Arg<'_, *mut ibv_send_wr>,
        _site: CallSite,
        next: NextPost<F>,
    ) -> Returned<c_int> {
        next.call(None)
    }

    /// `ibv_post_recv`.
    #[inline(always)]
    fn post_recv<F: FnOnce(Option<Operations>) -> c_int>(
        _qp: Arg<'_, ibv_qp>,
        _list: Requests<'_, ibv_recv_wr>,
        _bad: Arg<'_, *mut ibv_recv_wr>,
        _site: CallSite,
        next: NextPost<F>,
    ) -> Returned<c_int> {
        next.call(None)
    }

    /// `ibv_post_srq_recv`.
    #[inline(always)]
    fn post_srq_recv<F: FnOnce(Option<Operations>) -> c_int>(
        _srq: Arg<'_, ibv_srq>,
        _list: Requests<'_, ibv_recv_wr>,
        _bad: Arg<'_, *mut ibv_recv_wr>,
        next: NextPost<F>,
    ) -> Returned<c_int> {
        next.call(None)
    }

    /// `ibv_poll_cq`.
    #[inline(always)]
    fn poll_cq<F: FnOnce(Option<Operations>) -> c_int>(
        _cq: Arg<'_, ibv_cq>,
        next: NextPoll<'_, F>,
    ) -> Returned<c_int> {
        next.call(None).0
    }
}

/// Defines an entry point that passes on its call site after three arguments.
macro_rules! posting {
    ($($entry:ident $name:ident $wr:ident;)+) => {$(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        unsafe extern "C" fn $entry<W: DataCalls>(
            qp: *mut ibv_qp,
            wr: *mut $wr,
            bad: *mut *mut $wr,
        ) -> c_int {
            core::arch::naked_asm!(
                "mov rcx, [rsp]",
                "mov r8, rsp",
                "jmp {to}",
                to = sym $name::<W>,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        unsafe extern "C" fn $entry<W: DataCalls>(
            qp: *mut ibv_qp,
            wr: *mut $wr,
            bad: *mut *mut $wr,
        ) -> c_int {
            core::arch::naked_asm!("mov x3, x30", "mov x4, sp", "b {to}", to = sym $name::<W>)
        }

        unsafe extern "C" fn $name<W: DataCalls>(
            qp: *mut ibv_qp,
            wr: *mut $wr,
            bad: *mut *mut $wr,
            caller: usize,
            frame: usize,
        ) -> c_int {
            let next = NextPost(|named| {
                // SAFETY: the caller's QP is live.
                match Operations::table::<W>(named, unsafe { (*qp).context }) {
                    // SAFETY: the caller's arguments, passed on.
                    Some(table) => unsafe { beneath!(table, $name)(qp, wr, bad) },
                    None => libc::EINVAL,
                }
            });
            // SAFETY: the caller's arguments are valid until this call returns.
            let (qp, list, bad) = unsafe { (qp.safe(), Requests::new(wr), bad.safe()) };
            W::$name(qp, list, bad, CallSite { caller, frame }, next).get()
        }
    )+};
}

posting! {
    post_send_entry post_send ibv_send_wr;
    post_recv_entry post_recv ibv_recv_wr;
}

unsafe extern "C" fn post_srq_recv<W: DataCalls>(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let next = NextPost(|named| {
        // SAFETY: the caller's SRQ is live.
        match Operations::table::<W>(named, unsafe { (*srq).context }) {
            // SAFETY: the caller's arguments, passed on.
            Some(table) => unsafe { beneath!(table, post_srq_recv)(srq, wr, bad) },
            None => libc::EINVAL,
        }
    });
    // SAFETY: the caller's arguments are valid until this call returns.
    let (srq, list, bad) = unsafe { (srq.safe(), Requests::new(wr), bad.safe()) };
    W::post_srq_recv(srq, list, bad, next).get()
}

unsafe extern "C" fn poll_cq<W: DataCalls>(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    let call = |named| {
        // SAFETY: the caller's CQ is live.
        match Operations::table::<W>(named, unsafe { (*cq).context }) {
            // SAFETY: the caller's arguments, passed on.
            Some(table) => unsafe { beneath!(table, poll_cq)(cq, room, wc) },
            None => -1,
        }
    };
    let next = NextPoll { call, wc, life: PhantomData };
    // SAFETY: the caller's arguments are valid until this call returns.
    W::poll_cq(unsafe { cq.safe() }, next).get()
}

pub(crate) fn fill<W: DataCalls>(mine: &mut verbs_context_ops) {
    mine.post_send = Some(post_send_entry::<W>);
    mine.post_recv = Some(post_recv_entry::<W>);
    mine.post_srq_recv = Some(post_srq_recv::<W>);
    mine.poll_cq = Some(poll_cq::<W>);
}
