//! Attacks by a hostile member of the fabric (`providers/soft/hostile`) on unrelated programs.
//! docs/reference/threat-model.md states the permitted effects of each attack.

use crate::launch::{DataPath, LaunchSettings};
use crate::paths::Paths;
use crate::process::{ExitReason, Finished, Job, PAUSE, User};
use crate::progress::Progress;
use crate::scratch::{self, Scratch};
use ferroverbs_c_tests::Program;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A cold build on a slow machine fits.
const BUILD: Duration = Duration::from_secs(1200);
/// Time after the end of a victim's run until the victim counts as hung.
const GRACE: Duration = Duration::from_secs(120);
/// How long an attacker may take to join.
const JOINING: Duration = Duration::from_secs(60);
/// How often a victim runs at most until the attacker has met it. A victim that fails runs no more.
const RUNS_UNTIL_MET: u32 = 5;
/// Seconds of one attack of `soak --hostile`.
const SECONDS: u64 = 30;
/// For how long an attacker runs that is stopped when its victim has ended.
const UNTIL_STOPPED: u64 = 3600;

/// Which words the attacker writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttackReach {
    /// Its own segments: nothing between other processes suffers.
    Own,
    /// All its writable mappings: victims may lose data and connections, and nothing else.
    All,
}

impl AttackReach {
    const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::All => "all",
        }
    }
}

/// Who is attacked.
#[derive(Clone, Copy, Debug)]
pub enum Victim<'a> {
    /// Two processes that exchange data, and are connected to the attacker, too.
    AttackedPair,
    /// `random_all`, or any other checked C program, with its arguments.
    Program(&'a Program, &'a str),
}

/// One attack.
#[derive(Clone, Copy, Debug)]
pub struct Attack<'a> {
    /// Who is attacked.
    pub victim: Victim<'a>,
    /// Which words the attacker writes.
    pub reach: AttackReach,
    /// The victim's data path.
    pub path: DataPath,
    /// Repeats the attack.
    pub seed: u64,
    /// The victim's user, and the attacker's, if it is another one of the same group.
    pub users: (Option<User>, Option<User>),
    /// For how long, where that can be chosen.
    pub seconds: u64,
}

impl Attack<'_> {
    /// For reports.
    pub fn name(&self) -> String {
        let victim = match self.victim {
            Victim::AttackedPair => "two processes".to_string(),
            Victim::Program(program, args) => format!("{} {args}", program.name),
        };
        let other_user = if self.users.1.is_some() { ", by another user" } else { "" };
        let (path, reach, seed) = (self.path.name(), self.reach.name(), self.seed);
        format!("{} ({path}), reach {reach}{other_user}, seed {seed}", victim.trim_end())
    }
}

/// The result of an attack after which the victims were intact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survived {
    /// What victims and attacker did, for people.
    pub summary: String,
    /// True if the attacker did not end by itself and was killed, which is no defect of its
    /// victims.
    pub hung: bool,
}

/// What all attacks need.
#[derive(Debug)]
pub struct HostileRun<'a> {
    paths: &'a Paths,
    prefix: &'a Path,
    scratch: &'a Scratch,
    attacker: PathBuf,
    attacked_pair: PathBuf,
    launcher: PathBuf,
}

impl<'a> HostileRun<'a> {
    /// Builds attacker and victims. `prefix` is the staged tree that victims run over.
    pub fn new(paths: &'a Paths, prefix: &'a Path, scratch: &'a Scratch) -> crate::Result<Self> {
        let fail = |e: ferroverbs_c_tests::CompileError| e.to_string();
        let attacker = scratch.path().join("attacker");
        let built = build_attacker(paths, scratch)?;
        // A folder that any user can read.
        fs::copy(&built, &attacker).map_err(|e| format!("cannot copy {}: {e}", built.display()))?;
        scratch::set_mode(&attacker, 0o755)?;
        let attacked_pair =
            ferroverbs_c_tests::compile_attacked_pair(scratch.path()).map_err(fail)?;
        let launcher = ferroverbs_c_tests::compile_without_cma(scratch.path()).map_err(fail)?;
        Ok(Self { paths, prefix, scratch, attacker, attacked_pair, launcher })
    }

