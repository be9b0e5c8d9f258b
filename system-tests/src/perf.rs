//! Debian's perftest, unmodified: every message size and event mode that a program offers, on RC,
//! UC and UD, and the main ones on each data path.

use crate::{Bench, Checks, ENOUGH, Tally, Tier};
use std::time::Duration;
use xtask::foreign::PERFTEST_CLOCK;
use xtask::launch::DataPath;
use xtask::pair::PairResult;
use xtask::perftest;

/// Some programs pass a message ten thousand times each way, and on a busy machine each pass waits
/// for a processor.
const LIMIT: Duration = Duration::from_secs(300);

/// A program and its connection types.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ib_send_lat", &["RC", "UC", "UD", "XRC"]),
    ("ib_send_bw", &["RC", "UC", "UD", "XRC"]),
    ("ib_write_lat", &["RC", "UC", "XRC"]),
    ("ib_write_bw", &["RC", "UC", "XRC"]),
    ("ib_read_lat", &["RC", "XRC"]),
    ("ib_read_bw", &["RC", "XRC"]),
    ("ib_atomic_lat", &["RC", "XRC"]),
    ("ib_atomic_bw", &["RC", "XRC"]),
];

/// What else the programs can do, once each.
const SPECIAL: &[(&str, &[&str])] = &[
    ("ib_send_bw", &["-b", "-s", "4096"]),
    ("ib_send_bw", &["-q", "8", "-s", "1024"]),
    // More QPs than a CQ polls unasked, and more bytes than a CQ serves in one round.
    ("ib_send_bw", &["-q", "24", "-s", "65536"]),
    ("ib_send_bw", &["--post_list", "16", "-s", "8"]),
    ("ib_send_bw", &["--use-srq", "-s", "1024"]),
    // Receives that extend beyond their region, as in Debian 13's perftest.
    ("ib_send_bw", &["--use-srq", "-s", "512"]),
    ("ib_send_bw", &["-c", "XRC", "-s", "512"]),
    ("ib_send_bw", &["-c", "XRC", "--use-srq", "-b", "-q", "3", "-s", "30000"]),
    ("ib_send_bw", &["-I", "64", "-s", "64"]),
    ("ib_send_lat", &["-I", "64", "-s", "32"]),
    ("ib_write_bw", &["-b", "-s", "65536"]),
    ("ib_write_bw", &["-q", "8", "-s", "4096"]),
    ("ib_write_bw", &["--post_list", "16", "-s", "8"]),
    ("ib_read_bw", &["-q", "4", "-o", "4", "-s", "4096"]),
    ("ib_atomic_bw", &["-A", "CMP_AND_SWAP"]),
    ("ib_atomic_lat", &["-A", "CMP_AND_SWAP"]),
    // Memory on demand.
    ("ib_send_bw", &["--odp", "-s", "65536"]),
    ("ib_write_bw", &["--odp", "-s", "65536"]),
    ("ib_read_lat", &["--odp", "-s", "4096", IN_CYCLES]),
    // ibv_post_send where ibv_wr_* is what is used unasked.
    ("ib_send_bw", &["--use_old_post_send", "-s", "4096"]),
    // Datagrams: no more than there are receives, because a datagram without a receive is lost and
    // the server waits for it.
    ("ib_send_bw", &["--use_old_post_send", "-c", "UD", "-s", "1024", "-n", "400"]),
    ("ib_send_bw", &["--use_old_post_send", "-c", "XRC", "-s", "1024"]),
    ("ib_send_lat", &["--use_old_post_send", "-s", "64", "-I", "64", IN_CYCLES]),
    ("ib_write_bw", &["--use_old_post_send", "-s", "64", "-I", "64", "--post_list", "16"]),
    ("ib_read_bw", &["--use_old_post_send", "-s", "4096", "-b"]),
    ("ib_atomic_bw", &["--use_old_post_send", "-c", "XRC"]),
    // Lists of receives.
    ("ib_send_bw", &["--recv_post_list", "16", "-s", "1024"]),
    ("ib_send_bw", &["--recv_post_list", "16", "--post_list", "16", "-b", "-s", "1024"]),
    ("ib_send_bw", &["--recv_post_list", "16", "--use-srq", "-q", "4", "-s", "1024"]),
    // How often something completes.
    ("ib_send_bw", &["--cq-mod", "1", "-s", "1024"]),
    ("ib_send_bw", &["--cq-mod", "50", "-s", "1024", "-c", "UC"]),
    ("ib_write_bw", &["--cq-mod", "16", "--post_list", "16", "-s", "64"]),
    // Both ways, several QPs, events.
    ("ib_send_bw", &["-b", "-q", "3", "-e", "-r", "64", "-t", "32", "-s", "8000"]),
    ("ib_send_bw", &["-c", "UC", "-b", "-q", "4", "-e", "-s", "4096"]),
    ("ib_send_bw", &["-c", "UD", "-I", "64", "--post_list", "16", "-s", "64", "-n", "400"]),
    ("ib_send_bw", &["-c", "UD", "--use-srq", "-s", "1024", "-n", "400"]),
    ("ib_send_lat", &["-c", "UD", "-I", "64", "-e", "-s", "64", IN_CYCLES]),
    ("ib_send_lat", &["--use-srq", "-e", IN_CYCLES]),
    ("ib_write_bw", &["-c", "UC", "-b", "-q", "4", "-s", "4096"]),
    ("ib_write_bw", &["-c", "XRC", "-b", "-q", "4", "-s", "4096"]),
    ("ib_write_lat", &["-c", "UC", "-I", "220", "-s", "128", IN_CYCLES]),
    ("ib_read_bw", &["-b", "-q", "4", "-e", "-s", "4096"]),
    ("ib_read_bw", &["-c", "XRC", "-b", "-q", "4", "-e", "-s", "4096"]),
    ("ib_read_bw", &["--post_list", "16", "-s", "64"]),
    ("ib_atomic_bw", &["-b", "-q", "4", "-e"]),
    ("ib_atomic_bw", &["--post_list", "16", "-o", "16"]),
    ("ib_atomic_bw", &["-c", "XRC", "-b"]),
    ("ib_send_bw", &["--mr_per_qp", "-q", "4", "-s", "1024"]),
    // Addresses and their attributes. A multicast group has an IPv6 GID, and perftest demands an
    // IPv6 GID of the sender too.
    ("ib_send_bw", &["-x", "0", "-m", "1024", "-s", "8000"]),
    ("ib_send_bw", &["-x", "0", "--tclass", "8", "-S", "3", "-u", "10", "--pkey_index", "0"]),
    ("ib_send_lat", &["-c", "UD", "-g", "-x", "0", "-s", "64", IN_CYCLES]),
    ("ib_send_bw", &["--ipv6", "-s", "1024"]),
    // Ways of measuring.
    ("ib_send_bw", &["-N", "-s", "1024"]),
    ("ib_write_bw", &["--reversed", "-s", "1024"]),
    // The warm-up waits for as many completions as requests, so each request must be signaled.
    ("ib_write_bw", &["--perform_warm_up", "--cq-mod", "1", "-s", "1024"]),
    ("ib_send_bw", &["--rate_limit", "1", "--rate_units", "g", "--rate_limit_type", "SW"]),
    // And the rest.
    ("ib_send_bw", &["-e", "-X", "0", "-s", "1024"]),
    ("ib_send_bw", &["--inline_recv", "64", "-s", "32"]),
    ("ib_send_bw", &["--wait_destroy", "1", "-s", "1024"]),
];

