//! Links release binaries so that they run with glibc 2.28 and later (Debian 10, EL8), whatever
//! glibc builds them.
//!
//! A linker takes the default version of each symbol of the C library that it finds. glibc 2.34
//! gave the functions of libpthread and libdl new default versions, and kept the old ones. So the
//! linker finds a stand-in for the C library here: a shared object with the same symbols, each in
//! the newest version that [`FLOOR`] has, and no code. The loader never sees the stand-in.
//!
//! - A function that is newer than [`FLOOR`] is absent, so a use of it fails at link time. A weak
//!   use stays, and finds the function where the C library has it.
//! - Up to glibc 2.32, `stat(2)` and its relatives are macros over `__xstat(3)` and others, which
//!   later releases keep for old programs. `SHIMS` are these functions, linked statically.
//! - Up to glibc 2.33, the functions of libpthread and libdl are in libraries of their own. Each
//!   binary names both libraries, which later releases keep empty.

use crate::architecture::Architecture;
use crate::files::read;
use crate::paths::Paths;
use crate::process::Job;
use crate::scratch::Scratch;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The oldest release of glibc with which the binaries run.
pub const FLOOR: Version = Version(2, 28);

const LIMIT: Duration = Duration::from_secs(60);
/// Libraries whose functions are in libc.so.6 since glibc 2.34.
const MERGED: [&str; 2] = ["libpthread.so.0", "libdl.so.2"];

/// `stat(2)` and its relatives for glibc up to 2.32. The first argument of `__xstat` is the version
/// of the structure (`_STAT_VER` in `bits/stat.h` of these releases).
const SHIMS: &str = r#"
struct stat;
#if defined(__x86_64__)
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif
#define HIDDEN __attribute__((visibility("hidden")))
int __xstat(int, const char *, struct stat *);
int __xstat64(int, const char *, struct stat *);
int __lxstat(int, const char *, struct stat *);
int __lxstat64(int, const char *, struct stat *);
int __fxstat(int, int, struct stat *);
int __fxstat64(int, int, struct stat *);
int __fxstatat(int, int, const char *, struct stat *, int);
int __fxstatat64(int, int, const char *, struct stat *, int);
HIDDEN int stat(const char *p, struct stat *s) { return __xstat(STAT_VERSION, p, s); }
HIDDEN int stat64(const char *p, struct stat *s) { return __xstat64(STAT_VERSION, p, s); }
HIDDEN int lstat(const char *p, struct stat *s) { return __lxstat(STAT_VERSION, p, s); }
HIDDEN int lstat64(const char *p, struct stat *s) { return __lxstat64(STAT_VERSION, p, s); }
HIDDEN int fstat(int f, struct stat *s) { return __fxstat(STAT_VERSION, f, s); }
HIDDEN int fstat64(int f, struct stat *s) { return __fxstat64(STAT_VERSION, f, s); }
HIDDEN int fstatat(int f, const char *p, struct stat *s, int l) { return __fxstatat(STAT_VERSION, f, p, s, l); }
HIDDEN int fstatat64(int f, const char *p, struct stat *s, int l) { return __fxstatat64(STAT_VERSION, f, p, s, l); }
"#;

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl Version {
    /// The release in the name of a symbol version, such as `GLIBC_2.2.5`. `None`: the version is
    /// private, or of another library.
    pub fn of(name: &str) -> Option<Self> {
        let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(str::parse);
        Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

/// The newest version of glibc that a list of readelf(1) with the option `-V` names.
pub fn newest(versions: &str) -> Option<Version> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    versions.split(|c| !is_part(c)).filter_map(Version::of).max()
}

/// A symbol of the C library, in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Symbol {
    version: String,
    /// The type, as readelf(1) prints it.
    kind: String,
    size: u64,
}

/// Makes the stand-in below the target folder. Returns arguments for the compiler driver that
/// links.
///
/// # Errors
/// The tools of a C compiler are missing, or the C library is not glibc.
pub fn link_arguments(paths: &Paths, architecture: Architecture) -> crate::Result<Vec<String>> {
    let folder = paths.target.join(architecture.named("floor"));
    fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    let scratch = Scratch::new()?;
    let maker = Maker { folder: &folder, scratch: &scratch, architecture };
    maker.make()?;
    let mut arguments = vec![format!("-L{}", folder.display())];
    // libgcc_s.so.1 of this machine needs newer functions than the stand-in has.
    arguments.push("-Wl,--allow-shlib-undefined".into());
    let merged: Vec<_> = MERGED.iter().map(|name| format!("-l:{name}")).collect();
    arguments.push("-Wl,--push-state,--no-as-needed".into());
    arguments.extend(merged);
    arguments.push("-Wl,--pop-state".into());
    Ok(arguments)
}

struct Maker<'a> {
    folder: &'a Path,
    scratch: &'a Scratch,
    architecture: Architecture,
}

