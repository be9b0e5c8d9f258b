//! QP-02 to QP-05, QP-08, QP-10, QP-11, WR-06: a change of a QP by ibv_modify_qp(3), before the
//! call and after a refusal.
//!
//! Map of this file: `QpChange` and `ChangeFacts`; `state`, before the call; `advice`; `values`
//! with the limits of port and device; `needs_route`; tests. No state, no lock.

use abi::{
    IBV_QPS_RTR, IBV_QPT_RC, QpAttrMask as M, ibv_ah_attr, ibv_device_attr, ibv_port_attr,
    ibv_qp_attr,
};

use super::finding::{Finding, Findings};
use super::{Id, pairs, transitions};

/// The attributes of a change. A member that the mask does not name is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpChange {
    /// The bits of `attr_mask`.
    pub(crate) mask: u32,
    pub(crate) qp_state: Option<u32>,
    pub(crate) cur_qp_state: Option<u32>,
    /// An `ibv_mtu`.
    pub(crate) path_mtu: Option<u32>,
    pub(crate) port_num: Option<u8>,
    pub(crate) timeout: Option<u8>,
    pub(crate) retry_cnt: Option<u8>,
    pub(crate) rnr_retry: Option<u8>,
    pub(crate) min_rnr_timer: Option<u8>,
    pub(crate) rq_psn: Option<u32>,
    pub(crate) sq_psn: Option<u32>,
    pub(crate) dest_qp_num: Option<u32>,
    pub(crate) qkey: Option<u32>,
    pub(crate) pkey_index: Option<u16>,
    pub(crate) max_rd_atomic: Option<u8>,
    pub(crate) max_dest_rd_atomic: Option<u8>,
    pub(crate) qp_access_flags: Option<u32>,
    pub(crate) ah_attr: Option<ibv_ah_attr>,
    pub(crate) alternate: Option<AlternatePath>,
    /// An `ibv_mig_state`.
    pub(crate) path_mig_state: Option<u32>,
    pub(crate) en_sqd_async_notify: Option<u8>,
    pub(crate) rate_limit: Option<u32>,
}

impl QpChange {
    /// The attributes of ibv_modify_qp(3) that `mask` names.
    pub(crate) fn new(attr: &ibv_qp_attr, mask: M) -> Self {
        macro_rules! member {
            ($bit:ident $field:ident) => {
                mask.contains(M::$bit).then_some(attr.$field)
            };
        }
        Self {
            mask: mask.bits(),
            qp_state: member!(STATE qp_state),
            cur_qp_state: member!(CUR_STATE cur_qp_state),
            path_mtu: member!(PATH_MTU path_mtu),
            port_num: member!(PORT port_num),
            timeout: member!(TIMEOUT timeout),
            retry_cnt: member!(RETRY_CNT retry_cnt),
            rnr_retry: member!(RNR_RETRY rnr_retry),
            min_rnr_timer: member!(MIN_RNR_TIMER min_rnr_timer),
            rq_psn: member!(RQ_PSN rq_psn),
            sq_psn: member!(SQ_PSN sq_psn),
            dest_qp_num: member!(DEST_QPN dest_qp_num),
            qkey: member!(QKEY qkey),
            pkey_index: member!(PKEY_INDEX pkey_index),
            max_rd_atomic: member!(MAX_QP_RD_ATOMIC max_rd_atomic),
            max_dest_rd_atomic: member!(MAX_DEST_RD_ATOMIC max_dest_rd_atomic),
            qp_access_flags: member!(ACCESS_FLAGS qp_access_flags),
            ah_attr: member!(AV ah_attr),
            alternate: mask.contains(M::ALT_PATH).then_some(AlternatePath {
                ah_attr: attr.alt_ah_attr,
                port_num: attr.alt_port_num,
                timeout: attr.alt_timeout,
                pkey_index: attr.alt_pkey_index,
            }),
            path_mig_state: member!(PATH_MIG_STATE path_mig_state),
            en_sqd_async_notify: member!(EN_SQD_ASYNC_NOTIFY en_sqd_async_notify),
            rate_limit: member!(RATE_LIMIT rate_limit),
        }
    }

