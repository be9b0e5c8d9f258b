//! Shortcuts for the packets of a QP that go alone.

use cface::sync::Mutex;
use ferroverbs_net::{Ecn, Path, Shortcut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether packets that go alone to the other end of a QP go by a shortcut.
#[derive(Debug, Default)]
pub(super) struct Short {
    /// The other end is one of ours. Another one would have to be refused packets if a kernel numbered them otherwise than it did at first; ours finds out.
    is_ours: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// There is none yet; so many packets have gone alone.
    Not(u32),
    Open(Shortcut, Share),
    /// There is none, and will be none.
    Never,
}

/// A shortcut of those that a process has at most.
#[derive(Debug)]
struct Share;

/// Packets that go alone before it is worth a socket: to open it takes as long as is gained with some dozens.
const WORTH: u32 = 64;
/// Shortcuts of a process at most: each is a descriptor.
const MOST: usize = 64;
static OPEN: AtomicUsize = AtomicUsize::new(0);

impl Default for State {
    fn default() -> Self {
        Self::Not(0)
    }
}

impl Short {
    /// The other end has shown that it is one of ours.
    pub(super) fn is_to_ours(&self) {
        if !self.is_ours.load(Ordering::Relaxed) {
            self.is_ours.store(true, Ordering::Relaxed);
        }
    }

    /// Sends `packet` by the shortcut of `path`, once `seal` made its ICRC for an IPv4 identification; `false`: it is to go another way.
    pub(super) fn send(
        &self,
        path: &Path,
        ecn: Ecn,
        packet: &mut [u8],
        seal: impl FnOnce(&mut [u8], u16),
    ) -> bool {
        if !self.is_ours.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state.lock();
        if let State::Not(before) = *state {
            *state = if before < WORTH { State::Not(before + 1) } else { State::open(path) };
        }
        let State::Open(shortcut, _) = &mut *state else { return false };
        if !shortcut.takes(ecn) {
            return false;
        }
        seal(packet, shortcut.identification());
        let went = shortcut.send(packet).is_ok();
        if !went {
            // The route, the cable or the other end is gone, perhaps for a moment.
            *state = State::Not(0);
        }
        went
    }
}

impl State {
    #[cold]
    fn open(path: &Path) -> Self {
        let Some(share) = Share::take() else { return Self::Not(0) };
        match Shortcut::open(path) {
            Ok(shortcut) => Self::Open(shortcut, share),
            Err(_) => Self::Never,
        }
    }
}

impl Share {
    fn take() -> Option<Self> {
        let more = |open: usize| (open < MOST).then_some(open + 1);
        OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then_some(Self)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}
