//! Refusals of the remaining verbs: domains, ports, counters, steering rules, imported objects.
//!
//! Map of this file: domains; queries; counters; ESP actions; imported objects; steering rules;
//! `busy`, which several calls share; tests. No state, no lock.

use abi::{
    IBV_COMP_CNTR_TYPE_BYTES, IBV_FLOW_ACTION_ESP_MASK_ESN, IBV_FLOW_ATTR_SNIFFER,
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, IBV_READ_COUNTERS_ATTR_PREFER_CACHED,
    IBV_VALUES_MASK_RAW_CLOCK, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS,
    IBV_XRCD_INIT_ATTR_RESERVED, ibv_device_attr, ibv_flow_attr, ibv_xrcd_init_attr,
};

use super::given::{Facts, Judged};

/// ibv_alloc_pd(3).
pub(crate) fn alloc_pd(facts: &Facts<'_>, errno: i32) -> Judged {
    let mut given = Judged::default();
    if errno == libc::ENOMEM {
        given.full("PDs", facts.counts.pds, facts.device.map(|device| device.max_pd), "max_pd");
    }
    given
}

/// ibv_alloc_parent_domain(3).
pub(crate) fn alloc_parent_domain(comp_mask: u32, has_pd: bool) -> Judged {
    let mut given = Judged::default();
    let masks = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    given.flags("comp_mask", comp_mask.into(), masks.into());
    given.add_required("pd", has_pd, "set pd to the PD that the parent domain is over");
    given
}

/// A structure whose `comp_mask` must be 0.
pub(crate) fn only_mask(comp_mask: u32) -> Judged {
    let mut given = Judged::default();
    given.flags("comp_mask", comp_mask.into(), 0);
    given
}

/// ibv_open_xrcd(3). `is_open` tells whether `fd` is an open file.
pub(crate) fn open_xrcd(attr: &ibv_xrcd_init_attr, is_open: bool) -> Judged {
    let mut given = Judged::default();
    let mask = attr.comp_mask;
    given.flags("comp_mask", mask.into(), u64::from(IBV_XRCD_INIT_ATTR_RESERVED - 1));
    let needs = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if mask & needs != needs {
        given.add_wrong(
            format!("comp_mask {mask:#x} lacks {:#x}", needs & !mask),
            "set IBV_XRCD_INIT_ATTR_FD and IBV_XRCD_INIT_ATTR_OFLAGS",
        );
    }
    if attr.fd == -1 {
        given.add_plausible("fd", "-1 (a domain of this process)");
    } else if is_open {
        given.add_plausible("fd", attr.fd);
    } else {
        given.add_wrong(
            format!("fd {} is no open file", attr.fd),
            "open a file that all processes of the domain open, or give -1",
        );
    }
    let known = u64::from((libc::O_CREAT | libc::O_EXCL).cast_unsigned());
    given.flags("oflags", attr.oflags.cast_unsigned().into(), known);
    if attr.oflags & libc::O_CREAT == 0 && given.wrong_arguments.is_empty() {
        given.add_wrong(
            format!("oflags {:#x} lacks O_CREAT, and there is no domain of this file", attr.oflags),
            "the first process that opens the domain needs O_CREAT",
        );
    }
    given
}

/// ibv_query_port(3).
pub(crate) fn query_port(facts: &Facts<'_>, port: u32) -> Judged {
    let mut given = Judged::default();
    match i64::try_from(facts.ports.len()) {
        Ok(last @ 1..) => {
            given.number("port_num", port.into(), 1..=last, "phys_port_cnt of ibv_query_device");
        }
        _ => given.add_plausible("port_num", port),
    }
    given
}

/// ibv_query_device_ex(3), for a structure of `size` bytes. `comp_mask` is that of the input;
/// `None` without an input.
pub(crate) fn query_device(size: usize, comp_mask: Option<u32>) -> Judged {
    let mut given = Judged::default();
    let least = size_of::<ibv_device_attr>();
    if size < least {
        given.add_wrong(
            format!("attr_size {size} is less than {least}, the bytes of struct ibv_device_attr"),
            "give sizeof(struct ibv_device_attr_ex)",
        );
    } else {
        given.add_plausible("attr_size", size);
    }
    if let Some(mask) = comp_mask {
        given.flags("input.comp_mask", mask.into(), 0);
    }
    given
}

/// ibv_query_rt_values_ex(3).
pub(crate) fn query_values(comp_mask: u32) -> Judged {
    let mut given = Judged::default();
    given.flags("comp_mask", comp_mask.into(), IBV_VALUES_MASK_RAW_CLOCK.into());
    given
}

