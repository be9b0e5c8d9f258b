//! The staged tree as a development package: what pkg-config says is enough to compile, link and run a program.

use super::{Bench, Tally};
use crate::over::DataPath;
use crate::process::Job;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let prefix = bench.prefix()?;
    let asked = |what: &[&str]| {
        let done = Job::new("pkg-config")
            .args(what)
            .arg("libibverbs")
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .run(&bench.scratch, LIMIT)?;
        if done.ok() { Ok(done.stdout.trim().to_owned()) } else { Err(done.report("pkg-config")) }
    };
    let version = asked(&["--modversion"]).and_then(|version| {
        let expected = "1.18.65.0";
        if version == expected { Ok(()) } else { Err(format!("{version}, should be {expected}")) }
    });
    tally.record("version of the interface", version);
    let at_least = asked(&["--exists", "--print-errors", "--atleast-version=1.14"]).map(drop);
    tally.record("newer than a program asks for", at_least);

    for (language, source) in
        [("c", "c-tests/inlines/device.c"), ("c++", "c-tests/inlines/device.c")]
    {
        let exe = bench.scratch.fresh("device");
        let result = asked(&["--cflags", "--libs"]).and_then(|flags| {
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
                fabric.over.job(&exe).dir(bench.scratch.path()).run(&bench.scratch, LIMIT)?;
            if !done.ok() || !done.stderr.is_empty() {
                return Err(done.report("the program"));
            }
            bench.nothing_left(&fabric)
        });
        tally.record(&format!("a program in {language}, by pkg-config alone"), result);
    }
    Ok(())
}
