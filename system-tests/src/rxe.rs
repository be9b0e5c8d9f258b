//! soft against a kernel's rxe over RoCE v2, each as server and as client, in a virtual machine.
//! One side is in its own network namespace, because rxe of Debian's kernel holds the port in the
//! first. The cable is captured, and tshark, if installed, must find all packets well formed.

mod errors;
mod packets;

use super::vm;
use crate::{Bench, Checks, Load, Tally, Tier};
use std::path::Path;
use std::time::Duration;
use xtask::process::Job;
use xtask::scratch;
use xtask::vm::{Machine, Request, Stream};

/// Ten minutes are usual.
const LIMIT: Duration = Duration::from_secs(2400);

/// The Debian release whose kernel is tested besides the running one.
const NEXT: &str = "trixie";

/// Programs of the lines that need compilation, with their libraries: programs of `c-tests`, and
/// UCX's example.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("tools/messages.c", &["-libverbs"]),
    ("tools/group.c", &["-libverbs"]),
    ("bench/connect.c", &["-lrdmacm", "-libverbs"]),
    ("programs/cm/children_tcp.c", &["-pthread"]),
    ("/usr/share/doc/libucx-dev/examples/ucp_client_server.c", &["-lucp", "-lucs"]),
];

/// The lines that every run of all tests includes: one of each kind, also with losses, and a
/// connection by IP addresses.
const SHORT: &[&str] = &[
    "ibv_rc_pingpong -g 2 -n 100",
    "ib_send_lat -x 1 -F -n 100 -s 8 -c UD",
    "ib_send_bw -x 1 -F -n 20 -s 4095",
    "ib_write_bw -x 1 -F -n 20 -s 4097",
    "ib_read_bw -x 1 -F -n 20 -s 4097",
    "ib_atomic_lat -x 1 -F -n 100",
    "loss=5% ib_send_bw -x 1 -F -n 20 -s 65536 -u 16",
    "uncut messages -x 1 -o write -s 1048576 -n 4",
    "uncut messages -x 2 -o send -s 1048576 -n 4",
    "rping -s -V -C 5 -a :: -p PORT ; rping -c -V -v -C 5 -a SERVER6 -p PORT",
];

/// A few lines, with this release's kernel.
pub(super) fn register_short(checks: &mut Checks) {
    checks.tier(Tier::Full).load(Load::One).many("some lines", short).limit(LIMIT);
}

fn short(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let Some(machine) = vm::machine(bench, tally) else { return Ok(()) };
    with(bench, tally, &machine, &SHORT.join("\n"))
}

pub(super) fn register(checks: &mut Checks) {
    checks.tier(Tier::Long).many("all", all).limit(4 * LIMIT);
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let Some(machine) = vm::machine(bench, tally) else { return Ok(()) };
    let lines = lines(bench)?;
    with(bench, tally, &machine, &lines)?;
    errors::run(bench, tally, &machine)?;
    match Machine::with_kernel_of(NEXT, &bench.paths, &bench.progress) {
        Ok(next) if next.version() == machine.version() => Ok(()),
        Ok(next) => {
            with(bench, tally, &next, &lines)?;
            errors::run(bench, tally, &next)
        }
        Err(why) => {
            tally.skip(&format!("the kernel of {NEXT}"), why.trim());
            Ok(())
        }
    }
}

/// All lines that there are.
fn lines(bench: &Bench) -> crate::Result<String> {
    let file = bench.paths.root.join("c-tests/data/rxe-programs.txt");
    std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))
}

