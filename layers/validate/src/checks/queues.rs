//! Refusals of completion, shared receive and work queues: ibv_create_cq(3), ibv_create_cq_ex(3),
//! ibv_resize_cq(3), ibv_modify_cq(3), ibv_req_notify_cq(3), ibv_create_srq(3),
//! ibv_create_srq_ex(3), ibv_modify_srq(3), ibv_query_srq(3), ibv_post_srq_ops(3),
//! ibv_create_wq(3), ibv_create_rwq_ind_table(3).
//!
//! Map of this file: CQs; SRQs and tag operations; work queues and indirection tables; tests. No
//! state, no lock.

use abi::{
    IBV_CQ_ATTR_MODERATE, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD,
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_CREATE_CQ_SUP_WC_FLAGS, IBV_OPS_SIGNALED, IBV_OPS_TM_SYNC, IBV_SRQ_INIT_ATTR_CQ,
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_RESERVED, IBV_SRQ_INIT_ATTR_TM, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_TM, IBV_SRQT_XRC, IBV_WQ_ATTR_RESERVED,
    IBV_WQ_INIT_ATTR_RESERVED, IBV_WQS_ERR, IBV_WR_TAG_ADD, IBV_WR_TAG_DEL, IBV_WR_TAG_SYNC,
    ibv_srq_attr, ibv_wq_attr,
};
use layer_tap::argument::TagListOperation;

use super::given::{Facts, Judged};

/// The arguments of a CQ's creation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WantedCq {
    pub(crate) cqe: i64,
    pub(crate) comp_vector: i64,
    /// Whether the channel belongs to another context.
    pub(crate) foreign_channel: bool,
    /// The arguments of ibv_create_cq_ex(3) only.
    pub(crate) extended: Option<WantedCqEx>,
}

/// The arguments that ibv_create_cq_ex(3) adds to [`WantedCq`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WantedCqEx {
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    /// Whether `parent_domain` is a parent domain whose creation this layer saw.
    pub(crate) parent_is_good: bool,
}

/// ibv_create_cq(3) and ibv_create_cq_ex(3).
pub(crate) fn create_cq(facts: &Facts<'_>, asked: &WantedCq, errno: i32) -> Judged {
    let mut given = Judged::default();
    if errno == libc::ENOMEM {
        given.full("CQs", facts.counts.cqs, facts.device.map(|device| device.max_cq), "max_cq");
    }
    match facts.device {
        Some(device) => {
            let most = i64::from(device.max_cqe);
            given.number("cqe", asked.cqe, 1..=most, "max_cqe of ibv_query_device");
        }
        None => given.add_plausible("cqe", asked.cqe),
    }
    let last = i64::from(facts.vectors.max(1)) - 1;
    given.number("comp_vector", asked.comp_vector, 0..=last, "context->num_comp_vectors - 1");
    if asked.foreign_channel {
        given.add_wrong(
            "channel is of another context",
            "make the channel by ibv_create_comp_channel of the same context",
        );
    }
    let Some(extended) = asked.extended else { return given };
    given.flags("wc_flags", extended.wc_flags, IBV_CREATE_CQ_SUP_WC_FLAGS.into());
    let masks = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    given.flags("comp_mask", extended.comp_mask.into(), masks.into());
    if extended.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
        let flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        given.flags("flags", extended.flags.into(), flags.into());
    }
    if extended.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 && !extended.parent_is_good {
        given.add_wrong(
            "parent_domain is no parent domain",
            "make it by ibv_alloc_parent_domain, or leave IBV_CQ_INIT_ATTR_MASK_PD out of comp_mask",
        );
    }
    given
}

/// ibv_resize_cq(3). `waiting` is the number of unpolled completions, if known.
pub(crate) fn resize_cq(facts: &Facts<'_>, cqe: i64, waiting: Option<i64>) -> Judged {
    let mut given = Judged::default();
    match facts.device {
        Some(device) => {
            let most = i64::from(device.max_cqe);
            given.number("cqe", cqe, 1..=most, "max_cqe of ibv_query_device");
        }
        None => given.add_plausible("cqe", cqe),
    }
    match waiting {
        Some(waiting) if waiting > cqe => given.add_wrong(
            format!("{waiting} completions wait in the CQ, and cqe is {cqe}"),
            "poll them first, or ask for more entries",
        ),
        Some(waiting) => given.add_plausible("completions that wait:", waiting),
        None => {}
    }
    given
}

