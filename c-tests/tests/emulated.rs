//! The unmodified libefa and libmlx5 of the system over the emulated adapters of soft: within one
//! process and between two, the kinds of request that they can build; ibv_devinfo shows the device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Our library and the plugin, laid out as a user would, and a fabric of its own.
struct Bench {
    folder: PathBuf,
}

impl Bench {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("emulated-{name}"));
        for name in ["lib", "plugins", "settings", "fabric"] {
            fs::create_dir_all(folder.join(name)).expect("cargo's folder for tests is writable");
        }
        let myself = std::env::current_exe().expect("this test has a path");
        let library = ferroverbs_c_tests::build_library(&myself).expect("our library");
        let plugin = ferroverbs_c_tests::build_soft(&myself).expect("the plugin");
        copy(&library, &folder.join("lib/libibverbs.so.1"));
        copy(&plugin, &folder.join("plugins/libsoft-rdmav65.so"));
        fs::write(folder.join("settings/soft.driver"), "driver soft\n").expect("written");
        Self { folder }
    }

    fn compile(&self, name: &str) -> PathBuf {
        let program = self.folder.join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("emulated/{name}.c"));
        let sources = ferroverbs_c_tests::sources::sources(&source).expect("the sources");
        let compiled = Command::new("gcc")
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .args(sources)
            .args(["-lefa", "-libverbs"])
            .output()
            .expect("a C compiler");
        assert!(compiled.status.success(), "{}", text(&compiled.stderr));
        program
    }

    fn run(&self, program: &Path, arguments: &[&str], emulate: &str) -> Output {
        Command::new(program)
            .args(arguments)
            .env("LD_LIBRARY_PATH", self.folder.join("lib"))
            .env("FERROVERBS_CONFIG_DIR", self.folder.join("settings"))
            .env("FERROVERBS_PROVIDER_DIR", self.folder.join("plugins"))
            .env("FERROVERBS_FABRIC_DIR", self.folder.join("fabric"))
            .env("FERROVERBS_EMULATE", emulate)
            .output()
            .expect("the program starts")
    }

    /// Runs a program that prints one line if all is well.
    fn passes(&self, name: &str, emulate: &str) {
        let done = self.run(&self.compile(name), &[], emulate);
        let (stdout, stderr) = (text(&done.stdout), text(&done.stderr));
        assert!(done.status.success() && stderr.is_empty(), "{:?} {stdout}{stderr}", done.status);
        assert_eq!(stdout, "done\n");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn copy(from: &Path, to: &Path) {
    // A new file: a running program may have the old one mapped.
    let _ = fs::remove_file(to);
    fs::copy(from, to).expect("copied");
}

#[test]
fn libefa_runs_over_the_emulated_adapter() {
    Bench::new("one").passes("efa", "efa");
}

#[test]
fn libefa_runs_between_two_processes() {
    Bench::new("pair").passes("efa_pair", "efa");
}

#[test]
fn libmlx5_runs_between_two_processes() {
    Bench::new("mlx5").passes("mlx5_pair", "mlx5");
}

#[test]
fn ibv_devinfo_shows_the_device_that_the_setting_names() {
    let bench = Bench::new("shown");
    let shown = bench.run(Path::new("ibv_devinfo"), &["-v"], "efa");
    let (stdout, stderr) = (text(&shown.stdout), text(&shown.stderr));
    assert!(shown.status.success(), "{stdout}{stderr}");
    for part in ["hca_id:\tefa_0", "0x1d0f", "61345", "PORT_ACTIVE", "max_qp:\t\t\t\t64"] {
        assert!(stdout.contains(part), "{part}: {stdout}{stderr}");
    }
    assert!(!stdout.contains("soft0"), "{stdout}");

    let shown = bench.run(Path::new("ibv_devinfo"), &["-v"], "mlx5");
    let stdout = text(&shown.stdout);
    assert!(shown.status.success() && shown.stderr.is_empty(), "{}", text(&shown.stderr));
    for part in ["hca_id:\tmlx5_0", "22.39.1002", "0x02c9", "PORT_ACTIVE", "ATOMIC_HCA", "Ethernet"]
    {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }

    let unknown = bench.run(Path::new("ibv_devinfo"), &["-v"], "efb");
    let line = "libibverbs: soft: FERROVERBS_EMULATE=efb: must be efa or mlx5; going on without an \
                emulated device\n";
    assert!(text(&unknown.stderr).contains(line), "{}", text(&unknown.stderr));
    assert!(text(&unknown.stdout).contains("soft0"), "{}", text(&unknown.stdout));
}
