//! `FERROVERBS_STATS`, the settings of the layer `stats`.

use std::path::PathBuf;

/// The name of the variable.
pub const VARIABLE: &str = "FERROVERBS_STATS";

/// The settings of the layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The folder of the counters; `None` is the folder of the user.
    pub dir: Option<PathBuf>,
    /// The number of objects that have counters of their own.
    pub objects: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { dir: None, objects: 512 }
    }
}

/// The largest number of objects: 128 MiB.
const MOST: u64 = 1 << 16;
/// The smallest number: the process, a device, and a few objects of each kind.
const LEAST: u64 = 16;

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
            "objects" => {
                let parsed = value.parse::<u64>().ok().filter(|number| *number <= MOST);
                self.objects =
                    parsed.ok_or(format!("the value must be a number up to {MOST}"))?.max(LEAST);
            }
            _ => return Err("the settings are dir and objects".into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_each_unknown_word_has_a_line() {
        let (settings, wrong) = Settings::parse("dir=/tmp/x:objects=99:nonsense:objects=many");
        let wanted = Settings { dir: Some("/tmp/x".into()), objects: 99 };
        assert_eq!((settings, wrong.len()), (wanted, 2));
        assert_eq!(Settings::parse("objects=1").0.objects, LEAST);
        assert_eq!(Settings::parse("").0, Settings::default());
    }
}
