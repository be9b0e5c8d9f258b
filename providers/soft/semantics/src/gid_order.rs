//! The index that an address has in the GID table: the value of `FERROVERBS_SOFT_GIDS`.
//!
//! An application keeps an index, so an address keeps its index while the address is there, and
//! takes it again when it comes back. The tables of the kernel have empty entries for the same
//! reason.

use std::net::Ipv6Addr;

/// Entries of the GID table. Entry 0 is the link-local GID of the device's GUID.
pub const GID_TABLE: usize = 32;

/// The values of `FERROVERBS_SOFT_GIDS`, for messages.
pub const ALLOWED: &str = "soft, rxe or mlx5";

/// The order in which addresses take the entries of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GidOrder {
    /// The order in which the system lists the addresses.
    #[default]
    Soft,
    /// IPv4 addresses, then IPv6 addresses, then link-local addresses, as rxe has them behind entry
    /// 0.
    Rxe,
    /// The entries that mlx5 has for RoCE v2: a link-local address at 1, an IPv4 address at 3,
    /// further addresses at 5, 7 and so on. The entries that mlx5 has for RoCE v1 stay empty while
    /// there is room, because soft has no RoCE v1.
    Mlx5,
}

impl GidOrder {
    /// The order that a value of the setting asks for; `None` if the value is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is = |word| text.eq_ignore_ascii_case(word);
        [("soft", Self::Soft), ("rxe", Self::Rxe), ("mlx5", Self::Mlx5)]
            .into_iter()
            .find_map(|(word, order)| is(word).then_some(order))
    }

    /// The order in which new addresses choose their entries: lower ranks first.
    fn rank(self, raw: &[u8; 16]) -> u8 {
        match (self, Ipv6Addr::from(*raw)) {
            (Self::Soft, _) => 0,
            (_, address) if address.to_ipv4_mapped().is_some() => 0,
            (_, address) if address.is_unicast_link_local() => 2,
            _ => 1,
        }
    }

    /// The entries that an address may take, the preferred entry first.
    fn preferences(self, raw: &[u8; 16]) -> impl Iterator<Item = usize> {
        let is_link_local = Ipv6Addr::from(*raw).is_unicast_link_local();
        // Of mlx5, the first range has the preferred entries, and the second range the others.
        let (first, second) = match (self, is_link_local) {
            (Self::Soft | Self::Rxe, _) => ((1..GID_TABLE).step_by(1), (1..1).step_by(1)),
            (Self::Mlx5, false) => ((3..GID_TABLE).step_by(2), (2..GID_TABLE).step_by(2)),
            (Self::Mlx5, true) => ((1..2).step_by(1), (2..GID_TABLE).step_by(2)),
        };
        first.chain(second)
    }
}

/// The entries behind entry 0, with the address of each entry, also of addresses that are gone.
#[derive(Clone, Debug, Default)]
pub struct GidEntries {
    order: GidOrder,
    /// The entry of index 1 is first.
    entries: Vec<Option<[u8; 16]>>,
}

impl GidEntries {
    /// No entry is taken.
    #[must_use]
    pub const fn new(order: GidOrder) -> Self {
        Self { order, entries: Vec::new() }
    }

