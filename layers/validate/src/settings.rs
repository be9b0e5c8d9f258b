//! `FERROVERBS_VALIDATE`: words like those of the sanitizers' options, a colon between.

use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::checks::{CHECKS, Level};

/// The variable.
pub(crate) const VARIABLE: &str = "FERROVERBS_VALIDATE";

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// By index in [`CHECKS`].
    pub(crate) on: Vec<bool>,
    /// No warnings.
    pub(crate) errors_only: bool,
    /// Stop the process at the first error.
    pub(crate) abort: bool,
    /// Exit status of a process that was told of an error; 0 leaves its own.
    pub(crate) exitcode: i32,
    /// How often a check speaks.
    pub(crate) max: u32,
    /// Whether a place is told each time.
    pub(crate) repeat: bool,
    /// Whether what is left when the process ends is told, as it is when a device is closed.
    pub(crate) leaks: bool,
    /// Whether what a failed completion does not have is overwritten, so that its use shows.
    pub(crate) poison: bool,
    /// Whether stacks are printed.
    pub(crate) stack: bool,
    /// Where JSON lines go besides.
    pub(crate) json: Option<PathBuf>,
    /// Where text goes instead of stderr.
    pub(crate) log: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            on: CHECKS.iter().map(|check| !check.optional).collect(),
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
    /// What the text says, and a line for each word that says nothing.
    pub(crate) fn parse(text: &str) -> (Self, Vec<String>) {
        let mut settings = Self::default();
        let wrong = layer_tap::settings::words(text, |name, value| settings.set(name, value));
        // Whatever order the words have.
        let all = CHECKS.iter().zip(&mut settings.on);
        all.filter(|(check, _)| settings.errors_only && check.level == Level::Warning)
            .for_each(|(_, on)| *on = false);
        (settings, wrong)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let switch = || match value {
            "1" => Ok(true),
            "0" => Ok(false),
            _ => Err("it takes 0 or 1".to_owned()),
        };
        let number = |most: u32| {
            let parsed = value.parse::<u32>().ok().filter(|number| *number <= most);
            parsed.ok_or(format!("it takes a number up to {most}"))
        };
        match name {
            "off" => self.choose(value, false)?,
            "on" => self.choose(value, true)?,
            "only" => {
                self.on.fill(false);
                self.choose(value, true)?;
            }
            "level" => {
                self.errors_only = match value {
                    "error" => true,
                    "warning" => false,
                    _ => return Err("it takes error or warning".to_owned()),
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
                    "there is off, on, only, abort, exitcode, json, leaks, level, log, max, poison, repeat and stack"
                        .into(),
                );
            }
        }
        Ok(())
    }

    /// Ids with a comma between; `MR-*` is a family.
    fn choose(&mut self, ids: &str, on: bool) -> Result<(), String> {
        for id in ids.split(',').map(str::trim) {
            let mut known = false;
            for (check, state) in CHECKS.iter().zip(&mut self.on) {
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

/// Read once. A set-uid program does not let its user name files.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let (mut settings, wrong) = Settings::parse(&text);
        // SAFETY: neither call has requirements.
        if unsafe { libc::getuid() != libc::geteuid() } {
            (settings.json, settings.log) = (None, None);
        }
        for why in wrong {
            cface::say!("ferroverbs validate: {VARIABLE}: {why}; ignored");
        }
        for path in [&settings.json, &settings.log].into_iter().flatten() {
            if let Err(error) = File::options().create(true).append(true).open(path) {
                cface::say!(
                    "ferroverbs validate: {VARIABLE}: cannot write {}: {error}",
                    path.display()
                );
            }
        }
        settings
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_on(settings: &Settings, id: &str) -> bool {
        settings.on[CHECKS.iter().position(|check| check.id == id).expect("a check")]
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
    fn what_says_nothing_is_told_and_the_rest_counts() {
        let (settings, wrong) =
            Settings::parse("of=MR-01:off=XX-99:exitcode=300:abort=yes:stack=0");
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(!settings.stack && !settings.abort && settings.exitcode == 0);
    }
}
