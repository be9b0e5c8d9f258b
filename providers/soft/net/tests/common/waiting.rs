//! Bounded waiting for a datagram. The tests use it before each receive, because the kernel may
//! deliver late.

use ferroverbs_net::Receiver;
use std::time::Duration;

/// Whether a datagram arrives within `limit`.
pub(crate) fn wait_readable(receiver: &Receiver, limit: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec::try_from(limit).expect("not so long");
    let mut fds = [PollFd::new(receiver, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).expect("poll") != 0
}
