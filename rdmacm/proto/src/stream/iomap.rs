//! Mappings: buffers of an application that its peer may write to (`riomap(3)`, `riowrite(3)`).
//! Entries of mappings follow the table of buffer halves.

use super::hello::{Area, Order};

const HALF: u16 = 1 << 7;

/// Encodes a number of mappings as one byte: exactly up to 128, above that in steps of 256.
#[must_use]
pub const fn scale(value: u16) -> u8 {
    if value <= HALF { value as u8 } else { (HALF | (value >> 8)) as u8 }
}

/// Decodes the byte.
#[must_use]
pub const fn unscale(value: u8) -> u16 {
    let value = value as u16;
    if value <= HALF { value } else { (value & !HALF) << 8 }
}

/// An entry of the table of mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The offset of the first byte, as the applications name it.
    pub offset: u64,
    /// The memory.
    pub area: Area,
}

impl Mapping {
    /// Bytes of an entry.
    pub const LEN: usize = 8 + Area::LEN;

    /// The entry for a table of a host.
    #[must_use]
    pub fn emit(self, order: Order) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (offset, area) = bytes.split_at_mut(8);
        offset.copy_from_slice(&order.u64(self.offset));
        area.copy_from_slice(&self.area.emit(order));
        bytes
    }

    /// Parses an entry of this end's table.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut offset = [0; 8];
        let mut area = [0; Area::LEN];
        offset.copy_from_slice(&bytes[..8]);
        area.copy_from_slice(&bytes[8..]);
        Self { offset: u64::from_ne_bytes(offset), area: Area::parse(area) }
    }
}

/// The mapped buffers of the peer.
#[derive(Debug, Default)]
pub struct Targets {
    mappings: Vec<Option<Mapping>>,
}

impl Targets {
    /// A table with `mappings` entries.
    #[must_use]
    pub fn new(mappings: u16) -> Self {
        Self { mappings: vec![None; mappings.into()] }
    }

    /// Stores an entry that the peer wrote; `false`: the table has no such entry.
    pub fn learn(&mut self, index: u16, mapping: Mapping) -> bool {
        let Some(entry) = self.mappings.get_mut(usize::from(index)) else { return false };
        *entry = (mapping.area.length != 0).then_some(mapping);
        true
    }

    /// The memory at an offset: address, key, and the number of bytes that follow.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<Area> {
        self.mappings.iter().flatten().find_map(|mapping| {
            let within = u32::try_from(offset.checked_sub(mapping.offset)?).ok()?;
            let length = mapping.area.length.checked_sub(within).filter(|&left| left > 0)?;
            let addr = mapping.area.addr.checked_add(within.into())?;
            Some(Area { addr, key: mapping.area.key, length })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_mappings_survive_as_one_byte_in_steps() {
        for exact in 0..=128 {
            assert_eq!(unscale(scale(exact)), exact);
        }
        assert_eq!(unscale(scale(300)), 256);
        assert_eq!(unscale(scale(u16::MAX)), 127 << 8);
        for any in 0..=u16::MAX {
            assert!(unscale(scale(any)) <= any || any < 256, "{any}");
        }
    }

    #[test]
    fn an_offset_is_found_in_its_mapping_only() {
        let mut targets = Targets::new(2);
        let area = Area { addr: 0x1000, key: 7, length: 100 };
        assert!(targets.learn(1, Mapping { offset: 50, area }));
        assert_eq!(targets.find(50), Some(area));
        assert_eq!(targets.find(149), Some(Area { addr: 0x1063, key: 7, length: 1 }));
        assert_eq!(targets.find(150), None);
        assert_eq!(targets.find(49), None);
        assert_eq!(targets.find(u64::MAX), None);
        assert!(targets.learn(1, Mapping { offset: 50, area: Area::default() }));
        assert_eq!(targets.find(50), None, "it was taken back");
    }

    #[test]
    fn an_entry_that_is_none_is_refused_and_lies_about_ends_find_nothing() {
        let mut targets = Targets::new(1);
        let area = Area { addr: u64::MAX, key: 7, length: u32::MAX };
        assert!(!targets.learn(1, Mapping { offset: 0, area }));
        assert!(targets.learn(0, Mapping { offset: u64::MAX, area }));
        assert_eq!(targets.find(u64::MAX), Some(area));
        assert_eq!(targets.find(0), None);
    }

    #[test]
    fn an_entry_is_parsed_as_it_was_written() {
        let mapping = Mapping { offset: 3, area: Area { addr: 4, key: 5, length: 6 } };
        assert_eq!(Mapping::parse(&mapping.emit(Order::OWN)), mapping);
        let big = mapping.emit(Order::Big);
        assert_eq!((big[7], big[15], big[19], big[23]), (3, 4, 5, 6));
    }
}
