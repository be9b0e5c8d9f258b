//! What a person sees while something runs: one line that is replaced on a terminal, plain lines
//! otherwise. All of it goes to stderr, so that stdout holds results only.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// A reporter of steps.
#[derive(Debug)]
pub(crate) struct Progress {
    kind: Kind,
    start: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Terminal,
    Plain,
    Silent,
}

impl Progress {
    /// Writes to stderr, the way that suits it.
    pub(crate) fn new() -> Self {
        let kind = if std::io::stderr().is_terminal() { Kind::Terminal } else { Kind::Plain };
        Self { kind, start: Instant::now() }
    }

    /// Says nothing.
    pub(crate) fn silent() -> Self {
        Self { kind: Kind::Silent, start: Instant::now() }
    }

    /// A step begins.
    pub(crate) fn step(&self, text: &str) {
        let seconds = self.start.elapsed().as_secs();
        let mut err = std::io::stderr().lock();
        // Nothing sensible is left to do when stderr itself cannot be written.
        let _ = match self.kind {
            Kind::Terminal => write!(err, "\r\x1b[K[{seconds:4} s] {text}"),
            Kind::Plain => writeln!(err, "[{seconds:4} s] {text}"),
            Kind::Silent => Ok(()),
        };
        let _ = err.flush();
    }

    /// Removes the line of the last step from a terminal, so that other output can follow.
    pub(crate) fn clear(&self) {
        if self.kind == Kind::Terminal {
            eprint!("\r\x1b[K");
        }
    }

    /// A line that stays.
    pub(crate) fn note(&self, text: &str) {
        if self.kind != Kind::Silent {
            self.clear();
            eprintln!("{text}");
        }
    }
}
