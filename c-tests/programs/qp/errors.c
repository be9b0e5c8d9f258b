/*
 * Failing requests: the statuses that both sides get, over every data path. IBTA 1.7 9.9.2,
 * 9.9.3, 10.8.5; ibv_poll_cq(3).
 *
 * Map of this file: expect, expect_states and rdma are helpers. rnr checks missing receives; the
 * functions lengths* check messages longer than their receive on RC, UC and UD. parts_of_receives
 * checks receives of which only a part is valid; remote_access and write_with_immediate check
 * rkeys, rights and bounds; local_protection checks lkeys. flush checks requests on a QP in ERR or
 * RESET; gone checks peers that are destroyed, in ERR or killed. refused checks requests that
 * cannot be posted. died_with_a_message kills a sender whose messages wait. main starts the ends, b
 * in another process for the argument "two"; gone and died_with_a_message start more.
 */
#include "rig.h"

static struct end *a, *b;
static struct address aa, ba;
static int two;

static void expect(struct ibv_wc w, enum ibv_wc_status wanted, uint64_t id, const char *what)
{
	check(w.status == wanted && w.wr_id == id, "%s: %s, id %llu (should be %s, id %llu)", what, ibv_wc_status_str(w.status),
	      (unsigned long long)w.wr_id, ibv_wc_status_str(wanted), (unsigned long long)id);
}

static void expect_states(enum ibv_qp_state of_a, enum ibv_qp_state of_b, const char *what)
{
	check_eq(end_state(a), of_a, "%s: state of the requester", what);
	check_eq(end_state_soon(b, of_b), of_b, "%s: state of the responder", what);
}

static struct request rdma(enum ibv_wr_opcode op, uint64_t id, uint32_t len, uint64_t raddr, uint32_t rkey)
{
	struct request r = one_piece(op, id, 0, len);
	r.raddr = raddr;
	r.rkey = rkey;
	r.compare_add = 1;
	return r;
}

static void rnr(void)
{
	struct options o = defaults();
	o.rnr_retry = 0;
	pair_open(a, b, o, &aa, &ba);
	end_send(a, one_piece(IBV_WR_SEND, 1, 0, 100));
	expect(end_wait(a, SENDS), IBV_WC_RNR_RETRY_EXC_ERR, 1, "no receive, rnr_retry 0");
	expect_states(IBV_QPS_ERR, IBV_QPS_RTS, "no receive, rnr_retry 0");
	end_send(a, one_piece(IBV_WR_SEND, 2, 0, 100));
	expect(end_wait(a, SENDS), IBV_WC_WR_FLUSH_ERR, 2, "the next request");
	pair_close(a, b);
	o.rnr_retry = 2;
	pair_open(a, b, o, &aa, &ba);
	struct request w = rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 3, 10, ba.addr, ba.rkey);
	end_send(a, w);
	expect(end_wait(a, SENDS), IBV_WC_RNR_RETRY_EXC_ERR, 3, "write with immediate, no receive, rnr_retry 2");
	pair_close(a, b);
	/* With rnr_retry 7 the sender retries without limit. */
	o.rnr_retry = 7;
	pair_open(a, b, o, &aa, &ba);
	struct ibv_wc c;
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t len = 10u << 8 * i;
		end_fill(a, 0, len, i);
		end_send(a, one_piece(IBV_WR_SEND, i, 0, len));
		check(!end_try(a, SENDS, &c, QUIET_US), "rnr_retry 7: the sender of %u bytes waits", len);
		end_recv(b, one_piece(0, 100 + i, 0, 1 << 20));
		expect(end_wait(a, SENDS), IBV_WC_SUCCESS, i, "rnr_retry 7: once there is a receive, the sender");
		expect(end_wait(b, RECVS), IBV_WC_SUCCESS, 100 + i, "rnr_retry 7: and the receiver");
		check(end_verify(b, 0, len, i) < 0, "rnr_retry 7: data");
	}
	pair_close(a, b);
}

