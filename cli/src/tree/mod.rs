//! The device tree: the files of software devices in `/sys` and `/dev`, for programs that look for
//! files before the first call of verbs.
//!
//! | | |
//! |---|---|
//! | `library` | asks libibverbs for the devices, in a process of its own |
//! | `facts` | the devices that libibverbs reported |
//! | `files` | the files about these devices, with the kernel's names and formats |
//! | `folder` | writes files into a folder |
//! | `interfaces` | the network interfaces of a device |
//! | `mounts` | puts files over `/sys` of a mount namespace |
//! | `namespaces` | enters a mount namespace, and without root a user namespace |
//! | `keeper` | a process that keeps the files current while the command runs |
//! | `system` | the tree for all processes of a machine, made by root |

mod counters;
mod facts;
mod files;
mod folder;
mod interfaces;
mod keeper;
mod library;
mod mounts;
mod namespaces;
mod system;

pub(crate) use facts::announced_names;
#[cfg(test)]
pub(crate) use facts::tests::example;
pub(crate) use facts::{DeviceFacts, query_devices};
pub(crate) use files::{guid, is_slot};
pub(crate) use library::{Args as DescribeArgs, main as describe};
pub(crate) use namespaces::{is_allowed, remedy};

use crate::nodes;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The variable that switches the tree of `ferroverbs run` off.
const SETTING: &str = "FERROVERBS_TREE";

/// The arguments of `ferroverbs tree`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("place").required(true))]
pub(crate) struct Args {
    /// Write the files below this folder, as sys/ and dev/, for an image
    #[arg(value_name = "DIR", group = "place")]
    folder: Option<PathBuf>,
    /// Show the files to all processes of this machine, until `--remove` or the next start; for
    /// root
    #[arg(long, group = "place")]
    system: bool,
    /// Undo --system
    #[arg(long, group = "place")]
    remove: bool,
}

/// Runs `ferroverbs tree`.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    if args.remove {
        return system::remove().map(|()| ExitCode::SUCCESS);
    }
    let devices = query_devices(&Environment::new())?;
    if devices.is_empty() {
        return Err(
            "libibverbs announces no software device here; FERROVERBS_SOFT=on asks for one".into(),
        );
    }
    match &args.folder {
        Some(folder) => folder::write_image(folder, &devices)
            .map_err(|e| format!("cannot write to {}: {e}", folder.display()))?,
        None => system::show(&devices)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Variables of a command that differ from those of this process; `None`: the variable is removed.
pub(crate) type Environment = Vec<(OsString, Option<OsString>)>;

/// The variables that `command` gets or loses.
pub(crate) fn environment_of(command: &Command) -> Environment {
    let owned = |text: &OsStr| text.to_owned();
    command.get_envs().map(|(name, value)| (owned(name), value.map(owned))).collect()
}

/// True if the option and `FERROVERBS_TREE` leave the tree on.
///
/// # Errors
/// `FERROVERBS_TREE` is neither `on` nor `off`.
pub(crate) fn is_wanted(option_off: bool) -> crate::Result<bool> {
    let value = std::env::var_os(SETTING).filter(|value| !value.is_empty());
    let Some(value) = value else { return Ok(!option_off) };
    let text = value.to_string_lossy();
    let on = soft_semantics::devices::switch(text.trim())
        .ok_or_else(|| format!("{SETTING}={text}: must be on or off"))?;
    Ok(on && !option_off)
}

/// Shows the tree to this process and its children. A line on stderr gives the reason if the tree
/// cannot be shown.
pub(crate) fn enter(environment: &Environment) {
    explain(show(environment, namespaces::enter));
}

/// As [`enter`], for a process that is already in a private mount namespace.
pub(crate) fn enter_here(environment: &Environment) {
    explain(show(environment, || Ok(())));
}

fn explain(shown: crate::Result<()>) {
    if let Err(why) = shown
        && std::env::var_os("FERROVERBS_QUIET").is_none_or(|value| value == "0")
    {
        eprintln!(
            "ferroverbs: no device tree: {why} (--no-tree or FERROVERBS_TREE=off: no tree, and no such line)"
        );
    }
}

fn show(environment: &Environment, enter: impl FnOnce() -> crate::Result<()>) -> crate::Result<()> {
    let devices = query_devices(environment)?;
    if devices.is_empty() || devices.iter().all(is_shown) {
        return Ok(());
    }
    let command = rustix::process::getpid();
    if let Err(why) = enter() {
        // Root's tree has the devices, with the GUID of root's adapter.
        return if devices.iter().all(has_folder) { Ok(()) } else { Err(why) };
    }
    let tree = mounts::show(&devices).map_err(|e| format!("cannot mount the files: {e}"))?;
    let names: Vec<_> = devices.iter().map(|device| device.dev_name.clone()).collect();
    nodes::add_named(&names)?;
    keeper::start(command, tree, environment, devices)
        .map_err(|e| format!("cannot start the process that keeps the files current: {e}"))
}

/// True if `/sys` has a device of this name.
fn has_folder(device: &DeviceFacts) -> bool {
    Path::new("/sys/class/infiniband").join(&device.name).exists()
}

/// True if `/sys` has this device already: root made the tree, or another `ferroverbs` did.
fn is_shown(device: &DeviceFacts) -> bool {
    let file = Path::new("/sys/class/infiniband").join(&device.name).join("node_guid");
    std::fs::read_to_string(file).is_ok_and(|text| text.trim() == guid(device.node_guid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_switches_the_tree_off() {
        assert_eq!(is_wanted(true), Ok(false));
    }
}
