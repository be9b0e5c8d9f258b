//! The processes of the host that share a device, by the extension of the device's plugin
//! (`abi::ferroverbs_plugin_ext`). The plugin knows the numbers and ends of the processes.

use crate::sys::descriptors;
use crate::sys::objects::Context;
use abi::*;
use cface::Errno;
use cface::dl;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Once;

/// The extension of the plugin that announced a device; `None` for a device of the kernel. A file
/// in sysfs proves nothing: `ferroverbs run` shows announced devices in sysfs too.
///
/// # Safety
/// `device` is a live device of libibverbs.
pub(super) unsafe fn extension(device: *mut ibv_device) -> Option<ferroverbs_plugin_ext> {
    // SAFETY: libibverbs lists the first members of `verbs_device` only, in all its releases.
    let ops = unsafe { (*device.cast::<verbs_device>()).ops };
    let table = dl::symbol_beside(ops.cast(), PLUGIN_EXT_SYMBOL)?;
    // SAFETY: the type of the symbol, in a plugin that is never unloaded.
    let table = unsafe { ferroverbs_plugin_ext::adopt(table.cast()) };
    // A plugin may have devices of the kernel too, by other operations.
    (table.device_ops == ops && table.announce.is_some()).then_some(table)
}

/// The processes that share an open device.
#[derive(Debug)]
pub(crate) struct Processes {
    context: Context,
    is_process: unsafe extern "C" fn(*mut ibv_context, c_int) -> c_int,
    watch: unsafe extern "C" fn(*mut ibv_context, c_int) -> c_int,
    /// The number of this process, at least 1.
    number: u32,
}

impl Processes {
    /// The processes that share a device.
    ///
    /// # Errors
    /// `EOPNOTSUPP` the plugin has no such functions; `EAGAIN` the number of this process is above
    /// `most`; else the errno of the plugin.
    pub(crate) fn of(context: Context, most: u32) -> Result<Self, Errno> {
        // SAFETY: an open context refers to a live device.
        let extension = unsafe { extension((*context.as_c()).device) };
        let functions = extension.and_then(|table| {
            Some((table.process_number?, table.is_process?, table.watch_process?))
        });
        let (number, is_process, watch) = functions.ok_or_else(without_numbers)?;
        // SAFETY: the function is of the plugin that opened the context.
        let number = result(unsafe { number(context.as_c()) })?.cast_unsigned();
        if number == 0 || number > most {
            return Err(Errno::EAGAIN);
        }
        Ok(Self { context, is_process, watch, number })
    }

    /// The number of this process.
    pub(crate) const fn own_number(&self) -> u32 {
        self.number
    }

    /// Whether a live process has the number. An unknown state counts as alive, so that no process
    /// answers in the name of another process.
    pub(crate) fn is_process(&self, number: u32) -> bool {
        let Ok(number) = c_int::try_from(number) else { return false };
        // SAFETY: as in `of`.
        (unsafe { (self.is_process)(self.context.as_c(), number) }) != 0
    }

    /// A descriptor that is readable from the end of the process with the number on.
    ///
    /// # Errors
    /// `ESRCH` no process has the number; else the errno of the plugin.
    fn watch(&self, number: u32) -> Result<OwnedFd, Errno> {
        let number = c_int::try_from(number).map_err(|_| Errno::ESRCH)?;
        // SAFETY: as in `of`.
        let fd = result(unsafe { (self.watch)(self.context.as_c(), number) })?;
        // SAFETY: the plugin made the descriptor for this caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Prints, once, that the plugin of the device has no process numbers.
fn without_numbers() -> Errno {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        cface::say!(
            "ferroverbs: librdmacm: the device's plugin has no process numbers \
             (ferroverbs_plugin_ext); install plugin and librdmacm of one release"
        );
    });
    Errno::EOPNOTSUPP
}

/// A number, or the errno of a negative result.
fn result(number: c_int) -> Result<c_int, Errno> {
    if number < 0 { Err(Errno::from_raw(number.saturating_neg())) } else { Ok(number) }
}

/// The watched processes.
#[derive(Debug)]
pub(crate) struct ProcessWatches {
    /// The epoll set of all descriptors; readable when a watched process has ended.
    epoll: OwnedFd,
    descriptors: HashMap<u32, OwnedFd>,
}

impl ProcessWatches {
    /// An empty set.
    ///
    /// # Errors
    /// The errno of the system.
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: descriptors::epoll()?, descriptors: HashMap::new() })
    }

    /// The descriptor that is readable when a watched process has ended.
    pub(crate) fn fd(&self) -> i32 {
        self.epoll.as_raw_fd()
    }

    /// Watches a process.
    ///
    /// # Errors
    /// `ESRCH` no process has the number; else the errno of the plugin or system.
    pub(crate) fn add(&mut self, processes: &Processes, number: u32) -> Result<(), Errno> {
        let process = processes.watch(number)?;
        descriptors::epoll_add(self.fd(), process.as_raw_fd(), libc::EPOLLIN, number.into())?;
        self.descriptors.insert(number, process);
        Ok(())
    }

    /// The watched processes that have ended since the last call. Each is reported once.
    pub(crate) fn take_ended(&mut self) -> Vec<u32> {
        const MOST: usize = 16;
        let mut ended = vec![];
        loop {
            let ready = descriptors::epoll_ready::<MOST>(&self.epoll);
            let count = ready.len();
            let numbers = ready.into_iter().filter_map(|token| u32::try_from(token).ok());
            let epoll = &self.epoll;
            // Closing the descriptor does not remove it from the set while a child of fork(2) has a
            // copy. Without an entry the set has nothing else to report, so the loop ends.
            ended.extend(numbers.filter(|number| {
                let process = self.descriptors.remove(number);
                process.is_some_and(|fd| descriptors::epoll_remove(epoll, &fd).is_ok())
            }));
            if count < MOST {
                return ended;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_process_is_reported_once() {
        let mut watches = ProcessWatches::new().expect("a descriptor");
        // The read end of a pipe without a writer stands for an ended process: poll(2) reports it.
        let (mut live, mut copies) = (vec![], vec![]);
        for number in 1..=40_u32 {
            let (read, write) = std::io::pipe().expect("a pipe");
            let process = OwnedFd::from(read);
            let fd = process.as_raw_fd();
            descriptors::epoll_add(watches.fd(), fd, libc::EPOLLIN, number.into()).expect("room");
            // A child of fork(2) has a copy of the descriptor.
            copies.push(process.try_clone().expect("a copy"));
            watches.descriptors.insert(number, process);
            if number % 2 != 0 {
                live.push(write);
            }
        }
        let mut ended = watches.take_ended();
        ended.sort_unstable();
        assert_eq!(ended, (1..=20).map(|half| 2 * half).collect::<Vec<_>>());
        assert_eq!(watches.take_ended(), []);
    }

    #[test]
    fn a_result_is_a_number_or_an_errno() {
        assert_eq!((result(7), result(-libc::ESRCH)), (Ok(7), Err(Errno::ESRCH)));
    }
}
