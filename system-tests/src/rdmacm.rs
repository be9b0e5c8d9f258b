//! Debian's rdmacm-utils, and perftest with `-R`, unmodified: connections by Ferroverbs'
//! librdmacm.so.1 between two processes on one host and on two hosts.
//!
//! Map of this file: `CASES`, the programs of Debian; registration; `Site`, which runs a case;
//! `PROGRAMS`, the programs of c-tests; users of a group; helpers.

#[cfg(test)]
mod documented;
mod hosts;
mod losses;
mod rsockets;

use crate::{Bench, Checks, ENOUGH, Fabric, Load, Tally, Tier};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use xtask::foreign::{self, RPING_CHANNEL, RPING_COMPLETION, UDPONG_ECHO};
use xtask::launch::{DataPath, LaunchSettings};
use xtask::namespaces::Namespaces;
use xtask::process::{Job, PAUSE, Running};
use xtask::{pair, sockets};

/// Each takes a second or two; many processes may compete.
const LIMIT: Duration = Duration::from_secs(120);

/// Numbers of the port spaces, in services (`enum rdma_port_space`).
const TCP: u64 = sockets::TCP_SPACE;
const UDP: u64 = 0x0111;
const IB: u64 = 0x013f;
/// None: the server has a UDP socket with the port, by which datagram rsockets find each other.
const SOCKET: u64 = 0;

/// A server and its client.
struct Case {
    server: &'static [&'static str],
    client: &'static [&'static str],
    space: u64,
    /// What the client says when all went well.
    says: &'static str,
    /// The fixed port of a program without a port option.
    port: Option<u16>,
    /// The server serves for ever.
    endless: bool,
}

/// A case without peculiarities.
const PLAIN: Case = Case {
    server: &[],
    client: &[],
    space: TCP,
    says: "return status 0",
    port: None,
    endless: false,
};

/// Stands for the server's address in the arguments of a client.
const ADDRESS: &str = "ADDRESS";

const CASES: &[Case] = &[
    Case {
        server: &["rping", "-s", "-V", "-C", "20", "-S", "1000", "-a", "0.0.0.0"],
        client: &["rping", "-c", "-V", "-v", "-C", "20", "-S", "1000", "-a", ADDRESS],
        says: "ping data: rdma-ping-19:",
        ..PLAIN
    },
    Case {
        server: &["ucmatose", "-c", "8", "-C", "20", "-S", "5000"],
        client: &["ucmatose", "-c", "8", "-C", "20", "-S", "5000", "-s", ADDRESS],
        ..PLAIN
    },
    // The program moves its ids to new channels half-way.
    Case {
        server: &["ucmatose", "-c", "4", "-m"],
        client: &["ucmatose", "-c", "4", "-m", "-s", ADDRESS],
        ..PLAIN
    },
    Case {
        server: &["udaddy", "-c", "4", "-C", "10"],
        client: &["udaddy", "-c", "4", "-C", "10", "-s", ADDRESS],
        space: UDP,
        port: Some(7174),
        ..PLAIN
    },
    Case {
        server: &["rdma_server"],
        client: &["rdma_client", "-s", ADDRESS],
        says: "rdma_client: end 0",
        ..PLAIN
    },
    Case {
        server: &["rdma_xserver", "-c", "x"],
        client: &["rdma_xclient", "-c", "x", "-s", ADDRESS],
        space: IB,
        says: "rdma_xclient: end 0",
        ..PLAIN
    },
    Case {
        server: &["rdma_xserver", "-c", "r"],
        client: &["rdma_xclient", "-c", "r", "-s", ADDRESS],
        says: "rdma_xclient: end 0",
        ..PLAIN
    },
    Case {
        server: &["cmtime"],
        client: &["cmtime", "-c", "100", "-s", ADDRESS],
        // The last of its table, in the words of each release.
        says: "disconnect ",
        endless: true,
        ..PLAIN
    },
    perftest(&["ib_send_lat", "-R", "-n", "500"], &["ib_send_lat", "-R", "-n", "500", ADDRESS]),
    perftest(&["ib_write_bw", "-R", "-n", "500"], &["ib_write_bw", "-R", "-n", "500", ADDRESS]),
    perftest(
        &["ib_read_bw", "-R", "-q", "4", "-n", "100"],
        &["ib_read_bw", "-R", "-q", "4", "-n", "100", ADDRESS],
    ),
    perftest(
        &["ib_send_bw", "-R", "-b", "-e", "-n", "500"],
        &["ib_send_bw", "-R", "-b", "-e", "-n", "500", ADDRESS],
    ),
    perftest(&["ib_atomic_lat", "-R", "-n", "500"], &["ib_atomic_lat", "-R", "-n", "500", ADDRESS]),
    perftest(
        &["ib_atomic_bw", "-R", "-T", "32", "-n", "500"],
        &["ib_atomic_bw", "-R", "-T", "32", "-n", "500", ADDRESS],
    ),
    // Besides RC the program supports UD only.
    Case {
        server: &["ib_send_bw", "-R", "-c", "UD", "-n", "500"],
        client: &["ib_send_bw", "-R", "-c", "UD", "-n", "500", ADDRESS],
        says: "#bytes",
        ..PLAIN
    },
    perftest(
        &["ib_send_bw", "-R", "--use-srq", "-q", "4", "-n", "500"],
        &["ib_send_bw", "-R", "--use-srq", "-q", "4", "-n", "500", ADDRESS],
    ),
];

