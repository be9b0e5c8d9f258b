//! Replaces addresses of the network and of memory, keys of regions and Q_Keys in a report.
//!
//! A value is replaced by its kind and a number. Equal values get equal numbers, so a reader can
//! still match the values of two lines.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The replaced values and their numbers.
#[derive(Default)]
struct Pseudonyms {
    values: BTreeMap<(&'static str, String), usize>,
    counts: BTreeMap<&'static str, usize>,
}

impl Pseudonyms {
    fn name(&mut self, kind: &'static str, value: String) -> String {
        let count = self.counts.entry(kind).or_default();
        let number = self.values.entry((kind, value)).or_insert_with(|| {
            *count += 1;
            *count
        });
        format!("{kind}-{number}")
    }

    /// The replacement of a word; `None` for a word that stays. `before` is the text in front of
    /// the word.
    fn instead(&mut self, word: &str, before: &str) -> Option<String> {
        if let Some(hex) =
            word.strip_prefix("0x").filter(|hex| hex.chars().all(|c| c.is_ascii_hexdigit()))
        {
            let digits = hex.trim_start_matches('0');
            let is_key = ["lkey=", "rkey=", "qkey=", "lkey ", "rkey ", "lkey\":", "rkey\":"];
            // The value 0 means that there is no key.
            if !digits.is_empty() && is_key.iter().any(|name| before.ends_with(name)) {
                return Some(self.name("KEY", digits.to_owned()));
            }
            // A number with more than 32 bits is an address.
            return (digits.len() > 8).then(|| self.name("MEMORY", digits.to_owned()));
        }
        if let Ok(address) = word.parse::<Ipv4Addr>() {
            return self.four(address);
        }
        if let Some((address, port)) = word.split_once(':')
            && let Ok(address) = address.parse::<Ipv4Addr>()
        {
            return self.four(address).map(|name| format!("{name}:{port}"));
        }
        let groups: Vec<&str> = word.split(':').collect();
        let all_of = |count: usize, length: usize| {
            let is_one = |group: &&str| {
                group.len() == length && group.chars().all(|c| c.is_ascii_hexdigit())
            };
            groups.len() == count && groups.iter().all(is_one)
        };
        if all_of(6, 2) {
            return Some(self.name("MAC", word.to_ascii_lowercase()));
        }
        if all_of(4, 4) {
            return Some(self.name("GUID", word.to_ascii_lowercase()));
        }
        if groups.len() > 2
            && let Ok(address) = word.parse::<Ipv6Addr>()
        {
            if let Some(four) = address.to_ipv4_mapped() {
                return self.four(four).map(|name| format!("::ffff:{name}"));
            }
            if address.is_loopback() || address.is_unspecified() {
                return None;
            }
            let kind = if address.is_unicast_link_local() { "LINK-LOCAL" } else { "IPv6" };
            return Some(self.name(kind, address.to_string()));
        }
        None
    }

    fn four(&mut self, address: Ipv4Addr) -> Option<String> {
        let is_known = address.is_loopback() || address.is_unspecified() || address.is_broadcast();
        (!is_known).then(|| self.name("IPv4", address.to_string()))
    }
}

/// Replaces all values in a text.
pub(super) fn hide(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '_');
    let mut known = Pseudonyms::default();
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find(is_part) {
        let (between, from) = rest.split_at(begin);
        clean.push_str(between);
        let length = from.find(|c| !is_part(c)).unwrap_or(from.len());
        let (run, after) = from.split_at(length);
        // A full stop or a colon after the value is not part of the value, except for the end `::`
        // of an address.
        let word = run.trim_end_matches(['.', ':', '_']);
        let end = run.get(word.len()..).unwrap_or_default();
        let (word, end) = if end.starts_with("::") && run.parse::<Ipv6Addr>().is_ok() {
            (run, "")
        } else {
            (word, end)
        };
        match known.instead(word, &clean) {
            Some(instead) => clean.push_str(&instead),
            None => clean.push_str(word),
        }
        clean.push_str(end);
        rest = after;
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_equal_names() {
        assert_eq!(
            hide("eth0 10.1.2.3/24, ::ffff:10.1.2.3 and 10.1.2.4:4791; 10.1.2.3. 127.0.0.1"),
            "eth0 IPv4-1/24, ::ffff:IPv4-1 and IPv4-2:4791; IPv4-1. 127.0.0.1"
        );
        assert_eq!(
            hide("fe80::1:2%eth0 2001:db8::7 ::1 :: 52:54:00:12:34:56 0200:00ff:fe00:0001"),
            "LINK-LOCAL-1%eth0 IPv6-1 ::1 :: MAC-1 GUID-1"
        );
    }

    #[test]
    fn keys_and_addresses_are_replaced_and_other_numbers_stay() {
        assert_eq!(
            hide(
                "ibv_post_send(qp=0x9e8fa9, sge0_addr=0x7f1234567000, sge0_lkey=0x88ccac2, rkey=0x88ccac2, rkey=0x0, remote_qkey=0x1111) = 0x7f1234567000"
            ),
            "ibv_post_send(qp=0x9e8fa9, sge0_addr=MEMORY-1, sge0_lkey=KEY-1, rkey=KEY-1, rkey=0x0, remote_qkey=KEY-2) = MEMORY-1"
        );
    }

    #[test]
    fn versions_times_and_words_are_not_replaced() {
        let text = "kernel 6.18.44-fc at 17:14:22.820497954, mlx5_0: port 1, soft-rdmav65.so, 0x1f, {\"id\": \"gids\"}";
        assert_eq!(hide(text), text);
    }
}
