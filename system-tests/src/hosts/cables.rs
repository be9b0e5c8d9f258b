//! Two cables between the hosts, one of which is unplugged. Connections over the second cable
//! continue, and programs get the events.

use super::super::isolation::PairSetup;
use super::cluster::compiled;
use super::failures::{Bystanders, RETRY_EXCEEDED, counted, wait};
use crate::{Bench, Tally};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use xtask::namespaces::{Namespaces, SECOND, SERVER};
use xtask::process::{Job, Running};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A transfer that runs as long as needed.
const ENDLESS: &[&str] = &["-s", "65536", "-n", "20000000"];
/// Timeouts of a second, and of a thirtieth, eight times over.
const PATIENT: &str = "18";
const HASTY: &str = "13";

/// Events by name (ibv_event_type_str(3)), as `gid_watch` prints them.
const GID_CHANGE: &str = "GID_table_change";
const PORT_ERR: &str = "port_error";
const PORT_ACTIVE: &str = "port_active";

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    bench.step("hosts: two cables, of which one goes");
    hosts.lay_second()?;
    tally.record("two cables, of which one goes", both(bench, hosts));
    hosts.plug(true)?;
    hosts.remove_second()
}

/// A program that prints the GID table of a side, and each event with what the table is then.
struct Watcher(Running);

/// A GID table without link-local addresses, which appear later because the kernel first checks for
/// duplicates.
type Table = BTreeMap<u8, String>;

impl Watcher {
    fn start(bench: &Bench, place: &PairSetup<'_>, side: usize) -> Result<Self, String> {
        let program = compiled(bench, "gid_watch")?;
        let job: Job = place.job(bench, side, &program.to_string_lossy(), &[])?;
        let watcher = Self(job.start(&bench.scratch)?);
        wait("gid_watch", || Ok(!watcher.lines()?.is_empty()))?;
        Ok(watcher)
    }

    /// The events so far, each with the GID table after it.
    fn lines(&self) -> Result<Vec<(String, Table)>, String> {
        let printed = self.0.printed();
        // The last one may not be whole.
        let lines = printed.lines().filter_map(|line| line.strip_suffix(" ."));
        lines.map(|line| parse(line).ok_or_else(|| format!("gid_watch: {line}"))).collect()
    }

    /// Which events came, without the line before them.
    fn events(&self) -> Result<Vec<String>, String> {
        Ok(self.lines()?.into_iter().skip(1).map(|(event, _)| event).collect())
    }

    fn table(&self) -> Result<Table, String> {
        Ok(self.lines()?.pop().map(|(_, table)| table).unwrap_or_default())
    }

    /// Waits for the table to be `wanted`, of which the last event tells.
    fn until(&self, wanted: &Table) -> Result<(), String> {
        wait(&format!("the GID table {wanted:?}"), || Ok(self.table()? == *wanted))
    }
}

fn parse(line: &str) -> Option<(String, Table)> {
    let mut words = line.split(' ');
    let event = words.next()?.to_owned();
    let entry = |word: &str| {
        let (index, gid) = word.split_once('=')?;
        Some((index.parse().ok()?, gid.to_owned()))
    };
    let table = words.map(entry).collect::<Option<Table>>()?;
    Some((event, table.into_iter().filter(|(_, gid)| !gid.starts_with("fe80:")).collect()))
}

/// Where an IPv4 address is in a table.
fn place_of(address: &str, table: &Table) -> Result<u8, String> {
    let wanted = format!("::ffff:{address}");
    let found = table.iter().find(|(_, gid)| **gid == wanted);
    found.map(|(index, _)| *index).ok_or_else(|| format!("{wanted} is not in {table:?}"))
}

fn both(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let watchers = [Watcher::start(bench, &place, 0)?, Watcher::start(bench, &place, 1)?];
    let whole = [watchers[0].table()?, watchers[1].table()?];
    if place_of(SECOND[0], &whole[0])? != place_of(SECOND[1], &whole[1])? {
        return Err(format!("each side has another index: {whole:?}"));
    }
    let start = |address: &str, timeout: &str| {
        let index = place_of(address, &whole[0])?.to_string();
        let args = [ENDLESS, &["-x", &index, "-u", timeout]].concat();
        place.start(bench, "ib_write_bw", &args).map_err(|e| format!("over {address}: {e}"))
    };
    let mut first = Bystanders::new(start(SERVER, PATIENT)?);
    let mut second = Bystanders::new(start(SECOND[0], PATIENT)?);
    first.go_on(bench)?;
    second.go_on(bench)?;
    // The server's interface goes down, with its address, and comes back in time.
    let mut without = whole.clone();
    for (table, address) in without.iter_mut().zip(SECOND) {
        table.remove(&place_of(address, table)?);
    }
    hosts.plug_second(0, false)?;
    watchers[0].until(&without[0])?;
    first.go_on(bench)?;
    hosts.plug_second(0, true)?;
    watchers[0].until(&whole[0])?;
    second.go_on(bench)?;
    second.end();
    // The client's goes for good.
    let [mut server, mut client] = start(SECOND[0], HASTY)?;
    wait("packets over the second cable", || Ok(counted(bench, &client, &["sent_pkts"])? > 1000))?;
    hosts.plug_second(1, false)?;
    hosts.address_second(1, false)?;
    watchers[1].until(&without[1])?;
    wait("the end of who works over it", || Ok(client.ended()))?;
    let output = client.finish(Instant::now() + LIMIT);
    server.kill();
    let server = server.finish(Instant::now() + LIMIT);
    if !format!("{}{}", output.stdout, output.stderr).contains(RETRY_EXCEEDED) {
        return Err(format!("{}{}", output.report("client"), server.report("server")));
    }
    first.go_on(bench)?;
    for watcher in &watchers {
        let events = watcher.events()?;
        if events.iter().any(|event| event != GID_CHANGE) {
            return Err(format!("a host with a cable left was told {events:?}"));
        }
    }
    // Unplugs the last cable of the host.
    hosts.plug_second(0, false)?;
    hosts.plug(false)?;
    let reported = |wanted: &str| {
        wait(wanted, || Ok(watchers[0].events()?.iter().any(|event| event == wanted)))
    };
    let lost = reported(PORT_ERR);
    hosts.plug(true)?;
    lost?;
    reported(PORT_ACTIVE)?;
    first.go_on(bench)?;
    first.end();
    for mut watcher in watchers {
        watcher.0.kill();
        watcher.0.finish(Instant::now() + LIMIT);
    }
    Ok(())
}
