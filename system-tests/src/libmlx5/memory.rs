//! The memory of the program, read and written over a socket while the program waits for an answer.

use super::line::{from_hex, to_hex};
use emulated_mlx5::QueueBytes;
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The connection to the program.
#[derive(Debug)]
pub(super) struct Remote {
    stream: RefCell<BufReader<UnixStream>>,
    /// The first failure of an access.
    failure: RefCell<Option<String>>,
}

impl Remote {
    /// A connection on which each line arrives within `limit`.
    pub(super) fn new(stream: UnixStream, limit: Duration) -> Result<Self, String> {
        stream.set_read_timeout(Some(limit)).map_err(|e| format!("a socket: {e}"))?;
        let stream = RefCell::new(BufReader::new(stream));
        Ok(Self { stream, failure: RefCell::new(None) })
    }

    /// The next line; None when the program has ended.
    pub(super) fn line(&self) -> Result<Option<String>, String> {
        let mut line = String::new();
        match self.stream.borrow_mut().read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(line.trim_end().to_owned())),
            Err(e) => Err(format!("the program's answer: {e}")),
        }
    }

    /// Sends a line.
    pub(super) fn say(&self, line: &str) -> Result<(), String> {
        let mut stream = self.stream.borrow_mut();
        writeln!(stream.get_mut(), "{line}").map_err(|e| format!("to the program: {e}"))
    }

    fn requested(&self, line: &str) -> Result<String, String> {
        self.say(line)?;
        self.line()?.ok_or_else(|| "the program ended".to_owned())
    }

    /// The bytes at an address; zeros after a failure, which [`Remote::check`] tells.
    pub(super) fn read(&self, address: u64, into: &mut [u8]) {
        let found = self
            .requested(&format!("read {address:x} {:x}", into.len()))
            .and_then(|text| from_hex(&text))
            .and_then(|bytes| {
                if bytes.len() == into.len() { Ok(bytes) } else { Err("a short read".to_owned()) }
            });
        match found {
            Ok(bytes) => into.copy_from_slice(&bytes),
            Err(error) => {
                into.fill(0);
                self.failure.borrow_mut().get_or_insert(error);
            }
        }
    }

    /// Stores bytes at an address.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
        let done = self.requested(&format!("write {address:x} {}", to_hex(bytes)))?;
        if done == "ok" { Ok(()) } else { Err(format!("a write: {done}")) }
    }

    /// The first failure of a read, as an error.
    pub(super) fn check(&self) -> Result<(), String> {
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }
}

/// A buffer of the program, whose reads beyond its end are a failure.
#[derive(Debug)]
pub(super) struct Buffer<'a> {
    /// The connection.
    pub(super) remote: &'a Remote,
    /// Address of the first byte.
    pub(super) address: u64,
    /// Bytes.
    pub(super) len: usize,
}

impl QueueBytes for Buffer<'_> {
    fn read(&self, offset: usize, into: &mut [u8]) {
        if offset + into.len() > self.len {
            let error = format!("a read of {} bytes at {offset} of {}", into.len(), self.len);
            self.remote.failure.borrow_mut().get_or_insert(error);
            into.fill(0);
            return;
        }
        self.remote.read(self.address + offset as u64, into);
    }
}
