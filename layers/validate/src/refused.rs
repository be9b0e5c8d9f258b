//! QP-03: explains a refused `ibv_modify_qp(3)` if no other check knows the reason. The message
//! lists suspicious attributes first, then the others.

use core::net::Ipv6Addr;

use abi::{
    IBV_QPT_DRIVER, QpAttrMask as M, Zeroed, ibv_ah_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};

use crate::checks::Id;
use crate::gid;
use crate::report::{Message, emit, wanted};
use crate::state::{Qp, beneath};
use crate::transitions;

/// `IBV_MIG_ARMED`.
const LAST_MIGRATION_STATE: u32 = 2;
/// `IBV_MTU_4096`.
const LAST_MTU: u32 = 5;
/// Access flags that a queue pair may have.
const RIGHTS: u32 = 0x30f;
/// The largest service level (4 bits).
const LAST_SERVICE_LEVEL: u8 = 15;

/// The judged attributes.
#[derive(Default)]
struct ChangeArguments {
    /// Suspicious attributes with the reason.
    odd: Vec<String>,
    rest: Vec<String>,
}

impl ChangeArguments {
    fn put(&mut self, name: &str, value: &str, why: Option<String>) {
        match why {
            Some(why) => self.odd.push(format!("{name} {value} ({why})")),
            None => self.rest.push(format!("{name} {value}")),
        }
    }

    /// Adds a number, which is suspicious outside `least..=most`.
    fn number(&mut self, name: &str, value: u32, least: u32, most: u32) {
        let is_odd = value < least || value > most;
        self.put(name, &value.to_string(), is_odd.then(|| format!("not in {least}..={most}")));
    }

    fn address(&mut self, qp: &Qp, name: &str, port: u8, address: &ibv_ah_attr) {
        let name = |member: &str| format!("{name}.{member}");
        let is_ethernet = qp
            .ctx
            .port(port)
            .is_some_and(|port| u32::from(port.link_layer) == abi::IBV_LINK_LAYER_ETHERNET);
        let odd = (address.is_global == 0 && is_ethernet).then(|| "RoCE needs 1".to_owned());
        self.put(&name("is_global"), &address.is_global.to_string(), odd);
        if address.is_global != 0 {
            let to = Ipv6Addr::from(address.grh.dgid.bytes());
            let odd = match () {
                () if to.is_unspecified() => Some("no address"),
                () if to.is_multicast() => Some("a group, which no connection has"),
                () if !is_unicast(to) => {
                    Some("of no family: fe80::/10, a unicast IPv6 address, or ::ffff: and IPv4")
                }
                () => None,
            };
            self.put(&name("grh.dgid"), &to.to_string(), odd.map(str::to_owned));
            let index = address.grh.sgid_index;
            let is_empty = qp.ctx.port(port).is_some() && gid::is_empty(&qp.ctx, port, index);
            let odd = is_empty.then(|| "an empty entry".to_owned());
            self.put(&name("grh.sgid_index"), &index.to_string(), odd);
        }
        self.number(&name("sl"), address.sl.into(), 0, LAST_SERVICE_LEVEL.into());
        let odd = (address.port_num != port).then(|| format!("the QP is on port {port}"));
        self.put(&name("port_num"), &address.port_num.to_string(), odd);
        self.put(&name("static_rate"), &address.static_rate.to_string(), None);
    }
}

/// Whether an address is a unicast IPv6 address, or an IPv4 address in its mapped form.
fn is_unicast(to: Ipv6Addr) -> bool {
    match to.to_ipv4_mapped() {
        Some(v4) => !v4.is_unspecified() && !v4.is_multicast() && !v4.is_broadcast(),
        // An address with 32 zero bits is an obsolete form of an IPv4 address.
        None => to.segments()[0] != 0 || to.is_loopback(),
    }
}

