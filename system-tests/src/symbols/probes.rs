//! The static probes of the staged libraries: each row of docs/guide/probes.md is a probe with as
//! many arguments, each probe is one `nop`, and a debugger sees a probe fire.

use super::{LIMIT, readelf_with};
use crate::{Bench, Tally};
use ferroverbs_c_tests::Program;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use xtask::files::read;
use xtask::launch::LaunchSettings;
use xtask::packages::find_program;
use xtask::process::Job;

const PAGE: &str = "docs/guide/probes.md";
const PLUGIN: &str = "lib/libibverbs/libsoft-rdmav65.so";
/// The libraries with probes, and their providers.
const LIBRARIES: [(&str, &str); 3] = [
    (PLUGIN, "rdma_core_soft"),
    ("lib/libibverbs.so.1", "libibverbs"),
    ("lib/librdmacm.so.1", "librdmacm"),
];

/// A place where a probe was compiled.
#[derive(Debug, Default, PartialEq, Eq)]
struct Site {
    address: String,
    arguments: usize,
}

/// Sites by `provider:name`.
type Probes = BTreeMap<String, Vec<Site>>;

pub(super) fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let page = read(&bench.paths.root.join(PAGE))?;
    let documented = documented(&page);
    for (library, provider) in LIBRARIES {
        let file = bench.prefix()?.join(library);
        let probes = sites(&readelf_with(bench, &file, &["--notes"])?);
        let name = format!("{provider}: the probes of {PAGE}");
        tally.record(&name, same(&documented, &probes, provider));
        let name = format!("{provider}: a probe is one nop");
        tally.record(&name, are_nops(bench, &file, &probes));
    }
    fires(bench, tally)
}

/// The probes in a list of readelf(1).
fn sites(notes: &str) -> Probes {
    let mut probes = Probes::new();
    let (mut provider, mut name, mut address) = ("", "", "");
    for line in notes.lines().map(str::trim) {
        // The head of a note stands in front.
        if let Some((_, value)) = line.split_once("Provider: ") {
            provider = value;
        } else if let Some(value) = line.strip_prefix("Name: ") {
            name = value;
        } else if let Some(value) = line.strip_prefix("Location: ") {
            address = value.split(',').next().unwrap_or_default();
        } else if let Some(value) = line.strip_prefix("Arguments:") {
            let arguments = value.split_whitespace().count();
            let site = Site { address: address.to_owned(), arguments };
            probes.entry(format!("{provider}:{name}")).or_default().push(site);
        }
    }
    probes
}

/// Each probe of the table in the page, with its number of arguments.
fn documented(page: &str) -> BTreeMap<String, usize> {
    let rows = page.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` |")?;
        let (_, arguments) = rest.trim_end().trim_end_matches('|').rsplit_once('|')?;
        Some((name.to_owned(), arguments.matches('`').count() / 2))
    });
    rows.collect()
}

fn same(
    documented: &BTreeMap<String, usize>,
    probes: &Probes,
    provider: &str,
) -> Result<(), String> {
    let of = |name: &str| name.split(':').next() == Some(provider);
    let wanted: BTreeMap<_, _> = documented.iter().filter(|(name, _)| of(name)).collect();
    let mut wrong = Vec::new();
    for (name, arguments) in &wanted {
        match probes.get(*name) {
            None => wrong.push(format!("the library lacks {name}")),
            Some(sites) if sites.iter().any(|site| site.arguments != **arguments) => {
                wrong.push(format!("{name} has not {arguments} arguments: {sites:?}"));
            }
            Some(_) => {}
        }
    }
    let unknown = probes.keys().filter(|name| !wanted.contains_key(name));
    wrong.extend(unknown.map(|name| format!("the page lacks {name}")));
    let is_same = wrong.is_empty() && !wanted.is_empty();
    is_same.then_some(()).ok_or_else(|| wrong.join("\n"))
}

