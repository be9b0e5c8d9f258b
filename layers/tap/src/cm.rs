//! Calls of librdmacm. The tap gives each call to the watcher, which calls librdmacm's function. No
//! call is on the data path.
//!
//! Map of this file: `attach_cm`; readers of structures; the words of a call, before and after; the
//! macro of the calls with `ConnectionCalls`; `report`; tests.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use abi::{
    IBV_QP_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, RAI_PASSIVE,
    RDMA_CM_EVENT_CONNECT_REQUEST, each_cm_call, ferroverbs_cm_calls, ibv_context, ibv_ece,
    ibv_event_type, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, rdma_addrinfo, rdma_cm_event, rdma_cm_event_type, rdma_cm_id,
    rdma_cm_join_mc_attr_ex, rdma_conn_param, rdma_event_channel, rdma_port_space,
};

use crate::argument::{Argument, Next, Returned};
use crate::control::{errno, named, report_call};
use crate::{Call, Watcher, beneath, now};
use layer_records::file::pack_text;

/// The calls beneath this layer; NULL before `attach_cm`.
static NEXT: AtomicPtr<ferroverbs_cm_calls> = AtomicPtr::new(core::ptr::null_mut());

/// Inserts the tap into the chain of librdmacm.
///
/// # Safety
/// As for `ferroverbs_cm_layer.attach`.
pub unsafe fn attach_cm<W: Watcher + ConnectionCalls>(
    next: *const ferroverbs_cm_calls,
    mine: *mut ferroverbs_cm_calls,
) {
    NEXT.store(next.cast_mut(), Ordering::Release);
    // SAFETY: `mine` is the chain's table for this layer, writable during `attach`.
    fill::<W>(unsafe { &mut *mine });
}

/// An IP address in the form of a GID, as two words, and the port as the third.
///
/// # Safety
/// `at` is NULL, or a socket address as long as its family requires.
unsafe fn address(at: *const libc::sockaddr) -> [u64; 3] {
    let words = |bytes: [u8; 16]| {
        let [low, high] = [0, 8].map(|from| {
            u64::from_ne_bytes(core::array::from_fn(|at| {
                bytes.get(from + at).copied().unwrap_or(0)
            }))
        });
        [low, high]
    };
    // SAFETY: per the caller. Addresses may be unaligned.
    unsafe {
        match at.as_ref().map(|address| c_int::from(address.sa_family)) {
            Some(libc::AF_INET) => {
                let found = at.cast::<libc::sockaddr_in>().read_unaligned();
                let mut bytes = [0; 16];
                bytes[10..12].fill(0xff);
                bytes[12..].copy_from_slice(&found.sin_addr.s_addr.to_ne_bytes());
                let [low, high] = words(bytes);
                [low, high, u16::from_be(found.sin_port).into()]
            }
            Some(libc::AF_INET6) => {
                let found = at.cast::<libc::sockaddr_in6>().read_unaligned();
                let [low, high] = words(found.sin6_addr.s6_addr);
                [low, high, u16::from_be(found.sin6_port).into()]
            }
            _ => [0; 3],
        }
    }
}

/// # Safety
/// `param` is NULL or readable.
unsafe fn parameters(param: *const rdma_conn_param) -> [u64; 8] {
    // SAFETY: per the caller.
    unsafe { param.as_ref() }.map_or([0; 8], |param| {
        [
            param.private_data_len.into(),
            param.responder_resources.into(),
            param.initiator_depth.into(),
            param.rnr_retry_count.into(),
            param.qp_num.into(),
            param.flow_control.into(),
            param.retry_count.into(),
            param.srq.into(),
        ]
    })
}

/// The words of an event: event, id, type, status, listening id. No member of an event is valid
/// after its acknowledgement.
/// # Safety
/// `event` is NULL or live.
unsafe fn event_of(event: *const rdma_cm_event) -> [u64; 5] {
    // SAFETY: per the caller.
    unsafe { event.as_ref() }.map_or([0; 5], |known| {
        let is_request = known.event == RDMA_CM_EVENT_CONNECT_REQUEST;
        let listener = if is_request { known.listen_id as u64 } else { 0 };
        let status = i64::from(known.status).cast_unsigned();
        [event as u64, known.id as u64, known.event.into(), status, listener]
    })
}

/// The pointer that a call stored at its caller's address.
///
/// # Safety
/// `at` is NULL or readable.
unsafe fn written<T>(at: *const *mut T) -> u64 {
    // SAFETY: per the caller.
    unsafe { at.as_ref() }.map_or(0, |at| *at as u64)
}

