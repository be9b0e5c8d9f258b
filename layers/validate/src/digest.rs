//! MR-08: reports buffers that change while a send of them is in flight. The layer computes
//! checksums of the buffers at posting and at the completion. The check is off by default, because
//! its cost exceeds that of all other checks.

use std::collections::VecDeque;

use abi::ibv_sge;

use crate::checks::Id;
use crate::checks::buffers;
use crate::checks::finding::Finding;
use crate::checks::request::{SendRequest, reads_memory};
use crate::native;
use crate::report::is_enabled;
use crate::stack::{self, Site};

/// Bytes of one checksum.
const PIECE: usize = 4096;
/// Bytes of an element that are checked, from its start.
const MOST: usize = 1 << 20;

/// The checksums of a signaled send.
struct Digest {
    wr_id: u64,
    site: Site,
    /// Address, length and checksum of each piece.
    pieces: Vec<(u64, usize, u64)>,
}

/// The checksums of one QP, the oldest first.
#[derive(Default)]
pub(crate) struct Digests(VecDeque<Digest>);

/// The checksum of a piece of memory; `None` if the memory cannot be read.
fn sum(at: u64, length: usize) -> Option<u64> {
    let mut bytes = [0_u8; PIECE];
    let known = bytes.get_mut(..length)?;
    if !native::read_memory(at, known) {
        return None;
    }
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

/// Whether the check is on.
#[inline]
pub(crate) fn is_on() -> bool {
    is_enabled(Id::Mr08)
}

impl Digests {
    /// Computes the checksums of a signaled request that is about to be posted to a queue of
    /// `length` entries.
    #[cold]
    pub(crate) fn record(&mut self, request: &SendRequest<'_>, length: u32, site: Site) {
        if !reads_memory(request.opcode) || request.is_inline() {
            return;
        }
        let pieces = pieces(request.sges.unwrap_or(&[]));
        // More entries than the send queue has: their completions were missed.
        if self.0.len() > 2 * length as usize {
            self.0.pop_front();
        }
        self.0.push_back(Digest { wr_id: request.wr_id, site, pieces });
    }

    /// Forgets requests that were not posted.
    pub(crate) fn take_back(&mut self, ids: &[u64]) {
        for id in ids {
            if let Some(place) = self.0.iter().rposition(|digest| digest.wr_id == *id) {
                self.0.remove(place);
            }
        }
    }

    /// Compares the checksums of a completed send.
    #[cold]
    pub(crate) fn completed(&mut self, wr_id: u64, ok: bool) -> Option<Finding> {
        let place = self.0.iter().position(|digest| digest.wr_id == wr_id)?;
        let digest = self.0.remove(place).filter(|_| ok)?;
        let changed = |(at, length, before): &&(u64, usize, u64)| {
            sum(*at, *length).is_some_and(|now| now != *before)
        };
        let (at, length, _) = digest.pieces.iter().find(changed)?;
        Some(buffers::changed(*at, *length, stack::stack_at(digest.site)))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::IBV_WR_SEND;

    #[test]
    fn a_buffer_that_changes_in_flight_is_found() {
        let mut buffer = vec![1_u8; 2 * PIECE];
        let sges = [ibv_sge { addr: buffer.as_ptr() as u64, length: 2 * PIECE as u32, lkey: 0 }];
        let request = SendRequest { sges: Some(&sges), ..SendRequest::new(7, IBV_WR_SEND) };
        let mut digests = Digests::default();
        digests.record(&request, 8, 0);
        digests.record(&request, 8, 0);
        assert_eq!(digests.completed(7, true), None);
        buffer[PIECE] = 2;
        let found = digests.completed(7, true).expect("a finding");
        assert!(
            found.text.contains(&format!("[{:#x}", sges[0].addr + PIECE as u64)),
            "{}",
            found.text
        );
        assert_eq!(digests.completed(7, true), None, "each request is compared once");
    }

    #[test]
    fn a_request_that_was_not_posted_is_forgotten() {
        let request = SendRequest { sges: Some(&[]), ..SendRequest::new(7, IBV_WR_SEND) };
        let mut digests = Digests::default();
        digests.record(&request, 8, 0);
        digests.take_back(&[7]);
        assert!(digests.0.is_empty());
    }
}
