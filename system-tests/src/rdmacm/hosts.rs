//! The same programs between two hosts: two network namespaces with a cable, and QP 1 on the wire.

use super::losses;
use super::rsockets::{self, DATAGRAMS, STREAMS};
use super::{
    ADDRESS, CASES, Case, LIMIT, PLAIN, SOCKET, Site, TCP, TEN_THOUSAND, both, nobody,
    told_of_a_kill,
};
use crate::hosts::between;
use crate::{Bench, Checks, ENOUGH, Load, Tally, Tier};
use std::time::Instant;
use xtask::foreign::RPING_CHANNEL;
use xtask::launch::LaunchSettings;
use xtask::namespaces::{Namespaces, SERVER};
use xtask::pair;
use xtask::process::{Job, PAUSE};

/// The server's other address.
const SERVER6: &str = "fd99::1";

/// By IPv6.
const CASES6: &[Case] = &[
    Case {
        server: &["rping", "-s", "-V", "-C", "20", "-a", "::"],
        client: &["rping", "-c", "-V", "-v", "-C", "20", "-a", ADDRESS],
        says: "ping data: rdma-ping-19:",
        ..PLAIN
    },
    Case {
        // Without an address it is at IPv4's wildcard.
        server: &["ucmatose", "-c", "8", "-C", "20", "-S", "1000", "-f", "ipv6", "-b", "::"],
        client: &["ucmatose", "-c", "8", "-C", "20", "-S", "1000", "-f", "ipv6", "-s", ADDRESS],
        ..PLAIN
    },
    Case {
        server: &["rdma_server", "-s", "::"],
        client: &["rdma_client", "-s", ADDRESS],
        says: "rdma_client: end 0",
        ..PLAIN
    },
];

/// Cases over a cable that loses packets.
const LOSSY: &[Case] = &[
    Case {
        server: &["udpong", "-T", "e", "-C", "50", "-S", "1000", "-b", ADDRESS],
        client: &["udpong", "-T", "e", "-C", "50", "-S", "1000", "-s", ADDRESS],
        says: "custom",
        space: SOCKET,
        endless: true,
        ..PLAIN
    },
    Case {
        server: &["ucmatose", "-c", "16", "-C", "5"],
        client: &["ucmatose", "-c", "16", "-C", "5", "-s", ADDRESS],
        ..PLAIN
    },
    Case {
        server: &["cmtime"],
        client: &["cmtime", "-c", "30", "-s", ADDRESS],
        says: "connect      :",
        endless: true,
        ..PLAIN
    },
    Case {
        server: &["rstream", "-T", "v", "-S", "20000", "-C", "20", "-I", "5"],
        client: &["rstream", "-T", "v", "-S", "20000", "-C", "20", "-I", "5", "-s", ADDRESS],
        says: "custom",
        ..PLAIN
    },
];

/// The check after one side was killed.
type Killed<'a> = fn(&Bench, &Site<'a>, usize) -> Result<(), String>;

pub(super) fn register(checks: &mut Checks) {
    checks.tier(Tier::Short).load(Load::Pair);
    between(checks, "two hosts", clean);
    checks.load(Load::Waits);
    between(checks, "nobody is there", nobody_there);
    between(checks, "retries between two hosts", |bench, tally, _| {
        let patient = rsockets::RetryTests::begin(bench, tally);
        patient.end(bench, tally);
        Ok(())
    });
    checks.load(Load::Pair).tier(Tier::Full);
    between(checks, "ten thousand connections between two hosts", |bench, tally, hosts| {
        let many = both(bench, &site(bench, hosts, SERVER)?, &TEN_THOUSAND);
        tally.record("ten thousand connections between two hosts", many);
        Ok(())
    });
    between(checks, "addresses of two hosts", many_addresses);
    between(checks, "files and TCP programs between two hosts", |bench, tally, hosts| {
        rsockets::files(bench, tally, &site(bench, hosts, SERVER)?, " between two hosts");
        Ok(())
    });
    between(checks, "kills between two hosts", kills);
    between(checks, "losses of each message between two hosts", losses::run);
    between(checks, "losses between two hosts", lossy);
}

