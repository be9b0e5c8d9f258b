//! The data path of extended CQs: completions that a program reads with `ibv_start_poll` and
//! `ibv_next_poll`. The tap replaces the pointers in the CQ: these two for a watcher that records,
//! and those that end a poll and read members too for a watcher that judges calls.

use core::ffi::{c_int, c_uint};
use core::marker::PhantomData;
use std::sync::Arc;

use abi::{IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, be32, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_opcode};

use crate::argument::{Arg, Next, Returned};
use crate::control::context;
use crate::data::completed;
use crate::{CQS, Completion, Watcher, now};

/// The provider's pointers of an extended CQ. The copy is never written after its creation.
#[derive(Debug)]
pub struct IteratorPointers(ibv_cq_ex);

// SAFETY: only the function pointers of the copied structure are read.
unsafe impl Send for IteratorPointers {}
// SAFETY: the copy is never written after its creation.
unsafe impl Sync for IteratorPointers {}

impl IteratorPointers {
    /// The pointers of a CQ that the provider has just created; `None` for NULL.
    #[must_use]
    pub fn of(cq: Arg<'_, ibv_cq_ex>) -> Option<Self> {
        // SAFETY: NULL, or a live CQ whose address no other thread has.
        unsafe { cq.as_ptr().as_ref() }.map(|cq| Self(*cq))
    }
}

/// A completion at which an iterator stands.
#[derive(Debug)]
pub struct CompletionReader<'a> {
    cq: *mut ibv_cq_ex,
    pointers: &'a IteratorPointers,
}

impl CompletionReader<'_> {
    /// Number of the QP; `None` if the program does not read numbers.
    #[must_use]
    pub fn qp(&self) -> Option<u32> {
        // SAFETY: the iterator stands at a completion.
        self.pointers.0.read_qp_num.map(|read| unsafe { read(self.cq) })
    }

    /// wr_id, status, opcode and the provider's error code. The opcode of a failed completion and
    /// the code of a successful or flushed one are 0.
    #[must_use]
    pub fn read(&self) -> Completion {
        let old = &self.pointers.0;
        // SAFETY: the iterator stands at a completion.
        unsafe {
            let (wr_id, status) = ((*self.cq).wr_id, (*self.cq).status);
            let has_code = status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR;
            let opcode = old.read_opcode.filter(|_| status == IBV_WC_SUCCESS);
            let vendor = old.read_vendor_err.filter(|_| has_code);
            Completion {
                wr_id,
                status,
                opcode: opcode.map_or(0, |read| read(self.cq)),
                vendor: vendor.map_or(0, |read| read(self.cq)),
                ..Completion::default()
            }
        }
    }
}

/// The provider's function that moves an iterator. A watcher calls it once.
#[derive(Debug)]
pub struct NextCompletion<'a, F> {
    call: F,
    cq: *mut ibv_cq_ex,
    pointers: &'a IteratorPointers,
    life: PhantomData<&'a ibv_cq_ex>,
}

impl<'a, F: FnOnce() -> c_int> NextCompletion<'a, F> {
    /// Calls the function beneath. Returns the completion at which the iterator stands then.
    #[inline(always)]
    pub fn call(self) -> (Returned<c_int>, Option<CompletionReader<'a>>) {
        let result = (self.call)();
        let reader = CompletionReader { cq: self.cq, pointers: self.pointers };
        (Returned::new(result), (result == 0).then_some(reader))
    }
}

/// The iterator of an extended CQ, for a watcher that judges calls.
pub trait IteratorCalls: 'static {
    /// The watcher's record of a CQ.
    type Cq: 'static;

    /// The record of the CQ at this address, and the provider's pointers that it keeps.
    fn iterator(cq: usize) -> Option<(&'static Self::Cq, &'static IteratorPointers)>;

    /// `ibv_start_poll`.
    fn start_poll<F: FnOnce() -> c_int>(
        _cq: &'static Self::Cq,
        next: NextCompletion<'_, F>,
    ) -> Returned<c_int> {
        next.call().0
    }

    /// `ibv_next_poll`.
    fn next_poll<F: FnOnce() -> c_int>(
        _cq: &'static Self::Cq,
        next: NextCompletion<'_, F>,
    ) -> Returned<c_int> {
        next.call().0
    }

    /// `ibv_end_poll`.
    fn end_poll<F: FnOnce()>(_cq: &'static Self::Cq, next: Next<F>) -> Returned<()> {
        next.call()
    }

    /// The program reads a member that only successful completions have, by the function `call`.
    /// `status` and `wr_id` are those of the completion.
    fn reads(_cq: &'static Self::Cq, _call: &'static str, _status: u32, _wr_id: u64) {}
}

/// Replaces the provider's pointers by the tap's.
///
/// # Safety
/// `cq` is a new extended CQ, which no other thread uses.
pub(crate) unsafe fn replace<W: Watcher>(cq: *mut ibv_cq_ex) {
    // SAFETY: per the caller, `cq` is a live object.
    let old = unsafe { *cq };
    if W::RECORDS {
        CQS.insert(cq as usize, Arc::new(IteratorPointers(old)));
    } else if W::iterator(cq as usize).is_none() {
        return;
    }
    // SAFETY: per the caller, no other thread uses `cq`.
    unsafe {
        (*cq).start_poll = old.start_poll.map(|_| start_poll::<W> as _);
        (*cq).next_poll = old.next_poll.map(|_| next_poll::<W> as _);
        if !W::RECORDS {
            (*cq).end_poll = old.end_poll.map(|_| end_poll::<W> as _);
            replace_reads::<W>(cq, &old);
        }
    }
}

