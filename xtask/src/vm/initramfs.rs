//! The guest's first root: busybox, a few kernel modules and a script, as an uncompressed cpio
//! archive of the format `newc` (Linux,
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use std::path::{Path, PathBuf};

/// Folders that the script mounts things on.
const FOLDERS: &[&str] =
    &["bin", "modules", "proc", "sys", "dev", "host", "scratch", "root", "run"];

/// The archive; the guest loads `modules` in this order.
pub(super) fn build(busybox: &Path, modules: &[PathBuf]) -> crate::Result<Vec<u8>> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
    };
    let mut archive = Archive::default();
    for folder in FOLDERS {
        archive.entry(folder, FOLDER | 0o755, &[]);
    }
    archive.entry("init", FILE | 0o755, include_bytes!("early.sh"));
    archive.entry("bin/busybox", FILE | 0o755, &read(busybox)?);
    archive.entry("bin/sh", LINK | 0o777, b"busybox");
    for (n, module) in modules.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        archive.entry(&format!("modules/{n:02}-{name}"), FILE | 0o644, &read(module)?);
    }
    Ok(archive.finish())
}

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: usize,
}

impl Archive {
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = if mode & FOLDER == FOLDER && mode & FILE != FILE { 2 } else { 1 };
        // magic, inode, mode, uid, gid, links, mtime, size, device (2), special (2), size of the
        // name, checksum
        let fields = [
            self.entries,
            mode as usize,
            0,
            0,
            links,
            0,
            content.len(),
            0,
            0,
            0,
            0,
            name.len() + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    /// Names and contents begin at multiples of 4.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_headers_of_110_bytes_and_aligned_contents() {
        let mut archive = Archive::default();
        archive.entry("a", FILE | 0o644, b"hello");
        let bytes = archive.finish();
        assert_eq!(&bytes[..14], b"07070100000001");
        // 110 of header, "a\0", no padding, then the content and 3 bytes of padding.
        assert_eq!(&bytes[110..117], b"a\0hello");
        assert_eq!(&bytes[120..126], b"070701");
        assert!(bytes.ends_with(b"TRAILER!!!\0\0\0\0"), "{:?}", &bytes[bytes.len() - 16..]);
        assert_eq!(bytes.len() % 4, 0);
    }
}
