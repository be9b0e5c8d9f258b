//! `ferroverbs counters`: what processes that run counted of the wire between hosts (RoCE v2).
//!
//! Each has it at the beginning of a memory file that it shares with others read-only (`providers/soft/local/src/shm/layout.rs`), which
//! /proc/PID/fd leads to: so nothing is asked of the process, and what is gone leaves nothing behind.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::ExitCode;

/// What the command line says.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Those that are 0 as well
    #[arg(short, long)]
    all: bool,
    /// Of these processes; otherwise of all that may be looked at
    #[arg(value_name = "PID")]
    processes: Vec<u32>,
}

/// What the link of its descriptor begins with.
const FILE: &str = "/memfd:ferroverbs-tables";
/// What the file begins with; the byte behind it tells the layout of all that is not looked at here. As the processor has it.
const MAGIC: &[u8] = b"fv-soft";
/// Where the counters begin, how many there may be, and the bytes of each: its name, with zeros behind it, and its value.
const AT: usize = 64;
const MOST: usize = 48;
const NAME: usize = 40;
const LEN: usize = NAME + 8;

/// A process, and what it counted.
#[derive(Debug)]
struct Counted {
    process: u32,
    command: String,
    counters: Vec<(String, u64)>,
}

pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for process in processes(&args.processes)? {
        found.extend(look(process, &mut seen));
    }
    if found.is_empty() {
        return Err("no process that may be looked at talks to another host".to_owned());
    }
    print!("{}", text(&found, args.all));
    Ok(ExitCode::SUCCESS)
}

/// Those that are wanted, or all.
fn processes(wanted: &[u32]) -> crate::Result<Vec<u32>> {
    if !wanted.is_empty() {
        return Ok(wanted.to_vec());
    }
    let entries = fs::read_dir("/proc").map_err(|e| format!("cannot read /proc: {e}"))?;
    let mut all: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    Ok(all)
}

/// What a process counted, unless it counts nothing, is another user's, or shares the file with one that was `seen`: a fork has its
/// parent's.
fn look(process: u32, seen: &mut BTreeSet<(u64, u64)>) -> Option<Counted> {
    let folder = Path::new("/proc").join(process.to_string());
    let links = fs::read_dir(folder.join("fd")).ok()?.flatten();
    let is_tables = |path: &Path| {
        fs::read_link(path).is_ok_and(|to| to.to_str().is_some_and(|to| to.starts_with(FILE)))
    };
    let path = links.map(|link| link.path()).find(|path| is_tables(path))?;
    let file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !seen.insert((metadata.dev(), metadata.ino())) {
        return None;
    }
    let mut bytes = [0; AT + MOST * LEN];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let counters = parse(&bytes)?;
    let command = fs::read_to_string(folder.join("comm")).unwrap_or_default();
    let command = command.trim().chars().filter(|letter| !letter.is_control()).collect();
    Some(Counted { process, command, counters })
}

/// Names and values at the beginning of such a file; none: it is not one, or its process has not opened the wire.
fn parse(bytes: &[u8]) -> Option<Vec<(String, u64)>> {
    let magic = u64::from_ne_bytes(bytes.first_chunk().copied()?).to_be_bytes();
    if !magic.starts_with(MAGIC) {
        return None;
    }
    let mut counters = Vec::new();
    for entry in bytes.get(AT..)?.chunks_exact(LEN) {
        let (name, value) = entry.split_at(NAME);
        let end = name.iter().position(|letter| *letter == 0).unwrap_or(NAME);
        let is_letter = |letter: &u8| letter.is_ascii_alphanumeric() || *letter == b'_';
        let name = name.get(..end).filter(|name| !name.is_empty() && name.iter().all(is_letter));
        let Some(name) = name else { break };
        let name = String::from_utf8_lossy(name).into_owned();
        counters.push((name, u64::from_ne_bytes(value.first_chunk().copied()?)));
    }
    (!counters.is_empty()).then_some(counters)
}

/// For people, and for awk(1): a line with the process, then a line for each counter.
fn text(found: &[Counted], all: bool) -> String {
    let mut text = String::new();
    for Counted { process, command, counters } in found {
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
        let mut bytes = vec![0; AT + MOST * LEN];
        bytes[..8].copy_from_slice(&u64::from_be_bytes(*b"fv-softX").to_ne_bytes());
        for (entry, (name, value)) in bytes[AT..].chunks_exact_mut(LEN).zip(counters) {
            entry[..name.len()].copy_from_slice(name.as_bytes());
            entry[NAME..].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn what_has_a_name_is_read_and_zeros_are_told_only_if_asked_for() {
        let counters = parse(&file(&[("sent_pkts", 12), ("out_of_sequence", 0)])).expect("a file");
        assert_eq!(counters, [("sent_pkts".to_owned(), 12), ("out_of_sequence".to_owned(), 0)]);
        let found = [Counted { process: 7, command: "x".to_owned(), counters }];
        let lines = |all| text(&found, all).lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(false), ["7 x", "    sent_pkts                    12"]);
        assert_eq!(lines(true).len(), 3);
    }

    #[test]
    fn another_file_and_a_process_without_the_wire_have_none() {
        assert_eq!(parse(&file(&[])), None);
        let mut other = file(&[("sent_pkts", 1)]);
        other[..8].fill(b'x');
        assert_eq!(parse(&other), None);
        assert_eq!(parse(&[0; 3]), None);
        assert_eq!(parse(&file(&[("\x1b[2J", 1)])), None, "nothing that a terminal would obey");
    }

    #[test]
    fn this_process_has_none() {
        assert!(look(std::process::id(), &mut BTreeSet::new()).is_none());
    }
}
