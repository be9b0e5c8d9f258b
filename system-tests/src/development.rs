//! The staged tree as a development package: the flags of pkg-config suffice to compile, link and
//! run a program.

use crate::{Bench, Checks, Load, Tally};
use std::path::Path;
use std::time::Duration;
use xtask::launch::{DataPath, LaunchSettings};
use xtask::process::{self, Job};

const LIMIT: Duration = Duration::from_secs(300);

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One).many("all", all);
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let prefix = bench.prefix()?;
    let of = |package: &'static str, what: &[&str]| {
        let done = Job::new("pkg-config")
            .args(what)
            .args(package.split(' '))
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .run(&bench.scratch, LIMIT)?;
        if done.ok() { Ok(done.stdout.trim().to_owned()) } else { Err(done.report("pkg-config")) }
    };
    let requested = |what: &[&str]| of("libibverbs", what);
    let version = requested(&["--modversion"]).and_then(|version| {
        let expected = "1.18.65.0";
        if version == expected { Ok(()) } else { Err(format!("{version}, should be {expected}")) }
    });
    tally.record("version of the interface", version);
    let version = of("librdmacm", &["--modversion"]).and_then(|version| {
        let expected = "1.5.65.0";
        if version == expected { Ok(()) } else { Err(format!("{version}, should be {expected}")) }
    });
    tally.record("version of librdmacm's", version);
    let at_least = requested(&["--exists", "--print-errors", "--atleast-version=1.14"]).map(drop);
    tally.record("newer than a program asks for", at_least);

    let programs = [
        ("c", "libibverbs", "c-tests/inlines/device.c"),
        ("c++", "libibverbs", "c-tests/inlines/device.c"),
        ("c", "librdmacm libibverbs", "c-tests/inlines/connection.c"),
    ];
    for (language, package, source) in programs {
        let exe = bench.scratch.fresh("device");
        let result = of(package, &["--cflags", "--libs"]).and_then(|flags| {
            let compile = |output: &[&str]| {
                Job::new("gcc")
                    .arg(format!("-x{language}"))
                    .args(["-DRELEASE=65", "-Wall", "-Wextra", "-Werror"])
                    .arg(bench.paths.root.join(source))
                    .arg("-xnone")
                    .args(flags.split_whitespace())
                    .args(output)
            };
            // The headers are those of the tree, not the system's.
            let used = compile(&["-M"]).run(&bench.scratch, LIMIT)?;
            if !used.stdout.contains("stage/")
                && !used.stdout.contains(&prefix.display().to_string())
            {
                return Err(format!("the headers come from elsewhere: {}", used.stdout));
            }
            let done = compile(&["-o"]).arg(&exe).run(&bench.scratch, LIMIT)?;
            if !done.ok() {
                return Err(done.report("the compiler"));
            }
            let fabric = bench.over(DataPath::Default)?;
            let done =
                fabric.over.own_job(&exe).dir(bench.scratch.path()).run(&bench.scratch, LIMIT)?;
            if !done.ok() || !done.stderr.is_empty() {
                return Err(done.report("the program"));
            }
            bench.nothing_left(&fabric)
        });
        let name = format!("a program in {language} for {package}, by pkg-config alone");
        tally.record(&name, result);
    }
    tally.record("a plugin in C, by the header for plugins", plugin(bench));
    tally.record("a plugin in C that plays the kernel for libefa", vendor(bench));
    let name = "a provider that only the dynamic loader finds";
    if process::is_root() {
        tally.record(name, provider_of_loader(bench));
    } else {
        tally.skip(name, "only root can hide the provider of the system");
    }
    tally.record("what libmlx5 writes and reads", crate::libmlx5::formats(bench));
    Ok(())
}

/// Compiles a plugin or a program of c-tests/plugins by the installed headers.
pub(super) fn compile(
    bench: &Bench,
    folder: &Path,
    name: &str,
    output: &str,
    options: &[&str],
) -> Result<(), String> {
    let prefix = bench.prefix()?;
    let done = Job::new("gcc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-I"])
        .arg(prefix.join("include"))
        .args(options)
        .arg(bench.paths.root.join(format!("c-tests/plugins/{name}.c")))
        .arg("-o")
        .arg(folder.join(output))
        .arg("-L")
        .arg(prefix.join("lib"))
        .arg("-libverbs")
        .run(&bench.scratch, LIMIT)?;
    if done.ok() { Ok(()) } else { Err(done.report("the compiler")) }
}

