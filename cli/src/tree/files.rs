//! The files of a software device in `/sys`, with the names and formats of the kernel
//! (Documentation/ABI/stable/sysfs-class-infiniband, drivers/infiniband/core/sysfs.c).
//!
//! The device is below a folder that looks like a PCI device, because programs take the parent of a
//! device for its place in the machine. There is no `uverbsN`: another copy of libibverbs would
//! open the device as one of the kernel.

use super::counters;
use super::facts::{DeviceFacts, GidFacts, PortFacts};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

/// A file of the tree. Its path is below the folder that stands for `/sys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A file with this text.
    Text(String),
    /// A symbolic link.
    Link(String),
}

/// Files by their paths, such as `class/infiniband/soft0`.
pub(super) type Files = BTreeMap<String, Content>;

/// The PCI domain of software devices: no machine gives this number to a bus of its own.
const DOMAIN: &str = "0fe0";
/// The PCI vendor of EFA devices.
const AMAZON: u32 = 0x1d0f;
/// The most devices of a bus.
const SLOTS: usize = 32;

/// The NUMA node of the devices, as the files name it.
#[derive(Clone, Debug)]
pub(super) struct NumaNode {
    /// The processors as a mask, such as `00000003`.
    pub(super) mask: String,
    /// The processors as a list, such as `0-1`.
    pub(super) list: String,
}

impl NumaNode {
    /// The first node of this machine.
    pub(super) fn first() -> Self {
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/sys/devices/system/node/node0/{name}"));
            text.ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let online = || std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
        let list = read("cpulist").or_else(|| online().map(|text| text.trim().to_owned()));
        Self {
            mask: read("cpumap").unwrap_or_else(|| "1".to_owned()),
            list: list.unwrap_or_else(|| "0".to_owned()),
        }
    }
}

/// The files of all devices.
pub(super) fn of_devices(devices: &[DeviceFacts], node: &NumaNode) -> Files {
    let mut files = Files::new();
    for (place, device) in devices.iter().enumerate().take(SLOTS) {
        add_device(&mut files, place, device, node);
    }
    files
}

/// True for the name of a folder that stands for the PCI device of a software device.
pub(crate) fn is_slot(name: &str) -> bool {
    name.strip_prefix(DOMAIN).is_some_and(|rest| rest.starts_with(":00:"))
}

/// The folder in `devices` that belongs to the tree alone.
pub(super) fn root_of_bus() -> String {
    format!("pci{DOMAIN}:00")
}

/// The name of the PCI device of the software device at `place`.
pub(super) fn slot(place: usize) -> String {
    format!("{DOMAIN}:00:{place:02x}.0")
}

fn add_device(files: &mut Files, place: usize, device: &DeviceFacts, node: &NumaNode) {
    let slot = slot(place);
    let parent = format!("devices/{}/{slot}", root_of_bus());
    let mut add = |path: String, text: String| {
        files.insert(path, Content::Text(text + "\n"));
    };
    for (name, text) in [
        ("vendor", format!("0x{:04x}", device.vendor & 0xffff)),
        ("device", format!("0x{:04x}", device.part & 0xffff)),
        // An Ethernet controller.
        ("class", "0x020000".to_owned()),
        ("numa_node", "0".to_owned()),
        ("local_cpus", node.mask.clone()),
        ("local_cpulist", node.list.clone()),
        ("current_link_speed", "16.0 GT/s PCIe".to_owned()),
        ("max_link_speed", "16.0 GT/s PCIe".to_owned()),
        ("current_link_width", "16".to_owned()),
        ("max_link_width", "16".to_owned()),
        ("uevent", format!("PCI_SLOT_NAME={slot}")),
    ] {
        add(format!("{parent}/{name}"), text);
    }
    if device.vendor == AMAZON {
        // libfabric takes the driver's name from the folder behind this link. The system's own
        // folder of drivers has no EFA.
        let driver = format!("devices/{}/drivers/efa", root_of_bus());
        files.insert(format!("{driver}/uevent"), Content::Text(String::new()));
        files.insert(format!("{parent}/driver"), Content::Link("../drivers/efa".to_owned()));
    }
    let mut add = |path: String, text: String| {
        files.insert(path, Content::Text(text + "\n"));
    };
    let name = &device.name;
    let folder = format!("{parent}/infiniband/{name}");
    for (file, text) in [
        ("node_type", node_type(device.node_type)),
        ("node_guid", guid(device.node_guid)),
        ("sys_image_guid", guid(device.sys_image_guid)),
        ("node_desc", format!("ferroverbs {name}")),
        ("fw_ver", device.firmware.clone()),
        ("hw_rev", format!("{:x}", device.hardware)),
        ("hca_type", "ferroverbs".to_owned()),
        ("board_id", "ferroverbs".to_owned()),
        ("uevent", format!("NAME={name}")),
    ] {
        add(format!("{folder}/{file}"), text);
    }
    for port in &device.ports {
        add_port(&mut add, &format!("{folder}/ports/{}", port.number), port);
    }
    files.insert(format!("{folder}/device"), Content::Link(format!("../../../{slot}")));
    let bus = root_of_bus();
    let target = format!("../../devices/{bus}/{slot}/infiniband/{name}");
    files.insert(format!("class/infiniband/{name}"), Content::Link(target));
    let link = Content::Link("../../../../../class/infiniband".to_owned());
    files.insert(format!("{folder}/subsystem"), link);
}

