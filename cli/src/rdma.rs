//! `ferroverbs rdma`: a stand-in for rdma(8) of iproute2, which asks the kernel by netlink and sees
//! devices of the kernel only.
//!
//! `link show` and `dev show` list the software devices behind the devices of the kernel, as text
//! or JSON of iproute2. For all else the system's command takes this one's place.

use crate::tree::{self, DeviceFacts};
use crate::{installation, output};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// The arguments of `ferroverbs rdma`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What rdma(8) takes, such as `link show -j` or `dev`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    words: Vec<OsString>,
}

/// The folder of the stand-in `rdma`, beside the library.
pub(crate) const TOOLS: &str = "tools";

/// The objects that the stand-in knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Dev,
    Link,
}

/// A request to list objects.
#[derive(Debug, PartialEq, Eq)]
struct ShowArgs {
    object: Object,
    json: bool,
    pretty: bool,
    /// Only this device.
    device: Option<String>,
    port: Option<u32>,
}

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Show(ShowArgs),
    /// `link add NAME ...`.
    Add(String),
    /// For the system's command.
    Other,
}

/// Runs `ferroverbs rdma`.
///
/// # Errors
/// The request is for the system's command, which is missing.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let words: Vec<_> = args.words.iter().map(|word| word.to_string_lossy()).collect();
    let request = parse(&words.iter().map(AsRef::as_ref).collect::<Vec<_>>());
    let devices = match request {
        Request::Other => return become_system(args, "the stand-in lists `dev` and `link` only"),
        _ => tree::query_devices(&tree::Environment::new())?,
    };
    match request {
        Request::Add(name) if devices.iter().any(|device| device.name == name) => {
            eprintln!("rdma: {name} is a software device of Ferroverbs, and needs no interface");
            Ok(ExitCode::SUCCESS)
        }
        Request::Show(show) => {
            let is_named = |device: &DeviceFacts| show.device.as_ref() == Some(&device.name);
            if show.device.is_some() && !devices.iter().any(is_named) {
                return become_system(args, "there is no software device of this name");
            }
            // The devices of the kernel come first.
            let of_kernel = if show.device.is_none() { of_kernel(&args.words) } else { None };
            if show.json {
                print_json(&show, &devices, of_kernel)
            } else {
                print_text(&show, &devices, of_kernel)
            }
        }
        _ => become_system(args, "FERROVERBS_SOFT_NAME=NAME%d gives the software device a name"),
    }
}

fn parse(words: &[&str]) -> Request {
    let (mut json, mut pretty, mut rest) = (false, false, Vec::new());
    for word in words {
        match *word {
            "-j" | "-json" | "--json" => json = true,
            "-p" | "-pretty" | "--pretty" => pretty = true,
            "-jp" | "-pj" => (json, pretty) = (true, true),
            "-d" | "-details" | "--details" => {}
            option if option.starts_with('-') => return Request::Other,
            word => rest.push(word),
        }
    }
    // iproute2 takes the beginning of a word.
    let is = |word: &str, whole: &str| !word.is_empty() && whole.starts_with(word);
    let object = match rest.first() {
        Some(word) if is(word, "dev") => Object::Dev,
        Some(word) if is(word, "link") => Object::Link,
        _ => return Request::Other,
    };
    let name = match rest.get(1..).unwrap_or_default() {
        [] => None,
        [show] if is(show, "show") || is(show, "list") || *show == "lst" => None,
        [show, name] if is(show, "show") || is(show, "list") || *show == "lst" => Some(*name),
        [add, name, ..] if object == Object::Link && *add == "add" => {
            return Request::Add((*name).to_owned());
        }
        _ => return Request::Other,
    };
    let (device, port) = match name.map(|name| name.split_once('/').unwrap_or((name, ""))) {
        None => (None, None),
        Some((device, "")) => (Some(device.to_owned()), None),
        Some((device, port)) => match port.parse() {
            Ok(port) if object == Object::Link => (Some(device.to_owned()), Some(port)),
            _ => return Request::Other,
        },
    };
    Request::Show(ShowArgs { object, json, pretty, device, port })
}

/// The rdma(8) of the system: the first in `PATH` that is not in our folder.
fn system_command() -> Option<PathBuf> {
    let own = installation::library_folder().ok()?.join(TOOLS).canonicalize().ok();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path);
    let others = folders.filter(|folder| own.is_none() || folder.canonicalize().ok() != own);
    others.map(|folder| folder.join("rdma")).find(|file| file.is_file())
}

