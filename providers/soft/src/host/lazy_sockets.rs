//! The sockets of a process, opened by the first user.
//! Held by the wire (`wire`).
#![forbid(unsafe_code)]

use super::port_claim::PortHolder;
use super::sockets::Sockets;
use super::unavailable::WireUnavailable;
use cface::sync::Mutex;
use soft_sys::Errno;
use std::sync::OnceLock;

/// The sockets, or the error of the last attempt to open them.
#[derive(Debug, Default)]
pub(super) struct LazySockets {
    /// Boxed: the caller that opens the sockets makes them on its stack.
    sockets: OnceLock<Box<Sockets>>,
    /// Held during an attempt.
    error: Mutex<Option<WireUnavailable>>,
}

impl LazySockets {
    /// The sockets, if open.
    #[inline]
    pub(super) fn get(&self) -> Option<&Sockets> {
        self.sockets.get().map(|sockets| &**sockets)
    }

    /// The sockets; `open` makes them if needed, and `opened` runs after that. Without a temporary
    /// reason a failed attempt is not repeated.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub(super) fn get_or_open(
        &self,
        open: impl FnOnce() -> Result<Box<Sockets>, WireUnavailable>,
        opened: impl FnOnce(),
    ) -> Result<&Sockets, Errno> {
        if let Some(sockets) = self.get() {
            return Ok(sockets);
        }
        let mut error = self.error.lock();
        // Another thread may have opened the sockets while this thread waited for the lock.
        if let Some(sockets) = self.get() {
            return Ok(sockets);
        }
        if let Some(why) = error.as_ref()
            && !why.is_temporary()
        {
            return Err(why.errno);
        }
        match open() {
            Ok(sockets) => {
                *error = None;
                let sockets = self.sockets.get_or_init(|| sockets);
                opened();
                Ok(sockets)
            }
            Err(why) => Err(error.insert(why).errno),
        }
    }

    /// The process of another fabric that prevents the opening.
    pub(super) fn port_holder(&self) -> Option<PortHolder> {
        self.error.lock().as_ref()?.holder.clone()
    }
}
