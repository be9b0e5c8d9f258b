//! QP-03: a change of a QP that was refused for a reason that no other check knows. Suspicious
//! attributes come first in the message, then the others.

use core::net::Ipv6Addr;

use abi::{IBV_LINK_LAYER_ETHERNET, ibv_ah_attr};

use super::change::{ChangeFacts, QpChange};
use super::finding::Finding;
use super::given::errno_name;
use super::{Id, address, transitions};

/// `IBV_MIG_ARMED`.
const LAST_MIGRATION_STATE: u32 = 2;
/// `IBV_MTU_4096`.
const LAST_MTU: u32 = 5;
/// Access flags that a queue pair may have.
const RIGHTS: u32 = 0x30f;
/// The largest service level (4 bits).
const LAST_SERVICE_LEVEL: u8 = 15;

/// The judged attributes of a refused change.
#[derive(Default)]
struct ChangeArguments {
    /// Suspicious attributes with the reason.
    suspicious: Vec<String>,
    plausible: Vec<String>,
}

impl ChangeArguments {
    fn add(&mut self, name: &str, value: &str, why: Option<String>) {
        match why {
            Some(why) => self.suspicious.push(format!("{name} {value} ({why})")),
            None => self.plausible.push(format!("{name} {value}")),
        }
    }

    /// Adds a number, which is suspicious outside `least..=most`.
    fn number(&mut self, name: &str, value: u32, least: u32, most: u32) {
        let is_odd = value < least || value > most;
        self.add(name, &value.to_string(), is_odd.then(|| format!("not in {least}..={most}")));
    }

    fn address(
        &mut self,
        facts: &ChangeFacts<'_>,
        is_empty: &dyn Fn(u8, u8) -> bool,
        name: &str,
        port: u8,
        address: &ibv_ah_attr,
    ) {
        let name = |member: &str| format!("{name}.{member}");
        let is_ethernet = facts
            .port(port)
            .is_some_and(|port| u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET);
        let odd = (address.is_global == 0 && is_ethernet).then(|| "RoCE needs 1".to_owned());
        self.add(&name("is_global"), &address.is_global.to_string(), odd);
        if address.is_global != 0 {
            let to = Ipv6Addr::from(address.grh.dgid.bytes());
            self.add(&name("grh.dgid"), &to.to_string(), address::no_peer(to).map(str::to_owned));
            let index = address.grh.sgid_index;
            let odd = (facts.port(port).is_some() && is_empty(port, index))
                .then(|| "an empty entry".to_owned());
            self.add(&name("grh.sgid_index"), &index.to_string(), odd);
        }
        self.number(&name("sl"), address.sl.into(), 0, LAST_SERVICE_LEVEL.into());
        let odd = (address.port_num != port).then(|| format!("the QP is on port {port}"));
        self.add(&name("port_num"), &address.port_num.to_string(), odd);
        self.add(&name("static_rate"), &address.static_rate.to_string(), None);
    }
}

/// QP-03: a change that was refused with `errno`, for a reason that no other check knows. `actual`
/// is the state that the device reports, and `is_empty` tells whether an entry of a port's GID
/// table is empty.
pub(crate) fn refused(
    facts: &ChangeFacts<'_>,
    change: &QpChange,
    errno: i32,
    actual: Option<u32>,
    is_empty: &dyn Fn(u8, u8) -> bool,
) -> Option<Finding> {
    let mut given = ChangeArguments::default();
    if let Some(now) = actual {
        if now != facts.state {
            given.suspicious.push(format!(
                "the QP is in {}, where it went by itself, and not in {}",
                transitions::name(now),
                transitions::name(facts.state)
            ));
        }
        let to = change.qp_state.unwrap_or(now);
        if transitions::allowed(facts.qp_type, now, to).is_none() {
            given.suspicious.push(format!(
                "there is no change {} -> {}",
                transitions::name(now),
                transitions::name(to)
            ));
        }
    }
    judge_arguments(&mut given, facts, change, is_empty);
    let ChangeArguments { suspicious: odd, plausible: rest } = given;
    let errno = match errno {
        // An unreachable destination is reported only with a suspicious attribute.
        libc::EHOSTUNREACH if !odd.is_empty() => "EHOSTUNREACH",
        errno => errno_name(errno)?,
    };
    let (odd, rest) = (odd.join(", "), rest.join(", "));
    let text = match (odd.is_empty(), rest.is_empty()) {
        (true, _) => format!("{errno}, and no check knows why; given were {rest}"),
        (false, true) => format!("{errno}; what looks wrong: {odd}"),
        (false, false) => format!("{errno}; what looks wrong: {odd}; the others: {rest}"),
    };
    let remedy = "correct what looks wrong; a device may have rules of its own (dmesg)";
    Some(Finding::new(Id::Qp03, text, remedy))
}

