//! Tests of the tag list against ibv_post_srq_ops(3), and against a linear search. Both searches
//! get the same random operations and must return the same entries.

use super::*;

const EXACT: u64 = u64::MAX;

fn list(capacity: usize) -> TagList {
    TagList::new(capacity, 2, 0x5eed).expect("memory")
}

fn add(list: &mut TagList, tag: u64, mask: u64, id: u64) -> u32 {
    list.add(tag, mask, id, &[]).expect("room")
}

/// The `recv_wr_id` of the entry that a message with `tag` matches.
fn arrives(list: &mut TagList, tag: u64) -> Option<u64> {
    let handle = list.match_message(tag)?;
    list.finish(handle)
}

#[test]
fn the_earliest_of_equal_entries_wins() {
    let mut list = list(8);
    for id in 1..=3 {
        add(&mut list, 7, EXACT, id);
    }
    assert_eq!(arrives(&mut list, 8), None);
    for id in 1..=3 {
        assert_eq!(arrives(&mut list, 7), Some(id));
    }
    assert_eq!(arrives(&mut list, 7), None);
}

#[test]
fn masked_and_exact_entries_keep_their_common_order() {
    let mut list = list(8);
    add(&mut list, 0x10, 0xf0, 1);
    add(&mut list, 0x12, EXACT, 2);
    add(&mut list, 0, 0, 3);
    add(&mut list, 0x12, EXACT, 4);
    assert_eq!(arrives(&mut list, 0x12), Some(1));
    assert_eq!(arrives(&mut list, 0x12), Some(2));
    assert_eq!(arrives(&mut list, 0x12), Some(3));
    assert_eq!(arrives(&mut list, 0x12), Some(4));
    assert_eq!(arrives(&mut list, 0x12), None);
}

#[test]
fn an_entry_whose_tag_goes_beyond_its_mask_matches_nothing() {
    let mut list = list(4);
    let handle = add(&mut list, 0x13, 0xf0, 1);
    assert_eq!(arrives(&mut list, 0x13), None);
    assert_eq!(list.remove(handle), Removal::Removed);
}

#[test]
fn a_full_list_refuses_and_has_room_again_when_an_entry_is_gone() {
    let mut list = list(2);
    let first = add(&mut list, 1, EXACT, 1);
    add(&mut list, 2, EXACT, 2);
    assert!(list.is_full());
    assert_eq!(list.add(3, EXACT, 3, &[]), None);
    assert_eq!(list.remove(first), Removal::Removed);
    let again = add(&mut list, 3, EXACT, 3);
    assert_ne!(again, first, "handles come back late");
    assert_eq!(arrives(&mut list, 2), Some(2));
    assert!(!list.is_full());
}

#[test]
fn a_place_is_in_use_until_its_message_is_finished() {
    let mut list = list(1);
    add(&mut list, 1, EXACT, 1);
    let handle = list.match_message(1).expect("a match");
    assert_eq!(list.add(2, EXACT, 2, &[]), None);
    assert_eq!(list.finish(handle), Some(1));
    assert_eq!(list.finish(handle), None);
    add(&mut list, 2, EXACT, 2);
}

#[test]
fn removal_tells_whether_a_message_was_faster() {
    let mut list = list(4);
    let kept = add(&mut list, 1, EXACT, 1);
    assert_eq!(list.remove(kept), Removal::Removed);
    assert_eq!(list.remove(kept), Removal::TooLate, "removed before");
    assert_eq!(arrives(&mut list, 1), None);
    let taken = add(&mut list, 1, EXACT, 2);
    let by_message = list.match_message(1).expect("a match");
    assert_eq!(taken, by_message);
    assert_eq!(list.remove(taken), Removal::TooLate, "under way");
    assert_eq!(list.finish(taken), Some(2));
    assert_eq!(list.remove(taken), Removal::TooLate, "finished");
    assert_eq!(list.remove(taken + (1 << 16)), Removal::Unknown, "not given out yet");
    assert_eq!(list.remove(3), Removal::Unknown, "no such place");
}

#[test]
fn old_handles_stay_old_for_many_uses_of_their_place() {
    let mut list = list(1);
    let first = add(&mut list, 0, EXACT, 0);
    assert_eq!(list.remove(first), Removal::Removed);
    for id in 1..30_000 {
        let handle = add(&mut list, id, EXACT, id);
        assert_ne!(handle, first);
        assert_eq!(list.remove(first), Removal::TooLate);
        assert_eq!(list.remove(handle), Removal::Removed);
    }
}

