//! Looks for what victims never sent or registered, in everything that the hostile process can read.

use super::{Attacker, resident};
use soft_local::shm::layout::*;

/// Victims fill memory that nobody else may see with this, each byte inverted so that it is not found here.
const INVERTED: [u8; 16] = [
    0x99, 0x9a, 0x8d, 0x8d, 0x90, 0xd2, 0x8c, 0x9a, 0x9c, 0x8d, 0x9a, 0x8b, 0xd2, 0x9d, 0x86, 0x8b,
];

/// Where the secret was found, if it was.
pub(super) fn search(attacker: &Attacker) -> Option<String> {
    let secret: [u8; 16] = INVERTED.map(|byte| !byte);
    let words = [
        u64::from_ne_bytes(secret[..8].try_into().ok()?),
        u64::from_ne_bytes(secret[8..].try_into().ok()?),
    ];
    let own = attacker.fabric.rings().base().cast_const();
    let rings = std::iter::once((attacker.slot(), own));
    let others =
        attacker.victims.values().map(|v| (v.peer.slot, v.peer.rings().base().cast_const()));
    for (slot, base) in rings.chain(others) {
        for (what, start, len) in [
            ("chunk", RINGS_CHUNKS, CHUNKS * CHUNK_BYTES),
            ("slot", RINGS_QP_SLOTS, QPS * RING_BYTES),
        ] {
            let mut before = 0;
            for at in resident(base, start, len / 8, 8) {
                // SAFETY: within the segment, whose mapping lives as long as the peer; any bits are a number.
                let word = unsafe { base.add(start).cast::<u64>().add(at).read_volatile() };
                if before == words[0] && word == words[1] {
                    return Some(format!("in {what} memory of slot {slot}, byte {}", at * 8));
                }
                before = word;
            }
        }
    }
    None
}
