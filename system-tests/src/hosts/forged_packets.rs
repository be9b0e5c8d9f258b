//! A hostile machine in the network sends forged packets to a host: pairs continue, forged packets
//! get no answer, and counters record them.

use super::super::isolation::PairSetup;
use super::cluster::compiled;
use super::failures::{Bystanders, counted, wait};
use crate::{Bench, Tally};
use xtask::namespaces::{CLIENT, Namespaces, SERVER};
use xtask::process::Running;

/// A pair with so many packets that its PSNs are unpredictable, and a pair with PSNs near the first
/// PSN. Line buffering makes each line readable at once.
const BUSY: &[&str] = &["-oL", "ib_write_bw", "-b", "-s", "65536", "--run_infinitely"];
const SLOW: &[&str] =
    &["-oL", "ib_send_lat", "-s", "64", "--latency_gap=1000", "-n", "1000000", "-x", "1"];

/// A pair that starts later and is not disturbed.
const LATE: (&str, &[&str]) = ("ib_send_bw", &["-n", "100", "-s", "65536"]);

/// The least increase of counters: `forged_packets` sends 500 packets of each kind, and a full
/// socket may lose some.
const AT_LEAST: u64 = 100;

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) {
    bench.step("hosts: forged packets");
    tally.record("forged packets do no harm", attack(bench, hosts));
}

fn attack(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let program = compiled(bench, "forged_packets")?;
    let foreign = hosts.other_address(true)?;
    let done = attacked(bench, hosts, &program.to_string_lossy(), foreign);
    hosts.other_address(false)?;
    done
}

/// The server's host attacks the client's.
fn attacked(bench: &Bench, hosts: &Namespaces, program: &str, foreign: &str) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let mut busy = Bystanders::new(place.start(bench, "stdbuf", BUSY)?);
    let mut slow = Bystanders::new(place.start(bench, "stdbuf", SLOW)?);
    busy.go_on(bench)?;
    slow.go_on(bench)?;
    let busy_qpn = reported(busy.client(), " local address:", "QPN")?;
    let slow_qpn = reported(slow.client(), " local address:", "QPN")?;
    let slow_psn = reported(slow.client(), " remote address:", "PSN")?;
    let before = Counts::read(bench, &busy, &slow)?;
    let args = [CLIENT, SERVER, foreign, &busy_qpn, &slow_qpn, &slow_psn];
    let job = place.job(bench, 0, program, &args)?;
    let done = job.run(&bench.scratch, super::LIMIT)?;
    if !done.ok() || !done.stdout.contains(" sent, 0 answers\n") {
        return Err(done.report("the forger"));
    }
    // The latest reports may not be counted yet.
    busy.go_on(bench)?;
    slow.go_on(bench)?;
    Counts::read(bench, &busy, &slow)?.since(&before)?;
    busy.end();
    slow.end();
    let (program, args) = LATE;
    place.together(bench, program, args)
}

/// A value in perftest's description of a QP, without the leading 0x.
fn reported(of: &Running, line: &str, what: &str) -> Result<String, String> {
    let mut value = None;
    wait(&format!("`{line} ... {what}`"), || {
        value = number(&of.printed(), line, what);
        Ok(value.is_some())
    })?;
    value.ok_or_else(|| what.to_owned())
}

fn number(text: &str, line: &str, what: &str) -> Option<String> {
    let line = text.lines().find(|l| l.starts_with(line))?;
    let mut words = line.split_whitespace().skip_while(|word| *word != what);
    Some(words.nth(1)?.strip_prefix("0x")?.to_owned())
}

/// What the client's processes counted.
#[derive(Debug)]
struct Counts {
    /// Of both processes: a packet for an unknown QP is counted by its receiver.
    of_both: Vec<(&'static str, u64)>,
    /// Of the slow pair's process.
    of_slow: Vec<(&'static str, u64)>,
    /// Packets of the slow pair's process.
    received: u64,
    sent: u64,
}

impl Counts {
    fn read(bench: &Bench, busy: &Bystanders, slow: &Bystanders) -> Result<Self, String> {
        let of = |sides: &[&Bystanders], name: &'static str| {
            let counts = sides.iter().map(|side| counted(bench, side.client(), &[name]));
            counts.sum::<Result<u64, String>>().map(|sum| (name, sum))
        };
        let both = ["dropped_pkts", "rx_icrc_encapsulated", "rx_unknown_pkts"];
        let slow_only = ["out_of_sequence", "duplicate_request"];
        Ok(Self {
            of_both: both
                .map(|name| of(&[busy, slow], name))
                .into_iter()
                .collect::<Result<_, _>>()?,
            of_slow: slow_only
                .map(|name| of(&[slow], name))
                .into_iter()
                .collect::<Result<_, _>>()?,
            // In this order: an answer sent in between is not taken for an excess.
            sent: of(&[slow], "sent_pkts")?.1,
            received: of(&[slow], "rcvd_pkts")?.1,
        })
    }

    /// All rose, and no more went than came.
    fn since(&self, before: &Self) -> Result<(), String> {
        let pairs = |now: &[(&'static str, u64)], then: &[(&'static str, u64)]| {
            let both = now.iter().zip(then);
            both.map(|((name, now), (_, then))| (*name, now - then)).collect::<Vec<_>>()
        };
        let rose = [pairs(&self.of_both, &before.of_both), pairs(&self.of_slow, &before.of_slow)];
        let rose = rose.concat();
        if rose.iter().any(|(_, by)| *by < AT_LEAST) {
            return Err(format!("these rose by less than {AT_LEAST}: {rose:?}"));
        }
        let (received, sent) = (self.received - before.received, self.sent - before.sent);
        if sent > received {
            return Err(format!("{received} packets came, and {sent} went"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_queue_pair_are_read_from_what_perftest_prints() {
        let text = " local address: LID 0000 QPN 0x612329 PSN 0x4d5d2e RKey 0x1303983e\n\
                    \x20GID: 00:00\n\
                    \x20remote address: LID 0000 QPN 0x6b66e0 PSN 0xa50986\n";
        assert_eq!(number(text, " local address:", "QPN").as_deref(), Some("612329"));
        assert_eq!(number(text, " remote address:", "PSN").as_deref(), Some("a50986"));
        assert_eq!(number(text, " remote address:", "VAddr"), None);
        assert_eq!(number("", " local address:", "QPN"), None);
    }

    #[test]
    fn what_does_not_rise_and_what_is_answered_too_often_are_told() {
        let counts = |n, sent| Counts {
            of_both: vec![("dropped_pkts", n)],
            of_slow: vec![("duplicate_request", 500)],
            received: 1000,
            sent,
        };
        let none = Counts {
            of_both: vec![("dropped_pkts", 0)],
            of_slow: vec![("duplicate_request", 0)],
            received: 0,
            sent: 0,
        };
        assert_eq!(counts(100, 1000).since(&none), Ok(()));
        assert!(counts(99, 1000).since(&none).unwrap_err().contains("dropped_pkts"));
        assert!(counts(100, 1001).since(&none).unwrap_err().contains("1001 went"));
    }
}
