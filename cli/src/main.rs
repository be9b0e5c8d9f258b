//! The command `ferroverbs` (ferroverbs(1)): runs a program over Ferroverbs instead of the system's
//! libibverbs, and shows what Ferroverbs knows about a machine, a process or a recording.

mod capture;
mod cluster;
mod completions;
mod counters;
mod doctor;
mod env;
mod installation;
mod link;
mod nodes;
mod output;
mod processes;
mod program;
mod ps;
mod rdma;
mod recorded;
mod report;
mod run;
mod settings;
mod stats;
mod trace;
mod tree;
mod validate;
mod variables;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// A result whose error is a message for the user.
type Result<T> = std::result::Result<T, String>;

/// The exit status for a wrong use of this command, or if something is missing (ferroverbs(1), EXIT
/// STATUS).
const FAILED: u8 = 2;

/// Runs a command over Ferroverbs: with its libibverbs.so.1, and with the software device soft0 on
/// a machine without RDMA hardware
#[derive(Debug, Parser)]
#[command(name = "ferroverbs", version, args_conflicts_with_subcommands = true)]
#[command(arg_required_else_help = true)]
#[command(after_help = "Manual pages: ferroverbs(1), ferroverbs(7), ferroverbs-soft(7).")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::Args,
    /// Print the folder of the library
    #[arg(long = "where", exclusive = true)]
    place: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command; the word `run` may be left out
    #[command(arg_required_else_help = true)]
    Run(run::Args),
    /// Print the variables by which programs load Ferroverbs, for a shell or a CI job
    Env(env::Args),
    /// Write the files of the software devices in /sys and /dev, for an image or for all programs
    #[command(arg_required_else_help = true)]
    Tree(tree::Args),
    /// Print what libibverbs says about the software devices
    #[command(hide = true)]
    DescribeDevices(tree::DescribeArgs),
    /// Check this machine, and print what keeps RDMA programs from working and the command that
    /// helps
    Doctor(doctor::Args),
    /// Run a command in each of several virtual hosts: namespaces of this machine, joined by a
    /// switch
    #[command(arg_required_else_help = true)]
    Cluster(cluster::Args),
    /// Within a cluster, run a command in another host, with the arguments of ssh
    #[command(arg_required_else_help = true)]
    ClusterShell(cluster::ShellArgs),
    /// Run a command under the layer that reports misuse of verbs
    #[command(arg_required_else_help = true)]
    Validate(validate::Args),
    /// Run a command and print each call of verbs; or print the recording of a process
    #[command(arg_required_else_help = true)]
    Trace(trace::Args),
    /// Run a command and write the packets of its processes for Wireshark; or join such files
    #[command(arg_required_else_help = true)]
    Capture(capture::Args),
    /// Print the RoCE v2 counters of running processes
    Counters(counters::Args),
    /// Stand in for rdma(8): list the software devices beside those of the kernel
    Rdma(rdma::Args),
    /// Print the processes that use the software adapter, with their devices, QPs and peers
    Ps(ps::Args),
    /// Run a command and print its counters; or print the counters of other processes
    #[command(arg_required_else_help = true)]
    Stats(stats::Args),
    /// Show the processes under the layer `stats`, updated each second
    Top(stats::TopArgs),
    /// Print the facts for a bug report, without names and secrets
    Report(report::Args),
    /// Print the definitions by which a shell completes words of this command
    Completions(completions::Args),
    /// Explain a message of `validate`
    Explain(validate::Explain),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Some(Command::Run(args)) => run::become_command(args, &[]),
        Some(Command::Env(args)) => env::main(args),
        Some(Command::Tree(args)) => tree::main(args),
        Some(Command::DescribeDevices(args)) => tree::describe(args),
        Some(Command::Doctor(args)) => doctor::main(args),
        Some(Command::Cluster(args)) => cluster::main(args),
        Some(Command::ClusterShell(args)) => cluster::enter_host(args),
        Some(Command::Validate(args)) => validate::main(args),
        Some(Command::Trace(args)) => trace::main(args),
        Some(Command::Capture(args)) => capture::main(args),
        Some(Command::Counters(args)) => counters::main(args),
        Some(Command::Rdma(args)) => rdma::main(args),
        Some(Command::Ps(args)) => ps::main(args),
        Some(Command::Stats(args)) => stats::main(args),
        Some(Command::Top(args)) => stats::top(args),
        Some(Command::Report(args)) => report::main(args),
        Some(Command::Completions(args)) => completions::main(args),
        Some(Command::Explain(args)) => validate::explain(args),
        None if cli.place => installation::print_folder(),
        None => run_or_suggest(&cli.run),
    };
    result.unwrap_or_else(|message| {
        eprintln!("ferroverbs: {message}");
        ExitCode::from(FAILED)
    })
}