static void lengths(void)
{
	static const uint32_t sent[] = { 11, 100, 5000, 100000 };
	for (int i = 0; i < 4; i++) {
		pair_open(a, b, defaults(), &aa, &ba);
		end_fill(b, 0, 200, 9);
		end_recv(b, one_piece(0, 5, 0, 10));
		end_recv(b, one_piece(0, 6, 0, 10));
		end_send(a, one_piece(IBV_WR_SEND, 1, 0, sent[i]));
		expect(end_wait(a, SENDS), IBV_WC_REM_INV_REQ_ERR, 1, "longer than the receive: the sender");
		expect(end_wait(b, RECVS), IBV_WC_LOC_LEN_ERR, 5, "longer than the receive: the receiver");
		expect(end_wait(b, RECVS), IBV_WC_WR_FLUSH_ERR, 6, "longer than the receive: the next receive");
		expect_states(IBV_QPS_ERR, IBV_QPS_ERR, "longer than the receive");
		unsigned char past[16], old[26];
		end_read(b, 10, past, 16);
		fill(old, 26, 9);
		check(!memcmp(past, old + 10, 16), "longer than the receive: nothing beyond its end");
		pair_close(a, b);
	}
}

/* On UC the sender gets no error; the receiver has a failed receive, as on RC. */
static void lengths_unreliable(void)
{
	static const uint32_t sent[] = { 61, 100, 3000, 100000 };
	for (int i = 0; i < 4; i++) {
		struct options o = defaults();
		o.type = IBV_QPT_UC;
		const char *name = "UC";
		pair_open(a, b, o, &aa, &ba);
		end_fill(b, 0, 200, 9);
		end_recv(b, one_piece(0, 5, 0, 60));
		end_recv(b, one_piece(0, 6, 0, 60));
		struct request r = one_piece(IBV_WR_SEND, 1, 0, sent[i]);
		end_send(a, r);
		expect(end_wait(a, SENDS), IBV_WC_SUCCESS, 1, "unreliable, longer than the receive: the sender");
		expect(end_wait(b, RECVS), IBV_WC_LOC_LEN_ERR, 5, "unreliable, longer than the receive: the receiver");
		expect(end_wait(b, RECVS), IBV_WC_WR_FLUSH_ERR, 6, "unreliable, longer than the receive: the next receive");
		expect_states(IBV_QPS_RTS, IBV_QPS_ERR, name);
		unsigned char past[16], old[76];
		end_read(b, 60, past, 16);
		fill(old, 76, 9);
		check(!memcmp(past, old + 60, 16), "%s, longer than the receive: nothing beyond its end", name);
		/* A message to a QP in ERR is lost. */
		r.id = 2;
		end_send(a, r);
		expect(end_wait(a, SENDS), IBV_WC_SUCCESS, 2, "unreliable, to a QP in ERR");
		pair_close(a, b);
	}
}

/* A UD sender cannot stop a receiver: a datagram that is too long is dropped and takes no receive
 * (IBTA 1.7 9.9.3, class D). */
static void lengths_of_datagrams(void)
{
	static const uint32_t sent[] = { 61, 100, 3000 };
	for (int i = 0; i < 6; i++) {
		struct options o = defaults();
		struct ibv_wc w;
		o.type = IBV_QPT_UD;
		o.srq = i >= 3;
		pair_open(a, b, o, &aa, &ba);
		end_fill(b, 0, 200, 9);
		end_recv(b, one_piece(0, 5, 0, 60));
		end_recv(b, one_piece(0, 6, 0, 60));
		struct request r = one_piece(IBV_WR_SEND, 1, 0, sent[i % 3]);
		r.qpn = ba.qpn;
		r.qkey = ba.qkey;
		for (int k = 0; k < 3; k++) {
			end_send(a, r);
			expect(end_wait(a, SENDS), IBV_WC_SUCCESS, 1, "a datagram longer than the receive: the sender");
		}
		check(!end_try(b, RECVS, &w, QUIET_US), "a datagram longer than the receive: nothing completes");
		check(end_verify(b, 0, 200, 9) < 0, "a datagram longer than the receive: nothing is placed");
		r.piece[0].len = 20;
		for (uint64_t id = 5; id <= 6; id++) {
			end_send(a, r);
			expect(end_wait(a, SENDS), IBV_WC_SUCCESS, 1, "a datagram that fits: the sender");
			w = end_wait(b, RECVS);
			expect(w, IBV_WC_SUCCESS, id, "a datagram that fits: the receiver");
			check_eq(w.byte_len, 60, "its length");
		}
		/* A receive that waits for a shorter message is flushed like any other receive. */
		end_recv(b, one_piece(0, 7, 0, 60));
		end_recv(b, one_piece(0, 8, 0, 60));
		r.piece[0].len = 61;
		end_send(a, r);
		end_wait(a, SENDS);
		check(!end_try(b, RECVS, &w, QUIET_US), "too long again");
		expect_states(IBV_QPS_RTS, IBV_QPS_RTS, "datagrams");
		end_modify(b, IBV_QPS_ERR);
		for (uint64_t id = 7; id <= 8 && !o.srq; id++)
			expect(end_wait(b, RECVS), IBV_WC_WR_FLUSH_ERR, id, "then flushed");
		pair_close(a, b);
	}
}

