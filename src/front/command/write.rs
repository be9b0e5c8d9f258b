//! Write commands (`<rdma/ib_user_verbs.h>`): the replacement of ioctls on old kernels, and the
//! only form of many commands. If the kernel accepts write commands wrapped in an ioctl
//! (`INVOKE_WRITE`), the ioctl is used, because `write` is refused in user namespaces and checks
//! the caller's credentials.

use abi::{
    IB_USER_VERBS_CMD_FLAG_EXTENDED, UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT,
    UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE, Zeroed, ex_hdr,
    ib_uverbs_cmd_hdr,
};

use super::buffer::Command;
use super::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use super::frame::Driver;
use crate::front::context::Context;
use cface::Errno;

plain_data! { ib_uverbs_cmd_hdr ex_hdr }

/// `IB_USER_VERBS_CMD_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// Without a response, or with a response whose address starts the request.
    Plain(u32),
    /// `IB_USER_VERBS_EX_CMD_*`: the address is in the header.
    Extended(u32),
}

/// A write command.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    pub(crate) number: Number,
    /// Body of the core request, without header.
    pub(crate) request: InputBytes<'a>,
    /// Core response.
    pub(crate) response: OutputBytes<'a>,
    pub(crate) driver: Driver<'a>,
}

impl<'a> Write<'a> {
    /// A command with nothing but a core request.
    pub(crate) const fn new(number: Number, request: InputBytes<'a>) -> Self {
        Self { number, request, response: OutputBytes::NONE, driver: Driver::NONE }
    }

    /// Where the core response goes.
    pub(crate) fn response(mut self, response: OutputBytes<'a>) -> Self {
        self.response = response;
        self
    }

    /// The provider's data.
    pub(crate) fn driver(mut self, driver: Driver<'a>) -> Self {
        self.driver = driver;
        self
    }

    /// Sends the command.
    ///
    /// # Errors
    /// The kernel's errno. A short write is an error with the errno that is set.
    pub(crate) fn run(self, context: Context) -> Result<(), Errno> {
        if context.private().use_ioctl_write.load(core::sync::atomic::Ordering::Relaxed) {
            self.invoke(context)
        } else {
            self.write(context)
        }
    }

    /// The core request, including the address of the response.
    fn core_request(&self, response: u64) -> Vec<u8> {
        let mut core = Vec::with_capacity(self.request.len());
        self.request.append_to(&mut core);
        if matches!(self.number, Number::Plain(_))
            && response != 0
            && let Some(first) = core.first_chunk_mut()
        {
            *first = response.to_ne_bytes();
        }
        core
    }

    fn invoke(mut self, context: Context) -> Result<(), Errno> {
        let core = self.core_request(self.response.address());
        let number = match self.number {
            Number::Plain(number) => number,
            Number::Extended(number) => number | IB_USER_VERBS_CMD_FLAG_EXTENDED,
        };
        let mut command = Command::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
        command.u64_in(UVERBS_ATTR_WRITE_CMD, number.into());
        if !core.is_empty() {
            command.bytes_in(UVERBS_ATTR_CORE_IN, InputBytes::slice(&core));
        }
        if !self.response.is_empty() {
            command.output(UVERBS_ATTR_CORE_OUT, self.response.reborrow());
        }
        command.with_driver(self.driver.reborrow()).run(context)
    }

    fn write(mut self, context: Context) -> Result<(), Errno> {
        // The kernel writes core and driver response as one.
        let core_len = self.response.len();
        let mut response = Vec::with_capacity(core_len + self.driver.response.len());
        if matches!(self.number, Number::Extended(_)) {
            response.resize(core_len + self.driver.response.len(), 0);
            self.response.store(0, &response);
            self.driver.response.store(0, &response);
        } else {
            self.response.as_in().append_to(&mut response);
            self.driver.response.as_in().append_to(&mut response);
        }
        let address =
            if response.is_empty() { 0 } else { response.as_mut_ptr().expose_provenance() as u64 };
        let message = self.message(address, response.len());
        // SAFETY: the kernel reads the message and writes the response, as long as the header says.
        let written =
            unsafe { libc::write(super::cmd_fd(context), message.as_ptr().cast(), message.len()) };
        if usize::try_from(written) != Ok(message.len()) {
            return Err(Errno::last());
        }
        let (core, driver) = response.split_at(core_len.min(response.len()));
        self.response.store(0, core);
        self.driver.response.store(0, driver);
        Ok(())
    }

