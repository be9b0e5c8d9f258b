//! Checks the kernel's RDMA devices by sysfs (Documentation/ABI/stable/sysfs-class-infiniband), and
//! their nodes.

use super::check::{Check, CheckState};
use super::machine::Machine;
use rustix::fs::{Access, access};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// An RDMA device of the kernel.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) ports: Vec<Port>,
    /// The plugin for the driver of the device; `None` for an unknown driver.
    pub(super) plugin: Option<&'static str>,
}

/// A port of a device.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) number: u32,
    pub(super) is_active: bool,
    pub(super) state: String,
    pub(super) is_ethernet: bool,
}

impl Device {
    pub(super) fn folder(&self) -> String {
        format!("/sys/class/infiniband/{}", self.name)
    }

    /// True for the software device rdma_rxe of the kernel. Other devices are cards.
    pub(super) fn is_rxe(&self) -> bool {
        self.plugin == Some("rxe")
    }
}

/// Drivers of the kernel, and the plugins for their devices.
const DRIVERS: &[(&str, &str)] = &[
    ("mlx5_core", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("cxgb4", "cxgb4"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("idpf", "irdma"),
    ("vmw_pvrdma", "vmw_pvrdma"),
    ("qede", "qedr"),
    ("hns3", "hns"),
    ("hfi1", "hfi1verbs"),
    ("ib_qib", "ipathverbs"),
    ("efa", "efa"),
    ("erdma", "erdma"),
    ("mana", "mana"),
];

/// The devices of the kernel. A file in sysfs proves no such device: `ferroverbs run` shows devices
/// that a plugin of libibverbs announces, in the same folder.
pub(super) fn find(machine: &Machine) -> Vec<Device> {
    let mut names = machine.list(CLASS);
    names.retain(|name| !is_announced(machine, name));
    names.into_iter().map(|name| device(machine, name)).collect()
}

fn is_announced(machine: &Machine, name: &str) -> bool {
    let slot = machine.link_target(format!("{CLASS}/{name}/device"));
    machine.announced.iter().any(|other| other == name)
        || slot.is_some_and(|slot| crate::tree::is_slot(&slot))
}

/// The folder of RDMA devices.
pub(super) const CLASS: &str = "/sys/class/infiniband";

fn device(machine: &Machine, name: String) -> Device {
    let folder = format!("/sys/class/infiniband/{name}");
    let driver = machine.link_target(format!("{folder}/device/driver"));
    let known = DRIVERS.iter().find(|(kernel, _)| driver.as_deref() == Some(*kernel));
    // A device with a parent interface is of rdma_rxe.
    let is_rxe = driver.is_none() && machine.has_file(format!("{folder}/parent"));
    let mut ports: Vec<_> = machine
        .list(format!("{folder}/ports"))
        .into_iter()
        .filter_map(|number| port(machine, &folder, number.parse().ok()?))
        .collect();
    ports.sort_by_key(|port| port.number);
    Device {
        plugin: if is_rxe { Some("rxe") } else { known.map(|(_, plugin)| *plugin) },
        name,
        ports,
    }
}

fn port(machine: &Machine, folder: &str, number: u32) -> Option<Port> {
    let folder = format!("{folder}/ports/{number}");
    // `4: ACTIVE`
    let state = machine.read(format!("{folder}/state"))?;
    let layer = machine.read(format!("{folder}/link_layer"));
    Some(Port {
        number,
        is_active: state.starts_with('4'),
        state: state.split(": ").nth(1).unwrap_or(&state).to_owned(),
        is_ethernet: layer.as_deref() == Some("Ethernet"),
    })
}

pub(super) fn check(machine: &Machine, devices: &[Device]) -> Vec<Check> {
    if devices.is_empty() {
        return vec![without_device(machine)];
    }
    let mut checks = Vec::new();
    for device in devices {
        for port in &device.ports {
            let kind = if port.is_ethernet { "RoCE" } else { "InfiniBand" };
            let what = format!("{} port {}: {kind}, {}", device.name, port.number, port.state);
            checks.push(match (port.is_active, port.is_ethernet) {
                (true, _) => Check::ok("devices", what),
                (false, true) => {
                    Check::missing("devices", what, link_up_command(machine, device, port))
                }
                (false, false) => Check::missing(
                    "devices",
                    what,
                    "a cable, and a subnet manager on one machine: systemctl start opensm",
                ),
            });
        }
    }
    checks.extend(nodes(machine));
    checks.push(connections(machine));
    checks
}

fn link_up_command(machine: &Machine, device: &Device, port: &Port) -> String {
    let folder = format!("{}/ports/{}/gid_attrs/ndevs", device.folder(), port.number);
    let names = machine.list(&folder);
    let interface = names.iter().find_map(|n| machine.read(format!("{folder}/{n}")));
    format!("ip link set dev {} up", interface.as_deref().unwrap_or("INTERFACE"))
}

fn without_device(machine: &Machine) -> Check {
    let kernel = if machine.has_file("/sys/class/infiniband") {
        "the kernel has no RDMA device"
    } else {
        "the kernel has no RDMA support loaded"
    };
    if machine.variable("FERROVERBS_SOFT").is_some_and(|v| v == "off" || v == "0") {
        let finding = format!("{kernel}, and FERROVERBS_SOFT switches the software device off");
        return Check::missing("devices", finding, "unset FERROVERBS_SOFT");
    }
    let name = super::soft::name(machine);
    let finding = format!("{kernel}: programs get the software device {name}");
    Check::ok("devices", finding)
}

/// Checks the node `/dev/infiniband/uverbsN` of each device.
fn nodes(machine: &Machine) -> Vec<Check> {
    let listed = machine.list("/sys/class/infiniband_verbs");
    let names: Vec<_> = listed.iter().filter(|name| name.starts_with("uverbs")).collect();
    if names.is_empty() {
        let finding = "no device can be opened: the kernel's module ib_uverbs is not loaded";
        return vec![Check::missing("nodes", finding, "modprobe ib_uverbs")];
    }
    names.into_iter().map(|name| node(machine, name)).collect()
}

/// True if this user can open a device.
pub(super) fn any_opens(machine: &Machine) -> bool {
    let listed = machine.list("/sys/class/infiniband_verbs");
    let nodes = listed.iter().map(|name| machine.file_path(format!("/dev/infiniband/{name}")));
    nodes.into_iter().any(|node| access(node, Access::READ_OK | Access::WRITE_OK).is_ok())
}

/// Checks `/dev/infiniband/rdma_cm`, which librdmacm needs for devices of the kernel. Programs that
/// use verbs alone work without the node, so a missing node is a note.
fn connections(machine: &Machine) -> Check {
    if !machine.has_file("/sys/class/misc/rdma_cm") && !machine.has_file("/dev/infiniband/rdma_cm")
    {
        let finding = "nothing connects by librdmacm: the kernel's module rdma_ucm is not loaded";
        return Check::note("nodes", finding).remedy("modprobe rdma_ucm");
    }
    let check = can_be_opened(machine, "rdma_cm", "/sys/class/misc/rdma_cm/dev");
    match check.state {
        CheckState::Missing => Check {
            state: CheckState::Note,
            finding: format!("nothing connects by librdmacm: {}", check.finding),
            ..check
        },
        _ => check,
    }
}

fn node(machine: &Machine, name: &str) -> Check {
    can_be_opened(machine, name, &format!("/sys/class/infiniband_verbs/{name}/dev"))
}

/// Checks a node in `/dev/infiniband`. `numbers` is the file of sysfs with the device numbers.
fn can_be_opened(machine: &Machine, name: &str, numbers: &str) -> Check {
    let node = format!("/dev/infiniband/{name}");
    let path = machine.file_path(&node);
    let Ok(data) = fs::metadata(&path) else {
        let numbers = machine.read(numbers);
        let numbers = numbers.map_or("MAJOR MINOR".into(), |n| n.replace(':', " "));
        let make = format!("mkdir -p /dev/infiniband; mknod -m 666 {node} c {numbers}");
        let remedy = format!("{make} (in a container: start it with --device={node})");
        return Check::missing("nodes", format!("{node} is missing"), remedy);
    };
    if access(&path, Access::READ_OK | Access::WRITE_OK).is_ok() {
        return Check::ok("nodes", format!("{node} can be opened"));
    }
    let finding = format!("{node} (mode {:o}) cannot be opened by you", data.mode() & 0o777);
    let remedy = if data.mode() & 0o060 == 0o060 {
        format!("usermod -aG \"$(stat -c %G {node})\" \"$USER\", as root, then log in again")
    } else {
        format!("chmod 666 {node}, as root")
    };
    Check::missing("nodes", finding, remedy)
}
