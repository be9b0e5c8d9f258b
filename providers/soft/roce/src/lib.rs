//! RoCE v2 without sockets: packets and time in; packets, placements and completions out.
//!
//! [`wire`] has the packets. [`engine`] has [`Qp`](engine::Qp), the transport of one queue pair: reliable and unreliable
//! connections, datagrams and XRC (IBTA vol 1, chapter 9). There is no socket here, no clock, no thread and no random
//! number; the caller brings datagrams and the time. Rules are of the specification, and where it leaves a choice, such
//! that the kernel's rxe and adapters understand us.
//!
//! # The vocabulary
//!
//! A queue pair here never touches memory, and knows no receive, key, window or tag. It says what a packet comes to, and is
//! told how that went. These are the words; another wire can use the same ones.
//!
//! | in | |
//! |---|---|
//! | [`post`](engine::Qp::post) | a request of ibv_post_send(3), under a name of the caller's |
//! | [`receive`](engine::Qp::receive) | a datagram that came; the [`Step`](engine::Step) is what is to be done with it, now |
//! | [`answer`](engine::Qp::answer) | how the question of the last step went |
//! | [`handle_timeout`](engine::Qp::handle_timeout) | it is now as late as [`poll_timeout`](engine::Qp::poll_timeout) said |
//! | [`fail_work`](engine::Qp::fail_work), [`read_failed`](engine::Qp::read_failed) | memory of ours is gone |
//!
//! | out | |
//! |---|---|
//! | [`Ask`](engine::Ask) | of the responder: deliver, place, may this be read, do this atomically |
//! | [`Step::Place`](engine::Step::Place), [`Step::Original`](engine::Step::Original) | of the requester: data of our READ, the value before our atomic |
//! | [`poll_transmit`](engine::Qp::poll_transmit) | a packet to send: header bytes, and the *name* of what follows them |
//! | [`poll_event`](engine::Qp::poll_event) | completions in order, errors, the end of draining |
//!
//! After each call in, the caller asks `poll_event` and `poll_transmit` until both have nothing, as with quinn-proto or
//! smoltcp. The steps of one packet:
//!
//! - **SEND.** [`Ask::Deliver`](engine::Ask::Deliver) for each packet, with the place in the message. The length of the
//!   message is not known before its last packet. With `first` the caller takes a receive, or answers
//!   [`Rnr`](engine::Answer::Rnr): nothing waits here, the peer comes again. With `last` the receive completes.
//! - **WRITE.** [`Ask::Place`](engine::Ask::Place) for each packet. The first brings the range of the whole message, so keys
//!   are checked once, before any byte is placed.
//! - **READ.** [`Ask::Read`](engine::Ask::Read) once. What is accepted is *produced*: each packet of the answer names its part
//!   of the region ([`Payload::Region`](engine::Payload::Region)), and the bytes are looked at when it is sent.
//! - **Atomics, FLUSH, ATOMIC WRITE** are done between the question and the answer. Their results are kept and repeated to
//!   duplicates; the semantics see each request once. A READ that comes again is asked for again, as adapters check its key
//!   again; if that opens nothing any more only the requester is told, as nobody may be waiting for it.
//! - **Refused** requests are answered with a NAK of class C; both queue pairs go to error.
//!
//! An answer may be given late, after other calls. Until then further requests of that peer are dropped
//! ([`Drop::Busy`](engine::Drop::Busy)) and come again. Payloads are never copied here: what is received is a range of the
//! datagram, what is sent a range of a posted message.
//!
//! # What recovers losses
//!
//! Plain RoCE goes back: after a gap the responder says so once (NAK) and drops all packets until the expected one comes.
//! That is what any peer gets. Between our own ends the responder keeps what comes behind a gap
//! ([`Step::Hold`](engine::Step::Hold): the *caller* keeps the datagram, in one of a bounded number of places, and brings it
//! again when [`release`](engine::Qp::release) says so), and tells the requester which packets it has; only the missing ones
//! go again. Nothing is executed out of order.
//!
//! It is agreed upon like this: a requester says [`Hello`](wire::Ours::Hello) before its first packet, and again after a plain NAK: after
//! the first three of them, and then whenever there were twice as many. A responder that was greeted answers gaps with [`Selective`](wire::Ours::Selective) instead of
//! a NAK. Both are packets under an opcode that is left to manufacturers and belongs to no transport, which any other peer
//! has to drop silently. Nobody answers a Hello, so nothing can be amplified by it; if it is lost, or the peer is another's,
//! all goes on in the plain way.
//!
//! Who was greeted also sends an acknowledgement in one packet with the request that answers, if that is the only one to go
//! ([`Along`](wire::Ours::Along)): two packets would take two datagrams, or one that a kernel has to cut.
//!
//! More speeds up recovery with every peer, because the specification allows it. A requester asks early about the
//! oldest unanswered packet (a *probe*, after some round trips, then ever later; a duplicate is acknowledged with the newest
//! PSN). What was sent a round trip, or three packets, before something that arrived is lost, also if it was itself
//! sent again. Of a READ just the part is asked for again that is missing, by the PSNs that came. A long READ is asked for in
//! pieces, so that its data are bounded by the window as well.
//!
//! None of that touches the local ACK timeout and the retry count: a peer that is gone is given up when the specification
//! says so, and hears until then of no more than one window, a packet for each timeout, and the probes between.
//!
//! # Congestion
//!
//! A window of bytes and a rate, per queue pair. The rate is that of DCQCN, which adapters use: it falls with each
//! congestion notification (CNP) and rises with time, first half of the way back, later beyond. Flows of ours thus share
//! links with adapters' on known terms. The window (doubling per round trip up to where a loss was, then by a packet) is
//! what DCQCN leaves to lossless Ethernet, which sockets do not have: a receiver's buffer is finite. It shrinks where packets
//! are lost in queues, not where they are lost by chance: round trips that are no longer than ever tell that no queue is
//! full. More than a third is never chance, nor is what comes within 10 ms of a notification. As notification
//! point, we answer marked packets with a CNP, at most one per 50 us. `docs/reference/wire-simulation.md` of the project has
//! figures of hundreds of hosts and ten thousand queue pairs.
//!
//! # Trust
//!
//! A packet is dropped unanswered, before anything is looked at, unless it comes from the peer's address to ours, has our
//! number, our service and our partition; then its PSN must be one that counts. At most one answer is made for a packet (to
//! a READ: what it asked for, once), and what waits to be said is bounded, as is what is kept: 256 PSNs, `hold` datagrams,
//! `responder_resources` results. Any bytes may come in; [`fuzzing`] has ways in for a fuzzer.

#![forbid(unsafe_code)]

pub mod engine;
pub mod fuzzing;
mod time;
pub mod wire;

pub use time::Time;