/// As many connections at once as a large cluster makes, all established and ended, in a few
/// seconds.
const TEN_THOUSAND: Case = Case {
    server: &["cmtime"],
    client: &["cmtime", "-c", "10000", "-s", ADDRESS],
    says: "disconnect ",
    endless: true,
    ..PLAIN
};

/// perftest: the client's output is contained in the server's.
const fn perftest(server: &'static [&'static str], client: &'static [&'static str]) -> Case {
    Case { server, client, says: "#bytes", ..PLAIN }
}

pub(super) fn register(checks: &mut Checks) {
    checks.many("utilities and perftest -R", |bench, tally| {
        cases(bench, tally, DataPath::Default, CASES.iter())
    });
    checks.tier(Tier::Full);
    checks.many("utilities and perftest -R, CMA off", |bench, tally| {
        cases(bench, tally, DataPath::Off, CASES.iter())
    });
    checks.one("20,000 connections and disconnections that all succeed", |bench| {
        own_program(bench, &bench.over(DataPath::Default)?, "many_connections")
    });
    checks.one("ten thousand connections", |bench| {
        both(bench, &Site::here(&bench.over(DataPath::Default)?), &TEN_THOUSAND)
    });
    checks.tier(Tier::Short).load(Load::Waits);
    checks.one("nobody listens: rejected", |bench| {
        nobody(bench, &Site::here(&bench.over(DataPath::Default)?))
    });
    for (program, what) in PROGRAMS {
        let load = if PATIENT.contains(&program) { Load::Waits } else { Load::Pair };
        checks.load(load).one(format!("{program}: {what}"), move |bench| {
            own_program(bench, &bench.over(DataPath::Default)?, program)
        });
    }
    checks.load(Load::Pair);
    for (victim, side) in rsockets::SIDES.iter().enumerate() {
        checks.one(format!("rping, {side} is killed"), move |bench| {
            told_of_a_kill(bench, &Site::here(&bench.over(DataPath::Default)?), victim)
        });
    }
    checks.many("rping between two users of a group", |bench, tally| {
        if xtask::process::is_root() {
            tally.record("rping between two users of a group", users_of_a_group(bench));
        } else {
            tally.skip("rping between two users of a group", "only root becomes other users");
        }
        Ok(())
    });
    rsockets::register(checks);
    hosts::register(checks);
    checks.tier(Tier::Full).load(Load::Pair);
    checks.many("programs of others between two hosts", super::connected::some_between_hosts);
}

/// Programs of ours that mostly wait for timers.
const PATIENT: &[&str] =
    &["slow_server", "refused_calls", "killed", "unacknowledged", "no_such_host"];