/// # Safety
/// `id` is NULL or a live id.
unsafe fn queue_pair(id: *const rdma_cm_id) -> u64 {
    // SAFETY: per the caller; its queue pair is NULL or live.
    unsafe { id.as_ref().and_then(|id| id.qp.as_ref()) }.map_or(0, |qp| qp.qp_num.into())
}

/// The vendor id and the options of an ECE.
///
/// # Safety
/// `at` is NULL or readable.
unsafe fn extension(at: *const ibv_ece) -> [u64; 2] {
    // SAFETY: per the caller.
    unsafe { at.as_ref() }.map_or([0; 2], |ece| [ece.vendor_id.into(), ece.options.into()])
}

/// The words of an address query: node and service, shortened to fit, two words of the hints, and
/// `more`.
///
/// # Safety
/// Each pointer is NULL or readable, and each text ends with a NUL.
unsafe fn asked(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    more: u64,
) -> [u64; 10] {
    let bytes = |text: *const c_char| match text.is_null() {
        true => &[][..],
        // SAFETY: per the caller.
        false => unsafe { CStr::from_ptr(text) }.to_bytes(),
    };
    let [a, b, c, d] = pack_text(bytes(node));
    let [e, f, g] = pack_text(bytes(service));
    // SAFETY: per the caller.
    let [first, second] = unsafe { hints.as_ref() }.map_or([0; 2], |hints| {
        [two(hints.ai_flags, hints.ai_family), two(hints.ai_qp_type, hints.ai_port_space)]
    });
    [a, b, c, d, e, f, g, first, second, more]
}

/// The words of an endpoint: flags and port space, then address and port. A listening endpoint has
/// its own address, a connecting endpoint the peer's.
///
/// # Safety
/// `at` is NULL or a result of `rdma_getaddrinfo`.
unsafe fn endpoint(at: *const rdma_addrinfo) -> [u64; 4] {
    // SAFETY: per the caller.
    unsafe { at.as_ref() }.map_or([0; 4], |found| {
        let listens = found.ai_flags & RAI_PASSIVE != 0;
        // SAFETY: each address of an `rdma_addrinfo` is NULL or as long as its family requires.
        let [low, high, port] =
            unsafe { address(if listens { found.ai_src_addr } else { found.ai_dst_addr }) };
        [two(found.ai_flags, found.ai_port_space), low, high, port]
    })
}

/// The words of a requested QP: queues, type and signaling, numbers of requests and of elements.
fn queues(attr: Option<&ibv_qp_init_attr>) -> [u64; 6] {
    let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    attr.map_or([0; 6], |attr| {
        [
            attr.send_cq as u64,
            attr.recv_cq as u64,
            attr.srq as u64,
            two(attr.qp_type, u32::from(attr.sq_sig_all != 0)),
            two(attr.cap.max_send_wr, attr.cap.max_recv_wr),
            two(attr.cap.max_send_sge, attr.cap.max_recv_sge),
        ]
    })
}

const fn two(low: c_int, high: c_int) -> u64 {
    low.cast_unsigned() as u64 | (high.cast_unsigned() as u64) << 32
}

