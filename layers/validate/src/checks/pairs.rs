//! Refusals of queue pairs, address handles and multicast: ibv_create_qp(3), ibv_open_qp(3),
//! ibv_create_ah(3), ibv_attach_mcast(3), ibv_detach_mcast(3).
//!
//! Map of this file: creation and opening of QPs; address handles; multicast; queries, ECE, rates
//! and counters of a QP; destruction; tests. No state, no lock.

use core::net::Ipv6Addr;

use abi::{
    IBV_LINK_LAYER_ETHERNET, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_RESERVED,
    IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTS,
    IBV_QPT_RAW_PACKET, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_ece, ibv_port_attr,
    ibv_qp_cap, ibv_qp_rate_limit_attr,
};

use super::Id;
use super::given::{Facts, Judged};
use super::transitions::{ATTRIBUTES, kind_name, name};

/// The arguments of a QP's creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedQp {
    pub(crate) qp_type: u32,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) has_pd: bool,
    pub(crate) has_send_cq: bool,
    pub(crate) has_recv_cq: bool,
    pub(crate) has_srq: bool,
    pub(crate) has_xrcd: bool,
    /// Whether the QP spreads frames over work queues (`rwq_ind_tbl`).
    pub(crate) spreads: bool,
    /// Whether the SRQ is an XRC queue or matches tags.
    pub(crate) special_srq: bool,
}

/// ibv_create_qp(3) and ibv_create_qp_ex(3).
pub(crate) fn create_qp(facts: &Facts<'_>, asked: &WantedQp, errno: i32) -> Judged {
    let mut given = Judged::default();
    let WantedQp { qp_type: kind, cap, .. } = *asked;
    let device = facts.device;
    if errno == libc::ENOMEM {
        given.full("QPs", facts.counts.qps, device.map(|device| device.max_qp), "max_qp");
    }
    given.add_plausible("qp_type", kind_name(kind));
    let receives = kind == IBV_QPT_XRC_RECV;
    if receives {
        given.add_required(
            "xrcd",
            asked.has_xrcd,
            "set xrcd and IBV_QP_INIT_ATTR_XRCD: an XRC_RECV QP is in an XRC domain",
        );
        return given;
    }
    if !asked.has_pd {
        given.add_wrong("there is no PD", "set pd and IBV_QP_INIT_ATTR_PD");
    }
    let remedy = "make a CQ by ibv_create_cq, and name it; one may serve for both";
    if !asked.spreads {
        given.add_required("send_cq", asked.has_send_cq, remedy);
        if kind != IBV_QPT_XRC_SEND {
            given.add_required("recv_cq", asked.has_recv_cq, remedy);
        }
    }
    if asked.special_srq {
        given.add_wrong(
            "srq is of XRC, or matches tags, which this type does not take",
            "use a basic SRQ; one of XRC is named in each request, and tags are matched by RC",
        );
    }
    let (wr, sge) = (device.map(|d| d.max_qp_wr), device.map(|d| d.max_sge));
    given.limited("cap.max_send_wr", cap.max_send_wr, 0, wr, "max_qp_wr");
    given.limited("cap.max_send_sge", cap.max_send_sge, 0, sge, "max_sge");
    // The device ignores these with an SRQ, and for a QP that only sends.
    if !asked.has_srq && kind != IBV_QPT_XRC_SEND {
        given.limited("cap.max_recv_wr", cap.max_recv_wr, 0, wr, "max_qp_wr");
        given.limited("cap.max_recv_sge", cap.max_recv_sge, 0, sge, "max_sge");
    }
    given.add_plausible("cap.max_inline_data", cap.max_inline_data);
    given
}

/// ibv_open_qp(3).
pub(crate) fn open_qp(comp_mask: u32, kind: u32, has_xrcd: bool, number: u32) -> Judged {
    let mut given = Judged::default();
    given.flags("comp_mask", comp_mask.into(), u64::from(IBV_QP_OPEN_ATTR_RESERVED - 1));
    let needs = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    if comp_mask & needs != needs {
        given.add_wrong(
            format!("comp_mask {comp_mask:#x} lacks {:#x}", needs & !comp_mask),
            "set IBV_QP_OPEN_ATTR_NUM, _XRCD and _TYPE",
        );
    }
    if kind != IBV_QPT_XRC_RECV {
        let text = format!("qp_type is {}: only an XRC_RECV QP is opened", kind_name(kind));
        given.add_wrong(text, "set qp_type to IBV_QPT_XRC_RECV");
    }
    given.add_required("xrcd", has_xrcd, "set xrcd to the XRC domain that the QP was created in");
    if given.wrong_arguments.is_empty() {
        given.add_wrong(
            format!("the XRC domain has no XRC_RECV QP of number {number:#x}"),
            "compare qp_num with qp->qp_num of the process that created it; is that QP still there?",
        );
    }
    given
}

