//! A child process for the tests: a second run of the test program that runs only [`entry`].
//!
//! The child reads commands from standard input, and answers in lines that begin with `@`.

use std::{
    env,
    io::{BufRead, BufReader, Write, stdin},
    path::Path,
    process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::AtomicBool,
};

use super::*;

/// A running child process, killed and reaped on drop.
pub(super) struct Child {
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Child {
    pub(super) fn start() -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["fabric::tests::child::entry", "--exact", "--nocapture", "--test-threads=1"])
            .env(MARK, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    /// Starts a child that joins the fabric of `config`.
    pub(super) fn joined(config: &FabricConfig) -> (Self, u16) {
        let mut child = Self::start();
        let slot = child.request(&join_command(config)).parse().unwrap();
        (child, slot)
    }

    pub(super) fn pid(&self) -> libc::pid_t {
        self.process.id().try_into().unwrap()
    }

    pub(super) fn send_command(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    pub(super) fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child has died");
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim_end().into();
            }
        }
    }

    pub(super) fn request(&mut self, command: &str) -> String {
        self.send_command(command);
        self.answer()
    }

    /// The answer to "switches" once the child's service thread is idle. The thread must sleep,
    /// rather than wait for a processor, for longer than its pause before it accepts again.
    pub(super) fn settled(&mut self) -> String {
        let (mut last, mut same) = (String::new(), 0);
        for _ in 0..1000 {
            let now = self.request("switches");
            same = if now == last && now.starts_with("S ") { same + 1 } else { 0 };
            if same == 10 {
                return now;
            }
            last = now;
            thread::sleep(Duration::from_millis(20));
        }
        panic!("the thread never sleeps: {last}");
    }

    /// Stops all threads of the child.
    pub(super) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.pid());
        wait_until("all threads are stopped", || {
            std::fs::read_dir(&tasks).unwrap().all(|task| {
                let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
                status.lines().any(|line| line.starts_with("State:\tT"))
            })
        });
    }

    pub(super) fn signal(&self, signal: libc::c_int) {
        // SAFETY: plain integers; the process is our child and not reaped yet.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(super) fn join_command(config: &FabricConfig) -> String {
    let group = config.group.map_or("-".into(), |group| group.to_string());
    format!("join {} {} {group} {}", config.slots, config.cma, config.dir.display())
}

const MARK: &str = "FERROVERBS_TEST_CHILD";

/// Not a test: the main function of a child process.
#[test]
fn entry() {
    if env::var_os(MARK).is_none() {
        return;
    }
    let mut state = ChildState::default();
    for line in stdin().lines() {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split(' ').collect();
        let answer = state.run(&words);
        say(&answer);
    }
    // End without clean-up: the command "leave" is the orderly end.
    std::process::exit(0);
}

fn say(answer: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "@{answer}").and_then(|()| out.flush());
}

#[derive(Default)]
struct ChildState {
    fabric: Option<Arc<Fabric>>,
    recorder: Arc<Recorder>,
}

impl ChildState {
    fn fabric(&self) -> &Arc<Fabric> {
        self.fabric.as_ref().unwrap()
    }

    fn run(&mut self, words: &[&str]) -> String {
        let number = |index: usize| words[index].parse::<u32>().unwrap();
        match words[0] {
            "join" => self.join(words),
            "peer" => match self.fabric().peer(number(1) as u16) {
                Ok(peer) => format!("pid {} attach {}", peer.pid, peer.can_attach()),
                Err(error) => error.to_string(),
            },
            "put" => {
                let peer = self.fabric().peer(number(1) as u16).unwrap();
                put(peer.rings(), number(2) as usize, number(3) as u8);
                peer.kick();
                "done".into()
            }
            "get" => get(self.fabric().rings(), number(1) as usize).to_string(),
            "publish" => {
                put(self.fabric().tables(), number(1) as usize, number(2) as u8);
                "done".into()
            }
            "log" => self.recorder.with(|log| {
                format!("{} {} {}", log.joined.len(), log.dead.len(), log.refused.len())
            }),
            "deaths" => {
                let wanted = number(1) as usize;
                self.recorder.wait("death", |log| log.dead.len() >= wanted);
                "done".into()
            }
            "joins" => {
                let wanted = number(1) as usize;
                self.recorder.wait("joined", |log| log.joined.len() >= wanted);
                "done".into()
            }
            "forget" => {
                *self = Self::default();
                "done".into()
            }
            "switches" => switches(),
            "files" => limit_files(number(1) as usize),
            "become" => become_user(number(1), number(2)),
            "hold" => hold(number(1), &words[2..].join(" ")),
            "churn" => self.churn(words),
            "spin" => self.spin(number(1) as u16),
            "fork" => self.fork(),
            "fork-and-join" => self.fork_and_join(words),
            "leave" => {
                self.fabric().leave();
                "done".into()
            }
            other => panic!("unknown command {other}"),
        }
    }

