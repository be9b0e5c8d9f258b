//! Between two hosts: each kind of MAD is lost sometimes, and either side is killed at each step of
//! a connection.

use super::hosts::site;
use super::{ADDRESS, Case, LIMIT, PLAIN, Site, TCP, UDP, both, compiled, nobody};
use crate::{Bench, Tally};
use std::time::Instant;
use xtask::namespaces::{Namespaces, SERVER};
use xtask::pair;
use xtask::process::{Job, PAUSE};

/// Three connections: the first of every two messages of a kind is lost.
const CONNECTIONS: Case = Case {
    server: &["ucmatose", "-c", "3", "-C", "2"],
    client: &["ucmatose", "-c", "3", "-C", "2", "-s", ADDRESS],
    ..PLAIN
};
/// The same by datagrams.
const DATAGRAMS: Case = Case {
    server: &["udaddy", "-c", "3", "-C", "2"],
    client: &["udaddy", "-c", "3", "-C", "2", "-s", ADDRESS],
    space: UDP,
    port: Some(7174),
    ..PLAIN
};

/// The sender of a kind of MAD.
enum Sender {
    Pair(&'static Case),
    /// The process that answers for a port without listener.
    Nobody,
    /// A slow server.
    Slow,
}

/// Attributes of the class of connection management (IBTA 1.7 16.7.2).
const KINDS: [(&str, u16, Sender); 9] = [
    ("REQ", 0x10, Sender::Pair(&CONNECTIONS)),
    ("MRA", 0x11, Sender::Slow),
    ("REJ", 0x12, Sender::Nobody),
    ("REP", 0x13, Sender::Pair(&CONNECTIONS)),
    ("RTU", READY, Sender::Pair(&CONNECTIONS)),
    ("DREQ", 0x15, Sender::Pair(&CONNECTIONS)),
    ("DREP", 0x16, Sender::Pair(&CONNECTIONS)),
    ("SIDR_REQ", 0x17, Sender::Pair(&DATAGRAMS)),
    ("SIDR_REP", 0x18, Sender::Pair(&DATAGRAMS)),
];
const READY: u16 = 0x14;

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    let at = site(bench, hosts, SERVER)?;
    // On both sides a further process has ids beside the connecting pair.
    let mut others = vec![];
    for side in 0..2 {
        let port = pair::free_port()?;
        let other = at.job(side, &["rping", "-s", "-a", "0.0.0.0"], Some(port))?;
        others.push(at.serve_at(side, bench, &other, TCP, port)?);
    }
    match Losses::begin(bench, hosts, READY, EACH) {
        Ok(_) => {}
        Err(why) => {
            tally.skip("MADs that are lost, and kills where an RTU is", &why);
            return killed(bench, tally, &at, hosts, false);
        }
    }
    for (kind, attribute, sender) in &KINDS {
        let name = format!("the first of every two {kind} is lost");
        bench.step(&format!("rdmacm: {name}"));
        tally.record(&name, lost(bench, &at, hosts, *attribute, sender));
    }
    killed(bench, tally, &at, hosts, true)
}

/// Which of a kind are lost, in the words of nft(8).
const FIRST_OF_TWO: &str = "numgen inc mod 2 0";
const EACH: &str = "";

/// Counts some packets on their arrival at a host and drops them if asked; ends when dropped.
pub(super) struct Losses<'a> {
    bench: &'a Bench,
    hosts: &'a Namespaces,
}

impl<'a> Losses<'a> {
    /// MADs of a kind are lost.
    ///
    /// # Errors
    /// The rule cannot be made: for people.
    fn begin(
        bench: &'a Bench,
        hosts: &'a Namespaces,
        attribute: u16,
        which: &str,
    ) -> Result<Self, String> {
        // A datagram of SEND, to QP 1.
        let which = format!("0x64 @th,104,24 1 @th,352,16 {attribute:#x} {which}");
        Self::rule(bench, hosts, &which, "drop")
    }

    /// Packets with an opcode are counted.
    ///
    /// # Errors
    /// The rule cannot be made: for people.
    pub(super) fn of_none(
        bench: &'a Bench,
        hosts: &'a Namespaces,
        opcode: u8,
    ) -> Result<Self, String> {
        Self::rule(bench, hosts, &format!("{opcode:#x}"), "accept")
    }

    /// `which`: the opcode and further conditions in the language of nft(8), with bit offsets from
    /// the UDP header.
    fn rule(
        bench: &'a Bench,
        hosts: &'a Namespaces,
        which: &str,
        what: &str,
    ) -> Result<Self, String> {
        let losses = Self { bench, hosts };
        let file = bench.scratch.fresh("losses");
        let rules = format!(
            "table inet losses {{\n counter lost {{ }}\n chain arriving {{\n \
             type filter hook prerouting priority -300; policy accept;\n \
             udp dport 4791 @th,64,8 {which} counter name lost {what}\n }}\n}}\n"
        );
        std::fs::write(&file, rules).map_err(|why| why.to_string())?;
        let file = file.display().to_string();
        for name in &hosts.names {
            losses.nft(name, &["-f", &file])?;
        }
        Ok(losses)
    }

