//! The file of the layer `trace`: a head about the process, and a ring of records of equal size. A
//! thread takes [`CHUNK`] records at a time, which avoids contention at each record.

use crate::calls::{Arg, ArgCondition, Call, ValueKind};
use crate::file::{
    AT_CAPACITY, AT_MAGIC, AT_MONOTONIC, AT_PID, AT_PROGRAM, AT_REALTIME, HEAD, unpack_text,
};

/// The first word of the file; the last digit is the version of the format.
pub const MAGIC: u64 = u64::from_le_bytes(*b"fvtrace2");
/// 64-bit words of a record.
pub const WORDS: usize = 16;
/// Bytes of a record.
pub const RECORD: usize = WORDS * 8;
/// Words of a record for arguments.
pub const ARGS: usize = 11;
/// Records that a thread takes at a time.
pub const CHUNK: u64 = 32;
/// Word of the head: the number of taken chunks, which all threads increase.
pub const AT_TAKEN: usize = 8;

/// A recorded call, request or completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The recorded call.
    pub call: Call,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub start: u64,
    /// Nanoseconds, at most 4 seconds; 0 if not measured.
    pub duration: u32,
    /// The thread's number (`gettid(2)`).
    pub thread: u32,
    /// An errno, or 0.
    pub error: i32,
    /// The result of the call.
    pub result: u64,
    /// The words of the arguments, described by [`Call::args`].
    pub args: [u64; ARGS],
}

impl Record {
    /// The words of the record, which follow its stamp.
    #[must_use]
    #[inline]
    pub fn pack(&self) -> [u64; WORDS - 1] {
        let mut words = [0; WORDS - 1];
        words[0] = self.start;
        words[1] = u64::from(self.duration) | u64::from(self.thread) << 32;
        words[2] = self.call as u64 | u64::from(self.error.cast_unsigned()) << 32;
        words[3] = self.result;
        words[4..].copy_from_slice(&self.args);
        words
    }

    fn unpack(words: &[u64; WORDS]) -> Option<Self> {
        let [stamp, start, times, call, result, args @ ..] = words;
        if *stamp == 0 {
            return None;
        }
        Some(Self {
            call: Call::of(*call as u16)?,
            start: *start,
            duration: *times as u32,
            thread: (*times >> 32) as u32,
            error: ((*call >> 32) as u32).cast_signed(),
            result: *result,
            args: *args,
        })
    }

    /// The value of an argument.
    #[must_use]
    pub fn arg(&self, arg: &Arg) -> u64 {
        let word = self.args.get(usize::from(arg.word)).copied().unwrap_or(0) >> arg.shift;
        if arg.bits == 64 { word } else { word & ((1 << arg.bits) - 1) }
    }

    /// The value of the argument with this name; 0 if the record has none.
    #[must_use]
    pub fn argument(&self, name: &str) -> u64 {
        let arg = self.call.args().iter().find(|arg| arg.name == name && self.has_argument(arg));
        arg.map_or(0, |arg| self.arg(arg))
    }

    /// Whether the record has this argument.
    fn has_argument(&self, arg: &Arg) -> bool {
        let opcode = || self.argument("opcode") as u32;
        let compares = || opcode() == abi::IBV_WR_ATOMIC_CMP_AND_SWP;
        let is_atomic = || compares() || opcode() == abi::IBV_WR_ATOMIC_FETCH_AND_ADD;
        match arg.condition {
            ArgCondition::Always => true,
            ArgCondition::Mask(bits) => self.argument("attr_mask") as u32 & bits != 0,
            ArgCondition::Datagram => self.argument("datagram") != 0,
            ArgCondition::Connected => self.argument("datagram") == 0,
            ArgCondition::Atomic => is_atomic(),
            ArgCondition::Swap => compares(),
            ArgCondition::Plain => !is_atomic(),
        }
    }

