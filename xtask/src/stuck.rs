//! The state of the threads of a command that exceeded its time limit, for the report.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// How long a debugger may take for one process, in seconds.
const DEBUGGER: &str = "20";
/// Frames of each thread.
const FRAMES: &str = "thread apply all backtrace 12";

/// A line for each thread of each process in process group `group`, with the place where the kernel
/// waits; and, with gdb(1), the stacks.
pub fn describe(group: u32) -> String {
    let mut text = String::new();
    for pid in members(group) {
        let mut tasks = numbers(&Path::new("/proc").join(pid.to_string()).join("task"));
        tasks.sort_unstable();
        for task in tasks {
            text.push_str(&format!("{}\n", thread(pid, task)));
        }
        text.push_str(&stacks(pid));
    }
    text
}

/// One thread: name, state, CPU time, system call, and the place where the kernel waits.
fn thread(pid: u32, task: u32) -> String {
    let folder = Path::new("/proc").join(pid.to_string()).join("task").join(task.to_string());
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let stat = read("stat");
    // The name may hold anything, blanks and brackets, too.
    let (name, rest) = stat.rsplit_once(')').unwrap_or_default();
    let name = name.split_once('(').map_or("", |(_, name)| name);
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or("?");
    let (state, user, system) = (field(0), field(11), field(12));
    let (call, place) = (read("syscall"), read("wchan"));
    let call = call.split_whitespace().next().unwrap_or("?");
    format!(
        "process {pid} thread {task} {name}: state {state}, {user}+{system} ticks, call {call}, at {place}"
    )
}

/// The stacks of a process; empty without a debugger.
fn stacks(pid: u32) -> String {
    let pid = pid.to_string();
    let args = ["-k", "5", DEBUGGER, "gdb", "--batch", "-nx", "-p", &pid, "-ex", FRAMES];
    let done = Command::new("timeout").args(args).stdin(Stdio::null()).output();
    let Ok(done) = done else { return String::new() };
    let text = String::from_utf8_lossy(&done.stdout);
    let telling = text.lines().filter(|line| line.starts_with(['#', 'T']));
    telling.map(|line| format!("{line}\n")).collect()
}

/// The processes of a group.
fn members(group: u32) -> Vec<u32> {
    let group = group.to_string();
    let is_in = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(2) == Some(group.as_str())
    };
    let mut members = numbers(Path::new("/proc"));
    members.retain(is_in);
    members.sort_unstable();
    members
}

/// The entries of a folder that are numbers.
fn numbers(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
