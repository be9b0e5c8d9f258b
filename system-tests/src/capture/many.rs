//! Reads many capture files at once. `tshark` takes longer to start than to read a file, and reads
//! one file only; `sharkd`, from the same package, reads files in sequence.

use super::{HEURISTICS, LIMIT, MALFORMED, icrc, sound};
use crate::Bench;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use xtask::process::{ExitReason, Finished, Job, Running};

/// Requests for each file, which are numbered from 1.
const REQUESTS: usize = 3;

/// As [`sound`] for each file: the numbers of packets, or the first wrong file. Each processor
/// reads a share of the files.
pub(super) fn all_sound(bench: &Bench, files: &[PathBuf]) -> crate::Result<Vec<usize>> {
    let shares = std::thread::available_parallelism().map_or(1, usize::from);
    let shares = files.chunks(files.len().div_ceil(shares).max(1));
    let requests_of: Vec<_> = shares
        .map(|files| Ok((files, start_sharkd(bench, files)?)))
        .collect::<crate::Result<_>>()?;
    let deadline = Instant::now() + LIMIT;
    let counts = requests_of.into_iter().map(|(files, sharkd)| {
        let done = sharkd.finish(deadline);
        if done.end == ExitReason::Exited(127) {
            // A Wireshark without it.
            return files.iter().map(|file| sound(bench, file)).collect();
        }
        packet_counts(bench, files, &done)
    });
    Ok(counts.collect::<crate::Result<Vec<_>>>()?.concat())
}

/// A sharkd that reads these files.
fn start_sharkd(bench: &Bench, files: &[PathBuf]) -> crate::Result<Running> {
    let home = home(bench)?;
    let requests = home.join("requests");
    fs::write(&requests, requests_of(files))
        .map_err(|e| format!("cannot write {}: {e}", requests.display()))?;
    let job = Job::new("sh").args(["-c", "exec sharkd - < \"$0\""]).arg(&requests);
    job.env("HOME", &home).start(&bench.scratch)
}

/// The number of packets of each file by sharkd, or the first wrong file.
fn packet_counts(bench: &Bench, files: &[PathBuf], done: &Finished) -> crate::Result<Vec<usize>> {
    let answers: Vec<&str> = done.stdout.lines().collect();
    let count = |(index, file): (usize, &PathBuf)| {
        read(&answers, index * REQUESTS + 1).or_else(|answer| {
            // In tshark's words, which has more of them.
            sound(bench, file)?;
            Err(format!("{}: sharkd said {answer}\n{}", file.display(), done.report("sharkd")))
        })
    };
    files.iter().enumerate().map(count).collect()
}

/// A home in which the dissectors are switched off that take others' bytes for theirs.
fn home(bench: &Bench) -> crate::Result<PathBuf> {
    let home = bench.private_folder("sharkd")?;
    let settings = home.join(".config/wireshark");
    let lines = |names: &[&str], rest: &str| -> String {
        names.iter().map(|name| format!("{name}{rest}\n")).collect()
    };
    let written = fs::create_dir_all(&settings)
        .and_then(|()| fs::write(settings.join("disabled_protos"), lines(HEURISTICS, "")))
        .and_then(|()| fs::write(settings.join("heuristic_protos"), lines(&["eth_over_ib"], ",0")));
    written.map_err(|e| format!("cannot write in {}: {e}", settings.display()))?;
    Ok(home)
}

/// sharkd's requests for each file: open it, count its packets, find the first malformed packet.
fn requests_of(files: &[PathBuf]) -> String {
    let mut text = String::new();
    let filter = MALFORMED.replace('"', "\\\"");
    for (index, file) in files.iter().enumerate() {
        let first = index * REQUESTS + 1;
        let file = file.display();
        // sharkd caches results by the text of a filter, even across files, so no two filters are
        // equal.
        let params = [
            ("load", format!("{{\"file\":\"{file}\"}}")),
            ("status", "{}".to_owned()),
            (
                "frames",
                format!(
                    "{{\"filter\":\"{filter} and frame.number != {}\",\"limit\":3}}",
                    u32::MAX as usize - index
                ),
            ),
        ];
        for (id, (method, params)) in (first..).zip(params) {
            let _ = writeln!(
                text,
                "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}"
            );
        }
    }
    text
}

