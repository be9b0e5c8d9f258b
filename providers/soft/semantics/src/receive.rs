//! Receive queues: posted receives, in order. The same type serves a QP's own queue and a shared
//! queue.
//!
//! Applications post, the responder takes the oldest receive. The owner locks the queue.

use crate::Refused;
use crate::storage::filled;
use abi::ibv_sge;
use arrayvec::ArrayVec;

/// The largest number of ranges in a scatter/gather list.
pub const MAX_SGE: usize = 32;

/// A posted receive.
#[derive(Clone, Debug, Default)]
pub struct Receive {
    /// The application's id of the receive.
    pub wr_id: u64,
    /// The memory for the message.
    pub sges: ArrayVec<ibv_sge, MAX_SGE>,
}

impl Receive {
    /// Number of bytes that the receive accepts.
    #[inline]
    pub fn room(&self) -> usize {
        self.sges.iter().map(|sge| sge.length as usize).sum()
    }
}

/// A posted receive without its list.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    wr_id: u64,
    /// Number of ranges in the list.
    count: u8,
}

/// The oldest receive, which is still in its queue.
#[derive(Debug)]
pub struct Oldest<'a> {
    wr_id: u64,
    list: &'a [ibv_sge],
    taken_count: &'a mut u64,
}

impl<'a> Oldest<'a> {
    /// The scatter/gather list.
    #[inline]
    pub const fn list(&self) -> &'a [ibv_sge] {
        self.list
    }

    /// Removes the receive from the queue and returns its `wr_id`.
    #[inline]
    pub const fn take(self) -> u64 {
        *self.taken_count += 1;
        self.wr_id
    }
}

/// A ring of receives that allocates only at creation.
#[derive(Debug)]
pub struct ReceiveQueue {
    /// A power of two of entries, so that an index needs no division.
    heads: Box<[Head]>,
    sges: Box<[ibv_sge]>,
    max_wr: usize,
    max_sge: usize,
    /// Number of receives taken so far: the number of the oldest posted receive.
    taken_count: u64,
    /// Number of receives posted so far.
    posted: u64,
}

impl ReceiveQueue {
    /// A queue for `max_wr` receives of `max_sge` ranges each; `None`: out of memory.
    pub fn new(max_wr: usize, max_sge: usize) -> Option<Self> {
        let none = ibv_sge { addr: 0, length: 0, lkey: 0 };
        let places = max_wr.next_power_of_two();
        Some(Self {
            heads: filled(Head::default(), places)?,
            sges: filled(none, places * max_sge)?,
            max_wr,
            max_sge,
            taken_count: 0,
            posted: 0,
        })
    }

    /// The index of receive `n`.
    #[inline]
    const fn index_of(&self, n: u64) -> usize {
        n as usize & (self.heads.len() - 1)
    }

    /// Number of waiting receives.
    #[inline]
    pub const fn len(&self) -> usize {
        (self.posted - self.taken_count) as usize
    }