/* Only the bytes of a receive that a message needs are checked, as adapters do. A receive may
 * extend beyond its region or have a piece with an invalid key. */
static void parts_of_receives(void)
{
	static const uint32_t len[] = { 0, 40, 1500, 5000, 100000 };
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	for (int t = 0; t < 3; t++)
		for (int srq = 0; srq < (t == 1 ? 1 : 2); srq++)
			for (int k = 0; k < 5; k++)
				for (int how = 0; how < 2; how++) {
					struct options o = defaults();
					o.type = types[t];
					o.srq = srq;
					uint32_t n = len[k], head = t == 2 ? 40 : 0;
					if (n > 4096 && t == 2)
						continue;
					pair_open(a, b, o, &aa, &ba);
					struct request s = one_piece(IBV_WR_SEND, 1, 0, n), r = one_piece(0, 5, o.size - n - head, n + head + 100);
					s.qpn = ba.qpn;
					s.qkey = ba.qkey;
					if (how) {
						r.piece[0].len = n + head;
						r.pieces = 2;
						r.piece[1] = (struct piece){ 0, 100, 0x5a5a00 };
					}
					end_fill(a, 0, n, 7);
					end_recv(b, r);
					end_send(a, s);
					expect(end_wait(b, RECVS), IBV_WC_SUCCESS, 5, how ? "a receive with a bad key behind what is used" : "a receive beyond the end of its region");
					expect(end_wait(a, SENDS), IBV_WC_SUCCESS, 1, "its sender");
					check(end_verify(b, o.size - n, n, 7) < 0, "the message is there (%u bytes)", n);
					r.id = 6;
					end_recv(b, r);
					s.id = 2;
					s.piece[0].len++;
					if (s.piece[0].len + head > 4096 && t == 2) {
						pair_close(a, b);
						continue;
					}
					end_send(a, s);
					expect(end_wait(b, RECVS), IBV_WC_LOC_PROT_ERR, 6, "one byte more");
					expect(end_wait(a, SENDS), t ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR, 2, "its sender");
					pair_close(a, b);
				}
}

static const struct {
	enum ibv_wr_opcode op;
	const char *name;
	unsigned right;
} one_sided[] = {
	{ IBV_WR_RDMA_WRITE, "WRITE", IBV_ACCESS_REMOTE_WRITE },
	{ IBV_WR_RDMA_READ, "READ", IBV_ACCESS_REMOTE_READ },
	{ IBV_WR_ATOMIC_FETCH_AND_ADD, "FETCH_AND_ADD", IBV_ACCESS_REMOTE_ATOMIC },
	{ IBV_WR_ATOMIC_CMP_AND_SWP, "CMP_AND_SWP", IBV_ACCESS_REMOTE_ATOMIC },
};

