//! Sizes of a connection: defaults and limits (rsocket(7)).
//! Sockets copy the defaults, and options change them.

use super::CONTROLS;
use super::iomap::{scale, unscale};

/// The smallest queue of requests.
pub const LEAST_QUEUE: u16 = 16;
/// The largest queue of requests.
pub const MOST_QUEUE: u16 = 0xfffe;
/// The smallest buffer of either side: a half still has room for a short message.
const LEAST_BUFFER: u32 = 4096;
const _: () = assert!(LEAST_QUEUE > CONTROLS);

/// The sizes that an application or administrator can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Entries of the send queue.
    pub send_queue: u16,
    /// Entries of the receive queue.
    pub receive_queue: u16,
    /// The largest inline request in bytes.
    pub inline: u32,
    /// Bytes of the send buffer.
    pub send_bytes: u32,
    /// Bytes of the receive buffer.
    pub receive_bytes: u32,
    /// The number of mappings that the peer may create.
    pub mappings: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            send_queue: 384,
            receive_queue: 384,
            inline: 64,
            send_bytes: 1 << 17,
            receive_bytes: 1 << 17,
            mappings: 0,
        }
    }
}

impl Settings {
    /// The sizes within all limits; the device's queues have at most `most` entries. The receive
    /// buffer has two equal halves.
    #[must_use]
    pub fn limited(mut self, most: u16) -> Self {
        let most = most.clamp(LEAST_QUEUE, MOST_QUEUE);
        self.send_queue = self.send_queue.clamp(LEAST_QUEUE, most);
        self.receive_queue = self.receive_queue.clamp(LEAST_QUEUE, most);
        self.send_bytes = self.send_bytes.max(LEAST_BUFFER);
        self.receive_bytes = self.receive_bytes.max(LEAST_BUFFER) & !1;
        self.mappings = unscale(scale(self.mappings));
        self
    }

    /// The sizes for datagrams, each of which has its own slot in the buffers.
    #[must_use]
    pub fn of_datagrams(mut self, most: u16) -> Self {
        let fitting =
            |bytes: u32| u16::try_from(bytes / crate::datagram::MOST as u32).unwrap_or(u16::MAX);
        self.send_queue = self.send_queue.min(most).min(fitting(self.send_bytes)).max(1);
        self.receive_queue = self.receive_queue.min(most).min(fitting(self.receive_bytes)).max(1);
        self
    }

    /// Reads a file of `/etc/rdma/rsocket`, given its name and text. An invalid or excessive value
    /// is ignored.
    pub fn read(&mut self, name: &str, text: &str) {
        let Some(number) = number(text) else { return };
        let short = u16::try_from(number);
        match (name, short) {
            ("sqsize_default", Ok(short)) => self.send_queue = short,
            ("rqsize_default", Ok(short)) => self.receive_queue = short,
            ("inline_default", Ok(short)) => self.inline = short.into(),
            ("iomap_size", Ok(short)) => self.mappings = unscale(scale(short)),
            ("mem_default", _) => self.receive_bytes = number.max(1),
            ("wmem_default", _) => {
                self.send_bytes =
                    if number < super::LOW_WATER { 2 * super::LOW_WATER } else { number };
            }
            _ => {}
        }
    }
}

/// The number at the start of a text.
fn number(text: &str) -> Option<u32> {
    let digits = text.trim_start();
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_datagrams_are_as_long_as_the_buffers_have_room_for() {
        let settings = Settings::default().of_datagrams(1000);
        assert_eq!((settings.send_queue, settings.receive_queue), (64, 64));
        let large = Settings { receive_bytes: 1 << 30, send_bytes: 1, ..Settings::default() };
        let large = large.of_datagrams(100);
        assert_eq!((large.send_queue, large.receive_queue), (1, 100));
    }

    #[test]
    fn files_change_what_they_name_and_nothing_else() {
        let mut settings = Settings::default();
        for (name, text) in [
            ("sqsize_default", "512\n"),
            ("rqsize_default", " 100"),
            ("inline_default", "16 bytes"),
            ("mem_default", "1000000\n"),
            ("wmem_default", "1"),
            ("iomap_size", "300"),
        ] {
            settings.read(name, text);
        }
        let wanted = Settings {
            send_queue: 512,
            receive_queue: 100,
            inline: 16,
            send_bytes: 4096,
            receive_bytes: 1_000_000,
            mappings: 256,
        };
        assert_eq!(settings, wanted);
        for (name, text) in [
            ("sqsize_default", "65536"),
            ("mem_default", "no"),
            ("other", "1"),
            ("mem_default", ""),
        ] {
            settings.read(name, text);
        }
        assert_eq!(settings, wanted);
    }

    #[test]
    fn limits_hold_for_any_numbers() {
        let small = Settings {
            send_queue: 0,
            receive_queue: 0,
            inline: 0,
            send_bytes: 0,
            receive_bytes: 0,
            mappings: 0,
        };
        let small = small.limited(0);
        assert_eq!((small.send_queue, small.receive_queue), (16, 16));
        assert_eq!((small.send_bytes, small.receive_bytes), (4096, 4096));
        let large = Settings {
            send_queue: u16::MAX,
            receive_queue: u16::MAX,
            receive_bytes: u32::MAX,
            ..Settings::default()
        };
        let large = large.limited(u16::MAX);
        assert_eq!((large.send_queue, large.receive_bytes % 2), (0xfffe, 0));
    }
}
