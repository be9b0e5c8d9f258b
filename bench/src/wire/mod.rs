//! `cargo xtask bench wire`: the speed of soft between two hosts, beside plain sockets, UCX and
//! libfabric, in one run.
//!
//! The hosts are two network namespaces with a cable, which need root; on loopback they are two
//! processes of one host. libfabric's latency is measured by `fi_pingpong`, and its bandwidth by
//! `c-tests/bench/fabric.c`, because Debian lacks its further programs (fabtests).

mod cases;
mod guest;
mod losses;
mod measure;
mod report;

use super::page::with_section;
use super::plot::{self, Curve};
use cases::{CABLES, Cable, Case, JUMBO, Quantity, TCP, UDP_OFFLOADS};
use measure::Hosts;
use report::{SECTION, WireResults};
use std::fmt::Write;
use std::fs;
use std::process::ExitCode;
use xtask::paths::Paths;
use xtask::progress::Progress;

/// Message sizes of the plot.
const SMALL: [u64; 6] = [8, 64, 512, 4096, 16 << 10, 64 << 10];
const LARGE: [u64; 6] = [512, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// The page of the wire, and its picture.
const PAGE: &str = "docs/reference/benchmarks-wire.md";
const PICTURE: &str = "docs/reference/benchmarks-wire.svg";

/// Asks, prints, and with `write` writes the section of the page and its picture.
pub(super) fn main(
    paths: &Paths,
    rounds: usize,
    write: bool,
    progress: &Progress,
) -> crate::Result<ExitCode> {
    let hosts = Hosts::new(paths)?;
    let mut answers = WireResults::default();
    for round in 1..=rounds {
        for cable in CABLES {
            let round = format!("round {round} of {rounds}");
            ask_all(&hosts, cable, &cases::of(cable), &round, &mut answers, progress)?;
        }
    }
    let picture = if write { Some(plot::svg(&curves(&hosts, &answers, progress)?)?) } else { None };
    let mut text = answers.text(rounds, "`FERROVERBS_SOFT_IMPAIRMENT`");
    match guest::measure(paths, progress) {
        Ok(beside) => {
            let _ = write!(text, "\n{}{beside}", guest::HEAD);
        }
        Err(why) => progress.note(&format!("not beside rxe: {}", why.trim_end())),
    }
    progress.clear();
    print!("{text}");
    if let Some(picture) = picture {
        let page = paths.root.join(PAGE);
        let fail = |e: std::io::Error| format!("cannot write {}: {e}", page.display());
        let old = fs::read_to_string(&page).map_err(fail)?;
        fs::write(&page, with_section(&old, SECTION, &text)).map_err(fail)?;
        fs::write(paths.root.join(PICTURE), picture).map_err(fail)?;
        println!("\nwritten: {PAGE}, {PICTURE}");
    }
    Ok(ended(CABLES.iter().map(|&cable| answers.lacks(rounds, cable, &cases::of(cable))).sum()))
}

/// Asks over a cable, and keeps what was said.
fn ask_all(
    hosts: &Hosts,
    cable: Cable,
    cases: &[Case],
    round: &str,
    answers: &mut WireResults,
    progress: &Progress,
) -> crate::Result<()> {
    hosts.connect(cable)?;
    for case in cases {
        let (name, what) = (cable.name(), case.what);
        progress.step(&format!("{round}: {name}: {}", case.who));
        // A failed contender is reported and left out of this round. A failure of Ferroverbs is
        // reported again at the end.
        match hosts.measure(cable, case) {
            Ok(output) => answers.add(cable, what, case.who, output),
            Err(why) => progress.note(&format!("{name}: {what:?}, {}: {why}", case.who)),
        }
    }
    Ok(())
}

fn ended(failures: usize) -> ExitCode {
    if failures == 0 {
        return ExitCode::SUCCESS;
    }
    eprintln!("\nxtask: {failures} measurements of Ferroverbs failed, see above");
    ExitCode::FAILURE
}

/// Only the part about a cable with losses; with `write` replaces the old part.
pub(super) fn losses(
    paths: &Paths,
    rounds: usize,
    write: bool,
    progress: &Progress,
) -> crate::Result<ExitCode> {
    let (hosts, cases) = (Hosts::new(paths)?, cases::dropped());
    let mut answers = WireResults::default();
    for round in 1..=rounds {
        let round = format!("round {round} of {rounds}");
        ask_all(&hosts, JUMBO, &cases, &round, &mut answers, progress)?;
    }
    part(paths, report::DROPPED, &answers.dropped(), write, progress)?;
    Ok(ended(answers.lacks(rounds, JUMBO, &cases)))
}

/// Only the part in the virtual machine; with `write` replaces the old part.
pub(super) fn beside_rxe(
    paths: &Paths,
    write: bool,
    progress: &Progress,
) -> crate::Result<ExitCode> {
    part(paths, guest::HEAD, &guest::measure(paths, progress)?, write, progress)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a part of the section, and with `write` puts it in the place of the old one.
fn part(
    paths: &Paths,
    head: &str,
    text: &str,
    write: bool,
    progress: &Progress,
) -> crate::Result<()> {
    progress.clear();
    print!("{head}{text}");
    if write {
        let page = paths.root.join(PAGE);
        let fail = |e: std::io::Error| format!("cannot write {}: {e}", page.display());
        let old = fs::read_to_string(&page).map_err(fail)?;
        if !old.contains(head) {
            let (page, head) = (page.display(), head.trim());
            return Err(format!("{page} has no \"{head}\": `bench wire --write` makes it"));
        }
        fs::write(&page, with_section(&old, head, text.trim_start())).map_err(fail)?;
        println!("\nwritten: {PAGE}");
    }
    Ok(())
}

/// Latency and bandwidth over message size; streams without messages are level lines.
fn curves(hosts: &Hosts, answers: &WireResults, progress: &Progress) -> crate::Result<Vec<Curve>> {
    hosts.connect(JUMBO)?;
    let mut curves: Vec<Curve> = Vec::new();
    let small = SMALL.map(|bytes| (bytes, cases::latencies(bytes)));
    let large = LARGE.map(|bytes| (bytes, cases::bandwidths(bytes)));
    for (bytes, all) in small.into_iter().chain(large) {
        for case in all {
            progress.step(&format!("curves: {}, {bytes} bytes", case.who));
            let Case { what, who, .. } = case;
            match hosts.measure(JUMBO, &case) {
                Ok(output) => {
                    let unit = what.unit();
                    let known = curves.iter_mut().find(|c| c.unit == unit && c.name == who);
                    match known {
                        Some(curve) => curve.points.push((bytes, output.value)),
                        None => {
                            let points = vec![(bytes, output.value)];
                            curves.push(Curve { unit, name: who, points });
                        }
                    }
                }
                Err(why) => progress.note(&format!("{who}: {why}")),
            }
        }
    }
    for name in [UDP_OFFLOADS, TCP] {
        let what = Quantity::Bandwidth(0);
        if let Some(sample) = answers.sample(JUMBO, what, name) {
            let points = LARGE.map(|bytes| (bytes, sample.median)).to_vec();
            curves.push(Curve { unit: what.unit(), name, points });
        }
    }
    Ok(curves)
}
