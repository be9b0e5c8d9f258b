//! Refusals of the remaining verbs: domains, ports, counters, steering rules, imported objects.
#![forbid(unsafe_code)]

use abi::{
    IBV_FLOW_ATTR_SNIFFER, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS,
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
    IBV_READ_COUNTERS_ATTR_PREFER_CACHED, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS,
    IBV_XRCD_INIT_ATTR_RESERVED, ibv_flow_attr, ibv_xrcd_init_attr,
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
    given.needed("pd", has_pd, "set pd to the PD that the parent domain is over");
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
        given.wrong(
            format!("comp_mask {mask:#x} lacks {:#x}", needs & !mask),
            "set IBV_XRCD_INIT_ATTR_FD and IBV_XRCD_INIT_ATTR_OFLAGS",
        );
    }
    if attr.fd == -1 {
        given.fine("fd", "-1 (a domain of this process)");
    } else if is_open {
        given.fine("fd", attr.fd);
    } else {
        given.wrong(
            format!("fd {} is no open file", attr.fd),
            "open a file that all processes of the domain open, or give -1",
        );
    }
    let known = u64::from((libc::O_CREAT | libc::O_EXCL).cast_unsigned());
    given.flags("oflags", attr.oflags.cast_unsigned().into(), known);
    if attr.oflags & libc::O_CREAT == 0 && given.wrong.is_empty() {
        given.wrong(
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
        _ => given.fine("port_num", port),
    }
    given
}

/// ibv_import_pd(3), ibv_import_mr(3) and ibv_import_dm(3).
pub(crate) fn import(kind: &str, handle: u32) -> Judged {
    let mut given = Judged::default();
    given.wrong(
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
    given.fine("num_of_specs", attr.num_of_specs);
    given.fine("priority", attr.priority);
    given
}

/// ibv_attach_counters_point_flow(3).
pub(crate) fn attach_counters(description: u32, index: u32, comp_mask: u32, errno: i32) -> Judged {
    let mut given = Judged::default();
    given.number("counter_desc", description.into(), 0..=1, "IBV_COUNTER_PACKETS and _BYTES");
    given.flags("comp_mask", comp_mask.into(), 0);
    given.fine("index", index);
    if errno == libc::EBUSY {
        given.wrong(
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
        given.wrong(format!("{users} still use it"), format!("destroy these first: {users}"));
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::given::ObjectCounts;
    use crate::checks::given::testing::{judged, wrong};

    #[test]
    fn as_many_domains_as_the_device_makes_are_told() {
        let given = judged(ObjectCounts { pds: 2, ..ObjectCounts::default() }, |facts| {
            alloc_pd(facts, libc::ENOMEM)
        });
        assert_eq!(wrong(&given), ["2 PDs are open, and max_pd is 2"]);
    }

    #[test]
    fn a_parent_domain_is_over_a_pd() {
        assert_eq!(wrong(&alloc_parent_domain(0, false)), ["pd is NULL"]);
        assert_eq!(alloc_parent_domain(0x10, true).wrong.len(), 1);
        assert_eq!(only_mask(4).wrong.len(), 1);
    }

    #[test]
    fn a_domain_of_xrc_has_a_file_or_minus_1() {
        let good = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
        assert!(open_xrcd(&good, false).wrong.is_empty());
        let closed = ibv_xrcd_init_attr { fd: 77, ..good };
        assert_eq!(wrong(&open_xrcd(&closed, false)), ["fd 77 is no open file"]);
        let first = ibv_xrcd_init_attr { oflags: 0, ..good };
        assert!(wrong(&open_xrcd(&first, false))[0].contains("O_CREAT"));
        let odd = ibv_xrcd_init_attr { comp_mask: 4, fd: -1, oflags: 1 };
        assert_eq!(open_xrcd(&odd, false).wrong.len(), 3);
    }

    #[test]
    fn a_port_is_one_of_the_device() {
        let of = |port| judged(ObjectCounts::default(), |facts| query_port(facts, port));
        assert_eq!(
            wrong(&of(2)),
            ["port_num 2 is not in 1..=1 (phys_port_cnt of ibv_query_device)"]
        );
        assert!(of(1).wrong.is_empty());
    }

    #[test]
    fn what_is_imported_is_named_by_its_handle() {
        assert_eq!(
            wrong(&import("PD", 0x42)),
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
            judged(ObjectCounts::default(), |facts| create_flow(facts, &attr))
        };
        assert!(of(good).wrong.is_empty());
        let odd = ibv_flow_attr { comp_mask: 1, type_: 9, size: 3, port: 0, flags: 0x80, ..good };
        assert_eq!(of(odd).wrong.len(), 5);
    }

    #[test]
    fn counters_are_attached_before_they_are_used() {
        assert_eq!(attach_counters(7, 0, 1, libc::EINVAL).wrong.len(), 2);
        assert!(wrong(&attach_counters(0, 0, 0, libc::EBUSY))[0].contains("steering rule"));
        assert_eq!(read_counters(0, 4).wrong.len(), 2);
        assert!(read_counters(1, 1).wrong.is_empty());
    }

    #[test]
    fn what_is_busy_says_by_what() {
        assert_eq!(
            wrong(&busy(libc::EBUSY, "indirection tables")),
            ["indirection tables still use it"]
        );
        assert!(busy(libc::EINVAL, "indirection tables").wrong.is_empty());
    }
}
