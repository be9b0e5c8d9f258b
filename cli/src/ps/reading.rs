//! Reads what the processes of the software adapter share: tables with the QPs
//! (`soft_local::shm::layout`), descriptors that name the devices
//! (`providers/soft/src/ops/context_identity.rs`), and the slots of a fabric
//! (`soft_local::fabric`). `soft_local::names` has the names of these files. A process has all of
//! them open, so the process does not take part.

use crate::output;
use crate::processes::{self, Identity};
use crate::settings;
use soft_local::names::{self, CONTEXT_MAGIC};
use soft_local::shm::layout::{Life, MAGIC, QPS, QpEntry, SLOTS, TABLES_QPS, qpn};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A process that has a software device open.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SoftProcess {
    pub(super) pid: u32,
    pub(super) command: String,
    /// Names of its open devices.
    pub(super) devices: Vec<String>,
    pub(super) fabric: Option<Fabric>,
    /// `None`: another release wrote the tables.
    pub(super) qps: Option<Vec<QueuePair>>,
}

/// The folder in which processes of a host meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fabric {
    pub(super) path: String,
    /// Device and inode of its file of slots.
    pub(super) identity: Identity,
}

/// A QP, by its entry in the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueuePair {
    pub(super) number: u32,
    pub(super) kind: &'static str,
    pub(super) state: &'static str,
    pub(super) is_port_down: bool,
    pub(super) destination: Destination,
}

/// The other end of a QP, by the entry of the QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// The QP is not connected.
    None,
    /// A QP of this host, by its number.
    Here(u32),
    /// A QP of another host, whose number the tables do not have.
    OtherHost,
}

/// The processes of the adapter that this user may read, by number.
///
/// # Errors
/// `/proc` cannot be read.
pub(super) fn processes() -> crate::Result<Vec<SoftProcess>> {
    let open: Vec<_> = processes::numbers()?.into_iter().filter_map(OpenFiles::of).collect();
    let mut owners = BTreeMap::new();
    for (identity, file) in open.iter().filter_map(|open| open.slots.as_ref()) {
        owners.entry(*identity).or_insert_with(|| owners_of_slots(file));
    }
    let mut all = Vec::new();
    for files in &open {
        let fabric = files.slots.as_ref().map(|(identity, _)| *identity);
        let slots = fabric.and_then(|identity| owners.get(&identity));
        let slot = slots.and_then(|slots| slots.get(&files.pid));
        // A forked child that opened no device itself has the files of its parent, and no slot.
        if let Some(slot) = slot {
            let is_elsewhere = |identity: &Identity| {
                let mut others = open.iter().filter(|other| other.pid != files.pid);
                others.any(|other| other.tables.iter().any(|(of, _)| of == identity))
            };
            all.push(files.read(*slot, is_elsewhere));
        }
    }
    Ok(all)
}

/// The slots that are taken, by the process that holds each.
fn owners_of_slots(file: &File) -> BTreeMap<u32, u16> {
    let all = (1..SLOTS as u16).filter_map(|slot| {
        let owner = soft_sys::lock::holder(file.as_fd(), slot.into(), 1).ok()??;
        // A process of another PID namespace is 0.
        Some((u32::try_from(owner).ok().filter(|pid| *pid != 0)?, slot))
    });
    all.collect()
}

/// The files of the adapter that a process has open.
#[derive(Debug)]
struct OpenFiles {
    pid: u32,
    /// At least one; a forked child also has its parent's.
    tables: Vec<(Identity, File)>,
    /// Numbers of the devices whose contexts are open.
    devices: BTreeSet<u64>,
    slots: Option<(Identity, File)>,
    folder: Option<PathBuf>,
}

impl OpenFiles {
    /// `None` if the process has no tables, or if the user may not read it.
    fn of(pid: u32) -> Option<Self> {
        let mut tables = Vec::new();
        let (mut devices, mut slots, mut folder) = (BTreeSet::new(), None, None);
        for descriptor in processes::descriptors(pid) {
            let target = &descriptor.target;
            if names::is_memory_file(target, names::TABLES) {
                tables.extend(descriptor.open());
            } else if names::is_memory_file(target, names::CONTEXT) {
                devices.extend(device_of_context(&descriptor.path));
            } else if slots.is_none() && names::is_slots_file(target) {
                slots = descriptor.open();
                folder = target.parent().map(Path::to_owned);
            }
        }
        (!tables.is_empty()).then_some(Self { pid, tables, devices, slots, folder })
    }

    /// The process with `slot`. `is_elsewhere` tells whether another process has a file open, too.
    fn read(&self, slot: u16, is_elsewhere: impl Fn(&Identity) -> bool) -> SoftProcess {
        let own = self.tables.iter().find(|(identity, _)| !is_elsewhere(identity));
        let tables = own.or(self.tables.last()).map(|(_, file)| file);
        let environment = processes::environment(self.pid);
        let pattern = processes::variable(&environment, settings::NAME);
        let names = settings::device_names(pattern.as_deref());
        let name = |device: &u64| names.name(usize::try_from(*device).unwrap_or_default());
        let fabric =
            self.slots.as_ref().zip(self.folder.as_ref()).map(|((identity, _), folder)| Fabric {
                path: output::printable(&folder.to_string_lossy()),
                identity: *identity,
            });
        SoftProcess {
            pid: self.pid,
            command: processes::command(self.pid),
            devices: self.devices.iter().map(name).collect(),
            fabric,
            qps: tables.and_then(|tables| read_queue_pairs(tables, slot)),
        }
    }
}

