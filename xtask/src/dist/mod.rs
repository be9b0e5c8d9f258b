//! `cargo xtask dist`: Debian packages and a repository of them, an RPM, a tarball, a Python wheel
//! and their checksums under `target/dist`.
//!
//! - `ferroverbs`: a separate tree under `/usr/lib/ferroverbs`, and the command that runs one
//!   program over it.
//! - `libibverbs1-ferroverbs`, `libibverbs-dev-ferroverbs`: replace the distribution's two
//!   packages.
//! - `librdmacm1-ferroverbs`, `librdmacm-dev-ferroverbs`: the same for librdmacm.
//! - `ferroverbs-soft`: the software adapter for the programs of all users, installed only on
//!   request.
//! - `ferroverbs-dbgsym`: debug symbols of the libraries of all packages.
//! - `ferroverbs-restore`: no files; its dependencies bring the distribution's packages back.
//!
//! Control files and the command are in `packaging/`. The same sources give the same bytes: times
//! are those of the last commit, or `SOURCE_DATE_EPOCH`. No binary contains its build folder
//! ([`reproducible`]).
//!
//! Map of this file: `Args` and `build`; the table `PACKAGES`; `Dist`, with a function for each
//! package, the tarball and the wheel; helpers.

mod apt;
mod debug;
mod rpm;
mod symbols;
mod wheel;

use crate::architecture::Architecture;
use crate::files::{below, entries};
use crate::floor::{self, Version};
use crate::packages;
use crate::paths::Paths;
use crate::process::{Finished, Job};
use crate::progress::Progress;
use crate::reproducible;
use crate::scratch::{Scratch, copy_tree, set_mode};
use crate::stage;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
/// Of the crates, and of the packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The release of rdma-core whose interface Ferroverbs offers, for comparison with dependencies on
/// its packages.
const UPSTREAM: &str = "65.0-0ferroverbs";
/// The versions of rdma-core in the releases of Debian, for the distribution's packages that depend
/// on exactly one version: `libibverbs-dev` and `librdmacm-dev`. `cargo xtask test dist` finds a
/// missing version.
pub const RELEASES: [(&str, &str); 2] = [("bookworm", "44.0-2"), ("trixie", "56.1-1")];

/// What the command line says.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Build a second time, in another folder with another CARGO_HOME, and compare: takes as long
    /// as two builds
    #[arg(long, conflicts_with = "arch")]
    verify: bool,
    /// Build for another processor by cross tools: aarch64, into target/dist-aarch64
    #[arg(long, value_name = "ARCH", value_parser = Architecture::parse)]
    arch: Option<Architecture>,
}

