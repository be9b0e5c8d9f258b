//! External programs with a time limit. Outputs go to files, so no pipe needs draining. Each
//! program has its own process group, which is killed as a whole.
//!
//! Map of this file: `Job`, a command that can be started; `Running`, a started command; `End` and
//! `Finished`, how it ended and what it printed; `quote`, for a shell.

use crate::scratch::Scratch;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A command that can be started any number of times.
#[derive(Clone, Debug)]
pub struct Job {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    dir: Option<PathBuf>,
    user: Option<User>,
}

/// A user to become; only root can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Numeric user id.
    pub uid: u32,
    /// Numeric group id.
    pub gid: u32,
}

impl Job {
    /// A command without arguments.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_os_string(),
            args: Vec::new(),
            env: Vec::new(),
            dir: None,
            user: None,
        }
    }

    /// Appends an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_os_string());
        self
    }

    /// Appends arguments.
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_os_string()));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_os_string(), Some(value.as_ref().to_os_string())));
        self
    }

    /// Removes an environment variable.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_os_string(), None));
        self
    }

    /// Sets the working directory.
    pub fn dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_path_buf());
        self
    }

    /// Runs as another user if one is given.
    pub fn user(mut self, user: Option<User>) -> Self {
        self.user = user;
        self
    }

    /// The same command, started by `launcher` (which executes its arguments).
    pub fn under(mut self, launcher: &Path) -> Self {
        let program = std::mem::replace(&mut self.program, launcher.as_os_str().to_os_string());
        self.args.insert(0, program);
        self
    }

    /// The line that a person would type.
    pub fn line(&self) -> String {
        let mut words = Vec::new();
        if let Some(user) = self.user {
            words.push(format!("setpriv --reuid={} --regid={} --clear-groups", user.uid, user.gid));
        }
        if !self.env.is_empty() {
            if self.user.is_some() || self.env.iter().any(|(_, v)| v.is_none()) {
                words.push("env".into());
            }
            for (name, value) in &self.env {
                let name = name.to_string_lossy();
                words.push(match value {
                    Some(v) => format!("{name}={}", quote(&v.to_string_lossy())),
                    None => format!("-u {name}"),
                });
            }
        }
        words.push(quote(&self.program.to_string_lossy()));
        words.extend(self.args.iter().map(|a| quote(&a.to_string_lossy())));
        words.join(" ")
    }

    /// Starts it.
    pub fn start(&self, scratch: &Scratch) -> crate::Result<Running> {
        let fail = |e: std::io::Error| format!("cannot run `{}`: {e}", self.line());
        let (out, err) = (scratch.fresh("out"), scratch.fresh("err"));
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(File::create(&out).map_err(fail)?)
            .stderr(File::create(&err).map_err(fail)?)
            .process_group(0);
        for (name, value) in &self.env {
            match value {
                Some(v) => command.env(name, v),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        if let Some(user) = self.user {
            command.gid(user.gid).uid(user.uid);
        }
        // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system
        // call with constant arguments, without access to the parent's memory.
        unsafe {
            command.pre_exec(|| {
                // The child is killed when this process ends, even by a kill.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().map_err(fail)?;
        Ok(Running { child, line: self.line(), out, err, start: Instant::now() })
    }

    /// Starts it and waits, at most `limit`.
    pub fn run(&self, scratch: &Scratch, limit: Duration) -> crate::Result<Finished> {
        Ok(self.start(scratch)?.finish(Instant::now() + limit))
    }

    /// As `run`, for a command whose output is of use only if it succeeds.
    ///
    /// # Errors
    /// The report of a command that does not exit with status 0.
    pub fn succeed(&self, scratch: &Scratch, limit: Duration) -> crate::Result<Finished> {
        let done = self.run(scratch, limit)?;
        let name = Path::new(&self.program).file_name().unwrap_or(&self.program);
        if done.ok() { Ok(done) } else { Err(done.report(&name.to_string_lossy())) }
    }
}

/// A started command.
#[derive(Debug)]
pub struct Running {
    child: Child,
    line: String,
    out: PathBuf,
    err: PathBuf,
    start: Instant,
}

impl Running {
    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        // An error means that the child no longer exists.
        self.child.try_wait().map_or(true, |status| status.is_some())
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended, and not well.
    pub fn failed(&mut self) -> bool {
        self.child.try_wait().map_or(true, |status| status.is_some_and(|status| !status.success()))
    }

    /// The standard error so far.
    pub fn complained(&self) -> String {
        read(&self.err)
    }

    /// Whether a process in its network namespace listens on `port`.
    pub fn listens_on(&self, port: u16) -> bool {
        crate::sockets::listening_at(&format!("/proc/{}/net", self.child.id()), port)
    }

    /// What it printed so far.
    pub fn printed(&self) -> String {
        read(&self.out)
    }

    /// Sends SIGKILL to the program and its process group.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.child.kill();
    }

    /// Stops the program and its process group, as a debugger does, or continues them.
    pub fn stop(&self, on: bool) {
        self.signal(if on { libc::SIGSTOP } else { libc::SIGCONT });
    }

    fn signal(&self, signal: libc::c_int) {
        if let Ok(pid) = libc::pid_t::try_from(self.child.id()) {
            // SAFETY: no memory is involved. The group is the child's own (`process_group(0)`); its
            // id cannot be given to another group while a member of it lives.
            unsafe { libc::kill(-pid, signal) };
        }
    }

    /// Waits until `deadline`, then kills.
    pub fn finish(mut self, deadline: Instant) -> Finished {
        // A program without time is ended on purpose, and needs no report.
        let waits = Instant::now() < deadline;
        let mut stuck = String::new();
        let end = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break ExitReason::of(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Ok(None) => {
                    if waits {
                        stuck = crate::stuck::describe(self.child.id());
                    }
                    self.kill();
                    let _ = self.child.wait();
                    break ExitReason::TimedOut;
                }
                Err(_) => break ExitReason::TimedOut,
            }
        };
        let elapsed = self.start.elapsed();
        // Remaining helpers would hold files and ports.
        self.kill();
        let finished = Finished {
            line: std::mem::take(&mut self.line),
            end,
            stdout: read(&self.out),
            stderr: read(&self.err),
            stuck,
            elapsed,
        };
        let _ = fs::remove_file(&self.out);
        let _ = fs::remove_file(&self.err);
        finished
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// How often a waiting loop looks.
pub const PAUSE: Duration = Duration::from_millis(3);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// It returned this status.
    Exited(i32),
    /// This signal killed it.
    Signalled(i32),
    /// The program was killed at its time limit.
    TimedOut,
}

impl ExitReason {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signalled(signal),
            (None, None) => Self::TimedOut,
        }
    }
}

impl std::fmt::Display for ExitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit status {code}"),
            Self::Signalled(signal) => write!(f, "killed by signal {signal}"),
            Self::TimedOut => write!(f, "killed at its time limit"),
        }
    }
}

