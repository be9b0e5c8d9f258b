//! What libibverbs says about its software devices, as the process of `library` reports it in JSON.

use super::Environment;
use serde_json::{Value, json};
use std::net::Ipv6Addr;
use std::process::{Command, Stdio};

/// A software device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceFacts {
    pub(crate) name: String,
    /// The name of its node in `/dev/infiniband`.
    pub(crate) dev_name: String,
    /// In the byte order of the host.
    pub(crate) node_guid: u64,
    /// In the byte order of the host.
    pub(crate) sys_image_guid: u64,
    pub(crate) node_type: u32,
    pub(crate) firmware: String,
    pub(crate) hardware: u32,
    pub(crate) vendor: u32,
    pub(crate) part: u32,
    pub(crate) ports: Vec<PortFacts>,
}

/// A port, with the values of `struct ibv_port_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortFacts {
    pub(crate) number: u32,
    pub(crate) state: u32,
    pub(crate) phys_state: u32,
    pub(crate) lid: u32,
    pub(crate) lmc: u32,
    pub(crate) sm_lid: u32,
    pub(crate) sm_sl: u32,
    pub(crate) capabilities: u32,
    pub(crate) width: u32,
    pub(crate) speed: u32,
    pub(crate) link_layer: u32,
    /// Entries of the GID table.
    pub(crate) table: u32,
    pub(crate) gids: Vec<GidFacts>,
    pub(crate) pkeys: Vec<u32>,
}

/// An entry of the GID table that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GidFacts {
    pub(crate) index: u32,
    pub(crate) gid: Ipv6Addr,
    /// `ibv_gid_type_sysfs`: 0 for IB and RoCE v1, 1 for RoCE v2.
    pub(crate) is_v2: bool,
    /// The interface of the address.
    pub(crate) interface: Option<String>,
}

/// Asks libibverbs, with these changes of the environment, for the devices that no kernel has.
///
/// # Errors
/// What libibverbs printed.
pub(crate) fn query_devices(environment: &Environment) -> crate::Result<Vec<DeviceFacts>> {
    let all = describe(environment, &[])?;
    let device = |value: &Value| {
        DeviceFacts::from_json(value).ok_or_else(|| "libibverbs: a fact is missing".to_owned())
    };
    all.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(device).collect()
}

/// The names of the devices that no kernel has, with these changes of the environment. No device is
/// opened.
///
/// # Errors
/// As [`query_devices`].
pub(crate) fn announced_names(environment: &Environment) -> crate::Result<Vec<String>> {
    let all = describe(environment, &["--names"])?;
    let all = all.as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(all.iter().filter_map(|device| text(device, "name")).collect())
}

fn describe(environment: &Environment, options: &[&str]) -> crate::Result<Value> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("describe-devices").args(options).stdin(Stdio::null());
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // The process only asks: no layer writes files, and no fault and no pipe of the command is its
    // own.
    for name in
        ["FERROVERBS_LAYERS", "FERROVERBS_SOFT_FAULTS", "FERROVERBS_SOFT_CONTROL", "LD_PRELOAD"]
    {
        command.env_remove(name);
    }
    let done = command.output().map_err(|e| format!("cannot ask libibverbs: {e}"))?;
    let printed = String::from_utf8_lossy(&done.stderr);
    if !done.status.success() {
        let why = printed.lines().find(|line| !line.is_empty()).unwrap_or("it printed nothing");
        let why = why.trim_start_matches("ferroverbs: ");
        return Err(format!("libibverbs opens no device ({why})"));
    }
    let text = String::from_utf8_lossy(&done.stdout);
    serde_json::from_str(&text).map_err(|e| format!("libibverbs: {e}"))
}

fn number(value: &Value, name: &str) -> Option<u32> {
    u32::try_from(value.get(name)?.as_u64()?).ok()
}

fn text(value: &Value, name: &str) -> Option<String> {
    Some(value.get(name)?.as_str()?.to_owned())
}

fn each<T>(value: &Value, name: &str, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.get(name)?.as_array()?.iter().map(read).collect()
}

