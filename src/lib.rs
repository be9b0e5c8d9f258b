//! The verbs front-end: a drop-in `libibverbs.so.1`, which loads provider plugins and runs their
//! verbs.
//!
//! # Modules and vocabulary
//!
//! - `export`: the exported symbols, each under its version node.
//! - `verbs`: functions for applications. `kabi`: functions for provider *plugins*, the shared
//!   objects that implement verbs for one kind of device.
//! - `front`: drivers, devices, contexts, and *generations*, the versions of the private interface
//!   between this library and plugins.
//! - `sys`: system calls. The conventions of the C interface are the crate `cface`.
//!
//! A call of an application passes `export` (a trampoline), `verbs` (checks and C types), and the
//! operations table of the context in `front`, whose entry is the provider's function:
//!
//! ```text
//! ibv_create_qp -> export::table -> verbs::qp::create_qp -> provider's create_qp
//! provider      -> ibv_cmd_create_qp -> kabi::cmd::qp -> kernel
//! ```
//!
//! # Environment
//!
//! Upstream's variables keep their meaning: `RDMAV_FORK_SAFE`, `IBV_FORK_SAFE`,
//! `RDMAV_HUGEPAGES_SAFE`, `RDMAV_DRIVERS` and `IBV_DRIVERS`, `IBV_SHOW_WARNINGS`,
//! `RDMAV_ALLOW_DISASSOC_DESTROY`, `MLX4_DEVICE_FATAL_CLEANUP`, `SYSFS_PATH`, `VERBS_LOG_LEVEL`,
//! `VERBS_LOG_FILE`. Additional variables:
//!
//! - `FERROVERBS_CONFIG_DIR`: directories of `*.driver` files, separated by `:`, instead of all
//!   others.
//! - `FERROVERBS_PROVIDER_DIR`: directories of plugins, separated by `:`, before all others.
//! - `FERROVERBS_PROVIDER_RELEASE`: the rdma-core release of the plugins, if their file names lack
//!   it (`44`; `44,61`).
//! - `FERROVERBS_VERBOSE`: explain an empty device list even if stderr is no terminal.
//! - `FERROVERBS_QUIET`: do not explain an empty device list (nor, in soft, unreachable peers).
//!
//! Variables that name files or plugins are ignored in privileged programs
//! (`cface::env::is_privileged`).
//!
//! # Search for plugins
//!
//! For `<prefix>/lib/libibverbs.so.1` the configuration is in `<prefix>/etc/libibverbs.d`, then
//! `/etc/libibverbs.d` and `/usr/share/ferroverbs/libibverbs.d`. Plugins are in
//! `<prefix>/lib/libibverbs`, then the distribution's directory (Debian:
//! `/usr/lib/<multiarch>/libibverbs`), then the dynamic loader's own path. Plugins of our tree, and
//! plugins whose file has the line `# ferroverbs: announces-devices`, are opened at the first
//! listing of devices. Other plugins are opened only for a kernel device that needs them. A file
//! with the line `# ferroverbs: only-without-kernel-devices, unless VARIABLE is set` says that its
//! plugins announce no device beside kernel devices; they wait for a listing without kernel
//! devices.

mod export;
mod front;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub mod fuzzing;
mod kabi;
mod sys;
mod verbs;
