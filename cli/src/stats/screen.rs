//! A terminal that is drawn again and again, and keys from it: `termios(3)`, and the sequences that `console_codes(4)` and every emulator know.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{Write, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The terminal, which is as it was when this is dropped.
pub(crate) struct Screen {
    before: Termios,
    /// Somebody wants us to end.
    ends: Arc<AtomicBool>,
}

/// The second page, no cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

impl Screen {
    /// Takes the terminal over.
    pub(crate) fn take() -> crate::Result<Self> {
        if !isatty(stdin()) || !isatty(stdout()) {
            return Err("this is no terminal; `ferroverbs top --once` prints a table".into());
        }
        let fail = |e: rustix::io::Errno| format!("cannot set the terminal up: {e}");
        let before = tcgetattr(stdin()).map_err(fail)?;
        let ends = Arc::new(AtomicBool::new(false));
        for signal in
            [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, ends.clone())
                .map_err(|e| format!("cannot handle signals: {e}"))?;
        }
        let mut raw = before.clone();
        raw.make_raw();
        // What ends other programs ends this one.
        raw.local_modes |= rustix::termios::LocalModes::ISIG;
        tcsetattr(stdin(), OptionalActions::Flush, &raw).map_err(fail)?;
        let screen = Self { before, ends };
        screen.write(ENTER)?;
        Ok(screen)
    }

    fn write(&self, text: &str) -> crate::Result<()> {
        let mut out = stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|e| format!("cannot write to the terminal: {e}"))
    }

    /// Shows these lines, as far as there is room; the one at `head` in reverse.
    pub(crate) fn draw(&self, lines: &[String], head: usize) -> crate::Result<()> {
        // One that does not know its size has what terminals always had.
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
        let (rows, columns) =
            size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()));
        self.write(&frame(lines, head, rows, columns))
    }

    /// A key, if one is pressed within this time. `None` is nothing; a signal that ends us is the key `q`.
    pub(crate) fn key(&self, wait: Duration) -> crate::Result<Option<u8>> {
        let deadline = Instant::now() + wait;
        loop {
            if self.ends.load(Ordering::Relaxed) {
                return Ok(Some(b'q'));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let stdin = stdin();
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout)) {
                // A signal: that of a terminal which has another size now wants a new picture.
                Err(rustix::io::Errno::INTR) => {
                    return Ok(self.ends.load(Ordering::Relaxed).then_some(b'q'));
                }
                Err(e) => return Err(format!("cannot wait for keys: {e}")),
                Ok(0) => return Ok(None),
                Ok(_) => {}
            }
            let mut byte = [0];
            return match rustix::io::read(&stdin, &mut byte) {
                // The terminal is gone.
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

/// All that a picture takes: each line is written over what was there, and the rest is cleared, so that nothing flickers.
fn frame(lines: &[String], head: usize, rows: usize, columns: usize) -> String {
    let mut frame = String::from("\x1b[H");
    for (number, line) in lines.iter().take(rows).enumerate() {
        if number > 0 {
            frame.push_str("\r\n");
        }
        // Before it: behind a line that is as long as the terminal is wide this would clear its last character.
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
    fn a_picture_is_no_larger_than_the_terminal() {
        let lines: Vec<String> = ["abcdef", "gh", "ij"].map(String::from).into();
        assert_eq!(frame(&lines, 1, 2, 4), "\x1b[H\x1b[Kabcd\r\n\x1b[K\x1b[7mgh  \x1b[0m\x1b[J");
    }
}