unsafe extern "C" fn start_poll<W: Watcher>(
    cq: *mut ibv_cq_ex,
    attr: *mut ibv_poll_cq_attr,
) -> c_int {
    if !W::RECORDS {
        let Some((known, pointers)) = W::iterator(cq as usize) else { return libc::EINVAL };
        let Some(start) = pointers.0.start_poll else { return libc::EINVAL };
        // SAFETY: the provider's own pointer, with its CQ.
        let call = || unsafe { start(cq, attr) };
        let next = NextCompletion { call, cq, pointers, life: PhantomData };
        return W::start_poll(known, next).get();
    }
    let Some(known) = CQS.get(cq as usize) else { return libc::EINVAL };
    let Some(start) = known.0.start_poll else { return libc::EINVAL };
    // SAFETY: the provider's own pointer, with its CQ.
    let result = unsafe { start(cq, attr) };
    if result == 0 {
        // SAFETY: the provider has a completion ready.
        unsafe { look::<W>(known, cq) };
    } else {
        W::polled_empty(cq as usize);
    }
    result
}

unsafe extern "C" fn next_poll<W: Watcher>(cq: *mut ibv_cq_ex) -> c_int {
    if !W::RECORDS {
        let Some((known, pointers)) = W::iterator(cq as usize) else { return libc::EINVAL };
        let Some(next) = pointers.0.next_poll else { return libc::EINVAL };
        // SAFETY: the provider's own pointer, with its CQ.
        let call = || unsafe { next(cq) };
        let next = NextCompletion { call, cq, pointers, life: PhantomData };
        return W::next_poll(known, next).get();
    }
    let Some(known) = CQS.get(cq as usize) else { return libc::EINVAL };
    let Some(next) = known.0.next_poll else { return libc::EINVAL };
    // SAFETY: the provider's own pointer, with its CQ.
    let result = unsafe { next(cq) };
    if result == 0 {
        // SAFETY: the provider has a completion ready.
        unsafe { look::<W>(known, cq) };
    }
    result
}

unsafe extern "C" fn end_poll<W: Watcher>(cq: *mut ibv_cq_ex) {
    let Some((known, pointers)) = W::iterator(cq as usize) else { return };
    let next = Next::new(|| {
        if let Some(end) = pointers.0.end_poll {
            // SAFETY: the provider's own pointer, with its CQ.
            unsafe { end(cq) };
        }
    });
    W::end_poll(known, next).get();
}

macro_rules! reads {
    ($($name:ident $kind:ty;)*) => {
        /// Replaces the readers of members that only successful completions have. Timestamps are
        /// excepted: adapters set them in failed completions too, and programs read them before
        /// the status.
        ///
        /// # Safety
        /// As [`replace`].
        unsafe fn replace_reads<W: Watcher>(cq: *mut ibv_cq_ex, old: &ibv_cq_ex) {
            // SAFETY: per the caller, no other thread uses `cq`.
            unsafe { $((*cq).$name = old.$name.map(|_| $name::<W> as _);)* }
        }

        $(unsafe extern "C" fn $name<W: Watcher>(cq: *mut ibv_cq_ex) -> $kind {
            let Some((known, pointers)) = W::iterator(cq as usize) else { return 0 };
            // SAFETY: the CQ is live, as its completion is read.
            let (status, wr_id) = unsafe { ((*cq).status, (*cq).wr_id) };
            W::reads(known, concat!("ibv_wc_", stringify!($name)), status, wr_id);
            // SAFETY: the provider's own pointer, with its CQ.
            pointers.0.$name.map_or(0, |read| unsafe { read(cq) })
        })*
    };
}

reads! {
    read_opcode ibv_wc_opcode;
    read_byte_len u32;
    read_imm_data be32;
    read_src_qp u32;
    read_wc_flags c_uint;
    read_slid u32;
    read_sl u8;
    read_dlid_path_bits u8;
    read_cvlan u16;
    read_flow_tag u32;
}

/// Reports the completion at which the iterator stands. A value that the program did not request
/// at creation has a NULL reader, and is reported as 0.
///
/// # Safety
/// The iterator stands at a completion.
unsafe fn look<W: Watcher>(known: &IteratorPointers, cq: *mut ibv_cq_ex) {
    // SAFETY: the CQ is live.
    let Some(ctx) = context(unsafe { (*cq).context }) else { return };
    let old = &known.0;
    // SAFETY: at a completion, per the caller.
    let done = unsafe {
        let status = (*cq).status;
        let mut done = Completion { wr_id: (*cq).wr_id, status, ..Completion::default() };
        if let Some(read) = old.read_qp_num {
            done.qp = read(cq);
        }
        if status == IBV_WC_SUCCESS {
            done.opcode = old.read_opcode.map_or(0, |read| read(cq));
            done.bytes = old.read_byte_len.map_or(0, |read| read(cq));
            done.flags = old.read_wc_flags.map_or(0, |read| read(cq));
            if done.flags & 10 != 0 {
                done.imm = old.read_imm_data.map_or(0, |read| u32::from_be(read(cq)));
            }
            if done.flags & 1 != 0 {
                done.src_qp = old.read_src_qp.map_or(0, |read| read(cq));
            }
        } else {
            done.vendor = old.read_vendor_err.map_or(0, |read| read(cq));
        }
        done
    };
    completed::<W>(ctx, cq as usize, done, now());
}
