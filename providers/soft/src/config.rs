//! The settings from environment variables: each variable of the adapter, its values and its
//! default. The fabric and the devices read a variable once, when they are joined or opened. An
//! invalid value is reported in one line.
//!
//! Map of the file: [`Setting`] describes a variable; one constant for each; functions such as
//! `wire` and `limits` cache the values; `fabric` chooses the fabric directory. All functions may
//! be called by any thread; the caches are `OnceLock`s, and `SAID` in `is_news` is a leaf lock.

use crate::limits::{Limits, Names, parse_networks};
use cface::env;
use cface::sync::Mutex;
use ipnet::IpNet;
use soft_local::fabric::{DEFAULT_STEM, DIR_VARIABLE, FabricConfig, FabricError, GROUP_VARIABLE};
use soft_semantics::devices::{self, NamePattern, switch};
use soft_semantics::emulated::{self, EmulatedDevice};
use soft_semantics::faults::{Statement, parse};
use soft_semantics::gid_order::{self, GidOrder};
use soft_semantics::impairment::ImpairmentRates;
use soft_sys::{Errno, dir, notice, process};
use std::ffi::{OsStr, OsString};
use std::path::{self, Path, PathBuf};
use std::sync::OnceLock;

/// A variable of the environment and its values.
#[derive(Debug)]
pub(crate) struct Setting<T: 'static> {
    pub(crate) name: &'static str,
    /// The permitted values, for messages.
    allowed: &'static str,
    /// The default, for messages.
    otherwise: &'static str,
    /// Whether a privileged program ([`env::is_privileged`]) reads it, too.
    harmless: bool,
    parse: fn(&str) -> Option<T>,
}

impl<T> Setting<T> {
    /// The value; None if the variable is unset or invalid. An invalid value is reported once.
    pub(crate) fn get(&self) -> Option<T> {
        if env::is_privileged() && !self.harmless {
            return None;
        }
        self.understand(std::env::var_os(self.name))
    }

    /// The meaning of a value; None as for [`Setting::get`].
    pub(crate) fn understand(&self, value: Option<OsString>) -> Option<T> {
        let value = value.filter(|value| !value.is_empty())?;
        let meaning = value.to_str().and_then(|text| (self.parse)(text.trim()));
        if meaning.is_none() && is_news(self.name) {
            notice!("{}", self.complaint(&value));
        }
        meaning
    }

    fn complaint(&self, value: &OsStr) -> String {
        let (name, value) = (self.name, value.to_string_lossy());
        format!("{name}={value}: must be {}; going on {}", self.allowed, self.otherwise)
    }
}

/// Whether no report about a variable was made yet. Devices are listed and opened repeatedly.
fn is_news(name: &'static str) -> bool {
    static SAID: Mutex<Vec<&str>> = Mutex::new(vec![]);
    let mut said = SAID.lock();
    let news = !said.contains(&name);
    if news {
        said.push(name);
    }
    news
}

/// Number of devices.
pub(crate) const DEVICES_ASKED: Setting<usize> = Setting {
    name: "FERROVERBS_SOFT",
    allowed: devices::ALLOWED,
    otherwise: "with one device if the kernel has none",
    harmless: true,
    parse: devices::parse,
};

/// The names of the devices.
const NAME: Setting<NamePattern> = Setting {
    name: "FERROVERBS_SOFT_NAME",
    allowed: devices::NAMES_ALLOWED,
    otherwise: "with soft%d",
    harmless: true,
    parse: NamePattern::parse,
};

/// The names of the devices, by `FERROVERBS_SOFT_NAME`: the same for the life of the process.
pub(crate) fn device_names() -> &'static NamePattern {
    static NAMES: OnceLock<NamePattern> = OnceLock::new();
    NAMES.get_or_init(|| NAME.get().unwrap_or_default())
}

/// The emulated device.
const EMULATE: Setting<EmulatedDevice> = Setting {
    name: "FERROVERBS_EMULATE",
    allowed: emulated::ALLOWED,
    otherwise: "without an emulated device",
    harmless: false,
    parse: EmulatedDevice::parse,
};