#define ALL_RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* IBTA 1.7 9.7.4.1.2, 9.7.5.2.2, 11.6.3. */
static void remote_access(void)
{
	static const char *const what[] = { "unknown rkey", "one byte beyond the region", "far beyond the region", "before the region", "region without the right",
					    "region of another PD", "deregistered region", "local key as rkey" };
	for (size_t k = 0; k < 4; k++)
		for (int how = 0; how < 8; how++) {
			char name[100];
			snprintf(name, sizeof name, "%s, %s", one_sided[k].name, what[how]);
			pair_open(a, b, defaults(), &aa, &ba);
			uint64_t at = ba.addr + 4096;
			struct keys keys = end_register(b, 4096, 4096, how == 4 ? ALL_RIGHTS & ~one_sided[k].right : ALL_RIGHTS, how == 5);
			uint32_t rkey = keys.rkey;
			if (how == 0)
				rkey ^= 0x5a5a00;
			else if (how == 1)
				at += 4096 - 8 + 1;
			else if (how == 2)
				at += 1u << 30;
			else if (how == 3)
				at -= 8;
			else if (how == 6)
				end_deregister(b);
			else if (how == 7 && keys.lkey != keys.rkey)
				rkey = keys.lkey;
			else if (how == 7)
				rkey = 0;
			if (how == 1 && k >= 2)
				at += 7; /* aligned, wholly outside */
			end_fill(b, 0, 16384, 3);
			end_fill(a, 0, 8, 4);
			end_send(a, rdma(one_sided[k].op, 1, 8, at, rkey));
			end_send(a, rdma(IBV_WR_RDMA_WRITE, 2, 8, ba.addr, ba.rkey));
			expect(end_wait(a, SENDS), IBV_WC_REM_ACCESS_ERR, 1, name);
			expect(end_wait(a, SENDS), IBV_WC_WR_FLUSH_ERR, 2, name);
			expect_states(IBV_QPS_ERR, IBV_QPS_ERR, name);
			check(end_verify(b, 0, 16384, 3) < 0, "%s: the responder's memory is unchanged", name);
			check_eq(end_async(b), IBV_EVENT_QP_ACCESS_ERR, "%s: the responder's event", name);
			pair_close(a, b);
		}
	/* The QP itself must allow the operation, even for zero bytes without a key check
	 * (IBTA 1.7 table 58: invalid request). */
	for (size_t k = 0; k < 4; k++)
		for (int len = k < 2 ? 0 : 8; len <= 8; len += 8) {
			struct options o = defaults();
			char name[100];
			snprintf(name, sizeof name, "%s of %d bytes, QP without the right", one_sided[k].name, len);
			o.access = IBV_ACCESS_LOCAL_WRITE | (ALL_RIGHTS & ~one_sided[k].right);
			pair_open(a, b, o, &aa, &ba);
			end_fill(b, 0, 64, 3);
			struct request r = rdma(one_sided[k].op, 1, len, ba.addr, ba.rkey);
			end_send(a, r);
			expect(end_wait(a, SENDS), IBV_WC_REM_INV_REQ_ERR, 1, name);
			check(end_verify(b, 0, 64, 3) < 0, "%s: memory is unchanged", name);
			check_eq(end_async(b), IBV_EVENT_QP_REQ_ERR, "%s: the responder's event", name);
			pair_close(a, b);
		}
	/* An atomic on an address that is not a multiple of 8. */
	for (size_t k = 2; k < 4; k++) {
		pair_open(a, b, defaults(), &aa, &ba);
		end_fill(b, 0, 64, 3);
		end_send(a, rdma(one_sided[k].op, 1, 8, ba.addr + 4, ba.rkey));
		struct ibv_wc w = end_wait(a, SENDS);
		check(w.status == IBV_WC_REM_INV_REQ_ERR || w.status == IBV_WC_REM_ACCESS_ERR, "%s, misaligned: %s", one_sided[k].name,
		      ibv_wc_status_str(w.status));
		check(end_verify(b, 0, 64, 3) < 0, "%s, misaligned: memory is unchanged", one_sided[k].name);
		pair_close(a, b);
	}
	/* A request of zero bytes needs no valid key (IBTA 1.7 9.7.4.1.5). */
	for (size_t k = 0; k < 2; k++) {
		pair_open(a, b, defaults(), &aa, &ba);
		struct request r = rdma(one_sided[k].op, 1, 0, 0, 0);
		end_send(a, r);
		expect(end_wait(a, SENDS), IBV_WC_SUCCESS, 1, "zero bytes with a key of zero");
		expect_states(IBV_QPS_RTS, IBV_QPS_RTS, "zero bytes with a key of zero");
		pair_close(a, b);
	}
}

