//! What a person is told when something is missing: one line that names it; and nothing at all when
//! nothing is wrong.

use crate::{Bench, Checks, Load, Tally};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::{DataPath, LaunchSettings};
use xtask::process::{self, Finished, Job};
use xtask::scratch;

const LIMIT: Duration = Duration::from_secs(300);

const PLUGIN: &str = "lib/libibverbs/libsoft-rdmav65.so";
const CONFIG: &str = "etc/libibverbs.d";

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One).many("all", all);
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let whole = bench.prefix()?.to_path_buf();
    let fabric = bench.private_folder("fabric")?;
    let job = |prefix: &Path, fabric: &Path| {
        let over = LaunchSettings::new(prefix, &bench.paths.target).fabric(fabric).user(bench.user);
        over.job("ibv_devinfo").dir(bench.scratch.path())
    };
    let devices = |prefix: &Path, fabric: &Path| job(prefix, fabric).run(&bench.scratch, LIMIT);
    // A tree of its own for each damage.
    let damaged = |damage: &dyn Fn(&Path) -> std::io::Result<()>| -> crate::Result<PathBuf> {
        let prefix = bench.scratch.folder("tree", 0o755)?;
        scratch::copy_tree(&whole, &prefix)?;
        damage(&prefix).map_err(|e| format!("cannot damage {}: {e}", prefix.display()))?;
        Ok(prefix)
    };

    let done = devices(&whole, &fabric)?;
    let quiet = done.ok() && done.stderr.is_empty();
    tally.record("nothing is wrong", quiet.then_some(()).ok_or_else(|| done.report("ibv_devinfo")));

    for bad in ["66", "newest\nand best"] {
        let reported = job(&whole, &fabric).env("FERROVERBS_PROVIDER_RELEASE", bad);
        let done = reported.run(&bench.scratch, LIMIT)?;
        let named = one_line(&done, Path::new("FERROVERBS_PROVIDER_RELEASE"));
        tally.record(&format!("a release that never was: {bad:?}"), named);
    }

    for (variable, bad) in [
        ("FERROVERBS_SOFT_FAULTS", "drp nth=3"),
        ("FERROVERBS_SOFT_FAULTS", "drop nth=3; delay"),
        ("FERROVERBS_SOFT_CONTROL", "/"),
        ("FERROVERBS_SOFT_CONTROL", "/not/there/control"),
    ] {
        let done = job(&whole, &fabric).env(variable, bad).run(&bench.scratch, LIMIT)?;
        let shown = done.ok() && done.stdout.contains("PORT_ACTIVE");
        let went_on =
            if shown { Ok(()) } else { Err(format!("it does not go on\n{}", done.report("it"))) };
        let result = one_line(&done, Path::new(variable)).and(went_on);
        tally.record(&format!("{variable}={bad}"), result);
        let over =
            LaunchSettings::new(&whole, &bench.paths.target).fabric(&fabric).user(bench.user);
        let unheard = over.job("sh").dir(bench.scratch.path()).env(variable, bad);
        let done = unheard.args(["-c", "ibv_devinfo 2>/dev/full"]).run(&bench.scratch, LIMIT)?;
        let shown = done.ok() && done.stdout.contains("PORT_ACTIVE");
        let result = shown.then_some(()).ok_or_else(|| done.report("it"));
        tally.record(&format!("{variable}={bad}, told where nothing can be written"), result);
    }

    let prefix =
        damaged(&|p| fs::OpenOptions::new().write(true).open(p.join(PLUGIN))?.set_len(1000))?;
    let done = devices(&prefix, &fabric)?;
    tally.record("a truncated plugin", one_line(&done, &prefix.join(PLUGIN)));

    let prefix = damaged(&|p| fs::write(p.join(PLUGIN), "this is no library\n"))?;
    let done = devices(&prefix, &fabric)?;
    tally.record("a plugin that is no library", one_line(&done, &prefix.join(PLUGIN)));

    let prefix = damaged(&|p| fs::remove_file(p.join(PLUGIN)))?;
    let done = devices(&prefix, &fabric)?;
    tally.record("a plugin that is not there", one_line(&done, &prefix.join("lib/libibverbs")));

    let prefix = damaged(&|p| fs::remove_dir_all(p.join(CONFIG)))?;
    // In a job of thousands of processes an empty device list may be normal: the reason is printed
    // on terminals and on request.
    let requested = job(&prefix, &fabric).env("FERROVERBS_VERBOSE", "1");
    let done = requested.run(&bench.scratch, LIMIT)?;
    tally.record("no configuration, reason asked for", one_line(&done, &prefix.join(CONFIG)));
    let done = devices(&prefix, &fabric)?;
    let quiet = done.stderr.lines().all(is_the_programs);
    let result = quiet.then_some(()).ok_or_else(|| done.report("ibv_devinfo"));
    tally.record("no configuration, reason not asked for", result);

    let file = bench.private_folder("no-folder")?.join("file");
    fs::write(&file, "").map_err(|e| e.to_string())?;
    let done = devices(&whole, &file)?;
    tally.record("a fabric directory that is a file", one_line(&done, &file));

    let absent = bench.scratch.path().join("not/there");
    let done = devices(&whole, &absent)?;
    tally.record("a fabric directory that cannot be made", one_line(&done, &absent));

    // In a container whose filter refuses cross-memory attach, the doctor reports the refusal and
    // its cost.
    for (path, is_refused) in [(DataPath::Default, false), (DataPath::Refused, true)] {
        let over = bench.over(path)?.over;
        let done =
            over.job(whole.join("bin/ferroverbs")).arg("doctor").run(&bench.scratch, LIMIT)?;
        let line =
            done.stdout.lines().find(|line| line.split_whitespace().nth(1) == Some("ptrace"));
        let reported = line.is_some_and(|line| {
            // Yama may refuse cross-memory attach too, with other words.
            line.contains("is refused") == is_refused || line.contains("ptrace scope 2")
        });
        let costs = !is_refused || done.stdout.contains("FERROVERBS_SOFT_CMA=off");
        let result = (reported && costs).then_some(()).ok_or_else(|| done.report("the doctor"));
        tally.record(&format!("the doctor on cross-memory attach: {}", path.name()), result);
    }

    changed_user(bench, tally, &whole)?;

    let others = bench.scratch.folder("others", 0o777)?;
    scratch::set_mode(&others, 0o777)?;
    let done = devices(&whole, &others)?;
    tally.record("a fabric directory that others can write", one_line(&done, &others));
    Ok(())
}

