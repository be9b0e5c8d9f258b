//! QP-01, QP-08, QP-12, WR-01, WR-02, WR-07, WR-08, WR-12, WR-17: a send request, from the facts
//! about its QP. `element` checks the memory of the request.
//!
//! Map of this file: `SendFacts`; `state` and `elements`; `send`, which calls the parts: flags,
//! number of elements, inline data, atomics, datagrams; tests. No state, no lock.

use abi::{IBV_QPS_RTR, IBV_QPT_DRIVER, IBV_QPT_UD, SendFlags, ibv_qp_cap, ibv_sge};

use super::Id;
use super::finding::{Finding, Findings, Stack};
use super::request::{SendRequest, fetches, is_atomic, is_supported, opcode_name, uses_elements};
use super::transitions;

/// Facts about the QP of a send request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendFacts {
    /// `ibv_qp_type`.
    pub(crate) qp_type: u32,
    pub(crate) cap: ibv_qp_cap,
    /// `max_rd_atomic`; `u32::MAX` before RTS.
    pub(crate) max_rd_atomic: u32,
    /// Bytes of the port's MTU; 0 if unknown.
    pub(crate) mtu: u32,
    /// Q_Key of the QP.
    pub(crate) qkey: u32,
    /// Bytes of the longest message of a port; 0 if unknown.
    pub(crate) max_message: u64,
}

/// The address handle of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handle {
    /// The handle belongs to the QP's PD, or is unknown.
    Good,
    /// The handle at `ah` belongs to another PD than the QP.
    OtherPd { ah: usize, pd: usize, qp_pd: usize },
    /// The request names no handle.
    Null,
    /// The handle at `ah` was destroyed at this place.
    Destroyed { ah: usize, stack: Stack },
}

/// The bit of a Q_Key that selects the QP's own Q_Key (ibv_post_send(3)).
const QKEY_OWN: u32 = 1 << 31;
/// Q_Keys with the bit that programs use on purpose: the bit alone, and the key of QP 1.
const MEANT_QKEY: [u32; 2] = [QKEY_OWN, 0x8001_0000];
/// The largest message of any transport in bytes (IBTA 1.7 9.2).
const MAX_MESSAGE: u64 = 1 << 31;

/// QP-01: a send in a state that does not accept sends.
#[inline]
pub(crate) fn state(kind: u32, state: u32) -> Option<Finding> {
    (state <= IBV_QPS_RTR && kind != IBV_QPT_DRIVER).then(|| {
        let name = transitions::name(state);
        Finding::new(
            Id::Qp01,
            format!("the QP is in {name}, requests can be posted from RTS on"),
            "ibv_modify_qp to RTS first",
        )
    })
}

/// The elements whose memory must be checked: none if `send` finds that they cannot be used.
#[inline]
pub(crate) fn elements<'a>(facts: &SendFacts, request: &SendRequest<'a>) -> &'a [ibv_sge] {
    let is_checked = facts.qp_type != IBV_QPT_DRIVER
        && uses_elements(request.opcode)
        && has_elements(facts, request)
        && !request.is_inline();
    if is_checked { request.sges.unwrap_or(&[]) } else { &[] }
}

/// Whether the number of elements is valid.
#[inline]
fn has_elements(facts: &SendFacts, request: &SendRequest<'_>) -> bool {
    let SendRequest { count, sges, .. } = *request;
    (0..=i64::from(facts.cap.max_send_sge)).contains(&count) && (count == 0 || sges.is_some())
}

/// Checks one request. `handle` is the address handle of a UD QP.
#[inline]
pub(crate) fn send(
    facts: &SendFacts,
    request: &SendRequest<'_>,
    handle: Option<Handle>,
) -> Findings {
    let mut found = Findings::new();
    let SendRequest { opcode, .. } = *request;
    if facts.qp_type == IBV_QPT_DRIVER {
        return found;
    }
    if !is_supported(facts.qp_type, opcode) {
        let kind = transitions::kind_name(facts.qp_type);
        found.push(Finding::new(
            Id::Qp12,
            format!("{} is not possible on a QP of type {kind}", opcode_name(opcode)),
            "READ and atomics need RC or XRC_SEND, WRITE these or UC, UD can SEND",
        ));
    }
    if !uses_elements(opcode) {
        return found;
    }
    if let Some(finding) = flags(request) {
        found.push(finding);
    }
    if !has_elements(facts, request) {
        found.push(count(facts, request));
        return found;
    }
    let bytes = request.bytes();
    if let Some(finding) = inline(facts, request, bytes) {
        found.push(finding);
    }
    if is_atomic(opcode) {
        found.extend(atomic(request, bytes));
    }
    if fetches(opcode) && facts.max_rd_atomic == 0 {
        found.push(Finding::new(
            Id::Qp08,
            format!("{} can never be sent: max_rd_atomic is 0", opcode_name(opcode)),
            "set max_rd_atomic when the QP goes to RTS",
        ));
    }
    if facts.qp_type == IBV_QPT_UD {
        found.extend(datagram(facts, request, handle, bytes));
    } else if facts.max_message != 0 && bytes > facts.max_message.min(MAX_MESSAGE) {
        let most = facts.max_message.min(MAX_MESSAGE);
        found.push(Finding::new(
            Id::Wr17,
            format!("a message of {bytes} bytes is longer than {most}, the limit of the port"),
            "send the message in parts",
        ));
    }
    found
}

