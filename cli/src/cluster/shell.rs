//! `ferroverbs cluster-shell`: takes the place of `ssh` in a cluster.
//!
//! The process enters the namespaces of another host and executes the command there, so the command
//! keeps the streams, the signals and the exit status.

use super::{environment, network};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// The arguments of `ferroverbs cluster-shell`, as those of ssh(1).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Options of ssh, which have no effect; a host; a command line for the shell, or nothing for
    /// an interactive shell
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "HOST"
    )]
    words: Vec<OsString>,
}

/// The options of ssh(1) with a value.
const WITH_VALUE: &str = "BbcDEeFIiJLlmOoPpQRSWw";

/// Runs `ferroverbs cluster-shell`: replaces this process by the command in the other host.
pub(crate) fn enter_host(args: &Args) -> crate::Result<ExitCode> {
    let (name, command) =
        split_arguments(&args.words).ok_or("cluster-shell: the arguments name no host")?;
    let outside = "cluster-shell works within `ferroverbs cluster` only";
    let keepers = std::env::var(environment::KEEPERS).map_err(|_| outside)?;
    let keepers: Vec<_> = keepers.split(',').collect();
    let hosts = u8::try_from(keepers.len()).map_err(|_| outside)?;
    let host = network::host_number(&name, hosts).ok_or_else(|| {
        format!("cluster-shell: no host is called {name}; the hosts are host1 to host{hosts}")
    })?;
    let keeper = keepers.get(usize::from(host) - 1).ok_or(outside)?;
    enter_namespaces_of(keeper).map_err(|e| format!("cannot enter {name}: {e}"))?;
    let shell = std::env::var_os("SHELL").filter(|_| command.is_empty());
    let mut shell = Command::new(shell.unwrap_or_else(|| "/bin/sh".into()));
    if !command.is_empty() {
        shell.arg("-c").arg(command.join(OsStr::new(" ")));
    }
    shell.env(environment::HOST, host.to_string()).env("HOSTNAME", network::host_name(host));
    let error = shell.exec();
    Err(format!("cannot run {}: {error}", shell.get_program().to_string_lossy()))
}

/// Splits the arguments into the host, without a user, and the command.
fn split_arguments(words: &[OsString]) -> Option<(String, &[OsString])> {
    let mut rest = words;
    while let Some((word, behind)) = rest.split_first() {
        let text = word.to_string_lossy();
        rest = behind;
        if text == "--" {
            continue;
        }
        let Some(options) = text.strip_prefix('-').filter(|options| !options.is_empty()) else {
            let name = text.rsplit('@').next().unwrap_or_default().to_owned();
            return Some((name, rest));
        };
        // The value of an option is the rest of the word, or the next word.
        if options.find(|c| WITH_VALUE.contains(c)) == Some(options.len() - 1) {
            rest = rest.split_first()?.1;
        }
    }
    None
}

/// Enters the namespaces of a keeper, and keeps the working directory.
fn enter_namespaces_of(keeper: &str) -> std::io::Result<()> {
    let here = std::env::current_dir();
    let open = |name: &str| File::open(format!("/proc/{keeper}/ns/{name}"));
    let [net, names, shared, mounts] = [open("net")?, open("uts")?, open("ipc")?, open("mnt")?];
    // SAFETY: the flag only separates the working directory, and this process has one thread.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    for (namespace, kind) in [
        (net, LinkNameSpaceType::Network),
        (names, LinkNameSpaceType::HostNameAndNISDomainName),
        (shared, LinkNameSpaceType::InterProcessCommunication),
        (mounts, LinkNameSpaceType::Mount),
    ] {
        move_into_link_name_space(namespace.as_fd(), Some(kind))?;
    }
    // If the host does not have the folder, the command begins in the root folder.
    here.and_then(std::env::set_current_dir).or(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<(String, Vec<String>)> {
        let words: Vec<_> = line.split_whitespace().map(OsString::from).collect();
        let (name, rest) = split_arguments(&words)?;
        Some((name, rest.iter().map(|w| w.to_string_lossy().into_owned()).collect()))
    }

    #[test]
    fn the_arguments_are_those_of_ssh() {
        for line in [
            "host2 ls -l",
            "-x host2 ls -l",
            "-o BatchMode=yes -p 22 -q me@host2 ls -l",
            "-oBatchMode=yes -xl me host2 ls -l",
            "-x -- host2 ls -l",
        ] {
            let (name, command) = of(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(
                (name.as_str(), command),
                ("host2", vec!["ls".into(), "-l".into()]),
                "{line}"
            );
        }
        assert_eq!(of("host1"), Some(("host1".into(), vec![])));
        for line in ["", "-x", "-o", "-o BatchMode=yes"] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
