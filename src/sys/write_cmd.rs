//! The one legacy write command that no provider is involved in: creating a completion channel.
//! (`<rdma/ib_user_verbs.h>`; wrapped in an ioctl where the kernel takes that.)

use core::ffi::c_int;

use abi::{
    IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, RDMA_VERBS_IOCTL, UVERBS_ATTR_CORE_IN,
    UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_F_MANDATORY, UVERBS_ATTR_WRITE_CMD,
    UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE, Zeroed, ib_uverbs_attr, ib_uverbs_cmd_hdr,
    ib_uverbs_create_comp_channel, ib_uverbs_create_comp_channel_resp, ib_uverbs_ioctl_hdr,
    ibv_create_comp_channel,
};

use crate::ffi::Errno;

/// Asks the kernel behind `cmd_fd` for a channel; `wrapped` as found when the context was made.
pub(crate) fn create_comp_channel(
    cmd_fd: c_int,
    driver_id: u32,
    wrapped: bool,
) -> Result<c_int, Errno> {
    let mut response = ib_uverbs_create_comp_channel_resp::zeroed();
    let request =
        ib_uverbs_create_comp_channel { response: (&raw mut response).expose_provenance() as u64 };
    if wrapped {
        invoke(cmd_fd, driver_id, &request, &mut response)?;
    } else {
        write(cmd_fd, request)?;
    }
    Ok(response.fd.cast_signed())
}

fn invoke(
    cmd_fd: c_int,
    driver_id: u32,
    request: &ib_uverbs_create_comp_channel,
    response: &mut ib_uverbs_create_comp_channel_resp,
) -> Result<(), Errno> {
    #[repr(C)]
    struct Command {
        hdr: ib_uverbs_ioctl_hdr,
        attrs: [ib_uverbs_attr; 3],
    }
    let attr = |attr_id, len: usize, data| ib_uverbs_attr {
        attr_id,
        len: len as u16,
        flags: UVERBS_ATTR_F_MANDATORY,
        data,
        ..ib_uverbs_attr::zeroed()
    };
    let mut command = Command {
        hdr: ib_uverbs_ioctl_hdr {
            length: size_of::<Command>() as u16,
            object_id: UVERBS_OBJECT_DEVICE,
            method_id: UVERBS_METHOD_INVOKE_WRITE,
            num_attrs: 3,
            driver_id,
            ..ib_uverbs_ioctl_hdr::zeroed()
        },
        attrs: [
            attr(
                UVERBS_ATTR_WRITE_CMD,
                size_of::<u64>(),
                u64::from(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL),
            ),
            // Up to 8 bytes travel in the attribute itself.
            attr(UVERBS_ATTR_CORE_IN, size_of_val(request), request.response),
            attr(
                UVERBS_ATTR_CORE_OUT,
                size_of_val(response),
                core::ptr::from_mut(response).expose_provenance() as u64,
            ),
        ],
    };
    // SAFETY: the kernel reads the command, whose length the header tells, and writes the response,
    // which outlives the call.
    let result = unsafe { libc::ioctl(cmd_fd, RDMA_VERBS_IOCTL, &raw mut command) };
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

fn write(cmd_fd: c_int, core_payload: ib_uverbs_create_comp_channel) -> Result<(), Errno> {
    let command = ibv_create_comp_channel {
        hdr: ib_uverbs_cmd_hdr {
            command: IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL,
            in_words: (size_of::<ibv_create_comp_channel>() / 4) as u16,
            out_words: (size_of::<ib_uverbs_create_comp_channel_resp>() / 4) as u16,
        },
        core_payload,
    };
    let len = size_of_val(&command);
    // SAFETY: the kernel reads the command and writes the response it points to, which outlives the call.
    let written = unsafe { libc::write(cmd_fd, (&raw const command).cast(), len) };
    if usize::try_from(written) == Ok(len) { Ok(()) } else { Err(Errno::last()) }
}
