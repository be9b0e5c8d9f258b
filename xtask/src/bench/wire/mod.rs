//! `cargo xtask bench wire`: how fast soft is between two hosts, beside what plain sockets reach, UCX and libfabric, all in one run.
//!
//! The hosts are two network namespaces with a cable between them, which root can make; on loopback they are two processes of one. libfabric is asked
//! for latency only: Debian has `fi_pingpong` and not its other programs (fabtests).

mod ask;
mod guest;
mod questions;
mod report;

pub(super) use report::SECTION;

use super::page::with_section;
use super::plot::{self, Curve};
use crate::paths::Paths;
use crate::progress::Progress;
use ask::Hosts;
use questions::{CABLES, JUMBO, Question, TCP, UDP_OFFLOADS, What};
use report::Answers;
use std::fmt::Write;
use std::fs;
use std::process::ExitCode;

/// Message sizes of the plot.
const SMALL: [u64; 6] = [8, 64, 512, 4096, 16 << 10, 64 << 10];
const LARGE: [u64; 6] = [512, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Asks, prints, and with `write` writes the section of docs/benchmarks.md and its picture.
pub(super) fn main(
    paths: &Paths,
    rounds: usize,
    write: bool,
    progress: &Progress,
) -> crate::Result<ExitCode> {
    let hosts = Hosts::new(paths)?;
    let mut answers = Answers::default();
    for round in 1..=rounds {
        for cable in CABLES {
            hosts.connect(cable)?;
            for question in questions::of(cable) {
                let (name, what) = (cable.name(), question.what);
                progress.step(&format!("round {round} of {rounds}: {name}: {}", question.who));
                // Who fails is told about and left out of this round; that ours failed is told again at the end.
                match hosts.ask(cable, &question) {
                    Ok(said) => answers.add(cable, what, question.who, said),
                    Err(why) => {
                        progress.note(&format!("{name}: {what:?}, {}: {why}", question.who));
                    }
                }
            }
        }
    }
    let picture = if write { Some(plot::svg(&curves(&hosts, &answers, progress)?)?) } else { None };
    let mut text = answers.text(rounds, "`FERROVERBS_SOFT_WEATHER`");
    match guest::measure(paths, progress) {
        Ok(beside) => {
            let _ = write!(text, "\n{}{beside}", guest::HEAD);
        }
        Err(why) => progress.note(&format!("not beside rxe: {}", why.trim_end())),
    }
    progress.clear();
    print!("{text}");
    if let Some(picture) = picture {
        let page = paths.root.join("docs/benchmarks.md");
        let fail = |e: std::io::Error| format!("cannot write {}: {e}", page.display());
        let old = fs::read_to_string(&page).map_err(fail)?;
        fs::write(&page, with_section(&old, SECTION, &text)).map_err(fail)?;
        fs::write(paths.root.join("docs/benchmarks-wire.svg"), picture).map_err(fail)?;
        println!("\nwritten: docs/benchmarks.md, docs/benchmarks-wire.svg");
    }
    Ok(match answers.lacks(rounds) {
        0 => ExitCode::SUCCESS,
        failures => {
            eprintln!("\nxtask: {failures} measurements of Ferroverbs failed, see above");
            ExitCode::FAILURE
        }
    })
}

/// The part in the virtual machine alone; with `write` it takes the place of the old one.
pub(super) fn beside_rxe(
    paths: &Paths,
    write: bool,
    progress: &Progress,
) -> crate::Result<ExitCode> {
    let text = guest::measure(paths, progress)?;
    progress.clear();
    print!("{}{text}", guest::HEAD);
    if write {
        let page = paths.root.join("docs/benchmarks.md");
        let fail = |e: std::io::Error| format!("cannot write {}: {e}", page.display());
        let old = fs::read_to_string(&page).map_err(fail)?;
        if !old.contains(guest::HEAD) {
            let page = page.display();
            return Err(format!(
                "{page} has no \"{}\": `bench wire --write` makes it",
                guest::HEAD.trim()
            ));
        }
        fs::write(&page, with_section(&old, guest::HEAD, text.trim_start())).map_err(fail)?;
        println!("\nwritten: docs/benchmarks.md");
    }
    Ok(ExitCode::SUCCESS)
}

/// Latency and bandwidth over message size; streams without messages are level lines.
fn curves(hosts: &Hosts, answers: &Answers, progress: &Progress) -> crate::Result<Vec<Curve>> {
    hosts.connect(JUMBO)?;
    let mut curves: Vec<Curve> = Vec::new();
    let small = SMALL.map(|bytes| (bytes, questions::latencies(bytes)));
    let large = LARGE.map(|bytes| (bytes, questions::bandwidths(bytes)));
    for (bytes, all) in small.into_iter().chain(large) {
        for question in all {
            progress.step(&format!("curves: {}, {bytes} bytes", question.who));
            let Question { what, who, .. } = question;
            match hosts.ask(JUMBO, &question) {
                Ok(said) => {
                    let unit = what.unit();
                    let known = curves.iter_mut().find(|c| c.unit == unit && c.name == who);
                    match known {
                        Some(curve) => curve.points.push((bytes, said.value)),
                        None => {
                            let points = vec![(bytes, said.value)];
                            curves.push(Curve { unit, name: who, points });
                        }
                    }
                }
                Err(why) => progress.note(&format!("{who}: {why}")),
            }
        }
    }
    for name in [UDP_OFFLOADS, TCP] {
        let what = What::Bandwidth(0);
        if let Some(sample) = answers.sample(JUMBO, what, name) {
            let points = LARGE.map(|bytes| (bytes, sample.median)).to_vec();
            curves.push(Curve { unit: what.unit(), name, points });
        }
    }
    Ok(curves)
}
