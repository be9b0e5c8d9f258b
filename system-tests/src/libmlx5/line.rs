//! The lines that plugin and program send.

use abi::ibv_sge;
use std::str::FromStr;

/// The words of a line, one after the other.
#[derive(Debug)]
pub(super) struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    pub(super) fn of(line: &'a str) -> Self {
        Self(line.split_whitespace())
    }

    /// The next word.
    pub(super) fn word(&mut self) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| "a line is too short".to_owned())
    }

    /// The next word as a number in hexadecimal digits.
    pub(super) fn number(&mut self) -> Result<u64, String> {
        number(self.word()?)
    }

    /// The next word as a number of 32 bits.
    pub(super) fn number32(&mut self) -> Result<u32, String> {
        u32::try_from(self.number()?).map_err(|e| e.to_string())
    }

    /// The next word as bytes; `-` for none.
    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, String> {
        from_hex(self.word()?)
    }

    /// A list of memory, with its count in front.
    pub(super) fn list(&mut self) -> Result<Vec<ibv_sge>, String> {
        let count = usize::from_str(self.word()?).map_err(|e| e.to_string())?;
        let one = |word: &str| {
            let parts: Vec<u64> = word.split(':').map(number).collect::<Result<_, _>>()?;
            let &[addr, length, lkey] = parts.as_slice() else {
                return Err(format!("no memory: {word}"));
            };
            Ok(ibv_sge { addr, length: length as u32, lkey: lkey as u32 })
        };
        (0..count).map(|_| one(self.word()?)).collect()
    }
}

fn number(word: &str) -> Result<u64, String> {
    u64::from_str_radix(word, 16).map_err(|e| format!("{word}: {e}"))
}

/// Bytes from hexadecimal digits; `-` for none.
pub(super) fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let digits = if text == "-" { "" } else { text };
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).map_err(|e| e.to_string())?;
        u8::from_str_radix(pair, 16).map_err(|e| format!("{pair}: {e}"))
    };
    digits.as_bytes().chunks(2).map(byte).collect()
}

/// Hexadecimal digits; `-` for no bytes.
pub(super) fn to_hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