/// The words of `Call::args` that must be read before the call.
macro_rules! before {
    (ack_cm_event, $event:ident) => {
        event_of($event)
    };
    (bind_addr, $id:ident, $addr:ident) => {{
        let [low, high, port] = address($addr);
        [$id as u64, low, high, port]
    }};
    (resolve_addr, $id:ident, $src:ident, $dst:ident, $timeout:ident) => {{
        let [low, high, port] = address($dst);
        [$id as u64, low, high, port, $timeout as u64]
    }};
    (connect, $id:ident, $param:ident) => {{
        let [length, resources, depth, rnr, qp, flow, retries, srq] = parameters($param);
        [$id as u64, length, resources, depth, rnr, qp, flow, retries, srq]
    }};
    (accept, $id:ident, $param:ident) => {
        before!(connect, $id, $param)
    };
    (join_multicast, $id:ident, $addr:ident, $of:ident) => {{
        let [low, high, _] = address($addr);
        [$id as u64, low, high]
    }};
    (leave_multicast, $id:ident, $addr:ident) => {
        before!(join_multicast, $id, $addr, $addr)
    };
    (join_multicast_ex, $id:ident, $attr:ident, $of:ident) => {{
        let [low, high, _] = $attr.as_ref().map_or([0; 3], |attr| address(attr.addr));
        let [mask, flags] = $attr
            .as_ref()
            .map_or([0; 2], |attr| [attr.comp_mask.into(), attr.join_flags.into()]);
        [$id as u64, low, high, mask, flags]
    }};
    (create_srq, $id:ident, $pd:ident, $attr:ident) => {{
        let [wr, sge] = $attr
            .as_ref()
            .map_or([0; 2], |attr| [attr.attr.max_wr.into(), attr.attr.max_sge.into()]);
        [$id as u64, $pd as u64, wr, sge]
    }};
    (create_srq_ex, $id:ident, $attr:ident) => {{
        let of = |attr: &ibv_srq_init_attr_ex| {
            let at = core::ptr::from_ref(attr);
            let pd = named!(at, IBV_SRQ_INIT_ATTR_PD, pd);
            let kind = named!(at, IBV_SRQ_INIT_ATTR_TYPE, srq_type);
            [pd, attr.attr.max_wr.into(), attr.attr.max_sge.into(), attr.comp_mask.into(), kind]
        };
        let [pd, wr, sge, mask, kind] = $attr.as_ref().map_or([0; 5], of);
        [$id as u64, pd, wr, sge, mask, kind]
    }};
    (init_qp_attr, $id:ident, $attr:ident, $mask:ident) => {
        [$id as u64, $attr.as_ref().map_or(0, |attr| attr.qp_state.into()), 0]
    };
    (set_local_ece, $id:ident, $ece:ident) => {{
        let [vendor, options] = extension($ece);
        [$id as u64, vendor, options]
    }};
    (getaddrinfo, $node:ident, $service:ident, $hints:ident, $res:ident) => {
        asked($node, $service, $hints, 0)
    };
    (resolve_addrinfo, $id:ident, $node:ident, $service:ident, $hints:ident) => {
        asked($node, $service, $hints, $id as u64)
    };
    ($name:ident $(, $arg:ident)*) => {
        [$($arg as u64),*]
    };
}

/// The words of `Call::args` after the call, for calls that change their words.
macro_rules! after {
    (get_cm_event, $before:ident, $result:ident, $channel:ident, $event:ident) => {{
        let [event, id, what, status, listener] =
            if $result == 0 { event_of(*$event) } else { [0; 5] };
        [$channel as u64, event, id, what, status, listener]
    }};
    (create_id, $before:ident, $result:ident, $channel:ident, $id:ident, $of:ident, $ps:ident) => {
        [$channel as u64, if $result == 0 { written($id) } else { 0 }, $of as u64, $ps as u64]
    };
    (create_ep, $before:ident, $result:ident, $id:ident, $res:ident, $pd:ident, $attr:ident) => {{
        let [flags, low, high, port] = endpoint($res);
        let [_, _, _, kind, wr, ..] = queues($attr.as_ref());
        let id = if $result == 0 { written($id) } else { 0 };
        [id, $pd as u64, flags, low, high, port, wr, kind & u64::from(u32::MAX)]
    }};
    (get_request, $before:ident, $result:ident, $listener:ident, $id:ident) => {
        [$listener as u64, if $result == 0 { written($id) } else { 0 }]
    };
    (create_qp, $before:ident, $result:ident, $id:ident, $pd:ident, $attr:ident) => {{
        let [send, receive, srq, kind, wr, sge] = queues($attr.as_ref());
        [$id as u64, $pd as u64, queue_pair($id), send, receive, srq, kind, wr, sge]
    }};
    (create_qp_ex, $before:ident, $result:ident, $id:ident, $attr:ident) => {{
        let of = |attr: &ibv_qp_init_attr_ex| {
            let at = core::ptr::from_ref(attr);
            (u64::from(attr.comp_mask), named!(at, IBV_QP_INIT_ATTR_PD, pd))
        };
        let (mask, pd) = $attr.as_ref().map_or((0, 0), of);
        // The first members of the extended structure are the plain structure.
        let [send, receive, srq, kind, wr, sge] = queues($attr.cast::<ibv_qp_init_attr>().as_ref());
        [$id as u64, pd, queue_pair($id) | mask << 32, send, receive, srq, kind, wr, sge]
    }};
    (init_qp_attr, $before:ident, $result:ident, $id:ident, $attr:ident, $mask:ident) => {{
        let mask = if $result == 0 { $mask.as_ref().map_or(0, |mask| *mask as u64) } else { 0 };
        [$before[0], $before[1], mask]
    }};
    (get_remote_ece, $before:ident, $result:ident, $id:ident, $ece:ident) => {{
        let [vendor, options] = if $result == 0 { extension($ece) } else { [0; 2] };
        [$id as u64, vendor, options]
    }};
    (getaddrinfo, $before:ident, $result:ident, $node:ident, $service:ident, $hints:ident, $res:ident) => {{
        let mut args = $before;
        args[9] = if $result == 0 { written($res) } else { 0 };
        args
    }};
    (query_addrinfo, $before:ident, $result:ident, $id:ident, $info:ident) => {
        [$id as u64, if $result == 0 { written($info) } else { 0 }]
    };
    (get_devices, $before:ident, $result:ident, $count:ident) => {
        [if $result.is_null() { 0 } else { $count.as_ref().map_or(0, |count| *count as u64) }]
    };
    ($name:ident, $before:ident, $result:ident $(, $arg:ident)*) => {
        $before
    };
}

