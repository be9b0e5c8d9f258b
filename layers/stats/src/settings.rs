//! `FERROVERBS_STATS`: words with a colon between, as those of `validate`.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The variable.
const VARIABLE: &str = "FERROVERBS_STATS";

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Where files go; otherwise the user's own folder.
    pub(crate) dir: Option<PathBuf>,
    /// How many objects have counters of their own.
    pub(crate) objects: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { dir: None, objects: 512 }
    }
}

/// 128 MiB.
const MOST: u64 = 1 << 16;
/// The process, a device, and a few objects of each kind.
const LEAST: u64 = 16;

impl Settings {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "dir" => self.dir = Some(value.into()),
            "objects" => {
                let parsed = value.parse::<u64>().ok().filter(|number| *number <= MOST);
                self.objects = parsed.ok_or(format!("it takes a number up to {MOST}"))?.max(LEAST);
            }
            _ => return Err("there is dir and objects".into()),
        }
        Ok(())
    }
}

/// Read once. A set-uid program has no layers at all.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let mut settings = Settings::default();
        layer_tap::settings::read(VARIABLE, "stats", |name, value| settings.set(name, value));
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
        let (settings, wrong) = parse("dir=/tmp/x:objects=99:nonsense:objects=many");
        let wanted = Settings { dir: Some("/tmp/x".into()), objects: 99 };
        assert_eq!((settings, wrong.len()), (wanted, 2));
        assert_eq!(parse("objects=1").0.objects, LEAST);
        assert_eq!(parse("").0, Settings::default());
    }
}
