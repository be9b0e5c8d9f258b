//! Who the adapter is: the GUID that managers of connections tell hosts apart by (IBTA vol 1, 4.1; EUI-64, IEEE 802).
//!
//! Hardware has it from its maker. Ours is made of what tells one adapter from another and stays as it is: the machine, the
//! network namespace, the users who meet, where they meet, and the number of the device. The machine's id is confidential,
//! so it is only the key of a hash (`machine-id(5)`).
#![forbid(unsafe_code)]

use hmac_sha256::HMAC;
use soft_local::fabric::FabricConfig;
use soft_sys::{host, process};
use std::os::unix::ffi::OsStrExt;

/// An adapter, whose devices have GUIDs in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(u64);

impl Identity {
    /// The adapter that processes with these settings share.
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
        // Administered locally, of a single adapter.
        let first = a & !GROUP | LOCAL;
        Self(u64::from_be_bytes([first, b, c, d, e, f, g, h]) & !(DEVICES - 1))
    }

    /// The GUID of device `index`, in network byte order; that of device 0 is the whole adapter's as well.
    pub(crate) fn guid(self, index: usize) -> [u8; 8] {
        (self.0 | (index as u64 & (DEVICES - 1))).to_be_bytes()
    }

    /// Whether a device of this adapter has the GUID.
    pub(crate) fn has(self, guid: [u8; 8]) -> bool {
        u64::from_be_bytes(guid) & !(DEVICES - 1) == self.0
    }
}

/// What tells our hashes from those that others make of the same machine id.
const APPLICATION: &str = "ferroverbs soft adapter f0be2a6d";

/// Of the first byte of a GUID: assigned by whoever runs the network rather than by IEEE.
const LOCAL: u8 = 2;
/// Of the first byte of a GUID: no single device.
const GROUP: u8 = 1;

/// Devices that an adapter can have, each with a GUID; a power of two.
pub(crate) const DEVICES: u64 = soft_semantics::devices::MOST as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_tells_machine_namespace_user_place_and_device() {
        let base: (&[u8], u64, &str, &[u8]) = (b"m1", 1, "user 1", b"/a");
        let of = |(machine, namespace, members, place): (&[u8], u64, &str, &[u8])| {
            Identity::from_parts(machine, namespace, members, place)
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
            assert!(!one.has(other.guid(0)), "{at}");
        }
        assert_ne!(one.guid(0), one.guid(1));
        assert!(one.has(one.guid(0)) && one.has(one.guid(31)));
        assert_eq!(one.guid(0)[0] & 3, LOCAL);
    }

    #[test]
    fn every_process_of_a_fabric_computes_the_same_guid_and_another_fabric_has_another() {
        let config = FabricConfig::new("/run/one");
        assert_eq!(Identity::of(&config), Identity::of(&config.clone()));
        assert_ne!(Identity::of(&config), Identity::of(&FabricConfig::new("/run/two")));
    }

    #[test]
    fn the_machine_id_is_not_in_it() {
        let id = host::secret();
        let guid = Identity::of(&FabricConfig::new("/run/one")).guid(0);
        let text: String = guid.iter().map(|byte| format!("{byte:02x}")).collect();
        let id = String::from_utf8_lossy(&id).into_owned();
        assert!(!id.contains(&text) && !text.contains(&id), "{text} and {id}");
    }
}
