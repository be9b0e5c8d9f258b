//! `ferroverbs counters`: prints the RoCE v2 counters of running processes.
//!
//! A process has its counters at the beginning of a memory file that the process shares read-only
//! (`providers/soft/local/src/shm/layout.rs`). This command opens the file through /proc/PID/fd, so
//! the process does not take part, and the counters end with the process.

use crate::output;
use crate::processes::{self, Identity};
use soft_local::names;
use soft_local::shm::layout::{COUNTER_NAME, COUNTERS, COUNTERS_AT, Counter, MAGIC};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

/// The arguments of `ferroverbs counters`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Print counters that are 0, too
    #[arg(short, long)]
    all: bool,
    /// Processes; without a number, all processes that the user may read
    #[arg(value_name = "PID")]
    processes: Vec<u32>,
}

/// The bytes of a counter: its name, padded with zeros, and its value.
const ENTRY_LEN: usize = size_of::<Counter>();
/// The bytes up to the end of the counters.
const HEAD_LEN: usize = COUNTERS_AT + COUNTERS * ENTRY_LEN;

/// The counters of a process.
#[derive(Debug)]
struct ProcessCounters {
    process: u32,
    command: String,
    counters: Vec<(String, u64)>,
}

/// Runs `ferroverbs counters`.
///
/// # Errors
/// No process has counters that this user may read.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for process in processes_to_read(&args.processes)? {
        found.extend(read_counters(process, &mut seen));
    }
    if found.is_empty() {
        let which =
            if args.processes.is_empty() { "no process of this user" } else { "no such process" };
        return Err(format!(
            "{which} uses RoCE v2: a process has counters from its first QP to another host on \
             (GID index 1 or higher, or another host of `ferroverbs cluster`); root sees the processes of all users"
        ));
    }
    output::print_text(&table(&found, args.all))
}

/// The processes in `wanted`; all processes if the list is empty.
fn processes_to_read(wanted: &[u32]) -> crate::Result<Vec<u32>> {
    if wanted.is_empty() { processes::numbers() } else { Ok(wanted.to_vec()) }
}

/// The file in which a process has its counters.
#[derive(Debug)]
pub(crate) struct CounterFile {
    file: File,
    /// Device and inode: a forked child has the file of its parent.
    identity: Identity,
}

impl CounterFile {
    /// The file of a process. `None` if the process has none, or if the user may not open it.
    pub(crate) fn of(process: u32) -> Option<Self> {
        let mut descriptors = processes::descriptors(process);
        let tables = descriptors.find(|one| names::is_memory_file(&one.target, names::TABLES))?;
        let (identity, file) = tables.open()?;
        Some(Self { file, identity })
    }

    /// True for two descriptors of one file.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Names and values, as they are now.
    pub(crate) fn read(&self) -> Option<Vec<(String, u64)>> {
        let mut bytes = [0; HEAD_LEN];
        self.file.read_exact_at(&mut bytes, 0).ok()?;
        parse_counters(&bytes)
    }
}

/// The counters of a process. `None` if the process has none, or if the user may not read them.
///
/// `seen` holds the files that were read.
fn read_counters(process: u32, seen: &mut BTreeSet<Identity>) -> Option<ProcessCounters> {
    let file = CounterFile::of(process)?;
    if !seen.insert(file.identity) {
        return None;
    }
    let counters = file.read()?;
    Some(ProcessCounters { process, command: processes::command(process), counters })
}

/// Names and values at the begin of a file. `None` if the file has another format or no counter.
fn parse_counters(bytes: &[u8]) -> Option<Vec<(String, u64)>> {
    let magic = u64::from_ne_bytes(bytes.first_chunk().copied()?);
    // The last letter is the version of the layout, and all versions have the counters here.
    if magic >> 8 != MAGIC >> 8 {
        return None;
    }
    let mut counters = Vec::new();
    for entry in bytes.get(COUNTERS_AT..)?.chunks_exact(ENTRY_LEN) {
        let (name, value) = entry.split_at(COUNTER_NAME);
        let end = name.iter().position(|letter| *letter == 0).unwrap_or(COUNTER_NAME);
        let is_letter = |letter: &u8| letter.is_ascii_alphanumeric() || *letter == b'_';
        let name = name.get(..end).filter(|name| !name.is_empty() && name.iter().all(is_letter));
        let Some(name) = name else { break };
        let name = String::from_utf8_lossy(name).into_owned();
        counters.push((name, u64::from_ne_bytes(value.first_chunk().copied()?)));
    }
    (!counters.is_empty()).then_some(counters)
}

/// A line for each process, followed by a line for each counter.
fn table(found: &[ProcessCounters], all: bool) -> String {
    let mut text = String::new();
    for ProcessCounters { process, command, counters } in found {
        text += &format!("{process} {command}\n");
        for (name, value) in counters.iter().filter(|(_, value)| all || *value > 0) {
            text += &format!("    {name:<28} {value}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(counters: &[(&str, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_LEN];
        bytes[..8].copy_from_slice(&u64::from_be_bytes(*b"fv-softX").to_ne_bytes());
        for (entry, (name, value)) in bytes[COUNTERS_AT..].chunks_exact_mut(ENTRY_LEN).zip(counters)
        {
            entry[..name.len()].copy_from_slice(name.as_bytes());
            entry[COUNTER_NAME..].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn counters_are_read_and_zeros_are_printed_only_with_the_option_all() {
        let counters =
            parse_counters(&file(&[("sent_pkts", 12), ("out_of_sequence", 0)])).expect("a file");
        assert_eq!(counters, [("sent_pkts".to_owned(), 12), ("out_of_sequence".to_owned(), 0)]);
        let found = [ProcessCounters { process: 7, command: "x".to_owned(), counters }];
        let lines = |all| table(&found, all).lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(false), ["7 x", "    sent_pkts                    12"]);
        assert_eq!(lines(true).len(), 3);
    }

    #[test]
    fn a_file_of_another_format_or_without_counters_has_none() {
        assert_eq!(parse_counters(&file(&[])), None);
        let mut other = file(&[("sent_pkts", 1)]);
        other[..8].fill(b'x');
        assert_eq!(parse_counters(&other), None);
        assert_eq!(parse_counters(&[0; 3]), None);
        assert_eq!(
            parse_counters(&file(&[("\x1b[2J", 1)])),
            None,
            "no control characters for a terminal"
        );
    }

    #[test]
    fn a_process_without_a_device_has_no_counters() {
        assert!(read_counters(std::process::id(), &mut BTreeSet::new()).is_none());
    }
}
