//! Clocks: for completion timestamps, and for a thread's processor time (clock_gettime(2)). The
//! values are nanoseconds.

/// The device clock: nanoseconds of CLOCK_MONOTONIC_RAW, which is never set or slewed.
#[must_use]
#[inline]
pub fn device_ns() -> u64 {
    now(libc::CLOCK_MONOTONIC_RAW)
}

/// Nanoseconds since the epoch.
#[must_use]
#[inline]
pub fn wallclock_ns() -> u64 {
    now(libc::CLOCK_REALTIME)
}

/// Processor time of this thread, in nanoseconds.
#[must_use]
#[inline]
pub fn thread_ns() -> u64 {
    now(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[inline]
fn now(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local variable; the clocks exist on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_clock_never_goes_back() {
        let first = device_ns();
        assert!(first > 0 && device_ns() >= first);
    }

    #[test]
    fn the_wallclock_is_the_one_of_the_standard_library() {
        let before = std::time::SystemTime::now();
        let ns = u128::from(wallclock_ns());
        let since = before.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        assert!(ns >= since.as_nanos());
    }
}
