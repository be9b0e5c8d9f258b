//! CLOCK_MONOTONIC for all layers, at the price of reading the processor's counter.
//!
//! The counter is used if it runs at one rate in all processor states and the kernel itself uses
//! it. A reading is compared with the kernel's clock every ten milliseconds, so times of several
//! processes can be compared.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Nanoseconds for which one comparison with the kernel's clock is valid.
const VALID: u64 = 10_000_000;
/// Nanoseconds of observation before the first rate is computed.
const FIRST_PERIOD: u64 = 10_000_000;
/// Nanoseconds of observation for later rates: a rate covers the last one to two of these periods.
const PERIOD: u64 = 200_000_000;
/// Most ticks that a reading of both clocks may take. An interrupted reading takes longer and is
/// dropped.
const MAX_READING: u64 = 3_000;

const UNKNOWN: u8 = 0;
const COUNTER: u8 = 1;
const KERNEL: u8 = 2;

/// The clock in use: [`UNKNOWN`], [`COUNTER`] or [`KERNEL`].
static KIND: AtomicU8 = AtomicU8::new(UNKNOWN);
/// Sequence number of the statics below: odd while a thread changes them.
static VERSION: AtomicU32 = AtomicU32::new(0);
/// A reading of both clocks at one moment.
static TICKS: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds in 2^32 ticks; 0 while the rate is unknown.
static RATE: AtomicU64 = AtomicU64::new(0);
/// Ticks after the reading for which `RATE` is valid.
static LIMIT: AtomicU64 = AtomicU64::new(0);
/// The reading from which the rate is computed; 0 nanoseconds if no reading exists.
static FROM_TICKS: AtomicU64 = AtomicU64::new(0);
static FROM_NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds of CLOCK_MONOTONIC.
#[must_use]
#[inline]
pub fn now() -> u64 {
    if KIND.load(Ordering::Relaxed) == COUNTER {
        let version = VERSION.load(Ordering::Acquire);
        let (ticks, nanoseconds) =
            (TICKS.load(Ordering::Relaxed), NANOSECONDS.load(Ordering::Relaxed));
        let (rate, limit) = (RATE.load(Ordering::Relaxed), LIMIT.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if version & 1 == 0 && VERSION.load(Ordering::Relaxed) == version {
            let passed = counter().wrapping_sub(ticks);
            if passed < limit {
                return nanoseconds + scaled(passed, rate);
            }
        }
    }
    compare()
}

fn scaled(ticks: u64, rate: u64) -> u64 {
    ((u128::from(ticks) * u128::from(rate)) >> 32) as u64
}

/// Reads the kernel's clock.
fn kernel() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours; the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Reads the kernel's clock, and compares the counter with the result.
#[cold]
#[inline(never)]
fn compare() -> u64 {
    match KIND.load(Ordering::Relaxed) {
        KERNEL => return kernel(),
        UNKNOWN => KIND.store(if is_good() { COUNTER } else { KERNEL }, Ordering::Relaxed),
        _ => {}
    }
    let before = counter();
    let nanoseconds = kernel();
    let after = counter();
    let version = VERSION.load(Ordering::Relaxed);
    let is_quick = after.wrapping_sub(before) < MAX_READING;
    let take = |from, to| VERSION.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed);
    if KIND.load(Ordering::Relaxed) != COUNTER
        || !is_quick
        || version & 1 == 1
        || take(version, version.wrapping_add(1)).is_err()
    {
        return nanoseconds;
    }
    // The release fence orders the odd number before the changes. A reader that sees a change
    // therefore also sees the odd number (pairs with the acquire fence in `now`).
    fence(Ordering::Release);
    let ticks = before + (after - before) / 2;
    set(ticks, nanoseconds);
    VERSION.store(version.wrapping_add(2), Ordering::Release);
    nanoseconds
}

/// Stores a reading of both clocks. The caller has made `VERSION` odd.
fn set(ticks: u64, nanoseconds: u64) {
    let from = (FROM_TICKS.load(Ordering::Relaxed), FROM_NANOSECONDS.load(Ordering::Relaxed));
    let watched = nanoseconds.saturating_sub(from.1);
    let is_known = RATE.load(Ordering::Relaxed) != 0;
    let anew = from.1 == 0 || ticks <= from.0 || watched == 0;
    if !anew && watched >= if is_known { PERIOD } else { FIRST_PERIOD } {
        let rate = (u128::from(watched) << 32) / u128::from(ticks - from.0);
        let rate = u64::try_from(rate).unwrap_or(0);
        RATE.store(rate, Ordering::Relaxed);
        // `VALID` nanoseconds, in ticks.
        let limit = (u128::from(VALID) << 32) / u128::from(rate.max(1));
        LIMIT.store(u64::try_from(limit).unwrap_or(0), Ordering::Relaxed);
    }
    if anew || watched >= 2 * PERIOD {
        FROM_TICKS.store(ticks, Ordering::Relaxed);
        FROM_NANOSECONDS.store(nanoseconds, Ordering::Relaxed);
    }
    TICKS.store(ticks, Ordering::Relaxed);
    NANOSECONDS.store(nanoseconds, Ordering::Relaxed);
}

/// Repairs the clock in the child of a fork: no thread of the child can finish a change that was
/// in progress.
pub(crate) fn forked() {
    let version = VERSION.load(Ordering::Relaxed);
    if version & 1 == 1 {
        RATE.store(0, Ordering::Relaxed);
        LIMIT.store(0, Ordering::Relaxed);
        FROM_NANOSECONDS.store(0, Ordering::Relaxed);
        VERSION.store(version.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction. A process that may not execute it
    // (prctl(2), PR_SET_TSC) has a vDSO with the same restriction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

/// Whether the counter measures time, equally on all processors. The kernel has tested the counter
/// if the kernel uses it as clock source.
fn is_good() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64")
        && may_be_read()
        && std::fs::read_to_string(SOURCE).is_ok_and(|name| name.trim() == "tsc")
}

/// Whether this process may read the counter (`prctl(2)`, PR_GET_TSC).
fn may_be_read() -> bool {
    let mut how: libc::c_int = 0;
    // SAFETY: `how` is ours.
    let error = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut how) };
    error == 0 && how == libc::PR_TSC_ENABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lie_between_those_of_the_kernel() {
        // An interruption between the readings widens the bounds. The error of a reading is far
        // smaller.
        const ERROR: u64 = 20_000;
        let end = kernel() + 300_000_000;
        let mut count = 0_u64;
        while kernel() < end {
            let before = kernel();
            let time = now();
            let after = kernel();
            assert!(before <= time + ERROR && time <= after + ERROR, "{before} {time} {after}");
            count += 1;
        }
        assert!(count > 100, "{count}");
    }

    #[test]
    fn threads_that_ask_at_once_are_told_the_same() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = now();
                    for _ in 0..200_000 {
                        let time = now();
                        assert!(time + 20_000 >= last, "{last} {time}");
                        last = time;
                    }
                });
            }
        });
    }

    #[test]
    fn ticks_are_scaled_without_overflow() {
        assert_eq!(scaled(u64::MAX, 1 << 32), u64::MAX);
        assert_eq!(scaled(3_000, (1 << 32) / 3), 999);
    }
}
