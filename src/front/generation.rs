//! The generations of rdma-core's private provider ABI, as data.
//!
//! Five numbers were ever used since release 34, but the layouts changed more often than the number:
//! eleven variants differ in something we must know. One provider package is always of one release, so
//! the variant of a number is found once per process, from the release in the real file name of a
//! provider library (`libmlx5.so.1.24.44.0` is of release 44), unless `FERROVERBS_PROVIDER_RELEASE` says
//! which release it is.
//!
//! All distances are anchored at `ibv_context`: the extended context in front of it grows at its front,
//! so what every generation has is at the same distance in each.

use once_cell::sync::OnceCell;

use super::op::{OP_COUNT, OPS};
use super::registry;
use crate::sys::log::notice;
use crate::sys::{env, release};

/// A distinguishable state of the private ABI, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Variant {
    /// rdma-core 34.
    V34a,
    /// 35: `num_ports` in `verbs_sysfs_dev`.
    V34b,
    /// 36 to 43.
    V34c,
    /// 44 (Debian 12): `wr_atomic_write` in `ibv_qp_ex`.
    V34d,
    /// 45 to 53: `wr_flush` in `ibv_qp_ex`.
    V34e,
    /// 54 to 56 (Debian 13): `ibv_cmd_reg_dmabuf_mr` takes a driver link.
    V34f,
    /// 57 and 58: `ibv_cmd_get_context` takes descriptors.
    V57,
    /// 59 to 61.
    V59a,
    /// 62 and 63: two operations inserted under an unchanged number.
    V59b,
    /// 64.
    V64,
    /// 65.
    V65,
}

/// Everything that differs between variants.
#[derive(Debug)]
pub(crate) struct Generation {
    /// Which one this is.
    pub(crate) variant: Variant,
    /// The number in `IBVERBS_PRIVATE_<n>`, `verbs_register_driver_<n>` and `-rdmav<n>.so`.
    pub(crate) pabi: u32,
    /// Bytes of the extended context in front of `ibv_context`.
    pub(crate) context_offset: usize,
    /// `sizeof(struct verbs_context)`: what inline code expects in `sz`.
    pub(crate) context_size: usize,
    /// Offset of `verbs_qp.comp_mask`; `verbs_qp.xrcd` is 8 bytes further.
    pub(crate) qp_mask_offset: usize,
}

impl Generation {
    const fn new(
        variant: Variant,
        pabi: u32,
        context_offset: usize,
        qp_mask_offset: usize,
    ) -> Self {
        Self {
            variant,
            pabi,
            context_offset,
            context_size: context_offset + size_of::<abi::ibv_context>(),
            qp_mask_offset,
        }
    }

    /// Canonical numbers of the operations in this generation's table, in its order.
    pub(crate) fn operations(&self) -> impl Iterator<Item = usize> + '_ {
        (0..OP_COUNT).filter(|&op| OPS.get(op).is_some_and(|info| info.since <= self.variant))
    }

    /// Whether `ibv_cmd_reg_dmabuf_mr` has an eighth argument; before, that register is garbage.
    pub(crate) fn reg_dmabuf_mr_has_link(&self) -> bool {
        self.variant >= Variant::V34f
    }

    /// The generation that plugins registering under `pabi` have in this process; NULL-like `None` for
    /// a number that never existed.
    pub(crate) fn of_pabi(pabi: u32) -> Option<&'static Self> {
        static OF_34: OnceCell<&'static Generation> = OnceCell::new();
        static OF_59: OnceCell<&'static Generation> = OnceCell::new();
        match pabi {
            34 => Some(OF_34.get_or_init(|| Self::of_release(34, release_of(34)))),
            59 => Some(OF_59.get_or_init(|| Self::of_release(59, release_of(59)))),
            _ => GENERATIONS.iter().rev().find(|generation| generation.pabi == pabi),
        }
    }

    /// The variant of number `pabi` in rdma-core release `release`. Without evidence: Debian 12's 44 for
    /// number 34, the longer-lived 63 for 59.
    fn of_release(pabi: u32, release: Option<u32>) -> &'static Self {
        let variant = match (pabi, release) {
            (34, Some(..=34)) => Variant::V34a,
            (34, Some(35)) => Variant::V34b,
            (34, Some(36..=43)) => Variant::V34c,
            (34, Some(44) | None) => Variant::V34d,
            (34, Some(45..=53)) => Variant::V34e,
            (34, Some(_)) => Variant::V34f,
            (59, Some(..=61)) => Variant::V59a,
            (59, _) => Variant::V59b,
            _ => Variant::V65,
        };
        GENERATIONS.iter().find(|generation| generation.variant == variant).unwrap_or(&NEWEST)
    }

    /// The newest one, which our own plugins use and our own tables have.
    pub(crate) fn newest() -> &'static Self {
        &NEWEST
    }
}

