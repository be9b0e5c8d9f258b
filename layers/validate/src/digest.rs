//! MR-08: reports buffers that change while a send of them is in flight. The layer computes
//! checksums of the buffers at posting and at the completion. The check is off by default, because
//! its cost exceeds that of all other checks.

use std::collections::VecDeque;

use abi::{SendFlags, ibv_sge};

use crate::checks::Id;
use crate::report::{Message, emit, wanted};
use crate::stack::{self, Site};
use crate::state::Qp;
use crate::wr::{SendRequest, reads_memory};

/// Bytes of one checksum.
const PIECE: usize = 4096;
/// Bytes of an element that are checked, from its start.
const MOST: usize = 1 << 20;

/// The checksums of a signaled send.
pub(crate) struct Digest {
    wr_id: u64,
    site: Site,
    /// Address, length and checksum of each piece.
    pieces: Vec<(u64, usize, u64)>,
}

/// The checksums of one QP, the oldest first.
pub(crate) type Digests = VecDeque<Digest>;

/// The checksum of a piece of memory; `None` if the memory cannot be read.
fn sum(at: u64, length: usize) -> Option<u64> {
    let mut bytes = [0_u8; PIECE];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length.min(PIECE) };
    let remote = libc::iovec { iov_base: at as *mut _, iov_len: length };
    // SAFETY: `local` has the length of `bytes`. The kernel checks the address in this process:
    // unmapped memory is an error, not a signal.
    let read = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    let known = bytes.get(..length).filter(|_| read == length as isize)?;
    // FNV-1a.
    Some(known.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    }))
}

fn pieces(sges: &[ibv_sge]) -> Vec<(u64, usize, u64)> {
    let mut pieces = Vec::new();
    for sge in sges {
        let length = (sge.length as usize).min(MOST);
        for from in (0..length).step_by(PIECE) {
            let (at, part) = (sge.addr.wrapping_add(from as u64), PIECE.min(length - from));
            pieces.extend(sum(at, part).map(|sum| (at, part, sum)));
        }
    }
    pieces
}

/// Computes the checksums of a request that is about to be posted.
#[inline]
pub(crate) fn posted(qp: &Qp, send: &SendRequest<'_>, site: Site) {
    if wanted(Id::Mr08) {
        remember(qp, send, site);
    }
}

#[cold]
fn remember(qp: &Qp, send: &SendRequest<'_>, site: Site) {
    let flags = SendFlags::from_bits_retain(send.flags);
    let inline = send.inline.is_some() || flags.contains(SendFlags::INLINE);
    let signaled = qp.sig_all || flags.contains(SendFlags::SIGNALED);
    if !reads_memory(send.opcode) || inline || !signaled {
        return;
    }
    let pieces = pieces(send.sges.unwrap_or(&[]));
    let mut digests = qp.digests.lock();
    // More entries than the send queue has: their completions were missed.
    if digests.len() > 2 * qp.cap.max_send_wr as usize {
        digests.pop_front();
    }
    digests.push_back(Digest { wr_id: send.wr_id, site, pieces });
}

/// Forgets requests that were not posted.
pub(crate) fn take_back(qp: &Qp, ids: &[u64]) {
    if wanted(Id::Mr08) {
        let mut digests = qp.digests.lock();
        for id in ids {
            if let Some(place) = digests.iter().rposition(|digest| digest.wr_id == *id) {
                digests.remove(place);
            }
        }
    }
}

/// Compares the checksums of a completed send.
#[inline]
pub(crate) fn completed(qp: &Qp, wr_id: u64, ok: bool, call: &'static str) {
    if wanted(Id::Mr08) {
        compare(qp, wr_id, ok, call);
    }
}

#[cold]
fn compare(qp: &Qp, wr_id: u64, ok: bool, call: &'static str) {
    let digest = {
        let mut digests = qp.digests.lock();
        let place = digests.iter().position(|digest| digest.wr_id == wr_id);
        place.and_then(|place| digests.remove(place))
    };
    let Some(digest) = digest.filter(|_| ok) else { return };
    let changed = |(at, length, before): &&(u64, usize, u64)| {
        sum(*at, *length).is_some_and(|now| now != *before)
    };
    let Some((at, length, _)) = digest.pieces.iter().find(changed) else { return };
    let message = Message {
        id: Id::Mr08,
        call,
        object: format!("{} wr_id {wr_id:#x}", qp.name()),
        text: format!(
            "bytes of [{at:#x}, {:#x}) are not what they were when the request was posted",
            at.wrapping_add(*length as u64)
        ),
        remedy: "leave a buffer alone until its completion was polled: the device reads it when it sends, and again when it repeats".into(),
        also: stack::of(digest.site).map(|stack| ("which was posted", stack)),
    };
    emit(&message, Some(qp));
}
