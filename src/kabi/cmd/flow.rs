//! Flow steering rules: `ibv_create_flow(3)`; `ib_uverbs_create_flow` of `<rdma/ib_user_verbs.h>`.
//! The specifications of a rule follow the command's fixed part, one behind the other.

use core::ffi::c_void;

use abi::{
    IB_USER_VERBS_EX_CMD_CREATE_FLOW, IB_USER_VERBS_EX_CMD_DESTROY_FLOW,
    UVERBS_ATTR_DESTROY_FLOW_HANDLE, UVERBS_METHOD_FLOW_DESTROY, UVERBS_OBJECT_FLOW, Zeroed,
    ib_uverbs_create_flow, ib_uverbs_create_flow_resp, ib_uverbs_destroy_flow, ibv_flow,
    ibv_flow_attr, ibv_qp, verbs_counters, verbs_flow_action,
};

use super::destroy::Destroy;
use super::flow_spec::{self, NamedObject};
use super::status::{Status, set};
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::Driver;
use crate::front::command::write::{Number, Write};
use crate::front::op::Op;
use cface::{Errno, verb};

plain_data! { ib_uverbs_create_flow ib_uverbs_create_flow_resp ib_uverbs_destroy_flow }

verb! {
    /// `ibv_cmd_create_flow`: a new rule, with driver data `ucmd`; sets `context` and `handle`.
    ///
    /// # Errors
    /// `EINVAL` an unknown or short specification; `EOPNOTSUPP` an unknown field is used; what the
    /// kernel says.
    ///
    /// # Safety
    /// `qp` and the objects that specifications name are live, `flow_id` is the provider's to fill,
    /// `flow_attr` has its specifications behind it, `ucmd` has `ucmd_size` bytes.
    pub(crate) fn create_flow(
        qp: *mut ibv_qp,
        flow_id: *mut ibv_flow,
        flow_attr: *mut ibv_flow_attr,
        ucmd: *mut c_void,
        ucmd_size: usize,
    ) -> Status {
        // SAFETY: the caller's QP is live, and `flow_attr` is readable; its head is copied.
        let (raw_context, qp_handle, attr) = unsafe { ((*qp).context, (*qp).handle, *flow_attr) };
        // SAFETY: the context of a live QP is live.
        let context = unsafe { super::context_of(raw_context)? };
        // SAFETY: specifications follow the attributes, per the contract above.
        let specs = unsafe { kernel_specs(flow_attr.add(1).cast(), attr.num_of_specs)? };
        let mut head = ib_uverbs_create_flow::zeroed();
        head.qp_handle = qp_handle;
        head.flow_attr.type_ = attr.type_;
        head.flow_attr.size = u16::try_from(specs.len()).map_err(|_| set(Errno::EINVAL))?;
        head.flow_attr.priority = attr.priority;
        head.flow_attr.num_of_specs = attr.num_of_specs;
        head.flow_attr.port = attr.port;
        head.flow_attr.flags = attr.flags;
        let mut request = Vec::with_capacity(size_of_val(&head) + specs.len());
        InputBytes::of(&head).append_to(&mut request);
        request.extend_from_slice(&specs);

        let mut response = ib_uverbs_create_flow_resp::zeroed();
        // SAFETY: that long, per the contract above.
        let driver = unsafe { InputBytes::raw(ucmd, ucmd_size) };
        Write::new(Number::Extended(IB_USER_VERBS_EX_CMD_CREATE_FLOW), InputBytes::slice(&request))
            .response(OutputBytes::of(&mut response))
            .driver(Driver { request: driver, response: OutputBytes::NONE })
            .run(context)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*flow_id).context = raw_context;
            (*flow_id).handle = response.flow_handle;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_destroy_flow`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `flow_id` is live.
    pub(crate) fn destroy_flow(flow_id: *mut ibv_flow) -> Status {
        // SAFETY: the caller's flow is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*flow_id).context)?, (*flow_id).handle) };
        let destroy = Destroy {
            // Shared with address handles, as in rdma-core: the kernel learned both at once.
            op: Op::destroy_ah,
            object: UVERBS_OBJECT_FLOW,
            method: UVERBS_METHOD_FLOW_DESTROY,
            handle: UVERBS_ATTR_DESTROY_FLOW_HANDLE,
        };
        let request = ib_uverbs_destroy_flow { comp_mask: 0, flow_handle: handle };
        destroy.run(context, handle, Number::Extended(IB_USER_VERBS_EX_CMD_DESTROY_FLOW), &request)
    }
}

/// The specifications from `next` on, as the kernel wants them.
///
/// # Safety
/// `count` specifications follow each other, each as long as its head says; the objects they name
/// are live.
unsafe fn kernel_specs(mut next: *const u8, count: u8) -> Result<Vec<u8>, Errno> {
    let mut kernel = Vec::new();
    for _ in 0..count {
        // SAFETY: each specification has at least its head.
        let head = unsafe { core::slice::from_raw_parts(next, flow_spec::HEAD) };
        let size = flow_spec::head(head).map_or(0, |(_, size)| size);
        // SAFETY: as long as its head says, by the contract.
        let spec = unsafe { core::slice::from_raw_parts(next, size) };
        // SAFETY: a live object inside its provider's structure, by the contract.
        let handle_of = |named| unsafe {
            match named {
                NamedObject::Action(at) => {
                    (*core::ptr::with_exposed_provenance::<verbs_flow_action>(at)).handle
                }
                NamedObject::Counters(at) => {
                    (*core::ptr::with_exposed_provenance::<verbs_counters>(at)).handle
                }
            }
        };
        flow_spec::convert(spec, handle_of, &mut kernel)?;
        next = next.wrapping_add(size);
    }
    Ok(kernel)
}