/// ibv_create_comp_cntr(3).
pub(crate) fn create_counter(comp_mask: u32, kind: u32, flags: u32) -> Judged {
    let mut given = Judged::default();
    given.flags("comp_mask", comp_mask.into(), 0);
    given.number("type", kind.into(), 0..=IBV_COMP_CNTR_TYPE_BYTES.into(), "ibv_comp_cntr_type");
    given.flags("flags", flags.into(), 0);
    given
}

/// ibv_set_comp_cntr(3), ibv_inc_comp_cntr(3) and their forms for errors. `name` is the argument.
pub(crate) fn change_counter(name: &str, value: u64, errno: i32) -> Judged {
    let mut given = Judged::default();
    if errno == libc::EINVAL {
        given.add_wrong(
            format!("{name} {value} brings the counter above max_value"),
            "ibv_query_comp_cntr_caps has max_value, the largest number that the device counts",
        );
    } else {
        given.add_plausible(name, value);
    }
    given
}

/// ibv_read_comp_cntr(3) and ibv_read_err_comp_cntr(3).
pub(crate) fn read_counter(has_value: bool) -> Judged {
    let mut given = Judged::default();
    given.add_required("value", has_value, "give an address for the number");
    given
}

/// ibv_query_comp_cntr_caps(3).
pub(crate) fn query_counter_limits(has_caps: bool) -> Judged {
    let mut given = Judged::default();
    given.add_required(
        "caps",
        has_caps,
        "give a struct ibv_comp_cntr_caps, which the call fills in",
    );
    given
}

/// The arguments of an ESP action.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EspAction {
    pub(crate) comp_mask: u32,
    pub(crate) has_attr: bool,
    pub(crate) keymat_proto: u32,
    pub(crate) keymat_len: u16,
    pub(crate) has_keymat: bool,
    pub(crate) replay_proto: u32,
    pub(crate) replay_len: u16,
    pub(crate) has_replay: bool,
    pub(crate) esn: u32,
}

/// ibv_create_flow_action_esp(3) and ibv_modify_flow_action_esp(3).
pub(crate) fn esp_action(action: &EspAction, creates: bool) -> Judged {
    let mut given = Judged::default();
    given.flags("comp_mask", action.comp_mask.into(), IBV_FLOW_ACTION_ESP_MASK_ESN.into());
    if creates {
        let remedy = "set esp_attr to a struct ib_uverbs_flow_action_esp";
        given.add_required("esp_attr", action.has_attr, remedy);
    }
    given.number("keymat_proto", action.keymat_proto.into(), 0..=0, "AES_GCM is 0");
    if action.keymat_len != 0 {
        given.add_required(
            "keymat_ptr",
            action.has_keymat,
            "set it to keymat_len bytes of the key",
        );
    } else if creates {
        let remedy = "set keymat_ptr and keymat_len: a new action needs a key";
        given.add_wrong("keymat_len is 0", remedy);
    }
    given.number("replay_proto", action.replay_proto.into(), 0..=1, "NONE is 0, BMP is 1");
    if action.replay_len != 0 {
        given.add_required("replay_ptr", action.has_replay, "set it to replay_len bytes");
    }
    let is_used = action.comp_mask & IBV_FLOW_ACTION_ESP_MASK_ESN != 0;
    let note = if is_used { "" } else { " (ignored without IBV_FLOW_ACTION_ESP_MASK_ESN)" };
    given.add_plausible("esn", format_args!("{}{note}", action.esn));
    given
}

/// ibv_import_pd(3), ibv_import_mr(3) and ibv_import_dm(3).
pub(crate) fn import(kind: &str, handle: u32) -> Judged {
    let mut given = Judged::default();
    given.add_wrong(
        format!("the device that was imported has no {kind} of handle {handle:#x}"),
        format!("give the handle member of the {kind} of the process that exported it; is it still there?"),
    );
    given
}

/// ibv_create_flow(3).
pub(crate) fn create_flow(facts: &Facts<'_>, attr: &ibv_flow_attr) -> Judged {
    let mut given = Judged::default();
    given.flags("comp_mask", attr.comp_mask.into(), 0);
    given.number("type", attr.type_.into(), 0..=IBV_FLOW_ATTR_SNIFFER.into(), "ibv_flow_attr_type");
    if let Ok(last @ 1..) = i64::try_from(facts.ports.len()) {
        given.number("port", attr.port.into(), 1..=last, "phys_port_cnt of ibv_query_device");
    }
    let least = size_of::<ibv_flow_attr>() as i64;
    let limit = "the structure and the specifications behind it";
    given.number("size", attr.size.into(), least..=u16::MAX.into(), limit);
    given.flags("flags", attr.flags.into(), 0x7);
    given.add_plausible("num_of_specs", attr.num_of_specs);
    given.add_plausible("priority", attr.priority);
    given
}

