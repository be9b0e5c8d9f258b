//! rsockets: programs of rdmacm-utils, and the error at one end when the peer process is killed.

use super::hosts::site;
use super::losses::Losses;
use super::{ADDRESS, Case, LIMIT, PLAIN, SOCKET, Site, TCP, compiled};
use crate::{Bench, Checks, Load, Tally, Tier};
use std::time::Instant;
use xtask::launch::DataPath;
use xtask::namespaces::{Namespaces, SERVER};
use xtask::pair;
use xtask::process::{ExitReason, Finished, Job, PAUSE, Running};

/// A case with the same options on both sides, which verifies its data (`-T v`).
macro_rules! stream {
    ($($word:literal),*) => {
        Case {
            server: &[$($word),*],
            client: &[$($word,)* "-s", ADDRESS],
            says: "custom",
            ..PLAIN
        }
    };
}

/// Blocking, non-blocking and by poll; sizes that do and do not fit a request, a buffer, and half a
/// buffer.
pub(super) const STREAMS: &[Case] = &[
    stream!("rstream", "-T", "v", "-T", "b", "-S", "100000", "-C", "20", "-I", "20"),
    stream!("rstream", "-T", "v", "-T", "n", "-S", "1000000", "-C", "5", "-I", "5"),
    stream!("rstream", "-T", "v", "-T", "a", "-S", "5000", "-C", "100", "-I", "20"),
    stream!("rstream", "-T", "v", "-S", "64", "-C", "100", "-I", "50", "-i", "0"),
    stream!("rstream", "-T", "v", "-S", "3000", "-C", "100", "-I", "20", "-B", "8192"),
    stream!("riostream", "-T", "v", "-S", "100000", "-C", "20", "-I", "20"),
    stream!("riostream", "-T", "v", "-T", "n", "-S", "4096", "-C", "20", "-I", "20", "-i", "0"),
];

/// The same with a datagram server that answers for ever at a given address.
macro_rules! datagrams {
    ($($word:literal),*) => {
        Case {
            server: &["udpong", $($word,)* "-b", ADDRESS],
            client: &["udpong", $($word,)* "-s", ADDRESS],
            says: "custom",
            space: SOCKET,
            endless: true,
            ..PLAIN
        }
    };
}

/// What fits any path: the least MTU has room for 1024 bytes and what is before a datagram.
pub(super) const DATAGRAMS: &[Case] = &[
    datagrams!("-C", "500", "-S", "1000"),
    datagrams!("-T", "e", "-C", "200", "-S", "64"),
    datagrams!("-T", "b", "-T", "a", "-T", "e", "-C", "100", "-S", "500", "-B", "65536"),
];

/// CPU time in clock ticks since the listen that shows an active exchange.
const TALK: u64 = 10;

/// Processor time of a process (proc(5): utime and stime).
fn ticks(of: &Running) -> Result<u64, String> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", of.id()));
    let text = text.map_err(|why| why.to_string())?;
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    Ok(fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum())
}

/// Who may be killed.
pub(super) const SIDES: [&str; 2] = ["the server", "the client"];

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::Pair).tier(Tier::Short);
    checks.many("rsockets", |bench, tally| super::cases(bench, tally, DataPath::Default, all()));
    checks.many("files and TCP programs over rsockets", |bench, tally| {
        files(bench, tally, &Site::here(&bench.over(DataPath::Default)?), "");
        Ok(())
    });
    for victim in [0, 1] {
        checks.one(format!("rstream, {} is killed", SIDES[victim]), move |bench| {
            killed(bench, &Site::here(&bench.over(DataPath::Default)?), victim)
        });
    }
    checks.tier(Tier::Full);
    checks
        .many("rsockets, CMA off", |bench, tally| super::cases(bench, tally, DataPath::Off, all()));
}

/// Streams, then datagrams.
fn all() -> impl Iterator<Item = &'static Case> {
    STREAMS.iter().chain(DATAGRAMS)
}

/// A TCP program, or a server and its client.
type Program<'a> = fn(&Bench, &Site<'a>) -> Result<(), Web>;

