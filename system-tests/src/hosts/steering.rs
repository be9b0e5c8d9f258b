//! Three pairs between the same two hosts, whose processes share a port. With packet steering
//! nearly all packets reach the right process at once; without it they are forwarded.

use super::super::isolation::PairSetup;
use super::failures::{counted, wait};
use crate::{Bench, Tally};
use std::time::Instant;
use xtask::namespaces::Namespaces;
use xtask::process::{Job, Running};

/// Far more iterations than anybody waits for.
const PROGRAM: (&str, &[&str]) = ("ib_write_bw", &["-b", "-s", "1024", "-n", "20000000"]);
const PAIRS: usize = 3;
/// Packets that each side receives before the owners are known, when a window of packets may be in
/// flight, and packets after that.
const BEFORE: u64 = 3_000;
const AFTER: u64 = 30_000;
pub(super) const SWITCH: &str = "FERROVERBS_SOFT_STEERING";

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) {
    bench.step("hosts: three pairs, steered and not");
    tally.record("packets come to the right process", compare(bench, hosts));
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
    let place = PairSetup::wired(bench, hosts, "")?;
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
            let received = counted(bench, side, &["rcvd_pkts"])?;
            sum[0] += received;
            sum[1] += counted(bench, side, &["forwarded_pkts"])?;
            fewest = fewest.min(received);
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
