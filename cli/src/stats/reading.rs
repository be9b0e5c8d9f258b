//! Reads the files that the layer `stats` writes.

use crate::processes;
use crate::recorded::{files_of, folder_of};
use layer_records::file::HEAD;
use layer_records::stats::{AT_USED, ENTRY, Stats};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A line for the user if no process has counters.
pub(super) const NO_PROCESS: &str = "no process has counters: start a program by `ferroverbs stats -- PROGRAM` or with FERROVERBS_LAYERS=stats";

/// The counters of processes, files and folders. Without a source, the counters in the folder of
/// the user.
pub(super) fn read_all(sources: &[PathBuf]) -> crate::Result<Vec<Stats>> {
    let own = [folder_of("stats")];
    let (sources, is_own) = if sources.is_empty() { (&own[..], true) } else { (sources, false) };
    let mut all = Vec::new();
    for source in sources {
        if is_own && !source.is_dir() {
            continue;
        }
        for file in files_of("stats", source)? {
            match read_stats(&file) {
                Ok(stats) => all.push(stats),
                // A process may create or remove a file of a folder at the same time.
                Err(_) if source.is_dir() => {}
                Err(why) => return Err(why),
            }
        }
    }
    Ok(all)
}

/// Reads the used part of a file. Most of a file is never used.
fn read_stats(path: &Path) -> crate::Result<Stats> {
    let fail = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
    let file = File::open(path).map_err(fail)?;
    let mut bytes = Vec::new();
    (&file).take(HEAD as u64).read_to_end(&mut bytes).map_err(fail)?;
    let word = |at: usize| {
        let word = bytes.get(at * 8..).and_then(|bytes| bytes.first_chunk::<8>());
        word.map_or(0, |word| u64::from_ne_bytes(*word))
    };
    let used = word(AT_USED);
    file.take(used.saturating_mul(ENTRY as u64)).read_to_end(&mut bytes).map_err(fail)?;
    Stats::read(&bytes).map_err(|why| format!("{}: {why}", path.display()))
}

/// True if a process runs.
pub(super) fn is_running(pid: u32) -> bool {
    // A process that was killed could not write its end into the file, so ask the kernel.
    pid != 0 && processes::is_running(pid)
}
