//! `ferroverbs completions`: prints the definitions by which a shell completes words of this
//! command.

use crate::{Cli, output};
use clap::CommandFactory;
use std::process::ExitCode;

/// The arguments of `ferroverbs completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which shell reads them
    #[arg(value_enum)]
    shell: Shell,
}

/// A shell that a package has definitions for.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Runs `ferroverbs completions`.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    output::print_bytes(&definitions(args.shell))
}

fn definitions(shell: Shell) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ferroverbs", &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_gets_the_commands_and_their_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(definitions(shell)).unwrap();
            for word in ["validate", "cluster", "no-prefix", "ps"] {
                assert!(text.contains(word), "{shell:?}: {word}");
            }
        }
    }
}