    /// Runs one; an error is what failed.
    pub fn run(&self, attack: &Attack<'_>) -> Result<Survived, String> {
        let (victims, other_user) = attack.users;
        let shared = other_user.is_some();
        let fabric = self.folder("fabric", victims, shared)?;
        let work = self.folder("work", victims, false)?;
        let over = LaunchSettings::new(self.prefix, &self.paths.target)
            .fabric(&fabric)
            .user(victims)
            .path(attack.path, &self.launcher);
        let group = victims.filter(|_| shared).map(|user| user.gid.to_string());
        let grouped = |job: Job| match &group {
            Some(group) => job.env("FERROVERBS_FABRIC_GROUP", group),
            None => job,
        };
        // The attacker is stopped when the victim has ended, if that cannot be known beforehand.
        let chosen = matches!(attack.victim, Victim::AttackedPair);
        let seconds = if chosen { attack.seconds + 1 } else { UNTIL_STOPPED };
        let attacker = over.clone().user(other_user.or(victims)).job(&self.attacker);
        let attacker = attacker
            .args([&attack.seed.to_string(), &seconds.to_string(), attack.reach.name()])
            .dir(self.scratch.path());
        let mut attacker = grouped(attacker).start(self.scratch)?;
        let begun = Instant::now();
        let slot = loop {
            let output = attacker.printed();
            let slot = output
                .lines()
                .find_map(|line| line.split_once("@slot "))
                .map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
            match slot {
                Some(slot) => break slot,
                None if attacker.ended() || begun.elapsed() > JOINING => {
                    let done = attacker.finish(Instant::now());
                    return Err(done.report("the attacker did not join"));
                }
                None => std::thread::sleep(PAUSE),
            }
        };
        let (seed, seconds) = (attack.seed.to_string(), attack.seconds.to_string());
        let job = match attack.victim {
            Victim::AttackedPair => over.own_job(&self.attacked_pair).args([
                &slot,
                &seconds,
                attack.reach.name(),
                &seed,
            ]),
            Victim::Program(program, args) => {
                let exe = ferroverbs_c_tests::compile(program, self.scratch.path())
                    .map_err(|e| e.to_string())?;
                over.own_job(exe).args(args.split_whitespace())
            }
        };
        let limit = Duration::from_secs(attack.seconds) + GRACE;
        // Messages about hostile or killed peers are expected.
        let job = grouped(job).env("FERROVERBS_QUIET", "1").dir(&work);
        let mut victim = job.run(self.scratch, limit)?;
        // A short program may be over before the attacker looks for new processes.
        for _ in 1..RUNS_UNTIL_MET {
            if chosen || !victim.ok() || was_met(&attacker.printed()) {
                break;
            }
            victim = job.run(self.scratch, limit)?;
        }
        if !chosen {
            attacker.kill();
        }
        let attacker = attacker.finish(Instant::now() + GRACE);
        let judged = judge(&victim, &attacker, chosen);
        judged.map_err(|why| {
            format!("{why}\n{}{}", victim.report("the victim"), attacker.report("the attacker"))
        })
    }

    fn folder(&self, stem: &str, user: Option<User>, shared: bool) -> Result<PathBuf, String> {
        let dir = self.scratch.folder(stem, if shared { 0o770 } else { 0o700 })?;
        if let Some(user) = user {
            std::os::unix::fs::chown(&dir, Some(user.uid), Some(user.gid))
                .map_err(|e| format!("cannot give {} away: {e}", dir.display()))?;
        }
        Ok(dir)
    }
}

/// `chosen`: the attacker was told when to end; otherwise it was killed when the victim had ended.
fn judge(victim: &Finished, attacker: &Finished, chosen: bool) -> Result<Survived, String> {
    if let Some(found) = attacker.stdout.lines().find(|line| line.contains("@secret")) {
        return Err(format!("the attacker could read what nobody sent: {found}"));
    }
    let hung = attacker.end == ExitReason::TimedOut;
    let stopped = !chosen && attacker.end == ExitReason::Signalled(libc::SIGKILL);
    let as_asked = hung || stopped || chosen && attacker.ok();
    if !as_asked {
        return Err("the attacker did not survive".into());
    }
    if !victim.ok() || !victim.stderr.is_empty() {
        return Err("the victim did not end well".into());
    }
    let output = |done: &Finished, mark: &str| {
        let mut lines = done.stdout.lines().rev();
        lines.find_map(|line| line.split_once(mark)).map(|(_, rest)| rest.to_string())
    };
    // At the end, or a second before it was killed.
    let did = output(attacker, "@done ").or_else(|| output(attacker, "@doing "));
    // Programs without knowledge of the attack are connected to each other only.
    let pieces =
        did.as_deref().is_some_and(|did| !did.contains(", 0 pieces to connections of ours"));
    if !was_met(&attacker.stdout) || chosen && !pieces {
        return Err("the attacker found nobody to attack".into());
    }
    let reported = hung.then(|| "the attacker hung, and was killed".to_string());
    let summary: Vec<String> =
        [output(victim, "ok: "), did, reported].into_iter().flatten().collect();
    Ok(Survived { summary: summary.join("; "), hung })
}

/// Whether the attacker's output says that it met a victim.
fn was_met(printed: &str) -> bool {
    let mut reported = printed.lines().filter(|line| line.contains("@do"));
    reported.any(|line| line.ends_with(" processes met") && !line.ends_with(" 0 processes met"))
}

