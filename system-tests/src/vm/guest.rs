//! The part that runs in the virtual machine: this program again, with the guest's devices.

use super::scenarios::{ClientStart, RunMethod, SCENARIOS, Scenario};
use super::{Side, rsockets};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use xtask::foreign::{self, RPING_CHANNEL};
use xtask::pair::Pair;
use xtask::perftest;
use xtask::process::{Finished, Job, PAUSE, Running};
use xtask::scratch::Scratch;
use xtask::sockets;

/// The command by which the guest starts it.
pub(crate) const GUEST_ARGUMENT: &str = "test-inside-vm";

/// For one scenario; emulation is slow, and slower when the machine has other work.
pub(super) const LIMIT: Duration = Duration::from_secs(300);

/// Runs all scenarios over both libraries: `FOLDER LIB RELEASE=PLUGINS...`, the folder of programs
/// and records, the folder of Ferroverbs' library, and the plugins of further releases.
pub(crate) fn run_in_guest(args: &[OsString]) -> crate::Result<ExitCode> {
    let usage = || format!("{GUEST_ARGUMENT} FOLDER LIB RELEASE=PLUGINS...");
    let (folder, lib, newer) = match args {
        [folder, lib, newer @ ..] => (Path::new(folder), Path::new(lib), newer),
        _ => return Err(usage()),
    };
    let mut overs: Vec<_> =
        Side::BOTH.map(|side| GuestLaunch { side, lib: lib.into(), plugins: None }).into();
    for arg in newer {
        let (release, plugins) = arg.to_str().and_then(|a| a.split_once('=')).ok_or_else(usage)?;
        let side = Side::Newer(release.parse().map_err(|_| usage())?);
        overs.push(GuestLaunch { side, lib: lib.into(), plugins: Some(plugins.into()) });
    }
    let scratch = Scratch::new()?;
    for over in &overs {
        over.check(&scratch)?;
    }
    let mixed = both_kinds(&overs[1], &scratch)?;
    fs::write(folder.join(MIXED), mixed).map_err(|e| format!("{MIXED}: {e}"))?;
    let met = rsockets::run(&overs[0], &overs[1], folder, &scratch)?;
    fs::write(folder.join(rsockets::FILE), met).map_err(|e| format!("rsockets: {e}"))?;
    for (index, scenario) in SCENARIOS.iter().enumerate() {
        println!("{}", scenario.name());
        for over in overs.iter().filter(|over| over.plugins.is_none() || scenario.newer) {
            let record = scenario.run(folder, over, &scratch)?;
            let file = over.side.record(folder, index);
            fs::write(&file, record).map_err(|e| format!("{}: {e}", file.display()))?;
        }
    }
    let lazy = lazily(&overs[1], folder, &scratch)?;
    fs::write(folder.join(LAZY), lazy).map_err(|e| format!("{LAZY}: {e}"))?;
    let cables = cables(&overs[1], &scratch)?;
    fs::write(folder.join(CABLES), cables).map_err(|e| format!("{CABLES}: {e}"))?;
    Ok(ExitCode::SUCCESS)
}

/// The file in which it is told whether plugins were opened when they were needed.
pub(super) const LAZY: &str = "lazy";

/// The file in which it is told whether one event channel serves devices of both kinds.
pub(super) const MIXED: &str = "mixed";

/// The file in which it is told whether the cables of a cluster can lose and delay.
pub(super) const CABLES: &str = "cables";

/// Hosts of `ferroverbs cluster` with bad cables; the guest's kernel has the needed module, which
/// many kernels lack.
fn cables(ours: &GuestLaunch, scratch: &Scratch) -> crate::Result<String> {
    let modules = Job::new("modprobe").args(["-a", "bridge", "veth", "sch_netem"]);
    let done = modules.run(scratch, LIMIT)?;
    if !done.ok() {
        return Ok(done.report("modprobe"));
    }
    // The client tries until there is a server.
    let within = "tc qdisc show dev eth0; run() { ib_send_bw -d soft0 -x 1 -F -n 20 -s 4096 -u 18 $1; }; \
        [ $FERROVERBS_HOST = 1 ] && run || for n in $(seq 30); do run host1 && exit; sleep 1; done";
    let cluster = ours.lib.with_file_name("bin").join("ferroverbs");
    let job = ours.job(&cluster.to_string_lossy()).env_remove("FERROVERBS_SOFT_WIRE");
    let job = job.args(["cluster", "--loss", "1%", "--delay", "1ms", "--rate", "100mbit", "2"]);
    let done = job.args(["-s", "on", "--", "sh", "-c", within]).run(scratch, LIMIT)?;
    let lines: Vec<_> = done.stdout.lines().collect();
    let said = |host: &str, words: &str| {
        lines.iter().any(|line| line.starts_with(host) && line.contains(words))
    };
    let right = ["[host1]", "[host2]"]
        .iter()
        .all(|host| said(host, " delay 1ms loss 1% rate 100Mbit") && said(host, " 4096       20 "));
    Ok(if right && done.ok() { WELL.into() } else { done.report("the cluster") })
}

