//! Names by which a process recognises the files that another process of the adapter has open. The
//! command `ferroverbs` looks for them in `/proc/PID/fd` (proc_pid_fd(5)).

use std::ffi::CStr;
use std::path::Path;

/// The memory file of the segment *tables*.
pub const TABLES: &CStr = c"ferroverbs-tables";
/// The memory file of the segment *rings*.
pub const RINGS: &CStr = c"ferroverbs-rings";
/// The memory file that identifies a context.
pub const CONTEXT: &CStr = c"ferroverbs-context";
/// The first word of a context's file. The number of the device follows. A new layout gets a new
/// value.
pub const CONTEXT_MAGIC: u64 = u64::from_be_bytes(*b"fv-ctx-1");
/// The file in a fabric's directory with the lock of each slot.
pub const SLOTS: &str = "slots";
/// Prefix of the directory names in which all processes of a host meet.
pub(crate) const HOST_STEM: &str = "host-";
/// Prefix of the directory names of network namespaces.
pub(crate) const NAMESPACE_STEM: &str = "net-";

/// Whether the target of a link in `/proc/PID/fd` is the memory file with this name
/// (memfd_create(2)).
pub fn is_memory_file(target: &Path, name: &CStr) -> bool {
    let inner = target.to_str().and_then(|target| target.strip_prefix("/memfd:"));
    let rest = name.to_str().ok().and_then(|name| inner?.strip_prefix(name));
    rest.is_some_and(|rest| rest.is_empty() || rest == " (deleted)")
}

/// Whether a path is the file of slots of a fabric.
pub fn is_slots_file(path: &Path) -> bool {
    let directory = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy());
    let is_fabric = directory
        .is_some_and(|name| name.starts_with(NAMESPACE_STEM) || name.starts_with(HOST_STEM));
    is_fabric && path.file_name().is_some_and(|name| name == SLOTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_file_is_found_by_its_whole_name() {
        let is_tables = |target: &str| is_memory_file(Path::new(target), TABLES);
        assert!(is_tables("/memfd:ferroverbs-tables (deleted)"));
        assert!(!is_tables("/memfd:ferroverbs-tables2 (deleted)"));
        assert!(!is_tables("/memfd:ferroverbs-rings (deleted)"));
        assert!(!is_tables("/home/me/ferroverbs-tables"));
    }

    #[test]
    fn only_the_slots_of_a_fabric_are_slots() {
        assert!(is_slots_file(Path::new("/dev/shm/ferroverbs-0/net-4026531840/slots")));
        assert!(is_slots_file(Path::new("/run/fabric/host-1/slots")));
        assert!(!is_slots_file(Path::new("/home/me/slots")));
        assert!(!is_slots_file(Path::new("/dev/shm/ferroverbs-0/net-1/notes")));
    }
}
