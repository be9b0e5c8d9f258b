//! A cable that is unplugged for a second, and processes that are killed, between two hosts. Pairs
//! with an unplugged cable continue, the survivor of a kill gets an error, and a bystander pair is
//! not affected.

use super::super::isolation::PairSetup;
use super::cables;
use crate::{Bench, Tally};
use std::time::{Duration, Instant};
use xtask::namespaces::Namespaces;
use xtask::process::{ExitReason, Job, PAUSE, Running};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Number of kills; the variable overrides it.
const KILLS: u64 = 8;
const KILLS_VARIABLE: &str = "FERROVERBS_HOST_KILLS";

/// Programs with far more iterations than fit before the kill. Where one side alone sends, the peer
/// learns of the death by its TCP socket. Ping-pong programs are excluded: a side that waits for an
/// answer has nothing outstanding, so no adapter reports the death. Programs that post receives are
/// excluded as well: the first reported failure would be random.
const KILLED: &[(&str, &[&str])] = &[
    ("ib_write_bw", &["-b", "-n", "20000000"]),
    ("ib_write_bw", &["-n", "20000000"]),
    ("ib_read_bw", &["-n", "20000000"]),
    ("ib_read_bw", &["-b", "-n", "20000000"]),
    ("ib_atomic_bw", &["-n", "50000000"]),
];

/// A bystander pair, which runs as long as needed and sleeps most of the time. Its packets use the
/// same port.
pub(super) const BESIDE: (&str, &[&str]) =
    ("ibv_rc_pingpong", &["-g", "1", "-e", "-n", "2000000000"]);

/// What perftest says of `IBV_WC_RETRY_EXC_ERR`.
pub(super) const RETRY_EXCEEDED: &str = "Failed status 12";

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    let kills = requested();
    let place = PairSetup::wired(bench, hosts, "")?;
    let mut beside = Bystanders::new(place.start(bench, BESIDE.0, BESIDE.1)?);
    for round in 0..kills.unwrap_or(KILLS) {
        let (program, args) = KILLED[usize::try_from(round).unwrap_or(0) % KILLED.len()];
        // Each program loses each side.
        let victim = usize::try_from(round / KILLED.len() as u64 + round).unwrap_or(0) % 2;
        let name = format!("{program} {}, side {victim} killed", args.join(" "));
        bench.step(&format!("hosts: {name} ({})", round + 1));
        let result = kill(bench, &place, program, args, victim);
        tally.record(&name, result.and_then(|()| beside.go_on(bench)));
        if tally.failures().len() >= super::super::ENOUGH {
            tally.skip("the other kills", "too many failures before them");
            break;
        }
    }
    beside.end();
    cables::run(bench, tally, hosts)?;
    bench.step("hosts: a cable pulled for a second");
    tally.record("a cable pulled for a second under ib_write_bw", pull(bench, hosts));
    // Whatever became of it.
    hosts.plug(true)
}

/// The number of kills in the environment.
pub(super) fn requested() -> Option<u64> {
    std::env::var(KILLS_VARIABLE).ok()?.parse().ok()
}

