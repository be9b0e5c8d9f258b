//! The tests of Ferroverbs from outside: programs over the staged libraries, hosts, packages,
//! machines.
//!
//! Each group is a module that registers its checks with `harness`. A check has a name
//! (`group::name`), a tier, a load and a time limit. `cargo xtask test` installs the packages of
//! the groups and runs the short tier.

mod aarch64;
mod bad_input;
mod bench;
mod c_programs;
mod capture;
mod checks;
mod connected;
mod development;
mod diagnostics;
mod dist;
mod examples;
mod faults;
mod fuzz;
mod harness;
mod headers;
mod hostile;
mod hosts;
mod inlines;
mod isolation;
mod kill;
mod layers;
mod layers_rxe;
mod libmlx5;
mod licences;
mod loom;
mod man;
mod other_user;
mod perf;
mod perf_raw;
mod presence;
mod programs;
mod pyverbs;
mod pyverbs_suite;
mod rdmacm;
mod rxe;
mod sanitizer;
mod sources;
mod stacks;
mod stats;
mod symbols;
mod trace;
mod unit;
mod validate;
mod vm;

use bench::{Bench, Fabric, NOBODY};
use harness::{Checks, Load, Tally, Tier};
use std::process::ExitCode;

type Result<T> = std::result::Result<T, String>;

/// Checks that belong together.
struct Group {
    name: &'static str,
    what: &'static str,
    /// Seconds that the short-tier checks take in sequence on two processors.
    seconds: u32,
    register: fn(&mut Checks),
}

