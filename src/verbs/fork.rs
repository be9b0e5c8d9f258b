//! Fork support: `ibv_fork_init(3)`, `ibv_is_fork_initialized(3)`, and ranges of providers' own
//! queues.

use core::ffi::{c_int, c_void};

use abi::ibv_fork_status;

use crate::front::fork;
use cface::{MinusOne, verb};

verb! {
    /// `ibv_fork_init(3)`.
    ///
    /// # Errors
    /// `EINVAL` too late; `ENOSYS`; `ENOMEM`.
    ///
    /// # Safety
    /// None needed.
    pub(crate) fn fork_init() -> c_int {
        fork::init().map(|()| 0)
    }

    /// `ibv_dontfork_range`: children shall not inherit this memory. 0, or -1 with errno.
    ///
    /// # Safety
    /// None needed; the address is only a number here.
    pub(crate) fn dontfork_range(base: *mut c_void, size: usize) -> MinusOne {
        fork::dont_fork(base, size).map(|()| MinusOne(0))
    }

    /// `ibv_dofork_range`: undoes one `ibv_dontfork_range`.
    ///
    /// # Safety
    /// None needed; the address is only a number here.
    pub(crate) fn dofork_range(base: *mut c_void, size: usize) -> MinusOne {
        fork::do_fork(base, size);
        Ok(MinusOne(0))
    }
}

/// `ibv_is_fork_initialized(3)`.
pub(crate) extern "C" fn is_fork_initialized() -> ibv_fork_status {
    fork::status()
}