    /// The change without the attributes that the kernel ignores for a QP of this type.
    pub(crate) fn of_kind(self, kind: u32) -> Self {
        let ignored = transitions::ignored(kind);
        let unless = |bit: M, value: Option<u8>| value.filter(|_| !ignored.contains(bit));
        Self {
            mask: self.mask & !ignored.bits(),
            max_dest_rd_atomic: unless(M::MAX_DEST_RD_ATOMIC, self.max_dest_rd_atomic),
            min_rnr_timer: unless(M::MIN_RNR_TIMER, self.min_rnr_timer),
            retry_cnt: unless(M::RETRY_CNT, self.retry_cnt),
            rnr_retry: unless(M::RNR_RETRY, self.rnr_retry),
            max_rd_atomic: unless(M::MAX_QP_RD_ATOMIC, self.max_rd_atomic),
            ..self
        }
    }
}

/// The attributes that `IBV_QP_ALT_PATH` names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AlternatePath {
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) pkey_index: u16,
}

/// Facts about the QP of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeFacts<'a> {
    /// `ibv_qp_type`.
    pub(crate) qp_type: u32,
    /// The last known state.
    pub(crate) state: u32,
    /// Whether `state` is certain: no other process has the QP open, and no request failed.
    pub(crate) is_certain: bool,
    /// The port of the QP before the change; 0 if unknown.
    pub(crate) port: u8,
    /// The ports of the device, beginning with port 1.
    pub(crate) ports: &'a [ibv_port_attr],
    pub(crate) device: Option<&'a ibv_device_attr>,
    /// Whether the QP has its own receive queue, and the queue is empty.
    pub(crate) lacks_receives: bool,
}

impl ChangeFacts<'_> {
    pub(crate) fn port(&self, number: u8) -> Option<&ibv_port_attr> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }

    /// The port after the change.
    pub(crate) fn port_after(&self, change: &QpChange) -> u8 {
        change.port_num.unwrap_or(self.port)
    }
}

/// QP-02: a change of state that does not exist, or with other attributes than it needs.
pub(crate) fn state(facts: &ChangeFacts<'_>, change: &QpChange) -> Option<Finding> {
    if !facts.is_certain {
        return None;
    }
    let from = change.cur_qp_state.unwrap_or(facts.state);
    let to = change.qp_state.unwrap_or(from);
    let kind = transitions::kind_name(facts.qp_type);
    let name = format!("{} -> {} of {kind}", transitions::name(from), transitions::name(to));
    let Some((needs, allows)) = transitions::allowed(facts.qp_type, from, to) else {
        let remedy = "go RESET, INIT, RTR, RTS; from ERR only to RESET";
        return Some(Finding::new(Id::Qp02, format!("there is no change {name}"), remedy));
    };
    let given = M::from_bits_retain(change.mask) & !(M::STATE | M::RATE_LIMIT);
    let (missing, extra) = (needs & !given, given & !(needs | allows));
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("{name} needs {} in attr_mask", transitions::bits(missing)));
    }
    if !extra.is_empty() {
        parts.push(format!("{name} does not take {}", transitions::bits(extra)));
    }
    let remedy = "set the attributes and their bits as ibv_modify_qp(3) lists them";
    (!parts.is_empty()).then(|| Finding::new(Id::Qp02, parts.join("; "), remedy))
}

/// QP-10, QP-11, WR-06: attributes that are permitted and probably not meant.
pub(crate) fn advice(facts: &ChangeFacts<'_>, change: &QpChange) -> Findings {
    let mut found = Findings::new();
    match change.rnr_retry {
        Some(0) => found.push(Finding::new(
            Id::Qp10,
            "rnr_retry 0: the first message that finds no receive ends the connection",
            "give the peer time, 6 for example, unless it surely posts receives before",
        )),
        Some(7) => found.push(Finding::new(
            Id::Qp10,
            "rnr_retry 7: a message that finds no receive is sent again for ever",
            "6 or less, if a peer that posts no receives is to be noticed",
        )),
        _ => {}
    }
    if change.min_rnr_timer == Some(0) {
        found.push(Finding::new(
            Id::Qp10,
            "min_rnr_timer 0 means 655.36 ms, not none",
            "12 is 0.64 ms; ibv_modify_qp(3) has the table",
        ));
    }
    found.extend(patience(change));
    let from = change.cur_qp_state.unwrap_or(facts.state);
    let becomes_rtr = change.qp_state == Some(IBV_QPS_RTR) && from != IBV_QPS_RTR;
    if becomes_rtr && facts.qp_type == IBV_QPT_RC && facts.lacks_receives {
        found.push(Finding::new(
            Id::Wr06,
            "the QP becomes ready to receive, and has no receive posted",
            "post receives between INIT and RTR: the peer may send as soon as it is told",
        ));
    }
    found
}