/// In the order in which their checks begin: what fails fast comes first.
const GROUPS: &[Group] = &[
    Group { name: "fmt", what: "source formatting", seconds: 2, register: checks::fmt },
    Group {
        name: "licences",
        what: "licences and advisories of dependencies",
        seconds: 1,
        register: licences::register,
    },
    Group { name: "clippy", what: "lints", seconds: 60, register: checks::clippy },
    Group {
        name: "doc",
        what: "documentation builds without warnings",
        seconds: 45,
        register: checks::doc,
    },
    Group {
        name: "aarch64",
        what: "all crates compile for aarch64, and programs run there with pages of 4 and 64 KiB",
        seconds: 0,
        register: aarch64::register,
    },
    Group {
        name: "man",
        what: "manual pages: complete, well formed, as the headers say; their examples",
        seconds: 8,
        register: man::register,
    },
    Group {
        name: "unit",
        what: "unit tests of all crates",
        seconds: 150,
        register: unit::register,
    },
    Group {
        name: "loom",
        what: "models of soft's memory orders",
        seconds: 23,
        register: loom::register,
    },
    Group {
        name: "matrix",
        what: "the pages in docs/reference/ that cargo xtask matrix writes are up to date",
        seconds: 1,
        register: checks::matrix,
    },
    Group {
        name: "headers",
        what: "include/ is up to date, and compiles in every standard of C and C++",
        seconds: 21,
        register: headers::register,
    },
    Group {
        name: "inlines",
        what: "inline functions of verbs.h do what upstream's do, in C and C++",
        seconds: 9,
        register: inlines::register,
    },
    Group {
        name: "development",
        what: "programs and a plugin compile against the staged tree, and run",
        seconds: 1,
        register: development::register,
    },
    Group {
        name: "sources",
        what: "perftest, UCX, libfabric and others compile against our headers",
        seconds: 0,
        register: sources::register,
    },
    Group {
        name: "symbols",
        what: "the library's symbols and versions",
        seconds: 1,
        register: symbols::register,
    },
    Group {
        name: "c",
        what: "C programs, each data path",
        seconds: 159,
        register: c_programs::register,
    },
    Group {
        name: "layers",
        what: "layers between a program and its provider, and no cost without layers",
        seconds: 5,
        register: layers::register,
    },
    Group {
        name: "validate",
        what: "the layer validate reports each misuse, and nothing for correct programs",
        seconds: 22,
        register: validate::register,
    },
    Group {
        name: "examples",
        what: "docs/guide/debugging*.md shows the real output",
        seconds: 4,
        register: examples::register,
    },
    Group {
        name: "trace",
        what: "the layer trace records the calls of programs, also of killed programs",
        seconds: 1,
        register: trace::register,
    },
    Group {
        name: "stats",
        what: "the layer stats counts the calls of programs, also of killed programs",
        seconds: 1,
        register: stats::register,
    },
    Group {
        name: "capture",
        what: "synthesised packets and packets of the wire, as tshark reads them",
        seconds: 48,
        register: capture::register,
    },
    Group {
        name: "sanitizer",
        what: "data races of the front-end, memory errors of a program under valgrind",
        seconds: 27,
        register: sanitizer::register,
    },
    Group {
        name: "programs",
        what: "ibverbs-utils, unmodified",
        seconds: 1,
        register: programs::register,
    },
    Group {
        name: "presence",
        what: "programs that look for files before verbs find the device",
        seconds: 3,
        register: presence::register,
    },
    Group {
        name: "pyverbs",
        what: "scripts over pyverbs, unmodified",
        seconds: 1,
        register: pyverbs::register,
    },
    Group {
        name: "suite",
        what: "rdma-core's own tests, over pyverbs",
        seconds: 2,
        register: pyverbs_suite::register,
    },
    Group { name: "perftest", what: "perftest, unmodified", seconds: 19, register: perf::register },
    Group {
        name: "rdmacm",
        what: "rdmacm-utils and perftest -R over our librdmacm, unmodified",
        seconds: 117,
        register: rdmacm::register,
    },
    Group {
        name: "stacks",
        what: "qperf, uDAPL, Ceph, Gloo, TensorPipe, UCX, libfabric, MPI, unmodified",
        seconds: 6,
        register: stacks::register,
    },
    Group {
        name: "faults",
        what: "injected faults under unmodified programs",
        seconds: 26,
        register: faults::register,
    },
    Group {
        name: "kill",
        what: "one side of a running perftest killed",
        seconds: 6,
        register: kill::register,
    },
    Group {
        name: "hostile",
        what: "programs beside a hostile member of the fabric, each data path",
        seconds: 26,
        register: hostile::register,
    },
    Group {
        name: "other-user",
        what: "another user of the machine beside programs, and as the caller of privileged programs",
        seconds: 3,
        register: other_user::register,
    },
    Group {
        name: "hosts",
        what: "programs of two hosts, by RoCE v2",
        seconds: 102,
        register: hosts::register,
    },
    Group {
        name: "isolation",
        what: "programs that cannot reach each other report the reason",
        seconds: 8,
        register: isolation::register,
    },
    Group {
        name: "fuzz",
        what: "fuzz targets, from their corpora",
        seconds: 0,
        register: fuzz::register,
    },
    Group {
        name: "diagnostics",
        what: "messages about what is missing",
        seconds: 1,
        register: diagnostics::register,
    },
    Group {
        name: "dist",
        what: "packages: installed, used, removed",
        seconds: 116,
        register: dist::register,
    },
    Group {
        name: "bad-input",
        what: "malformed plugins, configuration, sysfs and netlink",
        seconds: 10,
        register: bad_input::register,
    },
    Group {
        name: "connected",
        what: "programs of others that connect by our librdmacm: fio, UCX, QEMU, Ceph and more",
        seconds: 0,
        register: connected::register,
    },
    Group {
        name: "rxe",
        what: "soft against a kernel's rxe by RoCE v2, both directions, in a virtual machine",
        seconds: 0,
        register: rxe::register,
    },
    Group {
        name: "layers-rxe",
        what: "layers over a kernel's rxe, in a virtual machine",
        seconds: 0,
        register: layers_rxe::register,
    },
    Group {
        name: "vm",
        what: "a kernel's RDMA devices in a virtual machine, beside upstream's library",
        seconds: 139,
        register: vm::register,
    },
    Group {
        name: "rxe-short",
        what: "soft against a kernel's rxe by RoCE v2, both directions: a few of rxe's lines",
        seconds: 0,
        register: rxe::register_short,
    },
];

/// The number of failures that stops a check whose parts may each take the whole time limit.
const ENOUGH: usize = 8;

/// Runs the checks that the command line selects; in a virtual machine of a check, its scenarios.
#[must_use]
pub fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == vm::GUEST_ARGUMENT) {
        return vm::run_in_guest(&words.collect::<Vec<_>>()).unwrap_or_else(|message| {
            eprintln!("system-tests: {}", message.trim_end());
            ExitCode::from(2)
        });
    }
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    harness::main(words.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_of_packages_has_every_group_and_no_other() {
        let groups: BTreeSet<&str> = GROUPS.iter().map(|group| group.name).collect();
        assert_eq!(groups, xtask::packages::groups().collect());
        assert_eq!(groups.len(), GROUPS.len());
    }

    #[test]
    fn names_of_checks_differ() {
        let mut names = BTreeSet::new();
        for group in GROUPS {
            let mut list = Checks::new(group.name);
            (group.register)(&mut list);
            let checks = list.into_list();
            assert!(!checks.is_empty(), "{} has no check", group.name);
            for check in checks {
                assert!(names.insert(check.name.clone()), "{} is there twice", check.name);
            }
        }
    }
}
