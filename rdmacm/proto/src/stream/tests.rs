//! Two ends exchange messages by hand, and peers lie.
//! Tests of the whole stream module.

use super::*;
use std::collections::VecDeque;

/// One end with its memory.
struct End {
    stream: Stream,
    buffer: Vec<u8>,
    staging: Vec<u8>,
    table: [[u8; 16]; 2],
    /// Writes and messages in flight to the other end: address, bytes, message, completion.
    wire: VecDeque<(u64, Vec<u8>, Option<Message>, CompletedRequest)>,
    /// The address of the buffer at the other end.
    base: u64,
}

const TABLE_AT: u64 = 0x9000_0000;

fn hello(settings: &Settings, base: u64) -> Hello {
    Hello {
        order: Order::OWN,
        credits: settings.receive_queue,
        mappings: Some(0),
        table: Area { addr: TABLE_AT, key: 1, length: TABLE },
        buffer: Area { addr: base, key: 2, length: settings.receive_bytes / 2 },
    }
}

fn pair(settings: Settings) -> [End; 2] {
    let end = |base, peer| End {
        stream: Stream::new(&settings, &hello(&settings, peer)).expect("a good one"),
        buffer: vec![0; settings.receive_bytes as usize],
        staging: vec![0; settings.send_bytes as usize],
        table: [[0; 16]; 2],
        wire: VecDeque::new(),
        base,
    };
    [end(0x1000, 0x5000_0000), end(0x5000_0000, 0x1000)]
}

impl End {
    fn send(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while let Some(write) = self.stream.outgoing.write(bytes.len() - sent) {
            let next = &bytes[sent..sent + write.bytes as usize];
            if let ByteLocation::Buffer(at) = write.location {
                self.staging[at as usize..][..next.len()].copy_from_slice(next);
            }
            let message = Message::Data(write.bytes);
            self.wire.push_back((write.addr, next.to_vec(), Some(message), write.completion));
            sent += next.len();
        }
        sent
    }

    fn grant(&mut self) {
        while let Some((grant, entry)) = self.stream.grant() {
            let length = self.stream.incoming.half();
            let area = |at: u32| Area { addr: self.base + u64::from(at), key: 2, length };
            let bytes = grant.half.map_or_else(Vec::new, |at| area(at).emit(Order::OWN).to_vec());
            let at = TABLE_AT + u64::from(entry) * 16;
            self.wire.push_back((
                at,
                bytes,
                Some(Message::Credits(grant.limit)),
                CompletedRequest::Control,
            ));
        }
    }

    fn read(&mut self, most: usize) -> Vec<u8> {
        let mut got = vec![];
        while got.len() < most
            && let Some((at, bytes)) = self.stream.incoming.piece(0)
        {
            let bytes = (bytes as usize).min(most - got.len());
            got.extend_from_slice(&self.buffer[at as usize..][..bytes]);
            self.stream.incoming.consume(bytes as u32);
        }
        got
    }

