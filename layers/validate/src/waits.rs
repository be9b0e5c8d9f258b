//! Threads that wait in `ibv_get_cq_event(3)`: CQ-05, where nothing is armed.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Instant;

use abi::{ibv_comp_channel, ibv_context};
use cface::lock::Guard;
use cface::shared::Shared;

use crate::checks::Id;
use crate::cq::PATIENCE;
use crate::objects::list;
use crate::report::{Message, tell, wanted};
use crate::state::{CQS, Cq};
use crate::table::Table;

/// A completion channel that has CQs.
pub(crate) struct Channel {
    fd: c_int,
    /// How many CQs it has.
    users: AtomicU32,
    /// How often its CQs were armed, without the events that were got for it. An event is for one arming, and one that is armed twice makes one event: so
    /// where this is 0 nothing is armed, and no event is on its way.
    arms: AtomicU32,
}

/// By descriptor (`key`): the call that destroys a channel is no layer's, so that one lives here as long as it has CQs.
static CHANNELS: Table<Channel> = Table::new();
/// Who makes a channel known, or lets it go. Order: before `CHANNELS`.
static CHANGING: Shared<()> = Shared::new(());

/// To fork: nobody changes the channels until the results are dropped.
pub(crate) fn hold() -> [Guard; 2] {
    [CHANGING.hold(), CHANNELS.hold()]
}

fn key(fd: c_int) -> usize {
    (fd.cast_unsigned() as usize) << 4 | 1
}

/// The channel of a CQ that was just made, if it has one.
///
/// # Safety
/// NULL, or a live channel.
pub(crate) unsafe fn channel_of(channel: *const ibv_comp_channel) -> Option<Arc<Channel>> {
    // SAFETY: per the caller.
    let fd = unsafe { channel.as_ref() }?.fd;
    let _changing = CHANGING.lock();
    if let Some(known) = CHANNELS.share(key(fd)) {
        known.users.fetch_add(1, Ordering::Relaxed);
        return Some(known);
    }
    let fresh = Arc::new(Channel { fd, users: AtomicU32::new(1), arms: AtomicU32::new(0) });
    CHANNELS.insert(key(fd), fresh.clone());
    Some(fresh)
}

/// A CQ is gone.
pub(crate) fn gone(cq: &Cq) {
    let Some(channel) = &cq.channel else { return };
    let _changing = CHANGING.lock();
    channel.arms.fetch_sub(cq.arms.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    if channel.users.fetch_sub(1, Ordering::Relaxed) == 1 {
        CHANNELS.remove(key(channel.fd));
    }
}

/// It is about to be armed: its event may come before the call returns.
pub(crate) fn arming(cq: &Cq) {
    if let Some(channel) = &cq.channel {
        channel.arms.fetch_add(1, Ordering::Relaxed);
        cq.arms.fetch_add(1, Ordering::Relaxed);
    }
}

/// Its event was got, or it was not armed after all.
pub(crate) fn disarmed(cq: &Cq) {
    let less = |arms: u32| arms.checked_sub(1);
    if let Some(channel) = &cq.channel
        && cq.arms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    {
        channel.arms.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `ferroverbs_layer.awaits`.
pub(crate) unsafe extern "C" fn awaits(_context: *mut ibv_context, fd: c_int) -> c_int {
    match CHANNELS.get(key(fd)) {
        Some(channel) if channel.arms.load(Ordering::Relaxed) == 0 => unarmed(channel),
        _ => 0,
    }
}

/// CQ-05. Another thread may be just about to arm one; and what was sent before a program was told of its wait may be an event that it does not know of.
#[cold]
fn unarmed(channel: &Channel) -> c_int {
    // SAFETY: F_GETFL takes no argument.
    let flags = unsafe { libc::fcntl(channel.fd, libc::F_GETFL) };
    if !wanted(Id::Cq05) || flags < 0 || flags & libc::O_NONBLOCK != 0 {
        return 0;
    }
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let mut watched = libc::pollfd { fd: channel.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, ours.
        let ready = unsafe { libc::poll(&raw mut watched, 1, 1) };
        if ready < 0 {
            // As the call would end that is interrupted.
            return std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINTR);
        }
        if ready > 0 || channel.arms.load(Ordering::Relaxed) != 0 {
            return 0;
        }
    }
    let cqs = CQS.all();
    let of = |cq: &&Arc<Cq>| cq.channel.as_ref().is_some_and(|of| core::ptr::eq(&**of, channel));
    let cqs: Vec<_> = cqs.iter().filter(of).collect();
    let names: Vec<_> = cqs.iter().map(|cq| format!("cq {:#x}", cq.at)).collect();
    let message = Message {
        id: Id::Cq05,
        call: "ibv_get_cq_event",
        object: format!("channel with fd {}", channel.fd),
        text: format!("it waits, maybe for ever: nothing is armed there ({})", list(&names)),
        remedy:
            "ibv_req_notify_cq before each wait, and poll once more after it: it is for one event"
                .into(),
        also: cqs.first().map(|cq| ("the CQ was created", cq.made)),
    };
    tell(&message, None);
    0
}
