//! Process 1 of the hosts: the switch is in its network namespace. When it ends, for whatever reason, the kernel ends all processes of all hosts.

use super::apart::Limits;
use super::progress::Progress;
use super::signals::Signals;
use super::{Args, host, network};
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

/// How long commands may take to end when one of them has failed.
const GRACE: Duration = Duration::from_secs(5);

/// A host, as the switch knows it.
struct Host {
    keeper: Pid,
    reports: BufReader<File>,
    /// Closed when it was told to go on.
    go: Option<File>,
    /// Of the command, once it has ended.
    status: Option<u8>,
}

/// Makes the hosts, has them run, and ends. `alive` is at its end when who started us is gone.
pub(super) fn main(
    args: &Args,
    limits: &Limits,
    signals: &Signals,
    alive: OwnedFd,
) -> crate::Result<ExitCode> {
    let failed = |e: rustix::io::Errno| format!("cannot begin: {e}");
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(failed)?;
    let mut fds = [PollFd::new(&alive, PollFlags::IN)];
    if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_err(failed)? > 0 {
        return Ok(ExitCode::from(crate::FAILED));
    }
    // Where it is refused (containers hide parts of it), numbers of processes there are others, and all else is as well.
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let _ = mount("proc", "/proc", "proc", flags, None);
    network::make_switch(&args.cable)?;
    let mut progress = Progress::of(args.hosts);
    let mut hosts = Vec::new();
    for number in args.numbers() {
        match add(number)? {
            Added::Here(go, report) => {
                drop(hosts);
                progress.leave_to_others();
                return host::keep(args, limits, number, go, report);
            }
            Added::There(host) => hosts.push(host),
        }
    }
    let keepers = ready(&mut hosts, &mut progress)?;
    progress.say("plugging in");
    network::plug_in(args.numbers())?;
    drop(progress);
    for host in &mut hosts {
        if let Some(mut go) = host.go.take() {
            go.write_all(keepers.as_bytes()).map_err(|e| format!("a host is gone: {e}"))?;
        }
    }
    run(args, &mut hosts, signals).map(ExitCode::from)
}

/// Where we are after starting a keeper.
enum Added {
    Here(File, File),
    There(Host),
}

fn add(number: u8) -> crate::Result<Added> {
    let failed = |e: &dyn std::fmt::Display| format!("cannot start host {number}: {e}");
    let pipe = || {
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map(|(from, to)| (File::from(from), File::from(to)))
            .map_err(|e| failed(&e))
    };
    let (reports, report) = pipe()?;
    let (went, go) = pipe()?;
    // SAFETY: this process has one thread, so that no lock is held by another in the child.
    match unsafe { fork() }.map_err(|e| failed(&e))? {
        ForkResult::Child => Ok(Added::Here(went, report)),
        ForkResult::Parent { child } => Ok(Added::There(Host {
            keeper: child,
            reports: BufReader::new(reports),
            go: Some(go),
            status: None,
        })),
    }
}

/// Waits until all hosts are made; the keepers' numbers, with commas.
fn ready(hosts: &mut [Host], progress: &mut Progress) -> crate::Result<String> {
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

impl Host {
    /// The next line, without its end; nothing when it is gone.
    fn report(&mut self) -> crate::Result<String> {
        let mut line = String::new();
        self.reports.read_line(&mut line).map_err(|e| format!("a host is gone: {e}"))?;
        Ok(line.trim_end().to_owned())
    }
}

/// Until the command has ended wherever it runs; the first status that is not 0.
fn run(args: &Args, hosts: &mut [Host], signals: &Signals) -> crate::Result<u8> {
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
        let (ready, told) = {
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
            let told = ready.next().unwrap_or(false);
            (ready.collect::<Vec<_>>(), told)
        };
        for (n, _) in waiting.iter().zip(&ready).filter(|(_, ready)| **ready) {
            let Some(host) = hosts.get_mut(*n) else { continue };
            let line = host.report()?;
            let status = line.strip_prefix("ended ").and_then(|text| text.parse().ok());
            // A keeper that is gone was killed.
            let status = status.unwrap_or(crate::FAILED);
            host.status = Some(status);
            if status != 0 && first_failure == 0 {
                first_failure = status;
                if !args.keep_going {
                    deadline = Some(Instant::now() + GRACE);
                    tell_all(hosts, Signal::SIGTERM);
                }
            }
        }
        if told {
            let arrived = signals.wait()?;
            match arrived.signal {
                Signal::SIGCHLD => bury(hosts),
                // A terminal has told them already.
                _ if arrived.of_terminal => {}
                signal => tell_all(hosts, signal),
            }
        }
    }
}

fn tell_all(hosts: &[Host], signal: Signal) {
    for host in hosts {
        let _ = kill(host.keeper, signal);
    }
}

/// Takes note of processes that ended and are nobody else's, so that their numbers are free again. Keepers stay: their numbers must be nobody else's.
fn bury(hosts: &[Host]) {
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
