//! What a responder does with a SEND to a tag matching shared receive queue: find the entry that it belongs to and place
//! the payload, begin a rendezvous, or hand the whole message to software in a receive of the queue.
//!
//! A message that comes in one piece is matched, placed and completed under the list's lock: completions come in the order in
//! which messages were matched, whichever QP and thread they came by. One in several pieces is matched when it begins and
//! completes when it ends.

use super::completion::Cqe;
use super::inbound::{Headers, Nak, Source, Verdict};
use super::objects::connection::{Inbound, MessageProgress, TagMatch};
use super::objects::qp::{Fetch, Qp, Tagging};
use super::objects::srq::{TagMatching, Tags};
use super::receive::Receive;
use super::regions::LOCAL_WRITE;
use super::state::State;
use super::tagging::{MAX_RNDV_HEADERS, tagged};
use super::tags::wire::{self, HEADERS_LEN, Offer, TMH_LEN, Tagged, fin};
use super::windows::Done;
use abi::*;
use soft_memory::{Range, Ranges};
use soft_sys::Errno;

impl Inbound {
    /// A piece of a SEND.
    pub(super) fn send_tagged(
        &mut self,
        qp: &Qp,
        tm: &TagMatching,
        own: &Tagging,
        headers: &Headers,
        source: &impl Source,
    ) -> Verdict {
        let (mut message, locked) = if headers.first {
            // What was not finished will not be.
            self.abandon(qp);
            let mut start = [0; HEADERS_LEN];
            let start = match source.peek(&mut start) {
                Ok(len) => start.get(..len).unwrap_or_default(),
                Err(errno) => return self.not_brought(qp, errno),
            };
            let mut tags = tm.lock();
            if let Err(verdict) = self.sort(qp, own, &mut tags, headers, start) {
                return verdict;
            }
            (MessageProgress { total: headers.total, done: 0 }, headers.last.then_some(tags))
        } else {
            match self.message.take() {
                // Where the length of the whole is not told by the first piece, each tells what there is so far.
                Some(message) => {
                    let total = message.total.max(headers.total);
                    (MessageProgress { total, ..message }, None)
                }
                None => return self.unservable(qp, Nak::Invalid),
            }
        };
        let brought = self.bring_tagged(qp, &message, headers, source);
        match brought {
            Err(Misfit::Later) => {
                drop(locked);
                if headers.first {
                    // It is matched anew when it is taken up again.
                    self.abandon(qp);
                } else {
                    self.message = Some(message);
                }
                return Verdict::Busy;
            }
            Ok(len) if !headers.last => {
                message.done += len;
                self.message = Some(message);
                return Verdict::Done;
            }
            Ok(_) | Err(Misfit::Spoiled(..)) => {}
            Err(Misfit::NotBrought(errno)) => {
                drop(locked);
                return self.not_brought(qp, errno);
            }
        }
        let mut tags = locked.unwrap_or_else(|| tm.lock());
        match brought {
            Err(Misfit::Spoiled(status, verdict)) => {
                self.finish(qp, &mut tags, headers, status, 0);
                verdict
            }
            _ => {
                let len = brought.map_or(0, |len| message.done + len);
                self.finish(qp, &mut tags, headers, IBV_WC_SUCCESS, len);
                Verdict::Done
            }
        }
    }

    fn not_brought(&mut self, qp: &Qp, errno: Errno) -> Verdict {
        match errno {
            Errno::EPROTO => self.unservable(qp, Nak::Invalid),
            Errno::ESTALE => Verdict::Stale,
            Errno::ESRCH => Verdict::Gone,
            _ => self.unservable(qp, Nak::Operation),
        }
    }

