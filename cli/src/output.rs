//! Standard output, and files that a command writes for the user.

use rustix::fs::{Access, access};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes text to the standard output.
pub(crate) fn print_text(text: &str) -> crate::Result<ExitCode> {
    print_bytes(text.as_bytes())
}

/// Writes bytes to the standard output. A reader that closes the pipe early, as head(1) does, is no
/// error.
pub(crate) fn print_bytes(bytes: &[u8]) -> crate::Result<ExitCode> {
    finish_printing(std::io::stdout().lock().write_all(bytes))
}

/// The end of a command that wrote to the standard output.
pub(crate) fn finish_printing(written: std::io::Result<()>) -> crate::Result<ExitCode> {
    match written {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot write to the standard output: {e}"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Text of another process or machine, with `?` for each control character: a terminal would obey
/// it.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// Fails if `file` cannot be written, so that a program does not run for a result that is lost.
///
/// # Errors
/// `file` is a folder, or the user has no right to write or create the file.
pub(crate) fn check_writable(file: &Path) -> crate::Result<()> {
    if file.is_dir() {
        return Err(format!("cannot write {}: the name is that of a folder", file.display()));
    }
    let folder = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let target = if file.exists() { file } else { &folder };
    access(target, Access::WRITE_OK).map_err(|e| format!("cannot write {}: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_has_nothing_that_a_terminal_obeys() {
        assert_eq!(printable("a\x1b[2Jb\n\u{9b}c"), "a?[2Jb??c");
    }

    #[test]
    fn a_file_in_a_folder_that_does_not_exist_cannot_be_written() {
        assert!(check_writable(Path::new("/proc/no-such-folder/file")).is_err());
        assert!(check_writable(Path::new("/")).is_err());
        assert!(check_writable(&std::env::temp_dir().join("ferroverbs-not-there")).is_ok());
        assert!(check_writable(Path::new("/dev/null")).is_ok());
    }
}
