//! CQ-05 and CQ-10: checks of threads that wait in `ibv_get_cq_event(3)`. CQ-05 reports a wait
//! without an armed CQ, CQ-10 a wait for solicited completions that do not come.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Instant;

use abi::{ibv_comp_channel, ibv_context};
use cface::lock::Guard;
use cface::shared::Shared;

use crate::checks::Id;
use crate::cq::GRACE;
use crate::objects::list;
use crate::report::{Message, emit, wanted};
use crate::state::{CQS, Cq};
use crate::table::Table;

/// A completion channel with at least one CQ.
pub(crate) struct Channel {
    fd: c_int,
    /// Number of CQs.
    users: AtomicU32,
    /// Number of times that CQs were armed, minus the events that were read. An event ends one
    /// arming, and a CQ that is armed twice makes one event. So 0 means that no CQ is armed and no
    /// event is on its way.
    arms: AtomicU32,
}

/// Channels by descriptor (`key`). No layer sees the destruction of a channel, so a record lives
/// as long as the channel has CQs.
static CHANNELS: Table<Channel> = Table::new();
/// Held while a channel is found or left, a CQ is destroyed, or the plugin is asked about a CQ.
/// Lock order: before `CHANNELS` and `CQS`.
static CHANGING: Shared<()> = Shared::new(());

/// Whether the process is the child of a fork. There the plugin's knowledge of inherited queues is
/// the parent's.
static FORKED: AtomicBool = AtomicBool::new(false);

pub(crate) fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// For a fork: no thread changes the channels until the results are dropped.
pub(crate) fn hold() -> [Guard; 2] {
    [CHANGING.hold(), CHANNELS.hold()]
}

fn key(fd: c_int) -> usize {
    (fd.cast_unsigned() as usize) << 4 | 1
}

/// The channel of a new CQ; `None` without a channel.
///
/// # Safety
/// `channel` is NULL or live.
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

/// Prepares the destruction of a CQ.
pub(crate) fn leaves(at: usize) {
    // The lock keeps other threads from asking the plugin about the CQ, now and later.
    let _changing = CHANGING.lock();
    CQS.remove(at);
}

/// Forgets a destroyed CQ.
pub(crate) fn gone(cq: &Cq) {
    let Some(channel) = &cq.channel else { return };
    let _changing = CHANGING.lock();
    channel.arms.fetch_sub(cq.arms.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    if channel.users.fetch_sub(1, Ordering::Relaxed) == 1 {
        CHANNELS.remove(key(channel.fd));
    }
}

/// Notes that the CQ is being armed. Its event may come before the call returns.
pub(crate) fn arming(cq: &Cq, solicited_only: bool) {
    if let Some(channel) = &cq.channel {
        channel.arms.fetch_add(1, Ordering::Relaxed);
        let is_first = cq.arms.fetch_add(1, Ordering::Relaxed) == 0;
        let solicited = solicited_only && (is_first || cq.solicited.load(Ordering::Relaxed));
        cq.solicited.store(solicited, Ordering::Relaxed);
    }
}

/// Notes that the event of the CQ was read, or that arming failed.
pub(crate) fn disarmed(cq: &Cq) {
    let less = |arms: u32| arms.checked_sub(1);
    if let Some(channel) = &cq.channel
        && cq.arms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    {
        channel.arms.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The entry `ferroverbs_layer.awaits`, called before a thread waits.
pub(crate) unsafe extern "C" fn awaits(_context: *mut ibv_context, fd: c_int) -> c_int {
    match CHANNELS.get(key(fd)) {
        Some(channel) if channel.arms.load(Ordering::Relaxed) == 0 => report_unarmed(channel),
        Some(channel) if wanted(Id::Cq10) => report_solicited_only(channel),
        _ => 0,
    }
}

impl Channel {
    /// The CQs of the channel.
    fn cqs(&self) -> Vec<Arc<Cq>> {
        let of = |cq: &Arc<Cq>| cq.channel.as_ref().is_some_and(|of| core::ptr::eq(&**of, self));
        let mut all = CQS.all();
        all.retain(of);
        all
    }

    /// Whether a reader of the channel sleeps if no event waits.
    fn blocks(&self) -> bool {
        // SAFETY: F_GETFL takes no argument.
        let flags = unsafe { libc::fcntl(self.fd, libc::F_GETFL) };
        flags >= 0 && flags & libc::O_NONBLOCK == 0
    }

    /// Waits for an event while the condition `holds`, which another thread may be about to end.
    /// Returns whether the condition held for `GRACE`. The error is the errno of an interrupted
    /// wait.
    fn persists(&self, holds: impl Fn() -> bool) -> Result<bool, c_int> {
        let begin = Instant::now();
        while begin.elapsed() < GRACE {
            let mut watched = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: the array has one entry.
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
    fn emit(&self, id: Id, cq: Option<&Cq>, text: String, remedy: &str) {
        let message = Message {
            id,
            call: "ibv_get_cq_event",
            object: format!("channel with fd {}", self.fd),
            text: format!("it waits, maybe for ever: {text}"),
            remedy: remedy.into(),
            also: cq.map(|cq| ("the CQ was created", cq.made)),
        };
        emit(&message, None);
    }
}

/// CQ-05: reports a wait while no CQ is armed.
#[cold]
fn report_unarmed(channel: &Channel) -> c_int {
    if !wanted(Id::Cq05) || !channel.blocks() {
        return 0;
    }
    match channel.persists(|| channel.arms.load(Ordering::Relaxed) == 0) {
        Ok(true) => {}
        Ok(false) => return 0,
        Err(error) => return error,
    }
    let cqs = channel.cqs();
    let names: Vec<_> = cqs.iter().map(|cq| format!("cq {:#x}", cq.at)).collect();
    let text = format!("nothing is armed there ({})", list(&names));
    let remedy = "ibv_req_notify_cq before each wait, which is for one event, and ibv_poll_cq once more after it";
    channel.emit(Id::Cq05, cqs.first().map(|cq| &**cq), text, remedy);
    0
}

/// CQ-10: reports a wait for solicited completions while only unsolicited ones come.
#[cold]
fn report_solicited_only(channel: &Channel) -> c_int {
    let cqs = channel.cqs();
    // A CQ that is armed for all completions may bring an event.
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
    match channel.persists(only) {
        Ok(true) => {}
        Ok(false) => return 0,
        Err(error) => return error,
    }
    if let Some((cq, what)) = stuck() {
        let text = format!("cq {:#x} is armed for solicited completions only, and {what}", cq.at);
        let remedy = "IBV_SEND_SOLICITED in what the peer sends last, or ibv_req_notify_cq with solicited_only 0";
        channel.emit(Id::Cq10, Some(cq), text, remedy);
    }
    0
}

/// The completions or requests of a CQ that bring no solicited event.
fn without_event(cq: &Cq) -> Option<String> {
    let waiting = {
        let _changing = CHANGING.lock();
        let is_there = CQS.get(cq.at).is_some_and(|known| core::ptr::eq(known, cq))
            && !FORKED.load(Ordering::Relaxed);
        let at = core::ptr::with_exposed_provenance_mut(cq.at);
        // SAFETY: the function belongs to the plugin that created the CQ. The CQ is removed from
        // the table (`leaves`) before its destruction.
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
