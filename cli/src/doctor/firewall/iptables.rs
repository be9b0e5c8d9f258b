//! Reads the rules of iptables from the output of iptables-save(8) and ip6tables-save(8).

use super::ROCE_PORT;
use super::rules::{Chain, Chains, FilterDecision, Policy, Rule, RuleMatch, Verdict, decide_table};

/// Targets that let the packet go on to the next rule.
const CONTINUING: [&str; 9] =
    ["LOG", "NFLOG", "MARK", "CONNMARK", "CT", "TRACE", "DSCP", "TOS", "CONNSECMARK"];

/// The decision of each table. `program` is the command that adds a rule.
pub(super) fn decide(text: &str, program: &str) -> Vec<FilterDecision> {
    let mut decisions = Vec::new();
    let mut chains = Chains::new();
    let mut table = "";
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('*') {
            (table, chains) = (name, Chains::new());
        } else if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split_whitespace();
            let (name, policy) = (words.next().unwrap_or_default(), words.next());
            let comes_in = matches!(name, "INPUT" | "PREROUTING") && table != "nat";
            let policy = comes_in.then(|| Policy {
                drops: policy == Some("DROP"),
                remedy: format!(
                    "{program} -t {table} -I {name} -p udp --dport {ROCE_PORT} -j ACCEPT"
                ),
            });
            chains.insert(name.to_owned(), Chain { policy, rules: Vec::new() });
        } else if let Some(rest) = line.strip_prefix("-A ") {
            let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            let made = rule(&words(rest), &chains);
            if let Some(chain) = chains.get_mut(name) {
                chain.rules.push(made);
            }
        } else if line == "COMMIT" {
            decisions.push(decide_table(&chains));
        }
    }
    decisions
}

/// Splits a rule into words. A quoted text is one word.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let (mut quoted, mut escaped) = (false, false);
    for c in text.chars() {
        match c {
            _ if escaped => {
                word.push(c);
                escaped = false;
            }
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            _ => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

fn rule(words: &[String], chains: &Chains) -> Rule {
    let mut made = Rule { fit: RuleMatch::Yes, verdict: Verdict::Nothing };
    let mut negated = false;
    let mut rest = words.iter().map(String::as_str);
    while let Some(option) = rest.next() {
        if option == "!" {
            negated = true;
            continue;
        }
        let fit = match option {
            "-m" | "--comment" => {
                rest.next();
                continue;
            }
            "-j" | "-g" => {
                made.verdict = verdict(rest.next().unwrap_or_default(), option == "-g", chains);
                // The remaining options belong to the target.
                return made;
            }
            "-p" => RuleMatch::of(matches!(rest.next(), Some("udp" | "17" | "all"))),
            "-i" if rest.clone().next() == Some("lo") => RuleMatch::No,
            "--dport" | "--dports" | "--ports" => ports(rest.next().unwrap_or_default()),
            "--ctstate" | "--state" => RuleMatch::of(
                rest.next().unwrap_or_default().split(',').any(|state| state == "NEW"),
            ),
            other if other.starts_with('-') => RuleMatch::Perhaps,
            _ => continue,
        };
        made.fit = made.fit.min(fit.negated(negated));
        negated = false;
    }
    made
}

fn ports(list: &str) -> RuleMatch {
    let is_ours = |range: &str| {
        let (first, last) = range.split_once(':').unwrap_or((range, range));
        let ends = (first.parse::<u16>().unwrap_or(0), last.parse::<u16>().unwrap_or(u16::MAX));
        (ends.0..=ends.1).contains(&ROCE_PORT)
    };
    RuleMatch::of(list.split(',').any(is_ours))
}

fn verdict(target: &str, is_goto: bool, chains: &Chains) -> Verdict {
    match target {
        "ACCEPT" => Verdict::Accept,
        "DROP" | "REJECT" => Verdict::Drop,
        "RETURN" => Verdict::Return,
        name if chains.contains_key(name) && is_goto => Verdict::Goto(name.to_owned()),
        name if chains.contains_key(name) => Verdict::Jump(name.to_owned()),
        name if CONTINUING.contains(&name) => Verdict::Nothing,
        _ => Verdict::Anything,
    }
}
