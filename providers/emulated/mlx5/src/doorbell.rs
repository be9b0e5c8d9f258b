//! Doorbell records: eight bytes in the program's memory, which libmlx5 updates before each store
//! to a UAR page (`mlx5dv_init_obj(3)`, members `dbrec`).

use crate::Fields;

/// The record of a QP, an SRQ or a CQ, as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record(pub [u8; 8]);

/// The arming of a CQ, from the second word of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Number of events that the program has taken so far, 2 bits.
    pub sequence: u8,
    /// Whether only solicited and failed completions cause an event.
    pub solicited_only: bool,
    /// Consumer index at the time of arming, 24 bits.
    pub index: u32,
}

/// The number of bits of a CQ's indices.
pub const INDEX_MASK: u32 = 0xff_ffff;

impl Record {
    /// Second word of the record of a CQ that was never armed. A program cannot write the value,
    /// and the first arming may write zero.
    pub const UNARMED: [u8; 4] = [0xff; 4];

    const fn word<const AT: usize>(self) -> u32 {
        Fields(self.0).be32::<AT>()
    }

    /// QP: number of receives posted so far, 16 bits. SRQ: number of entries posted so far.
    #[must_use]
    pub const fn receives(self) -> u16 {
        self.word::<0>() as u16
    }

    /// QP: number of 64-byte blocks posted so far, 16 bits.
    #[must_use]
    pub const fn send_blocks(self) -> u16 {
        self.word::<4>() as u16
    }

    /// CQ: number of entries that the program has consumed, 24 bits.
    #[must_use]
    pub const fn consumed(self) -> u32 {
        self.word::<0>() & INDEX_MASK
    }

    /// CQ: the arming, or None if the record holds [`Record::UNARMED`].
    #[must_use]
    pub fn arm(self) -> Option<Arm> {
        let word = self.word::<4>();
        let [_, _, _, _, rest @ ..] = self.0;
        (rest != Self::UNARMED).then_some(Arm {
            sequence: (word >> 28 & 3) as u8,
            solicited_only: word >> 24 & 1 != 0,
            index: word & INDEX_MASK,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_queues_hold_counters_of_16_bits() {
        let record = Record([0, 0, 0x12, 0x34, 0, 0, 0xab, 0xcd]);
        assert_eq!((record.receives(), record.send_blocks()), (0x1234, 0xabcd));
    }

    #[test]
    fn a_record_of_a_cq_holds_consumer_and_arming() {
        let record = Record([0, 1, 2, 3, 0x21, 4, 5, 6]);
        assert_eq!(record.consumed(), 0x010203);
        let arm = Arm { sequence: 2, solicited_only: true, index: 0x040506 };
        assert_eq!(record.arm(), Some(arm));
        let first = Arm { sequence: 0, solicited_only: false, index: 0 };
        assert_eq!(Record::default().arm(), Some(first));
        assert_eq!(Record([0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]).arm(), None);
    }
}