#[test]
fn an_unfinished_message_gives_its_entry_back_at_its_place() {
    let mut list = list(8);
    for id in 1..=3 {
        add(&mut list, 7, EXACT, id);
    }
    let first = list.match_message(7).expect("a match");
    let second = list.match_message(7).expect("a match");
    add(&mut list, 7, EXACT, 4);
    assert_eq!(list.restore(second), Some(Restored::Listed));
    assert_eq!(list.restore(first), Some(Restored::Listed));
    assert_eq!(list.restore(first), None);
    for id in 1..=4 {
        assert_eq!(arrives(&mut list, 7), Some(id));
    }
}

#[test]
fn an_entry_comes_back_between_those_around_it() {
    let mut list = list(8);
    for id in 1..=4 {
        add(&mut list, 7, EXACT, id);
    }
    let [first, second] = [(); 2].map(|()| list.match_message(7).expect("a match"));
    assert_eq!(list.restore(first), Some(Restored::Listed));
    assert_eq!(list.restore(second), Some(Restored::Listed));
    for id in 1..=4 {
        assert_eq!(arrives(&mut list, 7), Some(id));
    }
}

#[test]
fn an_entry_whose_removal_was_refused_does_not_come_back() {
    let mut list = list(4);
    let handle = add(&mut list, 7, EXACT, 1);
    assert_eq!(list.match_message(7), Some(handle));
    assert_eq!(list.remove(handle), Removal::TooLate);
    assert_eq!(list.restore(handle), Some(Restored::MustComplete(1)));
    assert_eq!(arrives(&mut list, 7), None);
}

#[test]
fn entries_added_out_of_step_wait_until_software_is_in_step() {
    let mut list = list(8);
    add(&mut list, 1, EXACT, 1);
    assert_eq!(list.match_message(2), None);
    list.count_unexpected();
    assert!(!list.in_step());
    add(&mut list, 2, EXACT, 2);
    let removed = add(&mut list, 2, EXACT, 3);
    add(&mut list, 2, EXACT, 4);
    add(&mut list, 1, EXACT, 5);
    assert_eq!(arrives(&mut list, 2), None, "software may have meant it for the first message");
    list.count_unexpected();
    assert_eq!(arrives(&mut list, 1), Some(1), "what could be matched still can");
    assert_eq!(list.remove(removed), Removal::Removed, "waiting entries can be removed");
    list.sync(1);
    assert!(!list.in_step());
    assert_eq!(arrives(&mut list, 2), None);
    list.sync(2);
    assert!(list.in_step());
    assert_eq!(arrives(&mut list, 2), Some(2));
    assert_eq!(arrives(&mut list, 2), Some(4));
    assert_eq!(arrives(&mut list, 1), Some(5));
}

#[test]
fn reports_are_compared_modulo_two_to_the_sixteen() {
    let mut list = list(4);
    for n in 1..=70_000u32 {
        list.count_unexpected();
        assert!(!list.in_step());
        list.sync(n);
        assert!(list.in_step(), "{n}");
    }
    list.sync(70_000 - (1 << 16));
    assert!(list.in_step());
    list.sync(1);
    assert!(!list.in_step());
}

#[test]
fn a_list_without_reports_does_not_come_into_step_by_overflow() {
    let mut list = list(4);
    for _ in 0..1 << 16 {
        list.count_unexpected();
        assert!(!list.in_step());
    }
    add(&mut list, 1, EXACT, 1);
    assert_eq!(arrives(&mut list, 1), None);
    list.sync(1 << 16);
    assert_eq!(arrives(&mut list, 1), Some(1));
}

#[test]
fn an_unexpected_message_that_was_not_finished_is_not_waited_for() {
    let mut list = list(4);
    list.count_unexpected();
    add(&mut list, 1, EXACT, 1);
    list.discount_unexpected();
    assert!(list.in_step());
    assert_eq!(arrives(&mut list, 1), Some(1));
    list.count_unexpected();
    list.sync(1);
    assert!(list.in_step());
}

#[test]
fn a_taken_entry_describes_its_receive() {
    let mut list = list(4);
    let ranges = [(1, 10), (2, 20)].map(|(addr, length)| ibv_sge { addr, length, lkey: 9 });
    let handle = list.add(5, EXACT, 77, &ranges).expect("room");
    let mut receive = Receive::default();
    assert!(!list.describe(handle, &mut receive), "nothing has it yet");
    assert_eq!(list.match_message(5), Some(handle));
    assert!(list.describe(handle, &mut receive));
    assert_eq!((receive.wr_id, receive.sges.len()), (77, 2));
    assert_eq!((receive.sges[1].addr, receive.sges[1].length, receive.sges[1].lkey), (2, 20, 9));
}