/// All sites, disassembled. The linker drops unused functions but not their notes, so a site may be
/// outside of the code; each probe has a site in the code.
fn are_nops(bench: &Bench, file: &Path, probes: &Probes) -> Result<(), String> {
    for (name, sites) in probes {
        let mut in_code = 0;
        for site in sites {
            let digits = site.address.strip_prefix("0x").unwrap_or(&site.address);
            let start = u64::from_str_radix(digits, 16).map_err(|e| format!("{digits}: {e}"))?;
            let job = Job::new("objdump").arg("-d").arg(format!("--start-address={start:#x}"));
            let done = job.arg(format!("--stop-address={:#x}", start + 4)).arg(file);
            let printed = done.succeed(&bench.scratch, LIMIT)?.stdout;
            let at = format!("{start:x}:");
            let line = printed.lines().find_map(|line| line.trim().strip_prefix(&at));
            let Some(line) = line else { continue };
            in_code += 1;
            let is_nop = line.trim().ends_with("nop");
            is_nop.then_some(()).ok_or_else(|| format!("{name} at {start:#x}:\n{printed}"))?;
        }
        (in_code > 0).then_some(()).ok_or_else(|| format!("{name} has no site in the code"))?;
    }
    Ok(())
}

/// gdb(1) stops at a probe, and reads its arguments.
fn fires(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let name = "a probe fires, with its arguments";
    if find_program("gdb").is_none() {
        tally.skip(name, "gdb is not installed (apt-get install gdb)");
        return Ok(());
    }
    let fabric = bench.private_folder("fabric")?;
    let over =
        LaunchSettings::new(bench.prefix()?, &bench.paths.target).fabric(&fabric).user(bench.user);
    let program: PathBuf = bench.program(Program::named("modify_qp")?)?;
    let commands = [
        "set confirm off",
        "set debuginfod enabled off",
        "catch load libsoft",
        "run",
        "delete",
        "break -probe-stap rdma_core_soft:qp_state",
        "condition $bpnum $_probe_arg1 == 1",
        "continue",
        "printf \"arguments %d, state %d\\n\", $_probe_argc, $_probe_arg1",
        "kill",
    ];
    let job = over.job("gdb").args(["-q", "-nx", "-batch"]);
    let job = commands.iter().fold(job, |job, command| job.args(["-ex", *command]));
    let done = job.arg("--args").arg(&program).dir(bench.scratch.path());
    let done = done.run(&bench.scratch, LIMIT)?;
    if done.stderr.contains("ptrace: Operation not permitted") {
        tally.skip(name, "ptrace(2) is not permitted");
        return Ok(());
    }
    // INIT is the state 1.
    let is_right = done.stdout.contains("arguments 3, state 1");
    tally.record(name, is_right.then_some(()).ok_or_else(|| done.report("gdb")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTES: &str = "
  stapsdt              0x0000004b\tNT_STAPSDT (SystemTap probe descriptors)\t    Provider: libibverbs
    Name: close_device
    Location: 0x000000000001c2f0, Base: 0x0000000000004a10, Semaphore: 0x0000000000000000
    Arguments: -8@%rbx
  stapsdt              0x0000004b\tNT_STAPSDT (SystemTap probe descriptors)\t    Provider: libibverbs
    Name: begin
    Location: 0x000000000001c300, Base: 0x0000000000004a10, Semaphore: 0x0000000000000000
    Arguments: 
";

    #[test]
    fn sites_are_read_from_the_notes_of_readelf() {
        let found = sites(NOTES);
        assert_eq!(found.len(), 2);
        let site = |address: &str, arguments| Site { address: address.into(), arguments };
        assert_eq!(found["libibverbs:close_device"], [site("0x000000000001c2f0", 1)]);
        assert_eq!(found["libibverbs:begin"], [site("0x000000000001c300", 0)]);
    }

    #[test]
    fn a_probe_without_a_row_and_a_row_without_a_probe_are_found() {
        let page = "| probe | fires when | arguments |\n|---|---|---|\n\
            | `libibverbs:close_device` | a device closes | `context` |\n";
        let page = documented(page);
        assert_eq!(page, BTreeMap::from([("libibverbs:close_device".to_owned(), 1)]));
        let mut probes = sites(NOTES);
        assert_eq!(
            same(&page, &probes, "libibverbs"),
            Err("the page lacks libibverbs:begin".into())
        );
        probes.remove("libibverbs:begin");
        assert_eq!(same(&page, &probes, "libibverbs"), Ok(()));
        assert!(same(&page, &Probes::new(), "libibverbs").is_err());
        assert!(same(&page, &probes, "librdmacm").is_err());
    }
}