/// The number of the device that a context's file names.
fn device_of_context(path: &Path) -> Option<u64> {
    let mut bytes = [0; 16];
    File::open(path).ok()?.read_exact_at(&mut bytes, 0).ok()?;
    let (magic, device) = bytes.split_first_chunk::<8>()?;
    let device = u64::from_ne_bytes(*device.first_chunk()?);
    (u64::from_ne_bytes(*magic) == CONTEXT_MAGIC).then_some(device)
}

/// The QPs in the tables of the process with `slot`. `None` if the tables have another layout.
fn read_queue_pairs(tables: &File, slot: u16) -> Option<Vec<QueuePair>> {
    let mut magic = [0; 8];
    tables.read_exact_at(&mut magic, 0).ok()?;
    if u64::from_ne_bytes(magic) != MAGIC {
        return None;
    }
    let mut bytes = vec![0; QPS * size_of::<QpEntry>()];
    tables.read_exact_at(&mut bytes, TABLES_QPS as u64).ok()?;
    Some(queue_pairs(&bytes, slot))
}

/// The QPs among the entries of a table.
fn queue_pairs(entries: &[u8], slot: u16) -> Vec<QueuePair> {
    let life = |entry: &[u8]| {
        let word = entry.get(std::mem::offset_of!(QpEntry, packed_life)..)?.first_chunk()?;
        Some(Life::unpack(u64::from_ne_bytes(*word)))
    };
    let all = entries.chunks_exact(size_of::<QpEntry>()).enumerate();
    let found = all.filter_map(|(index, entry)| {
        let life = life(entry)?;
        let (state, is_port_down) = state_of(life.state)?;
        Some(QueuePair {
            number: qpn(slot, index),
            kind: kind_of(life.qp_type),
            state,
            is_port_down,
            destination: destination_of(life),
        })
    });
    found.collect()
}

fn destination_of(life: Life) -> Destination {
    const CONNECTED: [u32; 4] =
        [abi::IBV_QPT_RC, abi::IBV_QPT_UC, abi::IBV_QPT_XRC_SEND, abi::IBV_QPT_XRC_RECV];
    let is_connected = !matches!(life.state, Life::RESET | Life::INIT | Life::ERR);
    match life.dest_qpn & 0xff_ffff {
        0 if is_connected && CONNECTED.contains(&life.qp_type.into()) => Destination::OtherHost,
        0 => Destination::None,
        number => Destination::Here(number),
    }
}

/// The name of a state, and whether the port is down. `None`: no QP.
fn state_of(state: u8) -> Option<(&'static str, bool)> {
    Some(match state {
        Life::RESET => ("RESET", false),
        Life::INIT => ("INIT", false),
        Life::RTR => ("RTR", false),
        Life::SQE => ("SQE", false),
        Life::RTS => ("RTS", false),
        Life::SQD => ("SQD", false),
        Life::ERR => ("ERR", false),
        Life::RTR_DOWN => ("RTR", true),
        Life::SQE_DOWN => ("SQE", true),
        Life::RTS_DOWN => ("RTS", true),
        Life::SQD_DOWN => ("SQD", true),
        _ => return None,
    })
}

fn kind_of(kind: u8) -> &'static str {
    match u32::from(kind) {
        abi::IBV_QPT_RC => "RC",
        abi::IBV_QPT_UC => "UC",
        abi::IBV_QPT_UD => "UD",
        abi::IBV_QPT_RAW_PACKET => "RAW_PACKET",
        abi::IBV_QPT_XRC_SEND => "XRC_SEND",
        abi::IBV_QPT_XRC_RECV => "XRC_RECV",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_table_are_qps_with_numbers_of_the_slot() {
        let entry = |life: Life| {
            let mut bytes = vec![0; size_of::<QpEntry>()];
            bytes[..8].copy_from_slice(&life.pack().to_ne_bytes());
            bytes
        };
        let life = |state, kind: u32, dest_qpn| Life {
            state,
            qp_type: kind as u8,
            generation: 7,
            dest_qpn,
        };
        let table = [
            entry(Life::unpack(0)),
            entry(life(Life::RTS_DOWN, abi::IBV_QPT_RC, 0x1234)),
            entry(life(Life::INIT, abi::IBV_QPT_UD, 0)),
            // Bytes that no release writes.
            entry(life(0xff, abi::IBV_QPT_UD, 0)),
            entry(life(Life::RTS, 77, 0)),
            entry(life(Life::RTR, abi::IBV_QPT_UC, 0)),
        ]
        .concat();
        let found = queue_pairs(&table, 3);
        let qp = |index, kind, state, is_port_down, destination| QueuePair {
            number: qpn(3, index),
            kind,
            state,
            is_port_down,
            destination,
        };
        assert_eq!(
            found,
            [
                qp(1, "RC", "RTS", true, Destination::Here(0x1234)),
                qp(2, "UD", "INIT", false, Destination::None),
                qp(4, "unknown", "RTS", false, Destination::None),
                qp(5, "UC", "RTR", false, Destination::OtherHost),
            ]
        );
        assert_eq!(queue_pairs(&table[..100], 3), [], "half an entry is none");
    }

    #[test]
    fn a_process_without_a_device_has_no_files() {
        assert!(OpenFiles::of(std::process::id()).is_none());
    }
}
