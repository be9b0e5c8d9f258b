//! Runs the examples in the debugging pages of docs/guide: each command in a block marked `console`
//! must print the lines below it. A line `...` stands for any number of lines. The comparison
//! ignores folders and numbers that change between runs.

use super::validate::{self, Files};
use crate::{Bench, Checks, Fabric, Load, Tally};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xtask::launch::DataPath;
use xtask::process::{Job, PAUSE};

const LIMIT: Duration = Duration::from_secs(120);
const PAGES: [&str; 3] =
    ["docs/guide/debugging.md", "docs/guide/debugging-errors.md", "docs/guide/debugging-tools.md"];
/// Where the page has its files, and the library.
const HOME: &str = "/home/me";
const LIBRARY: &str = "/usr/lib/ferroverbs/lib";
/// Fewer blocks, and the page is not read any more.
const LEAST: usize = 12;
/// What not every machine has.
const PROGRAMS: [&str; 3] = ["python3", "tshark", "valgrind"];

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One).many("all", all);
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let files = validate::compile(bench)?;
    let mut text = String::new();
    for page in PAGES {
        let page = fs::read_to_string(bench.paths.root.join(page)).map_err(|e| e.to_string())?;
        text += &page;
    }
    tally.record("the fifteen complaints of the pages are numbered", numbered(&text));
    let blocks = blocks(&text, "console");
    let enough = blocks.len() >= LEAST;
    let all = enough.then_some(()).ok_or_else(|| format!("only {}", blocks.len()));
    tally.record("the pages have examples that can be run", all);
    for block in blocks {
        let steps = steps(&block);
        let Some(name) = steps.iter().map(|step| step.command.as_str()).find(|c| !c.ends_with('&'))
        else {
            continue;
        };
        bench.step(name);
        let place = ExampleSetup::new(bench, &files, &text)?;
        let is_there = |program: &str| {
            let requested = place.job(&format!("command -v {program}")).run(&bench.scratch, LIMIT);
            requested.is_ok_and(|done| done.ok())
        };
        let named = |program: &&&str| steps.iter().any(|step| step.command.contains(**program));
        if let Some(lacks) = PROGRAMS.iter().filter(named).find(|program| !is_there(program)) {
            tally.skip(name, &format!("there is no {lacks}"));
            continue;
        }
        if name.contains("ferroverbs cluster") {
            let done = place.job("ferroverbs cluster 1 -- true").run(&bench.scratch, LIMIT)?;
            if !done.ok() {
                tally.skip(name, &format!("no host can be made: {}", done.stderr));
                continue;
            }
        }
        tally.record(name, place.run(bench, &steps));
    }
    Ok(())
}

/// `## 1.` to `## 15.`, each with a block of what is printed now.
fn numbered(page: &str) -> Result<(), String> {
    for number in 1..=15 {
        let begin = format!("\n## {number}. ");
        let section = page.split_once(&begin).and_then(|(_, rest)| rest.split("\n## ").next());
        let section = section.ok_or_else(|| format!("there is no {number}"))?;
        if !section.contains("Before") || section.matches("\n```").count() < 2 {
            return Err(format!("{number} has no example of before and now"));
        }
    }
    Ok(())
}

/// Blocks of a page with the mark `mark`.
fn blocks(page: &str, mark: &str) -> Vec<String> {
    let begin = format!("\n```{mark}\n");
    let parts = page.split(&begin).skip(1);
    parts.filter_map(|part| Some(part.split("\n```").next()?.to_owned())).collect()
}

/// A command and its expected output.
struct Step {
    command: String,
    printed: Vec<String>,
}

fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), printed: Vec::new() });
        } else if let Some(step) = steps.last_mut() {
            step.printed.push(line.to_owned());
        }
    }
    steps
}

/// Where a block is run.
struct ExampleSetup {
    fabric: Fabric,
    prefix: PathBuf,
    /// Of ping-pongs.
    port: u16,
}

