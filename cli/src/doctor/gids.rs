//! Checks the GID table and the path MTU of RoCE ports: the index to use, and the largest packet.

use super::check::Check;
use super::devices::{Device, Port};
use super::machine::Machine;
use std::net::{IpAddr, Ipv6Addr};

/// Bytes of headers around the payload: IPv6 40, UDP 8, BTH 12, RETH 16, ICRC 4
/// (IBTA 1.7 A17).
const HEADERS: u32 = 80;

/// Checks each RoCE port of `devices`.
pub(super) fn check(machine: &Machine, devices: &[Device]) -> Vec<Check> {
    let mut checks = Vec::new();
    for device in devices {
        for port in device.ports.iter().filter(|port| port.is_ethernet) {
            checks.extend(check_port(machine, device, port));
        }
    }
    checks
}

/// Rounds the recommended MTU up to 4200.
const SPARE: u32 = 24;

/// An entry of the GID table with an address.
struct Gid {
    index: u32,
    address: Ipv6Addr,
    is_v2: bool,
    interface: Option<String>,
}

impl Gid {
    /// The order of preference: the entry with the lowest rank is the best.
    fn rank(&self) -> u32 {
        let kind = match self.address.to_ipv4_mapped() {
            Some(_) => 0,
            None if self.address.is_unicast_link_local() => 2,
            None => 1,
        };
        // Routers do not forward RoCE v1.
        kind + if self.is_v2 { 0 } else { 3 }
    }

    fn text(&self) -> String {
        let address = match self.address.to_ipv4_mapped() {
            Some(v4) => v4.to_string(),
            None => self.address.to_string(),
        };
        let version = if self.is_v2 { "RoCE v2" } else { "RoCE v1" };
        let on = self.interface.as_deref().map_or(String::new(), |name| format!(" on {name}"));
        format!("{version}, {address}{on}")
    }
}

/// The best GID of a port, and the largest path MTU of its interface.
fn check_port(machine: &Machine, device: &Device, port: &Port) -> Vec<Check> {
    let name = format!("{} port {}", device.name, port.number);
    let mut gids = read_table(machine, device, port);
    gids.sort_by_key(Gid::rank);
    let Some(best) = gids.first() else {
        let finding = format!("{name} has no GID");
        return vec![Check::missing("gids", finding, "ip addr add ADDRESS/24 dev INTERFACE")];
    };
    let advice = format!("{name}: use GID index {} ({})", best.index, best.text());
    let interface = best.interface.as_deref().unwrap_or("INTERFACE");
    let mut checks = vec![match best.rank() {
        0 | 1 => Check::ok("gids", advice),
        2 => Check::note(
            "gids",
            format!("{advice}; the address reaches hosts of the same link only"),
        )
        .remedy(format!("ip addr add ADDRESS/24 dev {interface}")),
        _ => Check::note(
            "gids",
            format!("{advice}; the port has no entry of RoCE v2, which routers forward"),
        )
        .remedy(format!("ip addr add ADDRESS/24 dev {interface}")),
    }];
    let mtu = best.interface.as_deref().and_then(|interface| {
        machine.read(format!("/sys/class/net/{interface}/mtu"))?.parse::<u32>().ok()
    });
    checks.extend(mtu.map(|mtu| path_mtu(&name, interface, mtu)));
    checks
}

/// The RoCE v2 entries of all devices that have this address.
pub(super) fn of_address(machine: &Machine, devices: &[Device], address: IpAddr) -> Vec<String> {
    let wanted = match address {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    };
    let mut found = Vec::new();
    for device in devices {
        for port in device.ports.iter().filter(|port| port.is_ethernet) {
            let mut gids = read_table(machine, device, port);
            gids.retain(|gid| gid.is_v2 && gid.address == wanted);
            let name =
                |gid: &Gid| format!("{} port {} index {}", device.name, port.number, gid.index);
            found.extend(gids.iter().map(name));
        }
    }
    found
}

/// The used entries of a port's GID table.
fn read_table(machine: &Machine, device: &Device, port: &Port) -> Vec<Gid> {
    let folder = format!("{}/ports/{}", device.folder(), port.number);
    let entries = machine.list(format!("{folder}/gids"));
    entries
        .iter()
        .filter_map(|entry| {
            let index = entry.parse().ok()?;
            let address: Ipv6Addr = machine.read(format!("{folder}/gids/{entry}"))?.parse().ok()?;
            // An unused entry is zero, or a read of its type fails.
            let kind = machine.read(format!("{folder}/gid_attrs/types/{entry}"))?;
            let interface = machine.read(format!("{folder}/gid_attrs/ndevs/{entry}"));
            let gid = Gid { index, address, is_v2: kind.ends_with("v2"), interface };
            (!address.is_unspecified()).then_some(gid)
        })
        .collect()
}

/// The largest path MTU for an interface with this MTU.
pub(super) fn largest_path_mtu(mtu: u32) -> Option<u32> {
    [4096, 2048, 1024, 512, 256].into_iter().find(|path| path + HEADERS <= mtu)
}

/// The command that allows path MTU 4096.
pub(super) fn raise_mtu_command(interface: &str) -> String {
    let enough = 4096 + HEADERS + SPARE;
    format!("for 4096, on all hosts and switches between: ip link set dev {interface} mtu {enough}")
}

fn path_mtu(name: &str, interface: &str, mtu: u32) -> Check {
    match largest_path_mtu(mtu) {
        Some(4096) => Check::ok("mtu", format!("{name}: path MTU 4096 ({interface} has {mtu})")),
        Some(path) => {
            let finding = format!("{name}: path MTU {path} ({interface} has {mtu})");
            Check::note("mtu", finding).remedy(raise_mtu_command(interface))
        }
        None => Check::missing(
            "mtu",
            format!("{name}: no packet fits ({interface} has {mtu})"),
            format!("ip link set dev {interface} mtu 1500"),
        ),
    }
}
