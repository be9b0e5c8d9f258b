//! Packets of a wire between hosts, reported by a plugin (`ferroverbs_plugin_ext.tell_packets`).
//! They are written unchanged, with a comment about their request.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use abi::{ferroverbs_packet, ferroverbs_plugin_ext, ibv_ah, ibv_qp, verbs_context_ops};
use cface::lock::Guard;
use cface::shared::StaticMutex;
use layer_records::pcapng::{Direction, Link};
use layer_tap::plugin;
use roce::wire::{ICRC_LEN, Message, Packet};

use crate::frames::{self, PacketInfo, Route};
use crate::line::CommentLine;
use crate::qp::CapturedQp;
use crate::request;
use crate::settings::settings;
use crate::writer;

/// The description of the interface.
const WIRE: &str = "packets of the RoCE wire, as the software adapter sent and took them";

/// The extension table of the plugin that reports packets.
static EXT: OnceLock<ferroverbs_plugin_ext> = OnceLock::new();
/// The queue pairs that use a wire. Lock order: a leaf.
static WIRED: StaticMutex<Option<WireQps>> = StaticMutex::new(None);

#[derive(Default)]
struct WireQps {
    /// QPs by number.
    by_number: HashMap<u32, Arc<CapturedQp>>,
    /// Connected QPs by peer: QP number and address.
    peers: HashMap<(u32, [u8; 16]), Arc<CapturedQp>>,
}

/// Asks the plugin of these operations to report packets, if the plugin can.
///
/// # Safety
/// `ops` is a complete table of operations.
pub(crate) unsafe fn begin(ops: *const verbs_context_ops) {
    if EXT.get().is_some() {
        return;
    }
    // SAFETY: per the caller.
    let Some(ext) = (unsafe { plugin::ext_of(ops) }) else { return };
    let Some(tell) = ext.tell_packets else { return };
    // SAFETY: `on_packet` can be called at any time.
    if unsafe { tell(on_packet) } == 0 {
        let _ = EXT.set(ext);
    }
}

/// Whether the packets of this QP use a wire; for a datagram, those to the address handle.
///
/// # Safety
/// Both objects are live, or the handle is NULL.
pub(crate) unsafe fn is_wired(qp: *mut ibv_qp, ah: *mut ibv_ah) -> bool {
    let Some(ask) = EXT.get().and_then(|ext| ext.is_wired) else { return false };
    // SAFETY: the function belongs to a plugin, and the QP is the plugin's own (`is_of_plugin`).
    unsafe { ask(qp, ah) == 1 }
}

/// Whether a device's operations belong to the plugin that reports packets.
///
/// # Safety
/// `ops` is a complete table of operations.
pub(crate) unsafe fn is_of_plugin(ops: *const verbs_context_ops) -> bool {
    let Some(tell) = EXT.get().and_then(|ext| ext.tell_packets) else { return false };
    let base = |at: *const c_void| {
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: dladdr accepts any address.
        let found = unsafe { libc::dladdr(at, info.as_mut_ptr()) };
        // SAFETY: the structure is zeroed or filled by dladdr; both are valid.
        (found != 0).then(|| unsafe { info.assume_init() }.dli_fbase)
    };
    let plugin = base(tell as *const c_void);
    let entries = ops.cast::<*const c_void>();
    // SAFETY: the indices are within the table.
    let mut all = (0..size_of::<verbs_context_ops>() / 8).map(|i| unsafe { entries.add(i).read() });
    plugin.is_some() && all.any(|entry| base(entry) == plugin)
}

/// Adds a QP that uses a wire.
pub(crate) fn insert(known: &Arc<CapturedQp>, peer: Option<(u32, [u8; 16])>) {
    let mut wired = WIRED.lock();
    let wired = wired.get_or_insert_default();
    wired.by_number.insert(known.number, known.clone());
    if let Some(peer) = peer {
        wired.peers.insert(peer, known.clone());
    }
}

/// Removes a destroyed QP.
pub(crate) fn remove(known: &Arc<CapturedQp>) {
    if let Some(wired) = &mut *WIRED.lock() {
        wired.by_number.retain(|_, other| !Arc::ptr_eq(other, known));
        wired.peers.retain(|_, other| !Arc::ptr_eq(other, known));
    }
}

/// The lock that a forking thread must hold.
pub(crate) fn hold() -> Guard {
    WIRED.hold()
}

unsafe extern "C" fn on_packet(packet: *const ferroverbs_packet) {
    // SAFETY: the plugin's packet is valid during this call. Its stated size is checked below.
    let Some(packet) = (unsafe { packet.as_ref() }) else { return };
    if packet.size < size_of::<ferroverbs_packet>() {
        return;
    }
    // SAFETY: the plugin states the length of the bytes, which are valid during this call.
    let bytes = unsafe { core::slice::from_raw_parts(packet.bytes, packet.length as usize) };
    write(packet, bytes);
}