/// A command that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command line that repeats the run.
    pub line: String,
    /// How it ended.
    pub end: ExitReason,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
    /// The state of its threads at the time limit; empty if it ended earlier.
    pub stuck: String,
    /// From start to end.
    pub elapsed: Duration,
}

impl Finished {
    /// Whether the program ended with status 0.
    pub fn ok(&self) -> bool {
        self.end == ExitReason::Exited(0)
    }

    /// Whether the program exited with status 0 and printed all of these words.
    ///
    /// # Errors
    /// The first words that are missing, and the report of the run.
    pub fn expect(&self, words: &[&str]) -> crate::Result<()> {
        match words.iter().find(|words| !self.stdout.contains(**words)) {
            _ if !self.ok() => Err(self.report("the command")),
            Some(missing) => Err(self.report(&format!("the output has no {missing:?}"))),
            None => Ok(()),
        }
    }

    /// Everything that a person needs to see of a failure.
    pub fn report(&self, who: &str) -> String {
        let mut text = format!("{who}: {} ({:.1} s)\n", self.end, self.elapsed.as_secs_f64());
        text.push_str(&format!("  $ {}\n", self.line));
        for (name, content) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            let lines: Vec<_> = content.lines().collect();
            if lines.is_empty() {
                continue;
            }
            text.push_str(&format!("  last lines of {name}:\n"));
            for line in &lines[lines.len().saturating_sub(TAIL)..] {
                text.push_str(&format!("    {line}\n"));
            }
        }
        if !self.stuck.is_empty() {
            text.push_str("  what its threads did:\n");
            self.stuck.lines().for_each(|line| text.push_str(&format!("    {line}\n")));
        }
        text
    }
}

const TAIL: usize = 40;

fn read(path: &Path) -> String {
    fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
}

/// A word as a shell needs it.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Whether we are root.
pub fn is_root() -> bool {
    // SAFETY: takes no arguments, touches no memory, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_killed_at_its_limit() {
        let scratch = Scratch::new().unwrap();
        let job = Job::new("sh").args(["-c", "echo begun; sleep 1000 & wait"]);
        let done = job.run(&scratch, Duration::from_millis(300)).unwrap();
        assert_eq!(done.end, ExitReason::TimedOut);
        assert_eq!(done.stdout, "begun\n");
        let stuck: Vec<&str> =
            done.stuck.lines().filter(|line| line.starts_with("process ")).collect();
        assert!(stuck.iter().any(|line| line.contains(" sleep: state S")), "{}", done.stuck);
        assert!(done.report("it").contains("what its threads did"));
    }

    #[test]
    fn status_outputs_and_environment_are_kept_apart() {
        let scratch = Scratch::new().unwrap();
        let job = Job::new("sh").args(["-c", "echo $A; echo no >&2; exit 3"]).env("A", "yes");
        let done = job.run(&scratch, Duration::from_secs(10)).unwrap();
        assert_eq!(done.end, ExitReason::Exited(3));
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("yes\n", "no\n"));
        assert_eq!(done.line, "A=yes sh -c 'echo $A; echo no >&2; exit 3'");
        assert!(done.expect(&["yes"]).unwrap_err().contains("the command: exit status 3"));
        let good = Finished { end: ExitReason::Exited(0), ..done };
        assert_eq!(good.expect(&["ye", "s\n"]), Ok(()));
        assert!(good.expect(&["yes", "no"]).unwrap_err().contains("the output has no \"no\""));
        let refused = job.succeed(&scratch, Duration::from_secs(10)).unwrap_err();
        assert!(refused.starts_with("sh: exit status 3"), "{refused}");
    }
}
