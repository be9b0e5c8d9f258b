//! Attributes of devices and ports: `ibv_query_device_ex(3)`, `ibv_query_port(3)`; object
//! `UVERBS_OBJECT_DEVICE` of `<rdma/ib_user_ioctl_cmds.h>`, `ib_uverbs_query_device` and relatives
//! of `<rdma/ib_user_verbs.h>`.

use core::mem::offset_of;

use abi::{
    IB_USER_VERBS_CMD_QUERY_DEVICE, IB_USER_VERBS_CMD_QUERY_PORT,
    IB_USER_VERBS_EX_CMD_QUERY_DEVICE, UVERBS_ATTR_QUERY_PORT_PORT_NUM,
    UVERBS_ATTR_QUERY_PORT_RESP, UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM,
    UVERBS_ATTR_QUERY_PORT_SPEED_RESP, UVERBS_METHOD_QUERY_PORT, UVERBS_METHOD_QUERY_PORT_SPEED,
    UVERBS_OBJECT_DEVICE, Zeroed, ib_uverbs_ex_query_device, ib_uverbs_ex_query_device_resp,
    ib_uverbs_query_device, ib_uverbs_query_device_resp, ib_uverbs_query_port,
    ib_uverbs_query_port_resp, ib_uverbs_query_port_resp_ex, ibv_context, ibv_device_attr,
    ibv_device_attr_ex, ibv_port_attr, ibv_query_device_ex_input, ibv_query_port,
};

use super::status::Status;
use crate::front::command::IoctlOutcome;
use crate::front::command::buffer::Command;
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::{self, Driver};
use crate::front::command::write::{Number, Write};
use crate::front::context::Context;
use crate::front::generation::Variant;
use crate::front::op::Op;
use cface::{Errno, verb};

plain_data! {
    ib_uverbs_ex_query_device ib_uverbs_ex_query_device_resp ib_uverbs_query_device ib_uverbs_query_device_resp
    ib_uverbs_query_port ib_uverbs_query_port_resp ib_uverbs_query_port_resp_ex
}