/// Replaces this process by the command. If the command does not start and resembles one of our own
/// commands, a line suggests the own command.
fn run_or_suggest(args: &run::Args) -> Result<ExitCode> {
    let status = run::become_command(args, &[])?;
    let word = args.command.first().and_then(|word| word.to_str()).unwrap_or_default();
    if let Some(name) = similar_command(word) {
        eprintln!("ferroverbs: did you mean `ferroverbs {name}`?");
    }
    Ok(status)
}

/// The command of ours whose name resembles `word` most; `None` if no name is close.
fn similar_command(word: &str) -> Option<String> {
    /// Two names below this similarity (Jaro-Winkler, 0 to 1) are different words.
    const CLOSE: f64 = 0.85;
    let definition = Cli::command();
    let names = definition.get_subcommands().map(|command| command.get_name().to_owned());
    let rated = names.map(|name| (strsim::jaro_winkler(word, &name), name));
    let (_, name) = rated.filter(|(rate, _)| *rate >= CLOSE).max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;

    /// True if `command` is the program of these options.
    fn runs(run: &Option<run::Args>, command: &str) -> bool {
        run.as_ref().is_some_and(|run| run.command.first().is_some_and(|word| word == command))
    }

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
        assert!(command(&["--no-tree", "ls"]).no_tree && !command(&["ls"]).no_tree);
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
        assert!(run.action.is_none() && runs(&run.run, "ls") && !runs(&run.run, "show"));
        assert!(trace(&["trace", "show", "--format", "json", "1234"]).action.is_some());
        assert!(trace(&["trace", "merge", "a", "b"]).action.is_some());
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
        assert!(run.action.is_none() && runs(&run.run, "ls"));
        assert!(runs(&capture(&["capture", "--settings", "qp=0x11", "--", "merge"]).run, "merge"));
        assert!(capture(&["capture", "merge", "-o", "x", "a", "b"]).action.is_some());
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
        assert!(alone.action.is_none() && !runs(&alone.run, "ls"));
        assert!(stats(&["stats", "show", "1234"]).action.is_some());
        for words in [&["top"][..], &["top", "--once", "--by", "qp", "--sort", "bytes", "1234"]] {
            assert!(matches!(parse(words).unwrap().command, Some(Command::Top(_))), "{words:?}");
        }
        assert_eq!(parse(&["top", "--delay", "0"]).err(), Some(ErrorKind::ValueValidation));
    }

    #[test]
    fn a_mistyped_command_suggests_the_command() {
        for (word, name) in [
            ("docter", Some("doctor")),
            ("validte", Some("validate")),
            ("tracer", Some("trace")),
            ("ib_send_bw", None),
            ("ls", None),
            ("", None),
        ] {
            assert_eq!(similar_command(word).as_deref(), name, "{word}");
        }
    }

    #[test]
    fn help_is_a_command() {
        for words in [&["help"][..], &["help", "doctor"], &["trace", "help"]] {
            assert_eq!(parse(words).err(), Some(ErrorKind::DisplayHelp), "{words:?}");
        }
        assert_eq!(command(&["--", "help"]).command, ["help"]);
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
            (&["run", "--emulate", "mlx6", "ls"], ErrorKind::ValueValidation),
            (&["-s"], ErrorKind::InvalidValue),
            (&["-s", "1000", "ls"], ErrorKind::ValueValidation),
            (&["-f", "nonsense", "ls"], ErrorKind::ValueValidation),
            (&["run", "-f", "nonsense", "ls"], ErrorKind::ValueValidation),
            (&["cluster", "2", "-s", "33", "ls"], ErrorKind::ValueValidation),
            (&["validate", "-o", "exitcod=66", "ls"], ErrorKind::ValueValidation),
            (&["validate", "-o", "off=XX-01", "ls"], ErrorKind::ValueValidation),
            (&["trace", "--records", "many", "ls"], ErrorKind::ValueValidation),
            (&["trace", "--records", "99999999999", "ls"], ErrorKind::ValueValidation),
            (&["trace", "--format", "xml", "ls"], ErrorKind::InvalidValue),
            (&["capture", "--snap", "3", "ls"], ErrorKind::ValueValidation),
            (&["capture", "--settings", "nonsense", "ls"], ErrorKind::ValueValidation),
            (&["stats", "--objects", "99999999", "ls"], ErrorKind::ValueValidation),
            (&["env", "--format", "xml"], ErrorKind::InvalidValue),
            (&["env", "ls"], ErrorKind::UnknownArgument),
            (&["tree"], ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            (&["tree", "--system", "--remove"], ErrorKind::ArgumentConflict),
            (&["tree", "--system", "/image"], ErrorKind::ArgumentConflict),
            (&["tree", "--sytem"], ErrorKind::UnknownArgument),
            (&["--where", "ls"], ErrorKind::ArgumentConflict),
        ] {
            assert_eq!(parse(words).err(), Some(kind), "{words:?}");
        }
        assert!(parse(&["--where"]).is_ok_and(|cli| cli.place));
    }
}