/// A server at all addresses serves clients over soft and over kernel devices, in turn.
fn both_kinds(ours: &GuestLaunch, scratch: &Scratch) -> crate::Result<String> {
    let fabric = scratch.folder("fabric", 0o700)?;
    let job = |line: &str| {
        let job = ours.job(line).env("FERROVERBS_SOFT", "on").env("FERROVERBS_SOFT_WIRE", "off");
        job.env("FERROVERBS_FABRIC_DIR", &fabric)
    };
    let deadline = Instant::now() + LIMIT;
    let mut server = job("rping -s -P -V -p 7175 -a 0.0.0.0").start(scratch)?;
    let listens = || {
        let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        sockets::serves(&sockets, sockets::TCP_SPACE, 7175)
    };
    while !listens() && !server.ended() && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
    }
    for address in ["127.0.0.1", "10.77.0.1", "127.0.0.1", "10.77.0.2"] {
        let line = format!("rping -c -v -V -C 3 -p 7175 -a {address}");
        let client = job(&line).run(scratch, LIMIT)?;
        // All data was exchanged. rping may still end with its own defect.
        let is_over = client.ok() || RPING_CHANNEL.shows_in(&client.stderr);
        if !is_over || !client.stdout.contains("ping data: rdma-ping-2:") {
            server.kill();
            let server = server.finish(deadline);
            return Ok(format!("{}{}", client.report(&line), server.report("server")));
        }
    }
    server.kill();
    server.finish(deadline);
    Ok(WELL.into())
}

/// What the file says when all is well.
pub(super) const WELL: &str = "well";

/// With kernel devices, only their plugin is opened, unless the user asks for soft. soft appears
/// when the kernel devices have gone.
fn lazily(ours: &GuestLaunch, folder: &Path, scratch: &Scratch) -> crate::Result<String> {
    for (reported, wanted) in
        [(None, &["librxe-rdmav"][..]), (Some("on"), &["libsoft-rdmav", "librxe-rdmav"])]
    {
        let job = ours.job("/usr/bin/ibv_devices").env("LD_DEBUG", "files");
        let job = match reported {
            Some(reported) => job.env("FERROVERBS_SOFT", reported),
            None => job.env_remove("FERROVERBS_SOFT"),
        };
        let done = job.run(scratch, LIMIT)?;
        let started = |l: &&str| l.contains("calling init: ") && l.contains("-rdmav");
        let opened: Vec<_> = done.stderr.lines().filter(started).collect();
        let alike = opened.len() == wanted.len()
            && opened.iter().zip(wanted).all(|(line, name)| line.contains(name));
        if !alike || done.stdout.contains("soft0") != reported.is_some() {
            return Ok(format!("FERROVERBS_SOFT {reported:?}: {opened:#?}\n{}", done.stdout));
        }
    }
    let exe = folder.join("hotplug");
    let job = ours.job(&exe.to_string_lossy()).env_remove("FERROVERBS_SOFT");
    let done = job.run(scratch, LIMIT)?;
    let none = done.stdout.lines().find(|l| l.starts_with("none left: "));
    let both = done.stdout.lines().find(|l| l.starts_with("both again: "));
    let right = none.is_some_and(|l| l.contains("1: soft0"))
        && both.is_some_and(|l| l.contains("2: ") && !l.contains("soft0"));
    Ok(if right && done.ok() { WELL.into() } else { done.report("hotplug") })
}

