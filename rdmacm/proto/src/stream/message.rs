//! Messages of a stream: the 32 bits of immediate data of a write (rsocket(7)).
//! The numbers are those of upstream's rsockets.

use std::fmt;

/// The reason why a connection is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The private data are from no rsocket, or of another version.
    Hello,
    /// The immediate data have no meaning.
    Message(u32),
    /// A write is longer than the granted buffer.
    TooLong {
        /// The length of the write.
        bytes: u32,
        /// The remaining room.
        room: u32,
    },
    /// More messages than credits.
    TooMany,
    /// An invalid or premature half of a buffer.
    Area,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello => write!(f, "its private data are of no rsocket"),
            Self::Message(raw) => write!(f, "its immediate data {raw:#010x} mean nothing"),
            Self::TooLong { bytes, room } => {
                write!(f, "it says that it wrote {bytes} bytes where {room} had room")
            }
            Self::TooMany => write!(f, "it sent more messages than it was granted"),
            Self::Area => write!(f, "it lent a buffer that is none, or too many"),
        }
    }
}

impl std::error::Error for Broken {}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A number of bytes was written after the earlier ones.
    Data(u32),
    /// The sender of data may send up to this count, modulo 2^16.
    Credits(u16),
    /// The entry with this number in the table of mappings was written.
    Mapping(u16),
    /// The connection ends.
    Disconnect,
    /// A message without content.
    KeepAlive,
    /// No further data follow.
    Shutdown,
}

const SHIFT: u32 = 29;
const COUNT: u32 = (1 << SHIFT) - 1;
const DATA: u32 = 0;
const CREDITS: u32 = 4;
const MAPPING: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    /// The largest number of bytes in one data message.
    pub const MOST_BYTES: u32 = COUNT;

    /// Parses immediate data.
    ///
    /// # Errors
    /// The data have no meaning.
    pub const fn parse(raw: u32) -> Result<Self, Broken> {
        let count = raw & COUNT;
        // Senders do not limit their count to 16 bits; only the low 16 bits count.
        let low = count as u16;
        match (raw >> SHIFT, count) {
            (DATA, bytes) => Ok(Self::Data(bytes)),
            (CREDITS, _) => Ok(Self::Credits(low)),
            (MAPPING, _) => Ok(Self::Mapping(low)),
            (CONTROL, 0) => Ok(Self::Disconnect),
            (CONTROL, 1) => Ok(Self::KeepAlive),
            (CONTROL, 2) => Ok(Self::Shutdown),
            _ => Err(Broken::Message(raw)),
        }
    }

    /// The message as immediate data.
    #[must_use]
    pub const fn emit(self) -> u32 {
        let (operation, count) = match self {
            Self::Data(bytes) => (DATA, bytes & COUNT),
            Self::Credits(limit) => (CREDITS, limit as u32),
            Self::Mapping(index) => (MAPPING, index as u32),
            Self::Disconnect => (CONTROL, 0),
            Self::KeepAlive => (CONTROL, 1),
            Self::Shutdown => (CONTROL, 2),
        };
        operation << SHIFT | count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_the_numbers_of_the_wire() {
        let known = [
            (Message::Data(5), 0x0000_0005),
            (Message::Credits(384), 0x8000_0180),
            (Message::Mapping(3), 0xc000_0003),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
        ];
        for (message, raw) in known {
            assert_eq!(message.emit(), raw, "{message:?}");
            assert_eq!(Message::parse(raw), Ok(message));
        }
        assert_eq!(Message::parse(0x8001_0002), Ok(Message::Credits(2)), "17 bits of a count");
    }

    #[test]
    fn reserved_operations_and_unknown_control_are_refused() {
        for raw in [0x2000_0000, 0x4000_0000, 0x6000_0001, 0xa000_0000, 0xe000_0003, u32::MAX] {
            assert_eq!(Message::parse(raw), Err(Broken::Message(raw)));
        }
    }
}
