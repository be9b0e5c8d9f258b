//! Adds the name of a host to each line of its output.

use std::os::fd::AsFd;

/// The longest line. A longer line is split.
const LONGEST: usize = 65536;

/// Splits output into lines and adds a prefix to each line.
#[derive(Debug)]
pub(super) struct Lines {
    prefix: Vec<u8>,
    /// The begin of a line that is not complete.
    begun: Vec<u8>,
}

impl Lines {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.as_bytes().to_vec(), begun: Vec::new() }
    }

    /// Adds output. Returns the lines that are complete now.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut whole = Vec::new();
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= LONGEST {
                whole.extend(self.take_rest());
            }
        }
        whole
    }

    /// Returns the incomplete line, with an end of line.
    pub(super) fn take_rest(&mut self) -> Vec<u8> {
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

/// Writes all bytes. An error is ignored: the command goes on if the reader of its output ends.
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
    fn a_line_is_returned_when_it_is_complete() {
        let mut lines = Lines::new("[h] ");
        assert_eq!(lines.add(b"one\ntw"), b"[h] one\n");
        assert_eq!(lines.add(b"o\n\n"), b"[h] two\n[h] \n");
        assert_eq!(lines.add(b"end"), b"");
        assert_eq!(lines.take_rest(), b"[h] end\n");
        assert_eq!(lines.take_rest(), b"");
    }

    #[test]
    fn a_line_without_an_end_is_split() {
        let mut lines = Lines::new("");
        let out = lines.add(&vec![b'x'; LONGEST + 5]);
        assert!(out.len() > LONGEST && lines.take_rest().is_empty());
    }
}
