//! `cargo xtask bench connections`: the cost of a connection by librdmacm and by TCP
//! (`c-tests/bench/connect.c`), and of ten thousand at once; and in a virtual machine, beside the
//! kernel's connection manager.

mod guest;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use xtask::launch::LaunchSettings;
use xtask::namespaces::{self, Namespaces};
use xtask::paths::Paths;
use xtask::process::{Job, PAUSE, Running};
use xtask::progress::Progress;
use xtask::scratch::Scratch;
use xtask::table::{Align, Table};
use xtask::{pair, sockets};

const LIMIT: Duration = Duration::from_secs(300);
/// Connections, one after the other.
const COUNT: &str = "2000";
/// Connections at once.
const AT_ONCE: &str = "10000";
/// The client's numbers, in order.
const NUMBERS: [&str; 4] = ["ready", "connect", "all", "rate"];

/// Measures and prints; with `guest` in the virtual machine only, where `at_once` are made at once.
pub(super) fn main(
    paths: &Paths,
    progress: &Progress,
    guest: bool,
    at_once: NonZeroUsize,
) -> crate::Result<ExitCode> {
    let scratch = Scratch::new()?;
    let program = scratch.path().join("connect");
    let compiled = Job::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-I"])
        .arg(paths.stage().join("include"))
        .arg("-o")
        .arg(&program)
        .arg(paths.root.join("c-tests/bench/connect.c"))
        .arg("-L")
        .arg(paths.stage().join("lib"))
        .args(["-lrdmacm", "-libverbs"])
        .run(&scratch, LIMIT)?;
    if !compiled.ok() {
        return Err(compiled.report("cc"));
    }
    let hosts = (!guest).then(Namespaces::new);
    let mut bench = Bench { paths, scratch, program, hosts: None };
    if let Some(hosts) = &hosts {
        let note = |why| progress.note(&format!("no two hosts: {why}"));
        outside(progress, &mut bench, hosts.as_ref().map_err(note).ok())?;
    }
    let guest = guest::measure(paths, progress, &bench.scratch, &bench.program, at_once);
    progress.clear();
    match guest {
        Ok(table) => println!("{table}"),
        Err(why) => println!("No virtual machine: {why}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// On this machine: one host, and two.
fn outside<'a>(
    progress: &Progress,
    bench: &mut Bench<'a>,
    two: Option<&'a Namespaces>,
) -> crate::Result<()> {
    let mut table = Table::new(&[
        ("one after the other", Align::Left),
        ("ready, us", Align::Right),
        ("connect, us", Align::Right),
        ("all, us", Align::Right),
        ("a second", Align::Right),
    ]);
    for (place, hosts) in [("one host", None), ("two hosts", two)] {
        if place == "two hosts" && hosts.is_none() {
            continue;
        }
        bench.hosts = hosts;
        for kind in ["rdma", "tcp"] {
            progress.step(&format!("{kind}, {place}"));
            let numbers = bench.one_by_one(kind)?;
            let name = if kind == "rdma" { "librdmacm" } else { "TCP" };
            let [ready, connect, all, rate] = numbers.map(|number| format!("{number:.0}"));
            table.row([format!("{name}, {place}"), ready, connect, all, rate]);
        }
    }
    let mut together = Table::new(&[("at once", Align::Left), ("cmtime, s", Align::Right)]);
    for (place, hosts) in [("one host", None), ("two hosts", two)] {
        if place == "two hosts" && hosts.is_none() {
            continue;
        }
        bench.hosts = hosts;
        progress.step(&format!("{AT_ONCE} at once, {place}"));
        let (duration, output) = bench.connect_at_once()?;
        together.row([format!("{AT_ONCE}, {place}"), format!("{:.1}", duration.as_secs_f64())]);
        progress.note(output.trim_end());
    }
    progress.clear();
    println!("{}\n{}", table.render(), together.render());
    Ok(())
}

struct Bench<'a> {
    paths: &'a Paths,
    scratch: Scratch,
    program: PathBuf,
    /// Where server and client are, unless that is the same.
    hosts: Option<&'a Namespaces>,
}

impl Bench<'_> {
    const fn address(&self) -> &'static str {
        if self.hosts.is_some() { namespaces::SERVER } else { "127.0.0.1" }
    }

    /// A command on one side; between two hosts each side has its own fabric.
    fn job(&self, side: usize, words: &[&str]) -> crate::Result<Job> {
        let over = LaunchSettings::new(&self.paths.stage(), &self.paths.target);
        let fabric = self.scratch.path().join(match self.hosts {
            None => "fabric".to_owned(),
            Some(_) => format!("fabric{side}"),
        });
        std::fs::create_dir_all(&fabric).map_err(|e| format!("{}: {e}", fabric.display()))?;
        let over = over.fabric(&fabric);
        Ok(match self.hosts {
            None => over.job("env").args(words),
            Some(hosts) => over
                .wired()
                .job("ip")
                .args(["netns", "exec", &hosts.names[side], "env"])
                .args(words),
        })
    }

    /// Starts a server, and waits until it listens on a port.
    fn serve(&self, words: &[&str], port: u16) -> crate::Result<Running> {
        let mut server = self.job(0, words)?.start(&self.scratch)?;
        let deadline = Instant::now() + LIMIT;
        let listens = |server: &Running| {
            let sockets = std::fs::read_to_string(format!("/proc/{}/net/unix", server.id()));
            server.listens_on(port)
                || sockets.is_ok_and(|text| sockets::serves(&text, sockets::TCP_SPACE, port))
        };
        while !listens(&server) {
            if server.ended() || Instant::now() > deadline {
                return Err(server.finish(Instant::now()).report("the server"));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }

    fn one_by_one(&self, kind: &str) -> crate::Result<[f64; 4]> {
        let port = pair::free_port()?;
        let (program, port_word) = (self.program.to_string_lossy(), port.to_string());
        let words = |role| [&*program, kind, role, self.address(), &*port_word];
        let mut server = self.serve(&words("server"), port)?;
        let client = self.job(1, &words("client"))?.arg(COUNT).run(&self.scratch, LIMIT)?;
        server.kill();
        let server = server.finish(Instant::now());
        let number = |name: &str| {
            let mut lines = client.stdout.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(what, _)| *what == name).and_then(|(_, number)| number.parse().ok())
        };
        match NUMBERS.map(number) {
            [Some(a), Some(b), Some(c), Some(d)] if client.ok() => Ok([a, b, c, d]),
            _ => Err(format!("{}{}", client.report("client"), server.report("server"))),
        }
    }

    /// All connections through one listener; returns the client's run time and its table.
    fn connect_at_once(&self) -> crate::Result<(Duration, String)> {
        let port = pair::free_port()?;
        let port_word = port.to_string();
        let mut server = self.serve(&["cmtime", "-p", &port_word], port)?;
        let words = ["cmtime", "-p", &port_word, "-c", AT_ONCE, "-s", self.address()];
        let client = self.job(1, &words)?.run(&self.scratch, LIMIT)?;
        server.kill();
        let server = server.finish(Instant::now());
        match client.ok() {
            true => Ok((client.elapsed, client.stdout)),
            false => Err(format!("{}{}", client.report("client"), server.report("server"))),
        }
    }
}
