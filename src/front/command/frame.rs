//! The memory that providers pass to commands as `cmd, cmd_size, resp, resp_size`: a command
//! structure with its header, followed by the driver's own data, and likewise a response.

use super::bytes::{InputBytes, OutputBytes};
use cface::Errno;

/// The driver's parts: `UHW_IN` and `UHW_OUT` of an ioctl, the tails of a write command.
#[derive(Debug)]
pub(crate) struct Driver<'a> {
    pub(crate) request: InputBytes<'a>,
    pub(crate) response: OutputBytes<'a>,
}

impl<'a> Driver<'a> {
    /// No driver data.
    pub(crate) const NONE: Self = Self { request: InputBytes::NONE, response: OutputBytes::NONE };

    /// The driver data behind the core structures `C` (with its header) and `R`. If the sizes leave
    /// no driver data, the core structures may be missing.
    ///
    /// # Safety
    /// `cmd` is readable for `cmd_size` bytes and `resp` writable for `resp_size` bytes until `'a`
    /// ends, the latter by nobody else.
    pub(crate) unsafe fn after_core<C, R>(
        cmd: *const C,
        cmd_size: usize,
        resp: *mut R,
        resp_size: usize,
    ) -> Self {
        // SAFETY: the rest of the memory that the contract describes.
        unsafe { Self { request: tail_in(cmd, cmd_size), response: tail_out(resp, resp_size) } }
    }

    /// The same memory for a shorter time.
    pub(crate) fn reborrow(&mut self) -> Driver<'_> {
        Driver { request: self.request, response: self.response.reborrow() }
    }
}

/// # Safety
/// `cmd` is readable for `size` bytes until `'a` ends.
unsafe fn tail_in<'a, C>(cmd: *const C, size: usize) -> InputBytes<'a> {
    match size.checked_sub(size_of::<C>()) {
        // SAFETY: within the memory of the contract.
        Some(rest) if rest > 0 => unsafe { InputBytes::raw(cmd.add(1).cast(), rest) },
        _ => InputBytes::NONE,
    }
}

/// # Safety
/// `resp` is writable for `size` bytes until `'a` ends, by nobody else.
unsafe fn tail_out<'a, R>(resp: *mut R, size: usize) -> OutputBytes<'a> {
    match size.checked_sub(size_of::<R>()) {
        // SAFETY: within the memory of the contract.
        Some(rest) if rest > 0 => unsafe { OutputBytes::raw(resp.add(1).cast(), rest) },
        _ => OutputBytes::NONE,
    }
}

/// A write command in a provider's memory.
#[derive(Debug)]
pub(crate) struct Frame<'a, C, R> {
    /// Core request with its header; other fields keep the provider's values.
    pub(crate) cmd: &'a mut C,
    /// Core response.
    pub(crate) resp: &'a mut R,
    pub(crate) driver: Driver<'a>,
}

impl<'a, C, R> Frame<'a, C, R> {
    /// # Errors
    /// `EINVAL` when one of the structures is missing or too short.
    ///
    /// # Safety
    /// As for [`Driver::after_core`], and both may be written.
    pub(crate) unsafe fn new(
        cmd: *mut C,
        cmd_size: usize,
        resp: *mut R,
        resp_size: usize,
    ) -> Result<Self, Errno> {
        if cmd_size < size_of::<C>() || resp_size < size_of::<R>() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as long as the structures (checked), ours until `'a` ends by the contract.
        let (cmd_ref, resp_ref) = unsafe { (cmd.as_mut(), resp.as_mut()) };
        let (Some(cmd_ref), Some(resp_ref)) = (cmd_ref, resp_ref) else {
            return Err(Errno::EINVAL);
        };
        // SAFETY: behind the referenced structures, by the same contract.
        let driver = unsafe { Driver::after_core(cmd, cmd_size, resp, resp_size) };
        Ok(Self { cmd: cmd_ref, resp: resp_ref, driver })
    }
}

/// A command without a core response: the driver's request data behind the core request.
///
/// # Errors
/// `EINVAL` when the structure is missing or too short.
///
/// # Safety
/// `cmd` is readable and writable for `size` bytes until `'a` ends.
pub(crate) unsafe fn request<'a, C>(
    cmd: *mut C,
    size: usize,
) -> Result<(&'a mut C, Driver<'a>), Errno> {
    if size < size_of::<C>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: long enough (checked), ours until `'a` ends by the contract.
    let core = unsafe { cmd.as_mut() }.ok_or(Errno::EINVAL)?;
    // SAFETY: behind the referenced structure.
    let request = unsafe { tail_in(cmd, size) };
    Ok((core, Driver { request, response: OutputBytes::NONE }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_data_starts_behind_the_core_structures() {
        let (cmd, mut resp) = ([1_u32, 2, 3, 4], [5_u32, 6]);
        // SAFETY: sizes of the arrays.
        let driver =
            unsafe { Driver::after_core(cmd.as_ptr().cast::<u64>(), 16, resp.as_mut_ptr(), 8) };
        assert_eq!(
            (driver.request.len(), driver.request.inline()),
            (8, InputBytes::slice(&cmd[2..]).inline())
        );
        assert_eq!(driver.response.len(), 4);
        // SAFETY: sizes of the arrays.
        let none = unsafe { Driver::after_core(cmd.as_ptr(), 4, resp.as_mut_ptr(), 0) };
        assert!(none.request.is_empty() && none.response.is_empty());
    }

    #[test]
    fn a_short_structure_is_refused() {
        let (mut cmd, mut resp) = (0_u64, 0_u32);
        // SAFETY: sizes no larger than the variables.
        let short = unsafe { Frame::new(&raw mut cmd, 4, &raw mut resp, 4) };
        assert_eq!(short.map(|_| ()), Err(Errno::EINVAL));
    }
}