/// Files, and the traffic of TCP programs; `place` follows each name.
pub(super) fn files(bench: &Bench, tally: &mut Tally, site: &Site<'_>, place: &str) {
    bench.step(&format!("rdmacm: files and TCP programs{place}"));
    tally.record(&format!("rcopy{place}"), copy(bench, site));
    let programs: [(&str, Program<'_>); 3] = [
        ("a web server and curl over rsockets", web),
        ("a server that waits by epoll and curl over rsockets", by_epoll),
        ("iperf3 over rsockets", throughput),
    ];
    for (what, run) in programs {
        let name = format!("{what}{place}");
        match run(bench, site) {
            Err(Web::Missing(program)) => tally.skip(&name, &program),
            Err(Web::Failed(why)) => tally.record(&name, Err(why)),
            Ok(()) => tally.record(&name, Ok(())),
        }
    }
}

/// A file arrives unchanged.
fn copy(bench: &Bench, site: &Site<'_>) -> Result<(), String> {
    let port = pair::free_port()?;
    let mut server = site.serve(bench, &site.job(0, &["rcopy"], Some(port))?, TCP, port)?;
    // Where the programs' user may write.
    let (from, to) = (bench.scratch.fresh("original"), site.sides[0].1.join("copy"));
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|n| (n * 31 + n / 253) as u8).collect();
    std::fs::write(&from, &bytes).map_err(|why| why.to_string())?;
    let (from, target) = (from.display().to_string(), format!("{}:{}", site.address, to.display()));
    // The program takes its options behind the names only.
    let port = port.to_string();
    let client = site.job(1, &["rcopy", &from, &target, "-p", &port], None)?;
    let client = client.run(&bench.scratch, LIMIT)?;
    server.kill();
    let server = server.finish(Instant::now() + LIMIT);
    if client.ok() && std::fs::read(&to).is_ok_and(|copied| copied == bytes) {
        return Ok(());
    }
    Err(format!("{}{}", server.report("server"), client.report("client")))
}

/// How the test of TCP programs did not succeed.
enum Web {
    /// Programs that are not installed.
    Missing(String),
    Failed(String),
}

impl From<String> for Web {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Looks for programs.
fn find(bench: &Bench, programs: &[&str]) -> Result<(), Web> {
    for program in programs {
        let there = Job::new(program).args(["--version"]).run(&bench.scratch, LIMIT);
        if !there.is_ok_and(|done| done.ok()) {
            return Err(Web::Missing(format!("there is no {program}")));
        }
    }
    Ok(())
}

/// iperf3, a TCP program: one direction, then the reverse direction by four streams.
fn throughput(bench: &Bench, site: &Site<'_>) -> Result<(), Web> {
    find(bench, &["iperf3"])?;
    let library = bench.prefix()?.join(xtask::stage::PRELOAD);
    for more in [&["-n", "20M"][..], &["-R", "-P", "4", "-n", "20M"]] {
        let number = pair::free_port()?;
        let port = number.to_string();
        let server = site.job(0, &["iperf3", "-s", "-1", "-p", &port, "-B", site.address], None)?;
        let server = site.serve(bench, &server.env("LD_PRELOAD", &library), TCP, number)?;
        let client = [&["iperf3", "-c", site.address, "-p", &port], more].concat();
        let client = site.job(1, &client, None)?.env("LD_PRELOAD", &library);
        let client = client.run(&bench.scratch, LIMIT)?;
        let server = server.finish(Instant::now() + LIMIT);
        if !(client.ok() && server.ok() && client.stdout.contains("iperf Done.")) {
            return Err(Web::Failed(format!(
                "{}{}",
                server.report("server"),
                client.report("client")
            )));
        }
    }
    Ok(())
}

/// Python's web server and curl, neither of which knows RDMA, get a file across by librspreload.
fn web(bench: &Bench, site: &Site<'_>) -> Result<(), Web> {
    served(bench, site, |port| vec!["python3", "-m", "http.server", port, "--bind", site.address])
}

/// The same of asyncio, which waits by epoll(7).
fn by_epoll(bench: &Bench, site: &Site<'_>) -> Result<(), Web> {
    const SERVER: &str = "
import asyncio, sys
async def answer(reader, writer):
    await reader.readuntil(b'\\r\\n\\r\\n')
    writer.write(b'HTTP/1.0 200 OK\\r\\n\\r\\n' + open('file', 'rb').read())
    await writer.drain()
    writer.close()
async def main():
    assert 'Epoll' in type(asyncio.get_running_loop()._selector).__name__
    server = await asyncio.start_server(answer, sys.argv[1], int(sys.argv[2]))
    await server.serve_forever()
asyncio.run(main())";
    served(bench, site, |port| vec!["python3", "-c", SERVER, site.address, port])
}

/// A command serves a file at a port, and curl fetches the file by librspreload. A curl without
/// librspreload finds no server, which excludes TCP.
fn served(
    bench: &Bench,
    site: &Site<'_>,
    command: impl for<'a> Fn(&'a str) -> Vec<&'a str>,
) -> Result<(), Web> {
    find(bench, &["python3", "curl"])?;
    let library = bench.prefix()?.join(xtask::stage::PRELOAD);
    let folder = bench.scratch.folder("web", 0o755)?;
    let bytes: Vec<u8> = (0..2_000_003_u32).map(|n| (n * 17 + n / 255) as u8).collect();
    std::fs::write(folder.join("file"), &bytes).map_err(|why| why.to_string())?;
    let port = pair::free_port()?.to_string();
    let number = port.parse().map_err(|_| "no port".to_owned())?;
    let server = site.job(0, &command(&port), None)?.env("LD_PRELOAD", &library).dir(&folder);
    let mut server = site.serve(bench, &server, TCP, number)?;
    let url = format!("http://{}:{port}/file", site.address);
    let page = site.sides[1].1.join("page");
    let to = page.display().to_string();
    let get = ["curl", "-sS", "--noproxy", "*", "-o", &to, &url];
    let plain = site.job(1, &get, None)?.run(&bench.scratch, LIMIT)?;
    let client = site.job(1, &get, None)?.env("LD_PRELOAD", &library);
    let client = client.run(&bench.scratch, LIMIT)?;
    server.kill();
    let server = server.finish(Instant::now() + LIMIT);
    if plain.ok() {
        return Err(Web::Failed("the server is there by TCP, too".into()));
    }
    if client.ok() && std::fs::read(&page).is_ok_and(|got| got == bytes) {
        return Ok(());
    }
    Err(Web::Failed(format!("{}{}", server.report("server"), client.report("client"))))
}

