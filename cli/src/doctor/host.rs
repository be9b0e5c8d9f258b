//! What else of the host decides: limits, rights, the port of RoCE v2, where the software adapter's processes meet.

use super::devices::Device;
use super::{Check, Machine, State, cross_memory};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The UDP port of RoCE v2 (IBTA vol 1, Annex A17).
pub(super) const ROCE_PORT: u16 = 4791;

/// Less than this, and most programs cannot register what they need.
const ENOUGH_LOCKED: u64 = 64 << 20;

pub(super) fn check(machine: &Machine, devices: &[Device]) -> Vec<Check> {
    let mut checks = vec![memlock(machine, devices), port(machine, devices)];
    checks.extend(cross_memory::check(machine));
    checks.extend(namespaces(machine));
    checks.extend(container(machine));
    checks.push(fabric(machine));
    checks.extend(environment(machine));
    checks
}

/// Devices of the kernel pin the memory that is registered, as far as the limit goes; the software adapter does not.
fn memlock(machine: &Machine, devices: &[Device]) -> Check {
    let limits = machine.read("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let Some(soft) = line.and_then(|line| line.split_whitespace().next()) else {
        return Check::new("memlock", State::Unknown, "/proc/self/limits does not tell");
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

/// Who has the port between hosts.
fn port(machine: &Machine, devices: &[Device]) -> Check {
    let cards: Vec<_> = devices
        .iter()
        .filter(|device| !device.is_rxe() && device.ports.iter().any(|port| port.is_ethernet))
        .map(|device| device.name.as_str())
        .collect();
    let holder = ["/proc/net/udp", "/proc/net/udp6"]
        .iter()
        .filter_map(|file| machine.read(file))
        .find_map(|table| holder(&table).map(str::to_owned));
    let rxe: Vec<_> = devices.iter().filter(|d| d.is_rxe()).map(|d| d.name.as_str()).collect();
    if let Some(first) = rxe.first() {
        let finding = format!(
            "UDP port {ROCE_PORT} belongs to the kernel, for {}: soft reaches this machine alone beside it",
            rxe.join(", ")
        );
        // The adapter's own words for a port that it does not get are EADDRINUSE (ferroverbs-soft(7)).
        return Check::note("port", finding).remedy(format!(
            "where soft shall reach others, as root: rdma link delete {first}; or a network namespace for its programs, with an address of its own"
        ));
    }
    match holder {
        Some(user) => Check::note(
            "port",
            format!("UDP port {ROCE_PORT} is in use, by a process of user {user}"),
        )
        .remedy(format!("which one: ss -ulpn 'sport = :{ROCE_PORT}'")),
        None if !cards.is_empty() => Check::note(
            "port",
            format!(
                "UDP port {ROCE_PORT} is free; {0} takes its packets before the kernel sees them, so that soft is not reached by the interfaces of {0}",
                cards.join(", ")
            ),
        )
        .remedy("where soft shall reach others: by an interface of another card, or without RoCE on this one (mlx5, as root: devlink dev param set DEV name enable_roce value false cmode driverinit; devlink dev reload DEV)"),
        None => Check::ok("port", format!("UDP port {ROCE_PORT} is free")),
    }
}

/// The user of a socket that has the port: the eighth column, behind `address:port` in the second (proc(5)).
fn holder(table: &str) -> Option<&str> {
    let port = format!(":{ROCE_PORT:04X}");
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        columns.get(1)?.ends_with(&port).then_some(*columns.get(7)?)
    })
}

/// Whether `ferroverbs -n` can make nodes for others than root.
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
    let inside = ["/.dockerenv", "/run/.containerenv"].iter().any(|file| machine.exists(file));
    inside.then(|| {
        Check::note(
            "container",
            "this is a container: devices of the kernel, locked memory and other containers' processes are there as far as it was started so",
        )
        .remedy("start it with --device=/dev/infiniband --ulimit memlock=-1; to meet others, --pid and FERROVERBS_FABRIC_DIR of both")
    })
}

/// Where soft's processes meet (ferroverbs-soft(7)): a folder that nobody else can write to.
fn fabric(machine: &Machine) -> Check {
    let told = machine.variable("FERROVERBS_FABRIC_DIR").map(PathBuf::from);
    let is_ours = |path: &Path| fs::metadata(path).is_ok_and(|d| d.uid() == machine.user);
    if let Some(group) = machine.variable("FERROVERBS_FABRIC_GROUP") {
        let group = group.to_string_lossy();
        return Check::note("fabric", format!("soft's processes of group {group} meet"));
    }
    let runtime = machine.variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|dir| dir.is_absolute() && is_ours(&machine.path(dir)));
    let folder = told.unwrap_or_else(|| match runtime {
        Some(dir) => dir.join("ferroverbs"),
        None => format!("/tmp/ferroverbs-{}", machine.user).into(),
    });
    let (path, shown) = (machine.path(&folder), folder.display());
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
        Some("is another user's")
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

/// Settings that change what programs see.
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
