//! The parser of the fault language (ferroverbs-soft(7), "Faults").
//!
//! Statements are separated by semicolons or line ends. Each is an action word and options
//! `name=value`. The parser is strict: unknown text is an error, because a test that expects a
//! fault must not run without one.

use super::{ALL, Class, Fault, ImmediateFault, Overrun, Rule, RuleHits, Statement, Transport};
use crate::inbound::Nak;
use abi::*;
use std::time::Duration;

/// Parses the statements of `text`, in order.
///
/// # Errors
/// One line: the statement, its error, and the correct form.
pub fn parse(text: &str) -> Result<Vec<Statement>, String> {
    let statements = text.split([';', '\n']).map(str::trim);
    let reported = statements.filter(|s| !s.is_empty());
    reported
        .map(|s| statement(s).map_err(|why| format!("\"{}\": {why}", s.escape_debug())))
        .collect()
}

fn statement(text: &str) -> Result<Statement, String> {
    let mut words = text.split_whitespace();
    let what = words.next().unwrap_or_default();
    let mut options = Options::default();
    for word in words {
        options.parse_word(word)?;
    }
    let made = match what {
        "drop" => options.rule(|o| Fault::Drop { times: o.times.take().unwrap_or(1) }),
        "rnr" => options.rule(|o| Fault::Rnr { times: o.times.take().unwrap_or(1) }),
        "delay" => {
            let span = options.span.take().ok_or("how long? Say for=5ms, or us, or s")?;
            options.rule(|_| Fault::Delay(span))
        }
        "access-error" => options.rule(|_| Fault::Refuse(Nak::Access)),
        "invalid-request" => options.rule(|_| Fault::Refuse(Nak::Invalid)),
        "remote-error" => options.rule(|_| Fault::Refuse(Nak::Operation)),
        "local-error" => options.rule(|_| Fault::Local),
        "qp-error" => options.rule(|_| Fault::QpError),
        "cq-overrun" => {
            let nth = match options.hits.take() {
                Some(RuleHits::Nth(nth)) => nth,
                _ => return Err("at which completion? Say nth=100".into()),
            };
            Ok(Statement::Overrun(Overrun { nth, cq: options.cq.take() }))
        }
        "port-down" => {
            let span = options.span.take();
            options.rule_or(Fault::PortDown(span), ImmediateFault::PortDown(span))
        }
        "device-fatal" => options.rule_or(Fault::DeviceFatal, ImmediateFault::DeviceFatal),
        "port-up" => Ok(Statement::ImmediateFault(ImmediateFault::PortUp)),
        "clear" => Ok(Statement::Clear),
        "gid-change" => event(IBV_EVENT_GID_CHANGE),
        "lid-change" => event(IBV_EVENT_LID_CHANGE),
        "pkey-change" => event(IBV_EVENT_PKEY_CHANGE),
        "sm-change" => event(IBV_EVENT_SM_CHANGE),
        "client-reregister" => event(IBV_EVENT_CLIENT_REREGISTER),
        _ => return Err(format!("nothing is called so; there are {WORDS}")),
    }?;
    options.nothing_left(what)?;
    Ok(made)
}

const WORDS: &str = "drop, delay, rnr, access-error, invalid-request, remote-error, local-error, qp-error, cq-overrun, port-down, \
     port-up, device-fatal, gid-change, lid-change, pkey-change, sm-change, client-reregister and clear";

#[expect(clippy::unnecessary_wraps, reason = "one arm of many that can fail")]
fn event(event: u32) -> Result<Statement, String> {
    Ok(Statement::ImmediateFault(ImmediateFault::PortEvent(event)))
}

/// The options behind the action word; removed when used.
#[derive(Debug, Default)]
struct Options {
    hits: Option<RuleHits>,
    seed: Option<u64>,
    qp: Option<u32>,
    cq: Option<u32>,
    class: Option<Class>,
    transport: Option<Transport>,
    per_device: Option<bool>,
    times: Option<u32>,
    span: Option<Duration>,
    /// Options with the value `any`, which restrict nothing.
    unrestricted: Vec<&'static str>,
}

