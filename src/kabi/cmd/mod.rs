//! The commands that provider plugins send to the kernel through us: `ibv_cmd_*`, `execute_ioctl`
//! and their relatives of rdma-core's private provider ABI (releases 34 to 65).
//!
//! Built and sent with [`crate::front::command`]: the ioctl first, then the write commands where
//! those can express it. [`destroy`] is what all destroying commands share, with the wait for
//! acknowledged events; else one file per object, with entry points that check, build, send and
//! store.
//!
//! All these functions return 0 or a positive errno value, and leave errno to the system calls they
//! make; exceptions are documented at the function.

pub(crate) mod ah;
pub(crate) mod comp_cntr;
pub(crate) mod context;
pub(crate) mod counters;
pub(crate) mod cq;
mod destroy;
pub(crate) mod device;
pub(crate) mod dm;
pub(crate) mod dmabuf;
pub(crate) mod dmah;
pub(crate) mod execute;
pub(crate) mod flow;
pub(crate) mod flow_action;
mod flow_spec;
pub(crate) mod mcast;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod poll;
pub(crate) mod post;
pub(crate) mod qp;
mod qp_attr;

pub(crate) mod qp_modify;
mod qp_new;
pub(crate) mod srq;
mod status;
pub(crate) mod wq;
pub(crate) mod xrcd;

use core::sync::atomic::{AtomicU32, Ordering};

use abi::ibv_context;

use crate::front::context::Context;
use cface::Errno;

/// The context of a provider's object.
///
/// # Safety
/// As for [`Context::new`].
unsafe fn context_of(context: *mut ibv_context) -> Result<Context, Errno> {
    // SAFETY: passed on to our caller.
    unsafe { Context::new(context) }
}

/// Version of the write commands, `<sysfs>/class/infiniband_verbs/abi_version`: 6 since Linux
/// 2.6.21. Kernels with 3 to 5 answer some commands with shorter structures.
fn write_abi() -> u32 {
    // Not a cell for which other threads wait: a process forked meanwhile would wait for ever. 0 is
    // unknown; relaxed, as it is just the number, and whoever reads the file reads the same.
    static VERSION: AtomicU32 = AtomicU32::new(0);
    match VERSION.load(Ordering::Relaxed) {
        0 => {
            let file = crate::sys::sysfs::class("infiniband_verbs").join("abi_version");
            let version = crate::sys::sysfs::read_number(&file).unwrap_or(NEWEST_WRITE_ABI);
            VERSION.store(version, Ordering::Relaxed);
            version
        }
        known => known,
    }
}

/// The version of the uverbs ABI that every kernel of the last decade reports.
const NEWEST_WRITE_ABI: u32 = 6;
