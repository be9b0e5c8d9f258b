//! SENDs to a tag matching shared receive queue: matches an entry, begins a rendezvous, or gives
//! the message to software. `Inbound::send` passes every SEND of such a QP to `send_tagged`.
//!
//! A message of one piece is matched, placed and completed under the lock of the list. Completions
//! therefore follow the order of matching, over all QPs and threads. A message of several pieces is
//! matched with its first piece and completed with its last.

use crate::engine::keys::regions::LOCAL_WRITE;
use crate::engine::keys::windows::BindResult;
use crate::engine::queues::inbound::Source;
use crate::engine::queues::qp::{Fetch, Qp, Tagging};
use crate::engine::queues::qp::{Inbound, MessageProgress, TagMatch};
use crate::engine::queues::srq::tagging::{MAX_RNDV_HEADERS, tagged};
use crate::engine::queues::srq::{TagMatching, Tags};
use abi::*;
use soft_memory::{Range, Ranges};
use soft_semantics::completion::Cqe;
use soft_semantics::inbound::{Headers, Nak, Verdict};
use soft_semantics::receive::Receive;
use soft_semantics::state::QpState;
use soft_semantics::tags::wire::{self, HEADERS_LEN, Offer, TMH_LEN, Tagged, fin};
use soft_sys::Errno;

impl Inbound {
    /// Serves a piece of a SEND.
    pub(in crate::engine) fn send_tagged(
        &mut self,
        qp: &Qp,
        tm: &TagMatching,
        own: &Tagging,
        headers: &Headers,
        source: &impl Source,
    ) -> Verdict {
        let (mut message, locked) = if headers.first {
            // A new message ends an unfinished one.
            self.abandon(qp);
            let mut start = [0; HEADERS_LEN];
            let start = match source.peek(&mut start) {
                Ok(len) => start.get(..len).unwrap_or_default(),
                Err(errno) => return self.reject_unbrought(qp, errno),
            };
            let mut tags = tm.lock();
            if let Err(verdict) = self.match_message(qp, own, &mut tags, headers, start) {
                return verdict;
            }
            (MessageProgress { total: headers.total, bytes_done: 0 }, headers.last.then_some(tags))
        } else {
            match self.message.take() {
                // If the first piece does not give the total length, each piece gives the length so
                // far.
                Some(message) => {
                    let total = message.total.max(headers.total);
                    (MessageProgress { total, ..message }, None)
                }
                None => return self.reject(qp, Nak::Invalid),
            }
        };
        let brought = self.bring_tagged(qp, &message, headers, source);
        match brought {
            Err(PlaceError::Later) => {
                drop(locked);
                if headers.first {
                    // The message is matched again at the next attempt.
                    self.abandon(qp);
                } else {
                    self.message = Some(message);
                }
                return Verdict::Busy;
            }
            Ok(len) if !headers.last => {
                message.bytes_done += len;
                self.message = Some(message);
                return Verdict::Done;
            }
            Ok(_) | Err(PlaceError::Spoiled(..)) => {}
            Err(PlaceError::NotBrought(errno)) => {
                drop(locked);
                return self.reject_unbrought(qp, errno);
            }
        }
        let mut tags = locked.unwrap_or_else(|| tm.lock());
        match brought {
            Err(PlaceError::Spoiled(status, verdict)) => {
                self.finish(qp, &mut tags, headers, status, 0);
                verdict
            }
            _ => {
                let len = brought.map_or(0, |len| message.bytes_done + len);
                self.finish(qp, &mut tags, headers, IBV_WC_SUCCESS, len);
                Verdict::Done
            }
        }
    }

    fn reject_unbrought(&mut self, qp: &Qp, errno: Errno) -> Verdict {
        match errno {
            Errno::EPROTO => self.reject(qp, Nak::Invalid),
            Errno::ESTALE => Verdict::Stale,
            Errno::ESRCH => Verdict::SenderDied,
            _ => self.reject(qp, Nak::Operation),
        }
    }

