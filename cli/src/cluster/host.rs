//! Who keeps a host: makes it, runs the command in it if there is one, and stays, for others may come in (`cluster-shell`).

use super::apart::Limits;
use super::signals::{Arrived, Signals};
use super::{Args, environment, exit_status, lines, network};
use crate::{nodes, run};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, fork, setpgid};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

/// Where a keeper says how it is going, a line each: `ready PROCESS`, `ended STATUS`, `failed WHY`.
pub(super) type Report = File;

/// Keeps the host until it is killed. `go` brings the keepers' numbers when all hosts are there.
pub(super) fn keep(
    args: &Args,
    limits: &Limits,
    host: u8,
    go: File,
    mut report: Report,
) -> crate::Result<ExitCode> {
    let signals = Signals::take()?;
    let made = make(args, limits, host);
    tell(
        &mut report,
        &match &made {
            Ok(process) => format!("ready {process}"),
            Err(why) => format!("failed {}", why.replace('\n', " ")),
        },
    );
    if made.is_err() {
        // Process 1 says why.
        return Ok(ExitCode::from(crate::FAILED));
    }
    let mut keepers = String::new();
    let mut go = go;
    if go.read_to_string(&mut keepers).is_err() || keepers.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if args.runs_in(host) {
        network::await_plug();
        match Running::start(args, host, &keepers)? {
            Started::Here(code) => return Ok(code),
            Started::There(command) => {
                let status = command.finish(&signals, args.only_first())?;
                tell(&mut report, &format!("ended {status}"));
            }
        }
    }
    loop {
        // Nothing to do for it: the command has ended.
        let _ = signals.wait()?;
    }
}

fn tell(report: &mut Report, line: &str) {
    // Who read it is process 1, without which we are not either.
    let _ = report.write_all(format!("{line}\n").as_bytes());
}

/// Makes the host; the number of this process in the `/proc` that the hosts see.
fn make(args: &Args, limits: &Limits, host: u8) -> crate::Result<String> {
    let failed = |e: rustix::io::Errno| format!("cannot make a host: {e}");
    let own =
        UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    // SAFETY: none of the flags has an effect on descriptors or memory of this process, and it has one thread.
    unsafe { unshare_unsafe(own) }.map_err(|error| limits.refused(error))?;
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", private).map_err(failed)?;
    rustix::system::sethostname(network::host_name(host).as_bytes()).map_err(failed)?;
    network::make_interface(host, &args.cable)?;
    environment::furnish(args.hosts)?;
    if args.run.nodes {
        nodes::add_here(args.run.devices().as_deref())?;
    }
    let process =
        std::fs::read_link("/proc/self").map_err(|e| format!("cannot read /proc: {e}"))?;
    Ok(process.to_string_lossy().into_owned())
}

/// A command, and what it writes, if that goes through us.
struct Running {
    process: Pid,
    outputs: Vec<Output>,
}

/// Where we are after starting it.
enum Started {
    /// With the keeper.
    There(Running),
    /// In the process that was to become the command, and could not.
    Here(ExitCode),
}

/// One of its outputs.
struct Output {
    from: OwnedFd,
    lines: lines::Lines,
    error: bool,
    open: bool,
}

impl Running {
    fn start(args: &Args, host: u8, keepers: &str) -> crate::Result<Started> {
        let alone = args.only_first();
        let mut outputs = Vec::new();
        let mut theirs = Vec::new();
        if !alone && !args.no_prefix {
            let width = network::host_name(args.hosts).len();
            let prefix = format!("[{:width$}] ", network::host_name(host));
            for error in [false, true] {
                let (from, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
                    .map_err(|e| format!("cannot make a pipe: {e}"))?;
                outputs.push(Output { from, lines: lines::Lines::new(&prefix), error, open: true });
                theirs.push(to);
            }
        }
        // SAFETY: this process has one thread, so that no lock is held by another in the child.
        match unsafe { fork() }.map_err(|e| format!("cannot start a process: {e}"))? {
            ForkResult::Parent { child } => {
                if !alone {
                    // As the child does; whoever is first.
                    let _ = setpgid(child, child);
                }
                Ok(Started::There(Self { process: child, outputs }))
            }
            ForkResult::Child => {
                if !alone {
                    // Its own group, so that all of it gets what is passed on. It reads no terminal.
                    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
                    let nothing = File::open("/dev/null").map_err(|e| format!("/dev/null: {e}"))?;
                    rustix::stdio::dup2_stdin(nothing).map_err(|e| e.to_string())?;
                }
                if let [out, error] = theirs.as_slice() {
                    rustix::stdio::dup2_stdout(out).map_err(|e| e.to_string())?;
                    rustix::stdio::dup2_stderr(error).map_err(|e| e.to_string())?;
                }
                Signals::give_back()?;
                let mut run = args.run.clone();
                // They are there.
                run.nodes = false;
                let variables = environment::variables(host, args.hosts, keepers);
                run::become_command(&run, &variables).map(Started::Here)
            }
        }
    }

    /// Passes on signals and outputs until it has ended; its exit status.
    fn finish(mut self, signals: &Signals, alone: bool) -> crate::Result<u8> {
        loop {
            let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
            let open: Vec<_> = (0..self.outputs.len()).filter(|n| self.outputs[*n].open).collect();
            fds.extend(open.iter().map(|n| PollFd::new(&self.outputs[*n].from, PollFlags::IN)));
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.map_err(|e| format!("cannot wait: {e}"))?,
            };
            let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            for (output, ready) in open.iter().zip(ready.iter().skip(1)) {
                if *ready {
                    self.outputs[*output].pass_on();
                }
            }
            if !ready.first().copied().unwrap_or(false) {
                continue;
            }
            let arrived = signals.wait()?;
            if arrived.signal != Signal::SIGCHLD {
                self.pass_on(arrived, alone);
            } else if let Ok(status) = waitpid(self.process, Some(WaitPidFlag::WNOHANG))
                && let Some(status) = exit_status(status)
            {
                self.outputs.iter_mut().for_each(Output::finish);
                return Ok(status);
            }
        }
    }

    fn pass_on(&self, arrived: Arrived, alone: bool) {
        let _ = match alone {
            // A terminal has told it already.
            true if arrived.of_terminal => Ok(()),
            true => kill(self.process, arrived.signal),
            false => killpg(self.process, arrived.signal),
        };
    }
}

impl Output {
    /// What has come; waits if nothing has.
    fn pass_on(&mut self) {
        let mut buffer = [0; 65536];
        let bytes = match rustix::io::read(&self.from, &mut buffer[..]) {
            Ok(0) => {
                self.open = false;
                self.lines.rest()
            }
            Ok(length) => self.lines.take(buffer.get(..length).unwrap_or_default()),
            Err(rustix::io::Errno::INTR) => return,
            Err(_) => {
                self.open = false;
                return;
            }
        };
        self.write(&bytes);
    }

    /// What is left of a command that has ended; what it left behind in the background may go on writing, which nobody reads.
    fn finish(&mut self) {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        while self.open {
            let mut fds = [PollFd::new(&self.from, PollFlags::IN)];
            if !poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
                break;
            }
            self.pass_on();
        }
        let rest = self.lines.rest();
        self.write(&rest);
    }

    fn write(&self, bytes: &[u8]) {
        if self.error {
            lines::write(rustix::stdio::stderr().as_fd(), bytes);
        } else {
            lines::write(rustix::stdio::stdout().as_fd(), bytes);
        }
    }
}
