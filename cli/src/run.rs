//! `ferroverbs [run] COMMAND`: prepares the environment and replaces this process by the command.

use crate::{installation, link, nodes, program, rdma, settings, tree, variables};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The options that all commands with a program share, and the program.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Add a node of each software device to /dev/infiniband, for programs that look for nodes
    /// (UCX, MPI)
    #[arg(short = 'n')]
    pub(crate) nodes: bool,
    /// Do not show the software devices in /sys and /dev
    #[arg(long)]
    pub(crate) no_tree: bool,
    /// Use LD_PRELOAD instead of LD_LIBRARY_PATH, for programs with a library path of their own
    #[arg(short = 'p')]
    pub(crate) preload: bool,
    /// Software devices: off, on, or a number up to 32 (default: one device if the kernel has none)
    #[arg(short = 's', value_name = "SETTING", value_parser = settings::parse_devices)]
    pub(crate) soft: Option<String>,
    /// Faults to inject, such as 'drop rate=1/100; qp-error nth=7': see ferroverbs-soft(7)
    #[arg(short = 'f', value_name = "FAULTS", value_parser = settings::parse_faults)]
    pub(crate) faults: Option<String>,
    /// The device of a vendor to emulate instead of software devices: efa, mlx5
    #[arg(long, value_name = "DEVICE", value_parser = settings::parse_emulate)]
    pub(crate) emulate: Option<String>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// The options that become variables of the command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variables<'a> {
    pub(crate) preload: bool,
    pub(crate) soft: Option<&'a str>,
    pub(crate) faults: Option<&'a str>,
    pub(crate) emulate: Option<&'a str>,
}

impl Args {
    fn variables(&self) -> Variables<'_> {
        let (soft, faults) = (self.soft.as_deref(), self.faults.as_deref());
        Variables { preload: self.preload, soft, faults, emulate: self.emulate.as_deref() }
    }

    /// The value of `FERROVERBS_SOFT` in the environment of the command.
    pub(crate) fn devices(&self) -> Option<OsString> {
        let setting = self.soft.clone().map(OsString::from);
        setting.or_else(|| std::env::var_os("FERROVERBS_SOFT"))
    }
}

/// Replaces this process by the command, which keeps the streams and has its own exit status.
pub(crate) fn become_command(args: &Args, variables: &[(&str, String)]) -> crate::Result<ExitCode> {
    let mut command = prepare(args, variables)?;
    let error = command.exec();
    Ok(report_exec_error(&command, &error))
}

/// Prints why the command did not start. Returns the exit status that a shell would return.
pub(crate) fn report_exec_error(command: &Command, error: &std::io::Error) -> ExitCode {
    eprintln!("ferroverbs: cannot run {}: {error}", command.get_program().to_string_lossy());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// The command with its environment. If the options ask for nodes, this function makes the nodes.
///
/// # Errors
/// The library is missing, a setting is malformed, or the kernel refuses the nodes.
pub(crate) fn prepare(args: &Args, variables: &[(&str, String)]) -> crate::Result<Command> {
    let (program, rest) = args.command.split_first().ok_or("no command")?;
    let mut command = Command::new(program);
    command.args(rest);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    set_variables(&mut command, args.variables())?;
    if let Some(path) = path_with_tools(&command)? {
        command.env("PATH", path);
    }
    if let Some(why) = program::why_unreached(program, path_of(&command).as_deref()) {
        eprintln!("ferroverbs: {why}");
    }
    if tree::is_wanted(args.no_tree)? {
        tree::enter(&tree::environment_of(&command));
    }
    if args.nodes {
        nodes::add(args.devices().as_deref())?;
    }
    Ok(command)
}

/// The `PATH` of a command with the folder of the stand-in of rdma(8) in front. `None` if there is
/// no `PATH`, if it has the folder already, or if it cannot hold the folder.
fn path_with_tools(command: &Command) -> crate::Result<Option<OsString>> {
    let tools = installation::library_folder()?.join(rdma::TOOLS);
    Ok(with_tools(&tools, path_of(command)))
}

/// The `PATH` that a command gets: its own, which a cluster sets, or that of this process.
fn path_of(command: &Command) -> Option<OsString> {
    match command.get_envs().find(|(name, _)| *name == "PATH") {
        Some((_, own)) => own.map(OsString::from),
        None => std::env::var_os("PATH"),
    }
}

fn with_tools(tools: &Path, path: Option<OsString>) -> Option<OsString> {
    let path = path?;
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    if folders.iter().any(|folder| folder == tools) || tools.as_os_str().as_bytes().contains(&b':')
    {
        return None;
    }
    Some(prepend_to_list(tools.as_os_str(), Some(&path)))
}

/// Sets the variables by which the loader finds the library, and those of options.
///
/// # Errors
/// The library is missing, a setting is malformed, or the name of a variable is mistyped.
pub(crate) fn set_variables(command: &mut Command, options: Variables<'_>) -> crate::Result<()> {
    let folder = installation::library_folder()?;
    if let Some(setting) = options.soft {
        command.env("FERROVERBS_SOFT", setting);
    }
    if let Some(faults) = options.faults {
        command.env("FERROVERBS_SOFT_FAULTS", faults);
    }
    if let Some(device) = options.emulate {
        command.env("FERROVERBS_EMULATE", device);
    }
    variables::check_names(command)?;
    settings::check_environment(command)?;
    let (variable, first) = if options.preload {
        let library =
            link::loadable_path(&folder, link::PRELOAD_SEPARATORS)?.join(installation::LIBRARY);
        ("LD_PRELOAD", library)
    } else {
        ("LD_LIBRARY_PATH", link::loadable_path(&folder, link::LIBRARY_PATH_SEPARATORS)?)
    };
    let before = std::env::var_os(variable);
    command.env(variable, prepend_to_list(first.as_os_str(), before.as_deref()));
    settings::check_emulated(command)
}

/// `FERROVERBS_LAYERS` with `layer` in front of the layers that the environment names.
pub(crate) fn add_layer(layer: &str) -> (&'static str, String) {
    let rest = std::env::var("FERROVERBS_LAYERS").unwrap_or_default();
    let all = if rest.is_empty() { layer.into() } else { format!("{layer},{rest}") };
    ("FERROVERBS_LAYERS", all)
}

/// `first`, a colon and `list`. An empty entry would mean the working directory, so an empty list
/// adds none.
fn prepend_to_list(first: &OsStr, list: Option<&OsStr>) -> OsString {
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
    fn an_empty_list_adds_no_empty_entry() {
        assert_eq!(prepend_to_list(OsStr::new("/a"), None), "/a");
        assert_eq!(prepend_to_list(OsStr::new("/a"), Some(OsStr::new(""))), "/a");
        assert_eq!(prepend_to_list(OsStr::new("/a"), Some(OsStr::new("/b"))), "/a:/b");
    }

    #[test]
    fn the_tools_stand_before_the_path_that_the_command_has_already() {
        let mut command = Command::new("true");
        assert_eq!(path_of(&command), std::env::var_os("PATH"));
        command.env("PATH", "/cluster/bin:/bin");
        let path = with_tools(Path::new("/tools"), path_of(&command));
        assert_eq!(path, Some("/tools:/cluster/bin:/bin".into()));
        assert_eq!(with_tools(Path::new("/tools"), path), None, "only once");
        command.env_remove("PATH");
        assert_eq!(with_tools(Path::new("/tools"), path_of(&command)), None);
    }
}
