//! `ferroverbs report`: one text for a bug report, from which whoever reads it learns what there is, and nothing about who the user is.

use crate::recorded::files_of;
use crate::{doctor, place, stats, trace};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeSet;
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

/// Calls of a process that are told.
const CALLS: usize = 200;
/// Variables that begin so are told; no other is.
const VARIABLES: [&str; 2] = ["FERROVERBS_", "RDMAV_"];

/// Writes the report.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let text = Hidden::find().hide(&text(args.pid)?);
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
        let counted = stats::tables(std::slice::from_ref(&what));
        section("what the process did", &counted.unwrap_or_else(|why| why));
        let calls = files_of("trace", &what).and_then(|files| trace::last(&files, CALLS));
        section("its last calls", &calls.unwrap_or_else(|why| why));
    }
    Ok(text)
}

fn versions() -> String {
    let uname = rustix::system::uname();
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let os = os.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown");
    let library = match place::library_folder() {
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
    match place::library_folder() {
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

/// What must not be told, wherever it stands, and what stands there instead. Longer ones come first.
struct Hidden(Vec<(String, &'static str)>);

/// In a variable's name: its value is a secret.
const SECRET: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH"];

impl Hidden {
    /// Of this user, on this machine.
    fn find() -> Self {
        let mut found = BTreeSet::new();
        let uid = rustix::process::getuid().as_raw().to_string();
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let mine = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let mine = mine.filter(|fields| fields.get(2).is_some_and(|field| *field == uid));
        for fields in mine {
            let field = |at: usize| fields.get(at).copied().unwrap_or_default().to_owned();
            found.insert((field(0), "USER"));
            // The full name, room and telephone.
            found.extend(field(4).split(',').map(|part| (part.to_owned(), "NAME")));
            found.insert((field(5), "~"));
        }
        for (name, value) in std::env::vars_os() {
            let (name, value) =
                (name.to_string_lossy().to_ascii_uppercase(), value.to_string_lossy());
            let instead = match name.as_str() {
                "USER" | "LOGNAME" | "SUDO_USER" => "USER",
                "HOME" => "~",
                "HOSTNAME" => "HOST",
                name if SECRET.iter().any(|word| name.contains(word)) => "SECRET",
                _ => continue,
            };
            found.insert((value.into_owned(), instead));
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let short = host.split('.').next().unwrap_or_default().to_owned();
        found.extend([(host, "HOST"), (short, "HOST")]);
        Self::of(found)
    }

    fn of(found: impl IntoIterator<Item = (String, &'static str)>) -> Self {
        // What everybody is called tells nothing, and would be found everywhere.
        let says_nothing = |text: &str| {
            text.chars().count() < 3
                || matches!(text, "root" | "nobody" | "localhost" | "soft" | "trace")
        };
        let mut all: Vec<_> = found.into_iter().filter(|(text, _)| !says_nothing(text)).collect();
        all.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Self(all)
    }

    /// Without them. A secret goes wherever it stands; a name where it is no part of a longer word.
    fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (hidden, instead) in &self.0 {
            let mut clean = String::with_capacity(text.len());
            let mut rest = text.as_str();
            while let Some(at) = rest.find(hidden.as_str()) {
                let (before, found) = rest.split_at(at);
                let after = found.get(hidden.len()..).unwrap_or_default();
                let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                let previous = before.chars().next_back().or(clean.chars().next_back());
                let is_part = is_word(previous) || is_word(after.chars().next());
                clean.push_str(before);
                clean.push_str(if is_part && *instead != "SECRET" { hidden } else { instead });
                rest = after;
            }
            clean.push_str(rest);
            text = clean;
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_secrets_are_hidden_and_other_words_stay() {
        let hidden = [
            ("anna", "USER"),
            ("/home/anna", "~"),
            ("node7", "HOST"),
            ("s3cr3t", "SECRET"),
            ("root", "USER"),
            ("", "NAME"),
        ];
        let hidden = Hidden::of(hidden.map(|(text, instead)| (text.to_owned(), instead)));
        assert_eq!(
            hidden.hide("/home/anna/x anna annals hanna node7: node77 xs3cr3tx root"),
            "~/x USER annals hanna HOST: node77 xSECRETx root"
        );
    }

    #[test]
    fn only_our_settings_are_told() {
        let all = ["RDMAV_FORK_SAFE", "FERROVERBS_SOFT", "AWS_SECRET_ACCESS_KEY", "PATH"];
        let told = settings(all.into_iter().map(|name| (name.to_owned(), "1\n2".to_owned())));
        assert_eq!(told, "FERROVERBS_SOFT=1\\n2\nRDMAV_FORK_SAFE=1\\n2");
        assert_eq!(settings(std::iter::empty()), "none");
    }
}
