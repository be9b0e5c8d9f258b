//! Licences and advisories of dependencies, against deny.toml: by cargo-deny where installed, else
//! the licences by this code.

use super::checks::cargo;
use crate::{Bench, Checks, Load, Tally};
use std::fs;
use std::time::Duration;
use xtask::packages;

const LIMIT: Duration = Duration::from_secs(300);

pub(super) fn register(checks: &mut Checks) {
    checks.load(Load::One).many("all", all);
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    if has_cargo_deny() {
        return by_cargo_deny(bench, tally);
    }
    let path = bench.paths.root.join("deny.toml");
    let settings = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let allowed = allow_list(&settings);
    if allowed.is_empty() {
        return Err(format!("{} allows no licence", path.display()));
    }
    let done = cargo(bench)
        .args(["tree", "--workspace", "--edges=all", "--target=all", "--prefix=none"])
        .args(["--no-dedupe", "--format={p}\t{l}"])
        .run(&bench.scratch, LIMIT)?;
    if !done.ok() {
        return Err(done.report("cargo tree"));
    }
    let mut lines: Vec<_> = done.stdout.lines().filter(|l| l.contains('\t')).collect();
    lines.sort_unstable();
    lines.dedup();
    for line in &lines {
        let (name, licence) = line.split_once('\t').unwrap_or((line, ""));
        let package = name.split(' ').next().unwrap_or_default();
        let mut allowed = allowed.clone();
        allowed.extend(exceptions(&settings, package));
        let result = match satisfied(licence, &allowed) {
            Some(true) => Ok(()),
            Some(false) => Err(format!("licence {licence} is not allowed by deny.toml")),
            None => Err(format!("licence expression {licence:?} cannot be read")),
        };
        tally.record(name, result);
    }
    let banned = banned(&settings);
    if banned.is_empty() {
        return Err(format!("{} bans nothing", path.display()));
    }
    for name in banned {
        let found = lines.iter().find(|line| line.split(' ').next() == Some(name));
        tally.record(
            &format!("without {name}"),
            found.map_or(Ok(()), |line| Err(format!("{line}: deny.toml bans it, and says why; who depends on it: cargo tree -i {name}"))),
        );
    }
    tally.skip("advisories", "cargo-deny is not installed (cargo install cargo-deny)");
    Ok(())
}

fn has_cargo_deny() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
    packages::find_program("cargo-deny").is_some()
        || home.is_some_and(|h| h.join("bin/cargo-deny").is_file())
}

fn by_cargo_deny(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let check = |what: &[&str]| {
        cargo(bench).args(["deny", "--all-features", "check"]).args(what).run(&bench.scratch, LIMIT)
    };
    let done = check(&["licenses", "bans", "sources"])?;
    let result = if done.ok() { Ok(()) } else { Err(done.report("cargo deny")) };
    tally.record("licences, bans, sources", result);
    let done = check(&["advisories"])?;
    if done.ok() {
        tally.add_passed(1);
    } else if done.stderr.contains("failed to fetch advisory database") {
        tally.skip("advisories", "the advisory database cannot be reached");
    } else {
        tally.record("advisories", Err(done.report("cargo deny")));
    }
    Ok(())
}

/// The strings of `allow = [...]` in the section `[licenses]`.
fn allow_list(settings: &str) -> Vec<String> {
    let without_comments: String = settings
        .lines()
        .map(|l| l.split('#').next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let section = without_comments.split("[licenses]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let list = section.split("allow").nth(1).and_then(|s| s.split(']').next()).unwrap_or_default();
    list.split('"').skip(1).step_by(2).map(str::to_string).collect()
}

/// The licences that `exceptions = [...]` in the section `[licenses]` allow for one package, an
/// exception on a line.
fn exceptions(settings: &str, package: &str) -> Vec<String> {
    let wanted = format!("crate = \"{package}\"");
    let lines = settings.lines().filter(|l| l.trim_start().starts_with('{') && l.contains(&wanted));
    lines
        .filter_map(|line| line.split("allow").nth(1)?.split(']').next())
        .flat_map(|list| list.split('"').skip(1).step_by(2).map(str::to_string))
        .collect()
}

/// The packages of `deny = [...]` in the section `[bans]`.
fn banned(settings: &str) -> Vec<&str> {
    let section = settings.split("[bans]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let list =
        section.split("deny = [").nth(1).and_then(|s| s.split(']').next()).unwrap_or_default();
    list.split('"').skip(1).step_by(2).collect()
}

/// Whether an SPDX expression can be satisfied with the allowed licences; `None` if it is none.
fn satisfied(expression: &str, allowed: &[String]) -> Option<bool> {
    // `/` is the old way of writing OR.
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<_> = text.split_whitespace().collect();
    let mut parser = Parser { words: &words, at: 0, allowed };
    let result = parser.alternatives()?;
    (parser.at == words.len()).then_some(result)
}

struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
    allowed: &'a [String],
}

impl Parser<'_> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }

    fn alternatives(&mut self) -> Option<bool> {
        let mut result = self.conjunction()?;
        while self.take("OR") {
            result |= self.conjunction()?;
        }
        Some(result)
    }

    fn conjunction(&mut self) -> Option<bool> {
        let mut result = self.one()?;
        while self.take("AND") {
            result &= self.one()?;
        }
        Some(result)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let result = self.alternatives()?;
            return self.take(")").then_some(result);
        }
        let mut name = (*self.words.get(self.at)?).to_string();
        if matches!(name.as_str(), "OR" | "AND" | "WITH" | ")") {
            return None;
        }
        self.at += 1;
        if self.take("WITH") {
            name = format!("{name} WITH {}", self.words.get(self.at)?);
            self.at += 1;
        }
        Some(self.allowed.contains(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_judged_by_the_allow_list() {
        let allowed = ["MIT".to_string(), "Unicode-3.0".to_string()];
        assert_eq!(satisfied("MIT OR Apache-2.0", &allowed), Some(true));
        assert_eq!(satisfied("Apache-2.0/MIT", &allowed), Some(true));
        assert_eq!(satisfied("GPL-2.0-only", &allowed), Some(false));
        assert_eq!(satisfied("(MIT OR Apache-2.0) AND Unicode-3.0", &allowed), Some(true));
        assert_eq!(satisfied("(MIT OR Apache-2.0) AND GPL-2.0-only", &allowed), Some(false));
        assert_eq!(satisfied("Apache-2.0 WITH LLVM-exception OR MIT", &allowed), Some(true));
        assert_eq!(satisfied("", &allowed), None);
        assert_eq!(satisfied("MIT Apache-2.0", &allowed), None);
    }

    #[test]
    fn an_exception_is_for_its_package_only() {
        let text = "exceptions = [\n  { crate = \"a\", allow = [\"X\", \"Y\"] },\n]\n";
        assert_eq!(exceptions(text, "a"), ["X", "Y"]);
        assert!(exceptions(text, "b").is_empty());
    }

    #[test]
    fn bans_are_read_from_their_section() {
        let text = "[licenses]\ndeny = [\"no\"]\n[bans]\nwildcards = \"deny\"\n# why\ndeny = [{ crate = \"a\" }]\n[sources]\n";
        assert_eq!(banned(text), ["a"]);
        assert!(banned("[licenses]\n").is_empty());
    }

    #[test]
    fn the_allow_list_is_read_from_its_section() {
        let text = "[bans]\nallow = [\"x\"]\n[licenses]\nallow = [\n  \"MIT\", # why\n  \"ISC\",\n]\n\
                    [sources]\nallow = [\"y\"]\n";
        assert_eq!(allow_list(text), ["MIT", "ISC"]);
    }
}