/// Options that not every release has.
const OF_SOME: &[&str] = &["--inline_recv"];

/// What perftest wants pages of 2 MiB for.
const HUGE_PAGES: (&str, &[&str]) = ("ib_write_bw", &["--use_hugepages", "-s", "65536"]);

pub(super) fn register(checks: &mut Checks) {
    checks.many("each program and kind once", each_once);
    checks.many("raw Ethernet", super::perf_raw::run);
    checks.tier(Tier::Full);
    for (program, types) in PROGRAMS {
        checks.many(format!("{program}, all sizes"), move |bench, tally| {
            sizes(bench, tally, program, types)
        });
    }
    for path in [DataPath::Off, DataPath::Refused] {
        checks.many(format!("all programs, {}", path.name()), move |bench, tally| {
            other_path(bench, tally, path)
        });
    }
    checks.many("what else they can do", special);
}

/// Each program and kind of connection with messages of one size.
fn each_once(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for (program, types) in PROGRAMS {
        for kind in *types {
            once(bench, tally, program, kind)?;
        }
    }
    Ok(())
}

fn once(bench: &Bench, tally: &mut Tally, program: &str, kind: &str) -> crate::Result<()> {
    let mut args = vec!["-c", kind, "-n", "200", "-s", "1024"];
    if program.contains("atomic") {
        args.truncate(4);
    }
    if program.ends_with("_lat") {
        args.push(IN_CYCLES);
    }
    one(bench, tally, program, &args, DataPath::Default, 1)
}

/// All sizes that a program offers, with events and without.
fn sizes(bench: &Bench, tally: &mut Tally, program: &str, types: &[&str]) -> crate::Result<()> {
    let help = help(bench, program)?;
    let (has_all, has_events) = (help.contains("--all"), help.contains("--events"));
    for kind in types {
        let events: &[bool] = if has_events { &[false, true] } else { &[false] };
        for &with_events in events {
            let mut args = vec!["-c", kind, "-n", "200"];
            if has_all {
                args.push("-a");
            }
            if with_events {
                args.push("-e");
            }
            if program.ends_with("_lat") && (with_events || *kind != "RC") {
                args.push(IN_CYCLES);
            }
            let rows = match (has_all, *kind) {
                (false, _) => 1,
                (true, "UD") => SIZES_OF_UD,
                (true, _) => SIZES,
            };
            one(bench, tally, program, &args, DataPath::Default, rows)?;
        }
    }
    Ok(())
}

