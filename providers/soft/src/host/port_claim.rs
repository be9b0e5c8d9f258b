//! Which fabric has UDP port 4791 of a network namespace: a claim by an abstract Unix socket.
//! Checked before the sockets are opened (`sockets`).
//!
//! Processes that share the port forward packets through their fabric. Two fabrics cannot share the
//! port, because neither forwards to the other. A process that opens the port binds an abstract
//! Unix name (`unix(7)`) with its fabric. Abstract names belong to a network namespace, as ports
//! do. Each process can read them, and the kernel removes them when their owner ends.

use super::unavailable::{WireUnavailable, errno_of};
use cface::names::Name;
use soft_local::fabric::Fabric;
use soft_sys::{Errno, process};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The claim of this process, which lasts as long as the value.
#[derive(Debug)]
pub(super) struct PortClaim {
    name: Name,
    /// Processes of the same fabric had the port before.
    pub(super) has_other_processes: bool,
    /// The identity of the fabric, independent of the path of its directory.
    pub(super) fabric: String,
}

/// A process that has the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortHolder {
    fabric: String,
    user: String,
    pid: String,
    /// The fabric directory; empty if the name had no room for the path.
    directory: String,
}

impl AsFd for PortClaim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.name.as_fd()
    }
}

/// The lock under which a process reads the claims and opens the port.
#[derive(Debug)]
pub(super) struct OpeningLock(
    #[expect(dead_code, reason = "the name is free when it is dropped")] Option<Name>,
);

/// Prefix of all names.
const STEM: &str = "ferroverbs-soft/4791/";
/// Suffix of the name that serves as the opening lock.
const OPENING: &str = "opening";
/// Maximum bytes of a name (`unix(7)`: `sun_path` without its first byte).
const NAME_MAX: usize = 107;
/// Opening takes microseconds. A process that holds the lock for longer is stopped or hostile, and
/// is ignored.
const OPENING_TIMEOUT: Duration = Duration::from_secs(1);

impl OpeningLock {
    /// Takes the opening lock, or continues without the lock after `OPENING_TIMEOUT`.
    ///
    /// # Errors
    /// Temporary errors of the system.
    pub(super) fn begin() -> Result<Self, WireUnavailable> {
        let until = Instant::now() + OPENING_TIMEOUT;
        loop {
            match bind_abstract_name(&format!("{STEM}{OPENING}")) {
                Err(why) if why.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                name => return Ok(Self(available(name)?)),
            }
        }
    }

    /// Claims the port for `fabric`. Returns `None` where abstract names are not available.
    ///
    /// # Errors
    /// `EADDRINUSE`: a process of another fabric has the port. Temporary errors of the system.
    pub(super) fn claim(&self, fabric: &Fabric) -> Result<Option<PortClaim>, WireUnavailable> {
        // Without names neither a question nor a claim is possible.
        let Some(own) = available(fabric_id(fabric.directory()))? else { return Ok(None) };
        let table = available(abstract_names())?.unwrap_or_default();
        if let Some(other) = holders(&table).find(|holder| holder.fabric != own) {
            return Err(WireUnavailable { errno: Errno::EADDRINUSE, holder: Some(other) });
        }
        let has_other_processes = holders(&table).next().is_some();
        let name = claim_name(&own, &fabric.config().dir);
        Ok(available(bind_abstract_name(&name))?.map(|socket| PortClaim {
            name: socket,
            has_other_processes,
            fabric: own,
        }))
    }
}

/// The value, or `None` if the system never provides the value here.
///
/// # Errors
/// Temporary errors. A process that continued after one would lack the value for its whole life.
pub(super) fn available<T>(done: io::Result<T>) -> Result<Option<T>, WireUnavailable> {
    match done {
        Ok(it) => Ok(Some(it)),
        Err(why) => {
            let why = WireUnavailable::from(errno_of(&why));
            if why.is_temporary() { Err(why) } else { Ok(None) }
        }
    }
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.pid, self.user)?;
        if self.directory.is_empty() {
            Ok(())
        } else {
            write!(f, ", which meets others in {}", self.directory)
        }
    }
}

/// Device and inode of the fabric directory, which are equal in all containers, unlike the path.
fn fabric_id(directory: &Path) -> io::Result<String> {
    let about = std::fs::metadata(directory)?;
    Ok(format!("{:x}.{:x}", about.dev(), about.ino()))
}

fn claim_name(fabric: &str, directory: &Path) -> String {
    let (user, pid) = (process::user(), process::id());
    let name = format!("{STEM}{fabric}/{user}/{pid}/");
    let directory = directory.to_string_lossy();
    if name.len() + directory.len() <= NAME_MAX { name + &directory } else { name }
}

/// Binds an abstract name for this process.
pub(super) fn bind_abstract_name(name: &str) -> io::Result<Name> {
    Name::take(name).map_err(|errno| io::Error::from_raw_os_error(errno.raw()))
}

/// All abstract names of this network namespace, as `/proc/net/unix` lists them.
pub(super) fn abstract_names() -> io::Result<String> {
    let list = std::fs::read("/proc/thread-self/net/unix")?;
    Ok(String::from_utf8_lossy(&list).into_owned())
}

/// The processes with a claim, from the text of `/proc/net/unix` (`proc(5)`), which marks abstract
/// names with an at sign.
fn holders(table: &str) -> impl Iterator<Item = PortHolder> {
    table.lines().filter_map(|line| {
        let (_, name) = line.split_once(&format!("@{STEM}"))?;
        let mut parts = name.splitn(4, '/').map(str::to_owned);
        let [fabric, user, pid, directory] = [(); 4].map(|()| parts.next());
        Some(PortHolder { fabric: fabric?, user: user?, pid: pid?, directory: directory? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_name_identifies_the_holder_of_the_port() {
        let text = |directory| {
            let name = claim_name("fe00.2a", Path::new(directory));
            assert!(name.len() <= NAME_MAX);
            format!(
                "Num RefCount Protocol Flags Type St Inode Path\n\
                 0: 2 0 0 0002 01 11 @/tmp/.X11-unix/X0\n\
                 0: 2 0 0 0002 01 12 @{STEM}{OPENING}\n\
                 0: 2 0 0 0002 01 13 @{name}\n"
            )
        };
        let short = text("/tmp/a b");
        let [holder] = <[PortHolder; 1]>::try_from(holders(&short).collect::<Vec<_>>()).unwrap();
        assert_eq!((holder.fabric.as_str(), holder.directory.as_str()), ("fe00.2a", "/tmp/a b"));
        let (user, pid) = (process::user(), process::id());
        let line = format!("process {pid} of user {user}, which meets others in /tmp/a b");
        assert_eq!(holder.to_string(), line);
        let long = text(&"/long".repeat(40));
        let holder = holders(&long).next().unwrap();
        assert_eq!(holder.to_string(), format!("process {pid} of user {user}"));
    }

    #[test]
    fn a_fabric_id_does_not_depend_on_the_path() {
        let id = |path: &str| fabric_id(Path::new(path)).unwrap();
        assert_eq!(id("/proc/self/root"), id("/"));
        assert_ne!(id("/proc"), id("/"));
    }
}