/// ibv_modify_cq(3).
pub(crate) fn modify_cq(attr_mask: u32, count: u16, period: u16) -> Judged {
    let mut given = Judged::default();
    given.flags("attr_mask", attr_mask.into(), IBV_CQ_ATTR_MODERATE.into());
    given.add_plausible("moderate.cq_count", count);
    given.add_plausible("moderate.cq_period", period);
    given
}

/// ibv_req_notify_cq(3).
pub(crate) fn req_notify_cq(has_channel: bool, solicited_only: i32) -> Judged {
    let mut given = Judged::default();
    let remedy = "give ibv_create_cq a channel: a CQ without one brings no events";
    given.add_required("channel of the CQ", has_channel, remedy);
    given.add_plausible("solicited_only", solicited_only);
    given
}

/// ibv_query_srq(3).
pub(crate) fn query_srq(has_attr: bool) -> Judged {
    let mut given = Judged::default();
    given.add_required("srq_attr", has_attr, "give a struct ibv_srq_attr, which the call fills in");
    given
}

/// ibv_post_srq_ops(3). `is_basic` tells whether the SRQ matches no tags, `most_elements` is its
/// `max_sge`.
pub(crate) fn post_srq_ops(
    operation: &TagListOperation,
    is_basic: bool,
    most_elements: u32,
    errno: i32,
) -> Judged {
    let mut given = Judged::default();
    if is_basic {
        let remedy = "create the SRQ with srq_type IBV_SRQT_TM and tm_cap";
        given.add_wrong("the SRQ is basic, and matches no tags", remedy);
    }
    if errno == libc::ENOMEM {
        let remedy = "poll completions, or raise tm_cap.max_num_tags and tm_cap.max_ops";
        given.add_wrong("the tag list is full, or max_ops operations are outstanding", remedy);
    }
    given.number("opcode", operation.opcode.into(), 0..=IBV_WR_TAG_SYNC.into(), "IBV_WR_TAG_*");
    given.flags("flags", operation.flags.into(), (IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC).into());
    match operation.opcode {
        IBV_WR_TAG_ADD => {
            let (count, limit) = (operation.elements, "max_sge of the SRQ");
            given.number("tm.add.num_sge", count.into(), 0..=most_elements.into(), limit);
            if count > 0 {
                let remedy = "set tm.add.sg_list to an array of num_sge elements";
                given.add_required("tm.add.sg_list", operation.has_list, remedy);
            }
        }
        IBV_WR_TAG_DEL if !is_basic && errno == libc::EINVAL => {
            let handle = operation.handle;
            given.add_wrong(
                format!("tm.handle {handle}: the tag list has no such entry"),
                "give the tm.handle that the call stored for the addition, once",
            );
        }
        _ => {}
    }
    given
}

/// The arguments of an SRQ's creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedSrq {
    pub(crate) attr: ibv_srq_attr,
    /// The arguments of ibv_create_srq_ex(3) only.
    pub(crate) extended: Option<WantedSrqEx>,
}

/// The arguments that ibv_create_srq_ex(3) adds to [`WantedSrq`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WantedSrqEx {
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: u32,
    pub(crate) has_pd: bool,
    pub(crate) has_xrcd: bool,
    pub(crate) has_cq: bool,
    pub(crate) max_num_tags: u32,
}

