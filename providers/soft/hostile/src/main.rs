//! A hostile process, for tests of all other processes.
//! It is a member of the fabric, with the usual handshake and mappings, and writes arbitrary values
//! into all memory that it may write. A seed makes its actions reproducible.
//!
//! `cargo xtask soak --hostile` and the group `hostile` of `cargo xtask test` start it beside
//! programs that must not suffer.
//! [`Reach`] limits the words that the process writes. docs/reference/threat-model.md states the
//! possible damage for each word.

mod doors;
mod own;
mod rings;
mod secrets;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use soft_local::fabric::{DIR_VARIABLE, Fabric, FabricConfig, GROUP_VARIABLE, Handler, Peer};
use soft_local::shm::layout::*;
use soft_local::shm::view::PeerView;

/// How long it waits for a victim.
const VICTIM_TIMEOUT: Duration = Duration::from_secs(120);

/// Interval of progress reports. The report of a hung run shows whether it attacked.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Number of actions between searches for secrets.
const SEARCH_EVERY: u64 = 1 << 14;

/// Prints the slot of the process, and finally the number of its actions. The arguments are a seed,
/// the seconds from the first contact, and the reach.
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seed, seconds, reach] = arguments.as_slice() else {
        panic!("usage: hostile SEED SECONDS own|all");
    };
    let seed: u64 = seed.parse().expect("a seed");
    let seconds: u64 = seconds.parse().expect("seconds");
    let reach = match reach.as_str() {
        "own" => Reach::OwnedWords,
        "all" => Reach::All,
        _ => panic!("{reach} is neither own nor all"),
    };
    let mut attacker = Attacker::join(seed, reach);
    println!("@slot {} seed {seed} {reach:?}", attacker.slot());
    let (mut told, mut end) = (Instant::now(), Instant::now() + VICTIM_TIMEOUT);
    let (mut alone, mut next_search) = (true, SEARCH_EVERY);
    while Instant::now() < end {
        for _ in 0..64 {
            attacker.run_action();
            // A search for victims may take seconds.
            if attacker.victims.is_empty() {
                break;
            }
        }
        let found = alone && attacker.met > 0;
        if found {
            alone = false;
            end = Instant::now() + Duration::from_secs(seconds);
        }
        if found || told.elapsed() > REPORT_INTERVAL {
            println!("@doing {}", attacker.summary());
            told = Instant::now();
        }
        if attacker.action_count >= next_search {
            search(&attacker);
            next_search = attacker.action_count + SEARCH_EVERY;
        }
    }
    search(&attacker);
    println!("@done {}", attacker.summary());
    // Without an orderly end, as any member may exit.
    std::process::exit(0);
}

/// The fabric of the victims: the settings that the tests give.
fn config() -> FabricConfig {
    let folder = std::env::var_os(DIR_VARIABLE).expect("the fabric's folder");
    let mut config = FabricConfig::new(folder);
    config.spans_namespaces = true;
    config.group = std::env::var(GROUP_VARIABLE).ok().map(|id| id.parse().expect("a group id"));
    config.cma = std::env::var("FERROVERBS_SOFT_CMA").as_deref() != Ok("off");
    config
}

/// Ends the process if it finds a secret that it must not be able to read.
fn search(attacker: &Attacker) {
    if let Some(found) = secrets::search(attacker) {
        println!("@secret {found}");
        std::process::exit(3);
    }
}

/// The words that a hostile process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The words that the process owns by design: both of its segments, the rings of connections to
    /// its QPs, its datagram ring in each process, and words that all members may set (arrival
    /// flags, alarms, calls for help). Connections between honest processes do not suffer.
    OwnedWords,
    /// Everything mapped writable.
    All,
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        if all.is_empty() { None } else { Some(all[self.below(all.len())]) }
    }

    /// A critical number: near a power of two, near a limit, or any.
    fn extreme(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX - self.below(64) as u64,
            2 => (1u64 << self.below(64)).wrapping_add(self.below(3) as u64).wrapping_sub(1),
            3 => u64::from(u32::MAX) - self.below(64) as u64,
            4 => self.below(300) as u64,
            5 => (CHUNK_BYTES as u64).wrapping_add(self.below(3) as u64).wrapping_sub(1),
            6 => self.next() & 0xffff_ffff,
            _ => self.next(),
        }
    }
}

