//! Packets that the kernel gives to a process of the host without their QP, because packet steering
//! is off. Such packets must reach the right process.

use super::super::isolation::{PairSetup, both_end_well};
use super::cluster::compiled;
use super::failures::{BESIDE, Bystanders, counted, wait};
use super::steering::SWITCH;
use crate::{Bench, Tally};
use xtask::namespaces::Namespaces;
use xtask::process::{Job, Running};

/// Sixteen QPs: without steering the kernel gives some of their packets to each process of the
/// host.
pub(super) const MANY: (&str, &[&str]) = ("ib_send_bw", &["-q", "16", "-s", "4096", "-n", "200"]);
/// The same over IPv6, beside a pair that sleeps and a pair that polls, both over IPv4 only.
const MANY_6: (&str, &[&str]) = ("ib_send_bw", &["-q", "16", "-s", "4096", "-n", "200", "-x", "2"]);
const POLLS: (&str, &[&str]) = ("ibv_rc_pingpong", &["-g", "1", "-n", "2000000000"]);

type Check = fn(&Bench, &Namespaces) -> Result<(), String>;

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) {
    let checks: [(&str, Check); 3] = [
        ("packets that come to who polls other queues", elsewhere),
        ("packets that come to who uses IPv4 alone, by IPv6", other_family),
        ("packets that come to a dead process whose child lives", child),
    ];
    for (name, check) in checks {
        bench.step(&format!("hosts: {name}"));
        tally.record(name, check(bench, hosts));
    }
}

fn unsteered(job: Job) -> Job {
    job.env(SWITCH, "off")
}

/// Many connections succeed beside the present processes.
fn many(
    bench: &Bench,
    place: &PairSetup<'_>,
    (program, args): (&str, &[&str]),
) -> Result<(), String> {
    both_end_well(place.start_with(bench, program, args, unsteered)?)
}

/// `idle_socket` on both hosts, once it says `output`.
fn start(
    bench: &Bench,
    place: &PairSetup<'_>,
    args: &[&str],
    output: &str,
) -> Result<Vec<Running>, String> {
    let program = compiled(bench, "idle_socket")?;
    let mut both = Vec::new();
    for side in 0..2 {
        let job = place.job(bench, side, &program.to_string_lossy(), args)?;
        let one = unsteered(job).start(&bench.scratch)?;
        wait("who is beside", || Ok(one.printed().contains(output)))?;
        both.push(one);
    }
    Ok(both)
}

/// A process of each host takes no part, and polls a queue that has to do with no other host.
fn elsewhere(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let mut others = start(bench, &place, &[], "polls")?;
    let well = many(bench, &place, MANY);
    let forwarded = counted(bench, &others[0], &["forwarded_pkts"])?;
    others.iter_mut().for_each(Running::kill);
    well?;
    if forwarded == 0 { Err("nothing came to who polls other queues".into()) } else { Ok(()) }
}

/// Processes of both hosts have no QP of the address family that the tested connections use.
fn other_family(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    for (program, args) in [BESIDE, POLLS] {
        let place = PairSetup::wired(bench, hosts, "")?;
        let mut beside = Bystanders::new(place.start_with(bench, program, args, unsteered)?);
        beside.go_on(bench)?;
        many(bench, &place, MANY_6)?;
        if counted(bench, beside.client(), &["forwarded_pkts"])? == 0 {
            return Err("nothing came to who uses the other family".into());
        }
        beside.end();
    }
    Ok(())
}

/// A process of each host was killed, and its child lives on. The child holds no sockets, so even
/// another fabric finds the port free.
fn child(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let mut children = start(bench, &place, &["child"], "lives")?;
    let well = many(bench, &place, MANY).and_then(|()| {
        let other = PairSetup::wired(bench, hosts, "")?;
        many(bench, &other, MANY)
    });
    children.iter_mut().for_each(Running::kill);
    well
}