/// Each case over a fabric of its own.
fn cases(
    bench: &Bench,
    tally: &mut Tally,
    path: DataPath,
    all: impl Iterator<Item = &'static Case>,
) -> crate::Result<()> {
    for case in all {
        if tally.failures().len() >= ENOUGH {
            return Ok(());
        }
        let name = format!("{}, {}", case.client.join(" "), path.name());
        bench.step(&format!("rdmacm: {name}"));
        let fabric = bench.over(path)?;
        let done = both(bench, &Site::here(&fabric), case);
        // A killed process leaves its socket, which the next one removes.
        let left = if case.endless { Ok(()) } else { bench.nothing_left(&fabric) };
        tally.record(&name, done.and(left));
    }
    Ok(())
}

/// A killed process sends no message. Its peer gets the event DISCONNECTED, unless rping ends
/// before it reads the event ([`RPING_COMPLETION`], once in ten runs).
fn told_of_a_kill(bench: &Bench, site: &Site<'_>, victim: usize) -> Result<(), String> {
    let server = ["rping", "-s", "-C", "100000000", "-a", ADDRESS];
    let client = ["rping", "-c", "-C", "100000000", "-a", ADDRESS];
    let run = || {
        let left = rsockets::killed_while(bench, site, victim, [&server, &client])?;
        let is_told = left.stderr.contains("DISCONNECT EVENT");
        if is_told { Ok(()) } else { Err(left.report("the peer learns of no end")) }
    };
    foreign::again(run, |done| RPING_COMPLETION.failed(done))
}

/// Where a server and its client run.
struct Site<'a> {
    /// Of the server, and of the client.
    sides: [(LaunchSettings, PathBuf); 2],
    namespaces: Option<&'a Namespaces>,
    /// The server's.
    address: &'static str,
}

