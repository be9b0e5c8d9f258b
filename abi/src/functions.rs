//! Functions for programs, which `libibverbs.so.1` exports under its public versions up to
//! rdma-core 65 (`IBVERBS_1.18`) and `<infiniband/verbs.h>` declares. Inline functions of that
//! header are not here. The library defines the functions; crates that only use types do not link
//! to the library.
//!
//! Each function has a manual page of its name, unless the text says otherwise.
//!
//! Map of this file: texts and rates, devices, imports, events, queries, protection domains and
//! regions, completion queues and counters, shared receive queues, queue pairs, buffers, address
//! handles, fork, names and ECE.

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::{
    be16, be64, compat_ibv_port_attr, ibv_ah, ibv_ah_attr, ibv_async_event, ibv_buf,
    ibv_comp_channel, ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context,
    ibv_cq, ibv_device, ibv_device_attr, ibv_dm, ibv_dmah, ibv_dmah_init_attr, ibv_ece,
    ibv_event_type, ibv_fork_status, ibv_gid, ibv_gid_entry, ibv_grh, ibv_mr, ibv_mr_init_attr,
    ibv_node_type, ibv_pd, ibv_port_state, ibv_qp, ibv_qp_attach_comp_cntr_attr, ibv_qp_attr,
    ibv_qp_ex, ibv_qp_init_attr, ibv_rate, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc,
    ibv_wc_status, ibv_wr_opcode,
};