impl DeviceFacts {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": self.name, "dev_name": self.dev_name, "node_guid": self.node_guid,
            "sys_image_guid": self.sys_image_guid, "node_type": self.node_type,
            "firmware": self.firmware, "hardware": self.hardware, "vendor": self.vendor,
            "part": self.part, "ports": self.ports.iter().map(PortFacts::to_json).collect::<Vec<_>>(),
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        Some(Self {
            name: text(value, "name").filter(|name| is_file_name(name))?,
            dev_name: text(value, "dev_name").filter(|name| is_file_name(name))?,
            node_guid: value.get("node_guid")?.as_u64()?,
            sys_image_guid: value.get("sys_image_guid")?.as_u64()?,
            node_type: number(value, "node_type")?,
            firmware: text(value, "firmware")?,
            hardware: number(value, "hardware")?,
            vendor: number(value, "vendor")?,
            part: number(value, "part")?,
            ports: each(value, "ports", PortFacts::from_json)?,
        })
    }
}

/// A plugin chooses the names, which become names of files.
fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}

impl PortFacts {
    fn to_json(&self) -> Value {
        json!({
            "number": self.number, "state": self.state, "phys_state": self.phys_state,
            "lid": self.lid, "lmc": self.lmc, "sm_lid": self.sm_lid, "sm_sl": self.sm_sl,
            "capabilities": self.capabilities, "width": self.width, "speed": self.speed,
            "link_layer": self.link_layer, "table": self.table, "pkeys": self.pkeys,
            "gids": self.gids.iter().map(GidFacts::to_json).collect::<Vec<_>>(),
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        Some(Self {
            number: number(value, "number")?,
            state: number(value, "state")?,
            phys_state: number(value, "phys_state")?,
            lid: number(value, "lid")?,
            lmc: number(value, "lmc")?,
            sm_lid: number(value, "sm_lid")?,
            sm_sl: number(value, "sm_sl")?,
            capabilities: number(value, "capabilities")?,
            width: number(value, "width")?,
            speed: number(value, "speed")?,
            link_layer: number(value, "link_layer")?,
            table: number(value, "table")?,
            gids: each(value, "gids", GidFacts::from_json)?,
            pkeys: each(value, "pkeys", |pkey| u32::try_from(pkey.as_u64()?).ok())?,
        })
    }
}

impl GidFacts {
    fn to_json(&self) -> Value {
        json!({
            "index": self.index, "gid": self.gid.to_string(), "v2": self.is_v2,
            "interface": self.interface,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        Some(Self {
            index: number(value, "index")?,
            gid: text(value, "gid")?.parse().ok()?,
            is_v2: value.get("v2")?.as_bool()?,
            interface: text(value, "interface").filter(|name| is_file_name(name)),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A device with two addresses.
    pub(crate) fn example() -> DeviceFacts {
        let gid = |index, gid: &str, interface: Option<&str>| GidFacts {
            index,
            gid: gid.parse().unwrap(),
            is_v2: true,
            interface: interface.map(str::to_owned),
        };
        let port = PortFacts {
            number: 1,
            state: 4,
            phys_state: 5,
            lid: 0,
            lmc: 0,
            sm_lid: 0,
            sm_sl: 0,
            capabilities: 0x0401_0000,
            width: 2,
            speed: 32,
            link_layer: 2,
            table: 32,
            gids: vec![gid(0, "fe80::1", None), gid(3, "::ffff:10.0.0.1", Some("eth0"))],
            pkeys: vec![0xffff],
        };
        DeviceFacts {
            name: "mlx5_0".into(),
            dev_name: "mlx5_0".into(),
            node_guid: 0x0201_0203_0405_0607,
            sys_image_guid: 0x0201_0203_0405_0600,
            node_type: 1,
            firmware: "ferroverbs 0.1.0".into(),
            hardware: 1,
            vendor: 0xf0_0f00,
            part: 1,
            ports: vec![port],
        }
    }

    #[test]
    fn facts_survive_json() {
        let facts = example();
        assert_eq!(DeviceFacts::from_json(&facts.to_json()), Some(facts));
    }

    #[test]
    fn a_name_that_leads_to_another_folder_is_refused() {
        for name in ["../x", "a/b", "", ".."] {
            let facts = DeviceFacts { name: name.into(), ..example() };
            assert_eq!(DeviceFacts::from_json(&facts.to_json()), None, "{name}");
        }
    }
}