macro_rules! calls {
    ($($abi:literal $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)+) => {
        /// The calls of librdmacm. Each function is called instead of librdmacm's, and calls it by
        /// [`Next::call`].
        #[allow(unused_variables, reason = "a call that is only passed on uses no argument")]
        pub trait ConnectionCalls: 'static {
            $(
                #[doc = concat!("`rdma_", stringify!($name), "`.")]
                #[inline]
                fn $name<F: FnOnce() -> $ret>($($arg: <$ty as Argument>::Safe<'_>,)* next: Next<F>) -> Returned<$ret> {
                    next.call()
                }
            )+
        }

        /// A call's index in the table.
        #[allow(non_camel_case_types, reason = "the names of the functions")]
        enum CmCall { $($name),+ }

        $(
            // A thread may be cancelled in a call, so the function holds nothing to drop.
            unsafe extern $abi fn $name<W: Watcher + ConnectionCalls>($($arg: $ty),*) -> $ret {
                // SAFETY: the table lives as long as the process. The arguments are the caller's.
                let next = Next::new(|| unsafe { beneath!(NEXT.load(Ordering::Acquire), $name)($($arg),*) });
                #[allow(unused_unsafe, reason = "not all of them have arguments")]
                if !W::RECORDS {
                    // SAFETY: the caller's arguments are valid until this call returns.
                    return unsafe { <W as ConnectionCalls>::$name($($arg.safe(),)* next) }.get();
                }
                // SAFETY: the caller passes the arguments that the call needs.
                #[allow(unused_unsafe, unused_variables, reason = "not all of them read something")]
                let before = unsafe { before!($name $(, $arg)*) };
                let start = now();
                // SAFETY: the caller's arguments are valid until this call returns.
                #[allow(unused_unsafe, reason = "not all of them have arguments")]
                let result = unsafe { <W as ConnectionCalls>::$name($($arg.safe(),)* next) }.get();
                // SAFETY: a returned pointer is valid. The arguments are unchanged, except objects
                // that the call ended, which `after!` does not read.
                #[allow(unused_unsafe, reason = "not all of them read something")]
                let args = unsafe { after!($name, before, result $(, $arg)*) };
                report::<W>(CmCall::$name, start, result, &args);
                result
            }
        )+

        fn fill<W: Watcher + ConnectionCalls>(mine: &mut ferroverbs_cm_calls) {
            $(mine.$name = Some($name::<W>);)+
        }
    };
}
each_cm_call!(calls);

/// The first call of librdmacm in `Call`, which has these calls in the order of the table.
const FIRST: Call = Call::rdma_create_event_channel;

fn report<W: Watcher>(at: CmCall, start: u64, result: impl crate::control::Outcome, args: &[u64]) {
    // EAGAIN is not reported: a program that polls its event channel would fill a trace with it.
    if matches!(at, CmCall::get_cm_event) && result.failed() && errno() == libc::EAGAIN {
        return;
    }
    if let Some(call) = Call::of(FIRST as u16 + at as u16) {
        report_call::<W>(call, start, result, args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_calls_in_the_order_of_the_table() {
        for (at, name) in ferroverbs_cm_calls::NAMES.iter().enumerate() {
            let call = Call::of(FIRST as u16 + u16::try_from(at).unwrap()).expect("a call");
            assert_eq!(call.name(), format!("rdma_{name}"));
        }
    }

    #[test]
    fn addresses_of_both_families_are_those_that_a_gid_has() {
        let four = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: 7471_u16.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([10, 0, 0, 1]) },
            sin_zero: [0; 8],
        };
        // SAFETY: `four` is a complete address, and NULL is allowed.
        let (known, none) =
            unsafe { (address((&raw const four).cast()), address(core::ptr::null())) };
        assert_eq!((known[0], known[2]), (0, 7471));
        assert_eq!(known[1].to_ne_bytes(), [0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(none, [0; 3]);
    }
}