impl ExampleSetup {
    fn new(bench: &Bench, files: &Files, page: &str) -> crate::Result<Self> {
        let fabric = bench.over(DataPath::Default)?;
        let fail = |e: std::io::Error| format!("cannot lay out the files of {PAGES:?}: {e}");
        for file in [&files.misuse, &files.advice] {
            fs::copy(file, fabric.work.join(file.file_name().unwrap_or_default())).map_err(fail)?;
        }
        let script = blocks(page, "python").into_iter().next().unwrap_or_default();
        fs::write(fabric.work.join("poll.py"), script).map_err(fail)?;
        let old = old_plugin(bench)?;
        for (folder, name) in [("old", "libold-rdmav34.so"), ("older", "libold-rdmav22.so")] {
            let folder = fabric.work.join(folder);
            fs::create_dir_all(&folder).map_err(fail)?;
            fs::copy(&old, folder.join(name)).map_err(fail)?;
        }
        let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = free.map_err(fail)?.port();
        Ok(Self { fabric, prefix: bench.prefix()?.to_path_buf(), port })
    }

    /// The job of a command line, with stderr in its output.
    fn job(&self, command: &str) -> Job {
        let work = self.fabric.work.to_string_lossy();
        let pingpong = format!("_pingpong -p {}", self.port);
        let command = command.replace(HOME, &work).replace("_pingpong", &pingpong);
        let path = format!(
            "{}:{}",
            self.prefix.join("bin").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        // The hosts of the command have their own ports.
        let over = self.fabric.over.clone();
        let over = if command.contains("ferroverbs cluster") { over.wired() } else { over };
        let job = over.own_job("sh").args(["-c", &format!("exec 2>&1; {command}")]);
        job.env("PATH", path).env("HOME", &*work).dir(&self.fabric.work)
    }

    fn run(&self, bench: &Bench, steps: &[Step]) -> Result<(), String> {
        let mut beside = None;
        for step in steps {
            if let Some(command) = step.command.strip_suffix('&') {
                beside = Some(self.job(command).start(&bench.scratch)?);
                continue;
            }
            let begin = Instant::now();
            let done = loop {
                let done = self.job(&step.command).run(&bench.scratch, LIMIT)?;
                // The server may not listen yet.
                let waits = beside.is_some() && done.stdout.contains("Couldn't connect");
                if !waits || begin.elapsed() > LIMIT {
                    break done;
                }
                std::thread::sleep(PAUSE);
            };
            let printed: Vec<_> = done.stdout.lines().map(|line| self.shown(line)).collect();
            if !same(&step.printed, &printed) {
                return Err(format!(
                    "the page:\n{}\nprinted:\n{}",
                    step.printed.join("\n"),
                    printed.join("\n")
                ));
            }
        }
        Ok(())
    }

    /// With the folders that the page has.
    fn shown(&self, line: &str) -> String {
        let lib = self.prefix.join("lib");
        let [work, lib] = [&self.fabric.work, &lib].map(|path| path.to_string_lossy());
        line.replace(&*work, HOME).replace(&*lib, LIBRARY)
    }
}

/// A plugin for a private interface that no release has any more.
fn old_plugin(bench: &Bench) -> crate::Result<PathBuf> {
    let folder = bench.scratch.folder("old-plugin", 0o755)?;
    let file = |name: &str, text: &str| -> crate::Result<PathBuf> {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        Ok(path)
    };
    let register = "verbs_register_driver_22";
    let library = file("library.c", &format!("void {register}(void *ops) {{ (void)ops; }}\n"))?;
    let map = file("library.map", &format!("IBVERBS_PRIVATE_22 {{ global: {register}; }};\n"))?;
    let plugin = file(
        "plugin.c",
        &format!(
            "void {register}(void *);\nstatic long ops[64];\n__attribute__((constructor)) static void init(void) {{ {register}(ops); }}\n"
        ),
    )?;
    let compile = |source: &Path, to: &str, more: &[String]| -> crate::Result<PathBuf> {
        let to = folder.join(to);
        let job = Job::new("gcc").args(["-shared", "-fPIC"]).arg(source).arg("-o").arg(&to);
        let done = job.args(more).run(&bench.scratch, LIMIT)?;
        if done.ok() { Ok(to) } else { Err(done.report("the compiler")) }
    };
    let script = format!("-Wl,--version-script={}", map.display());
    let stub = compile(&library, "stub.so", &["-Wl,-soname,libibverbs.so.1".into(), script])?;
    compile(&plugin, "plugin.so", &[stub.to_string_lossy().into_owned()])
}

/// Whether the output matches the page.
fn same(page: &[String], printed: &[String]) -> bool {
    match page.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line.trim() == "..." => {
            (0..=printed.len()).any(|from| same(rest, printed.get(from..).unwrap_or_default()))
        }
        Some((line, rest)) => printed
            .split_first()
            .is_some_and(|(first, others)| alike(line, first) && same(rest, others)),
    }
}

