//! Makes interfaces, addresses and the switch with ip(8) and tc(8).

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The properties of the cable between a host and the switch.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Cable {
    /// The MTU of the interfaces, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..=65535))]
    mtu: u16,
    /// The share of sent packets to drop, such as 1%
    #[arg(long, value_name = "PERCENT")]
    loss: Option<String>,
    /// The delay of packets, such as 100us or '1ms 200us' (with a jitter)
    #[arg(long, value_name = "TIME")]
    delay: Option<String>,
    /// The rate of the cable, such as 1gbit
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// More options of tc-netem(8), such as 'duplicate 1% reorder 5%'
    #[arg(long, value_name = "WORDS")]
    netem: Option<String>,
}

impl Cable {
    /// The arguments of tc-netem(8); empty for a cable without faults.
    fn netem(&self) -> Vec<&str> {
        let named = [("loss", &self.loss), ("delay", &self.delay), ("rate", &self.rate)];
        let named = named.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        let words = named.flat_map(|(name, value)| std::iter::once(name).chain(value.split(' ')));
        let more = self.netem.iter().flat_map(|words| words.split(' '));
        words.chain(more).filter(|word| !word.is_empty()).collect()
    }
}

/// The name of a host's interface.
const INTERFACE: &str = "eth0";

/// The IPv4 address of a host.
pub(super) fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 76, 0, host)
}

/// The IPv6 address of a host.
pub(super) fn address6(host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd76, 0, 0, 0, 0, 0, 0, host.into())
}

/// The number of a host by name or address; `None` if the cluster of `hosts` hosts has no such
/// host.
pub(super) fn host_number(name: &str, hosts: u8) -> Option<u8> {
    let is = |n: &u8| {
        name == host_name(*n) || name == address(*n).to_string() || name == address6(*n).to_string()
    };
    (1..=hosts).find(is)
}

/// The name of a host.
pub(super) fn host_name(host: u8) -> String {
    format!("host{host}")
}

/// Fails if a program that the cluster needs is not installed.
pub(super) fn check_tools(cable: &Cable) -> crate::Result<()> {
    let tools = if cable.netem().is_empty() { &["ip"][..] } else { &["ip", "tc"] };
    for tool in tools {
        let requested =
            Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        requested.map_err(|e| {
            format!("a cluster needs the program {tool} ({e}): apt-get install iproute2")
        })?;
    }
    Ok(())
}

/// Makes the switch without ports. The process is in the namespace of the switch.
pub(super) fn make_switch(cable: &Cable) -> crate::Result<()> {
    let mtu = cable.mtu;
    ip(&format!(
        "link set lo up\n\
         link add name switch mtu {mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         link set switch up\n"
    ))
    .map_err(|e| format!("cannot make a switch (kernel module bridge): {e}"))
}

/// Makes the interface of a host with its addresses, and a cable to the namespace of process 1.
///
/// The process is in the namespace of the host.
pub(super) fn make_interface(host: u8, cable: &Cable) -> crate::Result<()> {
    let mtu = cable.mtu;
    ip(&format!(
        "link set lo up\n\
         link add name {INTERFACE} mtu {mtu} type veth peer name port{host} mtu {mtu} netns 1\n"
    ))
    .map_err(|e| format!("cannot make a cable (kernel module veth): {e}"))?;
    // Use an IPv6 address at once, without duplicate address detection. A kernel without IPv6 has
    // no such file.
    for setting in ["accept_dad", "dad_transmits"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{INTERFACE}/{setting}"), "0");
    }
    ip(&format!("address add {}/24 dev {INTERFACE}\nlink set {INTERFACE} up\n", address(host)))?;
    if std::path::Path::new("/proc/sys/net/ipv6").exists() {
        ip(&format!("address add {}/64 dev {INTERFACE} nodad\n", address6(host)))?;
    }
    // Allow ping without root. If the kernel refuses the setting, ping needs root as on other
    // hosts.
    let group = rustix::process::getegid().as_raw();
    let _ = std::fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{group} {group}"));
    let netem = cable.netem();
    if netem.is_empty() {
        return Ok(());
    }
    let done = Command::new("tc")
        .args(["qdisc", "add", "dev", INTERFACE, "root", "netem"])
        .args(&netem)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot run tc: {e}"))?;
    if done.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&done.stderr);
    let missing = if error.contains("qdisc kind is unknown") || error.contains("No such file") {
        "this kernel has no netem (module sch_netem; Debian: linux-image-amd64 rather than -cloud), so --loss, --delay, --rate and --netem do not work: "
    } else {
        ""
    };
    Err(format!("{missing}tc netem {}: {}", netem.join(" "), error.trim()))
}