/// ibv_create_srq(3) and ibv_create_srq_ex(3).
pub(crate) fn create_srq(facts: &Facts<'_>, asked: &WantedSrq, errno: i32) -> Judged {
    let mut given = Judged::default();
    let device = facts.device;
    if errno == libc::ENOMEM {
        given.full("SRQs", facts.counts.srqs, device.map(|device| device.max_srq), "max_srq");
    }
    let ibv_srq_attr { max_wr, max_sge, .. } = asked.attr;
    given.limited("attr.max_wr", max_wr, 1, device.map(|d| d.max_srq_wr), "max_srq_wr");
    given.limited("attr.max_sge", max_sge, 0, device.map(|d| d.max_srq_sge), "max_srq_sge");
    let Some(extended) = asked.extended else { return given };
    let masks = u64::from(IBV_SRQ_INIT_ATTR_RESERVED - 1);
    given.flags("comp_mask", extended.comp_mask.into(), masks);
    given.number("srq_type", extended.srq_type.into(), 0..=2, "IBV_SRQT_BASIC, _XRC and _TM");
    let mut needs = |name: &str, bit: u32, bit_name: &str, is_there: bool| {
        if extended.comp_mask & bit == 0 {
            given.add_wrong(
                format!(
                    "comp_mask {:#x} lacks {bit_name}, which this type needs",
                    extended.comp_mask
                ),
                format!("set {name} and {bit_name}"),
            );
        } else {
            given.add_required(name, is_there, &format!("set {name}"));
        }
    };
    needs("pd", IBV_SRQ_INIT_ATTR_PD, "IBV_SRQ_INIT_ATTR_PD", extended.has_pd);
    if extended.srq_type == IBV_SRQT_XRC {
        needs("xrcd", IBV_SRQ_INIT_ATTR_XRCD, "IBV_SRQ_INIT_ATTR_XRCD", extended.has_xrcd);
    }
    if matches!(extended.srq_type, IBV_SRQT_XRC | IBV_SRQT_TM) {
        needs("cq", IBV_SRQ_INIT_ATTR_CQ, "IBV_SRQ_INIT_ATTR_CQ", extended.has_cq);
    }
    if extended.srq_type == IBV_SRQT_TM {
        needs("tm_cap", IBV_SRQ_INIT_ATTR_TM, "IBV_SRQ_INIT_ATTR_TM", true);
        let limit = "tm_caps.max_num_tags of ibv_query_device_ex is the limit";
        given.add_plausible(
            "tm_cap.max_num_tags",
            format_args!("{} ({limit})", extended.max_num_tags),
        );
    }
    given
}

/// ibv_modify_srq(3). The queue has room for `room` receives and holds `posted`, if known.
pub(crate) fn modify_srq(
    facts: &Facts<'_>,
    mask: u32,
    attr: &ibv_srq_attr,
    room: Option<u32>,
    posted: Option<u64>,
) -> Judged {
    let mut given = Judged::default();
    given.flags("srq_attr_mask", mask.into(), u64::from(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
    if mask & IBV_SRQ_MAX_WR != 0 {
        let most = facts.device.map(|device| device.max_srq_wr);
        given.limited("max_wr", attr.max_wr, 1, most, "max_srq_wr");
        if let Some(posted) = posted.filter(|posted| *posted > u64::from(attr.max_wr)) {
            given.add_wrong(
                format!("{posted} receives are posted, and max_wr is {}", attr.max_wr),
                "ask for as many entries as receives are posted",
            );
        }
    }
    if mask & IBV_SRQ_LIMIT != 0 {
        let room = if mask & IBV_SRQ_MAX_WR != 0 { Some(attr.max_wr) } else { room };
        match room {
            Some(room) => {
                given.number(
                    "srq_limit",
                    attr.srq_limit.into(),
                    0..=room.into(),
                    "max_wr of the SRQ",
                );
            }
            None => given.add_plausible("srq_limit", attr.srq_limit),
        }
    }
    given
}

/// The arguments of a work queue's creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedWq {
    pub(crate) wq_type: u32,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) comp_mask: u32,
    pub(crate) has_pd: bool,
    pub(crate) has_cq: bool,
}

