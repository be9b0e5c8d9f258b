//! Names for people: `ibv_node_type_str(3)`, `ibv_event_type_str(3)`, `ibv_wc_status_str` and their
//! siblings. The texts are user-visible output and equal rdma-core's.

use core::ffi::{CStr, c_char};

use abi::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_wc_status, ibv_wr_opcode};

/// From [`abi::IBV_NODE_CA`] on.
static NODE_TYPES: [&CStr; 7] = [
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// From [`abi::IBV_PORT_NOP`] on.
static PORT_STATES: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

/// From [`abi::IBV_EVENT_CQ_ERR`] on.
static EVENT_TYPES: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

/// From [`abi::IBV_WC_SUCCESS`] on.
static WC_STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// From [`abi::IBV_WR_RDMA_WRITE`] on; two numbers have no opcode.
static WR_OPCODES: [Option<&CStr>; 16] = [
    Some(c"rdma-write"),
    Some(c"rdma-write-with-imm"),
    Some(c"send"),
    Some(c"send-with-imm"),
    Some(c"rdma-read"),
    Some(c"atomic-cmp-and-swp"),
    Some(c"atomic-fetch-and-add"),
    Some(c"local-inv"),
    Some(c"bind-mw"),
    Some(c"send-with-inv"),
    Some(c"tso"),
    Some(c"driver1"),
    None,
    None,
    Some(c"flush"),
    Some(c"atomic-write"),
];

const UNKNOWN: &CStr = c"unknown";

fn nth(table: &'static [&'static CStr], index: Option<u32>) -> *const c_char {
    let found = index.and_then(|index| table.get(usize::try_from(index).ok()?));
    found.unwrap_or(&UNKNOWN).as_ptr()
}

/// `ibv_node_type_str(3)`.
pub(crate) extern "C" fn node_type_str(node_type: ibv_node_type) -> *const c_char {
    nth(&NODE_TYPES, u32::try_from(node_type).ok().and_then(|number| number.checked_sub(1)))
}

/// `ibv_port_state_str(3)`.
pub(crate) extern "C" fn port_state_str(state: ibv_port_state) -> *const c_char {
    nth(&PORT_STATES, Some(state))
}

/// `ibv_event_type_str(3)`.
pub(crate) extern "C" fn event_type_str(event: ibv_event_type) -> *const c_char {
    nth(&EVENT_TYPES, Some(event))
}

/// `ibv_wc_status_str`.
pub(crate) extern "C" fn wc_status_str(status: ibv_wc_status) -> *const c_char {
    nth(&WC_STATUSES, Some(status))
}

/// `ibv_wr_opcode_str` (rdma-core 49): NULL for the numbers in between that mean nothing.
pub(crate) extern "C" fn wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    match usize::try_from(opcode).ok().and_then(|index| WR_OPCODES.get(index)) {
        Some(Some(text)) => text.as_ptr(),
        Some(None) => core::ptr::null(),
        None => UNKNOWN.as_ptr(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What release 65 answers, by function; "(null)" stands for NULL.
    const OBSERVED: &str = include_str!("../../c-tests/data/strings-v65.tsv");

    #[test]
    fn every_text_equals_rdma_cores() {
        let mut checked = 0;
        for line in OBSERVED.lines().skip(1) {
            let mut fields = line.split('\t');
            let (Some(function), Some(value), Some(text)) =
                (fields.next(), fields.next(), fields.next())
            else {
                panic!("{line}");
            };
            let value: i32 = value.parse().expect("a number");
            let ours = match function {
                "ibv_node_type_str" => node_type_str(value),
                "ibv_port_state_str" => port_state_str(value.cast_unsigned()),
                "ibv_event_type_str" => event_type_str(value.cast_unsigned()),
                "ibv_wc_status_str" => wc_status_str(value.cast_unsigned()),
                "ibv_wr_opcode_str" => wr_opcode_str(value.cast_unsigned()),
                other => panic!("{other}"),
            };
            // SAFETY: NULL or a static C string.
            let ours = (!ours.is_null()).then(|| unsafe { CStr::from_ptr(ours) });
            let ours = ours.map_or(Ok("(null)"), CStr::to_str);
            assert_eq!(ours, Ok(text), "{line}");
            checked += 1;
        }
        assert_eq!(checked, 90);
    }
}