/// One end is killed while both exchange data; its peer gets the end of the connection, and does
/// not wait for ever.
pub(super) fn killed(bench: &Bench, site: &Site<'_>, victim: usize) -> Result<(), String> {
    talking(bench, site, victim)?.expect_reset()
}

/// Two ends of a stream talk, and one is killed.
fn talking(bench: &Bench, site: &Site<'_>, victim: usize) -> Result<Survivor, String> {
    let talk = ["rstream", "-T", "b", "-S", "64", "-C", "1000000", "-I", "1000000"];
    let client = [&talk[..], &["-s", ADDRESS]].concat();
    Survivor::of(bench, site, victim, [&talk, &client])
}

/// Runs a server and a client, and kills one during the exchange; returns how its peer ended.
pub(super) fn killed_while(
    bench: &Bench,
    site: &Site<'_>,
    victim: usize,
    commands: [&[&str]; 2],
) -> Result<Finished, String> {
    Survivor::of(bench, site, victim, commands)?.end()
}

/// Who is left of a server and a client.
struct Survivor {
    who: &'static str,
    process: Running,
    deadline: Instant,
}

impl Survivor {
    /// Runs a server and a client, and kills one during the exchange.
    fn of(
        bench: &Bench,
        site: &Site<'_>,
        victim: usize,
        commands: [&[&str]; 2],
    ) -> Result<Self, String> {
        let port = pair::free_port()?;
        let server = site.serve(bench, &site.job(0, commands[0], Some(port))?, TCP, port)?;
        let client = site.job(1, commands[1], Some(port))?.start(&bench.scratch)?;
        let deadline = Instant::now() + LIMIT;
        let mut both = [server, client];
        let begun = ticks(&both[0])?;
        while ticks(&both[0])? < begun + TALK {
            if both.iter_mut().any(Running::ended) || Instant::now() > deadline {
                let ends = both.map(|one| one.finish(Instant::now()));
                return Err(format!("{}{}", ends[0].report("server"), ends[1].report("client")));
            }
            std::thread::sleep(PAUSE);
        }
        both[victim].kill();
        let [server, client] = both;
        let process = if victim == 0 { client } else { server };
        Ok(Self { who: SIDES[1 - victim], process, deadline })
    }