/// QP-11: a timeout by which a dead peer is noticed late, or never.
fn patience(change: &QpChange) -> Option<Finding> {
    let timeout = change.timeout.filter(|timeout| *timeout <= 31)?;
    let tries = u32::from(change.retry_cnt.unwrap_or(0).min(7)) + 1;
    let seconds = 4.096e-6 * f64::from(1_u32 << timeout) * f64::from(tries);
    let text = match timeout {
        0 => "timeout 0: a peer that is gone is never noticed".to_owned(),
        _ if seconds > 60.0 => format!(
            "timeout {timeout} and {tries} tries: a peer that is gone is noticed after {seconds:.0} s at least"
        ),
        _ => return None,
    };
    Some(Finding::new(Id::Qp11, text, "14 is 67 ms, which with retry_cnt 7 are half a second"))
}

/// QP-03, QP-04, QP-08: values out of their range.
pub(crate) fn values(facts: &ChangeFacts<'_>, change: &QpChange) -> Findings {
    let mut found = Findings::new();
    let mut range = |name: &str, value: Option<u32>, most: u32, why: &str| {
        if let Some(value) = value.filter(|value| *value > most) {
            found.push(Finding::new(
                Id::Qp03,
                format!("{name} {value:#x} is not in 0..={most:#x}{why}"),
                format!("set {name} to at most {most:#x}"),
            ));
        }
    };
    range("timeout", change.timeout.map(u32::from), 31, " (4.096 us * 2^timeout)");
    range("retry_cnt", change.retry_cnt.map(u32::from), 7, "");
    range("rnr_retry", change.rnr_retry.map(u32::from), 7, " (7 is for ever)");
    range("min_rnr_timer", change.min_rnr_timer.map(u32::from), 31, "");
    for (name, value) in
        [("rq_psn", change.rq_psn), ("sq_psn", change.sq_psn), ("dest_qp_num", change.dest_qp_num)]
    {
        range(name, value, 0xff_ffff, " (24 bits)");
    }
    let port = facts.port_after(change);
    if change.port_num.is_some() && facts.port(port).is_none() && !facts.ports.is_empty() {
        let ports = facts.ports.len();
        found.push(Finding::new(
            Id::Qp03,
            format!("port_num {port}: the device has ports 1..={ports}"),
            format!("set port_num to 1..={ports}"),
        ));
    }
    let Some(known) = facts.port(port) else { return found };
    found.extend(of_port(port, known, change));
    if let Some(device) = facts.device {
        found.extend(of_device(device, change));
    }
    found
}

/// QP-03, QP-04: values that the port limits.
fn of_port(port: u8, known: &ibv_port_attr, change: &QpChange) -> Findings {
    let mut found = Findings::new();
    if let Some(index) = change.pkey_index.filter(|index| *index >= known.pkey_tbl_len) {
        let most = known.pkey_tbl_len;
        found.push(Finding::new(
            Id::Qp03,
            format!("pkey_index {index}: the table of port {port} has {most} entries"),
            "set pkey_index to 0, the default partition",
        ));
    }
    if let Some(ah) = change.ah_attr
        && ah.is_global != 0
        && i32::from(ah.grh.sgid_index) >= known.gid_tbl_len
    {
        found.push(Finding::new(
            Id::Qp03,
            format!(
                "ah_attr.grh.sgid_index {}: the table of port {port} has {} entries",
                ah.grh.sgid_index, known.gid_tbl_len
            ),
            "ibv_query_gid_table shows which entries there are",
        ));
    }
    if let Some(mtu) = change.path_mtu.filter(|mtu| *mtu > known.active_mtu) {
        let bytes = |code: u32| 128_u32.checked_shl(code).unwrap_or(0);
        found.push(Finding::new(
            Id::Qp04,
            format!(
                "path_mtu {} > active_mtu {} of port {port}",
                bytes(mtu),
                bytes(known.active_mtu)
            ),
            "use ibv_port_attr.active_mtu, or raise the MTU of the network device",
        ));
    }
    found
}

