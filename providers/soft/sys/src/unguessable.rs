//! Numbers that nobody can guess, many at a time: a system call for each would cost as much as what it is for.

use super::errno::{check_len, retry};

/// Numbers at hand.
const AT_HAND: usize = 32;

/// Numbers of 16 bits that nobody can guess (`getrandom(2)`).
#[derive(Debug)]
pub struct Unguessable {
    words: [u16; AT_HAND],
    left: usize,
}

impl Default for Unguessable {
    fn default() -> Self {
        Self::new()
    }
}

impl Unguessable {
    /// None is drawn yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: [0; AT_HAND], left: 0 }
    }

    /// The next one. Where the kernel has none to give it is 0.
    pub fn draw(&mut self) -> u16 {
        if self.left == 0 {
            self.fill();
            self.left = AT_HAND;
        }
        self.left -= 1;
        std::mem::take(&mut self.words[self.left])
    }

    #[cold]
    fn fill(&mut self) {
        let (to, len) = (self.words.as_mut_ptr(), size_of_val(&self.words));
        // So few bytes come whole, or not at all (getrandom(2)).
        // SAFETY: `words` has room for as many bytes as are asked for, and any bytes are numbers.
        let _ = retry(|| check_len(unsafe { libc::getrandom(to.cast(), len, 0) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn hardly_any_comes_twice_and_none_is_kept() {
        let mut numbers = Unguessable::new();
        let seen: BTreeSet<u16> = (0..1000).map(|_| numbers.draw()).collect();
        assert!(seen.len() > 900, "{} of 1000 differ", seen.len());
        assert!(numbers.words[numbers.left..].iter().all(|word| *word == 0));
    }
}
