//! Checks whether the packet filter drops packets to the RoCE v2 port. The filter sees the packets
//! of soft and of the kernel's rxe, but not those of a card.

mod iptables;
mod nft;
mod rules;

use super::check::{Check, CheckState};
use super::devices::Device;
use super::host::ROCE_PORT;
use super::machine::Machine;
use rules::FilterDecision;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Checks the rules of the packet filter.
pub(super) fn check(machine: &Machine, devices: &[Device]) -> Check {
    let filters =
        machine.has_file("/sys/module/nf_tables") || machine.has_file("/sys/module/ip_tables");
    let lists = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];
    let old = lists.iter().any(|list| machine.read(list).is_some_and(|names| !names.is_empty()));
    let is_loaded = filters || old;
    if !machine.is_this() {
        return match is_loaded {
            true => Check::new("firewall", CheckState::Unknown, "there is a packet filter"),
            false => Check::ok("firewall", "no packet filter is loaded"),
        };
    }
    // The filter may be built into the kernel, so read the rules even if no module is loaded.
    match RuleLists::read().decision() {
        Some(decision) => report(decision, devices.iter().any(Device::is_rxe)),
        None if is_loaded || PROGRAMS.iter().any(|program| find_program(program).is_some()) => {
            let finding = "the rules of the packet filter are unknown: only root can list the rules (nft, iptables-save)";
            Check::new("firewall", CheckState::Unknown, finding).remedy("sudo ferroverbs doctor")
        }
        None => {
            let finding = "no module of a packet filter is loaded, and no program that lists rules is installed (nft, iptables-save)";
            Check::ok("firewall", finding)
        }
    }
}

/// The command that lets packets to the RoCE v2 port in, if the packet filter of this machine drops
/// them.
pub(super) fn remedy(machine: &Machine) -> Option<String> {
    match RuleLists::read().decision() {
        Some(FilterDecision::Dropped(remedy)) if machine.is_this() => Some(remedy),
        _ => None,
    }
}

fn report(decision: FilterDecision, is_rxe: bool) -> Check {
    match decision {
        FilterDecision::Accepted => Check::ok(
            "firewall",
            format!("the packet filter accepts packets to UDP port {ROCE_PORT}"),
        ),
        FilterDecision::Unknown => {
            let finding = format!(
                "the packet filter may drop packets to UDP port {ROCE_PORT}: its rules depend on more than the port"
            );
            Check::new("firewall", CheckState::Unknown, finding).remedy(
                "to try: ferroverbs doctor --answer here, and on the other machine: ferroverbs doctor --peer THIS-MACHINE",
            )
        }
        FilterDecision::Dropped(remedy) => {
            let finding = format!("the packet filter drops packets to UDP port {ROCE_PORT}");
            let state = if is_rxe { CheckState::Missing } else { CheckState::Note };
            Check::new("firewall", state, finding).remedy(remedy)
        }
    }
}

/// The output of the programs that list rules; `None` if the program is missing or refuses this
/// user.
struct RuleLists {
    nft: Option<String>,
    iptables: Option<String>,
    ip6tables: Option<String>,
}

/// Tables that iptables makes by nftables. The output of iptables-save is easier to read for these
/// tables.
const TABLES: [&str; 5] = ["filter", "mangle", "raw", "nat", "security"];

impl RuleLists {
    fn read() -> Self {
        Self {
            nft: list_rules(PROGRAMS[0], &["-j", "list", "ruleset"]),
            iptables: list_rules(PROGRAMS[1], &[]),
            ip6tables: list_rules(PROGRAMS[2], &[]),
        }
    }

