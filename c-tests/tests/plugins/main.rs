//! Binaries that distributions build against rdma-core bind to Ferroverbs. All plugins of Debian's
//! releases load with immediate binding and register, and librdmacm and pyverbs find all their
//! imports. Each release runs on its own C library; plugins that can also run on the system's do so
//! as well.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferroverbs_c_tests::release::{RELEASES, Release, Unpacked};

/// The libraries of a release and the programs over them.
struct Bench {
    release: Release,
    unpacked: Unpacked,
    folder: PathBuf,
    program: PathBuf,
}

/// Which library is under the plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Theirs,
    Ours,
}

#[test]
fn plugins_and_libraries_of_each_release_bind_to_ours() {
    for release in RELEASES {
        match Bench::set_up(release) {
            Ok(bench) => {
                bench.all_plugins_register();
                bench.most_plugins_register_on_the_systems_c_library();
                bench.libraries_find_their_imports();
            }
            Err(reason) => println!("not tried with release {}: {reason}", release.number),
        }
    }
}

impl Bench {
    /// `Err` says why there is nothing to load.
    fn set_up(release: Release) -> Result<Self, String> {
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let target = tmp.parent().ok_or("a folder for tests outside of target/tmp")?;
        let unpacked = release.unpacked(target)?;
        let folder = tmp.join("plugins").join(release.suite);
        for name in ["ours", "providers"] {
            fs::create_dir_all(folder.join(name)).expect("cargo's folder for tests is writable");
        }
        let myself = std::env::current_exe().expect("this test has a path");
        let library = ferroverbs_c_tests::build_library(&myself).expect("our library");
        link(&library, &folder.join("ours/libibverbs.so.1"));
        // Libraries that are plugins too, without the C library beside them.
        for plugin in unpacked.plugins() {
            let real = plugin.canonicalize().expect("a plugin");
            let name = real.file_name().expect("a file").to_string_lossy().into_owned();
            if let Some((stem, _)) = name.split_once(".so.1.") {
                link(&real, &folder.join(format!("providers/{stem}.so.1")));
            }
        }
        let program = folder.join("load");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/load.c");
        let done = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-o"])
            .args([&program, &source])
            .arg("-ldl")
            .output()
            .map_err(|error| format!("no C compiler: {error}"))?;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(Self { release, unpacked, folder, program })
    }

    /// The release's own dynamic loader and C library, with Ferroverbs in front for that side.
    fn own(&self, side: Side) -> Command {
        let mut path = vec![self.unpacked.libraries.clone()];
        if side == Side::Ours {
            path.insert(0, self.folder.join("ours"));
        }
        let mut command = Command::new(self.unpacked.loader());
        command.arg("--library-path").arg(std::env::join_paths(path).expect("no colon in there"));
        command.env_clear();
        command
    }

    fn load(&self, mut command: Command) -> Vec<String> {
        let output = command.args(self.unpacked.plugins()).output().expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        let quiet = output.status.success() && stderr.is_empty();
        assert!(quiet, "release {}: {stdout}{stderr}", self.release.number);
        let lines: Vec<_> = stdout.lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), self.unpacked.plugins().len(), "{stdout}");
        lines
    }

    fn all_plugins_register(&self) {
        let run = |side| {
            let mut command = self.own(side);
            command.arg(&self.program);
            self.load(command)
        };
        let ours = run(Side::Ours);
        let suffix = if self.release.number < 57 {
            "as 34".into()
        } else {
            format!("as {}", self.release.number)
        };
        for line in &ours {
            assert!(line.ends_with(&suffix), "release {}: {line}", self.release.number);
        }
        assert_eq!(ours, run(Side::Theirs), "release {}", self.release.number);
        assert!(ours.len() >= 15, "only {} plugins", ours.len());
        assert!(ours.iter().any(|line| line.contains(" rxe as ")), "no rxe among {ours:?}");
    }

    fn most_plugins_register_on_the_systems_c_library(&self) {
        let mut command = Command::new(&self.program);
        let path = [self.folder.join("ours"), self.folder.join("providers")];
        command.env_clear();
        command.env("LD_LIBRARY_PATH", std::env::join_paths(path).expect("no colon in there"));
        let (fine, failing): (Vec<_>, Vec<_>) =
            self.load(command).into_iter().partition(|line| !line.contains(" fails: "));
        for line in &failing {
            assert!(line.contains("`GLIBC_"), "release {}: {line}", self.release.number);
        }
        assert!(fine.len() > failing.len(), "release {}: {failing:?}", self.release.number);
        assert!(fine.iter().all(|line| line.contains(" as ")), "{fine:?}");
    }

    fn libraries_find_their_imports(&self) {
        let modules = self.unpacked.root.join("usr/lib/python3/dist-packages/pyverbs");
        let mut files = shared_objects(&modules);
        assert!(files.len() > 10, "pyverbs has {} modules", files.len());
        files.push(self.unpacked.libraries.join("librdmacm.so.1"));
        let mut over_ours = 0;
        for file in files {
            let mut command = self.own(Side::Ours);
            // As `ldd -r` does.
            command.env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_WARN", "yes");
            let output = command.env("LD_BIND_NOW", "yes").arg(&file).output().expect("it starts");
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            let ours = self.folder.join("ours/libibverbs.so.1");
            let is_over_ours = text.contains(&*ours.to_string_lossy());
            assert_eq!(
                is_over_ours,
                text.contains("libibverbs.so.1"),
                "{}: {text}",
                file.display()
            );
            over_ours += u32::from(is_over_ours);
            // The interpreter need not be here, and its symbols are not ours.
            let missing = text.lines().filter(|line| {
                let undefined = line.trim_start().strip_prefix("undefined symbol: ");
                let is_pythons =
                    undefined.is_some_and(|s| s.starts_with("Py") || s.starts_with("_Py"));
                (undefined.is_some() && !is_pythons)
                    || (line.contains("not found") && !line.contains("libpython"))
                    || line.contains("not defined")
            });
            let missing: Vec<_> = missing.collect();
            assert!(missing.is_empty(), "{}: {missing:#?}", file.display());
        }
        assert!(over_ours > 10, "only {over_ours} of them use libibverbs");
    }
}

fn link(target: &Path, link: &Path) {
    let _ = fs::remove_file(link);
    std::os::unix::fs::symlink(target, link).expect("a link");
}

/// All `*.so` below a folder.
fn shared_objects(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(shared_objects(&path));
        } else if path.extension().is_some_and(|ending| ending == "so") {
            found.push(path);
        }
    }
    found.sort();
    found
}
