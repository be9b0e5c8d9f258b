//! SIGKILL for one side of a running perftest, a hundred times: the other side must end soon and
//! with an error, and nothing may be left once another process has come by.

use crate::{Bench, Checks, Fabric, Tally, Tier};
use std::time::{Duration, Instant};
use xtask::launch::DataPath;
use xtask::pair::{Pair, Started};
use xtask::process::{ExitReason, PAUSE};

/// Rounds of the short tier, and of the full one.
const ROUNDS: [u64; 2] = [14, 100];

/// How long the survivor may take. A test of bounds, not of speed: hardware takes seconds.
const BOUND: Duration = Duration::from_secs(60);

/// Far more iterations than fit into the time before the kill.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ib_send_bw", &["-n", "20000000"]),
    ("ib_send_lat", &["-n", "5000000"]),
    ("ib_read_bw", &["-n", "20000000"]),
    ("ib_atomic_bw", &["-n", "50000000"]),
    ("ib_write_bw", &["-n", "20000000"]),
    ("ib_send_lat", &["-n", "5000000", "-e"]),
    ("ib_send_bw", &["-n", "20000000", "-s", "8"]),
];

pub(super) fn register(checks: &mut Checks) {
    checks.many(format!("{} kills", ROUNDS[0]), |bench, tally| run(bench, tally, ROUNDS[0]));
    checks.tier(Tier::Full);
    checks.many(format!("{} kills", ROUNDS[1]), |bench, tally| run(bench, tally, ROUNDS[1]));
}

fn run(bench: &Bench, tally: &mut Tally, rounds: u64) -> crate::Result<()> {
    let mut random = Random(std::process::id().into());
    let fabric = bench.over(DataPath::Default)?;
    for round in 0..rounds {
        let (program, args) = PROGRAMS[usize::try_from(round).unwrap_or(0) % PROGRAMS.len()];
        let server_dies = random.below(2) == 0;
        let delay = Duration::from_millis(random.below(150));
        let victim = if server_dies { "server" } else { "client" };
        let name = format!("{program} {}, {victim} killed {delay:?} in", args.join(" "));
        bench.step(&format!("kill {}/{rounds}: {name}", round + 1));
        let result = one(bench, &fabric, program, args, server_dies, delay);
        tally.record(&name, result);
        if tally.failures().len() >= super::ENOUGH {
            tally.skip("the other rounds", "too many failures before them");
            return Ok(());
        }
    }
    Ok(())
}

fn one(
    bench: &Bench,
    fabric: &Fabric,
    program: &str,
    args: &[&str],
    server_dies: bool,
    delay: Duration,
) -> Result<(), String> {
    let job = fabric.over.job(program).arg("-F").args(args).dir(bench.scratch.path());
    let pair = Pair::of(job, Duration::from_secs(300))?;
    let Started { mut server, mut client } = pair.start(&bench.scratch)?;
    // Before that the server would wait for a client for ever, as it should.
    let until = Instant::now() + Duration::from_secs(120);
    while !pair.connected() && Instant::now() < until && !client.ended() {
        std::thread::sleep(PAUSE);
    }
    let until = Instant::now() + delay;
    while Instant::now() < until && !client.ended() && !server.ended() {
        std::thread::sleep(PAUSE);
    }
    if server.ended() || client.ended() {
        let (client, server) = (client.finish(Instant::now()), server.finish(Instant::now()));
        let reports = server.report("server") + &client.report("client");
        return Err(format!("ended before the kill\n{reports}"));
    }
    let (mut victim, survivor) = if server_dies { (server, client) } else { (client, server) };
    victim.kill();
    let survivor = survivor.finish(Instant::now() + BOUND);
    let victim = victim.finish(Instant::now() + BOUND);
    match survivor.end {
        ExitReason::Exited(status) if status != 0 => {}
        _ => return Err(format!("the survivor did not fail\n{}", survivor.report("survivor"))),
    }
    if victim.end != ExitReason::Signalled(libc::SIGKILL) {
        return Err(format!("the victim was not killed\n{}", victim.report("victim")));
    }
    // The next process joins the fabric, and works.
    let next = fabric.over.job("ibv_devinfo").dir(bench.scratch.path());
    let next = next.run(&bench.scratch, Duration::from_secs(120))?;
    if !next.ok() || !next.stderr.is_empty() {
        return Err(format!("the next process fails\n{}", next.report("ibv_devinfo")));
    }
    bench.nothing_left(fabric)
}

/// A sequence that differs between runs; the name of each test shows the chosen values.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}
