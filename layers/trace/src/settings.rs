//! `FERROVERBS_TRACE`: words with a colon between, as those of `validate`.

use std::path::PathBuf;
use std::sync::OnceLock;

use layer_records::trace::CHUNK;

/// The variable.
const VARIABLE: &str = "FERROVERBS_TRACE";

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Where files go; otherwise the user's own folder.
    pub(crate) dir: Option<PathBuf>,
    /// How many records the ring has, a power of two.
    pub(crate) records: u64,
    /// The file stays when all went well.
    pub(crate) keep: bool,
    /// How many errors are told.
    pub(crate) dumps: u32,
    /// How long posting took is recorded, too.
    pub(crate) posts: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { dir: None, records: 1 << 14, keep: false, dumps: 1, posts: false }
    }
}

/// At most 4 GiB.
const MOST: u64 = 1 << 25;

impl Settings {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = |most: u64| {
            let parsed = value.parse::<u64>().ok().filter(|number| *number <= most);
            parsed.ok_or(format!("it takes a number up to {most}"))
        };
        match name {
            "dir" => self.dir = Some(value.into()),
            "records" => self.records = number(MOST)?.max(8 * CHUNK).next_power_of_two(),
            "keep" => self.keep = number(1)? == 1,
            "posts" => self.posts = number(1)? == 1,
            "dumps" => self.dumps = number(1000)? as u32,
            _ => return Err("there is dir, dumps, keep, posts and records".into()),
        }
        Ok(())
    }
}

/// Read once. A set-uid program has no layers at all.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let mut settings = Settings::default();
        layer_tap::settings::read(VARIABLE, "trace", |name, value| settings.set(name, value));
        settings
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Settings, Vec<String>) {
        let mut settings = Settings::default();
        let wrong = layer_tap::settings::words(text, |name, value| settings.set(name, value));
        (settings, wrong)
    }

    #[test]
    fn words_are_read_and_what_says_nothing_is_told() {
        let (settings, wrong) =
            parse("dir=/tmp/x:records=1000:keep=1:dumps=3:posts=1:nonsense:keep=2");
        let wanted = Settings {
            dir: Some("/tmp/x".into()),
            records: 1024,
            keep: true,
            dumps: 3,
            posts: true,
        };
        assert_eq!((settings, wrong.len()), (wanted, 2));
        assert_eq!(parse("records=1").0.records, 8 * CHUNK);
        assert_eq!(parse("").0, Settings::default());
    }
}
