//! Processes that are stopped, as by a debugger, and share the port with running processes. A
//! stopped process forwards and answers nothing. Packets that the kernel would give to a stopped
//! process, but that belong to another one, must not be lost.

use super::super::isolation::{PairSetup, both_end_well};
use super::failures::{BESIDE, Bystanders};
use super::unsteered::MANY;
use crate::{Bench, Tally};
use xtask::namespaces::Namespaces;

/// Both ends send requests, and detect that the peer is silent.
const BOTH_WAYS: (&str, &[&str]) = ("ib_write_bw", &["-b", "-s", "1024", "-n", "20000000"]);

/// How who came first ends.
#[derive(Clone, Copy)]
enum FirstEnd {
    Leaves,
    Dies,
}

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) {
    let mut record = |name: &str, check: &dyn Fn() -> Result<(), String>| {
        bench.step(&format!("hosts: {name}"));
        tally.record(name, check());
    };
    record("many connections beside a pair that is stopped", &|| beside(bench, hosts));
    record("a pair is moved beside one that is stopped: the first leaves", &|| {
        moved(bench, hosts, FirstEnd::Leaves)
    });
    record("a pair is moved beside one that is stopped: the first dies", &|| {
        moved(bench, hosts, FirstEnd::Dies)
    });
}

/// The first process finds no steering program in the kernel.
fn beside(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let mut stopped = pair(bench, &place)?;
    stopped.go_on(bench)?;
    stopped.stop(true);
    for _ in 0..2 {
        both_end_well(place.start(bench, MANY.0, MANY.1)?)?;
    }
    stopped.stop(false);
    stopped.go_on(bench)?;
    stopped.end();
    Ok(())
}

/// The sockets of the third pair replace those of the first one, while the second pair is stopped.
fn moved(bench: &Bench, hosts: &Namespaces, how: FirstEnd) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let first = match how {
        FirstEnd::Dies => place.start(bench, BESIDE.0, BESIDE.1)?,
        // It ends by itself.
        FirstEnd::Leaves => place.start(bench, BESIDE.0, &["-g", "1", "-e", "-n", "24000"])?,
    };
    let mut stopped = pair(bench, &place)?;
    stopped.go_on(bench)?;
    let mut third = Bystanders::new(place.start(bench, BOTH_WAYS.0, BOTH_WAYS.1)?);
    third.go_on(bench)?;
    stopped.stop(true);
    match how {
        FirstEnd::Dies => Bystanders::new(first).end(),
        FirstEnd::Leaves => both_end_well(first)?,
    }
    for _ in 0..3 {
        third.go_on(bench)?;
    }
    stopped.stop(false);
    third.end();
    stopped.end();
    Ok(())
}

fn pair(bench: &Bench, place: &PairSetup<'_>) -> Result<Bystanders, String> {
    Ok(Bystanders::new(place.start(bench, BESIDE.0, BESIDE.1)?))
}
