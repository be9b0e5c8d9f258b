//! Bad input from outside the application: damaged plugins, configuration, sysfs and netlink. In
//! every case a program soon gets an empty list or the intact device, and its user gets at most one
//! line. (`c-tests/tests/kernel_bytes` covers wrong answers of kernel commands.)

use crate::{Bench, Checks, Load, Tally};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::launch::LaunchSettings;
use xtask::process::{Finished, Job};
use xtask::scratch;

/// No test here waits; the limit detects a hang.
const LIMIT: Duration = Duration::from_secs(300);
const PLUGIN: &str = "lib/libibverbs/libsoft-rdmav65.so";
const CONFIG: &str = "etc/libibverbs.d";
/// Seeds of netlink nonsense.
const SEEDS: u32 = 150;

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One);
    let all: [(&str, GroupPart); 4] = [
        ("plugins", plugins),
        ("configurations", configurations),
        ("sysfs", sysfs),
        ("netlink", netlink),
    ];
    for (name, part) in all {
        checks.many(name, move |bench, tally| {
            part(&DamagedTree { bench, fabric: bench.private_folder("fabric")? }, tally)
        });
    }
}

type GroupPart = fn(&DamagedTree<'_>, &mut Tally) -> crate::Result<()>;

struct DamagedTree<'a> {
    bench: &'a Bench,
    fabric: PathBuf,
}

impl DamagedTree<'_> {
    /// `ibv_devinfo` over a tree.
    fn job(&self, prefix: &Path) -> Job {
        let over = LaunchSettings::new(prefix, &self.bench.paths.target)
            .fabric(&self.fabric)
            .user(self.bench.user);
        over.job("ibv_devinfo").dir(self.bench.scratch.path())
    }

    fn run(&self, job: &Job) -> crate::Result<Finished> {
        job.run(&self.bench.scratch, LIMIT)
    }

    /// A tree of its own for each damage.
    fn damaged(&self, damage: &dyn Fn(&Path) -> io::Result<()>) -> crate::Result<PathBuf> {
        let prefix = self.bench.scratch.folder("tree", 0o755)?;
        scratch::copy_tree(self.bench.prefix()?, &prefix)?;
        damage(&prefix).map_err(|e| format!("cannot damage {}: {e}", prefix.display()))?;
        Ok(prefix)
    }
}

/// A bad plugin beside the good one: the good device is listed, and one line names the bad plugin.
fn plugins(here: &DamagedTree<'_>, tally: &mut Tally) -> crate::Result<()> {
    let patched = |at: usize, bytes: &'static [u8]| {
        move |good: &Path, bad: &Path| {
            let mut library = fs::read(good)?;
            if let Some(place) = library.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
            fs::write(bad, library)
        }
    };
    type Damage = Box<dyn Fn(&Path, &Path) -> io::Result<()>>;
    let compiled = |source: &'static str| -> Damage {
        Box::new(move |_, bad| {
            ferroverbs_c_tests::compile_plugin(source, bad).map_err(io::Error::other)?;
            fs::remove_file(bad.with_extension("c"))
        })
    };
    let cases: Vec<(&str, Damage)> = vec![
        ("empty", Box::new(|_, bad| fs::write(bad, ""))),
        ("a folder", Box::new(|_, bad| fs::create_dir(bad))),
        ("a link to nowhere", Box::new(|_, bad| symlink("nowhere", bad))),
        ("a link to itself", Box::new(|_, bad| symlink(bad, bad))),
        ("of another machine", Box::new(patched(18, &[183, 0]))),
        ("of 32 bits", Box::new(patched(4, &[1]))),
        ("with program headers beyond its end", Box::new(patched(32, &[0xff; 8]))),
        ("with headers of no size", Box::new(patched(54, &[0, 0]))),
        (
            "of a generation that is not known",
            compiled(
                "extern void verbs_register_driver_99(const void *);\n\
                 static __attribute__((constructor)) void begin(void) { verbs_register_driver_99(0); }\n",
            ),
        ),
        (
            "in need of a function that is nowhere",
            compiled("extern int nowhere(void); int f(void) { return nowhere(); }\n"),
        ),
    ];
    for (name, damage) in cases {
        here.bench.step(&format!("bad-input: a plugin that is {name}"));
        let prefix = here.damaged(&|p| {
            let bad = p.join("lib/libibverbs/libbad-rdmav65.so");
            damage(&p.join(PLUGIN), &bad)?;
            fs::write(p.join(CONFIG).join("bad.driver"), "driver bad\n")
        })?;
        let done = here.run(&here.job(&prefix))?;
        tally.record(&format!("plugin {name}"), told(&done, "libbad-rdmav"));
    }
    // A plugin that registers nothing is useless but harmless.
    let prefix = here.damaged(&|p| {
        let bad = p.join("lib/libibverbs/libbad-rdmav65.so");
        ferroverbs_c_tests::compile_plugin("int nothing;\n", &bad).map_err(io::Error::other)?;
        fs::write(p.join(CONFIG).join("bad.driver"), "driver bad\n")
    })?;
    let done = here.run(&here.job(&prefix))?;
    tally.record("plugin that registers nothing", lists_soft(&done));
    Ok(())
}

