//! HPC Challenge over Open MPI: linear algebra, transposition, FFT, and random remote access; the
//! programs check their results.

use super::{AS_ROOT, Stacks, good, with_ucx};
use crate::Tally;
use std::fs;
use xtask::launch::DataPath;

/// The package's example input; missing without the package's documentation.
const EXAMPLE: &str = "/usr/share/doc/hpcc/examples/_hpccinf.txt";
/// The names of its input and output files.
pub(crate) const INPUT: &str = "hpccinf.txt";
pub(crate) const OUTPUT: &str = "hpccoutf.txt";
/// The size of the problem, which takes seconds.
const SIZE: u32 = 400;

impl Stacks<'_> {
    pub(super) fn hpcc(&self, tally: &mut Tally) -> crate::Result<()> {
        let input = match input(SIZE, [2, 2]) {
            Ok(input) => input,
            Err(reason) => {
                tally.skip("HPC Challenge", &reason);
                return Ok(());
            }
        };
        for transport in ["rc_v,self", "ud_v,self"] {
            let name = format!("HPC Challenge over Open MPI over UCX, {transport}");
            self.bench.step(&name);
            let fabric = self.bench.over(DataPath::Default)?;
            let file = fabric.work.join(INPUT);
            fs::write(&file, &input).map_err(|e| format!("{}: {e}", file.display()))?;
            let job = with_ucx(self.with_nodes(&fabric, "mpirun.openmpi")?, transport);
            let job = job.args(["--oversubscribe", "-n", "4", "--mca", "pml", "ucx"]);
            let job = job.args(["--mca", "osc", "ucx", "hpcc"]);
            let job = AS_ROOT.iter().fold(job, |job, (name, value)| job.env(name, value));
            let done = self.finish(&fabric, job)?;
            let output = fs::read_to_string(fabric.work.join(OUTPUT)).unwrap_or_default();
            let passed = verdict(&output).map_err(|why| format!("{why}\n{}", done.report("hpcc")));
            let result = good(&done, "").and(passed);
            tally.record(&name, result);
        }
        Ok(())
    }
}

/// The example input for a problem of this size on a grid of processes.
///
/// # Errors
/// The example is not installed, as a message.
pub(crate) fn input(size: u32, [rows, columns]: [u32; 2]) -> Result<String, String> {
    let example = fs::read_to_string(EXAMPLE).map_err(|_| format!("{EXAMPLE} is not installed"))?;
    // The first line of each kind is of the linear algebra.
    let mut reported = [(size, "Ns"), (rows, "Ps"), (columns, "Qs")].to_vec();
    let mut lines = String::new();
    for line in example.lines() {
        match reported.iter().position(|(_, what)| line.ends_with(&format!(" {what}"))) {
            Some(at) => {
                let (number, what) = reported.remove(at);
                lines += &format!("{number} {what}\n");
            }
            None => lines = lines + line + "\n",
        }
    }
    if reported.is_empty() {
        Ok(lines)
    } else {
        Err(format!("{EXAMPLE} has no line of {reported:?}"))
    }
}

/// The verdict of the summary; no line before it may report a failure.
pub(crate) fn verdict(output: &str) -> Result<(), String> {
    if let Some(failed) = output.lines().find(|line| line.contains("FAILED")) {
        return Err(failed.to_string());
    }
    for says in ["Success=1", "MPIRandomAccess_Errors=0"] {
        if !output.lines().any(|line| line == says) {
            return Err(format!("{OUTPUT} does not say {says}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_counts_though_the_summary_says_success() {
        let good = "WALL 200 PASSED\nSuccess=1\nMPIRandomAccess_Errors=0\n";
        assert_eq!(verdict(good), Ok(()));
        assert!(verdict(&good.replace("PASSED", "FAILED")).is_err());
        assert!(verdict(&good.replace("Success=1", "Success=0")).is_err());
        assert!(verdict("").is_err());
    }
}
