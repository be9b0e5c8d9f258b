//! `ferroverbs doctor` and `ferroverbs report` as a person runs them: what they print and how they end, over a tree that has nothing but the command
//! and a file in the library's place.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder with an installed tree and the picture of a machine, gone when dropped.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("ferroverbs-commands-{}-{n}", std::process::id());
        // In the file system of the command, so that it can be linked: a copy that is still open for writing in another test's child is "busy".
        let place = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder));
        let _ = fs::remove_dir_all(&place.0);
        for folder in ["bin", "lib", "machine/tmp"] {
            fs::create_dir_all(place.0.join(folder)).unwrap();
        }
        fs::hard_link(env!("CARGO_BIN_EXE_ferroverbs"), place.0.join("bin/ferroverbs")).unwrap();
        place.file("lib/libibverbs.so.1", "");
        place.file(
            "machine/proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  unlimited  unlimited  bytes\n",
        );
        place
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.0.join(path)).unwrap();
    }

    /// A card with everything but the node for connections.
    fn with_card(self) -> Self {
        let port = "machine/sys/class/infiniband/mlx5_0/ports/1";
        self.file(&format!("{port}/state"), "4: ACTIVE\n");
        self.file(&format!("{port}/link_layer"), "Ethernet\n");
        self.file(&format!("{port}/gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        self.file(&format!("{port}/gid_attrs/types/3"), "RoCE v2\n");
        self.file(&format!("{port}/gid_attrs/ndevs/3"), "eth0\n");
        self.file("machine/sys/class/infiniband_verbs/uverbs0/dev", "231:192\n");
        self.file("machine/dev/infiniband/uverbs0", "");
        self.file("machine/usr/lib64/libibverbs/libmlx5-rdmav34.so", "");
        let driver = self.0.join("machine/sys/class/infiniband/mlx5_0/device/driver");
        fs::create_dir_all(driver.parent().unwrap()).unwrap();
        symlink("/sys/bus/pci/drivers/mlx5_core", driver).unwrap();
        self
    }

    /// The command, without settings of whoever runs the tests.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.0.join("bin/ferroverbs"));
        command.args(words).env_clear().env("PATH", "/usr/bin:/bin");
        command
    }

    fn doctor(&self, more: &[&str]) -> Output {
        let machine = self.0.join("machine");
        let mut command = self.command(&["doctor", "--root"]);
        command.arg(machine).args(more).output().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Ids of the checks in a state.
fn ids(told: &Value, state: &str) -> Vec<String> {
    let checks = told["checks"].as_array().unwrap().iter();
    let of_state = checks.filter(|check| check["state"] == state);
    of_state.map(|check| check["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn doctor_ends_with_0_where_nothing_is_missing_and_with_1_otherwise() {
    let place = Place::new();
    let done = place.doctor(&[]);
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(said.ends_with("Nothing is missing.\n"), "{said}");
    let place = place.with_card();
    let done = place.doctor(&[]);
    let said = text(&done.stdout);
    // A program that does not call librdmacm needs nothing of it.
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(said.lines().any(|line| line.trim() == "modprobe rdma_ucm"), "{said}");
    assert!(said.ends_with("Nothing is missing.\n"), "{said}");
    place.remove("machine/dev/infiniband/uverbs0");
    let done = place.doctor(&[]);
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.ends_with("1 thing is missing.\n"), "{said}");
    // Neither is it well nor ill where it was asked wrongly.
    assert_eq!(place.doctor(&["--nonsense"]).status.code(), Some(2));
}

#[test]
fn doctor_tells_programs_the_same_with_the_same_status() {
    let place = Place::new().with_card();
    place.remove("machine/dev/infiniband/uverbs0");
    let done = place.doctor(&["--json"]);
    assert_eq!(done.status.code(), Some(1));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(ids(&told, "missing"), ["nodes"]);
    let missing = told["checks"].as_array().unwrap().iter().find(|c| c["state"] == "missing");
    let remedy = missing.unwrap()["remedy"].as_str().unwrap();
    assert!(remedy.contains("mknod -m 666 /dev/infiniband/uverbs0 c 231 192"), "{remedy}");
    let noted = told["checks"].as_array().unwrap().iter();
    let mut noted = noted.filter(|c| c["state"] == "note" && c["id"] == "nodes");
    assert_eq!(noted.next().unwrap()["remedy"], "modprobe rdma_ucm");
    let well = ids(&told, "ok");
    for id in ["library", "devices", "plugins", "gids", "memlock", "firewall", "fabric"] {
        assert!(well.iter().any(|other| other == id), "{id}: {told:#}");
    }
    place.file("machine/dev/infiniband/uverbs0", "");
    place.file("machine/sys/class/misc/rdma_cm/dev", "10:120\n");
    place.file("machine/dev/infiniband/rdma_cm", "");
    let done = place.doctor(&["--json"]);
    assert_eq!(done.status.code(), Some(0));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(ids(&told, "missing"), [""; 0]);
}

#[test]
fn doctor_of_this_machine_tells_soft_s_gids_and_whether_memory_is_reached() {
    let done = Place::new().command(&["doctor", "--json"]).output().unwrap();
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    let checks = told["checks"].as_array().unwrap();
    let finding = |id: &str| {
        let check = checks.iter().find(|check| check["id"] == id);
        check.map_or_else(String::new, |check| check["finding"].as_str().unwrap().to_owned())
    };
    assert!(finding("ptrace").contains("memory"), "{told:#}");
    if !Path::new("/sys/class/infiniband").exists() {
        assert!(finding("gids").starts_with("soft0: "), "{told:#}");
    }
}

#[test]
fn report_tells_no_secret_however_it_is_written() {
    let place = Place::new();
    // Quoted in JSON and where settings are told.
    let secret = "pla\"nted\\7f\t3a";
    let mut command = place.command(&["report"]);
    command
        .env("SOME_API_TOKEN", secret)
        .env("MYSQL_PWD", "planted-pwd")
        .env("SOME_OTHER_VARIABLE", "planted-other")
        .env("LOGNAME", "planteduser")
        .env("HOSTNAME", "plantedhost")
        .env("HOME", "/home/planteduser")
        .env("RDMAV_FORK_SAFE", "1")
        .env("FERROVERBS_SOFT_CONTROL", "/home/planteduser/planted-pwd")
        .env("FERROVERBS_CONFIG_DIR", format!("/home/planteduser/{secret}/plantedhost"));
    let done = command.output().unwrap();
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    for there in ["== doctor", "RDMAV_FORK_SAFE=1", "FERROVERBS_CONFIG_DIR=~/SECRET/HOST"] {
        assert!(said.contains(there), "without {there}: {said}");
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let told = ["planted", "nted", host].into_iter().filter(|part| part.len() > 2);
    for told in told.filter(|part| *part != "localhost") {
        assert!(!said.contains(told), "with {told}: {said}");
    }
}