impl Options {
    fn parse_word(&mut self, word: &str) -> Result<(), String> {
        let Some((name, value)) = word.split_once('=') else {
            return Err(format!("\"{}\" is not name=value", word.escape_debug()));
        };
        let wrong = |wanted: &str| format!("{name} takes {wanted}");
        let count = || positive(value).ok_or_else(|| wrong("a number from 1"));
        let small = || count().and_then(|n| u32::try_from(n).map_err(|_| wrong("less")));
        let fresh = match (name, value) {
            ("qp", "any") => self.say_any("qp"),
            ("cq", "any") => self.say_any("cq"),
            ("op", "any") => self.say_any("op"),
            ("type", "any") => self.say_any("type"),
            ("nth", _) => set_once(&mut self.hits, RuleHits::Nth(count()?)),
            ("every", _) => set_once(&mut self.hits, RuleHits::Every(count()?)),
            ("rate", _) => {
                let rate = rate(value).ok_or_else(|| wrong("a part of all, such as 1/100"))?;
                set_once(&mut self.hits, rate)
            }
            ("seed", _) => {
                set_once(&mut self.seed, value.parse().map_err(|_| wrong("a number from 0"))?)
            }
            ("qp", _) => set_once(&mut self.qp, small()?),
            ("cq", _) => set_once(&mut self.cq, small()?),
            ("times", "all") => set_once(&mut self.times, ALL),
            ("times", _) => set_once(&mut self.times, small()?),
            ("for", _) => {
                let span = span(value).ok_or_else(|| wrong("a time, such as 50us, 5ms or 2s"))?;
                set_once(&mut self.span, span)
            }
            ("per", "qp") => set_once(&mut self.per_device, false),
            ("per", "device") => set_once(&mut self.per_device, true),
            ("per", _) => return Err(wrong("qp or device")),
            ("op", _) => {
                let class =
                    class(value).ok_or_else(|| wrong("send, write, read, atomic, flush or any"))?;
                set_once(&mut self.class, class)
            }
            ("type", _) => {
                let known = transport(value).ok_or_else(|| wrong("rc, uc, ud, xrc, raw or any"))?;
                set_once(&mut self.transport, known)
            }
            _ => {
                let names = "nth, every, rate, seed, qp, cq, op, type, per, times, for";
                return Err(format!("there is no {}=; there are {names}", name.escape_debug()));
            }
        };
        if fresh { Ok(()) } else { Err(format!("{name} was said before")) }
    }

    fn say_any(&mut self, name: &'static str) -> bool {
        let fresh = !self.unrestricted.contains(&name);
        self.unrestricted.push(name);
        fresh
    }

    /// A rule, which requires an option that says when.
    fn rule(&mut self, fault: impl FnOnce(&mut Self) -> Fault) -> Result<Statement, String> {
        let when = match (self.hits.take(), self.seed.take()) {
            (None, _) => return Err("when? Say nth=3, every=10 or rate=1/100".into()),
            (Some(RuleHits::Rate { hits, total: of, .. }), seed) => {
                RuleHits::Rate { hits, total: of, seed: seed.unwrap_or(0) }
            }
            (Some(_), Some(_)) => return Err("seed goes with rate".into()),
            (Some(when), None) => when,
        };
        let fault = fault(self);
        self.unrestricted.retain(|name| !["qp", "op", "type"].contains(name));
        Ok(Statement::Rule(Rule {
            fault,
            hits: when,
            qp: self.qp.take(),
            class: self.class.take(),
            transport: self.transport.take(),
            per_device: self.per_device.take().unwrap_or(false),
        }))
    }

