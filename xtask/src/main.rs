//! One entry for everything a person does with Ferroverbs: `cargo xtask` lists the commands.

mod bench;
mod coverage;
mod demo;
mod dist;
mod files;
mod fuzz;
mod headers;
mod hostile;
mod manpage;
mod matrix;
mod namespaces;
mod over;
mod packages;
mod pair;
mod paths;
mod perftest;
mod process;
mod progress;
mod reproducible;
mod rping;
mod run;
mod scratch;
mod soak;
mod stage;
mod stuck;
mod table;
mod test;
mod vm;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// What went wrong, ready to be shown to a person.
type Result<T> = std::result::Result<T, String>;

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
    /// Random operations over the soft adapter, checked, one seed after the other
    Soak(soak::Args),
    /// Run fuzz targets: everything that reads what others write (docs/design/fuzzing.md)
    Fuzz(fuzz::Args),
    /// Measure the soft adapter beside its peers and the machine's limits
    Bench(bench::Args),
    /// Run a command over Ferroverbs
    Run(run::Args),
    /// Run a command in a virtual machine with RDMA devices of the kernel's own
    Vm(vm::Args),
    /// Print the apt-get line that installs what any of the commands needs
    Packages,
    /// Lay an installed tree under target/stage
    Stage,
    /// Build Debian packages and a tarball under target/dist
    Dist(dist::Args),
    /// Write include/ from the abi crate
    Headers(headers::Args),
    /// Write docs/reference/abi-matrix.md and docs/reference/soft-coverage.md
    Matrix(matrix::Args),
    /// The measurements of `bench start-up`, in the virtual machine
    #[command(name = bench::INSIDE, hide = true)]
    BenchInside {
        /// What the machine hands over
        args: Vec<OsString>,
    },
    /// The scenarios of `test vm`, in the virtual machine
    #[command(name = test::vm::INSIDE, hide = true)]
    TestInside {
        /// What the machine hands over
        args: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo => demo::main(),
        Command::Test(args) => test::main(&args),
        Command::Soak(args) => soak::main(&args),
        Command::Fuzz(args) => fuzz::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Run(args) => run::main(&args),
        Command::Vm(args) => vm::main(&args),
        Command::Packages => packages::main(),
        Command::Stage => stage::main(),
        Command::Dist(args) => dist::main(&args),
        Command::Headers(args) => headers::main(&args),
        Command::Matrix(args) => matrix::main(&args),
        Command::BenchInside { args } => bench::inside(&args),
        Command::TestInside { args } => test::vm::inside(&args),
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

    fn parse(line: &str) -> std::result::Result<Command, ErrorKind> {
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
        for command in Cli::command().get_subcommands() {
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
            "bench --rounds 3 --write",
            "bench scale",
            "bench start-up",
            "stage",
            "dist",
            "dist --verify",
            "headers --check",
            "matrix --check",
            "bench-inside-vm program upstream ours",
            "test-inside-vm folder lib 65=plugins",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
        for line in [
            "soak x",
            "soak 1 0",
            "bench --rounds 0",
            "bench --write scale",
            "demo x",
            "test --release trixie",
            "test --clean --release ../x",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn what_is_for_the_virtual_machine_only_is_not_listed() {
        let help = Cli::command().render_help().to_string();
        assert!(!help.contains("inside"), "{help}");
        assert!(help.contains("  soak "), "{help}");
    }
}