#[test]
fn no_chain_grows_long_with_tags_that_differ_in_few_bits() {
    const N: u64 = 8192;
    for shift in [0, 16, 32, 48] {
        let mut list = list(N as usize);
        for id in 0..N {
            add(&mut list, id << shift, EXACT, id);
        }
        let longest = list.buckets.iter().map(|head| {
            let mut place = *head;
            std::iter::from_fn(|| {
                let entry = list.entries.get(index(place))?;
                place = entry.chain_next;
                Some(())
            })
            .count()
        });
        assert!(longest.max() < Some(12), "{shift}");
    }
}

/// The expected behaviour, by linear search.
#[derive(Default)]
struct Oracle {
    /// Handle, tag, mask, id, and whether the entry can be matched; in the order of addition.
    entries: Vec<(u32, u64, u64, u64, bool)>,
    taken: Vec<(u32, u64, u64, u64, bool)>,
    unexpected: u16,
    reported: u16,
}

impl Oracle {
    fn in_step(&self) -> bool {
        self.unexpected == self.reported
    }

    fn settle(&mut self) {
        if self.in_step() {
            self.entries.iter_mut().for_each(|e| e.4 = true);
        }
    }

    fn take(&mut self, tag: u64) -> Option<(u32, u64)> {
        let at = self.entries.iter().position(|e| e.4 && tag & e.2 == e.1)?;
        let entry = self.entries.remove(at);
        self.taken.push(entry);
        Some((entry.0, entry.3))
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}

#[test]
fn a_random_history_agrees_with_a_linear_search() {
    for seed in 1..=40u64 {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let capacity = 1 + random.below(200) as usize;
        let mut list = TagList::new(capacity, 1, seed).expect("memory");
        let mut oracle = Oracle::default();
        let masks = [EXACT, EXACT, 0xffff, 0xff00, 0, 3];
        // Few tags, so that many entries compete for a message; or many.
        let tags = [4, 50, 1 << 20][random.below(3) as usize];
        let mut id = 0;
        for step in 0..4000 {
            let what = format!("seed {seed}, step {step}");
            match random.below(12) {
                0..4 => {
                    let mask = masks[random.below(6) as usize];
                    let tag = random.below(tags) & mask;
                    id += 1;
                    let handle = list.add(tag, mask, id, &[]);
                    let used = oracle.entries.len() + oracle.taken.len();
                    assert_eq!(handle.is_some(), used < capacity, "{what}");
                    if let Some(handle) = handle {
                        let eligible = oracle.in_step();
                        oracle.entries.push((handle, tag, mask, id, eligible));
                    }
                }
                4..8 => {
                    let tag = random.below(tags);
                    let found = list.match_message(tag);
                    assert_eq!(found, oracle.take(tag).map(|(h, _)| h), "{what}");
                    if found.is_none() && random.below(4) == 0 {
                        list.count_unexpected();
                        oracle.unexpected = oracle.unexpected.wrapping_add(1);
                    }
                }
                8 if !oracle.entries.is_empty() => {
                    let at = random.below(oracle.entries.len() as u64) as usize;
                    let entry = oracle.entries.remove(at);
                    assert_eq!(list.remove(entry.0), Removal::Removed, "{what}");
                }
                9 if !oracle.taken.is_empty() => {
                    let at = random.below(oracle.taken.len() as u64) as usize;
                    let entry = oracle.taken.swap_remove(at);
                    assert_eq!(list.finish(entry.0), Some(entry.3), "{what}");
                    assert_eq!(list.remove(entry.0), Removal::TooLate, "{what}");
                }
                10 if !oracle.taken.is_empty() => {
                    let at = random.below(oracle.taken.len() as u64) as usize;
                    let entry = oracle.taken.swap_remove(at);
                    assert_eq!(list.restore(entry.0), Some(Restored::Listed), "{what}");
                    // Ids grow with each addition.
                    let before = oracle.entries.partition_point(|e| e.3 < entry.3);
                    oracle.entries.insert(before, entry);
                }
                11 => {
                    oracle.reported = match random.below(3) {
                        0 => oracle.unexpected.wrapping_sub(1),
                        _ => oracle.unexpected,
                    };
                    oracle.settle();
                    list.sync(u32::from(oracle.reported));
                }
                _ => {}
            }
            assert_eq!(list.in_step(), oracle.in_step(), "{what}");
            let used = oracle.entries.len() + oracle.taken.len();
            assert_eq!(list.is_full(), used == capacity, "{what}");
        }
        assert!(list.entries.len() <= capacity && list.masks.len() <= 5);
    }
}