    /// The arguments that carry information. An argument of `ibv_modify_qp` does so if
    /// the mask names the argument, and an argument of a request if the value is not 0.
    pub fn shown_args(&self) -> impl Iterator<Item = &'static Arg> {
        let data = matches!(
            self.call,
            Call::post_send
                | Call::wr_post
                | Call::post_recv
                | Call::post_srq_recv
                | Call::completion
        );
        self.call.args().iter().filter(move |arg| {
            let always = matches!(
                arg.name,
                "qp" | "srq"
                    | "wr_id"
                    | "opcode"
                    | "status"
                    | "bytes"
                    | "byte_len"
                    | "compare_add"
                    | "swap"
            );
            // Opcode and length of a failed completion are undefined.
            let failed = self.call == Call::completion && self.argument("status") != 0;
            let undefined =
                failed && !matches!(arg.name, "qp" | "wr_id" | "status" | "vendor_err" | "cq");
            // `due` serves timelines, and `datagram` selects other arguments.
            let inner = matches!(arg.name, "due" | "datagram");
            self.has_argument(arg)
                && !undefined
                && !inner
                && (!data || always || self.arg(arg) != 0)
        })
    }

    /// The bytes of a GID argument.
    pub(crate) fn gid(&self, arg: &Arg) -> [u8; 16] {
        let word = |at: usize| self.args.get(at).copied().unwrap_or(0).to_ne_bytes();
        let at = usize::from(arg.word);
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&word(at));
        gid[8..].copy_from_slice(&word(at + 1));
        debug_assert!(arg.value_kind == ValueKind::Gid);
        gid
    }

    /// The text of an argument of [`ValueKind::Text`].
    pub(crate) fn text(&self, arg: &Arg) -> String {
        let from = usize::from(arg.word);
        unpack_text(self.args.get(from..from + usize::from(arg.bits)).unwrap_or(&[]))
    }

    /// Whether the record posts a send request.
    #[must_use]
    pub fn is_send(&self) -> bool {
        matches!(self.call, Call::post_send | Call::wr_post)
    }

    /// Whether the record is a successful completion of a receive.
    #[must_use]
    pub fn is_receive(&self) -> bool {
        self.call == Call::completion
            && self.argument("status") == 0
            && self.argument("opcode") & u64::from(abi::IBV_WC_RECV) != 0
    }
}

/// The content of a file.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The process number.
    pub pid: u32,
    /// The program's name.
    pub program: String,
    /// The difference of CLOCK_REALTIME to CLOCK_MONOTONIC, in nanoseconds.
    pub realtime: i64,
    /// The records, ordered by their start.
    pub records: Vec<Record>,
    /// A lower bound of the number of overwritten records.
    pub overwritten: u64,
}

