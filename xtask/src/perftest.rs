//! What perftest's programs print: lines of numbers below a header that begins with `#bytes`.

use crate::foreign::{self, PERFTEST_CLOCK};
use crate::pair::PairResult;
use std::process::Command;
use std::sync::OnceLock;

/// Whether a line of perftest depends on the processor's clock in this run.
pub fn is_about_the_clock(line: &str) -> bool {
    PERFTEST_CLOCK.shows_in(line) || line.starts_with("Conflicting CPU frequency")
}

/// Runs a pair of perftest processes, again if they had no clock, and takes a number from the row
/// for messages of `bytes`.
pub fn measure<T>(
    pair: impl FnMut() -> Result<PairResult, String>,
    bytes: u64,
    number: impl Fn(&PerftestRow) -> Option<T>,
) -> Result<T, String> {
    let ended = foreign::again(pair, |ended| {
        let client = ended.as_ref().ok().map(|ended| &ended.client);
        client.is_some_and(|client| client.ok() && PERFTEST_CLOCK.shows_in(&client.stderr))
    })?;
    let rows = parse(&ended.client.stdout);
    let row = rows.iter().find(|row| row.bytes == bytes);
    row.and_then(number).ok_or_else(|| format!("no result\n{}", ended.report()))
}

/// One line of a result table.
#[derive(Clone, Debug, PartialEq)]
pub struct PerftestRow {
    /// Message size.
    pub bytes: u64,
    /// Column heads with their values, as printed, from the second column on.
    pub values: Vec<(String, f64)>,
}

impl PerftestRow {
    /// The value of the column whose head begins with `head`.
    pub fn value(&self, head: &str) -> Option<f64> {
        self.values.iter().find(|(h, _)| h.starts_with(head)).map(|(_, v)| *v)
    }

    /// Median latency in microseconds, from a `_lat` program.
    pub fn typical_us(&self) -> Option<f64> {
        self.measured("t_typical").or_else(|| self.measured("t_avg"))
    }

    /// Average bandwidth in bytes per second, from a `_bw` program.
    pub fn bandwidth(&self) -> Option<f64> {
        // Printed in MiB/s, whatever the head says.
        self.measured("BW average").map(|mib| mib * 1_048_576.0)
    }

    /// Messages per second, from a `_bw` program.
    pub fn rate(&self) -> Option<f64> {
        self.measured("MsgRate").map(|millions| millions * 1e6)
    }

    /// Whether the row has a bandwidth, a rate or a latency. A few small messages that wait for a
    /// processor may show as 0.00 MiB/s.
    pub fn is_measured(&self) -> bool {
        self.bandwidth().or_else(|| self.rate()).or_else(|| self.typical_us()).is_some()
    }

    /// The value of a column, if valid: without a clock all times are infinite, and all rates zero.
    fn measured(&self, head: &str) -> Option<f64> {
        self.value(head).filter(|value| value.is_finite() && *value > 0.0)
    }
}

/// `ucx_perftest` as one side of a pair without MPI. A build with MPI (Debian 13) otherwise takes
/// itself for an MPI rank when its input is no terminal.
pub fn ucx() -> &'static [&'static str] {
    static WORDS: OnceLock<&[&str]> = OnceLock::new();
    WORDS.get_or_init(|| {
        let help = Command::new("ucx_perftest").arg("-h").output();
        let knows = help.is_ok_and(|help| {
            [help.stdout, help.stderr].iter().any(|text| knows_mpi(&String::from_utf8_lossy(text)))
        });
        if knows { &["ucx_perftest", "-P", "0"] } else { &["ucx_perftest"] }
    })
}

/// Whether the help lists the option that disables MPI.
fn knows_mpi(help: &str) -> bool {
    help.lines().any(|line| line.trim_start().starts_with("-P <0|1>"))
}

