//! CLOCK_MONOTONIC, at the price of the processor's own counter where that is as good: where it runs at one rate in all states and the kernel itself keeps
//! time by it. A reading is set against the kernel's clock each ten milliseconds, so that times of several processes can be compared.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Nanoseconds that one comparison with the kernel's clock is good for.
const GOOD: u64 = 10_000_000;
/// How long the counter is watched before its rate is known, at first ..
const FIRST: u64 = 10_000_000;
/// .. and after that: the rate is that of the last one to two of these.
const WATCH: u64 = 200_000_000;
/// Ticks that a reading of both clocks may take: whoever was stopped in between has none.
const QUICK: u64 = 3_000;

const UNKNOWN: u8 = 0;
const COUNTER: u8 = 1;
const KERNEL: u8 = 2;

/// Which clock it is.
static KIND: AtomicU8 = AtomicU8::new(UNKNOWN);
/// Odd while the following are changed. Its changes order theirs.
static VERSION: AtomicU32 = AtomicU32::new(0);
/// A reading of both clocks at one moment.
static TICKS: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds of 2^32 ticks; 0: not known yet.
static RATE: AtomicU64 = AtomicU64::new(0);
/// How many ticks it is good for.
static LIMIT: AtomicU64 = AtomicU64::new(0);
/// The reading that the rate is counted from; 0 nanoseconds: there is none.
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

/// What the kernel says.
fn kernel() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours; the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Asks the kernel, and compares the counter with what it says.
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
    let is_quick = after.wrapping_sub(before) < QUICK;
    let take = |from, to| VERSION.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed);
    if KIND.load(Ordering::Relaxed) != COUNTER
        || !is_quick
        || version & 1 == 1
        || take(version, version.wrapping_add(1)).is_err()
    {
        return nanoseconds;
    }
    // Readers see the odd number before any change.
    fence(Ordering::Release);
    let ticks = before + (after - before) / 2;
    set(ticks, nanoseconds);
    VERSION.store(version.wrapping_add(2), Ordering::Release);
    nanoseconds
}

/// A reading of both clocks; by whoever has made the version odd.
fn set(ticks: u64, nanoseconds: u64) {
    let from = (FROM_TICKS.load(Ordering::Relaxed), FROM_NANOSECONDS.load(Ordering::Relaxed));
    let watched = nanoseconds.saturating_sub(from.1);
    let is_known = RATE.load(Ordering::Relaxed) != 0;
    let anew = from.1 == 0 || ticks <= from.0 || watched == 0;
    if !anew && watched >= if is_known { WATCH } else { FIRST } {
        let rate = (u128::from(watched) << 32) / u128::from(ticks - from.0);
        let rate = u64::try_from(rate).unwrap_or(0);
        RATE.store(rate, Ordering::Relaxed);
        // Nanoseconds in ticks.
        let limit = (u128::from(GOOD) << 32) / u128::from(rate.max(1));
        LIMIT.store(u64::try_from(limit).unwrap_or(0), Ordering::Relaxed);
    }
    if anew || watched >= 2 * WATCH {
        FROM_TICKS.store(ticks, Ordering::Relaxed);
        FROM_NANOSECONDS.store(nanoseconds, Ordering::Relaxed);
    }
    TICKS.store(ticks, Ordering::Relaxed);
    NANOSECONDS.store(nanoseconds, Ordering::Relaxed);
}

/// In the child of a fork: nobody there is in the middle of a change any more.
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
    // SAFETY: every such processor has it; a process that may not use it (prctl(2), PR_SET_TSC) has a vDSO that may not, either.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

/// Whether the counter is one of time, the same on all processors: the kernel has looked into that, and uses it.
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
        // An interruption between the readings makes the bounds wider; the error of a reading is far below this.
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