/// The arguments of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) port: u8,
    pub(crate) is_global: bool,
    pub(crate) dgid: Ipv6Addr,
    pub(crate) sgid_index: u8,
    /// Whether the GID table's entry is empty.
    pub(crate) is_empty: bool,
    pub(crate) sl: u8,
}

/// QP-05: the text for `is_global` 0 on an Ethernet port. `name` is the member's name.
pub(crate) fn local_address(
    ports: &[ibv_port_attr],
    port: u8,
    is_global: bool,
    name: &str,
) -> Option<String> {
    let port = ports.get(usize::from(port).checked_sub(1)?)?;
    let is_ethernet = u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET;
    (is_ethernet && !is_global).then(|| format!("{name} is 0, and the port is Ethernet"))
}

/// The remedy for [`local_address`].
pub(crate) const NEEDS_GLOBAL: &str =
    "set is_global to 1, grh.sgid_index to a GID of the port and grh.dgid to one of the peer";

/// ibv_create_ah(3).
pub(crate) fn create_ah(facts: &Facts<'_>, asked: &Address, errno: i32) -> Judged {
    let mut given = Judged::default();
    if errno == libc::ENOMEM {
        given.full("address handles", facts.counts.ahs, facts.device.map(|d| d.max_ah), "max_ah");
    }
    if !facts.ports.is_empty() {
        let last = i64::try_from(facts.ports.len()).unwrap_or(i64::MAX);
        given.number("port_num", asked.port.into(), 1..=last, "phys_port_cnt of ibv_query_device");
    }
    if let Some(text) = local_address(facts.ports, asked.port, asked.is_global, "is_global") {
        given.wrong_by(Id::Qp05, text, NEEDS_GLOBAL);
    } else {
        given.add_plausible("is_global", u8::from(asked.is_global));
    }
    given.number("sl", asked.sl.into(), 0..=15, "4 bits");
    let port = usize::from(asked.port).checked_sub(1).and_then(|at| facts.ports.get(at));
    let (true, Some(port)) = (asked.is_global, port) else { return given };
    let length = i64::from(port.gid_tbl_len);
    let index = i64::from(asked.sgid_index);
    given.number("grh.sgid_index", index, 0..=length - 1, "gid_tbl_len of ibv_query_port, less 1");
    if asked.is_empty && index < length {
        given.add_wrong(
            format!("grh.sgid_index {index}: that entry of the port's GID table is empty"),
            "ibv_query_gid_table shows the entries that are there; ibv_devinfo -v prints them",
        );
    }
    given.add_plausible("grh.dgid", asked.dgid);
    given
}

/// ibv_attach_mcast(3) and ibv_detach_mcast(3). `groups` is the number of groups of the QP.
pub(crate) fn multicast(
    facts: &Facts<'_>,
    kind: u32,
    group: Ipv6Addr,
    detaches: bool,
    groups: u32,
    errno: i32,
) -> Judged {
    let mut given = Judged::default();
    if !matches!(kind, IBV_QPT_UD | IBV_QPT_RAW_PACKET) {
        let text = format!("the QP is {}: only UD takes part in multicast", kind_name(kind));
        given.wrong_by(Id::Ob03, text, "use a QP of type IBV_QPT_UD");
    }
    let is_group = group.is_multicast();
    if is_group {
        given.add_plausible("gid", group);
    } else {
        given.add_wrong(format!("gid {group} is no group"), "a group's GID begins with ff");
    }
    if detaches && is_group {
        given.add_wrong(
            format!("the QP is not attached to this group (it is attached to {groups})"),
            "ibv_detach_mcast with the GID and LID that ibv_attach_mcast was given",
        );
    }
    if let (libc::ENOMEM, Some(device)) = (errno, facts.device) {
        given.add_wrong(
            format!(
                "max_mcast_grp is {}, max_mcast_qp_attach {}",
                device.max_mcast_grp, device.max_mcast_qp_attach
            ),
            "detach QPs that need the group no more",
        );
    }
    given
}

