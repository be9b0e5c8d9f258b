//! The unmodified libefa of the system over the emulated EFA adapter, in one process: a program
//! posts each kind of request that libefa can build, and ibv_devinfo shows the device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Our library and the plugin, laid out as a user would.
struct Bench {
    folder: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
        for name in ["lib", "plugins", "settings"] {
            fs::create_dir_all(folder.join(name)).expect("cargo's folder for tests is writable");
        }
        let myself = std::env::current_exe().expect("this test has a path");
        let library = ferroverbs_c_tests::build_library(&myself).expect("our library");
        let plugin = ferroverbs_c_tests::build_loopback(&myself).expect("the plugin");
        copy(&library, &folder.join("lib/libibverbs.so.1"));
        copy(&plugin, &folder.join("plugins/libloopback-rdmav65.so"));
        fs::write(folder.join("settings/loopback.driver"), "driver loopback\n").expect("written");
        Self { folder }
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        Command::new(program)
            .args(arguments)
            .env("LD_LIBRARY_PATH", self.folder.join("lib"))
            .env("FERROVERBS_CONFIG_DIR", self.folder.join("settings"))
            .env("FERROVERBS_PROVIDER_DIR", self.folder.join("plugins"))
            .output()
            .expect("the program starts")
    }
}

fn copy(from: &Path, to: &Path) {
    // A new file: a running program may have the old one mapped.
    let _ = fs::remove_file(to);
    fs::copy(from, to).expect("copied");
}

#[test]
fn libefa_runs_over_the_emulated_adapter() {
    let bench = Bench::new();
    let program = bench.folder.join("efa");
    let compiled = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("emulated/efa.c"))
        .args(["-lefa", "-libverbs"])
        .output()
        .expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let done = bench.run(&program, &[]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success() && stderr.is_empty(), "{:?} {stdout}{stderr}", done.status);
    assert_eq!(stdout, "done\n");

    let shown = bench.run(Path::new("ibv_devinfo"), &["-v"]);
    let (stdout, stderr) = (text(&shown.stdout), text(&shown.stderr));
    assert!(shown.status.success(), "{stdout}{stderr}");
    for part in
        ["hca_id:\tefa_0", "0x1d0f", "PORT_ACTIVE", "fe80:0000:0000:0000:0200:00ff:fe00:0001"]
    {
        assert!(stdout.contains(part), "{part}: {stdout}{stderr}");
    }
}