/// What is under the commands of a side.
#[derive(Debug)]
pub(super) struct GuestLaunch {
    side: Side,
    /// The folder of our library.
    lib: PathBuf,
    /// The folder of the plugins, unless they are the system's.
    plugins: Option<PathBuf>,
}

impl GuestLaunch {
    pub(super) fn job(&self, line: &str) -> Job {
        let mut words = line.split_whitespace();
        let job = Job::new(words.next().unwrap_or_default()).args(words);
        let job = match self.side {
            Side::Theirs => job.env_remove("LD_LIBRARY_PATH"),
            // Our software adapter would announce itself when the kernel's devices are gone.
            _ => job.env("LD_LIBRARY_PATH", &self.lib).env("FERROVERBS_SOFT", "off"),
        };
        match &self.plugins {
            Some(plugins) => job.env("FERROVERBS_PROVIDER_DIR", plugins),
            None => job,
        }
    }

    /// Checks that the program really uses this library and this plugin.
    fn check(&self, scratch: &Scratch) -> crate::Result<()> {
        let job = self.job("/usr/bin/ibv_devices").env("LD_DEBUG", "files");
        let done = job.run(scratch, LIMIT)?;
        let started = |stem: &str| {
            let mut files = done.stderr.lines().filter_map(|l| l.split_once("calling init: "));
            files.find(|(_, file)| file.contains(stem)).map(|(_, file)| PathBuf::from(file.trim()))
        };
        let is_in = |file: Option<PathBuf>, dir: &Path| file.is_some_and(|f| f.starts_with(dir));
        let ours = is_in(started("/libibverbs.so.1"), &self.lib);
        let plugin = started("/librxe-rdmav");
        let system = Path::new("/usr/lib");
        let right = match &self.plugins {
            _ if ours != (self.side != Side::Theirs) => false,
            Some(plugins) => is_in(plugin, plugins),
            None => is_in(plugin, system),
        };
        if !right {
            return Err(format!("{self:?} is not so\n{}", done.stderr));
        }
        // Checks that the program uses this librdmacm. rping's answer to the option is irrelevant.
        let done = self.job("/usr/bin/rping -?").env("LD_DEBUG", "files").run(scratch, LIMIT)?;
        let mut begun = done.stderr.lines().filter_map(|l| l.split_once("calling init: "));
        let file = begun.find(|(_, file)| file.contains("/librdmacm.so.1"));
        let is_ours = file.is_some_and(|(_, file)| Path::new(file.trim()).starts_with(&self.lib));
        if is_ours == (self.side != Side::Theirs) && file.is_some() {
            return Ok(());
        }
        Err(format!("{self:?} has another librdmacm\n{}", done.stderr))
    }
}

impl Scenario {
    /// The record: the end and the output of each part.
    fn run(&self, folder: &Path, over: &GuestLaunch, scratch: &Scratch) -> crate::Result<String> {
        let job = |line: &str| over.job(line).dir(folder);
        let pair = |line: &str, more: &[&str]| {
            let job = job(line).args(more).arg("-d");
            Pair::between(job.clone().arg("rxe0"), job.arg("rxe1"), LIMIT)?.outcome(scratch)
        };
        let mut record = String::new();
        match self.how {
            RunMethod::Alone(line) => add(&mut record, "it", &job(line).run(scratch, LIMIT)?),
            RunMethod::Program(name) => {
                let exe = folder.join(name);
                add(&mut record, "it", &job(&exe.to_string_lossy()).run(scratch, LIMIT)?);
            }
            RunMethod::PingPong(line) => both(&mut record, &pair(line, &[])?),
            RunMethod::Perftest(line) => {
                // No more in flight than an emulated network takes without losses.
                let depth: &[&str] = if line.contains("_bw") { &["-t", "8"] } else { &[] };
                let more = [&["-x", "1", "-F", "-n", "100"], depth].concat();
                both(&mut record, &pair(line, &more)?);
            }
            RunMethod::Connect { server, client, comes } => {
                let (server, client) = (job(server), job(client));
                let run = || connect(&server, &client, comes, scratch);
                let shows_defect = |said: &crate::Result<String>| {
                    said.as_ref().is_ok_and(|said| RPING_CHANNEL.shows_in(said))
                };
                record = foreign::again(run, shows_defect)?;
            }
        }
        Ok(record)
    }
}