/// These lines, with one kernel.
fn with(bench: &Bench, tally: &mut Tally, machine: &Machine, lines: &str) -> crate::Result<()> {
    let kernel = machine.version();
    let folder = bench.scratch.folder("rxe", 0o755)?;
    let source = |name: &str| bench.paths.root.join("c-tests").join(name);
    let programs = folder.join("lines");
    std::fs::write(&programs, format!("{}\n", lines.trim_end())).map_err(|e| e.to_string())?;
    // A folder that the guest sees unchanged, whatever happens to the original meanwhile.
    let stage = folder.join("stage");
    scratch::copy_tree(bench.prefix()?, &stage)?;
    for (file, libraries) in PROGRAMS {
        let program = Path::new(file).file_stem().unwrap_or_default();
        if !lines.contains(&*program.to_string_lossy()) {
            continue;
        }
        let job = Job::new("cc").args(["-O2", "-o"]).arg(folder.join(program));
        let made = job.arg(source(file)).args(*libraries).run(&bench.scratch, LIMIT)?;
        if !made.ok() {
            return Err(made.report("cc"));
        }
    }
    let capture = folder.join("packets.pcapng");
    let has = |program: &str| Job::new(program).arg("-v").run(&bench.scratch, LIMIT).is_ok();
    let captures = has("dumpcap") && has("tshark");
    let mut job = Job::new("bash").arg(source("tools/rxe.sh")).arg(&stage).arg(&programs);
    if captures {
        job = job.env("CAPTURE", &capture);
    }
    let request = Request { devices: false, ..Request::in_folder(job, &folder, LIMIT) };
    bench.step(&format!("rxe: booting {kernel}"));
    let mut outputs = [Vec::new(), Vec::new()];
    let outcome = machine.run(&request, &bench.scratch, &mut |stream, bytes| {
        let [out, error] = &mut outputs;
        if stream == Stream::Err { error } else { out }.extend_from_slice(bytes);
        let last = String::from_utf8_lossy(bytes);
        bench.step(&format!("rxe: {}", last.lines().last().unwrap_or_default()));
    });
    let [out, error] = outputs.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(why) => {
            tally.skip(&kernel, &format!("the virtual machine fails: {}", why.trim()));
            return Ok(());
        }
    };
    if outcome.status != 0 || !outcome.kernel.is_empty() {
        let report = format!("exit status {}\n{error}\n{:?}", outcome.status, outcome.kernel);
        tally.record(&format!("{kernel}: all was run"), Err(report));
    }
    for line in lines.lines() {
        for from in ["soft", "rxe"].into_iter().filter(|from| is_from(line, from)) {
            let name = format!("{kernel}: {line}, from {from}");
            tally.record(&name, verdict(&out, &format!("{from} {line}")));
        }
    }
    let names =
        ["what tshark says of the packets", "their ICRCs"].map(|n| format!("{kernel}: {n}"));
    if captures {
        bench.step("rxe: dissecting");
        tally.record(&names[0], packets::dissect(bench, &capture));
        let found = packets::icrcs(&capture);
        let note = |found: String| bench.progress.note(&format!("{kernel}: {found}"));
        tally.record(&names[1], found.map(&note));
        if lines.contains("mark=") {
            let name = format!("{kernel}: marks, and what soft says of them");
            // What rxe sends is marked by netem alone.
            match out.contains("no netem") {
                true => tally.skip(&name, "this kernel has no netem"),
                false => tally.record(&name, packets::marks(&capture).map(note)),
            }
        }
        // Hundreds of megabytes.
        let _ = std::fs::remove_file(&capture);
    } else {
        names.iter().for_each(|name| tally.skip(name, "tshark is not installed"));
    }
    Ok(())
}

/// Whether a line has this side's client.
fn is_from(line: &str, side: &str) -> bool {
    let only = line.split(' ').find_map(|word| word.strip_prefix("from="));
    only.is_none_or(|only| only == side)
}

/// What the guest printed of a line.
fn verdict(out: &str, line: &str) -> Result<(), String> {
    if out.lines().any(|l| l.strip_prefix("good ") == Some(line)) {
        return Ok(());
    }
    let bad = out.lines().find(|l| l.strip_prefix("bad ").is_some_and(|l| l.starts_with(line)));
    Err(bad.unwrap_or("it was not run").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_may_be_of_one_side() {
        assert!(is_from("rping -s ; rping -c", "soft") && is_from("rping -s ; rping -c", "rxe"));
        assert!(is_from("from=rxe udaddy ; udaddy", "rxe"));
        assert!(!is_from("from=rxe udaddy ; udaddy", "soft"));
    }

    #[test]
    fn each_short_line_is_one_of_all() {
        let all = include_str!("../../c-tests/data/rxe-programs.txt");
        for line in SHORT {
            assert!(all.lines().any(|one| one == *line), "{line}");
        }
    }

    #[test]
    fn a_line_that_was_not_run_is_no_success() {
        let out = "good soft a -n 1\nbad rxe a -n 1: client 1: why; server 0: \n";
        assert_eq!(verdict(out, "soft a -n 1"), Ok(()));
        assert!(verdict(out, "rxe a -n 1").unwrap_err().contains("why"));
        assert!(verdict(out, "soft a -n").is_err());
        assert!(verdict(out, "soft b").unwrap_err().contains("not run"));
    }
}