/// The release that plugins of a number are of: as we were told, or by the evidence.
fn release_of(pabi: u32) -> Option<u32> {
    let of_number = |release: &&u32| match pabi {
        34 => **release < 57,
        _ => (59..64).contains(*release),
    };
    let told = told().iter().find(of_number).copied();
    told.or_else(|| release::of_plugins(&registry::files(pabi), pabi))
}

/// Releases of rdma-core, a comma between: the plugins of a number that several layouts share are of the
/// one among them that has this number.
const SETTING: &str = "FERROVERBS_PROVIDER_RELEASE";

/// What the setting says; a line on stderr, once, when nobody can understand it.
pub(crate) fn told() -> &'static [u32] {
    static TOLD: OnceCell<Vec<u32>> = OnceCell::new();
    TOLD.get_or_init(|| {
        let Some(value) = env::trusted(SETTING) else { return Vec::new() };
        let text = value.to_string_lossy();
        parse(&text).unwrap_or_else(|| {
            // Whatever is in it: one line, and not a long one.
            let shown: String = text.chars().take(60).collect();
            notice!(
                "Warning: {SETTING} is {shown:?}, not a release of rdma-core from 34 to 65 (such as 44 or \
                 44,61); ignored"
            );
            Vec::new()
        })
    })
}

/// `None` for anything but releases that we know. An empty setting is none.
fn parse(text: &str) -> Option<Vec<u32>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    text.split(',')
        .map(|word| word.trim().parse().ok().filter(|release| (34..=65).contains(release)))
        .collect()
}

static NEWEST: Generation = Generation::new(Variant::V65, 65, 368, 360);

/// All variants, oldest first.
pub(crate) static GENERATIONS: [Generation; 11] = [
    Generation::new(Variant::V34a, 34, 320, 344),
    Generation::new(Variant::V34b, 34, 320, 344),
    Generation::new(Variant::V34c, 34, 320, 344),
    Generation::new(Variant::V34d, 34, 320, 352),
    Generation::new(Variant::V34e, 34, 320, 360),
    Generation::new(Variant::V34f, 34, 320, 360),
    Generation::new(Variant::V57, 57, 320, 360),
    Generation::new(Variant::V59a, 59, 344, 360),
    Generation::new(Variant::V59b, 59, 352, 360),
    Generation::new(Variant::V64, 64, 368, 360),
    Generation::new(Variant::V65, 65, 368, 360),
];

#[cfg(test)]
mod tests {
    use super::super::op::NAMES;
    use super::*;

    #[test]
    fn operation_numbers_equal_those_of_each_release() {
        let table = include_str!("../testdata/ops-index-by-generation.tsv");
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
                generation.operations().map(|op| NAMES[op]).enumerate().collect();
            assert_eq!(ours, expected, "{:?}", generation.variant);
        }
    }

    #[test]
    fn context_sizes_equal_those_of_each_release() {
        let sizes: Vec<usize> =
            GENERATIONS.iter().map(|generation| generation.context_size).collect();
        assert_eq!(sizes, [648, 648, 648, 648, 648, 648, 648, 672, 680, 696, 696]);
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
            // What is not in the table is as in the newest.
            let size = number(name, "verbs_context", None).unwrap_or(NEWEST.context_size);
            let offset = number(name, "verbs_context", Some("context"));
            let mask = number(name, "verbs_qp", Some("comp_mask")).unwrap_or(NEWEST.qp_mask_offset);
            assert_eq!(ours.context_size, size, "{name}");
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
    fn a_release_selects_its_variant() {
        let of = |pabi, release| Generation::of_release(pabi, release).variant;
        assert_eq!(of(34, Some(44)), Variant::V34d);
        assert_eq!(of(34, None), Variant::V34d);
        assert_eq!(of(34, Some(50)), Variant::V34e);
        assert_eq!(of(34, Some(56)), Variant::V34f);
        assert_eq!(of(59, Some(61)), Variant::V59a);
        assert_eq!(of(59, Some(63)), Variant::V59b);
        assert!(Generation::of_pabi(58).is_none());
        assert_eq!(Generation::of_pabi(65).map(|found| found.variant), Some(Variant::V65));
    }
}
