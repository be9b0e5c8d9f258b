//! Types that C declares in place have no name for ctest: their members are compared by the paths
//! that lead to them.

use crate::check::run;
use crate::{newest, root, scratch};
use ferroverbs_headers::{names, rust};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The type, its structure, and the path to its members (empty for an unnamed type).
const PLACES: &[(&str, &str, &str)] = &[
    ("ibv_async_event_element", "ibv_async_event", "element"),
    ("ibv_flow_spec_hdr", "ibv_flow_spec", "hdr"),
    ("ibv_odp_per_transport_caps", "ibv_odp_caps", "per_transport_caps"),
    ("ibv_ops_wr_tm", "ibv_ops_wr", "tm"),
    ("ibv_ops_wr_tm_add", "ibv_ops_wr", "tm.add"),
    ("ibv_send_wr_atomic", "ibv_send_wr", "wr.atomic"),
    ("ibv_send_wr_bind_mw", "ibv_send_wr", "bind_mw"),
    ("ibv_send_wr_imm", "ibv_send_wr", ""),
    ("ibv_send_wr_qp_type", "ibv_send_wr", "qp_type"),
    ("ibv_send_wr_rdma", "ibv_send_wr", "wr.rdma"),
    ("ibv_send_wr_tail", "ibv_send_wr", ""),
    ("ibv_send_wr_tso", "ibv_send_wr", "tso"),
    ("ibv_send_wr_ud", "ibv_send_wr", "wr.ud"),
    ("ibv_send_wr_wr", "ibv_send_wr", "wr"),
    ("ibv_send_wr_xrc", "ibv_send_wr", "qp_type.xrc"),
    ("ibv_wc_imm", "ibv_wc", ""),
    ("ib_addr_u", "ib_addr", "ib_u"),
    ("rdma_cm_event_param", "rdma_cm_event", "param"),
    ("ib_uverbs_attr_enum_data", "ib_uverbs_attr", "attr_data.enum_data"),
    ("ib_uverbs_odp_per_transport_caps", "ib_uverbs_odp_caps", "per_transport_caps"),
    ("ib_uverbs_send_wr_atomic", "ib_uverbs_send_wr", "wr.atomic"),
    ("ib_uverbs_send_wr_rdma", "ib_uverbs_send_wr", "wr.rdma"),
    ("ib_uverbs_send_wr_ud", "ib_uverbs_send_wr", "wr.ud"),
    ("ib_uverbs_send_wr_wr", "ib_uverbs_send_wr", "wr"),
];

/// Members that the installed headers, of release 44, do not have yet.
const NEWER: &[(&str, &str)] = &[("rdma_cm_event_param", "arg")];

/// The first Rust member of an unnamed type in its owner.
const UNNAMED: &[(&str, &str, &str)] = &[
    ("ibv_send_wr_imm", "ibv_send_wr", "imm"),
    ("ibv_send_wr_tail", "ibv_send_wr", "tail"),
    ("ibv_wc_imm", "ibv_wc", "imm"),
];

/// Asserts sizes and offsets in C, and returns how many.
fn compare(name: &str, include: Option<&Path>) -> usize {
    let layouts = rust::layouts(&root().join("abi/src")).expect("the crate can be read");
    let mut text = String::from(
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/ib_user_verbs.h>\n#include <rdma/rdma_user_ioctl_cmds.h>\n\
         #include <infiniband/ib.h>\n#include <rdma/rdma_cma.h>\n",
    );
    let mut count = 0;
    let mut claim = |condition: String| {
        text.push_str(&format!(
            "_Static_assert({condition}, \"{}\");\n",
            condition.replace('"', "'")
        ));
        count += 1;
    };
    for (name, owner, path) in PLACES {
        let (size, members) = &layouts[*name];
        let base = match UNNAMED.iter().find(|(unnamed, ..)| unnamed == name) {
            Some((_, owner, member)) => layouts[*owner].1[*member].to_string(),
            None => {
                claim(format!("sizeof(((struct {owner} *)0)->{path}) == {size}"));
                format!("offsetof(struct {owner}, {path})")
            }
        };
        let dot = if path.is_empty() { "" } else { "." };
        for (member, offset) in members {
            if include.is_none() && NEWER.contains(&(*name, member.as_str())) {
                continue;
            }
            let member = names::spelling(member);
            claim(format!("offsetof(struct {owner}, {path}{dot}{member}) == {base} + {offset}"));
        }
    }
    // A type that C wraps, with all views at its start; and a type in a union.
    claim(format!("sizeof(struct ibv_flow_spec) == {}", layouts["ibv_flow_spec"].0));
    claim(
        "sizeof(union ibv_gid) == 16 && offsetof(union ibv_gid, global.interface_id) == 8".into(),
    );
    let source = scratch().join(format!("in_place_{name}.c"));
    fs::write(&source, text).expect("cargo's folder is writable");
    let flags: Vec<_> = include
        .iter()
        .flat_map(|path| ["-isystem".to_owned(), path.display().to_string()])
        .collect();
    run(Command::new("gcc").args(["-std=gnu11", "-fsyntax-only"]).args(flags).arg(&source));
    count
}

#[test]
fn every_type_without_a_name_in_public_headers_has_a_place() {
    let driver_side = |name: &str| name.starts_with("verbs_") || name == "ibv_gid_global";
    for name in names::IN_PLACE.iter().filter(|name| !driver_side(name)) {
        assert!(PLACES.iter().any(|(other, ..)| other == name), "{name}");
    }
}

#[test]
fn types_in_place_are_those_of_the_installed_headers() {
    println!("{} members in place", compare("installed", None));
}

#[test]
fn types_in_place_are_those_of_the_newest_headers() {
    let Some(include) = newest() else { return };
    println!("{} members in place", compare("newest", Some(&include)));
}

#[test]
fn types_in_place_are_those_of_our_headers() {
    println!("{} members in place", compare("ours", Some(&root().join("include"))));
}
