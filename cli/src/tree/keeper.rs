//! The process that keeps the device tree current: the files that stand in for the kernel's in
//! `/sys/class/infiniband`. `ferroverbs run` starts it before it becomes the user's command. The
//! process ends when the command has ended and no other process sees the tree.
//!
//! The kernel reports changed addresses, so the GID files follow at once. The process reads
//! counters once in a second.

use super::Environment;
use super::counters::{self, LIFESPAN_MS, Processes};
use super::facts::{DeviceFacts, PortFacts, query_devices};
use super::files::{self, Content, NumaNode, ports_of};
use super::folder::Folder;
use super::interfaces;
use crate::processes;
use crate::settings;
use netlink::changes::AddressChanges;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, setsid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::set_name;
use soft_semantics::gid_order::{GidEntries, GidOrder};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// The name of the process in ps(1). A later command finds the process by its name.
const NAME: &std::ffi::CStr = c"ferroverbs-tree";

/// The processes of this name that run as `user`.
pub(super) fn processes_of(user: u32) -> Vec<u32> {
    let is_keeper = |process: &u32| {
        processes::command(*process).as_bytes() == NAME.to_bytes()
            && processes::user(*process) == Some(user)
    };
    // Without /proc no process is known.
    processes::numbers().unwrap_or_default().into_iter().filter(is_keeper).collect()
}

/// Starts the process. `command` is the calling process, which later executes the user's command.
pub(super) fn start(
    command: Pid,
    folder: Folder,
    environment: &Environment,
    devices: Vec<DeviceFacts>,
) -> std::io::Result<()> {
    let command = pidfd_open(command, PidfdFlags::empty())?;
    // Without netlink, as in a sandbox, addresses are read once a second, with the counters.
    let news = AddressChanges::open().ok();
    // SAFETY: this process has one thread, so the child inherits no lock of another thread.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            // The process forks twice, so it is no child of the later command, which may wait for
            // all of its children.
            waitpid(child, None)?;
            Ok(())
        }
        ForkResult::Child => {
            let _ = setsid();
            // Before the caller goes on, so that a later command finds the process by the name.
            let _ = set_name(NAME);
            // SAFETY: as above.
            if matches!(unsafe { fork() }, Ok(ForkResult::Child)) {
                let mut keeper = TreeKeeper {
                    order: order_of(environment),
                    tables: BTreeMap::new(),
                    environment: environment.clone(),
                    processes: Processes::default(),
                    folder,
                    command,
                    news,
                    devices,
                    node: NumaNode::first(),
                };
                keeper.leave_callers_things();
                keeper.run();
            }
            // No exit handlers of `ferroverbs` run in this process.
            // SAFETY: the call does not return.
            unsafe { libc::_exit(0) }
        }
    }
}

/// The order of GIDs in the environment of the command.
fn order_of(environment: &Environment) -> GidOrder {
    let changed = environment.iter().find(|(name, _)| name == settings::GIDS);
    let value = match changed {
        Some((_, value)) => value.clone(),
        None => std::env::var_os(settings::GIDS),
    };
    settings::gid_order(value.as_deref())
}

struct TreeKeeper {
    command: OwnedFd,
    news: Option<AddressChanges>,
    folder: Folder,
    environment: Environment,
    devices: Vec<DeviceFacts>,
    node: NumaNode,
    processes: Processes,
    order: GidOrder,
    /// The entries of the addresses, by device and port: an address that stays keeps its index, as
    /// in processes that have the device open.
    tables: BTreeMap<(String, u32), GidEntries>,
}