/// The result of the three requests from number `first` on: the packet count if all packets are
/// sound, else the answer with the error.
fn read(answers: &[&str], first: usize) -> Result<usize, String> {
    let answer = |id: usize| {
        let start = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},");
        let found = answers.iter().find_map(|line| line.strip_prefix(&start));
        found.ok_or_else(|| format!("nothing to request {id}"))
    };
    let [load, status, malformed] = [answer(first)?, answer(first + 1)?, answer(first + 2)?];
    if !load.contains("\"status\":\"OK\"") {
        return Err(load.to_owned());
    }
    if malformed != "\"result\":[]}" {
        return Err(malformed.to_owned());
    }
    let number = status.split_once("\"frames\":").and_then(|(_, rest)| rest.split_once(','));
    number.and_then(|(number, _)| number.parse().ok()).ok_or_else(|| status.to_owned())
}

/// Among several files the damaged one is named: a truncated file, and a file with a packet shorter
/// than its headers.
pub(super) fn names_the_damaged(bench: &Bench, files: &[PathBuf]) -> crate::Result<()> {
    let folder = bench.private_folder("damaged")?;
    let good = files.first().ok_or("no file")?;
    for (name, damage) in [("cut", cut as fn(Vec<u8>) -> Option<Vec<u8>>), ("short", shorten)] {
        let damaged = files.iter().find_map(|file| damage(fs::read(file).ok()?));
        let file = folder.join(name).with_extension("pcapng");
        let bytes = damaged.ok_or("no file can be damaged so")?;
        fs::write(&file, bytes).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        match all_sound(bench, &[good.clone(), file.clone(), good.clone()]) {
            Err(why) if names(&why, &file) && !names(&why, good) => {}
            other => return Err(format!("{name}: {other:?}")),
        }
    }
    Ok(())
}

fn names(why: &str, file: &Path) -> bool {
    why.contains(&file.display().to_string())
}

fn cut(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    bytes.truncate(bytes.len().checked_sub(9)?);
    Some(bytes)
}

/// Makes fetch-and-adds of acknowledgements over IPv6.
fn shorten(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    const OPCODE: usize = 14 + 40 + 8;
    let start = bytes.as_ptr().addr();
    let is_it = |frame: &&[u8]| {
        frame.get(12..14) == Some(&[0x86, 0xdd])
            && frame.get(56..58) == Some(&[0x12, 0xb7])
            && frame.get(OPCODE) == Some(&0x11)
    };
    let found = icrc::frames(&bytes).into_iter().map(|(frame, _)| frame).find(is_it)?;
    let at = found.as_ptr().addr() - start + OPCODE;
    *bytes.get_mut(at)? = 0x14;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [&str; 3] = [
        r#"{"jsonrpc":"2.0","id":4,"result":{"status":"OK"}}"#,
        r#"{"jsonrpc":"2.0","id":5,"result":{"frames":183,"duration":0.2}}"#,
        r#"{"jsonrpc":"2.0","id":6,"result":[]}"#,
    ];

    #[test]
    fn answers_are_read_and_a_missing_one_is_none() {
        assert_eq!(read(&GOOD, 4), Ok(183));
        assert!(read(&GOOD, 1).is_err());
        for missing in 0..GOOD.len() {
            let mut answers = GOOD.to_vec();
            answers.remove(missing);
            assert!(read(&answers, 4).is_err(), "{missing}");
        }
        let bad = [GOOD[0], GOOD[1], r#"{"jsonrpc":"2.0","id":6,"result":[{"c":["1"],"num":1}]}"#];
        assert!(read(&bad, 4).is_err());
    }

    #[test]
    fn no_two_filters_are_the_same() {
        let text = requests_of(&["a".into(), "b".into()]);
        let filters: Vec<_> = text.lines().filter(|line| line.contains("\"frames\"")).collect();
        assert_eq!(text.lines().count(), 2 * REQUESTS);
        assert_ne!(filters[0].split_once("params"), filters[1].split_once("params"));
    }
}
