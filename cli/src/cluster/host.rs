//! The keeper process of a host: makes the host, runs the command, and stays as long as the
//! cluster, because `cluster-shell` enters the host through the keeper.

use super::args::Args;
use super::namespaces::NamespaceLimits;
use super::signals::{ReceivedSignal, Signals, exit_status};
use super::{environment, lines, network};
use crate::{nodes, run, tree};
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

/// The pipe for reports of a keeper, with the lines `ready PROCESS`, `ended STATUS` and `failed
/// WHY`.
pub(super) type Report = File;

/// Runs the keeper until a signal kills the process. `go` is a pipe that delivers the process
/// numbers of all keepers when all hosts are made.
pub(super) fn run_keeper(
    args: &Args,
    limits: &NamespaceLimits,
    host: u8,
    go: File,
    mut report: Report,
) -> crate::Result<ExitCode> {
    let signals = Signals::block()?;
    let made = make_host(args, limits, host);
    send_report(
        &mut report,
        &match &made {
            Ok(process) => format!("ready {process}"),
            Err(why) => format!("failed {}", why.replace('\n', " ")),
        },
    );
    if made.is_err() {
        // Process 1 prints the reason.
        return Ok(ExitCode::from(crate::FAILED));
    }
    let mut keepers = String::new();
    let mut go = go;
    if go.read_to_string(&mut keepers).is_err() || keepers.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if args.runs_in(host) {
        network::await_connection();
        match HostCommand::start(args, host, &keepers)? {
            Started::InChild(code) => return Ok(code),
            Started::InKeeper(command) => {
                let status = command.wait(&signals, args.only_first())?;
                send_report(&mut report, &format!("ended {status}"));
            }
        }
    }
    loop {
        // The command has ended, so a signal needs no action.
        let _ = signals.wait()?;
    }
}

fn send_report(report: &mut Report, line: &str) {
    // A write fails only if process 1, the reader, has ended. Then the kernel also ends this
    // process.
    let _ = report.write_all(format!("{line}\n").as_bytes());
}

/// Makes the host. Returns the number of this process in the `/proc` of the hosts.
fn make_host(args: &Args, limits: &NamespaceLimits, host: u8) -> crate::Result<String> {
    let failed = |e: rustix::io::Errno| format!("cannot make a host: {e}");
    let own =
        UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    // SAFETY: the flags change neither descriptors nor memory, and this process has one thread.
    unsafe { unshare_unsafe(own) }.map_err(|error| limits.refused(error))?;
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", private).map_err(failed)?;
    rustix::system::sethostname(network::host_name(host).as_bytes()).map_err(failed)?;
    network::make_interface(host, &args.cable)?;
    environment::make_files(args.hosts)?;
    if tree::is_wanted(args.run.no_tree)? {
        let variables = environment::variables(host, args.hosts, "");
        let mut tree: tree::Environment =
            variables.into_iter().map(|(name, value)| (name.into(), Some(value.into()))).collect();
        tree.extend(
            args.run.soft.iter().map(|value| ("FERROVERBS_SOFT".into(), Some(value.into()))),
        );
        tree::enter_here(&tree);
    }
    if args.run.nodes {
        nodes::add_here(args.run.devices().as_deref())?;
    }
    let process =
        std::fs::read_link("/proc/self").map_err(|e| format!("cannot read /proc: {e}"))?;
    Ok(process.to_string_lossy().into_owned())
}

/// A running command, with its outputs if the keeper adds a prefix to their lines.
struct HostCommand {
    process: Pid,
    outputs: Vec<Output>,
}

/// The result of a fork for the command.
enum Started {
    /// In the keeper: the running command.
    InKeeper(HostCommand),
    /// In the child, which could not execute the command: the exit status.
    InChild(ExitCode),
}

/// The standard output or the standard error of a command.
struct Output {
    from: OwnedFd,
    lines: lines::Lines,
    is_error: bool,
    open: bool,
}

impl HostCommand {
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
                outputs.push(Output {
                    from,
                    lines: lines::Lines::new(&prefix),
                    is_error: error,
                    open: true,
                });
                theirs.push(to);
            }
        }
        // SAFETY: this process has one thread, so the child inherits no lock of another thread.
        match unsafe { fork() }.map_err(|e| format!("cannot start a process: {e}"))? {
            ForkResult::Parent { child } => {
                if !alone {
                    // The child does the same. The first call makes the group.
                    let _ = setpgid(child, child);
                }
                Ok(Started::InKeeper(Self { process: child, outputs }))
            }
            ForkResult::Child => {
                if !alone {
                    // A process group of its own receives the forwarded signals. The group reads no
                    // terminal.
                    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
                    let nothing = File::open("/dev/null").map_err(|e| format!("/dev/null: {e}"))?;
                    rustix::stdio::dup2_stdin(nothing).map_err(|e| e.to_string())?;
                }
                if let [out, error] = theirs.as_slice() {
                    rustix::stdio::dup2_stdout(out).map_err(|e| e.to_string())?;
                    rustix::stdio::dup2_stderr(error).map_err(|e| e.to_string())?;
                }
                Signals::unblock()?;
                let mut run = args.run.clone();
                // The host has the nodes and the tree already.
                run.nodes = false;
                run.no_tree = true;
                let variables = environment::variables(host, args.hosts, keepers);
                run::become_command(&run, &variables).map(Started::InChild)
            }
        }
    }

    /// Forwards signals and outputs until the command ends. Returns the exit status.
    fn wait(mut self, signals: &Signals, alone: bool) -> crate::Result<u8> {
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
                    self.outputs[*output].forward();
                }
            }
            if !ready.first().copied().unwrap_or(false) {
                continue;
            }
            let arrived = signals.wait()?;
            if arrived.signal != Signal::SIGCHLD {
                self.forward_signal(arrived, alone);
            } else if let Ok(status) = waitpid(self.process, Some(WaitPidFlag::WNOHANG))
                && let Some(status) = exit_status(status)
            {
                self.outputs.iter_mut().for_each(Output::drain);
                return Ok(status);
            }
        }
    }

    fn forward_signal(&self, arrived: ReceivedSignal, alone: bool) {
        let _ = match alone {
            // The terminal has sent the signal to the command, too.
            true if arrived.is_from_terminal => Ok(()),
            true => kill(self.process, arrived.signal),
            false => killpg(self.process, arrived.signal),
        };
    }
}

impl Output {
    /// Reads and forwards output. Waits if no output has arrived.
    fn forward(&mut self) {
        let mut buffer = [0; 65536];
        let bytes = match rustix::io::read(&self.from, &mut buffer[..]) {
            Ok(0) => {
                self.open = false;
                self.lines.take_rest()
            }
            Ok(length) => self.lines.add(buffer.get(..length).unwrap_or_default()),
            Err(rustix::io::Errno::INTR) => return,
            Err(_) => {
                self.open = false;
                return;
            }
        };
        self.write(&bytes);
    }

    /// Forwards the remaining output of a command that has ended. Output of background processes
    /// that the command left is lost.
    fn drain(&mut self) {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        while self.open {
            let mut fds = [PollFd::new(&self.from, PollFlags::IN)];
            if !poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
                break;
            }
            self.forward();
        }
        let rest = self.lines.take_rest();
        self.write(&rest);
    }

    fn write(&self, bytes: &[u8]) {
        if self.is_error {
            lines::write(rustix::stdio::stderr().as_fd(), bytes);
        } else {
            lines::write(rustix::stdio::stdout().as_fd(), bytes);
        }
    }
}