/// Builds the attacker.
fn build_attacker(paths: &Paths, scratch: &Scratch) -> crate::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let done = Job::new(cargo)
        .args(["build", "--quiet", "--package", "ferroverbs-soft-hostile"])
        .arg("--message-format=json")
        .dir(&paths.root)
        .env("CARGO_TARGET_DIR", &paths.target)
        .env_remove("CARGO_MANIFEST_DIR")
        .run(scratch, BUILD)?;
    let found = done.stdout.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once("\"executable\":\"")?;
        rest.split_once('"').map(|(path, _)| PathBuf::from(path))
    });
    found.filter(|_| done.ok()).ok_or_else(|| done.report("the attacker cannot be built"))
}

/// `cargo xtask soak --hostile`: attacks of half a minute each, until the time is over.
pub fn soak(
    paths: &Paths,
    progress: &Progress,
    scratch: &Scratch,
    minutes: u64,
    first: u64,
) -> crate::Result<ExitCode> {
    progress.step("building the attacker");
    let stage = paths.stage();
    let camp = HostileRun::new(paths, &stage, scratch)?;
    let end = Instant::now() + Duration::from_secs(minutes.saturating_mul(60));
    let (mut runs, mut hung, mut failed) = (0u32, 0u32, Vec::new());
    let random_all = Program::named("random_all")?;
    for seed in first.. {
        let kind = u64::from(runs) / DataPath::ALL.len() as u64 % 3;
        let path = DataPath::ALL[runs as usize % DataPath::ALL.len()];
        if runs > 0 && Instant::now() >= end {
            break;
        }
        let drawn = format!("{seed} {}", SECONDS / 2);
        let (victim, reach) = match kind {
            0 => (Victim::AttackedPair, AttackReach::Own),
            1 => (Victim::AttackedPair, AttackReach::All),
            _ => (Victim::Program(random_all, &drawn), AttackReach::Own),
        };
        let attack = Attack { victim, reach, path, seed, users: (None, None), seconds: SECONDS };
        let name = attack.name();
        progress.step(&format!("{name} ({runs} before it, {} failed)", failed.len()));
        match camp.run(&attack) {
            Ok(stood) => {
                hung += u32::from(stood.hung);
                progress.note(&format!("{name}: {}", stood.summary));
            }
            Err(report) => {
                progress.note(&format!("FAILED {name}: {report}"));
                failed.push(name);
            }
        }
        runs += 1;
    }
    let did = format!("{runs} attacks from seed {first} ({hung} attackers had to be killed)");
    Ok(crate::soak::outcome(progress, &did, &failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(end: ExitReason, stdout: &str) -> Finished {
        let (line, stderr, stuck) = (String::new(), String::new(), String::new());
        Finished { line, end, stdout: stdout.into(), stderr, stuck, elapsed: Duration::ZERO }
    }

    const DID: &str = "@slot 3\n@doing 64 acts, 5 pieces to connections of ours, 0 to those of others, 2 processes met\n";
    const IDLE: &str = "@slot 3\n@done 64 acts, 0 pieces to connections of ours, 0 to those of others, 0 processes met\n";

    #[test]
    fn an_attacker_that_hung_is_told_apart_if_it_attacked() {
        let (well, ill) = (
            finished(ExitReason::Exited(0), "ok: 7 exchanges\n"),
            finished(ExitReason::Exited(1), ""),
        );
        let hung = finished(ExitReason::TimedOut, DID);
        let stood = judge(&well, &hung, true).unwrap();
        assert!(stood.hung && stood.summary.contains("hung") && stood.summary.contains("5 pieces"));
        assert!(judge(&ill, &hung, true).is_err(), "the victims are judged all the same");
        assert!(judge(&well, &finished(ExitReason::TimedOut, IDLE), true).is_err());
        assert!(judge(&well, &finished(ExitReason::TimedOut, "@slot 3\n"), true).is_err());
    }

    #[test]
    fn an_attack_that_did_nothing_or_found_too_much_fails() {
        let well = finished(ExitReason::Exited(0), "ok: 7 exchanges\n");
        assert!(judge(&well, &finished(ExitReason::Exited(0), IDLE), true).is_err());
        assert!(
            judge(&well, &finished(ExitReason::Exited(0), DID), true)
                .is_ok_and(|stood| !stood.hung)
        );
        assert!(judge(&well, &finished(ExitReason::Exited(101), DID), true).is_err());
        assert!(judge(&well, &finished(ExitReason::Signalled(libc::SIGKILL), DID), true).is_err());
        let killed = |stdout| finished(ExitReason::Signalled(libc::SIGKILL), stdout);
        assert!(judge(&well, &killed("@slot 3\n"), false).is_err());
        assert!(
            judge(&well, &killed(&IDLE.replace(" 0 processes", " 2 processes")), false).is_ok()
        );
        let secret = format!("{DID}@secret in chunk memory\n");
        assert!(judge(&well, &finished(ExitReason::Exited(3), &secret), true).is_err());
    }
}
