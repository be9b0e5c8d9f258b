//! Reads the rules of nftables from the output of `nft -j list ruleset` (libnftables-json(5)).

use super::ROCE_PORT;
use super::rules::{Chain, Chains, FilterDecision, Policy, Rule, RuleMatch, Verdict, decide_table};
use serde_json::Value;
use std::collections::BTreeMap;

/// The decisions of all tables, without the tables of `others` (family and name). `None` if the
/// text is no list of rules.
pub(super) fn decide(text: &str, others: &[(&str, &str)]) -> Option<Vec<FilterDecision>> {
    let ruleset: Value = serde_json::from_str(text).ok()?;
    let all = ruleset["nftables"].as_array()?;
    let mut sets: BTreeMap<[String; 3], Vec<Value>> = BTreeMap::new();
    for set in all.iter().filter_map(|one| one.get("set")) {
        let elements = set["elem"].as_array().cloned().unwrap_or_default();
        sets.insert(["family", "table", "name"].map(|key| word(&set[key])), elements);
    }
    let mut tables: BTreeMap<[String; 2], Chains> = BTreeMap::new();
    for chain in all.iter().filter_map(|one| one.get("chain")) {
        let [family, table, name] = ["family", "table", "name"].map(|key| word(&chain[key]));
        let comes_in = matches!(chain["hook"].as_str(), Some("input" | "prerouting" | "ingress"));
        let policy = (comes_in && chain["type"] == "filter").then(|| Policy {
            drops: chain["policy"] == "drop",
            remedy: format!("nft insert rule {family} {table} {name} udp dport {ROCE_PORT} accept"),
        });
        let chains = tables.entry([family, table]).or_default();
        chains.insert(name, Chain { policy, rules: Vec::new() });
    }
    for one in all.iter().filter_map(|one| one.get("rule")) {
        let [family, table, name] = ["family", "table", "chain"].map(|key| word(&one[key]));
        let named = |set: &str| sets.get(&[family.clone(), table.clone(), set.to_owned()]);
        let made = rule(one["expr"].as_array().map_or(&[], Vec::as_slice), &named);
        let chains = tables.get_mut(&[family.clone(), table.clone()]);
        if let Some(chain) = chains.and_then(|chains| chains.get_mut(&name)) {
            chain.rules.push(made);
        }
    }
    let judged = tables
        .iter()
        .filter(|([family, table], _)| !others.contains(&(family.as_str(), table.as_str())));
    Some(judged.map(|(_, chains)| decide_table(chains)).collect())
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn rule<'a>(expressions: &[Value], named: &dyn Fn(&str) -> Option<&'a Vec<Value>>) -> Rule {
    let mut made = Rule { fit: RuleMatch::Yes, verdict: Verdict::Nothing };
    for (key, value) in expressions.iter().filter_map(Value::as_object).flatten() {
        match key.as_str() {
            "match" => made.fit = made.fit.min(fit(value, named)),
            "vmap" => {
                let (fits, verdict) = mapped(value, named);
                made.fit = made.fit.min(fits);
                made.verdict = verdict;
            }
            // The number of earlier packets decides.
            "limit" | "quota" | "ct count" => made.fit = made.fit.min(RuleMatch::Perhaps),
            "counter" | "log" | "notrack" | "mangle" | "set" | "map" | "comment" => {}
            _ => match verdict(key, value) {
                Some(verdict) => made.verdict = verdict,
                None => {
                    made.fit = made.fit.min(RuleMatch::Perhaps);
                    made.verdict = Verdict::Anything;
                }
            },
        }
    }
    made
}

fn verdict(key: &str, value: &Value) -> Option<Verdict> {
    let target = || word(&value["target"]);
    Some(match key {
        "accept" => Verdict::Accept,
        "drop" | "reject" => Verdict::Drop,
        "return" => Verdict::Return,
        "continue" => Verdict::Nothing,
        "jump" => Verdict::Jump(target()),
        "goto" => Verdict::Goto(target()),
        _ => return None,
    })
}

/// The verdict of a map for the packet.
fn mapped<'a>(map: &Value, named: &dyn Fn(&str) -> Option<&'a Vec<Value>>) -> (RuleMatch, Verdict) {
    let unknown = (RuleMatch::Perhaps, Verdict::Anything);
    let Some(all) = map["data"]["set"].as_array() else { return unknown };
    for pair in all {
        let expression = serde_json::json!({ "op": "==", "left": map["key"], "right": pair[0] });
        match fit(&expression, named) {
            RuleMatch::No => {}
            RuleMatch::Perhaps => return unknown,
            RuleMatch::Yes => {
                let statement = pair[1].as_object().and_then(|all| all.iter().next());
                let found = statement.and_then(|(key, value)| verdict(key, value));
                return found.map_or(unknown, |found| (RuleMatch::Yes, found));
            }
        }
    }
    (RuleMatch::No, Verdict::Nothing)
}

fn fit<'a>(expression: &Value, named: &dyn Fn(&str) -> Option<&'a Vec<Value>>) -> RuleMatch {
    let (left, right) = (&expression["left"], &expression["right"]);
    let negated = expression["op"] == "!=";
    let payload = &left["payload"];
    let fit = match (payload["protocol"].as_str(), payload["field"].as_str()) {
        (Some("udp" | "th"), Some("dport")) => matches_value(right, &Value::from(ROCE_PORT), named),
        (Some("tcp" | "sctp" | "dccp" | "icmp" | "icmpv6" | "igmp" | "esp" | "ah"), _) => {
            return RuleMatch::No;
        }
        (Some("ip"), Some("protocol")) | (Some("ip6"), Some("nexthdr")) => {
            matches_value(right, &Value::from("udp"), named)
        }
        _ => match (left["meta"]["key"].as_str(), left["ct"]["key"].as_str()) {
            (Some("l4proto"), _) => matches_value(right, &Value::from("udp"), named),
            (Some("iif" | "iifname"), _) if right == "lo" => RuleMatch::No,
            (_, Some("state")) => matches_value(right, &Value::from("new"), named),
            _ => RuleMatch::Perhaps,
        },
    };
    fit.negated(negated)
}

/// Matches a value with the value, list, set or range of a rule.
fn matches_value<'a>(
    right: &Value,
    wanted: &Value,
    named: &dyn Fn(&str) -> Option<&'a Vec<Value>>,
) -> RuleMatch {
    let any = |all: &[Value]| {
        all.iter().map(|one| matches_value(one, wanted, named)).max().unwrap_or(RuleMatch::No)
    };
    if let Some(name) = right.as_str().and_then(|text| text.strip_prefix('@')) {
        return named(name).map_or(RuleMatch::Perhaps, |all| any(all));
    }
    if let Some(all) = right.as_array().or_else(|| right["set"].as_array()) {
        return any(all);
    }
    if let Some(ends) = right["range"].as_array() {
        return match (
            ends.first().and_then(Value::as_u64),
            ends.get(1).and_then(Value::as_u64),
            wanted.as_u64(),
        ) {
            (Some(first), Some(last), Some(wanted)) => {
                RuleMatch::of((first..=last).contains(&wanted))
            }
            _ => RuleMatch::Perhaps,
        };
    }
    match right {
        Value::Number(_) | Value::String(_) if right.is_number() == wanted.is_number() => {
            RuleMatch::of(right == wanted)
        }
        _ => RuleMatch::Perhaps,
    }
}
