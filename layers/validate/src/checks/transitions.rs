//! The attributes that a change of state needs and allows, by QP type (ibv_modify_qp(3)).

use abi::{
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE,
    IBV_QPT_RAW_PACKET, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND,
    QpAttrMask as M,
};

/// The needed and the allowed attributes of a change; `None` if the change does not exist.
pub(crate) fn allowed(kind: u32, from: u32, to: u32) -> Option<(M, M)> {
    if to == IBV_QPS_RESET || to == IBV_QPS_ERR {
        return Some((M::empty(), M::empty()));
    }
    let none = M::empty();
    let place = M::PKEY_INDEX | M::PORT;
    let path = M::ALT_PATH | M::PATH_MIG_STATE;
    let connected = [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV].contains(&kind);
    let requester = [IBV_QPT_RC, IBV_QPT_XRC_SEND].contains(&kind);
    let responder = [IBV_QPT_RC, IBV_QPT_XRC_RECV].contains(&kind);
    let only = |when: bool, mask: M| if when { mask } else { none };
    let start = match kind {
        IBV_QPT_UD => place | M::QKEY,
        IBV_QPT_RAW_PACKET => M::PORT,
        _ => place | M::ACCESS_FLAGS,
    };
    // Attributes that may be set in RTS, and with the change to RTS.
    let running = match kind {
        IBV_QPT_UD => M::CUR_STATE | M::QKEY,
        IBV_QPT_RAW_PACKET => M::RATE_LIMIT,
        _ => M::CUR_STATE | M::ACCESS_FLAGS | path | only(responder, M::MIN_RNR_TIMER),
    };
    match (from, to) {
        (IBV_QPS_RESET, IBV_QPS_INIT) => Some((start, none)),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some((none, start)),
        (IBV_QPS_INIT, IBV_QPS_RTR) if connected => {
            let needs = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
            let needs = needs | only(responder, M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER);
            Some((needs, M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX))
        }
        (IBV_QPS_INIT, IBV_QPS_RTR) => {
            Some((none, only(kind == IBV_QPT_UD, M::PKEY_INDEX | M::QKEY)))
        }
        (IBV_QPS_RTR, IBV_QPS_RTS) => {
            let needs = only(kind != IBV_QPT_RAW_PACKET, M::SQ_PSN)
                | only(requester || responder, M::TIMEOUT)
                | only(requester, M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC);
            Some((needs, running))
        }
        (IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE, IBV_QPS_RTS) => Some((none, running)),
        (IBV_QPS_RTS, IBV_QPS_SQD) => Some((none, M::EN_SQD_ASYNC_NOTIFY)),
        (IBV_QPS_SQD, IBV_QPS_SQD) if connected => {
            Some((none, M::all() & !(M::STATE | M::CUR_STATE)))
        }
        (IBV_QPS_SQD, IBV_QPS_SQD) => Some((none, M::PKEY_INDEX | M::QKEY)),
        _ => None,
    }
}

/// Attributes that the kernel removes from the mask. An XRC QP is half of an RC QP, and programs
/// pass the attributes of both halves.
pub(crate) fn ignored(kind: u32) -> M {
    match kind {
        IBV_QPT_XRC_SEND => M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        IBV_QPT_XRC_RECV => M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
        _ => M::empty(),
    }
}

/// The bits of `attr_mask` that exist.
pub(crate) const ATTRIBUTES: u32 = 0x021f_ffff;

const NAMES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];

/// The name of a state.
pub(crate) fn name(state: u32) -> String {
    NAMES.get(state as usize).map_or_else(|| format!("state {state}"), |name| (*name).to_owned())
}

/// The name of a QP type.
pub(crate) fn kind_name(kind: u32) -> String {
    let name = match kind {
        IBV_QPT_RC => "RC",
        IBV_QPT_UC => "UC",
        IBV_QPT_UD => "UD",
        IBV_QPT_RAW_PACKET => "RAW_PACKET",
        IBV_QPT_XRC_SEND => "XRC_SEND",
        IBV_QPT_XRC_RECV => "XRC_RECV",
        _ => return format!("type {kind}"),
    };
    name.to_owned()
}

/// The C names of the bits in a mask.
pub(crate) fn bits(mask: M) -> String {
    let names: Vec<String> = mask.iter_names().map(|(name, _)| format!("IBV_QP_{name}")).collect();
    let unknown = mask.bits() & !ATTRIBUTES;
    let mut text = names.join(", ");
    if unknown != 0 {
        text = [text, format!("{unknown:#x}")]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(", ");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_way_of_each_type() {
        let rc = allowed(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR).expect("a change").0;
        assert!(rc.contains(M::MIN_RNR_TIMER | M::MAX_DEST_RD_ATOMIC | M::AV));
        let uc = allowed(IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR).expect("a change").0;
        assert_eq!(rc - uc, M::MIN_RNR_TIMER | M::MAX_DEST_RD_ATOMIC);
        let recv = allowed(IBV_QPT_XRC_RECV, IBV_QPS_RTR, IBV_QPS_RTS).expect("a change").0;
        assert_eq!(recv, M::TIMEOUT | M::SQ_PSN);
        assert_eq!(allowed(IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_RTS), None);
        assert_eq!(allowed(IBV_QPT_RC, IBV_QPS_ERR, IBV_QPS_RTS), None);
        assert!(allowed(IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_ERR).is_some());
    }

    #[test]
    fn halves_of_xrc_take_the_mask_of_rc() {
        for (from, to) in [(IBV_QPS_INIT, IBV_QPS_RTR), (IBV_QPS_RTR, IBV_QPS_RTS)] {
            let rc = allowed(IBV_QPT_RC, from, to).expect("a change").0;
            for kind in [IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV] {
                let (needs, allows) = allowed(kind, from, to).expect("a change");
                assert_eq!(rc & !ignored(kind) & !(needs | allows), M::empty());
            }
        }
        assert_eq!(ignored(IBV_QPT_RC), M::empty());
    }

    #[test]
    fn bits_have_their_names_in_c() {
        assert_eq!(bits(M::AV | M::PATH_MTU), "IBV_QP_AV, IBV_QP_PATH_MTU");
        assert_eq!(bits(M::from_bits_retain(1 << 30)), "0x40000000");
    }
}