/// The emulated device, by `FERROVERBS_EMULATE`: the same for the life of the process. The adapter
/// then announces this device instead of its own.
pub(crate) fn emulated_device() -> Option<EmulatedDevice> {
    static DEVICE: OnceLock<Option<EmulatedDevice>> = OnceLock::new();
    *DEVICE.get_or_init(|| EMULATE.get())
}

/// Number of QP numbers that QPs of emulated devices alone get.
pub(crate) fn low_qps() -> u16 {
    match emulated_device() {
        Some(EmulatedDevice::Efa) => crate::ops::emulated::LOW_QPS,
        Some(EmulatedDevice::Mlx5) | None => 0,
    }
}

/// The order of the GID table.
const GIDS: Setting<GidOrder> = Setting {
    name: "FERROVERBS_SOFT_GIDS",
    allowed: gid_order::ALLOWED,
    otherwise: "with soft",
    harmless: true,
    parse: GidOrder::parse,
};

/// The order of the GID table, by `FERROVERBS_SOFT_GIDS`.
pub(crate) fn gid_order() -> GidOrder {
    static ORDER: OnceLock<GidOrder> = OnceLock::new();
    *ORDER.get_or_init(|| GIDS.get().unwrap_or_default())
}

/// Message length in bytes above which the receiver fetches the message with one copy, if it can
/// attach to the sender. Shorter messages are copied twice through a bounce buffer, without a
/// system call.
const EAGER: Setting<usize> = Setting {
    name: "FERROVERBS_SOFT_EAGER",
    allowed: "a number of bytes from 0 to 2147483648",
    otherwise: "with 8192",
    harmless: true,
    parse: |text| text.parse().ok().filter(|bytes| *bytes <= 1 << 31),
};

/// Whether cross-memory attach may be used.
pub(crate) const CMA: Setting<bool> = Setting {
    name: "FERROVERBS_SOFT_CMA",
    allowed: "on or off",
    otherwise: "with on",
    harmless: false,
    parse: switch,
};

/// Whether a helper thread of this process moves bytes for operations of peer processes.
const HELPER: Setting<bool> = Setting {
    name: "FERROVERBS_SOFT_HELPER",
    allowed: "on or off",
    otherwise: "with on",
    harmless: false,
    parse: switch,
};

/// Whether the lkey of a region differs from its rkey.
const KEYS: Setting<bool> = Setting {
    name: "FERROVERBS_SOFT_KEYS",
    allowed: "equal or distinct",
    otherwise: "with equal",
    harmless: false,
    parse: |text| match text.to_ascii_lowercase().as_str() {
        "distinct" => Some(true),
        "equal" => Some(false),
        _ => None,
    },
};

/// Whether the adapter refuses what the strictest hardware adapter refuses.
const STRICT: Setting<bool> = Setting {
    name: "FERROVERBS_SOFT_STRICT",
    allowed: "on or off",
    otherwise: "with off",
    harmless: false,
    parse: switch,
};

/// How other hosts are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wiring {
    /// Not at all: only this host is reached.
    Off,
    /// RoCE v2 between hosts, and shared memory on one host.
    Auto,
    /// RoCE v2 to every address of an interface, including addresses of this host.
    Always,
}

/// The way to other hosts.
const WIRE: Setting<Wiring> = Setting {
    name: "FERROVERBS_SOFT_WIRE",
    allowed: "off, auto or always",
    otherwise: "with auto",
    harmless: false,
    parse: |text| match text.to_ascii_lowercase().as_str() {
        "off" => Some(Wiring::Off),
        "auto" => Some(Wiring::Auto),
        "always" => Some(Wiring::Always),
        _ => None,
    },
};

/// The way to other hosts, by `FERROVERBS_SOFT_WIRE`.
pub(crate) fn wire() -> Wiring {
    static WIRING: OnceLock<Wiring> = OnceLock::new();
    *WIRING.get_or_init(|| WIRE.get().unwrap_or(Wiring::Auto))
}

