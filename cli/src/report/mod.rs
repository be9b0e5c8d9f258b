//! `ferroverbs report`: prints the facts about a machine and a process for a bug report, without
//! names of the user and secrets.

mod hidden;
mod numbers;

use crate::recorded::files_of;
use crate::{doctor, installation, stats, trace};
use hidden::Redactions;
use rustix::process::{Resource, getrlimit};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The arguments of `ferroverbs report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to write, instead of the standard output; the file must not exist
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// A process whose counters and last calls are added, if its layers recorded them
    #[arg(value_name = "PID")]
    pid: Option<u32>,
}

/// The explanation of the replacements, for the sender and the reader of a report.
const REPLACEMENTS: &str = "\
USER, NAME, ~, HOST and SECRET stand for names and home of the user, for the host name, and for values of secret variables.
IPv4-1, IPv6-1, LINK-LOCAL-1, MAC-1, GUID-1, MEMORY-1 and KEY-1 stand for addresses of the network and of memory, and for keys.
Equal numbers are equal values. Loopback addresses are not replaced. Only variables FERROVERBS_* and RDMAV_* are listed.";

/// The number of calls of a process in a report.
const CALLS: usize = 200;
/// Prefixes of the variables in a report.
const VARIABLES: [&str; 2] = ["FERROVERBS_", "RDMAV_"];

/// Writes the report.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let text = numbers::hide(&Redactions::find().hide(&report_text(args.pid)?));
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
            "ferroverbs: {} is written; please read the file before you send it",
            path.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn report_text(pid: Option<u32>) -> crate::Result<String> {
    let mut text = String::new();
    let mut section = |title: &str, lines: &str| {
        text.push_str(&format!("== {title}\n{}\n\n", lines.trim_end()));
    };
    section("what is replaced", REPLACEMENTS);
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
        section("counters of the process", &counted.unwrap_or_else(|why| why));
        let calls = files_of("trace", &what).and_then(|files| trace::last_calls(&files, CALLS));
        section("last calls of the process", &calls.unwrap_or_else(|why| why));
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
    // The host name (`nodename`) is left out.
    format!(
        "ferroverbs {}\nlibrary {library}\nkernel {} {} {}\nsystem {}\n",
        env!("CARGO_PKG_VERSION"),
        uname.sysname().to_string_lossy(),
        uname.release().to_string_lossy(),
        uname.machine().to_string_lossy(),
        os.trim_matches('"'),
    )
}

/// The names in a folder, one in each line.
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

/// The variables of Ferroverbs and of rdma-core in the environment.
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
    fn only_variables_of_verbs_are_listed() {
        let all = ["RDMAV_FORK_SAFE", "FERROVERBS_SOFT", "AWS_SECRET_ACCESS_KEY", "PATH"];
        let reported = settings(all.into_iter().map(|name| (name.to_owned(), "1\n2".to_owned())));
        assert_eq!(reported, "FERROVERBS_SOFT=1\\n2\nRDMAV_FORK_SAFE=1\\n2");
        assert_eq!(settings(std::iter::empty()), "none");
    }
}
