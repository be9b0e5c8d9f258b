//! Programs that Ferroverbs cannot reach: the dynamic loader puts no library under them.

use object::elf::{DF_1_PIE, DT_FLAGS_1, ET_EXEC, PT_DYNAMIC, PT_INTERP};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, elf};
use rustix::fs::{Access, access, getxattr};
use rustix::process::{getegid, geteuid};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A line that says why Ferroverbs has no effect on `program`; `None` if the loader will load the
/// library.
///
/// `path` is the value of `PATH`. A file that is no ELF file, such as a script, may start programs
/// that Ferroverbs reaches, so there is no line about the file.
pub(crate) fn why_unreached(program: &OsStr, path: Option<&OsStr>) -> Option<String> {
    let file = find(program, path)?;
    let shown = file.display();
    match (examine(&file), own_machine()) {
        (Some(Executable { is_static: true, .. }), _) => Some(format!(
            "{shown} is statically linked: no library can be put under the program, so it runs without \
             Ferroverbs; link it dynamically"
        )),
        (Some(Executable { machine, .. }), Some(own)) if machine != own => Some(format!(
            "{shown} is for another kind of processor or word size than Ferroverbs: it runs without Ferroverbs"
        )),
        (Some(_), _) if gains_privileges(&file) => Some(format!(
            "{shown} is set-user-ID, set-group-ID or has capabilities: the dynamic loader ignores \
             LD_LIBRARY_PATH and LD_PRELOAD, so it runs without Ferroverbs; run a copy without these rights"
        )),
        _ => None,
    }
}

/// The file that exec(3) runs for `program`.
fn find(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let folders = std::env::split_paths(path.unwrap_or(OsStr::new("/usr/local/bin:/bin:/usr/bin")));
    let mut files = folders.map(|folder| folder.join(program));
    files.find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
}

/// The facts of an ELF file that decide whether the loader puts a library under the program.
#[derive(Debug, PartialEq, Eq)]
struct Executable {
    is_static: bool,
    /// `e_machine`, and true for 64 bits.
    machine: (u16, bool),
}

fn examine(file: &Path) -> Option<Executable> {
    let data = ReadCache::new(File::open(file).ok()?);
    match FileKind::parse(&data).ok()? {
        FileKind::Elf64 => read_headers::<elf::FileHeader64<Endianness>>(&data),
        FileKind::Elf32 => read_headers::<elf::FileHeader32<Endianness>>(&data),
        _ => None,
    }
}

fn read_headers<H: FileHeader<Endian = Endianness>>(data: &ReadCache<File>) -> Option<Executable> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?;
    let has_interpreter = segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP);
    // The dynamic loader itself has no interpreter either, and does load libraries. A static
    // program is not position-independent, or is marked as a position-independent executable.
    let is_pie = || {
        let dynamic = segments.iter().find(|segment| segment.p_type(endian) == PT_DYNAMIC)?;
        let entries = dynamic.dynamic(endian, data).ok()??;
        let flags = entries.iter().find(|entry| entry.tag(endian) == DT_FLAGS_1);
        Some(flags?.val(endian) & DF_1_PIE.0 != 0)
    };
    let is_executable = header.e_type(endian) == ET_EXEC || is_pie().unwrap_or(false);
    Some(Executable {
        is_static: is_executable && !has_interpreter,
        machine: (header.e_machine(endian).0, header.is_type_64()),
    })
}

fn own_machine() -> Option<(u16, bool)> {
    Some(examine(&std::env::current_exe().ok()?)?.machine)
}

/// True if exec(2) would give the program rights that this process does not have (AT_SECURE).
fn gains_privileges(file: &Path) -> bool {
    let Ok(data) = file.metadata() else { return false };
    let user = data.mode() & 0o4000 != 0 && data.uid() != geteuid().as_raw();
    let group = data.mode() & 0o2010 == 0o2010 && data.gid() != getegid().as_raw();
    let has_capabilities = getxattr(file, "security.capability", &mut [0_u8; 64][..]).is_ok();
    user || group || (has_capabilities && !geteuid().is_root())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file of 64 bits with program headers of these types, and of this machine.
    fn image(machine: u16, file_type: u16, segments: &[u32]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        bytes.extend([file_type.to_le_bytes(), machine.to_le_bytes()].concat());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend([0_u64, 64, 0].map(u64::to_le_bytes).concat());
        bytes.extend(0_u32.to_le_bytes());
        let count = u16::try_from(segments.len()).unwrap();
        bytes.extend([64_u16, 56, count, 64, 0, 0].map(u16::to_le_bytes).concat());
        for segment in segments {
            bytes.extend(segment.to_le_bytes());
            bytes.resize(bytes.len() + 52, 0);
        }
        bytes
    }

    fn line(name: &str, bytes: &[u8]) -> Option<String> {
        let file =
            std::env::temp_dir().join(format!("ferroverbs-program-{}-{name}", std::process::id()));
        std::fs::write(&file, bytes).unwrap();
        let line = why_unreached(file.as_os_str(), None);
        std::fs::remove_file(&file).unwrap();
        line
    }

    #[test]
    fn a_static_program_has_no_interpreter() {
        let (machine, _) = own_machine().expect("this program is an ELF file");
        let fixed = line("static", &image(machine, ET_EXEC.0, &[1])).expect("a line");
        assert!(fixed.contains("statically linked"), "{fixed}");
        assert_eq!(line("dynamic", &image(machine, ET_EXEC.0, &[PT_INTERP.0, 1])), None);
        // A shared object without the mark of an executable, as the dynamic loader is.
        assert_eq!(line("loader", &image(machine, 3, &[1])), None);
        assert_eq!(line("script", b"#!/bin/sh\n"), None);
        assert_eq!(line("short", b"\x7fELF"), None);
        let foreign =
            line("foreign", &image(machine ^ 1, ET_EXEC.0, &[PT_INTERP.0])).expect("a line");
        assert!(foreign.contains("another kind of processor"), "{foreign}");
    }

    #[test]
    fn programs_are_found_as_exec_finds_them() {
        let path = Some(OsStr::new("/not/there:/bin"));
        assert_eq!(find(OsStr::new("sh"), path), Some("/bin/sh".into()));
        assert_eq!(find(OsStr::new("no-such-program"), path), None);
        assert_eq!(find(OsStr::new("./sh"), path), Some("./sh".into()));
    }
}
