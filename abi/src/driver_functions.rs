//! Functions for plugins, which `libibverbs.so.1` exports under `IBVERBS_PRIVATE_65` and
//! `<infiniband-provider/driver.h>` declares. Some had fewer parameters in older generations; the
//! newest forms are here.
//!
//! Map of this file: the functions are in the order of their names; the DMA-BUF heaps and the
//! registration of a driver come last.

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::{
    ib_uverbs_alloc_mw_resp, ib_uverbs_alloc_pd_resp, ib_uverbs_create_ah_resp,
    ib_uverbs_create_cq_resp, ib_uverbs_create_qp_resp, ib_uverbs_create_srq_resp,
    ib_uverbs_ex_create_cq_resp, ib_uverbs_ex_create_qp_resp,
    ib_uverbs_ex_create_rwq_ind_table_resp, ib_uverbs_ex_create_wq_resp,
    ib_uverbs_ex_modify_qp_resp, ib_uverbs_ex_query_device_resp, ib_uverbs_get_context_resp,
    ib_uverbs_open_xrcd_resp, ib_uverbs_reg_mr_resp, ib_uverbs_rereg_mr_resp,
    ib_uverbs_resize_cq_resp, ibv_advise_mr_advice, ibv_ah, ibv_ah_attr, ibv_alloc_dm_attr,
    ibv_alloc_mw, ibv_alloc_pd, ibv_command_buffer, ibv_comp_channel, ibv_comp_cntr,
    ibv_comp_cntr_caps, ibv_context, ibv_counters_init_attr, ibv_cq, ibv_cq_init_attr_ex,
    ibv_create_cq, ibv_create_cq_ex, ibv_create_qp, ibv_create_qp_ex, ibv_create_srq,
    ibv_create_wq, ibv_create_xsrq, ibv_device, ibv_device_attr_ex, ibv_dmabuf_heap,
    ibv_dmah_init_attr, ibv_fd_arr, ibv_flow, ibv_flow_action_esp_attr, ibv_flow_attr,
    ibv_get_context, ibv_gid, ibv_gid_type_sysfs, ibv_modify_cq, ibv_modify_cq_attr, ibv_modify_qp,
    ibv_modify_qp_ex, ibv_modify_srq, ibv_modify_wq, ibv_mr_init_attr, ibv_mw, ibv_mw_type,
    ibv_open_qp, ibv_open_xrcd, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attach_comp_cntr_attr,
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr,
    ibv_query_device_ex_input, ibv_query_port, ibv_query_qp, ibv_query_srq, ibv_recv_wr,
    ibv_reg_mr, ibv_rereg_mr, ibv_resize_cq, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr,
    ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_wc,
    ibv_wq, ibv_wq_attr, ibv_wq_init_attr, ibv_xrcd_init_attr, verbs_context, verbs_context_ops,
    verbs_counters, verbs_cq, verbs_create_cq_prov_attr, verbs_device_ops, verbs_dm, verbs_dmah,
    verbs_flow_action, verbs_mr, verbs_qp, verbs_srq, verbs_sysfs_dev, verbs_xrcd,
};

