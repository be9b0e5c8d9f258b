//! Checks the GID table and the path MTU of the software device, by the rules of
//! docs/guide/hosts.md.
//!
//! GID index 0 reaches this host only. The addresses of the interfaces that are up follow. The
//! table has loopback addresses only if no interface has another address.

use super::check::Check;
use super::devices::{self, Device};
use super::gids::{largest_path_mtu, raise_mtu_command};
use super::interfaces::Address;
use super::machine::Machine;
use crate::settings;
use soft_semantics::gid_order::GidEntries;
use std::net::{IpAddr, Ipv6Addr};

/// The name of the first software device. All software devices have the same addresses.
pub(super) fn name(machine: &Machine) -> String {
    settings::device_names(machine.variable(settings::NAME).as_deref()).name(0)
}

/// True if programs see the software device: `FERROVERBS_SOFT` asks for the device, or no kernel
/// device opens.
pub(super) fn is_visible(machine: &Machine, devices: &[Device]) -> bool {
    let setting = machine.variable("FERROVERBS_SOFT");
    match setting.as_ref().and_then(|value| value.to_str()) {
        Some("off" | "0") => false,
        Some("on") => true,
        Some(count) if count.parse::<u32>().is_ok() => true,
        _ => devices.is_empty() || !devices::any_opens(machine),
    }
}

/// The addresses of the GID table from index 1 on, with their indices.
fn table(machine: &Machine) -> Vec<(usize, &Address)> {
    let of = |loopback: bool| machine.interfaces.iter().filter(move |a| a.is_loopback == loopback);
    let all: Vec<&Address> = match of(false).next() {
        Some(_) => of(false).collect(),
        None => of(true).collect(),
    };
    let gids: Vec<_> = all.iter().map(|address| mapped(address.address).octets()).collect();
    let order = settings::gid_order(machine.variable(settings::GIDS).as_deref());
    let mut entries = GidEntries::new(order);
    entries.arrange(gids.iter());
    let found = entries.iter().filter_map(|(index, raw)| {
        let at = gids.iter().position(|gid| gid == raw)?;
        Some((index, *all.get(at)?))
    });
    found.collect()
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    }
}

pub(super) fn check(machine: &Machine, devices: &[Device]) -> Vec<Check> {
    if !is_visible(machine, devices) {
        return Vec::new();
    }
    let table = table(machine);
    let name = name(machine);
    let alone = table.iter().all(|(_, address)| address.is_loopback);
    if alone {
        let finding = format!(
            "{name}: no interface has an address, so the device reaches this machine only, by any GID index"
        );
        let check = Check::note("gids", finding);
        return vec![check.remedy("to reach other hosts: ip addr add ADDRESS/24 dev INTERFACE")];
    }
    let is_link_local = |address: &IpAddr| match address {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    };
    let mut checks: Vec<Check> = table
        .iter()
        .map(|(index, Address { interface, address, .. })| {
            let reach = if is_link_local(address) { "; the address reaches hosts of the same link only" } else { "" };
            let finding = format!(
                "{name}: for {address} on {interface} use GID index {index} (ibv_rc_pingpong -g {index}, ib_write_bw -x {index}){reach}"
            );
            Check::ok("gids", finding)
        })
        .collect();
    checks.extend(mtu(machine, &table));
    checks
}

/// Checks the path MTU of the port, which is that of the interface with the smallest MTU.
fn mtu(machine: &Machine, table: &[(usize, &Address)]) -> Option<Check> {
    let name = name(machine);
    let wire = machine.variable("FERROVERBS_SOFT_WIRE");
    if wire.is_some_and(|value| value == "off") {
        let finding =
            format!("{name}: path MTU 4096; FERROVERBS_SOFT_WIRE keeps the device on this machine");
        return Some(
            Check::note("mtu", finding).remedy("to reach other hosts: unset FERROVERBS_SOFT_WIRE"),
        );
    }
    let of = |interface: &str| {
        machine.read(format!("/sys/class/net/{interface}/mtu"))?.parse::<u32>().ok()
    };
    let all = table.iter().filter_map(|(_, a)| Some((of(&a.interface)?, a.interface.as_str())));
    let (mtu, interface) = all.min_by_key(|(mtu, _)| *mtu)?;
    Some(match largest_path_mtu(mtu) {
        Some(4096) => Check::ok("mtu", format!("{name}: path MTU 4096 ({interface} has {mtu})")),
        Some(path) => {
            let finding = format!(
                "{name}: path MTU {path}, by the interface with the smallest MTU ({interface} has {mtu})"
            );
            Check::ok("mtu", finding).remedy(raise_mtu_command(interface))
        }
        None => Check::missing(
            "mtu",
            format!("{name}: no packet fits ({interface} has {mtu})"),
            format!("ip link set dev {interface} mtu 1500"),
        ),
    })
}

/// The entry of the GID table with this address.
pub(super) fn of_address(machine: &Machine, devices: &[Device], address: IpAddr) -> Option<String> {
    let found = table(machine).into_iter().find(|(_, a)| mapped(a.address) == mapped(address));
    let (index, _) = found.filter(|_| is_visible(machine, devices))?;
    Some(format!("{} index {index}", name(machine)))
}