/// All sizes of each program on another data path.
fn other_path(bench: &Bench, tally: &mut Tally, path: DataPath) -> crate::Result<()> {
    for (program, _) in PROGRAMS {
        let all = !program.contains("atomic");
        let mut args = if all { vec!["-n", "100", "-a"] } else { vec!["-n", "1000"] };
        if program.ends_with("_lat") {
            args.push(IN_CYCLES);
        }
        one(bench, tally, program, &args, path, if all { SIZES } else { 1 })?;
    }
    Ok(())
}

/// Options, each once.
fn special(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for (program, args) in SPECIAL {
        if let Some(option) = args.iter().find(|arg| OF_SOME.contains(arg))
            && !help(bench, program)?.contains(option)
        {
            tally.skip(&format!("{program} {}", args.join(" ")), &format!("it has no {option}"));
            continue;
        }
        let args = counted(args);
        one(bench, tally, program, &args, DataPath::Default, 1)?;
    }
    let (program, args) = HUGE_PAGES;
    if free_huge_pages() < HUGE_PAGES_NEEDED {
        let why =
            format!("fewer than {HUGE_PAGES_NEEDED} free huge pages (/proc/sys/vm/nr_hugepages)");
        tally.skip(&format!("{program} {}", args.join(" ")), &why);
    } else {
        let args = counted(args);
        one(bench, tally, program, &args, DataPath::Default, 1)?;
    }
    Ok(())
}

/// Adds the number of messages: a multiple of every list length above, as perftest demands. Debian
/// 13's perftest accepts no option twice.
fn counted<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let count: &[&str] = if args.contains(&"-n") { &[] } else { &["-n", "1600"] };
    [count, args].concat()
}

/// Some of them, for whoever wants to see a good deal of perftest in little time.
pub(super) fn some(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    each_once(bench, tally)?;
    for (program, args) in SPECIAL.iter().take(20) {
        one(bench, tally, program, &counted(args), DataPath::Default, 1)?;
    }
    Ok(())
}

/// Both sides' buffers, and as much again.
const HUGE_PAGES_NEEDED: u64 = 4;

/// How many of the default size nobody uses or has reserved.
fn free_huge_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let count = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    count("HugePages_Free:").saturating_sub(count("HugePages_Rsvd:"))
}

/// Results in cycles. For microseconds perftest measures the clock for each size, half a second
/// each time. The RC programs without events do so, as users would.
const IN_CYCLES: &str = "-C";
/// -a runs all powers of two from 2 bytes to 8 MiB.
const SIZES: usize = 23;
/// For UD it ends at the MTU, 4096 bytes.
const SIZES_OF_UD: usize = 12;

/// Runs one pair and checks the number of rows in its table.
fn one(
    bench: &Bench,
    tally: &mut Tally,
    program: &str,
    args: &[&str],
    path: DataPath,
    rows: usize,
) -> crate::Result<()> {
    let name = format!("{program} {} ({})", args.join(" "), path.name());
    if tally.failures().len() >= ENOUGH {
        tally.skip(&name, "too many failures before it");
        return Ok(());
    }
    if args.contains(&"XRC")
        && let Err(reason) = crate::bench::clear_domains()
    {
        tally.skip(&name, &reason);
        return Ok(());
    }
    bench.step(&name);
    let fabric = bench.over(path)?;
    let job = fabric.over.job(program).arg("-F").args(args);
    let result = bench.pair(&fabric, job, LIMIT).and_then(|ended| has_rows(&ended, rows));
    tally.record(&name, result);
    Ok(())
}

fn has_rows(ended: &PairResult, wanted: usize) -> Result<(), String> {
    let rows = perftest::parse(&ended.client.stdout);
    // The transferring side measures; with --reversed the server.
    let sides = [&ended.server, &ended.client];
    let unclocked: usize =
        sides.map(|s| s.stderr.matches(PERFTEST_CLOCK.symptom).count()).iter().sum();
    if rows.len() == wanted
        && rows.iter().filter(|row| row.is_measured()).count() + unclocked >= wanted
    {
        Ok(())
    } else {
        Err(format!("{} rows of numbers instead of {wanted}\n{}", rows.len(), ended.report()))
    }
}

fn help(bench: &Bench, program: &str) -> crate::Result<String> {
    let done = xtask::process::Job::new(program).arg("--help").run(&bench.scratch, LIMIT)?;
    Ok(done.stdout + &done.stderr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_is_given_twice() {
        for (program, args) in SPECIAL.iter().chain([&HUGE_PAGES]) {
            let options = counted(args);
            let mut options: Vec<_> = options.iter().filter(|arg| arg.starts_with('-')).collect();
            let count = options.len();
            options.sort_unstable();
            options.dedup();
            assert_eq!(options.len(), count, "{program} {args:?}");
        }
    }
}