fn clean(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    let some =
        |cases: &'static [Case], address, what| cases.iter().map(move |c| (c, address, what));
    let clean = some(CASES, SERVER, "two hosts").chain(some(CASES6, SERVER6, "two hosts, IPv6"));
    let clean = clean.chain(some(STREAMS, SERVER, "two hosts"));
    let clean = clean.chain(some(DATAGRAMS, SERVER, "two hosts"));
    let clean = clean.chain(some(DATAGRAMS, SERVER6, "two hosts, IPv6"));
    for (case, address, what) in clean {
        if tally.failures().len() >= ENOUGH {
            return Ok(());
        }
        let name = format!("{}, {what}", case.client.join(" "));
        bench.step(&format!("rdmacm: {name}"));
        tally.record(&name, both(bench, &site(bench, hosts, address)?, case));
    }
    Ok(())
}

fn nobody_there(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    // The timeout is ten seconds, in which no other process of the host may start.
    let at = site(bench, hosts, SERVER)?;
    let asks = at.job(1, &["rping", "-c", "-C", "1", "-a", ADDRESS], None)?;
    let asks = asks.start(&bench.scratch)?;
    for absent in ABSENT {
        let name = format!("rping to {absent}, which nobody has");
        bench.step(&format!("rdmacm: {name}"));
        tally.record(&name, not_there(bench, hosts, absent));
    }
    let name = "rping to a host where nobody is";
    bench.step(&format!("rdmacm: {name}"));
    let asks = asks.finish(Instant::now() + LIMIT);
    let output = format!("{}{}", asks.stdout, asks.stderr);
    let is_unreachable = output.contains("RDMA_CM_EVENT_UNREACHABLE, error -111");
    tally.record(name, is_unreachable.then_some(()).ok_or_else(|| asks.report("the client")));
    let at = site(bench, hosts, SERVER)?;
    let listener = ["rping", "-s", "-a", "0.0.0.0"];
    let port = pair::free_port()?;
    let server = at.serve(bench, &at.job(0, &listener, Some(port))?, TCP, port)?;
    tally.record("nobody listens, another server is there: rejected", nobody(bench, &at));
    drop(server);
    Ok(())
}

fn many_addresses(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    for address in [SERVER, SERVER6] {
        let name = format!("mckey between two hosts, by {address}");
        bench.step(&format!("rdmacm: {name}"));
        tally.record(&name, multicast(bench, &site(bench, hosts, address)?));
    }
    for (client, what) in [(1, "two hosts"), (0, "one host")] {
        let name = format!("rping by link-local addresses, {what}");
        bench.step(&format!("rdmacm: {name}"));
        tally.record(&name, link_local(bench, hosts, client));
    }
    for others in [SERVER6, hosts.other_address(true)?] {
        let name = format!("listeners at {SERVER} and {others} have one port");
        bench.step(&format!("rdmacm: {name}"));
        tally.record(&name, addresses(bench, hosts, others));
    }
    Ok(())
}

fn kills(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    let listener = ["rping", "-s", "-a", "0.0.0.0"];
    for (victim, side) in rsockets::SIDES.iter().enumerate() {
        let at = site(bench, hosts, SERVER)?;
        let port = pair::free_port()?;
        let other = at.job(victim, &listener, Some(port))?;
        let other = at.serve_at(victim, bench, &other, TCP, port)?;
        let tests: [(&str, Killed<'_>); 2] =
            [("rping", told_of_a_kill), ("rstream", rsockets::killed)];
        for (program, run) in tests {
            let name = format!("{program} between two hosts, {side} is killed, but not all");
            bench.step(&format!("rdmacm: {name}"));
            tally.record(&name, run(bench, &at, victim));
        }
        drop(other);
    }
    Ok(())
}

fn lossy(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    match hosts.set_cable(1500, "loss 10%") {
        Ok(()) => {
            for case in LOSSY {
                let name = format!("{}, two hosts, 10 % lost", case.client.join(" "));
                bench.step(&format!("rdmacm: {name}"));
                tally.record(&name, both(bench, &site(bench, hosts, SERVER)?, case));
            }
        }
        Err(reason) => tally.skip("a cable that loses packets", &reason),
    }
    Ok(())
}

/// A server and its client that share only the cable.
pub(super) fn site<'a>(
    bench: &Bench,
    hosts: &'a Namespaces,
    address: &'static str,
) -> crate::Result<Site<'a>> {
    let side = || {
        let dir = bench.scratch.folder("host", 0o700)?;
        let over = LaunchSettings::new(bench.prefix()?, &bench.paths.target).fabric(&dir).wired();
        Ok::<_, String>((over, dir))
    };
    Ok(Site { sides: [side()?, side()?], namespaces: Some(hosts), address })
}

