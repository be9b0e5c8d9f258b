//! The dynamic symbols of the staged libraries, against lists of what upstream's releases export.

mod floor;
mod probes;

use super::checks::cargo;
use crate::{Bench, Checks, Load, Tally};
use ferroverbs_c_tests::Program;
use ferroverbs_c_tests::release::RELEASES;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use xtask::files::{entries, read};
use xtask::process::Job;

const LIMIT: Duration = Duration::from_secs(300);
/// A cold build on a slow machine fits.
const BUILD: Duration = Duration::from_secs(1200);

/// The properties in which two compatible symbols agree.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Symbol {
    /// Whether new programs are linked to this version (`@@`), or only old ones have it (`@`).
    is_default: bool,
    /// `func` or `data`; an object's size is part of the interface.
    kind: String,
    size: Option<u64>,
}

impl Symbol {
    /// Whether the symbol serves users of `other`. Plugins name a version, so the default among
    /// several private versions is irrelevant.
    fn serves(&self, other: &Self, version: &str) -> bool {
        (is_private(version) || self.is_default == other.is_default)
            && self.kind == other.kind
            && (other.size.is_none() || self.size == other.size)
    }
}

fn is_private(version: &str) -> bool {
    version.starts_with("IBVERBS_PRIVATE_")
}

/// By name and version.
type Symbols = BTreeMap<(String, String), Symbol>;

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One).many("all", all);
    checks.load(Load::One).many("probes", probes::all);
    checks.load(Load::One).many("glibc", floor::all);
    checks.load(Load::Pair).many("GNU ld", by_gnu_ld).limit(BUILD);
}

/// Builds the library with GNU ld, the linker of distributions' own rustc, in a target directory of
/// its own: the symbols are those of the staged library, and the loader takes the file.
fn by_gnu_ld(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let target = bench.paths.target.join("gnu-ld");
    let built = cargo(bench)
        .args(["rustc", "--quiet", "--package", "ferroverbs", "--lib", "--crate-type", "cdylib"])
        .args(["--", "-Clink-arg=-fuse-ld=bfd"])
        .env("CARGO_TARGET_DIR", &target)
        .run(&bench.scratch, BUILD)?;
    if !built.ok() {
        return Err(built.report("cargo"));
    }
    let folder = bench.scratch.folder("gnu-ld", 0o755)?;
    let library = folder.join("libibverbs.so.1");
    std::fs::copy(target.join("debug/libibverbs.so"), &library).map_err(|why| why.to_string())?;
    let ours = readelf(bench, &library)?;
    let staged = readelf(bench, &bench.prefix()?.join("lib/libibverbs.so.1"))?;
    let (ours, staged) = (read_dynamic(&ours), read_dynamic(&staged));
    let same = missing(&staged, &ours, true).and_then(|()| missing(&ours, &staged, true));
    tally.record("the symbols of the library by GNU ld", same);
    let names = Program::named("names")?;
    let job = Job::new(bench.program(names)?).env("LD_LIBRARY_PATH", &folder);
    let done = job.env("LD_BIND_NOW", "1").run(&bench.scratch, LIMIT)?;
    tally.record(
        "a program over the library by GNU ld",
        done.ok().then_some(()).ok_or_else(|| done.report("names")),
    );
    Ok(())
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let listed = readelf(bench, &bench.prefix()?.join("lib/libibverbs.so.1"))?;
    let soname = listed.contains("Library soname: [libibverbs.so.1]");
    let soname = if soname { Ok(()) } else { Err("is not libibverbs.so.1".into()) };
    tally.record("SONAME", soname);
    let ours = read_dynamic(&listed);
    for release in RELEASES {
        let name = format!("all symbols of the library of Debian's {}", release.suite);
        match release.unpacked(&bench.paths.target) {
            Ok(unpacked) => {
                let listed = readelf(bench, &unpacked.libraries.join("libibverbs.so.1"))?;
                // The oldest release's table equals Ferroverbs' entry by entry. For newer releases
                // another version of a private name is the default.
                let exact = release.number == RELEASES[0].number;
                tally.record(&name, missing(&read_dynamic(&listed), &ours, exact));
            }
            Err(reason) => tally.skip(&name, &reason),
        }
    }
    let folder = bench.paths.root.join("c-tests/data/symbols");
    let mut known = Symbols::new();
    for list in entries(&folder)? {
        let name = list.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = read(&list)?;
        let theirs = read_list(&text);
        if theirs.is_empty() {
            return Err(format!("{} lists nothing", list.display()));
        }
        // Each generation's private node is offered for as long as we support that generation.
        tally.record(&format!("all symbols of {name}"), missing(&theirs, &ours, false));
        known.extend(theirs);
    }
    // There are more releases than lists, so a private name may have any generation.
    let private: BTreeSet<_> =
        known.keys().filter(|(_, v)| is_private(v)).map(|(name, _)| name).collect();
    let extra: Vec<_> = ours
        .keys()
        .filter(|&key| !known.contains_key(key))
        .filter(|(name, version)| !is_private(version) || !private.contains(name))
        .filter(|(name, _)| !name.starts_with("verbs_register_driver_"))
        .map(|(n, v)| format!("{n}@{v}"))
        .collect();
    let nothing_else = if extra.is_empty() { Ok(()) } else { Err(extra.join(" ")) };
    tally.record("no symbols that no release has", nothing_else);
    connections(bench, tally)
}

