//! The arguments of a refused call: which are wrong, by which limit, and the remedy. Correct
//! arguments are listed at the end of the message.

use core::fmt::Display;
use core::ops::RangeInclusive;

use abi::{ibv_device_attr, ibv_port_attr};

use super::Id;
use super::finding::{Finding, Findings};

/// Facts about the device and the program's objects there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) device: Option<&'a ibv_device_attr>,
    /// The ports, beginning with port 1.
    pub(crate) ports: &'a [ibv_port_attr],
    /// `num_comp_vectors` of the context.
    pub(crate) vectors: i32,
    /// Numbers of objects of the context whose creation this layer saw.
    pub(crate) counts: ObjectCounts,
}

/// Numbers of live objects, by kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ObjectCounts {
    pub(crate) qps: usize,
    pub(crate) cqs: usize,
    pub(crate) srqs: usize,
    pub(crate) pds: usize,
    pub(crate) ahs: usize,
    pub(crate) regions: usize,
    pub(crate) windows: usize,
}

/// A wrong argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// The check of the message; `None` for the usual check of the call.
    pub(crate) id: Option<Id>,
    pub(crate) text: String,
    pub(crate) remedy: String,
}

/// The judged arguments of a call.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    pub(crate) wrong_arguments: Vec<Wrong>,
    /// `name value` of each argument without a known error.
    pub(crate) plausible_arguments: Vec<String>,
}

impl Judged {
    /// Adds an argument without a known error.
    pub(crate) fn add_plausible(&mut self, name: &str, value: impl Display) {
        self.plausible_arguments.push(format!("{name} {value}"));
    }

    /// Adds a wrong argument.
    pub(crate) fn add_wrong(&mut self, text: impl Into<String>, remedy: impl Into<String>) {
        self.wrong_arguments.push(Wrong { id: None, text: text.into(), remedy: remedy.into() });
    }

    /// Adds a wrong argument that has its own check.
    pub(crate) fn wrong_by(&mut self, id: Id, text: String, remedy: &str) {
        self.wrong_arguments.push(Wrong { id: Some(id), text, remedy: remedy.into() });
    }

    /// Adds a number that must be in `range`; `limit` names the source of the range.
    pub(crate) fn number(
        &mut self,
        name: &str,
        value: i64,
        range: RangeInclusive<i64>,
        limit: &str,
    ) {
        if range.contains(&value) {
            return self.add_plausible(name, value);
        }
        let (least, most) = range.into_inner();
        self.add_wrong(
            format!("{name} {value} is not in {least}..={most} ({limit})"),
            format!("choose {name} in {least}..={most}"),
        );
    }

    /// Adds a number that the device limits. Without a known device the number is only listed.
    pub(crate) fn limited(
        &mut self,
        name: &str,
        value: u32,
        least: i64,
        most: Option<i32>,
        limit: &str,
    ) {
        match most {
            Some(most) => {
                let limit = format!("{limit} of ibv_query_device");
                self.number(name, value.into(), least..=i64::from(most), &limit);
            }
            None => self.add_plausible(name, value),
        }
    }

    /// Adds a bit mask in which only the bits `known` exist.
    pub(crate) fn flags(&mut self, name: &str, value: u64, known: u64) {
        match value & !known {
            0 => self.add_plausible(name, format_args!("{value:#x}")),
            unknown => self.add_wrong(
                format!("{name} {value:#x} has the bits {unknown:#x}; there are {known:#x}"),
                format!("clear the bits {unknown:#x} of {name}; was the structure set to 0 first?"),
            ),
        }
    }

    /// Adds a pointer that must not be NULL.
    pub(crate) fn add_required(&mut self, name: &str, is_there: bool, remedy: &str) {
        if is_there {
            self.add_plausible(name, "is set");
        } else {
            self.add_wrong(format!("{name} is NULL"), remedy);
        }
    }

    /// Explains ENOMEM by the number of objects, if the program has as many as the device allows.
    pub(crate) fn full(&mut self, what: &str, open: usize, most: Option<i32>, limit: &str) {
        let Some(most) = most else { return };
        if i64::try_from(open).unwrap_or(i64::MAX) >= i64::from(most) {
            self.add_wrong(
                format!("{open} {what} are open, and {limit} is {most}"),
                format!("destroy {what} that are not needed, or share them"),
            );
        } else {
            self.add_plausible(&format!("{what} that are open:"), format_args!("{open} of {most}"));
        }
    }

    /// The findings, one for each check. `usual` is the check of the call.
    pub(crate) fn findings(self, errno: &str, usual: Id, remedy: &str) -> Findings {
        let Self { wrong_arguments: wrong, plausible_arguments: rest } = self;
        let rest = rest.join(", ");
        if wrong.is_empty() {
            let text = match rest.as_str() {
                "" => format!("{errno}, and no check knows why"),
                rest => format!("{errno}, and no check knows why; given were {rest}"),
            };
            return vec![Finding::new(usual, text, remedy)];
        }
        let mut found = Findings::new();
        for Wrong { id, text, remedy } in wrong {
            let id = id.unwrap_or(usual);
            match found.iter_mut().find(|known| known.id == id) {
                Some(known) => {
                    known.text = format!("{}; {text}", known.text);
                    known.remedy = format!("{}; {remedy}", known.remedy);
                }
                None => found.push(Finding::new(id, format!("{errno}: {text}"), remedy)),
            }
        }
        if let (Some(last), false) = (found.last_mut(), rest.is_empty()) {
            last.text = format!("{}; the rest is {rest}", last.text);
        }
        found
    }
}