/// ibv_create_wq(3).
pub(crate) fn create_wq(facts: &Facts<'_>, asked: &WantedWq) -> Judged {
    let mut given = Judged::default();
    let device = facts.device;
    given.number("wq_type", asked.wq_type.into(), 0..=0, "IBV_WQT_RQ");
    given.limited("max_wr", asked.max_wr, 1, device.map(|d| d.max_qp_wr), "max_qp_wr");
    given.limited("max_sge", asked.max_sge, 0, device.map(|d| d.max_sge), "max_sge");
    given.flags("comp_mask", asked.comp_mask.into(), u64::from(IBV_WQ_INIT_ATTR_RESERVED - 1));
    given.add_required("pd", asked.has_pd, "set pd");
    given.add_required("cq", asked.has_cq, "set cq");
    given
}

/// ibv_modify_wq(3).
pub(crate) fn modify_wq(attr: &ibv_wq_attr) -> Judged {
    let mut given = Judged::default();
    given.flags("attr_mask", attr.attr_mask.into(), u64::from(IBV_WQ_ATTR_RESERVED - 1));
    for (name, state) in [("wq_state", attr.wq_state), ("curr_wq_state", attr.curr_wq_state)] {
        given.number(name, state.into(), 0..=IBV_WQS_ERR.into(), "IBV_WQS_RESET, _RDY and _ERR");
    }
    given
}

