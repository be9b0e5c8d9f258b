//! Limits of the wire between hosts: permitted interfaces and peers (`FERROVERBS_SOFT_INTERFACES`,
//! `FERROVERBS_SOFT_PEERS`). `config` parses them; the GID table and every new route check them.
#![forbid(unsafe_code)]

use ipnet::IpNet;
use std::net::IpAddr;

/// Names of interfaces; a trailing `*` matches all names with that beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names(Vec<String>);

/// The configured limits; None means no limit.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub(crate) interfaces: Option<Names>,
    pub(crate) peers: Option<Vec<IpNet>>,
}

impl Names {
    /// Parses names separated by commas or blanks; None for an invalid name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // IFNAMSIZ (netdevice(7)) includes the NUL.
        let fits = |name: &&str| name.len() < libc::IFNAMSIZ && !name.contains('/');
        words(text)
            .map(|name| Some(name).filter(fits).map(str::to_owned))
            .collect::<Option<_>>()
            .map(Self)
    }

    fn contains(&self, name: &[u8]) -> bool {
        self.0.iter().any(|known| match known.strip_suffix('*') {
            Some(stem) => name.starts_with(stem.as_bytes()),
            None => name == known.as_bytes(),
        })
    }
}

/// Parses addresses and networks (`10.0.0.0/8`) separated by commas or blanks; None if invalid.
pub(crate) fn parse_networks(text: &str) -> Option<Vec<IpNet>> {
    let network = |word: &str| {
        let single =
            || word.parse::<IpAddr>().ok().map(|address| IpNet::from(address.to_canonical()));
        word.parse::<IpNet>().ok().or_else(single)
    };
    words(text).map(network).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ' ']).filter(|word| !word.is_empty())
}

impl Limits {
    /// Whether the adapter may use the addresses of this interface. (Addresses of the loopback
    /// interface are used if no other address exists.)
    pub(crate) fn has_interface(&self, name: &[u8]) -> bool {
        self.interfaces.as_ref().is_none_or(|names| names.contains(name))
    }

    /// Whether this process may communicate with the host of this address.
    pub(crate) fn may_meet(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.peers
            .as_ref()
            .is_none_or(|peers| peers.iter().any(|network| network.contains(&address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn names_are_whole_or_stems() {
        let names = Names::parse("eth0, ens*").expect("names");
        assert!([&b"eth0"[..], b"ens", b"ens5f0"].iter().all(|name| names.contains(name)));
        assert!(![&b"eth01"[..], b"eth", b"lo", b""].iter().any(|name| names.contains(name)));
        assert!(Names::parse("*").expect("all").contains(b"anything"));
        assert_eq!(Names::parse("a/b"), None);
        assert_eq!(Names::parse("sixteen-letters-"), None);
    }

    #[test]
    fn peers_are_addresses_and_networks() {
        let limits = Limits {
            peers: parse_networks("10.1.0.0/16 192.0.2.7,fd00::/8, ::ffff:192.0.2.9"),
            ..Limits::default()
        };
        let may = |text: &str| limits.may_meet(text.parse().expect("an address"));
        assert!(
            ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "192.0.2.9", "fdff::1"]
                .into_iter()
                .all(may)
        );
        assert!(!["10.2.0.1", "192.0.2.8", "fe80::1", "::1"].into_iter().any(may));
        for wrong in ["10.0.0.0/33", "host1", "10.0.0.", "10.0.0.0/8;fd00::/8"] {
            assert_eq!(parse_networks(wrong), None, "{wrong}");
        }
        assert!(Limits::default().may_meet(Ipv4Addr::LOCALHOST.into()), "no limit");
        let nobody = Limits { peers: Some(vec![]), ..Limits::default() };
        assert!(!nobody.may_meet(Ipv4Addr::LOCALHOST.into()));
    }
}
