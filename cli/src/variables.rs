//! Finds environment variables with mistyped names before a program starts.
//!
//! No library reads a variable such as `FERROVERBS_SOFT_FAULT`, so the program would run without
//! the faults that the user asked for.

use crate::settings;
use provider_loader::layers;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::process::Command;

/// The beginning of every variable of Ferroverbs.
const PREFIX: &str = "FERROVERBS_";
/// The beginning of the variables of the software device. No other plugin has such names.
const OF_SOFT: &str = "FERROVERBS_SOFT_";
/// Two names below this similarity (Jaro-Winkler, 0 to 1, without the prefix) are different words.
const CLOSE: f64 = 0.93;

/// Earlier names and the present ones.
const RENAMED: [(&str, &str); 1] = [("FERROVERBS_SOFT_WEATHER", "FERROVERBS_SOFT_IMPAIRMENT")];

/// Every variable that a library, a layer, the device or the command reads (settings.md).
const VARIABLES: [&str; 32] = [
    "FERROVERBS_CAPTURE",
    "FERROVERBS_CONFIG_DIR",
    "FERROVERBS_EMULATE",
    "FERROVERBS_FABRIC_DIR",
    "FERROVERBS_FABRIC_GROUP",
    "FERROVERBS_HOST",
    "FERROVERBS_HOSTFILE",
    "FERROVERBS_HOSTS",
    "FERROVERBS_LAYERS",
    "FERROVERBS_PROVIDER_DIR",
    "FERROVERBS_PROVIDER_RELEASE",
    "FERROVERBS_QUIET",
    "FERROVERBS_SOFT",
    "FERROVERBS_SOFT_CMA",
    "FERROVERBS_SOFT_CONTROL",
    "FERROVERBS_SOFT_EAGER",
    "FERROVERBS_SOFT_FAULTS",
    "FERROVERBS_SOFT_GIDS",
    "FERROVERBS_SOFT_HELPER",
    "FERROVERBS_SOFT_IMPAIRMENT",
    "FERROVERBS_SOFT_INTERFACES",
    "FERROVERBS_SOFT_KEYS",
    "FERROVERBS_SOFT_NAME",
    "FERROVERBS_SOFT_PEERS",
    "FERROVERBS_SOFT_STEERING",
    "FERROVERBS_SOFT_STRICT",
    "FERROVERBS_SOFT_WIRE",
    "FERROVERBS_STATS",
    "FERROVERBS_TRACE",
    "FERROVERBS_TREE",
    "FERROVERBS_VALIDATE",
    "FERROVERBS_VERBOSE",
];

/// Checks the names of the variables that `command` will have.
///
/// # Errors
/// A line with a name that nothing reads and that looks mistyped, and the similar setting.
pub(crate) fn check_names(command: &Command) -> crate::Result<()> {
    let layers = layer_variables(command);
    let removed: BTreeSet<_> =
        command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
    let inherited = std::env::vars_os().map(|(name, _)| name);
    let added = command.get_envs().filter(|(_, value)| value.is_some());
    inherited
        .filter(|name| !removed.contains(name.as_os_str()))
        .chain(added.map(|(name, _)| name.to_owned()))
        .filter(|name| !layers.contains(name))
        .try_for_each(|name| check_name(&name))
}

/// The variables of the layers that the command will have, which may be layers of other projects.
fn layer_variables(command: &Command) -> Vec<OsString> {
    let text = settings::value_of(command, layers::SETTING).unwrap_or_default();
    let text = text.to_string_lossy();
    let names = layers::split_names(&text).into_iter();
    names.map(|layer| settings::variable_of_layer(layer).into()).collect()
}

/// Names with another beginning are not ours; a name without a similar setting may belong to
/// another plugin or layer.
fn check_name(name: &OsStr) -> crate::Result<()> {
    let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { return Ok(()) };
    if VARIABLES.contains(&name) {
        return Ok(());
    }
    if let Some((old, new)) = RENAMED.iter().find(|(old, _)| *old == name) {
        return Err(format!("{old} is no setting; its name is {new} now"));
    }
    match similar(name) {
        Some(setting) => Err(format!("{name} is no setting; did you mean {setting}?")),
        None if name.starts_with(OF_SOFT) => Err(format!(
            "{name} is no setting of the software device; unset it (settings: ferroverbs-soft(7))"
        )),
        None => Ok(()),
    }
}

/// The setting whose name resembles `name` most; `None` if no name is close.
fn similar(name: &str) -> Option<&'static str> {
    let word = |name: &str| name.trim_start_matches(PREFIX).to_owned();
    let rated = VARIABLES
        .iter()
        .map(|setting| (strsim::jaro_winkler(&word(name), &word(setting)), *setting));
    let (_, setting) =
        rated.filter(|(rate, _)| *rate >= CLOSE).max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str) -> crate::Result<()> {
        check_name(OsStr::new(name))
    }

    #[test]
    fn a_mistyped_name_is_an_error_that_names_the_setting() {
        for (mistyped, setting) in [
            ("FERROVERBS_SOFT_FAULT", "FERROVERBS_SOFT_FAULTS"),
            ("FERROVERBS_SOFT_IMPAIRMENTS", "FERROVERBS_SOFT_IMPAIRMENT"),
            ("FERROVERBS_LAYER", "FERROVERBS_LAYERS"),
            ("FERROVERBS_EMULATED", "FERROVERBS_EMULATE"),
            ("FERROVERBS_VALIDATES", "FERROVERBS_VALIDATE"),
        ] {
            let why = check(mistyped).expect_err(mistyped);
            assert_eq!(why, format!("{mistyped} is no setting; did you mean {setting}?"));
        }
    }

    #[test]
    fn an_earlier_name_leads_to_the_present_one() {
        let why = check("FERROVERBS_SOFT_WEATHER").expect_err("renamed");
        assert!(why.ends_with("its name is FERROVERBS_SOFT_IMPAIRMENT now"), "{why}");
    }

    #[test]
    fn a_layer_of_others_has_its_variable() {
        let mut command = Command::new("true");
        command.env("FERROVERBS_TRACER", "depth=3");
        let why = check_names(&command).expect_err("no such layer");
        assert!(why.contains("did you mean FERROVERBS_TRACE?"), "{why}");
        command.env("FERROVERBS_LAYERS", "validate,tracer");
        assert_eq!(check_names(&command), Ok(()));
    }

    #[test]
    fn an_unknown_setting_of_the_software_device_is_an_error() {
        let why = check("FERROVERBS_SOFT_WHEATHER").expect_err("unknown");
        assert!(why.starts_with("FERROVERBS_SOFT_WHEATHER is no setting of the"), "{why}");
    }

    #[test]
    fn a_variable_of_another_plugin_is_none_of_our_business() {
        for name in
            ["FERROVERBS_MYPLUGIN_DEPTH", "FERROVERBS_TEST_STEPS", "FERROVERBS_FETCH", "PATH"]
        {
            assert_eq!(check(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn the_list_is_that_of_the_reference() {
        let page = include_str!("../../docs/reference/settings.md");
        let words = page.split('`').filter(|word| word.starts_with(PREFIX));
        let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let documented: BTreeSet<_> = words.filter(is_name).collect();
        assert_eq!(documented, BTreeSet::from(VARIABLES));
    }
}