/// Whether a line is as the page shows it, which may leave its end out.
fn alike(page: &str, printed: &str) -> bool {
    match page.strip_suffix(" ...") {
        Some(begin) => lasting(printed).starts_with(&lasting(begin)),
        None => lasting(page) == lasting(printed),
    }
}

/// A line with `#` for each number that may vary between runs: decimal numbers of three digits and
/// more, hexadecimal numbers of six and more, and numbers beside a dot or colon, as in times and
/// addresses.
fn lasting(line: &str) -> String {
    let mut kept = String::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        if length == 0 {
            kept.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
            continue;
        }
        let (word, after) = rest.split_at(length);
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let is_hex = digits.chars().all(|c| c.is_ascii_hexdigit());
        let has_digit = digits.contains(|c: char| c.is_ascii_digit());
        let beside = |c: Option<char>| matches!(c, Some('.' | ':' | '+'));
        let within = beside(kept.chars().next_back()) || beside(after.chars().next());
        let changes = word.starts_with("0x")
            || digits.len() == 6
            || has_digit && (digits.len() > 2 || within)
            || digits.len() <= 4 && kept.ends_with(':') && !kept.ends_with("::");
        kept.push_str(if is_hex && changes { "#" } else { word });
        rest = after;
    }
    kept.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn three_dots_stand_for_any_number_of_lines_and_nothing_else_does() {
        let printed = lines("a\nb\nc\nd");
        for right in ["a\nb\nc\nd", "...", "a\n...\nd", "...\na\nb\n...\nc\nd\n..."] {
            assert!(same(&lines(right), &printed), "{right}");
        }
        for wrong in ["a\nb\nc", "a\n...\nc", "...\nd\nc\n...", "", "a\nb\nc\nd\ne"] {
            assert!(!same(&lines(wrong), &printed), "{wrong}");
        }
    }

    #[test]
    fn three_dots_at_the_end_of_a_line_stand_for_its_rest() {
        let printed = lines("one; process 4711 has ended\ntwo");
        assert!(same(&lines("one; ...\ntwo"), &printed));
        assert!(!same(&lines("one, ...\ntwo"), &printed));
        assert!(!same(&lines("one; ...\nthree"), &printed));
    }

    #[test]
    fn numbers_of_one_run_are_left_out_and_words_are_not() {
        for (one, other) in [
            ("17:32:49.460978102 22011/22011 f(qp=0x5d47b0)", "07:02:01.1 311/311 f(qp=0x1)"),
            ("QPN RECV 783dac SEND fadedb, PSN 7", "QPN  RECV 1234ab SEND 00000f, PSN 7"),
            ("0.00 seconds = 27363.67 Mbit/sec", "0.01 seconds = 9.1 Mbit/sec"),
            ("fe80::bc1b:7fff on eth0", "fe81::1:beef on eth0"),
            ("at ibv_rc_pingpong+0x3bc1", "at ibv_rc_pingpong+0x3"),
        ] {
            assert_eq!(lasting(one), lasting(other));
        }
        for (one, other) in [
            ("status 10", "status 12"),
            ("SEND failed", "WRITE failed"),
            ("wr_id 0x7 on eth0", "wr_id 0x7 on eth1"),
            ("use GID index 1", "use GID index 2"),
        ] {
            assert_ne!(lasting(one), lasting(other));
        }
    }

    #[test]
    fn commands_have_what_stands_below_them() {
        let page = "x\n```console\n$ a &\n$ b\n1\n\n2\n```\n```\n$ c\n```\n";
        let found = blocks(page, "console");
        assert_eq!(found.len(), 1);
        let steps = steps(&found[0]);
        assert_eq!((steps[0].command.as_str(), steps[0].printed.len()), ("a &", 0));
        assert_eq!((steps[1].command.as_str(), steps[1].printed.len()), ("b", 3));
    }
}
