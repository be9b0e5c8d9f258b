//! A pair of programs: a server that listens on a TCP port, and its client.

use crate::process::{ExitReason, Finished, Job, PAUSE, Running};
use crate::scratch::Scratch;
use crate::sockets;
use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A server and a client that are both told the port by `-p`; the client also gets the server's
/// address as its last argument.
#[derive(Clone, Debug)]
pub struct Pair {
    server: Job,
    client: Job,
    port: u16,
    limit: Duration,
}

/// How a pair ended.
#[derive(Clone, Debug)]
pub struct PairResult {
    /// The side that listened.
    pub server: Finished,
    /// The side that connected.
    pub client: Finished,
}

impl PairResult {
    /// Whether both ended with status 0.
    pub fn ok(&self) -> bool {
        self.server.ok() && self.client.ok()
    }

    /// Everything that a person needs to see of a failure.
    pub fn report(&self) -> String {
        format!("{}{}", self.server.report("server"), self.client.report("client"))
    }
}

/// A pair in full swing.
#[derive(Debug)]
pub struct Started {
    /// The side that listens.
    pub server: Running,
    /// The side that connected.
    pub client: Running,
}

impl Pair {
    /// Both sides run `job`; it must finish within `limit`.
    pub fn of(job: Job, limit: Duration) -> crate::Result<Self> {
        Self::between(job.clone(), job, limit)
    }

    /// The two sides run different commands.
    pub fn between(server: Job, client: Job, limit: Duration) -> crate::Result<Self> {
        Self::with_port_options(server, client, ["-p", "-p"], limit)
    }

    /// As [`Pair::between`], with the options by which server and client are told the port.
    pub fn with_port_options(
        server: Job,
        client: Job,
        options: [&str; 2],
        limit: Duration,
    ) -> crate::Result<Self> {
        Self::at("127.0.0.1", server, client, options, limit)
    }

    /// As [`Pair::with_port_options`], with the server at another address, possibly in its own
    /// network namespace.
    pub fn at(
        address: &str,
        server: Job,
        client: Job,
        options: [&str; 2],
        limit: Duration,
    ) -> crate::Result<Self> {
        let port = free_port()?;
        let [server, client] = [(server, options[0]), (client, options[1])]
            .map(|(job, option)| job.arg(option).arg(port.to_string()));
        Ok(Self { server, client: client.arg(address), port, limit })
    }

    /// Starts the server, and the client as soon as the server listens.
    pub fn start(&self, scratch: &Scratch) -> crate::Result<Started> {
        let server = self.start_server(scratch)?.map_err(|server| {
            let listened =
                if server.end == ExitReason::TimedOut { "did not listen" } else { "ended" };
            let report = server.report("server");
            format!("the server {listened} before a client came\n{report}")
        })?;
        let client = self.client.start(scratch)?;
        Ok(Started { server, client })
    }

    /// The inner `Err` is a server that never listened.
    fn start_server(&self, scratch: &Scratch) -> crate::Result<Result<Running, Finished>> {
        let deadline = Instant::now() + self.limit;
        let mut server = self.server.start(scratch)?;
        while !(sockets::is_listened_to(self.port) || server.listens_on(self.port)) {
            if server.ended() || Instant::now() > deadline {
                return Ok(Err(server.finish(Instant::now())));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(Ok(server))
    }

    /// Runs both to their ends; no client if the server never listened.
    pub fn outcome(&self, scratch: &Scratch) -> crate::Result<(Finished, Option<Finished>)> {
        let deadline = Instant::now() + self.limit;
        let server = match self.start_server(scratch)? {
            Ok(server) => server,
            Err(server) => return Ok((server, None)),
        };
        let client = self.client.start(scratch)?;
        let ended = Self::wait_for_both(Started { server, client }, deadline);
        Ok((ended.server, Some(ended.client)))
    }

    /// Whether the client's connection has been made.
    pub fn connected(&self) -> bool {
        sockets::is_connected(self.port)
    }

    /// Runs both to their ends. `Err` holds a report of what failed.
    pub fn run(&self, scratch: &Scratch) -> crate::Result<PairResult> {
        let deadline = Instant::now() + self.limit;
        let ended = Self::wait_for_both(self.start(scratch)?, deadline);
        if ended.ok() {
            return Ok(ended);
        }
        let what = match (ended.server.end, ended.client.end) {
            (ExitReason::TimedOut, ExitReason::TimedOut) => "both sides hung",
            (ExitReason::TimedOut, _) => "the server hung",
            (_, ExitReason::TimedOut) => "the client hung",
            _ => "failed",
        };
        Err(format!("{what}\n{}", ended.report()))
    }

    /// Waits for both.
    fn wait_for_both(started: Started, deadline: Instant) -> PairResult {
        let Started { mut server, mut client } = started;
        // When one side fails, the other gets a little time to notice, and no more.
        let mut until = deadline;
        while Instant::now() < until && !(server.ended() && client.ended()) {
            if server.failed() || client.failed() {
                until = until.min(Instant::now() + GRACE);
                while Instant::now() < until && !(server.ended() && client.ended()) {
                    std::thread::sleep(PAUSE);
                }
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        let (client, server) = (client.finish(Instant::now()), server.finish(Instant::now()));
        PairResult { server, client }
    }
}

/// How long the second side may take to end after the first has failed.
const GRACE: Duration = Duration::from_secs(20);

/// A free port that no other program gets before the caller's program. The kernel gives ports of
/// `ip_local_port_range` (32768 and more) to clients, so this port lies below, and each port is
/// given once.
pub fn free_port() -> crate::Result<u16> {
    const FIRST: u32 = 10_000;
    const PORTS: u32 = 22_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test runs side by side begin at different ports.
    let begin = std::process::id().wrapping_mul(7919) % PORTS;
    for _ in 0..PORTS {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(FIRST + (begin + next) % PORTS).unwrap_or_default();
        if TcpListener::bind(("0.0.0.0", port)).is_ok()
            && UdpSocket::bind(("0.0.0.0", port)).is_ok()
        {
            return Ok(port);
        }
    }
    Err(format!("all TCP ports from {FIRST} on are taken"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_fails_at_once_is_reported_with_its_output() {
        let scratch = Scratch::new().unwrap();
        let job = Job::new("sh").args(["-c", "echo no device >&2; exit 7", "sh"]);
        let error = Pair::of(job, Duration::from_secs(10)).unwrap().run(&scratch).unwrap_err();
        assert!(error.contains("exit status 7") && error.contains("no device"), "{error}");
    }
}