/// The name of an errno that this layer explains; `None` for all others.
pub(crate) const fn errno_name(errno: i32) -> Option<&'static str> {
    match errno {
        libc::EINVAL => Some("EINVAL"),
        libc::EFAULT => Some("EFAULT"),
        libc::ENOMEM => Some("ENOMEM"),
        libc::EBUSY => Some("EBUSY"),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use abi::Zeroed;

    /// A device with small limits, and its port.
    pub(crate) fn device() -> (ibv_device_attr, [ibv_port_attr; 1]) {
        let device = ibv_device_attr {
            max_mr_size: 1 << 30,
            max_qp: 4,
            max_qp_wr: 100,
            max_sge: 8,
            max_cq: 3,
            max_cqe: 1000,
            max_mr: 5,
            max_pd: 2,
            max_mw: 2,
            max_ah: 2,
            max_srq: 2,
            max_srq_wr: 50,
            max_srq_sge: 4,
            max_mcast_grp: 2,
            max_mcast_qp_attach: 2,
            phys_port_cnt: 1,
            ..Zeroed::zeroed()
        };
        let port = ibv_port_attr {
            gid_tbl_len: 32,
            pkey_tbl_len: 1,
            active_mtu: abi::IBV_MTU_1024,
            link_layer: abi::IBV_LINK_LAYER_ETHERNET as u8,
            ..Zeroed::zeroed()
        };
        (device, [port])
    }

    /// Runs `judge` with these facts.
    pub(crate) fn judge_with(
        counts: ObjectCounts,
        judge: impl FnOnce(&Facts<'_>) -> Judged,
    ) -> Judged {
        let (device, ports) = device();
        judge(&Facts { device: Some(&device), ports: &ports, vectors: 1, counts })
    }

    /// The texts of the wrong arguments.
    pub(crate) fn wrong_texts(given: &Judged) -> Vec<&str> {
        given.wrong_arguments.iter().map(|finding| finding.text.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_comes_first_and_the_rest_behind_it() {
        let mut given = Judged::default();
        given.number("cqe", 0, 1..=1000, "max_cqe of ibv_query_device");
        given.add_plausible("comp_vector", 0);
        assert_eq!(
            given.findings("EINVAL", Id::Cq14, ""),
            [Finding::new(
                Id::Cq14,
                "EINVAL: cqe 0 is not in 1..=1000 (max_cqe of ibv_query_device); the rest is comp_vector 0",
                "choose cqe in 1..=1000"
            )]
        );
    }

    #[test]
    fn where_nothing_is_wrong_all_that_was_given_is_told() {
        let mut given = Judged::default();
        given.flags("access", 3, 0xff);
        let found = given.findings("ENOMEM", Id::Cq14, "ask less");
        let text = "ENOMEM, and no check knows why; given were access 0x3";
        assert_eq!(found, [Finding::new(Id::Cq14, text, "ask less")]);
    }

    #[test]
    fn a_call_without_arguments_has_a_short_text() {
        let found = Judged::default().findings("ENOMEM", Id::Cq14, "ask less");
        assert_eq!(found[0].text, "ENOMEM, and no check knows why");
    }

    #[test]
    fn what_has_a_check_of_its_own_is_told_by_that() {
        let mut given = Judged::default();
        given.add_wrong("one", "mend one");
        given.wrong_by(Id::Mr16, "two".into(), "mend two");
        given.add_wrong("three", "mend three");
        let found = given.findings("EINVAL", Id::Mr19, "");
        assert_eq!(found[0], Finding::new(Id::Mr19, "EINVAL: one; three", "mend one; mend three"));
        assert_eq!(found[1], Finding::new(Id::Mr16, "EINVAL: two", "mend two"));
    }

    #[test]
    fn a_pointer_that_is_needed_is_named() {
        let mut given = Judged::default();
        given.add_required("pd", false, "set pd");
        given.add_required("cq", true, "set cq");
        assert_eq!(given.wrong_arguments[0].text, "pd is NULL");
        assert_eq!(given.plausible_arguments, ["cq is set"]);
    }

    #[test]
    fn a_number_without_a_known_limit_is_only_listed() {
        let mut given = Judged::default();
        given.limited("max_wr", 1 << 30, 1, None, "max_qp_wr");
        assert!(given.wrong_arguments.is_empty());
        assert_eq!(given.plausible_arguments, ["max_wr 1073741824"]);
    }

    #[test]
    fn only_four_errnos_are_explained() {
        for errno in [libc::EINVAL, libc::EFAULT, libc::ENOMEM, libc::EBUSY] {
            assert!(errno_name(errno).is_some());
        }
        assert_eq!(errno_name(libc::EPERM), None);
    }

    #[test]
    fn bits_that_do_not_exist_are_named() {
        let mut given = Judged::default();
        given.flags("access", 0x1001, 0x3ff);
        assert_eq!(
            given.wrong_arguments[0].text,
            "access 0x1001 has the bits 0x1000; there are 0x3ff"
        );
    }

    #[test]
    fn as_many_objects_as_there_can_be_are_an_answer() {
        let mut given = Judged::default();
        given.full("CQs", 3, Some(3), "max_cq");
        given.full("QPs", 3, Some(4), "max_qp");
        given.full("SRQs", 3, None, "max_srq");
        assert_eq!(given.wrong_arguments[0].text, "3 CQs are open, and max_cq is 3");
        assert_eq!(given.plausible_arguments, ["QPs that are open: 3 of 4"]);
    }
}
