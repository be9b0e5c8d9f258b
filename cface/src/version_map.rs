//! The linker's version map (`ld(1)`, "VERSION") of a library, made in its build script from the
//! same rows of the export table that [`exports!`](crate::exports) turns into symbols; and Rust
//! macros with lists of generations.
//!
//! A build script fails by a panic, so an invalid row panics.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::generations;

/// The names of a library's version nodes.
#[derive(Clone, Copy, Debug)]
pub struct Nodes {
    /// The prefix of public nodes; a minor number follows (`IBVERBS_1.`). They are chained in
    /// order.
    pub public: &'static str,
    /// The prefix of private nodes; a generation's number follows (`IBVERBS_PRIVATE_`).
    pub private: &'static str,
}

/// The nodes of `libibverbs.so.1`.
pub const IBVERBS: Nodes = Nodes { public: "IBVERBS_1.", private: "IBVERBS_PRIVATE_" };

/// The nodes of `librdmacm.so.1`, which has no private nodes.
pub const RDMACM: Nodes = Nodes { public: "RDMACM_1.", private: "RDMACM_PRIVATE_" };

impl Nodes {
    /// The map for the rows of `table`. Each private node also has the names of `variables`.
    ///
    /// # Panics
    /// Where a row names no node of these.
    pub fn map(self, table: &str, variables: &[&str]) -> String {
        let mut public: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        let mut private: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        if !variables.is_empty() {
            for generation in generations::numbers() {
                private.entry(generation).or_default().extend(variables);
            }
        }
        for row in table.lines().filter_map(|line| self.row(line)) {
            match row.place {
                VersionNode::Public(minor) => public.entry(minor).or_default().push(row.name),
                VersionNode::Private(generation) => {
                    private.entry(generation).or_default().push(row.name)
                }
                VersionNode::Since(first) => {
                    for generation in generations::numbers().filter(|&number| number >= first) {
                        private.entry(generation).or_default().push(row.name);
                    }
                }
            }
        }
        let mut map = String::new();
        let mut parent = String::new();
        // The first node hides all other names.
        let mut rest = " local: *;";
        for (minor, names) in public {
            let node = format!("{}{minor}", self.public);
            write_node(&mut map, &node, names, std::mem::take(&mut rest), &parent);
            parent = format!(" {node}");
        }
        for (generation, names) in private {
            let node = format!("{}{generation}", self.private);
            write_node(&mut map, &node, names, std::mem::take(&mut rest), "");
        }
        map
    }

    /// Two macros for [`exports!`](crate::exports) and its like, in Rust. `since!(N "name"
    /// function)` gives a function the private node of each generation from N on, the oldest as the
    /// default. `private_nodes!(callback)` calls `callback!` with all private nodes, as `"@@"
    /// "node"`.
    pub fn macros(self) -> String {
        let nodes = |first: u32| {
            generations::numbers().filter(move |&number| number >= first).enumerate().map(
                move |(index, number)| {
                    let at = if index == 0 { "@@" } else { "@" };
                    format!("\"{at}\" \"{}{number}\"", self.private)
                },
            )
        };
        let mut text = String::from("macro_rules! since {\n");
        for first in generations::numbers() {
            writeln!(text, "    ({first} $name:literal $func:path) => {{").expect(STRING);
            for node in nodes(first) {
                writeln!(text, "        ::cface::export!($name {node} $func);").expect(STRING);
            }
            text.push_str("    };\n");
        }
        text.push_str(
            "}\nmacro_rules! private_nodes {\n    ($callback:ident) => {\n        $callback! {",
        );
        text.extend(nodes(0).map(|node| format!(" {node}")));
        text.push_str(" }\n    };\n}\n");
        text
    }

    /// `"name" "@@" "node" => …` or `"name" since N => …`; anything else is not a row.
    fn row(self, line: &str) -> Option<Row<'_>> {
        let (head, _) = line.trim_start().strip_prefix('"')?.split_once("=>")?;
        let (name, rest) = head.split_once('"')?;
        let rest = rest.trim();
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("bad row: {line}"));
        let place = if let Some(first) = rest.strip_prefix("since ") {
            VersionNode::Since(number(first.trim()))
        } else {
            let node = rest.rsplit('"').nth(1)?;
            match (node.strip_prefix(self.public), node.strip_prefix(self.private)) {
                (Some(minor), _) => VersionNode::Public(number(minor)),
                (_, Some(generation)) => VersionNode::Private(number(generation)),
                _ => panic!("unknown node: {line}"),
            }
        };
        Some(Row { name, place })
    }
}

const STRING: &str = "writing to a string";

fn write_node(map: &mut String, node: &str, mut names: Vec<&str>, rest: &str, parent: &str) {
    names.sort_unstable();
    names.dedup();
    writeln!(map, "{node} {{ global: {};{rest} }}{parent};", names.join("; ")).expect(STRING);
}

struct Row<'a> {
    name: &'a str,
    place: VersionNode,
}

enum VersionNode {
    Public(u32),
    Private(u32),
    Since(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_nodes_are_chained_and_private_ones_stand_alone() {
        let table = "exports! {\n    \"b\" \"@@\" \"IBVERBS_1.1\" => x::b;\n    \"a\" \"@\" \"IBVERBS_1.0\" => x::a;\n    \
                     \"c\" since 64 => x::c;\n    \"d\" \"@\" \"IBVERBS_PRIVATE_34\" => x::d;\n}\n";
        assert_eq!(
            IBVERBS.map(table, &[]),
            "IBVERBS_1.0 { global: a; local: *; };\nIBVERBS_1.1 { global: b; } IBVERBS_1.0;\n\
             IBVERBS_PRIVATE_34 { global: d; };\nIBVERBS_PRIVATE_64 { global: c; };\n\
             IBVERBS_PRIVATE_65 { global: c; };\n"
        );
    }

    #[test]
    fn a_variable_is_in_each_private_node() {
        let map = IBVERBS.map("", &["flag"]);
        assert_eq!(map.lines().count(), generations::numbers().count());
        assert!(map.lines().all(|line| line.contains("{ global: flag;")), "{map}");
        assert_eq!(map.matches("local: *;").count(), 1);
    }

    #[test]
    fn the_oldest_generation_of_a_function_is_its_default() {
        let text = IBVERBS.macros();
        assert!(text.contains("(65 $name:literal $func:path) => {\n        ::cface::export!($name \"@@\" \"IBVERBS_PRIVATE_65\" $func);\n    };"));
        assert!(
            text.contains(
                "$callback! { \"@@\" \"IBVERBS_PRIVATE_34\" \"@\" \"IBVERBS_PRIVATE_57\""
            )
        );
    }

    #[test]
    #[should_panic(expected = "unknown node")]
    fn a_row_of_another_library_is_refused() {
        IBVERBS.map("\"a\" \"@@\" \"RDMACM_1.0\" => x::a;", &[]);
    }
}