fn add_port(add: &mut impl FnMut(String, String), folder: &str, port: &PortFacts) {
    for (name, text) in [
        ("state", state(port.state)),
        ("phys_state", phys_state(port.phys_state)),
        ("lid", format!("{:#x}", port.lid)),
        ("lid_mask_count", port.lmc.to_string()),
        ("sm_lid", format!("{:#x}", port.sm_lid)),
        ("sm_sl", port.sm_sl.to_string()),
        ("cap_mask", format!("0x{:08x}", port.capabilities)),
        ("rate", rate(port.width, port.speed)),
        ("link_layer", link_layer(port.link_layer).to_owned()),
    ] {
        add(format!("{folder}/{name}"), text);
    }
    for index in 0..port.table {
        let gid = port.gids.iter().find(|gid| gid.index == index);
        let address = gid.map_or(Ipv6Addr::UNSPECIFIED, |gid| gid.gid);
        add(format!("{folder}/gids/{index}"), full(address));
    }
    // A read of the attributes of an empty entry fails in the kernel, so these files do not exist.
    for GidFacts { index, is_v2, interface, .. } in &port.gids {
        let version = if *is_v2 { "RoCE v2" } else { "IB/RoCE v1" };
        add(format!("{folder}/gid_attrs/types/{index}"), version.to_owned());
        if let Some(interface) = interface {
            add(format!("{folder}/gid_attrs/ndevs/{index}"), interface.clone());
        }
    }
    for (index, pkey) in port.pkeys.iter().enumerate() {
        add(format!("{folder}/pkeys/{index}"), format!("0x{pkey:04x}"));
    }
    for (path, value) in counters::files(&BTreeMap::new()) {
        add(format!("{folder}/{path}"), value.to_string());
    }
}

/// The folders of the ports of all devices.
pub(super) fn ports_of(devices: &[DeviceFacts]) -> Vec<String> {
    let all = devices.iter().enumerate().take(SLOTS).flat_map(|(place, device)| {
        let bus = root_of_bus();
        let parent = format!("devices/{bus}/{}/infiniband/{}", slot(place), device.name);
        device.ports.iter().map(move |port| format!("{parent}/ports/{}", port.number))
    });
    all.collect()
}

/// A GUID as sysfs has it.
pub(crate) fn guid(guid: u64) -> String {
    let group = |shift: u32| guid >> shift & 0xffff;
    format!("{:04x}:{:04x}:{:04x}:{:04x}", group(48), group(32), group(16), group(0))
}

/// An address with all its digits.
fn full(address: Ipv6Addr) -> String {
    address.segments().map(|group| format!("{group:04x}")).join(":")
}

