//! HPC Challenge over Open MPI: linear algebra, transposition, FFT, and random access to the memory of others, which check what they compute.

use super::{AS_ROOT, Stacks, Tally, good, with_ucx};
use crate::over::DataPath;
use std::fs;

/// Its own example of an input; without the package's documentation there is none.
const EXAMPLE: &str = "/usr/share/doc/hpcc/examples/_hpccinf.txt";
/// The line with the size of the problem, from 0, and a size that takes seconds.
const SIZE: (usize, &str) = (5, "400 Ns");
const OUTPUT: &str = "hpccoutf.txt";

impl Stacks<'_> {
    pub(super) fn hpcc(&self, tally: &mut Tally) -> crate::Result<()> {
        let Ok(example) = fs::read_to_string(EXAMPLE) else {
            tally.skip("HPC Challenge", &format!("{EXAMPLE} is not installed"));
            return Ok(());
        };
        let lines = example.lines().enumerate();
        let input: String = lines
            .map(|(n, line)| if n == SIZE.0 { SIZE.1 } else { line })
            .flat_map(|line| [line, "\n"])
            .collect();
        for transport in ["rc_v,self", "ud_v,self"] {
            let name = format!("HPC Challenge over Open MPI over UCX, {transport}");
            self.bench.step(&name);
            let fabric = self.bench.over(DataPath::Default)?;
            let file = fabric.work.join("hpccinf.txt");
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

/// What its summary says, and that nothing before it failed.
fn verdict(output: &str) -> Result<(), String> {
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
