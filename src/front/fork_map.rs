//! A map of the address space: the number of registrations of each address range.
//!
//! Memory that the device may write must not be copied on a fork, so the first registration of a
//! range marks the range with `madvise(MADV_DONTFORK)`, and the last deregistration unmarks it
//! (`ibv_fork_init(3)`).
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

/// Counts per interval. Each key is where an interval begins, which reaches to the next key;
/// neighbours have different counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForkMap {
    counts: BTreeMap<usize, u32>,
}

impl ForkMap {
    /// Nothing in use.
    pub(crate) fn new() -> Self {
        Self { counts: BTreeMap::from([(0, 0)]) }
    }

    /// Increments the count of `range`. `mark` is called for each part that was unused before; when
    /// it fails, `unmark` is called for the parts already marked, and nothing has changed.
    pub(crate) fn add<E>(
        &mut self,
        range: Range<usize>,
        mut mark: impl FnMut(Range<usize>) -> Result<(), E>,
        mut unmark: impl FnMut(Range<usize>),
    ) -> Result<(), E> {
        let fresh = self.parts(&range, 0);
        for (index, part) in fresh.iter().enumerate() {
            if let Err(error) = mark(part.clone()) {
                fresh.iter().take(index).rev().for_each(|done| unmark(done.clone()));
                return Err(error);
            }
        }
        self.change(&range, |count| count.saturating_add(1));
        Ok(())
    }

    /// Decrements the count of `range`; `unmark` is called for each part that is unused now. Unused
    /// parts stay unused.
    pub(crate) fn remove(&mut self, range: Range<usize>, mut unmark: impl FnMut(Range<usize>)) {
        let last = self.parts(&range, 1);
        self.change(&range, |count| count.saturating_sub(1));
        last.into_iter().for_each(&mut unmark);
    }

    /// The parts of `range` with this count, in order.
    fn parts(&self, range: &Range<usize>, wanted: u32) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let mut start = range.start;
        let mut count = self.count_at(range.start);
        for (&next, &next_count) in self.counts.range(range.start.saturating_add(1)..range.end) {
            if count == wanted {
                parts.push(start..next);
            }
            (start, count) = (next, next_count);
        }
        if count == wanted && start < range.end {
            parts.push(start..range.end);
        }
        parts
    }

    fn count_at(&self, address: usize) -> u32 {
        self.counts.range(..=address).next_back().map_or(0, |(_, &count)| count)
    }

    fn change(&mut self, range: &Range<usize>, with: impl Fn(u32) -> u32) {
        if range.is_empty() {
            return;
        }
        for edge in [range.start, range.end] {
            let count = self.count_at(edge);
            self.counts.entry(edge).or_insert(count);
        }
        for (_, count) in self.counts.range_mut(range.clone()) {
            *count = with(*count);
        }
        // Equal neighbours can only have appeared at the two edges.
        for edge in [range.start, range.end] {
            if edge != 0 && self.counts.get(&edge) == Some(&self.count_at(edge - 1)) {
                self.counts.remove(&edge);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One count per address, the obvious way.
    struct CountPerAddress([u32; 64]);

    impl CountPerAddress {
        fn runs(&self, range: Range<usize>, wanted: u32) -> Vec<Range<usize>> {
            let mut runs: Vec<Range<usize>> = Vec::new();
            for address in range.filter(|&address| self.0[address] == wanted) {
                match runs.last_mut() {
                    Some(run) if run.end == address => run.end += 1,
                    _ => runs.push(address..address + 1),
                }
            }
            runs
        }
    }

    fn merged(parts: Vec<Range<usize>>) -> Vec<Range<usize>> {
        let mut merged: Vec<Range<usize>> = Vec::new();
        for part in parts {
            match merged.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => merged.push(part),
            }
        }
        merged
    }

    #[test]
    fn random_ranges_are_counted_as_one_count_per_address_would() {
        let seed =
            std::env::var("FV_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1_u64);
        println!("FV_SEED={seed}");
        let mut random = seed | 1;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random % below as u64).unwrap_or(0)
        };
        let mut map = ForkMap::new();
        let mut naive = CountPerAddress([0; 64]);
        let mut live: Vec<Range<usize>> = Vec::new();
        for _ in 0..5000 {
            let start = next(63);
            let range = start..start + 1 + next(63 - start);
            let mut seen = Vec::new();
            match next(5) {
                0 if !live.is_empty() => {
                    let range = live.swap_remove(next(live.len()));
                    map.remove(range.clone(), |part| seen.push(part));
                    assert_eq!(merged(seen), naive.runs(range.clone(), 1));
                    range.for_each(|address| naive.0[address] -= 1);
                }
                1 => {
                    // A mark that fails part way leaves no trace.
                    let before = map.clone();
                    let fresh = naive.runs(range.clone(), 0);
                    let allowed = next(3);
                    let mut marked: Vec<Range<usize>> = Vec::new();
                    let mut unmarked: Vec<Range<usize>> = Vec::new();
                    let result = map.add(
                        range.clone(),
                        |part| {
                            if marked.len() == allowed {
                                return Err(());
                            }
                            marked.push(part);
                            Ok(())
                        },
                        |part| unmarked.push(part),
                    );
                    if result.is_err() {
                        unmarked.reverse();
                        assert_eq!((marked, map.clone()), (unmarked, before));
                    } else {
                        assert_eq!(merged(marked), fresh);
                        live.push(range.clone());
                        range.for_each(|address| naive.0[address] += 1);
                    }
                }
                _ => {
                    let fresh = naive.runs(range.clone(), 0);
                    let added: Result<(), ()> = map.add(
                        range.clone(),
                        |part| {
                            seen.push(part);
                            Ok(())
                        },
                        |_| panic!("nothing failed"),
                    );
                    assert_eq!((added, merged(seen)), (Ok(()), fresh));
                    live.push(range.clone());
                    range.for_each(|address| naive.0[address] += 1);
                }
            }
            for (address, &count) in naive.0.iter().enumerate() {
                assert_eq!(map.count_at(address), count, "address {address}");
            }
        }
        for range in live {
            map.remove(range, |_| {});
        }
        assert_eq!(map, ForkMap::new());
    }

    #[test]
    fn a_range_never_added_may_be_removed() {
        let mut map = ForkMap::new();
        map.remove(4096..8192, |part| panic!("{part:?} was not in use"));
        assert_eq!(map, ForkMap::new());
    }
}