/// A process that changed its user after opening the device does not reach processes of the former
/// user.
fn changed_user(bench: &Bench, tally: &mut Tally, prefix: &Path) -> crate::Result<()> {
    let name = "a process that changed its user after opening the device";
    if !process::is_root() {
        tally.skip(name, "only root can change the user of a process");
        return Ok(());
    }
    let program = bench.scratch.path().join("changed_user");
    let compiled = Job::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(bench.paths.root.join("c-tests/tools/changed_user.c"))
        .arg("-libverbs")
        .run(&bench.scratch, LIMIT)?;
    if !compiled.ok() {
        return Err(compiled.report("cc"));
    }
    // The folder of root's processes, which the other user cannot enter.
    let fabric = bench.scratch.folder("of-root", 0o700)?;
    let over = LaunchSettings::new(prefix, &bench.paths.target).fabric(&fabric);
    let done = over.job(&program).run(&bench.scratch, LIMIT)?;
    let reported = done.stderr.contains("opened the device as user 0 and is user 65534 now");
    tally.record(
        name,
        (reported && done.ok()).then_some(()).ok_or_else(|| done.report("changed_user")),
    );
    Ok(())
}

/// One line of the library that names `culprit`; the program may print further lines.
fn one_line(done: &Finished, culprit: &Path) -> Result<(), String> {
    let lines: Vec<_> = done.stderr.lines().filter(|l| !is_the_programs(l)).collect();
    let named = lines.first().is_some_and(|l| l.contains(&*culprit.to_string_lossy()));
    if lines.len() == 1 && named {
        return Ok(());
    }
    let report = done.report("ibv_devinfo");
    Err(format!("instead of one line that names {}:\n{report}", culprit.display()))
}

/// ibv_devinfo's own words.
fn is_the_programs(line: &str) -> bool {
    ["Failed to get IB devices list", "No IB devices found", "Failed to open device"]
        .iter()
        .any(|own| line.starts_with(own))
}