/* The receive of a refused WRITE with immediate completes with an error (IBTA 1.7 11.6.2). */
static void write_with_immediate(void)
{
	static const uint32_t len[] = { 8, 5000, 100000 };
	for (int i = 0; i < 12; i++) {
		struct options o = defaults();
		o.srq = i >= 6;
		pair_open(a, b, o, &aa, &ba);
		struct keys keys = end_register(b, 4096, 200000, ALL_RIGHTS & ~IBV_ACCESS_REMOTE_WRITE, 0);
		end_recv(b, one_piece(0, 5, 0, 10));
		end_recv(b, one_piece(0, 6, 0, 10));
		end_fill(b, 0, 110000, 3);
		end_send(a, rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 1, len[i % 3], ba.addr + 4096, i % 6 < 3 ? keys.rkey : keys.rkey ^ 0x5a5a00));
		expect(end_wait(a, SENDS), IBV_WC_REM_ACCESS_ERR, 1, "WRITE with immediate and a bad key: the sender");
		/* Between hosts the first of several packets is refused, and that packet does not
		 * take a receive. */
		int wanted = !hosts_differ() || i % 3 == 0;
		if (wanted || !o.srq)
			expect(end_wait(b, RECVS), wanted ? IBV_WC_LOC_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR, 5, "WRITE with immediate and a bad key: the receive");
		if (!o.srq)
			expect(end_wait(b, RECVS), IBV_WC_WR_FLUSH_ERR, 6, "WRITE with immediate and a bad key: the next receive");
		expect_states(IBV_QPS_ERR, IBV_QPS_ERR, "WRITE with immediate and a bad key");
		check(end_verify(b, 0, 110000, 3) < 0, "WRITE with immediate and a bad key: memory is unchanged");
		check_eq(end_async(b), IBV_EVENT_QP_ACCESS_ERR, "WRITE with immediate and a bad key: the event");
		end_deregister(b);
		pair_close(a, b);
	}
	/* Without a posted receive only the sender reports the error. */
	pair_open(a, b, defaults(), &aa, &ba);
	end_send(a, rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 1, 8, ba.addr, ba.rkey ^ 0x5a5a00));
	expect(end_wait(a, SENDS), IBV_WC_REM_ACCESS_ERR, 1, "WRITE with immediate, a bad key and no receive");
	pair_close(a, b);
}

