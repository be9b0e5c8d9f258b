//! Debian packages that the demo and the tests need: how to see that they are there, and how to get
//! them.

use crate::process::{self, Job};
use crate::progress::Progress;
use crate::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A package and a file that only it brings: an absolute path, or the name of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    name: &'static str,
    proof: &'static str,
}

const fn package(name: &'static str, proof: &'static str) -> Package {
    Package { name, proof }
}

/// What the demo runs.
pub(crate) const DEMO: &[Package] = &[
    package("gcc", "gcc"),
    package("libc6-dev", "/usr/include/stdio.h"),
    package("ibverbs-utils", "ibv_devinfo"),
    package("libibverbs-dev", "/usr/include/infiniband/verbs.h"),
    package("perftest", "ib_send_bw"),
];

/// What the tests run, apart from what the demo runs.
pub(crate) const TEST: &[Package] = &[
    package("binutils", "readelf"),
    package("clang", "clang"),
    package("g++", "g++"),
    package("mandoc", "mandoc"),
    package("pkg-config", "pkg-config"),
    package("python3-pyverbs", "/usr/lib/python3/dist-packages/pyverbs/__init__.py"),
    package("libibverbs1", "/usr/share/doc/libibverbs1/copyright"),
    package("ibverbs-providers", "/etc/libibverbs.d/mlx5.driver"),
];

/// Whom the adapter is measured beside, and with what.
pub(crate) const BENCH: &[Package] = &[
    package("ucx-utils", "ucx_perftest"),
    package("libfabric-bin", "fi_pingpong"),
    package("openmpi-bin", "mpirun.openmpi"),
    package("libopenmpi-dev", "mpicc.openmpi"),
    package("mpich", "mpirun.mpich"),
    package("libmpich-dev", "mpicc.mpich"),
    package("valgrind", "valgrind"),
];

/// Stacks of others whose ways over verbs are tested.
pub(crate) const QPERF: &[Package] = &[package("qperf", "qperf")];
pub(crate) const LIBFABRIC: &[Package] = &[package("libfabric-bin", "fi_pingpong")];
pub(crate) const UCX: &[Package] = &[package("ucx-utils", "ucx_perftest")];
pub(crate) const OPEN_MPI: &[Package] =
    &[package("openmpi-bin", "mpirun.openmpi"), package("libopenmpi-dev", "mpicc.openmpi")];
pub(crate) const HPCC: &[Package] =
    &[package("hpcc", "hpcc"), package("openmpi-bin", "mpirun.openmpi")];
pub(crate) const MPICH: &[Package] =
    &[package("mpich", "mpirun.mpich"), package("libmpich-dev", "mpicc.mpich")];
pub(crate) const GLOO: &[Package] =
    &[package("libgloo-dev", "/usr/include/gloo/transport/ibverbs/device.h")];
pub(crate) const TENSORPIPE: &[Package] =
    &[package("libtensorpipe-dev", "/usr/include/tensorpipe/transport/ibv/factory.h")];
pub(crate) const DAPL: &[Package] = &[package("dapl2-utils", "dapltest")];
pub(crate) const CEPH: &[Package] =
    &[package("ceph-mon", "ceph-mon"), package("ceph-common", "ceph")];

/// What packages are made with.
pub(crate) const DIST: &[Package] = &[
    package("dpkg", "dpkg-deb"),
    package("binutils", "strip"),
    package("gcc", "gcc"),
    package("xz-utils", "xz"),
];

/// What they are tried out in.
pub(crate) const CHROOT: &[Package] = &[package("debootstrap", "/usr/sbin/debootstrap")];

/// What `bench start-up` runs, apart from what the demo runs.
pub(crate) const START_UP: &[Package] = &[
    package("strace", "strace"),
    package("valgrind", "valgrind"),
    package("libibverbs1", "/usr/share/doc/libibverbs1/copyright"),
    package("ibverbs-providers", "/etc/libibverbs.d/mlx5.driver"),
];

/// What a virtual machine with RDMA devices is made of; its kernel is downloaded, not installed.
pub(crate) const VM: &[Package] = &[
    package("qemu-system-x86", "qemu-system-x86_64"),
    package("busybox-static", "busybox"),
    package("kmod", "/sbin/depmod"),
    package("iproute2", "rdma"),
];

/// Installs those of `wanted` that are missing. Only root can; anybody else gets the line to run.
pub(crate) fn ensure(wanted: &[&[Package]], progress: &Progress) -> crate::Result<()> {
    let missing: Vec<_> =
        wanted.iter().flat_map(|list| list.iter()).filter(|p| !present(p)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|p| p.name).collect();
    let line = format!("apt-get install -y --no-install-recommends {}", names.join(" "));
    if find_program("apt-get").is_none() {
        return Err(format!(
            "these are missing (by their Debian names): {}\n\
             There is no apt-get here: install them by your system's means, then try again.",
            names.join(" ")
        ));
    }
    if !process::is_root() {
        return Err(format!(
            "some packages are missing. Please run\n\n    sudo {line}\n\nand try again."
        ));
    }
    let scratch = Scratch::new()?;
    let apt = |args: &[&str]| {
        Job::new("apt-get")
            .args(["-q", "-o", "DPkg::Lock::Timeout=120"])
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
    };
    progress.step("apt-get update");
    // A mirror that is down need not matter: the lists we have may do.
    let update = apt(&["update"]).run(&scratch, LIMIT)?;
    progress.step(&format!("installing {}", names.join(" ")));
    let install = apt(&["install", "-y", "--no-install-recommends"]).args(&names);
    let done = install.run(&scratch, LIMIT)?;
    if !done.ok() {
        let first = if update.ok() { String::new() } else { update.report("apt-get update") };
        return Err(format!("cannot install packages\n{first}{}", done.report("apt-get install")));
    }
    match missing.iter().find(|p| !present(p)) {
        None => Ok(()),
        Some(p) => Err(format!("{} is installed, but there is no {}", p.name, p.proof)),
    }
}

const LIMIT: Duration = Duration::from_secs(900);

fn present(package: &Package) -> bool {
    if package.proof.starts_with('/') {
        Path::new(package.proof).exists()
    } else {
        find_program(package.proof).is_some()
    }
}

/// Looks a program up in PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presence_is_judged_by_a_file_or_a_program() {
        assert!(present(&package("dash", "sh")));
        assert!(present(&package("base-files", "/etc")));
        assert!(!present(&package("nothing", "no-such-program-anywhere")));
        assert!(!present(&package("nothing", "/no/such/file")));
    }
}
