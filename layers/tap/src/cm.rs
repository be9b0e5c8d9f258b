//! Calls of librdmacm: passed on, and told. None of them is on the data path.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use abi::{
    RDMA_CM_EVENT_CONNECT_REQUEST, each_cm_call, ferroverbs_cm_calls, ibv_context, ibv_ece,
    ibv_event_type, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, rdma_addrinfo, rdma_cm_event, rdma_cm_event_type, rdma_cm_id,
    rdma_cm_join_mc_attr_ex, rdma_conn_param, rdma_event_channel, rdma_port_space,
};

use crate::control::{errno, tell};
use crate::{Call, Watch, now};

/// What lies beneath us; NULL before `attach_cm`.
static NEXT: AtomicPtr<ferroverbs_cm_calls> = AtomicPtr::new(core::ptr::null_mut());

/// Puts the tap into the chain of librdmacm.
///
/// # Safety
/// As for `ferroverbs_cm_layer.attach`.
pub unsafe fn attach_cm<W: Watch>(
    next: *const ferroverbs_cm_calls,
    mine: *mut ferroverbs_cm_calls,
) {
    NEXT.store(next.cast_mut(), Ordering::Release);
    // SAFETY: the chain's table for us.
    fill::<W>(unsafe { &mut *mine });
}

/// An IP address as a GID has it, in two words, and a port behind them.
///
/// # Safety
/// NULL, or an address of a socket as long as its family says.
unsafe fn address(at: *const libc::sockaddr) -> [u64; 3] {
    let words = |bytes: [u8; 16]| {
        let [low, high] = [0, 8].map(|from| {
            u64::from_ne_bytes(core::array::from_fn(|at| {
                bytes.get(from + at).copied().unwrap_or(0)
            }))
        });
        [low, high]
    };
    // SAFETY: per the caller; nobody aligns addresses.
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
/// NULL or readable.
unsafe fn parameters(param: *const rdma_conn_param) -> [u64; 5] {
    // SAFETY: per the caller.
    unsafe { param.as_ref() }.map_or([0; 5], |param| {
        [
            param.private_data_len.into(),
            param.responder_resources.into(),
            param.initiator_depth.into(),
            param.rnr_retry_count.into(),
            param.qp_num.into(),
        ]
    })
}

/// An event, of which nothing is valid once it is acknowledged: the event, its id, what it is, its status, the id that listens.
///
/// # Safety
/// NULL or live.
unsafe fn event_of(event: *const rdma_cm_event) -> [u64; 5] {
    // SAFETY: per the caller.
    unsafe { event.as_ref() }.map_or([0; 5], |known| {
        let is_request = known.event == RDMA_CM_EVENT_CONNECT_REQUEST;
        let listener = if is_request { known.listen_id as u64 } else { 0 };
        let status = i64::from(known.status).cast_unsigned();
        [event as u64, known.id as u64, known.event.into(), status, listener]
    })
}

/// What a call wrote to where its caller wanted it.
///
/// # Safety
/// NULL or readable.
unsafe fn written<T>(at: *const *mut T) -> u64 {
    // SAFETY: per the caller.
    unsafe { at.as_ref() }.map_or(0, |at| *at as u64)
}

/// # Safety
/// NULL or a live id.
unsafe fn queue_pair(id: *const rdma_cm_id) -> u64 {
    // SAFETY: per the caller; its queue pair is NULL or live.
    unsafe { id.as_ref().and_then(|id| id.qp.as_ref()) }.map_or(0, |qp| qp.qp_num.into())
}

/// The words of `Call::args` that are to be read before the call.
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
        let [length, resources, depth, rnr, qp] = parameters($param);
        [$id as u64, length, resources, depth, rnr, qp]
    }};
    (accept, $id:ident, $param:ident) => {
        before!(connect, $id, $param)
    };
    ($name:ident $(, $arg:ident)*) => {
        [$($arg as u64),*]
    };
}

/// The words that are known when it has returned, where these are others.
macro_rules! after {
    (get_cm_event, $before:ident, $result:ident, $channel:ident, $event:ident) => {{
        let [event, id, what, status, listener] =
            if $result == 0 { event_of(*$event) } else { [0; 5] };
        [$channel as u64, event, id, what, status, listener]
    }};
    (create_id, $before:ident, $result:ident, $channel:ident, $id:ident, $of:ident, $ps:ident) => {
        [$channel as u64, if $result == 0 { written($id) } else { 0 }, $of as u64, $ps as u64]
    };
    (create_ep, $before:ident, $result:ident, $id:ident, $res:ident, $pd:ident, $attr:ident) => {
        [if $result == 0 { written($id) } else { 0 }, $pd as u64]
    };
    (get_request, $before:ident, $result:ident, $listener:ident, $id:ident) => {
        [$listener as u64, if $result == 0 { written($id) } else { 0 }]
    };
    (create_qp, $before:ident, $result:ident, $id:ident, $pd:ident, $attr:ident) => {
        [$id as u64, $pd as u64, queue_pair($id)]
    };
    (create_qp_ex, $before:ident, $result:ident, $id:ident, $attr:ident) => {
        [$id as u64, queue_pair($id)]
    };
    ($name:ident, $before:ident, $result:ident $(, $arg:ident)*) => {
        $before
    };
}

macro_rules! calls {
    ($($abi:literal $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)+) => {
        /// The number of a call among those of the table.
        #[allow(non_camel_case_types, reason = "the names of the functions")]
        enum At { $($name),+ }

        $(
            unsafe extern $abi fn $name<W: Watch>($($arg: $ty),*) -> $ret {
                // SAFETY: the caller's arguments are what the call takes.
                #[allow(unused_unsafe, unused_variables, reason = "not all of them read something")]
                let before = unsafe { before!($name $(, $arg)*) };
                let start = now();
                let next = NEXT.load(Ordering::Acquire);
                // SAFETY: the table lives as long as the process, and has no NULL; the caller's arguments, passed on.
                let result = unsafe {
                    match (*next).$name {
                        Some(function) => function($($arg),*),
                        None => std::process::abort(),
                    }
                };
                // SAFETY: what a call returned is valid, and its arguments are what they were, but for those that it ended.
                #[allow(unused_unsafe, reason = "not all of them read something")]
                let args = unsafe { after!($name, before, result $(, $arg)*) };
                told::<W>(At::$name, start, result, &args);
                result
            }
        )+

        fn fill<W: Watch>(mine: &mut ferroverbs_cm_calls) {
            $(mine.$name = Some($name::<W>);)+
        }
    };
}
each_cm_call!(calls);

/// The first of librdmacm's, which stand in the order of the table.
const FIRST: Call = Call::rdma_create_event_channel;

fn told<W: Watch>(at: At, start: u64, result: impl crate::control::Outcome, args: &[u64]) {
    // A program that asks a channel again and again would leave nothing else in a ring.
    if matches!(at, At::get_cm_event) && result.failed() && errno() == libc::EAGAIN {
        return;
    }
    if let Some(call) = Call::of(FIRST as u16 + at as u16) {
        tell::<W>(call, start, result, args);
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
        // SAFETY: an address, and NULL.
        let (known, none) =
            unsafe { (address((&raw const four).cast()), address(core::ptr::null())) };
        assert_eq!((known[0], known[2]), (0, 7471));
        assert_eq!(known[1].to_ne_bytes(), [0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(none, [0; 3]);
    }
}