    fn message(&self, response: u64, response_len: usize) -> Vec<u8> {
        let core = self.core_request(response);
        let driver = &self.driver;
        let mut message =
            Vec::with_capacity(size_of::<ex_hdr>() + core.len() + driver.request.len());
        match self.number {
            Number::Plain(number) => {
                let bytes = size_of::<ib_uverbs_cmd_hdr>() + core.len() + driver.request.len();
                InputBytes::of(&ib_uverbs_cmd_hdr {
                    command: number,
                    in_words: words(bytes, 4),
                    out_words: words(response_len, 4),
                })
                .append_to(&mut message);
            }
            Number::Extended(number) => {
                let mut hdr = ex_hdr::zeroed();
                hdr.hdr = ib_uverbs_cmd_hdr {
                    command: number | IB_USER_VERBS_CMD_FLAG_EXTENDED,
                    in_words: words(core.len(), 8),
                    out_words: words(self.response.len(), 8),
                };
                hdr.ex_hdr.response = response;
                hdr.ex_hdr.provider_in_words = words(driver.request.len(), 8);
                hdr.ex_hdr.provider_out_words = words(driver.response.len(), 8);
                InputBytes::of(&hdr).append_to(&mut message);
            }
        }
        message.extend_from_slice(&core);
        driver.request.append_to(&mut message);
        message
    }
}

impl Command<'_> {
    /// Sends the write command that replaces the ioctl, with the driver data.
    pub(crate) fn write<Q: PlainData>(
        &mut self,
        context: Context,
        number: Number,
        request: &Q,
    ) -> Result<(), Errno> {
        Write::new(number, InputBytes::of(request)).driver(self.driver.reborrow()).run(context)
    }

    /// As [`Command::write`], with a core response.
    pub(crate) fn write_resp<Q: PlainData, R: PlainData>(
        &mut self,
        context: Context,
        number: Number,
        request: &Q,
        response: &mut R,
    ) -> Result<(), Errno> {
        Write::new(number, InputBytes::of(request))
            .response(OutputBytes::of(response))
            .driver(self.driver.reborrow())
            .run(context)
    }
}

/// A length in units of the header's fields; the kernel refuses a remainder.
fn words(bytes: usize, unit: usize) -> u16 {
    (bytes / unit) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_command_counts_words_of_four_bytes_and_carries_its_response_address() {
        let (request, driver, mut response) = ([0_u64, 7], [5_u32], 0_u32);
        let write = Write::new(Number::Plain(9), InputBytes::slice(&request))
            .response(OutputBytes::of(&mut response))
            .driver(Driver { request: InputBytes::slice(&driver), response: OutputBytes::NONE });
        let message = write.message(0x1122, 4);
        let mut expected = vec![9, 0, 0, 0, 7, 0, 1, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0];
        expected.extend([7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(message, expected);
    }

    #[test]
    fn an_extended_command_counts_words_of_eight_bytes_core_and_driver_apart() {
        let (request, driver, mut response) = ([3_u64, 7], [5_u64; 3], [0_u64; 4]);
        let (core_out, driver_out) = response.split_at_mut(1);
        let write = Write::new(Number::Extended(52), InputBytes::slice(&request))
            .response(OutputBytes::slice(core_out))
            .driver(Driver {
                request: InputBytes::slice(&driver),
                response: OutputBytes::slice(driver_out),
            });
        let message = write.message(0x1122, 32);
        assert_eq!(message.len(), 24 + 16 + 24);
        assert_eq!(message[..8], [52, 0, 0, 0x80, 2, 0, 1, 0]);
        assert_eq!(message[8..24], [0x22, 0x11, 0, 0, 0, 0, 0, 0, 3, 0, 3, 0, 0, 0, 0, 0]);
        assert_eq!(message[24..32], [3, 0, 0, 0, 0, 0, 0, 0]);
    }
}
