//! Process 1 of the cluster, whose network namespace has the switch. When process 1 ends, the
//! kernel ends all processes of all hosts.

use super::args::Args;
use super::namespaces::NamespaceLimits;
use super::progress::Progress;
use super::signals::Signals;
use super::{host, network};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, mount};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The time for commands to end after SIGTERM, when the command of a host has failed.
const GRACE: Duration = Duration::from_secs(5);

/// A host in the list of process 1.
struct HostEntry {
    keeper: Pid,
    reports: BufReader<File>,
    /// The pipe that lets the keeper go on; `None` afterwards.
    go: Option<File>,
    /// The exit status of the command; `None` while it runs.
    status: Option<u8>,
}

/// Makes the hosts and waits for their commands. `alive` becomes readable when the first process
/// ends.
pub(super) fn run_switch(
    args: &Args,
    limits: &NamespaceLimits,
    signals: &Signals,
    alive: OwnedFd,
) -> crate::Result<ExitCode> {
    let failed = |e: rustix::io::Errno| format!("cannot start process 1: {e}");
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(failed)?;
    let mut fds = [PollFd::new(&alive, PollFlags::IN)];
    if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_err(failed)? > 0 {
        return Ok(ExitCode::from(crate::FAILED));
    }
    // A container may refuse the mount. Then `/proc` shows other process numbers, and the rest
    // works.
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let _ = mount("proc", "/proc", "proc", flags, None);
    network::make_switch(&args.cable)?;
    let mut progress = Progress::of(args.hosts);
    let mut hosts = Vec::new();
    for number in args.numbers() {
        match fork_keeper(number)? {
            ForkedKeeper::InChild(go, report) => {
                drop(hosts);
                progress.silence();
                return host::run_keeper(args, limits, number, go, report);
            }
            ForkedKeeper::InParent(host) => hosts.push(host),
        }
    }
    let keepers = await_hosts(&mut hosts, &mut progress)?;
    progress.say("connecting cables");
    network::connect_cables(args.numbers())?;
    drop(progress);
    for host in &mut hosts {
        if let Some(mut go) = host.go.take() {
            go.write_all(keepers.as_bytes())
                .map_err(|e| format!("a host ended unexpectedly: {e}"))?;
        }
    }
    await_commands(args, &mut hosts, signals).map(ExitCode::from)
}

/// The result of a fork for a keeper.
enum ForkedKeeper {
    InChild(File, File),
    InParent(HostEntry),
}

fn fork_keeper(number: u8) -> crate::Result<ForkedKeeper> {
    let failed = |e: &dyn std::fmt::Display| format!("cannot start host {number}: {e}");
    let pipe = || {
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map(|(from, to)| (File::from(from), File::from(to)))
            .map_err(|e| failed(&e))
    };
    let (reports, report) = pipe()?;
    let (sent, go) = pipe()?;
    // SAFETY: this process has one thread, so the child inherits no lock of another thread.
    match unsafe { fork() }.map_err(|e| failed(&e))? {
        ForkResult::Child => Ok(ForkedKeeper::InChild(sent, report)),
        ForkResult::Parent { child } => Ok(ForkedKeeper::InParent(HostEntry {
            keeper: child,
            reports: BufReader::new(reports),
            go: Some(go),
            status: None,
        })),
    }
}

/// Waits until all hosts are made. Returns the process numbers of the keepers, separated by commas.
fn await_hosts(hosts: &mut [HostEntry], progress: &mut Progress) -> crate::Result<String> {
    let mut numbers = Vec::new();
    for (host, number) in hosts.iter_mut().zip(1_u8..) {
        let line = host.report()?;
        match line.split_once(' ') {
            Some(("ready", process)) => numbers.push(process.to_owned()),
            Some(("failed", why)) => return Err(why.to_owned()),
            _ => return Err(format!("host {number} ended before it was made")),
        }
        progress.made(number);
    }
    Ok(numbers.join(","))
}

impl HostEntry {
    /// The next line of the keeper; empty if the keeper has ended.
    fn report(&mut self) -> crate::Result<String> {
        let mut line = String::new();
        self.reports.read_line(&mut line).map_err(|e| format!("a host ended unexpectedly: {e}"))?;
        Ok(line.trim_end().to_owned())
    }
}

/// Waits until the command has ended in all hosts. Returns the first status that is not 0.
fn await_commands(args: &Args, hosts: &mut [HostEntry], signals: &Signals) -> crate::Result<u8> {
    let mut first_failure = 0;
    let mut deadline: Option<Instant> = None;
    loop {
        let waiting: Vec<_> = args
            .numbers()
            .filter(|n| args.runs_in(*n))
            .map(|n| usize::from(n) - 1)
            .filter(|n| hosts.get(*n).is_some_and(|host| host.status.is_none()))
            .collect();
        let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if waiting.is_empty() || late {
            return Ok(first_failure);
        }
        let (ready, reported) = {
            let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
            let pipes = waiting.iter().filter_map(|n| hosts.get(*n)).map(|h| h.reports.get_ref());
            fds.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds, left.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.map_err(|e| format!("cannot wait: {e}"))?,
            };
            let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
            let reported = ready.next().unwrap_or(false);
            (ready.collect::<Vec<_>>(), reported)
        };
        for (n, _) in waiting.iter().zip(&ready).filter(|(_, ready)| **ready) {
            let Some(host) = hosts.get_mut(*n) else { continue };
            let line = host.report()?;
            let status = line.strip_prefix("ended ").and_then(|text| text.parse().ok());
            // A keeper without a report was killed.
            let status = status.unwrap_or(crate::FAILED);
            host.status = Some(status);
            if status != 0 && first_failure == 0 {
                first_failure = status;
                if !args.keep_going {
                    deadline = Some(Instant::now() + GRACE);
                    signal_all(hosts, Signal::SIGTERM);
                }
            }
        }
        if reported {
            let arrived = signals.wait()?;
            match arrived.signal {
                Signal::SIGCHLD => reap_orphans(hosts),
                // The terminal has sent the signal to the hosts, too.
                _ if arrived.is_from_terminal => {}
                signal => signal_all(hosts, signal),
            }
        }
    }
}

fn signal_all(hosts: &[HostEntry], signal: Signal) {
    for host in hosts {
        let _ = kill(host.keeper, signal);
    }
}

/// Reaps ended processes without a parent, to free their numbers.
///
/// Ended keepers are not reaped: another process must not get the number of a keeper.
fn reap_orphans(hosts: &[HostEntry]) {
    let seen = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Ok(status) = waitid(Id::All, seen) {
        let Some(process) = status.pid().filter(|_| status != WaitStatus::StillAlive) else {
            return;
        };
        if hosts.iter().any(|host| host.keeper == process) {
            return;
        }
        let _ = waitpid(process, Some(WaitPidFlag::WNOHANG));
    }
}
