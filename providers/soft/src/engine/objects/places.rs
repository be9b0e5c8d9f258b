//! The places of rings that are looked at without a bell.
#![forbid(unsafe_code)]

/// Rings that are looked at by themselves; the rest ring a bell.
pub(crate) const HOT: usize = 16;

/// How many bells it takes until a ring becomes hot in place of another one. Cooling one down is a system call that
/// interrupts other processors: when many QPs are in use at once, nearly every message rings, and none of them shall pay for it.
pub(in crate::engine) const BELLS: u32 = 64;

/// The places of hot rings, and the rule by which another ring gets one. For the rings of QPs, and for those of datagrams.
#[derive(Debug)]
pub(in crate::engine) struct Places<T> {
    pub(in crate::engine) taken: Vec<T>,
    /// Next one to be given away.
    pub(in crate::engine) oldest: usize,
    /// Bells of cold rings since one was given away.
    pub(in crate::engine) bells: u32,
}

/// What becomes of a ring whose bell rang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Place<T> {
    /// It has a place now that nobody had.
    Free,
    /// It has the place of this one, which is to be cooled down.
    Of(T),
    /// It stays cold.
    None,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self { taken: vec![], oldest: 0, bells: 0 }
    }
}

impl<T> Places<T> {
    pub(in crate::engine) fn all(&self) -> &[T] {
        &self.taken
    }

    pub(in crate::engine) fn has_room(&self) -> bool {
        self.taken.len() < HOT
    }

    /// The bell of `ring`, which has no place, rang. When all places are taken, only one bell in [`BELLS`] has it take that of the ring
    /// that was hot for longest, and none where nobody polls (`polled`): a cold ring costs its sender a bell, which is little
    /// beside the wake-up that it costs then anyway.
    pub(in crate::engine) fn give(&mut self, ring: T, polled: bool) -> Place<T> {
        if self.has_room() {
            self.taken.push(ring);
            return Place::Free;
        }
        self.bells += u32::from(polled);
        if self.bells <= BELLS {
            return Place::None;
        }
        self.bells = 0;
        let at = self.oldest % HOT;
        self.oldest += 1;
        match self.taken.get_mut(at) {
            Some(place) => Place::Of(std::mem::replace(place, ring)),
            None => Place::None,
        }
    }

    /// Gives places back.
    pub(in crate::engine) fn retain(&mut self, keeps: impl FnMut(&T) -> bool) {
        self.taken.retain(keeps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_gets_the_place_of_the_oldest_after_many_bells_and_none_where_nobody_polls() {
        let mut places = Places::default();
        for ring in 0..HOT {
            assert_eq!(places.give(ring, ring % 2 == 0), Place::Free);
        }
        for _ in 0..2 * BELLS {
            assert_eq!(places.give(99, false), Place::None);
        }
        for oldest in [0, 1] {
            for _ in 0..BELLS {
                assert_eq!(places.give(100 + oldest, true), Place::None);
            }
            assert_eq!(places.give(100 + oldest, true), Place::Of(oldest));
        }
        assert_eq!(places.all()[..3], [100, 101, 2]);
        places.retain(|ring| *ring != 2);
        assert_eq!(places.give(7, false), Place::Free);
    }
}