static void local_protection(void)
{
	static const char *const what[] = { "unknown lkey", "beyond the region", "region of another PD", "deregistered region" };
	for (int how = 0; how < 4; how++)
		for (int side = 0; side < 3; side++) {
			static const char *const sides[] = { "SEND from", "READ into", "receive into" };
			char name[100];
			snprintf(name, sizeof name, "%s %s", sides[side], what[how]);
			pair_open(a, b, defaults(), &aa, &ba);
			struct end *e = side == 2 ? b : a;
			struct keys keys = end_register(e, 4096, 4096, ALL_RIGHTS, how == 2);
			struct request r = rdma(side == 1 ? IBV_WR_RDMA_READ : IBV_WR_SEND, 1, 100, ba.addr, ba.rkey);
			struct piece p = { 4096, 100, how == 0 ? keys.lkey ^ 0x5a5a00 : keys.lkey };
			if (how == 1)
				p.offset += 4000;
			if (how == 3)
				end_deregister(e);
			if (side == 2) {
				struct request rr = { .id = 5, .pieces = 1, .piece = { p } };
				int err = end_recv(b, rr);
				/* A device may check the lkey now, or at the message's arrival. */
				if (err) {
					check_eq(err, EINVAL, "%s: refused at once", name);
					pair_close(a, b);
					continue;
				}
				end_send(a, r);
				expect(end_wait(a, SENDS), IBV_WC_REM_OP_ERR, 1, name);
				expect(end_wait(b, RECVS), IBV_WC_LOC_PROT_ERR, 5, name);
				expect_states(IBV_QPS_ERR, IBV_QPS_ERR, name);
			} else {
				r.piece[0] = p;
				end_recv(b, one_piece(0, 5, 0, 1000));
				end_send(a, r);
				expect(end_wait(a, SENDS), IBV_WC_LOC_PROT_ERR, 1, name);
				check_eq(end_state(a), IBV_QPS_ERR, "%s: state", name);
				struct ibv_wc w;
				check(!end_try(b, RECVS, &w, QUIET_US), "%s: the other side sees nothing", name);
			}
			pair_close(a, b);
		}
	/* Without IBV_ACCESS_LOCAL_WRITE nothing may land in a region, but it can be sent from. */
	pair_open(a, b, defaults(), &aa, &ba);
	struct keys keys = end_register(a, 0, 4096, IBV_ACCESS_REMOTE_READ, 0);
	struct request r = one_piece(IBV_WR_SEND, 1, 0, 100);
	r.piece[0].lkey = keys.lkey;
	end_recv(b, one_piece(0, 5, 0, 1000));
	end_send(a, r);
	expect(end_wait(a, SENDS), IBV_WC_SUCCESS, 1, "SEND from a read-only region");
	expect(end_wait(b, RECVS), IBV_WC_SUCCESS, 5, "SEND from a read-only region");
	r = rdma(IBV_WR_RDMA_READ, 2, 100, ba.addr, ba.rkey);
	r.piece[0].lkey = keys.lkey;
	end_fill(a, 0, 100, 8);
	end_send(a, r);
	expect(end_wait(a, SENDS), IBV_WC_LOC_PROT_ERR, 2, "READ into a read-only region");
	check(end_verify(a, 0, 100, 8) < 0, "READ into a read-only region: unchanged");
	pair_close(a, b);
	pair_open(a, b, defaults(), &aa, &ba);
	keys = end_register(b, 0, 4096, IBV_ACCESS_REMOTE_READ, 0);
	struct request rr = one_piece(0, 5, 0, 1000);
	rr.piece[0].lkey = keys.lkey;
	if (end_recv(b, rr) == 0) {
		end_send(a, one_piece(IBV_WR_SEND, 1, 0, 100));
		expect(end_wait(a, SENDS), IBV_WC_REM_OP_ERR, 1, "receive into a read-only region");
		expect(end_wait(b, RECVS), IBV_WC_LOC_PROT_ERR, 5, "receive into a read-only region");
	}
	pair_close(a, b);
}

static void flush(void)
{
	struct options o = defaults();
	pair_open(a, b, o, &aa, &ba);
	for (uint64_t i = 0; i < 5; i++)
		end_recv(a, one_piece(0, 10 + i, 0, 100));
	check_eq(end_modify(a, IBV_QPS_ERR), 0, "to ERR");
	for (uint64_t i = 0; i < 5; i++) {
		struct ibv_wc w = end_wait(a, RECVS);
		expect(w, IBV_WC_WR_FLUSH_ERR, 10 + i, "a posted receive");
		check_eq(w.qp_num, aa.qpn, "a flushed receive's qp_num");
	}
	check_eq(end_recv(a, one_piece(0, 20, 0, 100)), 0, "ibv_post_recv in ERR");
	expect(end_wait(a, RECVS), IBV_WC_WR_FLUSH_ERR, 20, "a receive posted in ERR");
	struct request s = one_piece(IBV_WR_SEND, 21, 0, 100);
	s.flags = 0;
	check_eq(end_send(a, s), 0, "ibv_post_send in ERR");
	expect(end_wait(a, SENDS), IBV_WC_WR_FLUSH_ERR, 21, "an unsignaled request posted in ERR");
	/* RESET discards posted requests and completions. */
	end_recv(a, one_piece(0, 30, 0, 100));
	check_eq(end_modify(a, IBV_QPS_RESET), 0, "to RESET");
	struct ibv_wc w;
	if (end_try(a, RECVS, &w, QUIET_US))
		check(w.wr_id == 30 && w.status == IBV_WC_WR_FLUSH_ERR, "at most the flushed receive is left after RESET");
	check_eq(end_send(a, s), EINVAL, "ibv_post_send in RESET");
	check_eq(end_recv(a, one_piece(0, 31, 0, 100)), EINVAL, "ibv_post_recv in RESET");
	pair_close(a, b);

	/* Requests behind a request that cannot proceed. */
	pair_open(a, b, o, &aa, &ba);
	for (uint64_t i = 0; i < 4; i++) {
		s = one_piece(IBV_WR_SEND, i, 0, 100);
		s.flags = 0;
		end_send(a, s);
	}
	check_eq(end_modify(a, IBV_QPS_ERR), 0, "to ERR with requests waiting for a receive");
	for (uint64_t i = 0; i < 4; i++) {
		w = end_wait(a, SENDS);
		check(w.wr_id == i && w.status != IBV_WC_SUCCESS, "an unsignaled request ends with an error: %s, id %llu", ibv_wc_status_str(w.status),
		      (unsigned long long)w.wr_id);
	}
	pair_close(a, b);

	/* A receive queue shared by several QPs is not flushed. */
	o.srq = 1;
	pair_open(a, b, o, &aa, &ba);
	end_recv(a, one_piece(0, 40, 0, 100));
	check_eq(end_modify(a, IBV_QPS_ERR), 0, "a QP with an SRQ to ERR");
	check(!end_try(a, RECVS, &w, QUIET_US), "the SRQ keeps its receives");
	check_eq(end_async(a), IBV_EVENT_QP_LAST_WQE_REACHED, "the event of a QP with an SRQ in ERR");
	pair_close(a, b);
}

