//! Functions of `librdmacm.so.1` for ids and event channels, up to rdma-core 65, as declared in
//! `<rdma/rdma_cma.h>` and `<rdma/rdma_verbs.h>`. The library defines the functions; crates that
//! only use types do not link to the library.
//!
//! Each function has a manual page of its name, unless the text says otherwise. Functions with an
//! `int` return 0, or -1 and errno.

use core::ffi::{c_char, c_int, c_void};

use crate::{
    be16, ibv_context, ibv_ece, ibv_event_type, ibv_pd, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_addrinfo, rdma_cm_event,
    rdma_cm_event_type, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};

unsafe extern "C" {
    /// Opens a channel for the events of ids; NULL and errno.
    pub fn rdma_create_event_channel() -> *mut rdma_event_channel;

    /// Closes a channel, after all its ids were destroyed.
    pub fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);

    /// Creates an id. Calls of an id without a channel wait for their results.
    pub fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: rdma_port_space,
    ) -> c_int;

    /// Creates an id that is resolved, or bound, as the address information says, with a QP if
    /// attributes are given.
    pub fn rdma_create_ep(
        id: *mut *mut rdma_cm_id,
        res: *mut rdma_addrinfo,
        pd: *mut ibv_pd,
        qp_init_attr: *mut ibv_qp_init_attr,
    ) -> c_int;

    /// Destroys an id of `rdma_create_ep(3)`, and its QP.
    pub fn rdma_destroy_ep(id: *mut rdma_cm_id);

    /// Destroys an id. Waits until its events were acknowledged.
    pub fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;

    /// Gives an id a source address.
    pub fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int;

    /// Finds the device that leads to an address. `src_addr` may be NULL.
    pub fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src_addr: *mut libc::sockaddr,
        dst_addr: *mut libc::sockaddr,
        timeout_ms: c_int,
    ) -> c_int;

    /// Finds the route to the address that was resolved.
    pub fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;

    /// Creates a QP of an id, ready to receive into. Without a PD it is in the id's own.
    pub fn rdma_create_qp(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        qp_init_attr: *mut ibv_qp_init_attr,
    ) -> c_int;

    /// The same by extended attributes: `rdma_create_qp(3)`.
    pub fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int;

    /// Destroys the QP of an id.
    pub fn rdma_destroy_qp(id: *mut rdma_cm_id);

    /// Asks the peer for a connection, or for the number of its datagram QP.
    pub fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;

    /// Completes a connection of an id without a QP, after `RDMA_CM_EVENT_CONNECT_RESPONSE`.
    pub fn rdma_establish(id: *mut rdma_cm_id) -> c_int;

    /// Listens for requests to the address that an id is bound to.
    pub fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;

    /// Waits for the next request to a listener without a channel.
    pub fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int;

    /// Accepts a request. `conn_param` may be NULL.
    pub fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;

    /// Refuses a request.
    pub fn rdma_reject(
        id: *mut rdma_cm_id,
        private_data: *const c_void,
        private_data_len: u8,
    ) -> c_int;

    /// Refuses a request because of its vendor's options: `rdma_reject(3)`.
    pub fn rdma_reject_ece(
        id: *mut rdma_cm_id,
        private_data: *const c_void,
        private_data_len: u8,
    ) -> c_int;

    /// Tells the connection manager of an event of the QP.
    pub fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;

    /// Ends a connection; posted requests are flushed.
    pub fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;

    /// Joins a multicast group, and attaches the QP to it.
    pub fn rdma_join_multicast(
        id: *mut rdma_cm_id,
        addr: *mut libc::sockaddr,
        context: *mut c_void,
    ) -> c_int;

    /// Leaves a multicast group.
    pub fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int;

    /// Joins a multicast group in one of several ways.
    pub fn rdma_join_multicast_ex(
        id: *mut rdma_cm_id,
        mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
        context: *mut c_void,
    ) -> c_int;

    /// Waits for the next event of a channel.
    pub fn rdma_get_cm_event(
        channel: *mut rdma_event_channel,
        event: *mut *mut rdma_cm_event,
    ) -> c_int;

    /// Frees an event. Its content is invalid afterwards.
    pub fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;

    /// The source port of an id; 0 without one.
    pub fn rdma_get_src_port(id: *mut rdma_cm_id) -> be16;

    /// The destination port of an id; 0 without one.
    pub fn rdma_get_dst_port(id: *mut rdma_cm_id) -> be16;

    /// All devices for ids, as a NULL-terminated array; NULL and errno on failure.
    pub fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context;

    /// Frees an array of `rdma_get_devices`: `rdma_free_devices(3)`.
    pub fn rdma_free_devices(list: *mut *mut ibv_context);

    /// The name of an event. Never NULL.
    pub fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char;

    /// Sets an option of an id.
    pub fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: usize,
    ) -> c_int;

    /// Moves an id to another channel. Waits until its events were acknowledged.
    pub fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;

    /// Addresses of a name and a service.
    pub fn rdma_getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
        res: *mut *mut rdma_addrinfo,
    ) -> c_int;

    /// Frees them: `rdma_getaddrinfo(3)`.
    pub fn rdma_freeaddrinfo(res: *mut rdma_addrinfo);

    /// The attributes that a QP of the program's own needs for the state in `qp_attr`.
    pub fn rdma_init_qp_attr(
        id: *mut rdma_cm_id,
        qp_attr: *mut ibv_qp_attr,
        qp_attr_mask: *mut c_int,
    ) -> c_int;

    /// Offers a vendor's options to the peer.
    pub fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;

    /// The options that the peer offers.
    pub fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;

    /// Puts an event of the program's own into the channel of an id.
    pub fn rdma_write_cm_event(
        id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: c_int,
        arg: u64,
    ) -> c_int;

    /// Starts to look for the addresses of a service by the subnet manager or the resolver.
    pub fn rdma_resolve_addrinfo(
        id: *mut rdma_cm_id,
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> c_int;

    /// The result of `rdma_resolve_addrinfo(3)`, to be freed by `rdma_freeaddrinfo`.
    pub fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int;

    /// Creates an SRQ of an id.
    pub fn rdma_create_srq(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        attr: *mut ibv_srq_init_attr,
    ) -> c_int;

    /// The same by extended attributes: `rdma_create_srq(3)`.
    pub fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int;

    /// Destroys the SRQ of an id.
    pub fn rdma_destroy_srq(id: *mut rdma_cm_id);
}