/// All lines of all tables in an output. Lines that are no rows are passed over.
pub fn parse(output: &str) -> Vec<PerftestRow> {
    let mut heads: Vec<String> = Vec::new();
    let mut rows = Vec::new();
    for line in output.lines() {
        let line = line.trim();
        if line.starts_with("#bytes") {
            heads = split_heads(line);
            continue;
        }
        let words: Vec<_> = line.split_whitespace().collect();
        let numbers: Vec<f64> = words.iter().filter_map(|w| w.parse().ok()).collect();
        if heads.is_empty() || numbers.len() != words.len() || words.len() < 3 {
            continue;
        }
        let Some(bytes) = words.first().and_then(|w| w.parse().ok()) else { continue };
        let values = heads.iter().skip(1).cloned().zip(numbers.into_iter().skip(1)).collect();
        rows.push(PerftestRow { bytes, values });
    }
    rows
}

/// Splits `BW peak[MB/sec]    99% percentile[usec]` at the gaps between heads: a head ends with a
/// word that has a unit in brackets or begins with `#`.
fn split_heads(line: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let mut head = String::new();
    for word in line.split_whitespace() {
        if !head.is_empty() {
            head.push(' ');
        }
        head.push_str(word);
        if word.ends_with(']') || word.starts_with('#') {
            heads.push(std::mem::take(&mut head));
        }
    }
    if !head.is_empty() {
        heads.push(head);
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_ucx_perftest_over_mpi_is_told_to_do_without() {
        assert!(knows_mpi("     -P <0|1>       disable/enable MPI mode (1)\n"));
        assert!(!knows_mpi("  Note: test can be also launched as an MPI application\n"));
    }
    use crate::process::{ExitReason, Finished};
    use std::time::Duration;

    const LATENCY: &str = "\
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
Conflicting CPU frequency values detected: 2100.000000 != 2900.000000. CPU Frequency is not max.
 2       1000          0.21           3.10         0.24     	       0.25        	0.05   		0.31    		3.10   
---------------------------------------------------------------------------------------
";
    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 2          1000             12.10              11.44  		   6.000000
 65536      1000             16200.00            16000.00		   0.256000
";

    #[test]
    fn latency_is_the_typical_one() {
        let rows = parse(LATENCY);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].bytes, rows[0].typical_us()), (2, Some(0.24)));
        assert_eq!(rows[0].value("99.9%"), Some(3.10));
    }

    #[test]
    fn bandwidth_and_rate_are_in_base_units() {
        let rows = parse(BANDWIDTH);
        assert_eq!(rows.iter().map(|r| r.bytes).collect::<Vec<_>>(), [2, 65536]);
        assert_eq!(rows[0].rate(), Some(6e6));
        assert_eq!(rows[1].bandwidth(), Some(16000.0 * 1_048_576.0));
    }

    fn said(stdout: &str, stderr: &str) -> PairResult {
        let side = Finished {
            line: "ib_send_lat".into(),
            end: ExitReason::Exited(0),
            stdout: stdout.into(),
            stderr: stderr.into(),
            stuck: String::new(),
            elapsed: Duration::ZERO,
        };
        PairResult { server: side.clone(), client: side }
    }

    #[test]
    fn what_was_measured_without_a_clock_is_measured_again() {
        let clockless = LATENCY.replace("0.24 ", "inf").replace("0.25", "inf");
        let complaint = format!("{}: 0.0407 < 0.9\n", PERFTEST_CLOCK.symptom);
        assert_eq!(parse(&clockless)[0].typical_us(), None);
        assert_eq!(parse(&BANDWIDTH.replace("11.44", "0.00"))[0].bandwidth(), None);
        assert!(parse(&BANDWIDTH.replace("11.44", "0.00"))[0].is_measured());
        assert!(!parse(&BANDWIDTH.replace("11.44", "0.00").replace("6.0", "0.0"))[0].is_measured());
        let mut runs = [said(&clockless, &complaint), said(LATENCY, "")].into_iter();
        let next = || runs.next().ok_or_else(|| "no more".to_string());
        assert_eq!(measure(next, 2, PerftestRow::typical_us), Ok(0.24));
        let mut runs = 0;
        let never = || {
            runs += 1;
            Ok(said(&clockless, &complaint))
        };
        assert!(
            measure(never, 2, PerftestRow::typical_us)
                .unwrap_err()
                .contains(PERFTEST_CLOCK.symptom)
        );
        assert_eq!(runs, 3);
    }

    #[test]
    fn an_output_without_a_table_has_no_rows() {
        assert!(
            parse("Failed to get IB devices list: Function not implemented\n 1 2 3\n").is_empty()
        );
    }
}
