//! `poison=1`: what `ibv_poll_cq(3)` leaves undefined in a failed completion is overwritten, so that a program that reads it fails everywhere, and not only over
//! devices that leave something else there.

use core::sync::atomic::{AtomicBool, Ordering};

use abi::ibv_wc;

use crate::settings::settings;

/// No opcode, no length that was asked for, no number of a queue pair; it has bits of every flag.
const PATTERN: u32 = 0xdead_beef;

/// Of a completion that failed and is about to be seen by the program.
#[cold]
pub(crate) fn overwrite(wc: &mut ibv_wc) {
    if !settings().poison {
        return;
    }
    (wc.opcode, wc.byte_len, wc.src_qp, wc.wc_flags) = (PATTERN, PATTERN, PATTERN, PATTERN);
    wc.imm = abi::ibv_wc_imm { invalidated_rkey: PATTERN };
    (wc.pkey_index, wc.slid) = (PATTERN as u16, PATTERN as u16);
    (wc.sl, wc.dlid_path_bits) = (PATTERN as u8, PATTERN as u8);
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        crate::report::note(&format!(
            "ferroverbs validate: poison=1: all of a failed completion is {PATTERN:#x}, cut to each member's length, but wr_id, status, qp_num and vendor_err: the rest is undefined there (ibv_poll_cq(3)); more: ferroverbs explain CQ-02\n"
        ));
    }
}
