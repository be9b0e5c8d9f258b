//! The file of the layer `stats`: a head about the process, and entries of equal size with the
//! counters of one object each. Words only increase, until the entry is given to another object.
//! Its first word tells these objects apart.
//!
//! Map of this file: the offsets of a head and of an entry; `EntryKind` and `Counter`; `Entry`;
//! `Stats`, the whole file; tests. The writer is `layers/stats/src/page.rs`.

use crate::calls::Call;
use crate::file::{AT_MAGIC, AT_MONOTONIC, AT_PID, AT_PROGRAM, AT_REALTIME, HEAD, unpack_text};
use crate::histogram::{BUCKETS, Histogram};

/// The first word of the file; the last digit is the version of the format.
pub const MAGIC: u64 = u64::from_le_bytes(*b"fvstats1");
/// Word of the head: the number of entries in use so far. Later entries are zero.
pub const AT_USED: usize = 5;
/// Word of the head: the number of objects without an entry. Their device's entry counts for them.
pub const AT_UNLISTED: usize = 6;
/// Word of the head: the time of a regular exit, by CLOCK_MONOTONIC; 0 before.
pub const AT_ENDED: usize = 7;

/// 64-bit words of an entry.
pub const WORDS: usize = 256;
/// Bytes of an entry.
pub const ENTRY: usize = WORDS * 8;
/// Word of an entry: its [`EntryKind`] in bits 0 to 7, the number of its use above; 0 for a free
/// entry.
pub const AT_KIND: usize = 0;
/// Word of an entry: the id of the object. A QP has its number, a CQ its address, a region its
/// lkey.
pub const AT_ID: usize = 1;
/// Word of an entry: the index of its device's entry.
pub const AT_DEVICE: usize = 2;
/// Word of an entry: creation time, by CLOCK_MONOTONIC.
pub const AT_BORN: usize = 3;
/// Word of an entry: destruction time; 0 while the object lives.
pub const AT_GONE: usize = 4;
/// Three words of an entry, by kind. A QP has type and state, send CQ, receive CQ; a CQ has its
/// capacity; a region has address and length.
pub const AT_ABOUT: usize = 5;
/// Words of an entry: the name of a device, 64 bytes.
pub const AT_NAME: usize = 8;
/// Words of an entry: the counters, by [`Counter`].
pub const AT_COUNTERS: usize = 16;
/// Words of an entry: the histogram of latencies in nanoseconds. The process has number, errors
/// and nanoseconds of each [`Call`] here.
pub const AT_LATENCY: usize = 64;
/// Word of an entry: the sum of all latencies.
pub const AT_SUM: usize = AT_LATENCY + BUCKETS;
/// Word of an entry: the largest latency.
pub const AT_MOST: usize = AT_SUM + 1;
/// The number of counted calls. Verbs are counted, and come first in [`Call`].
pub const CALLS: usize = Call::rdma_create_event_channel as usize;
const _: () = assert!(AT_MOST < WORDS && AT_LATENCY + 3 * CALLS <= WORDS);

/// The object of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EntryKind {
    /// The process, with its calls of the control path.
    Process = 1,
    /// A device. Its entry also counts for queue pairs without an entry.
    Device = 2,
    /// A queue pair.
    Qp = 3,
    /// A completion queue.
    Cq = 4,
    /// A memory region.
    Mr = 5,
}

impl EntryKind {
    fn of(word: u64) -> Option<Self> {
        [Self::Process, Self::Device, Self::Qp, Self::Cq, Self::Mr]
            .into_iter()
            .find(|kind| *kind as u64 == word & 0xff)
    }
}

/// A counter. The number is part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Counter {
    /// SEND requests, including those with immediate data or invalidation.
    Sends = 0,
    /// RDMA WRITE requests.
    Writes = 1,
    /// RDMA READ requests.
    Reads = 2,
    /// Atomic requests.
    Atomics = 3,
    /// Other requests, such as binds and invalidations.
    Others = 4,
    /// Bytes of all requests.
    Bytes = 5,
    /// Refused requests and receives.
    Refused = 6,
    /// Posted receives.
    Receives = 7,
    /// Messages received.
    Received = 8,
    /// Bytes of received messages.
    ReceivedBytes = 9,
    /// Successful completions of requests.
    Completed = 10,
    /// Completions with an error.
    Failed = 11,
    /// Signaled requests without a completion; the value increases and decreases.
    Depth = 12,
    /// The largest value of `Depth`.
    Deepest = 13,
    /// The first of [`STATUSES`] counters, by `ibv_wc_status`.
    Status = 16,
    /// Completions polled from a CQ.
    Polled = 40,
    /// Polls of an empty CQ.
    Empty = 41,
    /// Calls of `ibv_req_notify_cq` for a CQ.
    Armed = 42,
    /// Events of a CQ.
    Events = 43,
    /// Asynchronous events of a device.
    AsyncEvents = 44,
    /// Receives of the process that were posted to shared receive queues.
    SharedReceives = 45,
    /// Requests and receives whose first element lies in a region.
    Uses = 46,
}

