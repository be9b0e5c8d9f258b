//! Initialisation, once per process, at the first listing of devices. `list.rs` calls it before it
//! enumerates the devices of the kernel.

use super::{at_fork, disassociate, fork, generation};
use crate::sys::log::{self, notice};
use crate::sys::{env, sysfs};

/// Soft limits up to this many bytes of locked memory earn a warning.
const LITTLE_MEMLOCK: u64 = 32 * 1024;

/// Prepares for forks, reads the environment, checks the limit of locked memory, opens the log.
pub(crate) fn process() {
    at_fork::register();
    if (env::is_on("RDMAV_FORK_SAFE") || env::is_on("IBV_FORK_SAFE")) && fork::init().is_err() {
        notice!("Warning: fork()-safety requested but init failed");
    }
    disassociate::allow(
        env::is_on("RDMAV_ALLOW_DISASSOC_DESTROY") || env::is_on("MLX4_DEVICE_FATAL_CLEANUP"),
    );
    let _ = sysfs::root();
    // Report an invalid setting even if no plugin needs it.
    let _ = generation::reported();
    check_memlock();
    log::init();
}

fn check_memlock() {
    // SAFETY: geteuid has no requirements.
    if unsafe { libc::geteuid() } == 0 {
        return;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit fills the structure.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } != 0 {
        notice!("Warning: getrlimit(RLIMIT_MEMLOCK) failed.");
    } else if limit.rlim_cur <= LITTLE_MEMLOCK {
        notice!(
            "Warning: RLIMIT_MEMLOCK is {} bytes. This will severely limit memory registrations.",
            limit.rlim_cur
        );
    }
}
