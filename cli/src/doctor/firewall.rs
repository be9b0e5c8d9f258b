//! Whether a packet filter drops what comes to the port of RoCE v2. A card's packets pass it by; the kernel's rxe and soft between hosts do not.

use super::devices::Device;
use super::host::ROCE_PORT;
use super::{Check, Machine, State};
use std::process::{Command, Stdio};

pub(super) fn check(machine: &Machine, devices: &[Device]) -> Check {
    let filters =
        machine.exists("/sys/module/nf_tables") || machine.exists("/sys/module/ip_tables");
    let lists = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];
    let old = lists.iter().any(|list| machine.read(list).is_some_and(|names| !names.is_empty()));
    if !filters && !old {
        return Check::ok("firewall", "no packet filter is loaded");
    }
    if !machine.is_this() {
        return Check::new("firewall", State::Unknown, "there is a packet filter");
    }
    let rules = [ask("nft", &["list", "ruleset"]), ask("iptables-save", &[])];
    if rules.iter().all(Option::is_none) {
        let finding = "there is a packet filter, whose rules only root can read";
        return Check::new("firewall", State::Unknown, finding).remedy("sudo ferroverbs doctor");
    }
    let verdict = rules.iter().flatten().find_map(|rules| drops(rules));
    let Some(remedy) = verdict else {
        return Check::ok("firewall", format!("no rule is seen that drops UDP port {ROCE_PORT}"));
    };
    let finding = format!("the packet filter drops UDP port {ROCE_PORT} unless a rule lets it in");
    if devices.iter().any(Device::is_rxe) {
        Check::missing("firewall", finding, remedy)
    } else {
        Check::note("firewall", finding).remedy(remedy)
    }
}

/// What a program says about the rules, if it is there and we may know.
fn ask(program: &str, arguments: &[&str]) -> Option<String> {
    // It lies where the path of an ordinary user does not lead.
    let folders = ["/usr/sbin", "/sbin", "/usr/bin"];
    let file = folders
        .iter()
        .map(|f| format!("{f}/{program}"))
        .find(|f| std::path::Path::new(f).exists())?;
    let mut command = Command::new(file);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let done = command.env_remove("LD_PRELOAD").output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The command that lets the port in, if what comes in is dropped unless a rule takes it and none speaks of the port.
pub(super) fn drops(rules: &str) -> Option<String> {
    if rules.contains(&ROCE_PORT.to_string()) {
        return None;
    }
    let mut table = None;
    let mut chain = None;
    for line in rules.lines().map(str::trim) {
        // iptables-save
        if let Some(rest) = line.strip_prefix(":INPUT ")
            && (rest.starts_with("DROP") || rest.starts_with("REJECT"))
        {
            return Some(format!("iptables -I INPUT -p udp --dport {ROCE_PORT} -j ACCEPT"));
        }
        // nft
        if let Some(name) = line.strip_prefix("table ") {
            table = Some(name.trim_end_matches(['{', ' ']));
        } else if let Some(name) = line.strip_prefix("chain ") {
            chain = Some(name.trim_end_matches(['{', ' ']));
        } else if line.contains("hook input") && line.contains("policy drop") {
            let (table, chain) = (table?, chain?);
            return Some(format!("nft insert rule {table} {chain} udp dport {ROCE_PORT} accept"));
        }
    }
    None
}