/// A connected QP of another process, at the time of the last look.
#[derive(Clone, Copy, Debug)]
struct VictimQp {
    /// Index in the table of its owner.
    index: usize,
    /// The life published by its owner.
    published_life: Life,
}

/// A region of another process, as published.
#[derive(Clone, Copy, Debug)]
struct Region {
    rkey: u32,
    iova: u64,
    len: u64,
    va: u64,
}

/// Another process.
struct Victim {
    view: PeerView,
    /// QPs of the victim that are connected to QPs of the attacker, and all other connected QPs.
    connected_to_us: Vec<VictimQp>,
    other_connected: Vec<VictimQp>,
    regions: Vec<Region>,
    /// Next sequence number of the attacker's datagram ring.
    next_datagram: u32,
}

impl Victim {
    fn qpn(&self, index: usize) -> u32 {
        qpn(self.view.peer().slot, index)
    }

    /// Reads the published tables again.
    fn read_tables(&mut self, own_slot: u16) {
        let tables = self.view.peer().tables().base().cast_const();
        self.connected_to_us.clear();
        self.other_connected.clear();
        for index in resident(tables, TABLES_QPS, QPS, size_of::<QpEntry>()) {
            let life = Life::unpack(self.view.qp(index).packed_life.load(Relaxed));
            if life.state == Life::NONE || life.dest_qpn == 0 {
                continue;
            }
            let target = VictimQp { index, published_life: life };
            if split_qpn(life.dest_qpn).0 == own_slot {
                self.connected_to_us.push(target);
            } else {
                self.other_connected.push(target);
            }
        }
        self.regions.clear();
        for index in resident(tables, TABLES_MRS, MRS, size_of::<MrEntry>()) {
            let entry = self.view.mr(index);
            let rkey = entry.key.load(Relaxed) as u32;
            if rkey != 0 {
                self.regions.push(Region {
                    rkey,
                    iova: entry.iova.load(Relaxed),
                    len: entry.len.load(Relaxed),
                    va: entry.va.load(Relaxed),
                });
            }
        }
    }
}

/// The elements, of `count` elements of `size` bytes at `offset` of a segment, that lie in existing
/// pages. Reading the others would create pages.
fn resident(
    base: *const u8,
    offset: usize,
    count: usize,
    size: usize,
) -> impl Iterator<Item = usize> {
    const PAGE: usize = 4096;
    let mut there = vec![0u8; (count * size).div_ceil(PAGE)];
    // SAFETY: a page-aligned part of a segment, and a byte for each of its pages.
    unsafe {
        let from = base.add(offset).cast_mut().cast();
        libc::mincore(from, there.len() * PAGE, there.as_mut_ptr());
    }
    let pages = there.into_iter().enumerate().filter(|(_, there)| there & 1 != 0);
    let each = PAGE / size.min(PAGE);
    pages.flat_map(move |(page, _)| page * PAGE / size..(page * PAGE / size + each).min(count))
}

/// Ignores all events; victims are found by searching.
struct IgnoreEvents;

impl Handler for IgnoreEvents {
    fn on_wake(&self) -> Option<Duration> {
        None
    }
    fn on_peer_joined(&self, _: &Arc<Peer>) {}
    fn on_peer_death(&self, _: &Arc<Peer>) {}
}

/// The hostile process.
struct Attacker {
    fabric: Arc<Fabric>,
    view: PeerView,
    reach: Reach,
    random: Random,
    victims: BTreeMap<u16, Victim>,
    action_count: u64,
    pieces: u64,
    forged: u64,
    met: u64,
}

