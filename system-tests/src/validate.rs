//! The layer `validate`: each misuse of verbs (c-tests/validate/misuse.c) is reported by its id and
//! no other; its right variant and correct programs get no report.
//!
//! Map of this file: permitted reports; registration; compiled programs; misuse; programs without
//! misuse; helpers.

mod other_end;
mod pages;
mod report_settings;

use super::{c_programs, perf, programs};
use crate::{Bench, Checks, Load, Tally, Tier};
use ferroverbs_c_tests::{Kind, PROGRAMS, Program, sources::sources};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::DataPath;
use xtask::process::{ExitReason, Job};

const LIMIT: Duration = Duration::from_secs(120);

/// Known true findings in foreign programs (docs/reference/programs.md), each by all of its parts.
const KNOWN: &[&[&str]] = &[
    // perftest leaves a CQ behind on the side that only sends.
    &["\"program\":\"ib_send_bw\"", "\"message\":\"these are left: cq "],
    &["\"program\":\"raw_ethernet_bw\"", "\"message\":\"these are left: cq "],
    // perftest 25.01 posts receives to an SRQ that extend beyond their region.
    &["\"id\":\"MR-02\"", "\"call\":\"ibv_post_srq_recv\"", "\"stack\":[\"ib_send_"],
    // qperf closes objects in an order that the calls refuse, and ignores their results.
    &["\"program\":\"qperf\"", "\"id\":\"OB-02\""],
    &["\"program\":\"qperf\"", "\"id\":\"CM-02\"", "rdma_destroy_event_channel"],
    &["\"program\":\"qperf\"", "\"id\":\"QP-13\"", "ibv_destroy_cq"],
    &["\"program\":\"qperf\"", "\"id\":\"MR-06\"", "ibv_dereg_mr"],
    &["\"program\":\"fio\"", "\"id\":\"OB-02\"", "ibv_dealloc_pd"],
    &["\"program\":\"fio\"", "\"id\":\"QP-13\"", "ibv_destroy_cq"],
    // fio acknowledges as many events as it polled completions.
    &["\"program\":\"fio\"", "\"id\":\"CQ-07\""],
    // cmtime reuses attributes that name CQs of the first id.
    &["\"program\":\"cmtime\"", "\"id\":\"QP-13\""],
    // `random_all` destroys what other threads still use, and tries again when the call says EBUSY.
    &["\"program\":\"random_all\"", "\"id\":\"OB-09\"", "EBUSY"],
    &["\"program\":\"random_all\"", "\"id\":\"QP-21\"", "EBUSY"],
    // Its unsignaled requests fill the send queue.
    &["\"program\":\"udaddy\"", "\"id\":\"WR-04\""],
    // The test kills the peers of these programs.
    &["\"program\":\"rping\"", "\"id\":\"CQ-03\"", "RETRY_EXC_ERR", "no answer"],
    &["\"program\":\"rstream\"", "\"id\":\"CQ-03\"", "RETRY_EXC_ERR", "no answer"],
    // uDAPL's ucm: both regions go before the queue pair that has receives posted.
    &["\"program\":\"dtestsrq\"", "\"id\":\"MR-06\"", "ibv_dereg_mr", "libdaploucm"],
    // UCX's UD transport: the peer's acknowledgement counts as completion, and UCX deregisters the
    // region before it polls its own completion.
    &["\"id\":\"MR-06\"", "send requests of qp", "(UD) still use it", "uct_ib_dereg_mr"],
    // Ceph with rdma_cm closes the device while connections are there.
    &["\"id\":\"OB-02\"", "these are left: qp", "Infiniband"],
    &["\"id\":\"MR-13\"", "Infiniband"],
    // libfabric finds the largest `max_inline_data` by trial, and posts receives until a post is
    // refused.
    &["\"id\":\"QP-15\"", "cap.max_inline_data", "libfabric"],
    &["\"id\":\"WR-05\"", "ibv_post_recv", "libfabric"],
    // `random_all` uses old keys, deallocates domains that have regions, and kills processes.
    &["\"program\":\"random_all\"", "\"id\":\"CQ-03\"", "REM_ACCESS_ERR"],
    &["\"program\":\"random_all\"", "\"id\":\"CQ-03\"", "RETRY_EXC_ERR"],
    &["\"program\":\"random_all\"", "\"id\":\"MR-15\""],
    &["\"program\":\"random_all\"", "\"id\":\"OB-02\"", "renew_region"],
    // Programs of ours that have a call refused on purpose, or wait, and scripts.
    &["\"program\":\"again.", "\"id\":\"CM-04\""],
    &["\"program\":\"again.", "\"id\":\"CM-03\""],
    &["\"program\":\"unacknowledged.", "\"id\":\"CM-01\""],
    &["pyverbs", "rc.py", "\"id\":\"CQ-03\"", "REM_ACCESS_ERR"],
    &["pyverbs", "rc.py", "\"id\":\"QP-01\"", "ibv_post_send"],
    &["pyverbs pair.py", "\"id\":\"CQ-03\"", "REM_ACCESS_ERR"],
    &["pyverbs xrc.py", "\"id\":\"CQ-03\"", "REM_INV_RD_REQ_ERR"],
    &["pyverbs", "tm.py", "\"id\":\"CQ-03\"", "REM_INV_RD_REQ_ERR"],
    // rdma-core's own tests, by name. The tests of address handles and those with MR-06 at the end
    // do not misuse verbs on purpose.
    &["test_atomic_invalid_lkey", "\"id\":\"MR-01\""],
    &["test_atomic_invalid_qp_access", "\"id\":\"QP-09\""],
    &["test_atomic_invalid_rkey", "\"id\":\"CQ-03\""],
    // The test uses rkey + 1, which is the lkey when keys differ.
    &["test_atomic_invalid_rkey", "\"id\":\"MR-11\""],
    &["test_atomic_invalid_mr_access", "\"id\":\"CQ-03\""],
    &["test_atomic_non_aligned_addr", "\"id\":\"WR-07\""],
    &["test_mr_rereg_access_bad_flow", "\"id\":\"CQ-03\""],
    &["test_mr_rereg_addr", "\"id\":\"MR-06\""],
    &["test_mr_rereg_addr", "\"id\":\"CQ-03\""],
    &["test_mr_rereg_pd", "\"id\":\"MR-03\""],
    &["test_mr_rereg_pd", "\"id\":\"CQ-03\""],
    &["test_mr_rereg_pd", "\"id\":\"MR-06\""],
    &["test_reg_mr_bad_flags", "\"id\":\"MR-05\""],
    &["test_invalidate_mw_type1", "\"id\":\"MR-15\""],
    &["test_invalidate_mw_type2", "\"id\":\"CQ-03\""],
    &["test_mw_type2_invalidate_", "\"id\":\"CQ-03\""],
    &["_with_illegal_caps_", "\"id\":\"QP-15\""],
    &["test_full_rq_bad_flow", "\"id\":\"WR-05\""],
    &["test_post_receive_qp_state_bad_flow", "\"id\":\"QP-01\""],
    &["test_post_send_qp_state_bad_flow", "\"id\":\"QP-01\""],
    &["test_qp_ex_rc_bind_mw", "\"id\":\"CQ-03\""],
    &["test_rq_with_larger_sgl_bad_flow", "\"id\":\"WR-01\""],
    // The test destroys the address handle before the completions of its datagrams are polled.
    &["test_resize_cq", "\"id\":\"WR-09\""],
    // The traffic helper of these tests leaves a receive posted on each side, and the tests
    // deregister the region before they destroy the QP.
    &["test_cq_events_", "\"id\":\"MR-06\""],
    &["_traffic_cq_ex", "\"id\":\"MR-06\""],
    &["_prefetch_rc_traffic", "\"id\":\"MR-06\""],
    &["test_ro_", "\"id\":\"MR-06\""],
];

