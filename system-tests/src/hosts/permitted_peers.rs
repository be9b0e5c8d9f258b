//! Who may talk: `FERROVERBS_SOFT_PEERS` and `FERROVERBS_SOFT_INTERFACES`.

use super::super::isolation::{PairSetup, both_end_well};
use super::failures::counted;
use crate::{Bench, Tally};
use std::time::{Duration, Instant};
use xtask::namespaces::Namespaces;
use xtask::process::Job;

const PEERS: &str = "FERROVERBS_SOFT_PEERS";
const INTERFACES: &str = "FERROVERBS_SOFT_INTERFACES";
/// The network of both hosts, and a network without hosts.
const NETWORK: &str = "10.99.0.0/24,fd99::/64";
const STRANGERS: &str = "192.0.2.0/24";
/// The message about a host that is not allowed as peer.
const LINE: &str = "is none of those that FERROVERBS_SOFT_PEERS names";
/// The message about packets longer than the route allows.
const TOO_LONG: &str = "do not fit the route to 10.99.0.";
/// Time limit for the first refused packet.
const UNHEARD: Duration = Duration::from_secs(20);

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) {
    bench.step("hosts: who may talk");
    tally.record("hosts that are named talk, by interfaces that are named", named(bench, hosts));
    tally.record(
        "a host that is not named is told of once, and not connected with",
        refused_peer(bench, hosts),
    );
    tally.record(
        "what a host that is not named sends is dropped and counted",
        unheard(bench, hosts),
    );
    tally.record("a path MTU that the route does not carry is told of", too_long(bench, hosts));
    tally.record(
        "an interface that is not named has no address of the device",
        interface(bench, hosts),
    );
}

fn named(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let change = |job: Job| job.env(PEERS, NETWORK).env(INTERFACES, "fv*,nosuch");
    both_end_well(place.start_with(bench, "ib_send_bw", &["-n", "20", "-x", "1"], change)?)
}

fn refused_peer(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let change = |job: Job| job.env(PEERS, STRANGERS);
    let pair = place.start_with(bench, "ib_send_bw", &["-n", "20", "-x", "1"], change)?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let both = pair.map(|side| side.finish(deadline));
    let lines = |output: &str| output.matches(LINE).count();
    let right = both.iter().all(|side| !side.ok() && lines(&side.stderr) <= 1)
        && both.iter().any(|side| lines(&side.stderr) == 1);
    let [server, client] = &both;
    right
        .then_some(())
        .ok_or_else(|| format!("{}{}", server.report("server"), client.report("client")))
}

/// The server's UD QP accepts datagrams of any host with its Q_Key, unless the host is not allowed.
fn unheard(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let args = ["-c", "UD", "-n", "20", "-x", "1"];
    let limited = std::cell::Cell::new(true);
    // The server is the first.
    let change = |job: Job| if limited.replace(false) { job.env(PEERS, STRANGERS) } else { job };
    let [server, client] = place.start_with(bench, "ib_send_bw", &args, change)?;
    let end = Instant::now() + UNHEARD;
    let mut refused = 0;
    while refused == 0 && Instant::now() < end {
        refused = counted(bench, &server, &["rx_refused_pkts"])?;
    }
    let [client, server] = [client, server].map(|side| side.finish(Instant::now()));
    if refused > 0 && !server.ok() {
        return Ok(());
    }
    Err(format!("{refused} refused\n{}{}", server.report("server"), client.report("client")))
}

/// The cable carries 1500 bytes.
fn too_long(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    place.fail(bench, "ibv_rc_pingpong", &["-g", "1", "-m", "4096", "-s", "65536"], TOO_LONG)
}

fn interface(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let job = place.job(bench, 0, "ibv_devinfo", &["-v"])?;
    let all = job.clone().run(&bench.scratch, Duration::from_secs(30))?;
    let none = job.env(INTERFACES, "nosuch").run(&bench.scratch, Duration::from_secs(30))?;
    let has = |output: &str| output.contains("::ffff:10.99.0.1");
    if all.ok() && none.ok() && has(&all.stdout) && !has(&none.stdout) {
        return Ok(());
    }
    Err(format!("{}{}", all.report("without a limit"), none.report("with one")))
}
