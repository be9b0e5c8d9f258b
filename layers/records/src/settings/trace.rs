//! `FERROVERBS_TRACE`, the settings of the layer `trace` (the flight recorder).

use std::path::PathBuf;

use crate::trace::CHUNK;

/// The name of the variable.
pub const VARIABLE: &str = "FERROVERBS_TRACE";

/// The settings of the layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The folder of the records; `None` is the folder of the user.
    pub dir: Option<PathBuf>,
    /// The number of records in the ring, a power of two.
    pub records: u64,
    /// True if the file stays when the program ended without an error.
    pub keeps_file: bool,
    /// The number of failed completions whose history is written as text.
    pub dumps: u32,
    /// True if the duration of posts is recorded.
    pub posts: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { dir: None, records: 1 << 14, keeps_file: false, dumps: 1, posts: false }
    }
}

/// The largest number of records: 4 GiB.
const MOST: u64 = 1 << 25;

impl Settings {
    /// The settings in `text`, and a line for each word that is not understood.
    pub fn parse(text: &str) -> (Self, Vec<String>) {
        let mut settings = Self::default();
        let wrong = super::words(text, |name, value| settings.set(name, value));
        (settings, wrong)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = |most: u64| {
            let parsed = value.parse::<u64>().ok().filter(|number| *number <= most);
            parsed.ok_or(format!("the value must be a number up to {most}"))
        };
        match name {
            "dir" => self.dir = Some(value.into()),
            "records" => self.records = number(MOST)?.max(8 * CHUNK).next_power_of_two(),
            "keep" => self.keeps_file = number(1)? == 1,
            "posts" => self.posts = number(1)? == 1,
            "dumps" => self.dumps = number(1000)? as u32,
            _ => return Err("the settings are dir, dumps, keep, posts and records".into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_each_unknown_word_has_a_line() {
        let (settings, wrong) =
            Settings::parse("dir=/tmp/x:records=1000:keep=1:dumps=3:posts=1:nonsense:keep=2");
        let wanted = Settings {
            dir: Some("/tmp/x".into()),
            records: 1024,
            keeps_file: true,
            dumps: 3,
            posts: true,
        };
        assert_eq!((settings, wrong.len()), (wanted, 2));
        assert_eq!(Settings::parse("records=1").0.records, 8 * CHUNK);
        assert_eq!(Settings::parse("").0, Settings::default());
    }
}
