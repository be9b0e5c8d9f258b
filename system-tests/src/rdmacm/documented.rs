//! docs/guide/connections.md and the tests have the same commands: each command in the page's
//! tables is part of a tested command, and each program of these tests has a command there.

use super::rsockets::{DATAGRAMS, STREAMS};
use super::{CASES, Case};
use std::collections::BTreeSet;
use std::net::IpAddr;

const DOCUMENT: &str = include_str!("../../../docs/guide/connections.md");
/// Beside the cases: commands that are made up line by line.
const SOURCES: [&str; 2] = [include_str!("hosts.rs"), include_str!("rsockets.rs")];
/// The scripts of the group `connected`.
const SCRIPTS: [&str; 2] = [
    include_str!("../../../c-tests/tools/connected.sh"),
    include_str!("../../../c-tests/tools/live_migration.sh"),
];

type Words = BTreeSet<String>;

/// The commands of the tables: the first one in each cell, and programs that a cell calls
/// equivalent.
fn documented() -> Vec<Words> {
    let from = DOCUMENT.find("## Connections by IP addresses").expect("the section");
    let section = &DOCUMENT[from..];
    let section = &section[..section.find("### Open MPI's launcher").expect("its end")];
    let mut all = vec![];
    for line in section.lines().filter(|line| line.starts_with("| ")) {
        for cell in line.split(" | ") {
            let mut quoted = cell.split('`').skip(1).step_by(2);
            if cell.contains("the same with `ib_") {
                all.extend(quoted.map(|program| words(&format!("{program} -R"))));
                continue;
            }
            // The words before a command show how to start it.
            all.extend(quoted.find(|command| command.contains("ferroverbs")).map(words));
        }
    }
    all
}

/// The words of a command that must match, without its launcher, numbers, addresses and file names.
fn words(command: &str) -> Words {
    // A person who migrates by hand types at a terminal, and the test uses a socket.
    let is_free = |word: &str| {
        let starter = ["ferroverbs", "-n", "env", "sh", "ADDRESS", "FILE", "-monitor", "stdio"];
        starter.contains(&word)
            || word.starts_with("LD_PRELOAD")
            || word.starts_with("--port=")
            || word.contains(['/', '$'])
            || word.parse::<IpAddr>().is_ok()
            || word.contains("127.0.0.1")
            || word.parse::<u64>().is_ok()
    };
    let command = command.replace(['\'', '"'], "");
    let words = command.split_whitespace();
    let words = words.filter_map(|word| script(word).or_else(|| (!is_free(word)).then_some(word)));
    words.map(str::to_owned).collect()
}

/// The name of a script, without its folder.
fn script(word: &str) -> Option<&str> {
    if word.ends_with(".sh") { word.rsplit('/').next() } else { None }
}

/// What the tests run.
fn tested() -> Vec<Words> {
    let cases = [CASES, STREAMS, DATAGRAMS].concat_sides();
    let quoted =
        |line: &str| -> Words { line.split('"').skip(1).step_by(2).map(str::to_owned).collect() };
    let lines = SOURCES.iter().flat_map(|text| text.lines().map(quoted));
    cases.into_iter().chain(lines).chain(scripted()).collect()
}

/// Both sides of cases.
trait Sides {
    fn concat_sides(&self) -> Vec<Words>;
}

impl Sides for [&[Case]] {
    fn concat_sides(&self) -> Vec<Words> {
        let sides = self.iter().flat_map(|cases| cases.iter()).flat_map(|c| [c.server, c.client]);
        sides.map(|side| words(&side.join(" "))).collect()
    }
}

/// Lines of the scripts, their variables replaced, and both sides of a pair apart.
fn scripted() -> Vec<Words> {
    let mut all = vec![];
    for text in SCRIPTS {
        let text = text.replace("\\\n", " ").replace("mpirun.openmpi", "mpirun");
        let value = |name: &str| {
            let found = text.lines().find_map(|line| line.trim().strip_prefix(name));
            found.unwrap_or_default().trim_matches('"').to_owned()
        };
        let (both, machine) = (value("both="), value("machine="));
        let programs = value("for program in ");
        let programs: Vec<_> = programs.trim_end_matches("; do").split_whitespace().collect();
        for line in text.lines() {
            let line =
                line.replace("$both", &both).replace("$machine", &machine).replace("export ", "");
            for part in line.split("\" \"") {
                match part.contains("$program") {
                    true => {
                        all.extend(programs.iter().map(|p| words(&part.replace("$program", p))))
                    }
                    false => all.push(words(part)),
                }
            }
        }
    }
    all
}

#[test]
fn each_command_of_the_document_is_one_that_is_tested() {
    let (documented, tested) = (documented(), tested());
    assert!(documented.len() >= 40, "{} commands were found", documented.len());
    for command in &documented {
        assert!(!command.is_empty());
        assert!(tested.iter().any(|line| command.is_subset(line)), "no test runs {command:?}");
    }
}

#[test]
fn each_program_that_is_tested_has_a_command_in_the_document() {
    let documented = documented();
    for case in [CASES, STREAMS, DATAGRAMS].into_iter().flatten() {
        for side in [case.server, case.client] {
            let program = side.first().copied().unwrap_or_default();
            assert!(documented.iter().any(|command| command.contains(program)), "{program}");
        }
    }
}