impl Site<'_> {
    /// One host.
    fn here(fabric: &Fabric) -> Self {
        let sides = [0, 1].map(|_| (fabric.over.clone(), fabric.work.clone()));
        Self { sides, namespaces: None, address: "127.0.0.1" }
    }

    /// A program with its arguments. `port` comes first, because perftest takes the address as the
    /// last argument.
    fn job(&self, side: usize, words: &[&str], port: Option<u16>) -> Result<Job, String> {
        let (program, args) = words.split_first().ok_or("there is no program")?;
        let args = args.iter().map(|&arg| if arg == ADDRESS { self.address } else { arg });
        let (over, work) = &self.sides[side];
        let mut job = match self.namespaces {
            None => over.job(program),
            Some(hosts) => over.job("ip").args(["netns", "exec", &hosts.names[side], program]),
        };
        if let Some(port) = port {
            job = job.arg("-p").arg(port.to_string());
        }
        Ok(job.args(args).dir(work))
    }

    /// Starts a server that listens to the service of a port of `space`.
    fn serve(&self, bench: &Bench, job: &Job, space: u64, port: u16) -> Result<Running, String> {
        self.serve_at(0, bench, job, space, port)
    }

    /// The same on the host of a side.
    fn serve_at(
        &self,
        side: usize,
        bench: &Bench,
        job: &Job,
        space: u64,
        port: u16,
    ) -> Result<Running, String> {
        let mut server = job.start(&bench.scratch)?;
        let deadline = Instant::now() + LIMIT;
        while !self.is_listened_to(side, bench, space, port) {
            if server.ended() || Instant::now() > deadline {
                let server = server.finish(deadline);
                return Err(format!("it did not listen\n{}", server.report("server")));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }

    /// Whether any process of the host of a side takes requests for the service of a port.
    fn is_listened_to(&self, side: usize, bench: &Bench, space: u64, port: u16) -> bool {
        let table = |name: &str| match self.namespaces {
            None => std::fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default(),
            Some(hosts) => {
                let job = Job::new("ip").args(["netns", "exec", &hosts.names[side]]);
                let job = job.args(["cat", &format!("/proc/net/{name}")]);
                job.run(&bench.scratch, LIMIT).map(|done| done.stdout).unwrap_or_default()
            }
        };
        match space {
            SOCKET => ["udp", "udp6"].iter().any(|name| sockets::has_port(&table(name), port)),
            _ => sockets::serves(&table("unix"), space, port),
        }
    }
}

/// C programs of c-tests and their purposes, which no Debian program has. Names that end in `_tcp`
/// are TCP programs.
const PROGRAMS: [(&str, &str); 24] = [
    ("newer", "functions of rdma-core 60, and a child process"),
    ("datagrams", "datagram rsockets, and foreign datagrams at their UDP sockets"),
    ("repoll", "repoll_create, repoll_ctl, repoll_wait"),
    ("initial_psns", "a connection's first packet numbers, as the kernel's manager has them"),
    ("refused_calls", "a refused call can be repeated"),
    ("forks", "children of a process whose threads use rsockets"),
    ("forks_tcp", "children of a TCP program over librspreload whose threads use its sockets"),
    ("epoll_tcp", "sets of epoll of a TCP program over librspreload"),
    ("children_tcp", "a TCP server over librspreload whose children serve (RDMAV_FORK_SAFE)"),
    ("ports", "the kernel's range of ports, and the privileged ports"),
    ("options", "options of ids, and what they make of queue pairs"),
    ("unacknowledged", "a message names the id that waits for an acknowledgement"),
    ("families", "a listener for each family of addresses at one port"),
    ("many_clients", "a thousand clients at once, a full backlog, and a killed process"),
    ("killed", "either side is killed, at each step of a connection"),
    ("calls", "calls of ids that few programs make"),
    ("streams", "calls of rsockets for streams"),
    ("slow_server", "a server that does not answer, and a full backlog"),
    ("asynchronous", "asynchronous calls return at once"),
    ("many_connections 4000", "4000 connections and disconnections that all succeed"),
    ("descriptors", "a connection takes a descriptor for each channel"),
    ("stacks near", "calls need 8 KiB of stack at most"),
    ("stacks copied", "the same without cross-memory attach"),
    ("stacks far", "the same between hosts"),
];

/// A server and a client of two users: they connect over soft by their group, and by port names.
fn users_of_a_group(bench: &Bench) -> Result<(), String> {
    /// Nobody's group, and two users that need not exist.
    const GROUP: u32 = 65534;
    const USERS: [u32; 2] = [64301, 64302];
    let folder = bench.scratch.folder("group", 0o770)?;
    std::os::unix::fs::chown(&folder, None, Some(GROUP))
        .map_err(|why| format!("{}: {why}", folder.display()))?;
    xtask::scratch::set_mode(&folder, 0o770)?;
    let over = LaunchSettings::new(bench.prefix()?, &bench.paths.target).fabric(&folder);
    let job = |side: usize, words: &[&str]| {
        let ids = [format!("--reuid={}", USERS[side]), format!("--regid={GROUP}")];
        let job = over.job("setpriv").args(ids).arg("--clear-groups").args(words);
        job.env("FERROVERBS_FABRIC_GROUP", GROUP.to_string()).dir(std::path::Path::new("/"))
    };
    let site = Site {
        sides: [0, 1].map(|_| (over.clone(), folder.clone())),
        namespaces: None,
        address: "127.0.0.1",
    };
    let port = pair::free_port()?;
    let number = port.to_string();
    let words = ["rping", "-C", "5", "-a", "127.0.0.1", "-p", &number, "-V"];
    let server = site.serve(bench, &job(0, &[&words[..], &["-s"]].concat()), TCP, port)?;
    let client = job(1, &[&words[..], &["-c", "-v"]].concat()).run(&bench.scratch, LIMIT)?;
    let server = server.finish(Instant::now() + LIMIT);
    let is_over = client.ok() || RPING_CHANNEL.shows_in(&client.stderr);
    if client.stdout.contains("ping data: rdma-ping-4:") && is_over {
        return Ok(());
    }
    Err(format!("{}{}", server.report("server"), client.report("client")))
}

/// Compiles a program of ours, and runs it.
fn own_program(bench: &Bench, fabric: &Fabric, line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    let exe = compiled(bench, name)?;
    let mut job = fabric.over.own_job(&exe).args(words).dir(bench.scratch.path());
    if name.ends_with("_tcp") {
        job = job.env("LD_PRELOAD", bench.prefix()?.join(xtask::stage::PRELOAD));
    }
    if name == "children_tcp" {
        job = job.env("RDMAV_FORK_SAFE", "1");
    }
    all_ok(bench, job)
}

/// Compiles a program of ours.
pub(super) fn compiled(bench: &Bench, name: &str) -> Result<PathBuf, String> {
    bench.compiled(&format!("cm/{name}"), |folder| {
        let prefix = bench.prefix()?;
        let exe = folder.join(name);
        let compiled = Job::new("gcc")
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"])
            .arg(prefix.join("include"))
            .arg(bench.paths.root.join(format!("c-tests/programs/cm/{name}.c")))
            .arg("-o")
            .arg(&exe)
            .arg("-L")
            .arg(prefix.join("lib"))
            .args(["-lrdmacm", "-libverbs"])
            .run(&bench.scratch, LIMIT)?;
        if compiled.ok() { Ok(exe) } else { Err(compiled.report("the compiler")) }
    })
}

/// Runs a program of ours.
fn all_ok(bench: &Bench, job: Job) -> Result<(), String> {
    let done = job.run(&bench.scratch, LIMIT)?;
    let all = done.stdout.lines().filter(|line| line.starts_with("ok: ")).count();
    if done.ok() && done.stderr.is_empty() && all > 1 {
        return Ok(());
    }
    Err(done.report("the program"))
}

/// Time limit for udpong with echoed messages; beyond it the program shows [`UDPONG_ECHO`].
const ECHO_LIMIT: Duration = Duration::from_secs(20);

/// Runs server and client; again where rping or udpong shows a known defect of its own.
fn both(bench: &Bench, site: &Site<'_>, case: &Case) -> Result<(), String> {
    let echoes = case.client.first() == Some(&"udpong") && case.client.contains(&"e");
    let limit = if echoes { ECHO_LIMIT } else { LIMIT };
    let defect = if echoes { UDPONG_ECHO } else { RPING_CHANNEL };
    foreign::again(|| once(bench, site, case, limit), |done| defect.failed(done))
}

/// Runs server and client, each of which may take `limit`.
fn once(bench: &Bench, site: &Site<'_>, case: &Case, limit: Duration) -> Result<(), String> {
    let chosen = if case.port.is_none() { Some(pair::free_port()?) } else { None };
    let server = site.job(0, case.server, chosen)?;
    let port = chosen.or(case.port).unwrap_or_default();
    let mut server = site.serve(bench, &server, case.space, port)?;
    let deadline = Instant::now() + limit;
    let client = site.job(1, case.client, chosen)?.run(&bench.scratch, limit)?;
    if case.endless {
        server.kill();
    }
    let server = server.finish(deadline);
    let report = || format!("{}{}", server.report("server"), client.report("client"));
    if !((server.ok() || case.endless) && client.ok()) {
        return Err(report());
    }
    if !client.stdout.contains(case.says) {
        return Err(format!("the client does not say \"{}\"\n{}", case.says, report()));
    }
    Ok(())
}

/// A client without a server is told why, and does not wait.
fn nobody(bench: &Bench, site: &Site<'_>) -> Result<(), String> {
    let args = ["rping", "-c", "-C", "1", "-a", ADDRESS];
    // 8: no listener at that service id (IBTA 1.7 12.6.7.2).
    expect_message(
        bench,
        &site.job(1, &args, Some(pair::free_port()?))?,
        "RDMA_CM_EVENT_REJECTED, error 8",
    )
}

/// A client ends soon, and says why.
fn expect_message(bench: &Bench, client: &Job, why: &str) -> Result<(), String> {
    let client = client.run(&bench.scratch, LIMIT)?;
    let output = format!("{}{}", client.stdout, client.stderr);
    if output.contains(why) { Ok(()) } else { Err(client.report("client")) }
}
