//! `ferroverbs report`: one text for a bug report, from which whoever reads it learns what there is, and nothing about who the user is.

mod hidden;
mod numbers;

use crate::recorded::files_of;
use crate::{doctor, installation, stats, trace};
use hidden::Hidden;
use rustix::process::{Resource, getrlimit};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What the command line says.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to, instead of the standard output; it must not be there yet
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// A process whose statistics and last calls are wanted, too, as far as its layers left any
    #[arg(value_name = "PID")]
    pid: Option<u32>,
}

/// For whoever sends the report, and for whoever reads it.
const LEFT_OUT: &str = "\
The user's names and home, the host's name and values of variables that are secrets stand as USER, NAME, ~, HOST and SECRET.
Addresses of the network and of memory, keys of regions and Q_Keys stand as IPv4-1, IPv6-1, LINK-LOCAL-1, MAC-1, GUID-1, MEMORY-1, KEY-1:
the same number is the same value. Addresses of loopback are told. Of the environment only FERROVERBS_* and RDMAV_* are.";

/// Calls of a process that are told.
const CALLS: usize = 200;
/// Variables that begin so are told; no other is.
const VARIABLES: [&str; 2] = ["FERROVERBS_", "RDMAV_"];

/// Writes the report.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let text = numbers::hide(&Hidden::find().hide(&text(args.pid)?));
    let written = match &args.output {
        None => std::io::stdout().lock().write_all(text.as_bytes()),
        Some(path) => File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(|mut file| file.write_all(text.as_bytes())),
    };
    written.map_err(|e| format!("cannot write the report: {e}"))?;
    if let Some(path) = &args.output {
        eprintln!(
            "ferroverbs: {} is written; please look through it before you send it",
            path.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn text(pid: Option<u32>) -> crate::Result<String> {
    let mut text = String::new();
    let mut section = |title: &str, lines: &str| {
        text.push_str(&format!("== {title}\n{}\n\n", lines.trim_end()));
    };
    section("what is left out", LEFT_OUT);
    section("versions", &versions());
    section("doctor", &doctor::as_json());
    section("devices of the kernel", &list("/sys/class/infiniband"));
    section("plugins and layers", &plugins());
    section(
        "settings",
        &settings(std::env::vars_os().map(|(name, value)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        })),
    );
    section("limits", &limits());
    if let Some(pid) = pid {
        let what = PathBuf::from(pid.to_string());
        let counted = stats::tables_without_keys(std::slice::from_ref(&what));
        section("what the process did", &counted.unwrap_or_else(|why| why));
        let calls = files_of("trace", &what).and_then(|files| trace::last_calls(&files, CALLS));
        section("its last calls", &calls.unwrap_or_else(|why| why));
    }
    Ok(text)
}

fn versions() -> String {
    let uname = rustix::system::uname();
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let os = os.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown");
    let library = match installation::library_folder() {
        Ok(folder) => folder.display().to_string(),
        Err(why) => why,
    };
    // Not its name for this machine (`nodename`).
    format!(
        "ferroverbs {}\nlibrary {library}\nkernel {} {} {}\nsystem {}\n",
        env!("CARGO_PKG_VERSION"),
        uname.sysname().to_string_lossy(),
        uname.release().to_string_lossy(),
        uname.machine().to_string_lossy(),
        os.trim_matches('"'),
    )
}

/// What is in a folder, a line each.
fn list(folder: impl AsRef<Path>) -> String {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    if names.is_empty() { "none".into() } else { names.join("\n") }
}

fn plugins() -> String {
    match installation::library_folder() {
        Ok(folder) => list(folder.join("libibverbs")),
        Err(why) => why,
    }
}

/// Of the environment what is about us.
fn settings(all: impl Iterator<Item = (String, String)>) -> String {
    let ours = |name: &str| VARIABLES.iter().any(|begin| name.starts_with(begin));
    let mut lines: Vec<String> = all
        .filter(|(name, _)| ours(name))
        .map(|(name, value)| format!("{name}={}", value.escape_debug()))
        .collect();
    lines.sort();
    if lines.is_empty() { "none".into() } else { lines.join("\n") }
}

fn limits() -> String {
    let line = |(name, resource): (&str, Resource)| {
        let limit = getrlimit(resource);
        let word = |value: Option<u64>| value.map_or("unlimited".into(), |value| value.to_string());
        format!("{name} {} of {}\n", word(limit.current), word(limit.maximum))
    };
    [
        ("locked memory, bytes", Resource::Memlock),
        ("open files", Resource::Nofile),
        ("processes", Resource::Nproc),
        ("address space, bytes", Resource::As),
    ]
    .map(line)
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_settings_are_told() {
        let all = ["RDMAV_FORK_SAFE", "FERROVERBS_SOFT", "AWS_SECRET_ACCESS_KEY", "PATH"];
        let told = settings(all.into_iter().map(|name| (name.to_owned(), "1\n2".to_owned())));
        assert_eq!(told, "FERROVERBS_SOFT=1\\n2\nRDMAV_FORK_SAFE=1\\n2");
        assert_eq!(settings(std::iter::empty()), "none");
    }
}
