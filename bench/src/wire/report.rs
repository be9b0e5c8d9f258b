//! The tables of `bench wire`, and its section of docs/reference/benchmarks-wire.md.

use super::cases::{
    CABLES, Cable, Case, FABRIC, JUMBO, LISTS, LOSSES, MIB, OURS, Quantity, READ, SEND, SIZES, TCP,
    UCX, UDP, UDP_CONNECTED, UDP_OFFLOADS, UDP_SINGLY, WRITE,
};
use super::measure::Measured;
use crate::report::{Sample, digits, machine, size};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The results, by cable (its index), question and contender.
#[derive(Debug, Default)]
pub(super) struct WireResults(BTreeMap<(usize, Quantity, &'static str), Vec<Measured>>);

/// The section of docs/reference/benchmarks-wire.md.
pub(crate) const SECTION: &str = "## Between hosts\n";
/// The part about a cable with losses for all contenders.
pub(super) const DROPPED: &str = "### Losses on the cable\n";

/// A goal: Ferroverbs' figure must be at least, or for latencies at most, that many times the
/// figure of a contender.
struct SpeedGoal {
    what: Quantity,
    who: &'static str,
    times: f64,
    other: (Quantity, &'static str),
}

impl WireResults {
    pub(super) fn add(
        &mut self,
        cable: Cable,
        what: Quantity,
        who: &'static str,
        output: Measured,
    ) {
        self.0.entry((place(cable), what, who)).or_default().push(output);
    }

    pub(super) fn sample(&self, cable: Cable, what: Quantity, who: &'static str) -> Option<Sample> {
        let output = self.0.get(&(place(cable), what, who))?;
        Some(Sample::of(output.iter().map(|output| output.value).collect()))
    }

    fn median(&self, cable: Cable, what: Quantity, who: &'static str) -> Option<f64> {
        self.sample(cable, what, who).map(|sample| sample.median)
    }

    fn cpu(&self, cable: Cable, what: Quantity, who: &'static str) -> Option<f64> {
        let output = self.0.get(&(place(cable), what, who))?;
        let all: Vec<f64> = output.iter().filter_map(|output| output.cpu).collect();
        (!all.is_empty()).then(|| Sample::of(all).median)
    }

    /// How often ours gave no result to these questions.
    pub(super) fn lacks(&self, rounds: usize, cable: Cable, questions: &[Case]) -> usize {
        let ours = questions.iter().filter(|question| question.who.starts_with("Ferroverbs"));
        ours.map(|question| {
            let known = self.0.get(&(place(cable), question.what, question.who));
            rounds.saturating_sub(known.map_or(0, Vec::len))
        })
        .sum()
    }

    /// Ours beside the goal.
    fn goal(&self, cable: Cable, goal: &SpeedGoal) -> String {
        let unit = goal.what.unit();
        let ours = self.sample(cable, goal.what, goal.who);
        let other = self.median(cable, goal.other.0, goal.other.1);
        let cell = ours.map_or("- | -".into(), |s| {
            format!(
                "{} {} | {}..{}",
                digits(s.median),
                unit.name(),
                digits(s.least),
                digits(s.most)
            )
        });
        let [ratio, verdict] = match (ours, other) {
            (Some(ours), Some(other)) => {
                let ratio = ours.median / other;
                let met =
                    if unit.less_is_better() { ratio <= goal.times } else { ratio >= goal.times };
                [format!("{ratio:.2}"), if met { "met" } else { "missed" }.into()]
            }
            _ => ["-".into(), "not measured".into()],
        };
        let bound = if unit.less_is_better() { "at most" } else { "at least" };
        let other = other.map_or("-".into(), digits);
        format!(
            "| {} | {} | {} | {cell} | {} {other} | {ratio} | {bound} {:.2} | {verdict} |\n",
            cable.name(),
            goal.who,
            name(goal.what),
            goal.other.1,
            goal.times
        )
    }

    /// The whole report, as markdown that can be read on a terminal.
    pub(super) fn text(&self, rounds: usize, lost_by: &str) -> String {
        let mut text = format!(
            "{}\n\nMedian of {rounds} rounds of `cargo xtask bench wire`, in which all took turns, each side on a CPU of its own; latencies are half round trips, \
             GB are 1e9 bytes. The two hosts are network namespaces. `UDP` spins on an unconnected socket, which a RoCE packet needs (docs/design/roce.md); a connected \
             one need not look for the route. With offloads the kernel cuts and merges datagrams of the length of our packets.\n\n",
            machine()
        );
        text.push_str("| cable | ours | what | median | spread | beside | ratio | goal | |\n|---|---|---|--:|--:|--:|--:|--:|---|\n");
        for cable in CABLES {
            for goal in goals(cable) {
                text.push_str(&self.goal(cable, &goal));
            }
        }
        for cable in CABLES {
            let veth = matches!(cable, Cable::Veth(_));
            let rate = self.median(cable, Quantity::Rate, LISTS).filter(|_| veth);
            if let Some(rate) = rate {
                let verdict = if rate >= 2.0 { "met" } else { "missed" };
                let _ = writeln!(
                    text,
                    "| {} | {LISTS} | {} | {} M/s | - | - | - | 2, then 5 M/s | {verdict} |",
                    cable.name(),
                    name(Quantity::Rate),
                    digits(rate)
                );
            }
        }
        text.push_str("\n![latency and bandwidth over message size, veth with MTU 9000](benchmarks-wire.svg)\n");
        self.all(&mut text);
        self.losses(&mut text, lost_by);
        let _ = write!(text, "\n{DROPPED}{}", self.dropped());
        self.processors(&mut text);
        text
    }

    /// The contenders that were measured.
    fn all(&self, text: &mut String) {
        text.push_str("\n### All contenders between hosts\n\n| what | contender | veth, MTU 9000 | veth, MTU 1500 | loopback |\n|---|---|--:|--:|--:|\n");
        let mut asked: Vec<(Quantity, &'static str)> =
            self.0.keys().map(|(_, what, who)| (*what, *who)).collect();
        asked.sort_unstable();
        asked.dedup();
        for (what, who) in asked
            .into_iter()
            .filter(|(what, _)| !matches!(what, Quantity::Lossy(_) | Quantity::Dropped(_)))
        {
            let cells = CABLES.map(|cable| {
                self.sample(cable, what, who).map_or("-".into(), |s| {
                    format!("{} ({}..{})", digits(s.median), digits(s.least), digits(s.most))
                })
            });
            let unit = what.unit().name();
            let _ = writeln!(text, "| {}, {unit} | {who} | {} |", name(what), cells.join(" | "));
        }
    }

    fn losses(&self, text: &mut String, lost_by: &str) {
        let _ = write!(
            text,
            "\n### Losses\n\nMessages of 1 MiB over veth with MTU 9000, GB/s; packets are lost both ways, by {lost_by}. The goal with 1 % is a third of what is without.\n\n| lost | "
        );
        let _ = writeln!(text, "{} |\n|---|--:|--:|--:|", OURS.map(|(who, _)| who).join(" | "));
        for (lost, _) in LOSSES {
            let cells = OURS.map(|(who, _)| self.left(Quantity::Lossy, lost, who));
            let _ = writeln!(text, "| {} | {} |", percent(lost), cells.join(" | "));
        }
    }

    /// The part about a cable with losses, without its heading.
    pub(super) fn dropped(&self) -> String {
        let mut text = String::from(
            "\nMessages of 1 MiB over veth with MTU 9000, GB/s, and what is left of that without losses. Each host loses packets where they come to it, by chance (nft's `numgen random`), whosever they are: data, acknowledgements, and \
             those by which two find each other. All offloads of the cable are off (`ethtool -K`: tso, gso, gro, tx-udp-segmentation), so that the kernel cuts before the cable and merges nothing, and what is lost is one packet and not a piece of up to 64 KiB; \
             that each was no longer than the MTU is counted. So the first column is slower than the tables above. TCP's packets have up to 9000 bytes; those of Ferroverbs 4096 and headers, the largest path MTU below, so that it has twice as many to lose. A dash: no round ended; libfabric's may take 30 s.\n\n",
        );
        let heads = LOSSES.map(|(lost, _)| percent(lost));
        let _ = writeln!(text, "| lost, both ways | {} |\n|---|--:|--:|--:|", heads.join(" | "));
        let ours = OURS.map(|(who, _)| who);
        for who in ours.into_iter().chain([UCX, TCP]).chain(FABRIC.map(|(who, _)| who)) {
            let cells = LOSSES.map(|(lost, _)| self.left(Quantity::Dropped, lost, who));
            let _ = writeln!(text, "| {who} | {} |", cells.join(" | "));
        }
        text
    }

    /// Bandwidth with losses, and its share of the bandwidth without losses.
    fn left(&self, what: fn(u32) -> Quantity, lost: u32, who: &'static str) -> String {
        let of = |lost| self.median(JUMBO, what(lost), who);
        match (of(lost), of(0)) {
            (Some(value), Some(whole)) => format!("{} ({:.2})", digits(value), value / whole),
            _ => "-".into(),
        }
    }

    fn processors(&self, text: &mut String) {
        text.push_str("\n### Time of processors\n\nNanoseconds for a KiB, of both sides together and from start to end; messages of 1 MiB where there are messages. Who spins uses its processor all the time.\n\n| | veth, MTU 9000 | veth, MTU 1500 | loopback |\n|---|--:|--:|--:|\n");
        let streams = [UDP_OFFLOADS, UDP_SINGLY, TCP].map(|who| (Quantity::Bandwidth(0), who));
        let messages = [SEND, WRITE, READ, UCX].into_iter().chain(FABRIC.map(|(who, _)| who));
        for (what, who) in messages.map(|who| (Quantity::Bandwidth(MIB), who)).chain(streams) {
            let cells = CABLES.map(|cable| self.cpu(cable, what, who).map_or("-".into(), digits));
            let _ = writeln!(text, "| {who} | {} |", cells.join(" | "));
        }
    }
}

fn place(cable: Cable) -> usize {
    CABLES.iter().position(|known| *known == cable).unwrap_or(CABLES.len())
}

fn name(what: Quantity) -> String {
    match what {
        Quantity::Latency(bytes) => format!("latency, {} bytes", size(bytes)),
        Quantity::Bandwidth(0) => "bandwidth".into(),
        Quantity::Bandwidth(bytes) => format!("bandwidth, {}", size(bytes)),
        Quantity::Rate => "rate, 8 bytes".into(),
        Quantity::Lossy(lost) | Quantity::Dropped(lost) => {
            format!("bandwidth, {} lost", percent(lost))
        }
    }
}

/// A number of thousandths in per cent.
fn percent(thousandths: u32) -> String {
    format!("{} %", f64::from(thousandths) / 10.0)
}

/// The goals over a cable that are ratios.
fn goals(cable: Cable) -> Vec<SpeedGoal> {
    let latency = Quantity::Latency(8);
    let mut goals: Vec<SpeedGoal> = [(1.3, UDP), (1.3, UDP_CONNECTED), (0.9, UCX)]
        .map(|(times, who)| SpeedGoal { what: latency, who: SEND, times, other: (latency, who) })
        .into();
    if cable == JUMBO {
        for (who, _) in OURS {
            for bytes in SIZES {
                let what = Quantity::Bandwidth(bytes);
                for (times, other) in [
                    (0.5, (Quantity::Bandwidth(0), UDP_OFFLOADS)),
                    (1.3, (Quantity::Bandwidth(0), TCP)),
                    (1.3, (what, UCX)),
                ] {
                    goals.push(SpeedGoal { what, who, times, other });
                }
            }
        }
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::super::cases::of;
    use super::*;

    fn output(value: f64) -> Measured {
        Measured { value, cpu: Some(2.0 * value) }
    }

    #[test]
    fn a_goal_of_latency_is_a_bound_above_and_one_of_bandwidth_below() {
        let mut answers = WireResults::default();
        answers.add(JUMBO, Quantity::Latency(8), SEND, output(2.6));
        answers.add(JUMBO, Quantity::Latency(8), UDP, output(2.0));
        answers.add(JUMBO, Quantity::Latency(8), UCX, output(2.7));
        answers.add(JUMBO, Quantity::Bandwidth(MIB), WRITE, output(4.0));
        answers.add(JUMBO, Quantity::Bandwidth(0), UDP_OFFLOADS, output(9.0));
        answers.add(JUMBO, Quantity::Bandwidth(0), TCP, output(3.0));
        let text = answers.text(1, "soft");
        let has = |line: &str| assert!(text.contains(line), "{line}\n{text}");
        has("| UDP 2.00 | 1.30 | at most 1.30 | met |");
        has("| UCX tcp 2.70 | 0.96 | at most 0.90 | missed |");
        has("| UDP, offloads 9.00 | 0.44 | at least 0.50 | missed |");
        has("| TCP, one stream 3.00 | 1.33 | at least 1.30 | met |");
        has("| 2.60..2.60 | UDP, connected - | - | at most 1.30 | not measured |");
        has("| - | - | UCX tcp - | - | at least 1.30 | not measured |");
        has("| Ferroverbs write | 8.00 | - | - |");
        let asked = of(JUMBO);
        let ours = asked.iter().filter(|question| question.who.starts_with("Ferroverbs")).count();
        assert_eq!(answers.lacks(1, JUMBO, &asked), ours - 2);
        assert_eq!(answers.lacks(2, JUMBO, &asked), 2 * ours - 2);
    }

    #[test]
    fn what_is_left_of_a_bandwidth_is_part_of_that_without_losses() {
        let mut answers = WireResults::default();
        for (lost, value) in [(0, 4.0), (10, 1.0)] {
            answers.add(JUMBO, Quantity::Dropped(lost), WRITE, output(value));
        }
        answers.add(JUMBO, Quantity::Dropped(10), TCP, output(0.25));
        answers.add(JUMBO, Quantity::Lossy(0), WRITE, output(8.0));
        let text = answers.text(1, "soft");
        let (_, part) = text.split_once(DROPPED).unwrap();
        let has = |line: &str| assert!(part.contains(line), "{line}\n{part}");
        has("| lost, both ways | 0 % | 0.1 % | 1 % |");
        has("| Ferroverbs write | 4.00 (1.00) | - | 1.00 (0.25) |");
        has("| TCP, one stream | - | - | - |");
        assert!(!text.contains("lost, GB/s"), "no row among all contenders: {text}");
    }
}