/// The record of a server and its client, who meet by the kernel's connection manager.
fn connect(
    server: &Job,
    client: &Job,
    comes: ClientStart,
    scratch: &Scratch,
) -> crate::Result<String> {
    let mut record = String::new();
    if comes == ClientStart::Alone {
        add(&mut record, "client", &client.run(scratch, LIMIT)?);
        return Ok(record);
    }
    let deadline = Instant::now() + LIMIT;
    let mut server = server.start(scratch)?;
    wait_until_expected(&mut server, deadline, || is_expected(comes, scratch))?;
    let client = client.run(scratch, LIMIT)?;
    if comes == ClientStart::Endless {
        server.kill();
        server.finish(deadline);
        add(&mut record, "client", &client);
        return Ok(record);
    }
    both(&mut record, &(server.finish(deadline), Some(client)));
    Ok(record)
}

/// Waits until a server expects a client, or has ended. The kernel shows a listener slightly before
/// it accepts requests, so the state is read twice.
pub(super) fn wait_until_expected(
    server: &mut Running,
    deadline: Instant,
    mut is_expected: impl FnMut() -> crate::Result<bool>,
) -> crate::Result<()> {
    let mut seen = 0;
    while seen < 2 && !server.ended() && Instant::now() < deadline {
        seen += u32::from(is_expected()?);
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Whether a server expects a client. Earlier servers have ended, and their listeners too.
fn is_expected(comes: ClientStart, scratch: &Scratch) -> crate::Result<bool> {
    match comes {
        ClientStart::Alone => Ok(true),
        ClientStart::Joined(group) => {
            let groups = fs::read_to_string("/proc/net/dev_mcast").map_err(|e| e.to_string())?;
            Ok(groups.lines().any(|line| line.contains("rdma0") && line.contains(group)))
        }
        ClientStart::Listening | ClientStart::Endless => {
            let job = Job::new("rdma").args(["resource", "show", "cm_id"]);
            Ok(job.run(scratch, LIMIT)?.stdout.contains("LISTEN"))
        }
    }
}

fn both(record: &mut String, (server, client): &(Finished, Option<Finished>)) {
    add(record, "server", server);
    if let Some(client) = client {
        add(record, "client", client);
    }
}

fn add(record: &mut String, who: &str, done: &Finished) {
    let _ = writeln!(record, "== {who}: {}", done.end);
    for (mark, text) in [("", &done.stdout), (STDERR, &done.stderr)] {
        for line in text.lines().filter(|line| !perftest::is_about_the_clock(line)) {
            let _ = writeln!(record, "{mark}{line}");
        }
    }
}

/// The prefix of lines of standard error in a record.
const STDERR: &str = "stderr: ";

/// Whether all parts of a record ended well.
pub(super) fn succeeded(record: &str) -> bool {
    let mut ends = record.lines().filter(|line| line.starts_with("== ")).peekable();
    ends.peek().is_some() && ends.all(|line| line.ends_with(": exit status 0"))
}

/// The last line that a record's programs printed.
pub(super) fn last_words(record: &str) -> &str {
    let said = record.lines().filter(|l| !l.starts_with("== "));
    let said = said.map(|l| l.strip_prefix(STDERR).unwrap_or(l).trim());
    said.rev().find(|l| !l.is_empty()).unwrap_or("nothing was said")
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::process::ExitReason;

    /// On a busy machine perftest complains of the clock in one run and not in the other.
    #[test]
    fn a_record_tells_both_streams_apart_and_leaves_the_clock_out() {
        let mut record = String::new();
        let quiet = Finished {
            line: "ib_send_lat".into(),
            end: ExitReason::Exited(0),
            stdout: "a table\n".into(),
            stderr: "no inline here\n".into(),
            stuck: String::new(),
            elapsed: Duration::ZERO,
        };
        add(&mut record, "server", &quiet);
        assert_eq!(record, "== server: exit status 0\na table\nstderr: no inline here\n");
        assert!(succeeded(&record));
        assert_eq!(last_words(&record), "no inline here");
        let complaint = "Correlation coefficient r^2: 0.0407 < 0.9\n";
        let mut busy = String::new();
        let stderr = format!("{complaint}{}{complaint}", quiet.stderr);
        add(&mut busy, "server", &Finished { stderr, ..quiet });
        assert_eq!(busy, record);
    }
}
