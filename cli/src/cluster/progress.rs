//! Shows the progress of making hosts in a line on the terminal. The line is erased when all hosts
//! are made.

use std::io::{IsTerminal, Write};

/// The largest number of hosts without a progress line, because so few hosts are made at once.
const FEW: u8 = 8;

/// A line of the terminal.
#[derive(Debug)]
pub(super) struct Progress<T: Write = std::io::Stderr> {
    /// `None` without a terminal.
    to: Option<T>,
    hosts: u8,
    begun: bool,
}

impl Progress {
    /// Progress on the standard error, for `hosts` hosts.
    pub(super) fn of(hosts: u8) -> Self {
        let stderr = std::io::stderr();
        let watched = stderr.is_terminal();
        Self::to(stderr, watched, hosts)
    }
}

impl<T: Write> Progress<T> {
    fn to(to: T, watched: bool, hosts: u8) -> Self {
        Self { to: (watched && hosts > FEW).then_some(to), hosts, begun: false }
    }

    /// Shows that `number` hosts are made.
    pub(super) fn made(&mut self, number: u8) {
        self.say(&format!("{number} of {} hosts are made", self.hosts));
    }

    /// Shows a text.
    pub(super) fn say(&mut self, what: &str) {
        if let Some(to) = &mut self.to {
            self.begun = true;
            let _ = write!(to, "\r\x1b[Kferroverbs cluster: {what}");
            let _ = to.flush();
        }
    }

    /// Ends the output of this process, for a child that does not own the line.
    pub(super) fn silence(&mut self) {
        self.to = None;
    }
}

impl<T: Write> Drop for Progress<T> {
    fn drop(&mut self) {
        if let Some(to) = self.to.as_mut().filter(|_| self.begun) {
            let _ = write!(to, "\r\x1b[K");
            let _ = to.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(watched: bool, hosts: u8) -> String {
        let mut text = Vec::new();
        let mut progress = Progress::to(&mut text, watched, hosts);
        (1..=hosts).for_each(|number| progress.made(number));
        progress.say("plugging in");
        drop(progress);
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn a_terminal_shows_each_host_and_an_empty_line_at_the_end() {
        let shown = shown(true, 250);
        let lines: Vec<_> = shown.split('\r').collect();
        assert_eq!(lines[1], "\x1b[Kferroverbs cluster: 1 of 250 hosts are made");
        assert_eq!(lines[250], "\x1b[Kferroverbs cluster: 250 of 250 hosts are made");
        assert_eq!(lines[251..], ["\x1b[Kferroverbs cluster: plugging in", "\x1b[K"]);
    }

    #[test]
    fn a_pipe_and_a_small_cluster_have_no_progress_line() {
        assert_eq!(shown(false, 250), "");
        assert_eq!(shown(true, FEW), "");
        assert_ne!(shown(true, FEW + 1), "");
    }
}