fn write(packet: &ferroverbs_packet, bytes: &[u8]) {
    let time = layer_tap::now();
    let is_sent = packet.is_sent != 0;
    let parsed = Packet::parse(bytes).ok().map(|(parsed, _)| parsed);
    let number = parsed.map(|parsed| parsed.bth.dest_qpn.get());
    let known = {
        let wired = WIRED.lock();
        let Some(wired) = &*wired else { return };
        match (is_sent, parsed.map(|parsed| parsed.message), number) {
            (true, Some(Message::Ud(deth, _)), _) => {
                wired.by_number.get(&deth.src_qpn.get()).cloned()
            }
            (true, _, Some(number)) => wired.peers.get(&(number, packet.destination)).cloned(),
            (false, _, Some(number)) => wired.by_number.get(&number).cloned(),
            _ => None,
        }
    };
    if let (false, Some(Message::Ud(deth, _)), Some(known)) =
        (is_sent, parsed.map(|parsed| parsed.message), &known)
    {
        known.note_datagram(deth.src_qpn.get());
    }
    let wanted = match &known {
        Some(known) => known.passes_filters,
        // A packet of an unknown QP is written only without filters.
        None => settings().passes("", 0),
    };
    if !wanted {
        return;
    }
    let is_ours = match parsed.map(|parsed| parsed.message) {
        // Requests are sent by this process, and answers are received.
        Some(Message::Rc(_) | Message::Xrc(..) | Message::Uc(_)) => is_sent,
        Some(Message::RcResponse(_) | Message::XrcResponse(_)) => !is_sent,
        _ => false,
    };
    let request = match (&known, parsed) {
        (Some(known), Some(parsed)) if is_ours => known.comment_of(parsed.bth.psn),
        _ => None,
    };
    let class = bytes.first().and_then(|opcode| request::class_of_packet(*opcode));
    let class = class.or(request.as_ref().map(|(_, class)| *class));
    if class.is_some_and(|class| !settings().wants_class(class)) {
        return;
    }
    let mut comment = match (request, &known) {
        (Some((comment, _)), _) => comment,
        (None, Some(known)) => CommentLine::of_qp(known.number),
        (None, None) => CommentLine::empty(),
    };
    let is_whole = packet.source_port != 0;
    if !is_whole {
        comment.text(
            "; another process took it from the socket: UDP source port and ICRC are made up",
        );
    }
    let way = Route {
        source: packet.source,
        destination: packet.destination,
        traffic_class: packet.traffic_class,
        hop_limit: packet.hop_limit,
        source_port: if is_whole { packet.source_port } else { 0xc000 },
        identification: packet.identification,
    };
    let icrc: Option<[u8; ICRC_LEN]> = is_whole.then_some(packet.icrc);
    let interface = interface();
    let direction = if is_sent { Direction::Out } else { Direction::In };
    let about = PacketInfo { interface, time, direction, comment: &comment, at_once: false };
    frames::copy(&about, &way, bytes, icrc);
}

/// The interface of the wire. A race is harmless, because the writer returns the same index.
fn interface() -> u32 {
    static INTERFACE: AtomicU32 = AtomicU32::new(u32::MAX);
    let known = INTERFACE.load(Ordering::Relaxed);
    if known != u32::MAX {
        return known;
    }
    let number = writer::interface(Link::Ethernet, "RoCE", WIRE);
    INTERFACE.store(number, Ordering::Relaxed);
    number
}

/// The GID at `index` of a port's table; zeros if the library cannot be asked.
pub(crate) fn gid(context: usize, port: u8, index: u8) -> [u8; 16] {
    type Query = unsafe extern "C" fn(usize, u8, i32, *mut [u8; 16]) -> i32;
    static QUERY: OnceLock<Option<Query>> = OnceLock::new();
    const LIBRARY: &core::ffi::CStr = c"libibverbs.so.1";
    let query = QUERY.get_or_init(|| {
        // SAFETY: RTLD_NOLOAD opens only a library that is loaded already, and this one loaded the
        // layer.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: the handle is valid in this process.
        let function = unsafe { libc::dlsym(handle, c"ibv_query_gid".as_ptr()) };
        // SAFETY: the result is NULL, or the function of ibv_query_gid(3) with this prototype.
        unsafe { core::mem::transmute::<*mut c_void, Option<Query>>(function) }
    });
    let mut gid = [0; 16];
    if let Some(query) = query {
        // SAFETY: the context is open, and the array has room for a GID.
        unsafe { query(context, port, index.into(), &raw mut gid) };
    }
    gid
}
