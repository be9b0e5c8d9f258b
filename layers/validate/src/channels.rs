//! Completion channels that have CQs, and how often their CQs are armed. `waits` reads the counts
//! before a thread waits for an event.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Instant;

use cface::lock::Guard;
use cface::shared::StaticMutex;
use layer_tap::table::Table;

use crate::native;
use crate::patience::GRACE;

/// A completion channel with at least one CQ.
pub(crate) struct Channel {
    pub(crate) fd: c_int,
    /// Number of CQs.
    users: AtomicU32,
    /// Number of times that CQs were armed, minus the events that were read. An event ends one
    /// arming, and a CQ that is armed twice makes one event. So 0 means that no CQ is armed and no
    /// event is on its way.
    arms: AtomicU32,
}

/// Channels by descriptor (`key`). No layer sees the destruction of a channel, so a record lives as
/// long as the channel has CQs.
static CHANNELS: Table<Channel> = Table::new();
/// Held while a channel is found or left, a CQ is destroyed, or the plugin is asked about a CQ.
/// Lock order: before `CHANNELS` and `CQS`.
static CHANGING: StaticMutex<()> = StaticMutex::new(());

/// For a fork: no thread changes the channels until the results are dropped.
pub(crate) fn hold() -> [Guard; 2] {
    [CHANGING.hold(), CHANNELS.hold()]
}

/// Runs `act` while no CQ is destroyed and no channel is found or left.
pub(crate) fn unchanged<R>(act: impl FnOnce() -> R) -> R {
    let _changing = CHANGING.lock();
    act()
}

fn key(fd: c_int) -> usize {
    (fd.cast_unsigned() as usize) << 4 | 1
}

/// The channel with this descriptor, if it has CQs.
pub(crate) fn channel_with_cqs(fd: c_int) -> Option<&'static Channel> {
    CHANNELS.get(key(fd))
}

/// The channel of a new CQ.
pub(crate) fn join(fd: c_int) -> Arc<Channel> {
    unchanged(|| {
        if let Some(known) = CHANNELS.share(key(fd)) {
            known.users.fetch_add(1, Ordering::Relaxed);
            return known;
        }
        let fresh = Arc::new(Channel { fd, users: AtomicU32::new(1), arms: AtomicU32::new(0) });
        CHANNELS.insert(key(fd), fresh.clone());
        fresh
    })
}

impl Channel {
    /// Forgets a destroyed CQ, which was armed `arms` times.
    pub(crate) fn remove_cq(&self, arms: u32) {
        unchanged(|| {
            self.arms.fetch_sub(arms, Ordering::Relaxed);
            if self.users.fetch_sub(1, Ordering::Relaxed) == 1 {
                CHANNELS.remove(key(self.fd));
            }
        });
    }

    /// Notes that a CQ was armed.
    pub(crate) fn arm(&self) {
        self.arms.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that an arming ended.
    pub(crate) fn disarm(&self) {
        self.arms.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether no CQ is armed, and no event is on its way.
    #[inline]
    pub(crate) fn is_unarmed(&self) -> bool {
        self.arms.load(Ordering::Relaxed) == 0
    }

    /// The name of the channel in messages.
    pub(crate) fn name(&self) -> String {
        format!("channel with fd {}", self.fd)
    }

    /// Whether a reader of the channel sleeps if no event waits.
    pub(crate) fn blocks(&self) -> bool {
        native::blocks(self.fd)
    }

    /// Waits for an event while the condition `holds`, which another thread may be about to end.
    /// Returns whether the condition held for `GRACE`. The error is the errno of an interrupted
    /// wait.
    pub(crate) fn persists(&self, holds: impl Fn() -> bool) -> Result<bool, c_int> {
        let begin = Instant::now();
        while begin.elapsed() < GRACE {
            if native::poll(self.fd, 1)? != 0 || !holds() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