/// A file by the side of the good one.
fn configurations(here: &DamagedTree<'_>, tally: &mut Tally) -> crate::Result<()> {
    let many = (0..3000).map(|n| format!("driver no{n}\n")).collect::<String>();
    let cases: [(&str, Vec<u8>); 6] = [
        ("directives without end", many.into_bytes()),
        ("one line without end", b"driver ".iter().copied().chain([b'x'; 60_000]).collect()),
        ("a line of nothing but words", "x ".repeat(30_000).into_bytes()),
        ("bytes of no text", (0..=255).cycle().take(50_000).collect()),
        ("a file too long to be meant", vec![b'\n'; 100_000]),
        (
            "names that leave the folder",
            b"driver ../../../../etc/passwd\ndriver /dev/zero\n".to_vec(),
        ),
    ];
    for (name, text) in cases {
        here.bench.step(&format!("bad-input: {name}"));
        let prefix = here.damaged(&|p| fs::write(p.join(CONFIG).join("bad.driver"), &text))?;
        let done = here.run(&here.job(&prefix))?;
        let lines = done.stderr.lines().count();
        // Each configured driver that can't be had is worth a line, but not thousands.
        let short = lines <= 25 && done.stderr.len() < 64 * 1024;
        let result = lists_soft(&done)
            .and_then(|()| short.then_some(()).ok_or_else(|| format!("{lines} lines on stderr")));
        tally.record(&format!("configuration: {name}"), result);
    }
    Ok(())
}

/// What a file of sysfs may hold instead.
fn nonsense() -> Vec<(&'static str, Option<Vec<u8>>)> {
    vec![
        ("missing", None),
        ("empty", Some(Vec::new())),
        ("huge", Some(vec![b'7'; 1 << 20])),
        ("binary", Some((0..=255).cycle().take(4096).collect())),
        ("negative", Some(b"-1\n".to_vec())),
        ("a number too large", Some(b"99999999999999999999:99999999999999999999\n".to_vec())),
        ("a path", Some(b"../../../../../etc/passwd\n".to_vec())),
        ("without its newline", Some(b"6".to_vec())),
    ]
}

/// A tree with one device, and one damaged file at a time.
fn sysfs(here: &DamagedTree<'_>, tally: &mut Tally) -> crate::Result<()> {
    let files = [
        ("class/infiniband_verbs/abi_version", "6\n"),
        ("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"),
        ("class/infiniband_verbs/uverbs0/dev", "231:192\n"),
        ("class/infiniband_verbs/uverbs0/abi_version", "1\n"),
        ("class/infiniband_verbs/uverbs0/device/modalias", "pci:v000015B3d00001017sv\n"),
        ("class/infiniband/mlx5_0/node_type", "1: CA\n"),
        ("class/infiniband/mlx5_0/node_guid", "0002:c903:00a1:b2c3\n"),
        ("class/infiniband/mlx5_0/fw_ver", "16.35\n"),
    ];
    let prefix = here.bench.prefix()?.to_path_buf();
    for (spoiled, _) in files {
        for (what, content) in nonsense() {
            let root = here.bench.scratch.folder("sys", 0o755)?;
            for (file, good) in files {
                let path = root.join(file);
                let parent = path.parent().unwrap_or(&root);
                let written = fs::create_dir_all(parent).and_then(|()| match &content {
                    Some(content) if file == spoiled => fs::write(&path, content),
                    None if file == spoiled => Ok(()),
                    _ => fs::write(&path, good),
                });
                written.map_err(|e| format!("{}: {e}", path.display()))?;
            }
            let name = format!("sysfs: {spoiled} is {what}");
            here.bench.step(&format!("bad-input: {name}"));
            let job = here.job(&prefix).env("SYSFS_PATH", &root).env("FERROVERBS_SOFT", "on");
            let done = here.run(&job)?;
            tally.record(&name, lists_soft(&done).and_then(|()| few_lines(&done)));
        }
    }
    Ok(())
}

/// Devices announced by netlink.
fn netlink(here: &DamagedTree<'_>, tally: &mut Tally) -> crate::Result<()> {
    let preload = ferroverbs_c_tests::compile_nonsense_netlink(here.bench.scratch.path())
        .map_err(|e| e.to_string())?;
    let prefix = here.bench.prefix()?.to_path_buf();
    let mut worst = Ok(());
    here.bench.step(&format!("bad-input: netlink nonsense, {SEEDS} seeds"));
    for seed in 1..=SEEDS {
        let job = here
            .job(&prefix)
            .env("LD_PRELOAD", &preload)
            .env("NONSENSE", seed.to_string())
            .env("FERROVERBS_SOFT", "on");
        let done = here.run(&job)?;
        worst = worst.and(lists_soft(&done).and_then(|()| few_lines(&done)));
    }
    tally.record("netlink nonsense", worst);
    Ok(())
}

/// One line of the library that names `culprit`, and the good device.
fn told(done: &Finished, culprit: &str) -> Result<(), String> {
    let named = done.stderr.lines().next().is_some_and(|line| line.contains(culprit));
    if named && done.stderr.lines().count() == 1 {
        return lists_soft(done);
    }
    Err(format!("instead of one line that names {culprit}:\n{}", done.report("ibv_devinfo")))
}

fn lists_soft(done: &Finished) -> Result<(), String> {
    let listed = done.ok() && done.stdout.contains("soft0");
    listed.then_some(()).ok_or_else(|| done.report("ibv_devinfo"))
}

fn few_lines(done: &Finished) -> Result<(), String> {
    let few = done.stderr.lines().count() <= 3 && done.stderr.len() < 2000;
    few.then_some(()).ok_or_else(|| format!("too much said:\n{}", done.report("ibv_devinfo")))
}
