//! Whether a packet filter drops what comes to the port of RoCE v2. A card's packets pass it by; the kernel's rxe and soft between hosts do not.

mod iptables;
mod nft;
mod rules;

use super::devices::Device;
use super::host::ROCE_PORT;
use super::{Check, Machine, State};
use rules::Fate;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) fn check(machine: &Machine, devices: &[Device]) -> Check {
    let filters =
        machine.exists("/sys/module/nf_tables") || machine.exists("/sys/module/ip_tables");
    let lists = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];
    let old = lists.iter().any(|list| machine.read(list).is_some_and(|names| !names.is_empty()));
    let is_loaded = filters || old;
    if !machine.is_this() {
        return match is_loaded {
            true => Check::new("firewall", State::Unknown, "there is a packet filter"),
            false => Check::ok("firewall", "no packet filter is loaded"),
        };
    }
    // A filter may be part of the kernel, and no module.
    let rules = Rules {
        nft: ask(PROGRAMS[0], &["-j", "list", "ruleset"]),
        iptables: ask(PROGRAMS[1], &[]),
        ip6tables: ask(PROGRAMS[2], &[]),
    };
    match rules.fate() {
        Some(fate) => told(fate, devices.iter().any(Device::is_rxe)),
        None if is_loaded || PROGRAMS.iter().any(|program| find(program).is_some()) => {
            let finding = "cannot tell what a packet filter drops: only root can list its rules (nft, iptables-save)";
            Check::new("firewall", State::Unknown, finding).remedy("sudo ferroverbs doctor")
        }
        None => {
            let finding = "no packet filter is loaded as a module, and no program that lists rules is here (nft, iptables-save)";
            Check::ok("firewall", finding)
        }
    }
}

fn told(fate: Fate, is_rxe: bool) -> Check {
    match fate {
        Fate::LetIn => {
            Check::ok("firewall", format!("the packet filter lets UDP port {ROCE_PORT} in"))
        }
        Fate::Unknown => {
            let finding = format!(
                "cannot tell whether the packet filter lets UDP port {ROCE_PORT} in: its rules look at more than the port"
            );
            Check::new("firewall", State::Unknown, finding).remedy(
                "try it: ferroverbs doctor --answer here, ferroverbs doctor --peer THIS-ONE on the other machine",
            )
        }
        Fate::Dropped(remedy) => {
            let finding = format!("the packet filter drops what comes to UDP port {ROCE_PORT}");
            let state = if is_rxe { State::Missing } else { State::Note };
            Check::new("firewall", state, finding).remedy(remedy)
        }
    }
}

/// What the programs that list rules print, as far as they are there and we may know.
struct Rules {
    nft: Option<String>,
    iptables: Option<String>,
    ip6tables: Option<String>,
}

/// Tables that iptables has made by nftables: their rules are told better by iptables-save.
const TABLES: [&str; 5] = ["filter", "mangle", "raw", "nat", "security"];

impl Rules {
    /// What becomes of a packet; `None` if nothing tells.
    fn fate(&self) -> Option<Fate> {
        let mut fates = Vec::new();
        let mut others = Vec::new();
        for (text, program, family) in
            [(&self.iptables, "iptables", "ip"), (&self.ip6tables, "ip6tables", "ip6")]
        {
            let Some(text) = text else { continue };
            fates.push(Fate::LetIn);
            fates.extend(iptables::judge(text, program));
            let has = |table: &&str| text.lines().any(|line| line.strip_prefix('*') == Some(table));
            others.extend(TABLES.iter().copied().filter(has).map(|table| (family, table)));
        }
        let by_nft = self.nft.as_ref().and_then(|text| nft::judge(text, &others));
        if by_nft.is_some() {
            fates.push(Fate::LetIn);
        }
        fates.extend(by_nft.unwrap_or_default());
        let dropped = fates.iter().find(|fate| matches!(fate, Fate::Dropped(_)));
        let unknown = fates.iter().find(|fate| **fate == Fate::Unknown);
        dropped.or(unknown).or(fates.first()).cloned()
    }
}

/// What lists rules.
const PROGRAMS: [&str; 3] = ["nft", "iptables-save", "ip6tables-save"];

