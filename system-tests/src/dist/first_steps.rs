//! The table in README.md of three commands that let two processes communicate: each row is typed
//! word by word in a clean room of its distribution.

use super::{LIMIT, debian};
use crate::{Bench, Tally};
use std::fs;
use std::path::{Path, PathBuf};
use xtask::files::read;
use xtask::process::{self, Job, User};
use xtask::{dist, packages, scratch};

/// The title of the table's first column.
const TITLE: &str = "on";
/// The releases of Debian that the table names.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];
/// The folder of the files in a room.
const FOLDER: &str = "work";

/// The user of a room who types the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Typist {
    /// The administrator of the machine.
    Root,
    /// A user with `sudo`, as of a hosted runner.
    Runner,
    /// A user with a virtual environment of Python.
    Python,
    /// The user of a container that an ordinary user runs: root of a user namespace.
    Rootless,
}

/// A clean room for a row: its first cell, and the user. `Err` says why there is no room.
const ROOMS: [(&str, Result<Typist, &str>); 5] = [
    ("Debian 12 and 13, as root", Ok(Typist::Root)),
    (
        "Rocky Linux 9, as root",
        Err("Debian's archive has no packages of Enterprise Linux to make a room of"),
    ),
    ("a rootless container that has `ibv_rc_pingpong`", Ok(Typist::Rootless)),
    ("a GitHub runner", Ok(Typist::Runner)),
    ("a Python project, in its virtual environment", Ok(Typist::Python)),
];

/// What makes the user and the programs of a room. `$1` is the folder of the files.
const PREPARE: &str = "
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q update
    useradd --create-home runner
    chown -R runner \"$1\"
    case $2 in
    Root) apt-get -q -y purge ibverbs-utils ;;
    Runner)
        apt-get -q -y purge ibverbs-utils
        apt-get -q -y --no-install-recommends install sudo
        echo 'runner ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/runner ;;
    Python)
        apt-get -q -y --no-install-recommends install python3-venv
        runuser -u runner -- python3 -m venv /home/runner/venv ;;
    esac";

/// Types the first command of the file `commands`.
const INSTALL: &str = "cd \"$1\"; eval \"$(sed -n 1p commands)\"";
/// Types the second command, and the third when the server listens on its port, 18515.
const TALK: &str = "
    cd \"$1\"
    eval \"$(sed -n 2p commands)\"
    server=$!
    until grep -q ':4853 ' /proc/net/tcp; do kill -0 $server; sleep 0.05; done
    eval \"$(sed -n 3p commands)\"
    wait $server
    echo both ended";

/// The rows of the table: the first cell, and the commands in the others.
fn rows(text: &str) -> Vec<(String, Vec<String>)> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let begins = |line: &&str| cells(line).first().is_some_and(|cell| cell == TITLE);
    let lines = text.lines().skip_while(|line| !begins(line)).skip(2);
    let table = lines.take_while(|line| line.starts_with('|')).map(|line| {
        let mut cells = cells(line).into_iter();
        let first = cells.next().unwrap_or_default();
        (first, cells.map(|cell| cell.trim_matches('`').to_owned()).collect())
    });
    table.collect()
}

pub(super) fn check(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let rows = rows(&read(&bench.paths.root.join("README.md"))?);
    let named: Vec<_> = rows.iter().map(|(first, _)| first.as_str()).collect();
    let known: Vec<_> = ROOMS.iter().map(|(first, _)| *first).collect();
    let has_three = rows.iter().all(|(_, commands)| commands.len() == 3);
    tally.record(
        "each row of README.md has three commands and a room",
        (named == known && has_three).then_some(()).ok_or_else(|| format!("{rows:?}")),
    );
    if !process::is_root() {
        tally.skip("the rows of README.md", "only root can make rooms (debootstrap, chroot)");
        return Ok(());
    }
    packages::ensure(&[packages::CHROOT], &bench.progress)?;
    dist::build(&bench.paths, &bench.progress)?;
    for (first, commands) in rows {
        let room = ROOMS.iter().find(|(name, _)| *name == first);
        let typist = match room.map(|(_, typist)| *typist) {
            Some(Ok(typist)) => typist,
            Some(Err(why)) => {
                tally.skip(&first, why);
                continue;
            }
            None => continue,
        };
        let releases = if typist == Typist::Root { &RELEASES[..] } else { &RELEASES[..1] };
        for release in releases {
            let name = format!("{first}: {release}");
            bench.step(&name);
            match debian(bench, release) {
                Ok(pristine) => {
                    tally.record(&name, type_row(bench, &pristine, typist, &commands));
                }
                Err(why) => tally.skip(&name, &why),
            }
        }
    }
    Ok(())
}

