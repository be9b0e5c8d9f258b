//! Measures the engine over sockets and plain UDP, between two network namespaces: `cargo run
//! --release -p ferroverbs-net --example wire`.
//!
//! The example needs two free processors, because both ends poll for packets all the time.

#[path = "../tests/common/host.rs"]
mod host;
#[path = "../tests/common/namespace.rs"]
mod namespace;
#[path = "../tests/common/waiting.rs"]
mod waiting;

use ferroverbs_net::*;
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::{
    Addresses, BTH_LEN, Check, CoveredHeaders, ICRC_LEN, IcrcResult, Immediate, Tail,
};
use host::*;
use namespace::{RemoteProcess, configure, meet, pair, run};
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

const NEAR: &str = "10.9.0.1";
const FAR: &str = "10.9.0.2";
/// Repetitions of every measurement; the best result counts, because disturbances only slow it.
const TIMES: usize = 3;
const MTUS: [(u32, Pmtu); 2] = [(1500, Pmtu::B1024), (9000, Pmtu::B4096)];
const SIZES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
const STOP: Tail = Tail::Immediate(Immediate::new(*b"stop"));
/// Duration of a stream measurement.
const STREAM: Duration = Duration::from_millis(400);

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn main() {
    pair(
        "wire",
        |mut far| {
            configure("veth0", &["10.9.0.1/24"], 9000);
            far.wait_for("up");
            far.tell("go");
            println!(
                "| veth, MTU | | UDP | floor | engine | engine / UDP |\n|---|---|--:|--:|--:|--:|"
            );
            for (mtu, pmtu) in MTUS {
                run(&format!("ip link set veth0 mtu {mtu}"));
                near(&mut far, mtu, pmtu);
            }
            far.finish();
        },
        || {
            configure("veth1", &["10.9.0.2/24"], 9000);
            meet("up");
            for (mtu, pmtu) in MTUS {
                run(&format!("ip link set veth1 mtu {mtu}"));
                for _ in 0..TIMES {
                    echo_udp();
                    echo(host(false, pmtu));
                    sink_udp(pmtu, Bare::Moved);
                    sink_udp(pmtu, Bare::Placed);
                    for _ in 0..=SIZES.len() {
                        sink(host(false, pmtu));
                    }
                }
            }
        },
    );
}

fn host(is_near: bool, pmtu: Pmtu) -> Host {
    let (from, to) = if is_near { (NEAR, FAR) } else { (FAR, NEAR) };
    let make = HostConfig { from: ip(from), to: ip(to), pmtu, is_near, offloads: true, lose: 0 };
    let mut host = Host::new(make);
    host.is_patient = std::thread::available_parallelism().is_ok_and(|count| count.get() < 2);
    host
}

fn near(far: &mut RemoteProcess, mtu: u32, pmtu: Pmtu) {
    let row = |what: String, udp: String, floor: String, engine: String, ratio: f64| {
        println!("| {mtu} | {what} | {udp} | {floor} | {engine} | {ratio:.2} |");
    };
    let (mut udp, mut lat) = (f64::MAX, f64::MAX);
    let (mut udp_rate, mut floor) = (0_f64, 0_f64);
    let (mut rates, mut messages) = ([0_f64; SIZES.len()], 0_f64);
    for _ in 0..TIMES {
        udp = udp.min(ping_udp(far));
        lat = lat.min(ping(far, pmtu));
        udp_rate = udp_rate.max(stream_udp(far, pmtu, Bare::Moved));
        floor = floor.max(stream_udp(far, pmtu, Bare::Placed));
        for (rate, size) in rates.iter_mut().zip(SIZES) {
            *rate = rate.max(writes(far, pmtu, size));
        }
        messages = messages.max(sends(far, pmtu));
    }
    let us = |ns: f64| format!("{:.2} us", ns / 1e3);
    row("8 B, half a round trip, median".into(), us(udp), String::new(), us(lat), lat / udp);
    let gb = |rate: f64| format!("{:.2} GB/s", rate / 1e9);
    for (rate, size) in rates.into_iter().zip(SIZES) {
        let what = format!("{} KiB writes, PMTU {}", size >> 10, pmtu.bytes());
        row(what, gb(udp_rate), gb(floor), gb(rate), rate / udp_rate);
    }
    println!("| {mtu} | 8 B sends | | | {:.2} million/s | |", messages / 1e6);
}

