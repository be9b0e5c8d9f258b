//! Checks the host: limits, rights, loopback, sysfs, the port of RoCE v2, and the fabric folder of
//! soft.

use super::check::{Check, CheckState};
use super::cross_memory;
use super::devices::Device;
use super::machine::Machine;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The UDP port of RoCE v2 (IBTA 1.7 A17).
pub(super) const ROCE_PORT: u16 = 4791;

/// The locked memory that most programs need to register their buffers.
const ENOUGH_LOCKED: u64 = 64 << 20;

pub(super) fn check(machine: &Machine, devices: &[Device]) -> Vec<Check> {
    let mut checks = vec![memlock(machine, devices), port(machine, devices)];
    checks.extend(loopback(machine));
    checks.extend(sysfs(machine));
    checks.extend(cross_memory::check(machine));
    checks.extend(namespaces(machine));
    checks.extend(container(machine));
    checks.push(fabric(machine));
    checks.extend(environment(machine));
    checks
}

/// Checks the limit of locked memory. Devices of the kernel pin registered memory; the software
/// device does not.
fn memlock(machine: &Machine, devices: &[Device]) -> Check {
    let limits = machine.read("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let Some(soft) = line.and_then(|line| line.split_whitespace().next()) else {
        return Check::new(
            "memlock",
            CheckState::Unknown,
            "/proc/self/limits has no line for locked memory",
        );
    };
    let bytes = soft.parse::<u64>().ok();
    let finding = match bytes {
        Some(bytes) => format!("{} KiB of memory can be locked", bytes >> 10),
        None => format!("memory that can be locked: {soft}"),
    };
    if bytes.is_none_or(|bytes| bytes >= ENOUGH_LOCKED) || machine.user == 0 {
        return Check::ok("memlock", finding);
    }
    if devices.is_empty() {
        return Check::ok("memlock", format!("{finding}; the software device needs none"));
    }
    Check::missing(
        "memlock",
        finding,
        "as root: echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf, then log in again \
         (services: LimitMEMLOCK=infinity; containers: --ulimit memlock=-1)",
    )
}

/// Checks that loopback is up. A new network namespace begins with loopback down.
fn loopback(machine: &Machine) -> Option<Check> {
    let mut loopback = machine.links.iter().filter(|link| link.is_loopback);
    let first = loopback.next()?;
    if first.is_up || loopback.any(|link| link.is_up) {
        return Some(Check::ok("loopback", format!("{} is up", first.name)));
    }
    let finding = format!(
        "{} is down: programs of this host do not reach each other by 127.0.0.1 (perftest, MPI, librdmacm)",
        first.name
    );
    Some(Check::missing("loopback", finding, format!("as root: ip link set dev {} up", first.name)))
}

/// Checks that `/sys` is mounted and shows the interfaces of this network namespace.
fn sysfs(machine: &Machine) -> Option<Check> {
    if machine.links.is_empty() {
        return None;
    }
    let remedy = "as root, in this network namespace: mount -t sysfs sysfs /sys";
    let shown = machine.list("/sys/class/net");
    if shown.is_empty() {
        let finding =
            "/sys is not mounted: programs see no device of the kernel, and no MTU of an interface";
        return Some(Check::missing("sysfs", finding, remedy));
    }
    let hidden: Vec<_> = machine.links.iter().filter(|link| !shown.contains(&link.name)).collect();
    let Some(first) = hidden.first() else {
        return Some(Check::ok("sysfs", "/sys shows the interfaces of this network namespace"));
    };
    let finding = format!(
        "/sys is of another network namespace (it lacks {}): programs see the kernel devices of that namespace",
        first.name
    );
    Some(Check::note("sysfs", finding).remedy(remedy))
}

/// Checks which process or device receives the packets of the RoCE v2 port.
fn port(machine: &Machine, devices: &[Device]) -> Check {
    let cards: Vec<_> = devices
        .iter()
        .filter(|device| !device.is_rxe() && device.ports.iter().any(|port| port.is_ethernet))
        .map(|device| device.name.as_str())
        .collect();
    let holder = ["/proc/net/udp", "/proc/net/udp6"]
        .iter()
        .filter_map(|file| machine.read(file))
        .find_map(|table| port_owner(&table).map(str::to_owned));
    let rxe: Vec<_> = devices.iter().filter(|d| d.is_rxe()).map(|d| d.name.as_str()).collect();
    if let Some(first) = rxe.first() {
        let finding = format!(
            "UDP port {ROCE_PORT} belongs to the kernel, for {}: soft reaches this machine only",
            rxe.join(", ")
        );
        // The software device reports this port as EADDRINUSE (ferroverbs-soft(7)).
        return Check::note("port", finding).remedy(format!(
            "to reach other hosts by soft, as root: rdma link delete {first}; or give its programs a network namespace with its own address"
        ));
    }
    match holder {
        Some(user) => Check::note(
            "port",
            format!("UDP port {ROCE_PORT} is in use, by a process of user {user}"),
        )
        .remedy(format!("to find the process: ss -ulpn 'sport = :{ROCE_PORT}'")),
        None if !cards.is_empty() => Check::note(
            "port",
            format!(
                "UDP port {ROCE_PORT} is free, but {0} takes its packets before the kernel sees them: other hosts do not reach soft by the interfaces of {0}",
                cards.join(", ")
            ),
        )
        .remedy("to reach other hosts by soft, use an interface of another card, or switch RoCE off on this card (mlx5, as root: devlink dev param set DEV name enable_roce value false cmode driverinit; devlink dev reload DEV)"),
        None => Check::ok("port", format!("UDP port {ROCE_PORT} is free")),
    }
}

