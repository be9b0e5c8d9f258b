//! Switches that mark packets instead of dropping them (ECN, RFC 3168): the receiver of a marked
//! packet notifies its sender, which slows down.

use super::super::isolation::{PairSetup, both_end_well};
use super::failures::{counted, wait};
use crate::{Bench, Tally};
use xtask::namespaces::Namespaces;
use xtask::process::Running;

/// Marks soft's packets; packets that cannot carry a mark stay unmarked.
const IMPAIRMENT: &str = "mark=5% seed=1";

/// Messages of many packets, by both families.
const PROGRAM: &str = "ib_write_bw";
const ARGS: [&[&str]; 2] =
    [&["-D", "2", "-s", "65536", "-x", "1"], &["-D", "2", "-s", "65536", "-x", "2"]];

/// Counters of the receiver: marked packets, and notifications sent.
const TOLD: [&str; 2] = ["np_ecn_marked_roce_packets", "np_cnp_sent"];
/// Counter of the sender: notifications received.
const HANDLED: &str = "rp_cnp_handled";

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) {
    for args in ARGS {
        let name = format!("{PROGRAM} {}, {IMPAIRMENT}", args.join(" "));
        bench.step(&format!("hosts: {name}"));
        tally.record(&name, marked(bench, hosts, args));
    }
    bench.step("hosts: no marks");
    tally.record("where nothing is marked nobody is told", unmarked(bench, hosts));
}

fn marked(bench: &Bench, hosts: &Namespaces, args: &[&str]) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, IMPAIRMENT)?;
    let [server, mut client] = place.start(bench, PROGRAM, args)?;
    let reported = wait("marks and what comes of them", || {
        if client.ended() {
            return Err(format!("it ended, and not all of {TOLD:?} and {HANDLED} rose"));
        }
        Ok(rose(bench, &server, TOLD[0])?
            && rose(bench, &server, TOLD[1])?
            && rose(bench, &client, HANDLED)?)
    });
    both_end_well([server, client]).and(reported)
}

fn unmarked(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let [server, mut client] = place.start(bench, PROGRAM, ARGS[0])?;
    let reported = wait("many packets", || {
        if client.ended() {
            return Err("it ended before".into());
        }
        Ok(counted(bench, &server, &["rcvd_pkts"])? > 10_000)
    });
    let reported = reported.and_then(|()| match rose(bench, &server, TOLD[0])? {
        true => Err(format!("{} rose", TOLD[0])),
        false => Ok(()),
    });
    both_end_well([server, client]).and(reported)
}

fn rose(bench: &Bench, of: &Running, counter: &str) -> Result<bool, String> {
    Ok(counted(bench, of, &[counter])? > 0)
}