fn median(mut all: Vec<u64>) -> f64 {
    all.sort_unstable();
    all[all.len() / 2] as f64
}

fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind((address, 5000)).expect("a port");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

fn next(socket: &UdpSocket, bytes: &mut [u8]) -> usize {
    loop {
        if let Ok(len) = socket.recv(bytes) {
            return len;
        }
    }
}

fn ping_udp(far: &mut RemoteProcess) -> f64 {
    far.wait_for("udp");
    let (socket, mut bytes) = (socket(NEAR), [0; 64]);
    far.tell("go");
    let mut times = Vec::with_capacity(1 << 17);
    let end = Instant::now() + STREAM;
    while Instant::now() < end {
        let begun = Instant::now();
        socket.send_to(&[1; 8], (FAR, 5000)).expect("it goes");
        next(&socket, &mut bytes);
        times.push(begun.elapsed().as_nanos() as u64 / 2);
    }
    socket.send_to(&[], (FAR, 5000)).expect("it goes");
    median(times)
}

fn echo_udp() {
    let (socket, mut bytes) = (socket(FAR), [0; 64]);
    meet("udp");
    loop {
        let len = next(&socket, &mut bytes);
        if len == 0 {
            return;
        }
        socket.send_to(&bytes[..len], (NEAR, 5000)).expect("it goes");
    }
}

fn ping(far: &mut RemoteProcess, pmtu: Pmtu) -> f64 {
    far.wait_for("made");
    let mut host = host(true, pmtu);
    far.tell("go");
    let mut times = Vec::with_capacity(1 << 17);
    let end = Instant::now() + STREAM;
    while Instant::now() < end {
        let begun = Instant::now();
        host.post(Op::Send(Tail::Plain), OURS, 8);
        host.flush();
        loop {
            host.turn();
            if host.inbox.pop_front().is_some() {
                break;
            }
            host.flush();
        }
        times.push(begun.elapsed().as_nanos() as u64 / 2);
        host.completions.clear();
    }
    stop(host);
    median(times)
}

fn stop(mut host: Host) {
    let id = host.post(Op::Send(STOP), OURS, 0);
    host.until(|host| host.completions.drain(..).find(|&(done, _)| done == id));
}

fn echo(mut host: Host) {
    meet("made");
    let mut done = false;
    while !done {
        host.turn();
        while let Some((len, tail)) = host.inbox.pop_front() {
            done = tail == STOP;
            if !done {
                host.post(Op::Send(tail), OURS, len);
            }
        }
        host.completions.clear();
        host.flush();
    }
    host.linger();
}

/// The work of a stream without an engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bare {
    /// Datagrams are sent and received.
    Moved,
    /// Packets are also copied from and to memory, with an ICRC that is computed and checked: the
    /// minimum of any transport.
    Placed,
}

/// Bytes per second by plain UDP, with segmentation and merging by the kernel.
fn stream_udp(far: &mut RemoteProcess, pmtu: Pmtu, bare: Bare) -> f64 {
    far.wait_for("made");
    let mut sender = Sender::new(true);
    let (from, to) = (ip(NEAR), ip(FAR));
    let target =
        Target { source: from, destination: to, interface: 0, traffic_class: 0, hop_limit: 0 };
    let lane = sender.select_lane(to, 1).expect("a lane");
    let path = Path::new(&target, lane).expect("a path");
    let len = pmtu.bytes() as usize;
    let (memory, mut from) = (vec![1; MEMORY], (0..MEMORY / 8).step_by(len).cycle());
    let mut packets = vec![[0; BTH_LEN + 4096]; SEGMENTS_MAX];
    far.tell("go");
    let begun = Instant::now();
    while begun.elapsed() < STREAM {
        if bare == Bare::Placed {
            for (packet, from) in packets.iter_mut().zip(&mut from) {
                packet[BTH_LEN..BTH_LEN + len].copy_from_slice(&memory[from..from + len]);
            }
        }
        let mut batch = sender.batch();
        for packet in &packets {
            let (head, payload) = packet[..BTH_LEN + len].split_at(BTH_LEN);
            let (head, trailer) = match bare {
                Bare::Moved => (&[][..], &[0; ICRC_LEN][..0]),
                Bare::Placed => (head, &[0; ICRC_LEN][..]),
            };
            let whole = head.len() + payload.len() + trailer.len();
            let Some(place) = batch.reserve(&path, Ecn::Capable, whole) else { break };
            let identification = place.identification();
            let icrc = match bare {
                Bare::Moved => [0; ICRC_LEN],
                Bare::Placed => {
                    envelope(path.source_port(), identification).icrc(&packet[..BTH_LEN + len], &[])
                }
            };
            place
                .fill(head, &[Bytes::from(payload)], &icrc[..trailer.len()])
                .expect("as long as said");
        }
        batch.send();
    }
    far.tell("end");
    far.wait_for("B/s").parse().expect("a rate")
}

