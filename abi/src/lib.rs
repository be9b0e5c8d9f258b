//! `repr(C)` mirrors of everything that crosses the verbs ABI: the application interface
//! (`<infiniband/verbs.h>`, `<rdma/rdma_cma.h>`, rdma-core 44 to 65), the provider interface
//! (rdma-core's private `driver.h` and `cmd_ioctl.h`), the kernel interface (`<rdma/*.h>`), and the
//! plugin extension ([`ferroverbs_plugin_ext`]). For example, `abi::ibv_qp` has the layout of C's
//! `struct ibv_qp`.
//!
//! No logic lives here. Each type is followed by its size and field offsets, checked at compile
//! time on x86_64; all names but those of the modules `*functions` are re-exported flat
//! (`abi::ibv_qp`). C enums are integer aliases with constants, because a value from C may have no
//! name. Types whose layout depends on the generation of the provider have the newest form here;
//! the front-end knows the older ones.

/// Checks size and offsets of a type on the architecture the numbers were taken from, and promises
/// that all-zero bytes are a value of it (integers, raw pointers and nullable function pointers
/// only).
macro_rules! layout {
    ($ty:ident: $size:literal { $($field:ident @ $offset:literal),* $(,)? }) => {
        #[cfg(target_arch = "x86_64")]
        const _: () = {
            assert!(size_of::<$ty>() == $size);
            $(assert!(core::mem::offset_of!($ty, $field) == $offset);)*
        };
        // SAFETY: every field is an integer, a raw pointer, an Option of a function pointer, or
        // made of these; zero is a value of each.
        unsafe impl $crate::Zeroed for $ty {}
    };
}

/// `Debug` for a union: its name, because the valid view is unknown.
macro_rules! opaque_debug {
    ($ty:ident) => {
        impl core::fmt::Debug for $ty {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(concat!(stringify!($ty), " { .. }"))
            }
        }
    };
}

mod ah;
mod cm_layer;
mod compat10;
mod context;
mod counters;
mod cq;
mod device;
mod driver;
pub mod driver_functions;
mod emulation;
mod events;
mod ext;
mod flags;
mod flow;
pub mod functions;
mod ib;
mod kernel;
mod layer;
mod mr;
mod opcode;
mod ops;
mod pd;
mod qp;
mod rdmacm;
pub mod rdmacm_functions;
pub mod rsocket_functions;
mod sa;
mod srq;
mod wq;
mod wr;

pub use ah::*;
pub use cm_layer::*;
pub use compat10::*;
pub use context::*;
pub use counters::*;
pub use cq::*;
pub use device::*;
pub use driver::*;
pub use emulation::*;
pub use events::*;
pub use ext::*;
pub use flags::*;
pub use flow::*;
pub use ib::*;
pub use kernel::*;
pub use layer::*;
pub use mr::*;
pub use opcode::*;
pub use ops::*;
pub use pd::*;
pub use qp::*;
pub use rdmacm::*;
pub use sa::*;
pub use srq::*;
pub use wq::*;
pub use wr::*;

/// 16 bits in network byte order.
pub type be16 = u16;
/// 32 bits in network byte order.
pub type be32 = u32;
/// 64 bits in network byte order.
pub type be64 = u64;

/// A C type for which all-zero bytes are a value.
///
/// # Safety
/// Zero bytes must be valid for every field.
pub unsafe trait Zeroed: Sized {
    /// What `calloc` or `memset(0)` would give C code.
    fn zeroed() -> Self {
        // SAFETY: the contract of the trait.
        unsafe { core::mem::zeroed() }
    }
}