/// Builds everything and says where it is.
pub fn main(args: &Args) -> crate::Result<ExitCode> {
    let paths = Paths::find()?;
    let progress = Progress::new();
    let files = build_for(&paths, args.arch.unwrap_or(Architecture::Native), &progress)?;
    if args.verify {
        let sums = files.last().ok_or("dist made nothing")?;
        let sums = fs::read_to_string(sums).map_err(|e| format!("{}: {e}", sums.display()))?;
        reproducible::verify(&paths, &time(&paths, &Scratch::new()?), &sums, &progress)?;
    }
    progress.clear();
    for file in files {
        println!("{}", file.display());
    }
    if args.verify {
        println!("the same when built elsewhere");
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds everything; the packages, their repository, the RPM, the tarball, the wheel, and last the
/// checksums.
pub fn build(paths: &Paths, progress: &Progress) -> crate::Result<Vec<PathBuf>> {
    build_for(paths, Architecture::Native, progress)
}

/// As [`build`], for an architecture: `target/dist-aarch64` for aarch64 on another machine.
pub fn build_for(
    paths: &Paths,
    architecture: Architecture,
    progress: &Progress,
) -> crate::Result<Vec<PathBuf>> {
    packages::ensure(&[packages::DIST], progress)?;
    stage::ensure_for(paths, architecture, progress)?;
    let scratch = Scratch::new()?;
    let dist = Dist::new(paths, architecture, &scratch)?;
    let out = paths.target.join(architecture.named("dist"));
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).map_err(|e| format!("cannot create {}: {e}", out.display()))?;
    let mut files = Vec::new();
    for package in PACKAGES {
        progress.step(&format!("packing {}", package.name));
        files.push(dist.package(package, &out)?);
    }
    progress.step("packing the repository and the RPM");
    files.push(dist.repository(&files, &out)?);
    files.push(dist.rpm(&out)?);
    progress.step("packing the tarball");
    files.push(dist.tarball(&out)?);
    progress.step("packing the wheel");
    files.push(dist.wheel(&out)?);
    let mut sums = dist.job("sha256sum").dir(&out);
    for file in &files {
        sums = sums.arg(file.strip_prefix(&out).unwrap_or(file));
    }
    let list = out.join("SHA256SUMS");
    fs::write(&list, dist.ask(sums)?)
        .map_err(|e| format!("cannot write {}: {e}", list.display()))?;
    files.push(list);
    Ok(files)
}

/// A package, and how its tree is laid out.
struct Package {
    name: &'static str,
    lay: fn(&Dist<'_>, &Path) -> crate::Result<()>,
    /// The shared library that others link to, which the cache of the dynamic loader must list.
    library: Option<&'static str>,
}

const PACKAGES: &[Package] = &[
    Package { name: "ferroverbs", lay: |d, root| d.beside(root), library: None },
    Package {
        name: "libibverbs1-ferroverbs",
        lay: |d, root| d.verbs(root),
        library: Some("libibverbs"),
    },
    Package { name: "ferroverbs-soft", lay: |d, root| d.soft(root), library: None },
    Package {
        name: "libibverbs-dev-ferroverbs",
        lay: |d, root| d.development("libibverbs", root),
        library: None,
    },
    Package {
        name: "librdmacm1-ferroverbs",
        lay: |d, root| d.connections(root),
        library: Some("librdmacm"),
    },
    Package {
        name: "librdmacm-dev-ferroverbs",
        lay: |d, root| d.development("librdmacm", root),
        library: None,
    },
    Package { name: RESTORE, lay: |_, _| Ok(()), library: None },
    Package { name: DEBUG, lay: |d, root| d.debug(root), library: None },
];

/// The package without files that brings the distribution's packages back.
const RESTORE: &str = "ferroverbs-restore";
/// The package with debug symbols, which replaces nothing.
const DEBUG: &str = "ferroverbs-dbgsym";

/// Seconds since the epoch: SOURCE_DATE_EPOCH, or the time of the last commit. Outside a repository
/// a constant.
fn time(paths: &Paths, scratch: &Scratch) -> String {
    if let Ok(time) = std::env::var("SOURCE_DATE_EPOCH")
        && time.parse::<u64>().is_ok()
    {
        return time;
    }
    let git = Job::new("git").args(["log", "-1", "--format=%ct"]).dir(&paths.root);
    let done = git.run(scratch, LIMIT).ok().filter(Finished::ok);
    done.map_or_else(|| "0".into(), |done| done.stdout.trim().to_owned())
}

struct Dist<'a> {
    paths: &'a Paths,
    scratch: &'a Scratch,
    architecture: Architecture,
    /// The staged tree with stripped binaries.
    tree: PathBuf,
    /// Debian's name of the machine, and of its library folder.
    arch: String,
    multiarch: String,
    /// Seconds since the epoch.
    time: String,
}

impl<'a> Dist<'a> {
    fn new(
        paths: &'a Paths,
        architecture: Architecture,
        scratch: &'a Scratch,
    ) -> crate::Result<Self> {
        let ask = |program: &str, args: &[&str]| -> crate::Result<String> {
            let done = Job::new(program).args(args).dir(&paths.root).succeed(scratch, LIMIT)?;
            Ok(done.stdout.trim().to_owned())
        };
        let tree = scratch.folder("stripped", 0o755)?;
        copy_tree(&paths.stage_of(architecture), &tree)?;
        let layers: Vec<String> = stage::LAYERS.iter().map(|name| stage::layer(name)).collect();
        let libraries = ["lib/libibverbs.so.1", stage::INLINES, "lib/librdmacm.so.1"];
        let others = libraries.into_iter().chain(["bin/ferroverbs", stage::PRELOAD, stage::PLUGIN]);
        for binary in others.chain(layers.iter().map(String::as_str)) {
            ask(
                &architecture.tool("strip"),
                &["--strip-unneeded", &tree.join(binary).to_string_lossy()],
            )?;
        }
        Ok(Self {
            paths,
            scratch,
            architecture,
            tree,
            arch: match architecture {
                Architecture::Native => ask("dpkg", &["--print-architecture"])?,
                Architecture::Aarch64 => "arm64".to_owned(),
            },
            multiarch: ask(&architecture.tool("gcc"), &["-print-multiarch"])?,
            time: time(paths, scratch),
        })
    }

    fn job(&self, program: &str) -> Job {
        Job::new(program).env("SOURCE_DATE_EPOCH", &self.time).env("LC_ALL", "C.UTF-8")
    }

    /// What a command prints.
    fn ask(&self, job: Job) -> crate::Result<String> {
        Ok(job.succeed(self.scratch, LIMIT)?.stdout)
    }

    /// The checksum of a file, by the program `md5sum` or `sha256sum`.
    fn sum(&self, program: &str, file: &Path) -> crate::Result<String> {
        let printed = self.ask(self.job(program).arg(file))?;
        let sum = printed.split_whitespace().next();
        sum.map(str::to_owned).ok_or_else(|| format!("{program} printed no sum"))
    }

    fn packaging(&self) -> PathBuf {
        self.paths.root.join("packaging")
    }

    /// Everything under a directory of its own, and the command.
    fn beside(&self, root: &Path) -> crate::Result<()> {
        let own = root.join("usr/lib/ferroverbs");
        for part in ["lib", "etc", "include", "share"] {
            copy(&self.tree.join(part), &own.join(part))?;
        }
        copy(&self.tree.join("bin/ferroverbs"), &root.join("usr/bin/ferroverbs"))?;
        // Definitions of shells go where the shells look.
        for (_, file) in stage::COMPLETIONS {
            let staged = own.join(file);
            copy(&staged, &root.join("usr").join(file))?;
            fs::remove_file(&staged).map_err(|e| format!("{}: {e}", staged.display()))?;
        }
        // Pages that no other package has go where man(1) looks.
        for (section, page) in self.pages()? {
            let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if page_of(&section, &name).is_none() {
                self.page(&page, &section, root)?;
            }
        }
        Ok(())
    }

    fn library(&self, library: &str, root: &Path) -> crate::Result<()> {
        let name = format!("{library}.so.1");
        let folder = root.join("usr/lib").join(&self.multiarch);
        copy(&self.tree.join("lib").join(&name), &folder.join(&name))
    }

    fn connections(&self, root: &Path) -> crate::Result<()> {
        self.library("librdmacm", root)?;
        // In a separate folder, so no program preloads the library by accident.
        let folder = root.join("usr/lib").join(&self.multiarch).join("rsocket");
        copy(&self.tree.join(stage::PRELOAD), &folder.join("librspreload.so"))
    }

    fn verbs(&self, root: &Path) -> crate::Result<()> {
        self.library("libibverbs", root)?;
        self.library("libferroverbs-inlines", root)?;
        let folder = root.join("usr/lib").join(&self.multiarch);
        // Where the library looks for layers: beside the plugins.
        for name in stage::LAYERS {
            let layer = self.tree.join(stage::layer(name));
            let file = layer.file_name().unwrap_or_default();
            copy(&layer, &folder.join("libibverbs").join(file))?;
        }
        Ok(())
    }

    fn soft(&self, root: &Path) -> crate::Result<()> {
        let name = "libsoft-rdmav65.so";
        let folder = root.join("usr/lib").join(&self.multiarch).join("libibverbs");
        copy(&self.tree.join("lib/libibverbs").join(name), &folder.join(name))?;
        // The comment makes the distribution's libibverbs load the plugin without a kernel device.
        let text = format!("# ferroverbs: announces-devices\n{}", stage::SOFT_DRIVER);
        // Not in /etc: files there stay when the package is removed, and every program would report
        // the missing plugin.
        write(&root.join("usr/share/ferroverbs/libibverbs.d/soft.driver"), &text)
    }

    /// What programs for a library are compiled with.
    fn development(&self, library: &str, root: &Path) -> crate::Result<()> {
        let lib = root.join("usr/lib").join(&self.multiarch);
        make_folder(&lib)?;
        let link = lib.join(format!("{library}.so"));
        symlink(format!("{library}.so.1"), link).map_err(|e| e.to_string())?;
        let staged = self.tree.join(format!("lib/pkgconfig/{library}.pc"));
        let text = fs::read_to_string(&staged).map_err(|e| e.to_string())?;
        let mut pc = format!("prefix=/usr\nlibdir=${{prefix}}/lib/{}\n", self.multiarch);
        for line in text.lines().filter(|l| !l.starts_with("prefix=") && !l.starts_with("libdir="))
        {
            pc.push_str(line);
            pc.push('\n');
        }
        write(&lib.join(format!("pkgconfig/{library}.pc")), &pc)?;
        let include = self.tree.join("include");
        for header in below(&include)? {
            let inner = header.strip_prefix(&include).unwrap_or(&header);
            let of = if RDMACM_HEADERS.iter().any(|own| inner.starts_with(own)) {
                "librdmacm"
            } else {
                "libibverbs"
            };
            if of == library {
                copy(&header, &root.join("usr/include").join(inner))?;
            }
        }
        for (section, page) in self.pages()? {
            let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if page_of(&section, &name) == Some(library) {
                self.page(&page, &section, root)?;
            }
        }
        Ok(())
    }

    /// Section folder (`man3`) and file of each manual page.
    fn pages(&self) -> crate::Result<Vec<(String, PathBuf)>> {
        let mut pages = Vec::new();
        for section in entries(&self.tree.join("share/man"))? {
            let name = section.file_name().unwrap_or_default().to_string_lossy().into_owned();
            pages.extend(entries(&section)?.into_iter().map(|page| (name.clone(), page)));
        }
        Ok(pages)
    }

    fn page(&self, page: &Path, section: &str, root: &Path) -> crate::Result<()> {
        let name = page.file_name().unwrap_or_default();
        let to = root.join("usr/share/man").join(section).join(name);
        // Another name of a page.
        if let Ok(target) = fs::read_link(page) {
            let fail = |e: std::io::Error| format!("cannot link {}: {e}", to.display());
            let compressed = |file: &Path| PathBuf::from(format!("{}.gz", file.display()));
            make_folder(to.parent().unwrap_or(root))?;
            return symlink(compressed(&target), compressed(&to)).map_err(fail);
        }
        copy(page, &to)?;
        self.gzip(&to)
    }

    /// Compresses a file in place, without its name and time.
    fn gzip(&self, file: &Path) -> crate::Result<()> {
        self.ask(self.job("gzip").args(["-9n"]).arg(file)).map(drop)
    }

    fn package(&self, package: &Package, out: &Path) -> crate::Result<PathBuf> {
        let root = self.scratch.folder("package", 0o755)?;
        (package.lay)(self, &root)?;
        let doc = root.join("usr/share/doc").join(package.name);
        if package.name == DEBUG {
            // A package of debug symbols has the documents of the package that it depends on.
            make_folder(doc.parent().unwrap_or(&root))?;
            symlink("ferroverbs", &doc).map_err(|e| format!("{}: {e}", doc.display()))?;
        } else {
            copy(&self.packaging().join("copyright"), &doc.join("copyright"))?;
            let changelog = doc.join("changelog");
            write(&changelog, &self.changelog()?)?;
            self.gzip(&changelog)?;
        }
        if let Some(library) = package.library {
            // The name says which package it replaces; by policy it would be the other package's
            // name, or list each library.
            let text = format!("{}: package-name-doesnt-match-sonames *\n", package.name);
            write(&root.join("usr/share/lintian/overrides").join(package.name), &text)?;
            write(&root.join("DEBIAN/triggers"), "activate-noawait ldconfig\n")?;
            let mut shlibs = format!("{library} 1 {library}1\n");
            if library == "libibverbs" {
                // No other package has it.
                shlibs.push_str(&format!("libferroverbs-inlines 1 {}\n", package.name));
            }
            write(&root.join("DEBIAN/shlibs"), &shlibs)?;
            write(&root.join("DEBIAN/symbols"), &self.symbols(library)?)?;
        }
        let postinst = self.packaging().join(format!("{}.postinst", package.name));
        if postinst.exists() {
            copy(&postinst, &root.join("DEBIAN/postinst"))?;
            set_mode(&root.join("DEBIAN/postinst"), 0o755)?;
        }
        self.control(package, &root)?;
        self.age(&root)?;
        let arch = if package.name == RESTORE { "all" } else { &self.arch };
        let file = out.join(format!("{}_{VERSION}_{arch}.deb", package.name));
        let job = self.job("dpkg-deb").args(["--root-owner-group", "-Zxz", "--build"]);
        self.ask(job.arg(&root).arg(&file))?;
        Ok(file)
    }

    /// As deb-changelog(5) wants it. What changed is in the commit log, with the reasons.
    fn changelog(&self) -> crate::Result<String> {
        let date = ["-u", "-R", "-d", &format!("@{}", self.time)];
        let date = self.ask(self.job("date").args(date))?;
        Ok(format!(
            "ferroverbs ({VERSION}) unstable; urgency=medium\n\n  * See the documentation and the commit log.\n\n \
             -- The Ferroverbs authors <maintainers@ferroverbs.invalid>  {}\n",
            date.trim()
        ))
    }

    /// Control file and checksums.
    fn control(&self, package: &Package, root: &Path) -> crate::Result<()> {
        let (mut sums, mut size, mut glibc) = (String::new(), 0, Version(0, 0));
        for file in below(root)? {
            let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
            if name.starts_with("DEBIAN/") || file.is_symlink() {
                continue;
            }
            size += fs::metadata(&file).map_err(|e| e.to_string())?.len().div_ceil(1024);
            sums.push_str(&format!("{}  {name}\n", self.sum("md5sum", &file)?));
            if name.contains(".so") || name.starts_with("usr/bin/") {
                glibc = glibc.max(self.glibc(&file)?);
            }
        }
        write(&root.join("DEBIAN/md5sums"), &sums)?;
        let template = self.packaging().join(format!("{}.control", package.name));
        let text = fs::read_to_string(&template)
            .map_err(|e| format!("cannot read {}: {e}", template.display()))?
            .replace("@VERSION@", VERSION)
            .replace("@ARCH@", &self.arch)
            .replace("@SIZE@", &size.to_string())
            .replace("@GLIBC@", &format!("{}.{}", glibc.0, glibc.1))
            .replace("@UPSTREAM@", UPSTREAM);
        write(&root.join("DEBIAN/control"), &with_provides(&text))
    }

    /// The newest version of the C library that a library or a program needs.
    fn glibc(&self, binary: &Path) -> crate::Result<Version> {
        let printed = self.ask(self.job("readelf").arg("-VW").arg(binary))?;
        floor::newest(&printed).ok_or_else(|| format!("{} needs no C library", binary.display()))
    }

    /// The staged tree as one file, to be unpacked anywhere.
    fn tarball(&self, out: &Path) -> crate::Result<PathBuf> {
        let name = format!("ferroverbs-{VERSION}-{}", self.multiarch);
        let file = out.join(format!("{name}.tar.gz"));
        let top = self.scratch.folder("tarball", 0o755)?;
        let root = top.join(&name);
        copy(&self.tree, &root)?;
        for text in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            copy(&self.paths.root.join(text), &root.join(text))?;
        }
        let job = self
            .job("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .arg(format!("--mtime=@{}", self.time))
            .args(["--use-compress-program=gzip -9n", "-cf"])
            .arg(&file)
            .arg("-C")
            .arg(&top)
            .arg(&name);
        self.ask(job)?;
        Ok(file)
    }

    /// Gives all files the time of the last commit and the modes of packages, independent of the
    /// umask.
    fn age(&self, root: &Path) -> crate::Result<()> {
        self.ask(self.job("chmod").args(["-R", "u=rwX,go=rX"]).arg(root))?;
        let job = self
            .job("find")
            .arg(root)
            .args(["-exec", "touch", "--no-dereference"])
            .arg(format!("--date=@{}", self.time))
            .args(["{}", "+"]);
        self.ask(job).map(drop)
    }
}

/// A control file with each `@PROVIDES:NAME@` replaced by `NAME` in the version of the interface
/// and in the versions of all releases.
fn with_provides(text: &str) -> String {
    let mut parts = text.split("@PROVIDES:");
    let mut done = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('@').unwrap_or((part, ""));
        let versions =
            std::iter::once(UPSTREAM).chain(RELEASES.iter().map(|(_, version)| *version));
        let all: Vec<String> = versions.map(|version| format!("{name} (= {version})")).collect();
        done.push_str(&all.join(", "));
        done.push_str(rest);
    }
    done
}