    /// A rule if an option says when; otherwise an action that happens at once.
    fn rule_or(&mut self, fault: Fault, order: ImmediateFault) -> Result<Statement, String> {
        if self.hits.is_some() {
            self.rule(|_| fault)
        } else {
            Ok(Statement::ImmediateFault(order))
        }
    }

    /// Checks that every option was used.
    fn nothing_left(&mut self, what: &str) -> Result<(), String> {
        if what == "cq-overrun" {
            self.unrestricted.retain(|name| *name != "cq");
        }
        let left = [
            ("trigger", self.hits.is_some()),
            ("seed", self.seed.is_some()),
            ("qp", self.qp.is_some() || self.unrestricted.contains(&"qp")),
            ("cq", self.cq.is_some() || self.unrestricted.contains(&"cq")),
            ("op", self.class.is_some() || self.unrestricted.contains(&"op")),
            ("type", self.transport.is_some() || self.unrestricted.contains(&"type")),
            ("per", self.per_device.is_some()),
            ("times", self.times.is_some()),
            ("for", self.span.is_some()),
        ];
        match left.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(format!("{what} takes no {name}; leave it out")),
            None => Ok(()),
        }
    }
}

fn set_once<T>(place: &mut Option<T>, value: T) -> bool {
    place.replace(value).is_none()
}

fn positive(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n| *n > 0)
}

fn rate(text: &str) -> Option<RuleHits> {
    let (hits, of) = text.split_once('/')?;
    let (hits, of): (u32, u32) = (hits.parse().ok()?, of.parse().ok()?);
    (of > 0 && hits <= of).then_some(RuleHits::Rate { hits, total: of, seed: 0 })
}

fn span(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().ok()?;
    let us = match text.get(digits.len()..)? {
        "us" => 1,
        "ms" => 1000,
        "s" => 1_000_000,
        _ => return None,
    };
    number.checked_mul(us).filter(|us| *us <= MOST_US).map(Duration::from_micros)
}

/// A day: longer waits are mistakes.
const MOST_US: u64 = 86_400_000_000;

fn class(text: &str) -> Option<Class> {
    Some(match text {
        "send" => Class::Send,
        "write" => Class::Write,
        "read" => Class::Read,
        "atomic" => Class::Atomic,
        "flush" => Class::Flush,
        _ => return None,
    })
}