fn is_known(line: &str) -> bool {
    KNOWN.iter().any(|parts| parts.iter().all(|part| line.contains(part)))
}

/// Reports that are not known findings. A line `test NAME` in the file precedes the reports of that
/// test.
fn unknown(reported: &str) -> Vec<String> {
    let (mut test, mut lines) = ("", Vec::new());
    for line in reported.lines() {
        match line.strip_prefix("test ") {
            Some(name) => test = name,
            None => lines.push(format!("{test} {line}")),
        }
    }
    lines.retain(|line| !is_known(line));
    lines
}

/// C programs without misuse: further programs provoke refusals.
const RIGHT: &[&str] =
    &["data", "builders", "atomics", "threads", "threads_post", "many_qps", "fork"];

/// Programs of which only some runs are tested, once each: runs without misuse, or, of
/// `random_all`, with known findings.
const RIGHT_RUNS: &[(&str, &[&str])] =
    &[("tm", &["rendezvous one", "rendezvous two", "eager two"]), ("random_all", &["2 2"])];

/// What is run under the layer of a program of ours.
fn right(program: &Program) -> Option<Program> {
    if let Some((_, runs)) = RIGHT_RUNS.iter().find(|(name, _)| *name == program.name) {
        return Some(Program { runs, each_path: false, ..*program });
    }
    (program.kind == Kind::Checked && RIGHT.contains(&program.name)).then_some(*program)
}

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One);
    let all: [(&str, GroupPart); 7] = [
        ("misuses", |bench, tally| cases(bench, tally, &compile(bench)?)),
        ("refusals", |bench, tally| explained(bench, tally, &compile(bench)?)),
        ("settings", |bench, tally| settings(bench, tally, &compile(bench)?)),
        ("variants", |bench, tally| variants(bench, tally, &compile(bench)?)),
        ("more misuse", more_misuse),
        ("poisoned", poisoned),
        ("pages", |bench, tally| pages::run(bench, tally, &compile(bench)?)),
    ];
    for (name, part) in all {
        checks.many(name, part);
    }
    checks.many("other end", other_end::run);
    checks.many("report settings", report_settings::run);
    checks.load(Load::Pair).tier(Tier::Full);
    checks.many("C programs are right", |bench, tally| {
        unharmed(bench, tally, "C programs", |bench, tally| {
            c_programs::run_these(bench, tally, PROGRAMS.iter().filter_map(right))
        })
    });
    checks.many("perftest is right", |bench, tally| unharmed(bench, tally, "perftest", perf::some));
    checks.tier(Tier::Short).many("ibverbs-utils are right", |bench, tally| {
        unharmed(bench, tally, "ibverbs-utils", programs::some)
    });
}

