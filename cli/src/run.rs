//! `ferroverbs [run] COMMAND`: sets the environment up and becomes the command.

use crate::{link, nodes, place};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// What the command line says.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where /dev/infiniband has nodes of the software devices: for programs that look for them (UCX, MPI)
    #[arg(short = 'n')]
    pub(crate) nodes: bool,
    /// By LD_PRELOAD instead of LD_LIBRARY_PATH: for programs with a library path of their own
    #[arg(short = 'p')]
    pub(crate) preload: bool,
    /// Software devices: off, on, or how many (default: one, where the kernel has no device)
    #[arg(short = 's', value_name = "SETTING", value_parser = soft)]
    pub(crate) soft: Option<String>,
    /// What goes wrong on purpose, such as 'drop rate=1/100; qp-error nth=7': see ferroverbs-soft(7)
    #[arg(short = 'f', value_name = "FAULTS")]
    pub(crate) faults: Option<OsString>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl Args {
    /// `FERROVERBS_SOFT`, as the command will see it.
    pub(crate) fn devices(&self) -> Option<OsString> {
        let setting = self.soft.clone().map(OsString::from);
        setting.or_else(|| std::env::var_os("FERROVERBS_SOFT"))
    }
}

fn soft(value: &str) -> Result<String, &'static str> {
    let number = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    if number || value == "off" || value == "on" {
        Ok(value.to_owned())
    } else {
        Err("it takes off, on or a number")
    }
}

/// Becomes the command: its streams and its exit status are untouched.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    with(args, &[])
}

/// As `main`, with these variables set besides.
pub(crate) fn with(args: &Args, variables: &[(&str, String)]) -> crate::Result<ExitCode> {
    let mut command = prepare(args, variables)?;
    let error = command.exec();
    Ok(cannot_run(&command, &error))
}

/// Says so; what a shell returns.
pub(crate) fn cannot_run(command: &Command, error: &std::io::Error) -> ExitCode {
    eprintln!("ferroverbs: cannot run {}: {error}", command.get_program().to_string_lossy());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// The command in its environment. The nodes, if they are wanted, are there from now on.
pub(crate) fn prepare(args: &Args, variables: &[(&str, String)]) -> crate::Result<Command> {
    let (program, rest) = args.command.split_first().ok_or("no command")?;
    let folder = place::library_folder()?;
    let mut command = Command::new(program);
    command.args(rest);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    if let Some(setting) = &args.soft {
        command.env("FERROVERBS_SOFT", setting);
    }
    if let Some(faults) = &args.faults {
        command.env("FERROVERBS_SOFT_FAULTS", faults);
    }
    let (variable, first) = if args.preload {
        let library = link::readable(&folder, link::PRELOAD)?.join(place::LIBRARY);
        ("LD_PRELOAD", library)
    } else {
        ("LD_LIBRARY_PATH", link::readable(&folder, link::LIBRARY_PATH)?)
    };
    command.env(variable, in_front(first.as_os_str(), std::env::var_os(variable).as_deref()));
    if args.nodes {
        nodes::add(args.devices().as_deref())?;
    }
    Ok(command)
}

/// `FERROVERBS_LAYERS` with this one in front of those that are there.
pub(crate) fn layers(first: &str) -> (&'static str, String) {
    let others = std::env::var("FERROVERBS_LAYERS").unwrap_or_default();
    let all = if others.is_empty() { first.into() } else { format!("{first},{others}") };
    ("FERROVERBS_LAYERS", all)
}

/// In front of a list, without leaving an empty entry (which would mean the working directory).
fn in_front(first: &OsStr, list: Option<&OsStr>) -> OsString {
    let mut all = first.to_owned();
    if let Some(list) = list.filter(|list| !list.is_empty()) {
        all.push(":");
        all.push(list);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_before_comes_behind() {
        assert_eq!(in_front(OsStr::new("/a"), None), "/a");
        assert_eq!(in_front(OsStr::new("/a"), Some(OsStr::new(""))), "/a");
        assert_eq!(in_front(OsStr::new("/a"), Some(OsStr::new("/b"))), "/a:/b");
    }
}
