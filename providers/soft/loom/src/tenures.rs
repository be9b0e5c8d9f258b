//! Models of lasting ownership: a ring's holder, the openers of a QP, the objects of a protection
//! domain, and a completion queue's list.

use crate::model;
use crate::protocol::{head, publish_first_word};
use crate::sync::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering, Weakened, weakened,
};
use crate::tenure::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A ring of one slot, the words of its holder, and bytes for the sender to fill.
struct Ring {
    holder: AtomicU64,
    begun: AtomicU32,
    slot: [AtomicU64; 8],
    bytes: UnsafeCell<u32>,
}

impl Ring {
    fn new(holder: u64) -> Arc<Self> {
        Arc::new(Self {
            holder: AtomicU64::new(holder),
            begun: AtomicU32::new(0),
            slot: std::array::from_fn(|_| AtomicU64::new(0)),
            bytes: UnsafeCell::new(0),
        })
    }

    /// Claims the ring for `me`. Weakened otherwise: a load and a store, which are two steps.
    fn take(&self, me: u64) -> bool {
        if !weakened().otherwise {
            return claim_ring(&self.holder, me);
        }
        let free = self.holder.load(Ordering::Acquire) == 0;
        if free {
            self.holder.store(me, Ordering::Release);
        }
        free
    }

    fn fill(&self) {
        // SAFETY: loom checks for concurrent access.
        self.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
    }
}

const OLD: u64 = 1;
const NEW: u64 = 3;

model!(one_incarnation_sends_in_a_ring, 3, why: "Causality violation",
    fails: { two_incarnations_send_in_a_ring_that_is_taken_in_two_steps: Weakened::OTHERWISE, },
    || {
        let ring = Ring::new(0);
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                if ring.take(OLD) {
                    ring.fill();
                }
            })
        };
        if ring.take(NEW) {
            ring.fill();
        }
        other.join().expect("the other ends");
    }
);

model!(what_lies_in_a_ring_has_a_holder, 3, why: "nobody's",
    fails: {
        what_lies_in_a_ring_is_nobodys_without_release: Weakened::RELEASE,
        what_lies_in_a_ring_is_nobodys_without_acquire: Weakened::ACQUIRE,
    },
    || {
        let ring = Ring::new(0);
        let sender = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                assert!(claim_ring(&ring.holder, NEW));
                publish_first_word(&ring.slot, 1);
            })
        };
        // Models Responder::establish.
        if head(&ring.slot, 1).is_some() {
            assert_eq!(holder_of(&ring.holder), NEW, "nobody's");
        }
        sender.join().expect("the sender ends");
    }
);

model!(who_follows_a_ring_that_was_taken_over_goes_on_where_the_new_holder_began, 3, why: "elsewhere",
    fails: {
        who_follows_a_ring_goes_elsewhere_without_release: Weakened::RELEASE,
        who_follows_a_ring_goes_elsewhere_without_acquire: Weakened::ACQUIRE,
    },
    || {
        let ring = Ring::new(OLD);
        let sender = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || take_over_ring(&ring.holder, NEW, &ring.begun, 8))
        };
        // Models Responder::follow.
        if holder_of(&ring.holder) == NEW {
            assert_eq!(ring.begun.load(Ordering::Relaxed), 8, "elsewhere");
        }
        sender.join().expect("the sender ends");
    }
);

/// Values of `QpEntry::closing`.
const CLOSING: u8 = 1;
const ORPHANED: u8 = 2;

/// A QP that another process may open, and the QP's memory.
struct Opened {
    noted: AtomicU32,
    closing: AtomicU8,
    qp: UnsafeCell<u32>,
}

impl Opened {
    /// Models Xrc::abandon and Xrc::end_orphans: whether no process has the QP open, so that it can
    /// be destroyed.
    fn is_over(&self) -> bool {
        begin_to_destroy(&self.closing, CLOSING);
        let over = opener(&self.noted) == 0;
        if !over {
            self.closing.store(ORPHANED, Ordering::SeqCst);
        }
        over
    }

    fn touch(&self) {
        // SAFETY: loom checks for concurrent access.
        self.qp.with_mut(|qp| unsafe { *qp += 1 });
    }
}

model!(a_qp_is_destroyed_when_no_process_has_it_open, 3, why: "Causality violation",
    fails: {
        a_qp_is_destroyed_under_its_opener_without_a_total_order: Weakened::TOTAL,
        a_qp_is_destroyed_before_its_opener_is_done_without_acquire: Weakened::ACQUIRE,
    },
    || {
        let opened = Arc::new(Opened {
            noted: AtomicU32::new(0),
            closing: AtomicU8::new(0),
            qp: UnsafeCell::new(0),
        });
        let other = {
            let opened = Arc::clone(&opened);
            thread::spawn(move || {
                // Models Xrc::open_qp and Xrc::close_qp.
                note_opener(&opened.noted, 7);
                if closing(&opened.closing) != CLOSING {
                    opened.touch();
                }
                withdraw_opener(&opened.noted, 7);
            })
        };
        while !opened.is_over() {
            thread::yield_now();
        }
        opened.touch();
        other.join().expect("the opener ends");
    }
);

