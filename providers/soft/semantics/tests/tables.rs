//! Tables of every transport with every opcode and every fault: acceptance, completion opcode,
//! status and time on a virtual clock.
//!
//! The tests of `modify` cover state transitions.

use abi::*;
use soft_semantics::Time;
use soft_semantics::faults::{
    ALL, Fault, FaultEffect, Plan, Retries, Rule, RuleHits, SendQueueFaults,
};
use soft_semantics::inbound::Nak;
use soft_semantics::request::{PayloadRule, completion_opcode, payload_rule};
use soft_semantics::state::{QpState, QpType, give_up_us, rnr_timer_us};
use std::time::Duration;

const KINDS: [QpType; 6] =
    [QpType::Rc, QpType::XrcSend, QpType::Uc, QpType::Ud, QpType::Raw, QpType::XrcRecv];

/// Opcodes, their completion opcodes, and how RC, XRC_SEND, UC, UD and RAW_PACKET accept them: `b`
/// with bytes that may be inline, `n` without inline bytes, `s` in segments, `-` not at all. From
/// ibv_post_send(3); XRC has no windows here.
const OPCODES: &[(u32, u32, &str)] = &[
    (IBV_WR_SEND, IBV_WC_SEND, "bbbbb"),
    (IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, "bbbb-"),
    (IBV_WR_SEND_WITH_INV, IBV_WC_SEND, "b-b--"),
    (IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, "bbb--"),
    (IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE, "bbb--"),
    (IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, "nn---"),
    (IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP, "nn---"),
    (IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD, "nn---"),
    (IBV_WR_ATOMIC_WRITE, IBV_WC_ATOMIC_WRITE, "b----"),
    (IBV_WR_FLUSH, IBV_WC_FLUSH, "n----"),
    (IBV_WR_BIND_MW, IBV_WC_BIND_MW, "n-n--"),
    (IBV_WR_LOCAL_INV, IBV_WC_LOCAL_INV, "n-n--"),
    (IBV_WR_TSO, IBV_WC_TSO, "---ss"),
    (IBV_WR_DRIVER1, IBV_WC_DRIVER1, "-----"),
];

fn expected(kind: QpType, how: &str) -> Option<PayloadRule> {
    let column = KINDS.iter().position(|k| *k == kind).expect("listed");
    match how.as_bytes().get(column) {
        Some(b'b') => Some(PayloadRule::Bytes),
        Some(b'n') => Some(PayloadRule::NoInline),
        Some(b's') => Some(PayloadRule::Segments),
        _ => None,
    }
}

/// IBTA 1.7 9.2.1.
#[test]
fn each_transport_takes_its_opcodes_and_no_other() {
    for opcode in (0..=64).chain([u32::MAX - 1, u32::MAX]) {
        let row = OPCODES.iter().find(|row| row.0 == opcode);
        for kind in KINDS {
            let how = row.and_then(|row| expected(kind, row.2));
            assert_eq!(payload_rule(kind, opcode), how, "{kind:?}, opcode {opcode}");
        }
        if let Some((_, completes_as, _)) = row {
            assert_eq!(completion_opcode(opcode), *completes_as, "opcode {opcode}");
        }
    }
}

/// The result of a request that a fault should hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The fault does not apply.
    Spared,
    /// The request completes with this status after this time.
    Completes(u32, Duration),
    /// The QP, the port or the device fails.
    Breaks,
}
use Outcome::{Breaks, Completes, Spared};

const RETRIES: Retries =
    Retries { reliable: true, timeout: 14, retry_cnt: 2, rnr_retry: 3, min_rnr_timer: 12 };
/// From `timeout` 14: 4.096 us times 2^14. From `min_rnr_timer` 12.
const TIMEOUT: Duration = Duration::from_micros(67_108);
const TIMER: Duration = Duration::from_micros(640);
const AT_ONCE: Duration = Duration::ZERO;

