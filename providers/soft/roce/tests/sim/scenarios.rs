//! Scenarios of the simulation, and the figures that they measure. The test `fabric.rs` runs them
//! and checks the figures.

use super::{Conn, Fabric, Shape};
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::Tail;
use std::fmt;
use std::time::Duration;

/// The figures of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) name: &'static str,
    pub(crate) complete: bool,
    pub(crate) connections: usize,
    pub(crate) bytes: u64,
    pub(crate) elapsed: Duration,
    /// Fraction of the capacity of the receivers' links.
    pub(crate) utilisation: f64,
    /// Jain's index of the bytes of each connection while all had more to send; 1 is fair.
    pub(crate) fairness: f64,
    pub(crate) median: Duration,
    pub(crate) slowest_percent: Duration,
    pub(crate) dropped: u64,
    pub(crate) marked: u64,
    pub(crate) sent: u64,
    pub(crate) resent: u64,
    pub(crate) timeouts: u64,
    pub(crate) most_queued: u64,
    /// Samples from the first millisecond until all requests completed.
    pub(crate) samples: Vec<Sample>,
}

/// A sample, taken once per [`BETWEEN`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Time since the start.
    pub(crate) at: Duration,
    /// Fraction of the capacity of the receivers' links since the previous sample.
    pub(crate) utilisation: f64,
    /// Jain's index of the bytes of each connection so far.
    pub(crate) fairness: f64,
    /// Bytes in the longest queue in front of a host.
    pub(crate) queued: u64,
}

/// Time between samples.
pub(crate) const BETWEEN: Duration = Duration::from_millis(1);

impl Report {
    /// The head of a table of reports.
    pub(crate) const HEAD: &str = "| | QPs | MB | ms | link | fairness | median ms | 99 % ms | lost | marked | sent again | timeouts | longest queue KB |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|";
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        write!(
            f,
            "| {} | {} | {} | {:.1} | {:.0} % | {:.2} | {:.2} | {:.2} | {:.2} % | {:.1} % | {:.2} % | {} | {} |",
            self.name,
            2 * self.connections,
            self.bytes / 1_000_000,
            ms(self.elapsed),
            self.utilisation * 100.0,
            self.fairness,
            ms(self.median),
            ms(self.slowest_percent),
            self.dropped as f64 * 100.0 / self.sent as f64,
            self.marked as f64 * 100.0 / self.sent as f64,
            self.resent as f64 * 100.0 / self.sent as f64,
            self.timeouts,
            self.most_queued >> 10,
        )
    }
}

/// Runs the connections of `fabric`, whose data `receivers` links could carry.
pub(crate) fn run(name: &'static str, mut fabric: Fabric, receivers: u64) -> Report {
    let start = fabric.now;
    let connections = fabric.conns.len() / 2;
    for index in (0..fabric.conns.len()).step_by(2) {
        fabric.start(index);
    }
    let total: u64 = fabric
        .conns
        .iter()
        .map(|conn| u64::from(conn.work.len) * (conn.left + conn.posted))
        .sum::<u64>();
    // Measure fairness when half of the data could have been carried.
    let rate = receivers * fabric.shape.rate;
    let half = Duration::from_secs_f64(total as f64 / rate as f64 / 2.0);
    let (samples, fairness) = watch(&mut fabric, start, half, rate);
    let complete = fabric.run(start.after(LONGEST));
    let finished = fabric.conns.iter().filter_map(|conn| conn.finished).max();
    let elapsed = finished.unwrap_or(fabric.now).since(start);
    let bytes = fabric.conns.iter().map(|conn| conn.received).sum::<u64>();
    let mut times: Vec<u64> =
        fabric.conns.iter().flat_map(|conn| conn.elapsed.iter().copied()).collect();
    times.sort_unstable();
    let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or(0);
    let sum = |count: fn(&Counters) -> u64| {
        fabric.conns.iter().map(|conn| count(conn.qp.counters())).sum()
    };
    let hosts = fabric.shape.hosts;
    Report {
        name,
        complete: complete && fabric.conns.iter().all(|conn| !conn.failed),
        connections,
        bytes,
        elapsed,
        utilisation: bytes as f64 / elapsed.as_secs_f64() / rate as f64,
        fairness,
        median: Duration::from_nanos(at(50)),
        slowest_percent: Duration::from_nanos(at(99)),
        dropped: fabric.ports.iter().map(|port| port.dropped).sum(),
        marked: fabric.ports.iter().map(|port| port.marked).sum(),
        sent: fabric.packets,
        resent: sum(|counters| counters.resent_pkts),
        timeouts: sum(|counters| counters.local_ack_timeout_err),
        most_queued: fabric.ports[..hosts].iter().map(|port| port.most).max().unwrap_or(0),
        samples,
    }
}

/// A scenario that takes longer never ends.
const LONGEST: Duration = Duration::from_secs(60);