fn node_type(number: u32) -> String {
    let name = match number {
        1 => "CA",
        2 => "switch",
        3 => "router",
        4 => "RNIC",
        5 => "usNIC",
        6 => "usNIC UDP",
        7 => "unspecified",
        _ => "<unknown>",
    };
    format!("{number}: {name}")
}

fn state(number: u32) -> String {
    let names = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
    let name = usize::try_from(number).ok().and_then(|at| names.get(at));
    format!("{number}: {}", name.unwrap_or(&"UNKNOWN"))
}

fn phys_state(number: u32) -> String {
    let name = match number {
        1 => "Sleep",
        2 => "Polling",
        3 => "Disabled",
        4 => "PortConfigurationTraining",
        5 => "LinkUp",
        6 => "LinkErrorRecovery",
        7 => "Phy Test",
        _ => "<unknown>",
    };
    format!("{number}: {name}")
}

const fn link_layer(number: u32) -> &'static str {
    match number {
        1 => "InfiniBand",
        2 => "Ethernet",
        _ => "Unknown",
    }
}

/// The rate of a port, by the codes of `ibv_query_port(3)`.
fn rate(width: u32, speed: u32) -> String {
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    // A lane in units of 100 Mbit/s.
    let (lane, name) = match speed {
        2 => (50, "DDR"),
        4 => (100, "QDR"),
        8 => (100, "FDR10"),
        16 => (140, "FDR"),
        32 => (250, "EDR"),
        64 => (500, "HDR"),
        128 => (1000, "NDR"),
        _ => (25, "SDR"),
    };
    let all = lanes * lane;
    let half = if all % 10 == 0 { "" } else { ".5" };
    format!("{}{half} Gb/sec ({lanes}X {name})", all / 10)
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::example;
    use super::*;

    fn files() -> Files {
        let node = NumaNode { mask: "3".into(), list: "0-1".into() };
        of_devices(&[example()], &node)
    }

    fn text(path: &str) -> String {
        let folder = "devices/pci0fe0:00/0fe0:00:00.0";
        match files().get(&format!("{folder}/{path}")) {
            Some(Content::Text(text)) => text.clone(),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn files_have_the_formats_of_the_kernel() {
        let device = "infiniband/mlx5_0";
        for (path, expected) in [
            ("node_type", "1: CA\n"),
            ("node_guid", "0201:0203:0405:0607\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/phys_state", "5: LinkUp\n"),
            ("ports/1/lid", "0x0\n"),
            ("ports/1/cap_mask", "0x04010000\n"),
            ("ports/1/rate", "100 Gb/sec (4X EDR)\n"),
            ("ports/1/link_layer", "Ethernet\n"),
            ("ports/1/gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
            ("ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            ("ports/1/gid_attrs/types/3", "RoCE v2\n"),
            ("ports/1/gid_attrs/ndevs/3", "eth0\n"),
            ("ports/1/pkeys/0", "0xffff\n"),
            ("ports/1/hw_counters/rcvd_pkts", "0\n"),
        ] {
            assert_eq!(text(&format!("{device}/{path}")), expected, "{path}");
        }
        assert_eq!(text("numa_node"), "0\n");
    }

    #[test]
    fn empty_entries_have_no_attributes() {
        let paths: Vec<_> = files().into_keys().collect();
        let of = |end: &str| paths.iter().filter(|path| path.contains(end)).count();
        assert_eq!((of("/gids/"), of("/types/"), of("/ndevs/")), (32, 2, 1));
    }

    #[test]
    fn another_copy_of_libibverbs_finds_nothing_to_open() {
        assert!(files().keys().all(|path| !path.contains("uverbs") && !path.ends_with("/dev")));
        assert!(files().keys().all(|path| !path.contains("modalias")));
    }

    #[test]
    fn rates_are_those_of_the_kernel() {
        assert_eq!(rate(1, 1), "2.5 Gb/sec (1X SDR)");
        assert_eq!(rate(2, 16), "56 Gb/sec (4X FDR)");
        assert_eq!(rate(2, 64), "200 Gb/sec (4X HDR)");
    }
}