    /// Gives an entry to each new address. An address without a free entry takes that of an address
    /// that is gone; if there is none, the address has no entry.
    pub fn arrange<'a>(&mut self, now: impl Iterator<Item = &'a [u8; 16]>) {
        let now: Vec<_> = now.collect();
        let mut new: Vec<_> =
            now.iter().filter(|raw| !self.entries.contains(&Some(***raw))).collect();
        new.sort_by_key(|raw| self.order.rank(raw));
        for raw in new {
            let index = self.free(raw).or_else(|| self.of_gone(&now));
            let Some(index) = index else { continue };
            if self.entries.len() < index {
                self.entries.resize(index, None);
            }
            if let Some(entry) = self.entries.get_mut(index - 1) {
                *entry = Some(**raw);
            }
        }
    }

    /// Index and address of each entry that was given to an address. The index is at least 1.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[u8; 16])> {
        let indices = 1_usize..;
        indices.zip(&self.entries).filter_map(|(index, raw)| Some((index, raw.as_ref()?)))
    }

    fn free(&self, raw: &[u8; 16]) -> Option<usize> {
        let is_free = |index: &usize| self.entries.get(index - 1).is_none_or(Option::is_none);
        self.order.preferences(raw).find(is_free)
    }

    fn of_gone(&self, now: &[&[u8; 16]]) -> Option<usize> {
        self.iter().find(|(_, raw)| !now.contains(raw)).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn raw(address: &str) -> [u8; 16] {
        match address.parse().expect("an address") {
            IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
            IpAddr::V6(six) => six.octets(),
        }
    }

    fn arrange(entries: &mut GidEntries, addresses: &[&str]) {
        let now: Vec<_> = addresses.iter().map(|address| raw(address)).collect();
        entries.arrange(now.iter());
    }

    /// The index of each address, where a new table has all of them.
    fn indices(order: GidOrder, addresses: &[&str]) -> Vec<usize> {
        let mut entries = GidEntries::new(order);
        arrange(&mut entries, addresses);
        let of = |address: &&str| {
            let found = entries.iter().find(|(_, other)| **other == raw(address));
            found.map_or(0, |(index, _)| index)
        };
        addresses.iter().map(of).collect()
    }

    #[test]
    fn the_order_of_mlx5_has_ipv4_at_index_3_also_where_there_is_nothing_else() {
        assert_eq!(indices(GidOrder::Mlx5, &["10.0.0.1"]), [3]);
        assert_eq!(indices(GidOrder::Mlx5, &["10.0.0.1", "10.0.1.1"]), [3, 5]);
        assert_eq!(indices(GidOrder::Mlx5, &["fe80::1", "fd00::1", "10.0.0.1"]), [1, 5, 3]);
        assert_eq!(indices(GidOrder::Mlx5, &["fe80::1", "fe80::2", "10.0.0.1"]), [1, 2, 3]);
    }

    #[test]
    fn the_order_of_rxe_has_ipv4_first_and_that_of_soft_is_the_systems() {
        let addresses = ["fe80::1", "fd00::1", "10.0.0.1"];
        assert_eq!(indices(GidOrder::Rxe, &addresses), [3, 2, 1]);
        assert_eq!(indices(GidOrder::Soft, &addresses), [1, 2, 3]);
    }

    #[test]
    fn every_entry_can_be_taken_in_any_order() {
        let all: Vec<_> = (1..GID_TABLE + 5).map(|n| format!("10.0.0.{n}")).collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        for order in [GidOrder::Soft, GidOrder::Rxe] {
            let mut found = indices(order, &all);
            found.retain(|index| *index != 0);
            assert_eq!(found, (1..GID_TABLE).collect::<Vec<_>>(), "{order:?}");
        }
        let mut found = indices(GidOrder::Mlx5, &all);
        found.retain(|index| *index != 0);
        found.sort_unstable();
        assert_eq!(found, (2..GID_TABLE).collect::<Vec<_>>(), "1 is of link-local addresses");
    }

    #[test]
    fn an_address_keeps_its_index_and_finds_it_again() {
        for order in [GidOrder::Soft, GidOrder::Rxe, GidOrder::Mlx5] {
            let mut entries = GidEntries::new(order);
            arrange(&mut entries, &["10.0.0.1", "10.0.0.2"]);
            let first: Vec<_> = entries.iter().map(|(index, raw)| (index, *raw)).collect();
            arrange(&mut entries, &["10.0.0.2"]);
            arrange(&mut entries, &["10.0.0.7", "10.0.0.2", "10.0.0.1"]);
            let then: Vec<_> = entries.iter().map(|(index, raw)| (index, *raw)).collect();
            assert_eq!((then.len(), &then[..2]), (3, &first[..]), "{order:?}");
        }
    }

    #[test]
    fn a_value_names_an_order() {
        assert_eq!(GidOrder::parse("MLX5"), Some(GidOrder::Mlx5));
        assert_eq!(["rxe", "soft"].map(GidOrder::parse), [GidOrder::Rxe, GidOrder::Soft].map(Some));
        assert_eq!(["", "mlx4", "3"].map(GidOrder::parse), [None; 3]);
    }
}