    /// Delivers the oldest write in flight.
    fn deliver(&mut self, to: &mut Self) -> bool {
        let Some((addr, bytes, message, done)) = self.wire.pop_front() else { return false };
        if (TABLE_AT..TABLE_AT + 32).contains(&addr) {
            if !bytes.is_empty() {
                to.table[(addr - TABLE_AT) as usize / 16].copy_from_slice(&bytes);
            }
        } else if !bytes.is_empty() {
            let at = (addr - to.base) as usize;
            to.buffer[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let message = Message::parse(message.expect("all have one").emit()).expect("our own");
        let update = to.stream.receive(message, bytes.len() as u32).expect("both obey");
        if update == Some(Update::Table) {
            let entry = to.table[to.stream.outgoing.entry() as usize];
            to.stream.outgoing.add_grant(Area::parse(entry)).expect("both obey");
        }
        self.stream.complete(done, true);
        true
    }
}

/// Sends a long text in both directions in pieces of changing sizes, and compares it.
fn converse(settings: Settings, seed: u64) {
    let [mut a, mut b] = pair(settings.limited(u16::MAX));
    let text: Vec<u8> = (0..300_000_u32).map(|n| (n * 7 + n / 251) as u8).collect();
    let (mut sent, mut got) = ([0; 2], [vec![], vec![]]);
    let mut random = seed;
    let mut steps = 0;
    while got[0].len() < text.len() || got[1].len() < text.len() {
        steps += 1;
        assert!(
            steps < 2_000_000,
            "it does not go on: {sent:?}, {} {}",
            got[0].len(),
            got[1].len()
        );
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let size = 1 + (random >> 8) as usize % 9000;
        let way = (random & 1) as usize;
        let (one, other) = if way == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        match random >> 1 & 3 {
            0 => {
                let end = (sent[way] + size).min(text.len());
                sent[way] += one.send(&text[sent[way]..end]);
            }
            1 => {
                got[way].extend(one.read(size));
            }
            2 => one.grant(),
            _ => {
                for _ in 0..size % 8 {
                    one.deliver(other);
                }
            }
        }
    }
    assert_eq!(got[0], text);
    assert_eq!(got[1], text);
    while a.deliver(&mut b) || b.deliver(&mut a) {}
    assert!(a.stream.outgoing.is_idle() && b.stream.outgoing.is_idle());
}

#[test]
fn bytes_arrive_in_order_whatever_the_sizes_and_the_order_of_steps() {
    for seed in 1..6 {
        converse(Settings::default(), seed);
        converse(Settings { receive_bytes: 5000, send_bytes: 4100, ..Settings::default() }, seed);
        converse(
            Settings { send_queue: 16, receive_queue: 16, inline: 0, ..Settings::default() },
            seed,
        );
        converse(Settings { inline: 5000, receive_bytes: 4096, ..Settings::default() }, seed);
    }
}

#[test]
fn counts_wrap_at_16_bits() {
    let settings = Settings { receive_queue: 16, ..Settings::default() };
    let [mut a, mut b] = pair(settings.limited(u16::MAX));
    for n in 0..200_000_u32 {
        assert_eq!(a.send(&[n as u8]), 1, "message {n}");
        b.grant();
        while a.deliver(&mut b) || b.deliver(&mut a) {}
        assert_eq!(b.read(10), [n as u8]);
    }
}

#[test]
fn a_sender_without_credits_or_room_waits() {
    let settings = Settings { receive_queue: 16, ..Settings::default() }.limited(u16::MAX);
    let [mut a, mut b] = pair(settings);
    let sent = (0..100).filter(|_| a.send(b"x") == 1).count();
    assert_eq!(sent, 16, "one for each receive");
    while a.deliver(&mut b) {}
    assert_eq!(a.send(b"x"), 0);
    b.read(100);
    b.grant();
    while b.deliver(&mut a) {}
    assert_eq!(a.send(b"x"), 1);

    let [mut a, _] = pair(Settings::default());
    let half = a.send(&vec![1; 1 << 20]);
    assert_eq!(half, 1 << 16, "half of the buffer was lent");
}

#[test]
fn who_writes_more_than_he_was_lent_breaks_the_connection() {
    let [mut a, _] = pair(Settings::default());
    let half = 1 << 16;
    assert_eq!(a.stream.receive(Message::Data(half - 1), half - 1), Ok(None));
    assert_eq!(
        a.stream.receive(Message::Data(2), 2),
        Err(Broken::TooLong { bytes: 2, room: 1 }),
        "no message lies in two halves"
    );
    assert_eq!(a.stream.state(), StreamState::Broken);
    assert!(!a.stream.is_readable() && !a.stream.is_writable());
    assert_eq!(a.stream.receive(Message::Data(1), 1), Ok(None), "nothing is obeyed any more");
    assert_eq!(a.stream.incoming.unread(), half - 1, "what came before is still there");

    let [mut a, _] = pair(Settings::default());
    let most = Message::MOST_BYTES;
    assert!(a.stream.receive(Message::Data(most), most).is_err());
}

#[test]
fn who_sends_more_messages_than_granted_breaks_the_connection() {
    let settings = Settings { receive_queue: 16, ..Settings::default() };
    let [mut a, _] = pair(settings);
    for _ in 0..16 {
        assert_eq!(a.stream.receive(Message::Data(1), 1), Ok(None));
    }
    assert_eq!(a.stream.receive(Message::Data(1), 1), Err(Broken::TooMany));
}

#[test]
fn credits_are_not_taken_back_and_a_third_half_is_refused() {
    let [mut a, _] = pair(Settings::default());
    assert_eq!(a.stream.receive(Message::Credits(383), 0), Err(Broken::TooMany));
    let [mut a, _] = pair(Settings::default());
    let area = Area { addr: 1, key: 2, length: 3 };
    assert_eq!(a.stream.outgoing.add_grant(Area::default()), Err(Broken::Area));
    assert_eq!(a.stream.outgoing.add_grant(area), Ok(()));
    assert_eq!(a.stream.outgoing.add_grant(area), Err(Broken::Area));
}

#[test]
fn a_peer_without_a_table_is_refused_and_one_without_credits_gets_nothing() {
    let settings = Settings::default();
    let mut said = hello(&settings, 0);
    said.table.length = 0;
    assert_eq!(Stream::new(&settings, &said).err(), Some(Broken::Hello));
    let mut said = hello(&settings, 0);
    (said.credits, said.buffer.length) = (0, 0);
    let mut stream = Stream::new(&settings, &said).expect("it may grant some later");
    assert_eq!(stream.outgoing.write(10), None);
}

#[test]
fn shutting_down_tells_the_peer_what_it_means() {
    let [mut a, mut b] = pair(Settings::default());
    assert_eq!(a.stream.shut_down(false, true), Some(Message::Shutdown));
    assert!(!a.stream.is_writable() && a.stream.is_readable());
    assert_eq!(a.stream.shut_down(false, true), None, "once is enough");
    assert_eq!(b.stream.receive(Message::Shutdown, 0), Ok(None));
    assert!(b.stream.is_writable() && !b.stream.is_readable());
    assert_eq!(b.stream.shut_down(false, true), Some(Message::Disconnect));
    assert_eq!(a.stream.receive(Message::Disconnect, 0), Ok(None));
    assert_eq!(a.stream.state(), StreamState::Ended);
    b.stream.complete(CompletedRequest::Disconnect, true);
    assert_eq!(b.stream.state(), StreamState::Ended);

    let [mut a, _] = pair(Settings::default());
    assert_eq!(a.stream.shut_down(true, false), None, "the peer cannot be told");
    assert_eq!(a.stream.shut_down(false, true), Some(Message::Disconnect));

    let [mut a, _] = pair(Settings::default());
    a.stream.shut_down(false, true);
    assert_eq!(a.stream.receive(Message::Shutdown, 0), Ok(None));
    assert_eq!(a.stream.state(), StreamState::Ended, "both have shut down");
}

#[test]
fn a_failed_request_breaks_the_connection_unless_it_had_ended() {
    let [mut a, _] = pair(Settings::default());
    a.stream.complete(CompletedRequest::Data(0), false);
    assert_eq!(a.stream.state(), StreamState::Broken);
    let [mut a, _] = pair(Settings::default());
    assert_eq!(a.stream.receive(Message::Disconnect, 0), Ok(None));
    a.stream.complete(CompletedRequest::Control, false);
    assert_eq!(a.stream.state(), StreamState::Ended);
}

#[test]
fn requests_keep_their_meaning_as_numbers() {
    for done in [
        CompletedRequest::Data(0),
        CompletedRequest::Data(u32::MAX),
        CompletedRequest::Control,
        CompletedRequest::Disconnect,
    ] {
        assert_eq!(CompletedRequest::parse(done.emit()), Some(done));
    }
    assert_eq!(CompletedRequest::parse(u64::MAX), None);
}

#[test]
fn any_messages_at_all_are_obeyed_or_refused() {
    for seed in 1..200_u64 {
        let [mut a, _] = pair(Settings::default());
        let mut random = seed;
        for _ in 0..300 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let raw = (random >> 16) as u32 & if random & 1 == 0 { 0xe000_0fff } else { u32::MAX };
            let Ok(message) = Message::parse(raw) else { continue };
            if let Ok(Some(Update::Table)) = a.stream.receive(message, random as u32 & 16) {
                let area = Area { addr: random, key: 0, length: random as u32 };
                let _refused = a.stream.outgoing.add_grant(area);
            }
            a.stream.outgoing.write(random as usize & 0xffff);
            a.stream.incoming.consume(random as u32 & 0xff);
            a.stream.grant();
        }
        assert!(a.stream.incoming.unread() <= 1 << 17);
    }
}