/// Replaces this process by the system's command.
///
/// # Errors
/// The system has none; `why` says what the stand-in does instead.
fn become_system(args: &Args, why: &str) -> crate::Result<ExitCode> {
    let Some(system) = system_command() else {
        return Err(format!("PATH has no rdma(8) of the system: {why}"));
    };
    let error = Command::new(&system).args(&args.words).exec();
    Err(format!("cannot run {}: {error}", system.display()))
}

/// The system command's output about the kernel's devices; `None` if it fails, as it does where
/// the kernel has no RDMA.
fn of_kernel(words: &[OsString]) -> Option<String> {
    let done = Command::new(system_command()?).args(words).stderr(Stdio::null()).output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

fn print_text(
    show: &ShowArgs,
    devices: &[DeviceFacts],
    of_kernel: Option<String>,
) -> crate::Result<ExitCode> {
    let mut text = of_kernel.unwrap_or_default();
    text += &lines_of(show, devices, index_behind(&text));
    output::print_text(&text)
}

/// The index behind those of the kernel's devices. A line of `dev` begins with `INDEX: `; a line of
/// `link` has no index, and a device may have more lines than one.
fn index_behind(of_kernel: &str) -> usize {
    let indices = of_kernel.lines().filter_map(|line| line.split_once(": ")?.0.parse().ok());
    indices.max().map_or(0, |last: usize| last.saturating_add(1))
}

fn print_json(
    show: &ShowArgs,
    devices: &[DeviceFacts],
    of_kernel: Option<String>,
) -> crate::Result<ExitCode> {
    let parsed = of_kernel.and_then(|text| serde_json::from_str::<Vec<Value>>(&text).ok());
    let mut all = parsed.unwrap_or_default();
    // The indices continue behind those of the kernel. A device may have several ports.
    let indices = all.iter().filter_map(|object| object["ifindex"].as_u64());
    let before = indices.max().map_or(0, |last| last as usize + 1);
    all.extend(values(show, devices, before));
    let all = Value::Array(all);
    let text = if show.pretty { format!("{all:#}\n") } else { format!("{all}\n") };
    output::print_text(&text)
}

/// The devices that are shown, with their indices.
fn shown<'a>(
    show: &'a ShowArgs,
    devices: &'a [DeviceFacts],
    before: usize,
) -> impl Iterator<Item = (usize, &'a DeviceFacts)> {
    let all = devices.iter().enumerate().map(move |(at, device)| (before + at, device));
    all.filter(|(_, device)| show.device.as_ref().is_none_or(|name| *name == device.name))
}

/// The objects as text.
fn lines_of(show: &ShowArgs, devices: &[DeviceFacts], before: usize) -> String {
    let mut text = String::new();
    for object in values(show, devices, before) {
        let field = |name: &str| match &object[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        // Writing to a string does not fail. Each line of iproute2 ends with a blank.
        let _ = match show.object {
            Object::Dev => writeln!(
                text,
                "{}: {}: node_type {} fw {} node_guid {} sys_image_guid {} ",
                field("ifindex"),
                field("ifname"),
                field("node_type"),
                field("fw"),
                field("node_guid"),
                field("sys_image_guid"),
            ),
            Object::Link => {
                let netdev = match &object["netdev"] {
                    Value::String(name) => format!("netdev {name} "),
                    _ => String::new(),
                };
                let (name, port) = (field("ifname"), field("port"));
                let (state, physical) = (field("state"), field("physical_state"));
                writeln!(
                    text,
                    "link {name}/{port} state {state} physical_state {physical} {netdev}"
                )
            }
        };
    }
    text
}

/// The objects, with the names of iproute2.
fn values(show: &ShowArgs, devices: &[DeviceFacts], before: usize) -> Vec<Value> {
    let mut all = Vec::new();
    for (index, device) in shown(show, devices, before) {
        if show.object == Object::Dev {
            all.push(json!({
                "ifindex": index, "ifname": device.name, "node_type": node_type(device.node_type),
                "fw": device.firmware, "node_guid": tree::guid(device.node_guid),
                "sys_image_guid": tree::guid(device.sys_image_guid),
            }));
            continue;
        }
        let is_shown = |number| show.port.is_none_or(|port| port == number);
        for port in device.ports.iter().filter(|port| is_shown(port.number)) {
            let mut link = json!({
                "ifindex": index, "ifname": device.name, "port": port.number,
                "state": name_of(&STATES, port.state),
                "physical_state": name_of(&PHYSICAL_STATES, port.phys_state),
            });
            let interface = port.gids.iter().find_map(|gid| gid.interface.as_ref());
            if let Some(interface) = interface {
                link["netdev"] = json!(interface);
                if let Ok(index) = nix::net::if_::if_nametoindex(interface.as_str()) {
                    link["netdev_index"] = json!(index);
                }
            }
            all.push(link);
        }
    }
    all
}

fn node_type(number: u32) -> &'static str {
    if number == abi::IBV_NODE_CA as u32 { "ca" } else { "unspecified" }
}

