//! Tests with images of machines: folders with the files that a check reads.

use super::check::{Check, CheckState};
use super::interfaces::{Address, NetworkLink};
use super::machine::Machine;
use super::{examine, json, table};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// An image of a machine in a temporary folder. The folder is removed on drop.
pub(super) struct MachineImage(pub(super) PathBuf);

impl MachineImage {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ferroverbs-doctor-{}-{n}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&root);
        let image = Self(root);
        fs::create_dir_all(image.0.join("tmp")).unwrap();
        image.file(
            "proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  8388608  8388608  bytes\n",
        )
    }

    pub(super) fn file(self, path: &str, text: &str) -> Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn link(self, path: &str, target: &str) -> Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    /// Adds a working card with a RoCE port.
    pub(super) fn with_card(self) -> Self {
        let device = "sys/class/infiniband/mlx5_0";
        let port = format!("{device}/ports/1");
        let multiarch = format!("usr/lib/{}-linux-gnu/libibverbs", std::env::consts::ARCH);
        self.link(&format!("{device}/device/driver"), "/sys/bus/pci/drivers/mlx5_core")
            .file(&format!("{port}/state"), "4: ACTIVE\n")
            .file(&format!("{port}/link_layer"), "Ethernet\n")
            .file(&format!("{port}/gids/0"), "fe80:0000:0000:0000:0200:00ff:fe00:0001\n")
            .file(&format!("{port}/gid_attrs/types/0"), "IB/RoCE v1\n")
            .file(&format!("{port}/gid_attrs/ndevs/0"), "eth0\n")
            .file(&format!("{port}/gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n")
            .file(&format!("{port}/gid_attrs/types/3"), "RoCE v2\n")
            .file(&format!("{port}/gid_attrs/ndevs/3"), "eth0\n")
            .file(&format!("{port}/gids/4"), "0000:0000:0000:0000:0000:0000:0000:0000\n")
            .file("sys/class/net/eth0/mtu", "9000\n")
            .file("sys/class/infiniband_verbs/uverbs0/dev", "231:192\n")
            .file("dev/infiniband/uverbs0", "")
            .file("sys/class/misc/rdma_cm/dev", "10:120\n")
            .file("dev/infiniband/rdma_cm", "")
            .file(&format!("{multiarch}/libmlx5-rdmav34.so"), "")
    }

    fn checks(&self, variables: fn(&str) -> Option<OsString>) -> Vec<Check> {
        // A user without root's rights and without a fabric folder.
        examine(&Machine::of_image(&self.0, 1000, variables))
    }
}

impl Drop for MachineImage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn nothing(_: &str) -> Option<OsString> {
    None
}

fn of<'a>(checks: &'a [Check], id: &str) -> &'a Check {
    checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("no {id}: {checks:?}"))
}

fn missing(checks: &[Check]) -> Vec<&'static str> {
    checks.iter().filter(|c| c.state == CheckState::Missing).map(|c| c.id).collect()
}

#[test]
fn a_machine_without_rdma_gets_the_software_device_and_misses_nothing() {
    let image = MachineImage::new();
    let checks = image.checks(nothing);
    assert_eq!(missing(&checks), [""; 0]);
    assert!(of(&checks, "devices").finding.contains("soft0"));
    let checks = image.checks(|name| (name == "FERROVERBS_SOFT").then(|| "off".into()));
    assert_eq!(missing(&checks), ["devices"]);
    assert_eq!(of(&checks, "devices").remedy.as_deref(), Some("unset FERROVERBS_SOFT"));
    assert_eq!(of(&checks, "environment").finding, "FERROVERBS_SOFT=off");
}

#[test]
fn a_device_tree_shows_no_device_of_the_kernel() {
    let device = "sys/class/infiniband/soft0";
    let image = MachineImage::new()
        .file(&format!("{device}/node_guid"), "0200:0000:0000:0001\n")
        .file(&format!("{device}/ports/1/state"), "4: ACTIVE\n")
        .file(&format!("{device}/ports/1/link_layer"), "Ethernet\n")
        .link(&format!("{device}/device"), "../../../0fe0:00:00.0");
    let checks = image.checks(nothing);
    assert_eq!(missing(&checks), [""; 0], "no modprobe ib_uverbs");
    assert!(of(&checks, "devices").finding.contains("programs get the software device soft0"));
    assert_eq!(of(&checks, "tree").state, CheckState::Ok);
    // Another tree: the plugin announces the device.
    fs::remove_file(image.0.join(device).join("device")).unwrap();
    let mut machine = Machine::of_image(&image.0, 1000, nothing);
    machine.announced = vec!["soft0".into()];
    assert_eq!(missing(&examine(&machine)), [""; 0]);
}