/// Opens a device that the system's libefa serves and a plugin answers for. Then the plugin names a
/// provider that does not exist.
fn vendor(bench: &Bench) -> Result<(), String> {
    let folder = bench.scratch.folder("vendor", 0o755)?;
    let plugin = folder.join("libvendor-rdmav65.so");
    compile(bench, &folder, "vendor", "libvendor-rdmav65.so", &["-shared"])?;
    compile(bench, &folder, "vendor-user", "vendor-user", &[])?;
    let settings = bench.scratch.folder("vendor-settings", 0o755)?;
    let config = settings.join("vendor.driver");
    std::fs::write(&config, "driver vendor\n").map_err(|e| format!("{}: {e}", config.display()))?;
    let fabric = bench.over(DataPath::Default)?;
    let run = |provider: Option<&str>| {
        let mut job = fabric.over.job(folder.join("vendor-user"));
        job = job.arg(&plugin).env("FERROVERBS_CONFIG_DIR", &settings);
        job = job.env("FERROVERBS_PROVIDER_DIR", &folder).dir(bench.scratch.path());
        if let Some(provider) = provider {
            job = job.env("VENDOR_PROVIDER", provider);
        }
        job.run(&bench.scratch, LIMIT)
    };
    let done = run(None)?;
    let round = "PD 5, channel 0, errno is EOPNOTSUPP: 1, freed: 0 0\n";
    let expected = format!(
        "1 devices\nvendor0: type 7, transport 4, /nowhere/infiniband/vendor0, 77 QPs\n{round}\
         {round}opened 2, closed 2, hooked 2, commands: 1\n"
    );
    if !done.ok() || !done.stderr.is_empty() || done.stdout != expected {
        return Err(done.report("the program"));
    }
    let done = run(Some("no-such-provider"))?;
    let told = ["libno-such-provider", "the emulated device 'vendor0' is left out"];
    let is_told = told.iter().all(|text| done.stderr.contains(text));
    if done.ok() && is_told && done.stdout.starts_with("0 devices\n") {
        Ok(())
    } else {
        Err(done.report("the program without a provider"))
    }
}

/// `ferroverbs run --emulate` takes a provider that only the dynamic loader finds, and names the
/// package of a provider that is missing.
fn provider_of_loader(bench: &Bench) -> Result<(), String> {
    let text = "
        folder=$(dirname \"$(ls /usr/lib/*/libibverbs/libefa-rdmav*.so | head -n 1)\")
        mkdir providers; cp \"$folder\"/libefa-rdmav*.so providers
        mount -t tmpfs none \"$folder\"
        status=0; \"$1\" run --no-tree --emulate efa -- true 2>told || status=$?
        test $status = 2; cat told
        LD_LIBRARY_PATH=$PWD/providers \"$1\" run --no-tree --emulate efa -- ibv_devices";
    let fabric = bench.scratch.folder("fabric", 0o700)?;
    // As root, who may mount.
    let launch = LaunchSettings::new(bench.prefix()?, &bench.paths.target).fabric(&fabric);
    let job = launch.job("unshare").args(["--mount", "sh", "-ec", text, "sh"]);
    let job = job.arg(bench.prefix()?.join("bin/ferroverbs"));
    let done = job.dir(&bench.scratch.folder("provider", 0o755)?).run(&bench.scratch, LIMIT)?;
    done.expect(&["FERROVERBS_EMULATE=efa: there is no provider", "ibverbs-providers", "efa_0"])
}

/// Compiles the example of a plugin, in a folder of its own, and lists devices with it.
fn plugin(bench: &Bench) -> Result<(), String> {
    let folder = bench.scratch.folder("plugin", 0o755)?;
    compile(bench, &folder, "example", "libexample-rdmav65.so", &["-shared"])?;
    compile(bench, &folder, "user", "user", &[])?;
    let settings = bench.scratch.folder("plugin-settings", 0o755)?;
    let config = settings.join("example.driver");
    std::fs::write(&config, "driver example\n")
        .map_err(|e| format!("{}: {e}", config.display()))?;
    // It asks for nothing but the newest generation.
    let done = Job::new("readelf")
        .args(["--wide", "--version-info"])
        .arg(folder.join("libexample-rdmav65.so"))
        .run(&bench.scratch, LIMIT)?;
    if !done.stdout.contains("IBVERBS_PRIVATE_65") || done.stdout.contains("IBVERBS_PRIVATE_34") {
        return Err(done.report("readelf"));
    }
    let fabric = bench.over(DataPath::Default)?;
    let done = fabric
        .over
        .job(folder.join("user"))
        .env("FERROVERBS_CONFIG_DIR", &settings)
        .env("FERROVERBS_PROVIDER_DIR", &folder)
        .dir(bench.scratch.path())
        .run(&bench.scratch, LIMIT)?;
    let expected =
        "example0: InfiniBand channel adapter, 4321 QPs\nPD: 0, errno is EOPNOTSUPP: 1\n";
    if done.ok() && done.stderr.is_empty() && done.stdout == expected {
        Ok(())
    } else {
        Err(done.report("the program"))
    }
}