/// Posts one request of a QP of this kind that `fault` should hit. Returns the result.
fn outcome(kind: QpType, opcode: u32, fault: Fault) -> Outcome {
    let mut plan: Plan = Plan::default();
    let (when, qp, class, transport) = (RuleHits::Nth(1), None, None, None);
    plan.add(Rule { fault, hits: when, qp, class, transport, per_device: false });
    let mut strikes = SendQueueFaults::default();
    assert!(strikes.take_plan(&plan, 1, kind));
    strikes.record_posted(0, opcode);
    let Some((0, faulted)) = strikes.next_faulted(0) else { return Spared };
    let by = Retries { reliable: kind.is_reliable(), ..RETRIES };
    match faulted.effect_on(&by) {
        FaultEffect::Lost => Completes(IBV_WC_SUCCESS, AT_ONCE),
        FaultEffect::Refused(nak) => Completes(nak.requester_status(), AT_ONCE),
        FaultEffect::Fails(status) => Completes(status, AT_ONCE),
        FaultEffect::Breaks => Breaks,
        FaultEffect::Wait(delay) => {
            // The request is delayed until its deadline, and not after it.
            let begun = Time::from_ns(1 << 40);
            assert!(!strikes.delay_is_over(0, &delay, begun) || delay.span == Some(AT_ONCE));
            let span = delay.span.expect("nothing here waits for ever");
            let until = strikes.held_until(0).expect("so it is held until then");
            assert_eq!(until, begun.after(span));
            assert!(!strikes.delay_is_over(0, &delay, Time::from_ns(until.ns() - 1)));
            assert!(strikes.delay_is_over(0, &delay, until));
            Completes(delay.status.unwrap_or(IBV_WC_SUCCESS), span)
        }
    }
}

/// IBTA 1.7 9.7, 9.8, 9.9, 11.6.2.
#[test]
fn each_error_has_its_status_and_its_time_on_every_transport_with_every_opcode() {
    const SUCCESS: Outcome = Completes(IBV_WC_SUCCESS, AT_ONCE);
    let refused = |status| (Completes(status, AT_ONCE), SUCCESS);
    let late = |status, span| (Completes(status, span), SUCCESS);
    // The fault; the result for reliable and for unreliable requests; whether the fault only
    // applies to requests that need a receive.
    let errors: [(Fault, (Outcome, Outcome), bool); 16] = [
        (Fault::Drop { times: 1 }, late(IBV_WC_SUCCESS, TIMEOUT), false),
        (Fault::Drop { times: 2 }, late(IBV_WC_SUCCESS, TIMEOUT * 2), false),
        (Fault::Drop { times: 3 }, late(IBV_WC_RETRY_EXC_ERR, TIMEOUT * 3), false),
        (Fault::Drop { times: ALL }, late(IBV_WC_RETRY_EXC_ERR, TIMEOUT * 3), false),
        (Fault::Rnr { times: 1 }, late(IBV_WC_SUCCESS, TIMER), true),
        (Fault::Rnr { times: 3 }, late(IBV_WC_SUCCESS, TIMER * 3), true),
        (Fault::Rnr { times: 4 }, late(IBV_WC_RNR_RETRY_EXC_ERR, TIMER * 3), true),
        (Fault::Rnr { times: ALL }, late(IBV_WC_RNR_RETRY_EXC_ERR, TIMER * 3), true),
        (Fault::Refuse(Nak::Invalid), refused(IBV_WC_REM_INV_REQ_ERR), false),
        (Fault::Refuse(Nak::Access), refused(IBV_WC_REM_ACCESS_ERR), false),
        (Fault::Refuse(Nak::Operation), refused(IBV_WC_REM_OP_ERR), false),
        (Fault::Refuse(Nak::Rnr), refused(IBV_WC_RNR_RETRY_EXC_ERR), false),
        (Fault::Refuse(Nak::InvalidRd), refused(IBV_WC_REM_INV_RD_REQ_ERR), false),
        (
            Fault::Local,
            {
                let both = Completes(IBV_WC_LOC_PROT_ERR, AT_ONCE);
                (both, both)
            },
            false,
        ),
        (Fault::QpError, (Breaks, Breaks), false),
        (Fault::DeviceFatal, (Breaks, Breaks), false),
    ];
    let mut looked = 0;
    for (opcode, ..) in OPCODES {
        for kind in KINDS.into_iter().filter(|kind| payload_rule(*kind, *opcode).is_some()) {
            // Requests on windows stay local, so faults do not apply.
            let stays = matches!(*opcode, IBV_WR_BIND_MW | IBV_WR_LOCAL_INV);
            let wants_receive = matches!(
                *opcode,
                IBV_WR_SEND
                    | IBV_WR_SEND_WITH_IMM
                    | IBV_WR_SEND_WITH_INV
                    | IBV_WR_TSO
                    | IBV_WR_RDMA_WRITE_WITH_IMM
            );
            for (fault, (reliable, unreliable), of_receive) in errors {
                let meant = if stays || of_receive && !wants_receive {
                    Spared
                } else if kind.is_reliable() {
                    reliable
                } else {
                    unreliable
                };
                let found = outcome(kind, *opcode, fault);
                assert_eq!(found, meant, "{kind:?}, opcode {opcode}, {fault:?}");
                looked += 1;
            }
        }
    }
    assert_eq!(
        looked,
        16 * OPCODES.iter().flat_map(|row| row.2.bytes()).filter(|b| *b != b'-').count()
    );
}

