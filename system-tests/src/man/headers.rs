//! The headers that manual pages are compared with: the system's, and ours where there are any.

use super::declarations::{Declarations, declarations, tokens};
use crate::Bench;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::process::Job;

/// One set of headers.
#[derive(Debug)]
pub(super) struct Headers {
    pub(super) name: String,
    /// A folder to look in before the system's.
    folder: Option<PathBuf>,
    /// The newest interface: a page shows exactly its members.
    pub(super) newest: bool,
    /// Functions and function-like macros for programs.
    pub(super) functions: BTreeSet<String>,
    pub(super) declarations: Declarations,
    /// Names that are aliases: `ibv_flow_action_esp` for the kernel's.
    renames: BTreeMap<String, String>,
    /// Every word of the headers and of errno.h, for constants.
    pub(super) words: BTreeSet<String>,
}

/// Headers that programs include.
const WANTED: &[&str] = &[
    "infiniband/verbs.h",
    "infiniband/sa.h",
    "infiniband/tm_types.h",
    "rdma/rdma_verbs.h",
    "rdma/rsocket.h",
    "infiniband/ferroverbs_plugin.h",
];
const SYSTEM: &str = "/usr/include";

impl Headers {
    /// The system's first, then ours.
    pub(super) fn all(bench: &Bench) -> crate::Result<Vec<Self>> {
        let mut sets = vec![Self::read(bench, "the installed headers", None, false)?];
        let ours = bench.paths.root.join("include");
        if ours.join("infiniband/verbs.h").is_file() {
            sets.push(Self::read(bench, "our headers", Some(ours), true)?);
        }
        Ok(sets)
    }

    fn read(
        bench: &Bench,
        name: &str,
        folder: Option<PathBuf>,
        newest: bool,
    ) -> crate::Result<Self> {
        let mut set = Self {
            name: name.to_string(),
            folder,
            newest,
            functions: BTreeSet::new(),
            declarations: Declarations::new(),
            renames: BTreeMap::new(),
            words: BTreeSet::new(),
        };
        let source = bench.scratch.fresh("headers").with_extension("c");
        let lines: String =
            WANTED.iter().filter(|h| set.has(h)).map(|h| format!("#include <{h}>\n")).collect();
        fs::write(&source, format!("#include <errno.h>\n{lines}")).map_err(|e| e.to_string())?;
        let run = |args: &[&str]| {
            let done = set
                .compiler()
                .args(args)
                .arg(&source)
                .run(&bench.scratch, Duration::from_secs(60))?;
            if done.ok() { Ok(done.stdout) } else { Err(done.report("the preprocessor")) }
        };
        let (text, macros) = (run(&["-E", "-P"])?, run(&["-E", "-dM"])?);
        set.declarations = declarations(&text, &BTreeMap::new());
        set.functions = called(&text).into_iter().filter(|n| !n.starts_with('_')).collect();
        let functions = macros
            .lines()
            .filter_map(|l| l.strip_prefix("#define ")?.split_once('('))
            .map(|(name, _)| name);
        let ours = |n: &&str| ["ibv_", "verbs_", "vext_"].iter().any(|p| n.starts_with(p));
        set.functions.extend(functions.filter(ours).map(str::to_string));
        set.renames = macros
            .lines()
            .filter_map(|l| l.strip_prefix("#define ")?.split_once(' '))
            .filter(|(old, new)| words(old).contains(*old) && words(new).contains(*new))
            .map(|(old, new)| (old.to_string(), new.to_string()))
            .collect();
        set.words = words(&text);
        set.words.extend(words(&macros));
        Ok(set)
    }

    /// The declarations of a page, with the names after preprocessing.
    pub(super) fn shown(&self, text: &str) -> Declarations {
        declarations(text, &self.renames)
    }

    /// Whether the header exists.
    pub(super) fn has(&self, header: &str) -> bool {
        let folders = self.folder.iter().map(PathBuf::as_path).chain([Path::new(SYSTEM)]);
        folders.into_iter().any(|f| f.join(header).is_file())
    }

    /// A compiler job with these headers; warnings are errors.
    pub(super) fn compiler(&self) -> Job {
        let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let job = Job::new(cc).args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-array-parameter",
        ]);
        match &self.folder {
            Some(folder) => job.arg("-I").arg(folder),
            None => job,
        }
    }
}

/// Whether a name belongs to the functions that pages describe.
fn is_ours(name: &str) -> bool {
    let begins = ["ibv_", "verbs_", "mult_to_ibv", "mbps_to_ibv", "rdma_"];
    // What the inline functions of rdma_verbs.h are made of has no page of upstream's either.
    begins.iter().any(|p| name.starts_with(p)) && name != "rdma_seterrno"
        || RSOCKETS.contains(&name)
}

/// Sockets' functions with an `r` in front.
const RSOCKETS: &[&str] = &[
    "raccept",
    "rbind",
    "rclose",
    "rconnect",
    "repoll_create",
    "repoll_ctl",
    "repoll_wait",
    "rfcntl",
    "rgetpeername",
    "rgetsockname",
    "rgetsockopt",
    "riomap",
    "riounmap",
    "riowrite",
    "rlisten",
    "rpoll",
    "rread",
    "rreadv",
    "rrecv",
    "rrecvfrom",
    "rrecvmsg",
    "rselect",
    "rsend",
    "rsendmsg",
    "rsendto",
    "rsetsockopt",
    "rshutdown",
    "rsocket",
    "rwrite",
    "rwritev",
];

/// Verbs and functions of librdmacm that a text calls or declares.
pub(super) fn called(text: &str) -> BTreeSet<String> {
    let tokens = tokens(text);
    let mut found = BTreeSet::new();
    // A tag before a function pointer is no function: `enum ibv_wc_opcode (*read_opcode)(...)`.
    let tag = |at: usize| {
        at > 0
            && ["enum", "struct", "union"]
                .iter()
                .any(|k| tokens.get(at - 1).is_some_and(|t| t == k))
    };
    for (at, two) in tokens.windows(2).enumerate() {
        if let [name, open] = two
            && open == "("
            && !tag(at)
            && is_ours(name)
        {
            found.insert(name.clone());
        }
    }
    found
}

/// All words of a text.
pub(super) fn words(text: &str) -> BTreeSet<String> {
    let split = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    split.filter(|w| !w.is_empty()).map(str::to_string).collect()
}
