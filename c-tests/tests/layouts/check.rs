//! One comparison by ctest: generates both halves, compiles and runs them.

use crate::{root, scratch};
use ctest::TestGenerator;
use ferroverbs_headers::{names, rust};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether C's headers are of the crate's release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderRelease {
    /// All types of the crate must exist.
    Same,
    /// Newer types are absent, and [`GROWN`] were smaller.
    Older,
}

/// The two sides of a comparison.
pub(crate) struct Check<'a> {
    pub(crate) name: &'static str,
    pub(crate) headers: &'static [&'static str],
    /// In front of the system's headers.
    pub(crate) include: Option<&'a Path>,
    pub(crate) modules: &'static [&'static str],
}

/// The result of a comparison.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Comparisons that ctest made.
    pub(crate) compared: usize,
    /// Items that an older header does not have.
    pub(crate) missing: usize,
}

/// Structures that grew after the releases of Debian 12, with their new members.
const GROWN: &[(&str, &[&str])] = &[
    ("ibv_port_attr", &["active_speed_ex"]),
    ("ibv_qp_ex", &["wr_flush"]),
    (
        "verbs_context",
        &[
            "free_buf",
            "alloc_buf",
            "dm_export_dmabuf_fd",
            "reg_mr_ex",
            "dealloc_dmah",
            "alloc_dmah",
        ],
    ),
    ("ib_uverbs_query_port_resp_ex", &["reserved", "active_speed_ex"]),
];

/// Items of the modules that C does not have under that name, each with the reason.
const NOT_IN_C: &[(&str, &str)] = &[
    ("compat_fn", "C writes the type out"),
    ("compat_ibv_port_attr", "only declared, as _compat_ibv_port_attr"),
    ("verbs_ex_private", "only declared"),
    ("ibv_buf", "only declared in public; tables.rs compares its members"),
    ("ibv_gid_type_sysfs", "driver side; tables.rs compares it"),
    ("IBV_GID_TYPE_SYSFS_IB_ROCE_V1", "driver side"),
    ("IBV_GID_TYPE_SYSFS_ROCE_V2", "driver side"),
    ("VERBS_ABI_IS_EXTENDED", "a pointer in C, __VERBS_ABI_IS_EXTENDED"),
    ("IBV_ALLOCATOR_USE_DEFAULT", "a pointer in C"),
    ("IBV_DEVICE_FLUSH_GLOBAL", "the kernel's IB_UVERBS_DEVICE_FLUSH_GLOBAL"),
    ("IBV_DEVICE_FLUSH_PERSISTENT", "the kernel's IB_UVERBS_DEVICE_FLUSH_PERSISTENT"),
    ("IBV_DEVICE_ATOMIC_WRITE", "the kernel's IB_UVERBS_DEVICE_ATOMIC_WRITE"),
    ("ex_hdr", "driver side; tables.rs compares it"),
    ("ibv_command_buffer", "driver side; tables.rs compares it"),
    ("ibv_kern_ipv4_filter", "driver side; tables.rs compares it"),
    ("ibv_kern_spec_ipv4", "driver side; tables.rs compares it"),
    ("ib_uverbs_modify_srq_v3", "an old kernel's; tables.rs compares it"),
    ("IB_USER_VERBS_CMD_CREATE_QP_V3", "the number is CREATE_QP's"),
    ("IB_USER_VERBS_CMD_CREATE_QP_V4", "the number is CREATE_QP's"),
    ("IB_USER_VERBS_CMD_CREATE_SRQ_V5", "the number is CREATE_SRQ's"),
    ("IB_USER_VERBS_CMD_MODIFY_SRQ_V3", "the number is MODIFY_SRQ's"),
    ("CMD_BUFFER_ERROR", "a bit field in C"),
    ("CMD_FALLBACK_IOCTL_ONLY", "a bit field in C"),
    ("CMD_FALLBACK_REQUIRE_EX", "a bit field in C"),
    ("UHW_NO_INDEX", "driver side"),
    ("write_fallback", "driver side"),
    ("ERROR", "driver side"),
    ("SUCCESS", "driver side"),
    ("TRY_WRITE", "driver side"),
    ("TRY_WRITE_EX", "driver side"),
    ("ibv_dmabuf_heap", "driver side, only declared"),
    ("rdma_cm_event_param", "a union without a name"),
    ("rdma_ucm_event_resp_param", "a union without a name"),
    ("ib_uverbs_clock_info", "a page of mlx5's, in no header of the verbs"),
];

