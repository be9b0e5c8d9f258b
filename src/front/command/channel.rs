//! Completion channels: `ibv_create_comp_channel(3)`; `ib_uverbs_create_comp_channel` of
//! `<rdma/ib_user_verbs.h>`.

use core::ffi::c_int;

use abi::{
    IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, Zeroed, ib_uverbs_create_comp_channel,
    ib_uverbs_create_comp_channel_resp,
};

use super::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use super::write::{Number, Write};
use crate::front::context::Context;
use cface::Errno;

plain_data! { ib_uverbs_create_comp_channel ib_uverbs_create_comp_channel_resp }

/// A descriptor that delivers completion events.
///
/// # Errors
/// The kernel's errno.
pub(crate) fn create(context: Context) -> Result<c_int, Errno> {
    let request = ib_uverbs_create_comp_channel::zeroed();
    let mut response = ib_uverbs_create_comp_channel_resp::zeroed();
    Write::new(Number::Plain(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL), InputBytes::of(&request))
        .response(OutputBytes::of(&mut response))
        .run(context)?;
    Ok(response.fd.cast_signed())
}
