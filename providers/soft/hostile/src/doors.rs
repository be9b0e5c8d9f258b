//! Attacks on the handshake: invalid messages and wrong descriptors at the sockets of other
//! processes. `Attacker::run_action` calls these functions with a victim.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use crate::{Attacker, Victim};
use soft_sys::dir::{Dir, Links};
use soft_sys::eventfd::EventFd;
use soft_sys::memfd::Memfd;
use soft_sys::unix::Socket;

impl Attacker {
    /// Connects to the socket of the victim and sends a message.
    pub(super) fn send_socket_message(&mut self, victim: &Victim) {
        let directory = self.fabric.directory().to_path_buf();
        let name = PathBuf::from(format!("{}.sock", victim.view.peer().slot));
        let Ok(dir) = Dir::open(&directory, Links::Follow) else { return };
        let Ok(socket) = Socket::connect(&dir, &directory.join(&name), &name) else { return };
        let mut bytes: Vec<u8> = (0..64).map(|_| self.random.next() as u8).collect();
        if !self.random.one_in(4) {
            // Magic, version and kind of a message, and possibly the slot of a member.
            bytes.fill(0);
            bytes[..8].copy_from_slice(b"FVfabric");
            bytes[8] = if self.random.one_in(8) { self.random.next() as u8 } else { 5 };
            bytes[12] = self.random.below(6) as u8;
            let slots = [self.slot(), victim.view.peer().slot, self.random.next() as u16];
            let slot = slots[self.random.below(3)];
            bytes[16..18].copy_from_slice(&slot.to_le_bytes());
            for word in bytes[24..56].chunks_exact_mut(8) {
                word.copy_from_slice(&self.random.extreme().to_le_bytes());
            }
        }
        let len = if self.random.one_in(8) { self.random.below(65) } else { 64 };
        let (Ok(file), Ok(event)) = (Memfd::create(c"hostile", 4096), EventFd::new()) else {
            return;
        };
        let all: [BorrowedFd<'_>; 4] = [file.as_fd(), event.as_fd(), dir.as_fd(), socket.as_fd()];
        let count = self.random.below(5);
        let fds: Vec<BorrowedFd<'_>> = (0..count).map(|_| all[self.random.below(4)]).collect();
        let _ = socket.send(&bytes[..len], &fds);
        if self.random.one_in(2) {
            let _ = socket.send(&bytes, &[]);
        }
    }
}
