//! `FERROVERBS_CAPTURE`, the settings of the layer `capture`.

use std::path::PathBuf;

/// The name of the variable.
pub const VARIABLE: &str = "FERROVERBS_CAPTURE";

/// The kind of operation that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Every kind of SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ requests and responses.
    Read,
    /// Atomic requests and responses.
    Atomic,
    /// Every other packet.
    Other,
}

const CLASSES: [(&str, Class); 5] = [
    ("send", Class::Send),
    ("write", Class::Write),
    ("read", Class::Read),
    ("atomic", Class::Atomic),
    ("other", Class::Other),
];

/// The settings of the layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The folder of the packets; `None` is the folder of the user.
    pub dir: Option<PathBuf>,
    /// Bytes of a packet that are kept, Ethernet header included; 0 keeps all.
    pub snap: usize,
    /// Bytes of a file, after which the next file begins.
    pub size: u64,
    /// Files of a process; the layer removes the oldest.
    pub files: u64,
    /// Packets of a synthesised message: the first ones, and the last.
    pub packets: usize,
    /// The queue pairs to capture; empty captures all.
    qps: Vec<u32>,
    /// The devices to capture; empty captures all.
    devices: Vec<String>,
    /// The operations to capture; empty captures all.
    classes: Vec<Class>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dir: None,
            snap: 256,
            size: 64 << 20,
            files: 4,
            packets: 16,
            qps: Vec::new(),
            devices: Vec::new(),
            classes: Vec::new(),
        }
    }
}

/// The smallest `snap`: all headers and some payload.
const SNAP_LEAST: usize = 128;
const SNAP_MOST: usize = 1 << 16;
const SIZE_LEAST: u64 = 64 << 10;
const FILES_MOST: u64 = 1 << 20;
const PACKETS_MOST: usize = 1 << 20;

/// Parses a decimal number with an optional unit K, M or G, or a hexadecimal one with `0x`.
fn number(value: &str) -> Option<u64> {
    if let Some(hex) = value.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    let units = [('K', 10), ('M', 20), ('G', 30)];
    let unit = units.iter().find_map(|(unit, bits)| Some((value.strip_suffix(*unit)?, *bits)));
    let (digits, bits) = unit.unwrap_or((value, 0));
    digits.parse::<u64>().ok()?.checked_mul(1 << bits)
}

fn parse_within(value: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = number(value).filter(|number| (least..=most).contains(number));
    number.ok_or(format!("the value must be a number from {least} to {most}"))
}

fn list<T>(value: &str, parse: impl Fn(&str) -> Option<T>, what: &str) -> Result<Vec<T>, String> {
    let all = value.split(',').map(parse).collect::<Option<Vec<T>>>();
    all.ok_or(format!("the value must be a list of {what}, with commas between"))
}

impl Settings {
    /// The settings in `text`, and a line for each word that is not understood.
    pub fn parse(text: &str) -> (Self, Vec<String>) {
        let mut settings = Self::default();
        let wrong = super::words(text, |name, value| settings.set(name, value));
        (settings, wrong)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "dir" => self.dir = Some(value.into()),
            "snap" if value == "0" => self.snap = 0,
            "snap" => {
                self.snap = parse_within(value, SNAP_LEAST as u64, SNAP_MOST as u64)
                    .map_err(|why| format!("{why}, or 0"))? as usize;
            }
            "size" => self.size = parse_within(value, SIZE_LEAST, u64::MAX)?,
            "files" => self.files = parse_within(value, 1, FILES_MOST)?,
            "packets" => self.packets = parse_within(value, 1, PACKETS_MOST as u64)? as usize,
            "qp" => {
                let parse = |word: &str| u32::try_from(number(word)?).ok();
                self.qps = list(value, parse, "numbers of queue pairs")?;
            }
            "device" => {
                let parse = |word: &str| (!word.is_empty()).then(|| word.to_owned());
                self.devices = list(value, parse, "names of devices")?;
            }
            "op" => {
                let parse = |word: &str| {
                    CLASSES.iter().find(|(name, _)| *name == word).map(|(_, class)| *class)
                };
                self.classes = list(value, parse, "send, write, read, atomic, other")?;
            }
            _ => {
                return Err(
                    "the settings are device, dir, files, op, packets, qp, size and snap".into()
                );
            }
        }
        Ok(())
    }

    /// True if the filters let packets of this queue pair through.
    pub fn passes(&self, device: &str, qp: u32) -> bool {
        (self.qps.is_empty() || self.qps.contains(&qp))
            && (self.devices.is_empty() || self.devices.iter().any(|name| name == device))
    }

    /// True if the filters let packets of this operation through.
    pub fn wants_class(&self, class: Class) -> bool {
        self.classes.is_empty() || self.classes.contains(&class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_each_unknown_word_has_a_line() {
        let (settings, wrong) = Settings::parse("dir=/tmp/x:snap=0:size=1M:files=2:packets=3");
        let wanted = Settings {
            dir: Some("/tmp/x".into()),
            snap: 0,
            size: 1 << 20,
            files: 2,
            packets: 3,
            ..Settings::default()
        };
        assert_eq!((settings, wrong.len()), (wanted, 0));
        for text in ["snap=5", "snap=1G", "size=1", "files=0", "qp=x", "op=sends", "nonsense"] {
            let (settings, wrong) = Settings::parse(text);
            assert_eq!((settings, wrong.len()), (Settings::default(), 1), "{text}");
        }
    }

    #[test]
    fn a_filter_lets_only_the_named_packets_through() {
        let (settings, wrong) = Settings::parse("qp=0x11,18:device=soft0:op=send,read");
        assert!(wrong.is_empty());
        assert!(settings.passes("soft0", 17) && settings.passes("soft0", 18));
        assert!(!settings.passes("soft0", 19) && !settings.passes("rxe0", 17));
        assert!(settings.wants_class(Class::Read) && !settings.wants_class(Class::Write));
        let (all, _) = Settings::parse("");
        assert!(all.passes("anything", 1) && all.wants_class(Class::Other));
    }
}
