//! A cable that loses packets of every contender, by nft's random numbers at their arrival, because
//! not every kernel has netem.
//!
//! A packet that the kernel has not segmented yet, or has merged, is one packet to nft and would be
//! lost as a whole, up to 64 KiB of TCP or soft at once. So offloads are off at the ends of the
//! cable, and packets that are too long are counted.

use crate::run::LIMIT;
use xtask::namespaces::Namespaces;
use xtask::process::Job;
use xtask::scratch::Scratch;

/// Packets are lost in both directions; the losses end when this is dropped.
#[derive(Debug)]
pub(super) struct Losses<'a> {
    hosts: &'a Namespaces,
    scratch: &'a Scratch,
}

/// The packets that arrived at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LossCounters {
    received: u64,
    lost: u64,
    /// Packets longer than the MTU: the sender merged several.
    merged: u64,
}

/// ethtool(8)'s names of the offloads that combine packets.
const OFFLOADS: [&str; 4] = ["tso", "gso", "gro", "tx-udp-segmentation"];
/// The counters, in the order of [`LossCounters`].
const COUNTERS: [&str; 3] = ["came", "lost", "merged"];

impl<'a> Losses<'a> {
    /// # Errors
    /// The offloads cannot be turned off, or the rule cannot be made: for people.
    pub(super) fn begin(
        hosts: &'a Namespaces,
        scratch: &'a Scratch,
        mtu: u32,
        thousandths: u32,
    ) -> crate::Result<Self> {
        let losses = Self { hosts, scratch };
        losses.set_offloads("off")?;
        for (name, device) in hosts.names.iter().zip(&hosts.devices) {
            let file = scratch.fresh("losses");
            std::fs::write(&file, rules(device, mtu, thousandths)).map_err(|e| e.to_string())?;
            losses.inside(name, &["nft", "-f", &file.display().to_string()])?;
        }
        Ok(losses)
    }

    /// The counters of both ends since the start.
    ///
    /// # Errors
    /// nft's failure, as a message.
    pub(super) fn read_counters(&self) -> crate::Result<LossCounters> {
        let mut all = [0; COUNTERS.len()];
        for name in &self.hosts.names {
            for (sum, counter) in all.iter_mut().zip(COUNTERS) {
                let words = ["nft", "list", "counter", "inet", "losses", counter];
                let output = self.inside(name, &words)?;
                *sum += packets(&output).ok_or(output)?;
            }
        }
        let [received, lost, merged] = all;
        Ok(LossCounters { received, lost, merged })
    }

    fn set_offloads(&self, state: &str) -> crate::Result<()> {
        for (name, device) in self.hosts.names.iter().zip(&self.hosts.devices) {
            let mut words = vec!["ethtool", "-K", device];
            words.extend(OFFLOADS.iter().flat_map(|offload| [*offload, state]));
            self.inside(name, &words)?;
        }
        Ok(())
    }

    fn inside(&self, host: &str, words: &[&str]) -> crate::Result<String> {
        let job = Job::new("ip").args(["netns", "exec", host]).args(words);
        let done = job.run(self.scratch, LIMIT)?;
        if done.ok() { Ok(done.stdout) } else { Err(done.report(words[0])) }
    }
}

impl Drop for Losses<'_> {
    fn drop(&mut self) {
        for name in &self.hosts.names {
            // A missing table needs no removal.
            let _gone = self.inside(name, &["nft", "delete", "table", "inet", "losses"]);
        }
        // The defaults of a cable; the kernel enables no GRO by default.
        for (name, device) in self.hosts.names.iter().zip(&self.hosts.devices) {
            let words = ["tso", "on", "gso", "on", "tx-udp-segmentation", "on"];
            let words = ["ethtool", "-K", device].into_iter().chain(words).collect::<Vec<_>>();
            let _on = self.inside(name, &words);
        }
    }
}

impl LossCounters {
    /// Checks the measured losses.
    ///
    /// # Errors
    /// The deviation, as a message.
    pub(super) fn check(self, thousandths: u32) -> crate::Result<()> {
        let Self { received, lost, merged } = self;
        if merged > 0 {
            return Err(format!("{merged} of {received} packets were longer than the MTU"));
        }
        if received == 0 || (lost > 0) != (thousandths > 0) {
            return Err(format!("{lost} of {received} packets were lost"));
        }
        Ok(())
    }
}

/// For a host's end of the cable, in the words of nft(8).
fn rules(device: &str, mtu: u32, thousandths: u32) -> String {
    let counters = COUNTERS.map(|name| format!(" counter {name} {{ }}\n")).concat();
    let lose = match thousandths {
        0 => String::new(),
        n => format!(" numgen random mod 1000 < {n} counter name lost drop\n"),
    };
    format!(
        "table inet losses {{\n{counters} chain arriving {{\n type filter hook prerouting priority -300; policy accept;\n \
         iifname != \"{device}\" accept\n counter name came\n meta length > {mtu} counter name merged\n{lose} }}\n}}\n"
    )
}

/// The packets of a counter that nft lists.
fn packets(output: &str) -> Option<u64> {
    let (_, rest) = output.split_once("packets ")?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_that_loses_nothing_has_the_counters_all_the_same() {
        let (whole, lossy) = (rules("fva1", 9000, 0), rules("fva1", 9000, 10));
        assert!(!whole.contains("numgen") && whole.contains("counter name came"), "{whole}");
        assert!(lossy.contains("numgen random mod 1000 < 10 counter name lost drop"), "{lossy}");
        assert!(lossy.contains("meta length > 9000 counter name merged"), "{lossy}");
    }

    #[test]
    fn the_count_of_packets_is_found_in_what_nft_lists() {
        let output = "table inet losses {\n\tcounter came {\n\t\tpackets 1234 bytes 99\n\t}\n}\n";
        assert_eq!(packets(output), Some(1234));
        assert_eq!(packets("Error: No such file or directory"), None);
    }

    #[test]
    fn a_figure_counts_only_when_single_packets_were_lost_as_told() {
        let counted = |received, lost, merged| LossCounters { received, lost, merged };
        assert_eq!(counted(1000, 10, 0).check(10), Ok(()));
        assert_eq!(counted(1000, 0, 0).check(0), Ok(()));
        assert!(counted(1000, 10, 1).check(10).unwrap_err().contains("longer than the MTU"));
        assert!(counted(1000, 0, 0).check(10).unwrap_err().contains("0 of 1000"));
        assert!(counted(1000, 1, 0).check(0).is_err());
        assert!(counted(0, 0, 0).check(0).is_err(), "they went another way");
    }
}