type GroupPart = fn(&Bench, &mut Tally) -> crate::Result<()>;

/// The programs with wrong and right variants, and a layer below them.
pub(super) struct Files {
    pub(super) misuse: PathBuf,
    pub(super) cm: PathBuf,
    pub(super) advice: PathBuf,
    pub(super) flushed: PathBuf,
    /// Run in strict mode.
    pub(super) strict: PathBuf,
    pub(super) refusals: PathBuf,
    pub(super) faulty_provider: PathBuf,
}

/// The program that misuses verbs.
pub(super) fn misuse(bench: &Bench) -> crate::Result<PathBuf> {
    compiled(bench, "validate/misuse.c", "misuse", &[])
}

pub(super) fn compile(bench: &Bench) -> crate::Result<Files> {
    Ok(Files {
        misuse: misuse(bench)?,
        cm: compiled(bench, "validate/cm.c", "cm", &[])?,
        // The layer finds a function of it.
        advice: compiled(bench, "validate/advice.c", "advice", &["-rdynamic"])?,
        flushed: compiled(bench, "validate/flushed.c", "flushed", &[])?,
        strict: compiled(bench, "validate/strict.c", "strict", &[])?,
        refusals: compiled(bench, "validate/refusals.c", "refusals", &[])?,
        faulty_provider: compiled(
            bench,
            "layers/faulty_provider.c",
            "faulty_provider.so",
            &["-shared"],
        )?,
    })
}

/// A program or layer of c-tests, compiled once in a run. Not optimised: pages show the stacks of
/// `gcc -g`.
fn compiled(
    bench: &Bench,
    source: &str,
    output: &'static str,
    options: &[&str],
) -> crate::Result<PathBuf> {
    bench.compiled(output, |folder| {
        let prefix = bench.prefix()?;
        let file = folder.join(output);
        let main = bench.paths.root.join("c-tests").join(source);
        let sources = sources(&main).map_err(|e| format!("{}: {e}", main.display()))?;
        let done = Job::new("gcc")
            .args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-I"])
            .arg(prefix.join("include"))
            .args(sources)
            .arg("-o")
            .arg(&file)
            .args(options)
            .arg("-L")
            .arg(prefix.join("lib"))
            .args(["-lrdmacm", "-libverbs", "-lpthread"])
            .run(&bench.scratch, LIMIT)?;
        if done.ok() { Ok(file) } else { Err(done.report("the compiler")) }
    })
}

/// The ids of a file of JSON lines.
pub(super) fn ids(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let id = |line: &str| {
        let rest = line.split_once("\"id\":\"")?.1;
        Some(rest.split_once('"')?.0.to_owned())
    };
    text.lines().map(|line| id(line).unwrap_or_else(|| line.to_owned())).collect()
}

