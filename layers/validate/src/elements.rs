//! MR-01 to MR-04: the memory of a request, compared with the records of regions. Called for each
//! element that a program posts.

use abi::ibv_sge;

use crate::checks::element;
use crate::regions::{self, Cache};
use crate::report::{About, report};

/// The memory that a request uses, and how.
pub(crate) struct MemoryUse<'a> {
    pub(crate) call: &'a str,
    pub(crate) object: &'a dyn Fn() -> String,
    pub(crate) qp: Option<About<'a>>,
    /// Address of the context of the queue.
    pub(crate) ctx: usize,
    /// The PD to which regions must belong; 0 if unknown.
    pub(crate) pd: usize,
    /// The data that the device writes to the memory; `None` if the device only reads.
    pub(crate) written: Option<&'a str>,
}

/// Checks the elements of a request.
#[inline]
pub(crate) fn check(cache: &mut Cache, sges: &[ibv_sge], memory: &MemoryUse<'_>) {
    for (index, sge) in sges.iter().enumerate() {
        if sge.length == 0 {
            continue;
        }
        match cache.find(memory.ctx, sge.lkey) {
            Some(mr) if element::is_good(sge, mr, memory.pd, memory.written.is_some()) => {}
            Some(mr) => {
                let found = element::wrong_region(index, sge, mr, memory.pd, memory.written);
                report(memory.call, memory.object, found, memory.qp);
            }
            None => unknown_key(index, sge, memory),
        }
    }
}

#[cold]
fn unknown_key(index: usize, sge: &ibv_sge, memory: &MemoryUse<'_>) {
    let fault = regions::key_fault(memory.ctx, sge.lkey);
    let found = element::unknown_key(index, sge.lkey, &fault);
    report(memory.call, memory.object, [found], memory.qp);
}
