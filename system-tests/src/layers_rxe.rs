//! Layers over kernel devices in a virtual machine: each wrong and right variant under `validate`
//! (c-tests/validate), and a ping-pong under each further layer.

use super::{capture, validate, vm};
use crate::{Bench, Checks, Tally, Tier};
use std::fs;
use std::path::Path;
use std::time::Duration;
use xtask::process::Job;
use xtask::scratch;
use xtask::vm::{Request, Stream};

/// It takes minutes on a busy machine.
const LIMIT: Duration = Duration::from_secs(2400);

/// Checks without a counterpart on rxe, the report of the wrong variant there, and the reason.
const OTHERWISE: &str = include_str!("../../c-tests/data/layers-rxe.txt");

/// What the wrong twin of a check hears instead of its id, and why; of most there is nothing.
fn otherwise(id: &str) -> Option<(&'static str, &'static str)> {
    let lines = OTHERWISE.lines().filter_map(|line| line.split_once(' '));
    let (_, rest) = lines.into_iter().find(|(other, _)| *other == id)?;
    rest.split_once(' ')
}

pub(super) fn register(checks: &mut Checks) {
    checks.tier(Tier::Long).many("all", all).limit(Duration::from_secs(5400));
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let Some(machine) = vm::machine(bench, tally) else { return Ok(()) };
    let folder = bench.scratch.folder("layers-rxe", 0o755)?;
    let stage = folder.join("stage");
    scratch::copy_tree(bench.prefix()?, &stage)?;
    let files = validate::compile(bench)?;
    let mut ids = Vec::new();
    for twins in [&files.misuse, &files.cm, &files.advice, &files.flushed] {
        ids.extend(validate::ids_of(bench, twins)?);
    }
    let packets = capture::packets(bench)?;
    let sanitized = validate::sanitized(bench, tally);
    let programs =
        [&files.misuse, &files.cm, &files.advice, &files.flushed, &files.faulty_provider, &packets];
    for file in programs.into_iter().chain(&sanitized) {
        let name = file.file_name().unwrap_or_default();
        fs::copy(file, folder.join(name)).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    let script = bench.paths.root.join("c-tests/tools/layers_rxe.sh");
    let job = Job::new("bash").arg(script).arg(&folder);
    let job = job.env("LD_LIBRARY_PATH", stage.join("lib")).env("FERROVERBS_SOFT", "off");
    let request = Request::in_folder(job, &folder, LIMIT);
    bench.step("layers-rxe: booting");
    let mut errors = Vec::new();
    let outcome = machine.run(&request, &bench.scratch, &mut |stream, bytes| match stream {
        Stream::Err => errors.extend_from_slice(bytes),
        Stream::Out => {
            let text = String::from_utf8_lossy(bytes);
            bench.step(&format!("layers-rxe: {}", text.lines().last().unwrap_or_default()));
        }
    });
    match outcome {
        Err(why) => {
            tally.skip("everything", &format!("the virtual machine fails: {}", why.trim()));
            return Ok(());
        }
        Ok(outcome) if outcome.status == 0 => {}
        Ok(outcome) => {
            let output = String::from_utf8_lossy(&errors);
            tally.record("all was run", Err(format!("exit status {}\n{output}", outcome.status)));
        }
    }
    for id in &ids {
        twins(&folder, id, tally);
    }
    if sanitized.is_some() {
        for (name, result) in ["wrong", "right"].map(|how| (how, poisoned(&folder, how))) {
            tally.record(&format!("MR-10 {name}"), result);
        }
    }
    tally.record("a misuse is told with its place", placed(&folder));
    tally.record("trace of a ping-pong", traced(bench, &folder));
    tally.record("trace tells a ping-pong in text and in JSON", in_words(&folder));
    tally.record("stats of a ping-pong", counted(bench, &folder));
    tally.record("stats of a ping-pong that was killed", killed(&folder));
    bench.step("layers-rxe: dissecting");
    let captured = ended(&folder, "capture");
    let captured = captured.and_then(|_| capture::of_ping_pong(bench, &folder.join("capture")));
    tally.record("capture of a ping-pong", captured);
    let printed = output_of(&folder, "packets");
    capture::of_device(bench, tally, &folder.join("packets.d"), &printed, "rxe0");
    Ok(())
}

/// The wrong variant is reported by its id, the right one not at all.
fn twins(folder: &Path, id: &str, tally: &mut Tally) {
    let otherwise = otherwise(id);
    for how in ["wrong", "right"] {
        let name = format!("{id} {how}");
        let reported = validate::ids(&folder.join(format!("{id}.{how}.json")));
        let output = output_of(folder, &format!("{id}.{how}"));
        let wanted: &[&str] = match (how, otherwise) {
            ("right", _) | (_, Some(("-", _))) => &[],
            (_, Some((reported, _))) => &[reported],
            _ => &[id],
        };
        let ended = output.lines().last() == Some("0") || otherwise.is_some();
        let quiet = how == "wrong" || output == "0\n" || otherwise.is_some();
        // The case ran, whatever its result.
        let right = reported == wanted && ended && quiet && !output.is_empty();
        tally.record(
            &name,
            right.then_some(()).ok_or_else(|| format!("told {reported:?}\n{output}")),
        );
    }
    if let Some((_, why)) = otherwise {
        tally.skip(&format!("{id} over rxe"), why);
    }
}

/// A buffer that is read too early ends the program by AddressSanitizer's report. A kernel device
/// needs no suppression to write into poisoned memory.
fn poisoned(folder: &Path, how: &str) -> crate::Result<()> {
    let reported = validate::ids(&folder.join(format!("MR-10.{how}.json")));
    let output = output_of(folder, &format!("MR-10.{how}"));
    let right = match how {
        "wrong" => {
            let parts = ["use-after-poison", "in mr_10 ", "MR-10 warning: "];
            reported == ["MR-10"] && parts.iter().all(|part| output.contains(part))
        }
        _ => reported.is_empty() && output == "0\n",
    };
    right.then_some(()).ok_or_else(|| format!("told {reported:?}\n{output}"))
}

/// Of one misuse the lines of the program are told, and not those of the device's plugin.
fn placed(folder: &Path) -> crate::Result<()> {
    let output = output_of(folder, "WR-03.wrong");
    let mut places = output.lines().filter_map(|line| line.strip_prefix("    at "));
    let first = places.next().is_some_and(|line| line.starts_with("ibv_post_send ("));
    let case = places.any(|line| line.starts_with("wr_03 (") && line.contains("misuse.c:"));
    (first && case).then_some(()).ok_or(output)
}

/// The output of `ferroverbs` with these arguments, for the files of a layer in the folder of its
/// name.
fn reported(bench: &Bench, folder: &Path, layer: &str, args: &[&str]) -> crate::Result<String> {
    let program = bench.prefix()?.join("bin/ferroverbs");
    let job = Job::new(program).args(args).arg(folder.join(layer));
    let done = job.run(&bench.scratch, LIMIT)?;
    let output = ended(folder, layer)?;
    if done.ok() { Ok(done.stdout) } else { Err(output + &done.report("ferroverbs")) }
}

fn output_of(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(format!("{name}.said"))).unwrap_or_default()
}

