//! The GUID of the adapter, by which connection managers distinguish hosts (IBTA 1.7 4.1;
//! EUI-64, IEEE 802). Queries of the device and GID 0 use the GUID; all processes of a fabric
//! compute the same value.
//!
//! A hardware adapter gets its GUID from the maker. The GUID of soft is a hash of everything that
//! distinguishes an adapter and does not change: machine, network namespace, users of the fabric,
//! fabric directory, and number of the device. The id of the machine is confidential, so it is only
//! the key of the hash (`machine-id(5)`).
#![forbid(unsafe_code)]

use hmac_sha256::HMAC;
use soft_local::fabric::FabricConfig;
use soft_sys::{host, process};
use std::os::unix::ffi::OsStrExt;

/// An adapter; its devices have consecutive GUIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdapterGuid(u64);

impl AdapterGuid {
    /// The adapter shared by processes with these settings.
    pub(crate) fn of(config: &FabricConfig) -> Self {
        let place = config.dir.as_os_str().as_bytes();
        let members = match config.group {
            Some(group) => format!("group {group}"),
            None => format!("user {}", process::user()),
        };
        Self::from_parts(&host::secret(), host::network_namespace(), &members, place)
    }

    fn from_parts(machine: &[u8], namespace: u64, members: &str, place: &[u8]) -> Self {
        let mut text = format!("{APPLICATION} net {namespace} {members} at ").into_bytes();
        text.extend_from_slice(place);
        let [a, b, c, d, e, f, g, h, ..] = HMAC::mac(&text, machine);
        // Locally administered, individual.
        let first = a & !GROUP | LOCAL;
        Self(u64::from_be_bytes([first, b, c, d, e, f, g, h]) & !(DEVICES - 1))
    }

    /// The GUID of device `index`, in network byte order. The GUID of device 0 also names the whole
    /// adapter.
    pub(crate) fn guid(self, index: usize) -> [u8; 8] {
        (self.0 | (index as u64 & (DEVICES - 1))).to_be_bytes()
    }

    /// Whether a device of this adapter has the GUID.
    pub(crate) fn has_device(self, guid: [u8; 8]) -> bool {
        u64::from_be_bytes(guid) & !(DEVICES - 1) == self.0
    }
}

/// Separates the hash from hashes that other applications make of the machine id.
const APPLICATION: &str = "ferroverbs soft adapter f0be2a6d";

/// Bit of the first byte of a GUID: locally administered, not assigned by IEEE.
const LOCAL: u8 = 2;
/// Bit of the first byte of a GUID: a group of devices.
const GROUP: u8 = 1;

/// Number of devices of an adapter, each with a GUID; a power of two.
pub(crate) const DEVICES: u64 = soft_semantics::devices::MOST as u64;

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA 1.7 4.1.
    #[test]
    fn a_guid_depends_on_machine_namespace_user_directory_and_device() {
        let base: (&[u8], u64, &str, &[u8]) = (b"m1", 1, "user 1", b"/a");
        let of = |(machine, namespace, members, place): (&[u8], u64, &str, &[u8])| {
            AdapterGuid::from_parts(machine, namespace, members, place)
        };
        let one = of(base);
        assert_eq!(one, of(base));
        let others = [
            of((b"m2", 1, "user 1", b"/a")),
            of((b"m1", 2, "user 1", b"/a")),
            of((b"m1", 1, "group 1", b"/a")),
            of((b"m1", 1, "user 1", b"/b")),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(one, *other, "{at}");
            assert!(!one.has_device(other.guid(0)), "{at}");
        }
        assert_ne!(one.guid(0), one.guid(1));
        assert!(one.has_device(one.guid(0)) && one.has_device(one.guid(31)));
        assert_eq!(one.guid(0)[0] & 3, LOCAL);
    }

    #[test]
    fn every_process_of_a_fabric_computes_the_same_guid_and_another_fabric_has_another() {
        let config = FabricConfig::new("/run/one");
        assert_eq!(AdapterGuid::of(&config), AdapterGuid::of(&config.clone()));
        assert_ne!(AdapterGuid::of(&config), AdapterGuid::of(&FabricConfig::new("/run/two")));
    }

    #[test]
    fn a_guid_does_not_contain_the_machine_id() {
        let id = host::secret();
        let guid = AdapterGuid::of(&FabricConfig::new("/run/one")).guid(0);
        let text: String = guid.iter().map(|byte| format!("{byte:02x}")).collect();
        let id = String::from_utf8_lossy(&id).into_owned();
        assert!(!id.contains(&text) && !text.contains(&id), "{text} and {id}");
    }
}
