//! Runs: consecutive datagrams with equal header fields. The provider's receiver handles one run at
//! a time.

use crate::receive::{Datagram, Datagrams};
use crate::steering;
use std::slice::Chunks;

/// The packets of a datagram and of the datagrams behind it with equal header fields. A caller thus
/// handles as many packets at once as if the kernel had merged them.
#[derive(Debug)]
pub struct DatagramRun<'r, 'a> {
    /// The first datagram.
    pub first: Datagram<'a>,
    datagrams: &'r mut Datagrams<'a>,
    remaining: Chunks<'a, u8>,
    consumed_bytes: usize,
}

/// The largest number of bytes in a run: as many as a kernel merges.
const MOST: usize = 1 << 16;

impl<'a> Datagrams<'a> {
    /// The next datagram, and those that belong to its run. The iterator takes them as the caller
    /// consumes the run.
    pub fn next_run(&mut self) -> Option<DatagramRun<'_, 'a>> {
        let first = self.next()?;
        Some(DatagramRun {
            first,
            remaining: first.packets(),
            consumed_bytes: first.bytes.len(),
            datagrams: self,
        })
    }
}

impl DatagramRun<'_, '_> {
    /// Number of bytes of the datagrams so far.
    #[must_use]
    pub const fn consumed_bytes(&self) -> usize {
        self.consumed_bytes
    }
}

impl<'a> Iterator for DatagramRun<'_, 'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            if let Some(packet) = self.remaining.next() {
                return Some(packet);
            }
            let (first, taken) = (&self.first, self.consumed_bytes);
            let next = self.datagrams.next_if(|next| {
                let fits = taken + next.bytes.len() <= MOST && !next.is_cut;
                fits && header_fields(first) == header_fields(next)
                    && steering::probed(next.bytes).is_none()
            })?;
            self.consumed_bytes += next.bytes.len();
            self.remaining = next.packets();
        }
    }
}

/// All header fields of a datagram.
fn header_fields<'d>(it: &'d Datagram<'_>) -> impl PartialEq + use<'d> {
    (it.source, it.destination, it.interface, it.traffic_class, it.hop_limit)
}