/// ibv_attach_counters_point_flow(3).
pub(crate) fn attach_counters(description: u32, index: u32, comp_mask: u32, errno: i32) -> Judged {
    let mut given = Judged::default();
    given.number("counter_desc", description.into(), 0..=1, "IBV_COUNTER_PACKETS and _BYTES");
    given.flags("comp_mask", comp_mask.into(), 0);
    given.add_plausible("index", index);
    if errno == libc::EBUSY {
        given.add_wrong(
            "a steering rule uses the counters already",
            "attach all counters before the first rule is made with them",
        );
    }
    given
}

/// ibv_read_counters(3).
pub(crate) fn read_counters(count: u32, flags: u32) -> Judged {
    let mut given = Judged::default();
    let limit = "as many as the highest attached index, and one more";
    given.number("ncounters", count.into(), 1..=u32::MAX.into(), limit);
    given.flags("flags", flags.into(), IBV_READ_COUNTERS_ATTR_PREFER_CACHED.into());
    given
}

/// EBUSY of an object that `users` still use.
pub(crate) fn busy(errno: i32, users: &str) -> Judged {
    let mut given = Judged::default();
    if errno == libc::EBUSY {
        given.add_wrong(format!("{users} still use it"), format!("destroy these first: {users}"));
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::given::ObjectCounts;
    use crate::checks::given::testing::{judge_with, wrong_texts};

    #[test]
    fn as_many_domains_as_the_device_makes_are_told() {
        let given = judge_with(ObjectCounts { pds: 2, ..ObjectCounts::default() }, |facts| {
            alloc_pd(facts, libc::ENOMEM)
        });
        assert_eq!(wrong_texts(&given), ["2 PDs are open, and max_pd is 2"]);
    }

    #[test]
    fn a_parent_domain_is_over_a_pd() {
        assert_eq!(wrong_texts(&alloc_parent_domain(0, false)), ["pd is NULL"]);
        assert_eq!(alloc_parent_domain(0x10, true).wrong_arguments.len(), 1);
        assert_eq!(only_mask(4).wrong_arguments.len(), 1);
    }

    #[test]
    fn a_domain_of_xrc_has_a_file_or_minus_1() {
        let good = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
        assert!(open_xrcd(&good, false).wrong_arguments.is_empty());
        let closed = ibv_xrcd_init_attr { fd: 77, ..good };
        assert_eq!(wrong_texts(&open_xrcd(&closed, false)), ["fd 77 is no open file"]);
        let first = ibv_xrcd_init_attr { oflags: 0, ..good };
        assert!(wrong_texts(&open_xrcd(&first, false))[0].contains("O_CREAT"));
        let odd = ibv_xrcd_init_attr { comp_mask: 4, fd: -1, oflags: 1 };
        assert_eq!(open_xrcd(&odd, false).wrong_arguments.len(), 3);
    }

    #[test]
    fn a_port_is_one_of_the_device() {
        let of = |port| judge_with(ObjectCounts::default(), |facts| query_port(facts, port));
        assert_eq!(
            wrong_texts(&of(2)),
            ["port_num 2 is not in 1..=1 (phys_port_cnt of ibv_query_device)"]
        );
        assert!(of(1).wrong_arguments.is_empty());
    }

    #[test]
    fn what_is_imported_is_named_by_its_handle() {
        assert_eq!(
            wrong_texts(&import("PD", 0x42)),
            ["the device that was imported has no PD of handle 0x42"]
        );
    }

    #[test]
    fn a_rule_has_a_type_a_port_and_a_length() {
        let good = ibv_flow_attr {
            comp_mask: 0,
            type_: 0,
            size: 20,
            priority: 0,
            num_of_specs: 0,
            port: 1,
            flags: 0,
        };
        let of = |attr: ibv_flow_attr| {
            judge_with(ObjectCounts::default(), |facts| create_flow(facts, &attr))
        };
        assert!(of(good).wrong_arguments.is_empty());
        let odd = ibv_flow_attr { comp_mask: 1, type_: 9, size: 3, port: 0, flags: 0x80, ..good };
        assert_eq!(of(odd).wrong_arguments.len(), 5);
    }

    #[test]
    fn counters_are_attached_before_they_are_used() {
        assert_eq!(attach_counters(7, 0, 1, libc::EINVAL).wrong_arguments.len(), 2);
        assert!(wrong_texts(&attach_counters(0, 0, 0, libc::EBUSY))[0].contains("steering rule"));
        assert_eq!(read_counters(0, 4).wrong_arguments.len(), 2);
        assert!(read_counters(1, 1).wrong_arguments.is_empty());
    }

    #[test]
    fn what_is_busy_says_by_what() {
        assert_eq!(
            wrong_texts(&busy(libc::EBUSY, "indirection tables")),
            ["indirection tables still use it"]
        );
        assert!(busy(libc::EINVAL, "indirection tables").wrong_arguments.is_empty());
    }

    #[test]
    fn a_device_is_queried_into_a_structure_that_is_long_enough() {
        let least = size_of::<ibv_device_attr>();
        assert!(query_device(least, None).wrong_arguments.is_empty());
        let text = format!("attr_size 8 is less than {least}, the bytes of struct ibv_device_attr");
        assert_eq!(wrong_texts(&query_device(8, None)), [text]);
    }

    #[test]
    fn the_input_of_a_device_query_has_no_bits() {
        assert!(query_device(4096, Some(0)).wrong_arguments.is_empty());
        let given = query_device(4096, Some(2));
        assert_eq!(wrong_texts(&given), ["input.comp_mask 0x2 has the bits 0x2; there are 0x0"]);
    }

    #[test]
    fn only_the_raw_clock_is_queried() {
        assert!(query_values(1).wrong_arguments.is_empty());
        assert_eq!(
            wrong_texts(&query_values(6)),
            ["comp_mask 0x6 has the bits 0x6; there are 0x1"]
        );
    }

    #[test]
    fn a_completion_counter_counts_requests_or_bytes() {
        assert!(create_counter(0, 1, 0).wrong_arguments.is_empty());
        assert_eq!(
            wrong_texts(&create_counter(0, 2, 0)),
            ["type 2 is not in 0..=1 (ibv_comp_cntr_type)"]
        );
    }

    #[test]
    fn a_completion_counter_has_no_flags_and_no_mask() {
        assert_eq!(create_counter(1, 0, 2).wrong_arguments.len(), 2);
    }

    #[test]
    fn a_counter_has_no_number_above_the_largest() {
        let given = change_counter("amount", 1 << 40, libc::EINVAL);
        assert_eq!(
            wrong_texts(&given),
            ["amount 1099511627776 brings the counter above max_value"]
        );
        assert!(given.wrong_arguments[0].remedy.contains("ibv_query_comp_cntr_caps"));
    }

    #[test]
    fn a_counter_that_is_refused_without_einval_has_no_wrong_number() {
        assert!(change_counter("value", 3, libc::ENOMEM).wrong_arguments.is_empty());
    }

    #[test]
    fn the_number_of_a_counter_needs_an_address() {
        assert!(read_counter(true).wrong_arguments.is_empty());
        assert_eq!(wrong_texts(&read_counter(false)), ["value is NULL"]);
        assert_eq!(wrong_texts(&query_counter_limits(false)), ["caps is NULL"]);
    }

    const ESP: EspAction = EspAction {
        comp_mask: 0,
        has_attr: true,
        keymat_proto: 0,
        keymat_len: 32,
        has_keymat: true,
        replay_proto: 0,
        replay_len: 0,
        has_replay: false,
        esn: 0,
    };

    #[test]
    fn an_esp_action_with_a_key_is_good() {
        assert!(esp_action(&ESP, true).wrong_arguments.is_empty());
    }

    #[test]
    fn a_new_esp_action_needs_attributes_and_a_key() {
        let bare = EspAction { has_attr: false, keymat_len: 0, ..ESP };
        assert_eq!(wrong_texts(&esp_action(&bare, true)), ["esp_attr is NULL", "keymat_len is 0"]);
        assert!(esp_action(&bare, false).wrong_arguments.is_empty(), "a change may keep both");
    }

    #[test]
    fn an_esp_action_has_bytes_where_it_says_so() {
        let empty = EspAction { has_keymat: false, replay_proto: 1, replay_len: 8, ..ESP };
        assert_eq!(
            wrong_texts(&esp_action(&empty, true)),
            ["keymat_ptr is NULL", "replay_ptr is NULL"]
        );
    }

    #[test]
    fn an_esp_action_has_known_protocols_and_bits() {
        let odd = EspAction { comp_mask: 8, keymat_proto: 1, replay_proto: 2, ..ESP };
        assert_eq!(
            wrong_texts(&esp_action(&odd, true)),
            [
                "comp_mask 0x8 has the bits 0x8; there are 0x1",
                "keymat_proto 1 is not in 0..=0 (AES_GCM is 0)",
                "replay_proto 2 is not in 0..=1 (NONE is 0, BMP is 1)",
            ]
        );
    }

    #[test]
    fn an_esn_without_its_bit_is_listed_as_ignored() {
        let given = esp_action(&EspAction { esn: 7, ..ESP }, true);
        assert!(given.plausible_arguments.iter().any(|rest| rest.starts_with("esn 7 (ignored")));
    }
}