    /// How it ended.
    fn end(self) -> Result<Finished, String> {
        let done = self.process.finish(self.deadline);
        if done.end == ExitReason::TimedOut {
            return Err(done.report(&format!("{} waits", self.who)));
        }
        Ok(done)
    }

    /// The survivor gets the end of the connection.
    fn expect_reset(self) -> Result<(), String> {
        let who = self.who;
        let done = self.end()?;
        let is_reset = !done.ok() && done.stderr.contains("Connection reset by peer");
        is_reset.then_some(()).ok_or_else(|| done.report(who))
    }
}

/// Tests that take all retries of an adapter, most of a minute. They run beside further tests, each
/// between its own two hosts.
pub(super) struct RetryTests {
    killed_peer: Result<(Survivor, Namespaces), String>,
    idle: Result<IdleStream, String>,
}

impl RetryTests {
    /// Between hosts one victim suffices; on one host both sides are tried.
    const VICTIM: usize = 0;

    pub(super) fn begin(bench: &Bench, tally: &mut Tally) -> Self {
        bench.step("rdmacm: a stream whose other end is killed, and one whose cable is cut");
        let killed_peer = || {
            let hosts = Namespaces::new()?;
            let left = talking(bench, &site(bench, &hosts, SERVER)?, Self::VICTIM)?;
            Ok((left, hosts))
        };
        Self { killed_peer: killed_peer(), idle: IdleStream::begin(bench, tally) }
    }

    pub(super) fn end(self, bench: &Bench, tally: &mut Tally) {
        let name = format!("rstream between two hosts, {} is killed", SIDES[Self::VICTIM]);
        bench.step(&format!("rdmacm: {name}"));
        tally.record(&name, self.killed_peer.and_then(|(left, _hosts)| left.expect_reset()));
        let name = "an idle rsocket whose peer's cable is cut (SO_KEEPALIVE)";
        bench.step(&format!("rdmacm: {name}"));
        tally.record(name, self.idle.and_then(IdleStream::end));
    }
}

/// An idle stream between its own two hosts, whose cable was cut.
struct IdleStream {
    server: Running,
    _client: Running,
    _hosts: Namespaces,
}

impl IdleStream {
    /// Makes the stream, checks that keepalive packets go over the wire, and cuts the cable.
    ///
    /// # Errors
    /// No stream, or no keepalive packet, as a message.
    fn begin(bench: &Bench, tally: &mut Tally) -> Result<Self, String> {
        /// The opcode of an RDMA WRITE of one packet, without immediate data (IBTA 1.7 9.2).
        const WRITE: u8 = 0x0a;
        let hosts = Namespaces::new()?;
        let at = site(bench, &hosts, SERVER)?;
        let exe = compiled(bench, "idle")?.display().to_string();
        let sign = bench.scratch.fresh("sign");
        let words = [&exe, "server", &sign.display().to_string()];
        let mut server = at.job(0, &words, None)?.start(&bench.scratch)?;
        let client = at.job(1, &[&exe, "client", ADDRESS], None)?.start(&bench.scratch)?;
        let deadline = Instant::now() + LIMIT;
        let mut wait = |what: &str, is_so: &dyn Fn() -> Result<bool, String>| {
            while !is_so()? {
                if server.ended() || Instant::now() > deadline {
                    return Err(what.to_owned());
                }
                std::thread::sleep(PAUSE);
            }
            Ok(())
        };
        wait("they do not connect", &|| Ok(sign.exists()))?;
        match Losses::of_none(bench, &hosts, WRITE) {
            Ok(writes) => wait("the peer is not asked for", &|| Ok(writes.count()? > 1))?,
            Err(why) => tally.skip("what keeps an rsocket alive, on the wire", &why),
        }
        hosts.plug(false)?;
        Ok(Self { server, _client: client, _hosts: hosts })
    }

    /// The server noticed the loss of its peer.
    ///
    /// # Errors
    /// The server's report otherwise.
    fn end(self) -> Result<(), String> {
        let server = self.server.finish(Instant::now() + LIMIT);
        if server.ok() { Ok(()) } else { Err(server.report("server")) }
    }
}