#[test]
fn of_a_card_only_the_limit_of_locked_memory_is_missing() {
    let image = MachineImage::new().with_card();
    let checks = image.checks(nothing);
    assert_eq!(missing(&checks), ["memlock"]);
    assert!(of(&checks, "memlock").finding.starts_with("8192 KiB"));
    let image = image.file("proc/self/limits", "Max locked memory  unlimited  unlimited  bytes\n");
    assert_eq!(missing(&image.checks(nothing)), [""; 0]);
}

#[test]
fn the_index_of_an_ipv4_address_of_roce_v2_is_the_one_to_use() {
    let image = MachineImage::new().with_card();
    let checks = image.checks(nothing);
    let finding = "mlx5_0 port 1: use GID index 3 (RoCE v2, 10.0.0.1 on eth0)";
    assert_eq!(*of(&checks, "gids"), Check::ok("gids", finding));
    assert!(of(&checks, "mtu").finding.contains("path MTU 4096"));
    let image = image.file("sys/class/net/eth0/mtu", "1500\n");
    let checks = image.checks(nothing);
    assert!(of(&checks, "mtu").finding.contains("path MTU 1024"));
    assert!(of(&checks, "mtu").remedy.as_ref().unwrap().ends_with("ip link set dev eth0 mtu 4200"));
    fs::remove_file(image.0.join("sys/class/infiniband/mlx5_0/ports/1/gids/3")).unwrap();
    let checks = image.checks(nothing);
    assert_eq!(of(&checks, "gids").state, CheckState::Note);
    assert!(of(&checks, "gids").finding.contains("index 0 (RoCE v1"));
}

#[test]
fn what_a_card_lacks_is_told_with_the_command_that_mends_it() {
    let image = MachineImage::new().with_card();
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    let image = image.file(&format!("{port}/state"), "1: DOWN\n");
    fs::remove_file(image.0.join("dev/infiniband/uverbs0")).unwrap();
    fs::remove_dir_all(image.0.join("usr")).unwrap();
    let checks = image.checks(nothing);
    assert_eq!(missing(&checks), ["devices", "nodes", "plugins", "memlock"]);
    assert_eq!(of(&checks, "devices").remedy.as_deref(), Some("ip link set dev eth0 up"));
    let node = of(&checks, "nodes").remedy.as_ref().unwrap();
    assert!(node.contains("mknod -m 666 /dev/infiniband/uverbs0 c 231 192"), "{node}");
    let plugin = of(&checks, "plugins").remedy.as_deref();
    assert_eq!(plugin, Some("apt-get install ibverbs-providers"));
    fs::remove_dir_all(image.0.join("sys/class/infiniband_verbs")).unwrap();
    let checks = image.checks(nothing);
    assert_eq!(of(&checks, "nodes").remedy.as_deref(), Some("modprobe ib_uverbs"));
}

#[test]
fn connections_over_devices_of_the_kernel_need_a_node_of_their_own() {
    let image = MachineImage::new().with_card();
    let of_node = |checks: &[Check]| {
        let speaks = |c: &&Check| c.id == "nodes" && c.finding.contains("rdma");
        checks.iter().find(speaks).expect("the check").clone()
    };
    assert_eq!(
        of_node(&image.checks(nothing)),
        Check::ok("nodes", "/dev/infiniband/rdma_cm can be opened")
    );
    fs::remove_file(image.0.join("dev/infiniband/rdma_cm")).unwrap();
    // Programs without librdmacm need no such node.
    let check = of_node(&image.checks(nothing));
    assert_eq!(check.state, CheckState::Note);
    assert!(check.remedy.unwrap().contains("mknod -m 666 /dev/infiniband/rdma_cm c 10 120"));
    fs::remove_dir_all(image.0.join("sys/class/misc")).unwrap();
    let check = of_node(&image.checks(nothing));
    assert_eq!(check.state, CheckState::Note);
    assert_eq!(check.remedy.as_deref(), Some("modprobe rdma_ucm"));
}

