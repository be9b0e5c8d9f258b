//! The interface for layers of librdmacm: shared objects between a program and `librdmacm.so.1`. A
//! layer exports one *data* symbol, [`CM_LAYER_SYMBOL`], of type [`ferroverbs_cm_layer`]. The same
//! object may be a layer of verbs too ([`crate::layer`]). docs/reference/layers.md has the rules
//! for layers.
//!
//! `attach` is called once in a process. `next` has the functions beneath the layer: no entry is
//! NULL, and none changes. `mine` is all NULL at first. A function that the layer stores there
//! replaces the entry of `next`; a NULL entry passes calls on. Both tables live until the process
//! ends. `attach` returns 0, or an errno, which excludes the layer.

use core::ffi::{c_char, c_int, c_void};

use crate::{
    Zeroed, ibv_context, ibv_ece, ibv_event_type, ibv_pd, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_addrinfo, rdma_cm_event,
    rdma_cm_event_type, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};

/// Name of the data symbol; the number changes only with an incompatible layout, growth is told by
/// [`ferroverbs_cm_layer::size`] and [`ferroverbs_cm_layer::calls`].
pub const CM_LAYER_SYMBOL: &core::ffi::CStr = c"ferroverbs_cm_layer_v1";

/// Calls a macro with a row for each call that layers can replace, in the order of the table. The
/// caller has the types of this crate in scope. `get_cm_event` is a cancellation point, so
/// unwinding may pass through it.
#[macro_export]
macro_rules! each_cm_call {
    ($then:ident) => {
        $then! {
            "C" create_event_channel() -> *mut rdma_event_channel;
            "C" destroy_event_channel(channel: *mut rdma_event_channel) -> ();
            "C-unwind" get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
            "C" ack_cm_event(event: *mut rdma_cm_event) -> c_int;
            "C" create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space) -> c_int;
            "C" destroy_id(id: *mut rdma_cm_id) -> c_int;
            "C" migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
            "C" create_ep(id: *mut *mut rdma_cm_id, res: *mut rdma_addrinfo, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int;
            "C" destroy_ep(id: *mut rdma_cm_id) -> ();
            "C" bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int;
            "C" resolve_addr(id: *mut rdma_cm_id, src: *mut libc::sockaddr, dst: *mut libc::sockaddr, timeout_ms: c_int) -> c_int;
            "C" resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
            "C" create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int;
            "C" create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int;
            "C" destroy_qp(id: *mut rdma_cm_id) -> ();
            "C" create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int;
            "C" create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int;
            "C" destroy_srq(id: *mut rdma_cm_id) -> ();
            "C" connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
            "C" establish(id: *mut rdma_cm_id) -> c_int;
            "C" listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
            "C" get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int;
            "C" accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
            "C" reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int;
            "C" reject_ece(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int;
            "C" disconnect(id: *mut rdma_cm_id) -> c_int;
            "C" notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;
            "C" join_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr, context: *mut c_void) -> c_int;
            "C" join_multicast_ex(id: *mut rdma_cm_id, attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> c_int;
            "C" leave_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int;
            "C" set_option(id: *mut rdma_cm_id, level: c_int, option: c_int, value: *mut c_void, length: usize) -> c_int;
            "C" init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int;
            "C" set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
            "C" get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
            "C" write_cm_event(id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int, arg: u64) -> c_int;
            "C" getaddrinfo(node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, res: *mut *mut rdma_addrinfo) -> c_int;
            "C" freeaddrinfo(res: *mut rdma_addrinfo) -> ();
            "C" resolve_addrinfo(id: *mut rdma_cm_id, node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo) -> c_int;
            "C" query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int;
            "C" get_devices(count: *mut c_int) -> *mut *mut ibv_context;
            "C" free_devices(list: *mut *mut ibv_context) -> ();
        }
    };
}

macro_rules! table {
    ($($abi:literal $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)+) => {
        /// The calls of librdmacm that layers can replace, without the prefix `rdma_`. New calls
        /// come last.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct ferroverbs_cm_calls {
            $(
                #[doc = concat!("`rdma_", stringify!($name), "`.")]
                pub $name: Option<unsafe extern $abi fn($($arg: $ty),*) -> $ret>,
            )+
        }

        impl ferroverbs_cm_calls {
            /// The names of the calls, in the order of the table.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];
        }
    };
}
each_cm_call!(table);

// SAFETY: each field is an Option of a function pointer; zero is None.
unsafe impl Zeroed for ferroverbs_cm_calls {}
const _: () = assert!(
    size_of::<ferroverbs_cm_calls>() == ferroverbs_cm_calls::NAMES.len() * size_of::<usize>()
);

/// The exported table of a layer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ferroverbs_cm_layer {
    /// Bytes of this struct the layer was built with; fields beyond are absent.
    pub size: usize,
    /// Bytes of [`ferroverbs_cm_calls`] it was built with; calls beyond are passed on.
    pub calls: usize,
    /// The layer's name in messages, NUL terminated.
    pub name: *const c_char,
    /// Called once, before the first call that makes something returns: see the module.
    pub attach: Option<
        unsafe extern "C" fn(
            next: *const ferroverbs_cm_calls,
            mine: *mut ferroverbs_cm_calls,
        ) -> c_int,
    >,
}
layout!(ferroverbs_cm_layer: 32 { size @ 0, calls @ 8, name @ 16, attach @ 24 });

// SAFETY: constant data of a layer that is never unloaded, pointing only at such data.
unsafe impl Sync for ferroverbs_cm_layer {}
