//! Checks that each kernel device has a plugin of a generation that the library knows.

use super::check::Check;
use super::devices::Device;
use super::machine::Machine;
use cface::generations::GENERATIONS;
use std::collections::BTreeSet;

/// The folders of plugins in the distributions.
fn folders() -> [String; 3] {
    let multiarch = format!("/usr/lib/{}-linux-gnu/libibverbs", std::env::consts::ARCH);
    [multiarch, "/usr/lib64/libibverbs".into(), "/usr/lib/libibverbs".into()]
}

pub(super) fn check(machine: &Machine, devices: &[Device]) -> Vec<Check> {
    let known: BTreeSet<u32> = GENERATIONS.iter().map(|generation| generation.pabi).collect();
    let mut found: Vec<(String, u32, String)> = Vec::new();
    for folder in folders() {
        for file in machine.list(&folder) {
            if let Some((name, generation)) = split_file_name(&file) {
                found.push((name.to_owned(), generation, format!("{folder}/{file}")));
            }
        }
    }
    let mut checks = Vec::new();
    for (_, generation, file) in found.iter().filter(|(_, g, _)| !known.contains(g)) {
        let list = known.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let finding = format!("{file} is of generation {generation}; this library knows {list}");
        checks.push(Check::note("plugins", finding).remedy("install a newer Ferroverbs"));
    }
    for device in devices {
        let Some(plugin) = device.plugin else {
            let finding = format!("{}: its driver is not known to this command", device.name);
            checks.push(Check::note("plugins", finding));
            continue;
        };
        let usable = found.iter().find(|(name, g, _)| name == plugin && known.contains(g));
        checks.push(match usable {
            Some((_, _, file)) => Check::ok("plugins", format!("{}: {file}", device.name)),
            None => Check::missing(
                "plugins",
                format!("{}: there is no plugin {plugin}", device.name),
                "apt-get install ibverbs-providers",
            ),
        });
    }
    if checks.is_empty() {
        checks.push(Check::ok("plugins", "no device of the kernel needs one"));
    }
    checks
}

/// Splits a name such as `libmlx5-rdmav34.so` into name and generation.
fn split_file_name(file: &str) -> Option<(&str, u32)> {
    let (name, generation) =
        file.strip_prefix("lib")?.strip_suffix(".so")?.rsplit_once("-rdmav")?;
    Some((name, generation.parse().ok()?))
}
