//! Two network namespaces in two processes, with a cable (veth) between them. Unprivileged where
//! user namespaces are allowed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// The environment variable with the role of the process.
const ROLE: &str = "FERROVERBS_NET_TEST_ROLE";

/// Runs `near` and `far` in two namespaces; the test named `test` must call only this function.
/// Where namespaces are refused, a message says so.
pub(crate) fn pair(test: &str, near: impl FnOnce(RemoteProcess), far: impl FnOnce()) {
    match std::env::var(ROLE).as_deref() {
        Ok("near") => near(RemoteProcess::start(test)),
        Ok(_) => {
            println!("ready");
            wait_for_line();
            run("ip link set lo up");
            far();
        }
        Err(_) => {
            let refused = Command::new("unshare").args(["-Urn", "ip", "link"]).output();
            let why = match refused {
                Ok(output) if output.status.success() => None,
                Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
                Err(error) => Some(format!("unshare: {error}")),
            };
            if let Some(why) = why {
                println!("skipped: no namespaces of our own here: {why}");
                return;
            }
            let mut again = Command::new("unshare");
            again.arg("-Urn").args(again_as(test)).env(ROLE, "near");
            let status = again.status().expect("unshare");
            assert!(status.success(), "{test} in a namespace: {status}");
        }
    }
}

fn again_as(test: &str) -> Vec<String> {
    let program = std::env::current_exe().expect("our file");
    let program = program.to_str().expect("a name").to_owned();
    vec![program, test.into(), "--exact".into(), "--nocapture".into()]
}

/// Waits for a line of the near process.
pub(crate) fn wait_for_line() {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).expect("stdin");
    assert_ne!(read, 0, "the other process is gone");
}

/// Runs a command of several words.
pub(crate) fn run(command: &str) {
    assert!(try_run(command), "{command}");
}

/// Runs a command of several words. Returns whether it succeeded.
pub(crate) fn try_run(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let status = Command::new(words.next().expect("a word")).args(words).status();
    status.is_ok_and(|status| status.success())
}

/// The process in the other namespace.
pub(crate) struct RemoteProcess {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl RemoteProcess {
    /// Starts the process, with `veth0` here and `veth1` there, both down and without addresses.
    fn start(test: &str) -> Self {
        let mut command = Command::new("unshare");
        command.arg("-n").args(again_as(test)).env(ROLE, "far");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut far = Self { child, output };
        far.wait_for("ready");
        run("ip link set lo up");
        run(&format!("ip link add veth0 type veth peer name veth1 netns {}", far.child.id()));
        far.tell("go");
        far
    }

    /// Waits until the other process prints a line with this ending. Returns the text before it.
    pub(crate) fn wait_for(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line).expect("a pipe");
            assert_ne!(read, 0, "the other process ended instead of saying {wanted:?}");
            if let Some(before) = line.trim_end().strip_suffix(wanted) {
                return before.trim_end().to_owned();
            }
            print!("far: {line}");
        }
    }

    /// Sends a line to the other process.
    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{line}").expect("the other process takes it");
    }

    /// Waits for a successful exit.
    pub(crate) fn finish(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("a process");
        assert!(status.success(), "the other process: {status}");
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends a word to the near process, and waits for its answer.
pub(crate) fn meet(word: &str) {
    println!("{word}");
    wait_for_line();
}

/// Brings an interface up, with these addresses.
pub(crate) fn configure(interface: &str, addresses: &[&str], mtu: u32) {
    for address in addresses {
        let nodad = if address.contains(':') { "nodad" } else { "" };
        run(&format!("ip addr add {address} dev {interface} {nodad}"));
    }
    run(&format!("ip link set {interface} mtu {mtu} up"));
}