impl Trace {
    /// Reads the content of a file, or of memory that another process writes meanwhile.
    ///
    /// # Errors
    /// The bytes are no file of this format.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let word = |at: usize| -> Option<u64> {
            Some(u64::from_ne_bytes(*bytes.get(at * 8..)?.first_chunk::<8>()?))
        };
        let head = |at: usize| word(at).ok_or_else(|| "the file is too short".to_owned());
        if head(AT_MAGIC)? != MAGIC {
            return Err("the file was not written by trace of this version".into());
        }
        let capacity = usize::try_from(head(AT_CAPACITY)?).unwrap_or(usize::MAX);
        let ring = bytes.get(HEAD..).ok_or("the file is too short")?;
        let mut records: Vec<Record> = ring
            .chunks_exact(RECORD)
            .take(capacity)
            .filter_map(|bytes| {
                let mut words = [0; WORDS];
                for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *word = u64::from_ne_bytes(*bytes);
                }
                Record::unpack(&words)
            })
            .collect();
        records.sort_by_key(|record| record.start);
        let program: Vec<u64> = (AT_PROGRAM..AT_PROGRAM + 8).map_while(word).collect();
        let taken = head(AT_TAKEN)?.saturating_mul(CHUNK);
        Ok(Self {
            pid: head(AT_PID)? as u32,
            program: unpack_text(&program),
            realtime: (head(AT_REALTIME)?.wrapping_sub(head(AT_MONOTONIC)?)).cast_signed(),
            overwritten: taken.saturating_sub(capacity as u64),
            records,
        })
    }

    /// The time of a record, in nanoseconds since 1970.
    #[must_use]
    pub fn time(&self, record: &Record) -> u64 {
        record.start.wrapping_add_signed(self.realtime)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn file(records: &[Record]) -> Vec<u8> {
        let mut words = vec![0_u64; HEAD / 8];
        words[AT_MAGIC] = MAGIC;
        words[AT_CAPACITY] = records.len() as u64 + 1;
        words[AT_PID] = 77;
        words[AT_REALTIME] = 1000;
        words[AT_MONOTONIC] = 400;
        words[AT_TAKEN] = 1;
        words[AT_PROGRAM] = u64::from_le_bytes(*b"prog\0\0\0\0");
        for (stamp, record) in records.iter().enumerate() {
            words.push(stamp as u64 + 1);
            words.extend(record.pack());
        }
        // A record that was being written.
        words.extend([0; WORDS]);
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub(crate) fn record(call: Call, start: u64, args: &[u64]) -> Record {
        let mut all = [0; ARGS];
        all[..args.len()].copy_from_slice(args);
        Record { call, start, duration: 7, thread: 78, error: 0, result: 0, args: all }
    }

    #[test]
    fn what_is_written_is_read_in_the_order_of_time() {
        let late = record(Call::dealloc_pd, 90, &[5]);
        let early = Record { error: -1, result: u64::MAX, ..record(Call::alloc_pd, 80, &[6]) };
        let trace = Trace::read(&file(&[late, early])).expect("a trace");
        assert_eq!(trace.records, [early, late]);
        assert_eq!((trace.pid, trace.program.as_str()), (77, "prog"));
        assert_eq!((trace.time(&early), trace.overwritten), (680, 29));
    }

    #[test]
    fn what_is_cut_or_nonsense_is_refused_or_left_out() {
        let whole = file(&[record(Call::alloc_pd, 80, &[6])]);
        for length in 0..whole.len() {
            match Trace::read(&whole[..length]) {
                Ok(trace) => assert!(length >= HEAD && trace.records.len() <= 1),
                Err(why) => assert!(length < HEAD && !why.is_empty()),
            }
        }
        let mut other = whole.clone();
        other[HEAD + 24] = 0xff;
        other[HEAD + 25] = 0xff;
        assert!(Trace::read(&other).expect("a trace").records.is_empty());
        other[0] ^= 1;
        assert!(Trace::read(&other).is_err());
    }

    #[test]
    fn only_what_says_something_is_said() {
        let names = |record: &Record| record.shown_args().map(|arg| arg.name).collect::<Vec<_>>();
        let mask = u64::from(abi::IBV_QP_STATE | abi::IBV_QP_TIMEOUT) << 32;
        let modify = record(Call::modify_qp, 1, &[0x11 | mask, 14 << 32 | 3]);
        assert_eq!(names(&modify), ["qp", "attr_mask", "qp_state", "timeout"]);
        assert_eq!(modify.argument("timeout"), 14);
        let failed = record(Call::completion, 1, &[0x11 | 12 << 32, 5, 99, 99, 0, 0x100]);
        assert_eq!(names(&failed), ["qp", "wr_id", "status", "cq"]);
    }

    #[test]
    fn what_a_request_is_says_which_arguments_it_has() {
        let names = |record: &Record| record.shown_args().map(|arg| arg.name).collect::<Vec<_>>();
        let request =
            |first: u64| record(Call::wr_post, 1, &[first, 5, 0, 8, 0, 0, 6, 7, 8, 9, 10]);
        let swap = request(0x11 | u64::from(abi::IBV_WR_ATOMIC_CMP_AND_SWP) << 32);
        assert_eq!(
            names(&swap),
            [
                "qp",
                "wr_id",
                "opcode",
                "bytes",
                "remote_addr",
                "rkey",
                "compare_add",
                "swap",
                "remote_qp"
            ]
        );
        assert_eq!(
            (swap.argument("compare_add"), swap.argument("swap"), swap.argument("message")),
            (8, 10, 0)
        );
        // The program did not set the swap operand of a fetch-and-add.
        let add = request(0x11 | u64::from(abi::IBV_WR_ATOMIC_FETCH_AND_ADD) << 32);
        assert_eq!(
            (add.argument("compare_add"), add.argument("swap"), add.argument("message")),
            (8, 0, 0)
        );
        assert!(!names(&add).contains(&"swap"));
        let mut zero = swap;
        (zero.args[8], zero.args[10]) = (0, 0);
        assert_eq!(names(&zero), names(&swap));
        let datagram = request(0x11 | u64::from(abi::IBV_WR_SEND) << 32 | 1 << 49);
        assert_eq!(
            names(&datagram),
            ["qp", "wr_id", "opcode", "bytes", "ah", "remote_qp", "remote_qkey", "message"]
        );
        assert_eq!((datagram.argument("ah"), datagram.argument("remote_addr")), (6, 0));
        assert_eq!((datagram.argument("remote_qkey"), datagram.argument("rkey")), (7, 0));
    }
}
