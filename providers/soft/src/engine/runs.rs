//! Runs of small one-sided requests to one region, moved by one system call instead of one each.
//!
//! The bytes of a run move in the order of its requests, and what was not moved is left to `issue`, one by one, so that a
//! request that fails fails as it would have alone.

use super::access::{Direction, admit};
use super::objects::connection::{Link, Requester};
use super::objects::holder::Reach;
use super::objects::qp::Qp;
use super::objects::run_lists::RunLists;
use super::regions::{IMPORTED, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE};
use super::request::{Phase, RemoteAddress, Request, What};
use super::state::Kind;
use abi::*;
use soft_memory::Ranges;
use soft_memory::cma::{IoVec, MOST_RANGES};
use std::sync::atomic::Ordering;

/// Requests of one run.
const MOST: usize = MOST_RANGES;
/// Bytes beyond which a request is as fast alone.
const SMALL: u32 = 16 * 1024;

/// What the requests of a run have in common.
struct Run {
    opcode: u32,
    way: Direction,
    /// The right that the peer's region needs, and the one that ours do.
    need: u32,
    local: u32,
    rkey: u32,
}

/// Whether a request may begin or continue a run.
pub(super) const fn is_small_move(request: &Request, len: u32) -> bool {
    matches!(request.opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_READ) && len <= SMALL
}

impl Requester {
    /// Does the run of small requests that begins with `n`, as far as it goes; returns how many are done. 0: there is no run,
    /// or it cannot be done now.
    pub(super) fn issue_run(&mut self, qp: &Qp, link: &Link, n: u64) -> u64 {
        if self.reach(link) != Reach::Attach {
            return 0;
        }
        let Request { opcode, what, .. } = self.queue.entry(n).request;
        let (way, need, local, rkey) = match (what, qp.kind) {
            (What::Write(to), Kind::Rc | Kind::Uc) if opcode == IBV_WR_RDMA_WRITE => {
                (Direction::Write, REMOTE_WRITE, 0, to.rkey)
            }
            (What::Read(from) | What::Fetch(from, _), Kind::Rc) => {
                (Direction::Read, REMOTE_READ, LOCAL_WRITE, from.rkey)
            }
            _ => return 0,
        };
        // Only after all that was published before is acknowledged: see `direct`.
        if self.acked != self.next {
            self.absorb(qp, link);
        }
        if self.acked != self.next || self.responses_due > 0 || !self.fate.is_going() {
            return 0;
        }
        let mut lists = self.run_lists.take().unwrap_or_default();
        let run = Run { opcode, way, need, local, rkey };
        let done = self.move_run(qp, link, n, &run, &mut lists);
        self.run_lists = Some(lists);
        done
    }

    fn move_run(&mut self, qp: &Qp, link: &Link, n: u64, run: &Run, lists: &mut RunLists) -> u64 {
        let Run { opcode, way, need, local, rkey } = *run;
        let Some(memory) = link.peer.memory() else { return 0 };
        let _in_flight = qp.adapter.in_flight.announce(link.peer.slot, rkey);
        let rights = link.entry().rights.load(Ordering::Relaxed);
        let RunLists { own, there, ends } = lists;
        own.clear();
        there.clear();
        ends.clear();
        let mut total = 0;
        for m in n..self.queue.posted {
            let entry = *self.queue.entry(m);
            let (What::Write(remote) | What::Read(remote) | What::Fetch(remote, _)) =
                entry.request.what
            else {
                break;
            };
            let fits = entry.request.opcode == opcode
                && remote.rkey == rkey
                && is_small_move(&entry.request, entry.len)
                && entry.len > 0
                && entry.offset == 0
                && there.len() < MOST;
            if !fits {
                break;
            }
            let mut ranges = Ranges::new();
            if !self.ranges_into(&mut ranges, qp, m, local) || ranges.is_abroad() {
                break;
            }
            let (remote, len) = (RemoteAddress { addr: remote.addr, rkey }, ranges.total());
            let Ok(found) = admit(&link.view, link.qpn, rights, remote, len as u64, need) else {
                break;
            };
            if found.access & IMPORTED != 0 {
                break;
            }
            // What is mapped here needs no system call at all.
            let maps = self.maps.get_or_insert_default();
            if m == n && maps.find(link, rkey, found, len).is_some() {
                return 0;
            }
            if own.len() + ranges.items().len() > MOST_RANGES {
                break;
            }
            own.extend(ranges.items().iter().copied());
            there.push(IoVec::new(found.va, len));
            total += len;
            ends.push(total);
        }
        if there.len() < 2 {
            return 0;
        }
        let moved = match way {
            // SAFETY: the target's ranges were checked against its table, and the announcement holds off their deregistration.
            Direction::Write => unsafe { memory.write(own, there) },
            Direction::Read => memory.read(own, there),
        };
        // Why not all of it was moved, the first request left will find out alone.
        let moved = moved.unwrap_or(0);
        let done = ends.iter().take_while(|end| **end <= moved).count() as u64;
        for m in n..n + done {
            self.queue.entry(m).phase = Phase::Done;
        }
        done
    }
}