fn judge_arguments(
    given: &mut ChangeArguments,
    facts: &ChangeFacts<'_>,
    change: &QpChange,
    is_empty: &dyn Fn(u8, u8) -> bool,
) {
    for (name, state) in [("qp_state", change.qp_state), ("cur_qp_state", change.cur_qp_state)] {
        if let Some(state) = state {
            given.add(name, &transitions::name(state), None);
        }
    }
    if let Some(address) = &change.ah_attr {
        given.address(facts, is_empty, "ah_attr", facts.port_after(change), address);
    }
    if let Some(path) = &change.alternate {
        let ports = u32::try_from(facts.ports.len()).unwrap_or(u32::MAX);
        given.number("alt_port_num", path.port_num.into(), 1, ports);
        given.number("alt_timeout", path.timeout.into(), 0, 31);
        let keys = facts.port(path.port_num).map_or(u32::MAX, |port| port.pkey_tbl_len.into());
        given.number("alt_pkey_index", path.pkey_index.into(), 0, keys.saturating_sub(1));
        given.address(facts, is_empty, "alt_ah_attr", path.port_num, &path.ah_attr);
    }
    if let Some(state) = change.path_mig_state {
        given.number("path_mig_state", state, 0, LAST_MIGRATION_STATE);
    }
    if let Some(mtu) = change.path_mtu {
        given.number("path_mtu", mtu, 1, LAST_MTU);
    }
    if let Some(flags) = change.qp_access_flags {
        let odd = (flags & !RIGHTS != 0).then(|| format!("{:#x} is no right", flags & !RIGHTS));
        given.add("qp_access_flags", &format!("{flags:#x}"), odd);
    }
    if let Some(switch) = change.en_sqd_async_notify {
        given.number("en_sqd_async_notify", switch.into(), 0, 1);
    }
    if let Some(number) = change.dest_qp_num {
        let odd = (number < 2).then(|| "no QP of a program has it".to_owned());
        given.add("dest_qp_num", &format!("{number:#x}"), odd);
    }
    for (name, value) in [
        ("pkey_index", change.pkey_index.map(u32::from)),
        ("port_num", change.port_num.map(u32::from)),
        ("qkey", change.qkey),
        ("timeout", change.timeout.map(u32::from)),
        ("retry_cnt", change.retry_cnt.map(u32::from)),
        ("rnr_retry", change.rnr_retry.map(u32::from)),
        ("min_rnr_timer", change.min_rnr_timer.map(u32::from)),
        ("rq_psn", change.rq_psn),
        ("sq_psn", change.sq_psn),
        ("max_rd_atomic", change.max_rd_atomic.map(u32::from)),
        ("max_dest_rd_atomic", change.max_dest_rd_atomic.map(u32::from)),
    ] {
        if let Some(value) = value {
            given.add(name, &value.to_string(), None);
        }
    }
    if let Some(rate) = change.rate_limit {
        // Bits per kilosecond have no meaning for a connection: only RAW_PACKET has a rate.
        let odd = (facts.qp_type != abi::IBV_QPT_RAW_PACKET)
            .then(|| "kbit/s, a limit that only a RAW_PACKET QP has".to_owned());
        given.add("rate_limit", &rate.to_string(), odd);
    }
}

#[cfg(test)]
mod tests {
    use super::super::change::AlternatePath;
    use super::super::change::testing::{NONE, to, with};
    use super::*;
    use abi::{IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};

    fn why(change: QpChange, actual: Option<u32>) -> String {
        let found = with(|facts| refused(facts, &change, libc::EINVAL, actual, &|_, _| false));
        found.expect("a finding").text
    }