/// Stand-ins for types of the C library with equal size and alignment on this architecture, and for
/// a table that a macro makes, which ctest does not expand (tests/plugin_header.rs compares the
/// table with the header).
const LIBC: &str = "
pub type ssize_t = isize;
pub type dev_t = u64;
pub type off_t = i64;
#[repr(C)] #[derive(Clone, Copy)] pub struct pthread_mutex_t { opaque: [u64; 5] }
#[repr(C)] #[derive(Clone, Copy)] pub struct pthread_cond_t { opaque: [u64; 6] }
pub type socklen_t = u32;
#[repr(C)] #[derive(Clone, Copy)] pub struct sockaddr { opaque: [u16; 8] }
#[repr(C)] #[derive(Clone, Copy)] pub struct sockaddr_in6 { opaque: [u32; 7] }
#[repr(C)] #[derive(Clone, Copy)] pub struct sockaddr_storage { opaque: [u64; 16] }
#[repr(C)] #[derive(Clone, Copy)] pub struct timespec { tv_sec: c_long, tv_nsec: c_long }
#[repr(C)] #[derive(Clone, Copy)] pub struct ferroverbs_cm_calls { opaque: [usize; 41] }
";

/// Names of the crate for types that C spells out.
const ALIASES: &str = "typedef void *(*compat_fn)(void);\n";

