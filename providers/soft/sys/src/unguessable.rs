//! Numbers that nobody can guess, some at a time: a system call for each would cost as much as what it is for.

use super::process::random;

/// Numbers of 16 bits that nobody can guess.
#[derive(Debug, Default)]
pub struct Unguessable {
    /// Those at hand, the next one lowest; what was drawn is not kept.
    bits: u64,
    left: u32,
}

impl Unguessable {
    /// None is drawn yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { bits: 0, left: 0 }
    }

    /// The next one. Where the kernel has none to give it is 0.
    pub fn draw(&mut self) -> u16 {
        if self.left == 0 {
            (self.bits, self.left) = (random().unwrap_or(0), u64::BITS / u16::BITS);
        }
        let next = self.bits as u16;
        (self.bits, self.left) = (self.bits >> u16::BITS, self.left - 1);
        next
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
        numbers.draw();
        assert_eq!(numbers.bits >> (numbers.left * u16::BITS), 0);
    }
}
