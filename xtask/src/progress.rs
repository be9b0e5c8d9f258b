//! Progress output. A terminal shows one line, which is replaced, with a running clock; any further
//! output gets a plain line for each step. Progress goes to stderr, so stdout holds results only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The line at the bottom of the terminal, shared by all reporters.
static LINE: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// A reporter of steps.
#[derive(Debug)]
pub struct Progress {
    kind: Kind,
    start: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Terminal,
    Plain,
    Silent,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// A reporter on stderr, with the style of its output.
    pub fn new() -> Self {
        let kind = if std::io::stderr().is_terminal() { Kind::Terminal } else { Kind::Plain };
        Self { kind, start: Instant::now() }
    }

    /// Says nothing.
    pub fn silent() -> Self {
        Self { kind: Kind::Silent, start: Instant::now() }
    }

    /// A step begins.
    pub fn step(&self, text: &str) {
        match self.kind {
            Kind::Terminal => {
                let mut line = line();
                let bar = line.get_or_insert_with(|| self.bar());
                bar.set_message(text.to_owned());
                bar.tick();
            }
            Kind::Plain => eprintln!("[{:4} s] {text}", self.start.elapsed().as_secs()),
            Kind::Silent => {}
        }
    }

    /// Removes the line of the last step from a terminal before other output.
    pub fn clear(&self) {
        if let Some(bar) = line().take() {
            bar.finish_and_clear();
        }
    }

    /// A line that stays.
    pub fn note(&self, text: &str) {
        if self.kind != Kind::Silent {
            match &*line() {
                Some(bar) => bar.suspend(|| eprintln!("{text}")),
                None => eprintln!("{text}"),
            }
        }
    }

    fn bar(&self) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
            .with_elapsed(self.start.elapsed());
        // Too long a text is cut: a second line would not be replaced.
        if let Ok(style) = ProgressStyle::with_template("{spinner} [{elapsed:>4}] {wide_msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        bar
    }
}

fn line() -> MutexGuard<'static, Option<ProgressBar>> {
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}
