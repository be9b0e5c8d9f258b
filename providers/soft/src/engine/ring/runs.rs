//! Runs of small one-sided requests to one region, moved by a single system call.
//! `Requester::issue_by_ring` tries a run before it issues single requests.
//!
//! The bytes of a run move in the order of its requests. Requests that were not moved are issued
//! singly by `issue`, and fail there as they would alone.

use crate::engine::keys::access::{Direction, admit};
use crate::engine::keys::regions::{IMPORTED, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE};
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::Requester;
use crate::engine::ring::Link;
use crate::engine::ring::holder::Reach;
use crate::engine::ring::run_lists::RunLists;
use abi::*;
use soft_memory::Ranges;
use soft_memory::cma::{IoVec, MOST_RANGES};
use soft_semantics::request::{RemoteAddress, Request, RequestOperation, RequestPhase};
use soft_semantics::state::QpType;
use std::sync::atomic::Ordering;

/// Maximal number of requests in a run.
const MAX_RUN: usize = MOST_RANGES;
/// Length in bytes above which a single request is as fast.
const MAX_RUN_REQUEST: u32 = 16 * 1024;

/// The common properties of the requests in a run.
struct RunProperties {
    opcode: u32,
    direction: Direction,
    /// The rights needed by the peer's region and by local regions.
    required_rights: u32,
    local: u32,
    rkey: u32,
}

/// Whether a request may belong to a run.
pub(in crate::engine) const fn is_small_move(request: &Request, len: u32) -> bool {
    matches!(request.opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_READ) && len <= MAX_RUN_REQUEST
}

impl Requester {
    /// Executes the run of small requests that begins with `n`. Returns the number of finished
    /// requests; 0 if no run is possible now.
    pub(in crate::engine) fn issue_run(&mut self, qp: &Qp, link: &Link, n: u64) -> u64 {
        if self.reach(link) != Reach::Attach {
            return 0;
        }
        let Request { opcode, operation, .. } = self.sends.queue.entry(n).request;
        let (way, need, local, rkey) = match (operation, qp.qp_type()) {
            (RequestOperation::Write(to), QpType::Rc | QpType::Uc)
                if opcode == IBV_WR_RDMA_WRITE =>
            {
                (Direction::Write, REMOTE_WRITE, 0, to.rkey)
            }
            (RequestOperation::Read(from) | RequestOperation::Fetch(from, _), QpType::Rc) => {
                (Direction::Read, REMOTE_READ, LOCAL_WRITE, from.rkey)
            }
            _ => return 0,
        };
        // All published slots must be acknowledged first, as in `direct`.
        if self.ring.acked != self.ring.next {
            self.absorb(qp, link);
        }
        if self.ring.acked != self.ring.next
            || self.ring.responses_due > 0
            || !self.sends.failure.is_working()
        {
            return 0;
        }
        let mut lists = self.ring.run_lists.take().unwrap_or_default();
        let run = RunProperties { opcode, direction: way, required_rights: need, local, rkey };
        let done = self.move_run(qp, link, n, &run, &mut lists);
        self.ring.run_lists = Some(lists);
        done
    }

    fn move_run(
        &mut self,
        qp: &Qp,
        link: &Link,
        n: u64,
        run: &RunProperties,
        lists: &mut RunLists,
    ) -> u64 {
        let RunProperties { opcode, direction: way, required_rights: need, local, rkey } = *run;
        let Some(memory) = link.peer().memory() else { return 0 };
        let _in_flight = qp.adapter().in_flight.announce(link.peer().slot, rkey);
        let rights = link.entry().rights.load(Ordering::Relaxed);
        let RunLists { local: own, remote: there, ends } = lists;
        own.clear();
        there.clear();
        ends.clear();
        let mut total = 0;
        for m in n..self.sends.queue.posted {
            let entry = *self.sends.queue.entry(m);
            let (RequestOperation::Write(remote)
            | RequestOperation::Read(remote)
            | RequestOperation::Fetch(remote, _)) = entry.request.operation
            else {
                break;
            };
            let fits = entry.request.opcode == opcode
                && remote.rkey == rkey
                && is_small_move(&entry.request, entry.len)
                && entry.len > 0
                && entry.offset == 0
                && there.len() < MAX_RUN;
            if !fits {
                break;
            }
            let mut ranges = Ranges::new();
            if !self.sends.ranges_into(&mut ranges, qp, m, local) || ranges.is_abroad() {
                break;
            }
            let (remote, len) = (RemoteAddress { addr: remote.addr, rkey }, ranges.total());
            let Ok(found) = admit(&link.view, link.qpn, rights, remote, len as u64, need) else {
                break;
            };
            if found.access & IMPORTED != 0 {
                break;
            }
            // A mapped region needs no system call.
            let maps = self.ring.maps.get_or_insert_default();
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
            // SAFETY: the target ranges were checked by the target's table, and the announcement
            // delays their deregistration.
            Direction::Write => unsafe { memory.write(own, there) },
            Direction::Read => memory.read(own, there),
        };
        // The first request that was not moved finds the reason when it is issued alone.
        let moved = moved.unwrap_or(0);
        let done = ends.iter().take_while(|end| **end <= moved).count() as u64;
        for m in n..n + done {
            self.sends.queue.entry(m).phase = RequestPhase::Done;
        }
        done
    }
}
