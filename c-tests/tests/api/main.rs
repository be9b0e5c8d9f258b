//! Ferroverbs' headers declare the same as upstream's: every macro, type, enumerator and function
//! (inline ones too), with the same types, and nothing else. Both are preprocessed, and their
//! declarations are compared token by token.

mod declarations;

use declarations::Api;
use ferroverbs_c_tests::{debian, release::RELEASES};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const HEADERS: &[&str] = &[
    "infiniband/verbs.h",
    "infiniband/verbs_api.h",
    "infiniband/ib_user_ioctl_verbs.h",
    "infiniband/opcode.h",
    "infiniband/tm_types.h",
    "infiniband/sa.h",
    "infiniband/ib.h",
    "rdma/rdma_cma.h",
    "rdma/rdma_verbs.h",
    "rdma/rsocket.h",
];

/// Names that only Ferroverbs has, with the reason.
const OURS: &[(&str, &str)] = &[
    (
        "__verbs_get_ctx_at",
        "what verbs_get_ctx_op is made of; upstream's macro is one expression of statements",
    ),
    ("__verbs_not_supported", "how inline functions set errno"),
    ("__rdma_sge", "what the requests of ids have in common"),
    ("__rdma_send_wr", "likewise"),
    ("__rdma_post", "likewise"),
    ("__rdma_get_comp", "what waiting for either completion has in common"),
];

/// Names that only upstream has, with the reason.
const THEIRS: &[(&str, &str)] = &[];

/// Macros with another text and the same meaning, with the reason.
const OTHER_TEXT: &[(&str, &str)] = &[
    ("verbs_get_ctx_op", "no expression of statements"),
    ("__VERBS_ABI_IS_EXTENDED", "C++11 has UINTPTR_MAX"),
    ("RDMA_UAPI_PTR", "__extension__, and no nested structure where none is needed"),
    (
        "struct sockaddr_ib",
        "__aligned_u64, which is __u64 here, and no `int` behind `unsigned short`",
    ),
    ("ibv_get_device_list", "only with RDMA_STATIC_PROVIDERS"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn ours() -> Api {
    Api::read(HEADERS, Some(&root().join("include")))
}

/// The newest headers of upstream's; `None`, and a line, where they can't be had.
fn newest() -> Option<Api> {
    let release = RELEASES.last().expect("there are releases");
    let target =
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("below the target directory");
    match debian::unpacked(target, release.suite, debian::HEADERS) {
        Ok(tree) => Some(Api::read(HEADERS, Some(&tree.join("usr/include")))),
        Err(reason) => {
            println!("skipped: headers of rdma-core {}: {reason}", release.number);
            None
        }
    }
}

fn listed(list: &[(&str, &str)], name: &str) -> bool {
    list.iter().any(|(other, _)| *other == name)
}

/// The declarations of `theirs` that `ours` lacks or declares differently.
fn differences(ours: &Api, theirs: &Api, exact: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compare = |what: &str,
                       ours: &BTreeMap<String, String>,
                       theirs: &BTreeMap<String, String>,
                       text: bool| {
        for (name, their) in theirs {
            match ours.get(name) {
                None if listed(THEIRS, name) => {}
                None => wrong.push(format!("no {what} {name}")),
                Some(our) if text && our != their && !listed(OTHER_TEXT, name) => {
                    wrong.push(format!("{what} {name}\n  ours:   {our}\n  theirs: {their}"));
                }
                Some(_) => {}
            }
        }
    };
    compare("macro", &ours.macros, &theirs.macros, exact);
    compare("function", &ours.functions, &theirs.functions, true);
    compare("type", &ours.types, &theirs.types, exact);
    compare("enumerator", &ours.enumerators, &theirs.enumerators, exact);
    wrong
}

#[test]
fn all_that_the_installed_headers_declare_is_ours_too() {
    let theirs = Api::read(HEADERS, None);
    let wrong = differences(&ours(), &theirs, false);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{}", theirs.count());
}

#[test]
fn ours_and_the_newest_declare_the_same() {
    let Some(theirs) = newest() else { return };
    let ours = ours();
    let mut wrong = differences(&ours, &theirs, true);
    for (what, ours, theirs) in [
        ("macro", &ours.macros, &theirs.macros),
        ("function", &ours.functions, &theirs.functions),
        ("type", &ours.types, &theirs.types),
        ("enumerator", &ours.enumerators, &theirs.enumerators),
    ] {
        let extra = ours.keys().filter(|name| !theirs.contains_key(*name) && !listed(OURS, name));
        wrong.extend(extra.map(|name| format!("{what} {name} is ours only")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{}", ours.count());
}

#[test]
fn differences_that_are_excused_exist() {
    let Some(theirs) = newest() else { return };
    let ours = ours();
    for (name, _) in OURS {
        assert!(
            ours.functions.contains_key(*name) && !theirs.functions.contains_key(*name),
            "{name}"
        );
    }
}