fn transport(text: &str) -> Option<Transport> {
    Some(match text {
        "rc" => Transport::Rc,
        "uc" => Transport::Uc,
        "ud" => Transport::Ud,
        "raw" => Transport::Raw,
        "xrc" => Transport::Xrc,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(fault: Fault, when: RuleHits) -> Rule {
        Rule { fault, hits: when, qp: None, class: None, transport: None, per_device: false }
    }

    fn error(text: &str) -> String {
        parse(text).expect_err(text)
    }

    #[test]
    fn statements_say_what_when_and_for_which_requests() {
        let text = "rnr qp=any op=send nth=3; delay for=5ms every=10;\n drop seed=42 rate=1/100 times=all\n\n;\
                    qp-error qp=2 nth=7 type=uc per=device; cq-overrun cq=1 nth=100; port-down nth=50 for=2s; port-down";
        let wanted = [
            Statement::Rule(Rule {
                class: Some(Class::Send),
                ..rule(Fault::Rnr { times: 1 }, RuleHits::Nth(3))
            }),
            Statement::Rule(rule(Fault::Delay(Duration::from_millis(5)), RuleHits::Every(10))),
            Statement::Rule(rule(
                Fault::Drop { times: ALL },
                RuleHits::Rate { hits: 1, total: 100, seed: 42 },
            )),
            Statement::Rule(Rule {
                qp: Some(2),
                transport: Some(Transport::Uc),
                per_device: true,
                ..rule(Fault::QpError, RuleHits::Nth(7))
            }),
            Statement::Overrun(Overrun { nth: 100, cq: Some(1) }),
            Statement::Rule(rule(Fault::PortDown(Some(Duration::from_secs(2))), RuleHits::Nth(50))),
            Statement::ImmediateFault(ImmediateFault::PortDown(None)),
        ];
        assert_eq!(parse(text).unwrap(), wanted);
        assert_eq!(parse(" ;; \n "), Ok(vec![]));
    }

    #[test]
    fn every_event_of_a_port_can_be_asked_for() {
        let words = ["gid-change", "lid-change", "pkey-change", "sm-change", "client-reregister"];
        let events = [
            IBV_EVENT_GID_CHANGE,
            IBV_EVENT_LID_CHANGE,
            IBV_EVENT_PKEY_CHANGE,
            IBV_EVENT_SM_CHANGE,
            IBV_EVENT_CLIENT_REREGISTER,
        ];
        for (word, event) in words.into_iter().zip(events) {
            assert_eq!(
                parse(word),
                Ok(vec![Statement::ImmediateFault(ImmediateFault::PortEvent(event))])
            );
        }
        assert_eq!(parse("port-up"), Ok(vec![Statement::ImmediateFault(ImmediateFault::PortUp)]));
        assert_eq!(parse("clear"), Ok(vec![Statement::Clear]));
        assert_eq!(
            parse("device-fatal"),
            Ok(vec![Statement::ImmediateFault(ImmediateFault::DeviceFatal)])
        );
    }

    #[test]
    fn unknown_text_is_an_error_that_names_it_and_the_correct_form() {
        assert!(
            error("drp nth=3").starts_with("\"drp nth=3\": nothing is called so; there are drop")
        );
        for (text, part) in [
            ("drop", "when? Say nth=3"),
            ("drop nth=0", "nth takes a number from 1"),
            ("drop nth=-1", "nth takes a number from 1"),
            ("drop nth=3 every=4", "every was said before"),
            ("drop nth=3 nth=4", "nth was said before"),
            ("drop nth", "\"nth\" is not name=value"),
            ("drop nth=3 often=1", "there is no often="),
            ("drop rate=2/1", "rate takes a part of all"),
            ("drop rate=1/0", "rate takes a part of all"),
            ("drop rate=1%", "rate takes a part of all"),
            ("drop nth=3 seed=1", "seed goes with rate"),
            ("drop nth=3 for=1s", "drop takes no for"),
            ("drop nth=3 cq=1", "drop takes no cq"),
            ("delay nth=3", "how long?"),
            ("delay nth=3 for=5", "for takes a time"),
            ("delay nth=3 for=ms", "for takes a time"),
            ("delay nth=3 for=5h", "for takes a time"),
            ("delay nth=3 for=99999999999999999s", "for takes a time"),
            ("qp-error nth=3 op=sned", "op takes send"),
            ("qp-error nth=3 type=rd", "type takes rc"),
            ("qp-error nth=3 per=port", "per takes qp or device"),
            ("qp-error nth=3 qp=0", "qp takes a number from 1"),
            ("qp-error nth=3 qp=5000000000", "qp takes less"),
            ("cq-overrun", "at which completion?"),
            ("cq-overrun every=3", "at which completion?"),
            ("cq-overrun nth=3 qp=any", "cq-overrun takes no qp"),
            ("port-down qp=1", "port-down takes no qp"),
            ("port-up for=1s", "port-up takes no for"),
            ("gid-change nth=1", "gid-change takes no trigger"),
        ] {
            assert!(error(text).contains(part), "{text}: {}", error(text));
        }
    }

    #[test]
    fn no_text_of_random_words_makes_it_panic() {
        let words = [
            "drop",
            "nth=1",
            "for=1",
            "=",
            "x=",
            "rate=1/",
            "é=ß",
            ";",
            "\n",
            "times=all",
            "for=ms",
            "for=é1s",
        ];
        let mut state = 1u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..5 {
                state = super::super::mix(state);
                text.push_str(words[state as usize % words.len()]);
                text.push(if state & 1 << 40 == 0 { ' ' } else { ';' });
            }
            let _ = parse(&text);
        }
    }
}
