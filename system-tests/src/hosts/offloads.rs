//! Kernels and interfaces without segmentation of datagrams: soft then sends single packets. Linux
//! segments for every interface since 6.11, so c-tests/tools/no_offloads.c simulates the refusals.

use super::super::isolation::PairSetup;
use crate::{Bench, Tally};
use xtask::namespaces::Namespaces;
use xtask::process::Finished;

/// The datagrams in one batch. After a refusal soft sends the packets of that datagram and of all
/// later ones singly, but the rest of the batch is already built. If soft did not remember the
/// refusal, twice as many would be refused.
const BATCH: u32 = 128;

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    hosts.set_cable(1500, "")?;
    let refusals: [(&str, &str, Verdict); 2] = [
        ("interface", "an interface that cuts no datagrams", by_interface),
        ("kernel", "a kernel without UDP_SEGMENT and UDP_GRO", by_kernel),
    ];
    for (refuses, name, verdict) in refusals {
        bench.step(&format!("hosts: {name}"));
        tally.record(name, refused(bench, hosts, refuses, verdict));
    }
    Ok(())
}

/// The error in the numbers of refused options and sends.
type Verdict = fn(u32, u32) -> Option<&'static str>;

/// It is found out by the first datagrams, and remembered.
fn by_interface(_: u32, sends: u32) -> Option<&'static str> {
    match sends {
        0 => Some("nothing was refused"),
        1..=BATCH => None,
        _ => Some("it is tried again and again"),
    }
}

/// It is known before the first datagram.
fn by_kernel(options: u32, sends: u32) -> Option<&'static str> {
    match (options, sends) {
        (0, _) => Some("no option was refused"),
        (_, 0) => None,
        _ => Some("what the kernel does not know is tried"),
    }
}

/// Every byte arrives, and both sides had the expected refusals.
fn refused(
    bench: &Bench,
    hosts: &Namespaces,
    refuses: &str,
    verdict: Verdict,
) -> Result<(), String> {
    let folder = bench.scratch.path();
    let preload = ferroverbs_c_tests::compile_no_offloads(folder).map_err(|e| e.to_string())?;
    let place = PairSetup::wired(bench, hosts, "")?;
    let job = super::own(bench, &place, hosts, "random_ops", &["two"])?
        .env("TEST_BATCHES", "200")
        .env("LD_PRELOAD", preload)
        .env("REFUSES", refuses);
    let done = job.run(&bench.scratch, super::LIMIT)?;
    if !done.ok() {
        return Err(done.report("random_ops"));
    }
    let reported = reported(&done);
    let wrong = reported.iter().find_map(|&(options, sends)| verdict(options, sends));
    match wrong {
        None if reported.len() == 2 => Ok(()),
        why => Err(done.report(why.unwrap_or("not both sides were refused something"))),
    }
}

/// Options and sends that each process was refused.
fn reported(done: &Finished) -> Vec<(u32, u32)> {
    let lines = done.stderr.lines().filter_map(|line| line.strip_prefix("no_offloads: "));
    lines.filter_map(numbers).collect()
}

fn numbers(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}
