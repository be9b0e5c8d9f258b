//! Layouts between library and plugins, which no installed header shows: the crate against tables
//! of rdma-core 65, and older generations against the assumptions of the front-end.

use crate::check::run;
use crate::{root, scratch};
use ferroverbs_headers::{Sources, names, rust};
use std::collections::BTreeMap;
use std::process::Command;

/// Size and member offsets; `None` for an absent one.
#[derive(Clone, Debug, Default)]
struct Layout {
    size: Option<usize>,
    members: BTreeMap<String, Option<usize>>,
}

fn number(text: &str) -> Option<usize> {
    (text != "-").then(|| text.parse().expect("a table has numbers"))
}

/// A table whose lines begin with `keys` columns before the size.
fn table(text: &str, keys: usize) -> BTreeMap<Vec<String>, Layout> {
    let mut layouts: BTreeMap<Vec<String>, Layout> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<_> = line.split('\t').collect();
        let key = columns[..keys].iter().map(|s| (*s).to_owned()).collect();
        let layout = layouts.entry(key).or_default();
        layout.size = number(columns[keys]);
        if let [member, offset] = columns[keys + 1..] {
            layout.members.insert(member.to_owned(), number(offset));
        }
    }
    layouts
}

fn newest() -> BTreeMap<String, Layout> {
    let layouts = table(include_str!("../../data/layouts-65.tsv"), 1);
    layouts.into_iter().map(|(mut key, layout)| (key.remove(0), layout)).collect()
}

/// Types of the table that the crate has no use for.
const UNUSED: &[&str] = &[
    "empty",            // of a macro of upstream's
    "ib_path_rec_data", // of librdmacm
    "ib_user_service_rec",
    "ibv_abi_compat_v2", // inside upstream's library
    "ibv_kern_spec",     // a union over the specifications that the crate has
    "list_head",         // inside upstream's library
    "timespec",          // the C library's
    "verbs_ex_private",  // opaque
];

#[test]
fn all_types_between_library_programs_plugins_and_kernel_lie_as_in_rdma_core_65() {
    let layouts = rust::layouts(&root().join("abi/src")).expect("the crate can be read");
    let (mut types, mut members, mut wrong) = (0, 0, Vec::new());
    for (name, theirs) in newest() {
        let Some((size, ours)) = layouts.get(&name) else {
            if !UNUSED.contains(&name.as_str()) {
                wrong.push(format!("the crate has no {name}"));
            }
            continue;
        };
        types += 1;
        if Some(*size) != theirs.size {
            wrong.push(format!("{name} has {size} bytes, should have {:?}", theirs.size));
        }
        for (member, offset) in ours {
            let c = match (name.as_str(), member.as_str()) {
                ("ib_uverbs_send_wr" | "ib_uverbs_wc", "imm_data") => "ex.imm_data",
                // Bit fields have no offset; what follows them has.
                ("ibv_command_buffer", "flags") => continue,
                _ => names::spelling(member),
            };
            // A member without a name in C: the table lists its inner members.
            let unnamed = names::UNNAMED.contains(&(name.as_str(), member))
                || c == "core_payload" && !theirs.members.contains_key(c);
            match theirs.members.get(c) {
                Some(Some(theirs)) if theirs == offset => members += 1,
                Some(theirs) => {
                    wrong.push(format!("{name}.{c} is at {offset}, should be at {theirs:?}"))
                }
                None if unnamed => {}
                None => wrong.push(format!("{name} has no {c} in C")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(types > 250 && members > 1000, "{types} types, {members} members");
    println!("{types} types, {members} members");
}

/// Differences between generations: the front-end (src/front/generation.rs) handles only these.
#[test]
fn older_generations_differ_where_the_front_end_knows_it() {
    let new = newest();
    let mut count = 0;
    for (key, old) in table(include_str!("../../data/layouts-older.tsv"), 2) {
        let [generation, name] = key.as_slice() else { panic!("a line without a type") };
        let Some(size) = old.size else { continue }; // came later
        let now = new[name].size.expect("the newest has all");
        count += 1;
        match name.as_str() {
            // Grew at its front: old members keep their distance from the end.
            "verbs_context" => {
                for (member, offset) in &old.members {
                    let Some(offset) = offset else { continue };
                    let moved =
                        new[name].members[member].expect("the newest has all") - (now - size);
                    assert_eq!(*offset, moved, "{generation} {member}");
                }
            }
            // Grew at their ends: what there was stayed.
            "ibv_port_attr" | "ibv_qp_ex" | "ibv_mr_init_attr" | "ib_uverbs_query_port_resp_ex" => {
                let stayed = old.members.values().all(Option::is_none);
                let padding = name == "ib_uverbs_query_port_resp_ex";
                assert!(stayed || padding, "{generation} {name}: {:?}", old.members);
            }
            // The part behind ibv_qp_ex, which was shorter; generation.rs has the distance.
            "verbs_qp" => {
                assert_eq!(
                    (size, old.members["comp_mask"], old.members["xrcd"]),
                    (368, Some(352), Some(360))
                );
            }
            // Operations were inserted and never reordered: generation.rs compares indexes.
            "verbs_context_ops" => {
                let in_order = |layout: &Layout| {
                    let mut members: Vec<_> = layout
                        .members
                        .iter()
                        .filter_map(|(m, o)| o.map(|o| (o, m.clone())))
                        .collect();
                    members.sort();
                    members.into_iter().map(|(_, member)| member).collect::<Vec<_>>()
                };
                let mut expected = in_order(&new[name]);
                let theirs: Vec<_> = in_order(&old);
                expected.retain(|member| theirs.contains(member));
                assert_eq!(theirs, expected, "{generation}");
            }
            "verbs_ex_private" => {} // upstream's own
            other => panic!("{other} differs in generation {generation}, and nobody knows"),
        }
    }
    assert_eq!(count, 20);
}

#[test]
fn the_header_for_plugins_lays_types_out_as_the_crate_does() {
    let layouts = rust::layouts(&root().join("abi/src")).expect("the crate can be read");
    let sources = Sources::read(&root()).expect("the headers can be made");
    let mut text = String::from("#include <infiniband-provider/driver.h>\n");
    let mut count = 0;
    for entry in &sources.abi.entries {
        let driver_side = matches!(entry.module.as_str(), "driver" | "ops" | "kernel/commands");
        let Some((size, members)) = layouts.get(&entry.name).filter(|_| driver_side) else {
            continue;
        };
        let Some(definition) = sources.definitions.get(&entry.name) else { continue };
        let tag = format!("{} {}", definition.keyword, entry.name);
        text.push_str(&format!("_Static_assert(sizeof({tag}) == {size}, \"{tag}\");\n"));
        count += 1;
        for (member, offset) in members {
            if names::UNNAMED.contains(&(entry.name.as_str(), member)) {
                continue;
            }
            let member = names::spelling(member);
            text.push_str(&format!(
                "_Static_assert(offsetof({tag}, {member}) == {offset}, \"{tag}.{member}\");\n"
            ));
            count += 1;
        }
    }
    assert!(count > 300, "{count}");
    let source = scratch().join("driver_side.c");
    std::fs::write(&source, text).expect("cargo's folder is writable");
    let include = root().join("include");
    run(Command::new("gcc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
        .arg(include)
        .arg(&source));
    println!("{count} sizes and offsets");
}
