//! A differential test of the fast path of SENDs (`fast_send`, `fast_receive`) against the general
//! path. It feeds the same random input to both and compares their output.
//!
//! There are two worlds. Each is a fabric with two connected QPs, and in one of them no QP takes
//! the fast path. Both get the same random calls of ibv_post_send(3) and ibv_post_recv(3). The
//! return values, all completions in their order, and all memory must be equal.
//! `FERROVERBS_TEST_SEED` repeats a run.
//!
//! Map of the file: `Random` draws, [`World`] makes calls and records results, [`Worlds`] invents
//! the calls, and `settle` compares. The test thread makes all calls. It takes no lock of its own.

use super::*;
use crate::engine::queues::qp::creating::ONLY_GENERAL;
use crate::ops::post::{post_recv, post_send};
use std::ptr::null_mut;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const CASES: usize = 12;
/// The time after which two worlds that have not become equal are different.
const LIMIT: Duration = Duration::from_secs(120);
/// The number of polls without a completion after which the test expects no more. It exceeds what
/// an acknowledgement is delayed for.
const LOOKS: u32 = 64;

/// Lengths around every limit of the fast path.
const LENGTHS: [usize; 16] =
    [0, 1, 7, 8, 46, 47, 48, 49, 50, 200, 256, 257, 1000, 4096, 8192, 8193];
const MAX_INLINE: usize = 256;
/// The offset of the bytes of messages. No call writes there.
const SOURCE: usize = 16 << 10;
/// The offset of the source of inline data, which the test overwrites after each post.
const SCRATCH: usize = SOURCE + MAX_INLINE;
/// The offset of the targets of RDMA WRITEs.
const TARGET: usize = SCRATCH + (9 << 10);
/// The bytes of one receive, and the number of receives at one time.
const PLACE: usize = 8200;
const PLACES: usize = 32;
const BYTES: usize = TARGET + PLACE * PLACES;

/// The bit that marks the work request identifiers of receives.
const RECEIVE: u64 = 1 << 63;

/// The pseudo-random generator SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True with probability 1/`n`.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A scatter/gather list over a side's memory, and whether its lkey is valid.
#[derive(Clone, Debug)]
struct Ranges {
    parts: Vec<(usize, usize)>,
    key_is_good: bool,
}

impl Ranges {
    /// A list of `len` bytes from `at` on, in one or several ranges.
    fn draw(random: &mut Random, at: usize, len: usize) -> Self {
        let parts = match random.below(8) {
            0 => vec![(at, len / 2), (at + len / 2, len - len / 2)],
            1 => vec![(at, len / 3), (at + len / 3, 0), (at + len / 3, len - len / 3)],
            2 if len == 0 => vec![],
            _ => vec![(at, len)],
        };
        Self { parts, key_is_good: true }
    }

    fn len(&self) -> usize {
        self.parts.iter().map(|(_, len)| len).sum()
    }

    fn sges(&self, side: &Side) -> Vec<ibv_sge> {
        let wrong = if self.key_is_good { 0 } else { 0x4000 };
        let sge = |&(at, len): &(usize, usize)| side.sge(at, len);
        let spoil = |sge: ibv_sge| ibv_sge { lkey: sge.lkey ^ wrong, ..sge };
        self.parts.iter().map(sge).map(spoil).collect()
    }
}

/// A send request.
#[derive(Clone, Debug)]
struct Message {
    wr_id: u64,
    opcode: u32,
    flags: u32,
    imm: u32,
    from: Ranges,
    /// The offset of the target of a WRITE.
    to: usize,
}

impl Message {
    fn is_refused(&self) -> bool {
        let inline = self.flags & IBV_SEND_INLINE != 0 && self.from.len() > MAX_INLINE;
        inline || self.from.parts.len() > 4
    }

    const fn takes_receive(&self) -> bool {
        self.opcode != IBV_WR_RDMA_WRITE
    }
}

/// A call that both worlds make. The number is the side.
#[derive(Clone, Debug)]
enum Call {
    Send(usize, Vec<Message>),
    Receive(usize, Vec<(u64, Ranges)>),
    /// Polls for at most so many completions.
    Poll(usize, usize),
    /// Overwrites the source of inline data.
    Scribble(usize, u8),
    Fail(usize),
}

