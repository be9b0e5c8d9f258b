//! A test with an independent decoder: tshark must decode every field of emitted packets. On a host
//! without tshark it prints that it is skipped.

use ferroverbs_roce::wire::*;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

const SOURCE_PORT: u16 = 0xc123;

/// The fields that tshark prints, in order.
const FIELDS: [&str; 16] = [
    "bth.opcode",
    "bth.se",
    "bth.m",
    "bth.padcnt",
    "bth.p_key",
    "bth.destqp",
    "bth.a",
    "bth.psn",
    "reth.dmalen",
    "atomiceth.swapdt",
    "atomiceth.cmpdt",
    "aeth.syndrome",
    "aeth.msn",
    "immdt",
    "ieth",
    "deth.srcqp",
];

/// An Ethernet frame around a packet.
fn frame(packet: &Packet, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let addresses = Addresses::V4 { src, dst };
    let mut inside = packet.emit(payload.len()).to_vec();
    inside.extend(payload);
    inside.resize(inside.len() + Packet::padding(payload.len()), 0);
    let envelope = CoveredHeaders { addresses, source_port: SOURCE_PORT, identification: 0 };
    inside.extend(envelope.icrc(&inside, &[]));
    let udp_len = (8 + inside.len()) as u16;
    let ip = Grh { addresses, traffic_class: 0, hop_limit: 64, udp_len }.emit();
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend(&ip[20..]);
    for field in [SOURCE_PORT, UDP_PORT, udp_len, 0] {
        frame.extend(field.to_be_bytes());
    }
    frame.extend(inside);
    frame
}

/// A capture file (pcap) of `frames`.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (number, frame) in frames.iter().enumerate() {
        let len = frame.len() as u32;
        for word in [number as u32, 0, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// The output of tshark for `frames`; `None` if tshark is not installed.
fn dissect(frames: &[Vec<u8>]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r", "-", "-T", "fields", "-E", "separator=,", "-E", "occurrence=f"]);
    for field in FIELDS {
        command.args(["-e", &format!("infiniband.{field}")]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(&capture(frames)).expect("tshark reads the capture");
    drop(stdin);
    let output = child.wait_with_output().expect("tshark ends");
    let lines = String::from_utf8(output.stdout).expect("text");
    Some(lines.lines().map(str::to_owned).collect())
}

#[test]
fn tshark_decodes_every_field_of_emitted_packets() {
    let reth = Reth { va: 0x7f00_0000_1000, rkey: 0x1234, len: 8192 };
    let imm = Immediate::new([1, 2, 3, 4]);
    let aeth = |syndrome| Aeth { syndrome, msn: Number::new(5) };
    let ack = aeth(Syndrome::Ack(Credits::UNLIMITED));
    let atomic = |op| Message::Rc(Request::Atomic(Atomic { va: 0x1000, rkey: 1, op }));
    let deth = Deth { qkey: 0x1111_1111, src_qpn: Qpn::new(0x22) };
    let rc = Message::Rc;
    let response = Message::RcResponse;
    // The message, the payload's length, and the last eight fields.
    let cases = [
        (rc(Request::Send(Send::First)), 256, ",,,,,,,"),
        (rc(Request::Send(Send::Only(Tail::Plain))), 5, ",,,,,,,"),
        (rc(Request::Send(Send::Last(Tail::Immediate(imm)))), 6, ",,,,,01020304,,"),
        (rc(Request::Send(Send::Only(Tail::Invalidate(0x5678)))), 7, ",,,,,,00005678,"),
        (rc(Request::Write(Write::First(reth))), 256, "8192,,,,,,,"),
        (rc(Request::Write(Write::Only(reth, Some(imm)))), 1, "8192,,,,,01020304,,"),
        (rc(Request::Read(reth)), 0, "8192,,,,,,,"),
        (atomic(AtomicOp::CompareSwap { compare: 5, swap: 6 }), 0, ",6,5,,,,,"),
        (atomic(AtomicOp::FetchAdd { add: 7 }), 0, ",7,0,,,,,"),
        (response(Response::Acknowledge(ack)), 0, ",,,31,5,,,"),
        (response(Response::Acknowledge(aeth(Syndrome::Nak(Nak::Sequence)))), 0, ",,,96,5,,,"),
        (response(Response::Acknowledge(aeth(Syndrome::Rnr(RnrTimer::new(12))))), 0, ",,,44,5,,,"),
        (response(Response::Atomic(ack, 9)), 0, ",,,31,5,,,"),
        (response(Response::Read(ReadResponse::Only(ack))), 3, ",,,31,5,,,"),
        (response(Response::Read(ReadResponse::Middle)), 256, ",,,,,,,"),
        (Message::Uc(OneWay::Send(Send::Only(Some(imm)))), 4, ",,,,,01020304,,"),
        (Message::Ud(deth, None), 100, ",,,,,,,0x00000022"),
        (Message::Ud(deth, Some(imm)), 0, ",,,,,01020304,,0x00000022"),
    ];
    let mut frames = Vec::new();
    let mut wanted = Vec::new();
    for (number, &(message, payload, rest)) in cases.iter().enumerate() {
        let mut bth = Bth::new(Qpn::new(0x11), Psn::new(0xabc));
        bth.solicited = number % 2 == 0;
        bth.ack_request = number % 3 == 0;
        let packet = Packet { bth, message };
        let frame = frame(&packet, &vec![0x5a; payload]);
        let (se, a) = (u8::from(bth.solicited), u8::from(bth.ack_request));
        let pad = Packet::padding(payload);
        wanted.push(format!("{},{se},1,{pad},65535,0x000011,{a},2748,{rest}", message.opcode()));
        frames.push(frame);
    }
    let Some(lines) = dissect(&frames) else {
        println!("skipped: there is no tshark");
        return;
    };
    assert_eq!(lines, wanted);
}
