//! The verbs front-end: a drop-in `libibverbs.so.1`.
//!
//! - `export`: what C sees, every name under its version node.
//! - `verbs`: what an application calls; `kabi`: what a provider plugin calls.
//! - `front`: what both stand on - drivers, devices, contexts, generations of the provider ABI.
//! - `sys`: libc calls. The conventions of the C border are the crate `cface`.
//!
//! # Environment
//!
//! Upstream's variables keep their meaning: `RDMAV_FORK_SAFE`, `IBV_FORK_SAFE`, `RDMAV_HUGEPAGES_SAFE`,
//! `RDMAV_DRIVERS` and `IBV_DRIVERS`, `IBV_SHOW_WARNINGS`, `RDMAV_ALLOW_DISASSOC_DESTROY`,
//! `MLX4_DEVICE_FATAL_CLEANUP`, `SYSFS_PATH`, `VERBS_LOG_LEVEL`, `VERBS_LOG_FILE`. Ours:
//!
//! | variable | meaning |
//! |---|---|
//! | `FERROVERBS_CONFIG_DIR` | directories of `*.driver` files (`:` between) instead of all others |
//! | `FERROVERBS_PROVIDER_DIR` | directories of plugins (`:` between) before all others |
//! | `FERROVERBS_PROVIDER_RELEASE` | the rdma-core release of the plugins, where their files do not tell (`44`; `44,61`) |
//! | `FERROVERBS_VERBOSE` | explain an empty device list even when stderr is no terminal |
//! | `FERROVERBS_QUIET` | do not explain an empty device list (nor, in soft, which other ends cannot be met) |
//!
//! Variables that name files or plugins are ignored in privileged programs (`cface::env::is_privileged`).
//!
//! # Where plugins are found
//!
//! For `<prefix>/lib/libibverbs.so.1`: configuration in `<prefix>/etc/libibverbs.d`, then
//! `/etc/libibverbs.d` and `/usr/share/ferroverbs/libibverbs.d`; plugins in `<prefix>/lib/libibverbs`, then the distribution's directory (Debian:
//! `/usr/lib/<multiarch>/libibverbs`), then the dynamic loader's own path. Plugins of our tree, and those
//! whose file has the line `# ferroverbs: announces-devices`, are opened at the first listing of devices;
//! all others only for a kernel device that needs them. A file can say that where the kernel has devices its
//! plugins announce none (`# ferroverbs: only-without-kernel-devices, unless VARIABLE is set`); then they
//! wait for a listing without.

mod export;
mod front;
#[doc(hidden)]
pub mod fuzzing;
mod kabi;
mod sys;
mod verbs;
