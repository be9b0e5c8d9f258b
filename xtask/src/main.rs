//! One entry for everything a person does with Ferroverbs: `cargo xtask` lists the commands.

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;
use xtask::{cargo, demo, dist, fuzz, headers, matrix, packages, run, soak, stage, test, vm};

/// Everything a person does with Ferroverbs.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what is needed, build, and show the soft adapter at work
    Demo,
    /// Run every test there is, or the groups that are named, then a summary
    Test(test::Args),
    /// Random operations over the soft adapter, checked, with a new seed each time
    Soak(soak::Args),
    /// Run fuzz targets: everything that reads foreign bytes (docs/design/fuzzing.md)
    Fuzz(fuzz::Args),
    /// Measure the soft adapter beside its peers and the machine's limits
    #[command(disable_help_flag = true)]
    Bench {
        /// Arguments of the benchmark: `cargo xtask bench --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Run a command over Ferroverbs
    Run(run::Args),
    /// Run a command in a virtual machine with RDMA devices of the kernel's own
    Vm(vm::Args),
    /// Print the apt-get line for the packages of all commands
    Packages,
    /// Lay an installed tree under target/stage
    Stage,
    /// Build Debian packages, an RPM, a tarball and a wheel under target/dist
    Dist(dist::Args),
    /// Write include/ from the abi crate
    Headers(headers::Args),
    /// Write docs/reference/abi-matrix.md, soft-coverage.md and clauses.md
    Matrix(matrix::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo => demo::main(),
        Command::Test(args) => test::main(&args),
        Command::Soak(args) => soak::main(&args),
        Command::Fuzz(args) => fuzz::main(&args),
        Command::Bench { args } => cargo::run("ferroverbs-bench", &args),
        Command::Run(args) => run::main(&args),
        Command::Vm(args) => vm::main(&args),
        Command::Packages => packages::main(),
        Command::Stage => stage::main(),
        Command::Dist(args) => dist::main(&args),
        Command::Headers(args) => headers::main(&args),
        Command::Matrix(args) => matrix::main(&args),
    };
    result.unwrap_or_else(|message| {
        eprintln!("xtask: {}", message.trim_end());
        ExitCode::from(2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    fn parse(line: &str) -> Result<Command, ErrorKind> {
        let words = std::iter::once("xtask").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.command).map_err(|e| e.kind())
    }

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_and_refuses_options_that_it_does_not_know() {
        assert_eq!(parse("").err(), Some(ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand));
        // The benchmarks have their own command line, to which all words go.
        let own = |command: &&clap::Command| command.get_name() != "bench";
        for command in Cli::command().get_subcommands().filter(own) {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name}");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{name} {}", argument.get_id());
            }
            assert_eq!(parse(&format!("{name} --help")).err(), Some(ErrorKind::DisplayHelp));
            let wrong = parse(&format!("{name} --no-such-option")).err();
            assert_eq!(wrong, Some(ErrorKind::UnknownArgument), "{name}");
        }
    }

    #[test]
    fn a_command_to_run_keeps_its_own_options() {
        for line in ["run -- ls -l -- --help", "run ls -l -- --help"] {
            let Ok(Command::Run(args)) = parse(line) else { panic!("{line}") };
            assert_eq!(args.command, ["ls", "-l", "--", "--help"]);
        }
        assert!(parse("run").is_err());
    }

    #[test]
    fn what_people_type_is_understood() {
        for line in [
            "demo",
            "test",
            "test --list",
            "test --all",
            "test --all=long --junit results.xml",
            "test hosts::losses --under validate",
            "test fmt man",
            "test --clean",
            "test --clean --release trixie -- fmt man",
            "packages",
            "soak",
            "soak 60",
            "soak 60 7",
            "soak --hostile 60 7",
            "fuzz",
            "fuzz frame --minutes 60",
            "bench",
            "bench scale --help",
            "stage",
            "dist",
            "dist --verify",
            "headers --check",
            "matrix --check",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
        for line in [
            "soak x",
            "soak 1 0",
            "demo x",
            "test --all=longer",
            "test --release trixie",
            "test --clean --release ../x",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