/// The interfaces whose addresses the adapter uses. A privileged program obeys this variable as
/// well, because the variable only limits what the program reaches.
const INTERFACES: Setting<Names> = Setting {
    name: "FERROVERBS_SOFT_INTERFACES",
    allowed: "names of interfaces such as 'eth0,ens*'",
    otherwise: "with none",
    harmless: true,
    parse: Names::parse,
};

/// The permitted peer addresses.
pub(crate) const PEERS: Setting<Vec<IpNet>> = Setting {
    name: "FERROVERBS_SOFT_PEERS",
    allowed: "addresses and networks such as '10.1.0.0/16,fd00::/8'",
    otherwise: "with nobody",
    harmless: true,
    parse: parse_networks,
};

/// The limits of the wire between hosts, by `FERROVERBS_SOFT_INTERFACES` and
/// `FERROVERBS_SOFT_PEERS`.
pub(crate) fn limits() -> &'static Limits {
    static LIMITS: OnceLock<Limits> = OnceLock::new();
    LIMITS.get_or_init(|| Limits { interfaces: limit(&INTERFACES), peers: limit(&PEERS) })
}

/// An invalid limit permits nothing.
fn limit<T: Default>(setting: &Setting<T>) -> Option<T> {
    let value = std::env::var_os(setting.name).filter(|value| !value.is_empty())?;
    Some(setting.understand(Some(value)).unwrap_or_default())
}

/// Whether a kernel program steers packets to processes.
const STEERING: Setting<bool> = Setting {
    name: "FERROVERBS_SOFT_STEERING",
    allowed: "on or off",
    otherwise: "with on",
    harmless: false,
    parse: switch,
};

/// Whether a kernel program steers packets to the processes that share a port, by
/// `FERROVERBS_SOFT_STEERING`.
pub(crate) fn steers() -> bool {
    static STEERS: OnceLock<bool> = OnceLock::new();
    *STEERS.get_or_init(|| STEERING.get().unwrap_or(true))
}

/// Impairments of packets to other hosts.
const IMPAIRMENT: Setting<ImpairmentRates> = Setting {
    name: "FERROVERBS_SOFT_IMPAIRMENT",
    allowed: "words such as 'loss=1% duplicate=1% reorder=1% mark=1% seed=7'",
    otherwise: "without losses",
    harmless: false,
    parse: ImpairmentRates::parse,
};

/// Impairments of packets to other hosts, by `FERROVERBS_SOFT_IMPAIRMENT`; None if unset.
pub(crate) fn impairment() -> Option<ImpairmentRates> {
    IMPAIRMENT.get()
}

/// Every variable that the adapter reads, as documented in the pages.
#[cfg(test)]
const NAMES: [&str; 18] = [
    DEVICES_ASKED.name,
    EMULATE.name,
    NAME.name,
    GIDS.name,
    DIR_VARIABLE,
    GROUP_VARIABLE,
    CMA.name,
    HELPER.name,
    EAGER.name,
    KEYS.name,
    STRICT.name,
    WIRE.name,
    INTERFACES.name,
    PEERS.name,
    STEERING.name,
    IMPAIRMENT.name,
    FAULTS_VARIABLE,
    CONTROL_VARIABLE,
];

/// Message length in bytes up to which a message is always copied twice.
pub(crate) fn eager_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| EAGER.get().unwrap_or(EAGER_BYTES))
}

const EAGER_BYTES: usize = 8192;

/// Whether a helper thread moves some bytes of long WRITEs to this process and READs from it
/// (`engine::ring::helping`). `FERROVERBS_SOFT_HELPER=off` suits programs that use all processors.
pub(crate) fn helps() -> bool {
    HELPER.get().unwrap_or(true)
}

