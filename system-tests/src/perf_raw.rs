//! Debian's perftest over RAW_PACKET: servers and clients find each other by Ethernet addresses
//! alone.
//!
//! Not run: `raw_ethernet_burst_lat`. The program refuses its own defaults before the device is
//! opened ("SW Rate limiter cann't be executed on non-BW ... tests"), in perftest 4.5 of Debian 12.

use crate::{Bench, Tally};
use std::time::{Duration, Instant};
use xtask::foreign::PERFTEST_CLOCK;
use xtask::launch::DataPath;
use xtask::perftest;
use xtask::process::{Finished, PAUSE, Running};

const LIMIT: Duration = Duration::from_secs(300);
const SERVER: &str = "02:00:00:00:00:0a";
const CLIENT: &str = "02:00:00:00:00:0b";
/// The head of the server's table, printed when its rule is in effect.
const READY: &str = "#bytes";

/// Programs and their arguments. They run for a time, not for a number of frames: a server that
/// waits for a number would wait for ever after a dropped frame.
const PAIRS: &[(&str, &[&str])] = &[
    ("raw_ethernet_bw", &["-D", "2", "-s", "64"]),
    ("raw_ethernet_bw", &["-D", "2", "-s", "1500"]),
    ("raw_ethernet_bw", &["-D", "2", "-s", "512", "-b"]),
    ("raw_ethernet_bw", &["-D", "2", "-s", "256", "--vlan_en"]),
    ("raw_ethernet_lat", &["-n", "500", "-s", "64", "-C"]),
    ("raw_ethernet_lat", &["-n", "500", "-s", "1500", "-C"]),
];

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for (program, args) in PAIRS {
        let name = format!("{program} {}", args.join(" "));
        bench.step(&name);
        let result = pair(bench, program, args);
        tally.record(&name, result);
    }
    let name = "raw_ethernet_fs_rate -n 1000";
    bench.step(name);
    let fabric = bench.over(DataPath::Default)?;
    let job = fabric.over.job("raw_ethernet_fs_rate").args(["-F", "--server", "-n", "1000", "-B"]);
    let done = job.arg(SERVER).dir(&fabric.work).run(&bench.scratch, LIMIT)?;
    let rates = done.ok() && done.stdout.contains("fps[flow per sec]");
    let result = if rates { Ok(()) } else { Err(done.report("the program")) };
    tally.record(name, result.and_then(|()| bench.nothing_left(&fabric)));
    Ok(())
}

/// Starts a server, and a client once the server's rule is in effect: earlier frames would reach no
/// QP.
fn pair(bench: &Bench, program: &str, args: &[&str]) -> Result<(), String> {
    let fabric = bench.over(DataPath::Default)?;
    let side = |role: &str, own: &str, other: &str| {
        // Line buffering; otherwise the server's ready line would appear at its end.
        let job = fabric.over.job("stdbuf").args(["-oL", program, "-F", role]);
        job.args(["-B", own, "-E", other]).args(args).dir(&fabric.work)
    };
    let deadline = Instant::now() + LIMIT;
    let mut server = side("--server", SERVER, CLIENT).start(&bench.scratch)?;
    wait_for(&mut server, deadline);
    let client = side("--client", CLIENT, SERVER).run(&bench.scratch, LIMIT)?;
    let server = server.finish(deadline);
    let has_row = |side: &Finished| {
        let rows = perftest::parse(&side.stdout);
        rows.len() == 1 && (rows[0].is_measured() || PERFTEST_CLOCK.shows_in(&side.stderr))
    };
    if !server.ok() || !client.ok() || !has_row(&server) || !has_row(&client) {
        return Err(format!("{}{}", server.report("server"), client.report("client")));
    }
    bench.nothing_left(&fabric)
}

/// Waits until a server is ready, ends, or time is up.
fn wait_for(server: &mut Running, deadline: Instant) {
    while !server.printed().contains(READY) && !server.ended() && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
    }
}