/// The checks that a program misuses something for.
pub(super) fn ids_of(bench: &Bench, program: &Path) -> crate::Result<Vec<String>> {
    let all = bench.over(DataPath::Default)?.over.own_job(program).run(&bench.scratch, LIMIT)?;
    Ok(all.stdout.lines().map(str::to_owned).collect())
}

fn cases(bench: &Bench, tally: &mut Tally, files: &Files) -> crate::Result<()> {
    let layers = format!("validate,{}", files.faulty_provider.display());
    // That of MR-10 is `poisoned`.
    let mut all = vec!["MR-10".to_owned()];
    let Files { misuse, cm, advice, flushed, strict, refusals, .. } = files;
    for program in [misuse, cm, advice, flushed, strict, refusals] {
        let mode = if program == strict { "1" } else { "0" };
        for id in ids_of(bench, program)? {
            all.push(id.clone());
            for how in ["wrong", "right"] {
                let name = format!("{id} {how}");
                bench.step(&name);
                let fabric = bench.over(DataPath::Default)?;
                let json = fabric.work.join("told.json");
                let job =
                    fabric.over.own_job(program).args([&id, how]).env("FERROVERBS_QUIET", "1");
                let job = job.env("FERROVERBS_LAYERS", &layers).env("JSON", &json);
                let job = job.env("FERROVERBS_SOFT_STRICT", mode);
                // Some are off unless they are asked for.
                // The layer refuses a request that nothing is wrong with, which WR-18 reports.
                let off = if id == "WR-13" { "off=WR-18:" } else { "" };
                let settings = format!("{off}on={id}:json={}", json.display());
                let done = job
                    .env("FERROVERBS_VALIDATE", settings)
                    .dir(&fabric.work)
                    .run(&bench.scratch, LIMIT)?;
                let wanted: &[&str] = if how == "wrong" { &[&id] } else { &[] };
                let reported = ids(&json);
                let quiet = how == "wrong" || done.stderr.is_empty();
                let result = if done.ok() && reported == wanted && quiet {
                    Ok(())
                } else {
                    Err(format!("told {reported:?}\n{}", done.report("misuse")))
                };
                tally.record(&name, result);
            }
        }
    }
    let folder = bench.paths.root.join("docs/reference/checks");
    let fail = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut checks: Vec<String> = Vec::new();
    for page in fs::read_dir(&folder).map_err(fail)?.flatten() {
        let page = fs::read_to_string(page.path()).map_err(fail)?;
        let headings = page.lines().filter_map(|line| line.strip_prefix("## ")?.split_once(": "));
        checks.extend(headings.map(|(id, _)| id.to_owned()));
    }
    all.sort();
    checks.sort();
    let same = (all == checks).then_some(()).ok_or_else(|| format!("{all:?}, not {checks:?}"));
    tally.record("all checks have a case", same);
    Ok(())
}

/// Each refused call of a long row is explained with the argument that is wrong.
fn explained(bench: &Bench, tally: &mut Tally, files: &Files) -> crate::Result<()> {
    for (case, name) in [
        ("all", "each refused call is explained"),
        ("forks", "a registration that fork support refuses is explained"),
    ] {
        let fabric = bench.over(DataPath::Default)?;
        let json = fabric.work.join("told.json");
        let job = fabric.over.own_job(&files.refusals).arg(case).env("JSON", &json);
        let job = job.env("FERROVERBS_LAYERS", "validate").env("FERROVERBS_QUIET", "1");
        let job = job.env("FERROVERBS_VALIDATE", format!("max=1000:json={}", json.display()));
        let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
        let result = if done.ok() { Ok(()) } else { Err(done.report("refusals")) };
        tally.record(name, result);
    }
    Ok(())
}

/// The effect of settings on one misuse.
fn settings(bench: &Bench, tally: &mut Tally, files: &Files) -> crate::Result<()> {
    for (settings, status, part) in [
        ("", 0, "MR-05 error: ibv_reg_mr"),
        ("exitcode=66", 66, "IBV_ACCESS_LOCAL_WRITE"),
        ("off=MR-05:exitcode=66", 0, ""),
        ("off=MR-*", 0, ""),
        ("only=QP-02", 0, ""),
        ("nonsense=1:off=MR-05", 0, "\"nonsense=1\": the settings are off, on, only,"),
    ] {
        let fabric = bench.over(DataPath::Default)?;
        let job = fabric.over.own_job(&files.misuse).args(["MR-05", "wrong"]);
        let job = job.env("FERROVERBS_LAYERS", "validate").env("FERROVERBS_VALIDATE", settings);
        let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
        let printed =
            if part.is_empty() { done.stderr.is_empty() } else { done.stderr.contains(part) };
        let right = printed && done.end == ExitReason::Exited(status);
        tally.record(
            &format!("setting {settings:?}"),
            right.then_some(()).ok_or_else(|| done.report("misuse")),
        );
    }
    Ok(())
}