    /// Finds out where a message goes by its first bytes; `Err`: it goes nowhere now, or is dealt with.
    fn sort(
        &mut self,
        qp: &Qp,
        own: &Tagging,
        tags: &mut Tags,
        headers: &Headers,
        start: &[u8],
    ) -> Result<(), Verdict> {
        let tagged = match wire::TagHeaders::parse(start) {
            wire::TagHeaders::Untagged => {
                self.need_receive(qp)?;
                self.tag_match = TagMatch::Untagged;
                return Ok(());
            }
            wire::TagHeaders::Rendezvous(..)
                if !headers.last
                    || headers.total > MAX_RNDV_HEADERS
                    || headers.invalidate.is_some() =>
            {
                return Err(self.unservable(qp, Nak::Invalid));
            }
            wire::TagHeaders::Eager(tagged) | wire::TagHeaders::Rendezvous(tagged, _) => tagged,
        };
        let Some(handle) = tags.list.take(tagged.tag) else {
            self.need_receive(qp)?;
            tags.list.count_unexpected();
            self.tag_match = TagMatch::Unexpected;
            return Ok(());
        };
        let matched = self.matched.get_or_insert_default();
        tags.list.describe(handle, matched);
        self.tag_match = TagMatch::Matched { handle, tagged };
        match wire::TagHeaders::parse(start) {
            wire::TagHeaders::Rendezvous(_, offer) => {
                Err(self.rendezvous(qp, own, tags, headers, (handle, tagged, offer)))
            }
            _ => Ok(()),
        }
    }

    /// A rendezvous found its entry.
    fn rendezvous(
        &mut self,
        qp: &Qp,
        own: &Tagging,
        tags: &mut Tags,
        headers: &Headers,
        (handle, tagged, offer): (u32, Tagged, Offer),
    ) -> Verdict {
        let Some(receive) = &self.matched else { return Verdict::Done };
        let room = receive.room() as u64;
        let can_read = matches!(qp.state(), State::Rts | State::Sqd);
        if u64::from(offer.len) <= room && can_read {
            let cqe = self.completion(qp, headers, IBV_WC_SUCCESS, IBV_WC_TM_MATCH, 0);
            self.tag_match = TagMatch::Plain;
            push(qp, &cqe, tagged, headers.solicited);
            own.find(Fetch { handle, tagged, offer, solicited: headers.solicited });
            return Verdict::Done;
        }
        // Software has to do it: it gets the headers.
        if room < HEADERS_LEN as u64 {
            self.finish(qp, tags, headers, IBV_WC_LOC_LEN_ERR, 0);
            return Verdict::Refuse(Nak::Invalid);
        }
        let Some(ranges) = self.ranges(qp, HEADERS_LEN) else {
            self.finish(qp, tags, headers, IBV_WC_LOC_PROT_ERR, 0);
            return Verdict::Refuse(Nak::Operation);
        };
        let mut tag_headers = fin(tagged, offer);
        tag_headers[0] = IBV_TMH_RNDV as u8;
        if !ranges.scatter_bytes(0, &tag_headers) {
            self.finish(qp, tags, headers, IBV_WC_LOC_PROT_ERR, 0);
            return Verdict::Refuse(Nak::Operation);
        }
        self.finish(qp, tags, headers, IBV_WC_TM_RNDV_INCOMPLETE, HEADERS_LEN);
        Verdict::Done
    }

    /// What the message goes to.
    fn target(&self) -> &Receive {
        match (&self.tag_match, &self.matched) {
            (TagMatch::Matched { .. }, Some(matched)) => matched,
            _ => &self.receive,
        }
    }

    /// The memory that its first `len` bytes go to.
    fn ranges(&self, qp: &Qp, len: usize) -> Option<Ranges> {
        let (mut ranges, list) = (Ranges::new(), &self.target().sges);
        let (regions, pd) = (&qp.adapter.regions, qp.receive_pd());
        if !regions.resolve_first(&mut ranges, pd, list, LOCAL_WRITE, len) {
            return None;
        }
        ranges.take_care(self.check_memory);
        Some(ranges)
    }

