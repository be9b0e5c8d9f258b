//! Address handles: `ibv_create_ah(3)`; `ib_uverbs_create_ah` of `<rdma/ib_user_verbs.h>`. For
//! providers whose kernel driver keeps address handles.

use abi::{
    IB_USER_VERBS_CMD_CREATE_AH, IB_USER_VERBS_CMD_DESTROY_AH, UVERBS_ATTR_DESTROY_AH_HANDLE,
    UVERBS_METHOD_AH_DESTROY, UVERBS_OBJECT_AH, Zeroed, ib_uverbs_create_ah,
    ib_uverbs_create_ah_resp, ibv_ah, ibv_ah_attr, ibv_pd,
};

use super::destroy::Destroy;
use super::status::Status;
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::Driver;
use crate::front::command::write::{Number, Write};
use crate::front::op::Op;
use cface::{Errno, verb};

plain_data! { ib_uverbs_create_ah ib_uverbs_create_ah_resp }

verb! {
    /// `ibv_cmd_create_ah`: a new address handle; sets `handle` and `context`. The response may
    /// have the driver's data behind it.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `pd` and `attr` are live, `ah` is the provider's to fill, `resp` is as long as its size
    /// says.
    pub(crate) fn create_ah(
        pd: *mut ibv_pd,
        ah: *mut ibv_ah,
        attr: *mut ibv_ah_attr,
        resp: *mut ib_uverbs_create_ah_resp,
        resp_size: usize,
    ) -> Status {
        if resp_size < size_of::<ib_uverbs_create_ah_resp>() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's PD is live and its attributes are readable; both are copied.
        let (raw_context, pd_handle, attr) = unsafe { ((*pd).context, (*pd).handle, *attr) };
        // SAFETY: the context of a live PD is live.
        let context = unsafe { super::context_of(raw_context)? };
        let mut request = ib_uverbs_create_ah::zeroed();
        request.user_handle = ah.expose_provenance() as u64;
        request.pd_handle = pd_handle;
        request.attr.dlid = attr.dlid;
        request.attr.sl = attr.sl;
        request.attr.src_path_bits = attr.src_path_bits;
        request.attr.static_rate = attr.static_rate;
        request.attr.is_global = attr.is_global;
        request.attr.port_num = attr.port_num;
        request.attr.grh.flow_label = attr.grh.flow_label;
        request.attr.grh.sgid_index = attr.grh.sgid_index;
        request.attr.grh.hop_limit = attr.grh.hop_limit;
        request.attr.grh.traffic_class = attr.grh.traffic_class;
        request.attr.grh.dgid = attr.grh.dgid.bytes();
        // SAFETY: at least as long as the structure (checked), and the rest is behind it.
        let (response, driver) = unsafe {
            (&mut *resp, Driver::after_core(core::ptr::null::<u8>(), 0, resp, resp_size))
        };
        Write::new(Number::Plain(IB_USER_VERBS_CMD_CREATE_AH), InputBytes::of(&request))
            .response(OutputBytes::of(&mut *response))
            .driver(driver)
            .run(context)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*ah).handle = response.ah_handle;
            (*ah).context = raw_context;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_destroy_ah`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `ah` is live.
    pub(crate) fn destroy_ah(ah: *mut ibv_ah) -> Status {
        // SAFETY: the provider's `ah` is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*ah).context)?, (*ah).handle) };
        let destroy = Destroy {
            op: Op::destroy_ah,
            object: UVERBS_OBJECT_AH,
            method: UVERBS_METHOD_AH_DESTROY,
            handle: UVERBS_ATTR_DESTROY_AH_HANDLE,
        };
        destroy.run(context, handle, Number::Plain(IB_USER_VERBS_CMD_DESTROY_AH), &handle)
    }
}
