//! Losses, repetitions, reordering and damage, from a printed seed.
//! Tests of the manager over the simulated network.

use crate::sim::*;
use ferroverbs_cm::wire::*;
use ferroverbs_cm::*;
use std::time::Duration;

/// The seeds of a run; FERROVERBS_CM_SEEDS sets their number.
fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("FERROVERBS_CM_SEEDS").ok().and_then(|text| text.parse().ok());
    0..count.unwrap_or(40)
}

/// A network that treats messages at random: `bad` of 100 are changed in each way.
fn chance(seed: u64, bad: u64) -> Delivery {
    let mut random = Random(seed);
    Box::new(move |packet| {
        if random.below(100) < bad {
            return vec![];
        }
        if random.below(100) < bad {
            let at = random.below(packet.bytes.len() as u64) as usize;
            packet.bytes[at] ^= 1 << random.below(8);
        }
        let copies = if random.below(100) < bad { 2 } else { 1 };
        (0..copies).map(|_| LATENCY + Duration::from_micros(random.below(200_000))).collect()
    })
}

/// The effect of damage on a connection is not asserted; the end of all connections is.
#[test]
fn with_damage_nothing_panics_and_everything_comes_to_an_end() {
    for seed in seeds() {
        println!("seed {seed}");
        let mut random = Random(seed ^ 0xabcd);
        let mut net = Net::with_server(4);
        net.delivery = chance(seed, 15);
        for _ in 0..30 {
            let client = 1 + random.below(3) as usize;
            let now = net.now;
            net.nodes[client].connect(now, 0);
            net.run(Duration::from_millis(random.below(300)));
        }
        net.run(60 * SECOND);
        net.delivery = Box::new(|_| vec![LATENCY]);
        net.settle();
        net.end_all();
    }
}

#[test]
fn without_damage_every_connection_is_established_and_ended_once() {
    for seed in seeds() {
        println!("seed {seed}");
        let mut random = Random(seed ^ 0x1234);
        let mut net = Net::with_server(4);
        let mut inner = Random(seed);
        net.delivery = Box::new(move |_| {
            if inner.below(100) < 20 {
                return vec![];
            }
            let copies = 1 + inner.below(2);
            (0..copies).map(|_| LATENCY + Duration::from_micros(inner.below(200_000))).collect()
        });
        let mut connections = Vec::new();
        for _ in 0..30 {
            let client = 1 + random.below(3) as usize;
            let now = net.now;
            connections.push((client, net.nodes[client].connect(now, 0)));
            net.run(Duration::from_millis(random.below(300)));
        }
        net.run(60 * SECOND);
        let server = net.nodes[0].story();
        assert_eq!(server.matches('E').count(), 30, "{server}");
        assert_eq!(server.matches('Q').count(), 30, "{server}");
        for &(client, connection) in &connections {
            let stage = net.nodes[client].manager.stage(connection);
            assert_eq!(stage, Ok(Stage::Established));
        }
        // Either side ends the connection, or both.
        let now = net.now;
        let servers: Vec<_> = net.nodes[0]
            .events
            .iter()
            .filter(|(_, event)| matches!(event, Event::Request { .. }))
            .map(|(_, event)| event.connection())
            .collect();
        for connection in servers {
            if random.below(2) == 0 {
                let done = net.nodes[0].manager.disconnect(now, connection, Private::NONE);
                done.expect("established");
            }
        }
        for (client, connection) in connections {
            let done = net.nodes[client].manager.disconnect(now, connection, Private::NONE);
            done.expect("established");
        }
        net.settle();
        for node in &net.nodes {
            let story = node.story();
            let ended = story.matches('D').count();
            assert_eq!(ended, story.matches('T').count(), "{story}");
            assert_eq!(ended, story.matches(['E', 'P']).count(), "{story}");
            assert!(!story.contains(['X', 'U']), "{story}");
        }
        net.end_all();
    }
}