/// Explains a refused change.
///
/// # Safety
/// `attr` is readable where `mask` names a member; `at` is the live QP of the record `qp`.
#[cold]
pub(crate) unsafe fn explain(
    qp: &Qp,
    at: *mut ibv_qp,
    attr: *const ibv_qp_attr,
    mask: M,
    errno: i32,
) {
    if !wanted(Id::Qp03) || qp.kind == IBV_QPT_DRIVER {
        return;
    }
    macro_rules! member {
        ($bit:ident, $($field:tt)+) => {
            // SAFETY: the mask names the member.
            mask.contains(M::$bit).then(|| unsafe { (*attr).$($field)+ })
        };
    }
    let mut given = ChangeArguments::default();
    let mut now = ibv_qp_attr::zeroed();
    let mut init = ibv_qp_init_attr::zeroed();
    let bits = M::STATE.bits().cast_signed();
    // SAFETY: the QP is live, and both structures are local.
    let asked = unsafe { beneath!(qp.ctx.next, query_qp)(at, &raw mut now, bits, &raw mut init) };
    if asked == 0 && now.qp_state != qp.state() {
        given.odd.push(format!(
            "the QP is in {}, where it went by itself, and not in {}",
            transitions::name(now.qp_state),
            transitions::name(qp.state())
        ));
    }
    let to = member!(STATE, qp_state).unwrap_or(now.qp_state);
    if asked == 0 && transitions::allowed(qp.kind, now.qp_state, to).is_none() {
        given.odd.push(format!(
            "there is no change {} -> {}",
            transitions::name(now.qp_state),
            transitions::name(to)
        ));
    }
    let port = member!(PORT, port_num).unwrap_or_else(|| qp.attr.lock().port_num);
    if let Some(state) = member!(STATE, qp_state) {
        given.put("qp_state", &transitions::name(state), None);
    }
    if let Some(state) = member!(CUR_STATE, cur_qp_state) {
        given.put("cur_qp_state", &transitions::name(state), None);
    }
    if let Some(address) = member!(AV, ah_attr) {
        given.address(qp, "ah_attr", port, &address);
    }
    if let Some(address) = member!(ALT_PATH, alt_ah_attr) {
        let ports = u32::try_from(qp.ctx.ports.len()).unwrap_or(u32::MAX);
        // SAFETY: the bit of the alternate path names these members too.
        let (port, timeout, key) =
            unsafe { ((*attr).alt_port_num, (*attr).alt_timeout, (*attr).alt_pkey_index) };
        given.number("alt_port_num", port.into(), 1, ports);
        given.number("alt_timeout", timeout.into(), 0, 31);
        let keys = qp.ctx.port(port).map_or(u32::MAX, |port| port.pkey_tbl_len.into());
        given.number("alt_pkey_index", key.into(), 0, keys.saturating_sub(1));
        given.address(qp, "alt_ah_attr", port, &address);
    }
    if let Some(state) = member!(PATH_MIG_STATE, path_mig_state) {
        given.number("path_mig_state", state, 0, LAST_MIGRATION_STATE);
    }
    if let Some(mtu) = member!(PATH_MTU, path_mtu) {
        given.number("path_mtu", mtu, 1, LAST_MTU);
    }
    if let Some(flags) = member!(ACCESS_FLAGS, qp_access_flags) {
        let odd = (flags & !RIGHTS != 0).then(|| format!("{:#x} is no right", flags & !RIGHTS));
        given.put("qp_access_flags", &format!("{flags:#x}"), odd);
    }
    if let Some(switch) = member!(EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify) {
        given.number("en_sqd_async_notify", switch.into(), 0, 1);
    }
    if let Some(number) = member!(DEST_QPN, dest_qp_num) {
        let odd = (number < 2).then(|| "no QP of a program has it".to_owned());
        given.put("dest_qp_num", &format!("{number:#x}"), odd);
    }
    for (name, value) in [
        ("pkey_index", member!(PKEY_INDEX, pkey_index).map(u32::from)),
        ("port_num", member!(PORT, port_num).map(u32::from)),
        ("qkey", member!(QKEY, qkey)),
        ("timeout", member!(TIMEOUT, timeout).map(u32::from)),
        ("retry_cnt", member!(RETRY_CNT, retry_cnt).map(u32::from)),
        ("rnr_retry", member!(RNR_RETRY, rnr_retry).map(u32::from)),
        ("min_rnr_timer", member!(MIN_RNR_TIMER, min_rnr_timer).map(u32::from)),
        ("rq_psn", member!(RQ_PSN, rq_psn)),
        ("sq_psn", member!(SQ_PSN, sq_psn)),
        ("max_rd_atomic", member!(MAX_QP_RD_ATOMIC, max_rd_atomic).map(u32::from)),
        ("max_dest_rd_atomic", member!(MAX_DEST_RD_ATOMIC, max_dest_rd_atomic).map(u32::from)),
        ("rate_limit", member!(RATE_LIMIT, rate_limit)),
    ] {
        if let Some(value) = value {
            given.put(name, &value.to_string(), None);
        }
    }
    let ChangeArguments { odd, rest } = given;
    let errno = match errno {
        libc::EINVAL => "EINVAL",
        libc::ENOMEM => "ENOMEM",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        // An unreachable destination is reported only with a suspicious attribute.
        libc::EHOSTUNREACH if !odd.is_empty() => "EHOSTUNREACH",
        _ => return,
    };
    let text = match (odd.is_empty(), rest.is_empty()) {
        (true, _) => format!("{errno}, and no check knows why; given were {}", rest.join(", ")),
        (false, true) => format!("{errno}; what looks wrong: {}", odd.join(", ")),
        (false, false) => {
            format!(
                "{errno}; what looks wrong: {}; the others: {}",
                odd.join(", "),
                rest.join(", ")
            )
        }
    };
    let remedy = "correct what looks wrong; a device may have rules of its own (dmesg)";
    emit(
        &Message {
            id: Id::Qp03,
            call: "ibv_modify_qp",
            object: qp.name(),
            text,
            remedy: remedy.into(),
            also: None,
        },
        Some(qp),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_no_family_are_known() {
        for (text, good) in [
            ("::ffff:10.0.0.1", true),
            ("fe80::1", true),
            ("fd00::2", true),
            ("::1", true),
            ("::10.0.0.1", false),
            ("::ffff:0.0.0.0", false),
            ("::ffff:224.0.0.1", false),
        ] {
            assert_eq!(is_unicast(text.parse().expect("an address")), good, "{text}");
        }
    }
}
