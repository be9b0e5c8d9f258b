//! The file of the layer `stats`: a page about the process, and entries of one size, each with the counters of an object. Words are added to
//! and never go back, except when an entry is given to another object, which its first word tells.

use crate::calls::Call;
use crate::file::{AT_MAGIC, AT_MONOTONIC, AT_PID, AT_PROGRAM, AT_REALTIME, HEAD, unpack_text};
use crate::histogram::{BUCKETS, Histogram};

/// What the file begins with; the last digit is the format's number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"fvstats1");
/// Of the head: how many entries were ever used. Those behind have never been touched.
pub const AT_USED: usize = 5;
/// Of the head: objects that found no entry. Their device's has what they did.
pub const AT_UNLISTED: usize = 6;
/// Of the head: when the process ended by itself, by CLOCK_MONOTONIC; 0 before.
pub const AT_ENDED: usize = 7;

/// 64-bit words of an entry.
pub const WORDS: usize = 256;
/// Bytes of an entry.
pub const ENTRY: usize = WORDS * 8;
/// Words of an entry: which kind it is, the number of its kind's life in the bits from 8 on; 0 while it is nobody's.
pub const AT_KIND: usize = 0;
/// What names the object: the number of a QP, the address of a CQ, the lkey of a region.
pub const AT_ID: usize = 1;
/// The entry of its device.
pub const AT_DEVICE: usize = 2;
/// When it was made, by CLOCK_MONOTONIC.
pub const AT_BORN: usize = 3;
/// When it was destroyed; 0 while it lives.
pub const AT_GONE: usize = 4;
/// Three words about it: of a QP type and state, its send CQ, its receive CQ; of a CQ how much it holds; of a region address and length.
pub const AT_ABOUT: usize = 5;
/// The name of a device, 64 bytes.
pub const AT_NAME: usize = 8;
/// The counters, by [`Counter`].
pub const AT_COUNTERS: usize = 16;
/// The histogram of latencies, in nanoseconds; of the process number, errors and nanoseconds of each [`Call`].
pub const AT_LATENCY: usize = 64;
/// The sum of all latencies.
pub const AT_SUM: usize = AT_LATENCY + BUCKETS;
/// The largest.
pub const AT_MOST: usize = AT_SUM + 1;
/// How many calls are counted: those of verbs, which come first.
pub const CALLS: usize = Call::rdma_create_event_channel as usize;
const _: () = assert!(AT_MOST < WORDS && AT_LATENCY + 3 * CALLS <= WORDS);

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// The process: calls of the control path.
    Process = 1,
    /// A device. It has what its queue pairs did that have no entry any more.
    Device = 2,
    /// A queue pair.
    Qp = 3,
    /// A completion queue.
    Cq = 4,
    /// A memory region.
    Mr = 5,
}

impl Kind {
    fn of(word: u64) -> Option<Self> {
        [Self::Process, Self::Device, Self::Qp, Self::Cq, Self::Mr]
            .into_iter()
            .find(|kind| *kind as u64 == word & 0xff)
    }
}

/// What is counted. The number is part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Counter {
    /// SEND requests, with immediate and invalidation as without.
    Sends = 0,
    /// RDMA WRITE requests.
    Writes = 1,
    /// RDMA READ requests.
    Reads = 2,
    /// Atomics.
    Atomics = 3,
    /// Other requests: binds, invalidations and the like.
    Others = 4,
    /// Bytes of all of them.
    Bytes = 5,
    /// Requests and receives that were refused.
    Refused = 6,
    /// Receives that were posted.
    Receives = 7,
    /// Messages received.
    Received = 8,
    /// Their bytes.
    ReceivedBytes = 9,
    /// Completions of requests that went well.
    Completed = 10,
    /// Completions with an error.
    Failed = 11,
    /// Signaled requests without completion; goes up and down.
    Depth = 12,
    /// The most of them there ever were.
    Deepest = 13,
    /// The first of 24, by `ibv_wc_status`.
    Status = 16,
    /// Completions that were polled from a CQ.
    Polled = 40,
    /// Polls that found nothing.
    Empty = 41,
    /// How often it was armed.
    Armed = 42,
    /// Its events.
    Events = 43,
    /// Asynchronous events of a device.
    AsyncEvents = 44,
    /// Receives posted to shared queues, of the process.
    SharedReceives = 45,
    /// Requests and receives whose first element lies in a region.
    Uses = 46,
}

