//! Signals as things to read, so that they are passed on to those who are meant.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};

/// What is passed on, and the ends of children.
const TAKEN: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCHLD,
];

/// Those of this process, and of its children that take none of their own: who reads gets its own.
#[derive(Debug)]
pub(super) struct Signals(SignalFd);

/// One that came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) signal: Signal,
    /// A terminal sent it, to all processes that it is the terminal of.
    pub(super) of_terminal: bool,
}

impl Signals {
    /// From here on they come by this.
    pub(super) fn take() -> crate::Result<Self> {
        let set: SigSet = TAKEN.into_iter().collect();
        let taken =
            set.thread_block().and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC));
        taken.map(Self).map_err(|e| format!("cannot take signals: {e}"))
    }

    /// The next, when it comes.
    pub(super) fn wait(&self) -> crate::Result<Arrived> {
        loop {
            match self.0.read_signal() {
                Ok(Some(info)) => {
                    let number = i32::try_from(info.ssi_signo).unwrap_or(0);
                    if let Ok(signal) = Signal::try_from(number) {
                        // SI_KERNEL of <asm-generic/siginfo.h>.
                        return Ok(Arrived { signal, of_terminal: info.ssi_code == 0x80 });
                    }
                }
                Ok(None) | Err(nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(format!("cannot read signals: {e}")),
            }
        }
    }

    /// For a child before it becomes a program: they do again what they did.
    pub(super) fn give_back() -> crate::Result<()> {
        let set: SigSet = TAKEN.into_iter().collect();
        set.thread_unblock().map_err(|e| format!("cannot give signals back: {e}"))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
