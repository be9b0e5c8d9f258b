//! Permitted imports between folders of the front-end, permitted dependencies between crates, and
//! permitted places of unsafe code (docs/design/architecture.md, CONTRIBUTING.md): imports go one
//! way.
//!
//! Map of this file: imports of librdmacm and of the front-end; dependencies of crates; places of
//! unsafe code; imports of the wire between hosts; circles of imports and of calls.

#[path = "arrows/calls.rs"]
mod calls;
mod files;
#[path = "arrows/imports.rs"]
mod imports;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of `src/`, and the further folders that it may import. A folder without a row may
/// import nothing.
const ARROWS: [(&str, &[&str]); 5] = [
    ("export", &["verbs", "kabi", "front", "sys"]),
    ("verbs", &["front", "sys"]),
    ("kabi", &["front", "sys"]),
    ("front", &["sys"]),
    ("sys", &[]),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = files::below(folder, |_| false);
    found.retain(|file| files::ends_in(file, &["rs"]));
    found
}

/// The first names behind every `crate::` of a file, comments left out.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split("crate::").skip(1)).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        rest.get(..end).filter(|name| !name.is_empty())
    })
}

/// Folders of librdmacm, the lowest first. A folder may import itself and the folders before.
const CM_FLOORS: [&str; 6] = ["sys", "host", "core", "kernel", "calls", "rsocket"];

