//! Checks the environment variables of a program before the program starts.
//!
//! The library goes on without a setting that it does not understand. A program under
//! `ferroverbs validate -o exitcod=66` would therefore run without the check and end with status 0.

use crate::installation;
use crate::output;
use crate::tree;
use layer_records::settings::{refused_words, validate};
use provider_loader::layers;
use soft_semantics::devices::NamePattern;
use soft_semantics::emulated::{self, EmulatedDevice};
use soft_semantics::gid_order::GidOrder;
use soft_semantics::{devices, faults, gid_order};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

const DEVICES: &str = "FERROVERBS_SOFT";
const EMULATE: &str = "FERROVERBS_EMULATE";
const FAULTS: &str = "FERROVERBS_SOFT_FAULTS";
/// The variable with the names of the software devices.
pub(crate) const NAME: &str = "FERROVERBS_SOFT_NAME";
/// The variable with the order of the GID table of a software device.
pub(crate) const GIDS: &str = "FERROVERBS_SOFT_GIDS";

/// Checks the settings that the software device and the layers of `command` will read.
///
/// # Errors
/// A line with the first variable that is malformed, the value and the allowed values.
pub(crate) fn check_environment(command: &Command) -> crate::Result<()> {
    let library = installation::library_folder()?.join(installation::LIBRARY);
    let value = |name: &str| value_of(command, name);
    check_values(value, |layer| layers::find(layer, Some(&library)).map(|_| ()))
}

/// Checks that libibverbs offers the device of a vendor that the environment of `command` asks for.
/// The plugin loader of libibverbs decides, so each way to name a provider works.
///
/// # Errors
/// A line with the Debian package that has the provider.
pub(crate) fn check_emulated(command: &Command) -> crate::Result<()> {
    let text = |name: &str| value_of(command, name).and_then(|value| value.into_string().ok());
    let emulated = text(EMULATE).and_then(|text| EmulatedDevice::parse(text.trim()));
    let Some(device) = emulated else { return Ok(()) };
    let is_off = text(DEVICES).is_some_and(|text| devices::parse(text.trim()) == Some(0));
    if is_off || !tree::announced_names(&tree::environment_of(command))?.is_empty() {
        return Ok(());
    }
    let name = device.provider();
    // libibverbs leaves a device out, and says so, where the kernel has its name.
    if Path::new("/sys/class/infiniband").join(format!("{name}_0")).exists() {
        return Ok(());
    }
    Err(format!(
        "{EMULATE}={name}: there is no provider lib{name}-rdmav<N>.so; install Debian's package \
         ibverbs-providers"
    ))
}

/// The variable with the settings of a layer.
pub(crate) fn variable_of_layer(layer: &str) -> String {
    format!("FERROVERBS_{}", layer.to_ascii_uppercase())
}

/// The value of a variable in the environment of a command.
pub(crate) fn value_of(command: &Command, name: &str) -> Option<OsString> {
    let set = command.get_envs().find(|(variable, _)| *variable == OsStr::new(name));
    match set {
        Some((_, value)) => value.map(OsStr::to_owned),
        None => std::env::var_os(name),
    }
}

/// As [`check_environment`], with the environment and the search for a layer as arguments.
fn check_values(
    value_of: impl Fn(&str) -> Option<OsString>,
    find_layer: impl Fn(&str) -> crate::Result<()>,
) -> crate::Result<()> {
    let text_of = |name: &str| -> crate::Result<Option<String>> {
        let Some(value) = value_of(name).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let text = value.into_string();
        text.map(Some).map_err(|value| format!("{name}={}: not UTF-8", value.to_string_lossy()))
    };
    if let Some(text) = text_of(DEVICES)? {
        parse_devices(text.trim()).map_err(|why| format!("{DEVICES}={text}: {why}"))?;
    }
    if let Some(text) = text_of(NAME)?
        && NamePattern::parse(text.trim()).is_none()
    {
        return Err(format!("{NAME}={text}: must be {}", devices::NAMES_ALLOWED));
    }
    if let Some(text) = text_of(GIDS)?
        && GidOrder::parse(text.trim()).is_none()
    {
        return Err(format!("{GIDS}={text}: must be {}", gid_order::ALLOWED));
    }
    if let Some(text) = text_of(EMULATE)? {
        parse_emulate(text.trim()).map_err(|why| format!("{EMULATE}={text}: {why}"))?;
    }
    if let Some(text) = text_of(FAULTS)? {
        parse_faults(&text).map_err(|why| format!("{FAULTS}: {why}"))?;
    }
    let layers = text_of(layers::SETTING)?.unwrap_or_default();
    for layer in layers::split_names(&layers) {
        find_layer(layer).map_err(|why| format!("{}={layers}: {why}", layers::SETTING))?;
        let variable = variable_of_layer(layer);
        let Some(text) = text_of(&variable)? else { continue };
        if let Some(why) = refused_words(layer, &text).first() {
            return Err(format!("{variable}: {why}"));
        }
        if layer == "validate" {
            let (settings, _) = validate::Settings::parse(&text);
            for file in [&settings.json, &settings.log].into_iter().flatten() {
                output::check_writable(file).map_err(|why| format!("{variable}: {why}"))?;
            }
        }
    }
    Ok(())
}

