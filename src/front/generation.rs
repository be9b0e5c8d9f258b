//! The variant of the private provider ABI that the plugins of a number have in this process.
//!
//! [`cface::generations`] lists the variants. One provider package is always of one release, so the
//! variant of a number is found once per process, from the release in the real file name of a
//! provider library (`libmlx5.so.1.24.44.0` is of release 44), unless `FERROVERBS_PROVIDER_RELEASE`
//! says which release it is.

use once_cell::sync::OnceCell;

#[cfg(test)]
pub(crate) use cface::generations::GENERATIONS;
use cface::generations::likely_release;
pub(crate) use cface::generations::{Generation, NEWEST, Variant};

use super::registry;
use crate::sys::log::notice;
use crate::sys::{env, release};

/// The generation of plugins that register under `pabi` in this process; `None`: the number never
/// existed.
pub(crate) fn of_pabi(pabi: u32) -> Option<&'static Generation> {
    static OF_34: OnceCell<Option<&'static Generation>> = OnceCell::new();
    static OF_59: OnceCell<Option<&'static Generation>> = OnceCell::new();
    let by_evidence = || of_release(pabi, release_of(pabi));
    match pabi {
        34 => *OF_34.get_or_init(by_evidence),
        59 => *OF_59.get_or_init(by_evidence),
        _ => of_release(pabi, None),
    }
}

/// The variant of number `pabi` in rdma-core release `release`, or the likeliest without evidence.
fn of_release(pabi: u32, release: Option<u32>) -> Option<&'static Generation> {
    Generation::of_release(pabi, release.unwrap_or(likely_release(pabi)))
}

/// The release of the plugins of a number: from the setting, or from file names.
fn release_of(pabi: u32) -> Option<u32> {
    let of_number = |release: &&u32| match pabi {
        34 => **release < 57,
        _ => (59..64).contains(*release),
    };
    let reported = reported().iter().find(of_number).copied();
    reported.or_else(|| release::of_plugins(&registry::files(pabi), pabi))
}

/// Releases of rdma-core, separated by commas. Each selects the layout of the plugins whose number
/// several layouts share.
const SETTING: &str = "FERROVERBS_PROVIDER_RELEASE";

/// The releases of the setting. An invalid setting causes one line on stderr, once.
pub(crate) fn reported() -> &'static [u32] {
    static REPORTED: OnceCell<Vec<u32>> = OnceCell::new();
    REPORTED.get_or_init(|| {
        let Some(value) = env::trusted(SETTING) else { return Vec::new() };
        let text = value.to_string_lossy();
        parse(&text).unwrap_or_else(|| {
            // Limit the message to one short line, regardless of the setting's text.
            let shown: String = text.chars().take(60).collect();
            notice!(
                "Warning: {SETTING} is {shown:?}, not a release of rdma-core from 34 to 65 (such as 44 or \
                 44,61); ignored"
            );
            Vec::new()
        })
    })
}

/// `None` for unknown releases. An empty setting names no release.
fn parse(text: &str) -> Option<Vec<u32>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    text.split(',')
        .map(|word| word.trim().parse().ok().filter(|release| (34..=65).contains(release)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::op::{NAMES, OP_COUNT, operations};
    use super::*;

    #[test]
    fn operation_numbers_equal_those_of_each_release() {
        let table = include_str!("../../c-tests/data/ops-index-by-generation.tsv");
        let mut lines = table.lines();
        let columns: Vec<&str> = lines.next().unwrap_or_default().split('\t').skip(1).collect();
        let rows: Vec<Vec<&str>> = lines.map(|line| line.split('\t').collect()).collect();
        assert_eq!(rows.len(), OP_COUNT);
        for generation in &GENERATIONS {
            let wanted = match generation.variant {
                Variant::V34a => "idx_34a",
                Variant::V34b => "idx_34b",
                // 36 to 58 have one table.
                Variant::V34c | Variant::V34d | Variant::V34e | Variant::V34f | Variant::V57 => {
                    "idx_34c"
                }
                Variant::V59a => "idx_59a",
                Variant::V59b => "idx_59b",
                Variant::V64 => "idx_64",
                Variant::V65 => "idx_65",
            };
            let column = 1 + columns.iter().position(|&name| name == wanted).expect("a column");
            let mut expected: Vec<(usize, &str)> =
                rows.iter().filter_map(|row| Some((row[column].parse().ok()?, row[0]))).collect();
            expected.sort_unstable();
            let ours: Vec<(usize, &str)> =
                operations(generation).map(|op| NAMES[op]).enumerate().collect();
            assert_eq!(ours, expected, "{:?}", generation.variant);
        }
    }

    #[test]
    fn sizes_and_offsets_equal_those_of_the_layout_tables() {
        let table = include_str!("../../c-tests/data/layouts-older.tsv");
        let number = |generation: &str, name: &str, member: Option<&str>| -> Option<usize> {
            table.lines().find_map(|line| {
                let columns: Vec<&str> = line.split('\t').collect();
                let [of, kind, size, rest @ ..] = columns.as_slice() else { return None };
                match (member, rest) {
                    _ if *of != generation || *kind != name => None,
                    (None, []) => size.parse().ok(),
                    (Some(member), [found, offset]) if *found == member => offset.parse().ok(),
                    _ => None,
                }
            })
        };
        let names = ["34", "57", "59", "59b", "64"];
        let variants = [Variant::V34d, Variant::V57, Variant::V59a, Variant::V59b, Variant::V64];
        for (name, variant) in names.into_iter().zip(variants) {
            let ours = GENERATIONS.iter().find(|g| g.variant == variant).expect("a generation");
            // Entries missing in the table equal the newest release.
            let size = number(name, "verbs_context", None).unwrap_or(NEWEST.context_size());
            let offset = number(name, "verbs_context", Some("context"));
            let mask = number(name, "verbs_qp", Some("comp_mask")).unwrap_or(NEWEST.qp_mask_offset);
            assert_eq!(ours.context_size(), size, "{name}");
            assert_eq!(ours.context_offset, offset.unwrap_or(NEWEST.context_offset), "{name}");
            assert_eq!(ours.qp_mask_offset, mask, "{name}");
        }
    }

    #[test]
    fn a_setting_is_a_list_of_releases() {
        assert_eq!(parse("56"), Some(vec![56]));
        assert_eq!(parse(" 44, 61 "), Some(vec![44, 61]));
        assert_eq!(parse(""), Some(vec![]));
        for bad in ["33", "66", "34d", "-44", "44,", "44.0", "44 56", "999999999999", "newest"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn without_evidence_the_likeliest_release_counts() {
        let of = |pabi, release| of_release(pabi, release).map(|found| found.variant);
        assert_eq!(of(34, Some(44)), Some(Variant::V34d));
        assert_eq!(of(34, None), Some(Variant::V34d));
        assert_eq!(of(34, Some(56)), Some(Variant::V34f));
        assert_eq!(of(59, None), Some(Variant::V59b));
        assert!(of_pabi(58).is_none());
        assert_eq!(of_pabi(65).map(|found| found.variant), Some(Variant::V65));
    }
}