#[test]
fn the_floors_of_librdmacm_import_one_way() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("rdmacm/src");
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (index, floor) in CM_FLOORS.iter().enumerate() {
        for file in sources(&src.join(floor)) {
            let text = fs::read_to_string(&file).expect("a source file");
            let file = file.strip_prefix(&src).expect("below src").display().to_string();
            for name in named(&text) {
                seen += 1;
                if !CM_FLOORS.iter().take(index + 1).any(|allowed| *allowed == name) {
                    wrong.push(format!("{file} imports {name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "against the arrows: {wrong:#?}");
    assert!(seen > 100, "only {seen} imports found: does this test still read them?");
}

/// The floor of librdmacm for the other processes of the host is a pure state machine: it makes no
/// system call, and reads no clock.
#[test]
fn the_host_floor_of_librdmacm_is_pure() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("rdmacm/src/host");
    let files = sources(&src);
    assert!(files.len() > 7, "only {} files: is the floor elsewhere?", files.len());
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        for name in named(&text) {
            assert_eq!(name, "host", "{} imports {name}", file.display());
        }
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            let outside =
                ["Instant", "SystemTime", "Socket", "std::os", "std::fs", "libc", "rustix"];
            let word = outside.iter().find(|word| line.contains(**word));
            assert!(word.is_none(), "{}: {line}", file.display());
        }
    }
}

#[test]
fn the_folders_of_the_front_end_import_one_way() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (folder, allowed) in ARROWS {
        for file in sources(&src.join(folder)) {
            let text = fs::read_to_string(&file).expect("a source file");
            let file = file.strip_prefix(&src).expect("below src").display().to_string();
            for name in named(&text) {
                seen += 1;
                if name != folder && !allowed.contains(&name) {
                    wrong.push(format!("{file} imports {name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "against the arrows: {wrong:#?}");
    assert!(seen > 200, "only {seen} imports found: does this test still read them?");
}

/// Crates by folder, and the permitted dependencies of each in this repository. A crate without a
/// row may have none.
const CRATES: [(&str, &[&str]); 22] = [
    ("netlink", &["cface"]),
    ("providers/soft/sys", &["cface"]),
    ("providers/soft/memory", &["cface", "soft-sys"]),
    ("providers/soft/local", &["cface", "soft-sys", "soft-memory"]),
    ("providers/soft/semantics", &["abi"]),
    ("providers/soft/roce", &[]),
    ("providers/soft/net", &[]),
    ("providers/soft/loom", &[]),
    // The attacker of the hostile tests.
    ("providers/soft/hostile", &["abi", "soft-sys", "soft-local"]),
    ("providers/emulated/commands", &["abi"]),
    ("providers/emulated/efa", &["ferroverbs-emulated-commands"]),
    ("providers/emulated/memory", &["abi", "ferroverbs-emulated-commands"]),
    ("providers/emulated/mlx5", &["abi", "ferroverbs-emulated-commands", "soft-semantics"]),
    ("rdmacm", &["abi", "cface", "ferroverbs-cm", "netlink", "provider-loader"]),
    ("rdmacm/preload", &["cface"]),
    ("rdmacm/proto", &[]),
    ("layers/records", &["abi"]),
    // The layer's packets are those of the wire between hosts.
    ("layers/capture", &["abi", "cface", "layer-records", "layer-tap", "roce"]),
    ("layers/tap", &["abi", "cface", "layer-records"]),
    ("layers/stats", LAYER),
    ("layers/trace", LAYER),
    ("layers/validate", LAYER),
];

/// The dependencies of a recording layer.
const LAYER: &[&str] = &["abi", "cface", "layer-records", "layer-tap"];

/// The crates in the list without unsafe code.
const SAFE: [&str; 7] = [
    "netlink",
    "providers/emulated/commands",
    "providers/emulated/efa",
    "providers/emulated/mlx5",
    "providers/soft/semantics",
    "providers/soft/roce",
    "rdmacm/proto",
];

/// The crates of this repository among the dependencies of a manifest.
fn stands_on(manifest: &str) -> Vec<&str> {
    let Some(begin) = manifest.find("[dependencies]") else { return vec![] };
    let own = |name: &&str| {
        matches!(*name, "abi" | "cface" | "netlink" | "roce" | "provider-loader")
            || ["soft-", "layer-", "emulated-", "ferroverbs"]
                .iter()
                .any(|of_ours| name.starts_with(of_ours))
    };
    let lines = manifest[begin..].lines().skip(1).take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| line.split(['.', ' ', '=']).next()).filter(own).collect()
}

/// Folders of libraries below `folder`, as `CRATES` names them.
fn libraries(root: &Path, folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(folder)).expect("a folder of ours").flatten() {
        if entry.path().join("Cargo.toml").exists() {
            found.push(format!("{folder}/{}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

#[test]
fn libraries_stand_on_each_other_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec!["netlink".to_owned(), "rdmacm".to_owned()];
    for folder in ["providers/soft", "providers/emulated", "rdmacm", "layers"] {
        folders.extend(libraries(root, folder));
    }
    folders.sort();
    let mut known: Vec<_> = CRATES.map(|(folder, _)| folder.to_owned()).into();
    known.sort();
    assert_eq!(folders, known, "a crate is missing in the list of this test");
    for (folder, allowed) in CRATES {
        let manifest = root.join(folder).join("Cargo.toml");
        let text = fs::read_to_string(&manifest).expect("a manifest");
        for name in stands_on(&text) {
            assert!(allowed.contains(&name), "{} stands on {name}", manifest.display());
        }
    }
    let plugin = fs::read_to_string(root.join("providers/soft/Cargo.toml")).expect("a manifest");
    assert!(stands_on(&plugin).contains(&"soft-local"), "does this test still read manifests?");
}

/// Folders and files of the plugin with unsafe code. Access to an application's bytes is in
/// `memory`; these files guarantee the validity of a range, a mapped segment or a C object.
const UNSAFE: [&str; 15] = [
    "ops/",
    "engine/tests",
    "engine/verbs_cell.rs",
    "engine/keys/access.rs",
    "engine/keys/imported.rs",
    "engine/keys/regions.rs",
    "engine/queues/inbound.rs",
    "engine/queues/qp/send_requests.rs",
    "engine/ring/helper.rs",
    "engine/ring/mapped.rs",
    "engine/ring/onesided.rs",
    "engine/ring/runs.rs",
    "adapter.rs",
    "packet_sink.rs",
    "probes.rs",
];

/// Files of librdmacm that have unsafe code, below `rdmacm/src`. `calls` and
/// `rsocket/entry.rs` convert the pointers of programs.
const CM_UNSAFE: [&str; 20] = [
    "calls/channel.rs",
    "calls/connect.rs",
    "calls/ep.rs",
    "calls/id.rs",
    "calls/info.rs",
    "calls/multicast.rs",
    "calls/options.rs",
    "calls/qp.rs",
    "calls/resolve.rs",
    "core/c_objects.rs",
    "kernel/command.rs",
    "layers.rs",
    "rsocket/entry.rs",
    "rsocket/vector.rs",
    "sys/address.rs",
    "sys/descriptors.rs",
    "sys/objects.rs",
    "sys/process.rs",
    "sys/processes.rs",
    "sys/verbs.rs",
];

/// Files of the other crates that have unsafe code: the preloaded library stands in for functions
/// of libc, and the commands make system calls that no library has.
const UNSAFE_OTHERS: [(&str, &[&str]); 3] = [
    (
        "rdmacm/preload",
        &["calls.rs", "epoll.rs", "forking.rs", "real.rs", "table.rs", "waiting.rs"],
    ),
    (
        "cli",
        &[
            "cluster/host.rs",
            "cluster/mod.rs",
            "cluster/namespaces.rs",
            "cluster/shell.rs",
            "cluster/switch.rs",
            "doctor/cross_memory.rs",
            "nodes.rs",
            "tree/keeper.rs",
            "tree/library.rs",
            "tree/namespaces.rs",
        ],
    ),
    ("xtask", &["clean/room.rs", "process.rs"]),
];

/// Files of the layers that have unsafe code. The entry points of all layers are in `tap`. In
/// `validate`, `lib.rs` exports the layer, `native.rs` asks the system and `provider.rs` the
/// provider. The rest are records of objects and pure checks.
const UNSAFE_LAYERS: [(&str, &[&str]); 6] = [
    ("records", &[]),
    ("capture", &["lib.rs", "line.rs", "memory.rs", "rest.rs", "wire.rs", "writer.rs"]),
    ("stats", &["lib.rs", "page.rs"]),
    (
        "tap",
        &[
            "argument.rs",
            "builder.rs",
            "clock.rs",
            "cm.rs",
            "control.rs",
            "cq_ex.rs",
            "data.rs",
            "file.rs",
            "judged.rs",
            "lib.rs",
            "life.rs",
            "plugin.rs",
            "qp.rs",
            "requests.rs",
            "spin.rs",
            "table.rs",
        ],
    ),
    ("trace", &["lib.rs", "recorder.rs"]),
    ("validate", &["lib.rs", "native.rs", "provider.rs"]),
];

/// Checks that files of `folder` have unsafe code in these places only, and in each of them.
fn check_unsafe_code(folder: &str, places: &[&str]) {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut used = vec![false; places.len()];
    for file in sources(&src) {
        let text = fs::read_to_string(&file).expect("a source file");
        let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let is_unsafe = lines.any(|line| {
            ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|word| line.contains(word))
        });
        let name = file.strip_prefix(&src).expect("below src").display().to_string();
        match places.iter().position(|place| name.starts_with(place)) {
            Some(place) => used[place] |= is_unsafe,
            None => assert!(!is_unsafe, "{folder}/{name} has unsafe code"),
        }
    }
    for (place, used) in places.iter().zip(used) {
        assert!(used, "{folder}/{place} has no unsafe code any more: take it off the list");
    }
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in SAFE {
        let text = fs::read_to_string(root.join(folder).join("src/lib.rs")).expect("a library");
        assert!(text.contains("\n#![forbid(unsafe_code)]\n"), "{folder} forbids unsafe code");
    }
    check_unsafe_code("providers/soft/src", &UNSAFE);
    check_unsafe_code("rdmacm/src", &CM_UNSAFE);
    for (of, places) in UNSAFE_OTHERS {
        check_unsafe_code(&format!("{of}/src"), places);
    }
    for (layer, places) in UNSAFE_LAYERS {
        check_unsafe_code(&format!("layers/{layer}/src"), places);
    }
    let checks = root.join("layers/validate/src/checks.rs");
    let text = fs::read_to_string(&checks).expect("the pure checks");
    assert!(text.contains("\n#![forbid(unsafe_code)]\n"), "checks.rs forbids unsafe code");
}

/// What the wire between hosts may import of the engine: who serves, a plain value.
const HOST_IMPORTS: &str = "crate::engine::queues::served_by::";

#[test]
fn the_wire_between_hosts_imports_no_queue() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("providers/soft/src");
    let files = sources(&src.join("host"));
    assert!(files.len() > 20, "only {} files: is the wire elsewhere?", files.len());
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let is_allowed = !line.contains("crate::engine") || line.contains(HOST_IMPORTS);
            assert!(is_allowed, "{}: {line}", file.display());
        }
    }
}

/// Files of `providers/soft/src/engine` with the fields of objects that refer to each other. They
/// may import each other across folders; no other file is in their circle.
const FIELDS_OF_OBJECTS: [&str; 10] = [
    "adapter/mod.rs",
    "adapter/registry.rs",
    "adapter/service.rs",
    "queues/channel/mod.rs",
    "queues/cq/mod.rs",
    "queues/qp/mod.rs",
    "queues/srq/mod.rs",
    "queues/wq/mod.rs",
    "ring/mod.rs",
    "xrc/mod.rs",
];

/// Whether a file has fields of objects that refer to each other.
fn has_fields_of_objects(file: &Path) -> bool {
    let name = file.display().to_string();
    let inside = name.split_once("providers/soft/src/engine/").map(|(_, inside)| inside);
    inside.is_some_and(|inside| FIELDS_OF_OBJECTS.contains(&inside))
}

/// A folder of the engine of soft, and the folders that its methods may use, by imports or calls.
/// A list only shrinks: a wire that uses no other wire, and queues that use no wire, are the aim.
const ENGINE_ARROWS: [(&str, &[&str]); 9] = [
    ("adapter", &["faults"]),
    ("queues", &["adapter", "keys", "ring", "xrc", "datagram", "frames", "faults", "host_qp"]),
    ("keys", &["queues", "datagram"]),
    ("ring", &["queues", "keys", "xrc", "datagram", "faults", "host_qp"]),
    ("xrc", &["queues", "ring", "datagram", "host_qp"]),
    ("datagram", &["queues", "keys", "ring", "xrc", "frames", "host_qp"]),
    ("frames", &["queues", "keys", "ring", "datagram"]),
    ("faults", &["adapter", "queues", "ring", "xrc"]),
    ("host_qp", &["queues", "keys", "ring", "xrc", "datagram"]),
];

#[test]
fn the_folders_of_the_engine_use_each_other_as_listed() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("providers/soft/src");
    let engine = src.join("engine");
    let mut uses = imports::Imports::of(&src);
    calls::follow(&mut uses, &BTreeSet::new());
    let folder = |file: &Path| {
        let inside = file.strip_prefix(&engine).ok()?;
        let name = inside.components().next()?.as_os_str().to_str()?.to_owned();
        (inside.components().count() > 1).then_some(name)
    };
    let (mut wrong, mut used) = (BTreeSet::new(), BTreeSet::new());
    for ((from, to), names) in &uses.arrows {
        let (from, to) = (&uses.files[*from], &uses.files[*to]);
        let (Some(user), Some(of)) = (folder(from), folder(to)) else { continue };
        if user == of || has_fields_of_objects(from) || has_fields_of_objects(to) {
            continue;
        }
        let allowed = ENGINE_ARROWS.iter().find(|(name, _)| *name == user);
        if allowed.is_none_or(|(_, others)| !others.contains(&&*of)) {
            wrong.insert(format!("{user} -> {of}: {} uses {names:?}", from.display()));
        }
        used.insert((user, of));
    }
    for (user, others) in ENGINE_ARROWS {
        for of in others {
            let is_used = used.contains(&(user.to_owned(), (*of).to_owned()));
            assert!(is_used, "{user} uses {of} no more: take it off the list");
        }
    }
    assert!(wrong.is_empty(), "against the arrows: {wrong:#?}");
}

/// The greatest number of files in a circle of imports: of soft, of librdmacm, and of the layers.
const CIRCLE: usize = 10;
const CM_CIRCLE: usize = 13;
const LAYER_CIRCLES: [(&str, usize); 6] =
    [("capture", 2), ("records", 5), ("stats", 1), ("tap", 6), ("trace", 1), ("validate", 1)];

#[test]
fn no_circle_of_imports_crosses_a_folder_or_is_large() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let providers = root.join("providers");
    let mut wrong = String::new();
    let mut seen = 0;
    let libraries: Vec<_> =
        sources(&providers).into_iter().filter(|path| path.ends_with("src/lib.rs")).collect();
    assert!(libraries.len() > 5, "only {} libraries: are they elsewhere?", libraries.len());
    let crates = libraries.iter().filter_map(|file| Some((file.parent()?.to_owned(), CIRCLE)));
    let layers =
        LAYER_CIRCLES.map(|(layer, limit)| (root.join("layers").join(layer).join("src"), limit));
    let others = layers.into_iter().chain([(root.join("rdmacm/src"), CM_CIRCLE)]);
    for (src, limit) in crates.chain(others) {
        let imports = imports::Imports::of(&src);
        let name = |file: usize| {
            imports.files[file].strip_prefix(root).expect("below the root").display().to_string()
        };
        seen += imports.arrows.len();
        for circle in imports.circles() {
            let folder = imports.files[circle[0]].parent();
            let crosses = circle.iter().any(|&file| imports.files[file].parent() != folder);
            let is_of_objects =
                circle.iter().all(|&file| has_fields_of_objects(&imports.files[file]));
            if circle.len() <= limit && (!crosses || is_of_objects) {
                continue;
            }
            wrong += &format!("\n{} files import each other in a circle:\n", circle.len());
            for ((from, to), paths) in &imports.arrows {
                if circle.contains(from) && circle.contains(to) {
                    wrong += &format!("  {} -> {}: {paths:?}\n", name(*from), name(*to));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(seen > 300, "only {seen} imports found: does this test still read them?");
}
/// The greatest number of files in a circle of imports and calls, of crates with more than
/// [`SMALL_CIRCLE`]. A limit only falls.
const CALL_CIRCLES: [(&str, usize); 9] = [
    // The front-end.
    ("", 8),
    ("headers", 4),
    ("layers/records", 5),
    ("layers/tap", 6),
    ("providers/soft", 10),
    ("providers/soft/local", 8),
    ("rdmacm", 13),
    ("rdmacm/preload", 4),
    ("rdmacm/proto", 6),
];
const SMALL_CIRCLE: usize = 3;

/// Folders without a library of the product. `abi` has no functions, only types.
const NO_PRODUCT: [&str; 5] = ["fuzz", "abi", "bench", "system-tests", "xtask"];

/// The `src` folder of each library below `folder`.
fn library_sources(folder: &Path) -> Vec<PathBuf> {
    let is_other = |path: &Path| NO_PRODUCT.iter().any(|other| path.ends_with(other));
    let mut found = files::below(folder, is_other);
    found.retain(|file| file.ends_with("src/lib.rs"));
    found.iter().filter_map(|file| Some(file.parent()?.to_owned())).collect()
}

#[test]
fn no_circle_of_calls_is_larger_than_it_was() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = library_sources(root);
    assert!(sources.len() > 15, "only {} libraries: are they elsewhere?", sources.len());
    let mut crates: Vec<_> = sources.iter().map(|src| imports::Imports::of(src)).collect();
    let names: Vec<BTreeSet<String>> =
        crates.iter().map(|of| calls::defined(of).into_keys().collect()).collect();
    let (mut wrong, mut followed) = (String::new(), 0);
    for (at, src) in sources.iter().enumerate() {
        let others = names.iter().enumerate().filter(|(other, _)| *other != at);
        let elsewhere: BTreeSet<_> = others.flat_map(|(_, names)| names.clone()).collect();
        followed += calls::follow(&mut crates[at], &elsewhere);
        let folder = src.parent().and_then(|folder| folder.strip_prefix(root).ok());
        let folder = folder.expect("below the root").display().to_string();
        let limit = CALL_CIRCLES.iter().find(|(name, _)| *name == folder);
        let limit = limit.map_or(SMALL_CIRCLE, |(_, limit)| *limit);
        let largest = crates[at].circles().into_iter().max_by_key(Vec::len).unwrap_or_default();
        if largest.len() > limit {
            let files =
                largest.iter().filter_map(|file| crates[at].files[*file].strip_prefix(src).ok());
            let files: Vec<_> = files.map(|file| file.display().to_string()).collect();
            wrong += &format!(
                "\n{folder}: {} files call each other in a circle, at most {limit} may: {files:?}",
                files.len()
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(followed > 1000, "only {followed} calls found: does this test still read them?");
}

/// The greatest number of fields of a structure. `abi` has the layouts of C.
const FIELDS: usize = 20;

/// Structures with more fields, and their number. A limit only falls.
const MANY_FIELDS: [(&str, &str, usize); 5] = [
    ("layers/validate/src/checks/change.rs", "QpChange", 22),
    ("layers/validate/src/state.rs", "Qp", 29),
    ("providers/soft/roce/src/engine/counters.rs", "Counters", 26),
    ("rdmacm/proto/src/wire/request.rs", "Request", 25),
    ("rdmacm/src/core/id.rs", "RdmaIdState", 25),
];

#[test]
fn no_structure_has_many_fields() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in library_sources(root).iter().flat_map(|src| sources(src)) {
        let text = fs::read_to_string(&path).expect("a source file");
        let code = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = path.strip_prefix(root).expect("below the root").display().to_string();
        for item in code.items {
            let syn::Item::Struct(item) = item else { continue };
            let (name, count) = (item.ident.to_string(), item.fields.len());
            let exception = MANY_FIELDS.iter().find(|(place, of, _)| *place == file && name == *of);
            seen += 1;
            if count > exception.map_or(FIELDS, |(_, _, limit)| *limit) {
                wrong.push(format!("{file}: {name} has {count} fields"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen > 500, "only {seen} structures found: does this test still read them?");
}

/// The greatest number of fields of the structures in [`OWNERS`].
const FIELDS_OF_OWNERS: usize = 16;

/// Structures of `providers/soft/src/engine` whose fields other files do not see; `true`: the files
/// of the engine see them, and no others.
const OWNERS: [(&str, &str, bool); 5] = [
    ("adapter/registry.rs", "Registry", false),
    ("adapter/service.rs", "Service", false),
    ("queues/qp/mod.rs", "Qp", false),
    ("queues/qp/mod.rs", "Requester", true),
    ("ring/mod.rs", "RingSender", true),
];

#[test]
fn the_large_objects_of_soft_own_their_fields() {
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("providers/soft/src/engine");
    for (file, name, is_seen_in_engine) in OWNERS {
        let text = fs::read_to_string(engine.join(file)).expect("a source file");
        let code = syn::parse_file(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
        let owner = code.items.into_iter().find_map(|item| match item {
            syn::Item::Struct(item) if item.ident == name => Some(item),
            _ => None,
        });
        let owner = owner.unwrap_or_else(|| panic!("{file} has no {name}"));
        let count = owner.fields.len();
        assert!(count <= FIELDS_OF_OWNERS, "{file}: {name} has {count} fields");
        for field in &owner.fields {
            let is_own = match &field.vis {
                syn::Visibility::Inherited => true,
                syn::Visibility::Restricted(of) => is_seen_in_engine && !of.path.is_ident("crate"),
                syn::Visibility::Public(_) => false,
            };
            let field = field.ident.as_ref().expect("a name");
            assert!(is_own, "{file}: other files see {name}.{field}");
        }
    }
}
