//! Which fabric has port 4791 of a network namespace.
//!
//! Processes that share the port pass packets on to each other through their fabric. Those of two fabrics could not, and the kernel would give each
//! what is the other's. So whoever opens the port says of which fabric it is, by the name of an abstract Unix socket (`unix(7)`): such names are of a
//! network namespace, as the port is, anybody can read them, and the kernel forgets them with their owner, however that ends.

use super::connection::errno_of;
use super::state::NoWire;
use cface::names::Name;
use soft_local::fabric::Fabric;
use soft_sys::{Errno, process};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Says of which fabric this process is, for as long as it is there.
#[derive(Debug)]
pub(super) struct Claim {
    name: Name,
    /// Others of the same fabric had the port before.
    pub(super) has_company: bool,
    /// Which fabric that is, whatever the path to it.
    pub(super) fabric: String,
}

/// A process that has the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    fabric: String,
    user: String,
    pid: String,
    /// Where its processes meet; empty: that did not fit into the name.
    directory: String,
}

impl AsFd for Claim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.name.as_fd()
    }
}

/// Held while a process looks who has the port, and opens it.
#[derive(Debug)]
pub(super) struct Opening(
    #[expect(dead_code, reason = "the name is free when it is dropped")] Option<Name>,
);

/// What names begin with.
const STEM: &str = "ferroverbs-soft/4791/";
/// Behind that, the name that whoever is opening the port has.
const OPENING: &str = "opening";
/// Bytes of a name (`unix(7)`: `sun_path` without the zero that it begins with).
const NAME_MAX: usize = 107;
/// Opening takes microseconds: whoever has that name for so long means no good, or is stopped.
const PATIENCE: Duration = Duration::from_secs(1);

impl Opening {
    /// One process at a time comes here, as far as that can be had.
    ///
    /// # Errors
    /// What is lacking for now.
    pub(super) fn begin() -> Result<Self, NoWire> {
        let until = Instant::now() + PATIENCE;
        loop {
            match bind(&format!("{STEM}{OPENING}")) {
                Err(why) if why.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                name => return Ok(Self(had(name)?)),
            }
        }
    }

    /// Says that this process has the port for `fabric`.
    ///
    /// # Errors
    /// `EADDRINUSE`: who has it for another one. What is lacking for now.
    pub(super) fn claim(&self, fabric: &Fabric) -> Result<Option<Claim>, NoWire> {
        // Where nobody can be asked, or told, it is as if nobody were there.
        let Some(own) = had(identity(fabric.directory()))? else { return Ok(None) };
        let table = had(names())?.unwrap_or_default();
        if let Some(other) = holders(&table).find(|holder| holder.fabric != own) {
            return Err(NoWire { errno: Errno::EADDRINUSE, holder: Some(other) });
        }
        let has_company = holders(&table).next().is_some();
        let name = name(&own, &fabric.config().dir);
        Ok(had(bind(&name))?.map(|socket| Claim { name: socket, has_company, fabric: own }))
    }
}

/// What could be had, unless the system never gives it here.
///
/// # Errors
/// Something is lacking for now: who went on without it would do so for as long as there is a process.
pub(super) fn had<T>(done: io::Result<T>) -> Result<Option<T>, NoWire> {
    match done {
        Ok(it) => Ok(Some(it)),
        Err(why) => {
            let why = NoWire::from(errno_of(&why));
            if why.is_for_now() { Err(why) } else { Ok(None) }
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.pid, self.user)?;
        if self.directory.is_empty() {
            Ok(())
        } else {
            write!(f, ", which meets others in {}", self.directory)
        }
    }
}

/// What tells fabrics apart, whatever the path to their directory is in one container and another.
fn identity(directory: &Path) -> io::Result<String> {
    let about = std::fs::metadata(directory)?;
    Ok(format!("{:x}.{:x}", about.dev(), about.ino()))
}

fn name(fabric: &str, directory: &Path) -> String {
    let (user, pid) = (process::user(), process::id());
    let name = format!("{STEM}{fabric}/{user}/{pid}/");
    let directory = directory.to_string_lossy();
    if name.len() + directory.len() <= NAME_MAX { name + &directory } else { name }
}

/// A name of this process's own.
pub(super) fn bind(name: &str) -> io::Result<Name> {
    Name::take(name).map_err(|errno| io::Error::from_raw_os_error(errno.raw()))
}

/// All names of this network namespace, as the kernel lists them.
pub(super) fn names() -> io::Result<String> {
    let list = std::fs::read("/proc/thread-self/net/unix")?;
    Ok(String::from_utf8_lossy(&list).into_owned())
}

/// Who has the port, by the text of /proc/net/unix (`proc(5)`), where such names begin with an at sign.
fn holders(table: &str) -> impl Iterator<Item = Holder> {
    table.lines().filter_map(|line| {
        let (_, name) = line.split_once(&format!("@{STEM}"))?;
        let mut parts = name.splitn(4, '/').map(str::to_owned);
        let [fabric, user, pid, directory] = [(); 4].map(|()| parts.next());
        Some(Holder { fabric: fabric?, user: user?, pid: pid?, directory: directory? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_the_port_is() {
        let text = |directory| {
            let name = name("fe00.2a", Path::new(directory));
            assert!(name.len() <= NAME_MAX);
            format!(
                "Num RefCount Protocol Flags Type St Inode Path\n\
                 0: 2 0 0 0002 01 11 @/tmp/.X11-unix/X0\n\
                 0: 2 0 0 0002 01 12 @{STEM}{OPENING}\n\
                 0: 2 0 0 0002 01 13 @{name}\n"
            )
        };
        let short = text("/tmp/a b");
        let [holder] = <[Holder; 1]>::try_from(holders(&short).collect::<Vec<_>>()).unwrap();
        assert_eq!((holder.fabric.as_str(), holder.directory.as_str()), ("fe00.2a", "/tmp/a b"));
        let (user, pid) = (process::user(), process::id());
        let line = format!("process {pid} of user {user}, which meets others in /tmp/a b");
        assert_eq!(holder.to_string(), line);
        let long = text(&"/long".repeat(40));
        let holder = holders(&long).next().unwrap();
        assert_eq!(holder.to_string(), format!("process {pid} of user {user}"));
    }

    #[test]
    fn a_directory_is_the_same_by_whatever_path() {
        let name = |path: &str| identity(Path::new(path)).unwrap();
        assert_eq!(name("/proc/self/root"), name("/"));
        assert_ne!(name("/proc"), name("/"));
    }
}
