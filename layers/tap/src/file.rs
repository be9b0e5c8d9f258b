//! A mapped file for records of a layer (`layer_records::file`). Records survive any end of the
//! process, and another process can read them meanwhile.

use core::ffi::c_void;
use core::sync::atomic::AtomicU64;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use layer_records::file::{
    AT_CAPACITY, AT_MAGIC, AT_MONOTONIC, AT_PID, AT_PROGRAM, AT_REALTIME, HEAD, ending, own_folder,
    pack_text,
};

/// Files of dead processes that the user's own folder keeps; older files are removed.
const KEPT_FILES: usize = 16;

/// The file that a layer needs.
#[derive(Debug)]
pub struct FileRequest<'a> {
    /// The layer's name, which is part of the names of folder and file.
    pub layer: &'a str,
    /// The folder; `None` for the user's own folder.
    pub dir: Option<&'a Path>,
    /// The first word of the file.
    pub magic: u64,
    /// The number of records.
    pub capacity: u64,
    /// The bytes of one record.
    pub record: usize,
}

/// Makes the file, reserves its space, writes its head and maps it for the rest of the process.
/// Afterwards the words are used as atomics only.
///
/// # Errors
/// The reason of the failure, with the file's name.
pub fn make(wanted: &FileRequest<'_>) -> Result<(PathBuf, *mut u64), String> {
    let folder = match wanted.dir {
        Some(dir) => dir.to_owned(),
        None => user_folder(wanted.layer, &ending(wanted.layer))?,
    };
    let (realtime, monotonic) = (clock(libc::CLOCK_REALTIME), clock(libc::CLOCK_MONOTONIC));
    let pid = std::process::id();
    let path = folder.join(format!("{pid}-{realtime}{}", ending(wanted.layer)));
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    let length = HEAD as u64 + wanted.capacity * wanted.record as u64;
    // A write beyond the limit would kill the process (SIGXFSZ).
    if length > size_limit() {
        let why = "more than a file may have (ulimit -f)";
        return Err(format!("{} would have {length} bytes, {why}", path.display()));
    }
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(fail)?;
    // A hole in the file would kill the program when the disk is full.
    // SAFETY: the descriptor is `file`'s, which is open.
    let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length.cast_signed()) };
    if error != 0 {
        let _ = fs::remove_file(&path);
        return Err(fail(std::io::Error::from_raw_os_error(error)));
    }
    let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let none = core::ptr::null_mut::<c_void>();
    // SAFETY: a new mapping of the whole file, placed by the kernel.
    let base =
        unsafe { libc::mmap(none, length as usize, read_write, shared, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        let error = std::io::Error::last_os_error();
        let _ = fs::remove_file(&path);
        return Err(fail(error));
    }
    let base = base.cast::<u64>();
    let exe = std::env::current_exe().unwrap_or_default();
    let name = exe.file_name().map_or_else(OsString::new, OsString::from);
    // SAFETY: the words lie within the head of the new mapping, and no other thread has its
    // address.
    unsafe {
        for (index, word) in pack_text::<8>(name.as_encoded_bytes()).into_iter().enumerate() {
            base.add(AT_PROGRAM + index).write(word);
        }
        base.add(AT_CAPACITY).write(wanted.capacity);
        base.add(AT_PID).write(pid.into());
        base.add(AT_REALTIME).write(realtime);
        base.add(AT_MONOTONIC).write(monotonic);
        AtomicU64::from_ptr(base.add(AT_MAGIC))
            .store(wanted.magic, core::sync::atomic::Ordering::Release);
    }
    Ok((path, base))
}

/// The user's own folder, created if necessary. The oldest files of dead processes with the ending
/// `ending` are removed.
///
/// # Errors
/// The reason why no such folder exists, with its name.
pub fn user_folder(layer: &str, ending: &str) -> Result<PathBuf, String> {
    // SAFETY: no requirements.
    let uid = unsafe { libc::getuid() };
    let folder = own_folder(layer, cface::env::trusted("XDG_RUNTIME_DIR").as_deref(), uid);
    let made = DirBuilder::new().mode(0o700).create(&folder);
    let meta = fs::symlink_metadata(&folder)
        .map_err(|e| format!("{}: {}", folder.display(), made.err().unwrap_or(e)))?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o022 != 0 {
        return Err(format!("{} is not a folder of this user alone", folder.display()));
    }
    remove_old(&folder, ending);
    Ok(folder)
}

/// The largest size of a file of this process in bytes (RLIMIT_FSIZE).
#[must_use]
pub fn size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local variable.
    let error = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    if error == 0 { limit.rlim_cur } else { u64::MAX }
}

/// The time of this clock in nanoseconds.
#[must_use]
pub fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local variable; the caller names an existing clock.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Removes the oldest files of dead processes.
fn remove_old(folder: &Path, ending: &str) {
    let mut dead = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((pid, rest)) = name.to_str().and_then(|name| name.split_once('-')) else {
            continue;
        };
        let Ok(pid) = pid.parse::<libc::pid_t>() else { continue };
        // SAFETY: signal 0 sends nothing.
        let is_gone = unsafe { libc::kill(pid, 0) } != 0;
        if is_gone && rest.ends_with(ending) {
            let time = entry.metadata().and_then(|meta| meta.modified());
            dead.extend(time.map(|time| (time, entry.path())));
        }
    }
    dead.sort();
    let extra = dead.len().saturating_sub(KEPT_FILES - 1);
    for (_, path) in dead.into_iter().take(extra) {
        let _ = fs::remove_file(path.with_extension("txt"));
        let _ = fs::remove_file(path);
    }
}