fn envelope(source_port: u16, identification: u16) -> CoveredHeaders {
    let addresses = Addresses::new(ip(NEAR), ip(FAR)).expect("of one family");
    CoveredHeaders { addresses, source_port, identification }
}

fn sink_udp(pmtu: Pmtu, bare: Bare) {
    let mut receiver = Receiver::bind(Bind::new(ip(FAR))).expect("4791");
    let len = pmtu.bytes() as usize;
    let (mut memory, mut to) = (vec![1; MEMORY], (0..MEMORY / 8).step_by(len).cycle());
    meet("made");
    let (mut bytes, mut begun, mut last) = (0, None, Instant::now());
    while begun.is_none() || last.elapsed() < STREAM / 4 {
        for datagram in receiver.receive().expect("a socket") {
            begun.get_or_insert_with(Instant::now);
            let (source_port, mut identification) = (datagram.source.port(), 0);
            for packet in datagram.packets() {
                bytes += len;
                if bare == Bare::Moved {
                    continue;
                }
                let (packet, verdict) = envelope(source_port, identification)
                    .open(packet, Check::Weak)
                    .expect("a packet");
                match verdict {
                    IcrcResult::Explained(number) => identification = number,
                    _ => assert_ne!(
                        verdict,
                        IcrcResult::Damaged,
                        "it has the ICRC that it was sent with"
                    ),
                }
                identification = identification.wrapping_add(1);
                let to = to.next().expect("it goes around");
                memory[to..to + len].copy_from_slice(&packet[BTH_LEN..]);
            }
            last = Instant::now();
        }
    }
    namespace::wait_for_line();
    let duration = last - begun.expect("it began");
    println!("{:.0} B/s", bytes as f64 / duration.as_secs_f64());
}

fn sink(mut host: Host) {
    meet("made");
    let mut done = false;
    while !done {
        host.turn();
        done = host.inbox.drain(..).any(|(_, tail)| tail == STOP);
        host.flush();
    }
    host.linger();
}

/// Bytes per second of RDMA WRITEs, with several in flight.
fn writes(far: &mut RemoteProcess, pmtu: Pmtu, size: usize) -> f64 {
    let depth = (4 << 20) / size;
    let rate = posted(far, pmtu, depth.clamp(4, 16), |host| {
        host.post(Op::Write { va: 0, rkey: RKEY, immediate: None }, OURS, size);
    });
    rate * size as f64
}

/// Messages per second of 8 bytes.
fn sends(far: &mut RemoteProcess, pmtu: Pmtu) -> f64 {
    posted(far, pmtu, 256, |host| {
        host.post(Op::Send(Tail::Plain), OURS, 8);
    })
}

fn posted(far: &mut RemoteProcess, pmtu: Pmtu, depth: usize, post: impl Fn(&mut Host)) -> f64 {
    far.wait_for("made");
    let mut host = host(true, pmtu);
    far.tell("go");
    let (begun, mut under_way, mut completed) = (Instant::now(), 0, 0_u64);
    while begun.elapsed() < STREAM {
        while under_way < depth {
            post(&mut host);
            under_way += 1;
        }
        host.flush();
        host.turn();
        let done = host.completions.len();
        host.completions.clear();
        under_way -= done;
        completed += done as u64;
    }
    let rate = completed as f64 / begun.elapsed().as_secs_f64();
    host.until(|host| {
        under_way -= host.completions.drain(..).count();
        (under_way == 0).then_some(())
    });
    if std::env::var_os("WIRE_COUNTERS").is_some() {
        eprintln!("{:?} {:?} {}", host.qp.counters(), host.qp.pace(), host.datagrams);
    }
    stop(host);
    rate
}
