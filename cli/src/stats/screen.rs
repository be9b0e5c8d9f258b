//! Draws on a terminal and reads keys, by `termios(3)` and the escape sequences of
//! `console_codes(4)`.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{Write, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The terminal in raw mode. Dropping the value restores the terminal.
pub(crate) struct Screen {
    before: Termios,
    /// True after a signal that ends the command.
    is_ending: Arc<AtomicBool>,
}

/// Sequences that switch to the second page without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

impl Screen {
    /// Switches the terminal to raw mode.
    ///
    /// # Errors
    /// The standard input or output is no terminal.
    pub(crate) fn open() -> crate::Result<Self> {
        if !isatty(stdin()) || !isatty(stdout()) {
            return Err("the standard input or output is no terminal; `ferroverbs top --once` prints a table".into());
        }
        let fail = |e: rustix::io::Errno| format!("cannot set the terminal up: {e}");
        let before = tcgetattr(stdin()).map_err(fail)?;
        let is_ending = Arc::new(AtomicBool::new(false));
        for signal in
            [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, is_ending.clone())
                .map_err(|e| format!("cannot handle signals: {e}"))?;
        }
        let mut raw = before.clone();
        raw.make_raw();
        // The terminal still turns Ctrl-C into a signal.
        raw.local_modes |= rustix::termios::LocalModes::ISIG;
        tcsetattr(stdin(), OptionalActions::Flush, &raw).map_err(fail)?;
        let screen = Self { before, is_ending };
        screen.write(ENTER)?;
        Ok(screen)
    }

    fn write(&self, text: &str) -> crate::Result<()> {
        let mut out = stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|e| format!("cannot write to the terminal: {e}"))
    }

    /// Draws the lines that fit on the terminal, with the line `head` in reverse.
    pub(crate) fn draw(&self, lines: &[String], head: usize) -> crate::Result<()> {
        // Use 24 rows and 80 columns for a terminal of unknown size.
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
        let (rows, columns) =
            size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()));
        self.write(&frame(lines, head, rows, columns))
    }

    /// Waits for a key. Returns `None` after `wait`, and the key `q` after a signal that ends the
    /// command.
    pub(crate) fn key(&self, wait: Duration) -> crate::Result<Option<u8>> {
        let deadline = Instant::now() + wait;
        loop {
            if self.is_ending.load(Ordering::Relaxed) {
                return Ok(Some(b'q'));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let stdin = stdin();
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout)) {
                // SIGWINCH tells a new size of the terminal, so draw again.
                Err(rustix::io::Errno::INTR) => {
                    return Ok(self.is_ending.load(Ordering::Relaxed).then_some(b'q'));
                }
                Err(e) => return Err(format!("cannot wait for keys: {e}")),
                Ok(0) => return Ok(None),
                Ok(_) => {}
            }
            let mut byte = [0];
            return match rustix::io::read(&stdin, &mut byte) {
                // The terminal was closed.
                Ok(0) => Ok(Some(b'q')),
                Ok(_) => Ok(Some(byte[0])),
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => Err(format!("cannot read keys: {e}")),
            };
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.write(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &self.before);
    }
}

/// The bytes that draw a frame. Each line overwrites the old line, and the rest is cleared, so
/// nothing flickers.
fn frame(lines: &[String], head: usize, rows: usize, columns: usize) -> String {
    let mut frame = String::from("\x1b[H");
    for (number, line) in lines.iter().take(rows).enumerate() {
        if number > 0 {
            frame.push_str("\r\n");
        }
        // Clear before the text: after a line of full width, the sequence would clear the last
        // character.
        frame.push_str("\x1b[K");
        let cut: String = line.chars().take(columns).collect();
        if number == head {
            let width = columns;
            frame.push_str(&format!("\x1b[7m{cut:<width$}\x1b[0m"));
        } else {
            frame.push_str(&cut);
        }
    }
    frame.push_str("\x1b[J");
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_no_larger_than_the_terminal() {
        let lines: Vec<String> = ["abcdef", "gh", "ij"].map(String::from).into();
        assert_eq!(frame(&lines, 1, 2, 4), "\x1b[H\x1b[Kabcd\r\n\x1b[K\x1b[7mgh  \x1b[0m\x1b[J");
    }
}
