//! Models of arrival flags, cold rings and attention: every published slot is seen, or its flag
//! wakes the owner.

use crate::model;
use crate::protocol::*;
use crate::rings::Slot;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Weakened, barrier, weaken, weakened};
use loom::sync::Arc;
use loom::thread;
use std::cell::Cell;

/// The shared memory of a process: two rings of one slot, with their arrival flags.
struct Shared {
    slots: [Slot; 2],
    hot: [AtomicU32; 2],
    attention: AtomicU32,
    flags: AtomicU64,
    summary: AtomicU64,
    /// Set when the process was woken.
    kicked: AtomicU32,
}

impl Shared {
    fn new(hot: u32, attention: u32) -> Arc<Self> {
        Arc::new(Self {
            slots: [Slot::new(), Slot::new()],
            hot: [AtomicU32::new(hot), AtomicU32::new(hot)],
            attention: AtomicU32::new(attention),
            flags: AtomicU64::new(0),
            summary: AtomicU64::new(0),
            kicked: AtomicU32::new(0),
        })
    }

    /// Models Link::requests_published, after a put.
    fn send(&self, ring: usize) {
        self.slots[ring].put(1, 5);
        let passed = Cell::new(0);
        let counted = || {
            passed.set(passed.get() + 1);
            if passed.get() != weakened().barrier {
                barrier();
            }
        };
        let set_flag = || set_arrival_flag(&self.flags, ring, &self.summary, 0);
        let kick = || self.kicked.store(1, Ordering::Release);
        notify_owner(&self.hot[ring], &self.attention, 1, counted, set_flag, kick);
    }

    /// Models View::take_qp_arrivals; returns the slots whose arrival flags are set.
    fn take_arrival_flags(&self) -> u32 {
        let mut taken = 0;
        take_bits(&self.summary, |_| {
            take_bits(&self.flags, |ring| {
                assert!(self.slots[ring].is_ready(1), "a flag names an empty ring");
                taken |= 1 << ring;
            });
        });
        taken
    }
}

model!(a_flag_is_seen_and_its_slot_is_published, 2, why: "a flag ",
    fails: {
        a_flag_without_release_names_an_empty_ring: Weakened::RELEASE,
        a_flag_without_acquire_names_an_empty_ring: Weakened::ACQUIRE,
    },
    || {
        let shared = Shared::new(0, 0);
        let senders = [0, 1].map(|ring| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.send(ring))
        });
        let mut taken = shared.take_arrival_flags();
        for sender in senders {
            sender.join().expect("the sender ends");
        }
        taken |= shared.take_arrival_flags();
        assert_eq!(taken, 3, "a flag was lost");
    }
);

// Models Hot::heat and Inlets::heat, which mark another ring cold.
model!(a_ring_that_cools_down_is_seen_or_rings, 3, why: "neither seen nor flagged",
    fails: {
        a_ring_that_cools_down_is_forgotten_without_barriers: Weakened::TOTAL,
        a_ring_that_cools_down_is_forgotten_if_the_sender_has_no_barrier:
            Weakened { barrier: 1, ..Weakened::NONE },
    },
    || {
        let shared = Shared::new(1, 0);
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.send(0))
        };
        mark_cold(&shared.hot[0], barrier);
        let seen = shared.slots[0].is_ready(1);
        sender.join().expect("the sender ends");
        assert!(seen || shared.take_arrival_flags() == 1, "neither seen nor flagged");
    }
);

// Models Attention::armed, then Cq::sweep, which finds nothing; then the process sleeps. Weakened
// otherwise: a thread that finds attention up continues, as if the thread that raised it had passed
// the barrier.
fn sleep(shared: &Shared, alert: &Alert, inspect: impl FnOnce() -> bool) -> bool {
    alert.arm();
    if weakened().otherwise {
        if shared.attention.swap(1, Ordering::SeqCst) != 1 {
            barrier();
        }
    } else {
        alert.raise(&shared.attention, 1, barrier);
    }
    inspect()
}

fn lowered(shared: &Shared) -> Alert {
    let alert = Alert::new();
    assert!(alert.lower(&shared.attention));
    alert
}

model!(a_thread_before_sleep_sees_a_hot_ring_or_is_woken, 3, why: "a lost wake-up",
    fails: {
        who_goes_to_sleep_is_not_woken_without_barriers: Weakened::TOTAL,
        who_goes_to_sleep_is_not_woken_if_the_sender_has_no_barrier:
            Weakened { barrier: 1, ..Weakened::NONE },
    },
    || {
        let shared = Shared::new(1, 1);
        let alert = lowered(&shared);
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.send(0))
        };
        let seen = sleep(&shared, &alert, || shared.slots[0].is_ready(1));
        sender.join().expect("the sender ends");
        assert!(seen || shared.kicked.load(Ordering::Acquire) == 1, "a lost wake-up");
    }
);

model!(a_thread_before_sleep_sees_a_flag_or_is_woken, 3, why: "a lost wake-up",
    fails: {
        a_sleeping_thread_misses_a_flag_without_barriers: Weakened::TOTAL,
        a_sleeping_thread_misses_a_flag_if_no_barrier_follows_it:
            Weakened { barrier: 2, ..Weakened::NONE },
    },
    || {
        let shared = Shared::new(0, 1);
        let alert = lowered(&shared);
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.send(0))
        };
        let seen = sleep(&shared, &alert, || shared.take_arrival_flags() == 1);
        sender.join().expect("the sender ends");
        assert!(seen || shared.kicked.load(Ordering::Acquire) == 1, "a lost wake-up");
    }
);

