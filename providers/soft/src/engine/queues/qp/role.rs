//! The kinds of a QP: questions that depend on the kind, and the objects that each kind uses. `Qp`
//! methods everywhere ask here instead of matching on `Role`.
#![forbid(unsafe_code)]

use crate::engine::datagram::ReceiveShortage;
use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::{Opened, Openings, Pair, Qp, Receiver, Role, StandIn, Tagging};
use crate::engine::queues::srq::{Srq, TagMatching};
use crate::engine::xrc::DomainId;
use soft_semantics::state::QpType;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Pair {
    /// The data of a queue pair with these CQs; receives come from `srq`, if given.
    pub(crate) fn new(send_cq: Arc<Cq>, recv_cq: Arc<Cq>, srq: Option<Arc<Srq>>) -> Self {
        let matching = srq.as_ref().and_then(|srq| srq.tm.as_deref());
        // Receives of a tag matching queue complete on the CQ of that queue.
        let (recv_cq, tm) = match matching {
            Some(matching) => (Arc::clone(&matching.cq), Some(Tagging::new(recv_cq))),
            None => (recv_cq, None),
        };
        let dry = ReceiveShortage::default();
        Self { send_cq, recv_cq, srq, tm, signals_all: false, create_flags: 0, shortage: dry }
    }
}

impl Role {
    /// The data of an XRC receive QP of `domain`, created in this process.
    pub(crate) fn receiver(domain: DomainId) -> Self {
        Self::Receiver(Receiver { domain, openings: Openings::default() })
    }

    /// The data of a queue pair, if it is one.
    #[inline]
    pub(crate) const fn pair(&self) -> Option<&Pair> {
        match self {
            Self::Pair(pair) => Some(pair),
            _ => None,
        }
    }

    /// The number of the QP in whose place this QP stands, if any.
    pub(in crate::engine) fn borrowed_number(&self) -> Option<u32> {
        match self {
            Self::StandIn(StandIn { home, .. }) | Self::Opened(Opened { home, .. }) => {
                Some(home.qpn)
            }
            _ => None,
        }
    }

    /// The XRC domain of an XRC receive QP.
    pub(crate) const fn domain(&self) -> Option<DomainId> {
        match self {
            Self::Receiver(Receiver { domain, .. })
            | Self::StandIn(StandIn { domain, .. })
            | Self::Opened(Opened { domain, .. }) => Some(*domain),
            Self::Pair(_) | Self::Rss(_) => None,
        }
    }

    /// Counts this QP as a user of its objects, which must outlive it.
    pub(in crate::engine) fn count_user(&self, kind: QpType) {
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

    /// Ends the uses counted by `count_user`.
    pub(in crate::engine) fn release(&self, kind: QpType) {
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
    /// The data of a queue pair, if it is one.
    #[inline]
    pub(crate) const fn pair(&self) -> Option<&Pair> {
        self.role.pair()
    }

    /// The shared receive queue of the QP. XRC requests name their queues themselves.
    #[inline]
    pub(crate) fn srq(&self) -> Option<&Arc<Srq>> {
        self.pair()?.srq.as_ref()
    }

    /// The data of a stand-in, if it is one.
    #[inline]
    pub(crate) const fn as_stand_in(&self) -> Option<&StandIn> {
        match &self.role {
            Role::StandIn(stand) => Some(stand),
            _ => None,
        }
    }

    /// The data of an opened handle, if it is one.
    pub(crate) const fn opened(&self) -> Option<&Opened> {
        match &self.role {
            Role::Opened(opened) => Some(opened),
            _ => None,
        }
    }

    /// The openings of an XRC receive QP created in this process.
    pub(crate) const fn openings(&self) -> Option<&Openings> {
        match &self.role {
            Role::Receiver(receiver) => Some(&receiver.openings),
            _ => None,
        }
    }

    /// Whether receives of this QP complete on `cq`.
    #[inline]
    pub(crate) fn receives_on(&self, cq: &Cq) -> bool {
        self.fast.recv_key == cq.key()
    }

    /// The tag matching of the shared receive queue, and of this QP.
    #[inline]
    pub(crate) fn tagging(&self) -> Option<(&TagMatching, &Tagging)> {
        let own = self.own_tagging()?;
        Some((self.srq()?.tm.as_deref()?, own))
    }

    /// The tag matching data of this QP.
    #[inline]
    pub(crate) fn own_tagging(&self) -> Option<&Tagging> {
        if self.fast.sends {
            // Most QPs take this short way.
            return None;
        }
        self.pair()?.tm.as_deref()
    }
}