/// WR-12: flags that do not exist, or have no effect.
#[inline]
fn flags(request: &SendRequest<'_>) -> Option<Finding> {
    let known = SendFlags::FENCE
        | SendFlags::SIGNALED
        | SendFlags::SOLICITED
        | SendFlags::INLINE
        | SendFlags::IP_CSUM;
    let unknown = request.flags & !known.bits();
    if unknown != 0 {
        return Some(Finding::new(
            Id::Wr12,
            format!("send_flags {:#x} has unknown bits {unknown:#x}", request.flags),
            "is the ibv_send_wr initialised? memset it to 0",
        ));
    }
    let is_solicited = request.flags & SendFlags::SOLICITED.bits() != 0;
    (fetches(request.opcode) && is_solicited).then(|| {
        Finding::new(
            Id::Wr12,
            format!("IBV_SEND_SOLICITED has no effect on {}", opcode_name(request.opcode)),
            "set the flag for messages that complete a receive",
        )
    })
}

/// WR-01: more elements than the QP takes.
fn count(facts: &SendFacts, request: &SendRequest<'_>) -> Finding {
    let SendRequest { count, sges, .. } = *request;
    let text = if sges.is_none() && count > 0 {
        format!("num_sge is {count} and sg_list is NULL")
    } else {
        format!("num_sge {count}, the QP was made for {}", facts.cap.max_send_sge)
    };
    Finding::new(Id::Wr01, text, "raise cap.max_send_sge, or use fewer elements")
}

/// WR-02: inline data that the QP does not take.
#[inline]
fn inline(facts: &SendFacts, request: &SendRequest<'_>, bytes: u64) -> Option<Finding> {
    let most = facts.cap.max_inline_data;
    if !request.is_inline() {
        None
    } else if fetches(request.opcode) {
        Some(Finding::new(
            Id::Wr02,
            format!("{} cannot be inline", opcode_name(request.opcode)),
            "drop IBV_SEND_INLINE",
        ))
    } else {
        (bytes > u64::from(most)).then(|| {
            Finding::new(
                Id::Wr02,
                format!("{bytes} bytes inline, the QP was made for {most}"),
                "drop IBV_SEND_INLINE for longer ones, or raise cap.max_inline_data",
            )
        })
    }
}

/// WR-07: the memory of an atomic.
fn atomic(request: &SendRequest<'_>, bytes: u64) -> Findings {
    let mut found = Findings::new();
    if request.remote & 7 != 0 {
        found.push(Finding::new(
            Id::Wr07,
            format!("remote address {:#x} is not a multiple of 8", request.remote),
            "atomics work on aligned 8 bytes",
        ));
    }
    if bytes != 8 {
        found.push(Finding::new(
            Id::Wr07,
            format!("the local buffer has {bytes} bytes"),
            "an atomic returns 8 bytes: give it a buffer of 8",
        ));
    }
    found
}

