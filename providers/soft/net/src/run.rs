//! Datagrams that came one behind the other.

use crate::receive::{Datagram, Datagrams};
use crate::steering;
use std::slice::Chunks;

/// The packets of a datagram, and of those right behind it that came the same way: so whoever takes a run takes as much at once where the kernel does not
/// merge as where it does.
#[derive(Debug)]
pub struct Run<'r, 'a> {
    /// The first one.
    pub first: Datagram<'a>,
    datagrams: &'r mut Datagrams<'a>,
    rest: Chunks<'a, u8>,
    taken: usize,
}

/// Bytes at most: as many as a kernel merges.
const MOST: usize = 1 << 16;

impl<'a> Datagrams<'a> {
    /// The next datagram, and what belongs to it. Of what is behind it so much is taken as the run is asked for.
    pub fn next_run(&mut self) -> Option<Run<'_, 'a>> {
        let first = self.next()?;
        Some(Run { first, rest: first.packets(), taken: first.bytes.len(), datagrams: self })
    }
}

impl Run<'_, '_> {
    /// Bytes of the datagrams so far.
    #[must_use]
    pub const fn taken(&self) -> usize {
        self.taken
    }
}

impl<'a> Iterator for Run<'_, 'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            if let Some(packet) = self.rest.next() {
                return Some(packet);
            }
            let (first, taken) = (&self.first, self.taken);
            let next = self.datagrams.next_if(|next| {
                let fits = taken + next.bytes.len() <= MOST && !next.is_cut;
                fits && way(first) == way(next) && steering::probed(next.bytes).is_none()
            })?;
            self.taken += next.bytes.len();
            self.rest = next.packets();
        }
    }
}

/// All that is said of a datagram beside its bytes.
fn way<'d>(it: &'d Datagram<'_>) -> impl PartialEq + use<'d> {
    (it.from, it.to, it.interface, it.traffic_class, it.hop_limit)
}
