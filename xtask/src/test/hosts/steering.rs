//! Three pairs of the same two hosts, whose processes share a port: with steering nearly all packets come to the right process at once, and without it
//! they are passed on; also by a process whose program does not look there.

use super::super::meeting::{Place, both_end_well};
use super::super::{Bench, Tally};
use super::accidents::{BESIDE, Bystanders, counted, wait};
use super::cluster::compiled;
use crate::namespaces::Namespaces;
use crate::process::{Job, Running};
use std::time::Instant;

/// Far more iterations than anybody waits for.
const PROGRAM: (&str, &[&str]) = ("ib_write_bw", &["-b", "-s", "1024", "-n", "20000000"]);
const PAIRS: usize = 3;
/// Packets that each side gets before places are known, when a window of them may be under way, and those of all after.
const BEFORE: u64 = 3_000;
const AFTER: u64 = 30_000;
/// Sixteen queue pairs, of whose packets the kernel gives some to each process of the host.
const MANY: (&str, &[&str]) = ("ib_send_bw", &["-q", "16", "-s", "4096", "-n", "200"]);
/// The same by IPv6, beside a pair that sleeps and one that polls, both by IPv4 alone.
const MANY_6: (&str, &[&str]) = ("ib_send_bw", &["-q", "16", "-s", "4096", "-n", "200", "-x", "2"]);
const POLLS: (&str, &[&str]) = ("ibv_rc_pingpong", &["-g", "1", "-n", "2000000000"]);
const SWITCH: &str = "FERROVERBS_SOFT_STEERING";

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) {
    bench.step("hosts: three pairs, steered and not");
    tally.record("packets come to the right process", compare(bench, hosts));
    bench.step("hosts: packets that come to who looks elsewhere");
    tally.record("packets that come to who polls other queues", elsewhere(bench, hosts));
    let name = "packets that come to who uses IPv4 alone, by IPv6";
    bench.step(&format!("hosts: {name}"));
    tally.record(name, other_family(bench, hosts));
}

/// Processes of both hosts have no queue pair of the family of addresses by which others are connected.
fn other_family(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    for (program, args) in [BESIDE, POLLS] {
        let place = Place::wired(bench, hosts, "")?;
        let unsteered = |job: Job| job.env(SWITCH, "off");
        let mut beside = Bystanders::new(place.start_with(bench, program, args, unsteered)?);
        beside.go_on(bench)?;
        let (program, args) = MANY_6;
        both_end_well(place.start_with(bench, program, args, unsteered)?)?;
        if counted(bench, beside.client(), &["forwarded_pkts"])? == 0 {
            return Err("nothing came to who uses the other family".into());
        }
        beside.end();
    }
    Ok(())
}

/// A process of each host takes no part, and polls a queue that has to do with no other host.
fn elsewhere(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = Place::wired(bench, hosts, "")?;
    let program = compiled(bench, "elsewhere")?;
    let mut others = Vec::new();
    for side in 0..2 {
        let job = place.job(bench, side, &program.to_string_lossy(), &[])?;
        let other = job.env(SWITCH, "off").start(&bench.scratch)?;
        wait("who polls", || Ok(other.printed().contains("polls")))?;
        others.push(other);
    }
    let (program, args) = MANY;
    let pair = place.start_with(bench, program, args, |job| job.env(SWITCH, "off"))?;
    let well = both_end_well(pair);
    let forwarded = counted(bench, &others[0], &["forwarded_pkts"])?;
    others.iter_mut().for_each(Running::kill);
    well?;
    if forwarded == 0 {
        return Err("nothing came to who polls other queues".into());
    }
    Ok(())
}

fn compare(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let steered = passed_on(bench, hosts, "on")?;
    let not = passed_on(bench, hosts, "off")?;
    bench.step(&format!("hosts: of 1000 packets {steered} were passed on, without steering {not}"));
    // By chance the kernel may be right without being told.
    if steered <= 20 && steered <= not {
        return Ok(());
    }
    Err(format!("of 1000 packets {steered} were passed on, and {not} without steering"))
}

/// How many of a thousand packets came to the wrong process, after a while.
fn passed_on(bench: &Bench, hosts: &Namespaces, steering: &str) -> Result<u64, String> {
    let place = Place::wired(bench, hosts, "")?;
    let (program, args) = PROGRAM;
    let tell = |job: Job| job.env(SWITCH, steering);
    let mut sides = Vec::new();
    for _ in 0..PAIRS {
        sides.extend(place.start_with(bench, program, args, tell)?);
    }
    let counted = measure(bench, &mut sides);
    sides.iter_mut().for_each(Running::kill);
    for side in sides {
        side.finish(Instant::now());
    }
    counted
}

fn measure(bench: &Bench, sides: &mut [Running]) -> Result<u64, String> {
    let count = |sides: &mut [Running]| {
        let mut sum = [0; 2];
        let mut fewest = u64::MAX;
        for side in sides {
            if side.ended() {
                return Err("ended by itself".to_owned());
            }
            let came = counted(bench, side, &["rcvd_pkts"])?;
            sum[0] += came;
            sum[1] += counted(bench, side, &["forwarded_pkts"])?;
            fewest = fewest.min(came);
        }
        Ok((sum, fewest))
    };
    let mut last = [0; 2];
    let mut until = |of_each, of_all| {
        wait("packets", || {
            let (sum, fewest) = count(sides)?;
            last = sum;
            Ok(fewest > of_each && sum[0] > of_all)
        })?;
        Ok::<_, String>(last)
    };
    let first = until(BEFORE, 0)?;
    let after = until(0, first[0] + AFTER)?;
    Ok(1000 * (after[1] - first[1]) / (after[0] - first[0]))
}