unsafe extern "C" {
    /// A sentence for a completion status. Never NULL.
    pub fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;

    /// A static rate as a multiple of 2.5 Gbit/s, or -1.
    /// cbindgen:postfix=__attribute_const
    pub fn ibv_rate_to_mult(rate: ibv_rate) -> c_int;

    /// The static rate of a multiple of 2.5 Gbit/s, or `IBV_RATE_MAX`.
    /// cbindgen:postfix=__attribute_const
    pub fn mult_to_ibv_rate(mult: c_int) -> ibv_rate;

    /// A static rate in Mbit/s, or -1.
    /// cbindgen:postfix=__attribute_const
    pub fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int;

    /// The static rate of a number of Mbit/s, or `IBV_RATE_MAX`.
    /// cbindgen:postfix=__attribute_const
    pub fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate;

    /// The name of a work request's opcode. Never NULL.
    pub fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char;

    /// The work request builder of a QP, or NULL if it was created without.
    pub fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;

    /// The RDMA devices, ended by NULL, and their number if `num_devices` is not NULL; NULL and
    /// errno.
    pub fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;

    /// Frees the array of `ibv_get_device_list`. Devices that were not opened are invalid
    /// afterwards.
    pub fn ibv_free_device_list(list: *mut *mut ibv_device);

    /// The name of a device, valid as long as the device.
    pub fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;

    /// The kernel's index of a device; -1 if it has none.
    pub fn ibv_get_device_index(device: *mut ibv_device) -> c_int;

    /// The node GUID of a device, big endian.
    pub fn ibv_get_device_guid(device: *mut ibv_device) -> be64;

    /// Opens a device; NULL and errno.
    pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;

    /// Closes a device. Objects that still exist are not destroyed.
    pub fn ibv_close_device(context: *mut ibv_context) -> c_int;

    /// A second context over the descriptor of an open device; NULL and errno.
    pub fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context;

    /// The protection domain with a handle, which another process allocated; NULL and errno.
    pub fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd;

    /// Forgets an imported protection domain, which stays alive.
    pub fn ibv_unimport_pd(pd: *mut ibv_pd);

    /// The memory region with a handle, which another process registered; NULL and errno.
    pub fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr;

    /// Forgets an imported region, which stays registered.
    pub fn ibv_unimport_mr(mr: *mut ibv_mr);

    /// The device memory with a handle, which another process allocated; NULL and errno.
    pub fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm;

    /// Forgets imported device memory, which stays allocated.
    pub fn ibv_unimport_dm(dm: *mut ibv_dm);

    /// Waits for the next asynchronous event. 0, or -1 and errno. Each must be acknowledged.
    pub fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;

    /// Acknowledges an event. The destruction of the event's object waits for the acknowledgement.
    pub fn ibv_ack_async_event(event: *mut ibv_async_event);

    /// Limits and identity of a device. 0 or an errno.
    pub fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;

    /// State of a port in the layout of libibverbs 1.1; the macro of this name queries all fields.
    /// 0 or an errno.
    pub fn ibv_query_port(
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut compat_ibv_port_attr,
    ) -> c_int;

    /// Effective speed of a port, in units of 100 Mbit/s. 0 or an errno.
    pub fn ibv_query_port_speed(
        context: *mut ibv_context,
        port_num: u32,
        port_speed: *mut u64,
    ) -> c_int;

    /// An entry of a port's GID table. 0, or -1 and errno.
    pub fn ibv_query_gid(
        context: *mut ibv_context,
        port_num: u8,
        index: c_int,
        gid: *mut ibv_gid,
    ) -> c_int;

    /// What `ibv_query_gid_ex` calls, with the caller's size of an entry.
    pub fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> c_int;

    /// What `ibv_query_gid_table` calls, with the caller's size of an entry.
    pub fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> libc::ssize_t;

    /// An entry of a port's P_Key table, big endian. 0, or -1 and errno.
    pub fn ibv_query_pkey(
        context: *mut ibv_context,
        port_num: u8,
        index: c_int,
        pkey: *mut be16,
    ) -> c_int;

    /// The index of a P_Key (big endian) in a port's table, or -1.
    pub fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: be16) -> c_int;

    /// Allocates a protection domain; NULL and errno.
    pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;

    /// Frees a protection domain. 0 or an errno: `EBUSY` as long as something belongs to it.
    pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;

    /// What the macros `ibv_reg_mr` and `ibv_reg_mr_iova` call for optional access flags.
    pub fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr;

    /// Registers memory; NULL and errno.
    pub fn ibv_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr;

    /// Registers memory that peers address from `iova` on; NULL and errno.
    pub fn ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> *mut ibv_mr;

    /// Registers a range of a DMA-BUF; NULL and errno.
    pub fn ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> *mut ibv_mr;

    /// Registers memory of any kind, as the attributes say; NULL and errno.
    pub fn ibv_reg_mr_ex(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr;

    /// Changes what `flags` (`enum ibv_rereg_mr_flags`) select of a region. 0 or an `enum
    /// ibv_rereg_mr_err_code`.
    pub fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int;

    /// Deregisters a region. 0 or an errno.
    pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;

    /// Creates a channel for completion events; NULL and errno.
    pub fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;

    /// Destroys a channel. 0 or an errno: `EBUSY` as long as a CQ uses it.
    pub fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;

    /// A new DMA-BUF descriptor of device memory, or -1 and errno.
    pub fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int;

    /// Creates a CQ of at least `cqe` entries; NULL and errno.
    pub fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq;

    /// Changes the size of a CQ to at least `cqe` entries. 0 or an errno.
    pub fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;

    /// Destroys a CQ after all its events were acknowledged. 0 or an errno: `EBUSY` as long as a QP
    /// uses it.
    pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;

    /// Waits for the next completion event of a channel. 0, or -1 and errno.
    pub fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int;

    /// Acknowledges `nevents` completion events of a CQ.
    pub fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);

    /// What `ibv_query_comp_cntr_caps` calls, with the caller's size of the structure.
    pub fn _ibv_query_comp_cntr_caps(
        context: *mut ibv_context,
        caps: *mut ibv_comp_cntr_caps,
        caps_size: usize,
    ) -> c_int;

    /// Creates a completion counter; NULL and errno.
    pub fn ibv_create_comp_cntr(
        context: *mut ibv_context,
        cc_attr: *mut ibv_comp_cntr_init_attr,
    ) -> *mut ibv_comp_cntr;

    /// Destroys a completion counter. 0 or an errno.
    pub fn ibv_destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> c_int;

    /// Sets the count of completions. 0 or an errno.
    pub fn ibv_set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;

    /// Sets the count of errors. 0 or an errno.
    pub fn ibv_set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;

    /// Adds to the count of completions. 0 or an errno.
    pub fn ibv_inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;

    /// Adds to the count of errors. 0 or an errno.
    pub fn ibv_inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;

    /// Reads the count of completions. 0 or an errno.
    pub fn ibv_read_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;

    /// Reads the count of errors. 0 or an errno.
    pub fn ibv_read_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;

    /// Creates a shared receive queue, at least as large as asked for; NULL and errno.
    pub fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;

    /// Resizes an SRQ or arms its limit, by `enum ibv_srq_attr_mask`. 0 or an errno.
    pub fn ibv_modify_srq(
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
        srq_attr_mask: c_int,
    ) -> c_int;

    /// Size and limit of an SRQ. 0 or an errno.
    pub fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int;

    /// Destroys an SRQ after its events were acknowledged. 0 or an errno: `EBUSY` as long as a QP
    /// uses it.
    pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;

    /// Creates a QP in RESET and writes the capacities it got into the attributes; NULL and errno.
    pub fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;

    /// Allocates `size` bytes that can be registered with `ibv_reg_buf_mr`, and a handle; NULL and
    /// errno.
    pub fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void;

    /// A new DMA-BUF descriptor of such a buffer, or -1 and errno.
    pub fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int;

    /// Frees a buffer of `ibv_alloc_buf`.
    pub fn ibv_free_buf(buf: *mut ibv_buf);

    /// Registers a range of such a buffer; NULL and errno.
    pub fn ibv_reg_buf_mr(
        pd: *mut ibv_pd,
        buf: *mut ibv_buf,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr;

    /// Allocates a DMA handle, which carries hints about memory and its processor; NULL and errno.
    pub fn ibv_alloc_dmah(
        context: *mut ibv_context,
        attr: *mut ibv_dmah_init_attr,
    ) -> *mut ibv_dmah;

    /// Frees a DMA handle. 0 or an errno.
    pub fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int;

    /// Changes what `attr_mask` (`enum ibv_qp_attr_mask`) selects of a QP. 0 or an errno.
    pub fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;

    /// Lets a counter count completions of a QP. 0 or an errno.
    pub fn ibv_qp_attach_comp_cntr(
        qp: *mut ibv_qp,
        comp_cntr: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int;

    /// Whether, or (flag `RETURN_CAPS`) in which units, data arrives in order. 0 means no.
    pub fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int;

    /// Attributes of a QP. 0 or an errno.
    pub fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> c_int;

    /// Destroys a QP after its events were acknowledged. 0 or an errno.
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;

    /// Creates an address handle; NULL and errno.
    pub fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;

    /// The address of a datagram's sender. `grh`: the first 40 bytes that were received. 0, or -1
    /// and errno.
    pub fn ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port_num: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        ah_attr: *mut ibv_ah_attr,
    ) -> c_int;

    /// An address handle for a datagram's sender; NULL and errno.
    pub fn ibv_create_ah_from_wc(
        pd: *mut ibv_pd,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        port_num: u8,
    ) -> *mut ibv_ah;

    /// Destroys an address handle. 0 or an errno.
    pub fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;

    /// Adds a UD QP to a multicast group. `lid`: host byte order. 0 or an errno.
    pub fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;

    /// Takes a QP out of a multicast group. 0 or an errno.
    pub fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;

    /// Makes registered memory survive fork(2). Before anything is registered. 0 or an errno.
    pub fn ibv_fork_init() -> c_int;

    /// Whether fork(2) is safe.
    pub fn ibv_is_fork_initialized() -> ibv_fork_status;

    /// The name of a kind of device. Never NULL.
    pub fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char;

    /// The name of a port state. Never NULL.
    pub fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char;

    /// A sentence for an asynchronous event. Never NULL.
    pub fn ibv_event_type_str(event: ibv_event_type) -> *const c_char;

    /// The MAC address (6 bytes) and VLAN of the GID in `attr`. 0 or an errno.
    pub fn ibv_resolve_eth_l2_from_gid(
        context: *mut ibv_context,
        attr: *mut ibv_ah_attr,
        eth_mac: *mut u8,
        vid: *mut u16,
    ) -> c_int;

    /// Offers options of enhanced connection establishment. 0 or an errno.
    pub fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;

    /// The options in use. 0 or an errno.
    pub fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
}
