//! Counters of steering rules (ibv_create_counters(3)). Frame delivery counts here; `ops/counters`
//! reads.

use crate::engine::verbs_cell::VerbsCell;
use abi::*;
use cface::sync::Mutex;
use soft_sys::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of positions in the array of ibv_read_counters(3).
pub(crate) const MOST_POINTS: u32 = 1024;

/// A set of counters. The C object comes first.
#[repr(C)]
pub(crate) struct Counters {
    verbs: VerbsCell<ibv_counters>,
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Attached positions, and the value that each position reports.
    points: Mutex<Vec<(u32, ibv_counter_description)>>,
    /// Number of steering rules that count here.
    pub(crate) users: AtomicUsize,
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counters").field("packets", &self.packets).finish_non_exhaustive()
    }
}

impl Counters {
    pub(crate) fn new(context: *mut ibv_context) -> Arc<Self> {
        Arc::new(Self {
            verbs: VerbsCell::new(ibv_counters { context }),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            points: Mutex::default(),
            users: AtomicUsize::new(0),
        })
    }

    /// Counts a frame of `bytes`.
    pub(crate) fn count(&self, bytes: u64) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Makes position `index` report the value `what`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` an unknown value; `EINVAL` the position is out of range; `EBUSY` the position
    /// is in use.
    pub(crate) fn attach(&self, index: u32, what: ibv_counter_description) -> Result<(), Errno> {
        if !matches!(what, IBV_COUNTER_PACKETS | IBV_COUNTER_BYTES) {
            return Err(Errno::EOPNOTSUPP);
        }
        if index >= MOST_POINTS {
            return Err(Errno::EINVAL);
        }
        let mut points = self.points.lock();
        if points.iter().any(|(at, _)| *at == index) {
            return Err(Errno::EBUSY);
        }
        points.push((index, what));
        Ok(())
    }

    /// Fills all positions; unused positions read as 0.
    ///
    /// # Errors
    /// `EINVAL` fewer positions than attached.
    pub(crate) fn read(&self, values: &mut [u64]) -> Result<(), Errno> {
        let points = self.points.lock();
        if points.iter().any(|(at, _)| *at as usize >= values.len()) {
            return Err(Errno::EINVAL);
        }
        values.fill(0);
        for (at, what) in points.iter() {
            let from = if *what == IBV_COUNTER_PACKETS { &self.packets } else { &self.bytes };
            if let Some(value) = values.get_mut(*at as usize) {
                *value = from.load(Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_reports_the_counter_that_was_attached_there() {
        let counters = Counters::new(std::ptr::null_mut());
        assert_eq!(counters.attach(2, IBV_COUNTER_PACKETS), Ok(()));
        assert_eq!(counters.attach(0, IBV_COUNTER_BYTES), Ok(()));
        assert_eq!(counters.attach(0, IBV_COUNTER_PACKETS), Err(Errno::EBUSY));
        assert_eq!(counters.attach(1, 7), Err(Errno::EOPNOTSUPP));
        assert_eq!(counters.attach(MOST_POINTS, IBV_COUNTER_BYTES), Err(Errno::EINVAL));
        counters.count(60);
        counters.count(100);
        let mut values = [9; 4];
        assert_eq!(counters.read(&mut values), Ok(()));
        assert_eq!(values, [160, 0, 2, 0]);
        assert_eq!(counters.read(&mut values[..2]), Err(Errno::EINVAL));
    }
}