    /// Selects the destination of a message by its first bytes. An error is the verdict for a
    /// message that waits, was refused or is finished.
    fn match_message(
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
                return Err(self.reject(qp, Nak::Invalid));
            }
            wire::TagHeaders::Eager(tagged) | wire::TagHeaders::Rendezvous(tagged, _) => tagged,
        };
        let Some(handle) = tags.list.match_message(tagged.tag) else {
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

    /// Handles a matched rendezvous.
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
        let can_read = matches!(qp.state(), QpState::Rts | QpState::Sqd);
        if u64::from(offer.len) <= room && can_read {
            let cqe = self.completion(qp, headers, IBV_WC_SUCCESS, IBV_WC_TM_MATCH, 0);
            self.tag_match = TagMatch::Plain;
            push(qp, &cqe, tagged, headers.solicited);
            own.add_fetch(Fetch { handle, tagged, offer, solicited: headers.solicited });
            return Verdict::Done;
        }
        // The data does not fit, or the QP cannot read: software gets the headers.
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

    /// The receive of the message.
    fn destination(&self) -> &Receive {
        match (&self.tag_match, &self.matched) {
            (TagMatch::Matched { .. }, Some(matched)) => matched,
            _ => &self.receive,
        }
    }

    /// The memory of the first `len` bytes of the message.
    fn ranges(&self, qp: &Qp, len: usize) -> Option<Ranges<'static>> {
        let (mut ranges, list) = (Ranges::new(), &self.destination().sges);
        let (regions, pd) = (&qp.adapter().regions, qp.receive_pd());
        if !regions.resolve_first(&mut ranges, pd, list, LOCAL_WRITE, len) {
            return None;
        }
        ranges.take_care(self.check_memory);
        Some(ranges)
    }

    /// Places a piece. Returns the number of bytes.
    fn bring_tagged(
        &mut self,
        qp: &Qp,
        message: &MessageProgress,
        headers: &Headers,
        source: &impl Source,
    ) -> Result<usize, PlaceError> {
        let prot = PlaceError::Spoiled(IBV_WC_LOC_PROT_ERR, Verdict::Refuse(Nak::Operation));
        // The tag header of a matched message is dropped.
        let is_matched = matches!(self.tag_match, TagMatch::Matched { .. });
        let kept = message.total.saturating_sub(if is_matched { TMH_LEN } else { 0 });
        if kept > self.destination().room() {
            return Err(PlaceError::Spoiled(IBV_WC_LOC_LEN_ERR, Verdict::Refuse(Nak::Invalid)));
        }
        let mut header = [0; TMH_LEN];
        let mut ranges = self.ranges(qp, kept).ok_or(prot)?;
        if is_matched {
            let mut whole = Ranges::of(Range::of(&mut header));
            // An entry has at most MAX_TAG_SGE ranges, so the list has room.
            whole.extend(&ranges);
            ranges = whole;
        }
        match headers.invalidate.map(|rkey| qp.adapter().invalidate(qp, rkey)) {
            None | Some(BindResult::Yes) => {}
            Some(BindResult::Later) => return Err(PlaceError::Later),
            Some(BindResult::Refused) => {
                return Err(PlaceError::Spoiled(IBV_WC_REM_INV_REQ_ERR, Verdict::Broken));
            }
        }
        let len = source
            .copy_piece(&ranges, message.bytes_done, message.total)
            .map_err(PlaceError::NotBrought)?;
        self.moved += len;
        Ok(len)
    }

    /// Completes the message with `len` placed bytes, or with an error.
    fn finish(&mut self, qp: &Qp, tags: &mut Tags, headers: &Headers, status: u32, len: usize) {
        let (flags, payload, of) = match self.tag_match {
            TagMatch::Matched { handle, tagged } => {
                tags.list.finish(handle);
                // An eager message has a tag header; headers given to software count as data.
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
            qp_num: qp.qpn(),
            src_qp: headers.src_qpn,
            wc_flags: flags
                | if headers.imm.is_some() { IBV_WC_WITH_IMM } else { 0 }
                | if headers.invalidate.is_some() { IBV_WC_WITH_INV } else { 0 },
            ..Cqe::default()
        }
    }

    /// Gives the unfinished message up, if any, and releases its entry or receive.
    pub(crate) fn abandon(&mut self, qp: &Qp) {
        self.message = None;
        let tag_match = std::mem::take(&mut self.tag_match);
        let Some((tm, _)) = qp.tagging() else { return };
        match tag_match {
            TagMatch::Plain | TagMatch::Untagged => {}
            TagMatch::Unexpected => tm.lock().list.discount_unexpected(),
            TagMatch::Matched { handle, .. } => {
                tm.restore(qp, handle);
                // A message that waits for a receive may match the entry.
                qp.srq().into_iter().for_each(|srq| srq.wake_waiters());
            }
        }
    }
}

/// Why a piece was not placed.
#[derive(Clone, Copy, Debug)]
enum PlaceError {
    /// The receive fails: its status, and the verdict for the message.
    Spoiled(u32, Verdict),
    NotBrought(Errno),
    /// Not possible until the key to invalidate is unused.
    Later,
}

fn push(qp: &Qp, cqe: &Cqe, of: Tagged, solicited: bool) {
    if let Some((tm, _)) = qp.tagging() {
        tm.cq.push_with(cqe, Some(&tagged(of)), solicited);
    }
}
