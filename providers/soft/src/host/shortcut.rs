//! A connected UDP socket for the packets of a QP that are sent alone, at a lower cost than a
//! batch.
//! Stands between the outbox (`sockets`) and the kernel.

use cface::sync::Mutex;
use ferroverbs_net::{Ecn, Path, Shortcut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The shortcut of one QP, opened after some packets.
#[derive(Debug, Default)]
pub(super) struct PeerShortcut {
    /// The peer has proved to be `soft`. A foreign peer might reject packets if the kernel changed
    /// its IPv4 identifications later; `soft` searches for the right identification.
    is_peer_confirmed: AtomicBool,
    state: Mutex<ShortcutState>,
}

#[derive(Debug)]
enum ShortcutState {
    /// No socket yet; the number of packets sent alone so far.
    Unopened(u32),
    Open(Shortcut, ShortcutPermit),
    /// The system refuses such a socket.
    Unavailable,
}

/// The permit for one of at most `MAX_OPEN` shortcuts.
#[derive(Debug)]
struct ShortcutPermit;

/// Packets sent alone before a socket is opened. Some dozens of packets save as much time as the
/// opening takes.
const OPEN_AFTER: u32 = 64;
/// Maximum number of shortcuts of a process: each takes a descriptor.
const MAX_OPEN: usize = 64;
static OPEN: AtomicUsize = AtomicUsize::new(0);

impl Default for ShortcutState {
    fn default() -> Self {
        Self::Unopened(0)
    }
}

impl PeerShortcut {
    /// Notes that the peer has proved to be `soft`.
    pub(super) fn confirm_peer(&self) {
        if !self.is_peer_confirmed.load(Ordering::Relaxed) {
            self.is_peer_confirmed.store(true, Ordering::Relaxed);
        }
    }

    /// Sends `packet` by the shortcut of `path`. `seal` writes the ICRC for an IPv4 identification.
    /// Returns false if the caller has to send the packet by a batch.
    pub(super) fn send(
        &self,
        path: &Path,
        ecn: Ecn,
        packet: &mut [u8],
        seal: impl FnOnce(&mut [u8], u16),
    ) -> bool {
        if !self.is_peer_confirmed.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state.lock();
        if let ShortcutState::Unopened(before) = *state {
            *state = if before < OPEN_AFTER {
                ShortcutState::Unopened(before + 1)
            } else {
                ShortcutState::open(path)
            };
        }
        let ShortcutState::Open(shortcut, _) = &mut *state else { return false };
        if !shortcut.takes(ecn) {
            return false;
        }
        seal(packet, shortcut.identification());
        let went = shortcut.send(packet).is_ok();
        if !went {
            // Route, cable or peer is gone, perhaps briefly.
            *state = ShortcutState::Unopened(0);
        }
        went
    }
}

impl ShortcutState {
    #[cold]
    fn open(path: &Path) -> Self {
        let Some(share) = ShortcutPermit::take() else { return Self::Unopened(0) };
        match Shortcut::open(path) {
            Ok(shortcut) => Self::Open(shortcut, share),
            Err(_) => Self::Unavailable,
        }
    }
}

impl ShortcutPermit {
    fn take() -> Option<Self> {
        let more = |open: usize| (open < MAX_OPEN).then_some(open + 1);
        OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then_some(Self)
    }
}

impl Drop for ShortcutPermit {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}
