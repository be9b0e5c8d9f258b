//! Tests of the command line: wrong options and settings end the command before the program starts.

mod tree;

use std::fs;
use std::process::Output;
use tree::{InstalledTree, text};

/// Runs the command with the arguments `words`, and then `touch started`. Returns the output, and
/// true if the program ran.
fn run(tree: &InstalledTree, words: &[&str], variables: &[(&str, &str)]) -> (Output, bool) {
    let started = tree.0.join("started");
    let _ = fs::remove_file(&started);
    let mut command = tree.command(words);
    command.current_dir(&tree.0).envs(variables.iter().copied());
    let done = command.args(["--", "touch", "started"]).output().unwrap();
    (done, started.exists())
}

#[test]
fn a_wrong_option_ends_each_command_with_2_before_the_program_starts() {
    let tree = InstalledTree::new();
    fs::create_dir(tree.0.join("folder")).unwrap();
    for words in [
        &["-s", "1000"][..],
        &["-s", "many"],
        &["-f", "nonsense"],
        &["run", "-f", "drop nth=x"],
        &["run", "--nonsense"],
        &["validate", "-o", "exitcod=66"],
        &["validate", "-o", "exitcode=999"],
        &["validate", "-o", "off=XX-01"],
        &["validate", "-o", "json=/not/there/file"],
        &["validate", "-o", "log=folder"],
        &["validate", "-f", "nonsense"],
        &["validate", "-s", "1000"],
        &["trace", "--records", "many"],
        &["trace", "--records", "99999999999"],
        &["trace", "--format", "xml"],
        &["trace", "--format", "json"],
        &["trace", "--format", "chrome"],
        &["trace", "-o", "/not/there/file"],
        &["trace", "-s", "33"],
        &["capture", "--snap", "3"],
        &["capture", "--settings", "nonsense"],
        &["capture", "--settings", "qp=x"],
        &["capture", "-o", "folder"],
        &["capture", "-f", "nonsense"],
        &["stats", "--objects", "99999999"],
        &["stats", "--prometheus"],
        &["stats", "-o", "/not/there/file"],
        &["stats", "-f", "nonsense"],
        &["cluster", "2", "-f", "nonsense"],
        &["cluster", "2", "-s", "33"],
        &["cluster", "2", "--nonsense"],
    ] {
        let (done, started) = run(&tree, words, &[]);
        let printed = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{words:?}: {printed}");
        assert!(!started, "{words:?}: the program ran");
        assert!(!printed.is_empty(), "{words:?}: no message");
    }
}

#[test]
fn a_wrong_variable_ends_the_command_with_2_before_the_program_starts() {
    let tree = InstalledTree::new();
    for (words, variable, value) in [
        (&["run"][..], "FERROVERBS_SOFT", "1000"),
        (&["run"], "FERROVERBS_SOFT_FAULTS", "nonsense"),
        (&["run"], "FERROVERBS_LAYERS", "validat"),
        (&["validate"], "FERROVERBS_VALIDATE", "exitcod=66"),
        (&["validate"], "FERROVERBS_LAYERS", "nonsense"),
        (&["trace"], "FERROVERBS_SOFT", "-1"),
        (&["capture"], "FERROVERBS_SOFT_FAULTS", "drop rate=2"),
        (&["stats"], "FERROVERBS_LAYERS", "nonsense"),
    ] {
        let (done, started) = run(&tree, words, &[(variable, value)]);
        let printed = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{variable}={value}: {printed}");
        assert!(!started && printed.contains(variable), "{variable}={value}: {printed}");
    }
    let (done, started) = run(&tree, &["run", "-s", "2"], &[("FERROVERBS_SOFT", "nonsense")]);
    assert!(started && done.status.success(), "the option takes the place of the variable");
}

#[test]
fn right_options_run_the_program() {
    let tree = InstalledTree::new();
    for words in [
        &["run", "-s", "32", "-f", "drop rate=1/100; qp-error nth=7"][..],
        &["validate", "-o", "off=MR-*:exitcode=66:json=messages"],
        &["trace", "--records", "1000"],
        &["trace", "--format", "json", "-o", "calls"],
        &["capture", "--snap", "0", "--settings", "op=send,read:size=1G"],
        &["stats", "--objects", "16"],
        &["stats", "--prometheus", "-o", "metrics"],
    ] {
        let (done, started) = run(&tree, words, &[]);
        assert!(started && done.status.success(), "{words:?}: {}", text(&done.stderr));
    }
    assert_eq!(fs::read_to_string(tree.0.join("calls")).unwrap(), "", "no line but JSON");
}

#[test]
fn a_mistyped_command_suggests_the_command_and_help_is_a_command() {
    let tree = InstalledTree::new();
    let done = tree.command(&["docter", "--json"]).output().unwrap();
    assert_eq!(done.status.code(), Some(127));
    let printed = text(&done.stderr);
    assert!(printed.contains("did you mean `ferroverbs doctor`?"), "{printed}");
    for words in [&["help"][..], &["help", "trace"], &["help", "validate"]] {
        let done = tree.command(words).output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{words:?}");
        assert!(text(&done.stdout).contains("Usage:"), "{words:?}");
    }
}

#[test]
fn an_empty_result_says_what_to_do() {
    let tree = InstalledTree::new();
    fs::create_dir(tree.0.join("empty")).unwrap();
    for (words, part) in [
        (&["trace", "show", "empty"][..], "ferroverbs trace -- PROGRAM"),
        (&["trace", "merge", "empty"], "ferroverbs trace -- PROGRAM"),
        (&["trace", "show", "4194304"], "FERROVERBS_LAYERS=trace"),
        (&["capture", "merge", "empty"], "ferroverbs capture -- PROGRAM"),
        (&["stats", "show", "empty"], "ferroverbs stats -- PROGRAM"),
        (&["stats", "show", "4194304"], "FERROVERBS_LAYERS=stats"),
        (&["top", "--once", "empty"], "ferroverbs stats -- PROGRAM"),
        (&["counters", "4194304"], "GID index 1"),
        (&["explain", "XX-01"], "ferroverbs explain"),
        (&["trace", "--", "true"], "ferroverbs doctor"),
        (&["stats", "--", "true"], "ferroverbs doctor"),
        (&["capture", "--", "true"], "ferroverbs doctor"),
    ] {
        let done = tree.command(words).current_dir(&tree.0).output().unwrap();
        let printed = text(&done.stderr);
        assert!(printed.contains(part), "{words:?}: {printed}");
    }
}

#[test]
fn a_statically_linked_program_runs_with_a_line_that_nothing_can_be_done() {
    let tree = InstalledTree::new();
    let source = tree.0.join("program.c");
    fs::write(&source, "int main(void) { return 7; }\n").unwrap();
    let program = tree.0.join("program");
    for (options, is_reached) in [(&["-static"][..], false), (&["-static-pie"], false), (&[], true)]
    {
        let mut compiler = std::process::Command::new("cc");
        let built = compiler.args(options).arg("-o").arg(&program).arg(&source).status().unwrap();
        assert!(built.success(), "cc {options:?}");
        for command in ["run", "validate"] {
            let done = tree.command(&[command, "--"]).arg(&program).output().unwrap();
            let printed = text(&done.stderr);
            assert_eq!(done.status.code(), Some(7), "{options:?}: {printed}");
            assert_eq!(
                !printed.contains("statically linked"),
                is_reached,
                "{options:?}: {printed}"
            );
        }
    }
}