/// A program that lies where the path of an ordinary user does not lead.
fn find(program: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin"];
    folders.iter().map(|f| Path::new(f).join(program)).find(|file| file.exists())
}

/// What a program says about the rules, if it is there and we may know.
fn ask(program: &str, arguments: &[&str]) -> Option<String> {
    let file = find(program)?;
    let mut command = Command::new(file);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let done = command.env_remove("LD_PRELOAD").output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nft(policy: &str, sets: &str, rules: &[&str]) -> Option<Fate> {
        let mut all = vec![
            r#"{"metainfo": {"version": "1.0.6"}}"#.to_owned(),
            r#"{"table": {"family": "inet", "name": "filter"}}"#.to_owned(),
            format!(
                r#"{{"chain": {{"family": "inet", "table": "filter", "name": "input", "type": "filter", "hook": "input", "prio": 0, "policy": "{policy}"}}}}"#
            ),
            r#"{"chain": {"family": "inet", "table": "filter", "name": "more"}}"#.to_owned(),
            r#"{"chain": {"family": "inet", "table": "filter", "name": "output", "type": "filter", "hook": "output", "prio": 0, "policy": "drop"}}"#.to_owned(),
        ];
        all.extend((!sets.is_empty()).then(|| sets.to_owned()));
        for rule in rules {
            let (chain, expressions) = rule.split_once(' ').unwrap();
            all.push(format!(
                r#"{{"rule": {{"family": "inet", "table": "filter", "chain": "{chain}", "handle": 1, "expr": [{expressions}]}}}}"#
            ));
        }
        let text = format!(r#"{{"nftables": [{}]}}"#, all.join(", "));
        Rules { nft: Some(text), iptables: None, ip6tables: None }.fate()
    }

    const PORT: &str = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 4791}}"#;
    const DROPPED: &str = "nft insert rule inet filter input udp dport 4791 accept";

    #[test]
    fn the_rules_of_nftables_are_followed_and_not_searched_for_the_number() {
        let dropped = Some(Fate::Dropped(DROPPED.into()));
        let accept = format!(r#"input {PORT}, {{"accept": null}}"#);
        let drop = format!(r#"input {PORT}, {{"counter": {{}}}}, {{"drop": null}}"#);
        let ssh = r#"input {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}, {"accept": null}"#;
        let known = r#"input {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}, {"accept": null}"#;
        let lo = r#"input {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lo"}}, {"accept": null}"#;
        assert_eq!(nft("accept", "", &[]), Some(Fate::LetIn));
        assert_eq!(nft("drop", "", &[lo, known, ssh]), dropped);
        assert_eq!(nft("drop", "", &[lo, known, ssh, &accept]), Some(Fate::LetIn));
        // A rule that has the number, and drops.
        assert_eq!(nft("accept", "", &[&drop]), dropped);
        assert_eq!(nft("accept", "", &[&accept, &drop]), Some(Fate::LetIn));
        assert_eq!(nft("accept", "", &[&drop, &accept]), dropped);
        // By ranges, sets and other chains.
        let range = accept.replace("4791", r#"{"set": [53, {"range": [4000, 5000]}]}"#);
        assert_eq!(nft("drop", "", &[&range]), Some(Fate::LetIn));
        let set = r#"{"set": {"family": "inet", "table": "filter", "name": "open", "type": "inet_service", "elem": [4791]}}"#;
        let named = accept.replace("4791", r#""@open""#);
        assert_eq!(nft("drop", set, &[&named]), Some(Fate::LetIn));
        assert_eq!(nft("drop", &set.replace("4791", "22"), &[&named]), dropped);
        let jump = r#"input {"jump": {"target": "more"}}"#;
        let there = accept.replace("input ", "more ");
        assert_eq!(nft("drop", "", &[jump, &there]), Some(Fate::LetIn));
        assert_eq!(nft("drop", "", &[jump, r#"more {"return": null}"#]), dropped);
        // What else is asked decides.
        let from = accept.replace(
            "input ",
            r#"input {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": "10.0.0.0"}}, "#,
        );
        assert_eq!(nft("drop", "", &[&from]), Some(Fate::Unknown));
        assert_eq!(nft("accept", "", &[&from]), Some(Fate::LetIn));
        assert_eq!(nft("drop", "", &[r#"input {"xt": null}"#]), Some(Fate::Unknown));
        // By a map of verdicts.
        let map = r#"input {"vmap": {"key": {"ct": {"key": "state"}}, "data": {"set": [["invalid", {"drop": null}], ["established", {"accept": null}]]}}}"#;
        assert_eq!(nft("drop", "", &[map, &accept]), Some(Fate::LetIn));
        assert_eq!(nft("drop", "", &[map]), dropped);
        let new = map.replace("invalid", "new");
        assert_eq!(nft("accept", "", &[&new]), dropped);
        // A chain that calls itself ends.
        assert_eq!(nft("drop", "", &[&jump.replace("input ", "more "), jump]), Some(Fate::Unknown));
    }

    #[test]
    fn the_rules_of_iptables_are_followed() {
        let fate = |text: &str| {
            Rules { nft: None, iptables: Some(text.to_owned()), ip6tables: None }.fate()
        };
        let table = |policy: &str, rules: &str| {
            format!(
                "# by hand\n*filter\n:INPUT {policy} [0:0]\n:OUTPUT DROP [0:0]\n:own - [0:0]\n{rules}COMMIT\n"
            )
        };
        let remedy = "iptables -t filter -I INPUT -p udp --dport 4791 -j ACCEPT";
        let dropped = Some(Fate::Dropped(remedy.into()));
        assert_eq!(fate(&table("ACCEPT", "")), Some(Fate::LetIn));
        let usual = "-A INPUT -i lo -j ACCEPT\n-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n";
        assert_eq!(fate(&table("DROP", usual)), dropped);
        let port =
            "-A INPUT -p udp -m udp --dport 4791 -m comment --comment \"for -j DROP\" -j ACCEPT\n";
        assert_eq!(fate(&table("DROP", &format!("{usual}{port}"))), Some(Fate::LetIn));
        let drop = "-A INPUT -p udp -m multiport --dports 53,4000:5000 -j DROP\n";
        assert_eq!(fate(&table("ACCEPT", drop)), dropped);
        let own = "-A own -p udp --dport 4791 -j ACCEPT\n-A INPUT -j own\n-A INPUT -j REJECT --reject-with icmp-port-unreachable\n";
        assert_eq!(fate(&table("ACCEPT", own)), Some(Fate::LetIn));
        assert_eq!(fate(&table("ACCEPT", &own.replace("4791", "22"))), dropped);
        let negated = "-A INPUT ! -i lo -p udp -j DROP\n";
        assert_eq!(fate(&table("ACCEPT", negated)), dropped);
        let from = "-A INPUT -s 10.0.0.0/8 -p udp -m udp --dport 4791 -j ACCEPT\n";
        assert_eq!(fate(&table("DROP", from)), Some(Fate::Unknown));
        // What iptables made by nftables is told once, and by iptables.
        let nft = r#"{"nftables": [{"chain": {"family": "ip", "table": "filter", "name": "INPUT", "type": "filter", "hook": "input", "policy": "drop"}}, {"rule": {"family": "ip", "table": "filter", "chain": "INPUT", "expr": [{"xt": null}]}}]}"#;
        let both = Rules {
            nft: Some(nft.to_owned()),
            iptables: Some(table("DROP", port)),
            ip6tables: None,
        };
        assert_eq!(both.fate(), Some(Fate::LetIn));
        assert_eq!(Rules { iptables: None, ..both }.fate(), Some(Fate::Unknown));
    }

    #[test]
    fn what_is_not_known_is_said_to_be_unknown() {
        assert_eq!(Rules { nft: None, iptables: None, ip6tables: None }.fate(), None);
        let none =
            Rules { nft: Some("Operation not permitted".into()), iptables: None, ip6tables: None };
        assert_eq!(none.fate(), None);
        assert_eq!(told(Fate::Unknown, true).state, State::Unknown);
        assert_eq!(told(Fate::Dropped("x".into()), true).state, State::Missing);
        assert_eq!(told(Fate::Dropped("x".into()), false).state, State::Note);
    }
}