/// Another way to come to what a check tells of, or to hear nothing.
struct Variant {
    id: &'static str,
    how: &'static str,
    variable: (&'static str, &'static str),
    settings: &'static str,
    /// The number of messages, and parts of them.
    reported: (usize, &'static [&'static str]),
}

const VARIANTS: &[Variant] = &[
    Variant {
        id: "CQ-10",
        how: "wrong",
        variable: ("RECEIVES", "1"),
        settings: "on=CQ-10",
        reported: (1, &["1 completions wait in it"]),
    },
    Variant {
        id: "CQ-10",
        how: "right",
        variable: ("RECEIVES", "1"),
        settings: "on=CQ-10",
        reported: (0, &[]),
    },
    Variant {
        id: "MR-13",
        how: "right",
        variable: ("EXIT", "1"),
        settings: "leaks=0",
        reported: (0, &[]),
    },
    Variant {
        id: "MR-13",
        how: "right",
        variable: ("EXIT", "1"),
        settings: "leaks=1:off=OB-02",
        reported: (
            2,
            &["exit, context ", ": 1 regions of 65536 bytes", ": 2 regions of 131072 bytes"],
        ),
    },
    Variant {
        id: "CQ-03",
        how: "right",
        variable: ("FERROVERBS_SOFT_FAULTS", "access-error nth=1"),
        settings: "",
        reported: (
            1,
            &["SEND failed with IBV_WC_REM_ACCESS_ERR", "64 bytes and names no memory of the peer"],
        ),
    },
    Variant { reported: (1, &["initiator_depth 254 > "]), ..of_cm("CM-03", "wrong", "depth") },
    of_cm("CM-03", "right", "depth"),
    Variant { reported: (1, &["private_data_len 197 > 196"]), ..of_cm("CM-04", "wrong", "reply") },
    of_cm("CM-04", "right", "reply"),
    Variant {
        reported: (1, &["private_data_len 149 > 148"]),
        ..of_cm("CM-04", "wrong", "rejection")
    },
    of_cm("CM-04", "right", "rejection"),
];

/// Another way of a misuse of librdmacm.
const fn of_cm(id: &'static str, how: &'static str, way: &'static str) -> Variant {
    Variant { id, how, variable: ("WAY", way), settings: "", reported: (0, &[]) }
}

fn variants(bench: &Bench, tally: &mut Tally, files: &Files) -> crate::Result<()> {
    for Variant { id, how, variable: (variable, value), settings, reported: (count, parts) } in
        VARIANTS
    {
        let fabric = bench.over(DataPath::Default)?;
        let json = fabric.work.join("told.json");
        let program = match *id {
            "CQ-10" => &files.advice,
            id if id.starts_with("CM-") => &files.cm,
            _ => &files.misuse,
        };
        let job = fabric.over.own_job(program).args([id, how]).env(variable, value);
        let job = job.env("FERROVERBS_LAYERS", "validate").env("JSON", &json);
        let job = job.env("FERROVERBS_VALIDATE", format!("{settings}:json={}", json.display()));
        let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
        let printed = parts.iter().all(|part| done.stderr.contains(part));
        let right = done.ok() && printed && ids(&json).len() == *count;
        tally.record(
            &format!("{id} {how} with {variable} and {settings:?}"),
            right.then_some(()).ok_or_else(|| done.report("the program")),
        );
    }
    Ok(())
}