/// librdmacm, which has no private versions: missing names, and names that no release has.
fn connections(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let listed = readelf(bench, &bench.prefix()?.join("lib/librdmacm.so.1"))?;
    let soname = listed.contains("Library soname: [librdmacm.so.1]");
    let soname = if soname { Ok(()) } else { Err("is not librdmacm.so.1".into()) };
    tally.record("SONAME of librdmacm", soname);
    let ours = read_dynamic(&listed);
    for release in RELEASES {
        let name = format!("all symbols of librdmacm of Debian's {}", release.suite);
        match release.unpacked(&bench.paths.target) {
            Ok(unpacked) => {
                let listed = readelf(bench, &unpacked.libraries.join("librdmacm.so.1"))?;
                tally.record(&name, missing(&read_dynamic(&listed), &ours, true));
            }
            Err(reason) => tally.skip(&name, &reason),
        }
    }
    let mut known = Symbols::new();
    for list in entries(&bench.paths.root.join("c-tests/data/symbols-rdmacm"))? {
        let name = list.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let theirs = read_list(&read(&list)?);
        tally.record(&format!("all symbols of librdmacm, {name}"), missing(&theirs, &ours, true));
        known.extend(theirs);
    }
    let extra: Vec<_> = ours
        .keys()
        .filter(|&key| !known.contains_key(key))
        .map(|(n, v)| format!("{n}@{v}"))
        .collect();
    let nothing_else = if extra.is_empty() { Ok(()) } else { Err(extra.join(" ")) };
    tally.record("no symbols of librdmacm that no release has", nothing_else);
    beside_upstreams(bench, tally)
}

/// What stands before libc's calls of sockets, and librdmacm over a libibverbs that is not ours.
fn beside_upstreams(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let preload = read_names(&readelf(bench, &bench.prefix()?.join(xtask::stage::PRELOAD))?);
    let since_65 = ["dup", "epoll_create", "epoll_create1", "epoll_wait"];
    let lacking = since_65.iter().find(|&&name| !preload.contains(name));
    let done = lacking.map_or(Ok(()), |name| Err(format!("missing: {name}")));
    tally.record("names that librspreload has since rdma-core 65", done);
    // Alone in a folder, so the loader does not find Ferroverbs' libibverbs.
    let alone = bench.scratch.folder("alone", 0o755)?;
    let library = "librdmacm.so.1";
    std::fs::copy(bench.prefix()?.join("lib").join(library), alone.join(library))
        .map_err(|why| format!("cannot copy {library}: {why}"))?;
    let program = super::rdmacm::compiled(bench, "without_devices")?;
    for release in RELEASES {
        let names = format!("all names of librspreload of Debian's {}", release.suite);
        let over = format!("librdmacm over libibverbs of Debian's {}", release.suite);
        let unpacked = match release.unpacked(&bench.paths.target) {
            Ok(unpacked) => unpacked,
            Err(reason) => {
                tally.skip(&names, &reason);
                tally.skip(&over, &reason);
                continue;
            }
        };
        let listed = readelf(bench, &unpacked.libraries.join("rsocket/librspreload.so"))?;
        let theirs = read_names(&listed);
        let lacking = theirs.difference(&preload).map(String::as_str);
        let lacking: Vec<_> = lacking.collect();
        let done = match (theirs.is_empty(), lacking.is_empty()) {
            (true, _) => Err("there are no names to compare with".into()),
            (_, true) => Ok(()),
            _ => Err(format!("missing: {}", lacking.join(" "))),
        };
        tally.record(&names, done);
        let says = |folders: &[&Path]| -> crate::Result<String> {
            let path = std::env::join_paths(folders).map_err(|why| why.to_string())?;
            // All symbols are looked up at once.
            let job = Job::new(unpacked.loader()).arg("--library-path").arg(path).arg(&program);
            let done = job.env("LD_BIND_NOW", "1").run(&bench.scratch, LIMIT)?;
            if done.ok() { Ok(done.stdout) } else { Err(done.report("without_devices")) }
        };
        let theirs = says(&[&unpacked.libraries])?;
        tally.record(
            &over,
            says(&[&alone, &unpacked.libraries]).and_then(|ours| match ours == theirs {
                true => Ok(()),
                false => Err(format!("upstream's says\n{theirs}ours\n{ours}")),
            }),
        );
    }
    Ok(())
}

