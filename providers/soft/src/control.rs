//! The control thread: reads fault statements from the named pipe of `FERROVERBS_SOFT_CONTROL`
//! while the program runs. `port.rs` executes the statements, in the language of
//! `FERROVERBS_SOFT_FAULTS` (`soft_semantics::faults`).
//!
//! The thread sleeps in the kernel. Without the setting there is no thread.

use crate::config::{CONTROL_VARIABLE, control_path};
use crate::engine::adapter::Adapter;
use crate::engine::adapter::port::ControlThread;
use soft_semantics::faults::parse;
use soft_sys::eventfd::EventFd;
use soft_sys::fifo::Fifo;
use soft_sys::notice;
use soft_sys::poll;
use soft_sys::thread::spawn_quiet;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

const STACK: usize = 256 << 10;
/// Limit of a line; longer input is discarded.
const LONGEST: usize = 64 << 10;

/// Starts the thread if the environment names a pipe. An unusable pipe is reported in one line and
/// ignored.
pub(crate) fn start(adapter: &Arc<Adapter>) {
    let Some(path) = control_path() else { return };
    let listening = Fifo::open(&path).and_then(|fifo| {
        let stop = Arc::new(EventFd::new()?);
        let (ends, weak, from) = (Arc::clone(&stop), Arc::downgrade(adapter), path.clone());
        let thread = spawn_quiet("fv-control", STACK, move || listen(&fifo, &ends, &weak, &from))?;
        Ok(ControlThread { stop, thread })
    });
    match listening {
        Ok(control) => *adapter.port.control.lock() = Some(control),
        Err(errno) => notice!(
            "{CONTROL_VARIABLE}={}: {errno}; name a pipe of this user's, or a file that is not there in a folder that is",
            path.display()
        ),
    }
}

/// Ends the thread.
pub(crate) fn stop(adapter: &Adapter) {
    let Some(control) = adapter.port.control.lock().take() else { return };
    if adapter.fabric.is_foreign() {
        // In a forked child the thread does not exist, and the pipe belongs to the parent.
        std::mem::forget(control);
        return;
    }
    control.stop.notify();
    control.thread.join();
}

fn listen(fifo: &Fifo, stop: &EventFd, adapter: &Weak<Adapter>, path: &Path) {
    let mut text = vec![];
    loop {
        let ready = match poll::wait([stop.as_fd(), fifo.as_fd()], None) {
            Ok([true, _]) => break,
            Ok([false, ready]) => ready,
            Err(_) => {
                // The kernel is out of memory for a moment.
                std::thread::sleep(Duration::from_millis(1));
                false
            }
        };
        if !ready {
            continue;
        }
        fifo.read(&mut text);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let Some(adapter) = adapter.upgrade() else { break };
            run_line(&adapter, &String::from_utf8_lossy(&line), path);
        }
        if text.len() > LONGEST {
            text.clear();
        }
    }
    fifo.remove();
}

fn run_line(adapter: &Adapter, line: &str, path: &Path) {
    match parse(line) {
        Ok(statements) => adapter.execute_statements(&statements),
        Err(why) => {
            notice!("{}: {why}; the line is ignored", path.display());
        }
    }
}