/// Whether the lkey of a region differs from its rkey: by `FERROVERBS_SOFT_KEYS=distinct`, or in
/// strict mode unless the variable is `equal`. Distinct keys reveal programs that use one key for
/// the other. Usual adapters have one value for both keys.
pub(crate) fn keys_are_distinct() -> bool {
    KEYS.get().unwrap_or_else(is_strict)
}

/// Whether the adapter refuses what the strictest hardware adapter refuses, by
/// `FERROVERBS_SOFT_STRICT` ("Strict mode" in docs/reference/soft-provider.md).
pub(crate) fn is_strict() -> bool {
    STRICT.get().unwrap_or(false)
}

/// Whether reports about unreachable peers are suppressed, by `FERROVERBS_QUIET` as for the
/// library. The reports name QPs and GIDs of the adapter, which no program over an emulated device
/// knows.
pub(crate) fn is_quiet() -> bool {
    emulated_device().is_some()
        || std::env::var_os("FERROVERBS_QUIET").is_some_and(|value| value != "0")
}

/// The fabric directory and its members:
///
/// - `FERROVERBS_FABRIC_DIR`: the directory. The default is `$XDG_RUNTIME_DIR/ferroverbs`, or
///   `/run/user/<uid>/ferroverbs` (the same place in a session, so cron jobs meet sessions), if the
///   runtime directory belongs to this user, since then no other user can create files there.
///   Otherwise `/tmp/ferroverbs-<uid>`. Another user can create that directory first; then no
///   device is opened, and a line says why.
/// - `FERROVERBS_FABRIC_GROUP`: name or number of a group whose members meet (by default in
///   `/tmp/ferroverbs-g<gid>`).
/// - `FERROVERBS_SOFT_CMA=off`: no cross-memory attach.
///
/// A privileged program ([`env::is_privileged`]) ignores all of them.
///
/// # Errors
/// `EINVAL` no such group.
pub(crate) fn fabric() -> Result<FabricConfig, FabricError> {
    fabric_from(env::trusted)
}

fn fabric_from(lookup: impl Fn(&str) -> Option<OsString>) -> Result<FabricConfig, FabricError> {
    let lookup = |name| lookup(name).filter(|value| !value.is_empty());
    let group = lookup(GROUP_VARIABLE).map(|value| parse_group(&value)).transpose()?;
    let (dir, dir_is_ours) = match lookup(DIR_VARIABLE) {
        // Absolute, because the program may change its working directory.
        Some(dir) => (path::absolute(&dir).unwrap_or(dir.into()), false),
        None => {
            let session = format!("/run/user/{}", process::user());
            let folders = [lookup("XDG_RUNTIME_DIR"), Some(session.into())];
            (default_dir(group, folders.into_iter().flatten().map(PathBuf::from)), true)
        }
    };
    let cma = CMA.understand(lookup(CMA.name)).unwrap_or(true);
    // A named directory is meant for several containers, which have separate namespaces. A default
    // directory separates hosts made of namespaces.
    let spans_namespaces = !dir_is_ours;
    Ok(FabricConfig { spans_namespaces, dir_is_ours, group, cma, ..FabricConfig::new(dir) })
}

fn parse_group(value: &OsStr) -> Result<u32, FabricError> {
    let name = value.to_str().unwrap_or_default();
    let number = name.parse().ok().or_else(|| process::group_named(name));
    number.ok_or_else(|| {
        FabricError::setting(
            Errno::EINVAL,
            format!("{GROUP_VARIABLE}={}: no such group", value.display()),
            "name a group of this host, or unset it",
        )
    })
}

fn default_dir(group: Option<u32>, mut runtime_dirs: impl Iterator<Item = PathBuf>) -> PathBuf {
    if let Some(group) = group {
        return format!("/tmp/{DEFAULT_STEM}g{group}").into();
    }
    // After su(1) the directory may belong to another user.
    let ours = |dir: &Path| dir::stat(dir).is_ok_and(|s| s.is_dir() && s.uid == process::user());
    match runtime_dirs.find(|dir| dir.is_absolute() && ours(dir)) {
        Some(dir) => dir.join("ferroverbs"),
        None => format!("/tmp/{DEFAULT_STEM}{}", process::user()).into(),
    }
}