fn readelf(bench: &Bench, library: &Path) -> crate::Result<String> {
    readelf_with(bench, library, &["--dyn-syms", "--dynamic"])
}

fn readelf_with(bench: &Bench, file: &Path, options: &[&str]) -> crate::Result<String> {
    let job = Job::new("readelf").arg("--wide").args(options).arg(file).env("LC_ALL", "C");
    Ok(job.succeed(&bench.scratch, LIMIT)?.stdout)
}

/// What `ours` lacks of `theirs`; `exact`: not even a default may differ.
fn missing(theirs: &Symbols, ours: &Symbols, exact: bool) -> Result<(), String> {
    if theirs.is_empty() {
        return Err("there are no symbols to compare with".into());
    }
    let differing: Vec<_> = theirs
        .iter()
        .filter_map(|(key @ (name, version), symbol)| match ours.get(key) {
            None => Some(format!("{name}@{version} is missing")),
            Some(other) if !other.serves(symbol, version) || (exact && other != symbol) => {
                Some(format!("{name}@{version} is {other:?}, should be {symbol:?}"))
            }
            Some(_) => None,
        })
        .collect();
    if differing.is_empty() {
        return Ok(());
    }
    let shown = differing.iter().take(20).fold(String::new(), |text, d| format!("{text}\n    {d}"));
    Err(format!("{} of {} differ{shown}", differing.len(), theirs.len()))
}

/// A committed list: name, version, `default` or `compat`, `func` or `data`, an object's size.
fn read_list(text: &str) -> Symbols {
    text.lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.split('\t');
            let (name, version) = (fields.next()?.to_string(), fields.next()?.to_string());
            let is_default = fields.next()? == "default";
            let kind = fields.next()?.to_string();
            let size = fields.next().and_then(|s| s.parse().ok());
            Some(((name, version), Symbol { is_default, kind, size }))
        })
        .collect()
}

/// Names of defined functions, without versions.
fn read_names(text: &str) -> BTreeSet<String> {
    let functions = text.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, "FUNC", "GLOBAL", _, section, name] = fields.get(..8)? else { return None };
        (*section != "UND").then(|| name.split('@').next().unwrap_or_default().to_owned())
    });
    functions.collect()
}

/// Defined, versioned symbols in readelf's output.
fn read_dynamic(text: &str) -> Symbols {
    text.lines()
        .filter_map(|line| {
            // Num: Value Size Type Bind Vis Ndx Name
            let fields: Vec<_> = line.split_whitespace().collect();
            let [_, _, size, kind, _, _, section, name] = fields.get(..8)? else { return None };
            if *section == "UND" || *section == "ABS" {
                return None;
            }
            let (name, version) = name.split_once('@')?;
            let is_default = version.starts_with('@');
            let (kind, size) = match *kind {
                "OBJECT" => ("data", size.parse().ok()),
                "FUNC" | "IFUNC" => ("func", None),
                _ => return None,
            };
            let version = version.trim_start_matches('@').to_string();
            Some(((name.to_string(), version), Symbol { is_default, kind: kind.into(), size }))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_sizes_are_read_from_readelf() {
        let text = "   Num:    Value          Size Type    Bind   Vis      Ndx Name\n\
             5: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND free@GLIBC_2.2.5 (2)\n\
             9: 0000000000008d10   120 FUNC    GLOBAL DEFAULT   13 ibv_open_device@@IBVERBS_1.1\n\
            10: 0000000000008e10    12 FUNC    GLOBAL DEFAULT   13 ibv_open_device@IBVERBS_1.0\n\
            11: 000000000001f0c8     1 OBJECT  GLOBAL DEFAULT   24 flag@@IBVERBS_PRIVATE_34\n\
            12: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS IBVERBS_1.1\n";
        let symbols = read_dynamic(text);
        assert_eq!(symbols.len(), 3);
        let get = |n: &str, v: &str| symbols.get(&(n.to_string(), v.to_string())).unwrap();
        assert!(get("ibv_open_device", "IBVERBS_1.1").is_default);
        assert!(!get("ibv_open_device", "IBVERBS_1.0").is_default);
        assert_eq!(get("flag", "IBVERBS_PRIVATE_34").size, Some(1));
        let list = "symbol\tversion\tbinding\tkind\tsize\n\
            ibv_open_device\tIBVERBS_1.1\tdefault\tfunc\t-\nflag\tIBVERBS_PRIVATE_34\tdefault\tdata\t1\n";
        assert_eq!(missing(&read_list(list), &symbols, true), Ok(()));
        let wrong = list.replace("default\tfunc", "compat\tfunc");
        assert!(missing(&read_list(&wrong), &symbols, false).is_err());
        let other = list.replace("default\tdata", "compat\tdata");
        assert_eq!(missing(&read_list(&other), &symbols, false), Ok(()));
        assert!(missing(&read_list(&other), &symbols, true).is_err());
        assert!(missing(&Symbols::new(), &symbols, true).is_err());
    }
}