    #[test]
    fn a_refused_change_lists_suspicious_attributes_first() {
        let change = QpChange { path_mtu: Some(9), timeout: Some(14), ..NONE };
        assert_eq!(
            why(change, None),
            "EINVAL; what looks wrong: path_mtu 9 (not in 1..=5); the others: timeout 14"
        );
    }

    #[test]
    fn a_refused_change_without_suspicion_lists_all_attributes() {
        let change = QpChange { qp_state: Some(IBV_QPS_RTR), timeout: Some(14), ..NONE };
        assert_eq!(
            why(change, Some(IBV_QPS_INIT)),
            "EINVAL, and no check knows why; given were qp_state RTR, timeout 14"
        );
    }

    #[test]
    fn a_qp_that_changed_its_state_by_itself_is_suspicious() {
        let change = QpChange { qp_state: Some(IBV_QPS_RTS), ..NONE };
        let text = why(change, Some(IBV_QPS_ERR));
        assert!(
            text.contains("the QP is in ERR, where it went by itself, and not in INIT"),
            "{text}"
        );
        assert!(text.contains("there is no change ERR -> RTS"), "{text}");
    }

    #[test]
    fn a_multicast_destination_is_suspicious() {
        let text = why(QpChange { ah_attr: Some(to("ff02::1")), ..NONE }, None);
        assert!(text.contains("ah_attr.grh.dgid ff02::1 (a group"), "{text}");
    }

    #[test]
    fn an_empty_source_gid_is_suspicious() {
        let change = QpChange { ah_attr: Some(to("fe80::1")), ..NONE };
        let found = with(|facts| refused(facts, &change, libc::EINVAL, None, &|_, _| true));
        let text = found.expect("a finding").text;
        assert!(text.contains("ah_attr.grh.sgid_index 0 (an empty entry)"), "{text}");
    }

    #[test]
    fn an_alternate_path_is_judged_like_the_path() {
        let alternate =
            AlternatePath { ah_attr: to("fe80::1"), port_num: 7, timeout: 32, pkey_index: 0 };
        let text = why(QpChange { alternate: Some(alternate), ..NONE }, None);
        assert!(text.contains("alt_port_num 7 (not in 1..=1)"), "{text}");
        assert!(text.contains("alt_timeout 32 (not in 0..=31)"), "{text}");
        assert!(text.contains("alt_ah_attr.port_num 1 (the QP is on port 7)"), "{text}");
    }

    #[test]
    fn rights_and_numbers_that_do_not_exist_are_suspicious() {
        let change = QpChange {
            qp_access_flags: Some(0x1001),
            dest_qp_num: Some(1),
            en_sqd_async_notify: Some(2),
            path_mig_state: Some(3),
            ..NONE
        };
        let text = why(change, None);
        for part in [
            "0x1000 is no right",
            "dest_qp_num 0x1 (no QP",
            "en_sqd_async_notify 2 (not in 0..=1)",
            "path_mig_state 3 (not in 0..=2)",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_rate_limit_is_for_frames() {
        let change = QpChange { rate_limit: Some(1000), ..NONE };
        let text = why(change, None);
        assert!(
            text.contains("rate_limit 1000 (kbit/s, a limit that only a RAW_PACKET QP has)"),
            "{text}"
        );
        let frames = with(|facts| {
            let facts = ChangeFacts { qp_type: abi::IBV_QPT_RAW_PACKET, ..*facts };
            refused(&facts, &change, libc::EINVAL, None, &|_, _| false)
        });
        let text = frames.expect("a finding").text;
        assert_eq!(text, "EINVAL, and no check knows why; given were rate_limit 1000");
    }

    #[test]
    fn an_unreachable_host_is_reported_only_with_a_suspicion() {
        let of =
            |change| with(|facts| refused(facts, &change, libc::EHOSTUNREACH, None, &|_, _| false));
        assert_eq!(of(QpChange { timeout: Some(14), ..NONE }), None);
        assert!(of(QpChange { path_mtu: Some(0), ..NONE }).is_some());
    }

    #[test]
    fn an_errno_that_no_verb_explains_is_not_reported() {
        let found = with(|facts| refused(facts, &NONE, libc::EPERM, None, &|_, _| false));
        assert_eq!(found, None);
    }
}