/// Addresses in the cable's networks without a machine.
const ABSENT: [&str; 2] = ["10.99.0.77", "fd99::77"];

/// An absent peer is not resolved: no answer in time, or the kernel gave up (errors 110 and 113).
fn not_there(bench: &Bench, hosts: &Namespaces, absent: &str) -> Result<(), String> {
    let site = site(bench, hosts, SERVER)?;
    let client = site.job(1, &["rping", "-c", "-C", "1", "-a", absent], None)?;
    super::expect_message(bench, &client, "RDMA_CM_EVENT_ADDR_ERROR, error -11")?;
    if absent.contains(':') {
        return Ok(());
    }
    let exe = super::compiled(bench, "no_such_host")?;
    let exe = exe.to_str().ok_or("the program's path is no text")?;
    super::all_ok(bench, site.job(1, &[exe, absent], None)?)
}

/// A client of one side and a server, each at the link-local address of its interface; the listener
/// binds that address, then any address.
fn link_local(bench: &Bench, hosts: &Namespaces, client: usize) -> Result<(), String> {
    let site = site(bench, hosts, SERVER)?;
    let own = hosts.link_local(0)?;
    let there = format!("{}%{}", own, hosts.devices[client]);
    for listener in ["::", &format!("{own}%{}", hosts.devices[0])] {
        let port = pair::free_port()?;
        let server = ["rping", "-s", "-V", "-C", "5", "-a", listener];
        let server = site.job(0, &server, Some(port))?;
        let server = site.serve(bench, &server, TCP, port)?;
        let asks = ["rping", "-c", "-V", "-v", "-C", "5", "-a", &there];
        let asks = site.job(client, &asks, Some(port))?.run(&bench.scratch, LIMIT)?;
        let server = server.finish(Instant::now() + LIMIT);
        let is_over = asks.ok() || RPING_CHANNEL.shows_in(&asks.stderr);
        if !asks.stdout.contains("ping data: rdma-ping-4:") || !is_over {
            return Err(format!("{}{}", server.report("server"), asks.report("client")));
        }
    }
    // Without its interface it is no address to listen at, as with the kernel.
    let refused = ["rping", "-s", "-C", "1", "-a", &own];
    let refused = site.job(0, &refused, Some(pair::free_port()?))?.run(&bench.scratch, LIMIT)?;
    if refused.stderr.contains("rdma_bind_addr: Invalid argument") {
        return Ok(());
    }
    Err(refused.report("a server without an interface"))
}

/// Two ids of a host at different addresses.
fn addresses(bench: &Bench, hosts: &Namespaces, other: &str) -> Result<(), String> {
    let exe = super::compiled(bench, "addresses")?;
    let site = site(bench, hosts, SERVER)?;
    let exe = exe.to_str().ok_or("the program's path is no text")?;
    super::all_ok(bench, site.job(0, &[exe, SERVER, other], None)?)
}

/// One host sends datagrams to a group, and the member on the second host receives all. The kernel
/// of the member lists the group's IP address (IBTA 1.7 A17.9.2).
fn multicast(bench: &Bench, site: &Site<'_>) -> Result<(), String> {
    let (group, file, shown, other) = match site.address {
        // As the kernel shows them: in its byte order, and verbatim.
        SERVER => ("239.77.1.2", "igmp", "02014DEF", "10.99.0.2"),
        _ => ("ff1e::7712", "igmp6", "ff1e0000000000000000000000007712", "fd99::2"),
    };
    let member = ["mckey", "-m", group, "-b", ADDRESS, "-C", "20"];
    let mut member = site.job(0, &member, None)?.start(&bench.scratch)?;
    let deadline = Instant::now() + LIMIT;
    let file = format!("/proc/net/{file}");
    let host = site.namespaces.map_or_else(String::new, |hosts| hosts.names[0].clone());
    let inspect = Job::new("ip").args(["netns", "exec", &host, "cat", &file]);
    while !inspect.run(&bench.scratch, LIMIT)?.stdout.contains(shown) {
        if member.ended() || Instant::now() > deadline {
            return Err(member.finish(deadline).report("the member did not join"));
        }
        std::thread::sleep(PAUSE);
    }
    let sender = ["mckey", "-m", group, "-b", other, "-s", "-C", "20"];
    let sender = site.job(1, &sender, None)?.run(&bench.scratch, LIMIT)?;
    let member = member.finish(deadline);
    if sender.ok() && member.ok() {
        return Ok(());
    }
    Err(format!("{}{}", member.report("member"), sender.report("sender")))
}
