//! Frames for a process of this host whose datagram ring had no room.
//! Stands behind `forward`, which retries the frames.
#![forbid(unsafe_code)]

use cface::sync::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The result of an attempt to forward a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardResult {
    Sent,
    /// The ring has no room at present.
    NoRoom,
    /// The process is gone.
    NoProcess,
}

/// Frames that could not be forwarded at once.
#[derive(Debug, Default)]
pub(crate) struct ForwardQueue {
    frames: Mutex<Frames>,
    /// Mirrors whether `frames` has an entry; written under the lock.
    has_any: AtomicBool,
}

/// Waiting frames, oldest first.
#[derive(Debug, Default)]
struct Frames(VecDeque<QueuedFrame>);

#[derive(Debug)]
struct QueuedFrame {
    slot: u16,
    queued_at: Instant,
    /// Frame header and packet.
    frame: Box<[u8]>,
}

/// Capacity of the queue. Further frames are lost, as in a full socket.
const MAX_FRAMES: usize = 256;
/// Maximum age of a frame. The sender has repeated the packet by then.
const MAX_AGE: Duration = Duration::from_millis(200);

/// What `ForwardQueue::send` has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    Sent,
    /// The frame waits. `is_first`: no frame has waited before.
    Queued {
        is_first: bool,
    },
    /// The queue is full, and the frame is lost. `is_first` as above.
    Lost {
        is_first: bool,
    },
    NoProcess,
}

impl ForwardQueue {
    /// Whether a frame waits.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// Sends a frame to process `slot` by `send`, or queues the frame. A frame never overtakes a
    /// waiting frame for the same process.
    pub(crate) fn send(
        &self,
        slot: u16,
        header: &[u8],
        packet: &[u8],
        send: impl FnOnce() -> ForwardResult,
    ) -> Forwarded {
        let mut frames = self.frames.lock();
        if !frames.has_frames_for(slot) {
            match send() {
                ForwardResult::NoRoom => {}
                ForwardResult::Sent => return Forwarded::Sent,
                ForwardResult::NoProcess => return Forwarded::NoProcess,
            }
        }
        let is_queued = frames.push_frame(slot, header, packet, Instant::now());
        let is_first = !self.has_any.swap(true, Ordering::Relaxed);
        if is_queued { Forwarded::Queued { is_first } } else { Forwarded::Lost { is_first } }
    }

    /// Sends all waiting frames by `send`, in order. Returns the number of frames that are given
    /// up.
    #[cold]
    pub(crate) fn retry(&self, send: impl FnMut(u16, &[u8]) -> ForwardResult) -> u64 {
        let mut frames = self.frames.lock();
        let lost = frames.retry(Instant::now(), send);
        self.has_any.store(!frames.is_empty(), Ordering::Relaxed);
        lost
    }
}

impl Frames {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a frame for process `slot` waits. Later frames then wait behind the first, in order.
    fn has_frames_for(&self, slot: u16) -> bool {
        self.0.iter().any(|queued| queued.slot == slot)
    }

    /// Appends a frame. Returns false if the queue is full.
    fn push_frame(&mut self, slot: u16, header: &[u8], packet: &[u8], now: Instant) -> bool {
        if self.0.len() >= MAX_FRAMES {
            return false;
        }
        self.0.push_back(QueuedFrame {
            slot,
            queued_at: now,
            frame: [header, packet].concat().into(),
        });
        true
    }

    /// Retries all frames in order. Returns the number of frames that are given up.
    fn retry(&mut self, now: Instant, mut send: impl FnMut(u16, &[u8]) -> ForwardResult) -> u64 {
        let mut full = Vec::new();
        let mut lost = 0;
        self.0.retain(|queued| {
            let result = match full.contains(&queued.slot) {
                true => ForwardResult::NoRoom,
                false => send(queued.slot, &queued.frame),
            };
            let is_over = now.duration_since(queued.queued_at) > MAX_AGE;
            match result {
                ForwardResult::Sent => return false,
                ForwardResult::NoRoom if !is_over => full.push(queued.slot),
                ForwardResult::NoRoom | ForwardResult::NoProcess => lost += 1,
            }
            result == ForwardResult::NoRoom && !is_over
        });
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_their_order_and_expire() {
        let (mut waiting, now) = (Frames::default(), Instant::now());
        for (slot, packet) in [(1, b"a"), (2, b"b"), (1, b"c")] {
            assert!(waiting.push_frame(slot, b"", packet, now));
        }
        assert!(waiting.has_frames_for(1) && !waiting.has_frames_for(3));
        let mut tried = Vec::new();
        let lost = waiting.retry(now, |slot, frame| {
            tried.push((slot, frame.to_vec()));
            if slot == 1 { ForwardResult::NoRoom } else { ForwardResult::Sent }
        });
        let installed = [(1, b"a".to_vec()), (2, b"b".to_vec())];
        assert_eq!(
            (lost, tried),
            (0, installed.to_vec()),
            "nothing overtakes what is for the same"
        );
        let later = now + MAX_AGE + Duration::from_millis(1);
        assert_eq!(waiting.retry(later, |_, _| ForwardResult::NoRoom), 2);
        assert!(waiting.is_empty());
        assert!((0..MAX_FRAMES).all(|_| waiting.push_frame(1, b"", b"x", now)));
        assert!(!waiting.push_frame(1, b"", b"x", now), "there is an end to it");
        assert_eq!(waiting.retry(now, |_, _| ForwardResult::NoProcess), MAX_FRAMES as u64);
    }
}
