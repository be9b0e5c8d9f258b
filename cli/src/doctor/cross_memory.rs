//! Whether processes may reach into each other's memory (process_vm_readv(2)), which soft does where it can. Yama has a setting for it; a container's seccomp
//! filter has none that can be read, so that it is tried.

use super::{Check, Machine};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use std::fs::File;
use std::io::{IoSliceMut, Read};

/// What it costs where it is not allowed.
const COST: &str = "soft copies data once more between processes, as with FERROVERBS_SOFT_CMA=off";

pub(super) fn check(machine: &Machine) -> Option<Check> {
    let scope = machine.read("/proc/sys/kernel/yama/ptrace_scope");
    let tried = machine.is_this().then(attempt);
    judge(scope.as_deref(), tried)
}

/// By Yama's setting, and by what came of trying; `None` where neither tells anything.
fn judge(scope: Option<&str>, tried: Option<Result<(), Errno>>) -> Option<Check> {
    let is_strict = scope.is_some_and(|scope| !matches!(scope, "0" | "1"));
    let shown = scope.map_or(String::new(), |scope| format!("ptrace scope {scope}"));
    let between = if scope.is_some() { ": " } else { "" };
    Some(match tried {
        None if scope.is_none() => return None,
        // Root's processes may, whatever Yama says; a setting that refuses others is worth knowing.
        None | Some(Ok(())) if is_strict => by_yama(&shown),
        None => Check::ok("ptrace", shown),
        Some(Ok(())) => {
            let finding = "processes of one user reach into each other's memory";
            Check::ok("ptrace", format!("{shown}{between}{finding}"))
        }
        Some(Err(_)) if is_strict => by_yama(&shown),
        Some(Err(why)) => {
            let finding = format!(
                "{shown}{between}process_vm_readv is refused ({}), by a seccomp filter it seems, as containers have: {COST}",
                why.desc()
            );
            let remedy = "start the container with --cap-add=SYS_PTRACE, or with a seccomp profile that has process_vm_readv and process_vm_writev";
            Check::note("ptrace", finding).remedy(remedy)
        }
    })
}

fn by_yama(shown: &str) -> Check {
    Check::note("ptrace", format!("{shown}: {COST}"))
        .remedy("as root: sysctl kernel.yama.ptrace_scope=1 (after 3, restart the machine)")
}

/// Reads a byte of a child's memory.
fn attempt() -> Result<(), Errno> {
    let there = [0x5a_u8];
    let (from, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|e| Errno::from_raw(e.raw_os_error()))?;
    // SAFETY: the child calls nothing but close, read and kill, so that locks of other threads do not matter.
    let child = match unsafe { fork() }? {
        ForkResult::Child => {
            drop(to);
            // Until this process lets it go, or ends.
            let _ = File::from(from).read(&mut [0]);
            loop {
                let _ = kill(Pid::this(), Signal::SIGKILL);
            }
        }
        ForkResult::Parent { child } => child,
    };
    let result = read(child, &there);
    let _ = kill(child, Signal::SIGKILL);
    let _ = waitpid(child, None);
    result
}

/// What `there` is in this process, it is in its child.
fn read(child: Pid, there: &[u8; 1]) -> Result<(), Errno> {
    let mut here = [0];
    let remote = RemoteIoVec { base: there.as_ptr() as usize, len: there.len() };
    process_vm_readv(child, &mut [IoSliceMut::new(&mut here)], &[remote])?;
    if here == *there { Ok(()) } else { Err(Errno::EFAULT) }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn what_refuses_it_is_told_with_what_it_costs() {
        let told = |scope, tried| judge(scope, tried).map(|check| (check.state, check.finding));
        assert_eq!(judge(None, None), None);
        assert_eq!(told(Some("1"), None), Some((State::Ok, "ptrace scope 1".into())));
        assert_eq!(told(None, Some(Ok(()))).map(|(state, _)| state), Some(State::Ok));
        for (scope, tried, remedy) in [
            (None, Some(Err(Errno::EPERM)), "SYS_PTRACE"),
            (Some("1"), Some(Err(Errno::ENOSYS)), "SYS_PTRACE"),
            (Some("2"), Some(Err(Errno::EPERM)), "yama.ptrace_scope"),
            (Some("2"), Some(Ok(())), "yama.ptrace_scope"),
            (Some("3"), None, "yama.ptrace_scope"),
        ] {
            let check = judge(scope, tried).expect("told");
            assert_eq!(check.state, State::Note, "{check:?}");
            assert!(check.finding.contains("FERROVERBS_SOFT_CMA"), "{check:?}");
            assert!(check.remedy.as_ref().is_some_and(|r| r.contains(remedy)), "{check:?}");
        }
    }
}
