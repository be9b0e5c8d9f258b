//! Flow actions: `ibv_flow_action_esp(3)`; object `UVERBS_OBJECT_FLOW_ACTION` of
//! `<rdma/ib_user_ioctl_cmds.h>`. Ioctl only.

use abi::{
    IBV_FLOW_ACTION_ESP, IBV_FLOW_ACTION_ESP_MASK_ESN, UVERBS_ATTR_CREATE_FLOW_ACTION_ESP_HANDLE,
    UVERBS_ATTR_DESTROY_FLOW_ACTION_HANDLE, UVERBS_ATTR_FLOW_ACTION_ESP_ATTRS,
    UVERBS_ATTR_FLOW_ACTION_ESP_ENCAP, UVERBS_ATTR_FLOW_ACTION_ESP_ESN,
    UVERBS_ATTR_FLOW_ACTION_ESP_KEYMAT, UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY,
    UVERBS_ATTR_MODIFY_FLOW_ACTION_ESP_HANDLE, UVERBS_METHOD_FLOW_ACTION_DESTROY,
    UVERBS_METHOD_FLOW_ACTION_ESP_CREATE, UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY,
    UVERBS_OBJECT_FLOW_ACTION, ib_uverbs_flow_action_esp, ib_uverbs_flow_action_esp_encap,
    ibv_command_buffer, ibv_context, ibv_flow_action_esp_attr, verbs_flow_action,
};

use super::destroy;
use super::status::Status;
use crate::front::command::buffer::{Chain, Command};
use crate::front::command::bytes::InputBytes;
use cface::verb;

verb! {
    /// `ibv_cmd_create_flow_action_esp`: sets `context`, `handle` and type.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `context` is live, `attr` and what it names are readable, `flow_action` is the provider's to
    /// fill, `driver` is NULL or a chain of command buffers.
    pub(crate) fn create_esp(
        context: *mut ibv_context,
        attr: *mut ibv_flow_action_esp_attr,
        flow_action: *mut verbs_flow_action,
        driver: *mut ibv_command_buffer,
    ) -> Status {
        // SAFETY: the provider's context is NULL, which is refused, or live; `driver` is NULL or
        // its chain of buffers.
        let (live, chain) = unsafe { (super::context_of(context)?, Chain::new(driver)) };
        let mut command = Command::new(UVERBS_OBJECT_FLOW_ACTION, UVERBS_METHOD_FLOW_ACTION_ESP_CREATE)
            .with_chain(chain);
        let handle = command.object_out(UVERBS_ATTR_CREATE_FLOW_ACTION_ESP_HANDLE);
        // SAFETY: `attr` and the named memory stay readable until the return, and the command ends
        // before.
        unsafe { add_esp(&mut command, attr) };
        command.run(live)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*flow_action).action.context = context;
            (*flow_action).type_ = IBV_FLOW_ACTION_ESP;
            (*flow_action).handle = command.handle(handle);
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_modify_flow_action_esp`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `flow_action` is live, `attr` and what it names are readable, `driver` is NULL or a chain of
    /// command buffers.
    pub(crate) fn modify_esp(
        flow_action: *mut verbs_flow_action,
        attr: *mut ibv_flow_action_esp_attr,
        driver: *mut ibv_command_buffer,
    ) -> Status {
        // SAFETY: the provider's flow action is live, and `driver` is NULL or its chain of command
        // buffers.
        let (context, handle, chain) = unsafe {
            (super::context_of((*flow_action).action.context)?, (*flow_action).handle, Chain::new(driver))
        };
        let mut command = Command::new(UVERBS_OBJECT_FLOW_ACTION, UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY)
            .with_chain(chain);
        command.object_in(UVERBS_ATTR_MODIFY_FLOW_ACTION_ESP_HANDLE, handle);
        // SAFETY: `attr` and the named memory stay readable until the return, and the command ends
        // before.
        unsafe { add_esp(&mut command, attr) };
        command.run(context)?;
        Ok(Status::DONE)
    }

    /// `ibv_cmd_destroy_flow_action`.
    ///
    /// # Errors
    /// The kernel's errno; `EBUSY` while a flow uses it.
    ///
    /// # Safety
    /// `flow_action` is live.
    pub(crate) fn destroy(flow_action: *mut verbs_flow_action) -> Status {
        // SAFETY: the provider's flow action is live, so its context and handle can be read.
        let (context, handle) =
            unsafe { (super::context_of((*flow_action).action.context)?, (*flow_action).handle) };
        let mut command = Command::new(UVERBS_OBJECT_FLOW_ACTION, UVERBS_METHOD_FLOW_ACTION_DESTROY);
        command.object_in(UVERBS_ATTR_DESTROY_FLOW_ACTION_HANDLE, handle);
        destroy::destroy_result(command.run(context))?;
        Ok(Status::DONE)
    }
}

/// # Safety
/// `attr` and what it names are readable as long as the command is used.
unsafe fn add_esp(command: &mut Command<'_>, attr: *const ibv_flow_action_esp_attr) {
    // SAFETY: both callers pass on attributes of the application, which are readable; they are
    // copied.
    let attr = unsafe { *attr };
    if attr.comp_mask & IBV_FLOW_ACTION_ESP_MASK_ESN != 0 {
        command.u32_in(UVERBS_ATTR_FLOW_ACTION_ESP_ESN, attr.esn);
    }
    // SAFETY: each pointer has the given length, or its type's length, by the contract.
    let (keymat, replay, encap, esp) = unsafe {
        (
            InputBytes::raw(attr.keymat_ptr, attr.keymat_len.into()),
            InputBytes::raw(attr.replay_ptr, attr.replay_len.into()),
            InputBytes::raw(attr.esp_encap.cast(), size_of::<ib_uverbs_flow_action_esp_encap>()),
            InputBytes::raw(attr.esp_attr.cast(), size_of::<ib_uverbs_flow_action_esp>()),
        )
    };
    if !attr.keymat_ptr.is_null() {
        command.enum_in(UVERBS_ATTR_FLOW_ACTION_ESP_KEYMAT, attr.keymat_proto as u8, keymat);
    }
    if !attr.replay_ptr.is_null() {
        command.enum_in(UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY, attr.replay_proto as u8, replay);
    }
    if !attr.esp_encap.is_null() {
        command.bytes_in(UVERBS_ATTR_FLOW_ACTION_ESP_ENCAP, encap);
    }
    if !attr.esp_attr.is_null() {
        command.bytes_in(UVERBS_ATTR_FLOW_ACTION_ESP_ATTRS, esp);
    }
}