static void gone(void)
{
	struct options o = defaults();
	/* Between hosts only a timeout detects failures, and each case waits for its end. */
	if (hosts_differ())
		o.timeout = 14;
	struct options killed = o;
	killed.retry = hosts_differ() ? 2 : 7;
	o.retry = 1;
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	for (int k = 0; k < 4; k++) {
		pair_open(a, b, o, &aa, &ba);
		end_destroy_qp(b);
		end_fill(b, 0, 64, 2);
		end_send(a, rdma(ops[k], 1, 8, ba.addr, ba.rkey));
		expect(end_wait(a, SENDS), IBV_WC_RETRY_EXC_ERR, 1, "the peer's QP is destroyed");
		check_eq(end_state(a), IBV_QPS_ERR, "the peer's QP is destroyed: state");
		check(end_verify(b, 0, 64, 2) < 0, "the peer's QP is destroyed: its memory is unchanged");
		pair_close(a, b);
	}
	for (int k = 0; k < 4; k++) {
		pair_open(a, b, o, &aa, &ba);
		end_modify(b, IBV_QPS_ERR);
		end_send(a, rdma(ops[k], 1, 8, ba.addr, ba.rkey));
		expect(end_wait(a, SENDS), IBV_WC_RETRY_EXC_ERR, 1, "the peer's QP is in ERR");
		pair_close(a, b);
	}
	/* A peer QP in INIT does not respond, so the requester exhausts its retries. */
	aa = end_open(a, o);
	ba = end_open(b, o);
	end_connect(a, ba);
	end_send(a, rdma(IBV_WR_RDMA_WRITE, 1, 8, ba.addr, ba.rkey));
	expect(end_wait(a, SENDS), IBV_WC_RETRY_EXC_ERR, 1, "the peer's QP is in INIT");
	pair_close(a, b);
	/* A QP number without a QP. */
	aa = end_open(a, o);
	struct address nobody = aa;
	nobody.qpn = aa.qpn ^ 0x3f;
	end_connect(a, nobody);
	end_send(a, rdma(IBV_WR_RDMA_WRITE, 1, 8, aa.addr, aa.rkey));
	expect(end_wait(a, SENDS), IBV_WC_RETRY_EXC_ERR, 1, "there is no such QP");
	end_close(a);
	if (!two)
		return;
	/* A killed peer: pending requests fail, and later requests too. */
	for (int k = 0; k < 4; k++) {
		struct end *c = end_new(0), *d = end_new(1);
		struct address ca, da;
		pair_open(c, d, killed, &ca, &da);
		end_recv(c, one_piece(0, 7, 0, 100));
		if (k == 0)
			end_send(c, one_piece(IBV_WR_SEND, 1, 0, 100)); /* waits for a receive */
		end_kill(d);
		if (k)
			end_send(c, rdma(ops[k], 1, 8, da.addr, da.rkey));
		expect(end_wait(c, SENDS), IBV_WC_RETRY_EXC_ERR, 1, k ? "a request to a killed peer" : "a request that waited for a peer that was killed");
		expect(end_wait(c, RECVS), IBV_WC_WR_FLUSH_ERR, 7, "a receive from a killed peer");
		end_close(c);
		end_free(c);
	}
}