/// The defined fields of a completion. QP numbers are replaced by the side that has them.
type Seen = (u64, u32, u8, bool, Option<(u32, u32, u32, u32, bool)>);

struct World {
    sides: [Side; 2],
    srq: Option<Arc<Srq>>,
    /// The completions of sends and of receives, for each side. The order between a send and a
    /// receive of one side is a matter of timing, so the test does not compare it.
    seen: [[Vec<Seen>; 2]; 2],
}

/// The settings of one case.
#[derive(Clone, Copy, Debug)]
struct Setting {
    kind: QpType,
    cma: bool,
    shared: bool,
    rnr_retry: u8,
}

impl World {
    fn new(setting: Setting, general: bool) -> Self {
        let adapter = adapter(setting.cma);
        let report = || Reporter(Arc::new(Channel::new(2).expect("a channel")));
        let srq = setting.shared.then(|| {
            let wanted = SrqParameters {
                pd: adapter.domains.create(0).expect("room").0,
                max_wr: 64,
                max_sge: 4,
                domain: None,
                cq: None,
                tags: None,
                report: report(),
            };
            Srq::new(&adapter, wanted).expect("a number")
        });
        ONLY_GENERAL.set(general);
        let sides = [None, srq.as_ref()].map(|srq| {
            let mut side = Side::with(&adapter, setting.kind, BYTES, 0, srq);
            side.qp.retire();
            let cap = ibv_qp_cap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: MAX_INLINE as u32,
            };
            let pair = Pair::new(Arc::clone(&side.cq), Arc::clone(&side.cq), srq.cloned());
            let wanted = QpParameters::pair(setting.kind, side.qp.pd(), pair, cap, report());
            side.qp = Qp::new(&adapter, wanted).expect("a number");
            fill(&mut side, 7);
            side
        });
        ONLY_GENERAL.set(false);
        let [a, b] = &sides;
        a.connect(b.qp.qpn(), setting.rnr_retry);
        b.connect(a.qp.qpn(), setting.rnr_retry);
        Self { sides, srq, seen: Default::default() }
    }

    /// Makes a call. Returns its result and the index of the request that it refused.
    fn call(&mut self, call: &Call) -> (i32, Option<usize>) {
        match call {
            Call::Send(at, list) => self.post(*at, list),
            Call::Receive(at, list) => self.receive(*at, list),
            Call::Poll(at, most) => {
                self.poll(*at, *most);
                (0, None)
            }
            Call::Scribble(at, byte) => {
                self.sides[*at].memory[SOURCE..SCRATCH].fill(*byte);
                (0, None)
            }
            Call::Fail(at) => {
                self.sides[*at].modify(IBV_QPS_ERR, 0, Zeroed::zeroed());
                (0, None)
            }
        }
    }

    fn post(&self, at: usize, list: &[Message]) -> (i32, Option<usize>) {
        let (side, other) = (&self.sides[at], &self.sides[1 - at]);
        let mut sges: Vec<_> = list.iter().map(|message| message.from.sges(side)).collect();
        let mut requests: Vec<ibv_send_wr> = vec![];
        for (message, sges) in list.iter().zip(&mut sges) {
            let mut wr: ibv_send_wr = Zeroed::zeroed();
            (wr.wr_id, wr.opcode, wr.send_flags) = (message.wr_id, message.opcode, message.flags);
            (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), sges.len() as i32);
            wr.imm.imm_data = message.imm;
            if message.opcode == IBV_WR_RDMA_WRITE {
                let remote_addr = other.memory[message.to..].as_ptr() as u64;
                wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey: other.keys.rkey };
            }
            requests.push(wr);
        }
        for n in (1..requests.len()).rev() {
            requests[n - 1].next = &raw mut requests[n];
        }
        let (first, mut bad) = (requests.as_mut_ptr(), null_mut());
        let qp = Arc::as_ptr(&side.qp).cast_mut().cast();
        // SAFETY: `side` owns the QP; the requests and their lists live until the end of this
        // function; `bad` is a local of this function.
        let result = unsafe { post_send(qp, first, &raw mut bad) };
        (result, requests.iter().position(|wr| std::ptr::eq(wr, bad)))
    }

    fn receive(&self, at: usize, list: &[(u64, Ranges)]) -> (i32, Option<usize>) {
        let side = &self.sides[at];
        let mut sges: Vec<_> = list.iter().map(|(_, ranges)| ranges.sges(side)).collect();
        if let (1, Some(srq)) = (at, &self.srq) {
            for ((wr_id, _), sges) in list.iter().zip(&sges) {
                srq.post(*wr_id, sges).expect("room");
            }
            srq.receives_posted();
            return (0, None);
        }
        let mut requests: Vec<ibv_recv_wr> = vec![];
        for ((wr_id, _), sges) in list.iter().zip(&mut sges) {
            let (sg_list, num_sge) = (sges.as_mut_ptr(), sges.len() as i32);
            requests.push(ibv_recv_wr { wr_id: *wr_id, next: null_mut(), sg_list, num_sge });
        }
        for n in (1..requests.len()).rev() {
            requests[n - 1].next = &raw mut requests[n];
        }
        let (first, mut bad) = (requests.as_mut_ptr(), null_mut());
        let qp = Arc::as_ptr(&side.qp).cast_mut().cast();
        // SAFETY: as in `post`.
        let result = unsafe { post_recv(qp, first, &raw mut bad) };
        (result, requests.iter().position(|wr| std::ptr::eq(wr, bad)))
    }

    /// Takes up to `most` completions, and returns their number.
    fn poll(&mut self, at: usize, most: usize) -> usize {
        let (own, peer) = (self.sides[at].qp.qpn(), self.sides[1 - at].qp.qpn());
        let seen = &mut self.seen[at];
        self.sides[at].cq.poll(most, |_, cqe| {
            let good = (cqe.status == IBV_WC_SUCCESS).then_some((
                cqe.opcode,
                cqe.byte_len,
                cqe.imm,
                cqe.wc_flags,
                cqe.src_qp == peer,
            ));
            seen[usize::from(cqe.wr_id & RECEIVE != 0)].push((
                cqe.wr_id,
                cqe.status,
                cqe.vendor_err,
                cqe.qp_num == own,
                good,
            ));
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Both QPs retire before the memory of either is freed.
        for side in &self.sides {
            side.qp.retire();
        }
        if let Some(srq) = &self.srq {
            srq.retire();
        }
    }
}

/// The two worlds, and the model of what both have in common.
struct Worlds {
    worlds: [World; 2],
    setting: Setting,
    random: Random,
    calls: Vec<Call>,
    next_wr: u64,
    next_place: [usize; 2],
    /// For each side, the receives that no message has taken. A negative number counts the messages
    /// that wait for one.
    spare: [isize; 2],
    /// The last request of each side. It is signaled.
    last: [Option<u64>; 2],
}

impl Worlds {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let kind = if random.once_in(4) { QpType::Uc } else { QpType::Rc };
        let shared = kind == QpType::Rc && random.once_in(4);
        let rnr_retry = if random.once_in(2) { 7 } else { 0 };
        let setting = Setting { kind, cma: !random.once_in(3), shared, rnr_retry };
        Self {
            worlds: [false, true].map(|general| World::new(setting, general)),
            setting,
            random,
            calls: vec![],
            next_wr: 0,
            next_place: [0; 2],
            spare: [0; 2],
            last: [None; 2],
        }
    }

    fn call(&mut self, call: Call) {
        let [fast, general] = [0, 1].map(|n| self.worlds[n].call(&call));
        assert_eq!(fast, general, "{call:?} after {:?} in {:?}", self.calls, self.setting);
        self.calls.push(call);
    }

    /// The receives of side `at` that the next messages take.
    fn spare(&self, at: usize) -> usize {
        self.spare[at].max(0) as usize
    }

    fn wr_id(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }

    fn message(&mut self, writes: bool) -> Message {
        let random = &mut self.random;
        let len = LENGTHS[random.below(LENGTHS.len())];
        let mut flags = 0;
        let mut at = random.below(SOURCE - len);
        if random.once_in(3) && len <= MAX_INLINE {
            (flags, at) = (IBV_SEND_INLINE, SOURCE);
        }
        let mut opcode = if random.once_in(3) { IBV_WR_SEND_WITH_IMM } else { IBV_WR_SEND };
        if writes && random.once_in(10) {
            (opcode, flags, at) = (IBV_WR_RDMA_WRITE, 0, at.min(SOURCE - len));
        }
        let to = SCRATCH + random.below(64);
        let pairs = [(2, IBV_SEND_SIGNALED), (4, IBV_SEND_SOLICITED), (12, IBV_SEND_FENCE)];
        for (n, flag) in pairs {
            flags |= if random.once_in(n) { flag } else { 0 };
        }
        let from = Ranges::draw(random, at, len);
        let imm = random.next() as u32;
        Message { wr_id: self.wr_id(), opcode, flags, imm, from, to }
    }

    /// Posts `list` at side `at` in one call, and sometimes polls.
    fn send(&mut self, at: usize, list: Vec<Message>) {
        let good = list.iter().take_while(|message| !message.is_refused());
        self.spare[1 - at] -= good.filter(|message| message.takes_receive()).count() as isize;
        if list.iter().all(|message| !message.is_refused()) {
            let signaled = list.last().filter(|last| last.flags & IBV_SEND_SIGNALED != 0);
            self.last[at] = signaled.map(|last| last.wr_id);
        }
        self.call(Call::Send(at, list));
        let byte = self.random.next() as u8;
        self.call(Call::Scribble(at, byte));
        self.poll_perhaps();
    }

    fn poll_perhaps(&mut self) {
        if self.random.once_in(3) {
            let (at, most) = (self.random.below(2), 1 + self.random.below(5));
            self.call(Call::Poll(at, most));
        }
    }

    /// Posts receives for `count` messages at side `at`.
    fn receive(&mut self, at: usize, count: usize) {
        if count > 0 {
            let list = (0..count).map(|_| self.place(at, PLACE)).collect();
            self.call(Call::Receive(at, list));
        }
    }

    fn place(&mut self, at: usize, len: usize) -> (u64, Ranges) {
        let place = self.next_place[at] % PLACES;
        self.next_place[at] += 1;
        self.spare[at] += 1;
        let ranges = Ranges::draw(&mut self.random, TARGET + place * PLACE, len);
        (self.wr_id() | RECEIVE, ranges)
    }

    /// Sends messages in both directions, of which none fails. All of them complete in the end.
    fn traffic(&mut self) {
        for at in self.both_in_any_order() {
            let count = 1 + self.random.below(20);
            let spare = self.spare(1 - at);
            let lacking = count.saturating_sub(spare);
            let most = PLACES - count.max(spare);
            let more = if self.random.once_in(2) { self.random.below(most.min(4) + 1) } else { 0 };
            // Without a receive, an unreliable message is lost. A reliable one fails unless
            // `rnr_retry` lets it wait.
            let waits = self.setting.kind == QpType::Rc && self.setting.rnr_retry == 7;
            let first = if waits { self.random.below(lacking + 1) } else { lacking + more };
            self.receive(1 - at, first);
            let mut left = count;
            while left > 0 {
                let now = 1 + self.random.below(left);
                left -= now;
                let mut list: Vec<_> = (0..now).map(|_| self.message(true)).collect();
                if left == 0 {
                    list.last_mut().expect("one at least").flags |= IBV_SEND_SIGNALED;
                } else if self.random.once_in(8) {
                    // The post ends at this request.
                    let mut refused = self.message(false);
                    refused.flags |= IBV_SEND_INLINE;
                    refused.from = Ranges { parts: vec![(0, MAX_INLINE + 1)], key_is_good: true };
                    let behind = self.message(false);
                    list.extend([refused, behind]);
                }
                self.send(at, list);
            }
            self.receive(1 - at, (lacking + more).saturating_sub(first));
        }
        self.settle();
    }

    fn both_in_any_order(&mut self) -> [usize; 2] {
        if self.random.once_in(2) { [0, 1] } else { [1, 0] }
    }

    /// Makes a message of side 0 fail, and continues to post at both sides.
    fn ruin(&mut self) {
        let before = 1 + self.random.below(6);
        let lacking = before.saturating_sub(self.spare(1));
        self.receive(1, lacking);
        // Complete messages take all waiting receives, so that the next receive belongs to the
        // message that fails.
        let whole = self.spare(1);
        let mut list: Vec<_> = (0..whole).map(|_| self.message(false)).collect();
        let mut wrong = self.message(false);
        wrong.from = Ranges { parts: vec![(0, 9 + self.random.below(45))], key_is_good: true };
        wrong.flags &= !IBV_SEND_INLINE;
        match self.random.below(8) {
            0 => {
                wrong.from.key_is_good = false;
                self.receive(1, 1);
            }
            1..4 => {
                let short = self.place(1, wrong.from.len() - 1);
                self.call(Call::Receive(1, vec![short]));
            }
            4 => {
                let (wr_id, mut ranges) = self.place(1, PLACE);
                ranges.key_is_good = false;
                self.call(Call::Receive(1, vec![(wr_id, ranges)]));
            }
            5 if self.setting.rnr_retry == 0 => {}
            _ => {
                self.call(Call::Fail(0));
            }
        }
        list.push(wrong);
        list.extend((0..self.random.below(4)).map(|_| self.message(false)));
        list.last_mut().expect("the wrong one").flags |= IBV_SEND_SIGNALED;
        self.send(0, list);
        self.settle();
        for at in [0, 1] {
            let mut list: Vec<_> = (0..4).map(|_| self.message(false)).collect();
            list[3].flags |= IBV_SEND_SIGNALED;
            self.send(at, list);
        }
        self.settle();
    }

    /// Polls until everything is complete in both worlds, and compares them.
    fn settle(&mut self) {
        let end = Instant::now() + LIMIT;
        let mut in_vain = 0;
        while in_vain < LOOKS || !self.is_complete() {
            let polled = |world: &mut World| world.poll(0, 8) + world.poll(1, 8);
            let got: usize = self.worlds.iter_mut().map(polled).sum();
            in_vain = if got == 0 { in_vain + 1 } else { 0 };
            if in_vain > LOOKS {
                std::thread::yield_now();
            }
            assert!(Instant::now() < end, "{}", self.difference("no end"));
        }
        let [fast, general] = &self.worlds;
        assert!(fast.seen == general.seen, "{}", self.difference("completions"));
        for at in [0, 1] {
            let mut pairs = fast.sides[at].memory.iter().zip(&general.sides[at].memory);
            if let Some(byte) = pairs.position(|(fast, general)| fast != general) {
                panic!("{}", self.difference(&format!("byte {byte} of side {at}")));
            }
        }
    }

    fn is_complete(&self) -> bool {
        let [fast, general] = &self.worlds;
        [0, 1].into_iter().all(|at| {
            let last = |world: &World| {
                let has = |wr_id| world.seen[at][0].iter().any(|seen| seen.0 == wr_id);
                self.last[at].is_none_or(has)
            };
            [0, 1].into_iter().all(|way| fast.seen[at][way].len() == general.seen[at][way].len())
                && last(fast)
                && last(general)
        })
    }

    fn difference(&self, what: &str) -> String {
        let [fast, general] = &self.worlds;
        let mut text = format!("{what}: {:?}\n", self.setting);
        for (at, way) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (fast, general) = (&fast.seen[at][way], &general.seen[at][way]);
            let same = fast.iter().zip(general).take_while(|(fast, general)| fast == general);
            let n = same.count();
            let name = ["sent", "received"][way];
            text += &format!("side {at}, {name}: {}, {}; ", fast.len(), general.len());
            text += &format!("then {:?}, {:?}\n", fast.get(n), general.get(n));
        }
        text + &format!("last {:?}, calls: {:?}", self.last, self.calls)
    }
}

#[test]
fn the_fast_path_and_the_general_path_have_the_same_results() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64);
    let given = std::env::var("FERROVERBS_TEST_SEED").ok();
    let seed = given.and_then(|seed| seed.parse().ok()).unwrap_or(now);
    println!("FERROVERBS_TEST_SEED={seed}");
    for case in 0..CASES {
        let mut worlds =
            Worlds::new(seed.wrapping_mul(2 * CASES as u64 + 1).wrapping_add(case as u64));
        for _ in 0..1 + worlds.random.below(6) {
            worlds.traffic();
        }
        worlds.ruin();
    }
}
