//! `ferroverbs`: runs a command over Ferroverbs instead of the system's libibverbs, and tells about it. See ferroverbs(1).

mod capture;
mod cluster;
mod counters;
mod doctor;
mod link;
mod nodes;
mod place;
mod recorded;
mod report;
mod run;
mod stats;
mod trace;
mod validate;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// What went wrong, ready to be shown to a person.
type Result<T> = std::result::Result<T, String>;

/// A wrong use of this program, or something that is missing for it (ferroverbs(1), EXIT STATUS).
const FAILED: u8 = 2;

/// Runs a command over Ferroverbs: its libibverbs.so.1 comes first, and its software device soft0 is there on a machine without RDMA hardware.
#[derive(Debug, Parser)]
#[command(name = "ferroverbs", version, args_conflicts_with_subcommands = true)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = "Manual pages: ferroverbs(1), ferroverbs(7), ferroverbs-soft(7).")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::Args,
    /// Print the directory of the library
    #[arg(long = "where", exclusive = true)]
    place: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command, whatever it is called; `run` may be left out
    #[command(arg_required_else_help = true)]
    Run(run::Args),
    /// Look at this machine, and say what keeps RDMA programs from working and what mends it
    Doctor(doctor::Args),
    /// Run a command in each of several hosts in a box: namespaces of this machine, joined by a switch
    #[command(arg_required_else_help = true)]
    Cluster(cluster::Args),
    /// Within a cluster, run a command in another host; it takes ssh's arguments
    #[command(arg_required_else_help = true)]
    ClusterShell(cluster::Shell),
    /// Run a command under the layer that tells how it misuses verbs
    #[command(arg_required_else_help = true)]
    Validate(validate::Args),
    /// Run a command and tell each call of verbs that it made; or tell what a flight recorder holds
    #[command(arg_required_else_help = true)]
    Trace(trace::Args),
    /// Run a command and write the packets that it sent and received, for Wireshark; or join what was written
    #[command(arg_required_else_help = true)]
    Capture(capture::Args),
    /// Say what processes that run counted of the wire between hosts
    Counters(counters::Args),
    /// Run a command and tell what it did with its devices; or tell what is counted of others
    #[command(arg_required_else_help = true)]
    Stats(stats::Args),
    /// Show what processes under the layer `stats` do, again and again
    Top(stats::Top),
    /// Print what a bug report needs, without names and secrets
    Report(report::Args),
    /// Say what a message of `validate` means
    Explain(validate::Explain),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Some(Command::Run(args)) => run::main(args),
        Some(Command::Doctor(args)) => doctor::main(args),
        Some(Command::Cluster(args)) => cluster::main(args),
        Some(Command::ClusterShell(args)) => cluster::shell(args),
        Some(Command::Validate(args)) => validate::main(args),
        Some(Command::Trace(args)) => trace::main(args),
        Some(Command::Capture(args)) => capture::main(args),
        Some(Command::Counters(args)) => counters::main(args),
        Some(Command::Stats(args)) => stats::main(args),
        Some(Command::Top(args)) => stats::top(args),
        Some(Command::Report(args)) => report::main(args),
        Some(Command::Explain(args)) => validate::explain(args),
        None if cli.place => place::main(),
        None => run::main(&cli.run),
    };
    result.unwrap_or_else(|message| {
        eprintln!("ferroverbs: {message}");
        ExitCode::from(FAILED)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `command` is what is run.
    fn runs(run: &Option<run::Args>, command: &str) -> bool {
        run.as_ref().is_some_and(|run| run.command.first().is_some_and(|word| word == command))
    }
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    fn parse(words: &[&str]) -> std::result::Result<Cli, ErrorKind> {
        Cli::try_parse_from(["ferroverbs"].iter().chain(words)).map_err(|e| e.kind())
    }

    fn command(words: &[&str]) -> run::Args {
        let cli = parse(words).unwrap_or_else(|e| panic!("{words:?}: {e}"));
        match cli.command {
            Some(Command::Run(args)) => args,
            Some(other) => panic!("{words:?}: {other:?}"),
            None => cli.run,
        }
    }

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_keeps_its_own_options() {
        for words in [
            &["ls", "-n", "--", "--help"][..],
            &["--", "ls", "-n", "--", "--help"],
            &["run", "ls", "-n", "--", "--help"],
            &["run", "--", "ls", "-n", "--", "--help"],
        ] {
            let args = command(words);
            assert_eq!(args.command, ["ls", "-n", "--", "--help"], "{words:?}");
            assert!(!args.nodes, "{words:?}");
        }
    }

    #[test]
    fn options_are_taken_together_or_apart_with_run_and_without() {
        for words in [&["-np", "ls"][..], &["-pn", "ls"], &["run", "-n", "-p", "--", "ls"]] {
            let args = command(words);
            assert!(args.nodes && args.preload, "{words:?}");
        }
        let args = command(&["-s", "2", "-f", "port-down", "ls"]);
        assert_eq!(args.soft.as_deref(), Some("2"));
        assert_eq!(args.faults.unwrap(), "port-down");
    }

    #[test]
    fn a_program_may_be_called_like_one_of_our_commands() {
        for words in [&["--", "run", "x"][..], &["-n", "run", "x"], &["run", "run", "x"]] {
            assert_eq!(command(words).command, ["run", "x"], "{words:?}");
        }
        assert_eq!(command(&["--", "doctor"]).command, ["doctor"]);
        assert!(matches!(parse(&["doctor"]).unwrap().command, Some(Command::Doctor(_))));
    }

    #[test]
    fn validate_has_settings_and_the_options_of_run() {
        let words = ["validate", "-o", "off=MR-*", "-n", "--", "ls", "-o"];
        let Some(Command::Validate(args)) = parse(&words).unwrap().command else {
            panic!("not validate");
        };
        assert_eq!(args.settings.as_deref(), Some("off=MR-*"));
        assert!(args.run.nodes);
        assert_eq!(args.run.command, ["ls", "-o"]);
        assert!(matches!(parse(&["explain"]).unwrap().command, Some(Command::Explain(_))));
        assert_eq!(command(&["--", "validate"]).command, ["validate"]);
    }

    #[test]
    fn trace_runs_a_command_or_shows_files() {
        let trace = |words: &[&str]| match parse(words) {
            Ok(Cli { command: Some(Command::Trace(args)), .. }) => args,
            other => panic!("{words:?}: {other:?}"),
        };
        let run = trace(&["trace", "--format", "chrome", "-o", "x.json", "--", "ls", "-o"]);
        assert!(run.what.is_none() && runs(&run.run, "ls") && !runs(&run.run, "show"));
        assert!(trace(&["trace", "show", "--format", "json", "1234"]).what.is_some());
        assert!(trace(&["trace", "merge", "a", "b"]).what.is_some());
        assert!(runs(&trace(&["trace", "--", "show"]).run, "show"));
        assert_eq!(
            parse(&["trace", "merge"]).err(),
            Some(ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand)
        );
    }

    #[test]
    fn capture_runs_a_command_or_joins_files() {
        let capture = |words: &[&str]| match parse(words) {
            Ok(Cli { command: Some(Command::Capture(args)), .. }) => args,
            other => panic!("{words:?}: {other:?}"),
        };
        let run = capture(&["capture", "-o", "x.pcapng", "--snap", "0", "--", "ls", "-o"]);
        assert!(run.what.is_none() && runs(&run.run, "ls"));
        assert!(runs(&capture(&["capture", "--settings", "qp=0x11", "--", "merge"]).run, "merge"));
        assert!(capture(&["capture", "merge", "-o", "x", "a", "b"]).what.is_some());
        assert_eq!(
            parse(&["capture", "merge"]).err(),
            Some(ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand)
        );
    }

    #[test]
    fn stats_runs_a_command_or_shows_what_there_is() {
        let stats = |words: &[&str]| match parse(words) {
            Ok(Cli { command: Some(Command::Stats(args)), .. }) => args,
            other => panic!("{words:?}: {other:?}"),
        };
        assert!(runs(&stats(&["stats", "-o", "x", "--", "ls", "-o"]).run, "ls"));
        assert!(runs(&stats(&["stats", "--prometheus", "--", "ls"]).run, "ls"));
        let alone = stats(&["stats", "--prometheus"]);
        assert!(alone.what.is_none() && !runs(&alone.run, "ls"));
        assert!(stats(&["stats", "show", "1234"]).what.is_some());
        for words in [&["top"][..], &["top", "--once", "--by", "qp", "--sort", "bytes", "1234"]] {
            assert!(matches!(parse(words).unwrap().command, Some(Command::Top(_))), "{words:?}");
        }
        assert_eq!(parse(&["top", "--delay", "0"]).err(), Some(ErrorKind::ValueValidation));
    }

    #[test]
    fn wrong_uses_are_refused() {
        for (words, kind) in [
            (&[][..], ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            (&["run"], ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            (&["validate"], ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            (&["validate", "-n"], ErrorKind::MissingRequiredArgument),
            (&["-n"], ErrorKind::MissingRequiredArgument),
            (&["--nonsense"], ErrorKind::UnknownArgument),
            (&["run", "--nonsense", "ls"], ErrorKind::UnknownArgument),
            (&["-s", "many", "ls"], ErrorKind::ValueValidation),
            (&["-s"], ErrorKind::InvalidValue),
            (&["--where", "ls"], ErrorKind::ArgumentConflict),
        ] {
            assert_eq!(parse(words).err(), Some(kind), "{words:?}");
        }
        assert!(parse(&["--where"]).is_ok_and(|cli| cli.place));
    }
}
