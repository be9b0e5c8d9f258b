//! When the kernel is to merge datagrams (UDP_GRO). Where many come, that is what makes them cheap; each one that comes alone it costs two tenths of a
//! microsecond, because the kernel looks whether it was merged, at a part of it that the sender's processor wrote last.

/// Whether datagrams are merged, and what came lately.
#[derive(Debug)]
pub(crate) struct Merging {
    /// The kernel can, and is allowed to.
    pub(crate) may: bool,
    is_on: bool,
    /// Datagrams that came alone, since the last that did not.
    alone: u32,
}

/// So many come alone before nothing is merged any more: what a change costs is little beside that.
const ENOUGH: u32 = 64;

impl Merging {
    /// It is on, if it may be.
    pub(crate) const fn new(may: bool) -> Self {
        Self { may, is_on: may, alone: 0 }
    }

    /// A call took `count` datagrams, and `is_merged` is whether one of several packets was among them. Says whether merging is to be switched on or off.
    pub(crate) fn saw(&mut self, count: usize, is_merged: impl FnOnce() -> bool) -> Option<bool> {
        let is_alone = match (self.may, self.is_on, count) {
            (false, ..) | (_, _, 0) => return None,
            (_, true, 1) => !is_merged(),
            (_, false, 1) => return None,
            _ => false,
        };
        self.alone = if is_alone { self.alone + 1 } else { 0 };
        let on = self.alone < ENOUGH;
        let changes = on != self.is_on;
        if changes {
            (self.is_on, self.alone) = (on, 0);
        }
        changes.then_some(on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_after_many_that_came_alone_and_begins_with_two_that_did_not() {
        let mut merging = Merging::new(true);
        let alone = |merging: &mut Merging| merging.saw(1, || false);
        for _ in 0..3 {
            assert!((1..ENOUGH).all(|_| alone(&mut merging).is_none()));
            assert_eq!(merging.saw(1, || true), None, "it is counted anew");
        }
        assert!((1..ENOUGH).all(|_| alone(&mut merging).is_none()));
        assert_eq!(merging.saw(0, || false), None, "nothing came");
        assert_eq!(alone(&mut merging), Some(false));
        assert!((0..1000).all(|_| alone(&mut merging).is_none()));
        assert_eq!(merging.saw(2, || false), Some(true));
        assert_eq!(merging.saw(2, || false), None);
        let mut never = Merging::new(false);
        assert!((0..1000).all(|n| never.saw(n % 3, || false).is_none()));
    }
}