    /// The decision about a packet to the RoCE v2 port; `None` if no list could be read.
    fn decision(&self) -> Option<FilterDecision> {
        let mut decisions = Vec::new();
        let mut others = Vec::new();
        for (text, program, family) in
            [(&self.iptables, "iptables", "ip"), (&self.ip6tables, "ip6tables", "ip6")]
        {
            let Some(text) = text else { continue };
            decisions.push(FilterDecision::Accepted);
            decisions.extend(iptables::decide(text, program));
            let has = |table: &&str| text.lines().any(|line| line.strip_prefix('*') == Some(table));
            others.extend(TABLES.iter().copied().filter(has).map(|table| (family, table)));
        }
        let by_nft = self.nft.as_ref().and_then(|text| nft::decide(text, &others));
        if by_nft.is_some() {
            decisions.push(FilterDecision::Accepted);
        }
        decisions.extend(by_nft.unwrap_or_default());
        let dropped =
            decisions.iter().find(|decision| matches!(decision, FilterDecision::Dropped(_)));
        let unknown = decisions.iter().find(|decision| **decision == FilterDecision::Unknown);
        dropped.or(unknown).or(decisions.first()).cloned()
    }
}

/// The programs that list rules.
const PROGRAMS: [&str; 3] = ["nft", "iptables-save", "ip6tables-save"];

/// The file of a program in the folders for programs of root, which are not in the `PATH` of other
/// users.
fn find_program(program: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin"];
    folders.iter().map(|f| Path::new(f).join(program)).find(|file| file.exists())
}