    /// Whether no receive waits.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.posted == self.taken_count
    }

    /// Changes the capacity to `max_wr` receives. `Some(false)`: the waiting receives do not fit.
    /// `None`: out of memory.
    pub fn resize(&mut self, max_wr: usize) -> Option<bool> {
        if self.len() > max_wr {
            return Some(false);
        }
        let mut larger = Self::new(max_wr, self.max_sge)?;
        let mut receive = Receive::default();
        while self.take(&mut receive) {
            // The new queue has room for all, and no list is longer than before.
            let _ = larger.post(receive.wr_id, &receive.sges);
        }
        *self = larger;
        Some(true)
    }

    /// Adds a receive.
    ///
    /// # Errors
    /// `Full`: no room. `Invalid`: more ranges than the queue supports.
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Refused> {
        if self.len() == self.max_wr {
            return Err(Refused::Full);
        }
        if sges.len() > self.max_sge {
            return Err(Refused::Invalid);
        }
        let at = self.index_of(self.posted);
        self.heads[at] = Head { wr_id, count: sges.len() as u8 };
        // Copy one by one: lists are short, and a call of memcpy costs more.
        for (to, from) in self.sges[at * self.max_sge..].iter_mut().zip(sges) {
            *to = *from;
        }
        self.posted += 1;
        Ok(())
    }

    /// The oldest receive, which the caller may take or leave.
    #[inline]
    pub fn oldest(&mut self) -> Option<Oldest<'_>> {
        if self.is_empty() {
            return None;
        }
        let at = self.index_of(self.taken_count);
        let Head { wr_id, count } = *self.heads.get(at)?;
        let list = self.sges.get(at * self.max_sge..)?.get(..usize::from(count))?;
        Some(Oldest { wr_id, list, taken_count: &mut self.taken_count })
    }

    /// Moves the oldest receive to `to`; `false`: the queue is empty.
    #[inline]
    pub fn take(&mut self, to: &mut Receive) -> bool {
        let Some(oldest) = self.oldest() else { return false };
        to.sges.clear();
        // max_sge never exceeds MAX_SGE: checked at the queue's creation.
        let whole = to.sges.try_extend_from_slice(oldest.list()).is_ok();
        to.wr_id = oldest.take();
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sges(n: usize) -> Vec<ibv_sge> {
        (0..n).map(|i| ibv_sge { addr: i as u64, length: 1, lkey: 3 }).collect()
    }

    #[test]
    fn receives_come_out_in_order_across_many_laps() {
        let mut queue = ReceiveQueue::new(3, 2).expect("memory");
        let mut next = 0;
        for i in 0..100 {
            queue.post(i, &sges((i % 3) as usize)).expect("room");
            if i % 3 != 0 || queue.len() == 3 {
                let mut receive = Receive::default();
                assert!(queue.take(&mut receive));
                assert_eq!((receive.wr_id, receive.sges.len()), (next, (next % 3) as usize));
                next += 1;
            }
        }
    }

    #[test]
    fn a_resized_queue_keeps_its_receives_and_none_is_lost() {
        let mut queue = ReceiveQueue::new(4, 2).expect("memory");
        for i in 0..6 {
            queue.post(i, &sges(1)).expect("room");
            if i < 3 {
                assert!(queue.take(&mut Receive::default()));
            }
        }
        assert_eq!(queue.resize(2), Some(false), "three wait");
        for max_wr in [3, 50] {
            assert_eq!(queue.resize(max_wr), Some(true));
            assert_eq!(queue.len(), 3);
        }
        for i in 6..53 {
            assert_eq!(queue.post(i, &sges(2)), Ok(()));
        }
        assert_eq!(queue.post(99, &sges(1)), Err(Refused::Full));
        let mut receive = Receive::default();
        for i in 3..53 {
            assert!(queue.take(&mut receive));
            assert_eq!((receive.wr_id, receive.sges.len()), (i, if i < 6 { 1 } else { 2 }));
        }
    }

    #[test]
    fn the_oldest_stays_until_it_is_taken() {
        let mut queue = ReceiveQueue::new(2, 2).expect("memory");
        assert!(queue.oldest().is_none());
        queue.post(7, &sges(2)).expect("room");
        queue.post(8, &sges(1)).expect("room");
        assert_eq!(queue.oldest().map(|oldest| oldest.list().len()), Some(2));
        assert_eq!((queue.len(), queue.oldest().map(Oldest::take)), (2, Some(7)));
        assert_eq!(queue.oldest().map(|oldest| oldest.list().len()), Some(1));
        assert_eq!((queue.len(), queue.oldest().map(Oldest::take)), (1, Some(8)));
        assert!(queue.oldest().is_none() && queue.is_empty());
    }

    #[test]
    fn limits_are_those_asked_for() {
        let mut queue = ReceiveQueue::new(2, 1).expect("memory");
        assert_eq!(queue.post(0, &sges(2)), Err(Refused::Invalid));
        assert_eq!(queue.post(0, &sges(1)), Ok(()));
        assert_eq!(queue.post(0, &sges(0)), Ok(()));
        assert_eq!(queue.post(0, &sges(0)), Err(Refused::Full));
        assert!(!ReceiveQueue::new(0, 1).expect("memory").take(&mut Receive::default()));
    }
}
