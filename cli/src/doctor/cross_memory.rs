//! Checks cross-memory attach (process_vm_readv(2)), by which soft copies data between two
//! processes at once.
//!
//! Yama has a setting for cross-memory attach. A seccomp filter of a container has no setting that
//! a program can read, so the check tries the call. If the call is refused, the check measures the
//! second copy.

use super::check::Check;
use super::machine::Machine;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::time::{Duration, Instant};

/// The cost of a refused call, in words.
fn cost() -> String {
    let us = copy_time(MEASURED_BYTES).as_nanos() as f64 / 1e3 / (MEASURED_BYTES >> 20) as f64;
    format!(
        "soft copies data twice between processes, as with FERROVERBS_SOFT_CMA=off; the second copy takes \
         about {us:.0} us for each MiB on this machine"
    )
}

/// The size of the measured copy: larger than the caches of a processor core.
const MEASURED_BYTES: usize = 16 << 20;

/// The time of a copy of `bytes` bytes: the shortest of some runs, because other programs disturb a
/// run.
fn copy_time(bytes: usize) -> Duration {
    let source = vec![0x5a_u8; bytes];
    let mut target = vec![0_u8; bytes];
    let mut run = || {
        let begin = Instant::now();
        std::hint::black_box(&mut target).copy_from_slice(std::hint::black_box(&source));
        begin.elapsed()
    };
    (0..4).map(|_| run()).min().unwrap_or_default()
}

pub(super) fn check(machine: &Machine) -> Option<Check> {
    let scope = machine.read("/proc/sys/kernel/yama/ptrace_scope");
    let tried = machine.is_this().then(attempt);
    judge(scope.as_deref(), tried, cost)
}

/// The check, by the setting of Yama and by the result of a call. `None` if both are unknown.
fn judge(
    scope: Option<&str>,
    tried: Option<Result<(), Errno>>,
    cost: impl Fn() -> String,
) -> Option<Check> {
    let is_strict = scope.is_some_and(|scope| !matches!(scope, "0" | "1"));
    let shown = scope.map_or(String::new(), |scope| format!("ptrace scope {scope}"));
    let between = if scope.is_some() { ": " } else { "" };
    Some(match tried {
        None if scope.is_none() => return None,
        // Root may attach in spite of Yama, but the setting refuses the call to other users.
        None | Some(Ok(())) if is_strict => by_yama(&shown, &cost()),
        None => Check::ok("ptrace", shown),
        Some(Ok(())) => {
            let finding = "processes of one user reach into each other's memory";
            Check::ok("ptrace", format!("{shown}{between}{finding}"))
        }
        Some(Err(_)) if is_strict => by_yama(&shown, &cost()),
        Some(Err(why)) => {
            let finding = format!(
                "{shown}{between}process_vm_readv is refused ({}), probably by the seccomp filter of a container: {}",
                why.desc(),
                cost()
            );
            let remedy = "start the container with --cap-add=SYS_PTRACE, or with a seccomp profile that allows process_vm_readv and process_vm_writev";
            Check::note("ptrace", finding).remedy(remedy)
        }
    })
}

fn by_yama(shown: &str, cost: &str) -> Check {
    Check::note("ptrace", format!("{shown}: {cost}"))
        .remedy("as root: sysctl kernel.yama.ptrace_scope=1 (after 3, restart the machine)")
}

/// Tries to read a byte from the memory of a child process.
fn attempt() -> Result<(), Errno> {
    let there = [0x5a_u8];
    let (from, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|e| Errno::from_raw(e.raw_os_error()))?;
    // SAFETY: the child calls only close, read and kill, so locks that other threads hold do not
    // matter.
    let child = match unsafe { fork() }? {
        ForkResult::Child => {
            drop(to);
            // The read returns when this process closes the pipe or ends.
            let _ = File::from(from).read(&mut [0]);
            loop {
                let _ = kill(Pid::this(), Signal::SIGKILL);
            }
        }
        ForkResult::Parent { child } => child,
    };
    let result = read_byte(child, &there);
    let _ = kill(child, Signal::SIGKILL);
    let _ = waitpid(child, None);
    result
}

/// Reads a byte of the child. The byte has the same address in this process and in the child.
fn read_byte(child: Pid, there: &[u8; 1]) -> Result<(), Errno> {
    let mut here = [0];
    let remote = RemoteIoVec { base: there.as_ptr() as usize, len: there.len() };
    process_vm_readv(child, &mut [IoSliceMut::new(&mut here)], &[remote])?;
    if here == *there { Ok(()) } else { Err(Errno::EFAULT) }
}

#[cfg(test)]
mod tests {
    use super::super::check::CheckState;
    use super::*;

    #[test]
    fn a_refused_call_has_a_finding_with_its_cost() {
        let told =
            |scope, tried| judge(scope, tried, cost).map(|check| (check.state, check.finding));
        assert_eq!(judge(None, None, cost), None);
        assert_eq!(told(Some("1"), None), Some((CheckState::Ok, "ptrace scope 1".into())));
        assert_eq!(told(None, Some(Ok(()))).map(|(state, _)| state), Some(CheckState::Ok));
        for (scope, tried, remedy) in [
            (None, Some(Err(Errno::EPERM)), "SYS_PTRACE"),
            (Some("1"), Some(Err(Errno::ENOSYS)), "SYS_PTRACE"),
            (Some("2"), Some(Err(Errno::EPERM)), "yama.ptrace_scope"),
            (Some("2"), Some(Ok(())), "yama.ptrace_scope"),
            (Some("3"), None, "yama.ptrace_scope"),
        ] {
            let check = judge(scope, tried, cost).expect("a check");
            assert_eq!(check.state, CheckState::Note, "{check:?}");
            assert!(check.finding.contains("FERROVERBS_SOFT_CMA"), "{check:?}");
            assert!(check.finding.contains(" us for each MiB"), "{check:?}");
            assert!(check.remedy.as_ref().is_some_and(|r| r.contains(remedy)), "{check:?}");
        }
    }
}