impl Maker<'_> {
    fn make(&self) -> crate::Result<()> {
        let script = self.ask(self.compiler().arg("-print-file-name=libc.so"))?;
        let script = read(Path::new(script.trim()))?;
        let library =
            of_script(&script).ok_or("the C library's linker script names no libc.so.6")?;
        let table = self.ask(Job::new("readelf").args(["--dyn-syms", "--wide"]).arg(library))?;
        let symbols = chosen(&table);
        // What the binaries were linked with before is still there.
        let made = format!("{table}\n{script}{}", include_str!("floor.rs"));
        let mark = self.folder.join("made-from");
        if fs::read_to_string(&mark).is_ok_and(|before| before == made) {
            return Ok(());
        }
        if symbols.len() < 1000 {
            return Err(format!("{library} has {} symbols of glibc", symbols.len()));
        }
        let stand_in = self.shared("libc.so.6", &assembly(&symbols), &version_map(&symbols))?;
        for name in MERGED {
            self.shared(name, "", "")?;
        }
        let shims = self.shims()?;
        let both = format!("{} {}", stand_in.display(), shims.display());
        self.write("libc.so", &script.replace(library, &both))?;
        self.write("made-from", &made).map(drop)
    }

    fn compiler(&self) -> Job {
        Job::new(self.architecture.compiler())
    }

    fn ask(&self, job: Job) -> crate::Result<String> {
        Ok(job.env("LC_ALL", "C").succeed(self.scratch, LIMIT)?.stdout)
    }

    fn write(&self, name: &str, text: &str) -> crate::Result<PathBuf> {
        self.replace(name, |new| fs::write(new, text).map_err(|e| e.to_string()))
    }

    /// Makes a file by `make` under another name, and renames it: a linker of another build may
    /// read the file now.
    fn replace(
        &self,
        name: &str,
        make: impl FnOnce(&Path) -> crate::Result<()>,
    ) -> crate::Result<PathBuf> {
        let file = self.folder.join(name);
        let new = self.folder.join(format!("{name}.{}", std::process::id()));
        let _ = fs::remove_file(&new);
        let done = make(&new).and_then(|()| fs::rename(&new, &file).map_err(|e| e.to_string()));
        done.map_err(|why| format!("cannot write {}: {why}", file.display()))?;
        Ok(file)
    }

    /// Links a shared object without dependencies from assembly and a version script.
    fn shared(&self, name: &str, assembly: &str, map: &str) -> crate::Result<PathBuf> {
        let source = self.write(&format!("{name}.s"), assembly)?;
        let map = match map {
            "" => None,
            map => Some(self.write(&format!("{name}.map"), map)?),
        };
        self.replace(name, |new| {
            let job = self.compiler().args(["-shared", "-nostdlib", "-o"]).arg(new).arg(source);
            let job = job.arg(format!("-Wl,-soname,{name}"));
            let job = map
                .iter()
                .fold(job, |job, map| job.arg(format!("-Wl,--version-script={}", map.display())));
            self.ask(job).map(drop)
        })
    }

    /// The archive with [`SHIMS`].
    fn shims(&self) -> crate::Result<PathBuf> {
        let source = self.write("shims.c", SHIMS)?;
        let object = self.replace("shims.o", |new| {
            let flags = ["-c", "-O2", "-fPIC", "-fno-builtin", "-ffunction-sections", "-o"];
            self.ask(self.compiler().args(flags).arg(new).arg(source)).map(drop)
        })?;
        self.replace("libshims.a", |new| {
            let archiver = Job::new(self.architecture.tool("ar"));
            self.ask(archiver.arg("rcD").arg(new).arg(object)).map(drop)
        })
    }
}

/// The path of the C library in the linker script `libc.so`.
fn of_script(script: &str) -> Option<&str> {
    script.split_whitespace().find(|word| word.ends_with("/libc.so.6"))
}

/// All numbers of a symbol version, such as 2, 3 and 4 of `GLIBC_2.3.4`.
fn numbers(version: &str) -> Vec<u32> {
    let numbers = version.trim_start_matches("GLIBC_").split('.');
    numbers.map(|number| number.parse().unwrap_or_default()).collect()
}

/// Each symbol of a table of readelf(1), in its newest version that [`FLOOR`] has.
fn chosen(table: &str) -> BTreeMap<String, Symbol> {
    let mut found: BTreeMap<String, Symbol> = BTreeMap::new();
    for line in table.lines() {
        let row: Vec<&str> = line.split_whitespace().collect();
        let [_, _, size, kind, _, _, section, full, ..] = row[..] else { continue };
        let Some((name, version)) = full.split_once('@') else { continue };
        let version = version.trim_start_matches('@');
        let Some(release) = Version::of(version) else { continue };
        if section == "UND" || section == "ABS" || release > FLOOR {
            continue;
        }
        // The releases 2.3.3 and 2.3.4 gave some functions different arguments.
        let is_as_new = |other: &Symbol| numbers(&other.version) >= numbers(version);
        if found.get(name).is_some_and(is_as_new) {
            continue;
        }
        let size = size.parse().unwrap_or_default();
        let symbol = Symbol { version: version.to_owned(), kind: kind.to_owned(), size };
        found.insert(name.to_owned(), symbol);
    }
    found
}

