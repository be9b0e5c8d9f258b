//! Entry points for a fuzzer: any bytes in place of a peer's messages.
//! The crate `fuzz` calls these.

use crate::datagram::{Header, Notice};
use crate::stream::{self, Area, ByteLocation, CompletedRequest, Hello, Settings, Stream, Update};
use crate::wire::{
    Acknowledge, CommId, DatagramReply, DatagramRequest, Mad, Message, PortSpace, Private, Qpn,
    Reply, Request, TimeCode,
};
use crate::{Config, Event, Kind, Manager, Time};
use std::net::IpAddr;
use std::time::Duration;

/// Bytes of a step, without its MAD.
const STEP: usize = 4;
/// Bytes of a MAD that are taken from the input, from the attribute on; the rest is zero. Private
/// data are not fuzzed.
const INPUT_BYTES: usize = 96;

/// Feeds MADs to a process with connections in all states, while time passes and its application
/// acts. The input only marks where a known communication id stands, because a fuzzer does not
/// guess ids. No step may panic, and all tables must stay within their limits.
///
/// # Panics
/// A table exceeds its limit, or an invariant fails.
pub fn manager(data: &[u8]) {
    let mut config = Config::new(crate::wire::Guid(1));
    config.connections = 20;
    config.memories = 4;
    config.pending_per_peer = 3;
    config.outgoing = 50;
    (config.half_open, config.half_open_per_peer, config.waiting) = (3, 2, 5);
    let mut manager = Manager::<u8>::new(config);
    let service = PortSpace::Tcp.service(1);
    for kind in [Kind::Connections, Kind::Datagrams] {
        manager.listen(kind, service, 4).expect("nobody listens yet");
    }
    let mut seed = 1_u64;
    let mut random = move || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        seed >> 16
    };
    let mut now = Time::ZERO;
    let mut known = Vec::new();
    let mut names = vec![CommId(0)];
    let mut rest = data;
    while let Some((&[action, peer, name, wait], after)) = rest.split_first_chunk::<STEP>() {
        rest = after;
        now = now.saturating_add(Duration::from_millis(1 << (wait % 18)));
        let peer = peer % 3;
        let pick = |of: &[_]| of.get(usize::from(name) % of.len().max(1)).copied();
        match action % 12 {
            0 => {
                let request = Request { service, qpn: Qpn::new(name.into()), ..Request::default() };
                known.extend(manager.connect(now, &mut random, peer, request).ok());
            }
            1 => {
                let request = DatagramRequest { service, ..DatagramRequest::default() };
                let code = TimeCode::new(10);
                known.extend(
                    manager.send_sidr_request(now, &mut random, peer, request, code, 3).ok(),
                );
            }
            // A call of the application. A call in a wrong state returns an error.
            action @ 2..=7 => {
                if let Some(connection) = pick(&known) {
                    let none = Private::NONE;
                    let _ = match action {
                        2 => manager.accept(now, connection, Reply::default()),
                        3 => manager.ready(connection),
                        4 => manager.establish(connection),
                        5 => manager.disconnect(now, connection, none),
                        6 => manager.answer(now, connection, DatagramReply::default()),
                        _ => {
                            manager.destroy(now, connection);
                            Ok(())
                        }
                    };
                }
            }
            // A MAD of a peer.
            _ => {
                let take = rest.len().min(INPUT_BYTES);
                let (part, after) = rest.split_at(take);
                rest = after;
                let mut bytes = mad(part);
                // Both communication ids, by their index among the seen ids.
                let ids = [part.first(), part.get(1)].map(|number| {
                    let number = usize::from(number.copied().unwrap_or(0));
                    names.get(number % names.len()).copied().unwrap_or_default()
                });
                if action & 0x80 != 0 {
                    let ids = ids.iter().flat_map(|id| id.0.to_be_bytes());
                    bytes.iter_mut().skip(24).zip(ids).for_each(|(byte, id)| *byte = id);
                }
                // Waiting requests count too, because a MAD may admit one.
                let all = |manager: &Manager<u8>| manager.counts().0 + manager.waiting();
                let (is_known, before) = (manager.knows(&peer, &bytes), all(&manager));
                manager.receive(now, &mut random, &peer, &bytes);
                assert!(!is_known || all(&manager) <= before, "a repetition is nothing new");
            }
        }
        manager.handle_timeout(now);
        while let Some(event) = manager.poll_event() {
            known.push(event.connection());
            if let Event::Request { connection, .. } = event {
                manager.remove_from_backlog(connection);
            }
        }
        while let Some((_, bytes)) = manager.poll_transmit() {
            let mad = Mad::parse(&bytes).expect("what is sent is a MAD");
            match mad.message {
                Message::Request(request) => names.push(request.local_id),
                Message::Reply(reply) => names.extend([reply.local_id, reply.remote_id]),
                Message::Acknowledge(Acknowledge { local_id, .. }) => names.push(local_id),
                Message::DatagramRequest(request) => names.push(request.id),
                _ => {}
            }
        }
        let (live, remembered) = manager.counts();
        assert!(live <= config.connections, "{live} connections");
        assert!(remembered <= config.memories, "{remembered} are remembered");
        assert!(manager.waiting() <= config.waiting, "{} wait", manager.waiting());
        assert!(manager.poll_timeout().is_none_or(|at| at > now), "time does not go on");
    }
    for connection in known {
        manager.destroy(now, connection);
    }
    while let Some(at) = manager.poll_timeout() {
        manager.handle_timeout(at);
        while manager.poll_transmit().is_some() {}
    }
    assert_eq!(manager.poll_event(), None, "nobody is interested any more");
    assert_eq!(manager.counts(), (0, 0), "something is left");
}

