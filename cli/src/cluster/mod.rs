//! `ferroverbs cluster`: runs a command in several virtual hosts on this machine.
//!
//! A host is a network namespace with a virtual cable to a switch. A host also has a host name, a
//! mount namespace and a fabric folder, so processes of two hosts reach each other by RoCE v2 only.
//!
//! The command has three kinds of processes. The first process forwards signals (this file).
//! Process 1 of a new PID namespace makes the switch; the kernel ends all other processes when
//! process 1 ends (`switch`). One process keeps each host (`host`).

mod args;
mod environment;
mod host;
mod lines;
mod namespaces;
mod network;
mod progress;
mod shell;
mod signals;
mod switch;

pub(crate) use args::Args;
pub(crate) use shell::{Args as ShellArgs, enter_host};

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use signals::{Signals, exit_status};
use std::process::ExitCode;

/// Runs `ferroverbs cluster`. The exit status is the first status of a host that is not 0.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    network::check_tools(&args.cable)?;
    let limits = namespaces::NamespaceLimits::read(args.hosts);
    namespaces::enter_namespaces(&limits)?;
    let signals = Signals::block()?;
    // The kernel closes this end of the pipe when this process ends.
    let (alive, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|e| format!("cannot make a pipe: {e}"))?;
    // SAFETY: this process has one thread, so the child inherits no lock of another thread.
    match unsafe { fork() }.map_err(|e| format!("cannot start a process: {e}"))? {
        ForkResult::Child => {
            drop(ours);
            switch::run_switch(args, &limits, &signals, alive)
        }
        ForkResult::Parent { child } => {
            drop(alive);
            forward_signals(child, &signals).map(ExitCode::from)
        }
    }
}

/// Forwards signals until the child ends. Returns its exit status.
fn forward_signals(child: Pid, signals: &Signals) -> crate::Result<u8> {
    loop {
        let arrived = signals.wait()?;
        if arrived.signal != Signal::SIGCHLD {
            // The terminal has sent the signal to the child, too.
            if !arrived.is_from_terminal {
                let _ = nix::sys::signal::kill(child, arrived.signal);
            }
            continue;
        }
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(status) => {
                if let Some(status) = exit_status(status) {
                    return Ok(status);
                }
            }
            Err(e) => return Err(format!("lost the hosts: {e}")),
        }
    }
}