static void refused(void)
{
	struct options o = defaults();
	static const enum ibv_wr_opcode not_uc[] = { IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP };
	static const enum ibv_wr_opcode not_ud[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
						     IBV_WR_ATOMIC_CMP_AND_SWP };
	int bad;
	struct request r;
	o.type = IBV_QPT_UC;
	pair_open(a, b, o, &aa, &ba);
	for (int i = 0; i < 3; i++) {
		r = rdma(not_uc[i], 1, 8, ba.addr, ba.rkey);
		check_eq(end_send_list(a, &r, 1, &bad), EINVAL, "opcode %d on UC", not_uc[i]);
		check_eq(bad, 0, "opcode %d on UC: bad_wr", not_uc[i]);
	}
	check_eq(end_state(a), IBV_QPS_RTS, "a refused request leaves the state alone");
	pair_close(a, b);
	o.type = IBV_QPT_UD;
	pair_open(a, b, o, &aa, &ba);
	for (int i = 0; i < 5; i++) {
		r = rdma(not_ud[i], 1, 8, ba.addr, ba.rkey);
		r.qpn = ba.qpn;
		check_eq(end_send_list(a, &r, 1, &bad), EINVAL, "opcode %d on UD", not_ud[i]);
		check_eq(bad, 0, "opcode %d on UD: bad_wr", not_ud[i]);
	}
	pair_close(a, b);
	o = defaults();
	aa = end_open(a, o);
	r = one_piece(IBV_WR_SEND, 1, 0, 8);
	check_eq(end_send(a, r), EINVAL, "ibv_post_send in INIT");
	check_eq(end_recv(a, one_piece(0, 1, 0, 8)), 0, "ibv_post_recv in INIT");
	end_close(a);
	pair_open(a, b, o, &aa, &ba);
	r = one_piece(IBV_WR_SEND, 1, 0, aa.max_inline + 1);
	r.flags |= IBV_SEND_INLINE;
	int err = end_send(a, r);
	check(err == EINVAL || err == ENOMEM, "more inline than the queue takes is refused (%d)", err);
	pair_close(a, b);
}

/*
 * A process dies with a long message posted that waits for a receive, and a short message behind
 * it. If the long message is lost with the process's memory, the short message must not be
 * received: RC skips no message.
 */
static void died_with_a_message(void)
{
	struct end *c = end_new(0), *d = end_new(1);
	struct address ca, da;
	struct request r[2] = { one_piece(IBV_WR_SEND, 1, 0, 14599), one_piece(IBV_WR_SEND, 2, 0, 8) };
	struct options o = defaults();
	int bad;
	o.rnr_retry = 7;
	pair_open(c, d, o, &ca, &da);
	check_eq(end_send_list(d, r, 2, &bad), 0, "two messages that find no receive");
	end_kill(d);
	for (uint64_t n = 0; n < 2; n++)
		check_eq(end_recv(c, one_piece(0, 10 + n, n * 20000, 20000)), 0, "receive %d", (int)n);
	struct ibv_wc w = end_wait(c, RECVS);
	/* With bounce buffers, which outlive their sender, both messages arrive. */
	enum ibv_wc_status status = w.status == IBV_WC_SUCCESS && w.byte_len == 14599 ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR;
	expect(w, status, 10, "a receive after its sender died with the message");
	expect(end_wait(c, RECVS), status, 11, "a receive after that");
	end_close(c);
	end_free(c);
}

int main(int argc, char **argv)
{
	two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	rnr();
	lengths();
	lengths_unreliable();
	lengths_of_datagrams();
	parts_of_receives();
	remote_access();
	write_with_immediate();
	local_protection();
	flush();
	gone();
	refused();
	/* A receiver on another host does not learn of the sender's death. */
	if (two && !hosts_differ())
		died_with_a_message();
	end_free(b);
	end_free(a);
	return finish();
}
