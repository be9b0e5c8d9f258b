//! Tests of `ferroverbs doctor` and `ferroverbs report` as processes: output and exit status.

mod tree;

use serde_json::Value;
use std::fs;
use std::path::Path;
use tree::{InstalledTree, text};

/// The ids of the checks in a state.
fn ids(reported: &Value, state: &str) -> Vec<String> {
    let checks = reported["checks"].as_array().unwrap().iter();
    let of_state = checks.filter(|check| check["state"] == state);
    of_state.map(|check| check["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn doctor_exits_with_1_if_something_is_missing() {
    let tree = InstalledTree::new();
    let done = tree.doctor(&[]);
    let printed = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{printed}");
    assert!(printed.ends_with("Nothing is missing.\n"), "{printed}");
    let tree = tree.with_card();
    let done = tree.doctor(&[]);
    let printed = text(&done.stdout);
    // Programs without librdmacm work, so the missing node is a note.
    assert_eq!(done.status.code(), Some(0), "{printed}");
    assert!(printed.lines().any(|line| line.trim() == "modprobe rdma_ucm"), "{printed}");
    assert!(printed.ends_with("Nothing is missing.\n"), "{printed}");
    tree.remove("machine/dev/infiniband/uverbs0");
    let done = tree.doctor(&[]);
    let printed = text(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{printed}");
    assert!(printed.ends_with("1 thing is missing.\n"), "{printed}");
    // A wrong option has a status of its own.
    assert_eq!(tree.doctor(&["--nonsense"]).status.code(), Some(2));
}

#[test]
fn doctor_prints_the_same_checks_as_json() {
    let tree = InstalledTree::new().with_card();
    tree.remove("machine/dev/infiniband/uverbs0");
    let done = tree.doctor(&["--json"]);
    assert_eq!(done.status.code(), Some(1));
    let reported: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(reported["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(ids(&reported, "missing"), ["nodes"]);
    let missing = reported["checks"].as_array().unwrap().iter().find(|c| c["state"] == "missing");
    let remedy = missing.unwrap()["remedy"].as_str().unwrap();
    assert!(remedy.contains("mknod -m 666 /dev/infiniband/uverbs0 c 231 192"), "{remedy}");
    let noted = reported["checks"].as_array().unwrap().iter();
    let mut noted = noted.filter(|c| c["state"] == "note" && c["id"] == "nodes");
    assert_eq!(noted.next().unwrap()["remedy"], "modprobe rdma_ucm");
    let well = ids(&reported, "ok");
    for id in ["library", "devices", "plugins", "gids", "memlock", "firewall", "fabric"] {
        assert!(well.iter().any(|other| other == id), "{id}: {reported:#}");
    }
    tree.file("machine/dev/infiniband/uverbs0", "");
    tree.file("machine/sys/class/misc/rdma_cm/dev", "10:120\n");
    tree.file("machine/dev/infiniband/rdma_cm", "");
    let done = tree.doctor(&["--json"]);
    assert_eq!(done.status.code(), Some(0));
    let reported: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(ids(&reported, "missing"), [""; 0]);
}

#[test]
fn doctor_checks_the_gids_of_soft_and_cross_memory_attach() {
    let done = InstalledTree::new().command(&["doctor", "--json"]).output().unwrap();
    let reported: Value = serde_json::from_slice(&done.stdout).unwrap();
    let checks = reported["checks"].as_array().unwrap();
    let finding = |id: &str| {
        let check = checks.iter().find(|check| check["id"] == id);
        check.map_or_else(String::new, |check| check["finding"].as_str().unwrap().to_owned())
    };
    assert!(finding("ptrace").contains("memory"), "{reported:#}");
    if !Path::new("/sys/class/infiniband").exists() {
        assert!(finding("gids").starts_with("soft0: "), "{reported:#}");
    }
}

#[test]
fn report_hides_secrets_in_each_notation() {
    let tree = InstalledTree::new();
    // The quotes and the tabulator are escaped in JSON and in the list of settings.
    let secret = "pla\"nted\\7f\t3a";
    let mut command = tree.command(&["report"]);
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
    let printed = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    for there in ["== doctor", "RDMAV_FORK_SAFE=1", "FERROVERBS_CONFIG_DIR=~/SECRET/HOST"] {
        assert!(printed.contains(there), "without {there}: {printed}");
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let reported = ["planted", "nted", host].into_iter().filter(|part| part.len() > 2);
    for reported in reported.filter(|part| *part != "localhost") {
        assert!(!printed.contains(reported), "with {reported}: {printed}");
    }
}
