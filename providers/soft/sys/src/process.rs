//! Identity, limits and permissions of processes, pidfds, and random numbers. Fabrics identify and
//! check the peer processes with these functions.

use std::{ffi::CString, fs, os::fd::OwnedFd, ptr};

use libc::{c_char, c_ulong, gid_t, pid_t, uid_t};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::rand::{GetRandomFlags, getrandom};

use super::errno::{Errno, from_rustix, retry};

/// This process (`getpid(2)`).
pub fn id() -> pid_t {
    rustix::process::getpid().as_raw_pid()
}

/// The user whose rights this process has (`geteuid(2)`).
pub fn user() -> uid_t {
    rustix::process::geteuid().as_raw()
}

/// The largest permitted size of a file in bytes (`setrlimit(2)`, RLIMIT_FSIZE).
pub fn file_size_limit() -> u64 {
    limit(libc::RLIMIT_FSIZE)
}

/// The largest permitted number of descriptors (`setrlimit(2)`, RLIMIT_NOFILE).
pub fn descriptor_limit() -> u64 {
    limit(libc::RLIMIT_NOFILE)
}

/// Whether the address space of this process is limited (`setrlimit(2)`, RLIMIT_AS).
pub fn is_address_space_limited() -> bool {
    limit(libc::RLIMIT_AS) != libc::RLIM_INFINITY
}

/// A failed call counts as no limit; rustix would return what the structure held before.
fn limit(of: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is writable, and keeps its value if the call fails.
    unsafe { libc::getrlimit(of, &raw mut limit) };
    limit.rlim_cur
}

/// A descriptor that becomes readable when the process dies (`pidfd_open(2)`, Linux 5.3).
pub fn pidfd(pid: pid_t) -> Result<OwnedFd, Errno> {
    let pid = Pid::from_raw(pid).ok_or(Errno::EINVAL)?;
    from_rustix(pidfd_open(pid, PidfdFlags::empty()))
}

/// Whether a signal or a debugger has stopped the process (`proc_pid_stat(5)`). False where that
/// cannot be known.
pub fn is_stopped(pid: pid_t) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, which may contain anything, ends with the last bracket.
    let after_name = stat.rsplit(|byte| *byte == b')').next().unwrap_or_default();
    matches!(after_name, [b' ', b'T' | b't', ..])
}

/// Permits other processes of the user to attach where the Yama security module would refuse
/// (`prctl(2)` PR_SET_PTRACER). Only has an effect if Yama's scope is 1, "only descendants".
pub fn allow_attach() {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if scope.is_ok_and(|scope| scope.trim() == "1") {
        // SAFETY: plain integers; after a failure attach stays refused, which the probe detects.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
}

/// A random 64-bit number (`getrandom(2)`).
pub fn random() -> Result<u64, Errno> {
    let mut bytes = [0_u8; 8];
    let len = retry(|| from_rustix(getrandom(&mut bytes, GetRandomFlags::empty())))?;
    if len == bytes.len() { Ok(u64::from_ne_bytes(bytes)) } else { Err(Errno::EIO) }
}

/// A random number below `limit`; 0 if the kernel provides none.
pub fn random_below(limit: usize) -> usize {
    // The limit is far below 2^32, so the bias is negligible.
    random().map_or(0, |number| (number % limit.max(1) as u64) as usize)
}

/// Whether this process may give its files to a group: as a member, or as root (`chown(2)`). If
/// root lacks the capability, the later call fails.
pub fn may_give_to(group: gid_t) -> bool {
    // SAFETY: takes no argument and cannot fail.
    let own = unsafe { libc::getegid() };
    if user() == 0 || own == group {
        return true;
    }
    let mut groups: Vec<gid_t> = vec![0; NGROUPS_MAX];
    // SAFETY: `groups` has room for as many as requested.
    let count = unsafe { libc::getgroups(NGROUPS_MAX as libc::c_int, groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).unwrap_or(0));
    groups.contains(&group)
}

/// The largest number of groups of a process (`getgroups(2)`).
const NGROUPS_MAX: usize = 65536;

/// The id of the group `name` (`getgrnam_r(3)`), if it exists.
pub fn group_named(name: &str) -> Option<gid_t> {
    let name = CString::new(name).ok()?;
    let mut buffer: Vec<c_char> = vec![0; 1 << 10];
    loop {
        // SAFETY: all zeros are a valid value of `group`, a structure of integers and pointers.
        let mut group: libc::group = unsafe { std::mem::zeroed() };
        let mut found = ptr::null_mut();
        // SAFETY: all pointers are to live locals, and the length is the buffer's.
        let ret = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                &raw mut group,
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            )
        };
        match ret {
            libc::ERANGE if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            0 if !found.is_null() => return Some(group.gr_gid),
            _ => return None,
        }
    }
}

/// `PR_SET_PTRACER_ANY` of `<linux/prctl.h>`.
const PR_SET_PTRACER_ANY: c_ulong = c_ulong::MAX;

/// Whether the kernel is ending process `pid` (`proc(5)`, flags of /proc/pid/stat); `false` if
/// unknown.
pub fn is_exiting(pid: pid_t) -> bool {
    /// `PF_EXITING` of the kernel's task flags.
    const EXITING: u32 = 4;
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name may contain any character. State, parent, group, session, terminal and its group
    // precede the flags.
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    let state = fields.next();
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u32>().ok());
    state == Some("Z") || flags.is_some_and(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_stopped_until_it_is_continued() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn();
        let child = child.as_mut().expect("a process");
        let pid = child.id() as pid_t;
        let signal = |signal| {
            let mut status = 0;
            // SAFETY: a child of this test that nobody waits for; `status` is a local variable.
            unsafe {
                assert_eq!(libc::kill(pid, signal), 0);
                let flags = libc::WUNTRACED | libc::WCONTINUED;
                assert_eq!(libc::waitpid(pid, &raw mut status, flags), pid);
            }
        };
        assert!(!is_stopped(pid));
        signal(libc::SIGSTOP);
        assert!(is_stopped(pid));
        signal(libc::SIGCONT);
        assert!(!is_stopped(pid) && !is_stopped(id()) && !is_stopped(-1));
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }

    #[test]
    fn a_zombie_counts_as_exiting_and_this_process_does_not() {
        assert!(!is_exiting(id()));
        assert!(!is_exiting(0));
        let child = std::process::Command::new("true").spawn();
        let mut child = child.expect("true(1) runs");
        let pid = child.id() as pid_t;
        while !is_exiting(pid) {
            std::thread::yield_now();
        }
        child.wait().expect("our child");
        assert!(!is_exiting(pid));
    }

    #[test]
    fn random_numbers_differ() {
        assert_ne!(random(), random());
    }

    #[test]
    fn the_group_of_root_is_zero_and_an_unknown_one_is_none() {
        assert_eq!(group_named("root"), Some(0));
        assert_eq!(group_named("no such group"), None);
    }

    #[test]
    fn a_process_has_a_descriptor_and_number_zero_has_none() {
        // An emulator may not support the call.
        assert!(matches!(pidfd(id()).map(|_| ()), Ok(()) | Err(Errno::ENOSYS)));
        assert!(pidfd(0).is_err());
    }
}