/// The names of the software devices by a value of `FERROVERBS_SOFT_NAME`; the library goes on with
/// `soft0` for a malformed value.
pub(crate) fn device_names(value: Option<&OsStr>) -> NamePattern {
    let text = value.and_then(OsStr::to_str).unwrap_or_default();
    NamePattern::parse(text.trim()).unwrap_or_default()
}

/// The order of the GID table by a value of `FERROVERBS_SOFT_GIDS`, as [`device_names`].
pub(crate) fn gid_order(value: Option<&OsStr>) -> GidOrder {
    let text = value.and_then(OsStr::to_str).unwrap_or_default();
    GidOrder::parse(text.trim()).unwrap_or_default()
}

/// The value of `-s`.
pub(crate) fn parse_devices(value: &str) -> Result<String, String> {
    match devices::parse(value) {
        Some(_) => Ok(value.to_owned()),
        None => Err(format!("must be {}", devices::ALLOWED)),
    }
}

/// The value of `--emulate`.
pub(crate) fn parse_emulate(value: &str) -> Result<String, String> {
    match EmulatedDevice::parse(value) {
        Some(_) => Ok(value.to_owned()),
        None => Err(format!("must be {}", emulated::ALLOWED)),
    }
}

/// The value of `-f`.
pub(crate) fn parse_faults(value: &str) -> Result<String, String> {
    match faults::parse(value) {
        Ok(_) => Ok(value.to_owned()),
        Err(why) => Err(format!("{why} (FAULTS in ferroverbs-soft(7))")),
    }
}

/// The settings of a layer on the command line, such as the value of `ferroverbs validate -o`.
pub(crate) fn parse_layer_settings(layer: &str, value: &str) -> Result<String, String> {
    match refused_words(layer, value).first() {
        None => Ok(value.to_owned()),
        Some(why) => Err(format!("{why} (ferroverbs-layers(7))")),
    }
}

/// The value of an option that is a setting of a layer, such as `--records` of `ferroverbs trace`.
pub(crate) fn parse_layer_number(layer: &str, name: &str, value: &str) -> Result<u64, String> {
    if let Some(why) = refused_words(layer, &format!("{name}={value}")).first() {
        return Err(why.split_once(": ").map_or(why.as_str(), |(_, why)| why).to_owned());
    }
    value.parse().map_err(|_| "must be a number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)]) -> crate::Result<()> {
        let value_of = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let known = ["validate", "trace", "capture", "stats", "/opt/other.so"];
        check_values(value_of, |layer| {
            known.contains(&layer).then_some(()).ok_or_else(|| format!("there is no {layer}"))
        })
    }

    #[test]
    fn each_malformed_variable_is_an_error_that_names_the_variable() {
        assert_eq!(check(&[]), Ok(()));
        for (name, value) in [
            ("FERROVERBS_SOFT", "1000"),
            ("FERROVERBS_SOFT", "maybe"),
            ("FERROVERBS_SOFT_FAULTS", "nonsense"),
            ("FERROVERBS_SOFT_NAME", "rxe"),
            ("FERROVERBS_SOFT_NAME", "../%d"),
            ("FERROVERBS_SOFT_GIDS", "mlx6"),
            ("FERROVERBS_EMULATE", "mlx6"),
            ("FERROVERBS_LAYERS", "validat"),
            ("FERROVERBS_LAYERS", "trace,nonsense"),
            ("FERROVERBS_VALIDATE", "exitcod=66"),
            ("FERROVERBS_VALIDATE", "json=/not/there/file"),
            ("FERROVERBS_TRACE", "records=many"),
            ("FERROVERBS_CAPTURE", "snap=3"),
            ("FERROVERBS_STATS", "nonsense"),
        ] {
            let mut variables = vec![(name, value)];
            if name != "FERROVERBS_LAYERS" {
                variables.push(("FERROVERBS_LAYERS", "validate,trace,capture,stats"));
            }
            let why = check(&variables).expect_err(value);
            assert!(why.starts_with(name), "{name}={value}: {why}");
        }
    }

    #[test]
    fn a_setting_of_a_layer_that_is_not_loaded_has_no_effect_and_is_not_checked() {
        assert_eq!(check(&[("FERROVERBS_VALIDATE", "exitcod=66")]), Ok(()));
        assert_eq!(
            check(&[
                ("FERROVERBS_SOFT", " 3 "),
                ("FERROVERBS_SOFT_NAME", "mlx5_%d"),
                ("FERROVERBS_SOFT_GIDS", "mlx5"),
                ("FERROVERBS_EMULATE", "efa"),
                ("FERROVERBS_SOFT_FAULTS", "drop rate=1/100; qp-error nth=7"),
                ("FERROVERBS_LAYERS", "validate, /opt/other.so"),
                ("FERROVERBS_VALIDATE", "off=MR-*:exitcode=66"),
            ]),
            Ok(())
        );
    }

    #[test]
    fn numbers_of_layers_have_the_limits_of_the_layers() {
        assert_eq!(parse_layer_number("trace", "records", "1000"), Ok(1000));
        assert!(parse_layer_number("trace", "records", "99999999999").is_err());
        assert!(parse_layer_number("capture", "snap", "3").is_err());
        assert_eq!(parse_layer_number("capture", "snap", "0"), Ok(0));
        assert!(
            parse_layer_number("capture", "snap", "0x100").is_err(),
            "no number for this option"
        );
        let why = parse_layer_number("stats", "objects", "many").expect_err("no number");
        assert_eq!(why, "the value must be a number up to 65536");
    }
}
