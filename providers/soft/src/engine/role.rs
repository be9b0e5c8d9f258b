//! What a QP is: what the others ask it for that only some QPs have, and whom each uses while it lives.
#![forbid(unsafe_code)]

use super::objects::cq::Cq;
use super::objects::datagrams::ReceiveShortage;
use super::objects::qp::{Opened, Openings, Pair, Qp, Receiver, Role, StandIn, Tagging};
use super::objects::srq::{Srq, TagMatching};
use super::objects::xrc::DomainId;
use super::state::Kind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Pair {
    /// What a queue pair has whose requests complete on these queues. Its receives are those of `srq`, if there is one.
    pub(crate) fn new(send_cq: Arc<Cq>, recv_cq: Arc<Cq>, srq: Option<Arc<Srq>>) -> Self {
        let matching = srq.as_ref().and_then(|srq| srq.tm.as_deref());
        // What a tag matching queue receives completes on its own completion queue.
        let (recv_cq, tm) = match matching {
            Some(matching) => (Arc::clone(&matching.cq), Some(Tagging::new(recv_cq))),
            None => (recv_cq, None),
        };
        let dry = ReceiveShortage::default();
        Self { send_cq, recv_cq, srq, tm, signals_all: false, create_flags: 0, shortage: dry }
    }
}

impl Role {
    /// What an XRC receive QP of `domain` has that is created here.
    pub(crate) fn receiver(domain: DomainId) -> Self {
        Self::Receiver(Receiver { domain, openings: Openings::default() })
    }

    /// The queue pair that it is, if it is one.
    #[inline]
    pub(crate) const fn pair(&self) -> Option<&Pair> {
        match self {
            Self::Pair(pair) => Some(pair),
            _ => None,
        }
    }

    /// The number of another QP that it has, if it has one.
    pub(super) fn borrowed_number(&self) -> Option<u32> {
        match self {
            Self::StandIn(StandIn { home, .. }) | Self::Opened(Opened { home, .. }) => {
                Some(home.qpn)
            }
            _ => None,
        }
    }

    /// XRC receive QPs: the domain.
    pub(crate) const fn domain(&self) -> Option<DomainId> {
        match self {
            Self::Receiver(Receiver { domain, .. })
            | Self::StandIn(StandIn { domain, .. })
            | Self::Opened(Opened { domain, .. }) => Some(*domain),
            Self::Pair(_) | Self::Rss(_) => None,
        }
    }

    /// A QP of this kind is there: nothing that it uses is destroyed before it.
    pub(super) fn hold(&self, kind: Kind) {
        match self {
            Self::Pair(pair) => {
                pair.send_cq.users.fetch_add(1, Ordering::AcqRel);
                pair.recv_cq.users.fetch_add(1, Ordering::AcqRel);
                if !kind.is_connected() {
                    pair.recv_cq.count_datagram_user(true);
                }
                if let Some(own) = &pair.tm {
                    own.unused_recv_cq.users.fetch_add(1, Ordering::AcqRel);
                }
                if let Some(srq) = &pair.srq {
                    srq.users.fetch_add(1, Ordering::AcqRel);
                }
            }
            Self::Rss(rss) => {
                rss.table.users.fetch_add(1, Ordering::AcqRel);
            }
            Self::Receiver(_) | Self::StandIn(_) | Self::Opened(_) => {}
        }
    }

    /// It goes.
    pub(super) fn release(&self, kind: Kind) {
        match self {
            Self::Pair(pair) => {
                if !kind.is_connected() {
                    pair.recv_cq.count_datagram_user(false);
                }
                pair.send_cq.users.fetch_sub(1, Ordering::AcqRel);
                pair.recv_cq.users.fetch_sub(1, Ordering::AcqRel);
                if let Some(own) = &pair.tm {
                    own.unused_recv_cq.users.fetch_sub(1, Ordering::AcqRel);
                }
                if let Some(srq) = &pair.srq {
                    srq.users.fetch_sub(1, Ordering::AcqRel);
                }
            }
            Self::Rss(rss) => {
                rss.table.users.fetch_sub(1, Ordering::AcqRel);
            }
            Self::Receiver(_) | Self::StandIn(_) | Self::Opened(_) => {}
        }
    }
}

impl Qp {
    /// What it has as a queue pair, if it is one.
    #[inline]
    pub(crate) const fn pair(&self) -> Option<&Pair> {
        self.role.pair()
    }

    /// The shared receive queue that its receives are of. Those of XRC are named by requests, and are none of the QP's.
    #[inline]
    pub(crate) fn srq(&self) -> Option<&Arc<Srq>> {
        self.pair()?.srq.as_ref()
    }

    /// Whom it stands for, if it is a stand-in.
    #[inline]
    pub(crate) const fn stand(&self) -> Option<&StandIn> {
        match &self.role {
            Role::StandIn(stand) => Some(stand),
            _ => None,
        }
    }

    /// What it is a handle of, if it is nothing else.
    pub(crate) const fn opened(&self) -> Option<&Opened> {
        match &self.role {
            Role::Opened(opened) => Some(opened),
            _ => None,
        }
    }

    /// Who has it open besides its creator, which is here.
    pub(crate) const fn openings(&self) -> Option<&Openings> {
        match &self.role {
            Role::Receiver(receiver) => Some(&receiver.openings),
            _ => None,
        }
    }

    /// Whether what it receives completes on `cq`.
    #[inline]
    pub(crate) fn receives_on(&self, cq: &Cq) -> bool {
        self.recv_key == cq.key()
    }

    /// What matches tags here, if anything does.
    #[inline]
    pub(crate) fn tagging(&self) -> Option<(&TagMatching, &Tagging)> {
        let own = self.own_tagging()?;
        Some((self.srq()?.tm.as_deref()?, own))
    }

    /// The QP's own part of that.
    #[inline]
    pub(crate) fn own_tagging(&self) -> Option<&Tagging> {
        if self.fast_send_allowed {
            // As most do, who are spared the rest of the question.
            return None;
        }
        self.pair()?.tm.as_deref()
    }
}