/// ibv_query_qp(3).
pub(crate) fn query_qp(mask: u32, has_attr: bool, has_init_attr: bool) -> Judged {
    let mut given = Judged::default();
    given.flags("attr_mask", mask.into(), ATTRIBUTES.into());
    given.add_required("attr", has_attr, "give a struct ibv_qp_attr, which the call fills in");
    let remedy = "give a struct ibv_qp_init_attr, which the call fills in";
    given.add_required("init_attr", has_init_attr, remedy);
    given
}

/// ibv_set_ece(3) and ibv_query_ece(3), for a QP in `state`.
pub(crate) fn ece(state: Option<u32>, sets: bool, ece: &ibv_ece) -> Judged {
    let mut given = Judged::default();
    match state {
        Some(state) if sets && !matches!(state, IBV_QPS_RESET | IBV_QPS_INIT) => given.add_wrong(
            format!("the QP is in {}: options are set before RTR", name(state)),
            "ibv_set_ece after the change to INIT, and before that to RTR",
        ),
        Some(state) => given.add_plausible("state", name(state)),
        None => {}
    }
    if sets {
        given.add_plausible("vendor_id", format_args!("{:#x}", ece.vendor_id));
        given.add_plausible("options", format_args!("{:#x}", ece.options));
        given.add_plausible("comp_mask", format_args!("{:#x}", ece.comp_mask));
    }
    given
}

/// ibv_modify_qp_rate_limit(3), for a QP in `state`.
pub(crate) fn rate_limit(state: Option<u32>, attr: &ibv_qp_rate_limit_attr) -> Judged {
    let mut given = Judged::default();
    match state {
        Some(state) if state != IBV_QPS_RTS => given.add_wrong(
            format!("the QP is in {}, and only a QP in RTS has a rate", name(state)),
            "ibv_modify_qp to RTS first",
        ),
        Some(state) => given.add_plausible("state", name(state)),
        None => {}
    }
    given.flags("comp_mask", attr.comp_mask.into(), 0);
    given.add_plausible("rate_limit", format_args!("{} kbit/s", attr.rate_limit));
    given.add_plausible("max_burst_sz", attr.max_burst_sz);
    given.add_plausible("typical_pkt_sz", attr.typical_pkt_sz);
    given
}

/// Operations that a completion counter counts (`IBV_QP_ATTACH_COMP_CNTR_OP_*`).
const COUNTED: u32 = 0x3f;

/// ibv_qp_attach_comp_cntr(3).
pub(crate) fn attach_counter(comp_mask: u32, op_mask: u32, errno: i32) -> Judged {
    let mut given = Judged::default();
    given.flags("comp_mask", comp_mask.into(), 0);
    if op_mask == 0 {
        let remedy = "set op_mask to the operations that the counter counts";
        given.add_wrong("op_mask 0 names no operation", remedy);
    } else {
        given.flags("op_mask", op_mask.into(), COUNTED.into());
    }
    if errno == libc::EBUSY {
        let remedy = "use one counter for each QP and kind of operation";
        given.add_wrong("the counter, or the operation of the QP, is in use already", remedy);
    }
    given
}