fn name_of(names: &[&'static str], number: u32) -> &'static str {
    usize::try_from(number).ok().and_then(|at| names.get(at)).copied().unwrap_or("UNKNOWN")
}

/// The names of rdma-link(8), by the numbers of `enum ibv_port_state`.
const STATES: [&str; 6] = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
/// By the numbers of `ibv_port_attr.phys_state`.
const PHYSICAL_STATES: [&str; 8] = [
    "NOP",
    "SLEEP",
    "POLLING",
    "DISABLED",
    "PORT_CONFIGURATION_TRAINING",
    "LINK_UP",
    "LINK_ERROR_RECOVERY",
    "PHY_TEST",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(words: &[&str]) -> ShowArgs {
        match parse(words) {
            Request::Show(show) => show,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn words_are_those_of_iproute2() {
        for words in [&["link"][..], &["link", "show"], &["l"], &["link", "list"], &["link", "s"]] {
            let show = ShowArgs {
                object: Object::Link,
                json: false,
                pretty: false,
                device: None,
                port: None,
            };
            assert_eq!(shows(words), show, "{words:?}");
        }
        let show = shows(&["-j", "-p", "dev", "show", "soft0"]);
        assert!(show.json && show.pretty && show.object == Object::Dev);
        assert_eq!(show.device.as_deref(), Some("soft0"));
        assert!(shows(&["link", "show", "-j"]).json, "scripts write options last, too");
        let show = shows(&["link", "show", "rxe0/1"]);
        assert_eq!((show.device.as_deref(), show.port), (Some("rxe0"), Some(1)));
        assert_eq!(
            parse(&["link", "add", "rxe0", "type", "rxe", "netdev", "eth0"]),
            Request::Add("rxe0".into())
        );
        for words in [
            &[][..],
            &["res"],
            &["link", "del", "rxe0"],
            &["-V"],
            &["dev", "set", "a", "name", "b"],
            &["link", "show", "a/x"],
            &["dev", "show", "a/1"],
        ] {
            assert_eq!(parse(words), Request::Other, "{words:?}");
        }
    }

    #[test]
    fn indices_continue_behind_the_last_of_the_kernel() {
        let of_kernel = "0: mlx5_0: node_type ca fw 20.31.1014 \n    caps: <BAD_PKEY_CNTR>\n7: mlx5_3: node_type ca \n";
        assert_eq!(index_behind(of_kernel), 8, "not the number of lines");
        assert_eq!(index_behind(""), 0);
        let links = "link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 13399 state ACTIVE \n";
        assert_eq!(index_behind(links), 0, "lines of links have no index");
    }

    #[test]
    fn lines_and_objects_are_those_of_iproute2() {
        let devices = [tree::example()];
        let text = lines_of(&shows(&["link"]), &devices, 0);
        assert_eq!(text, "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0 \n");
        let text = lines_of(&shows(&["dev"]), &devices, 2);
        assert_eq!(
            text,
            "2: mlx5_0: node_type ca fw ferroverbs 0.1.0 node_guid 0201:0203:0405:0607 \
             sys_image_guid 0201:0203:0405:0600 \n"
        );
        let link = &values(&shows(&["link", "-j"]), &devices, 0)[0];
        assert_eq!(
            (&link["ifname"], &link["port"], &link["netdev"]),
            (&json!("mlx5_0"), &json!(1), &json!("eth0"))
        );
        assert!(values(&shows(&["link", "show", "mlx5_0/2"]), &devices, 0).is_empty());
    }
}