/// How many `ibv_wc_status` are told apart.
pub const STATUSES: usize = 24;
/// Counters of an entry.
pub const COUNTERS: usize = AT_LATENCY - AT_COUNTERS;

/// Where a counter lies in its entry.
#[must_use]
#[inline]
pub const fn at(counter: Counter) -> usize {
    AT_COUNTERS + counter as usize
}

/// What is known about an object.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Tells this object from others that had the same entry.
    pub life: u64,
    /// [`AT_ID`].
    pub id: u64,
    /// The index of its device's entry.
    pub device: usize,
    /// By CLOCK_MONOTONIC.
    pub born: u64,
    /// When it was destroyed, if it was.
    pub gone: Option<u64>,
    /// [`AT_ABOUT`].
    pub about: [u64; 3],
    /// Of a device.
    pub name: String,
    counters: [u64; COUNTERS],
    /// From posting a signaled request to its polled completion, nanoseconds.
    pub latency: Histogram,
    /// Of the process: calls, those that failed, nanoseconds in all of them.
    pub calls: Vec<(Call, u64, u64, u64)>,
}

impl Entry {
    fn read(words: &[u64; WORDS]) -> Option<Self> {
        let kind = Kind::of(words[AT_KIND])?;
        let mut counters = [0; COUNTERS];
        counters.copy_from_slice(&words[AT_COUNTERS..AT_LATENCY]);
        let mut latency = Histogram::default();
        let mut calls = Vec::new();
        if kind == Kind::Process {
            let (each, _) = words[AT_LATENCY..].as_chunks::<3>();
            let each = Call::ALL.iter().take(CALLS).zip(each).filter(|(_, [count, ..])| *count > 0);
            calls.extend(each.map(|(call, [count, failed, time])| (*call, *count, *failed, *time)));
        } else {
            latency.counts.copy_from_slice(&words[AT_LATENCY..AT_SUM]);
            (latency.sum, latency.most) = (words[AT_SUM], words[AT_MOST]);
        }
        Some(Self {
            kind,
            life: words[AT_KIND] >> 8,
            id: words[AT_ID],
            device: usize::try_from(words[AT_DEVICE]).unwrap_or(usize::MAX),
            born: words[AT_BORN],
            gone: (words[AT_GONE] != 0).then_some(words[AT_GONE]),
            about: [words[AT_ABOUT], words[AT_ABOUT + 1], words[AT_ABOUT + 2]],
            name: unpack_text(&words[AT_NAME..AT_COUNTERS]),
            counters,
            latency,
            calls,
        })
    }

    /// A counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters.get(counter as usize).copied().unwrap_or(0)
    }

    /// Completions with each `ibv_wc_status`.
    #[must_use]
    pub fn statuses(&self) -> &[u64] {
        self.counters
            .get(Counter::Status as usize..)
            .and_then(|all| all.get(..STATUSES))
            .unwrap_or(&[])
    }

    /// All requests that were posted.
    #[must_use]
    pub fn requests(&self) -> u64 {
        let all =
            [Counter::Sends, Counter::Writes, Counter::Reads, Counter::Atomics, Counter::Others];
        all.into_iter().fold(0, |sum, counter| sum.saturating_add(self.get(counter)))
    }

    /// Adds what another object did. The depth is added, too: requests of both are under way.
    pub fn add(&mut self, other: &Self) {
        for (index, (mine, more)) in self.counters.iter_mut().zip(&other.counters).enumerate() {
            *mine = if index == Counter::Deepest as usize {
                (*mine).max(*more)
            } else {
                mine.saturating_add(*more)
            };
        }
        self.latency.add(&other.latency);
    }
}

