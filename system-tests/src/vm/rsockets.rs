//! rsockets over kernel devices: Ferroverbs at both ends, upstream at either end, and upstream at
//! both. The output of programs is equal except for times.

use super::guest::{GuestLaunch, LIMIT, WELL, wait_until_expected};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use xtask::process::{Job, PAUSE};
use xtask::scratch::Scratch;
use xtask::sockets;

/// The file with the result.
pub(super) const FILE: &str = "rsockets";

/// The address of the first device.
const ADDRESS: &str = "10.77.0.1";

/// Programs with the same options on both sides, which verify their data.
const LINES: &[&str] = &[
    "rstream -T v -T b -S 20000 -C 10 -I 10",
    "rstream -T v -T n -S 300000 -C 3 -I 3",
    "riostream -T v -S 20000 -C 10 -I 5",
];

/// Programs that fail over upstream's library: its rpoll reports POLLHUP before all data was read,
/// and its datagrams need address handles that RoCE lacks.
const OURS: &[&str] = &["rstream -T v -T a -S 64 -C 20 -I 10 -i 0", "udpong -T e -C 20 -S 1000"];

const BOTH_OURS: &str = "ours with ours";

/// Runs all of them, and copies a file, with both libraries on either side.
pub(super) fn run(
    theirs: &GuestLaunch,
    ours: &GuestLaunch,
    folder: &Path,
    scratch: &Scratch,
) -> crate::Result<String> {
    let mut output = String::new();
    let mut port = 7200;
    let mut printed = Printed::default();
    for (names, server, client) in [
        (BOTH_OURS, ours, ours),
        ("ours with upstream's client", ours, theirs),
        ("upstream's with our client", theirs, ours),
        ("upstream's with upstream's", theirs, theirs),
    ] {
        let alone: &[_] = if names == BOTH_OURS { OURS } else { &[] };
        for line in LINES.iter().chain(alone) {
            port += 1;
            println!("{line}, {names}");
            match meet([server, client], line, &["-s", ADDRESS], port, scratch)? {
                Ok(now) => output += &printed.differs(line, names, now).unwrap_or_default(),
                Err(why) => output += &format!("{line}, {names}\n{why}\n"),
            }
        }
        port += 1;
        println!("rcopy, {names}");
        let (from, to) = (folder.join("original"), folder.join(format!("copy.{port}")));
        let bytes: Vec<u8> = (0..300_001_u32).map(|n| (n * 31 + n / 253) as u8).collect();
        fs::write(&from, &bytes).map_err(|why| why.to_string())?;
        let (from, target) = (from.display().to_string(), format!("{ADDRESS}:{}", to.display()));
        match meet([server, client], "rcopy", &[&from, &target], port, scratch)? {
            Err(why) => output += &format!("rcopy, {names}\n{why}\n"),
            Ok(_) if fs::read(&to).ok() != Some(bytes) => {
                output += &format!("rcopy, {names}: the copy is not the same\n");
            }
            Ok(now) => {
                let now = now.replace(&*to.to_string_lossy(), "COPY");
                output += &printed.differs("rcopy", names, now).unwrap_or_default();
            }
        }
    }
    Ok(if output.is_empty() { WELL.into() } else { output })
}

/// What each program printed first, and with which libraries.
#[derive(Debug, Default)]
struct Printed(HashMap<&'static str, (&'static str, String)>);

impl Printed {
    /// A report if a program's output differs from its earlier output.
    fn differs(&mut self, line: &'static str, names: &'static str, now: String) -> Option<String> {
        let (first, then) = self.0.entry(line).or_insert_with(|| (names, now.clone()));
        (*then != now).then(|| format!("{line}, {first}\n{then}{line}, {names}\n{now}"))
    }
}

/// A server and its client: their output without times, or their report after a failure. The client
/// prints more.
fn meet(
    overs: [&GuestLaunch; 2],
    line: &str,
    more: &[&str],
    port: u16,
    scratch: &Scratch,
) -> crate::Result<Result<String, String>> {
    let number = port.to_string();
    let [server, client] = overs.map(|over| over.job(line));
    // rcopy takes its options behind the names only.
    let client = client.args(more).args(["-p", &number]);
    let deadline = Instant::now() + LIMIT;
    // Without an address udpong serves at ::1.
    let server = if line.starts_with("udpong") { server.args(["-b", ADDRESS]) } else { server };
    let mut server = server.args(["-p", &number]).start(scratch)?;
    wait_until_expected(&mut server, deadline, || is_expected(line, port, scratch))?;
    let client = client.run(scratch, LIMIT)?;
    let endless = !line.contains("stream");
    if endless || !client.ok() {
        // What a copy still does is waited for.
        let until = Instant::now() + Duration::from_secs(2);
        while line == "rcopy" && !server.ended() && Instant::now() < until {
            std::thread::sleep(PAUSE);
        }
        server.kill();
    }
    let server = server.finish(deadline);
    let well = client.ok() && (endless || server.ok());
    let report = || format!("{}{}", server.report("server"), client.report("client"));
    let printed = || format!("{}{}", without_times(&server.stdout), without_times(&client.stdout));
    Ok(if well { Ok(printed()) } else { Err(report()) })
}

/// Words that are times or rates, with or without a unit, stand as stars, and any space as one.
fn without_times(text: &str) -> String {
    let is_time =
        |word: &str| word.contains('.') && word.trim_end_matches('s').parse::<f64>().is_ok();
    let line = |line: &str| {
        let words = line.split_whitespace().map(|word| if is_time(word) { "*" } else { word });
        words.collect::<Vec<_>>().join(" ") + "\n"
    };
    text.lines().map(line).collect()
}

/// Whether a client has somebody to come to.
fn is_expected(line: &str, port: u16, scratch: &Scratch) -> crate::Result<bool> {
    if line.starts_with("udpong") {
        let sockets = fs::read_to_string("/proc/net/udp").unwrap_or_default();
        let sockets6 = fs::read_to_string("/proc/net/udp6").unwrap_or_default();
        return Ok(sockets::has_port(&sockets, port) || sockets::has_port(&sockets6, port));
    }
    let job = Job::new("rdma").args(["resource", "show", "cm_id"]);
    let listening = job.run(scratch, LIMIT)?.stdout;
    let name = format!(":{port} ");
    Ok(listening.lines().any(|line| line.contains("LISTEN") && line.contains(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_prints_something_else_is_told_of() {
        let mut printed = Printed::default();
        let mut differs = |names, now: &str| printed.differs("rcopy", names, now.into()).is_some();
        assert!(!differs("ours", "three\n") && !differs("upstream's", "three\n"));
        assert!(differs("upstream's", "four\n"));
    }

    #[test]
    fn times_are_taken_out_and_what_was_done_stays() {
        let row =
            |time| format!("custom    19k     10      10      3.8m        {time}s      5.19\n");
        assert_eq!(without_times(&row("0.01")), "custom 19k 10 10 3.8m * *\n");
        assert_eq!(without_times(&row("0.01")), without_times(&row("12.50")));
    }
}