/// Further ways to trigger checks (c-tests/validate/more_misuse.c), each reported by its check
/// alone.
fn more_misuse(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let program = compiled(bench, "validate/more_misuse.c", "more_misuse", &[])?;
    let ways = ids_of(bench, &program)?;
    tally.record("there are other ways", (!ways.is_empty()).then_some(()).ok_or("none".into()));
    for way in ways {
        for how in ["wrong", "right"] {
            let name = format!("{way}: {how}");
            bench.step(&name);
            let fabric = bench.over(DataPath::Default)?;
            let json = fabric.work.join("told.json");
            let job = fabric.over.own_job(&program).args([&way, how]).env("FERROVERBS_QUIET", "1");
            let job = job.env("FERROVERBS_LAYERS", "validate");
            let job = job.env("FERROVERBS_VALIDATE", format!("json={}", json.display()));
            let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
            let id = way.split(' ').next().unwrap_or_default();
            let wanted: &[&str] = if how == "wrong" { &[id] } else { &[] };
            let right = done.ok() && ids(&json) == wanted;
            tally.record(&name, right.then_some(()).ok_or_else(|| done.report("more_misuse")));
        }
    }
    Ok(())
}

/// The program that MR-10 is for, if the compiler has AddressSanitizer.
pub(super) fn sanitized(bench: &Bench, tally: &mut Tally) -> Option<PathBuf> {
    let program = compiled(bench, "validate/poisoned.c", "poisoned", &["-fsanitize=address"]);
    let why = match program {
        Ok(program) => return Some(program),
        Err(why) => why,
    };
    tally.skip("MR-10", &format!("no program for AddressSanitizer: {}", why.trim()));
    None
}

/// MR-10: a program built with `-fsanitize=address`, alone and with soft's own writes suppressed or
/// not.
fn poisoned(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let Some(program) = sanitized(bench, tally) else { return Ok(()) };
    let suppressions = bench.private_folder("suppressions")?.join("suppressions");
    fs::write(&suppressions, "interceptor_via_lib:libsoft\n").map_err(|e| e.to_string())?;
    let suppressed = format!("suppressions={}:detect_leaks=0", suppressions.display());
    let report = "MR-10 warning: ";
    for (how, setting, sanitizer, is_told, parts) in [
        ("wrong", "on=MR-10", &*suppressed, true, &["use-after-poison", "in mr_10 ", report][..]),
        ("right", "on=MR-10", &suppressed, false, &[]),
        ("right", "on=MR-10,MR-09", &suppressed, false, &[]),
        ("wrong", "off=MR-10", &suppressed, false, &[]),
        ("wrong", "on=MR-10", "detect_leaks=0", false, &["MR-10 tells nothing: suppressions"]),
    ] {
        let fabric = bench.over(DataPath::Default)?;
        let json = fabric.work.join("told.json");
        let job = fabric.over.own_job(&program).args(["MR-10", how]).env("FERROVERBS_QUIET", "1");
        let job = job.env("FERROVERBS_LAYERS", "validate").env("ASAN_OPTIONS", sanitizer);
        let job = job.env("FERROVERBS_VALIDATE", format!("{setting}:json={}", json.display()));
        let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
        let reported: &[&str] = if is_told { &["MR-10"] } else { &[] };
        let printed = parts.iter().all(|part| done.stderr.contains(part));
        let quiet = !parts.is_empty() || done.stderr.is_empty();
        let right = printed && quiet && done.ok() != is_told && ids(&json) == reported;
        tally.record(
            &format!(
                "MR-10 {how} with {setting:?} and ASAN_OPTIONS={}",
                sanitizer.split('=').next().unwrap_or_default()
            ),
            right.then_some(()).ok_or_else(|| done.report("the program")),
        );
    }
    Ok(())
}

/// Runs tests under the layer, which must not have anything to say.
pub(super) fn unharmed(
    bench: &Bench,
    tally: &mut Tally,
    name: &str,
    run: impl FnOnce(&Bench, &mut Tally) -> crate::Result<()>,
) -> crate::Result<()> {
    let json = bench.private_folder("told")?.join("told.json");
    run(&bench.validated(&json), tally)?;
    let reported = fs::read_to_string(&json).unwrap_or_default();
    let unknown = unknown(&reported);
    let result = if unknown.is_empty() { Ok(()) } else { Err(unknown.join("\n")) };
    tally.record(&format!("{name} hear nothing"), result);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_one_test_is_news_of_another() {
        let line = "{\"id\":\"WR-07\",\"program\":\"python3.11\",\"call\":\"ibv_post_send\"}";
        assert!(unknown(&format!("test a.test_atomic_non_aligned_addr\n{line}\n")).is_empty());
        let news = unknown(&format!("test a.test_atomic_non_aligned_addr\ntest b.c\n{line}\n"));
        assert_eq!(news, [format!("b.c {line}")]);
        assert_eq!(unknown(line).len(), 1);
    }
}
