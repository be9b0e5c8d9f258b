//! The metrics, and the command of each contender for them.

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Microseconds: less is better.
    Us,
    /// 1e9 bytes a second.
    GBs,
    /// Millions of messages a second.
    Millions,
}

impl Unit {
    pub(super) const fn less_is_better(self) -> bool {
        matches!(self, Self::Us)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Us => "us",
            Self::GBs => "GB/s",
            Self::Millions => "M/s",
        }
    }

    /// The value of this unit in a row of perftest.
    pub(super) fn of(self, row: &xtask::perftest::PerftestRow) -> Option<f64> {
        match self {
            Self::Us => row.typical_us(),
            Self::GBs => row.bandwidth().map(|b| b / 1e9),
            Self::Millions => row.rate().map(|r| r / 1e6),
        }
    }

    /// How often `ours` is better than `theirs`.
    pub(super) fn ratio(self, ours: f64, theirs: f64) -> f64 {
        if self.less_is_better() { theirs / ours } else { ours / theirs }
    }
}

/// A way to measure: the program and its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) enum Contender {
    /// A pair of perftest programs over Ferroverbs.
    Ferroverbs(&'static str, &'static [&'static str]),
    /// `c-tests/bench/mapped.c` over Ferroverbs: bytes, iterations.
    FerroverbsMapped(u64, u64),
    /// `c-tests/bench/queues.c` over Ferroverbs: its arguments.
    FerroverbsQueues([&'static str; 4]),
    /// `ucx_perftest` over shared memory: test, bytes, iterations.
    Ucx(&'static str, u64, u64),
    /// `fi_pingpong` over libfabric's shm provider: bytes, iterations.
    Fabric(u64, u64),
    /// Our MPI program over Open MPI's ob1 and vader: measurement, bytes, iterations.
    OpenMpi(&'static str, u64, u64),
    /// Our MPI program over MPICH: measurement, bytes, iterations.
    Mpich(&'static str, u64, u64),
}

impl Contender {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ferroverbs(..) | Self::FerroverbsMapped(..) | Self::FerroverbsQueues(..) => {
                "Ferroverbs"
            }
            Self::Ucx(..) => "UCX",
            Self::Fabric(..) => "libfabric",
            Self::OpenMpi(..) => "Open MPI",
            Self::Mpich(..) => "MPICH",
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) what: &'static str,
    pub(super) bytes: u64,
    pub(super) unit: Unit,
    pub(super) ours: Contender,
    pub(super) peers: &'static [Contender],
    /// Names of limits (`c-tests/bench/limits.c`); several add up.
    pub(super) limit: &'static [&'static str],
    /// The goal of the design, on two quiet CPUs.
    pub(super) goal: f64,
}

use Contender::{Fabric, Ferroverbs, FerroverbsMapped, FerroverbsQueues, Mpich, OpenMpi, Ucx};

const KIB64: u64 = 65536;
const MIB: u64 = 1 << 20;

/// All rows, in the order of the table.
pub(super) const METRICS: &[Metric] = &[
    Metric {
        what: "send latency",
        bytes: 8,
        unit: Unit::Us,
        ours: Ferroverbs("ib_send_lat", &["-s", "8", "-n", "100000"]),
        peers: &[
            Ucx("tag_lat", 8, 200_000),
            Fabric(8, 20_000),
            OpenMpi("lat", 8, 200_000),
            Mpich("lat", 8, 200_000),
        ],
        limit: &["hop"],
        goal: 0.25,
    },
    Metric {
        what: "send latency",
        bytes: 4096,
        unit: Unit::Us,
        ours: Ferroverbs("ib_send_lat", &["-s", "4096", "-n", "50000"]),
        peers: &[
            Ucx("tag_lat", 4096, 100_000),
            Fabric(4096, 20_000),
            OpenMpi("lat", 4096, 100_000),
            Mpich("lat", 4096, 100_000),
        ],
        limit: &["hop"],
        goal: 0.95,
    },
    Metric {
        what: "write latency",
        bytes: 8,
        unit: Unit::Us,
        ours: Ferroverbs("ib_write_lat", &["-s", "8", "-n", "100000"]),
        peers: &[OpenMpi("put", 8, 20_000), Mpich("put", 8, 50_000)],
        limit: &["attach_write_8"],
        goal: 0.90,
    },
    Metric {
        what: "write latency, shared memory",
        bytes: 8,
        unit: Unit::Us,
        ours: FerroverbsMapped(8, 200_000),
        peers: &[Ucx("ucp_put_lat", 8, 200_000)],
        limit: &["hop"],
        goal: 0.22,
    },
    Metric {
        what: "read latency",
        bytes: 8,
        unit: Unit::Us,
        ours: Ferroverbs("ib_read_lat", &["-s", "8", "-n", "100000"]),
        peers: &[OpenMpi("get", 8, 20_000), Mpich("get", 8, 50_000)],
        limit: &["attach_read_8"],
        goal: 0.70,
    },
    Metric {
        what: "fetch-and-add latency",
        bytes: 8,
        unit: Unit::Us,
        ours: Ferroverbs("ib_atomic_lat", &["-n", "50000"]),
        peers: &[OpenMpi("fadd", 8, 20_000), Mpich("fadd", 8, 50_000)],
        limit: &["attach_read_8", "attach_write_8"],
        goal: 1.3,
    },
    Metric {
        what: "send rate",
        bytes: 8,
        unit: Unit::Millions,
        ours: Ferroverbs("ib_send_bw", &["-s", "8", "-n", "3000000"]),
        peers: &[
            Ucx("tag_bw", 8, 2_000_000),
            OpenMpi("rate", 8, 2_000_000),
            Mpich("rate", 8, 2_000_000),
        ],
        limit: &[],
        goal: 12.0,
    },
    Metric {
        what: "send rate, lists of 16",
        bytes: 8,
        unit: Unit::Millions,
        ours: Ferroverbs("ib_send_bw", &["-s", "8", "-n", "3000000", "--post_list", "16"]),
        peers: &[],
        limit: &[],
        goal: 20.0,
    },
    Metric {
        what: "write rate",
        bytes: 8,
        unit: Unit::Millions,
        ours: Ferroverbs("ib_write_bw", &["-s", "8", "-n", "500000"]),
        peers: &[],
        limit: &["attach_write_rate"],
        goal: 1.5,
    },
    Metric {
        what: "write rate, lists of 16",
        bytes: 8,
        unit: Unit::Millions,
        ours: Ferroverbs("ib_write_bw", &["-s", "8", "-n", "1000000", "--post_list", "16"]),
        peers: &[],
        limit: &["attach_write_rate16"],
        goal: 4.0,
    },
    bandwidth(
        "send bandwidth",
        KIB64,
        &["-s", "65536", "-n", "30000"],
        "ib_send_bw",
        &["copied_twice_64K"],
        16.0,
    ),
    bandwidth(
        "send bandwidth",
        MIB,
        &["-s", "1048576", "-n", "4000"],
        "ib_send_bw",
        &["copied_twice_1M"],
        16.0,
    ),
    bandwidth(
        "send bandwidth",
        8 * MIB,
        &["-s", "8388608", "-n", "400"],
        "ib_send_bw",
        &["copied_twice_8M"],
        10.0,
    ),
    bandwidth(
        "write bandwidth",
        KIB64,
        &["-s", "65536", "-n", "30000"],
        "ib_write_bw",
        &["attach_write_64K"],
        16.0,
    ),
    bandwidth(
        "write bandwidth",
        MIB,
        &["-s", "1048576", "-n", "4000"],
        "ib_write_bw",
        &["attach_write_1M"],
        16.0,
    ),
    bandwidth(
        "write bandwidth",
        8 * MIB,
        &["-s", "8388608", "-n", "400"],
        "ib_write_bw",
        &["attach_write_8M"],
        10.0,
    ),
    bandwidth(
        "read bandwidth",
        KIB64,
        &["-s", "65536", "-n", "30000"],
        "ib_read_bw",
        &["attach_read_64K"],
        16.0,
    ),
    bandwidth(
        "read bandwidth",
        MIB,
        &["-s", "1048576", "-n", "4000"],
        "ib_read_bw",
        &["attach_read_1M"],
        16.0,
    ),
    bandwidth(
        "read bandwidth",
        8 * MIB,
        &["-s", "8388608", "-n", "400"],
        "ib_read_bw",
        &["attach_read_8M"],
        10.0,
    ),
    queues("one queue, 1 pair", ["one", "1", "1"]),
    queues("two queues, 1 pair", ["two", "1", "1"]),
    queues("one queue, 4 pairs", ["one", "4", "1"]),
    queues("two queues, 4 pairs", ["two", "4", "1"]),
    queues("one queue, 1 pair, 2 threads", ["one", "1", "2"]),
    queues("two queues, 1 pair, 2 threads", ["two", "1", "2"]),
    queues("one queue, 4 pairs, 2 threads", ["one", "4", "2"]),
    queues("two queues, 4 pairs, 2 threads", ["two", "4", "2"]),
];

const fn bandwidth(
    what: &'static str,
    bytes: u64,
    args: &'static [&'static str],
    program: &'static str,
    limit: &'static [&'static str],
    goal: f64,
) -> Metric {
    // Peers move messages of these sizes by two-sided calls; each is measured once for each size.
    let peers: &'static [Contender] = match bytes {
        KIB64 => &[
            Ucx("tag_bw", KIB64, 50_000),
            OpenMpi("bw", KIB64, 30_000),
            Mpich("bw", KIB64, 30_000),
        ],
        MIB => &[Ucx("tag_bw", MIB, 4000), OpenMpi("bw", MIB, 3000), Mpich("bw", MIB, 3000)],
        _ => &[Ucx("tag_bw", 8 * MIB, 400), OpenMpi("bw", 8 * MIB, 320), Mpich("bw", 8 * MIB, 320)],
    };
    Metric { what, bytes, unit: Unit::GBs, ours: Ferroverbs(program, args), peers, limit, goal }
}

/// Messages between QPs of one process, whose threads wait at the send CQ and then at the receive
/// CQ: number of CQs, QP pairs of each thread, threads.
const fn queues(what: &'static str, [queues, pairs, threads]: [&'static str; 3]) -> Metric {
    let ours = FerroverbsQueues(["300000", queues, pairs, threads]);
    Metric { what, bytes: 8, unit: Unit::Us, ours, peers: &[], limit: &[], goal: 1.0 }
}

impl Metric {
    /// Whether the metric concerns CQs within a process.
    pub(super) const fn is_of_queues(&self) -> bool {
        matches!(self.ours, FerroverbsQueues(..))
    }
}

/// Sizes of the plots.
pub(super) const SIZES: [u64; 8] = [8, 64, 512, 4096, 32768, KIB64, 262_144, MIB];