/// QP-08: numbers of READs and atomics that the device limits.
fn of_device(device: &ibv_device_attr, change: &QpChange) -> Findings {
    let mut found = Findings::new();
    for (name, value, most) in [
        ("max_rd_atomic", change.max_rd_atomic, device.max_qp_init_rd_atom),
        ("max_dest_rd_atomic", change.max_dest_rd_atomic, device.max_qp_rd_atom),
    ] {
        if let Some(value) = value.filter(|value| i32::from(*value) > most) {
            found.push(Finding::new(
                Id::Qp08,
                format!("{name} {value} > {most}, the limit of the device"),
                format!("set {name} to at most {most} (ibv_query_device)"),
            ));
        }
    }
    found
}

/// QP-05: a refused address without a GRH on a port that needs one.
pub(crate) fn needs_route(facts: &ChangeFacts<'_>, change: &QpChange) -> Option<Finding> {
    let is_global = change.ah_attr?.is_global != 0;
    let port = facts.port_after(change);
    let text = pairs::local_address(facts.ports, port, is_global, "ah_attr.is_global")?;
    Some(Finding::new(Id::Qp05, format!("EINVAL: {text}"), pairs::NEEDS_GLOBAL))
}

#[cfg(test)]
pub(crate) mod testing {
    use core::net::Ipv6Addr;

    use super::*;
    use crate::checks::given::testing::device;
    use abi::{IBV_QPS_INIT, Zeroed, ibv_gid};

    pub(crate) fn with<R>(act: impl FnOnce(&ChangeFacts<'_>) -> R) -> R {
        let (device, ports) = device();
        let device = ibv_device_attr { max_qp_rd_atom: 4, max_qp_init_rd_atom: 2, ..device };
        act(&ChangeFacts {
            qp_type: IBV_QPT_RC,
            state: IBV_QPS_INIT,
            is_certain: true,
            port: 1,
            ports: &ports,
            device: Some(&device),
            lacks_receives: true,
        })
    }

    /// An address with these GIDs, with a GRH.
    pub(crate) fn to(dgid: &str) -> ibv_ah_attr {
        let address: Ipv6Addr = dgid.parse().expect("an address");
        let mut ah = ibv_ah_attr { is_global: 1, port_num: 1, ..ibv_ah_attr::zeroed() };
        ah.grh.dgid = ibv_gid { raw: address.octets() };
        ah
    }

    pub(crate) const NONE: QpChange = QpChange {
        mask: 0,
        qp_state: None,
        cur_qp_state: None,
        path_mtu: None,
        port_num: None,
        timeout: None,
        retry_cnt: None,
        rnr_retry: None,
        min_rnr_timer: None,
        rq_psn: None,
        sq_psn: None,
        dest_qp_num: None,
        qkey: None,
        pkey_index: None,
        max_rd_atomic: None,
        max_dest_rd_atomic: None,
        qp_access_flags: None,
        ah_attr: None,
        alternate: None,
        path_mig_state: None,
        en_sqd_async_notify: None,
        rate_limit: None,
    };
}

#[cfg(test)]
mod tests {
    use super::super::finding::testing::{ids, text};
    use super::*;
    use abi::{
        IBV_MTU_1024, IBV_MTU_4096, IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_RTS, IBV_QPT_UD, Zeroed,
    };

    use super::testing::{NONE, to, with};

    fn found(change: QpChange) -> Findings {
        with(|facts| values(facts, &change))
    }

    #[test]
    fn a_change_that_does_not_exist_is_named() {
        let change = QpChange { mask: M::STATE.bits(), qp_state: Some(IBV_QPS_RTS), ..NONE };
        let found = with(|facts| state(facts, &change)).expect("a finding");
        assert_eq!(
            (found.id, found.text.as_str()),
            (Id::Qp02, "there is no change INIT -> RTS of RC")
        );
    }

    #[test]
    fn missing_attributes_are_named_by_their_bits() {
        let mask = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC;
        let change = QpChange { mask: mask.bits(), qp_state: Some(IBV_QPS_RTR), ..NONE };
        let found = with(|facts| state(facts, &change)).expect("a finding");
        assert_eq!(found.text, "INIT -> RTR of RC needs IBV_QP_MIN_RNR_TIMER in attr_mask");
    }