    /// How many there were.
    pub(super) fn count(&self) -> Result<u64, String> {
        let mut all = 0;
        for name in &self.hosts.names {
            let said = self.nft(name, &["list", "counter", "inet", "losses", "lost"])?;
            let count = said.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
            all += count.and_then(|count| count.parse::<u64>().ok()).ok_or(said)?;
        }
        Ok(all)
    }

    fn nft(&self, host: &str, words: &[&str]) -> Result<String, String> {
        let job = Job::new("ip").args(["netns", "exec", host, "nft"]).args(words);
        let done = job.run(&self.bench.scratch, LIMIT)?;
        if done.ok() { Ok(done.stdout) } else { Err(done.stderr.trim().to_owned()) }
    }
}

impl Drop for Losses<'_> {
    fn drop(&mut self) {
        for name in &self.hosts.names {
            // A missing table needs no removal.
            let _gone = self.nft(name, &["delete", "table", "inet", "losses"]);
        }
    }
}

/// Some messages are lost without effect on the programs.
fn lost(
    bench: &Bench,
    at: &Site<'_>,
    hosts: &Namespaces,
    attribute: u16,
    sender: &Sender,
) -> Result<(), String> {
    let losses = Losses::begin(bench, hosts, attribute, FIRST_OF_TWO)?;
    match sender {
        Sender::Pair(case) => both(bench, at, case)?,
        Sender::Nobody => nobody(bench, at)?,
        Sender::Slow => slow(bench, at, &losses)?,
    }
    if losses.count()? > 0 { Ok(()) } else { Err("none was lost".to_owned()) }
}

/// A server answers only when it has asked for patience, in vain for once.
fn slow(bench: &Bench, at: &Site<'_>, losses: &Losses<'_>) -> Result<(), String> {
    let exe = compiled(bench, "slow_server")?.display().to_string();
    let sign = bench.scratch.fresh("sign");
    let mut server =
        at.job(0, &[&exe, "server", &sign.display().to_string()], None)?.start(&bench.scratch)?;
    let client = at.job(1, &[&exe, "client", ADDRESS], None)?.start(&bench.scratch)?;
    let deadline = Instant::now() + LIMIT;
    while losses.count()? == 0 && !server.ended() {
        std::thread::sleep(PAUSE);
    }
    std::fs::write(&sign, "").map_err(|why| why.to_string())?;
    let (server, client) = (server.finish(deadline), client.finish(deadline));
    if server.ok() && client.ok() {
        return Ok(());
    }
    Err(format!("{}{}", server.report("server"), client.report("client")))
}

/// Each step at which one side is killed, and the report of its peer.
fn killed(
    bench: &Bench,
    tally: &mut Tally,
    at: &Site<'_>,
    hosts: &Namespaces,
    can_lose: bool,
) -> crate::Result<()> {
    let exe = compiled(bench, "killed")?.display().to_string();
    let steps = at.job(0, &[&exe, "steps"], None)?.run(&bench.scratch, LIMIT)?;
    for step in steps.stdout.lines() {
        let needs_loss = step.starts_with("unheard");
        if needs_loss && !can_lose {
            continue;
        }
        let name = format!("two hosts, one is killed: {step}");
        bench.step(&format!("rdmacm: {name}"));
        let done = killed_once(bench, at, hosts, &exe, step);
        tally.record(&name, done);
    }
    Ok(())
}

/// Kills one side; the survivor reports what it learned.
fn killed_once(
    bench: &Bench,
    at: &Site<'_>,
    hosts: &Namespaces,
    exe: &str,
    step: &str,
) -> Result<(), String> {
    let needs_loss = step.starts_with("unheard");
    let losses = needs_loss.then(|| Losses::begin(bench, hosts, READY, EACH)).transpose()?;
    // On each host another process answers for the killed one.
    let job = |side, arguments: &[&str]| {
        let job = at.job(side, arguments, None)?;
        Ok::<_, String>(job.env("NEIGHBOUR", "1"))
    };
    let server = job(0, &[exe, "server", step])?.start(&bench.scratch)?;
    let client = job(1, &[exe, "client", step, ADDRESS])?.start(&bench.scratch)?;
    let deadline = Instant::now() + LIMIT;
    let (server, client) = (server.finish(deadline), client.finish(deadline));
    let left = if step.ends_with("server") { &client } else { &server };
    if !(left.ok() && left.stdout.contains(&format!("ok: {step}"))) {
        return Err(format!("{}{}", server.report("server"), client.report("client")));
    }
    match losses.map(|losses| losses.count()).transpose()? {
        Some(0) => Err("no RTU was lost".to_owned()),
        _ => Ok(()),
    }
}
