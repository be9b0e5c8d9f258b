//! Fuzz targets: each takes any bytes as the content of a file, or as input of the kernel, a peer
//! or a person, and panics on a defect. See docs/design/fuzzing.md.

#[cfg(debug_assertions)]
mod kernel;

/// The function of a target.
pub type Run = fn(&[u8]);

/// All targets, by name.
#[cfg(debug_assertions)]
pub const TARGETS: &[(&str, Run)] = &[
    ("driver_file", provider_loader::fuzzing::driver_file),
    ("plugin_file", provider_loader::fuzzing::plugin_file),
    ("plugin_name", ibverbs::fuzzing::plugin_name),
    ("sysfs", ibverbs::fuzzing::sysfs),
    ("smaps", ibverbs::fuzzing::smaps),
    ("netlink", ibverbs::fuzzing::netlink),
    ("event", ibverbs::fuzzing::event),
    ("hello", soft::fuzzing::hello),
    ("slot", soft::fuzzing::slot),
    ("segments", soft::fuzzing::segments),
    ("mapping", soft::fuzzing::mapping),
    ("faults", soft::fuzzing::faults),
    ("frame", soft::fuzzing::frame),
    ("tagged", soft::fuzzing::tagged),
    ("roce", ferroverbs_roce::fuzzing::codec),
    ("queue_pair", ferroverbs_roce::fuzzing::queue_pair),
    ("commands", kernel::run),
    ("mlx5", emulated_mlx5::fuzzing::adapter),
    ("efa", emulated_efa::fuzzing::provider),
    ("mad", ferroverbs_cm::fuzzing::mad_again),
    ("cm", ferroverbs_cm::fuzzing::manager),
];

/// Builds without debug assertions have no fuzzing entries: use `cargo xtask fuzz`.
#[cfg(not(debug_assertions))]
pub const TARGETS: &[(&str, Run)] = &[];

/// Runs a target on some bytes.
///
/// # Panics
/// The target is unknown, or found a defect.
pub fn run(target: &str, data: &[u8]) {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    let (_, run) = found.unwrap_or_else(|| panic!("no such target: {target}"));
    run(data);
}
