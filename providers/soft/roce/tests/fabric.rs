//! Simulations of many hosts behind switches that queue, drop and mark packets.
//!
//! This test runs a small fabric; `--example fabric` runs the large one.

mod sim;

use sim::Shape;
use sim::scenarios::*;

fn small() -> Shape {
    Shape { hosts: 24, per_rack: 8, spines: 2, ..Shape::default() }
}

fn check(report: &Report) {
    println!("{}\n{report}", Report::HEAD);
    assert!(report.complete, "{report:?}");
    assert!(report.most_queued <= small().queue, "the queue is bounded by its size");
    let samples = &report.samples;
    let seen = samples.iter().map(|sample| sample.utilisation).sum::<f64>();
    let whole = report.utilisation * report.elapsed.as_secs_f64() / BETWEEN.as_secs_f64();
    assert!((seen - whole).abs() < 1e-3 * whole, "samples show {seen} of {whole}");
    for (sample, n) in samples.iter().zip(1..) {
        assert_eq!(sample.at, n * BETWEEN);
        assert!(sample.queued <= report.most_queued);
        assert!((0.0..1.001).contains(&sample.fairness), "{sample:?}");
    }
}

#[test]
fn an_incast_ends_with_every_message_once() {
    check(&incast(small(), 8, 16 << 10, 4));
}

#[test]
fn an_incast_without_marks_ends_too() {
    check(&incast(Shape { mark: false, ..small() }, 8, 16 << 10, 4));
}

#[test]
fn a_host_that_reads_from_all_hosts_uses_its_link() {
    let report = read_incast(small(), 256 << 10, 2);
    check(&report);
    assert!(report.utilisation > 0.3, "{report:?}");
}

#[test]
fn connections_share_a_link_fairly() {
    let report = sharing(small(), 8, 128 << 10, 12);
    check(&report);
    assert!(report.fairness > 0.8, "{report:?}");
}

#[test]
fn all_hosts_may_send_to_all_hosts() {
    check(&shuffle(small(), 4, 64 << 10, 3));
}

#[test]
fn a_dead_spine_delays_and_loses_nothing() {
    check(&spine_death(small(), 4, 64 << 10, 8));
}

#[test]
fn selective_recovery_sends_less_again_than_going_back() {
    let (ours, plain) = (lossy("ours", 200, true), lossy("plain", 200, false));
    check(&ours);
    check(&plain);
    assert!(ours.resent * 4 < plain.resent);
    // Packets that arrived behind a gap are not repeated, although the filling of the gap is
    // acknowledged separately.
    assert!(ours.resent * 10 <= ours.dropped * 11, "{ours:?}");
}