unsafe extern "C" {
    /// Number of attributes of a command and of all linked commands.
    pub fn __ioctl_final_num_attrs(num_attrs: c_uint, link: *mut ibv_command_buffer) -> c_uint;

    /// Writes a line of a level (`VERBS_LOG_*`) to where `VERBS_LOG_FILE` says.
    pub fn __verbs_log(ctx: *mut verbs_context, level: u32, fmt: *const c_char, ...);

    /// Zeroed memory of `alloc_size` bytes with an initialised context at `context_offset` bytes;
    /// NULL and errno.
    pub fn _verbs_init_and_alloc_context(
        device: *mut ibv_device,
        cmd_fd: c_int,
        alloc_size: usize,
        context_offset: *mut verbs_context,
        driver_id: u32,
    ) -> *mut c_void;

    /// Sends a command to the kernel. 0 or an errno.
    pub fn execute_ioctl(context: *mut ibv_context, cmd: *mut ibv_command_buffer) -> c_int;

    /// Asks the kernel to advise about a region. 0 or an errno.
    pub fn ibv_cmd_advise_mr(
        pd: *mut ibv_pd,
        advice: ibv_advise_mr_advice,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sge: u32,
    ) -> c_int;

    /// Asks the kernel to allocate device memory. 0 or an errno.
    pub fn ibv_cmd_alloc_dm(
        ctx: *mut ibv_context,
        dm_attr: *const ibv_alloc_dm_attr,
        dm: *mut verbs_dm,
        link: *mut ibv_command_buffer,
    ) -> c_int;

    /// Asks the kernel to allocate a DMA handle. 0 or an errno.
    pub fn ibv_cmd_alloc_dmah(
        ctx: *mut ibv_context,
        st: *mut verbs_dmah,
        attr: *mut ibv_dmah_init_attr,
    ) -> c_int;

    /// Asks the kernel to allocate a window. 0 or an errno.
    pub fn ibv_cmd_alloc_mw(
        pd: *mut ibv_pd,
        type_: ibv_mw_type,
        mw: *mut ibv_mw,
        cmd: *mut ibv_alloc_mw,
        cmd_size: usize,
        resp: *mut ib_uverbs_alloc_mw_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to allocate a protection domain. 0 or an errno.
    pub fn ibv_cmd_alloc_pd(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        cmd: *mut ibv_alloc_pd,
        cmd_size: usize,
        resp: *mut ib_uverbs_alloc_pd_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to attach a multicast group. 0 or an errno.
    pub fn ibv_cmd_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;

    /// Asks the kernel to close an XRC domain. 0 or an errno.
    pub fn ibv_cmd_close_xrcd(xrcd: *mut verbs_xrcd) -> c_int;

    /// Asks the kernel to create an address handle. 0 or an errno.
    pub fn ibv_cmd_create_ah(
        pd: *mut ibv_pd,
        ah: *mut ibv_ah,
        attr: *mut ibv_ah_attr,
        resp: *mut ib_uverbs_create_ah_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to create a completion counter. 0 or an errno.
    pub fn ibv_cmd_create_comp_cntr(
        context: *mut ibv_context,
        comp_cntr: *mut ibv_comp_cntr,
        link: *mut ibv_command_buffer,
    ) -> c_int;

    /// Asks the kernel to create counters. 0 or an errno.
    pub fn ibv_cmd_create_counters(
        context: *mut ibv_context,
        init_attr: *mut ibv_counters_init_attr,
        vcounters: *mut verbs_counters,
        link: *mut ibv_command_buffer,
    ) -> c_int;

    /// Asks the kernel to create a CQ. 0 or an errno.
    pub fn ibv_cmd_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
        cq: *mut ibv_cq,
        cmd: *mut ibv_create_cq,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_cq_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to create an extended CQ. 0 or an errno.
    pub fn ibv_cmd_create_cq_ex(
        context: *mut ibv_context,
        cq_attr: *const ibv_cq_init_attr_ex,
        prov_attr: *mut verbs_create_cq_prov_attr,
        cq: *mut verbs_cq,
        cmd: *mut ibv_create_cq_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_cq_resp,
        resp_size: usize,
        cmd_flags: u32,
    ) -> c_int;

    /// Asks the kernel to create an extended CQ, with attributes of the driver. 0 or an errno.
    pub fn ibv_cmd_create_cq_ex2(
        context: *mut ibv_context,
        cq_attr: *const ibv_cq_init_attr_ex,
        prov_attr: *mut verbs_create_cq_prov_attr,
        cq: *mut verbs_cq,
        cmd: *mut ibv_create_cq_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_cq_resp,
        resp_size: usize,
        cmd_flags: u32,
        driver: *mut ibv_command_buffer,
    ) -> c_int;

    /// Asks the kernel to create a flow. 0 or an errno.
    pub fn ibv_cmd_create_flow(
        qp: *mut ibv_qp,
        flow_id: *mut ibv_flow,
        flow_attr: *mut ibv_flow_attr,
        ucmd: *mut c_void,
        ucmd_size: usize,
    ) -> c_int;

    /// Asks the kernel to create an ESP flow action. 0 or an errno.
    pub fn ibv_cmd_create_flow_action_esp(
        ctx: *mut ibv_context,
        attr: *mut ibv_flow_action_esp_attr,
        flow_action: *mut verbs_flow_action,
        driver: *mut ibv_command_buffer,
    ) -> c_int;

    /// Asks the kernel to create a QP. 0 or an errno.
    pub fn ibv_cmd_create_qp(
        pd: *mut ibv_pd,
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_init_attr,
        cmd: *mut ibv_create_qp,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_qp_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to create an extended QP. 0 or an errno.
    pub fn ibv_cmd_create_qp_ex(
        context: *mut ibv_context,
        qp: *mut verbs_qp,
        attr_ex: *mut ibv_qp_init_attr_ex,
        cmd: *mut ibv_create_qp,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_qp_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to create an extended QP, by the extended command. 0 or an errno.
    pub fn ibv_cmd_create_qp_ex2(
        context: *mut ibv_context,
        qp: *mut verbs_qp,
        qp_attr: *mut ibv_qp_init_attr_ex,
        cmd: *mut ibv_create_qp_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_qp_resp,
        resp_size: usize,
        driver: *mut ibv_command_buffer,
    ) -> c_int;

    /// Asks the kernel to create an indirection table. 0 or an errno.
    pub fn ibv_cmd_create_rwq_ind_table(
        context: *mut ibv_context,
        init_attr: *mut ibv_rwq_ind_table_init_attr,
        rwq_ind_table: *mut ibv_rwq_ind_table,
        resp: *mut ib_uverbs_ex_create_rwq_ind_table_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to create an SRQ. 0 or an errno.
    pub fn ibv_cmd_create_srq(
        pd: *mut ibv_pd,
        srq: *mut ibv_srq,
        attr: *mut ibv_srq_init_attr,
        cmd: *mut ibv_create_srq,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_srq_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to create an SRQ of any type. 0 or an errno.
    pub fn ibv_cmd_create_srq_ex(
        context: *mut ibv_context,
        srq: *mut verbs_srq,
        attr_ex: *mut ibv_srq_init_attr_ex,
        cmd: *mut ibv_create_xsrq,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_srq_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to create a work queue. 0 or an errno.
    pub fn ibv_cmd_create_wq(
        context: *mut ibv_context,
        wq_init_attr: *mut ibv_wq_init_attr,
        wq: *mut ibv_wq,
        cmd: *mut ibv_create_wq,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_wq_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to free a window. 0 or an errno.
    pub fn ibv_cmd_dealloc_mw(mw: *mut ibv_mw) -> c_int;

    /// Asks the kernel to free a protection domain. 0 or an errno.
    pub fn ibv_cmd_dealloc_pd(pd: *mut ibv_pd) -> c_int;

    /// Asks the kernel to deregister a region. 0 or an errno.
    pub fn ibv_cmd_dereg_mr(vmr: *mut verbs_mr) -> c_int;

    /// Asks the kernel to destroy an address handle. 0 or an errno.
    pub fn ibv_cmd_destroy_ah(ah: *mut ibv_ah) -> c_int;

    /// Asks the kernel to destroy a completion counter. 0 or an errno.
    pub fn ibv_cmd_destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> c_int;

    /// Asks the kernel to destroy counters. 0 or an errno.
    pub fn ibv_cmd_destroy_counters(vcounters: *mut verbs_counters) -> c_int;

    /// Asks the kernel to destroy a CQ. 0 or an errno.
    pub fn ibv_cmd_destroy_cq(cq: *mut ibv_cq) -> c_int;

    /// Asks the kernel to destroy a flow. 0 or an errno.
    pub fn ibv_cmd_destroy_flow(flow_id: *mut ibv_flow) -> c_int;

    /// Asks the kernel to destroy a flow action. 0 or an errno.
    pub fn ibv_cmd_destroy_flow_action(action: *mut verbs_flow_action) -> c_int;

    /// Asks the kernel to destroy a QP. 0 or an errno.
    pub fn ibv_cmd_destroy_qp(qp: *mut ibv_qp) -> c_int;

    /// Asks the kernel to destroy an indirection table. 0 or an errno.
    pub fn ibv_cmd_destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int;

    /// Asks the kernel to destroy an SRQ. 0 or an errno.
    pub fn ibv_cmd_destroy_srq(srq: *mut ibv_srq) -> c_int;

    /// Asks the kernel to destroy a work queue. 0 or an errno.
    pub fn ibv_cmd_destroy_wq(wq: *mut ibv_wq) -> c_int;

    /// Asks the kernel to detach a multicast group. 0 or an errno.
    pub fn ibv_cmd_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;

    /// Exports device memory as a DMA-BUF. Returns the descriptor, or -1 and errno.
    pub fn ibv_cmd_export_dmabuf_fd(ctx: *mut ibv_context, pg_off: libc::off_t) -> c_int;

    /// Asks the kernel to free device memory. 0 or an errno.
    pub fn ibv_cmd_free_dm(dm: *mut verbs_dm) -> c_int;

    /// Asks the kernel to free a DMA handle. 0 or an errno.
    pub fn ibv_cmd_free_dmah(dmah: *mut verbs_dmah) -> c_int;

    /// Asks the kernel to get a context. 0 or an errno.
    pub fn ibv_cmd_get_context(
        context: *mut verbs_context,
        cmd: *mut ibv_get_context,
        cmd_size: usize,
        fd_arr: *mut ibv_fd_arr,
        resp: *mut ib_uverbs_get_context_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to count up a completion counter. 0 or an errno.
    pub fn ibv_cmd_inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;

    /// Asks the kernel to count up the errors of a completion counter. 0 or an errno.
    pub fn ibv_cmd_inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;

    /// Asks the kernel to modify a CQ. 0 or an errno.
    pub fn ibv_cmd_modify_cq(
        cq: *mut ibv_cq,
        attr: *mut ibv_modify_cq_attr,
        cmd: *mut ibv_modify_cq,
        cmd_size: usize,
    ) -> c_int;

    /// Asks the kernel to modify an ESP flow action. 0 or an errno.
    pub fn ibv_cmd_modify_flow_action_esp(
        flow_action: *mut verbs_flow_action,
        attr: *mut ibv_flow_action_esp_attr,
        driver: *mut ibv_command_buffer,
    ) -> c_int;

    /// Asks the kernel to modify a QP. 0 or an errno.
    pub fn ibv_cmd_modify_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        cmd: *mut ibv_modify_qp,
        cmd_size: usize,
    ) -> c_int;

    /// Asks the kernel to modify an extended QP. 0 or an errno.
    pub fn ibv_cmd_modify_qp_ex(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        cmd: *mut ibv_modify_qp_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_modify_qp_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to modify an SRQ. 0 or an errno.
    pub fn ibv_cmd_modify_srq(
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
        srq_attr_mask: c_int,
        cmd: *mut ibv_modify_srq,
        cmd_size: usize,
    ) -> c_int;

    /// Asks the kernel to modify a work queue. 0 or an errno.
    pub fn ibv_cmd_modify_wq(
        wq: *mut ibv_wq,
        attr: *mut ibv_wq_attr,
        cmd: *mut ibv_modify_wq,
        cmd_size: usize,
    ) -> c_int;

    /// Asks the kernel to open a QP. 0 or an errno.
    pub fn ibv_cmd_open_qp(
        context: *mut ibv_context,
        qp: *mut verbs_qp,
        vqp_sz: c_int,
        attr: *mut ibv_qp_open_attr,
        cmd: *mut ibv_open_qp,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_qp_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to open an XRC domain. 0 or an errno.
    pub fn ibv_cmd_open_xrcd(
        context: *mut ibv_context,
        xrcd: *mut verbs_xrcd,
        vxrcd_size: c_int,
        attr: *mut ibv_xrcd_init_attr,
        cmd: *mut ibv_open_xrcd,
        cmd_size: usize,
        resp: *mut ib_uverbs_open_xrcd_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to poll a CQ. The number of completions, or -1.
    pub fn ibv_cmd_poll_cq(cq: *mut ibv_cq, ne: c_int, wc: *mut ibv_wc) -> c_int;

    /// Asks the kernel to post to a receive queue. 0 or an errno.
    pub fn ibv_cmd_post_recv(
        ibqp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad_wr: *mut *mut ibv_recv_wr,
    ) -> c_int;

    /// Asks the kernel to post to a send queue. 0 or an errno.
    pub fn ibv_cmd_post_send(
        ibqp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int;

    /// Asks the kernel to post to an SRQ. 0 or an errno.
    pub fn ibv_cmd_post_srq_recv(
        srq: *mut ibv_srq,
        wr: *mut ibv_recv_wr,
        bad_wr: *mut *mut ibv_recv_wr,
    ) -> c_int;

    /// Asks the kernel to attach a completion counter to a QP. 0 or an errno.
    pub fn ibv_cmd_qp_attach_comp_cntr(
        qp: *mut ibv_qp,
        comp_cntr: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int;

    /// Asks the kernel to query the limits of completion counters. 0 or an errno.
    pub fn ibv_cmd_query_comp_cntr_caps(
        context: *mut ibv_context,
        caps: *mut ibv_comp_cntr_caps,
        caps_size: usize,
    ) -> c_int;

    /// Asks the kernel to query a context. 0 or an errno.
    pub fn ibv_cmd_query_context(ctx: *mut ibv_context, driver: *mut ibv_command_buffer) -> c_int;

    /// Asks the kernel to query a device. 0 or an errno.
    pub fn ibv_cmd_query_device_any(
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
        attr_size: usize,
        resp: *mut ib_uverbs_ex_query_device_resp,
        resp_size: *mut usize,
    ) -> c_int;

    /// Asks the kernel to query a region. 0 or an errno.
    pub fn ibv_cmd_query_mr(pd: *mut ibv_pd, vmr: *mut verbs_mr, mr_handle: u32) -> c_int;

    /// Asks the kernel to query a port. 0 or an errno.
    pub fn ibv_cmd_query_port(
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut ibv_port_attr,
        cmd: *mut ibv_query_port,
        cmd_size: usize,
    ) -> c_int;

    /// Asks the kernel to query the speed of a port. 0 or an errno.
    pub fn ibv_cmd_query_port_speed(
        context: *mut ibv_context,
        port_num: u32,
        speed: *mut u64,
    ) -> c_int;

    /// Asks the kernel to query a QP. 0 or an errno.
    pub fn ibv_cmd_query_qp(
        qp: *mut ibv_qp,
        qp_attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        qp_init_attr: *mut ibv_qp_init_attr,
        cmd: *mut ibv_query_qp,
        cmd_size: usize,
    ) -> c_int;

    /// Asks the kernel to query an SRQ. 0 or an errno.
    pub fn ibv_cmd_query_srq(
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
        cmd: *mut ibv_query_srq,
        cmd_size: usize,
    ) -> c_int;

    /// Asks the kernel to read a completion counter. 0 or an errno.
    pub fn ibv_cmd_read_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;

    /// Asks the kernel to read counters. 0 or an errno.
    pub fn ibv_cmd_read_counters(
        vcounters: *mut verbs_counters,
        counters_value: *mut u64,
        ncounters: u32,
        flags: u32,
        link: *mut ibv_command_buffer,
    ) -> c_int;

    /// Asks the kernel to read the errors of a completion counter. 0 or an errno.
    pub fn ibv_cmd_read_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;

    /// Asks the kernel to register device memory as a region. 0 or an errno.
    pub fn ibv_cmd_reg_dm_mr(
        pd: *mut ibv_pd,
        dm: *mut verbs_dm,
        offset: u64,
        length: usize,
        access: c_uint,
        vmr: *mut verbs_mr,
        link: *mut ibv_command_buffer,
    ) -> c_int;

    /// Asks the kernel to register a DMA-BUF as a region. 0 or an errno.
    pub fn ibv_cmd_reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
        vmr: *mut verbs_mr,
        driver: *mut ibv_command_buffer,
    ) -> c_int;

    /// Asks the kernel to register a region. 0 or an errno.
    pub fn ibv_cmd_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        hca_va: u64,
        access: c_int,
        vmr: *mut verbs_mr,
        cmd: *mut ibv_reg_mr,
        cmd_size: usize,
        resp: *mut ib_uverbs_reg_mr_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to register a region of any kind. 0 or an errno.
    pub fn ibv_cmd_reg_mr_ex(
        pd: *mut ibv_pd,
        vmr: *mut verbs_mr,
        mr_init_attr: *mut ibv_mr_init_attr,
    ) -> c_int;

    /// Asks the kernel to arm a CQ. 0 or an errno.
    pub fn ibv_cmd_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int;

    /// Asks the kernel to change a region. 0 or an errno.
    pub fn ibv_cmd_rereg_mr(
        vmr: *mut verbs_mr,
        flags: u32,
        addr: *mut c_void,
        length: usize,
        hca_va: u64,
        access: c_int,
        pd: *mut ibv_pd,
        cmd: *mut ibv_rereg_mr,
        cmd_sz: usize,
        resp: *mut ib_uverbs_rereg_mr_resp,
        resp_sz: usize,
    ) -> c_int;

    /// Asks the kernel to resize a CQ. 0 or an errno.
    pub fn ibv_cmd_resize_cq(
        cq: *mut ibv_cq,
        cqe: c_int,
        cmd: *mut ibv_resize_cq,
        cmd_size: usize,
        resp: *mut ib_uverbs_resize_cq_resp,
        resp_size: usize,
    ) -> c_int;

    /// Asks the kernel to set a completion counter. 0 or an errno.
    pub fn ibv_cmd_set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;

    /// Asks the kernel to set the errors of a completion counter. 0 or an errno.
    pub fn ibv_cmd_set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;

    /// Type of an entry of a GID table as sysfs has it. 0, or -1 and errno.
    pub fn ibv_query_gid_type(
        context: *mut ibv_context,
        port_num: u8,
        index: c_uint,
        type_: *mut ibv_gid_type_sysfs,
    ) -> c_int;

    /// Reads a file of a device in sysfs, without the newline at its end. Bytes, or -1.
    pub fn ibv_read_ibdev_sysfs_file(
        buf: *mut c_char,
        size: usize,
        sysfs_dev: *mut verbs_sysfs_dev,
        fnfmt: *const c_char,
        ...
    ) -> c_int;

    /// Initialises the front-end's members of a CQ.
    pub fn verbs_init_cq(
        cq: *mut ibv_cq,
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
    );

    /// Opens a device with data for its `alloc_context`; NULL and errno.
    pub fn verbs_open_device(
        device: *mut ibv_device,
        private_data: *mut c_void,
    ) -> *mut ibv_context;

    /// Puts the operations that are not NULL into a context.
    pub fn verbs_set_ops(vctx: *mut verbs_context, ops: *const verbs_context_ops);

    /// Undoes what the allocation of a context did; the memory stays, for free(3).
    pub fn verbs_uninit_context(context: *mut verbs_context);

    /// The heap of memory that confidential virtual machines share with devices; NULL and errno.
    pub fn ibv_dmabuf_heap_cc_shared_init() -> *mut ibv_dmabuf_heap;

    /// Memory of the heap, mapped, and its descriptor; NULL and errno.
    pub fn ibv_dmabuf_heap_alloc(
        heap: *mut ibv_dmabuf_heap,
        size: usize,
        dmabuf_fd: *mut c_int,
    ) -> *mut c_void;

    /// Unmaps memory of a DMA-BUF heap and closes the descriptor.
    pub fn ibv_dmabuf_heap_free(memory: *mut c_void, size: usize, dmabuf_fd: c_int);

    /// Closes the heap.
    pub fn ibv_dmabuf_heap_destroy(heap: *mut ibv_dmabuf_heap);

    /// Adds a driver to the library's list; the number is the generation that the plugin is built
    /// for.
    pub fn verbs_register_driver_65(ops: *const verbs_device_ops);
}
