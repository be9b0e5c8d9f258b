//! Fault rules (ferroverbs-soft(7)) under unmodified programs: programs survive faults that a wire
//! repairs, and report the rest.

use crate::{Bench, Checks, Tier};
use std::time::Duration;
use xtask::launch::DataPath;

const LIMIT: Duration = Duration::from_secs(300);

/// Of each kind of request some are lost, some find no receive, and some are late.
const REPAIRED: &str = "drop rate=1/100 seed=42; rnr every=31 times=2; delay for=1ms every=20";
/// Unreliable messages that are lost stay lost, and the programs would wait for them.
const LATE: &str = "delay for=1ms every=20; delay for=200us rate=1/10 seed=7";

/// Programs that end well.
const SURVIVED: &[(&str, &str, &[&str])] = &[
    (REPAIRED, "ibv_rc_pingpong", &["-c", "-n", "300"]),
    (REPAIRED, "ibv_rc_pingpong", &["-e", "-n", "300"]),
    (REPAIRED, "ibv_rc_pingpong", &["-N", "-c", "-s", "100000", "-n", "200"]),
    (REPAIRED, "ibv_srq_pingpong", &["-c", "-n", "100"]),
    (REPAIRED, "ibv_xsrq_pingpong", &["-n", "100"]),
    (LATE, "ibv_uc_pingpong", &["-c", "-n", "300"]),
    (LATE, "ibv_ud_pingpong", &["-c", "-n", "300"]),
    (REPAIRED, "ib_send_lat", &["-F", "-u", "10", "-s", "64", "-n", "500"]),
    (REPAIRED, "ib_send_bw", &["-F", "-u", "10", "-s", "4096", "-n", "500"]),
    (REPAIRED, "ib_send_bw", &["-F", "-u", "10", "-s", "64", "-n", "800", "--post_list", "16"]),
    (REPAIRED, "ib_send_bw", &["-F", "-u", "10", "-s", "65536", "-n", "300", "-q", "4", "-b"]),
    (REPAIRED, "ib_write_lat", &["-F", "-u", "10", "-s", "64", "-n", "500"]),
    (REPAIRED, "ib_write_bw", &["-F", "-u", "10", "-s", "64", "-n", "800", "--post_list", "16"]),
    (REPAIRED, "ib_read_bw", &["-F", "-u", "10", "-s", "4096", "-n", "500", "-q", "4"]),
    (REPAIRED, "ib_atomic_bw", &["-F", "-u", "10", "-n", "500"]),
    (LATE, "ib_send_bw", &["-F", "-c", "UC", "-s", "2048", "-n", "500"]),
    (
        "delay for=1ms nth=1; port-down nth=100 for=100ms",
        "ib_send_lat",
        &["-F", "-s", "64", "-n", "500"],
    ),
];

/// Programs that report the error.
const REPORTED: &[(&str, &str, &[&str], &str)] = &[
    (
        "drop nth=40 times=all",
        "ibv_rc_pingpong",
        &["-n", "200"],
        "transport retry counter exceeded",
    ),
    ("access-error nth=40", "ibv_rc_pingpong", &["-n", "200"], "remote access error"),
    ("local-error nth=40", "ibv_uc_pingpong", &["-n", "200"], "local protection error"),
    ("port-down", "ib_write_bw", &["-F", "-s", "64", "-n", "200"], "Port number 1 state is Down"),
];

pub(super) fn register(checks: &mut Checks) {
    for (index, &(faults, program, args)) in SURVIVED.iter().enumerate() {
        for path in [DataPath::Default, DataPath::Off] {
            let short = path == DataPath::Default && index % 2 == 0;
            checks.tier(if short { Tier::Short } else { Tier::Full });
            let name = format!("{program} {} with {faults} ({})", args.join(" "), path.name());
            checks.one(name, move |bench| survives(bench, path, faults, program, args));
        }
    }
    checks.tier(Tier::Short);
    for &(faults, program, args, word) in REPORTED {
        let name = format!("{program} {} with {faults}", args.join(" "));
        checks.one(name, move |bench| reports(bench, faults, program, args, word));
    }
    checks.one("ferroverbs -f port-down", |bench| by_command(bench)?);
}

/// A program ends well, and our library says nothing.
fn survives(
    bench: &Bench,
    path: DataPath,
    faults: &str,
    program: &str,
    args: &[&str],
) -> Result<(), String> {
    let fabric = bench.over(path)?;
    let job = fabric.over.job(program).args(args).env("FERROVERBS_SOFT_FAULTS", faults);
    let ended = bench.pair(&fabric, job, LIMIT)?;
    let output = [&ended.server.stderr, &ended.client.stderr];
    let quiet = output.iter().all(|text| !text.contains("libibverbs"));
    if quiet { Ok(()) } else { Err(ended.report()) }
}

/// A program fails, and says `word`.
fn reports(
    bench: &Bench,
    faults: &str,
    program: &str,
    args: &[&str],
    word: &str,
) -> Result<(), String> {
    let fabric = bench.over(DataPath::Default)?;
    let job = fabric.over.job(program).args(args).env("FERROVERBS_SOFT_FAULTS", faults);
    match bench.pair(&fabric, job, LIMIT) {
        Err(report) if report.contains(word) => Ok(()),
        Err(report) => Err(format!("does not say \"{word}\":\n{report}")),
        Ok(ended) => Err(format!("it noticed nothing:\n{}", ended.report())),
    }
}

/// `ferroverbs -f` and `-s`: two devices with their ports down.
fn by_command(bench: &Bench) -> crate::Result<Result<(), String>> {
    bench.step("ferroverbs -f port-down");
    let fabric = bench.over(DataPath::Default)?;
    let command = bench.prefix()?.join("bin/ferroverbs");
    let job = fabric.over.job(command).args(["-s", "2", "-f", "port-down", "ibv_devinfo"]);
    let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
    let down = done.stdout.matches("PORT_DOWN").count();
    let well = done.ok() && done.stderr.is_empty() && down == 2;
    Ok(if well { Ok(()) } else { Err(done.report("the command")) })
}