    fn join(&mut self, words: &[&str]) -> String {
        let config = FabricConfig {
            slots: words[1].parse().unwrap(),
            cma: words[2].parse().unwrap(),
            group: words[3].parse().ok(),
            dir_is_ours: true,
            first_slot: Some(1),
            ..FabricConfig::new(words[4..].join(" "))
        };
        self.recorder = Arc::default();
        let handler = Arc::clone(&self.recorder) as Arc<dyn Handler>;
        match Fabric::join(config, LEN, LEN, handler) {
            Ok(fabric) => {
                let slot = fabric.slot();
                self.fabric = Some(fabric);
                slot.to_string()
            }
            Err(error) => error.to_string(),
        }
    }

    /// Joins, meets slot `words[5]` and leaves, `words[6]` times or until killed.
    fn churn(&mut self, words: &[&str]) -> String {
        let other: u16 = words[5].parse().unwrap();
        let rounds: usize = words[6].parse().unwrap();
        for _ in 0..rounds {
            let slot = self.join(&words[..5]);
            if slot.parse::<u16>().is_err() {
                return slot;
            }
            if other != 0 {
                match self.fabric().peer(other) {
                    Ok(peer) => peer.kick(),
                    Err(error) => return error.to_string(),
                }
            }
            self.fabric().leave();
        }
        "done".into()
    }

    /// Meets and kicks slot `other` for ever.
    fn spin(&self, other: u16) -> String {
        say("spinning");
        loop {
            if let Ok(peer) = self.fabric().peer(other) {
                peer.kick();
            }
        }
    }

    /// Forks a process that holds copies of all descriptors and sleeps.
    fn fork(&self) -> String {
        // SAFETY: the copy calls nothing but `pause` and `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: async-signal-safe calls that touch no memory of ours. The alarm ends the
                // copy if the test fails.
                unsafe {
                    libc::alarm(TEST_TIMEOUT.as_secs() as u32);
                    libc::pause();
                    libc::_exit(0)
                }
            }
            pid => pid.to_string(),
        }
    }

    /// Forks a process that drops its copy of the fabric, joins by itself, and meets its parent.
    fn fork_and_join(&mut self, words: &[&str]) -> String {
        let parent_slot = self.fabric().slot();
        // SAFETY: only this thread uses the fabric or allocates; the service thread sleeps, and
        // glibc keeps its allocator usable in the copy.
        match unsafe { libc::fork() } {
            0 => {
                let old = self.fabric.take().unwrap();
                let foreign = old.is_foreign();
                let refused = old.peer(parent_slot + 1).unwrap_err() == PeerError::Left;
                old.leave();
                drop(old);
                let slot = self.join(words);
                let parent = self.run(&["peer", &parent_slot.to_string()]);
                say(&format!("{foreign} {refused} {slot} {parent}"));
                self.fabric().leave();
                // SAFETY: ends the copy without the test program's clean-up.
                unsafe { libc::_exit(0) }
            }
            pid => {
                // SAFETY: waits for the copy just made; a NULL status is not written.
                unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
                "over".into()
            }
        }
    }
}

/// The state of the service thread and its number of voluntary context switches.
fn switches() -> String {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
        if read("comm").trim() == "fv-soft" {
            let status = read("status");
            let field = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name)).unwrap();
                line.split_whitespace().nth(1).unwrap().to_owned()
            };
            return format!("{} {}", field("State:"), field("voluntary_ctxt_switches:"));
        }
    }
    "no thread".into()
}

/// Limits the number of descriptors so that `spare` more can be opened.
fn limit_files(spare: usize) -> String {
    // SAFETY: queries a descriptor number, which may be closed.
    let is_free = |fd: &i32| unsafe { libc::fcntl(*fd, libc::F_GETFD) } < 0;
    let first_out_of_reach = (0..).filter(is_free).nth(spare).unwrap();
    let limit =
        libc::rlimit { rlim_cur: first_out_of_reach.try_into().unwrap(), rlim_max: HARD_LIMIT };
    // SAFETY: reads one `rlimit`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    "done".into()
}

/// A hard limit that every system grants, because some tests raise the soft limit again.
const HARD_LIMIT: u64 = 1024;

/// Locks a byte as a process does that is stopped while it joins.
fn hold(byte: u32, path: &str) -> String {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let locked = soft_sys::lock::try_lock(file.as_fd(), byte);
    std::mem::forget(file);
    format!("{locked:?}")
}

fn become_user(user: u32, group: u32) -> String {
    // SAFETY: plain integers and one live group id; this process only runs this command.
    let done = unsafe {
        libc::setgroups(1, &raw const group) == 0
            && libc::setgid(user) == 0
            && libc::setuid(user) == 0
    };
    done.to_string()
}

/// Whether this process may become another user.
pub(super) fn is_root() -> bool {
    process::user() == 0
}

/// Makes a path writable for all users, for children that become another user.
pub(super) fn open_up(path: &Path) {
    dir::set_path_mode(path, 0o777, None).unwrap();
}

/// A flag that a test thread and a handler share.
pub(super) type Flag = AtomicBool;