model!(two_threads_before_sleep_each_see_their_ring_or_are_woken, 2, why: "a lost wake-up",
    fails: { the_second_sleeper_relies_on_a_barrier_that_was_not_passed: Weakened::OTHERWISE, },
    || {
        // The sender's barrier only pairs with the owner's barrier, not with a fence of another
        // thread.
        weaken(Weakened { fences: true, ..weakened() });
        let shared = Shared::new(1, 1);
        let alert = Arc::new(lowered(&shared));
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.send(0))
        };
        let first = {
            let (shared, alert) = (Arc::clone(&shared), Arc::clone(&alert));
            thread::spawn(move || sleep(&shared, &alert, || true))
        };
        let seen = sleep(&shared, &alert, || shared.slots[0].is_ready(1));
        sender.join().expect("the sender ends");
        first.join().expect("the first ends");
        assert!(seen || shared.kicked.load(Ordering::Acquire) == 1, "a lost wake-up");
    }
);

// Models Attention::polled_with_attention against Attention::armed.
model!(attention_is_up_while_a_thread_waits, 3, why: "attention is down",
    fails: { attention_goes_down_while_a_thread_waits_without_fences: Weakened::TOTAL, },
    || {
        let shared = Shared::new(1, 1);
        let alert = Arc::new(Alert::new());
        let poller = {
            let (shared, alert) = (Arc::clone(&shared), Arc::clone(&alert));
            thread::spawn(move || alert.lower(&shared.attention))
        };
        alert.arm();
        alert.raise(&shared.attention, 1, barrier);
        poller.join().expect("the poller ends");
        assert_eq!(shared.attention.load(Ordering::Relaxed), 1, "armed, and attention is down");
        alert.disarm();
        assert!(alert.is_idle());
    }
);

// Models Attention::catch_up against Attention::armed: an arrival flag was set for every slot that
// the service thread has not seen.
model!(a_thread_that_relies_on_flags_misses_no_slot, 3, why: "missed",
    fails: {
        a_thread_that_relies_on_flags_misses_a_slot_without_barriers: Weakened::TOTAL,
        a_thread_that_relies_on_flags_misses_a_slot_without_release: Weakened::RELEASE,
        a_thread_that_relies_on_flags_misses_a_slot_without_acquire: Weakened::ACQUIRE,
    },
    || {
        let shared = Shared::new(1, 1);
        let alert = Arc::new(lowered(&shared));
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.send(0))
        };
        let service = {
            let (shared, alert) = (Arc::clone(&shared), Arc::clone(&alert));
            thread::spawn(move || {
                let relies = alert.raised().is_some();
                !relies || shared.slots[0].is_ready(1)
            })
        };
        alert.arm();
        alert.raise(&shared.attention, 1, barrier);
        sender.join().expect("the sender ends");
        let seen = service.join().expect("the service thread ends");
        let reported = shared.kicked.load(Ordering::Acquire) == 1 && shared.take_arrival_flags() == 1;
        assert!(seen || reported, "missed");
    }
);

/// An event channel. A lock replaces the kernel's part of futex(2).
struct EventChannelModel {
    sleepers: AtomicU32,
    alarm: AtomicU32,
    asleep: loom::sync::Mutex<bool>,
}

impl EventChannelModel {
    fn is_asleep(&self) -> loom::sync::MutexGuard<'_, bool> {
        self.asleep.lock().expect("a model that panics ends")
    }
}

// Models Link::wake against Alarm::sleep_until. Weakened otherwise: a thread that finds a sleeper
// counted does not kick the service thread.
model!(a_channel_reader_or_the_service_thread_wakes, 3, why: "nobody woke",
    fails: { no_thread_wakes_if_the_count_of_sleepers_is_trusted: Weakened::OTHERWISE, },
    || {
        let channel = Arc::new(EventChannelModel {
            sleepers: AtomicU32::new(0),
            alarm: AtomicU32::new(0),
            asleep: loom::sync::Mutex::new(false),
        });
        let kicked = Arc::new(AtomicU32::new(0));
        let flags = Arc::new(AtomicU64::new(0));
        let sender = {
            let (channel, kicked, flags) = (Arc::clone(&channel), Arc::clone(&kicked), Arc::clone(&flags));
            thread::spawn(move || {
                set_arrival_flag(&flags, 0, &AtomicU64::new(0), 0);
                let wake = || std::mem::replace(&mut *channel.is_asleep(), false) || weakened().otherwise;
                wake_one(&channel.sleepers, &channel.alarm, wake, || kicked.store(1, Ordering::Release));
            })
        };
        channel.sleepers.fetch_add(1, Ordering::Relaxed);
        let expected = prepare_sleep(&channel.alarm);
        {
            let mut asleep = channel.is_asleep();
            *asleep = channel.alarm.load(Ordering::Relaxed) == expected;
        }
        sender.join().expect("the sender ends");
        let woken = !*channel.is_asleep();
        channel.sleepers.fetch_sub(1, Ordering::Relaxed);
        let mut found = 0;
        if woken || kicked.load(Ordering::Acquire) == 1 {
            take_bits(&flags, |_| found += 1);
        }
        assert_eq!(found, 1, "nobody woke");
    }
);