/// The number of a domain.
const DOMAIN: u64 = 9;

/// A protection domain that another process imported, and the domain's memory.
struct Domain {
    number: AtomicU64,
    borrowed: AtomicU64,
    users: AtomicUsize,
    pd: UnsafeCell<u32>,
}

impl Domain {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            number: AtomicU64::new(DOMAIN),
            borrowed: AtomicU64::new(0),
            users: AtomicUsize::new(0),
            pd: UnsafeCell::new(0),
        })
    }

    /// Models the part of Domains::remove that concerns other processes: whether none has objects
    /// in the domain.
    fn is_over(&self) -> bool {
        begin_to_end(&self.number);
        let over = borrowed(&self.borrowed) != DOMAIN;
        if !over {
            self.number.store(DOMAIN, Ordering::SeqCst);
        }
        over
    }

    fn touch(&self) {
        // SAFETY: loom checks for concurrent access.
        self.pd.with_mut(|pd| unsafe { *pd += 1 });
    }
}

model!(a_domain_is_over_when_no_other_process_has_objects_in_it, 3, why: "Causality violation",
    fails: {
        a_domain_is_over_under_an_object_without_a_total_order: Weakened::TOTAL,
        a_domain_is_over_before_its_last_object_without_acquire: Weakened::ACQUIRE,
        a_domain_is_over_before_its_last_object_without_release: Weakened::RELEASE,
    },
    || {
        let domain = Domain::new();
        let other = {
            let domain = Arc::clone(&domain);
            thread::spawn(move || {
                // Models Domains::borrow and Domains::give_back.
                note_borrowed(&domain.borrowed, DOMAIN);
                if current_domain(&domain.number) == DOMAIN {
                    domain.touch();
                }
                withdraw_borrowed(&domain.borrowed);
            })
        };
        while !domain.is_over() {
            thread::yield_now();
        }
        domain.touch();
        other.join().expect("the maker ends");
    }
);

model!(a_domain_is_over_when_its_process_has_no_objects_in_it, 3, why: "Causality violation",
    fails: {
        a_domain_is_over_under_an_object_that_is_counted_after_a_look: Weakened::OTHERWISE,
        a_domain_is_over_before_its_objects_without_acquire: Weakened::ACQUIRE,
        a_domain_is_over_before_its_objects_without_release: Weakened::RELEASE,
    },
    || {
        let domain = Domain::new();
        let other = {
            let domain = Arc::clone(&domain);
            thread::spawn(move || {
                // Models Pd::hold and Pd::release. Weakened otherwise: a load and an increment,
                // which are two steps.
                let held = if weakened().otherwise {
                    let there = domain.users.load(Ordering::Acquire) != usize::MAX;
                    domain.users.fetch_add(1, Ordering::AcqRel);
                    there
                } else {
                    hold_domain(&domain.users)
                };
                if held {
                    domain.touch();
                    release_domain(&domain.users);
                }
            })
        };
        if end_domain(&domain.users) {
            domain.touch();
        }
        other.join().expect("the maker ends");
    }
);

/// A QP on a completion queue's list without outstanding work, and the path onto the list.
struct Listing {
    outstanding: AtomicBool,
    listed: AtomicBool,
    inbox: Mutex<u32>,
    inbox_used: AtomicBool,
}

impl Listing {
    /// Models Qp::sends_outstanding and Cq::add_sender.
    fn post(&self) {
        if list_outstanding(&self.outstanding, &self.listed) {
            let mut inbox = self.inbox.lock();
            *inbox += 1;
            self.inbox_used.store(true, Ordering::Release);
        }
    }

    /// Models Cq::look: `there` is the number of the QP's entries on the list.
    fn inspect(&self, there: &mut u32) {
        if self.inbox_used.load(Ordering::Acquire) {
            self.inbox_used.store(false, Ordering::Release);
            *there += std::mem::take(&mut *self.inbox.lock());
        }
        if *there > 0 && !stays_listed(&self.outstanding, &self.listed) {
            *there -= 1;
        }
    }
}

model!(a_qp_with_something_outstanding_is_on_the_list_once, 3, why: "listed 0 times",
    fails: {
        a_qp_is_lost_from_the_list_without_release: Weakened::RELEASE,
        a_qp_is_lost_from_the_list_without_acquire: Weakened::ACQUIRE,
    },
    || {
        let listing = Arc::new(Listing {
            outstanding: AtomicBool::new(false),
            listed: AtomicBool::new(true),
            inbox: Mutex::new(0),
            inbox_used: AtomicBool::new(false),
        });
        let poster = {
            let listing = Arc::clone(&listing);
            thread::spawn(move || listing.post())
        };
        let mut there = 1;
        listing.inspect(&mut there);
        poster.join().expect("the poster ends");
        listing.inspect(&mut there);
        assert_eq!(there, 1, "listed {there} times");
    }
);
