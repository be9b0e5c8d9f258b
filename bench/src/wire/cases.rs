//! The cases to measure, the contenders and the cables.

use crate::metrics::Unit;

/// The path between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cable {
    /// Two processes of a host, with its own address.
    Loopback,
    /// Two hosts, with packets of so many bytes.
    Veth(u32),
}

/// All cables, in the order of the tables.
pub(super) const CABLES: [Cable; 3] = [Cable::Veth(9000), Cable::Veth(1500), Cable::Loopback];

/// The cable of the bandwidth goals and of the plot.
pub(super) const JUMBO: Cable = CABLES[0];

impl Cable {
    pub(super) fn name(self) -> String {
        match self {
            Self::Loopback => "loopback".into(),
            Self::Veth(mtu) => format!("veth, MTU {mtu}"),
        }
    }

    /// Bytes of a full packet behind the UDP header: BTH, what the path MTU allows, ICRC.
    const fn packet(self) -> u64 {
        match self {
            Self::Veth(1500) => 1024 + 16,
            Self::Veth(_) | Self::Loopback => 4096 + 16,
        }
    }
}

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Quantity {
    /// Half a round trip of a message of so many bytes.
    Latency(u64),
    /// Of messages of so many bytes; 0: of a stream without messages.
    Bandwidth(u64),
    /// Messages of 8 bytes.
    Rate,
    /// Of messages of a megabyte, of which so many packets of a thousand are lost.
    Lossy(u32),
    /// The same, of all that comes over the cable, each packet one by itself.
    Dropped(u32),
}

impl Quantity {
    pub(super) const fn unit(self) -> Unit {
        match self {
            Self::Latency(_) => Unit::Us,
            Self::Bandwidth(_) | Self::Lossy(_) | Self::Dropped(_) => Unit::GBs,
            Self::Rate => Unit::Millions,
        }
    }
}

