//! Reads signals from a descriptor, so that a process can forward them.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::WaitStatus;
use std::os::fd::{AsFd, BorrowedFd};

/// The signals to forward, and SIGCHLD.
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

/// The blocked signals of this process. After a fork, a read returns the signals of the reading
/// process.
#[derive(Debug)]
pub(super) struct Signals(SignalFd);

/// A signal that was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedSignal {
    pub(super) signal: Signal,
    /// True if the terminal sent the signal, to all processes of its foreground group.
    pub(super) is_from_terminal: bool,
}

impl Signals {
    /// Blocks the signals of this process. [`Signals::wait`] returns them from now on.
    pub(super) fn block() -> crate::Result<Self> {
        let set: SigSet = TAKEN.into_iter().collect();
        let taken =
            set.thread_block().and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC));
        taken.map(Self).map_err(|e| format!("cannot block signals: {e}"))
    }

    /// Waits for the next signal.
    pub(super) fn wait(&self) -> crate::Result<ReceivedSignal> {
        loop {
            match self.0.read_signal() {
                Ok(Some(info)) => {
                    let number = i32::try_from(info.ssi_signo).unwrap_or(0);
                    if let Ok(signal) = Signal::try_from(number) {
                        // SI_KERNEL of <asm-generic/siginfo.h>.
                        return Ok(ReceivedSignal {
                            signal,
                            is_from_terminal: info.ssi_code == 0x80,
                        });
                    }
                }
                Ok(None) | Err(nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(format!("cannot read signals: {e}")),
            }
        }
    }

    /// Unblocks the signals in a child, before it executes a program.
    pub(super) fn unblock() -> crate::Result<()> {
        let set: SigSet = TAKEN.into_iter().collect();
        set.thread_unblock().map_err(|e| format!("cannot unblock signals: {e}"))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The exit status that a shell would return; `None` for a running process.
pub(super) fn exit_status(status: WaitStatus) -> Option<u8> {
    match status {
        WaitStatus::Exited(_, code) => Some(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
        WaitStatus::Signaled(_, signal, _) => {
            Some(u8::try_from(128 + signal as i32).unwrap_or(u8::MAX))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::Pid;

    #[test]
    fn a_signal_gives_the_exit_status_of_a_shell() {
        let pid = Pid::from_raw(7);
        assert_eq!(exit_status(WaitStatus::Exited(pid, 3)), Some(3));
        assert_eq!(exit_status(WaitStatus::Signaled(pid, Signal::SIGTERM, false)), Some(143));
        assert_eq!(exit_status(WaitStatus::StillAlive), None);
    }
}
