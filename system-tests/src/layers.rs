//! Layers between a program and its provider, written in C with the installed header: the replaced
//! functions, and the message about an invalid layer.

mod all_layers;
mod instruction_counts;

use crate::{Bench, Checks, Load, Tally, Tier};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::DataPath;
use xtask::process::{Finished, Job};

const LIMIT: Duration = Duration::from_secs(300);
const SETTING: &str = "FERROVERBS_LAYERS";
const PROVIDER: &str = "libsoft-rdmav65.so";
/// Pointers that the program finds: of a context, of an extended QP, of an extended CQ.
const POINTERS: usize = 8 + 17 + 14;

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One);
    checks.many("chain", all);
    checks.many("all layers at once", all_layers::run);
    // Instruction counts of soft's post_send vary between runs since its copies are guarded.
    checks.tier(Tier::Full).many("instruction counts", instruction_counts::run);
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let files = Files::compile(bench)?;
    let run_with = |layers: Option<&str>, refused: Option<&str>| -> crate::Result<Finished> {
        let fabric = bench.over(DataPath::Default)?;
        let mut job = fabric.over.own_job(&files.program);
        if let Some(layers) = layers {
            job = job.env(SETTING, layers);
        }
        if let Some(refused) = refused {
            job = job.env("REFUSED", refused);
        }
        job.dir(&fabric.work).run(&bench.scratch, LIMIT)
    };
    let run = |layers: Option<&str>| run_with(layers, None);
    let path = |file: &Path| file.to_string_lossy().into_owned();

    let bare = run(None)?;
    tally.record("without layers, inline functions call the provider", bare_is_bare(&bare));
    let empty = run(Some(" , "))?;
    tally.record("an empty list is none", bare_is_bare(&empty));

    let two = run(Some(&format!("{}, {}", path(&files.first), path(&files.second))))?;
    tally.record("two layers are called in turn, and only for what they want", chained(&two));

    let refused = run_with(Some(&path(&files.first)), Some("4"))?;
    tally.record("a wait ends with what a layer returns", interrupted(&refused));

    for (name, value, part) in [
        ("one that is not there", "/not/there/layer.so".to_owned(), "/not/there/layer.so"),
        ("a name that is none of ours", "no-such".to_owned(), "libferroverbs-layer-no-such.so"),
        ("one without the symbol", "/lib/x86_64-linux-gnu/libm.so.6".into(), "ferroverbs_layer_v1"),
        ("one of another generation", path(&files.wrong), "generation 12"),
    ] {
        // Valid layers are used all the same.
        let done = run(Some(&format!("{value},{}", path(&files.first))))?;
        tally.record(&format!("a layer that cannot be used: {name}"), reported(&done, part));
    }
    let traced = bench.private_folder("traced")?;
    let fabric = bench.over(DataPath::Default)?;
    let job = fabric.over.own_job(&files.program).env(SETTING, "trace");
    let job = job.env("FERROVERBS_TRACE", format!("dir={}", traced.display()));
    let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
    tally.record("a layer that wants them has the pointers of QPs and CQs", traced_all(&done));
    connections(bench, tally)
}

/// The chain of librdmacm.
fn connections(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let layer = |name: &str, more: &[&str]| {
        let define = format!("-DNAME=\"{name}\"");
        let options: Vec<&str> =
            ["-shared", &define].into_iter().chain(more.iter().copied()).collect();
        compile(bench, "cm_counting.c", &format!("{name}.so"), &options)
    };
    let program = compile(bench, "ids.c", "ids", &[])?;
    let first = layer("cm-first", &[])?;
    let second = layer("cm-second", &[])?;
    let newer = layer("cm-newer", &["-DNEWER"])?;
    let replaced = |file: &str| {
        let lines = ["create_id", "destroy_event_channel"].map(|name| format!("{name} {file}\n"));
        lines.concat() + "39 of 41 are librdmacm's own\n"
    };
    let two = "cm-second: 2 ids\ncm-first: 2 ids\n".to_owned() + &replaced("cm-first.so");
    let one = "cm-second: 2 ids\n".to_owned() + &replaced("cm-second.so");
    for (name, layers, stdout, stderr) in [
        ("none", vec![], "41 of 41 are librdmacm's own\n", ""),
        ("two", vec![&first, &second], &two, ""),
        ("one that is newer", vec![&newer, &second], &one, "cm-newer.so"),
    ] {
        let fabric = bench.over(DataPath::Default)?;
        let names: Vec<_> = layers.iter().map(|file| file.to_string_lossy()).collect();
        let job = fabric.over.own_job(&program).env(SETTING, names.join(","));
        let done = job.dir(&fabric.work).run(&bench.scratch, LIMIT)?;
        let right = done.ok()
            && done.stdout == stdout
            && done.stderr.lines().count() == usize::from(!stderr.is_empty())
            && done.stderr.contains(stderr);
        let result = right.then_some(()).ok_or_else(|| done.report("the program"));
        tally.record(&format!("layers of librdmacm: {name}"), result);
    }
    Ok(())
}

