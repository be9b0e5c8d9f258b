//! `poison=1`: overwrites the members that `ibv_poll_cq(3)` leaves undefined in a failed
//! completion. A program that reads such a member then fails over every device.

use core::sync::atomic::{AtomicBool, Ordering};

use abi::ibv_wc;

use crate::settings::settings;

/// The pattern is no valid opcode, length or QP number, and sets bits of each flag.
const PATTERN: u32 = 0xdead_beef;

/// Overwrites the undefined members of a failed completion, before the program sees the
/// completion.
#[cold]
pub(crate) fn overwrite(wc: &mut ibv_wc) {
    if !settings().poison {
        return;
    }
    (wc.opcode, wc.byte_len, wc.src_qp, wc.wc_flags) = (PATTERN, PATTERN, PATTERN, PATTERN);
    wc.imm = abi::ibv_wc_imm { invalidated_rkey: PATTERN };
    (wc.pkey_index, wc.slid) = (PATTERN as u16, PATTERN as u16);
    (wc.sl, wc.dlid_path_bits) = (PATTERN as u8, PATTERN as u8);
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        crate::report::write_note(&format!(
            "ferroverbs validate: poison=1: all of a failed completion is {PATTERN:#x}, cut to each member's length, but wr_id, status, qp_num and vendor_err: the rest is undefined there (ibv_poll_cq(3)); more: ferroverbs explain CQ-02\n"
        ));
    }
}