impl Check<'_> {
    /// Panics with ctest's report when anything differs.
    pub(crate) fn run(&self, against: HeaderRelease) -> Outcome {
        let folder = scratch().join(format!("ctest-{}", self.name));
        fs::create_dir_all(&folder).expect("cargo's folder is writable");
        let (text, modules) = rust::flat(&root().join("abi/src")).expect("the crate can be read");
        let source = folder.join("abi.rs");
        fs::write(&source, format!("{text}{LIBC}")).expect("cargo's folder is writable");

        let wanted: BTreeSet<String> = self
            .modules
            .iter()
            .flat_map(|module| modules.get(*module).cloned().unwrap_or_default())
            .collect();
        assert!(wanted.len() > 50, "the modules have moved");
        let there = self.identifiers(&folder);
        let absent: BTreeSet<String> = wanted
            .iter()
            .filter(|name| !there.contains(*name) && !names::IN_PLACE.contains(&name.as_str()))
            .filter(|name| !NOT_IN_C.iter().any(|(other, _)| other == name))
            .cloned()
            .collect();
        if against == HeaderRelease::Same {
            // Debian's kernel headers are older than rdma-core's own kernel headers, which are not
            // installed.
            let absent: Vec<_> =
                absent.iter().filter(|name| !name.to_lowercase().contains("comp_cntr")).collect();
            assert!(absent.is_empty(), "{}: C has no {absent:?}", self.name);
        }
        let enums = self.enums(&folder);
        let not_in_c = |name: &str| NOT_IN_C.iter().any(|(other, _)| *other == name);
        let wanted: BTreeSet<String> =
            wanted.difference(&absent).filter(|name| !not_in_c(name)).cloned().collect();
        self.generate(&folder, &source, against, wanted, enums);
        let compared = self.compile_and_run(&folder, &source);
        Outcome { compared, missing: absent.len() }
    }

    /// All words of the preprocessed headers, macros too.
    fn identifiers(&self, folder: &Path) -> BTreeSet<String> {
        let text = self.preprocess(folder, &["-E", "-dD", "-P"]);
        let word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        text.split(word).map(str::to_owned).collect()
    }

    /// Names with the tag `enum`.
    fn enums(&self, folder: &Path) -> BTreeSet<String> {
        let text = self.preprocess(folder, &["-E", "-P"]);
        let words: Vec<_> = text.split_whitespace().collect();
        let mut names: BTreeSet<_> = words
            .windows(2)
            .filter(|pair| pair[0] == "enum")
            .map(|pair| pair[1].to_owned())
            .collect();
        // A macro for the kernel's.
        names.insert("ibv_advise_mr_advice".into());
        names
    }

    fn preprocess(&self, folder: &Path, arguments: &[&str]) -> String {
        let source = folder.join("headers.c");
        let text: String =
            self.headers.iter().map(|header| format!("#include <{header}>\n")).collect();
        fs::write(&source, text).expect("cargo's folder is writable");
        run(Command::new("gcc").args(arguments).args(self.include_flag()).arg(&source))
    }

    fn include_flag(&self) -> Vec<String> {
        // As the system's headers are: their warnings do not count.
        self.include
            .iter()
            .flat_map(|path| ["-isystem".to_owned(), path.display().to_string()])
            .collect()
    }

    fn generate(
        &self,
        folder: &Path,
        source: &Path,
        against: HeaderRelease,
        wanted: BTreeSet<String>,
        enums: BTreeSet<String>,
    ) {
        let mut generator = TestGenerator::new();
        generator
            .target(&format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
            .out_dir(folder)
            .edition(2024);
        for header in self.headers {
            generator.header(header);
        }
        fs::write(folder.join("aliases.h"), ALIASES).expect("cargo's folder is writable");
        generator.header("aliases.h");
        let is_enum = enums.clone();
        generator.alias_is_c_enum(move |name| is_enum.contains(name));
        let of = |set: &BTreeSet<String>| set.clone();
        let (structs, unions, aliases, constants, c_enums) =
            (of(&wanted), of(&wanted), of(&wanted), of(&wanted), of(&wanted));
        let place = |name: &str| names::IN_PLACE.contains(&name) || names::WRAPPED.contains(&name);
        generator.skip_struct(move |s| {
            let grown =
                against == HeaderRelease::Older && GROWN.iter().any(|(name, _)| *name == s.ident());
            !structs.contains(s.ident()) || place(s.ident()) || grown
        });
        generator.skip_union(move |u| !unions.contains(u.ident()) || place(u.ident()));
        generator.skip_alias(move |a| !aliases.contains(a.ident()));
        generator.skip_c_enum(move |name| !c_enums.contains(name));
        generator.skip_const(move |c| !constants.contains(c.ident()));
        generator.rename_struct_field(|s, field| {
            let unnamed = match (s.ident(), field.ident()) {
                ("ibv_send_wr" | "ibv_wc", "imm") => Some("imm_data"),
                ("ibv_send_wr", "tail") => Some("bind_mw"),
                ("ib_uverbs_wc" | "ib_uverbs_send_wr", "imm_data") => Some("ex.imm_data"),
                _ => None,
            };
            unnamed
                .or_else(|| {
                    names::SPELLING.iter().find(|(rust, _)| *rust == field.ident()).map(|(_, c)| *c)
                })
                .map(str::to_owned)
        });
        // Types without a name, and types with another spelling; in_place.rs compares their
        // members.
        generator.skip_struct_field_type(|s, field| untypable(s.ident(), field.ident()));
        generator.skip_union_field_type(|u, field| untypable(u.ident(), field.ident()));
        generator.rename_struct_ty(|name| {
            let plain = name == "pthread_mutex_t" || name == "pthread_cond_t";
            let declared = (name == "compat_ibv_port_attr").then(|| format!("struct _{name}"));
            if plain { Some(name.to_owned()) } else { declared }
        });
        let kernel = self.modules.iter().any(|module| module.starts_with("kernel"));
        generator.rename_type(move |name| match name {
            "be16" | "be32" | "be64" => Some(format!("__{name}")),
            // The kernel's is another type of the same size.
            "u64" if kernel => Some("__u64".into()),
            _ if enums.contains(name) => Some(format!("enum {name}")),
            _ => None,
        });
        // Passing by value is no part of this interface, and padding would have to be told.
        generator.skip_roundtrip(|_| true);
        generator.generate_files(source, "tests").expect("ctest understands the crate");
    }

    fn compile_and_run(&self, folder: &Path, source: &Path) -> usize {
        let object = folder.join("tests.o");
        run(Command::new("gcc")
            .args([
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused-parameter",
                "-Wno-enum-conversion",
                "-c",
            ])
            .args(self.include_flag())
            .arg("-I")
            .arg(folder)
            .arg(folder.join("tests.c"))
            .arg("-o")
            .arg(&object));
        let main = folder.join("main.rs");
        let text = format!("include!({source:?});\ninclude!({:?});\n", folder.join("tests.rs"));
        fs::write(&main, text).expect("cargo's folder is writable");
        let program = folder.join("tests");
        let rustc = std::env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
        run(Command::new(rustc)
            .args(["--edition=2024", "-Awarnings"])
            .arg(format!("-Clink-arg={}", object.display()))
            .arg("-o")
            .arg(&program)
            .arg(&main));
        let printed = run(&mut Command::new(&program));
        let passed = printed
            .lines()
            .find_map(|line| line.strip_prefix("PASSED ")?.split(' ').next()?.parse().ok());
        passed.unwrap_or_else(|| panic!("ctest's program said {printed}"))
    }
}

/// Members of a type that C does not name, or names otherwise.
fn untypable(owner: &str, member: &str) -> bool {
    matches!(
        (owner, member),
        ("ibv_gid", "global")
            | ("ibv_send_wr", "imm" | "tail" | "wr" | "qp_type")
            | ("ibv_wc", "imm")
            | ("ibv_ops_wr", "tm")
            | ("ibv_async_event", "element")
            | ("ibv_odp_caps", "per_transport_caps")
            | ("ib_uverbs_attr", "attr_data")
            | ("ib_uverbs_send_wr", "wr")
            | ("ib_uverbs_odp_caps", "per_transport_caps")
            | ("rdma_addr", "addr")
            | ("ib_addr", "ib_u")
            // C has `__u64`, of which the generator knows only the aligned form.
            | ("sockaddr_ib", "sib_scope_id")
            | ("rdma_cm_event" | "rdma_ucm_event_resp", "param")
            // 64-bit integers to the kernel, pointers to the verbs.
            | ("ib_uverbs_flow_action_esp_encap", "val_ptr" | "next_ptr")
    )
}

/// Runs a command, which must succeed, and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}\n{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}
