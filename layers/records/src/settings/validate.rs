//! `FERROVERBS_VALIDATE`, the settings of the layer `validate`.

use std::path::PathBuf;

use crate::checks::{CHECKS, Level};

/// The name of the variable.
pub const VARIABLE: &str = "FERROVERBS_VALIDATE";

/// The settings of the layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The checks that are on, by index in [`CHECKS`].
    pub enabled: Vec<bool>,
    /// True if the layer prints no warnings.
    pub errors_only: bool,
    /// True if the first error stops the process.
    pub abort: bool,
    /// The exit status of a process in which the layer found an error; 0 keeps the own status.
    pub exitcode: i32,
    /// The largest number of messages of one check.
    pub max: u32,
    /// True if a message about one line of the program is repeated.
    pub repeat: bool,
    /// True if objects that are left at the end of the process are reported.
    pub leaks: bool,
    /// True if the layer overwrites the fields that a failed completion does not define.
    pub poison: bool,
    /// True if messages have a stack.
    pub stack: bool,
    /// The file for messages as JSON lines.
    pub json: Option<PathBuf>,
    /// The file for messages as text, instead of the standard error.
    pub log: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: CHECKS.iter().map(|check| !check.optional).collect(),
            errors_only: false,
            abort: false,
            exitcode: 0,
            max: 10,
            repeat: false,
            leaks: false,
            poison: false,
            stack: true,
            json: None,
            log: None,
        }
    }
}

impl Settings {
    /// The settings in `text`, and a line for each word that is not understood.
    pub fn parse(text: &str) -> (Self, Vec<String>) {
        let mut settings = Self::default();
        let wrong = super::words(text, |name, value| settings.set(name, value));
        // The level applies after all words, independent of their order.
        let all = CHECKS.iter().zip(&mut settings.enabled);
        all.filter(|(check, _)| settings.errors_only && check.level == Level::Warning)
            .for_each(|(_, on)| *on = false);
        (settings, wrong)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let switch = || match value {
            "1" => Ok(true),
            "0" => Ok(false),
            _ => Err("the value must be 0 or 1".to_owned()),
        };
        let number = |most: u32| {
            let parsed = value.parse::<u32>().ok().filter(|number| *number <= most);
            parsed.ok_or(format!("the value must be a number up to {most}"))
        };
        match name {
            "off" => self.choose(value, false)?,
            "on" => self.choose(value, true)?,
            "only" => {
                self.enabled.fill(false);
                self.choose(value, true)?;
            }
            "level" => {
                self.errors_only = match value {
                    "error" => true,
                    "warning" => false,
                    _ => return Err("the value must be error or warning".to_owned()),
                };
            }
            "abort" => self.abort = switch()?,
            "stack" => self.stack = switch()?,
            "repeat" => self.repeat = switch()?,
            "leaks" => self.leaks = switch()?,
            "poison" => self.poison = switch()?,
            "exitcode" => self.exitcode = number(255)?.cast_signed(),
            "max" => self.max = number(u32::MAX)?,
            "json" => self.json = Some(value.into()),
            "log" => self.log = Some(value.into()),
            _ => {
                return Err(
                    "the settings are off, on, only, abort, exitcode, json, leaks, level, log, max, poison, repeat and stack"
                        .into(),
                );
            }
        }
        Ok(())
    }

    /// Switches checks on or off: ids with a comma between; `MR-*` is a family.
    fn choose(&mut self, ids: &str, on: bool) -> Result<(), String> {
        for id in ids.split(',').map(str::trim) {
            let mut known = false;
            for (check, state) in CHECKS.iter().zip(&mut self.enabled) {
                let family =
                    id.strip_suffix('*').is_some_and(|family| check.id.starts_with(family));
                if family || check.id == id {
                    *state = on;
                    known = true;
                }
            }
            if !known {
                return Err(format!("there is no check {id:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_on(settings: &Settings, id: &str) -> bool {
        settings.enabled[CHECKS.iter().position(|check| check.id == id).expect("a check")]
    }

    #[test]
    fn words_are_read_as_the_sanitizers_read_theirs() {
        let (settings, wrong) = Settings::parse(
            "off=MR-04,QP-*:abort=1:exitcode=66:json=/tmp/x:stack=0:max=3:repeat=1:leaks=1:poison=1",
        );
        assert!(wrong.is_empty(), "{wrong:?}");
        assert!(
            !is_on(&settings, "MR-04") && !is_on(&settings, "QP-02") && is_on(&settings, "MR-01")
        );
        assert!(settings.abort && !settings.stack && settings.repeat && settings.leaks);
        assert!(settings.poison && !Settings::default().poison);
        assert_eq!((settings.exitcode, settings.max), (66, 3));
        assert_eq!(settings.json.as_deref(), Some(std::path::Path::new("/tmp/x")));
        let (only, wrong) = Settings::parse("only=CQ-03");
        assert!(wrong.is_empty() && is_on(&only, "CQ-03") && !is_on(&only, "MR-01"));
        assert_eq!(Settings::parse("").0, Settings::default());
        let optional = Settings::parse("on=CM-07").0;
        assert!(is_on(&optional, "CM-07") && !is_on(&Settings::default(), "CM-07"));
        assert!(is_on(&optional, "CM-01") && !is_on(&optional, "CM-08"));
        for text in ["level=error:on=CM-07", "on=CM-07:level=error"] {
            let errors = Settings::parse(text).0;
            assert!(is_on(&errors, "CM-01") && !is_on(&errors, "CQ-03"), "{text}");
            assert!(!is_on(&errors, "CM-07"), "a warning, whoever names it: {text}");
        }
        assert!(is_on(&Settings::parse("level=warning").0, "CQ-03"));
        assert_eq!(Settings::parse("level=2").1.len(), 1);
    }

    #[test]
    fn each_unknown_word_has_a_line_and_the_other_words_count() {
        let (settings, wrong) =
            Settings::parse("of=MR-01:off=XX-99:exitcode=300:abort=yes:stack=0");
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(!settings.stack && !settings.abort && settings.exitcode == 0);
    }
}
