//! Simulates hundreds of hosts and ten thousand queue pairs, and prints the table of
//! `docs/reference/wire-simulation.md`.
//!
//! `cargo run --release -p ferroverbs-roce --example fabric`. With a file name as argument, the
//! example writes samples over time into that file, which `cargo xtask bench fabric` draws.

#[path = "../tests/sim/mod.rs"]
mod sim;

use sim::Shape;
use sim::scenarios::*;
use std::io::Write;
use std::time::Instant;

fn main() {
    let mut samples = std::env::args_os().nth(1).map(|file| {
        std::io::BufWriter::new(std::fs::File::create(file).expect("the file of the samples"))
    });
    let shape = Shape::default();
    let unmarked = Shape { mark: false, ..shape };
    let scenarios: [&dyn Fn() -> Report; 15] = [
        &|| sharing(shape, 16, 1 << 20, 20),
        &|| incast(shape, 1, 1 << 20, 4),
        &|| incast(shape, 20, 64 << 10, 2),
        &|| incast(unmarked, 20, 64 << 10, 2),
        &|| read_incast(shape, 1 << 20, 4),
        &|| shuffle(shape, 20, 64 << 10, 3),
        &|| spine_death(shape, 20, 64 << 10, 3),
        &|| lossy("0.1 % lost, ours", 1000, true),
        &|| lossy("0.1 % lost, plain", 1000, false),
        &|| lossy("1 % lost, ours", 100, true),
        &|| lossy("1 % lost, plain", 100, false),
        &|| lossy("5 % lost, ours", 20, true),
        &|| lossy("5 % lost, plain", 20, false),
        &|| lossy("20 % lost, ours", 5, true),
        &|| lossy("20 % lost, plain", 5, false),
    ];
    println!("{}", Report::HEAD);
    for scenario in scenarios {
        let began = Instant::now();
        let report = scenario();
        println!("{report}");
        if !report.complete {
            println!("not complete: {report:?}");
        }
        if let Some(file) = &mut samples {
            for sample in &report.samples {
                let Sample { at, utilisation, fairness, queued } = sample;
                let (qps, ms) = (2 * report.connections, at.as_millis());
                writeln!(
                    file,
                    "{}\t{qps}\t{ms}\t{utilisation:.4}\t{fairness:.4}\t{queued}",
                    report.name
                )
                .expect("a sample");
            }
        }
        eprintln!("{:.1} s, {} packets", began.elapsed().as_secs_f64(), report.sent);
    }
}