/// Connects the cables of the hosts to the switch, and waits until the switch forwards packets.
///
/// The process is in the namespace of the switch.
pub(super) fn connect_cables(hosts: impl Iterator<Item = u8>) -> crate::Result<()> {
    ip(&hosts.map(|host| format!("link set port{host} master switch up\n")).collect::<String>())?;
    await_cables(&["master", "switch"]);
    Ok(())
}

/// Waits until the cable of this host is connected. The process is in the namespace of the host.
pub(super) fn await_connection() {
    await_cables(&["dev", INTERFACE]);
}

/// The longest wait for cables.
///
/// The kernel detects the carrier of a cable within a second. Until then, the switch drops packets
/// of the port. Most programs repeat a lost packet, but a multicast datagram is lost.
const CABLES_WAIT: Duration = Duration::from_secs(5);

/// Waits until the interfaces that `which` selects (ip-link(8)) are up, or until the longest wait
/// has passed.
fn await_cables(which: &[&str]) {
    let deadline = Instant::now() + CABLES_WAIT;
    loop {
        let requested = Command::new("ip").args(["-brief", "link", "show"]).args(which).output();
        let Ok(shown) = requested else { return };
        if are_up(&String::from_utf8_lossy(&shown.stdout)) || Instant::now() > deadline {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// True if the output of `ip -brief link` shows no interface that is down.
fn are_up(shown: &str) -> bool {
    let is_up = |line: &str| matches!(line.split_whitespace().nth(1), Some("UP" | "UNKNOWN"));
    shown.lines().all(is_up)
}

/// Executes commands of ip(8), one in each line.
fn ip(lines: &str) -> crate::Result<()> {
    let failed = |e: std::io::Error| format!("cannot run ip: {e}");
    let mut ip = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = ip.stdin.take() {
        // The exit status shows whether ip(8) read all lines.
        let _ = input.write_all(lines.as_bytes());
    }
    let done = ip.wait_with_output().map_err(failed)?;
    if done.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&done.stderr);
    Err(error.trim().replace('\n', "; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cable(loss: Option<&str>, delay: Option<&str>, netem: Option<&str>) -> Cable {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Cable { mtu: 1500, loss: own(loss), delay: own(delay), rate: None, netem: own(netem) }
    }

    #[test]
    fn a_cable_without_faults_needs_no_netem() {
        assert!(cable(None, None, None).netem().is_empty());
        assert_eq!(
            cable(Some("1%"), Some("1ms  200us"), Some("duplicate 1%")).netem(),
            ["loss", "1%", "delay", "1ms", "200us", "duplicate", "1%"]
        );
    }

    #[test]
    fn a_cable_that_is_down_is_not_up() {
        let up = "port1@if2  UP  aa:bb <BROADCAST,UP,LOWER_UP>\n";
        let down = "port2@if2  DOWN  aa:bc <BROADCAST,UP,LOWER_UP>\n";
        assert!(are_up(up) && are_up("") && are_up("lo  UNKNOWN  00:00 <LOOPBACK>\n"));
        assert!(!are_up(&[up, down].concat()));
        assert!(!are_up(&down.replace("DOWN", "LOWERLAYERDOWN")));
    }

    #[test]
    fn a_host_has_a_name_and_two_addresses() {
        assert_eq!(host_number("host2", 4), Some(2));
        assert_eq!(host_number("10.76.0.4", 4), Some(4));
        assert_eq!(host_number("fd76::3", 4), Some(3));
        for other in ["host5", "host0", "host", "2", "10.76.0.5", ""] {
            assert_eq!(host_number(other, 4), None, "{other}");
        }
    }
}