/// Types the commands of a row in a copy of a small Debian.
fn type_row(
    bench: &Bench,
    pristine: &Path,
    typist: Typist,
    commands: &[String],
) -> Result<(), String> {
    let root = bench.scratch.folder("room", 0o755)?.join("debian");
    let copy = Job::new("cp").args(["-a", "--reflink=auto"]).arg(pristine).arg(&root);
    copy.succeed(&bench.scratch, LIMIT)?;
    let work = root.join(FOLDER);
    fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    scratch::copy_tree(&bench.paths.target.join("dist"), &work)?;
    let list = work.join("commands");
    let text = commands.join("\n") + "\n";
    fs::write(&list, text).map_err(|e| format!("{}: {e}", list.display()))?;
    let prepare = Room { bench, root: &root, typist: Typist::Root, has_network: true };
    let user = format!("{typist:?}");
    prepare.run(PREPARE, &[&user])?;
    let room = Room { bench, root: &root, typist, has_network: true };
    if typist == Typist::Rootless {
        let user = bench.user.unwrap_or(crate::NOBODY);
        Job::new("chown")
            .arg("-R")
            .arg(format!("{}:{}", user.uid, user.gid))
            .arg(&work)
            .succeed(&bench.scratch, LIMIT)?;
    }
    room.run(INSTALL, &[])?;
    let done = Room { has_network: false, ..room }.run(TALK, &[])?;
    let is_right = done.contains("iters in") && done.contains("both ended");
    is_right.then_some(()).ok_or(done)
}

/// A Debian below a folder, and the user of its commands.
struct Room<'a> {
    bench: &'a Bench,
    root: &'a PathBuf,
    typist: Typist,
    /// False: the commands have only a loopback interface of their own, so the port is free.
    has_network: bool,
}

impl Room<'_> {
    /// Runs a script in the room, and returns what the script prints.
    fn run(&self, script: &str, arguments: &[&str]) -> Result<String, String> {
        // The namespaces end with their mounts and processes.
        let mut namespaces = vec!["--mount", "--pid", "--fork", "--kill-child"];
        if self.typist == Typist::Rootless {
            namespaces.extend(["--user", "--map-root-user"]);
        }
        let mut enter = String::new();
        if !self.has_network {
            namespaces.push("--net");
            enter.push_str("ip link set lo up; ");
        }
        enter.push_str(
            "mount --rbind /dev \"$1/dev\"; mount -t tmpfs tmpfs \"$1/dev/shm\"; \
             mount -t proc proc \"$1/proc\"; \
             mount --rbind /sys \"$1/sys\"; root=$1; shift; exec chroot \"$root\" \"$@\"",
        );
        let job = Job::new("unshare").args(namespaces).args(["--", "sh", "-ec", &enter, "sh"]);
        let job = job.arg(self.root);
        let job = match self.typist {
            Typist::Root | Typist::Rootless => job,
            Typist::Runner => job.args(["runuser", "-u", "runner", "--"]),
            Typist::Python => job
                .args(["runuser", "-u", "runner", "--", "env"])
                .arg(format!("PATH={PYTHON}:{PATH}")),
        };
        let job = job.args(["sh", "-ec", script, "sh"]).arg(format!("/{FOLDER}")).args(arguments);
        let job = job.env("LC_ALL", "C.UTF-8").env("PATH", PATH).env("LD_LIBRARY_PATH", "");
        let user: Option<User> = match self.typist {
            Typist::Rootless => Some(self.bench.user.unwrap_or(crate::NOBODY)),
            _ => None,
        };
        let done = job.user(user).run(&self.bench.scratch, LIMIT)?;
        if done.ok() { Ok(done.stdout) } else { Err(done.report("in the room")) }
    }
}

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The programs of the virtual environment.
const PYTHON: &str = "/home/runner/venv/bin";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_a_row_are_those_of_the_document() {
        let text =
            "x\n\n| on | install | server |\n|---|---|---|\n| a `b` | `c *.deb` | `d &` |\n\nend";
        let commands = vec!["c *.deb".to_owned(), "d &".to_owned()];
        assert_eq!(rows(text), [("a `b`".to_owned(), commands)]);
        assert!(rows("no table").is_empty());
    }
}