impl Attacker {
    fn join(seed: u64, reach: Reach) -> Self {
        let fabric =
            Fabric::join(config(), TABLES_LEN, RINGS_LEN, Arc::new(IgnoreEvents)).expect("a slot");
        let view = PeerView::of(fabric.peer(fabric.slot()).expect("its own segments"));
        view.tables_head().magic.store(MAGIC, Relaxed);
        view.rings_head().magic.store(MAGIC, Relaxed);
        Self {
            fabric,
            view,
            reach,
            random: Random(seed),
            victims: BTreeMap::new(),
            action_count: 0,
            pieces: 0,
            forged: 0,
            met: 0,
        }
    }

    fn slot(&self) -> u16 {
        self.fabric.slot()
    }

    /// A summary of its actions.
    fn summary(&self) -> String {
        format!(
            "{} acts, {} pieces to connections of ours, {} to those of others, {} processes met",
            self.action_count, self.pieces, self.forged, self.met
        )
    }

    /// One hostile action.
    fn run_action(&mut self) {
        // Without victims a search disturbs no process. On a loaded machine 512 pauses may outlast
        // the attack.
        if self.victims.is_empty() || self.action_count.is_multiple_of(512) {
            self.look_around();
        }
        self.action_count += 1;
        let slots: Vec<u16> = self.victims.keys().copied().collect();
        let Some(slot) = self.random.of(&slots) else {
            std::thread::sleep(Duration::from_millis(1));
            return;
        };
        let Some(mut victim) = self.victims.remove(&slot) else { return };
        if self.action_count.is_multiple_of(64) {
            victim.read_tables(self.slot());
        }
        match self.random.below(100) {
            0..40 => self.send_pieces(&mut victim),
            40..50 => self.answer_pieces(&victim),
            50..65 => self.send_datagrams(&mut victim),
            65..75 => self.change_own_tables(&victim),
            75..80 => self.change_own_rings(&victim),
            80..88 => self.set_arrival_flags(&victim),
            88..90 => self.call_for_help(&victim),
            90 => self.send_socket_message(&victim),
            _ if self.reach == Reach::All => self.write_foreign_words(&mut victim),
            _ => self.send_pieces(&mut victim),
        }
        self.victims.insert(slot, victim);
    }

    /// Connects to new processes, and forgets dead ones.
    fn look_around(&mut self) {
        self.victims.retain(|_, victim| !victim.view.peer().is_dead());
        let files = std::fs::read_dir(self.fabric.directory()).into_iter().flatten().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        let slots: Vec<u16> =
            names.filter_map(|name| name.strip_suffix(".sock")?.parse().ok()).collect();
        for slot in slots {
            if slot == self.fabric.slot() || !self.fabric.is_occupied(slot) {
                continue;
            }
            let Ok(peer) = self.fabric.peer(slot) else { continue };
            if self.victims.get(&slot).is_some_and(|known| Arc::ptr_eq(known.view.peer(), &peer)) {
                continue;
            }
            let view = PeerView::of(peer);
            let (ours, theirs, regions) = (vec![], vec![], vec![]);
            let mut victim = Victim {
                view,
                connected_to_us: ours,
                other_connected: theirs,
                regions,
                next_datagram: 0,
            };
            self.welcome(&victim);
            victim.read_tables(self.slot());
            self.victims.insert(slot, victim);
            self.met += 1;
        }
    }

    /// Prepares the ring for datagrams of the victim, like any receiver.
    fn welcome(&self, victim: &Victim) {
        let ring = self.view.peer_ring(victim.view.peer().slot).expect("mapped");
        ring.acked().store(2 * RING_SLOTS, Relaxed);
        ring.nak().store(victim.view.peer().identity(), Relaxed);
    }
}