    #[test]
    fn attributes_that_a_change_does_not_take_are_named() {
        let change =
            QpChange { mask: (M::STATE | M::SQ_PSN).bits(), qp_state: Some(IBV_QPS_RESET), ..NONE };
        let found = with(|facts| state(facts, &change)).expect("a finding");
        assert_eq!(found.text, "INIT -> RESET of RC does not take IBV_QP_SQ_PSN");
    }

    #[test]
    fn a_complete_change_is_good() {
        let change = QpChange { mask: M::STATE.bits(), qp_state: Some(IBV_QPS_ERR), ..NONE };
        assert_eq!(with(|facts| state(facts, &change)), None);
    }

    #[test]
    fn a_change_of_an_uncertain_state_is_not_judged() {
        let change = QpChange { mask: M::STATE.bits(), qp_state: Some(IBV_QPS_RTS), ..NONE };
        let uncertain = with(|facts| state(&ChangeFacts { is_certain: false, ..*facts }, &change));
        assert_eq!(uncertain, None);
    }

    #[test]
    fn the_programs_own_word_on_the_state_counts() {
        let change = QpChange {
            mask: (M::STATE | M::CUR_STATE).bits(),
            qp_state: Some(IBV_QPS_RTS),
            cur_qp_state: Some(IBV_QPS_RTS),
            ..NONE
        };
        assert_eq!(with(|facts| state(facts, &change)), None);
    }

    #[test]
    fn timers_and_retries_have_limits() {
        let change = QpChange {
            timeout: Some(32),
            retry_cnt: Some(8),
            rnr_retry: Some(8),
            min_rnr_timer: Some(32),
            ..NONE
        };
        assert_eq!(ids(&found(change)), [Id::Qp03; 4]);
        let most = QpChange {
            timeout: Some(31),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            min_rnr_timer: Some(31),
            ..NONE
        };
        assert_eq!(found(most), []);
    }

    #[test]
    fn packet_and_queue_pair_numbers_have_24_bits() {
        let over = Some(0x100_0000);
        let change = QpChange { rq_psn: over, sq_psn: over, dest_qp_num: over, ..NONE };
        assert_eq!(ids(&found(change)), [Id::Qp03; 3]);
        let most = Some(0xff_ffff);
        assert_eq!(found(QpChange { rq_psn: most, sq_psn: most, dest_qp_num: most, ..NONE }), []);
    }

    #[test]
    fn the_remedy_of_a_value_out_of_range_names_the_limit() {
        let found = found(QpChange { retry_cnt: Some(8), ..NONE });
        assert_eq!(found[0].remedy, "set retry_cnt to at most 0x7");
    }

    #[test]
    fn a_port_is_one_of_the_device() {
        let found = found(QpChange { port_num: Some(2), ..NONE });
        assert_eq!(text(&found), "port_num 2: the device has ports 1..=1");
    }

    #[test]
    fn without_known_ports_no_port_is_wrong() {
        let change = QpChange { port_num: Some(2), path_mtu: Some(9), ..NONE };
        assert_eq!(with(|facts| values(&ChangeFacts { ports: &[], ..*facts }, &change)), []);
    }

    #[test]
    fn a_partition_key_is_an_entry_of_the_ports_table() {
        let wrong = found(QpChange { pkey_index: Some(1), ..NONE });
        assert_eq!(text(&wrong), "pkey_index 1: the table of port 1 has 1 entries");
        assert_eq!(found(QpChange { pkey_index: Some(0), ..NONE }), []);
    }

    #[test]
    fn a_source_gid_is_an_entry_of_the_ports_table() {
        let mut ah = to("fe80::1");
        ah.grh.sgid_index = 32;
        let wrong = found(QpChange { ah_attr: Some(ah), ..NONE });
        assert_eq!(text(&wrong), "ah_attr.grh.sgid_index 32: the table of port 1 has 32 entries");
        ah.is_global = 0;
        assert_eq!(
            found(QpChange { ah_attr: Some(ah), ..NONE }),
            [],
            "without a GRH no GID counts"
        );
    }

