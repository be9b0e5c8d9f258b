//! The hello messages of a stream: 40 bytes of private data in REQ and REP, in network order.
//! Both ends learn credits, tables and buffers from each other's message.

use super::message::Broken;

/// Memory that the peer may write to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// The address on the host that owns the memory.
    pub addr: u64,
    /// The remote key.
    pub key: u32,
    /// The length in bytes; for a table, the number of entries.
    pub length: u32,
}

/// The byte order of a host's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The least significant byte first.
    Little,
    /// The most significant byte first.
    Big,
}

impl Order {
    /// The byte order of this host.
    pub const OWN: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    pub(super) const fn u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    pub(super) const fn u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

impl Area {
    /// Bytes of a table entry.
    pub const LEN: usize = 16;

    /// The area as an entry of a table of a host.
    #[must_use]
    pub fn emit(self, order: Order) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (addr, rest) = bytes.split_at_mut(8);
        addr.copy_from_slice(&order.u64(self.addr));
        rest[..4].copy_from_slice(&order.u32(self.key));
        rest[4..].copy_from_slice(&order.u32(self.length));
        bytes
    }

    /// Parses an entry of this end's table.
    #[must_use]
    pub fn parse(bytes: [u8; Self::LEN]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = bytes;
        Self {
            addr: u64::from_ne_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            key: u32::from_ne_bytes([k0, k1, k2, k3]),
            length: u32::from_ne_bytes([l0, l1, l2, l3]),
        }
    }
}

/// The private data of REQ and REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The byte order of the sending host.
    pub order: Order,
    /// The first credits: the number of messages in the receive queue.
    pub credits: u16,
    /// The number of entries in the table of mappings, as one byte ([`super::scale`]); `None`: no
    /// support for mappings.
    pub mappings: Option<u8>,
    /// The table of buffer halves; the table of mappings follows it.
    pub table: Area,
    /// The first half of the receive buffer.
    pub buffer: Area,
}

const VERSION: u8 = 1;
const BIG_ENDIAN: u8 = 1;
const MAPPINGS: u8 = 2;

impl Hello {
    /// The length in bytes.
    pub const LEN: usize = 40;

    /// The message as private data.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let big = if self.order == Order::Big { BIG_ENDIAN } else { 0 };
        bytes[0] = VERSION;
        bytes[1] = big | if self.mappings.is_some() { MAPPINGS } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = self.mappings.unwrap_or(0);
        bytes[8..24].copy_from_slice(&self.table.emit(Order::Big));
        bytes[24..40].copy_from_slice(&self.buffer.emit(Order::Big));
        bytes
    }

    /// Parses private data; bytes after the first 40 are padding.
    ///
    /// # Errors
    /// The data are too short, or of another version.
    pub fn parse(data: &[u8]) -> Result<Self, Broken> {
        let Some((&[version, flags, c1, c0, _, _, _, mappings], rest)) = data.split_first_chunk()
        else {
            return Err(Broken::Hello);
        };
        let area = |bytes: &[u8; Area::LEN]| {
            let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = *bytes;
            Area {
                addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
                key: u32::from_be_bytes([k0, k1, k2, k3]),
                length: u32::from_be_bytes([l0, l1, l2, l3]),
            }
        };
        let (table, rest) = rest.split_first_chunk().ok_or(Broken::Hello)?;
        let (buffer, _) = rest.split_first_chunk().ok_or(Broken::Hello)?;
        if version != VERSION {
            return Err(Broken::Hello);
        }
        Ok(Self {
            order: if flags & BIG_ENDIAN != 0 { Order::Big } else { Order::Little },
            credits: u16::from_be_bytes([c1, c0]),
            mappings: (flags & MAPPINGS != 0).then_some(mappings),
            table: area(table),
            buffer: area(buffer),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        order: Order::Little,
        credits: 384,
        mappings: Some(1),
        table: Area { addr: 0x0102_0304_0506_0708, key: 0x0a0b_0c0d, length: 2 },
        buffer: Area { addr: 0x1112_1314_1516_1718, key: 0x1a1b_1c1d, length: 65536 },
    };

    #[test]
    fn private_data_are_these_bytes() {
        let golden = [
            1, 2, 0x01, 0x80, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0,
            2, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x1a, 0x1b, 0x1c, 0x1d, 0, 1, 0, 0,
        ];
        assert_eq!(HELLO.emit(), golden);
        // Received private data are padded to the whole field.
        let mut padded = golden.to_vec();
        padded.extend([0; 16]);
        assert_eq!(Hello::parse(&padded), Ok(HELLO));
        let other = Hello { order: Order::Big, mappings: None, ..HELLO };
        assert_eq!(Hello::parse(&other.emit()), Ok(other));
    }

    #[test]
    fn every_shorter_prefix_and_every_other_version_is_refused() {
        let bytes = HELLO.emit();
        for len in 0..bytes.len() {
            assert_eq!(Hello::parse(&bytes[..len]), Err(Broken::Hello), "{len} bytes");
        }
        for version in [0, 2, 255] {
            let mut other = bytes;
            other[0] = version;
            assert_eq!(Hello::parse(&other), Err(Broken::Hello), "version {version}");
        }
    }

    #[test]
    fn an_entry_has_the_order_of_the_host_that_it_is_written_to() {
        let area = HELLO.buffer;
        assert_eq!(Area::parse(area.emit(Order::OWN)), area);
        let little = area.emit(Order::Little);
        assert_eq!(&little[..8], &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        assert_eq!(&area.emit(Order::Big)[12..], &[0, 1, 0, 0]);
    }
}
