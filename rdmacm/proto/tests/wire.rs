//! The bytes of every message, by the offsets of the specification's tables
//! (IBTA 1.7 12).
//! Expected bytes are written by hand, and tshark, if installed, reads the messages as well.
//!
//! Map of this file: the messages with their bytes; round trips; refused bytes; comparison with
//! tshark.

use ferroverbs_cm::wire::*;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

const TRANSACTION: u64 = 0x1122_3344_5566_7788;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let digit = |b| (b as char).to_digit(16).expect("a digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// A MAD with these parts of the body, the rest zero.
fn golden(attribute: u16, modifier: u32, parts: &[(usize, &str)]) -> Vec<u8> {
    let mut bytes = hex("01070203 00000000 1122334455667788");
    bytes.extend(attribute.to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(modifier.to_be_bytes());
    bytes.resize(MAD_LEN, 0);
    for &(offset, text) in parts {
        let part = hex(text);
        bytes[24 + offset..][..part.len()].copy_from_slice(&part);
    }
    bytes
}

fn gid(last: u8) -> Gid {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
    gid
}

fn path() -> Path {
    Path {
        local_lid: 0xffff,
        remote_lid: 0xfffe,
        local_gid: gid(1),
        remote_gid: gid(2),
        flow_label: Bits::new(0xabcde),
        rate: Bits::new(3),
        traffic_class: 0x68,
        hop_limit: 64,
        service_level: Bits::new(5),
        subnet_local: true,
        ack_timeout: TimeCode::new(19),
    }
}

fn request() -> Request {
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let header = IpHeader::V4 { source, port: 0xc001, destination };
    Request {
        local_id: CommId(0x0102_0304),
        ece: Ece { vendor: Bits::new(0x15b3), options: 0x3000_0001 },
        service: PortSpace::Tcp.service(7091),
        guid: Guid(0x0011_2233_4455_6677),
        qkey: 0x8001_0000,
        qpn: Qpn::new(0x11_2233),
        responder_resources: 4,
        local_eecn: Bits::new(0x44_5566),
        initiator_depth: 5,
        remote_eecn: Bits::new(0x77_8899),
        remote_response_timeout: TimeCode::new(20),
        transport: Transport::Extended,
        flow_control: true,
        psn: Psn::new(0xaa_bbcc),
        local_response_timeout: TimeCode::new(21),
        retry_count: Bits::new(7),
        pkey: 0xffff,
        mtu: Bits::new(3),
        channel_exists: true,
        rnr_retry: Bits::new(6),
        max_retries: Bits::new(15),
        srq: true,
        primary: path(),
        alternate: Path { hop_limit: 1, ..path() },
        private: header.emit(b"hello").expect("fits"),
    }
}

fn reply() -> Reply {
    Reply {
        local_id: CommId(0x0506_0708),
        remote_id: CommId(0x0102_0304),
        ece: Ece { vendor: Bits::new(0x12_3456), options: 7 },
        qkey: 0x8001_0000,
        qpn: Qpn::new(0x33_4455),
        eecn: Bits::new(0x66_7788),
        psn: Psn::new(0x99_aabb),
        responder_resources: 6,
        initiator_depth: 7,
        ack_delay: TimeCode::new(15),
        failover: Bits::new(1),
        flow_control: true,
        rnr_retry: Bits::new(7),
        srq: true,
        guid: Guid(0x8899_aabb_ccdd_eeff),
        private: Private::new(b"granted").expect("fits"),
    }
}

const IDS: (CommId, CommId) = (CommId(0x0506_0708), CommId(0x0102_0304));
const IDS_HEX: (usize, &str) = (0, "05060708 01020304");

/// Every message, with its bytes.
fn all() -> Vec<(Message, Vec<u8>)> {
    let (local_id, remote_id) = IDS;
    let path_hex =
        "ffff fffe 00000000000000000000ffff0a000001 00000000000000000000ffff0a000002 abcde003 68";
    let primary = format!("{path_hex} 40 58 98");
    let alternate = format!("{path_hex} 01 58 98");
    let private = |text: &[u8]| text.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let ip = "00 40 c001 0000000000000000000000000a000001 0000000000000000000000000a000002";
    let reject = Reject {
        local_id,
        remote_id,
        rejected: Rejected::Reply,
        reason: Reason::STALE,
        private: Private::new(b"no").expect("fits"),
        information: Information::new(&[0xab; 8]),
    };
    vec![
        (
            Message::Request(Box::new(request())),
            golden(
                0x10,
                0x3000_0001,
                &[
                    (0, "01020304 00 0015b3 0000000001061bb3 0011223344556677"),
                    (28, "80010000 112233 04 445566 05 778899"),
                    (43, "a7"), // 20 in five bits, transport 3, flow control
                    (44, "aabbcc af ffff"),
                    (50, "3e"), // MTU 3, channel, RNR 6
                    (51, "f9"), // retries 15, SRQ, extended 1
                    (52, &primary),
                    (96, &alternate),
                    (140, ip),
                    (176, &private(b"hello")),
                ],
            ),
        ),
        (
            Message::Reply(Box::new(reply())),
            golden(
                0x13,
                7,
                &[
                    IDS_HEX,
                    (8, "80010000 334455 12 667788 34 99aabb 56 06 07"),
                    (26, "7b"), // 15 in five bits, failover 1, flow control
                    (27, "f0 8899aabbccddeeff"),
                    (36, &private(b"granted")),
                ],
            ),
        ),
        (
            Message::Ready(Ready {
                local_id,
                remote_id,
                private: Private::new(b"go").expect("fits"),
            }),
            golden(0x14, 0, &[IDS_HEX, (8, &private(b"go"))]),
        ),
        (
            Message::Reject(Box::new(reject)),
            golden(
                0x12,
                0,
                &[IDS_HEX, (8, "40 10 000a"), (12, "abababababababab"), (84, &private(b"no"))],
            ),
        ),
        (
            Message::Acknowledge(Acknowledge {
                local_id,
                remote_id,
                message: Rejected::Other,
                service_timeout: TimeCode::new(24),
                private: Private::new(b"wait").expect("fits"),
            }),
            golden(0x11, 0, &[IDS_HEX, (8, "80 c0"), (10, &private(b"wait"))]),
        ),
        (
            Message::DisconnectRequest(DisconnectRequest {
                local_id,
                remote_id,
                remote_qpn: Qpn::new(0x11_2233),
                private: Private::new(b"bye").expect("fits"),
            }),
            golden(0x15, 0, &[IDS_HEX, (8, "112233 00"), (12, &private(b"bye"))]),
        ),
        (
            Message::DisconnectReply(DisconnectReply {
                local_id,
                remote_id,
                private: Private::new(b"bye").expect("fits"),
            }),
            golden(0x16, 0, &[IDS_HEX, (8, &private(b"bye"))]),
        ),
        (
            Message::DatagramRequest(Box::new(DatagramRequest {
                id: local_id,
                pkey: 0xffff,
                service: PortSpace::Udp.service(0x1bb3),
                private: Private::new(b"who").expect("fits"),
            })),
            golden(0x17, 0, &[(0, "05060708 ffff 0000 0000000001111bb3"), (16, &private(b"who"))]),
        ),
        (
            Message::DatagramReply(Box::new(DatagramReply {
                id: local_id,
                status: DatagramStatus::REJECTED,
                ece: Ece { vendor: Bits::new(0x12_3456), options: 9 },
                qpn: Qpn::new(0x11_2233),
                service: PortSpace::Udp.service(0x1bb3),
                qkey: 0x0123_4567,
                private: Private::new(b"me").expect("fits"),
            })),
            golden(
                0x18,
                9,
                &[
                    (0, "05060708 02 00 1234 112233 56 0000000001111bb3 01234567"),
                    (96, &private(b"me")),
                ],
            ),
        ),
        (
            Message::LoadPath(Box::new(LoadPath {
                local_id,
                remote_id,
                remote_qpn: Qpn::new(0x11_2233),
                response_timeout: TimeCode::new(20),
                path: path(),
                private: Private::new(b"alt").expect("fits"),
            })),
            golden(
                0x19,
                0,
                &[
                    IDS_HEX,
                    (12, "112233 a0"),
                    (20, "ffff fffe"),
                    (24, "00000000000000000000ffff0a000001 00000000000000000000ffff0a000002"),
                    (56, "abcde0 68 40 03 58 98"),
                    (64, &private(b"alt")),
                ],
            ),
        ),
        (
            Message::PathReply(PathReply { local_id, remote_id, status: PathReply::UNSUPPORTED }),
            golden(0x1a, 0, &[IDS_HEX, (8, "00 02")]),
        ),
    ]
}

/// IBTA 1.7 12.6.5, 12.6.6, 12.6.7, 12.6.8, 12.6.9, 12.6.10, 12.6.11, 12.11.
#[test]
fn every_message_has_its_golden_bytes_and_is_itself_again() {
    for (message, bytes) in all() {
        let mad = Mad { transaction: TRANSACTION, message };
        let emitted = mad.emit();
        for (at, (ours, wanted)) in emitted.iter().zip(&bytes).enumerate() {
            assert_eq!(ours, wanted, "{:#06x}, byte {at}", mad.message.attribute());
        }
        assert_eq!(Mad::parse(&bytes), Ok(mad));
    }
}

#[test]
fn transports_have_their_codes() {
    for (transport, code, extended) in [
        (Transport::Reliable, 0, 0),
        (Transport::Unreliable, 1, 0),
        (Transport::ReliableDatagram, 2, 0),
        (Transport::Extended, 3, 1),
    ] {
        let request = Request { transport, ..Request::default() };
        let message = Message::Request(Box::new(request));
        let bytes = Mad { transaction: 0, message }.emit();
        assert_eq!((bytes[24 + 43], bytes[24 + 51]), (code << 1, extended));
        assert!(
            matches!(Mad::parse(&bytes), Ok(Mad { message: Message::Request(r), .. }) if *r == request)
        );
    }
}

#[test]
fn other_lengths_than_a_mads_are_refused() {
    for (message, _) in all() {
        let bytes = Mad { transaction: 0, message }.emit();
        for len in 0..MAD_LEN {
            assert_eq!(Mad::parse(&bytes[..len]), Err(Malformed::Length(len)));
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(Mad::parse(&longer), Err(Malformed::Length(257)));
    }
}

/// A message with one byte changed.
fn changed(attribute: u8, at: usize, byte: u8) -> Result<Mad, Malformed> {
    let (_, mut bytes) = all()
        .into_iter()
        .find(|(message, _)| message.attribute() == attribute.into())
        .expect("a message");
    bytes[at] = byte;
    Mad::parse(&bytes)
}

/// IBTA 1.7 13.4, 13.4.3.
#[test]
fn headers_of_others_are_refused() {
    for (at, byte, error) in [
        (0, 2, Malformed::Class),
        (1, 3, Malformed::Class),
        (2, 1, Malformed::Class),
        (3, 0x81, Malformed::Method),
        (5, 4, Malformed::Method),
        (17, 0x1b, Malformed::Attribute(0x1b)),
        (16, 1, Malformed::Attribute(0x110)),
    ] {
        assert_eq!(changed(0x10, at, byte), Err(error));
    }
}

#[test]
fn lengths_that_lie_and_reserved_values_are_refused() {
    assert_eq!(changed(0x12, 24 + 9, 73 << 1), Err(Malformed::Inner));
    assert_eq!(changed(0x12, 24 + 9, 0xff), Err(Malformed::Inner));
    assert_eq!(changed(0x18, 24 + 5, 73), Err(Malformed::Inner));
    assert_eq!(changed(0x1a, 24 + 8, 73), Err(Malformed::Inner));
    assert_eq!(changed(0x12, 24 + 8, 0xc0), Err(Malformed::Reserved));
    assert_eq!(changed(0x11, 24 + 8, 0xc0), Err(Malformed::Reserved));
    // Transport 3 with an undefined extended transport.
    assert_eq!(changed(0x10, 24 + 51, 0xfa), Err(Malformed::Reserved));
    let whole = changed(0x12, 24 + 9, 72 << 1).expect("just fits");
    assert!(
        matches!(whole.message, Message::Reject(reject) if reject.information.bytes().len() == 72)
    );
}

#[test]
fn information_of_a_rejection_is_cut_where_there_is_no_more_room() {
    assert_eq!(Information::new(&[1; 100]).bytes(), [1; 72]);
    assert_eq!(Information::new(&[]).bytes(), [0; 0]);
}

#[test]
fn xrc_has_its_queue_pair_where_the_context_is() {
    assert_eq!(reply().peer_qpn(Transport::Extended), Bits::new(0x66_7788));
    assert_eq!(reply().peer_qpn(Transport::Reliable), Bits::new(0x33_4455));
}

/// A RoCE v2 frame from QP 1 to QP 1. Checksums are zero, which tshark accepts.
fn frame(mad: &[u8]) -> Vec<u8> {
    let udp_len = (8 + 12 + 8 + mad.len() + 4) as u16;
    let mut frame = hex("020000000002 020000000001 0800 4500");
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend(hex("0000 4000 4011 0000 0a000001 0a000002"));
    for field in [0xc123, 4791, udp_len, 0] {
        frame.extend(field.to_be_bytes());
    }
    frame.extend(hex("6440ffff 00000001 00000000 80010000 00000001"));
    frame.extend(mad);
    frame.extend([0; 4]);
    frame
}

/// tshark's values of `fields` for `mad`; `None` without tshark.
fn dissect(mad: &[u8], fields: &[&str]) -> Option<String> {
    let mut file = Vec::new();
    let frame = frame(mad);
    let len = frame.len() as u32;
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1, 0, 0, len, len] {
        file.extend(word.to_le_bytes());
    }
    file.extend(frame);
    let mut command = Command::new("tshark");
    command.args(["-n", "-r", "-", "-T", "fields", "-E", "separator=,", "-E", "occurrence=f"]);
    for field in fields {
        command.args(["-e", &format!("infiniband.{field}")]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    child.stdin.take().expect("piped").write_all(&file).expect("tshark reads the capture");
    let output = child.wait_with_output().expect("tshark ends");
    Some(String::from_utf8(output.stdout).expect("text").trim_end().to_owned())
}

#[test]
fn tshark_sees_what_we_put_into_messages() {
    let cases: [(usize, &[&str], &str); 4] = [
        (
            0,
            &[
                "mad.attributeid",
                "cm.req.serviceid.dport",
                "cm.req.localcaguid",
                "cm.req.localqpn",
                "cm.req.responderres",
                "cm.req.initdepth",
                "cm.req.remoteresptout",
                "cm.req.transpsvctype",
                "cm.req.startpsn",
                "cm.req.localresptout",
                "cm.req.retrcount",
                "cm.req.pppmtu",
                "cm.req.rnrretrcount",
                "cm.req.maxcmretr",
                "cm.req.srq",
                "cm.req.prim_hoplim",
                "cm.req.prim_localacktout",
                "cm.req.ip_cm.sip4",
                "cm.req.ip_cm.dip4",
            ],
            "0x0010,0x1bb3,0x0011223344556677,0x112233,0x04,0x05,0x14,0x03,0xaabbcc,0x15,0x07,0x03,0x06,0x0f,0x01,0x40,0x13,10.0.0.1,10.0.0.2",
        ),
        (
            1,
            &[
                "mad.attributeid",
                "cm.rep.remotecommid",
                "cm.rep.localqpn",
                "cm.rep.startpsn",
                "cm.rep.respres",
                "cm.rep.initdepth",
                "cm.rep.tgtackdelay",
                "cm.rep.rnrretrcount",
                "cm.rep.srq",
            ],
            "0x0013,0x01020304,0x334455,0x99aabb,0x06,0x07,0x0f,0x07,0x01",
        ),
        (
            3,
            &["cm.rej.localcommid", "cm.rej.msgrej", "cm.rej.rejinfolen", "cm.rej.reason"],
            "0x05060708,0x01,0x08,0x000a",
        ),
        (5, &["cm.dreq.localcommid", "cm.req.remoteqpneecn"], "0x05060708,0x112233"),
    ];
    for (number, fields, wanted) in cases {
        let (_, bytes) = all().swap_remove(number);
        let Some(line) = dissect(&bytes, fields) else {
            println!("skipped: there is no tshark");
            return;
        };
        assert_eq!(line, wanted);
    }
}