/// The variable with fault rules.
const FAULTS_VARIABLE: &str = "FERROVERBS_SOFT_FAULTS";
/// The variable with the path of the control pipe.
pub(crate) const CONTROL_VARIABLE: &str = "FERROVERBS_SOFT_CONTROL";

/// The faults of `FERROVERBS_SOFT_FAULTS`. An invalid value is reported in one line and ignored.
pub(crate) fn faults() -> Vec<Statement> {
    let Some(text) = lookup(FAULTS_VARIABLE) else { return vec![] };
    parse(&text.to_string_lossy()).unwrap_or_else(|why| {
        notice!("{FAULTS_VARIABLE}: {why}; going on without faults (ferroverbs-soft(7))");
        vec![]
    })
}

/// The pipe of `FERROVERBS_SOFT_CONTROL`, with `%p` replaced by the number of this process.
pub(crate) fn control_path() -> Option<PathBuf> {
    let named = lookup(CONTROL_VARIABLE)?;
    let path = PathBuf::from(with_pid(&named.to_string_lossy(), process::id()));
    // Absolute, because the program may change its working directory.
    Some(path::absolute(&path).unwrap_or(path))
}

fn with_pid(path: &str, pid: i32) -> String {
    path.replace("%p", &pid.to_string())
}

/// A nonempty variable. A privileged program gets None.
fn lookup(name: &str) -> Option<OsString> {
    env::trusted(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_have_the_number_of_the_process_in_it() {
        assert_eq!(with_pid("/run/%p/control-%p", 7), "/run/7/control-7");
        assert_eq!(with_pid("/run/control", 7), "/run/control");
    }

    #[test]
    fn some_words_turn_things_on_and_off() {
        for (value, on) in [("off", false), ("0", false), ("OFF", false), ("on", true), ("1", true)]
        {
            assert_eq!(CMA.understand(Some(value.into())), Some(on), "{value}");
        }
        assert_eq!(CMA.understand(Some("".into())), None);
        assert_eq!(CMA.understand(None), None);
    }

    #[test]
    fn devices_are_a_switch_or_a_number() {
        let asked = |text: &str| DEVICES_ASKED.understand(Some(text.into()));
        assert_eq!(
            [asked("off"), asked("on"), asked(" 3 "), asked("32")].map(Option::unwrap),
            [0, 1, 3, 32]
        );
        assert_eq!([asked("maybe"), asked("33"), asked("-1")], [None; 3]);
    }

    #[test]
    fn an_invalid_value_is_reported_with_the_valid_ones_and_the_default() {
        assert_eq!(
            DEVICES_ASKED.complaint(OsStr::new("maybe")),
            "FERROVERBS_SOFT=maybe: must be off, on, or a number of devices from 0 to 32; \
             going on with one device if the kernel has none"
        );
        assert_eq!(
            EAGER.complaint(OsStr::new("banana")),
            "FERROVERBS_SOFT_EAGER=banana: must be a number of bytes from 0 to 2147483648; going on with 8192"
        );
        assert_eq!(
            GIDS.complaint(OsStr::new("mlx6")),
            "FERROVERBS_SOFT_GIDS=mlx6: must be soft, rxe or mlx5; going on with soft"
        );
        assert!(NAME.complaint(OsStr::new("rxe")).ends_with("going on with soft%d"));
        for (setting, value) in [(&CMA, "never"), (&HELPER, "2"), (&KEYS, "both")] {
            assert_eq!(setting.understand(Some(value.into())), None);
            let line = setting.complaint(OsStr::new(value));
            assert!(line.contains(value) && line.contains(setting.allowed), "{line}");
        }
        assert!(is_news("A_VARIABLE") && !is_news("A_VARIABLE"));
    }

    #[test]
    fn the_pages_have_every_variable_and_no_other() {
        let page = include_str!("../../../man/ferroverbs-soft.7");
        let settings = include_str!("../../../docs/reference/settings.md");
        let section = settings.split("\n## The software adapter\n").nth(1).expect("the section");
        let document = section.split("\n## ").next().unwrap_or_default();
        for name in NAMES {
            assert!(page.contains(&format!(".It Ev {name}\n")), "{name} in ferroverbs-soft(7)");
            assert!(document.contains(&format!("| `{name}` |")), "{name} in settings.md");
        }
        let named = page.lines().filter_map(|line| line.strip_prefix(".It Ev "));
        let named = named.chain(document.lines().filter_map(|line| {
            let name = line.strip_prefix("| `")?.split('`').next()?;
            name.starts_with("FERROVERBS_").then_some(name)
        }));
        for name in named {
            assert!(NAMES.contains(&name), "{name} is no variable");
        }
    }

    fn fabric_with(vars: &[(&str, &str)]) -> Result<FabricConfig, FabricError> {
        fabric_from(|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn without_settings_a_user_has_a_directory_of_their_own() {
        let config = fabric_with(&[]).unwrap();
        let user = process::user();
        let session = PathBuf::from(format!("/run/user/{user}"));
        let expected = if session.exists() {
            session.join("ferroverbs")
        } else {
            format!("/tmp/ferroverbs-{user}").into()
        };
        assert_eq!(config.dir, expected);
        assert!(
            config.dir_is_ours && !config.spans_namespaces && config.cma && config.group.is_none()
        );
    }

    #[test]
    fn the_runtime_directory_is_used_only_if_it_is_there() {
        let dir = std::env::temp_dir().join(format!("fv-run-{}", process::id()));
        let [named, session] = ["named", "session"].map(|name| dir.join(name));
        let chosen = |folders: &[&PathBuf]| default_dir(None, folders.iter().copied().cloned());
        let both = [&named, &session];
        assert_eq!(chosen(&both), Path::new(&format!("/tmp/ferroverbs-{}", process::user())));
        std::fs::create_dir_all(&session).unwrap();
        assert_eq!(chosen(&both), session.join("ferroverbs"));
        std::fs::create_dir(&named).unwrap();
        assert_eq!(chosen(&both), named.join("ferroverbs"));
        assert_eq!(
            default_dir(Some(7), both.into_iter().cloned()),
            Path::new("/tmp/ferroverbs-g7")
        );
        let vars = [("XDG_RUNTIME_DIR", named.to_str().unwrap())];
        assert_eq!(fabric_with(&vars).unwrap().dir, named.join("ferroverbs"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_named_directory_is_taken_as_it_is_and_never_removed() {
        let named = fabric_with(&[("FERROVERBS_FABRIC_DIR", "/run/x")]).unwrap();
        assert_eq!((named.dir, named.dir_is_ours), ("/run/x".into(), false));
        assert!(named.spans_namespaces, "for containers");
        let relative = fabric_with(&[("FERROVERBS_FABRIC_DIR", "x")]).unwrap();
        assert_eq!(relative.dir, std::env::current_dir().unwrap().join("x"));
    }

    #[test]
    fn a_group_has_a_directory_of_its_own_and_must_exist() {
        let members = fabric_with(&[("FERROVERBS_FABRIC_GROUP", "root")]).unwrap();
        assert_eq!((members.dir, members.group), ("/tmp/ferroverbs-g0".into(), Some(0)));
        let line = fabric_with(&[("FERROVERBS_FABRIC_GROUP", "nosuch")]).unwrap_err().to_string();
        assert_eq!(
            line,
            "FERROVERBS_FABRIC_GROUP=nosuch: no such group; name a group of this host, or unset it"
        );
    }

    #[test]
    fn attach_can_be_turned_off() {
        for (value, cma) in [("off", false), ("0", false), ("OFF", false), ("on", true), ("", true)]
        {
            assert_eq!(fabric_with(&[("FERROVERBS_SOFT_CMA", value)]).unwrap().cma, cma);
        }
    }
}