/// A MAD of the class: two bytes of input choose the attribute, and the rest is the body.
fn mad(part: &[u8]) -> [u8; crate::wire::MAD_LEN] {
    let mut bytes = [0; crate::wire::MAD_LEN];
    let attribute = part.get(2).map_or(0x10, |byte| 0x10 + byte % 12);
    let head = [1, 7, 2, 3].into_iter().chain([0; 13]).chain([attribute]).chain([0; 6]);
    let all = head.chain(part.iter().skip(3).copied());
    bytes.iter_mut().zip(all).for_each(|(byte, part)| *byte = part);
    bytes
}

/// Parses bytes as a MAD or a message of rsockets. A parsed message must survive emit and parse.
///
/// # Panics
/// A message does not survive.
pub fn mad_again(data: &[u8]) {
    rsockets(data);
    let mut bytes = [0; crate::wire::MAD_LEN];
    bytes.iter_mut().zip(data).for_each(|(byte, data)| *byte = *data);
    for bytes in [data, &bytes] {
        if let Ok(mad) = Mad::parse(bytes) {
            assert_eq!(Mad::parse(&mad.emit()).as_ref(), Ok(&mad));
            let (request, datagram) = match &mad.message {
                Message::Request(request) => (Some(request.private), None),
                Message::DatagramRequest(request) => (None, Some(request.private)),
                _ => (None, None),
            };
            let header = request.as_ref().map(ip_again::<92>);
            assert_ne!(header.or(datagram.as_ref().map(ip_again::<216>)), Some(false));
        }
    }
}

/// Parses bytes as messages of a peer's rsockets: the header of a datagram, and a stream, in which
/// no address may lead out of the buffers.
///
/// # Panics
/// An address leads out of a buffer.
pub fn rsockets(data: &[u8]) {
    if let Ok((from, len)) = Header::parse(data) {
        let again = Header::of(from);
        assert_eq!(again.bytes().len(), len);
        assert_eq!(Header::parse(again.bytes()), Ok((from, len)));
    }
    for family in [IpAddr::from([0; 4]), IpAddr::from([0; 16])] {
        if let Ok((notice, len)) = Notice::parse(data, family) {
            assert_eq!(Notice::parse(&notice.emit(), family), Ok((notice, len)));
        }
    }
    let Ok(hello) = Hello::parse(data) else { return };
    assert_eq!(Hello::parse(&hello.emit()), Ok(hello));
    let queue = stream::LEAST_QUEUE;
    let wanted = Settings { send_queue: queue, receive_queue: queue, ..Settings::default() };
    let settings = wanted.limited(queue);
    let Ok(mut stream) = Stream::new(&settings, &hello) else { return };
    let mut rest = data.get(Hello::LEN..).unwrap_or_default();
    while let Some((word, after)) = rest.split_first_chunk::<4>() {
        rest = after;
        let Ok(message) = stream::Message::parse(u32::from_be_bytes(*word)) else { continue };
        if let Ok(Some(Update::Table)) = stream.receive(message, word[3].into()) {
            let Some((area, after)) = rest.split_first_chunk() else { return };
            rest = after;
            // A refused area ends the connection, which is the caller's task.
            if stream.outgoing.add_grant(Area::parse(*area)).is_err() {
                return;
            }
        }
        if let Some((at, some)) = stream.incoming.piece(0) {
            assert!(at.checked_add(some).is_some_and(|end| end <= settings.receive_bytes));
            stream.incoming.consume(some / 2 + 1);
        }
        if let Some(write) = stream.outgoing.write(word[2].into()) {
            let at = if let ByteLocation::Buffer(at) = write.location { at } else { 0 };
            assert!(at.checked_add(write.bytes).is_some_and(|end| end <= settings.send_bytes));
            stream.complete(write.completion, true);
        }
        while stream.grant().is_some() {
            stream.complete(CompletedRequest::Control, true);
        }
    }
}

fn ip_again<const N: usize>(private: &Private<N>) -> bool {
    let Ok((header, data)) = crate::wire::IpHeader::parse(private) else { return true };
    let Ok(again) = header.emit::<N>(data) else { return false };
    crate::wire::IpHeader::parse(&again) == Ok((header, data))
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_bytes_find_nothing() {
        let mut state = 7_u64;
        for _ in 0..300 {
            let data: Vec<u8> = (0..2000)
                .map(|_| {
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(9);
                    state.to_be_bytes()[1]
                })
                .collect();
            super::manager(&data);
            super::mad_again(&data[..256]);
            // Random bytes do not begin with a valid version.
            let mut hello = data;
            hello[0] = 1;
            super::rsockets(&hello);
        }
    }
}
