//! `DEBIAN/symbols` (deb-symbols(5)) of the packages with libraries: for each symbol the oldest
//! release of rdma-core that has it, by the lists in `c-tests/data`.
//!
//! A program that is built beside the package then depends on the oldest libibverbs1 that has all
//! its symbols.

use super::{Dist, VERSION};
use crate::files::{entries, read};
use crate::stage;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

impl Dist<'_> {
    /// The text of the file for the package with `library`, which is `libibverbs` or `librdmacm`.
    pub(super) fn symbols(&self, library: &str) -> crate::Result<String> {
        let lists = lists(library, &self.paths.root)?;
        let mut text = format!("{library}.so.1 {library}1 #MINVER#\n");
        for symbol in self.defined_by(&format!("lib/{library}.so.1"))? {
            let release = lists.get(&symbol).cloned().or_else(|| private_release(&symbol));
            let release = release.ok_or_else(|| format!("no release has {symbol}"))?;
            text.push_str(&format!(" {symbol} {release}\n"));
        }
        if library == "libibverbs" {
            // No other package has the library.
            text.push_str("libferroverbs-inlines.so.1 libibverbs1-ferroverbs #MINVER#\n");
            for symbol in self.defined_by(stage::INLINES)? {
                text.push_str(&format!(" {symbol} {VERSION}\n"));
            }
        }
        Ok(text)
    }

    /// The symbols that a library of the staged tree defines, in order.
    fn defined_by(&self, file: &str) -> crate::Result<BTreeSet<String>> {
        let job = self.job("readelf").args(["-W", "--dyn-syms"]).arg(self.tree.join(file));
        Ok(defined(&self.ask(job)?))
    }
}

/// The versioned symbols of a table of readelf(1) that the file defines, with one `@`.
fn defined(table: &str) -> BTreeSet<String> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = rows.filter_map(|row| match row[..] {
        [_, _, _, _, _, _, section, symbol, ..] if section != "UND" => Some(symbol.to_owned()),
        _ => None,
    });
    own.filter(|symbol| symbol.contains('@')).map(|symbol| symbol.replace("@@", "@")).collect()
}

/// A private version is named after the release that began it.
fn private_release(symbol: &str) -> Option<String> {
    let (_, release) = symbol.split_once("@IBVERBS_PRIVATE_")?;
    release.parse::<u32>().ok()?;
    Some(release.to_owned())
}

/// Each `NAME@VERSION` of the lists with the oldest release that has it.
fn lists(library: &str, root: &Path) -> crate::Result<BTreeMap<String, String>> {
    let folder = if library == "librdmacm" { "symbols-rdmacm" } else { "symbols" };
    let mut lists = Vec::new();
    for file in entries(&root.join("c-tests/data").join(folder))? {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let release = stem.strip_prefix("rdma-core-v").ok_or_else(|| format!("{stem}: no list"))?;
        lists.push((release.to_owned(), read(&file)?));
    }
    oldest(&lists)
}

fn oldest(lists: &[(String, String)]) -> crate::Result<BTreeMap<String, String>> {
    let number = |release: &str| release.split('.').next()?.parse::<u32>().ok();
    let mut sorted = Vec::new();
    for (release, list) in lists {
        let number = number(release).ok_or_else(|| format!("{release}: no release"))?;
        sorted.push((number, release, list));
    }
    sorted.sort();
    let mut found = BTreeMap::new();
    for (_, release, list) in sorted {
        for line in list.lines().skip(1) {
            let mut fields = line.split('\t');
            if let (Some(name), Some(version)) = (fields.next(), fields.next()) {
                found.entry(format!("{name}@{version}")).or_insert_with(|| release.clone());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_is_of_the_oldest_release_that_has_it() {
        let list = |lines: &str| format!("symbol\tversion\n{lines}");
        let lists = [
            ("65".to_owned(), list("ibv_a\tIBVERBS_1.1\tdefault\nibv_b\tIBVERBS_1.18\tdefault\n")),
            ("44.0".to_owned(), list("ibv_a\tIBVERBS_1.1\tdefault\n")),
        ];
        let found = oldest(&lists).unwrap();
        let of = |symbol: &str| found.get(symbol).map(String::as_str);
        assert_eq!(of("ibv_a@IBVERBS_1.1"), Some("44.0"));
        assert_eq!(of("ibv_b@IBVERBS_1.18"), Some("65"));
        assert_eq!(found.len(), 2);
        assert_eq!(private_release("ibv_cmd_x@IBVERBS_PRIVATE_57").as_deref(), Some("57"));
        assert_eq!(private_release("ibv_x@IBVERBS_1.18"), None);
    }

    #[test]
    fn symbols_of_a_table_are_those_that_the_file_defines() {
        let table = "
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND malloc@GLIBC_2.2.5 (2)
     2: 0000000000012340    12 FUNC    GLOBAL DEFAULT   14 ibv_a@@IBVERBS_1.1
     3: 0000000000012350    12 FUNC    GLOBAL DEFAULT   14 ibv_a@IBVERBS_1.0
     5: 0000000000012350    12 FUNC    LOCAL  DEFAULT   14 inner
";
        let wanted = ["ibv_a@IBVERBS_1.0", "ibv_a@IBVERBS_1.1"];
        assert_eq!(defined(table), wanted.map(str::to_owned).into());
    }
}