#[test]
fn soft_has_the_addresses_of_the_interfaces_from_index_one_on() {
    let image = MachineImage::new()
        .file("sys/class/net/eth0/mtu", "1500\n")
        .file("sys/class/net/eth1/mtu", "9000\n");
    let address = |interface: &str, address: &str| Address {
        interface: interface.to_owned(),
        is_loopback: interface == "lo",
        address: address.parse().unwrap(),
    };
    let inspect = |interfaces: Vec<Address>, variables: fn(&str) -> Option<OsString>| {
        let mut machine = Machine::of_image(&image.0, 1000, variables);
        machine.interfaces = interfaces;
        let reported = examine(&machine).into_iter().filter(|c| matches!(c.id, "gids" | "mtu"));
        reported.map(|c| (c.state, c.finding)).collect::<Vec<_>>()
    };
    let here = || {
        vec![
            address("lo", "127.0.0.1"),
            address("eth0", "10.0.0.1"),
            address("eth1", "10.1.0.1"),
            address("eth1", "fe80::1"),
        ]
    };
    let reported = inspect(here(), nothing);
    let parts = [
        "soft0: for 10.0.0.1 on eth0 use GID index 1 (ibv_rc_pingpong -g 1, ib_write_bw -x 1)",
        "soft0: for 10.1.0.1 on eth1 use GID index 2 (",
        "soft0: for fe80::1 on eth1 use GID index 3 (",
        "soft0: path MTU 1024, by the interface with the smallest MTU (eth0 has 1500)",
    ];
    assert_eq!(reported.len(), parts.len(), "{reported:?}");
    for ((_, finding), part) in reported.iter().zip(parts) {
        assert!(finding.starts_with(part), "{finding}");
    }
    assert!(reported[2].1.ends_with("same link only"));
    // A host with loopback addresses only reaches no other host.
    let reported = inspect(vec![address("lo", "127.0.0.1")], nothing);
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0].0, CheckState::Note);
    assert!(reported[0].1.contains("this machine only"), "{reported:?}");
    // Settings give other names and indices.
    let recipe = |name: &str| match name {
        "FERROVERBS_SOFT_NAME" => Some("mlx5_%d".into()),
        "FERROVERBS_SOFT_GIDS" => Some("mlx5".into()),
        _ => None,
    };
    let reported = inspect(here(), recipe);
    for index in [3, 5, 1] {
        let wanted = format!("use GID index {index} ");
        assert!(reported.iter().any(|(_, finding)| finding.contains(&wanted)), "{reported:?}");
    }
    assert!(reported.iter().all(|(_, finding)| finding.starts_with("mlx5_0: ")), "{reported:?}");
    // No check without the device, and a note if a setting keeps the device on this host.
    let off = |name: &str| (name == "FERROVERBS_SOFT").then(|| "off".into());
    assert_eq!(inspect(here(), off), []);
    let alone = |name: &str| (name == "FERROVERBS_SOFT_WIRE").then(|| "off".into());
    assert_eq!(inspect(here(), alone).last().unwrap().0, CheckState::Note);
    // With a kernel device, FERROVERBS_SOFT asks for the software device.
    let image = MachineImage::new().with_card();
    let requested = |name: &str| (name == "FERROVERBS_SOFT").then(|| "1".into());
    for (variables, reported) in [(nothing as fn(&str) -> _, 0), (requested, 3)] {
        let mut machine = Machine::of_image(&image.0, 1000, variables);
        machine.interfaces = here();
        let checks = examine(&machine);
        let of_soft = checks.iter().filter(|c| c.id == "gids" && c.finding.starts_with("soft0"));
        assert_eq!(of_soft.count(), reported, "{checks:?}");
    }
    // The software device is visible if the kernel device cannot be opened, as in a container.
    fs::remove_file(image.0.join("dev/infiniband/uverbs0")).unwrap();
    let mut machine = Machine::of_image(&image.0, 1000, nothing);
    machine.interfaces = here();
    let checks = examine(&machine);
    assert!(checks.iter().any(|c| c.finding.starts_with("soft0: for 10.0.0.1")), "{checks:?}");
}

#[test]
fn a_plugin_of_a_generation_that_is_not_known_serves_nobody() {
    let image = MachineImage::new().with_card();
    let folder = format!("usr/lib/{}-linux-gnu/libibverbs", std::env::consts::ARCH);
    fs::remove_dir_all(image.0.join(&folder)).unwrap();
    let image = image.file(&format!("{folder}/libmlx5-rdmav99.so"), "");
    let checks = image.checks(nothing);
    assert!(of(&checks, "plugins").finding.contains("generation 99"));
    assert!(missing(&checks).contains(&"plugins"));
}

#[test]
fn the_port_is_free_or_somebodys() {
    let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
    let line = "  7: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 12345 2\n";
    let image = MachineImage::new().file("proc/net/udp", head);
    assert_eq!(of(&image.checks(nothing), "port").state, CheckState::Ok);
    let image = image.file("proc/net/udp", &format!("{head}{line}"));
    let checks = image.checks(nothing);
    assert_eq!(of(&checks, "port").state, CheckState::Note);
    assert!(of(&checks, "port").finding.ends_with("user 1001"));
    let rxe = "sys/class/infiniband/rxe0";
    let image = image.file(&format!("{rxe}/parent"), "eth0\n");
    let checks = image.checks(nothing);
    let port = of(&checks, "port");
    assert_eq!(port.state, CheckState::Note, "{port:?}");
    assert!(port.finding.contains("for rxe0: soft reaches this machine only"), "{port:?}");
    assert!(port.remedy.as_ref().unwrap().contains("rdma link delete rxe0"), "{port:?}");
    let card = MachineImage::new().with_card();
    let checks = card.checks(nothing);
    let port = of(&checks, "port");
    assert_eq!(port.state, CheckState::Note, "{port:?}");
    assert!(port.finding.contains("mlx5_0 takes its packets"), "{port:?}");
    assert!(port.remedy.as_ref().unwrap().contains("enable_roce"), "{port:?}");
}

