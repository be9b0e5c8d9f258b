//! Debian's rdmacm-utils, and perftest with `-R`, unmodified: connections by our librdmacm.so.1 between two processes.

use super::{Bench, ENOUGH, Fabric, Tally};
use crate::over::DataPath;
use crate::pair;
use crate::process::{Job, PAUSE};
use std::fs;
use std::time::{Duration, Instant};

/// Each takes a second or two; many processes may compete.
const LIMIT: Duration = Duration::from_secs(120);

/// Numbers of the port spaces, in services (`enum rdma_port_space`).
const TCP: u64 = 0x0106;
const UDP: u64 = 0x0111;

/// A server and its client.
struct Case {
    server: &'static [&'static str],
    client: &'static [&'static str],
    space: u64,
    /// What the client says when all went well.
    says: &'static str,
    /// The only port that the program knows, where it has no option for one.
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
    // The program moves its ids to other channels half-way.
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
        server: &["cmtime"],
        client: &["cmtime", "-c", "100", "-s", ADDRESS],
        says: "connect      :",
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
];

/// perftest, whose client says nothing that the server does not.
const fn perftest(server: &'static [&'static str], client: &'static [&'static str]) -> Case {
    Case { server, client, says: "#bytes", ..PLAIN }
}

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for path in [DataPath::Default, DataPath::Off] {
        for case in CASES {
            if tally.failures.len() >= ENOUGH {
                return Ok(());
            }
            let name = format!("{}, {}", case.client.join(" "), path.name());
            bench.step(&format!("rdmacm: {name}"));
            let fabric = bench.over(path)?;
            let done = both(bench, &fabric, case);
            // Who is killed leaves its socket to the next one.
            let left = if case.endless { Ok(()) } else { bench.nothing_left(&fabric) };
            tally.record(&name, done.and(left));
        }
    }
    let fabric = bench.over(DataPath::Default)?;
    tally.record("nobody listens: rejected", nobody(bench, &fabric));
    Ok(())
}

/// Runs server and client.
fn both(bench: &Bench, fabric: &Fabric, case: &Case) -> Result<(), String> {
    let chosen = if case.port.is_none() { Some(pair::free_port()?) } else { None };
    let mut server = job(fabric, case.server, chosen)?.start(&bench.scratch)?;
    let deadline = Instant::now() + LIMIT;
    while !is_listened_to(case.space, chosen.or(case.port).unwrap_or_default()) {
        if server.ended() || Instant::now() > deadline {
            return Err(format!("it did not listen\n{}", server.finish(deadline).report("server")));
        }
        std::thread::sleep(PAUSE);
    }
    let client = job(fabric, case.client, chosen)?.run(&bench.scratch, LIMIT)?;
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

/// A client of nobody hears why, and does not wait.
fn nobody(bench: &Bench, fabric: &Fabric) -> Result<(), String> {
    let args = ["rping", "-c", "-C", "1", "-a", ADDRESS];
    let client = job(fabric, &args, Some(pair::free_port()?))?.run(&bench.scratch, LIMIT)?;
    let said = format!("{}{}", client.stdout, client.stderr);
    // 8: nobody listens on that service (IBTA vol 1, 12.6.7.2).
    if said.contains("RDMA_CM_EVENT_REJECTED, error 8") {
        return Ok(());
    }
    Err(client.report("client"))
}

fn job(fabric: &Fabric, words: &[&str], port: Option<u16>) -> Result<Job, String> {
    let (program, args) = words.split_first().ok_or("there is no program")?;
    let args = args.iter().map(|&arg| if arg == ADDRESS { "127.0.0.1" } else { arg });
    // The address is the last argument of perftest's, which takes no option behind it.
    let mut job = fabric.over.job(program);
    if let Some(port) = port {
        job = job.arg("-p").arg(port.to_string());
    }
    Ok(job.args(args).dir(&fabric.work))
}

/// Whether any process takes requests for the service of a port: such a one has a socket of that name.
fn is_listened_to(space: u64, port: u16) -> bool {
    let name = format!("/listen/{:#x}", space << 16 | u64::from(port));
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    sockets.lines().any(|line| line.ends_with(&name))
}
