//! `ferroverbs cluster`: runs a command in several virtual hosts on this machine.
//!
//! A host is a network namespace with a virtual cable to a switch. A host also has a host name, a
//! mount namespace and a fabric folder, so processes of two hosts reach each other by RoCE v2 only.
//!
//! The command has three kinds of processes. The first process forwards signals (this file).
//! Process 1 of a new PID namespace makes the switch; the kernel ends all other processes when
//! process 1 ends (`switch`). One process keeps each host (`host`).

mod environment;
mod host;
mod lines;
mod namespaces;
mod network;
mod progress;
mod shell;
mod signals;
mod switch;

pub(crate) use shell::{Args as ShellArgs, enter_host};

use crate::run;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use signals::Signals;
use std::path::Path;
use std::process::ExitCode;

/// The arguments of `ferroverbs cluster`.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// The number of hosts, at most 250: host1, host2 ...
    #[arg(value_name = "HOSTS", value_parser = clap::value_parser!(u8).range(1..=250))]
    hosts: u8,
    /// Run the command in the first host only; `ssh hostN` and MPI launchers reach the other hosts.
    /// This is the default for mpirun and similar launchers
    #[arg(short = '1', long, conflicts_with = "each")]
    first: bool,
    /// Run the command in each host, also an MPI launcher
    #[arg(long)]
    each: bool,
    /// If the command fails in a host, let the other hosts go on
    #[arg(short, long)]
    keep_going: bool,
    /// Do not add the name of the host to each line of output
    #[arg(long)]
    no_prefix: bool,
    #[command(flatten)]
    cable: network::Cable,
    #[command(flatten)]
    run: run::Args,
}

impl Args {
    /// True if the command runs in this host.
    fn runs_in(&self, host: u8) -> bool {
        host == 1 || !self.only_first()
    }

    fn only_first(&self) -> bool {
        self.first
            || (!self.each && self.run.command.first().is_some_and(|c| is_launcher(c.as_ref())))
    }

    /// The numbers of the hosts.
    fn numbers(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.hosts
    }
}

/// True for a launcher, which starts processes in a list of hosts.
fn is_launcher(program: &Path) -> bool {
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.split('.').next().unwrap_or_default();
    matches!(name, "mpirun" | "mpiexec" | "orterun" | "prterun" | "oshrun" | "shmemrun")
}

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

/// The exit status that a shell would return; `None` for a running process.
fn exit_status(status: WaitStatus) -> Option<u8> {
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

    #[test]
    fn launchers_of_mpi_run_in_the_first_host_only() {
        for program in ["mpirun", "/usr/bin/mpiexec", "mpirun.openmpi", "mpiexec.hydra", "oshrun"] {
            assert!(is_launcher(Path::new(program)), "{program}");
        }
        for program in ["ib_send_bw", "mpi", "/mpirun/x", "mpirunner", ""] {
            assert!(!is_launcher(Path::new(program)), "{program}");
        }
    }

    #[test]
    fn a_signal_gives_the_exit_status_of_a_shell() {
        let pid = Pid::from_raw(7);
        assert_eq!(exit_status(WaitStatus::Exited(pid, 3)), Some(3));
        assert_eq!(exit_status(WaitStatus::Signaled(pid, Signal::SIGTERM, false)), Some(143));
        assert_eq!(exit_status(WaitStatus::StillAlive), None);
    }
}
