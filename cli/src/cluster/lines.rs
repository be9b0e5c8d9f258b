//! Output of a host: whole lines, each with the host's name in front.

use std::os::fd::AsFd;

/// A line that is longer goes in pieces.
const LONGEST: usize = 65536;

/// Makes lines of what comes.
#[derive(Debug)]
pub(super) struct Lines {
    prefix: Vec<u8>,
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
}

impl Lines {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.as_bytes().to_vec(), begun: Vec::new() }
    }

    /// Takes bytes; the lines that end with them.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut whole = Vec::new();
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= LONGEST {
                whole.extend(self.rest());
            }
        }
        whole
    }

    /// What there is of a line whose end will not come.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        if self.begun.is_empty() {
            return Vec::new();
        }
        let mut line = self.prefix.clone();
        line.append(&mut self.begun);
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        line
    }
}

/// Writes all of it; nobody may read any more, which is no reason to stop.
pub(super) fn write(to: impl AsFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match rustix::io::write(&to, bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_when_it_is_whole() {
        let mut lines = Lines::new("[h] ");
        assert_eq!(lines.take(b"one\ntw"), b"[h] one\n");
        assert_eq!(lines.take(b"o\n\n"), b"[h] two\n[h] \n");
        assert_eq!(lines.take(b"end"), b"");
        assert_eq!(lines.rest(), b"[h] end\n");
        assert_eq!(lines.rest(), b"");
    }

    #[test]
    fn a_line_without_an_end_does_not_grow_for_ever() {
        let mut lines = Lines::new("");
        let out = lines.take(&vec![b'x'; LONGEST + 5]);
        assert!(out.len() > LONGEST && lines.rest().is_empty());
    }
}
