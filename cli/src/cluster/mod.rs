//! `ferroverbs cluster`: several hosts in a box, and a command in them. A host is a network namespace with a cable to a switch, and a name, a mount
//! namespace and a fabric folder of its own; so its processes meet those of another host by the wire only.
//!
//! Three kinds of processes of ours: who was started (this file); process 1 of a process namespace, which is the switch and whose end is the end
//! of all others, by the kernel (`switch`); and one that keeps each host (`host`).

mod apart;
mod environment;
mod host;
mod lines;
mod network;
mod progress;
mod shell;
mod signals;
mod switch;

pub(crate) use shell::{Args as Shell, main as shell};

use crate::run;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use signals::Signals;
use std::path::Path;
use std::process::ExitCode;

/// What the command line says.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// How many hosts, at most 250: host1, host2 ...
    #[arg(value_name = "HOSTS", value_parser = clap::value_parser!(u8).range(1..=250))]
    hosts: u8,
    /// Run the command in the first host only, where `ssh hostN` and MPI's launchers reach the others; mpirun and its like are run so anyway
    #[arg(short = '1', long, conflicts_with = "each")]
    first: bool,
    /// Run the command in each host, whatever it is called
    #[arg(long)]
    each: bool,
    /// When the command fails in one host, let it go on in the others
    #[arg(short, long)]
    keep_going: bool,
    /// Do not put the host's name in front of each line of output
    #[arg(long)]
    no_prefix: bool,
    #[command(flatten)]
    cable: network::Cable,
    #[command(flatten)]
    run: run::Args,
}

impl Args {
    /// Whether the command runs in this host.
    fn runs_in(&self, host: u8) -> bool {
        host == 1 || !self.only_first()
    }

    fn only_first(&self) -> bool {
        self.first || (!self.each && self.run.command.first().is_some_and(|c| launches(c.as_ref())))
    }

    /// The hosts' numbers.
    fn numbers(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.hosts
    }
}

/// Whether a program starts others in hosts that it knows from a list.
fn launches(program: &Path) -> bool {
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.split('.').next().unwrap_or_default();
    matches!(name, "mpirun" | "mpiexec" | "orterun" | "prterun" | "oshrun" | "shmemrun")
}

/// Makes the hosts, runs the command, and has its exit status: of several the first that is not 0.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    network::look_for_tools(&args.cable)?;
    let limits = apart::Limits::read(args.hosts);
    apart::set_apart(&limits)?;
    let signals = Signals::take()?;
    // Closed when this process ends.
    let (alive, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|e| format!("cannot make a pipe: {e}"))?;
    // SAFETY: this process has one thread, so that no lock is held by another in the child.
    match unsafe { fork() }.map_err(|e| format!("cannot start a process: {e}"))? {
        ForkResult::Child => {
            drop(ours);
            switch::main(args, &limits, &signals, alive)
        }
        ForkResult::Parent { child } => {
            drop(alive);
            follow(child, &signals).map(ExitCode::from)
        }
    }
}

/// Passes signals on until the child has ended; its exit status.
fn follow(child: Pid, signals: &Signals) -> crate::Result<u8> {
    loop {
        let arrived = signals.wait()?;
        if arrived.signal != Signal::SIGCHLD {
            // A terminal has told it already.
            if !arrived.of_terminal {
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

/// As a shell has it; none of a process that goes on.
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
            assert!(launches(Path::new(program)), "{program}");
        }
        for program in ["ib_send_bw", "mpi", "/mpirun/x", "mpirunner", ""] {
            assert!(!launches(Path::new(program)), "{program}");
        }
    }

    #[test]
    fn an_exit_status_is_what_a_shell_makes_of_it() {
        let pid = Pid::from_raw(7);
        assert_eq!(exit_status(WaitStatus::Exited(pid, 3)), Some(3));
        assert_eq!(exit_status(WaitStatus::Signaled(pid, Signal::SIGTERM, false)), Some(143));
        assert_eq!(exit_status(WaitStatus::StillAlive), None);
    }
}
