//! A test of batch sizes: how many packets an end may handle at a time so that both ends stay busy.
//!
//! Each packet costs either end the same time, and the network has no latency.

use super::*;
use std::collections::VecDeque;

/// The cost of a data packet at the sender, and at the receiver.
const COST: Duration = Duration::from_micros(1);
const PACKETS: u32 = 2048;

/// An end with its own processor.
struct Side<'a> {
    end: &'a mut End,
    /// The end has worked up to this time.
    now: Time,
    /// Arriving packets, with the time of arrival.
    inbox: VecDeque<(Time, Vec<u8>)>,
    /// Whether the end has no work before the next arrival.
    waits: bool,
}

impl Side<'_> {
    /// The time of the end's next action.
    fn next(&self) -> Option<Time> {
        let comes = self.inbox.front().map(|(at, _)| (*at).max(self.now));
        if self.waits { comes } else { Some(self.now) }
    }

    fn spend(&mut self, datagram: &[u8]) {
        if datagram.len() > 1000 {
            self.now = self.now.after(COST);
        }
    }

    /// Receives up to `most` datagrams that arrived by now, then sends up to `most` datagrams,
    /// which the other end receives together.
    fn work(&mut self, at: Time, most: usize, other: &mut VecDeque<(Time, Vec<u8>)>) {
        self.now = self.now.max(at);
        let start = self.now;
        let mut taken = 0;
        while taken < most
            && self.inbox.front().is_some_and(|(at, _)| *at <= start)
            && let Some((_, datagram)) = self.inbox.pop_front()
        {
            self.spend(&datagram);
            self.end.receive(self.now, &datagram, false);
            taken += 1;
        }
        let mut made = Vec::new();
        while made.len() < most
            && let Some(datagram) = self.end.transmit(self.now)
        {
            self.spend(&datagram);
            made.push(datagram);
        }
        self.waits = made.is_empty() && taken == 0;
        other.extend(made.into_iter().map(|datagram| (self.now, datagram)));
    }
}

/// The duration of a message whose packets each end handles up to `most` at a time, relative to the
/// work time of one end.
fn time(most: usize) -> f64 {
    let mut world = World::new(Service::Rc, 1, |config, _| config.pmtu = Pmtu::B4096);
    let len = PACKETS * Pmtu::B4096.bytes();
    world.ends[0].post(Work::new(1, Op::Send(Tail::Plain), len));
    let now = world.now;
    let [mut sender, mut receiver] =
        world.ends.each_mut().map(|end| Side { end, now, inbox: VecDeque::new(), waits: false });
    while sender.end.completions.is_empty() {
        match (sender.next(), receiver.next()) {
            (None, None) => panic!("both wait"),
            (Some(at), other) if other.is_none_or(|other| at <= other) => {
                sender.work(at, most, &mut receiver.inbox);
            }
            (_, at) => receiver.work(at.expect("a time"), most, &mut sender.inbox),
        }
    }
    assert_eq!(receiver.end.inbox.len(), 1);
    sender.now.since(now).as_secs_f64() / (COST * PACKETS).as_secs_f64()
}

#[test]
fn handling_half_a_window_at_a_time_keeps_both_ends_busy() {
    // The window of 256 KiB holds 63 packets.
    let whole = time(64);
    assert!(whole > 1.8, "a window at a time, so each end waits for the other: {whole}");
    let half = time(30);
    assert!(half < 1.2, "half of a window at a time: {half}");
}