/// ibv_create_rwq_ind_table(3).
pub(crate) fn create_table(log_size: u32, has_queues: bool, comp_mask: u32) -> Judged {
    let mut given = Judged::default();
    let limit = "log2 of rss_caps.max_rwq_indirection_table_size of ibv_query_device_ex";
    given.number("log_ind_tbl_size", log_size.into(), 0..=31, limit);
    given.add_required("ind_tbl", has_queues, "give 2^log_ind_tbl_size work queues");
    given.flags("comp_mask", comp_mask.into(), 0);
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::given::ObjectCounts;
    use crate::checks::given::testing::{judge_with, wrong_texts};

    const ATTR: ibv_srq_attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 };

    fn cq(asked: WantedCq, errno: i32) -> Judged {
        judge_with(ObjectCounts { cqs: 3, ..ObjectCounts::default() }, |facts| {
            create_cq(facts, &asked, errno)
        })
    }

    #[test]
    fn a_cq_has_one_entry_at_least_and_as_many_as_the_device_makes_at_most() {
        let of = |cqe| cq(WantedCq { cqe, ..WantedCq::default() }, libc::EINVAL);
        assert!(of(1).wrong_arguments.is_empty() && of(1000).wrong_arguments.is_empty());
        for cqe in [0, -1, 1001] {
            let text = format!("cqe {cqe} is not in 1..=1000 (max_cqe of ibv_query_device)");
            assert_eq!(wrong_texts(&of(cqe)), [text]);
        }
    }

    #[test]
    fn a_completion_vector_is_one_of_the_contexts() {
        let of =
            |comp_vector| cq(WantedCq { cqe: 8, comp_vector, ..WantedCq::default() }, libc::EINVAL);
        assert_eq!(
            wrong_texts(&of(7)),
            ["comp_vector 7 is not in 0..=0 (context->num_comp_vectors - 1)"]
        );
        assert!(of(0).wrong_arguments.is_empty());
    }

    #[test]
    fn as_many_cqs_as_the_device_makes_are_told() {
        let given = cq(WantedCq { cqe: 8, ..WantedCq::default() }, libc::ENOMEM);
        assert_eq!(wrong_texts(&given), ["3 CQs are open, and max_cq is 3"]);
    }

    #[test]
    fn a_channel_of_another_context_is_told() {
        let given =
            cq(WantedCq { cqe: 8, foreign_channel: true, ..WantedCq::default() }, libc::EINVAL);
        assert_eq!(wrong_texts(&given), ["channel is of another context"]);
    }

    #[test]
    fn an_extended_cq_has_more_that_may_be_wrong() {
        let extended =
            WantedCqEx { wc_flags: 1 << 40, comp_mask: 0x10 | 3, flags: 8, parent_is_good: false };
        let asked = WantedCq { cqe: 8, extended: Some(extended), ..WantedCq::default() };
        let given = cq(asked, libc::EINVAL);
        assert_eq!(given.wrong_arguments.len(), 4, "{given:?}");
        let good = WantedCqEx { wc_flags: 1, comp_mask: 0, flags: 99, parent_is_good: false };
        let asked = WantedCq { cqe: 8, extended: Some(good), ..WantedCq::default() };
        assert!(
            cq(asked, libc::EINVAL).wrong_arguments.is_empty(),
            "flags count only where comp_mask has them"
        );
    }

    #[test]
    fn a_cq_keeps_what_waits_in_it() {
        let of = |cqe, waiting| {
            judge_with(ObjectCounts::default(), |facts| resize_cq(facts, cqe, waiting))
        };
        assert_eq!(wrong_texts(&of(4, Some(5))), ["5 completions wait in the CQ, and cqe is 4"]);
        assert!(of(5, Some(5)).wrong_arguments.is_empty());
        assert_eq!(of(0, None).wrong_arguments.len(), 1);
    }

    #[test]
    fn moderation_is_all_that_a_cq_can_change() {
        assert!(modify_cq(1, 4, 4).wrong_arguments.is_empty());
        assert_eq!(modify_cq(2, 4, 4).wrong_arguments.len(), 1);
    }

    fn srq(attr: ibv_srq_attr, extended: Option<WantedSrqEx>, errno: i32) -> Judged {
        let asked = WantedSrq { attr, extended };
        judge_with(ObjectCounts { srqs: 2, ..ObjectCounts::default() }, |facts| {
            create_srq(facts, &asked, errno)
        })
    }

    #[test]
    fn an_srq_is_no_larger_than_the_device_makes_it() {
        assert!(srq(ATTR, None, libc::EINVAL).wrong_arguments.is_empty());
        let given =
            srq(ibv_srq_attr { max_wr: 1 << 30, max_sge: 1000, ..ATTR }, None, libc::EINVAL);
        assert_eq!(
            wrong_texts(&given),
            [
                "attr.max_wr 1073741824 is not in 1..=50 (max_srq_wr of ibv_query_device)",
                "attr.max_sge 1000 is not in 0..=4 (max_srq_sge of ibv_query_device)"
            ]
        );
        assert_eq!(
            wrong_texts(&srq(ATTR, None, libc::ENOMEM)),
            ["2 SRQs are open, and max_srq is 2"]
        );
    }

    #[test]
    fn each_type_of_srq_needs_its_objects() {
        let basic = WantedSrqEx { comp_mask: 3, has_pd: true, ..WantedSrqEx::default() };
        assert!(srq(ATTR, Some(basic), libc::EINVAL).wrong_arguments.is_empty());
        let xrc = WantedSrqEx { srq_type: IBV_SRQT_XRC, ..basic };
        assert_eq!(srq(ATTR, Some(xrc), libc::EINVAL).wrong_arguments.len(), 2, "xrcd and cq");
        let tagged = WantedSrqEx { srq_type: IBV_SRQT_TM, comp_mask: 0xb, has_pd: true, ..basic };
        let given = srq(ATTR, Some(tagged), libc::EINVAL);
        assert_eq!(given.wrong_arguments.len(), 2, "cq is NULL and tm_cap is not named: {given:?}");
        let odd = WantedSrqEx { srq_type: 7, comp_mask: 0x40, ..WantedSrqEx::default() };
        assert_eq!(srq(ATTR, Some(odd), libc::EINVAL).wrong_arguments.len(), 3);
    }

    #[test]
    fn the_limit_of_an_srq_is_within_its_entries() {
        let of = |mask, attr: ibv_srq_attr, room, posted| {
            judge_with(ObjectCounts::default(), |facts| {
                modify_srq(facts, mask, &attr, room, posted)
            })
        };
        let limit = ibv_srq_attr { srq_limit: 100, ..ATTR };
        assert_eq!(
            wrong_texts(&of(IBV_SRQ_LIMIT, limit, Some(8), None)),
            ["srq_limit 100 is not in 0..=8 (max_wr of the SRQ)"]
        );
        assert!(of(IBV_SRQ_LIMIT, limit, None, None).wrong_arguments.is_empty());
        assert!(
            wrong_texts(&of(IBV_SRQ_MAX_WR, ATTR, Some(16), Some(9)))[0].contains("9 receives")
        );
        assert!(
            wrong_texts(&of(IBV_SRQ_MAX_WR, ibv_srq_attr { max_wr: 51, ..ATTR }, None, None))[0]
                .contains("51")
        );
        assert_eq!(of(8, ATTR, None, None).wrong_arguments.len(), 1);
    }

    #[test]
    fn a_work_queue_receives_and_has_a_domain_and_a_cq() {
        let good = WantedWq {
            wq_type: 0,
            max_wr: 8,
            max_sge: 1,
            comp_mask: 0,
            has_pd: true,
            has_cq: true,
        };
        let of =
            |asked: WantedWq| judge_with(ObjectCounts::default(), |facts| create_wq(facts, &asked));
        assert!(of(good).wrong_arguments.is_empty());
        let bad = WantedWq {
            wq_type: 3,
            max_wr: 0,
            max_sge: 9,
            comp_mask: 2,
            has_pd: false,
            has_cq: false,
        };
        assert_eq!(of(bad).wrong_arguments.len(), 6);
    }

    #[test]
    fn states_and_masks_of_work_queues_have_limits() {
        let attr =
            ibv_wq_attr { attr_mask: 8, wq_state: 3, curr_wq_state: 0, flags: 0, flags_mask: 0 };
        assert_eq!(modify_wq(&attr).wrong_arguments.len(), 2);
        assert_eq!(create_table(40, false, 1).wrong_arguments.len(), 3);
        assert!(create_table(2, true, 0).wrong_arguments.is_empty());
    }

    #[test]
    fn a_cq_without_a_channel_is_not_armed() {
        assert!(req_notify_cq(true, 1).wrong_arguments.is_empty());
        assert_eq!(wrong_texts(&req_notify_cq(false, 0)), ["channel of the CQ is NULL"]);
    }

    #[test]
    fn an_srq_is_queried_into_a_structure() {
        assert_eq!(wrong_texts(&query_srq(false)), ["srq_attr is NULL"]);
    }

    const ADD: TagListOperation = TagListOperation {
        opcode: IBV_WR_TAG_ADD,
        flags: 0,
        handle: 0,
        elements: 1,
        has_list: true,
    };

    #[test]
    fn a_basic_srq_matches_no_tags() {
        let given = post_srq_ops(&ADD, true, 1, libc::EINVAL);
        assert_eq!(wrong_texts(&given), ["the SRQ is basic, and matches no tags"]);
    }

    #[test]
    fn a_tag_operation_has_a_known_opcode_and_known_flags() {
        let odd = TagListOperation { opcode: 3, flags: 4, ..ADD };
        assert_eq!(
            wrong_texts(&post_srq_ops(&odd, false, 1, libc::EINVAL)),
            [
                "opcode 3 is not in 0..=2 (IBV_WR_TAG_*)",
                "flags 0x4 has the bits 0x4; there are 0x3",
            ]
        );
    }

    #[test]
    fn an_added_tag_has_elements_as_the_srq_takes() {
        let many = TagListOperation { elements: 2, ..ADD };
        assert_eq!(
            wrong_texts(&post_srq_ops(&many, false, 1, libc::EINVAL)),
            ["tm.add.num_sge 2 is not in 0..=1 (max_sge of the SRQ)"]
        );
        let none = TagListOperation { has_list: false, ..ADD };
        let given = post_srq_ops(&none, false, 1, libc::EINVAL);
        assert_eq!(wrong_texts(&given), ["tm.add.sg_list is NULL"]);
    }

    #[test]
    fn an_unknown_tag_is_not_deleted() {
        let delete = TagListOperation { opcode: IBV_WR_TAG_DEL, handle: 9, ..ADD };
        assert_eq!(
            wrong_texts(&post_srq_ops(&delete, false, 1, libc::EINVAL)),
            ["tm.handle 9: the tag list has no such entry"]
        );
    }

    #[test]
    fn a_full_tag_list_is_told() {
        let given = post_srq_ops(&ADD, false, 1, libc::ENOMEM);
        assert!(wrong_texts(&given)[0].contains("the tag list is full"));
    }
}
