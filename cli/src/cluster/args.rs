//! The arguments of `ferroverbs cluster`.

use super::network::Cable;
use crate::run;
use std::path::Path;

/// The arguments of `ferroverbs cluster`.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// The number of hosts, at most 250: host1, host2 ...
    #[arg(value_name = "HOSTS", value_parser = clap::value_parser!(u8).range(1..=250))]
    pub(super) hosts: u8,
    /// Run the command in the first host only; `ssh hostN` and MPI launchers reach the other hosts.
    /// This is the default for mpirun and similar launchers
    #[arg(short = '1', long, conflicts_with = "each")]
    first: bool,
    /// Run the command in each host, also an MPI launcher
    #[arg(long)]
    each: bool,
    /// If the command fails in a host, let the other hosts go on
    #[arg(short, long)]
    pub(super) keep_going: bool,
    /// Do not add the name of the host to each line of output
    #[arg(long)]
    pub(super) no_prefix: bool,
    #[command(flatten)]
    pub(super) cable: Cable,
    #[command(flatten)]
    pub(super) run: run::Args,
}

impl Args {
    /// True if the command runs in this host.
    pub(super) fn runs_in(&self, host: u8) -> bool {
        host == 1 || !self.only_first()
    }

    /// True if the command runs in the first host only.
    pub(super) fn only_first(&self) -> bool {
        self.first
            || (!self.each && self.run.command.first().is_some_and(|c| is_launcher(c.as_ref())))
    }

    /// The numbers of the hosts.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.hosts
    }
}

/// True for a launcher, which starts processes in a list of hosts.
fn is_launcher(program: &Path) -> bool {
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.split('.').next().unwrap_or_default();
    matches!(name, "mpirun" | "mpiexec" | "orterun" | "prterun" | "oshrun" | "shmemrun")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_of_mpi_run_in_the_first_host_only() {
        for program in ["mpirun", "/usr/bin/mpiexec", "mpirun.openmpi", "mpiexec.hydra", "oshrun"] {
            assert!(is_launcher(Path::new(program)), "{program}");
        }
        for program in ["ib_send_bw", "mpi", "/mpirun/x", "mpirunner", ""] {
            assert!(!is_launcher(Path::new(program)), "{program}");
        }
    }
}
