//! Lines for people: warnings on stderr, and the debug log of `VERBS_LOG_LEVEL` and
//! `VERBS_LOG_FILE` that providers write through `__verbs_log`.

use std::fs::File;
use std::io::Write;

use once_cell::sync::OnceCell;

use super::env;

/// One line on stderr, with the library's name in front. A closed stderr is no reason to fail.
macro_rules! notice {
    ($($arg:tt)*) => {
        $crate::sys::log::notice_line(format_args!($($arg)*))
    };
}
pub(crate) use notice;

/// Behind [`notice!`].
pub(crate) fn notice_line(text: core::fmt::Arguments<'_>) {
    cface::say!("libibverbs: {text}");
}

#[derive(Debug)]
struct Log {
    level: u32,
    file: File,
}

/// `None` until process initialisation, and when logging is off.
static LOG: OnceCell<Option<Log>> = OnceCell::new();

/// Reads the two variables. Without a file that can be appended to, logging is off, as in release
/// builds of rdma-core. A privileged program ignores the file, because its caller could choose any
/// path.
pub(crate) fn init() {
    LOG.get_or_init(|| {
        let level = std::env::var("VERBS_LOG_LEVEL").ok().and_then(|text| parse_level(&text))?;
        if level == abi::VERBS_LOG_LEVEL_NONE {
            return None;
        }
        let path = env::trusted("VERBS_LOG_FILE")?;
        let file = File::options().create(true).append(true).read(true).open(path).ok()?;
        Some(Log { level, file })
    });
}

/// Whether a message of this level is written at all.
pub(crate) fn is_wanted(level: u32) -> bool {
    matches!(LOG.get(), Some(Some(log)) if level <= log.level)
}

/// Writes a message as it is: a single write, because lines of several threads must not mix.
pub(crate) fn write(text: &[u8]) {
    if let Some(Some(log)) = LOG.get() {
        let _ = (&log.file).write_all(text);
    }
}

/// As `strtol` with base 0 reads it: decimal, `0x` or octal.
fn parse_level(text: &str) -> Option<u32> {
    let text = text.trim_start();
    let (digits, radix) = if let Some(hex) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        (hex, 16)
    } else if text.starts_with('0') {
        (text, 8)
    } else {
        (text, 10)
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    u32::from_str_radix(digits.get(..end)?, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_read_as_c_reads_numbers() {
        let texts = ["4", " 3x", "0x2", "01", "", "debug", "-1"];
        let levels = texts.map(parse_level);
        assert_eq!(levels, [Some(4), Some(3), Some(2), Some(1), None, None, None]);
    }
}