/// What is librdmacm's below the folder of headers.
const RDMACM_HEADERS: [&str; 2] = ["infiniband/ib.h", "rdma"];

/// The library whose development package has the manual page; none for Ferroverbs' own pages.
fn page_of(section: &str, name: &str) -> Option<&'static str> {
    if name.starts_with("ferroverbs") {
        return None;
    }
    // libibverbs has no page in the section of overviews.
    let connections = name.starts_with("rdma_") || section == "man7";
    Some(if connections { "librdmacm" } else { "libibverbs" })
}

fn make_folder(path: &Path) -> crate::Result<()> {
    fs::create_dir_all(path).map_err(|e| format!("cannot create {}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> crate::Result<()> {
    make_folder(path.parent().unwrap_or(path))?;
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    set_mode(path, 0o644)
}

/// Copies a file or a folder.
fn copy(from: &Path, to: &Path) -> crate::Result<()> {
    if from.is_dir() {
        make_folder(to)?;
        return copy_tree(from, to);
    }
    make_folder(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map_err(|e| format!("cannot copy {}: {e}", from.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distribution's -dev packages depend on exactly one version of a library.
    #[test]
    fn replacing_packages_provide_the_versions_of_all_releases() {
        for (control, name) in [
            (include_str!("../../../packaging/libibverbs1-ferroverbs.control"), "libibverbs1"),
            (
                include_str!("../../../packaging/libibverbs-dev-ferroverbs.control"),
                "libibverbs-dev",
            ),
            (include_str!("../../../packaging/librdmacm1-ferroverbs.control"), "librdmacm1"),
            (include_str!("../../../packaging/librdmacm1-ferroverbs.control"), "librdmacm1t64"),
            (include_str!("../../../packaging/librdmacm-dev-ferroverbs.control"), "librdmacm-dev"),
        ] {
            let text = with_provides(control);
            let provides = text.lines().find_map(|line| line.strip_prefix("Provides: "));
            let provides = provides.expect("a line of Provides");
            for version in ["44.0-2", "56.1-1", UPSTREAM] {
                let wanted = format!("{name} (= {version})");
                assert!(provides.split(", ").any(|found| found == wanted), "{wanted}: {provides}");
            }
        }
    }

    /// A package that stays would keep the distribution's packages out.
    #[test]
    fn the_way_back_removes_each_replacing_package() {
        let control = include_str!("../../../packaging/ferroverbs-restore.control");
        let conflicts = control.lines().find_map(|line| line.strip_prefix("Conflicts: "));
        let conflicts: Vec<&str> = conflicts.expect("conflicts").split(", ").collect();
        for package in PACKAGES
            .iter()
            .filter(|package| !["ferroverbs", RESTORE, DEBUG].contains(&package.name))
        {
            assert!(conflicts.contains(&package.name), "{}", package.name);
        }
        assert!(include_str!("../../../docs/guide/packaging.md").contains(RESTORE));
    }

    #[test]
    fn each_page_is_in_one_package() {
        assert_eq!(page_of("man3", "ibv_open_device.3"), Some("libibverbs"));
        assert_eq!(page_of("man3", "rdma_create_id.3"), Some("librdmacm"));
        assert_eq!(page_of("man7", "rbind.7"), Some("librdmacm"));
        assert_eq!(page_of("man7", "ferroverbs-soft.7"), None);
    }

    const DOCKERFILE: &str = include_str!("../../../packaging/containers/Dockerfile");
    /// Each starts containers of the image that the Dockerfile says how to build.
    const EXAMPLES: [&str; 4] = [
        include_str!("../../../packaging/containers/compose.yaml"),
        include_str!("../../../packaging/containers/compose-shared.yaml"),
        include_str!("../../../packaging/containers/kubernetes.yaml"),
        include_str!("../../../packaging/containers/kubernetes-shared.yaml"),
    ];

    #[test]
    fn the_image_of_containers_has_packages_that_are_made() {
        let copy = DOCKERFILE.lines().find(|line| line.starts_with("COPY ")).unwrap_or_default();
        let named: Vec<_> =
            copy.split_whitespace().filter_map(|word| word.strip_suffix("_*.deb")).collect();
        assert!(named.contains(&"ferroverbs-soft"), "{copy}");
        for name in named {
            assert!(PACKAGES.iter().any(|package| package.name == name), "no package {name}");
        }
    }

    #[test]
    fn examples_of_containers_name_the_image_and_settings_that_there_are() {
        let settings = include_str!("../../../docs/reference/settings.md");
        let built = DOCKERFILE.split_once("docker build -t ").map_or("", |(_, rest)| rest);
        let image = built.split_whitespace().next().unwrap_or_default();
        for text in EXAMPLES {
            let images: Vec<_> =
                text.lines().filter_map(|line| line.trim_start().strip_prefix("image: ")).collect();
            assert_eq!(images, [image; 2], "{text}");
            let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
            for name in text.split(|c| !is_part(c)).filter(|word| word.starts_with("FERROVERBS_")) {
                assert!(settings.contains(&format!("| `{name}` |")), "no setting {name}");
            }
        }
    }
}