impl TreeKeeper {
    /// Closes what this process has from the caller of the command, who may wait for the end of a
    /// pipe.
    fn leave_callers_things(&self) {
        let _ = std::env::set_current_dir("/");
        if let Ok(null) = fs::File::options().read(true).write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdin(&null);
            let _ = rustix::stdio::dup2_stdout(&null);
            let _ = rustix::stdio::dup2_stderr(&null);
        }
        let mut own = vec![0, 1, 2, self.command.as_raw_fd(), self.folder.root().as_raw_fd()];
        own.extend(self.news.as_ref().map(|news| news.as_fd().as_raw_fd()));
        let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let open: Vec<RawFd> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        for fd in open.into_iter().filter(|fd| !own.contains(fd)) {
            // SAFETY: no value of this process owns the descriptor: it is of the caller, or of the
            // folder that was read above and is closed already.
            unsafe { libc::close(fd) };
        }
    }

    fn run(&mut self) {
        let devices = std::mem::take(&mut self.devices);
        self.settle(devices);
        let mut has_ended = false;
        loop {
            let (ended, is_news) = self.wait(has_ended);
            has_ended |= ended;
            if is_news && let Ok(devices) = query_devices(&self.environment) {
                self.settle(devices);
                interfaces::follow(&self.devices);
            }
            let (values, others) = self.processes.read();
            if has_ended && others == 0 {
                return;
            }
            self.write(&values);
        }
    }

    /// Waits for news, for the end of the command, or for the time to read counters. Returns
    /// whether the command has ended, and whether addresses may have changed.
    fn wait(&self, has_ended: bool) -> (bool, bool) {
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        if !has_ended {
            fds.push(PollFd::new(&self.command, PollFlags::IN));
        }
        let news = self.news.as_ref();
        fds.extend(news.map(|news| PollFd::new(news, PollFlags::IN)));
        let period =
            Timespec { tv_sec: i64::try_from(LIFESPAN_MS / 1000).unwrap_or(1), tv_nsec: 0 };
        let _ = poll(&mut fds, Some(&period));
        let ended = !has_ended && fds.first().is_some_and(|fd| !fd.revents().is_empty());
        (ended, news.is_none_or(AddressChanges::discard_all))
    }

    /// Takes new facts. Addresses that stay keep their indices.
    fn settle(&mut self, mut devices: Vec<DeviceFacts>) {
        for device in &mut devices {
            for port in &mut device.ports {
                let key = (device.name.clone(), port.number);
                let order = self.order;
                let table = self.tables.entry(key).or_insert_with(|| GidEntries::new(order));
                settle_port(table, port);
            }
        }
        self.devices = devices;
    }

    fn write(&mut self, values: &counters::Values) {
        let mut wanted = files::of_devices(&self.devices, &self.node);
        for port in ports_of(&self.devices) {
            for (path, value) in counters::files(values) {
                wanted.insert(format!("{port}/{path}"), Content::Text(format!("{value}\n")));
            }
        }
        // A file that cannot be written keeps its text. Nobody is left to tell.
        let _ = self.folder.update(wanted);
    }
}

/// Gives the entries of a port the indices of `table`. Entry 0 is of the device.
fn settle_port(table: &mut GidEntries, port: &mut PortFacts) {
    let raw = |gid: &super::facts::GidFacts| gid.gid.octets();
    let now: Vec<_> = port.gids.iter().filter(|gid| gid.index != 0).map(raw).collect();
    table.arrange(now.iter());
    let index_of = |wanted: [u8; 16]| {
        let found = table.iter().find(|(_, raw)| **raw == wanted);
        found.and_then(|(index, _)| u32::try_from(index).ok())
    };
    port.gids.retain_mut(|gid| {
        if gid.index == 0 {
            return true;
        }
        let Some(index) = index_of(gid.gid.octets()) else { return false };
        gid.index = index;
        true
    });
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::example;
    use super::*;

    #[test]
    fn an_address_that_stays_keeps_its_index() {
        let port = |addresses: &[&str]| {
            let [mut port] = <[PortFacts; 1]>::try_from(example().ports).unwrap();
            let first = port.gids[0].clone();
            let gid = |(index, address): (u32, &&str)| super::super::facts::GidFacts {
                index,
                gid: address.parse().unwrap(),
                ..first.clone()
            };
            port.gids.truncate(1);
            port.gids.extend((1..).zip(addresses).map(gid));
            port
        };
        let indices = |port: &PortFacts| port.gids.iter().map(|gid| gid.index).collect::<Vec<_>>();
        let mut table = GidEntries::new(GidOrder::Soft);
        let mut first = port(&["::ffff:10.0.0.1", "::ffff:10.0.0.2"]);
        settle_port(&mut table, &mut first);
        assert_eq!(indices(&first), [0, 1, 2]);
        let mut second = port(&["::ffff:10.0.0.2", "::ffff:10.0.0.3"]);
        settle_port(&mut table, &mut second);
        assert_eq!(indices(&second), [0, 2, 3]);
    }
}