/// What a file holds.
#[derive(Clone, Debug)]
pub struct Stats {
    /// The process that it is of.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// What to add to a time for that of CLOCK_REALTIME.
    pub realtime: i64,
    /// When it ended by itself, if it did, by CLOCK_MONOTONIC.
    pub ended: Option<u64>,
    /// Objects without an entry.
    pub unlisted: u64,
    /// By their index; `None` of those that are nobody's.
    pub entries: Vec<Option<Entry>>,
}

impl Stats {
    /// Reads what was in a file, or in memory that a process writes at the same time.
    ///
    /// # Errors
    /// It is no such file.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let (head, entries) = bytes.split_at_checked(HEAD).ok_or("it is too short")?;
        let words = |bytes: &[u8]| -> Vec<u64> {
            bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
        };
        let head = words(head);
        if head[AT_MAGIC] != MAGIC {
            return Err("it holds no statistics of this version".into());
        }
        let used = usize::try_from(head[AT_USED]).unwrap_or(usize::MAX);
        let entries = entries.chunks_exact(ENTRY).take(used);
        Ok(Self {
            pid: head[AT_PID] as u32,
            program: unpack_text(&head[AT_PROGRAM..AT_PROGRAM + 8]),
            realtime: head[AT_REALTIME].wrapping_sub(head[AT_MONOTONIC]).cast_signed(),
            ended: (head[AT_ENDED] != 0).then_some(head[AT_ENDED]),
            unlisted: head[AT_UNLISTED],
            entries: entries.map(|one| Entry::read(words(one).first_chunk()?)).collect(),
        })
    }

    /// Objects of one kind that are there or, if they are wanted, were.
    pub fn of(&self, kind: Kind, gone: bool) -> impl Iterator<Item = &Entry> {
        let all = self.entries.iter().flatten();
        all.filter(move |entry| entry.kind == kind && (gone || entry.gone.is_none()))
    }

    /// The name of an object's device.
    #[must_use]
    pub fn device(&self, entry: &Entry) -> &str {
        let device = self.entries.get(entry.device).and_then(Option::as_ref);
        device.filter(|device| device.kind == Kind::Device).map_or("", |device| &device.name)
    }

    /// Each device with all that its objects did, those that are gone included.
    #[must_use]
    pub fn devices(&self) -> Vec<Entry> {
        let all = self.entries.iter().enumerate();
        let devices = all.filter_map(|(index, entry)| Some((index, entry.as_ref()?)));
        devices
            .filter(|(_, entry)| entry.kind == Kind::Device)
            .map(|(index, device)| {
                let mut sum = device.clone();
                for qp in self.of(Kind::Qp, true).filter(|qp| qp.device == index) {
                    sum.add(qp);
                }
                for cq in self.of(Kind::Cq, true).filter(|cq| cq.device == index) {
                    for counter in OF_A_CQ {
                        if let Some(count) = sum.counters.get_mut(counter as usize) {
                            *count = count.saturating_add(cq.get(counter));
                        }
                    }
                }
                sum
            })
            .collect()
    }

    /// All devices together; `None` if none was opened.
    #[must_use]
    pub fn total(&self) -> Option<Entry> {
        self.devices().into_iter().reduce(|mut sum, device| {
            sum.add(&device);
            sum
        })
    }
}