/// Runs until all requests completed. Returns the samples, and the fairness after `half`.
fn watch(fabric: &mut Fabric, start: Time, half: Duration, rate: u64) -> (Vec<Sample>, f64) {
    let (mut samples, mut before, mut fairness) = (Vec::new(), 0.0, None);
    let mut at = Duration::ZERO;
    loop {
        at += BETWEEN;
        if fairness.is_none() && half <= at {
            fabric.run(start.after(half));
            fairness = Some(jain(&got(fabric)));
        }
        let complete = fabric.run(start.after(at));
        let got = got(fabric);
        let sum: f64 = got.iter().sum();
        let hosts = fabric.ports[..fabric.shape.hosts].iter();
        samples.push(Sample {
            at,
            utilisation: (sum - before) / (rate as f64 * BETWEEN.as_secs_f64()),
            fairness: jain(&got),
            queued: hosts.map(|port| port.waiting(start.after(at))).max().unwrap_or(0),
        });
        before = sum;
        if complete && fairness.is_some() || at >= LONGEST {
            return (samples, fairness.unwrap_or(0.0));
        }
    }
}

/// The bytes of each connection.
fn got(fabric: &Fabric) -> Vec<f64> {
    let of_both = |ends: &[Conn]| ends.iter().map(|conn| conn.received).sum::<u64>() as f64;
    fabric.conns.chunks(2).map(of_both).collect()
}

fn jain(got: &[f64]) -> f64 {
    let sum: f64 = got.iter().sum();
    let squares: f64 = got.iter().map(|x| x * x).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (got.len() as f64 * squares) }
}

fn send(len: u32) -> Work {
    Work::new(0, Op::Send(Tail::Plain), len)
}

fn usual(_: &mut Tuning, _: &mut Sending) {}

/// Every other host sends to the first, by `each` connections, `count` messages of `len` bytes.
pub(crate) fn incast(shape: Shape, each: usize, len: u32, count: u64) -> Report {
    let mut fabric = Fabric::new(shape, 1);
    for host in 1..shape.hosts {
        (0..each).for_each(|_| fabric.connect(host, 0, send(len), count, usual));
    }
    let name = if shape.mark { "incast" } else { "incast, no marks" };
    run(name, fabric, 1)
}

/// The first host reads from every other.
pub(crate) fn read_incast(shape: Shape, len: u32, count: u64) -> Report {
    let mut fabric = Fabric::new(shape, 2);
    for host in 1..shape.hosts {
        let read = Work::new(0, Op::Read { va: 0, rkey: 1 }, len);
        fabric.connect(0, host, read, count, usual);
    }
    run("READ incast", fabric, 1)
}

/// Every host sends to `each` random others.
pub(crate) fn shuffle(shape: Shape, each: usize, len: u32, count: u64) -> Report {
    let mut fabric = Fabric::new(shape, 3);
    connect_at_random(&mut fabric, each, len, count);
    run("shuffle", fabric, shape.hosts as u64)
}

fn connect_at_random(fabric: &mut Fabric, each: usize, len: u32, count: u64) {
    let hosts = fabric.shape.hosts;
    for host in 0..hosts {
        for _ in 0..each {
            let other = (host + 1 + fabric.random.below(hosts as u64 - 1) as usize) % hosts;
            fabric.connect(host, other, send(len), count, usual);
        }
    }
}

/// A shuffle during which a spine dies silently, is avoided by routes 20 ms later, and returns
/// after 50 ms.
pub(crate) fn spine_death(shape: Shape, each: usize, len: u32, count: u64) -> Report {
    let mut fabric = Fabric::new(shape, 4);
    connect_at_random(&mut fabric, each, len, count);
    let ms = |ms: u64| Time::from_ns(ms * 1_000_000);
    fabric.at(ms(2), |fabric| fabric.set_spine(0, false));
    fabric.at(ms(22), |fabric| fabric.avoid = Some(0));
    fabric.at(ms(52), |fabric| {
        fabric.set_spine(0, true);
        fabric.avoid = None;
    });
    run("shuffle, a spine dies", fabric, shape.hosts as u64)
}

/// One connection over a link that loses one of `one_of` packets.
pub(crate) fn lossy(name: &'static str, one_of: u64, ours: bool) -> Report {
    let shape = Shape { hosts: 2, ..Shape::default() };
    let mut fabric = Fabric::new(shape, 5);
    for host in 0..2 {
        fabric.link(host).lose_one_of = one_of;
    }
    fabric.connect(0, 1, send(1 << 20), 40, |tuning, _| tuning.hello = ours);
    run(name, fabric, 1)
}

/// A few connections share a link for a long time.
pub(crate) fn sharing(shape: Shape, senders: usize, len: u32, count: u64) -> Report {
    let mut fabric = Fabric::new(shape, 6);
    (1..=senders).for_each(|host| fabric.connect(host, 0, send(len), count, usual));
    run("sharing a link", fabric, 1)
}
