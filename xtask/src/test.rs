//! `cargo xtask test`: installs the packages of the chosen groups, then starts the crate
//! `system-tests`.

use crate::progress::Progress;
use crate::{cargo, clean, packages};
use std::ffi::OsString;
use std::process::ExitCode;

/// What the command line says.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show the groups with their tiers and run times
    #[arg(long)]
    list: bool,
    /// Run more than the short tier: everything without foreign stacks and kernels (`full`), or
    /// everything (`long`)
    #[arg(long, value_name = "TIER", num_args = 0..=1, require_equals = true, default_missing_value = "full",
        value_parser = ["full", "long"])]
    all: Option<String>,
    /// Run the tests in a fresh Debian with the README's requirements and nothing else (takes root)
    #[arg(long)]
    clean: bool,
    /// Which Debian that is
    #[arg(long, requires = "clean", default_value = "bookworm", value_name = "NAME", value_parser = release)]
    release: String,
    /// Run the programs of the named groups under a layer, which may report known faults of these
    /// programs only
    #[arg(long, value_name = "LAYER", value_parser = ["validate"], requires = "wanted", conflicts_with = "clean")]
    under: Option<String>,
    /// Write the results as JUnit XML
    #[arg(long, value_name = "FILE", conflicts_with = "clean")]
    junit: Option<String>,
    /// Groups (`hosts`) or parts of checks' names (`hosts::losses`) to run, in every tier [default:
    /// the short tier]
    #[arg(value_name = "GROUP[::CHECK]")]
    wanted: Vec<String>,
}

/// The name of a release of Debian, which names folders, too.
fn release(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase()) {
        Ok(text.to_owned())
    } else {
        Err("a name such as bookworm or trixie".into())
    }
}

/// Runs what is wanted, or the short tier.
///
/// # Errors
/// What keeps the tests from running, for a person.
pub fn main(args: &Args) -> crate::Result<ExitCode> {
    let groups: Vec<&str> =
        args.wanted.iter().map(|word| word.split("::").next().unwrap_or(word)).collect();
    if let Some(wrong) = groups.iter().find(|name| packages::of_group(name).is_none()) {
        return Err(format!("there is no group {wrong}; `cargo xtask test --list` shows them"));
    }
    if args.clean {
        let mut words: Vec<String> = args.all.iter().map(|tier| format!("--all={tier}")).collect();
        words.extend(args.wanted.iter().cloned());
        return clean::main(&args.release, &words);
    }
    if !args.list {
        let progress = Progress::new();
        let always = [packages::DEMO, packages::TEST];
        let all: Vec<_> = match groups.as_slice() {
            [] => packages::of_tests(args.all.is_some()),
            names => names.iter().filter_map(|name| packages::of_group(name)).flatten().collect(),
        };
        let all: Vec<_> = always.into_iter().chain(all).collect();
        packages::prepare(&all, &progress);
        packages::ensure(&always, &progress)?;
        progress.clear();
    }
    let mut words: Vec<OsString> = Vec::new();
    if args.list {
        words.push("--groups".into());
    }
    words.extend(args.all.iter().map(|tier| format!("--tier={tier}").into()));
    words.extend(args.under.iter().map(|layer| format!("--under={layer}").into()));
    words.extend(args.junit.iter().map(|file| format!("--junit={file}").into()));
    words.extend(args.wanted.iter().map(|word| format!("--only={word}").into()));
    cargo::test("system-tests", "system", &words)
}
