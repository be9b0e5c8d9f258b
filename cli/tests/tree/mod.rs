//! An installed tree for tests of the command: the command itself, and empty files in the place of
//! the libraries.
#![allow(dead_code, reason = "each test uses another part")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary folder with an installed tree and the files of a machine. The folder is removed on
/// drop.
pub(crate) struct InstalledTree(pub(crate) PathBuf);

impl InstalledTree {
    /// A tree with the command, and with an empty file for the library and for each layer.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("ferroverbs-commands-{}-{n}", std::process::id());
        // A hard link, because exec(2) refuses a copy that the child of another test still has open
        // for writing (ETXTBSY). A link must be on the file system of the command.
        let tree = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder));
        let _ = fs::remove_dir_all(&tree.0);
        for folder in ["bin", "lib/libibverbs", "machine/tmp"] {
            fs::create_dir_all(tree.0.join(folder)).unwrap();
        }
        fs::hard_link(env!("CARGO_BIN_EXE_ferroverbs"), tree.0.join("bin/ferroverbs")).unwrap();
        tree.file("lib/libibverbs.so.1", "");
        for layer in ["validate", "trace", "capture", "stats"] {
            tree.file(&format!("lib/libibverbs/libferroverbs-layer-{layer}.so"), "");
        }
        tree.file(
            "machine/proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  unlimited  unlimited  bytes\n",
        );
        tree
    }

    /// Writes a file of the tree, whose folders are made.
    pub(crate) fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Removes a file of the tree.
    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.0.join(path)).unwrap();
    }

    /// Adds the files of an RDMA card to the machine, without the node of librdmacm.
    pub(crate) fn with_card(self) -> Self {
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

    /// The command of the tree with an empty environment.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.0.join("bin/ferroverbs"));
        command.args(words).env_clear().env("PATH", "/usr/bin:/bin");
        command
    }

    /// Runs `ferroverbs doctor` over the files of the machine.
    pub(crate) fn doctor(&self, more: &[&str]) -> Output {
        let machine = self.0.join("machine");
        let mut command = self.command(&["doctor", "--root"]);
        command.arg(machine).args(more).output().unwrap()
    }
}

impl Drop for InstalledTree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Output of a program as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
