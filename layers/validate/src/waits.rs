//! Threads that wait in `ibv_get_cq_event(3)`: CQ-05, where nothing is armed, and CQ-10, where nothing is that comes.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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
/// Who makes a channel known, lets it go, destroys a CQ or asks the plugin about one. Order: before `CHANNELS` and `CQS`.
static CHANGING: Shared<()> = Shared::new(());

/// In the child of a fork: what the plugin knows of queues that it was left, it knows of its parent's.
static FORKED: AtomicBool = AtomicBool::new(false);

pub(crate) fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

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

/// A CQ is about to be destroyed.
pub(crate) fn leaves(at: usize) {
    // Nobody asks its plugin about it meanwhile, nor afterwards.
    let _changing = CHANGING.lock();
    CQS.remove(at);
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
pub(crate) fn arming(cq: &Cq, solicited_only: bool) {
    if let Some(channel) = &cq.channel {
        channel.arms.fetch_add(1, Ordering::Relaxed);
        let is_first = cq.arms.fetch_add(1, Ordering::Relaxed) == 0;
        let solicited = solicited_only && (is_first || cq.solicited.load(Ordering::Relaxed));
        cq.solicited.store(solicited, Ordering::Relaxed);
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
        Some(channel) if wanted(Id::Cq10) => unsolicited(channel),
        _ => 0,
    }
}

impl Channel {
    /// Its CQs.
    fn cqs(&self) -> Vec<Arc<Cq>> {
        let of = |cq: &Arc<Cq>| cq.channel.as_ref().is_some_and(|of| core::ptr::eq(&**of, self));
        let mut all = CQS.all();
        all.retain(of);
        all
    }

    /// Whether who reads it sleeps when there is nothing.
    fn blocks(&self) -> bool {
        // SAFETY: F_GETFL takes no argument.
        let flags = unsafe { libc::fcntl(self.fd, libc::F_GETFL) };
        flags >= 0 && flags & libc::O_NONBLOCK == 0
    }

    /// Waits for an event as long as something `holds`: another thread may be just about to end that. Whether it did for as long as one is patient; or an
    /// errno, as the call would end that is interrupted.
    fn in_vain(&self, holds: impl Fn() -> bool) -> Result<bool, c_int> {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let mut watched = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, ours.
            let ready = unsafe { libc::poll(&raw mut watched, 1, 1) };
            if ready < 0 {
                return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINTR));
            }
            if ready > 0 || !holds() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    #[cold]
    fn tell(&self, id: Id, cq: Option<&Cq>, text: String, remedy: &str) {
        let message = Message {
            id,
            call: "ibv_get_cq_event",
            object: format!("channel with fd {}", self.fd),
            text: format!("it waits, maybe for ever: {text}"),
            remedy: remedy.into(),
            also: cq.map(|cq| ("the CQ was created", cq.made)),
        };
        tell(&message, None);
    }
}

/// CQ-05.
#[cold]
fn unarmed(channel: &Channel) -> c_int {
    if !wanted(Id::Cq05) || !channel.blocks() {
        return 0;
    }
    match channel.in_vain(|| channel.arms.load(Ordering::Relaxed) == 0) {
        Ok(true) => {}
        Ok(false) => return 0,
        Err(error) => return error,
    }
    let cqs = channel.cqs();
    let names: Vec<_> = cqs.iter().map(|cq| format!("cq {:#x}", cq.at)).collect();
    let text = format!("nothing is armed there ({})", list(&names));
    let remedy = "ibv_req_notify_cq before each wait, which is for one event, and ibv_poll_cq once more after it";
    channel.tell(Id::Cq05, cqs.first().map(|cq| &**cq), text, remedy);
    0
}

/// CQ-10.
#[cold]
fn unsolicited(channel: &Channel) -> c_int {
    let cqs = channel.cqs();
    // One that is armed for all completions may bring an event.
    let only = || {
        let armed = |cq: &&Arc<Cq>| cq.arms.load(Ordering::Relaxed) != 0;
        cqs.iter().filter(armed).all(|cq| cq.solicited.load(Ordering::Relaxed))
    };
    let stuck = || {
        let armed = cqs.iter().filter(|cq| cq.arms.load(Ordering::Relaxed) != 0);
        armed.into_iter().find_map(|cq| Some((cq, without_event(cq)?)))
    };
    if !only() || stuck().is_none() || !channel.blocks() {
        return 0;
    }
    match channel.in_vain(only) {
        Ok(true) => {}
        Ok(false) => return 0,
        Err(error) => return error,
    }
    if let Some((cq, what)) = stuck() {
        let text = format!("cq {:#x} is armed for solicited completions only, and {what}", cq.at);
        let remedy = "IBV_SEND_SOLICITED in what the peer sends last, or ibv_req_notify_cq with solicited_only 0";
        channel.tell(Id::Cq10, Some(cq), text, remedy);
    }
    0
}

/// What a CQ has, or gets, that brings no event.
fn without_event(cq: &Cq) -> Option<String> {
    let waiting = {
        let _changing = CHANGING.lock();
        let is_there = CQS.get(cq.at).is_some_and(|known| core::ptr::eq(known, cq))
            && !FORKED.load(Ordering::Relaxed);
        let at = core::ptr::with_exposed_provenance_mut(cq.at);
        // SAFETY: the function of the plugin that made the CQ, which is not destroyed before it is taken out of the table (`leaves`).
        cq.ctx.waiting.filter(|_| is_there).map_or(0, |waiting| unsafe { waiting(at) })
    };
    if waiting > 0 {
        return Some(format!("{waiting} completions wait in it that were not"));
    }
    let (mut sends, mut receives) = (0, 0);
    for qp in cq.qps.lock().iter() {
        let is = |queue: &Option<Arc<Cq>>| queue.as_ref().is_some_and(|queue| queue.at == cq.at);
        if is(&qp.send_cq) {
            sends += qp.send.lock().due;
        }
        if is(&qp.recv_cq) {
            receives += usize::from(qp.srq.is_some()) + qp.recv.lock().flights.len();
        }
    }
    (sends > 0 && receives == 0).then(|| {
        format!("{sends} sends complete in it and no receives, but a send that succeeds is never solicited")
    })
}