/// How a contender measures.
#[derive(Clone, Debug)]
pub(super) enum Tool {
    /// A pair of perftest programs over Ferroverbs: bytes of a message, and number of messages.
    Perftest { program: &'static str, bytes: u64, count: u64, more: &'static [&'static str] },
    /// `c-tests/bench/wire.c`: mode and bytes.
    Socket(&'static str, u64),
    /// `ucx_perftest` over its tcp transport.
    Ucx { test: &'static str, bytes: u64, count: u64 },
    /// `fi_pingpong`: provider, kind of endpoint, bytes, iterations.
    Fabric(&'static str, &'static str, u64, u64),
    /// `c-tests/bench/fabric.c`: provider and bytes.
    FabricStream(&'static str, u64),
}

/// A quantity of a contender.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) what: Quantity,
    pub(super) who: &'static str,
    pub(super) how: Tool,
    /// Packet impairment of soft itself; empty: none.
    pub(super) impairment: &'static str,
}

pub(super) const UDP: &str = "UDP";
pub(super) const UDP_CONNECTED: &str = "UDP, connected";
pub(super) const UDP_OFFLOADS: &str = "UDP, offloads";
pub(super) const UDP_SINGLY: &str = "UDP, one by one";
pub(super) const TCP: &str = "TCP, one stream";
pub(super) const UCX: &str = "UCX tcp";
/// libfabric's providers with reliable messages.
pub(super) const FABRIC: [(&str, &str); 2] =
    [("libfabric tcp", "tcp"), ("libfabric udp;ofi_rxd", "udp;ofi_rxd")];
pub(super) const SEND: &str = "Ferroverbs send";
pub(super) const WRITE: &str = "Ferroverbs write";
pub(super) const READ: &str = "Ferroverbs read";
pub(super) const LISTS: &str = "Ferroverbs send, lists of 64";
/// The contenders of Ferroverbs, by program.
pub(super) const OURS: [(&str, &str); 3] =
    [(SEND, "ib_send_bw"), (WRITE, "ib_write_bw"), (READ, "ib_read_bw")];

/// Sizes of messages whose bandwidth has a goal.
pub(super) const SIZES: [u64; 4] = [64 << 10, 256 << 10, 1 << 20, 8 << 20];
/// Bytes of one call of a stream.
const STREAM: u64 = 256 << 10;
/// The message size of further tables.
pub(super) const MIB: u64 = 1 << 20;
/// Lost packets of a thousand, and the setting by which soft loses them.
pub(super) const LOSSES: [(u32, &str); 3] =
    [(0, ""), (1, "loss=0.1% seed=14"), (10, "loss=1% seed=14")];

/// A gigabyte or so: some tenths of a second.
pub(super) fn count(bytes: u64) -> u64 {
    ((1 << 30) / (bytes + 20_000)).max(100)
}

/// All cases of a cable.
pub(super) fn of(cable: Cable) -> Vec<Case> {
    let mut all = latencies(8);
    let measure = |what, who, how| Case { what, who, how, impairment: "" };
    all.push(measure(Quantity::Latency(8), UDP_CONNECTED, Tool::Socket("connected", 64)));
    let reliable = FABRIC.map(|(who, provider)| (who, provider, "rdm"));
    let datagrams = [("libfabric udp, datagrams", "udp", "dgram")];
    for (who, provider, kind) in reliable.into_iter().chain(datagrams) {
        all.push(measure(Quantity::Latency(8), who, Tool::Fabric(provider, kind, 8, 5000)));
    }
    for bytes in SIZES {
        all.extend(bandwidths(bytes));
    }
    let packet = cable.packet();
    for (who, mode, bytes) in [
        (UDP_OFFLOADS, "offloads", packet),
        (UDP_SINGLY, "datagrams", packet),
        (TCP, "tcp", STREAM),
    ] {
        all.push(measure(Quantity::Bandwidth(0), who, Tool::Socket(mode, bytes)));
    }
    for (who, count, more) in
        [(LISTS, 1_000_000, &["--post_list", "64"] as &[_]), (SEND, 200_000, &[])]
    {
        let how = Tool::Perftest { program: "ib_send_bw", bytes: 8, count, more };
        all.push(measure(Quantity::Rate, who, how));
    }
    all.push(measure(
        Quantity::Rate,
        UCX,
        Tool::Ucx { test: "tag_bw", bytes: 8, count: 1_000_000 },
    ));
    for (who, provider) in FABRIC {
        all.push(measure(Quantity::Rate, who, Tool::FabricStream(provider, 8)));
    }
    all.push(measure(Quantity::Rate, UDP_OFFLOADS, Tool::Socket("offloads", 80)));
    if cable == JUMBO {
        for (lost, impairment) in LOSSES {
            for (who, program) in OURS {
                all.push(Case {
                    what: Quantity::Lossy(lost),
                    who,
                    how: patient(program),
                    impairment,
                });
            }
        }
        all.extend(dropped());
    }
    all
}

/// Contenders that retransmit, over a cable with losses; over one cable only, because they take
/// long.
pub(super) fn dropped() -> Vec<Case> {
    let mut all = vec![];
    for (lost, _) in LOSSES {
        let measure = |who, how| Case { what: Quantity::Dropped(lost), who, how, impairment: "" };
        all.extend(OURS.map(|(who, program)| measure(who, patient(program))));
        all.push(measure(UCX, Tool::Ucx { test: "tag_bw", bytes: MIB, count: count(MIB) }));
        all.push(measure(TCP, Tool::Socket("tcp", STREAM)));
        all.extend(FABRIC.map(|(who, provider)| measure(who, Tool::FabricStream(provider, MIB))));
    }
    all
}

/// A program of Ferroverbs with a timeout of four seconds, which makes a wait for the timeout
/// visible.
fn patient(program: &'static str) -> Tool {
    Tool::Perftest { program, bytes: MIB, count: count(MIB), more: &["-u", "20"] }
}

/// Half round trips of messages of a size.
pub(super) fn latencies(bytes: u64) -> Vec<Case> {
    let measure = |who, how| Case { what: Quantity::Latency(bytes), who, how, impairment: "" };
    let ours = Tool::Perftest {
        program: "ib_send_lat",
        bytes,
        count: count(bytes).min(30_000),
        more: &[],
    };
    let mut all = vec![
        measure(SEND, ours),
        measure(UCX, Tool::Ucx { test: "tag_lat", bytes, count: count(bytes).min(30_000) }),
    ];
    // Such as our packets are: with headers and ICRC.
    if bytes <= 4096 {
        all.push(measure(UDP, Tool::Socket("latency", bytes.max(48) + 16)));
    }
    all
}

/// Bandwidth of messages of a size.
pub(super) fn bandwidths(bytes: u64) -> Vec<Case> {
    let what = Quantity::Bandwidth(bytes);
    let ours = OURS.map(|(who, program)| {
        let how = Tool::Perftest { program, bytes, count: count(bytes), more: &[] };
        Case { what, who, how, impairment: "" }
    });
    let ucx = Tool::Ucx { test: "tag_bw", bytes, count: count(bytes) };
    let fabric = FABRIC.map(|(who, provider)| Case {
        what,
        who,
        how: Tool::FabricStream(provider, bytes),
        impairment: "",
    });
    let ucx = [Case { what, who: UCX, how: ucx, impairment: "" }];
    ours.into_iter().chain(ucx).chain(fabric).collect()
}
