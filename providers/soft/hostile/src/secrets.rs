//! Searches for secrets of victims, never sent or registered, in all readable memory. `entry` calls
//! it from time to time; a hit ends the process with a failure.

use crate::{Attacker, resident};
use soft_local::fabric::FRONT;
use soft_local::shm::layout::*;
use soft_sys::map::WINDOW;

/// The pattern with which victims fill private memory. The bytes are inverted, so that the search
/// does not find this constant.
const INVERTED: [u8; 16] = [
    0x99, 0x9a, 0x8d, 0x8d, 0x90, 0xd2, 0x8c, 0x9a, 0x9c, 0x8d, 0x9a, 0x8b, 0xd2, 0x9d, 0x86, 0x8b,
];

/// The place of the secret, if found.
pub(super) fn search(attacker: &Attacker) -> Option<String> {
    let secret: [u8; 16] = INVERTED.map(|byte| !byte);
    let words = [
        u64::from_ne_bytes(secret[..8].try_into().ok()?),
        u64::from_ne_bytes(secret[8..].try_into().ok()?),
    ];
    let own = std::iter::once((attacker.slot(), &*attacker.view));
    let others = attacker.victims.values().map(|victim| (victim.view.peer().slot, &*victim.view));
    for (slot, view) in own.chain(others) {
        for (what, start, len) in [
            ("chunk", RINGS_CHUNKS, CHUNKS * CHUNK_BYTES),
            ("slot", RINGS_QP_SLOTS, QPS * RING_BYTES),
        ] {
            let mut before = 0;
            for window in (0..len).step_by(WINDOW) {
                let base = view.behind_front(start - FRONT + window).expect("room for a victim");
                for at in resident(base, 0, WINDOW / 8, 8) {
                    // SAFETY: within a window whose mapping lives as long as the peer; all bit
                    // patterns are numbers.
                    let word = unsafe { base.cast::<u64>().add(at).read_volatile() };
                    if before == words[0] && word == words[1] {
                        let byte = window + at * 8;
                        return Some(format!("in {what} memory of slot {slot}, byte {byte}"));
                    }
                    before = word;
                }
            }
        }
    }
    None
}
