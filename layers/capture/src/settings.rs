//! `FERROVERBS_CAPTURE`: words with a colon between, as those of `trace`.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The variable.
const VARIABLE: &str = "FERROVERBS_CAPTURE";

/// What a packet is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// SEND, in whichever form.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ, and its answers.
    Read,
    /// Atomic operations, and their answers.
    Atomic,
    /// All else.
    Other,
}

const CLASSES: [(&str, Class); 5] = [
    ("send", Class::Send),
    ("write", Class::Write),
    ("read", Class::Read),
    ("atomic", Class::Atomic),
    ("other", Class::Other),
];

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Where files go; otherwise the user's own folder.
    pub(crate) dir: Option<PathBuf>,
    /// Bytes of a packet that are kept, Ethernet header included; 0: all.
    pub(crate) snap: usize,
    /// Bytes of a file; then another begins.
    pub(crate) size: u64,
    /// Files of a process; the oldest goes.
    pub(crate) files: u64,
    /// Packets of a message that is synthesised: the first ones, and the last.
    pub(crate) packets: usize,
    /// Only these queue pairs, or all.
    qps: Vec<u32>,
    /// Only these devices, or all.
    devices: Vec<String>,
    /// Only these operations, or all.
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

/// All headers fit, and some payload.
const SNAP_LEAST: usize = 128;
const SNAP_MOST: usize = 1 << 16;
const SIZE_LEAST: u64 = 64 << 10;
const FILES_MOST: u64 = 1 << 20;
const PACKETS_MOST: usize = 1 << 20;

/// A number, `0x` in front for hexadecimal, or behind it K, M or G.
fn number(value: &str) -> Option<u64> {
    if let Some(hex) = value.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    let units = [('K', 10), ('M', 20), ('G', 30)];
    let unit = units.iter().find_map(|(unit, bits)| Some((value.strip_suffix(*unit)?, *bits)));
    let (digits, bits) = unit.unwrap_or((value, 0));
    digits.parse::<u64>().ok()?.checked_mul(1 << bits)
}

fn within(value: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = number(value).filter(|number| (least..=most).contains(number));
    number.ok_or(format!("it takes a number from {least} to {most}"))
}

fn list<T>(value: &str, parse: impl Fn(&str) -> Option<T>, what: &str) -> Result<Vec<T>, String> {
    let all = value.split(',').map(parse).collect::<Option<Vec<T>>>();
    all.ok_or(format!("it takes {what}, with commas between"))
}

impl Settings {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "dir" => self.dir = Some(value.into()),
            "snap" if value == "0" => self.snap = 0,
            "snap" => {
                self.snap = within(value, SNAP_LEAST as u64, SNAP_MOST as u64)
                    .map_err(|why| format!("{why}, or 0"))? as usize;
            }
            "size" => self.size = within(value, SIZE_LEAST, u64::MAX)?,
            "files" => self.files = within(value, 1, FILES_MOST)?,
            "packets" => self.packets = within(value, 1, PACKETS_MOST as u64)? as usize,
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
                return Err("there is device, dir, files, op, packets, qp, size and snap".into());
            }
        }
        Ok(())
    }

    /// Whether packets of this queue pair are wanted.
    pub(crate) fn wants(&self, device: &str, qp: u32) -> bool {
        (self.qps.is_empty() || self.qps.contains(&qp))
            && (self.devices.is_empty() || self.devices.iter().any(|name| name == device))
    }

    /// Whether packets of this operation are wanted.
    pub(crate) fn wants_class(&self, class: Class) -> bool {
        self.classes.is_empty() || self.classes.contains(&class)
    }
}

/// Read once. A set-uid program has no layers at all.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let mut settings = Settings::default();
        layer_tap::settings::read(VARIABLE, "capture", |name, value| settings.set(name, value));
        settings
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Settings, usize) {
        let mut settings = Settings::default();
        let wrong = layer_tap::settings::words(text, |name, value| settings.set(name, value));
        (settings, wrong.len())
    }

    #[test]
    fn words_are_read_and_what_says_nothing_is_told() {
        let (settings, wrong) = parse("dir=/tmp/x:snap=0:size=1M:files=2:packets=3");
        let wanted = Settings {
            dir: Some("/tmp/x".into()),
            snap: 0,
            size: 1 << 20,
            files: 2,
            packets: 3,
            ..Settings::default()
        };
        assert_eq!((settings, wrong), (wanted, 0));
        for text in ["snap=5", "snap=1G", "size=1", "files=0", "qp=x", "op=sends", "nonsense"] {
            assert_eq!(parse(text), (Settings::default(), 1), "{text}");
        }
    }

    #[test]
    fn filters_leave_what_they_name() {
        let (settings, wrong) = parse("qp=0x11,18:device=soft0:op=send,read");
        assert_eq!(wrong, 0);
        assert!(settings.wants("soft0", 17) && settings.wants("soft0", 18));
        assert!(!settings.wants("soft0", 19) && !settings.wants("rxe0", 17));
        assert!(settings.wants_class(Class::Read) && !settings.wants_class(Class::Write));
        let (all, _) = parse("");
        assert!(all.wants("anything", 1) && all.wants_class(Class::Other));
    }
}