    #[test]
    fn the_path_mtu_is_at_most_that_of_the_port() {
        let wrong = found(QpChange { path_mtu: Some(IBV_MTU_4096), ..NONE });
        assert_eq!(text(&wrong), "path_mtu 4096 > active_mtu 1024 of port 1");
        assert_eq!(found(QpChange { path_mtu: Some(IBV_MTU_1024), ..NONE }), []);
    }

    #[test]
    fn reads_have_a_limit_at_each_end() {
        let change = QpChange { max_rd_atomic: Some(3), max_dest_rd_atomic: Some(5), ..NONE };
        let wrong = found(change);
        assert_eq!(ids(&wrong), [Id::Qp08; 2]);
        assert_eq!(wrong[0].text, "max_rd_atomic 3 > 2, the limit of the device");
        let most = QpChange { max_rd_atomic: Some(2), max_dest_rd_atomic: Some(4), ..NONE };
        assert_eq!(found(most), []);
    }

    #[test]
    fn extreme_retries_are_advised_against() {
        let advised = |change| ids(&with(|facts| advice(facts, &change)));
        assert_eq!(advised(QpChange { rnr_retry: Some(0), ..NONE }), [Id::Qp10]);
        assert_eq!(advised(QpChange { rnr_retry: Some(7), ..NONE }), [Id::Qp10]);
        assert_eq!(advised(QpChange { rnr_retry: Some(6), ..NONE }), []);
        assert_eq!(advised(QpChange { min_rnr_timer: Some(0), ..NONE }), [Id::Qp10]);
    }

    #[test]
    fn a_timeout_of_0_never_notices_a_dead_peer() {
        let change = QpChange { timeout: Some(0), ..NONE };
        assert_eq!(
            text(&with(|facts| advice(facts, &change))),
            "timeout 0: a peer that is gone is never noticed"
        );
    }

    #[test]
    fn a_long_timeout_is_told_in_seconds_with_its_tries() {
        let change = QpChange { timeout: Some(22), retry_cnt: Some(7), ..NONE };
        let found = with(|facts| advice(facts, &change));
        assert!(text(&found).starts_with("timeout 22 and 8 tries"), "{found:?}");
        assert!(text(&found).contains("137 s"), "{found:?}");
        let short = QpChange { timeout: Some(14), retry_cnt: Some(7), ..NONE };
        assert_eq!(with(|facts| advice(facts, &short)), []);
    }

    #[test]
    fn a_connection_without_receives_is_advised_against() {
        let change = QpChange { qp_state: Some(IBV_QPS_RTR), ..NONE };
        assert_eq!(ids(&with(|facts| advice(facts, &change))), [Id::Wr06]);
        let datagrams =
            with(|facts| advice(&ChangeFacts { qp_type: IBV_QPT_UD, ..*facts }, &change));
        assert_eq!(datagrams, []);
        let posted =
            with(|facts| advice(&ChangeFacts { lacks_receives: false, ..*facts }, &change));
        assert_eq!(posted, []);
    }

    #[test]
    fn an_address_without_a_grh_is_refused_on_ethernet() {
        let ah = ibv_ah_attr { port_num: 1, ..ibv_ah_attr::zeroed() };
        let found = with(|facts| needs_route(facts, &QpChange { ah_attr: Some(ah), ..NONE }));
        assert_eq!(found.map(|found| found.id), Some(Id::Qp05));
        let global = QpChange { ah_attr: Some(to("fe80::1")), ..NONE };
        assert_eq!(with(|facts| needs_route(facts, &global)), None);
        assert_eq!(with(|facts| needs_route(facts, &NONE)), None);
    }

    #[test]
    fn attributes_that_the_kernel_ignores_are_not_judged() {
        let change = QpChange {
            mask: (M::RETRY_CNT | M::MIN_RNR_TIMER).bits(),
            retry_cnt: Some(9),
            min_rnr_timer: Some(40),
            ..QpChange::default()
        };
        let sender = change.of_kind(abi::IBV_QPT_XRC_SEND);
        assert_eq!((sender.retry_cnt, sender.min_rnr_timer), (Some(9), None));
        assert_eq!(sender.mask, M::RETRY_CNT.bits());
        let receiver = change.of_kind(abi::IBV_QPT_XRC_RECV);
        assert_eq!((receiver.retry_cnt, receiver.min_rnr_timer), (None, Some(40)));
        let connected = change.of_kind(IBV_QPT_RC);
        assert_eq!(connected.mask, change.mask);
    }
}