/// Defines the symbols: functions without code, and data of the same size.
fn assembly(symbols: &BTreeMap<String, Symbol>) -> String {
    let mut text = String::new();
    for (name, symbol) in symbols {
        let (section, kind, size) = match symbol.kind.as_str() {
            "OBJECT" => (".bss", "object", symbol.size.max(1)),
            _ => (".text", "function", 1),
        };
        text += &format!(
            "{section}\n.globl {name}\n.type {name}, %{kind}\n.size {name}, {size}\n{name}: .zero {size}\n"
        );
    }
    text + ".section .note.GNU-stack,\"\",%progbits\n"
}

/// A version script with a node for each version.
fn version_map(symbols: &BTreeMap<String, Symbol>) -> String {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, symbol) in symbols {
        nodes.entry(&symbol.version).or_default().push(name);
    }
    let nodes = nodes
        .iter()
        .map(|(version, names)| format!("{version} {{ global: {}; }};\n", names.join("; ")));
    nodes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "
   177: 0000000000109530    76 FUNC    GLOBAL DEFAULT   16 __xstat64@@GLIBC_2.2.5
   290: 00000000001db320     8 OBJECT  WEAK   DEFAULT   34 environ@@GLIBC_2.2.5
   876: 0000000000000010     4 TLS     GLOBAL DEFAULT   24 errno@@GLIBC_PRIVATE
  1432: 0000000000089380  3821 FUNC    GLOBAL DEFAULT   16 pthread_create@GLIBC_2.2.5
  1434: 0000000000089380  3821 FUNC    GLOBAL DEFAULT   16 pthread_create@@GLIBC_2.34
  2419: 000000000010a2a0     8 FUNC    WEAK   DEFAULT   16 gettid@@GLIBC_2.30
  2725: 00000000000a2d70    40 FUNC    GLOBAL DEFAULT   16 memcpy@GLIBC_2.2.5
  2727: 000000000009be70   265 IFUNC   GLOBAL DEFAULT   16 memcpy@@GLIBC_2.14
  2909: 0000000000151b10    82 FUNC    GLOBAL DEFAULT   16 sched_getaffinity@GLIBC_2.3.3
  2911: 00000000000ee0d0    90 FUNC    GLOBAL DEFAULT   16 sched_getaffinity@@GLIBC_2.3.4
  2800: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS GLIBC_2.14
     9: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND __tls_get_addr@GLIBC_2.3 (2)
";

    #[test]
    fn a_symbol_has_its_newest_version_that_the_floor_has() {
        let found = chosen(TABLE);
        let version = |name: &str| found.get(name).map(|symbol| symbol.version.as_str());
        assert_eq!(version("pthread_create"), Some("GLIBC_2.2.5"));
        assert_eq!(version("memcpy"), Some("GLIBC_2.14"));
        assert_eq!(version("gettid"), None, "newer than the floor");
        assert_eq!(version("errno"), None, "private");
        assert_eq!(version("__tls_get_addr"), None, "of another library");
        assert_eq!(version("sched_getaffinity"), Some("GLIBC_2.3.4"));
        assert_eq!(found.len(), 5);
        let text = assembly(&found);
        assert!(text.contains(".type environ, %object\n.size environ, 8\n"), "{text}");
        let map = version_map(&found);
        assert!(map.contains("GLIBC_2.14 { global: memcpy; };"), "{map}");
    }

    #[test]
    fn versions_are_compared_by_numbers() {
        assert_eq!(Version::of("GLIBC_2.2.5"), Some(Version(2, 2)));
        assert!(Version::of("GLIBC_2.4") < Version::of("GLIBC_2.14"));
        assert_eq!(Version::of("GLIBC_PRIVATE"), None);
        assert_eq!(Version::of("GCC_3.0"), None);
        let list =
            "  0x0010: Name: GLIBC_2.4  Flags: none  Version: 5\n  0x0020:   Name: GLIBC_2.28 ";
        assert_eq!(newest(list), Some(Version(2, 28)));
        assert_eq!(newest("Version needs section"), None);
    }

    #[test]
    fn the_linker_script_names_the_library() {
        let script = "GROUP ( /lib/x86_64-linux-gnu/libc.so.6 /usr/lib/x/libc_nonshared.a )";
        assert_eq!(of_script(script), Some("/lib/x86_64-linux-gnu/libc.so.6"));
    }
}