/// EBUSY of ibv_destroy_qp(3), for a QP without a multicast group: `objects::attached` reports an
/// attached QP.
pub(crate) fn destroy_qp() -> Judged {
    let mut given = Judged::default();
    let remedy = "ibv_destroy_flow each of them first";
    given.add_wrong("rules of ibv_create_flow name the QP", remedy);
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::given::ObjectCounts;
    use crate::checks::given::testing::{judge_with, wrong_texts};
    use abi::{IBV_QPT_RC, IBV_QPT_UC};

    const GOOD: WantedQp = WantedQp {
        qp_type: IBV_QPT_RC,
        cap: ibv_qp_cap {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        has_pd: true,
        has_send_cq: true,
        has_recv_cq: true,
        has_srq: false,
        has_xrcd: false,
        spreads: false,
        special_srq: false,
    };

    fn qp(asked: WantedQp, errno: i32) -> Judged {
        judge_with(ObjectCounts { qps: 4, ..ObjectCounts::default() }, |facts| {
            create_qp(facts, &asked, errno)
        })
    }

    #[test]
    fn a_qp_needs_its_queues() {
        assert!(qp(GOOD, libc::EINVAL).wrong_arguments.is_empty());
        let none = WantedQp { has_send_cq: false, has_recv_cq: false, ..GOOD };
        assert_eq!(wrong_texts(&qp(none, libc::EINVAL)), ["send_cq is NULL", "recv_cq is NULL"]);
        let sends = WantedQp { qp_type: IBV_QPT_XRC_SEND, has_recv_cq: false, ..GOOD };
        assert!(qp(sends, libc::EINVAL).wrong_arguments.is_empty(), "it receives nothing");
        let receives = WantedQp { qp_type: IBV_QPT_XRC_RECV, ..none };
        assert_eq!(wrong_texts(&qp(receives, libc::EINVAL)), ["xrcd is NULL"]);
        assert_eq!(qp(WantedQp { has_pd: false, ..GOOD }, libc::EINVAL).wrong_arguments.len(), 1);
    }

    #[test]
    fn a_qp_is_no_larger_than_the_device_makes_it() {
        let large = ibv_qp_cap {
            max_send_wr: 101,
            max_recv_wr: 101,
            max_send_sge: 9,
            max_recv_sge: 9,
            ..GOOD.cap
        };
        let given = qp(WantedQp { cap: large, ..GOOD }, libc::EINVAL);
        assert_eq!(given.wrong_arguments.len(), 4);
        assert_eq!(
            wrong_texts(&given)[0],
            "cap.max_send_wr 101 is not in 0..=100 (max_qp_wr of ibv_query_device)"
        );
        let shares = WantedQp { cap: large, has_srq: true, ..GOOD };
        assert_eq!(qp(shares, libc::EINVAL).wrong_arguments.len(), 2, "its receives are the SRQ's");
    }

    #[test]
    fn as_many_qps_as_the_device_makes_are_told() {
        assert_eq!(wrong_texts(&qp(GOOD, libc::ENOMEM)), ["4 QPs are open, and max_qp is 4"]);
    }

    #[test]
    fn an_srq_of_xrc_is_none_for_a_qp() {
        assert_eq!(
            qp(WantedQp { special_srq: true, ..GOOD }, libc::EINVAL).wrong_arguments.len(),
            1
        );
    }

    #[test]
    fn a_qp_is_opened_by_its_number_in_its_domain() {
        assert!(wrong_texts(&open_qp(0xb, IBV_QPT_XRC_RECV, true, 0x42))[0].contains("0x42"));
        assert_eq!(open_qp(0x11, IBV_QPT_UC, false, 1).wrong_arguments.len(), 4);
    }

    const ADDRESS: Address = Address {
        port: 1,
        is_global: true,
        dgid: Ipv6Addr::LOCALHOST,
        sgid_index: 0,
        is_empty: false,
        sl: 0,
    };

    fn ah(asked: Address, errno: i32) -> Judged {
        judge_with(ObjectCounts { ahs: 2, ..ObjectCounts::default() }, |facts| {
            create_ah(facts, &asked, errno)
        })
    }

    #[test]
    fn an_address_has_a_port_and_an_entry_of_its_gid_table() {
        assert!(ah(ADDRESS, libc::EINVAL).wrong_arguments.is_empty());
        assert_eq!(
            wrong_texts(&ah(Address { port: 9, ..ADDRESS }, libc::EINVAL)),
            ["port_num 9 is not in 1..=1 (phys_port_cnt of ibv_query_device)"]
        );
        let empty = Address { sgid_index: 31, is_empty: true, ..ADDRESS };
        assert_eq!(
            wrong_texts(&ah(empty, libc::EINVAL)),
            ["grh.sgid_index 31: that entry of the port's GID table is empty"]
        );
        let beyond = Address { sgid_index: 32, is_empty: true, ..ADDRESS };
        assert!(wrong_texts(&ah(beyond, libc::EINVAL))[0].contains("0..=31"));
        assert!(
            wrong_texts(&ah(Address { sl: 16, ..ADDRESS }, libc::EINVAL))[0].contains("4 bits")
        );
    }

    #[test]
    fn an_address_without_a_route_has_a_check_of_its_own() {
        let given = ah(Address { is_global: false, ..ADDRESS }, libc::EINVAL);
        assert_eq!(given.wrong_arguments[0].id, Some(Id::Qp05));
        assert_eq!(wrong_texts(&given), ["is_global is 0, and the port is Ethernet"]);
    }

    #[test]
    fn as_many_address_handles_as_the_device_makes_are_told() {
        assert_eq!(
            wrong_texts(&ah(ADDRESS, libc::ENOMEM)),
            ["2 address handles are open, and max_ah is 2"]
        );
    }

    #[test]
    fn groups_are_for_datagrams_and_have_gids_of_their_own() {
        let group: Ipv6Addr = "ff0e::1".parse().expect("an address");
        let of = |kind, gid, detaches, errno| {
            judge_with(ObjectCounts::default(), |facts| {
                multicast(facts, kind, gid, detaches, 1, errno)
            })
        };
        let given = of(IBV_QPT_RC, group, false, libc::EINVAL);
        assert_eq!(given.wrong_arguments[0].id, Some(Id::Ob03));
        assert!(
            wrong_texts(&of(IBV_QPT_UD, Ipv6Addr::LOCALHOST, false, libc::EINVAL))[0]
                .contains("no group")
        );
        assert!(
            wrong_texts(&of(IBV_QPT_UD, group, true, libc::EINVAL))[0].contains("not attached")
        );
        assert!(
            wrong_texts(&of(IBV_QPT_UD, group, false, libc::ENOMEM))[0]
                .contains("max_mcast_grp is 2")
        );
        assert!(of(IBV_QPT_UD, group, false, libc::EINVAL).wrong_arguments.is_empty());
    }

    #[test]
    fn a_busy_qp_without_a_group_is_in_a_rule() {
        assert!(wrong_texts(&destroy_qp())[0].contains("ibv_create_flow"));
    }

    #[test]
    fn a_qp_is_queried_by_known_bits() {
        assert!(query_qp(1, true, true).wrong_arguments.is_empty());
        let given = query_qp(1 << 30, true, true);
        assert!(wrong_texts(&given)[0].starts_with("attr_mask 0x40000000 has the bits 0x40000000"));
    }

    #[test]
    fn a_query_of_a_qp_needs_both_structures() {
        assert_eq!(wrong_texts(&query_qp(1, false, false)), ["attr is NULL", "init_attr is NULL"]);
    }

    const ECE: ibv_ece = ibv_ece { vendor_id: 0x15b3, options: 3, comp_mask: 0 };

    #[test]
    fn ece_options_are_set_before_rtr() {
        assert!(ece(Some(IBV_QPS_INIT), true, &ECE).wrong_arguments.is_empty());
        assert_eq!(
            wrong_texts(&ece(Some(IBV_QPS_RTS), true, &ECE)),
            ["the QP is in RTS: options are set before RTR"]
        );
        assert!(
            ece(Some(IBV_QPS_RTS), false, &ECE).wrong_arguments.is_empty(),
            "a query is always allowed"
        );
    }

    #[test]
    fn refused_ece_options_are_listed_with_their_vendor() {
        let given = ece(None, true, &ECE);
        assert_eq!(given.plausible_arguments, ["vendor_id 0x15b3", "options 0x3", "comp_mask 0x0"]);
    }

    const RATE: ibv_qp_rate_limit_attr = ibv_qp_rate_limit_attr {
        rate_limit: 1000,
        max_burst_sz: 0,
        typical_pkt_sz: 0,
        comp_mask: 0,
    };

    #[test]
    fn only_a_qp_in_rts_has_a_rate() {
        assert!(rate_limit(Some(IBV_QPS_RTS), &RATE).wrong_arguments.is_empty());
        assert_eq!(
            wrong_texts(&rate_limit(Some(IBV_QPS_INIT), &RATE)),
            ["the QP is in INIT, and only a QP in RTS has a rate"]
        );
    }

    #[test]
    fn a_rate_has_no_mask() {
        let odd = ibv_qp_rate_limit_attr { comp_mask: 1, ..RATE };
        assert_eq!(
            wrong_texts(&rate_limit(None, &odd)),
            ["comp_mask 0x1 has the bits 0x1; there are 0x0"]
        );
    }

    #[test]
    fn an_attached_counter_counts_known_operations() {
        assert!(attach_counter(0, 0x3f, libc::EINVAL).wrong_arguments.is_empty());
        assert_eq!(
            wrong_texts(&attach_counter(0, 0x41, libc::EINVAL)),
            ["op_mask 0x41 has the bits 0x40; there are 0x3f"]
        );
        let none = attach_counter(0, 0, libc::EINVAL);
        assert_eq!(wrong_texts(&none), ["op_mask 0 names no operation"]);
    }

    #[test]
    fn a_counter_in_use_is_told() {
        let given = attach_counter(0, 1, libc::EBUSY);
        assert_eq!(
            wrong_texts(&given),
            ["the counter, or the operation of the QP, is in use already"]
        );
    }
}
