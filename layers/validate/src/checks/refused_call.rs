//! Calls that libibverbs itself refused before it asked the provider: the check of the call, and
//! the message from the explanation of libibverbs.

use super::Id;
use super::finding::Finding;
use super::given::errno_name;

/// The explanation of libibverbs (`ferroverbs_refusal`).
#[derive(Clone, Debug)]
pub(crate) struct RefusedCall<'a> {
    pub(crate) call: &'a str,
    pub(crate) argument: &'a str,
    pub(crate) problem: &'a str,
    pub(crate) remedy: &'a str,
    pub(crate) value: Option<u64>,
    pub(crate) error: i32,
}

impl RefusedCall<'_> {
    /// The finding. Each refusal has one.
    pub(crate) fn finding(&self) -> Finding {
        let Self { call, argument, problem, remedy, value, error } = self;
        let errno = errno_name(*error)
            .map_or_else(|| std::io::Error::from_raw_os_error(*error).to_string(), str::to_owned);
        let value = value.map_or_else(String::new, |value| format!(" {value} ({value:#x})"));
        Finding::new(check_of(call), format!("{errno}: {argument}{value} {problem}"), *remedy)
    }
}

/// The check for refusals of the object that the call concerns.
fn check_of(call: &str) -> Id {
    let concerns =
        |words: &[&str]| words.iter().any(|word| call.split('_').any(|part| part == *word));
    if concerns(&["mr", "dm", "dmah", "buf"]) {
        Id::Mr19
    } else if concerns(&["srq"]) {
        Id::Ob07
    } else if concerns(&["ah", "l2"]) {
        Id::Ob08
    } else if concerns(&["cq"]) {
        Id::Cq14
    } else if concerns(&["qp", "ece", "mcast"]) {
        Id::Qp21
    } else {
        Id::Ob09
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(call: &str, value: Option<u64>, error: i32) -> Finding {
        RefusedCall { call, argument: "attr", problem: "is NULL", remedy: "pass one", value, error }
            .finding()
    }

    #[test]
    fn the_message_names_errno_argument_and_remedy() {
        let found = refused("ibv_create_srq", None, libc::EINVAL);
        assert_eq!(
            (found.text.as_str(), found.remedy.as_str()),
            ("EINVAL: attr is NULL", "pass one")
        );
    }

    #[test]
    fn a_value_is_named_in_both_bases() {
        let found = refused("ibv_create_cq_ex", Some(255), libc::EBUSY);
        assert_eq!(found.text, "EBUSY: attr 255 (0xff) is NULL");
    }

    #[test]
    fn an_errno_that_other_checks_do_not_explain_has_its_text() {
        let found = refused("ibv_set_ece", None, libc::EOPNOTSUPP);
        assert!(found.text.starts_with("Operation not supported"), "{}", found.text);
    }

    #[test]
    fn each_call_has_the_check_of_its_object() {
        let checks = [
            ("ibv_reg_mr_iova2", Id::Mr19),
            ("ibv_alloc_buf", Id::Mr19),
            ("ibv_create_srq", Id::Ob07),
            ("ibv_create_ah_from_wc", Id::Ob08),
            ("ibv_resolve_eth_l2_from_gid", Id::Ob08),
            ("ibv_get_cq_event", Id::Cq14),
            ("ibv_modify_qp", Id::Qp21),
            ("ibv_set_ece", Id::Qp21),
            ("ibv_destroy_comp_channel", Id::Ob09),
            ("_ibv_query_gid_ex", Id::Ob09),
        ];
        for (call, check) in checks {
            assert_eq!(check_of(call), check, "{call}");
        }
    }
}
