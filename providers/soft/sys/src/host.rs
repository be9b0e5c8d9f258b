//! The identity of this host and of its network namespaces. The fabric directory and the GUIDs of
//! the devices are derived from it.

use super::dir;
use std::{fs, path::Path};

/// A secret of this machine: its id (`machine-id(5)`), or the id of its boot (`random(4)`) where it
/// has none, as in many containers. Must not be revealed. Empty if neither exists.
pub fn secret() -> Vec<u8> {
    let read = |path: &str| {
        let text = fs::read_to_string(path).ok()?;
        let id = text.trim();
        // During a machine's setup the file holds a word instead.
        let is_id = id.len() >= 32 && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
        is_id.then(|| id.as_bytes().to_vec())
    };
    read("/etc/machine-id").or_else(|| read(BOOT_ID)).unwrap_or_default()
}

/// The id of the running kernel, equal in all its namespaces; "unknown" without /proc.
pub fn boot() -> String {
    let id = fs::read_to_string(BOOT_ID).unwrap_or_default();
    let id = id.trim();
    let is_name = !id.is_empty() && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if is_name { id.to_string() } else { "unknown".to_string() }
}

/// The number of the calling thread's network namespace; 0 without /proc.
pub fn network_namespace() -> u64 {
    ["/proc/thread-self/ns/net", "/proc/self/ns/net"]
        .iter()
        .find_map(|path| dir::stat(Path::new(path)).ok())
        .map_or(0, |stat| stat.id.1)
}

/// The file with the id of the running kernel, which changes at boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_secret_that_stays() {
        assert_eq!(secret(), secret());
        assert!(!secret().is_empty(), "neither machine-id nor boot_id");
    }
}