/// The user of a socket that has the port. Column 2 is `address:port`, column 8 is the user
/// (proc(5)).
fn port_owner(table: &str) -> Option<&str> {
    let port = format!(":{ROCE_PORT:04X}");
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        columns.get(1)?.ends_with(&port).then_some(*columns.get(7)?)
    })
}

/// Checks whether `ferroverbs -n` can make nodes without root.
fn namespaces(machine: &Machine) -> Option<Check> {
    if machine.user == 0 {
        return None;
    }
    let is = |file: &str, value: &str| machine.read(file).as_deref() == Some(value);
    let refused = [
        ("user.max_user_namespaces", "/proc/sys/user/max_user_namespaces", "0", "15000"),
        (
            "kernel.unprivileged_userns_clone",
            "/proc/sys/kernel/unprivileged_userns_clone",
            "0",
            "1",
        ),
        (
            "kernel.apparmor_restrict_unprivileged_userns",
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "0",
        ),
    ];
    let refused = refused.iter().find(|(_, file, value, _)| is(file, value));
    Some(match refused {
        None => Check::ok("namespaces", "user namespaces are allowed"),
        Some((name, _, value, better)) => Check::note(
            "namespaces",
            format!("{name} is {value}: ferroverbs -n cannot make nodes for UCX and MPI"),
        )
        .remedy(format!("as root: sysctl {name}={better}")),
    })
}

fn container(machine: &Machine) -> Option<Check> {
    let inside = ["/.dockerenv", "/run/.containerenv"].iter().any(|file| machine.has_file(file));
    inside.then(|| {
        Check::note(
            "container",
            "this is a container: its options decide about kernel devices, locked memory and processes of other containers",
        )
        .remedy("start the container with --device=/dev/infiniband --ulimit memlock=-1; to reach another container, share --pid and FERROVERBS_FABRIC_DIR")
    })
}

/// Checks the fabric folder of soft (ferroverbs-soft(7)), which other users must not be able to
/// write.
fn fabric(machine: &Machine) -> Check {
    let told = machine.variable("FERROVERBS_FABRIC_DIR").map(PathBuf::from);
    let is_ours = |path: &Path| fs::metadata(path).is_ok_and(|d| d.uid() == machine.user);
    if let Some(group) = machine.variable("FERROVERBS_FABRIC_GROUP") {
        let group = group.to_string_lossy();
        return Check::note("fabric", format!("soft's processes of group {group} meet"));
    }
    let session = PathBuf::from(format!("/run/user/{}", machine.user));
    let runtimes = machine.variable("XDG_RUNTIME_DIR").map(PathBuf::from).into_iter();
    let runtime =
        runtimes.chain([session]).find(|dir| dir.is_absolute() && is_ours(&machine.file_path(dir)));
    let folder = told.unwrap_or_else(|| match runtime {
        Some(dir) => dir.join("ferroverbs"),
        None => format!("/tmp/ferroverbs-{}", machine.user).into(),
    });
    let (path, shown) = (machine.file_path(&folder), folder.display());
    let Ok(data) = fs::symlink_metadata(&path) else {
        let parent = path.parent().unwrap_or(&path);
        let writable = rustix::fs::access(parent, rustix::fs::Access::WRITE_OK);
        return match writable {
            Ok(()) => Check::ok("fabric", format!("soft's processes will meet in {shown}")),
            Err(error) => Check::missing(
                "fabric",
                format!("soft's processes cannot meet: {shown} cannot be made ({error})"),
                "set FERROVERBS_FABRIC_DIR to a folder of your own",
            ),
        };
    };
    let wrong = if !data.is_dir() {
        Some("is not a folder")
    } else if data.uid() != machine.user {
        Some("belongs to another user")
    } else if data.mode() & 0o077 != 0 {
        Some("is open to other users")
    } else {
        None
    };
    match wrong {
        None => Check::ok("fabric", format!("soft's processes meet in {shown}")),
        Some("is open to other users") => Check::missing(
            "fabric",
            format!("soft's processes cannot meet: {shown} is open to other users"),
            format!("chmod 700 {shown}"),
        ),
        Some(wrong) => Check::missing(
            "fabric",
            format!("soft's processes cannot meet: {shown} {wrong}"),
            "set FERROVERBS_FABRIC_DIR to a folder of your own",
        ),
    }
}

/// Lists variables that change the devices that programs see.
fn environment(machine: &Machine) -> Option<Check> {
    let names = [
        "FERROVERBS_SOFT",
        "FERROVERBS_SOFT_FAULTS",
        "FERROVERBS_SOFT_CMA",
        "FERROVERBS_CONFIG_DIR",
        "FERROVERBS_PROVIDER_DIR",
        "RDMAV_DRIVERS",
        "IBV_DRIVERS",
        "SYSFS_PATH",
    ];
    let set: Vec<_> = names
        .iter()
        .filter_map(|name| Some(format!("{name}={}", machine.variable(name)?.to_string_lossy())))
        .collect();
    (!set.is_empty()).then(|| Check::note("environment", set.join(" ")))
}
