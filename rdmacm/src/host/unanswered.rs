//! Requests of this process whose listener is gone. The program may still accept or reject them, so
//! an announcement tells the other processes of the host to leave them alone
//! ([`crate::host::unclaimed`]).

use crate::host::peer::Peer;
use ferroverbs_cm::{Connection, Manager};

/// All such requests. `N` is an announcement, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct UnansweredRequests<N>(Vec<(N, Vec<Connection>)>);

impl<N> Default for UnansweredRequests<N> {
    fn default() -> Self {
        Self(vec![])
    }
}

impl<N> UnansweredRequests<N> {
    /// Keeps an announcement until all its requests are answered.
    pub(super) fn push(&mut self, announcement: N, requests: Vec<Connection>) {
        self.0.push((announcement, requests));
    }

    /// Ends the announcements whose requests are answered.
    pub(super) fn drop_answered(&mut self, manager: &Manager<Peer>) {
        self.0.retain_mut(|(_, requests)| {
            requests.retain(|&request| manager.is_unanswered(request));
            !requests.is_empty()
        });
    }
    #[cfg(test)]
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
