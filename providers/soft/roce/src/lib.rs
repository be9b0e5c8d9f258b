//! RoCE v2 without sockets: packets and time in; packets, placements and completions out.
//!
//! [`wire`] encodes and decodes packets. [`engine`] has [`Qp`](engine::Qp), the transport of one
//! queue pair: reliable and unreliable connections, datagrams and XRC (IBTA 1.7 9). The crate has
//! no socket, clock, thread or random number: the caller provides datagrams and time. The rules are
//! those of the specification. Where it leaves a choice, the crate interoperates with the kernel's
//! rxe and with adapters.
//!
//! # Vocabulary
//!
//! A [`Qp`](engine::Qp) never touches memory, and knows no receive, key, window or tag. It returns
//! what a packet requires, and the caller reports the result.
//!
//! Calls into a QP:
//!
//! - [`post`](engine::Qp::post): a request of ibv_post_send(3), with an id of the caller.
//! - [`receive`](engine::Qp::receive): a received datagram. The [`Step`](engine::Step) says what to
//!   do with it now.
//! - [`answer`](engine::Qp::answer): the result of the last step's question.
//! - [`handle_timeout`](engine::Qp::handle_timeout): the time of
//!   [`poll_timeout`](engine::Qp::poll_timeout) has come.
//! - [`fail_work`](engine::Qp::fail_work), [`read_failed`](engine::Qp::read_failed): local memory
//!   is gone.
//!
//! Results of a QP:
//!
//! - [`ResponderRequest`](engine::ResponderRequest), from the responder: deliver, place, allow a
//!   read, execute an atomic.
//! - [`Step::PlaceResponse`](engine::Step::PlaceResponse),
//!   [`Step::Original`](engine::Step::Original), from the requester: data of our READ, the value
//!   before our atomic.
//! - [`poll_transmit`](engine::Qp::poll_transmit): a packet to send, as header bytes and the *name*
//!   of its payload.
//! - [`poll_event`](engine::Qp::poll_event): completions in order, errors, the end of draining.
//!
//! After each call the caller polls `poll_event` and `poll_transmit` until both return `None`, as
//! with quinn-proto or smoltcp:
//!
//! ```
//! use ferroverbs_roce::Time;
//! use ferroverbs_roce::engine::{Config, Pmtu, Qp, Service};
//! use ferroverbs_roce::wire::Qpn;
//!
//! let mut qp = Qp::new(Config::new(Service::Rc, Qpn::new(0x11), Pmtu::B1024));
//! assert!(qp.poll_event().is_none());
//! assert!(qp.poll_transmit(Time::from_ns(1)).is_none());
//! ```
//!
//! The steps of one packet:
//!
//! - **SEND.** [`ResponderRequest::Deliver`](engine::ResponderRequest::Deliver) for each packet,
//!   with its offset in the message. The length of the message is unknown before its last packet.
//!   With `first` the caller takes a receive, or answers [`Rnr`](engine::ResponderReply::Rnr).
//!   After `Rnr` the peer repeats the request. With `last` the receive completes.
//! - **WRITE.** [`ResponderRequest::Write`](engine::ResponderRequest::Write) for each packet. The
//!   first packet has the range of the whole message, so the caller checks keys once, before
//!   placing any byte.
//! - **READ.** [`ResponderRequest::Read`](engine::ResponderRequest::Read) once. Each response
//!   packet names its part of the region ([`Payload::Region`](engine::Payload::Region)), and the
//!   bytes are read when the packet is sent.
//! - **Atomics, FLUSH, ATOMIC WRITE** execute between question and answer. Their results are saved
//!   and repeated for duplicates, so the caller sees each request once. A repeated READ is asked
//!   again, because adapters check its key again. If the key is gone by then, only the requester is
//!   notified, because the READ may have completed.
//! - **Refused** requests are answered with a class C NAK, and both queue pairs enter the error
//!   state.
//!
//! An answer may come late, after other calls. Until then further requests of that peer are dropped
//! ([`DropReason::Busy`](engine::DropReason::Busy)), and the peer repeats them. The crate never
//! copies payloads: a received payload is a range of the datagram, a sent payload is a range of a
//! posted message.
//!
//! # Loss recovery
//!
//! Standard RoCE goes back to the loss: after a gap the responder sends one NAK and drops all
//! packets until the expected one arrives. Every peer gets this service. If both ends speak the
//! *extension*, the responder holds packets behind a gap. For
//! [`Step::HoldPacket`](engine::Step::HoldPacket) the *caller* keeps the datagram in one of a
//! bounded number of places, and passes it in again when [`release`](engine::Qp::release) says so.
//! The responder lists the held packets for the requester, which repeats only the missing ones.
//! Requests still execute in order.
//!
//! The ends agree as follows. A requester sends [`Hello`](wire::ExtensionMessage::Hello) before its
//! first packet, and again after plain NAKs: after the first three, and then whenever their number
//! has doubled. A responder that received the greeting answers gaps with
//! [`Selective`](wire::ExtensionMessage::Selective) instead of a NAK. Both packets use a
//! manufacturer opcode of no transport, which any other peer must drop silently. An answer to a
//! Hello is no longer than the Hello, so the greeting amplifies nothing. Without a greeting,
//! standard recovery applies.
//!
//! Such a peer also combines an acknowledgement with a request into one packet, if the request is
//! the only one to send ([`PiggybackedAck`](wire::ExtensionMessage::PiggybackedAck)). Two packets
//! would take two datagrams.
//!
//! Further measures work with every peer. A requester sends a *probe*: it repeats the oldest
//! unanswered packet early, after a few round trips, and then ever later. The responder
//! acknowledges a duplicate with its newest PSN. A packet sent a round trip, or three packets,
//! before one that arrived counts as lost, even if it was itself a repeat. A READ is repeated only
//! for the missing PSNs. A long READ is split, so that the window bounds its data.
//!
//! None of these measures changes the local ACK timeout or the retry count. A dead peer is given up
//! when the specification says so. Until then it receives at most one window, one packet for each
//! timeout, and probes.
//!
//! # Congestion
//!
//! Each queue pair has a window of bytes and a rate. The rate follows DCQCN, as in adapters. Each
//! congestion notification (CNP) lowers it, and time raises it: first to half the distance, later
//! beyond. Flows of this crate thus share links with adapters' flows on known terms. The window
//! doubles per round trip up to the size of the last loss, and then grows by a packet. It replaces
//! the lossless Ethernet that DCQCN assumes, because a receiver's socket buffer is finite. The
//! window shrinks for losses in queues, and not for random losses: round trips near their minimum
//! show that no queue is full. A loss rate above a third never counts as random, nor does a loss
//! within 10 ms of a notification. As notification point, a QP answers marked packets with a CNP,
//! at most one per 50 us. `docs/reference/wire-simulation.md` has figures for hundreds of hosts and
//! ten thousand queue pairs.
//!
//! # Trust
//!
//! A QP drops a packet without a response unless the packet comes from the peer's address to ours,
//! with our QP number, service and partition. Then the PSN must be acceptable. A packet causes at
//! most one response (for a READ: its data, once). Queued responses and saved state are bounded:
//! 256 PSNs, `hold` datagrams, `responder_resources` results. Any bytes may come in; [`fuzzing`]
//! has entry points for a fuzzer.

#![forbid(unsafe_code)]

pub mod engine;
#[cfg(debug_assertions)]
pub mod fuzzing;
mod time;
pub mod wire;

pub use time::Time;
