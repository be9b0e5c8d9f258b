//! A look at a shared object before it is opened. The dynamic loader maps what the program headers
//! say; if the file is truncated (a copy that ran out of space), an access kills the process with
//! `SIGBUS`. Hence the headers are checked against the file's length first (ELF specification,
//! 64-bit little endian; other files are left to the loader, which refuses them).
#![forbid(unsafe_code)]

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Checks that the file contains all bytes that the loader would map; the error is a text.
///
/// # Errors
/// The file can't be read, or ends too early.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut file = std::fs::File::open(path).map_err(text)?;
    let len = file.metadata().map_err(text)?.len();
    check_file(&mut file, len)
}

/// The same of an open file of `len` bytes.
pub(crate) fn check_file(file: &mut (impl Read + Seek), len: u64) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    // One read covers all headers of a library made by a linker.
    let mut start = Vec::with_capacity(START);
    file.by_ref().take(START as u64).read_to_end(&mut start).map_err(text)?;
    let Some(header) = start.first_chunk::<HEADER>() else {
        return Err("file too short".to_owned());
    };
    let Some(table) = ProgramHeaders::parse(header) else { return Ok(()) };
    let size = usize::from(table.entries) * PROGRAM_HEADER;
    let at = usize::try_from(table.offset).unwrap_or(usize::MAX);
    let end = at.saturating_add(size);
    let entries = match start.get(at..end) {
        Some(entries) => entries.to_vec(),
        None => {
            let mut entries = vec![0; size];
            file.seek(SeekFrom::Start(table.offset)).map_err(text)?;
            file.read_exact(&mut entries)
                .map_err(|_| format!("file is truncated at {len} bytes"))?;
            entries
        }
    };
    let (entries, _) = entries.as_chunks::<PROGRAM_HEADER>();
    if entries.iter().any(|entry| loaded_end(entry).is_some_and(|end| end > len)) {
        return Err(format!("file is truncated at {len} bytes"));
    }
    Ok(())
}

/// Bytes at the start of a file that are looked at together.
const START: usize = 4096;
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const PT_LOAD: u32 = 1;

/// Where the program headers are.
struct ProgramHeaders {
    offset: u64,
    entries: u16,
}

impl ProgramHeaders {
    /// `None` for what is no 64-bit little-endian ELF file with program headers of the usual size.
    fn parse(header: &[u8; HEADER]) -> Option<Self> {
        let entry_size = u16::from_le_bytes(field(header, 54)?);
        let usual =
            header.starts_with(b"\x7fELF\x02\x01") && usize::from(entry_size) == PROGRAM_HEADER;
        usual.then_some(Self {
            offset: u64::from_le_bytes(field(header, 32)?),
            entries: u16::from_le_bytes(field(header, 56)?),
        })
    }
}

/// Where the file's part of a loaded segment ends.
fn loaded_end(entry: &[u8; PROGRAM_HEADER]) -> Option<u64> {
    let kind = u32::from_le_bytes(field(entry, 0)?);
    let offset = u64::from_le_bytes(field(entry, 8)?);
    let size = u64::from_le_bytes(field(entry, 32)?);
    (kind == PT_LOAD).then(|| offset.saturating_add(size))
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_library_passes_and_every_shorter_copy_is_refused() {
        let myself = std::env::current_exe().expect("a running test");
        assert_eq!(check(&myself), Ok(()));
        let whole = std::fs::read(&myself).expect("readable");
        let cut = std::env::temp_dir().join(format!("fv-elf-{}", std::process::id()));
        for len in [0, 10, HEADER, HEADER + 30, 8192] {
            std::fs::write(&cut, &whole[..len]).expect("a temporary file");
            let error = check(&cut).expect_err("too short");
            assert!(error.contains("too short") || error.contains("truncated"), "{len}: {error}");
        }
        std::fs::write(&cut, [b'x'; 100]).expect("a temporary file");
        assert_eq!(check(&cut), Ok(()), "the loader's to refuse");
        std::fs::remove_file(&cut).expect("cleaning up");
        assert!(check(&cut).is_err());
    }
}