struct Files {
    program: PathBuf,
    first: PathBuf,
    second: PathBuf,
    wrong: PathBuf,
}

impl Files {
    fn compile(bench: &Bench) -> crate::Result<Self> {
        let compile =
            |source: &str, output: &str, options: &[&str]| compile(bench, source, output, options);
        let layer = |name: &str, more: &[&str]| {
            let define = format!("-DNAME=\"{name}\"");
            let options: Vec<&str> =
                ["-shared", &define].into_iter().chain(more.iter().copied()).collect();
            compile("counting.c", &format!("{name}.so"), &options)
        };
        Ok(Self {
            program: compile("pointers.c", "pointers", &[])?,
            first: layer("first", &[])?,
            second: layer("second", &["-DOLDER"])?,
            wrong: layer("wrong", &["-DWRONG_GENERATION"])?,
        })
    }
}

/// The file that each line of the program's output names.
fn owners(done: &Finished) -> Vec<(&str, &str)> {
    done.stdout
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| !name.ends_with(':'))
        .collect()
}

fn bare_is_bare(done: &Finished) -> Result<(), String> {
    let owners = owners(done);
    let all = owners.len() == POINTERS && owners.iter().all(|(_, file)| *file == PROVIDER);
    if done.ok() && done.stderr.is_empty() && all {
        Ok(())
    } else {
        Err(done.report("the program"))
    }
}

fn chained(done: &Finished) -> Result<(), String> {
    let right = |(name, file): &(&str, &str)| match *name {
        "post_send" | "poll_cq" => *file == "first.so",
        _ => *file == PROVIDER,
    };
    let owners = owners(done);
    // What is nearest to the provider closes first.
    let printed = done
        .stdout
        .ends_with("second: 1 posted, 1 polled, 0 awaited\nfirst: 1 posted, 1 polled, 1 awaited\n");
    let all = owners.len() == POINTERS && owners.iter().all(right);
    if done.ok() && done.stderr.is_empty() && all && printed {
        Ok(())
    } else {
        Err(done.report("the program"))
    }
}

/// Functions that post, build and poll belong to the layer; functions without use for the layer
/// stay the provider's.
fn traced_all(done: &Finished) -> Result<(), String> {
    let owner = |name: &str| {
        let of = |at: &str| at.starts_with("read_") || at == "end_poll";
        if of(name) { PROVIDER } else { "libferroverbs-layer-trace.so" }
    };
    let owners = owners(done);
    let all = owners.len() == POINTERS && owners.iter().all(|(name, file)| *file == owner(name));
    if done.ok() && done.stderr.is_empty() && all {
        Ok(())
    } else {
        Err(done.report("the program"))
    }
}

/// `ibv_get_cq_event` failed, and the rest works.
fn interrupted(done: &Finished) -> Result<(), String> {
    let one = done.stderr == "ibv_get_cq_event: Interrupted system call\n";
    let rest = done.stdout.ends_with("first: 1 posted, 1 polled, 1 awaited\n");
    if done.ok() && one && rest { Ok(()) } else { Err(done.report("the program")) }
}

/// One line with the error, and the rest works.
fn reported(done: &Finished, part: &str) -> Result<(), String> {
    let one = done.stderr.lines().count() == 1
        && done.stderr.contains(part)
        && done.stderr.contains(SETTING);
    let rest = done.stdout.ends_with("first: 1 posted, 1 polled, 1 awaited\n");
    if done.ok() && one && rest { Ok(()) } else { Err(done.report("the program")) }
}

/// Compiles c-tests/layers/`source`, a layer or a program for tests of one; where it is then.
pub(super) fn compile(
    bench: &Bench,
    source: &str,
    output: &str,
    options: &[&str],
) -> crate::Result<PathBuf> {
    let prefix = bench.prefix()?;
    let file = bench.scratch.folder("layers", 0o755)?.join(output);
    let done = Job::new("gcc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-I"])
        .arg(prefix.join("include"))
        .args(options)
        .arg(bench.paths.root.join("c-tests/layers").join(source))
        .arg("-o")
        .arg(&file)
        .arg("-L")
        .arg(prefix.join("lib"))
        .args(["-Wl,--as-needed", "-lrdmacm", "-libverbs"])
        .run(&bench.scratch, LIMIT)?;
    if done.ok() { Ok(file) } else { Err(done.report("the compiler")) }
}
