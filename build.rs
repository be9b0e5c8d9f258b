//! Writes the linker's version map from the rows of the export table, names the library, and compiles
//! the few lines of C that need a variable argument list.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

const TABLE: &str = "src/export/table.rs";
const VARIADIC: &str = "src/export/variadic.c";
const PRIVATE: [u32; 5] = [34, 57, 59, 64, 65];

fn main() {
    println!("cargo:rerun-if-changed={TABLE}");
    println!("cargo:rerun-if-changed=build.rs");

    println!("cargo:rerun-if-changed={VARIADIC}");
    cc::Build::new().file(VARIADIC).warnings(true).extra_warnings(true).compile("fv_variadic");

    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let map = Path::new(&out).join("libibverbs.map");
    let table = std::fs::read_to_string(TABLE).expect("the export table is part of the package");
    std::fs::write(&map, version_map(&table)).expect("OUT_DIR is writable");

    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
}

/// One node per version, public ones chained in order, private ones on their own.
fn version_map(table: &str) -> String {
    let mut public: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    let mut private: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for generation in PRIVATE {
        private.entry(generation).or_default().push("verbs_allow_disassociate_destroy");
    }
    for row in table.lines().filter_map(Row::parse) {
        match row.place {
            Place::Public(minor) => public.entry(minor).or_default().push(row.name),
            Place::Private(generation) => private.entry(generation).or_default().push(row.name),
            Place::Since(first) => {
                for generation in PRIVATE.into_iter().filter(|&generation| generation >= first) {
                    private.entry(generation).or_default().push(row.name);
                }
            }
        }
    }

    let mut map = String::new();
    let mut parent = String::new();
    for (minor, names) in public {
        let node = format!("IBVERBS_1.{minor}");
        write_node(&mut map, &node, names, &parent);
        parent = format!(" {node}");
    }
    for (generation, names) in private {
        write_node(&mut map, &format!("IBVERBS_PRIVATE_{generation}"), names, "");
    }
    map
}

fn write_node(map: &mut String, node: &str, mut names: Vec<&str>, parent: &str) {
    names.sort_unstable();
    names.dedup();
    writeln!(map, "{node} {{ global: {}; }}{parent};", names.join("; "))
        .expect("writing to a string");
}

struct Row<'a> {
    name: &'a str,
    place: Place,
}

enum Place {
    Public(u32),
    Private(u32),
    Since(u32),
}

impl<'a> Row<'a> {
    /// `"name" "@@" "node" => …` or `"name" since N => …`; anything else is not a row.
    fn parse(line: &'a str) -> Option<Self> {
        let (head, _) = line.trim_start().strip_prefix('"')?.split_once("=>")?;
        let (name, rest) = head.split_once('"')?;
        let rest = rest.trim();
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("bad row: {line}"));
        let place = if let Some(first) = rest.strip_prefix("since ") {
            Place::Since(number(first.trim()))
        } else {
            let node = rest.rsplit('"').nth(1)?;
            match (node.strip_prefix("IBVERBS_1."), node.strip_prefix("IBVERBS_PRIVATE_")) {
                (Some(minor), _) => Place::Public(number(minor)),
                (_, Some(generation)) => Place::Private(number(generation)),
                _ => panic!("unknown node: {line}"),
            }
        };
        Some(Self { name, place })
    }
}
