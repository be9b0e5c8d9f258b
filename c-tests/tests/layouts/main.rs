//! The types of the `abi` crate equal those of C. ctest compares sizes, alignments, offsets, member
//! types, signs and constants with the headers of rdma-core, of the kernel and of Ferroverbs. Newer
//! headers than the system's come from a newer Debian.

mod check;
mod in_place;
mod prototypes;
mod tables;

use check::{Check, HeaderRelease};
use ferroverbs_c_tests::{debian, release::RELEASES};
use std::path::{Path, PathBuf};

/// `infiniband/sa.h` has the records of IBTA 1.7 15.2.5.
const VERBS: &[&str] = &[
    "infiniband/verbs.h",
    "infiniband/tm_types.h",
    "infiniband/sa.h",
    "infiniband/opcode.h",
    "rdma/ib_user_sa.h",
];
const KERNEL: &[&str] = &[
    "rdma/ib_user_verbs.h",
    "rdma/ib_user_ioctl_verbs.h",
    "rdma/ib_user_ioctl_cmds.h",
    "rdma/rdma_user_ioctl.h",
    "rdma/rdma_user_ioctl_cmds.h",
    "linux/dma-heap.h",
];

const RDMACM: &[&str] =
    &["infiniband/ib.h", "rdma/rdma_cma.h", "rdma/rdma_verbs.h", "rdma/rsocket.h"];
const RDMACM_MODULES: &[&str] = &["ib", "rdmacm"];
/// Names enumerators as [`RDMACM`] does, so both are never included at once.
const RDMACM_KERNEL: &[&str] = &["rdma/rdma_user_cm.h"];

/// The modules of the crate with the public interface, and those with the kernel's.
const PUBLIC_MODULES: &[&str] = &[
    "ah", "context", "counters", "cq", "device", "events", "flow", "mr", "opcode", "pd", "qp",
    "sa", "srq", "wq", "wr",
];
const KERNEL_MODULES: &[&str] = &[
    "kernel/cq",
    "kernel/device",
    "kernel/flow",
    "kernel/ids",
    "kernel/ioctl",
    "kernel/mr",
    "kernel/qp",
    "kernel/queues",
    "kernel/values",
];

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Cargo's folder for these tests.
fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// The headers of the newest rdma-core and its kernel; `None`, with a line, if they are not
/// available.
fn newest() -> Option<PathBuf> {
    let release = RELEASES.last().expect("there are releases");
    let target =
        scratch().parent().expect("cargo's folder for tests is below the target directory");
    match debian::unpacked(target, release.suite, debian::HEADERS) {
        Ok(tree) => Some(tree.join("usr/include")),
        Err(reason) => {
            println!("skipped: headers of rdma-core {}: {reason}", release.number);
            None
        }
    }
}

#[test]
fn public_types_are_those_of_the_installed_headers() {
    let check = Check { name: "installed", headers: VERBS, include: None, modules: PUBLIC_MODULES };
    // Debian 12 has release 44: newer types are absent or smaller.
    let result = check.run(HeaderRelease::Older);
    assert!(result.missing < result.compared / 10, "{result:?}");
    println!("{result:?}");
}

#[test]
fn public_types_are_those_of_the_newest_headers() {
    let Some(include) = newest() else { return };
    let check =
        Check { name: "newest", headers: VERBS, include: Some(&include), modules: PUBLIC_MODULES };
    println!("{:?}", check.run(HeaderRelease::Same));
}

#[test]
fn public_types_are_those_of_our_headers() {
    let include = root().join("include");
    let check =
        Check { name: "ours", headers: VERBS, include: Some(&include), modules: PUBLIC_MODULES };
    println!("{:?}", check.run(HeaderRelease::Same));
}

#[test]
fn kernel_types_are_those_of_the_systems_headers() {
    let check = Check { name: "kernel", headers: KERNEL, include: None, modules: KERNEL_MODULES };
    let result = check.run(HeaderRelease::Older);
    assert!(result.missing < result.compared / 5, "{result:?}");
    println!("{result:?}");
}

#[test]
fn kernel_types_are_those_of_the_newest_headers() {
    let Some(include) = newest() else { return };
    let check = Check {
        name: "kernel-newest",
        headers: KERNEL,
        include: Some(&include),
        modules: KERNEL_MODULES,
    };
    println!("{:?}", check.run(HeaderRelease::Same));
}

#[test]
fn types_of_the_connection_manager_are_those_of_the_installed_headers() {
    let checks = [
        Check { name: "rdmacm", headers: RDMACM, include: None, modules: RDMACM_MODULES },
        Check {
            name: "rdmacm-kernel",
            headers: RDMACM_KERNEL,
            include: None,
            modules: &["kernel/rdmacm"],
        },
    ];
    for check in checks {
        let result = check.run(HeaderRelease::Older);
        assert!(result.missing < result.compared / 10, "{result:?}");
        println!("{result:?}");
    }
}

#[test]
fn types_of_the_connection_manager_are_those_of_the_newest_headers() {
    let Some(include) = newest() else { return };
    let check = Check {
        name: "rdmacm-newest",
        headers: RDMACM,
        include: Some(&include),
        modules: RDMACM_MODULES,
    };
    println!("{:?}", check.run(HeaderRelease::Same));
}

#[test]
fn types_of_the_connection_manager_are_those_of_our_headers() {
    let include = root().join("include");
    let check = Check {
        name: "rdmacm-ours",
        headers: RDMACM,
        include: Some(&include),
        modules: RDMACM_MODULES,
    };
    println!("{:?}", check.run(HeaderRelease::Same));
}