/// Counters of a CQ that its queue pairs do not have, so that a device has them from it.
pub const OF_A_CQ: [Counter; 4] =
    [Counter::Polled, Counter::Empty, Counter::Armed, Counter::Events];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::pack_text;
    use crate::histogram::bucket;

    /// A file with these entries, as the layer writes it.
    fn file(entries: &[[u64; WORDS]]) -> Vec<u8> {
        let mut words = vec![0_u64; HEAD / 8];
        words[AT_MAGIC] = MAGIC;
        words[AT_PID] = 77;
        (words[AT_REALTIME], words[AT_MONOTONIC]) = (1000, 400);
        words[AT_USED] = entries.len() as u64;
        words[AT_PROGRAM..AT_PROGRAM + 8].copy_from_slice(&pack_text::<8>(b"prog"));
        words.extend(entries.iter().flatten());
        // Never used.
        words.extend([0; WORDS]);
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn entry(kind: Kind, id: u64, counters: &[(Counter, u64)]) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        (words[AT_KIND], words[AT_ID]) = (kind as u64, id);
        for (counter, value) in counters {
            words[at(*counter)] = *value;
        }
        words
    }

    #[test]
    fn a_device_has_what_its_objects_did() {
        let mut device = entry(Kind::Device, 0, &[(Counter::Sends, 1), (Counter::Deepest, 3)]);
        device[AT_NAME..AT_NAME + 8].copy_from_slice(&pack_text::<8>(b"soft0"));
        let mut qp = entry(Kind::Qp, 5, &[(Counter::Sends, 10), (Counter::Deepest, 2)]);
        qp[AT_GONE] = 9;
        qp[AT_LATENCY + bucket(700)] = 4;
        let cq = entry(Kind::Cq, 6, &[(Counter::Sends, 100), (Counter::Empty, 8)]);
        let stats = Stats::read(&file(&[device, qp, cq, [0; WORDS]])).expect("statistics");
        let all = stats.devices();
        let [device] = all.as_slice() else { panic!("{all:?}") };
        let counts = [Counter::Sends, Counter::Empty, Counter::Deepest].map(|c| device.get(c));
        assert_eq!((counts, device.latency.count()), ([11, 8, 3], 4));
        assert_eq!((stats.of(Kind::Qp, false).count(), stats.of(Kind::Qp, true).count()), (0, 1));
        assert_eq!((stats.pid, stats.program.as_str(), stats.realtime), (77, "prog", 600));
        assert_eq!(stats.total().map(|all| all.name), Some("soft0".into()));
        assert_eq!(stats.entries.len(), 4);
    }

    #[test]
    fn the_process_has_its_calls() {
        let mut process = entry(Kind::Process, 0, &[]);
        let place = AT_LATENCY + Call::reg_mr as usize * 3;
        process[place..place + 3].copy_from_slice(&[4, 1, 900]);
        let stats = Stats::read(&file(&[process])).expect("statistics");
        let calls: Vec<_> = stats.of(Kind::Process, true).flat_map(|entry| &entry.calls).collect();
        assert_eq!(calls, [&(Call::reg_mr, 4, 1, 900)]);
        assert!(stats.total().is_none());
    }

    #[test]
    fn what_is_cut_or_nonsense_is_refused_or_left_out() {
        let whole = file(&[entry(Kind::Device, 0, &[]), entry(Kind::Qp, 1, &[])]);
        for length in (0..whole.len()).step_by(61) {
            match Stats::read(&whole[..length]) {
                Ok(stats) => assert!(length >= HEAD && stats.entries.len() <= 2),
                Err(why) => assert!(length < HEAD && !why.is_empty()),
            }
        }
        let mut other = whole.clone();
        // A kind that does not exist, a device beyond the file, counters at their end.
        other[HEAD] = 0xee;
        other[HEAD + ENTRY + 8 * AT_DEVICE..HEAD + 2 * ENTRY].fill(0xff);
        let stats = Stats::read(&other).expect("statistics");
        assert!(stats.entries[0].is_none() && stats.devices().is_empty());
        let qp = stats.of(Kind::Qp, true).next().expect("a QP");
        assert_eq!((stats.device(qp), qp.requests(), qp.latency.count()), ("", u64::MAX, u64::MAX));
        assert!(qp.latency.quantile(500).is_some());
        other[0] ^= 1;
        assert!(Stats::read(&other).is_err());
    }
}
