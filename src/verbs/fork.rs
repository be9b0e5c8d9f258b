//! Fork support: `ibv_fork_init(3)`, `ibv_is_fork_initialized(3)`, and ranges of providers' own
//! queues.

use core::ffi::{c_int, c_void};

use abi::ibv_fork_status;

use super::verb;
use crate::front::fork;
use crate::front::refusal::Refusal;
use cface::{Errno, MinusOne};

verb! {
    /// `ibv_fork_init(3)`.
    ///
    /// # Errors
    /// `EINVAL` too late; `ENOSYS`; `ENOMEM`.
    ///
    /// # Safety
    /// None needed.
    pub(crate) fn fork_init as ibv_fork_init() -> c_int {
        fork::init().map(|()| 0).map_err(|error| match error {
            Errno::EINVAL => {
                let remedy = c"call ibv_fork_init before the program registers memory";
                Refusal::new(error, c"the call", c"comes after a registration of memory", remedy)
            }
            Errno::ENOMEM => Refusal::out_of_memory(c"the test page of fork support"),
            other => Refusal::unexplained(other),
        })
    }

    /// `ibv_dontfork_range`: children shall not inherit this memory. 0, or -1 with errno.
    ///
    /// # Safety
    /// None needed; the address is only a number here.
    pub(crate) fn dontfork_range as ibv_dontfork_range(base: *mut c_void, size: usize) -> MinusOne {
        fork::dont_fork(base, size).map_err(|error| Refusal::of_fork_support(error, base))?;
        Ok(MinusOne(0))
    }

    /// `ibv_dofork_range`: undoes one `ibv_dontfork_range`.
    ///
    /// # Safety
    /// None needed; the address is only a number here.
    pub(crate) fn dofork_range as ibv_dofork_range(base: *mut c_void, size: usize) -> MinusOne {
        fork::do_fork(base, size);
        Ok(MinusOne(0))
    }
}

/// `ibv_is_fork_initialized(3)`.
pub(crate) extern "C" fn is_fork_initialized() -> ibv_fork_status {
    fork::status()
}
