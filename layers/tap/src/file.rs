//! A file that the process has mapped: what was written is in it however the process ends, and another process can read it meanwhile
//! (`layer_records::file`).

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

/// Files of processes that are gone, in the user's own folder: more than these are removed.
const GRAVES: usize = 16;

/// What a layer wants.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The layer's name, which is in those of the folder and of the file.
    pub layer: &'a str,
    /// Where, if not in the user's own folder.
    pub dir: Option<&'a Path>,
    /// What the file begins with.
    pub magic: u64,
    /// How many records there will be ..
    pub capacity: u64,
    /// .. and how many bytes each has.
    pub record: usize,
}

/// Makes the file, with its room reserved and its head filled in, and maps it: words that are only used as atomics from now on. It stays mapped.
///
/// # Errors
/// Why there can be none, with the file's name.
pub fn make(wanted: &Wanted<'_>) -> Result<(PathBuf, *mut u64), String> {
    let folder = match wanted.dir {
        Some(dir) => dir.to_owned(),
        None => own(wanted.layer, &ending(wanted.layer))?,
    };
    let (realtime, monotonic) = (clock(libc::CLOCK_REALTIME), clock(libc::CLOCK_MONOTONIC));
    let pid = std::process::id();
    let path = folder.join(format!("{pid}-{realtime}{}", ending(wanted.layer)));
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    let length = HEAD as u64 + wanted.capacity * wanted.record as u64;
    // Beyond it the kernel would kill the process (SIGXFSZ).
    if length > longest() {
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
    // SAFETY: a descriptor of ours.
    let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length.cast_signed()) };
    if error != 0 {
        let _ = fs::remove_file(&path);
        return Err(fail(std::io::Error::from_raw_os_error(error)));
    }
    let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let none = core::ptr::null_mut::<c_void>();
    // SAFETY: a new mapping of a file of ours, as long as it is.
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
    // SAFETY: within the head of the fresh mapping, which nobody else knows yet.
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

/// The user's own folder, made if it is not there, without the oldest files of processes that are gone: those that end with `ending`.
///
/// # Errors
/// Why there can be none, with its name.
pub fn own(layer: &str, ending: &str) -> Result<PathBuf, String> {
    // SAFETY: no requirements.
    let uid = unsafe { libc::getuid() };
    let folder = own_folder(layer, cface::env::trusted("XDG_RUNTIME_DIR").as_deref(), uid);
    let made = DirBuilder::new().mode(0o700).create(&folder);
    let meta = fs::symlink_metadata(&folder)
        .map_err(|e| format!("{}: {}", folder.display(), made.err().unwrap_or(e)))?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o022 != 0 {
        return Err(format!("{} is not a folder of this user alone", folder.display()));
    }
    tidy(&folder, ending);
    Ok(folder)
}

/// Bytes that a file of this process may have (RLIMIT_FSIZE).
#[must_use]
pub fn longest() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours.
    let error = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    if error == 0 { limit.rlim_cur } else { u64::MAX }
}

/// Nanoseconds of this clock.
#[must_use]
pub fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours; the clock exists.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Removes the oldest files of processes that are gone.
fn tidy(folder: &Path, ending: &str) {
    let mut dead = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((pid, rest)) = name.to_str().and_then(|name| name.split_once('-')) else {
            continue;
        };
        let Ok(pid) = pid.parse::<libc::pid_t>() else { continue };
        // SAFETY: signal 0 only asks.
        let is_gone = unsafe { libc::kill(pid, 0) } != 0;
        if is_gone && rest.ends_with(ending) {
            let time = entry.metadata().and_then(|meta| meta.modified());
            dead.extend(time.map(|time| (time, entry.path())));
        }
    }
    dead.sort();
    let extra = dead.len().saturating_sub(GRAVES - 1);
    for (_, path) in dead.into_iter().take(extra) {
        let _ = fs::remove_file(path.with_extension("txt"));
        let _ = fs::remove_file(path);
    }
}