    /// Places a piece; how many bytes that were.
    fn bring_tagged(
        &mut self,
        qp: &Qp,
        message: &MessageProgress,
        headers: &Headers,
        source: &impl Source,
    ) -> Result<usize, Misfit> {
        let prot = Misfit::Spoiled(IBV_WC_LOC_PROT_ERR, Verdict::Refuse(Nak::Operation));
        // The header of a matched message goes nowhere.
        let is_matched = matches!(self.tag_match, TagMatch::Matched { .. });
        let kept = message.total.saturating_sub(if is_matched { TMH_LEN } else { 0 });
        if kept > self.target().room() {
            return Err(Misfit::Spoiled(IBV_WC_LOC_LEN_ERR, Verdict::Refuse(Nak::Invalid)));
        }
        let mut ranges = self.ranges(qp, kept).ok_or(prot)?;
        let mut header = [0; TMH_LEN];
        if is_matched {
            // SAFETY: the header outlives the list, and is not looked at.
            let mut whole = Ranges::of(unsafe { Range::new(header.as_mut_ptr(), TMH_LEN) });
            // MAX_TAG_SGE of them at most: there is room.
            whole.extend(&ranges);
            ranges = whole;
        }
        match headers.invalidate.map(|rkey| qp.adapter.invalidate(qp, rkey)) {
            None | Some(Done::Yes) => {}
            Some(Done::Later) => return Err(Misfit::Later),
            Some(Done::Refused) => {
                return Err(Misfit::Spoiled(IBV_WC_REM_INV_REQ_ERR, Verdict::Broken));
            }
        }
        let len = source.bring(&ranges, message.done, message.total).map_err(Misfit::NotBrought)?;
        self.moved += len;
        Ok(len)
    }

    /// The message is done, `len` bytes of it being placed, or its receive is spoiled.
    fn finish(&mut self, qp: &Qp, tags: &mut Tags, headers: &Headers, status: u32, len: usize) {
        let (flags, payload, of) = match self.tag_match {
            TagMatch::Matched { handle, tagged } => {
                tags.list.finish(handle);
                // Of an eager message; headers that software gets stand for themselves.
                let header = if status == IBV_WC_SUCCESS { TMH_LEN } else { 0 };
                (IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID, len.saturating_sub(header), tagged)
            }
            TagMatch::Unexpected | TagMatch::Untagged | TagMatch::Plain => {
                self.has_unfinished_receive = false;
                if status != IBV_WC_SUCCESS && matches!(self.tag_match, TagMatch::Unexpected) {
                    tags.list.discount_unexpected();
                }
                (0, len, Tagged::default())
            }
        };
        let cqe = self.completion(qp, headers, status, flags, payload);
        self.tag_match = TagMatch::Plain;
        push(qp, &cqe, of, headers.solicited);
    }

    fn completion(&self, qp: &Qp, headers: &Headers, status: u32, flags: u32, len: usize) -> Cqe {
        let (wr_id, opcode) = match (&self.tag_match, &self.matched) {
            (TagMatch::Matched { .. }, Some(matched)) => (matched.wr_id, IBV_WC_TM_RECV),
            (TagMatch::Unexpected, _) => (self.receive.wr_id, IBV_WC_TM_RECV),
            _ => (self.receive.wr_id, IBV_WC_TM_NO_TAG),
        };
        Cqe {
            wr_id,
            status,
            opcode,
            byte_len: len as u32,
            imm: headers.imm.or(headers.invalidate).unwrap_or(0),
            qp_num: qp.qpn,
            src_qp: headers.src_qpn,
            wc_flags: flags
                | if headers.imm.is_some() { IBV_WC_WITH_IMM } else { 0 }
                | if headers.invalidate.is_some() { IBV_WC_WITH_INV } else { 0 },
            ..Cqe::default()
        }
    }

    /// The message under way, if there is one, is given up: what it had is there for others.
    pub(crate) fn abandon(&mut self, qp: &Qp) {
        self.message = None;
        let tag_match = std::mem::take(&mut self.tag_match);
        let Some((tm, _)) = qp.tagging() else { return };
        match tag_match {
            TagMatch::Plain | TagMatch::Untagged => {}
            TagMatch::Unexpected => tm.lock().list.discount_unexpected(),
            TagMatch::Matched { handle, .. } => {
                tm.restore(qp, handle);
                // A message that found no receive may find this entry.
                qp.srq().into_iter().for_each(|srq| srq.stir());
            }
        }
    }
}

/// Why a piece was not placed.
#[derive(Clone, Copy, Debug)]
enum Misfit {
    /// The receive does not take it: status, and what becomes of the message.
    Spoiled(u32, Verdict),
    NotBrought(Errno),
    /// It can be placed when a key that it takes back is not used any more.
    Later,
}

fn push(qp: &Qp, cqe: &Cqe, of: Tagged, solicited: bool) {
    if let Some((tm, _)) = qp.tagging() {
        tm.cq.push_with(cqe, Some(&tagged(of)), solicited);
    }
}