/// WR-08: the address handle, Q_Key and length of a datagram.
fn datagram(
    facts: &SendFacts,
    request: &SendRequest<'_>,
    handle: Option<Handle>,
    bytes: u64,
) -> Findings {
    let mut found = Findings::new();
    match handle {
        None | Some(Handle::Good) => {}
        Some(Handle::OtherPd { ah, pd, qp_pd }) => found.push(Finding::new(
            Id::Wr08,
            format!("ah {ah:#x} is of PD {pd:#x}, the QP is in PD {qp_pd:#x}"),
            "make the address handle in the QP's PD",
        )),
        Some(Handle::Null) => found.push(Finding::new(
            Id::Wr08,
            "wr.ud.ah is NULL",
            "a datagram needs an address handle",
        )),
        Some(Handle::Destroyed { ah, stack }) => found.push(
            Finding::new(
                Id::Wr08,
                format!("ah {ah:#x} was destroyed"),
                "keep the address handle until the send completed",
            )
            .from(Some(("it was destroyed", stack))),
        ),
    }
    let selects_own = request.qkey & QKEY_OWN != 0 && !MEANT_QKEY.contains(&request.qkey);
    if selects_own && facts.qkey != request.qkey {
        found.push(Finding::new(
            Id::Wr08,
            format!(
                "remote_qkey {:#x} has its highest bit set: the Q_Key of the QP itself, {:#x}, is sent instead",
                request.qkey, facts.qkey
            ),
            "use Q_Keys below 0x80000000, or 0x80000000 where that of the QP is meant",
        ));
    }
    if facts.mtu != 0 && bytes > u64::from(facts.mtu) {
        found.push(Finding::new(
            Id::Wr08,
            format!("a datagram of {bytes} bytes is longer than the MTU, {}", facts.mtu),
            "a datagram is one packet: send less, or use RC",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::finding::testing::{ids, text};
    use super::*;
    use abi::{
        IBV_QPS_INIT, IBV_QPS_RTS, IBV_QPT_RC, IBV_QPT_UC, IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND,
    };

    const CAP: ibv_qp_cap = ibv_qp_cap {
        max_send_wr: 8,
        max_recv_wr: 8,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 16,
    };
    const RC: SendFacts = SendFacts {
        qp_type: IBV_QPT_RC,
        cap: CAP,
        max_rd_atomic: 16,
        mtu: 1024,
        qkey: 0x11,
        max_message: 1 << 30,
    };
    const UD: SendFacts = SendFacts { qp_type: IBV_QPT_UD, ..RC };
    const BUFFER: [ibv_sge; 3] = [ibv_sge { addr: 0x1000, length: 8, lkey: 1 }; 3];

    fn request(opcode: u32) -> SendRequest<'static> {
        SendRequest { sges: Some(&BUFFER[..1]), count: 1, ..SendRequest::new(7, opcode) }
    }

    fn sent(facts: SendFacts, request: SendRequest<'_>) -> Findings {
        send(&facts, &request, Some(Handle::Good))
    }

    #[test]
    fn a_good_request_has_no_finding() {
        for opcode in [IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
            assert_eq!(sent(RC, request(opcode)), []);
        }
        assert_eq!(sent(UD, request(IBV_WR_SEND)), []);
    }

    #[test]
    fn requests_are_posted_from_rts_on() {
        let early = state(IBV_QPT_RC, IBV_QPS_INIT).expect("a finding");
        assert_eq!(early.id, Id::Qp01);
        assert!(early.text.contains("INIT"), "{}", early.text);
        assert_eq!(state(IBV_QPT_RC, IBV_QPS_RTS), None);
        assert_eq!(state(IBV_QPT_DRIVER, IBV_QPS_INIT), None, "a vendor's QP has its own rules");
    }

    #[test]
    fn an_operation_that_the_type_lacks_is_named_with_the_type() {
        let found = sent(SendFacts { qp_type: IBV_QPT_UC, ..RC }, request(IBV_WR_RDMA_READ));
        assert_eq!(ids(&found), [Id::Qp12]);
        assert_eq!(text(&found), "RDMA_READ is not possible on a QP of type UC");
    }

    #[test]
    fn an_operation_without_elements_is_not_checked_further() {
        let odd = SendRequest { flags: 0x8000, count: 99, ..request(IBV_WR_LOCAL_INV) };
        assert_eq!(sent(RC, odd), []);
        assert!(elements(&RC, &odd).is_empty());
    }

    #[test]
    fn more_elements_than_the_qp_takes_are_found_with_the_limit() {
        let many = SendRequest { sges: Some(&BUFFER), count: 3, ..request(IBV_WR_SEND) };
        let found = sent(RC, many);
        assert_eq!(text(&found), "num_sge 3, the QP was made for 2");
        assert!(elements(&RC, &many).is_empty(), "the elements are not read");
    }

    #[test]
    fn a_negative_number_of_elements_is_found() {
        let found = sent(RC, SendRequest { count: -1, ..request(IBV_WR_SEND) });
        assert_eq!(text(&found), "num_sge -1, the QP was made for 2");
    }

    #[test]
    fn a_null_list_with_elements_is_found() {
        let found = sent(RC, SendRequest { sges: None, ..request(IBV_WR_SEND) });
        assert_eq!(text(&found), "num_sge is 1 and sg_list is NULL");
    }

    #[test]
    fn a_request_without_elements_is_good() {
        assert_eq!(sent(RC, SendRequest { sges: None, count: 0, ..request(IBV_WR_SEND) }), []);
    }

    #[test]
    fn inline_data_have_a_limit() {
        let inline = |bytes| SendRequest { inline: Some(bytes), ..request(IBV_WR_SEND) };
        assert_eq!(sent(RC, inline(16)), []);
        assert_eq!(text(&sent(RC, inline(17))), "17 bytes inline, the QP was made for 16");
        assert!(elements(&RC, &inline(16)).is_empty(), "inline data need no region");
    }

    #[test]
    fn a_read_cannot_be_inline() {
        let flags = SendFlags::INLINE.bits();
        let found = sent(RC, SendRequest { flags, ..request(IBV_WR_RDMA_READ) });
        assert_eq!(text(&found), "RDMA_READ cannot be inline");
    }

    #[test]
    fn unknown_flags_are_named_by_their_bits() {
        let found = sent(RC, SendRequest { flags: 0x8002, ..request(IBV_WR_SEND) });
        assert_eq!(text(&found), "send_flags 0x8002 has unknown bits 0x8000");
    }

    #[test]
    fn a_read_is_never_solicited() {
        let flags = SendFlags::SOLICITED.bits();
        let found = sent(RC, SendRequest { flags, ..request(IBV_WR_RDMA_READ) });
        assert_eq!(ids(&found), [Id::Wr12]);
        assert_eq!(sent(RC, SendRequest { flags, ..request(IBV_WR_SEND) }), []);
    }

    #[test]
    fn an_atomic_works_on_eight_aligned_bytes() {
        let atomic = request(IBV_WR_ATOMIC_FETCH_AND_ADD);
        assert_eq!(sent(RC, SendRequest { remote: 0x1008, ..atomic }), []);
        let found = sent(RC, SendRequest { remote: 0x1004, ..atomic });
        assert_eq!(text(&found), "remote address 0x1004 is not a multiple of 8");
        let long = SendRequest { sges: Some(&BUFFER[..2]), count: 2, ..atomic };
        assert_eq!(text(&sent(RC, long)), "the local buffer has 16 bytes");
    }

    #[test]
    fn a_read_needs_a_resource_of_the_requester() {
        let none = SendFacts { max_rd_atomic: 0, ..RC };
        assert_eq!(ids(&sent(none, request(IBV_WR_RDMA_READ))), [Id::Qp08]);
        assert_eq!(sent(none, request(IBV_WR_SEND)), []);
    }

    /// IBTA 1.7 9.2.
    #[test]
    fn a_message_is_no_longer_than_the_port_permits() {
        let short = SendFacts { max_message: 7, ..RC };
        let found = sent(short, request(IBV_WR_SEND));
        assert_eq!(text(&found), "a message of 8 bytes is longer than 7, the limit of the port");
        assert_eq!(sent(SendFacts { max_message: 0, ..RC }, request(IBV_WR_SEND)), []);
    }

    #[test]
    fn a_datagram_is_one_packet() {
        let small = SendFacts { mtu: 7, ..UD };
        let found = sent(small, request(IBV_WR_SEND));
        assert_eq!(text(&found), "a datagram of 8 bytes is longer than the MTU, 7");
        assert_eq!(sent(SendFacts { mtu: 0, ..UD }, request(IBV_WR_SEND)), []);
    }

    #[test]
    fn a_datagram_needs_an_address_handle() {
        let found = send(&UD, &request(IBV_WR_SEND), Some(Handle::Null));
        assert_eq!(text(&found), "wr.ud.ah is NULL");
    }

    #[test]
    fn an_address_handle_of_another_domain_is_found_with_both_domains() {
        let handle = Handle::OtherPd { ah: 1, pd: 2, qp_pd: 3 };
        let found = send(&UD, &request(IBV_WR_SEND), Some(handle));
        assert_eq!(text(&found), "ah 0x1 is of PD 0x2, the QP is in PD 0x3");
    }

    #[test]
    fn a_destroyed_address_handle_is_found_with_the_place_of_its_destruction() {
        let handle = Handle::Destroyed { ah: 1, stack: [9; 8] };
        let found = send(&UD, &request(IBV_WR_SEND), Some(handle));
        assert_eq!(found[0].origin, Some(("it was destroyed", [9; 8])));
    }

    /// IBTA 1.7 10.2.5.
    #[test]
    fn a_qkey_with_the_highest_bit_selects_the_qps_own() {
        let with = |qkey| sent(UD, SendRequest { qkey, ..request(IBV_WR_SEND) });
        assert_eq!(ids(&with(0x8000_0012)), [Id::Wr08]);
        assert_eq!(with(0x8000_0000), [], "the bit alone is meant");
        assert_eq!(with(0x8001_0000), [], "the key of QP 1 is meant");
        assert_eq!(with(0x12), []);
    }

    #[test]
    fn a_vendors_qp_is_not_checked() {
        let odd = SendRequest { flags: 0x8000, count: 99, ..request(77) };
        assert_eq!(sent(SendFacts { qp_type: IBV_QPT_DRIVER, ..RC }, odd), []);
    }
}