/// The output of both sides of a ping-pong that succeeded.
fn ended(folder: &Path, layer: &str) -> crate::Result<String> {
    let output = output_of(folder, layer);
    if output.lines().last() == Some("0 0") { Ok(output) } else { Err(output) }
}

/// A hundred messages each way: the trace links each to its receive and its completion.
fn traced(bench: &Bench, folder: &Path) -> crate::Result<()> {
    let text = reported(bench, folder, "trace", &["trace", "merge"])?;
    let arrows = |kind: &str| {
        let kind = format!("\"cat\":\"{kind}\"");
        text.lines().filter(|l| l.contains("\"ph\":\"s\"") && l.contains(&kind)).count()
    };
    match (arrows("message"), arrows("completes")) {
        (200, 400) => Ok(()),
        (messages, completions) => Err(format!("{messages} messages, {completions} completions")),
    }
}

/// The server's trace in text, the client's in JSON: each has its requests and completions.
fn in_words(folder: &Path) -> crate::Result<()> {
    let output = ended(folder, "told")?;
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (text, json) = (read("told.text"), read("told.json"));
    let count = |reported: &str, parts: &[&str]| {
        reported.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
    };
    let objects = json.lines().all(|line| line.starts_with("{\"args\":{") && line.ends_with('}'));
    let counts = [
        count(&text, &[" ibv_post_send(", "opcode=SEND", "bytes=3000"]),
        count(&text, &[" completion(", "status=SUCCESS", "opcode=RECV", "byte_len=3000"]),
        count(&json, &["\"call\":\"ibv_post_send\"", "\"opcode\":\"SEND\""]),
        count(&json, &["\"call\":\"completion\"", "\"status\":\"SUCCESS\""]),
        count(&text, &[" ibv_modify_qp(", "qp_state=RTS"]),
        count(&json, &["\"call\":\"ibv_modify_qp\"", "\"RTS\""]),
    ];
    let right = objects && counts == [100, 100, 100, 200, 1, 1];
    let begins = |text: &str| text.lines().take(20).collect::<Vec<_>>().join("\n");
    let why = || format!("{counts:?}\n{output}{}\n{}", begins(&text), begins(&json));
    right.then_some(()).ok_or_else(why)
}

/// The counters of both sides until they were killed.
fn killed(folder: &Path) -> crate::Result<()> {
    let text = fs::read_to_string(folder.join("killed.prometheus")).unwrap_or_default();
    let values = |name: &str| -> Vec<u64> {
        let begin = format!("ferroverbs_{name}{{");
        let lines = text.lines().filter(|line| line.starts_with(&begin));
        lines.filter_map(|line| line.rsplit_once("} ")?.1.parse().ok()).collect()
    };
    let (up, received) = (values("up"), values("received_total"));
    let right = up == [0, 0] && received.len() == 2 && received.iter().all(|&count| count >= 10);
    right.then_some(()).ok_or_else(|| format!("{}{text}", output_of(folder, "killed")))
}

fn counted(bench: &Bench, folder: &Path) -> crate::Result<()> {
    let text = reported(bench, folder, "stats", &["stats", "show", "--prometheus"])?;
    for (name, label, value) in [
        ("requests_total", "operation=\"send\"", "100"),
        ("received_bytes_total", "device=\"rxe", "300000"),
        ("completions_total", "status=\"SUCCESS\"", "200"),
    ] {
        let begin = format!("ferroverbs_{name}{{");
        let lines = text.lines().filter(|l| l.starts_with(&begin) && l.contains(label));
        if lines.filter(|l| l.ends_with(&format!(" {value}"))).count() != 2 {
            return Err(format!("{name} is not {value} in both\n{text}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_exception_has_what_is_heard_and_a_reason() {
        for line in OTHERWISE.lines().filter(|line| !line.starts_with('#')) {
            let id = line.split(' ').next().unwrap();
            let (reported, why) = otherwise(id).unwrap_or_else(|| panic!("{line}"));
            assert!(reported == "-" || reported.as_bytes()[2] == b'-', "{line}");
            assert!(why.split(' ').count() > 4, "{line}");
        }
        assert!(otherwise("MR-02").is_none());
    }
}