/// Waits until `happened`, or says what did not.
pub(super) fn wait(
    what: &str,
    mut happened: impl FnMut() -> Result<bool, String>,
) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    while !happened()? {
        if Instant::now() > deadline {
            return Err(format!("{what}: not within {LIMIT:?}"));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Counters of a process, by `ferroverbs counters`; 0 before the first count.
pub(super) fn counted(bench: &Bench, of: &Running, counters: &[&str]) -> Result<u64, String> {
    let command = bench.prefix()?.join("bin/ferroverbs");
    let job = Job::new(command).args(["counters", "--all", &of.id().to_string()]);
    let done = job.run(&bench.scratch, LIMIT)?;
    let value = |name: &&str| {
        let line = done.stdout.lines().find_map(|line| line.trim().strip_prefix(*name));
        line.and_then(|rest| rest.strip_prefix(' ')?.trim().parse::<u64>().ok())
    };
    if !done.ok() {
        return Ok(0);
    }
    let sum = counters.iter().map(value).sum::<Option<u64>>();
    sum.ok_or_else(|| format!("{counters:?} are not all told\n{}", done.report("counters")))
}

/// A pair that must not be disturbed.
pub(super) struct Bystanders([Running; 2]);

impl Bystanders {
    pub(super) fn new(pair: [Running; 2]) -> Self {
        Self(pair)
    }

    /// Their packets go and come as ever, and none was given up.
    pub(super) fn go_on(&mut self, bench: &Bench) -> Result<(), String> {
        let Self([server, client]) = self;
        let before = counted(bench, client, &["rcvd_pkts"])?;
        wait("packets of the pair beside", || {
            if server.ended() || client.ended() {
                let output = [server.complained(), client.complained()].concat();
                return Err(format!("the pair beside ended\n{output}"));
            }
            Ok(counted(bench, client, &["rcvd_pkts"])? > before + 100)
        })?;
        for side in &self.0 {
            if counted(bench, side, &["retry_exceeded_err"])? > 0 {
                return Err("the pair beside gave up a request".into());
            }
        }
        Ok(())
    }

    /// Its second process.
    pub(super) fn client(&self) -> &Running {
        &self.0[1]
    }

    /// Stops both, or has them go on.
    pub(super) fn stop(&self, on: bool) {
        self.0.iter().for_each(|side| side.stop(on));
    }

    pub(super) fn end(self) {
        for mut side in self.0 {
            side.kill();
            side.finish(Instant::now() + LIMIT);
        }
    }
}

fn kill(
    bench: &Bench,
    place: &PairSetup<'_>,
    program: &str,
    args: &[&str],
    victim: usize,
) -> Result<(), String> {
    let [mut server, mut client] = place.start(bench, program, args)?;
    wait("packets", || {
        if server.ended() || client.ended() {
            return Err("ended before the kill".to_owned());
        }
        Ok(counted(bench, &client, &["sent_pkts"])? > 1000)
    })?;
    let (mut removed, left) = if victim == 0 { (server, client) } else { (client, server) };
    removed.kill();
    let left = left.finish(Instant::now() + LIMIT);
    let removed = removed.finish(Instant::now() + LIMIT);
    let failed = matches!(left.end, ExitReason::Exited(status) if status != 0);
    // A responder learns of the death by TCP only.
    let asks = victim == 0 || args.contains(&"-b");
    let reported = format!("{}{}", left.stdout, left.stderr).contains(RETRY_EXCEEDED);
    if failed && (reported || !asks) {
        return Ok(());
    }
    Err(format!("{}{}", left.report("who is left"), removed.report("who was killed")))
}

/// Programs go on where they were when the cable is back, and hear of both.
fn pull(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    // Line buffering, so each line is readable at once.
    let watch = place.job(bench, 0, "stdbuf", &["-oL", "ibv_asyncwatch"])?;
    let mut watcher = watch.start(&bench.scratch)?;
    wait("ibv_asyncwatch", || {
        if watcher.ended() { Err(watcher.complained()) } else { Ok(!watcher.printed().is_empty()) }
    })?;
    // A timeout of a second, eight times over.
    let args = ["-D", "6", "-s", "65536", "-u", "18"];
    let [mut server, client] = place.start(bench, "ib_write_bw", &args)?;
    wait("packets", || {
        if server.ended() {
            return Err("ended before the cable was pulled".to_owned());
        }
        Ok(counted(bench, &client, &["sent_pkts"])? > 1000)
    })?;
    let again = ["resent_pkts", "local_ack_timeout_err", "ack_probes"];
    let before = counted(bench, &client, &again)?;
    hosts.plug(false)?;
    std::thread::sleep(Duration::from_secs(1));
    let reported = wait("IBV_EVENT_PORT_ERR", || Ok(watcher.printed().contains("PORT_ERR")));
    hosts.plug(true)?;
    reported?;
    wait("IBV_EVENT_PORT_ACTIVE", || Ok(watcher.printed().contains("PORT_ACTIVE")))?;
    wait("packets that go again", || Ok(counted(bench, &client, &again)? > before))?;
    let both = [server, client].map(|side| side.finish(Instant::now() + LIMIT));
    watcher.kill();
    let watcher = watcher.finish(Instant::now() + LIMIT);
    if both.iter().all(xtask::process::Finished::ok) {
        return Ok(());
    }
    let [server, client] = &both;
    let reports = [server.report("server"), client.report("client"), watcher.report("watcher")];
    Err(reports.concat())
}
