//! The generations of rdma-core's private provider ABI, as data, in a single list. All users of a
//! generation's number or layout read this list: the version map and the export table of
//! `libibverbs.so.1`, the operations tables, the search for plugins, and the build of plugins.
//!
//! Five numbers were used since release 34, but the layouts changed more often: eleven variants
//! differ in relevant fields. All distances are anchored at `ibv_context`: the extended context
//! grows at its front, so common fields have equal distances in all variants.
//!
//! Source: rdma-core's releases 34 to 65, `libibverbs/driver.h` and `verbs.h`, measured with their
//! compilers.

/// A distinguishable state of the private ABI, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
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

/// The fields that differ between variants.
#[derive(Clone, Copy, Debug)]
pub struct Generation {
    /// The variant.
    pub variant: Variant,
    /// The number in `IBVERBS_PRIVATE_<n>`, `verbs_register_driver_<n>` and `-rdmav<n>.so`.
    pub pabi: u32,
    /// The first release of rdma-core with this variant. The last release precedes the next
    /// variant's first.
    pub since: u32,
    /// Bytes of the extended context in front of `ibv_context`.
    pub context_offset: usize,
    /// Offset of `verbs_qp.comp_mask`; `verbs_qp.xrcd` is 8 bytes further.
    pub qp_mask_offset: usize,
}

impl Generation {
    /// `sizeof(struct verbs_context)`, the value that inline code expects in `sz`.
    pub const fn context_size(&self) -> usize {
        self.context_offset + size_of::<abi::ibv_context>()
    }

    /// Whether `ibv_cmd_reg_dmabuf_mr` has an eighth argument; in older variants the register is
    /// undefined.
    pub fn reg_dmabuf_mr_has_link(&self) -> bool {
        self.variant >= Variant::V34f
    }

    /// The variant of number `pabi` in release `release` of rdma-core. For a release without this
    /// number, the nearest variant. `None`: the number never existed.
    pub fn of_release(pabi: u32, release: u32) -> Option<&'static Self> {
        let of_number = || GENERATIONS.iter().filter(|generation| generation.pabi == pabi);
        of_number().rev().find(|generation| generation.since <= release).or(of_number().next())
    }
}

const fn generation(
    variant: Variant,
    pabi: u32,
    since: u32,
    context_offset: usize,
    qp_mask_offset: usize,
) -> Generation {
    Generation { variant, pabi, since, context_offset, qp_mask_offset }
}

/// The newest offset of `verbs_qp.comp_mask`. The offset depends on the size of `pthread_mutex_t`
/// in [`abi::ibv_qp`]: 360 bytes on x86-64, 368 on aarch64. [`abi::ibv_qp_ex`] was 16 bytes shorter
/// before rdma-core 44, and 8 bytes shorter in 44.
const QP_MASK: usize = core::mem::offset_of!(abi::verbs_qp, comp_mask);

/// All variants, oldest first.
pub static GENERATIONS: [Generation; 11] = [
    generation(Variant::V34a, 34, 34, 320, QP_MASK - 16),
    generation(Variant::V34b, 34, 35, 320, QP_MASK - 16),
    generation(Variant::V34c, 34, 36, 320, QP_MASK - 16),
    generation(Variant::V34d, 34, 44, 320, QP_MASK - 8),
    generation(Variant::V34e, 34, 45, 320, QP_MASK),
    generation(Variant::V34f, 34, 54, 320, QP_MASK),
    generation(Variant::V57, 57, 57, 320, QP_MASK),
    generation(Variant::V59a, 59, 59, 344, QP_MASK),
    generation(Variant::V59b, 59, 62, 352, QP_MASK),
    generation(Variant::V64, 64, 64, 368, QP_MASK),
    generation(Variant::V65, 65, 65, 368, QP_MASK),
];

/// The newest variant, which our own plugins and tables use.
pub static NEWEST: &Generation = &GENERATIONS[GENERATIONS.len() - 1];

/// The release to assume for the plugins of a number when nothing tells it: for 34 that of Debian
/// 12, for 59 the longer-lived layout.
pub const fn likely_release(pabi: u32) -> u32 {
    match pabi {
        34 => 44,
        59 => 63,
        other => other,
    }
}

/// The numbers that a plugin can be built for, oldest first.
pub fn numbers() -> impl DoubleEndedIterator<Item = u32> + Clone {
    GENERATIONS.iter().enumerate().filter_map(|(index, generation)| {
        let first = index == 0 || GENERATIONS[index - 1].pabi != generation.pabi;
        first.then_some(generation.pabi)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_listed_once() {
        assert_eq!(numbers().collect::<Vec<_>>(), [34, 57, 59, 64, 65]);
        assert_eq!(NEWEST.variant, Variant::V65);
    }

    #[test]
    fn a_release_selects_its_variant() {
        let of = |pabi, release| Generation::of_release(pabi, release).map(|found| found.variant);
        assert_eq!(of(34, 33), Some(Variant::V34a));
        assert_eq!(of(34, 34), Some(Variant::V34a));
        assert_eq!(of(34, 43), Some(Variant::V34c));
        assert_eq!(of(34, 44), Some(Variant::V34d));
        assert_eq!(of(34, 50), Some(Variant::V34e));
        assert_eq!(of(34, 56), Some(Variant::V34f));
        assert_eq!(of(59, 61), Some(Variant::V59a));
        assert_eq!(of(59, 63), Some(Variant::V59b));
        assert_eq!(of(58, 58), None);
        for pabi in numbers() {
            assert!(of(pabi, likely_release(pabi)).is_some(), "{pabi}");
        }
    }

    #[test]
    fn context_sizes_equal_those_of_each_release() {
        let sizes: Vec<usize> = GENERATIONS.iter().map(Generation::context_size).collect();
        assert_eq!(sizes, [648, 648, 648, 648, 648, 648, 648, 672, 680, 696, 696]);
    }
}
