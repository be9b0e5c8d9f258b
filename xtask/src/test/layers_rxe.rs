//! Layers over devices of a kernel, in a virtual machine: each pair of twins under `validate` (c-tests/validate), and a ping-pong under each of the others.

use super::{Bench, Tally, capture, validate, vm};
use crate::process::Job;
use crate::scratch;
use crate::vm::{Request, Stream};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// It takes minutes on a busy machine.
const LIMIT: Duration = Duration::from_secs(2400);

/// Twins that rxe has no place for (docs/validate.md has the same table), by their ids, and what the wrong one hears there.
const OTHERWISE: &[(&str, &[&str], &str)] =
    &[("MR-01", &[], "lkey and rkey of a region are the same there: the wrong twin is right")];

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let Some(machine) = vm::machine(bench, tally) else { return Ok(()) };
    let folder = bench.scratch.folder("layers-rxe", 0o755)?;
    let stage = folder.join("stage");
    scratch::copy_tree(bench.prefix()?, &stage)?;
    let files = validate::compile(bench)?;
    let mut ids = Vec::new();
    for twins in [&files.misuse, &files.cm, &files.advice] {
        ids.extend(validate::ids_of(bench, twins)?);
    }
    let packets = capture::packets(bench)?;
    for file in [&files.misuse, &files.cm, &files.advice, &files.liar, &packets] {
        let name = file.file_name().unwrap_or_default();
        fs::copy(file, folder.join(name)).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    let script = bench.paths.root.join("c-tests/tools/layers_rxe.sh");
    let job = Job::new("bash").arg(script).arg(&folder);
    let job = job.env("LD_LIBRARY_PATH", stage.join("lib")).env("FERROVERBS_SOFT", "off");
    let request = Request {
        job,
        dir: folder.clone(),
        shares: vec![folder.clone()],
        limit: LIMIT,
        devices: true,
        counted: false,
        console: None,
    };
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
            let said = String::from_utf8_lossy(&errors);
            tally.record("all was run", Err(format!("exit status {}\n{said}", outcome.status)));
        }
    }
    for id in &ids {
        twins(&folder, id, tally);
    }
    tally.record("trace of a ping-pong", traced(bench, &folder));
    tally.record("stats of a ping-pong", counted(bench, &folder));
    bench.step("layers-rxe: dissecting");
    let captured = ended(&folder, "capture");
    let captured = captured.and_then(|_| capture::of_ping_pong(bench, &folder.join("capture")));
    tally.record("capture of a ping-pong", captured);
    let printed = said(&folder, "packets");
    capture::of_device(bench, tally, &folder.join("packets.d"), &printed, "rxe0");
    Ok(())
}

/// The wrong one is told of as what it is, the right one hears nothing.
fn twins(folder: &Path, id: &str, tally: &mut Tally) {
    let otherwise = OTHERWISE.iter().find(|(other, ..)| *other == id);
    for how in ["wrong", "right"] {
        let name = format!("{id} {how}");
        let told = validate::ids(&folder.join(format!("{id}.{how}.json")));
        let said = said(folder, &format!("{id}.{how}"));
        let wanted: &[&str] = match (how, otherwise) {
            ("right", _) => &[],
            (_, Some((_, told, _))) => told,
            _ => &[id],
        };
        let ended = said.lines().last() == Some("0") || otherwise.is_some();
        let quiet = how == "wrong" || said == "0\n" || otherwise.is_some();
        let right = told == wanted && ended && quiet;
        tally.record(&name, right.then_some(()).ok_or_else(|| format!("told {told:?}\n{said}")));
    }
    if let Some((_, _, why)) = otherwise {
        tally.skip(&format!("{id} over rxe"), why);
    }
}

/// `ferroverbs` with these arguments, of what a layer left in the folder of its name.
fn told(bench: &Bench, folder: &Path, layer: &str, args: &[&str]) -> crate::Result<String> {
    let program = bench.prefix()?.join("bin/ferroverbs");
    let job = Job::new(program).args(args).arg(folder.join(layer));
    let done = job.run(&bench.scratch, LIMIT)?;
    let said = ended(folder, layer)?;
    if done.ok() { Ok(done.stdout) } else { Err(said + &done.report("ferroverbs")) }
}

fn said(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(format!("{name}.said"))).unwrap_or_default()
}

/// What both sides of a ping-pong said, if they ended well.
fn ended(folder: &Path, layer: &str) -> crate::Result<String> {
    let said = said(folder, layer);
    if said.lines().last() == Some("0 0") { Ok(said) } else { Err(said) }
}

/// A hundred messages each way: each has led to where it was received, and to its completion.
fn traced(bench: &Bench, folder: &Path) -> crate::Result<()> {
    let text = told(bench, folder, "trace", &["trace", "merge"])?;
    let arrows = |kind: &str| {
        let kind = format!("\"cat\":\"{kind}\"");
        text.lines().filter(|l| l.contains("\"ph\":\"s\"") && l.contains(&kind)).count()
    };
    match (arrows("message"), arrows("completes")) {
        (200, 400) => Ok(()),
        (messages, completions) => Err(format!("{messages} messages, {completions} completions")),
    }
}

fn counted(bench: &Bench, folder: &Path) -> crate::Result<()> {
    let text = told(bench, folder, "stats", &["stats", "show", "--prometheus"])?;
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