verb! {
    /// `ibv_cmd_query_port`: state and limits of a port. An old kernel leaves `port_cap_flags2` and
    /// `active_speed_ex` as they are.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `context` is live, `port_attr` has the length of the provider's generation, `cmd` is as long
    /// as its size says.
    pub(crate) fn query_port(
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut ibv_port_attr,
        cmd: *mut ibv_query_port,
        cmd_size: usize,
    ) -> Status {
        // SAFETY: the provider's context is NULL, which is refused, or live during this call.
        let context = unsafe { super::context_of(context)? };
        let mut response = ib_uverbs_query_port_resp_ex::zeroed();
        let mut command = Command::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
        command.u64_in(UVERBS_ATTR_QUERY_PORT_PORT_NUM, port_num.into());
        command.output(UVERBS_ATTR_QUERY_PORT_RESP, OutputBytes::of(&mut response));
        match command.run_or_fall_back(context, Op::query_port)? {
            IoctlOutcome::Done => {
                // SAFETY: the caller's memory; `active_speed_ex` is only there since rdma-core 49.
                unsafe {
                    (*port_attr).port_cap_flags2 = response.port_cap_flags2;
                    if context.private().generation.variant >= Variant::V34f {
                        (*port_attr).active_speed_ex = response.active_speed_ex;
                    }
                }
            }
            IoctlOutcome::Write | IoctlOutcome::WriteEx => {
                // SAFETY: the provider's `cmd` is as long as `cmd_size`, which `request` compares
                // with the structure.
                let (cmd, driver) = unsafe { frame::request(cmd, cmd_size)? };
                let core = &mut cmd.core_payload;
                core.port_num = port_num;
                core.reserved = [0; 7];
                Write::new(Number::Plain(IB_USER_VERBS_CMD_QUERY_PORT), InputBytes::of(core))
                    .response(OutputBytes::of(&mut response.legacy_resp))
                    .driver(driver)
                    .run(context)?;
            }
        }
        let port = &response.legacy_resp;
        // SAFETY: the caller's memory; each member is there in every generation.
        unsafe {
            (*port_attr).state = port.state.into();
            (*port_attr).max_mtu = port.max_mtu.into();
            (*port_attr).active_mtu = port.active_mtu.into();
            (*port_attr).gid_tbl_len = port.gid_tbl_len.cast_signed();
            (*port_attr).port_cap_flags = port.port_cap_flags;
            (*port_attr).max_msg_sz = port.max_msg_sz;
            (*port_attr).bad_pkey_cntr = port.bad_pkey_cntr;
            (*port_attr).qkey_viol_cntr = port.qkey_viol_cntr;
            (*port_attr).pkey_tbl_len = port.pkey_tbl_len;
            (*port_attr).lid = port.lid;
            (*port_attr).sm_lid = port.sm_lid;
            (*port_attr).lmc = port.lmc;
            (*port_attr).max_vl_num = port.max_vl_num;
            (*port_attr).sm_sl = port.sm_sl;
            (*port_attr).subnet_timeout = port.subnet_timeout;
            (*port_attr).init_type_reply = port.init_type_reply;
            (*port_attr).active_width = port.active_width;
            (*port_attr).active_speed = port.active_speed;
            (*port_attr).phys_state = port.phys_state;
            (*port_attr).link_layer = port.link_layer;
            (*port_attr).flags = port.flags;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_query_port_speed`: the effective speed of a port in units of 100 Mbit/s; ioctl
    /// only.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `context` is live, `speed` can be written.
    pub(crate) fn query_port_speed(context: *mut ibv_context, port_num: u32, speed: *mut u64) -> Status {
        // SAFETY: the context is live, and `speed` is NULL, which is refused, or the caller's to be
        // written.
        let (context, speed) = unsafe { (super::context_of(context)?, speed.as_mut().ok_or(Errno::EINVAL)?) };
        let mut command = Command::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT_SPEED);
        command.u64_in(UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM, port_num.into());
        command.output(UVERBS_ATTR_QUERY_PORT_SPEED_RESP, OutputBytes::of(speed));
        command.run(context)?;
        Ok(Status::DONE)
    }

    /// `ibv_cmd_query_device_any`: attributes of the device, extended as far as the caller has room
    /// and the kernel knows them. `resp` may be NULL; otherwise the provider's data is behind it,
    /// and `resp_size` gives the room and receives what the kernel used. `fw_ver` is left to the
    /// provider, which knows the format of the number.
    ///
    /// # Errors
    /// `EINVAL` unknown input, or less room than `ibv_device_attr`; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `context` is live, `input` is NULL or readable, `attr` is as long as `attr_size` says,
    /// `resp` is NULL or as long as `resp_size` says.
    pub(crate) fn query_device_any(
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
        attr_size: usize,
        resp: *mut ib_uverbs_ex_query_device_resp,
        resp_size: *mut usize,
    ) -> Status {
        // SAFETY: the provider's context is NULL, which is refused, or live; `input` is NULL or
        // readable.
        let (context, input) = unsafe { (super::context_of(context)?, input.as_ref()) };
        if input.is_some_and(|input| input.comp_mask != 0) || attr_size < size_of::<ibv_device_attr>() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: that long, per the contract above.
        unsafe { attr.cast::<u8>().write_bytes(0, attr_size) };

        // SAFETY: NULL or as long as `resp_size` says, per the contract above.
        let mut callers = unsafe { Response::new(resp, resp_size) };
        let mut known = ib_uverbs_ex_query_device_resp::zeroed();
        let extended = attr_size > size_of::<ibv_device_attr>()
            && callers.query_extended(context, &mut known)?;
        if !extended {
            callers.query_legacy(context, &mut known)?;
        }
        callers.tell_used(known.response_length);

        let mut found = ibv_device_attr_ex::zeroed();
        legacy_attributes(&known.base, &mut found.orig_attr);
        if extended {
            // SAFETY: a live device; a kernel device, if any, has the same lifetime.
            let ports = unsafe { (*context.device()).sysfs.as_ref() }.map_or(0, |sysfs| sysfs.num_ports);
            extended_attributes(&known, ports, attr_size, &mut found);
        }
        let covered = attr_size.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: not more than `attr_size` bytes, and `found` was zeroed, padding included.
        unsafe { attr.cast::<u8>().copy_from_nonoverlapping((&raw const found).cast(), covered) };
        Ok(Status::DONE)
    }
}

/// The provider's memory for the response of `ibv_cmd_query_device_any`.
#[derive(Debug)]
struct Response<'a> {
    core: OutputBytes<'a>,
    driver: OutputBytes<'a>,
    /// Receives what the kernel used; NULL if nobody asks.
    used: *mut usize,
}

impl Response<'_> {
    /// # Safety
    /// `resp` is NULL or writable for `*resp_size` bytes until the lifetime ends, by nobody else.
    unsafe fn new(resp: *mut ib_uverbs_ex_query_device_resp, resp_size: *mut usize) -> Self {
        if resp.is_null() || resp_size.is_null() {
            return Self {
                core: OutputBytes::NONE,
                driver: OutputBytes::NONE,
                used: core::ptr::null_mut(),
            };
        }
        // SAFETY: that long, by the contract.
        unsafe {
            let size = resp_size.read();
            let core = size.min(size_of::<ib_uverbs_ex_query_device_resp>());
            let driver = Driver::after_core(core::ptr::null::<u8>(), 0, resp, size).response;
            Self { core: OutputBytes::raw(resp.cast(), core), driver, used: resp_size }
        }
    }

    /// Whether the kernel knows the extended command.
    fn query_extended(
        &mut self,
        context: Context,
        known: &mut ib_uverbs_ex_query_device_resp,
    ) -> Result<bool, Errno> {
        let number = Number::Extended(IB_USER_VERBS_EX_CMD_QUERY_DEVICE);
        let request = ib_uverbs_ex_query_device::zeroed();
        let result = Write::new(number, InputBytes::of(&request))
            .response(if self.used.is_null() {
                OutputBytes::of(known)
            } else {
                self.core.reborrow()
            })
            .driver(Driver { request: InputBytes::NONE, response: self.driver.reborrow() })
            .run(context);
        match result {
            Ok(()) => {
                if !self.used.is_null() {
                    OutputBytes::of(known).store(0, &self.core.as_in().to_vec());
                }
                Ok(true)
            }
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The attributes that every kernel reports.
    fn query_legacy(
        &mut self,
        context: Context,
        known: &mut ib_uverbs_ex_query_device_resp,
    ) -> Result<(), Errno> {
        let number = Number::Plain(IB_USER_VERBS_CMD_QUERY_DEVICE);
        Write::new(number, InputBytes::of(&ib_uverbs_query_device::zeroed()))
            .response(OutputBytes::of(&mut known.base))
            .run(context)?;
        known.response_length = size_of_val(&known.base) as u32;
        self.core.store(0, &InputBytes::of(&known.base).to_vec());
        Ok(())
    }

    /// Tells the provider how much of the response the kernel knew.
    fn tell_used(&mut self, used: u32) {
        let member = offset_of!(ib_uverbs_ex_query_device_resp, response_length);
        self.core.store(member, &used.to_ne_bytes());
        if !self.used.is_null() {
            // SAFETY: writable by the contract of `new`.
            unsafe { self.used.write(used as usize) };
        }
    }
}

fn legacy_attributes(from: &ib_uverbs_query_device_resp, to: &mut ibv_device_attr) {
    to.node_guid = from.node_guid;
    to.sys_image_guid = from.sys_image_guid;
    to.max_mr_size = from.max_mr_size;
    to.page_size_cap = from.page_size_cap;
    to.vendor_id = from.vendor_id;
    to.vendor_part_id = from.vendor_part_id;
    to.hw_ver = from.hw_ver;
    to.max_qp = from.max_qp.cast_signed();
    to.max_qp_wr = from.max_qp_wr.cast_signed();
    to.device_cap_flags = from.device_cap_flags;
    to.max_sge = from.max_sge.cast_signed();
    to.max_sge_rd = from.max_sge_rd.cast_signed();
    to.max_cq = from.max_cq.cast_signed();
    to.max_cqe = from.max_cqe.cast_signed();
    to.max_mr = from.max_mr.cast_signed();
    to.max_pd = from.max_pd.cast_signed();
    to.max_qp_rd_atom = from.max_qp_rd_atom.cast_signed();
    to.max_ee_rd_atom = from.max_ee_rd_atom.cast_signed();
    to.max_res_rd_atom = from.max_res_rd_atom.cast_signed();
    to.max_qp_init_rd_atom = from.max_qp_init_rd_atom.cast_signed();
    to.max_ee_init_rd_atom = from.max_ee_init_rd_atom.cast_signed();
    to.atomic_cap = from.atomic_cap;
    to.max_ee = from.max_ee.cast_signed();
    to.max_rdd = from.max_rdd.cast_signed();
    to.max_mw = from.max_mw.cast_signed();
    to.max_raw_ipv6_qp = from.max_raw_ipv6_qp.cast_signed();
    to.max_raw_ethy_qp = from.max_raw_ethy_qp.cast_signed();
    to.max_mcast_grp = from.max_mcast_grp.cast_signed();
    to.max_mcast_qp_attach = from.max_mcast_qp_attach.cast_signed();
    to.max_total_mcast_qp_attach = from.max_total_mcast_qp_attach.cast_signed();
    to.max_ah = from.max_ah.cast_signed();
    to.max_fmr = from.max_fmr.cast_signed();
    to.max_map_per_fmr = from.max_map_per_fmr.cast_signed();
    to.max_srq = from.max_srq.cast_signed();
    to.max_srq_wr = from.max_srq_wr.cast_signed();
    to.max_srq_sge = from.max_srq_sge.cast_signed();
    to.max_pkeys = from.max_pkeys;
    to.local_ca_ack_delay = from.local_ca_ack_delay;
    to.phys_port_cnt = from.phys_port_cnt;
}

/// Fills each group of members that both the caller (`attr_size`) and the kernel
/// (`response_length`) have in full.
fn extended_attributes(
    from: &ib_uverbs_ex_query_device_resp,
    ports: u32,
    attr_size: usize,
    to: &mut ibv_device_attr_ex,
) {
    let response_length = from.response_length as usize;
    macro_rules! covered {
        ($member:ident) => {
            attr_size >= offset_of!(ibv_device_attr_ex, $member) + size_of_val(&to.$member)
        };
        ($member:ident, $known:ident) => {
            covered!($member)
                && response_length
                    >= offset_of!(ib_uverbs_ex_query_device_resp, $known)
                        + size_of_val(&from.$known)
        };
    }
    if covered!(odp_caps, odp_caps) {
        let transports = &from.odp_caps.per_transport_caps;
        to.odp_caps.general_caps = from.odp_caps.general_caps;
        to.odp_caps.per_transport_caps.rc_odp_caps = transports.rc_odp_caps;
        to.odp_caps.per_transport_caps.uc_odp_caps = transports.uc_odp_caps;
        to.odp_caps.per_transport_caps.ud_odp_caps = transports.ud_odp_caps;
    }
    if covered!(completion_timestamp_mask, timestamp_mask) {
        to.completion_timestamp_mask = from.timestamp_mask;
    }
    if covered!(hca_core_clock, hca_core_clock) {
        to.hca_core_clock = from.hca_core_clock;
    }
    if covered!(device_cap_flags_ex, device_cap_flags_ex) {
        to.device_cap_flags_ex = from.device_cap_flags_ex;
    }
    if covered!(rss_caps, rss_caps) {
        to.rss_caps.supported_qpts = from.rss_caps.supported_qpts;
        to.rss_caps.max_rwq_indirection_tables = from.rss_caps.max_rwq_indirection_tables;
        to.rss_caps.max_rwq_indirection_table_size = from.rss_caps.max_rwq_indirection_table_size;
    }
    if covered!(max_wq_type_rq, max_wq_type_rq) {
        to.max_wq_type_rq = from.max_wq_type_rq;
    }
    if covered!(raw_packet_caps, raw_packet_caps) {
        to.raw_packet_caps = from.raw_packet_caps;
    }
    if covered!(tm_caps, tm_caps) {
        to.tm_caps.max_rndv_hdr_size = from.tm_caps.max_rndv_hdr_size;
        to.tm_caps.max_num_tags = from.tm_caps.max_num_tags;
        to.tm_caps.flags = from.tm_caps.flags;
        to.tm_caps.max_ops = from.tm_caps.max_ops;
        to.tm_caps.max_sge = from.tm_caps.max_sge;
    }
    if covered!(cq_mod_caps, cq_moderation_caps) {
        to.cq_mod_caps.max_cq_count = from.cq_moderation_caps.max_cq_moderation_count;
        to.cq_mod_caps.max_cq_period = from.cq_moderation_caps.max_cq_moderation_period;
    }
    if covered!(max_dm_size, max_dm_size) {
        to.max_dm_size = from.max_dm_size;
    }
    if covered!(xrc_odp_caps, xrc_odp_caps) {
        to.xrc_odp_caps = from.xrc_odp_caps;
    }
    if covered!(phys_port_cnt_ex) {
        to.phys_port_cnt_ex = if ports != 0 { ports } else { from.base.phys_port_cnt.into() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_filled_only_if_caller_and_kernel_have_all_of_it() {
        let mut from = ib_uverbs_ex_query_device_resp::zeroed();
        from.timestamp_mask = 1;
        from.hca_core_clock = 2;
        from.max_dm_size = 3;
        from.base.phys_port_cnt = 4;
        let mut check = |response_length, attr_size, ports| {
            from.response_length = response_length;
            let mut to = ibv_device_attr_ex::zeroed();
            extended_attributes(&from, ports, attr_size, &mut to);
            (to.completion_timestamp_mask, to.hca_core_clock, to.max_dm_size, to.phys_port_cnt_ex)
        };
        assert_eq!(check(304, 400, 0), (1, 2, 3, 4));
        assert_eq!(check(304, 400, 300), (1, 2, 3, 300));
        assert_eq!(check(223, 400, 0), (1, 0, 0, 4));
        assert_eq!(check(304, 279, 0), (1, 0, 0, 0));
        assert_eq!(check(304, 240, 0), (0, 0, 0, 0));
    }
}
