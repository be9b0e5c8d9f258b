//! Runs the cluster commands of README.md and docs/guide/cluster.md verbatim.

use super::cluster::{Cluster, MPIS};
use crate::Tally;
use std::fs;
use xtask::packages;
use xtask::process::quote;

const DOCUMENTS: [(&str, &str); 2] = [
    ("README.md", include_str!("../../../README.md")),
    ("docs/guide/cluster.md", include_str!("../../../docs/guide/cluster.md")),
];

/// The expected output of a command, selected by a word of the command or of its shell input.
const SAID: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &["[host1] 1000 iters in", "[host2] 1000 iters in"]),
    ("ib_send_bw", &[" 65536      1000 "]),
    ("mpirun", &[" ranks, 0 wrong"]),
    ("hostname", &["host2\n"]),
];

/// The documented commands give a server a second to listen, as the foreign programs have no way to
/// say that they do. A second is too short on a busy machine, so that `sleep` takes longer here.
const PATIENT_SLEEP: &str = "#!/bin/sh\nexec /bin/sleep 5\n";

/// A command, and the input of its shell.
#[derive(Clone, Debug, PartialEq)]
struct Command {
    line: String,
    typed: String,
}

pub(super) fn run(tally: &mut Tally, cluster: &Cluster<'_>) -> crate::Result<()> {
    for (document, text) in DOCUMENTS {
        for command in commands(text) {
            let name = format!("{document}: {}", command.line);
            let needs = [packages::OPEN_MPI, packages::UCX];
            if command.line.contains("mpirun")
                && let Err(reason) = packages::ensure(&needs, &cluster.bench.progress)
            {
                tally.skip(&name, &reason);
                continue;
            }
            cluster.bench.step(&name);
            tally.record(&name, carry_out(cluster, &command));
        }
    }
    Ok(())
}

fn carry_out(cluster: &Cluster<'_>, command: &Command) -> Result<(), String> {
    let work = cluster.work(cluster.bench.user)?;
    let put = |file: &str, text: &str| {
        fs::write(work.join(file), text).map_err(|e| format!("{file}: {e}"))
    };
    put("typed", &command.typed)?;
    put("sleep", PATIENT_SLEEP)?;
    xtask::scratch::set_mode(&work.join("sleep"), 0o755)?;
    if command.line.contains("./program") {
        let program = cluster.ring(&MPIS[0])?;
        fs::copy(&program, work.join("program")).map_err(|e| format!("program: {e}"))?;
    }
    let program = quote(&cluster.program.to_string_lossy());
    let line = format!("PATH=$PWD:$PATH; {program} {} < typed", command.line);
    let job = cluster.over(cluster.bench.user)?.job("sh").args(["-c", &line]);
    cluster.finish_in(&work, job)?.expect(expected(command)?)
}

fn expected(command: &Command) -> Result<&'static [&'static str], String> {
    let is_there = |word: &str| command.line.contains(word) || command.typed.contains(word);
    let found = SAID.iter().find(|(word, _)| is_there(word));
    let (_, lines) = found.ok_or_else(|| format!("what does `{}` say?", command.line))?;
    Ok(lines)
}

/// All of a document's, from `cluster` on, without remarks.
fn commands(text: &str) -> Vec<Command> {
    let mut all: Vec<Command> = Vec::new();
    let mut shell_is_open = false;
    for line in text.lines() {
        let Some(line) = line.strip_prefix("    ") else {
            shell_is_open = false;
            continue;
        };
        let line = line.split("  # ").next().unwrap_or_default().trim_end();
        let ours = line.strip_prefix("target/stage/bin/").unwrap_or(line);
        if let Some(rest) = ours.strip_prefix("ferroverbs cluster ") {
            shell_is_open = rest.ends_with("-- bash");
            all.push(Command { line: format!("cluster {rest}"), typed: String::new() });
        } else if shell_is_open && let Some(command) = all.last_mut() {
            command.typed += &format!("{line}\n");
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_with_what_is_typed_into_their_shells() {
        let text = "text\n\n    target/stage/bin/ferroverbs cluster 2 -1 -- bash   # a shell\n    \
                    one  # says\n    two\n\n    three\n    ferroverbs cluster 3 -- x\n    four\n";
        let command = |line: &str, typed: &str| Command { line: line.into(), typed: typed.into() };
        let wanted = [command("cluster 2 -1 -- bash", "one\ntwo\n"), command("cluster 3 -- x", "")];
        assert_eq!(commands(text), wanted);
    }

    #[test]
    fn each_command_of_the_documents_has_something_to_say() {
        for (document, text) in DOCUMENTS {
            let all = commands(text);
            assert_eq!(all.len(), 3, "{document}");
            for command in all {
                assert!(expected(&command).is_ok(), "{command:?}");
                assert_eq!(command.line.ends_with("bash"), !command.typed.is_empty());
            }
        }
    }
}