/// The output of a program that lists rules; `None` if the program is missing or fails.
fn list_rules(program: &str, arguments: &[&str]) -> Option<String> {
    let file = find_program(program)?;
    let mut command = Command::new(file);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let done = command.env_remove("LD_PRELOAD").output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nft(policy: &str, sets: &str, rules: &[&str]) -> Option<FilterDecision> {
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
        RuleLists { nft: Some(text), iptables: None, ip6tables: None }.decision()
    }

    const PORT: &str = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 4791}}"#;
    const DROPPED: &str = "nft insert rule inet filter input udp dport 4791 accept";

    #[test]
    fn a_rule_of_nftables_with_the_port_may_accept_or_drop() {
        let dropped = Some(FilterDecision::Dropped(DROPPED.into()));
        let accept = format!(r#"input {PORT}, {{"accept": null}}"#);
        let drop = format!(r#"input {PORT}, {{"counter": {{}}}}, {{"drop": null}}"#);
        let ssh = r#"input {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}, {"accept": null}"#;
        let known = r#"input {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}, {"accept": null}"#;
        let lo = r#"input {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lo"}}, {"accept": null}"#;
        assert_eq!(nft("accept", "", &[]), Some(FilterDecision::Accepted));
        assert_eq!(nft("drop", "", &[lo, known, ssh]), dropped);
        assert_eq!(nft("drop", "", &[lo, known, ssh, &accept]), Some(FilterDecision::Accepted));
        // A rule with the port that drops.
        assert_eq!(nft("accept", "", &[&drop]), dropped);
        assert_eq!(nft("accept", "", &[&accept, &drop]), Some(FilterDecision::Accepted));
        assert_eq!(nft("accept", "", &[&drop, &accept]), dropped);
        // Ranges, sets and other chains.
        let range = accept.replace("4791", r#"{"set": [53, {"range": [4000, 5000]}]}"#);
        assert_eq!(nft("drop", "", &[&range]), Some(FilterDecision::Accepted));
        let set = r#"{"set": {"family": "inet", "table": "filter", "name": "open", "type": "inet_service", "elem": [4791]}}"#;
        let named = accept.replace("4791", r#""@open""#);
        assert_eq!(nft("drop", set, &[&named]), Some(FilterDecision::Accepted));
        assert_eq!(nft("drop", &set.replace("4791", "22"), &[&named]), dropped);
        let jump = r#"input {"jump": {"target": "more"}}"#;
        let there = accept.replace("input ", "more ");
        assert_eq!(nft("drop", "", &[jump, &there]), Some(FilterDecision::Accepted));
        assert_eq!(nft("drop", "", &[jump, r#"more {"return": null}"#]), dropped);
        // A rule with another condition decides nothing for sure.
        let from = accept.replace(
            "input ",
            r#"input {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": "10.0.0.0"}}, "#,
        );
        assert_eq!(nft("drop", "", &[&from]), Some(FilterDecision::Unknown));
        assert_eq!(nft("accept", "", &[&from]), Some(FilterDecision::Accepted));
        assert_eq!(nft("drop", "", &[r#"input {"xt": null}"#]), Some(FilterDecision::Unknown));
        // A map of verdicts.
        let map = r#"input {"vmap": {"key": {"ct": {"key": "state"}}, "data": {"set": [["invalid", {"drop": null}], ["established", {"accept": null}]]}}}"#;
        assert_eq!(nft("drop", "", &[map, &accept]), Some(FilterDecision::Accepted));
        assert_eq!(nft("drop", "", &[map]), dropped);
        let new = map.replace("invalid", "new");
        assert_eq!(nft("accept", "", &[&new]), dropped);
        // The walk through a chain that calls itself ends.
        assert_eq!(
            nft("drop", "", &[&jump.replace("input ", "more "), jump]),
            Some(FilterDecision::Unknown)
        );
    }

    #[test]
    fn a_rule_of_iptables_with_the_port_may_accept_or_drop() {
        let decision = |text: &str| {
            RuleLists { nft: None, iptables: Some(text.to_owned()), ip6tables: None }.decision()
        };
        let table = |policy: &str, rules: &str| {
            format!(
                "# by hand\n*filter\n:INPUT {policy} [0:0]\n:OUTPUT DROP [0:0]\n:own - [0:0]\n{rules}COMMIT\n"
            )
        };
        let remedy = "iptables -t filter -I INPUT -p udp --dport 4791 -j ACCEPT";
        let dropped = Some(FilterDecision::Dropped(remedy.into()));
        assert_eq!(decision(&table("ACCEPT", "")), Some(FilterDecision::Accepted));
        let usual = "-A INPUT -i lo -j ACCEPT\n-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n";
        assert_eq!(decision(&table("DROP", usual)), dropped);
        let port =
            "-A INPUT -p udp -m udp --dport 4791 -m comment --comment \"for -j DROP\" -j ACCEPT\n";
        assert_eq!(
            decision(&table("DROP", &format!("{usual}{port}"))),
            Some(FilterDecision::Accepted)
        );
        let drop = "-A INPUT -p udp -m multiport --dports 53,4000:5000 -j DROP\n";
        assert_eq!(decision(&table("ACCEPT", drop)), dropped);
        let own = "-A own -p udp --dport 4791 -j ACCEPT\n-A INPUT -j own\n-A INPUT -j REJECT --reject-with icmp-port-unreachable\n";
        assert_eq!(decision(&table("ACCEPT", own)), Some(FilterDecision::Accepted));
        assert_eq!(decision(&table("ACCEPT", &own.replace("4791", "22"))), dropped);
        let negated = "-A INPUT ! -i lo -p udp -j DROP\n";
        assert_eq!(decision(&table("ACCEPT", negated)), dropped);
        let from = "-A INPUT -s 10.0.0.0/8 -p udp -m udp --dport 4791 -j ACCEPT\n";
        assert_eq!(decision(&table("DROP", from)), Some(FilterDecision::Unknown));
        // The rules that iptables made by nftables count once, by the output of iptables-save.
        let nft = r#"{"nftables": [{"chain": {"family": "ip", "table": "filter", "name": "INPUT", "type": "filter", "hook": "input", "policy": "drop"}}, {"rule": {"family": "ip", "table": "filter", "chain": "INPUT", "expr": [{"xt": null}]}}]}"#;
        let both = RuleLists {
            nft: Some(nft.to_owned()),
            iptables: Some(table("DROP", port)),
            ip6tables: None,
        };
        assert_eq!(both.decision(), Some(FilterDecision::Accepted));
        assert_eq!(RuleLists { iptables: None, ..both }.decision(), Some(FilterDecision::Unknown));
    }

    #[test]
    fn an_unknown_decision_is_an_unknown_check() {
        assert_eq!(RuleLists { nft: None, iptables: None, ip6tables: None }.decision(), None);
        let none = RuleLists {
            nft: Some("Operation not permitted".into()),
            iptables: None,
            ip6tables: None,
        };
        assert_eq!(none.decision(), None);
        assert_eq!(report(FilterDecision::Unknown, true).state, CheckState::Unknown);
        assert_eq!(report(FilterDecision::Dropped("x".into()), true).state, CheckState::Missing);
        assert_eq!(report(FilterDecision::Dropped("x".into()), false).state, CheckState::Note);
    }
}