/// Number of `ibv_wc_status` values with a counter.
pub const STATUSES: usize = 24;
/// Number of counters in an entry.
pub const COUNTERS: usize = AT_LATENCY - AT_COUNTERS;

/// The word of a counter within its entry.
#[must_use]
#[inline]
pub const fn word_of(counter: Counter) -> usize {
    AT_COUNTERS + counter as usize
}

/// The counters and properties of one object.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The kind of the object.
    pub entry_kind: EntryKind,
    /// The number of the entry's use, which differs for each object that had the entry.
    pub use_number: u64,
    /// [`AT_ID`].
    pub id: u64,
    /// The index of its device's entry.
    pub device: usize,
    /// Creation time, by CLOCK_MONOTONIC.
    pub created_ns: u64,
    /// Destruction time, if the object was destroyed.
    pub destroyed_ns: Option<u64>,
    /// [`AT_ABOUT`].
    pub properties: [u64; 3],
    /// The name of a device.
    pub name: String,
    counters: [u64; COUNTERS],
    /// Nanoseconds from posting a signaled request to its polled completion.
    pub latency: Histogram,
    /// Calls of the process: number, failures, and total nanoseconds.
    pub calls: Vec<(Call, u64, u64, u64)>,
}

impl Entry {
    fn read(words: &[u64; WORDS]) -> Option<Self> {
        let kind = EntryKind::of(words[AT_KIND])?;
        let mut counters = [0; COUNTERS];
        counters.copy_from_slice(&words[AT_COUNTERS..AT_LATENCY]);
        let mut latency = Histogram::default();
        let mut calls = Vec::new();
        if kind == EntryKind::Process {
            let (each, _) = words[AT_LATENCY..].as_chunks::<3>();
            let each = Call::ALL.iter().take(CALLS).zip(each).filter(|(_, [count, ..])| *count > 0);
            calls.extend(each.map(|(call, [count, failed, time])| (*call, *count, *failed, *time)));
        } else {
            latency.counts.copy_from_slice(&words[AT_LATENCY..AT_SUM]);
            (latency.sum, latency.max) = (words[AT_SUM], words[AT_MOST]);
        }
        Some(Self {
            entry_kind: kind,
            use_number: words[AT_KIND] >> 8,
            id: words[AT_ID],
            device: usize::try_from(words[AT_DEVICE]).unwrap_or(usize::MAX),
            created_ns: words[AT_BORN],
            destroyed_ns: (words[AT_GONE] != 0).then_some(words[AT_GONE]),
            properties: [words[AT_ABOUT], words[AT_ABOUT + 1], words[AT_ABOUT + 2]],
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

    /// Numbers of completions, by `ibv_wc_status`.
    #[must_use]
    pub fn statuses(&self) -> &[u64] {
        self.counters
            .get(Counter::Status as usize..)
            .and_then(|all| all.get(..STATUSES))
            .unwrap_or(&[])
    }

    /// The number of posted requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        let all =
            [Counter::Sends, Counter::Writes, Counter::Reads, Counter::Atomics, Counter::Others];
        all.into_iter().fold(0, |sum, counter| sum.saturating_add(self.get(counter)))
    }

    /// Adds the counters of another object. Depths are added, because both have requests in
    /// flight.
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

/// The content of a file.
#[derive(Clone, Debug)]
pub struct Stats {
    /// The process number.
    pub pid: u32,
    /// The program's name.
    pub program: String,
    /// The difference of CLOCK_REALTIME to CLOCK_MONOTONIC, in nanoseconds.
    pub realtime: i64,
    /// The time of a regular exit, by CLOCK_MONOTONIC.
    pub ended: Option<u64>,
    /// The number of objects without an entry.
    pub unlisted: u64,
    /// Entries by index; `None` for a free entry.
    pub entries: Vec<Option<Entry>>,
}

impl Stats {
    /// Reads the content of a file, or of memory that another process writes meanwhile.
    ///
    /// # Errors
    /// The bytes are no file of this format.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let (head, entries) = bytes.split_at_checked(HEAD).ok_or("the file is too short")?;
        let words = |bytes: &[u8]| -> Vec<u64> {
            bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
        };
        let head = words(head);
        if head[AT_MAGIC] != MAGIC {
            return Err("the file was not written by stats of this version".into());
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

    /// The live objects of one kind, and the destroyed ones if `gone`.
    pub fn of(&self, kind: EntryKind, gone: bool) -> impl Iterator<Item = &Entry> {
        let all = self.entries.iter().flatten();
        all.filter(move |entry| entry.entry_kind == kind && (gone || entry.destroyed_ns.is_none()))
    }

    /// The name of an object's device.
    #[must_use]
    pub fn device(&self, entry: &Entry) -> &str {
        let device = self.entries.get(entry.device).and_then(Option::as_ref);
        device
            .filter(|device| device.entry_kind == EntryKind::Device)
            .map_or("", |device| &device.name)
    }

    /// The devices, each with the counters of its live and destroyed objects.
    #[must_use]
    pub fn devices(&self) -> Vec<Entry> {
        let all = self.entries.iter().enumerate();
        let devices = all.filter_map(|(index, entry)| Some((index, entry.as_ref()?)));
        devices
            .filter(|(_, entry)| entry.entry_kind == EntryKind::Device)
            .map(|(index, device)| {
                let mut sum = device.clone();
                for qp in self.of(EntryKind::Qp, true).filter(|qp| qp.device == index) {
                    sum.add(qp);
                }
                for cq in self.of(EntryKind::Cq, true).filter(|cq| cq.device == index) {
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

    /// The sum of all devices; `None` if no device was opened.
    #[must_use]
    pub fn total(&self) -> Option<Entry> {
        self.devices().into_iter().reduce(|mut sum, device| {
            sum.add(&device);
            sum
        })
    }
}

/// Counters that only a CQ has. A device sums them from its CQs, all others from its QPs.
pub const OF_A_CQ: [Counter; 4] =
    [Counter::Polled, Counter::Empty, Counter::Armed, Counter::Events];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::pack_text;
    use crate::histogram::bucket;

    /// A file with these entries, in the layer's format.
    fn file(entries: &[[u64; WORDS]]) -> Vec<u8> {
        let mut words = vec![0_u64; HEAD / 8];
        words[AT_MAGIC] = MAGIC;
        words[AT_PID] = 77;
        (words[AT_REALTIME], words[AT_MONOTONIC]) = (1000, 400);
        words[AT_USED] = entries.len() as u64;
        words[AT_PROGRAM..AT_PROGRAM + 8].copy_from_slice(&pack_text::<8>(b"prog"));
        words.extend(entries.iter().flatten());
        // An entry that was never used.
        words.extend([0; WORDS]);
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn entry(kind: EntryKind, id: u64, counters: &[(Counter, u64)]) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        (words[AT_KIND], words[AT_ID]) = (kind as u64, id);
        for (counter, value) in counters {
            words[word_of(*counter)] = *value;
        }
        words
    }

    #[test]
    fn a_device_has_what_its_objects_did() {
        let mut device = entry(EntryKind::Device, 0, &[(Counter::Sends, 1), (Counter::Deepest, 3)]);
        device[AT_NAME..AT_NAME + 8].copy_from_slice(&pack_text::<8>(b"soft0"));
        let mut qp = entry(EntryKind::Qp, 5, &[(Counter::Sends, 10), (Counter::Deepest, 2)]);
        qp[AT_GONE] = 9;
        qp[AT_LATENCY + bucket(700)] = 4;
        let cq = entry(EntryKind::Cq, 6, &[(Counter::Sends, 100), (Counter::Empty, 8)]);
        let stats = Stats::read(&file(&[device, qp, cq, [0; WORDS]])).expect("statistics");
        let all = stats.devices();
        let [device] = all.as_slice() else { panic!("{all:?}") };
        let counts = [Counter::Sends, Counter::Empty, Counter::Deepest].map(|c| device.get(c));
        assert_eq!((counts, device.latency.count()), ([11, 8, 3], 4));
        assert_eq!(
            (stats.of(EntryKind::Qp, false).count(), stats.of(EntryKind::Qp, true).count()),
            (0, 1)
        );
        assert_eq!((stats.pid, stats.program.as_str(), stats.realtime), (77, "prog", 600));
        assert_eq!(stats.total().map(|all| all.name), Some("soft0".into()));
        assert_eq!(stats.entries.len(), 4);
    }

    #[test]
    fn the_process_has_its_calls() {
        let mut process = entry(EntryKind::Process, 0, &[]);
        let place = AT_LATENCY + Call::reg_mr as usize * 3;
        process[place..place + 3].copy_from_slice(&[4, 1, 900]);
        let stats = Stats::read(&file(&[process])).expect("statistics");
        let calls: Vec<_> =
            stats.of(EntryKind::Process, true).flat_map(|entry| &entry.calls).collect();
        assert_eq!(calls, [&(Call::reg_mr, 4, 1, 900)]);
        assert!(stats.total().is_none());
    }

    #[test]
    fn what_is_cut_or_nonsense_is_refused_or_left_out() {
        let whole = file(&[entry(EntryKind::Device, 0, &[]), entry(EntryKind::Qp, 1, &[])]);
        for length in (0..whole.len()).step_by(61) {
            match Stats::read(&whole[..length]) {
                Ok(stats) => assert!(length >= HEAD && stats.entries.len() <= 2),
                Err(why) => assert!(length < HEAD && !why.is_empty()),
            }
        }
        let mut other = whole.clone();
        // An unknown kind, a device index beyond the file, and counters at their maximum.
        other[HEAD] = 0xee;
        other[HEAD + ENTRY + 8 * AT_DEVICE..HEAD + 2 * ENTRY].fill(0xff);
        let stats = Stats::read(&other).expect("statistics");
        assert!(stats.entries[0].is_none() && stats.devices().is_empty());
        let qp = stats.of(EntryKind::Qp, true).next().expect("a QP");
        assert_eq!((stats.device(qp), qp.requests(), qp.latency.count()), ("", u64::MAX, u64::MAX));
        assert!(qp.latency.quantile(500).is_some());
        other[0] ^= 1;
        assert!(Stats::read(&other).is_err());
    }
}
