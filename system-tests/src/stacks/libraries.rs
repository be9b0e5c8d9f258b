//! Test programs over libraries that use verbs directly: Gloo and TensorPipe of PyTorch.

use super::{LIMIT, PATHS, Stacks};
use crate::Tally;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use xtask::process::{Finished, Job, PAUSE};

/// Time for the remaining processes to end after a failure.
const GRACE: Duration = Duration::from_secs(10);

impl Stacks<'_> {
    /// Gloo's transport `ibverbs`: RC, RDMA WRITE with immediate data, completion events.
    pub(super) fn gloo(&self, tally: &mut Tally) -> crate::Result<()> {
        const RANKS: u32 = 3;
        let program = self.compile("g++", "gloo_ring.cc", &["-lgloo", "-libverbs"])?;
        self.run_ranks("Gloo, 3 ranks", &program, tally, |folder| {
            let ranks = (0..RANKS).map(|rank| {
                let args = vec![rank.to_string(), RANKS.to_string(), folder.to_string()];
                (args, format!("rank {rank} of {RANKS}: 0 wrong\n"))
            });
            ranks.collect()
        })
    }

    /// TensorPipe's transport `ibv`: RC with an SRQ, RDMA WRITE with immediate, all by polling.
    pub(super) fn tensorpipe(&self, tally: &mut Tally) -> crate::Result<()> {
        let program = self.compile("g++", "tensorpipe_echo.cc", &["-std=c++17", "-ltensorpipe"])?;
        self.run_ranks("TensorPipe, 4 pipes", &program, tally, |folder| {
            let side = |role: &str, says: &str| {
                (vec![role.to_string(), folder.to_string()], says.to_string())
            };
            vec![side("serve", ""), side("call", "4 pipes, 0 wrong\n")]
        })
    }

    /// Processes of one program that meet by a folder, over each data path, each with its arguments
    /// and expected output.
    fn run_ranks(
        &self,
        name: &str,
        program: &Path,
        tally: &mut Tally,
        processes: impl Fn(&str) -> Vec<(Vec<String>, String)>,
    ) -> crate::Result<()> {
        for path in PATHS {
            let name = format!("{name} ({})", path.name());
            self.bench.step(&name);
            let fabric = self.bench.over(path)?;
            let folder = self.bench.private_folder("meet")?;
            let processes = processes(&folder.to_string_lossy());
            let jobs = processes
                .iter()
                .map(|(args, _)| fabric.over.job(program).args(args).dir(&fabric.work));
            let done = self.all(jobs.collect())?;
            let good = done.iter().zip(&processes).all(|(done, (_, says))| {
                done.ok() && done.stderr.is_empty() && done.stdout == *says
            });
            let report = || done.iter().map(|done| done.report("a process")).collect::<String>();
            tally.record(&name, if good { Ok(()) } else { Err(report()) });
            // Removes the folder at once, because many processes each create files.
            fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        Ok(())
    }

    /// Runs commands at the same time.
    fn all(&self, jobs: Vec<Job>) -> crate::Result<Vec<Finished>> {
        let mut deadline = Instant::now() + LIMIT;
        let mut running = Vec::new();
        for job in &jobs {
            running.push(job.start(&self.bench.scratch)?);
        }
        let mut failed = false;
        while Instant::now() < deadline && !running.iter_mut().all(|r| r.ended()) {
            if !failed && running.iter_mut().any(|r| r.failed()) {
                failed = true;
                deadline = deadline.min(Instant::now() + GRACE);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(running.into_iter().map(|r| r.finish(Instant::now())).collect())
    }
}