#[test]
fn numbers_of_states_kinds_and_refusals_are_those_of_verbs_and_no_others() {
    let states = [
        (IBV_QPS_RESET, QpState::Reset),
        (IBV_QPS_INIT, QpState::Init),
        (IBV_QPS_RTR, QpState::Rtr),
        (IBV_QPS_RTS, QpState::Rts),
        (IBV_QPS_SQD, QpState::Sqd),
        (IBV_QPS_SQE, QpState::Sqe),
        (IBV_QPS_ERR, QpState::Err),
    ];
    // Kind, whether it has one peer, whether it is acknowledged.
    let kinds = [
        (IBV_QPT_RC, QpType::Rc, true, true),
        (IBV_QPT_UC, QpType::Uc, true, false),
        (IBV_QPT_UD, QpType::Ud, false, false),
        (IBV_QPT_RAW_PACKET, QpType::Raw, false, false),
        (IBV_QPT_XRC_SEND, QpType::XrcSend, true, true),
        (IBV_QPT_XRC_RECV, QpType::XrcRecv, true, true),
    ];
    let naks = [Nak::Invalid, Nak::Access, Nak::Operation, Nak::Rnr, Nak::InvalidRd];
    for raw in (0..300).chain([u32::MAX]) {
        let state = states.iter().find(|row| row.0 == raw).map(|row| row.1);
        assert_eq!(QpState::from_raw(raw), state, "{raw}");
        let kind = kinds.iter().find(|row| row.0 == raw);
        assert_eq!(QpType::from_raw(raw), kind.map(|row| row.1), "{raw}");
        if let Some((_, kind, connected, reliable)) = kind {
            assert_eq!((kind.is_connected(), kind.is_reliable()), (*connected, *reliable));
        }
        let nak = naks.into_iter().find(|nak| *nak as u32 == raw);
        assert_eq!(Nak::from_raw(raw), nak, "{raw}");
    }
}

#[test]
fn every_code_of_a_timer_is_a_time() {
    // IBTA 1.7 9.7.5.2.8, in hundredths of a millisecond; 0 is the longest.
    let table = "65536 1 2 3 4 6 8 12 16 24 32 48 64 96 128 192 256 384 512 768 1024 1536 2048 3072 4096 6144 8192 12288 16384 24576 32768 49152";
    let table: Vec<u32> = table.split(' ').map(|n| n.parse().expect("a number")).collect();
    for code in 0..=255u8 {
        assert_eq!(
            rnr_timer_us(code),
            table[usize::from(code & 31)] * 10,
            "the upper bits do not count"
        );
    }
    for retry_cnt in 0..8u8 {
        assert_eq!(give_up_us(0, retry_cnt), None, "0 is for ever");
        for timeout in 1..32u8 {
            // 4.096 us times 2^timeout, rounded down to microseconds.
            let once = 4096u64 * (1 << timeout) / 1000;
            assert_eq!(give_up_us(timeout, retry_cnt), Some(once * (u64::from(retry_cnt) + 1)));
        }
    }
}