#[test]
fn a_image_of_a_filter_does_not_tell_its_rules() {
    assert_eq!(of(&MachineImage::new().checks(nothing), "firewall").state, CheckState::Ok);
    let image = MachineImage::new().file("sys/module/nf_tables/refcnt", "1\n");
    assert_eq!(of(&image.checks(nothing), "firewall").state, CheckState::Unknown);
}

#[test]
fn settings_of_the_kernel_that_slow_soft_down_are_noted() {
    let image = MachineImage::new().file("proc/sys/kernel/yama/ptrace_scope", "1\n");
    let checks = image.checks(nothing);
    assert_eq!(of(&checks, "ptrace").state, CheckState::Ok);
    assert_eq!(of(&checks, "namespaces").state, CheckState::Ok);
    let image = image
        .file("proc/sys/kernel/yama/ptrace_scope", "2\n")
        .file("proc/sys/user/max_user_namespaces", "0\n")
        .file(".dockerenv", "");
    let checks = image.checks(nothing);
    for id in ["ptrace", "namespaces", "container"] {
        assert_eq!(of(&checks, id).state, CheckState::Note, "{id}");
        assert!(of(&checks, id).remedy.is_some(), "{id}");
    }
    assert_eq!(missing(&checks), [""; 0]);
}

#[test]
fn the_fabric_directory_must_be_the_users_alone() {
    let image = MachineImage::new();
    let user = rustix::process::geteuid().as_raw();
    let fabric = image.0.join(format!("tmp/ferroverbs-{user}"));
    let inspect = || examine(&Machine::of_image(&image.0, user, nothing));
    assert!(of(&inspect(), "fabric").finding.contains("will meet"));
    fs::create_dir(&fabric).unwrap();
    fs::set_permissions(&fabric, fs::Permissions::from_mode(0o755)).unwrap();
    let remedy = format!("chmod 700 /tmp/ferroverbs-{user}");
    assert_eq!(of(&inspect(), "fabric").remedy.as_ref(), Some(&remedy));
    fs::set_permissions(&fabric, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(of(&inspect(), "fabric").state, CheckState::Ok);
    fs::remove_dir(&fabric).unwrap();
    fs::write(&fabric, "").unwrap();
    assert!(of(&inspect(), "fabric").finding.ends_with("is not a folder"));
}

#[test]
fn findings_are_for_people_and_for_programs() {
    let checks = [
        Check::ok("devices", "all \"well\""),
        Check::missing("nodes", "none", "modprobe ib_uverbs"),
    ];
    assert_eq!(
        table(&checks),
        "ok       devices  all \"well\"\nmissing  nodes    none\n                    modprobe ib_uverbs\n1 thing is missing.\n"
    );
    let read: serde_json::Value = serde_json::from_str(&json(&checks)).unwrap();
    assert_eq!(read["checks"][0]["finding"], "all \"well\"");
    assert!(read["checks"][0]["remedy"].is_null());
    assert_eq!(read["checks"][1]["state"], "missing");
}

#[test]
fn loopback_that_is_down_and_a_foreign_sysfs_are_found() {
    let link =
        |name: &str, is_up| NetworkLink { name: name.to_owned(), is_loopback: name == "lo", is_up };
    let inspect = |image: &MachineImage, links: Vec<NetworkLink>| {
        let mut machine = Machine::of_image(&image.0, 1000, nothing);
        machine.links = links;
        examine(&machine)
    };
    let image = MachineImage::new().file("sys/class/net/lo/mtu", "65536\n");
    let checks = inspect(&image, vec![link("lo", true)]);
    assert_eq!(of(&checks, "loopback").state, CheckState::Ok);
    assert_eq!(of(&checks, "sysfs").state, CheckState::Ok);
    let checks = inspect(&image, vec![link("lo", false), link("eth0", true)]);
    assert_eq!(missing(&checks), ["loopback"]);
    let remedy = of(&checks, "loopback").remedy.as_deref();
    assert_eq!(remedy, Some("as root: ip link set dev lo up"));
    assert_eq!(of(&checks, "sysfs").state, CheckState::Note);
    assert!(of(&checks, "sysfs").finding.contains("lacks eth0"));
    let checks = inspect(&MachineImage::new(), vec![link("lo", true)]);
    assert_eq!(missing(&checks), ["sysfs"]);
    let remedy = of(&checks, "sysfs").remedy.as_deref().unwrap();
    assert!(remedy.contains("mount -t sysfs"), "{remedy}");
}
