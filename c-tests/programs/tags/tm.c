/*
 * Tag matching: creation, each kind of message, and each kind of completion with all fields, on
 * each data path. ibv_create_srq_ex(3), ibv_post_srq_ops(3), ibv_create_cq_ex(3).
 *
 *   tm MODE one|two
 *
 * Map of this file: mode_calls checks creation, limits and refused operations; mode_eager checks
 * eager messages and the choice of an entry. mode_rendezvous checks READ, data and FIN. mode_events
 * checks completion events of a CQ that the program does not poll; mode_unexpected checks messages
 * without an entry, and the SRQ limit. send_tag, got_entry and got_whole serve mode_sync, which
 * checks the unexpected count; renew, failed and still_matches serve mode_errors, which checks
 * failing messages. mode_kill kills a peer whose message waits. main starts two peers, in other
 * processes for "two", and runs the mode that the first argument names.
 */
#include "matcher.h"

static struct matcher t;

/* ---- limits and errors of the calls ---- */

static struct ibv_srq_init_attr_ex full_attr(void)
{
	return (struct ibv_srq_init_attr_ex){
		.attr = { .max_wr = 10, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
		.srq_type = IBV_SRQT_TM,
		.pd = t.pd,
		.cq = ibv_cq_ex_to_cq(t.cq),
		.tm_cap = { .max_num_tags = 4, .max_ops = 3 },
	};
}

static void refused(struct ibv_srq_init_attr_ex a, int wanted, const char *what)
{
	errno = 0;
	struct ibv_srq *srq = ibv_create_srq_ex(t.ctx, &a);
	check(!srq && errno == wanted, "%s: %s", what, srq ? "created" : strerror(errno));
}

static void mode_calls(void)
{
	struct tm_options o = tm_defaults();
	tm_open(&t, &o);
	struct ibv_device_attr_ex dev;
	check_eq(ibv_query_device_ex(t.ctx, NULL, &dev), 0, "ibv_query_device_ex");
	const struct ibv_tm_caps *caps = &dev.tm_caps;
	check_eq(caps->flags, IBV_TM_CAP_RC, "tm_caps.flags");
	check(caps->max_num_tags >= 1024 && caps->max_ops >= 1024 && caps->max_sge >= 1 && caps->max_rndv_hdr_size >= HEADERS,
	      "tm_caps: %u tags, %u operations, %u SGEs, %u bytes of headers", caps->max_num_tags, caps->max_ops, caps->max_sge, caps->max_rndv_hdr_size);

	/* Creation with a missing or invalid attribute fails. */
	struct ibv_srq_init_attr_ex a = full_attr();
	for (unsigned bit = IBV_SRQ_INIT_ATTR_PD; bit <= IBV_SRQ_INIT_ATTR_TM; bit <<= 1) {
		if (bit == IBV_SRQ_INIT_ATTR_XRCD)
			continue;
		a = full_attr();
		a.comp_mask &= ~bit;
		refused(a, EINVAL, bit == IBV_SRQ_INIT_ATTR_PD ? "no PD" : bit == IBV_SRQ_INIT_ATTR_CQ ? "no CQ" : "no TM");
	}
	a = full_attr();
	a.tm_cap.max_num_tags = 0;
	refused(a, EINVAL, "no tags");
	a.tm_cap.max_num_tags = caps->max_num_tags + 1;
	refused(a, EINVAL, "more tags than the device has");
	a = full_attr();
	a.tm_cap.max_ops = caps->max_ops + 1;
	refused(a, EINVAL, "more operations than the device has");
	a = full_attr();
	a.comp_mask |= IBV_SRQ_INIT_ATTR_RESERVED;
	refused(a, EOPNOTSUPP, "an unknown bit of the mask");

	/* The created SRQ has the requested attributes. */
	a = full_attr();
	a.srq_context = &a;
	struct ibv_srq *srq = ibv_create_srq_ex(t.ctx, &a);
	if (!srq)
		die("ibv_create_srq_ex: %s", strerror(errno));
	check(a.attr.max_wr >= 10 && a.attr.max_sge >= 1, "the size is at least what was asked for");
	check(srq->context == t.ctx && srq->pd == t.pd && srq->srq_context == &a, "the fields of the SRQ");
	struct ibv_qp_init_attr qa = { .send_cq = ibv_cq_ex_to_cq(t.cq), .recv_cq = ibv_cq_ex_to_cq(t.cq), .srq = srq, .qp_type = IBV_QPT_UD };
	errno = 0;
	check(!ibv_create_qp(t.pd, &qa) && errno == EINVAL, "a UD QP with it: %s", strerror(errno));
	check_eq(ibv_destroy_cq(ibv_cq_ex_to_cq(t.cq)), EBUSY, "destroying the CQ of an SRQ");

	/* Operations. */
	struct ibv_srq *real = t.srq;
	t.srq = srq;
	struct ibv_sge sge[40];
	for (int i = 0; i < 40; i++)
		sge[i] = (struct ibv_sge){ (uintptr_t)t.buf + (unsigned)i * 8, 8, t.mr->lkey };
	struct ibv_ops_wr w[4], *bad;
	memset(w, 0, sizeof w);
	w[0].opcode = 3;
	check_eq(tm_op(&t, &w[0]), EINVAL, "an opcode that is none");
	w[0].opcode = IBV_WR_TAG_ADD;
	w[0].tm.add.sg_list = sge;
	w[0].tm.add.num_sge = (int)caps->max_sge + 1;
	check_eq(tm_op(&t, &w[0]), EINVAL, "more SGEs than max_sge");
	w[0].tm.add.num_sge = -1;
	check_eq(tm_op(&t, &w[0]), EINVAL, "fewer than no SGEs");
	w[0].opcode = IBV_WR_TAG_DEL;
	w[0].tm.handle = 0x1234567;
	check_eq(tm_op(&t, &w[0]), EINVAL, "a handle that was never given out");
	tm_quiet(&t, "of refused operations");

	/* A list: operations before the first invalid one stay in effect. */
	for (int i = 0; i < 4; i++) {
		w[i] = (struct ibv_ops_wr){ .wr_id = 100u + (unsigned)i, .next = i < 3 ? &w[i + 1] : NULL, .opcode = IBV_WR_TAG_ADD, .flags = IBV_OPS_SIGNALED };
		w[i].tm.add.tag = (unsigned)i;
		w[i].tm.add.mask = EXACT;
	}
	w[2].opcode = 77;
	bad = NULL;
	check_eq(ibv_post_srq_ops(srq, w, &bad), EINVAL, "a list with a bad element");
	check(bad == &w[2], "bad_wr is the bad element");
	tm_expect(&t, seen_op(100, IBV_WC_TM_ADD, 0), "the first of the list");
	tm_expect(&t, seen_op(101, IBV_WC_TM_ADD, 0), "the second of the list");
	tm_quiet(&t, "of what is behind the bad element");
	check(w[0].tm.handle != w[1].tm.handle, "two entries, two handles");

	/* The tag list is full. */
	w[2].opcode = IBV_WR_TAG_ADD;
	w[2].flags = w[3].flags = 0;
	check_eq(ibv_post_srq_ops(srq, &w[2], &bad), 0, "entries without SGEs, not signaled");
	tm_quiet(&t, "of unsignaled operations");
	struct ibv_ops_wr more = { .opcode = IBV_WR_TAG_ADD };
	check_eq(tm_op(&t, &more), ENOMEM, "one more entry than max_num_tags");
	check_eq(tm_del(&t, 5, w[0].tm.handle, IBV_OPS_SIGNALED), 0, "removing one");
	tm_expect(&t, seen_op(5, IBV_WC_TM_DEL, 0), "the completion of the removal");
	check_eq(tm_op(&t, &more), 0, "there is room for another");
	check_eq(tm_del(&t, 6, w[0].tm.handle, IBV_OPS_SIGNALED), 0, "removing the same one again");
	struct seen err = seen_op(6, IBV_WC_TM_DEL, 0);
	err.status = IBV_WC_TM_ERR;
	tm_expect(&t, err, "a stale handle completes with IBV_WC_TM_ERR");
	check_eq(tm_del(&t, 7, w[0].tm.handle, 0), 0, "and so quietly when it is not signaled");
	tm_quiet(&t, "of an unsignaled removal");

	/* Operations whose completions nobody polls. */
	for (unsigned i = 0; i < 3; i++)
		tm_sync(&t, 20 + i, 0, IBV_OPS_SIGNALED);
	struct ibv_ops_wr sync = { .wr_id = 23, .opcode = IBV_WR_TAG_SYNC, .flags = IBV_OPS_SIGNALED };
	check_eq(tm_op(&t, &sync), ENOMEM, "more signaled operations than max_ops outstanding");
	tm_expect(&t, seen_op(20, IBV_WC_TM_SYNC, 0), "the first of them");
	check_eq(tm_op(&t, &sync), 0, "one more when one was polled");
	for (unsigned i = 21; i < 24; i++)
		tm_expect(&t, seen_op(i, IBV_WC_TM_SYNC, 0), "operation %u", i);
	t.srq = real;
	check_eq(ibv_destroy_srq(srq), 0, "ibv_destroy_srq with entries in its list");

	/* A basic SRQ by the same call knows no tags. */
	a = full_attr();
	a.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
	a.srq_type = IBV_SRQT_BASIC;
	srq = ibv_create_srq_ex(t.ctx, &a);
	if (!srq)
		die("a basic SRQ: %s", strerror(errno));
	memset(w, 0, sizeof w);
	bad = NULL;
	check_eq(ibv_post_srq_ops(srq, w, &bad), EINVAL, "operations on a basic SRQ");
	check(bad == w, "bad_wr is the first");
	check_eq(ibv_destroy_srq(srq), 0, "ibv_destroy_srq");
	check_eq(ibv_destroy_srq(t.srq), EBUSY, "destroying an SRQ that QPs use");
	tm_close(&t);
}

/* ---- eager ---- */

static const uint32_t sizes[] = { 0, 1, 16, 31, 32, 33, 48, 100, 4080, 8176, 8177, 16368, 16369, 100000, 1000003 };
enum { SIZES = sizeof sizes / sizeof *sizes };

static void mode_eager(void)
{
	struct tm_options o = tm_defaults();
	o.peers = 2;
	tm_open(&t, &o);
	for (int n = 0; n < 2 * SIZES; n++) {
		struct message m = { .opcode = IBV_TMH_EAGER, .tag = 0x1122334455667700ull + (unsigned)n, .app_ctx = 0xa0b0c000u + (unsigned)n, .len = sizes[n / 2],
				     .seed = (uint32_t)n, .with_imm = n % 3 == 0, .imm = 0xfeed0000u + (unsigned)n };
		int from = n % 2;
		/* The entry's buffer has the length of the message, or 77 bytes more. */
		uint32_t room = m.len + (n % 4 < 2 ? 0 : 77);
		memset(t.buf, 0, m.len + 200);
		tm_add(&t, 1000u + (unsigned)n, m.tag, EXACT, 100, room, IBV_OPS_SIGNALED, 0);
		tm_expect(&t, seen_op(~(1000ull + (unsigned)n), IBV_WC_TM_ADD, 0), "%u bytes: added", m.len);
		tm_send(&t, from, &m, 1);
		tm_expect(&t, seen_eager(&t, from, 1000u + (unsigned)n, &m), "%u bytes%s: the completion", m.len, m.with_imm ? " with immediate" : "");
		check(verify(t.buf + 100, m.len, m.seed) < 0, "%u bytes: the payload, without header", m.len);
		unsigned char zeros[100] = { 0 };
		check(!memcmp(t.buf, zeros, 100) && !memcmp(t.buf + 100 + m.len, zeros, 100), "%u bytes: nothing beside it", m.len);
		tm_sent(&t, from, 1);
	}
	/* A list of several ranges. */
	struct ibv_sge sge[3] = { { (uintptr_t)t.buf, 10, t.mr->lkey }, { (uintptr_t)t.buf + 100, 0, t.mr->lkey }, { (uintptr_t)t.buf + 200, 3000, t.mr->lkey } };
	struct ibv_ops_wr wr = { .opcode = IBV_WR_TAG_ADD };
	wr.tm.add.recv_wr_id = 1;
	wr.tm.add.sg_list = sge;
	wr.tm.add.num_sge = 3;
	wr.tm.add.tag = 9;
	wr.tm.add.mask = EXACT;
	check_eq(tm_op(&t, &wr), 0, "an entry with three SGEs");
	struct message m = { .opcode = IBV_TMH_EAGER, .tag = 9, .len = 2010, .seed = 4 };
	tm_send(&t, 0, &m, 2);
	tm_expect(&t, seen_eager(&t, 0, 1, &m), "a message over three SGEs");
	unsigned char whole[2010];
	memcpy(whole, t.buf, 10);
	memcpy(whole + 10, t.buf + 200, 2000);
	check(verify(whole, 2010, 4) < 0, "its payload");
	tm_sent(&t, 0, 2);
	/* No ranges at all, and a message without payload. */
	wr.tm.add.num_sge = 0;
	wr.tm.add.sg_list = NULL;
	check_eq(tm_op(&t, &wr), 0, "an entry without SGEs");
	m.len = 0;
	tm_send(&t, 1, &m, 3);
	tm_expect(&t, seen_eager(&t, 1, 1, &m), "a message without payload");
	tm_sent(&t, 1, 3);

	/* The oldest entry whose masked tag matches is chosen. */
	struct { uint64_t tag, mask; } entries[] = { { 0x50, EXACT }, { 0x40, 0xf0 }, { 0x41, EXACT }, { 0, 0 }, { 0x41, EXACT }, { 0x4000, 0xff00 }, { 0x41, 0xf0 } };
	uint32_t last = 0;
	for (unsigned i = 0; i < 7; i++)
		last = tm_add(&t, i, entries[i].tag, entries[i].mask, i * 64, 64, 0, 0);
	static const struct { uint64_t tag; unsigned id; } order[] = { { 0x41, 1 }, { 0x41, 2 }, { 0x50, 0 }, { 0x41, 3 }, { 0x41, 4 }, { 0x4041, 5 } };
	for (unsigned i = 0; i < 6; i++) {
		m = (struct message){ .opcode = IBV_TMH_EAGER, .tag = order[i].tag, .len = 40, .seed = i };
		tm_send(&t, (int)i % 2, &m, i);
		tm_expect(&t, seen_eager(&t, (int)i % 2, order[i].id, &m), "tag %#x goes to entry %u", (unsigned)order[i].tag, order[i].id);
		check(verify(t.buf + order[i].id * 64, 40, i) < 0, "into its buffer");
		tm_sent(&t, (int)i % 2, i);
	}
	check_eq(tm_del(&t, 50, last, IBV_OPS_SIGNALED), 0, "removing an entry that nothing can match");
	tm_expect(&t, seen_op(50, IBV_WC_TM_DEL, 0), "it was there");
	tm_quiet(&t, "left");
	tm_close(&t);
}

/* ---- rendezvous ---- */

static void mode_rendezvous(void)
{
	struct tm_options o = tm_defaults();
	o.peers = 2;
	tm_open(&t, &o);
	const uint64_t data = 1 << 20, fins = 3 << 20;
	for (int n = 0; n < 2 * SIZES; n++) {
		int from = n % 2;
		uint32_t len = sizes[n / 2];
		struct message m = { .opcode = IBV_TMH_RNDV, .tag = 0x7000u + (unsigned)n, .app_ctx = 0x1234u + (unsigned)n, .seed = (uint32_t)n,
				     .va = t.his[from].addr + data + (unsigned)n, .rkey = t.his[from].rkey, .rlen = len,
				     /* User data goes along. */
				     .len = n % 3 * 8u };
		end_fill(t.peer[from], data + (unsigned)n, len, 500u + (unsigned)n);
		end_recv(t.peer[from], one_piece(0, 60, fins, HEADERS));
		memset(t.buf, 0, len + 200);
		tm_add(&t, 7, m.tag, EXACT, 100, len + (n % 4 < 2 ? 0 : 50), 0, 0);
		tm_send(&t, from, &m, 8);
		tm_expect(&t, seen_match(&t, from, 7, &m), "rendezvous of %u bytes: matched", len);
		tm_sent(&t, from, 8);
		check(is_fin(&t, from, &m, 60, fins), "rendezvous of %u bytes: FIN", len);
		tm_expect(&t, seen_data(&t, from, 7, &m), "rendezvous of %u bytes: the data", len);
		check(verify(t.buf + 100, len, 500u + (unsigned)n) < 0, "rendezvous of %u bytes: its bytes", len);
		unsigned char zeros[100] = { 0 };
		check(!memcmp(t.buf, zeros, 100) && !memcmp(t.buf + 100 + len, zeros, 50), "rendezvous of %u bytes: nothing beside it", len);
	}
	/* More at a time than the SRQ has requests for: they wait, in order. */
	enum { MANY = 60 };
	for (unsigned i = 0; i < MANY; i++) {
		tm_add(&t, i, i, EXACT, i * 20000, 20000, 0, 0);
		end_recv(t.peer[0], one_piece(0, i, fins + i * HEADERS, HEADERS));
		end_fill(t.peer[0], data + i * 20000, 20000, 900 + i);
	}
	for (unsigned i = 0; i < MANY; i++) {
		struct message m = { .opcode = IBV_TMH_RNDV, .tag = i, .va = t.his[0].addr + data + i * 20000, .rkey = t.his[0].rkey, .rlen = 20000,
				     .offset = i * HEADERS };
		tm_send(&t, 0, &m, i);
	}
	unsigned matched = 0, valid = 0;
	for (unsigned n = 0; n < 2 * MANY; n++) {
		struct seen s = tm_wait(&t);
		unsigned *next = s.flags == IBV_WC_TM_MATCH ? &matched : &valid;
		if (s.status != IBV_WC_SUCCESS || s.wr_id != *next || (next == &valid && (s.flags != IBV_WC_TM_DATA_VALID || s.byte_len != 20000)))
			check(0, "rendezvous %u of many: id %llu, %s", *next, (unsigned long long)s.wr_id, ibv_wc_status_str(s.status));
		if (next == &valid && verify(t.buf + s.wr_id * 20000, 20000, 900 + (unsigned)s.wr_id) >= 0)
			check(0, "rendezvous %llu of many: its bytes", (unsigned long long)s.wr_id);
		if (valid > matched)
			check(0, "data before its match");
		++*next;
	}
	check(matched == MANY && valid == MANY, "%d rendezvous at a time, each in its order", MANY);
	for (unsigned i = 0; i < MANY; i++) {
		struct message m = { .opcode = IBV_TMH_RNDV, .tag = i, .va = t.his[0].addr + data + i * 20000, .rkey = t.his[0].rkey, .rlen = 20000 };
		tm_sent(&t, 0, i);
		if (!is_fin(&t, 0, &m, i, fins + i * HEADERS))
			check(0, "FIN %u", i);
	}

	/* The SRQ cannot complete a rendezvous that is longer than its buffer. */
	struct message m = { .opcode = IBV_TMH_RNDV, .tag = 3, .app_ctx = 4, .va = t.his[0].addr, .rkey = t.his[0].rkey, .rlen = 101 };
	tm_add(&t, 70, 3, EXACT, 0, 100, 0, 0);
	tm_send(&t, 0, &m, 1);
	struct seen s = { .wr_id = 70, .status = IBV_WC_TM_RNDV_INCOMPLETE, .opcode = IBV_WC_TM_RECV, .flags = MATCHED, .byte_len = HEADERS,
			  .qp_num = t.qp[0]->qp_num, .tag = 3, .priv = 4 };
	tm_expect(&t, s, "one byte more than the buffer takes: IBV_WC_TM_RNDV_INCOMPLETE");
	unsigned char want[HEADERS];
	put_headers(&m, want);
	memset(t.buf + 1, 0xee, 3);
	check(!memcmp(t.buf, want, HEADERS), "the buffer has the headers");
	tm_sent(&t, 0, 1);
	tm_quiet(&t, "besides");

	/* A QP in RTR cannot read. */
	check_eq(ibv_destroy_qp(t.qp[1]), 0, "ibv_destroy_qp");
	end_close(t.peer[1]);
	t.his[1] = end_open(t.peer[1], defaults());
	tm_make_qp(&t, 1);
	tm_connect(&t, 1);
	m = (struct message){ .opcode = IBV_TMH_RNDV, .tag = 3, .app_ctx = 4, .va = t.his[1].addr, .rkey = t.his[1].rkey, .rlen = 50 };
	tm_add(&t, 71, 3, EXACT, 0, 100, 0, 0);
	tm_send(&t, 1, &m, 1);
	s.wr_id = 71;
	s.qp_num = t.qp[1]->qp_num;
	tm_expect(&t, s, "a rendezvous on a QP in RTR: IBV_WC_TM_RNDV_INCOMPLETE");
	tm_sent(&t, 1, 1);
	tm_close(&t);
}

/* ---- asleep ---- */

/* Waits for an event, without polling. */
static void event(const char *what)
{
	struct ibv_cq *cq;
	void *context;
	if (!check(readable(t.channel->fd, 10000), "%s: an event", what))
		die("no event");
	if (ibv_get_cq_event(t.channel, &cq, &context) || cq != ibv_cq_ex_to_cq(t.cq))
		die("ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
}

static void arm(int solicited)
{
	if (ibv_req_notify_cq(ibv_cq_ex_to_cq(t.cq), solicited))
		die("ibv_req_notify_cq");
}

/* Without a poll, messages are matched, and the READ and FIN of a rendezvous are sent. */
static void mode_events(void)
{
	struct tm_options o = tm_defaults();
	o.channel = 1;
	tm_open(&t, &o);
	for (unsigned n = 0; n < 20; n++) {
		struct message m = { .opcode = IBV_TMH_EAGER, .tag = n, .len = n * 3000, .seed = n };
		tm_add(&t, n, n, EXACT, 0, 1 << 20, 0, 0);
		arm(0);
		tm_send(&t, 0, &m, 1);
		tm_sent(&t, 0, 1);
		event("eager");
		tm_expect(&t, seen_eager(&t, 0, n, &m), "an eager message");
		m = (struct message){ .opcode = IBV_TMH_RNDV, .tag = n, .va = t.his[0].addr + (1 << 20), .rkey = t.his[0].rkey, .rlen = n * 30000 };
		end_fill(t.peer[0], 1 << 20, m.rlen, n);
		end_recv(t.peer[0], one_piece(0, 60, 3 << 20, HEADERS));
		tm_add(&t, n, n, EXACT, 0, 1 << 20, 0, 0);
		arm(0);
		tm_send(&t, 0, &m, 2);
		tm_sent(&t, 0, 2);
		check(is_fin(&t, 0, &m, 60, 3 << 20), "FIN comes though nobody polls");
		event("rendezvous");
		tm_expect(&t, seen_match(&t, 0, n, &m), "a rendezvous");
		tm_expect(&t, seen_data(&t, 0, n, &m), "its data");
		check(verify(t.buf, m.rlen, n) < 0, "its bytes");
	}
	/* The completion of an operation raises an event, but not for a CQ armed for solicited
	 * completions. */
	arm(1);
	tm_sync(&t, 5, 0, IBV_OPS_SIGNALED);
	check(!readable(t.channel->fd, 30), "an operation is not solicited");
	tm_expect(&t, seen_op(5, IBV_WC_TM_SYNC, 0), "the operation");
	arm(0);
	tm_sync(&t, 6, 0, IBV_OPS_SIGNALED);
	event("an operation");
	tm_expect(&t, seen_op(6, IBV_WC_TM_SYNC, 0), "the operation");
	tm_close(&t);
}

/* ---- unexpected messages ---- */

static void mode_unexpected(void)
{
	struct tm_options o = tm_defaults();
	o.peers = 2;
	tm_open(&t, &o);
	tm_add(&t, 1, 5, EXACT, 0, 64, 0, 0);
	static const struct { uint8_t opcode; uint64_t tag; enum ibv_wc_opcode wc; } kinds[] = {
		{ IBV_TMH_EAGER, 6, IBV_WC_TM_RECV }, { IBV_TMH_RNDV, 6, IBV_WC_TM_RECV },
		{ IBV_TMH_NO_TAG, 5, IBV_WC_TM_NO_TAG }, { IBV_TMH_FIN, 5, IBV_WC_TM_NO_TAG }, { 200, 5, IBV_WC_TM_NO_TAG } };
	unsigned id = 0;
	for (unsigned k = 0; k < 5; k++)
		for (unsigned n = 0; n < 6; n++, id++) {
			uint32_t len = (const uint32_t[]){ 0, 1, 32, 500, 9000, 50000 }[n];
			/* No longer than max_rndv_hdr_size. */
			if (kinds[k].opcode == IBV_TMH_RNDV && len > 500)
				continue;
			struct message m = { .opcode = kinds[k].opcode, .tag = kinds[k].tag, .app_ctx = id, .len = len, .seed = id, .va = 1, .rkey = 2, .rlen = 3,
					     .with_imm = (int)n % 2, .imm = id };
			tm_recv(&t, 300 + id, 4096, 60000);
			tm_send(&t, (int)n % 2, &m, id);
			tm_expect(&t, seen_whole(&t, (int)n % 2, 300 + id, &m, kinds[k].wc), "opcode %u, %u bytes of payload, whole", kinds[k].opcode, len);
			check(is_message(&m, t.buf + 4096), "its bytes");
			tm_sent(&t, (int)n % 2, id);
		}
	/* Too short for a header. */
	for (uint32_t len = 0; len < TMH_BYTES; len += 5) {
		unsigned char bytes[TMH_BYTES] = { IBV_TMH_EAGER };
		tm_recv(&t, 500 + len, 4096, 100);
		end_write(t.peer[0], 0, bytes, sizeof bytes);
		end_send(t.peer[0], one_piece(IBV_WR_SEND, len, 0, len));
		struct seen s = { .wr_id = 500 + len, .opcode = IBV_WC_TM_NO_TAG, .byte_len = len, .qp_num = t.qp[0]->qp_num };
		tm_expect(&t, s, "%u bytes, too few for a header", len);
		tm_sent(&t, 0, len);
	}
	/* Without a receive the message waits for one. */
	struct message m = { .opcode = IBV_TMH_EAGER, .tag = 77, .len = 100, .seed = 1 };
	tm_send(&t, 0, &m, 1);
	tm_quiet(&t, "without a receive");
	tm_recv(&t, 600, 4096, 200);
	tm_expect(&t, seen_whole(&t, 0, 600, &m, IBV_WC_TM_RECV), "a receive lets it go on");
	tm_sent(&t, 0, 1);
	/* The message also continues with a matching entry, if software is in step. So far: 6 eager
	 * messages, 4 rendezvous, and this message. */
	tm_sync(&t, 0, 11, 0);
	tm_send(&t, 0, &m, 2);
	tm_quiet(&t, "without a receive");
	tm_add(&t, 601, 77, EXACT, 8192, 100, 0, 0);
	tm_expect(&t, seen_eager(&t, 0, 601, &m), "an entry lets it go on, too");
	check(verify(t.buf + 8192, 100, 1) < 0, "its payload");
	tm_sent(&t, 0, 2);
	m.tag = 5;
	tm_send(&t, 1, &m, 3);
	struct seen got = tm_wait(&t);
	check(got.status == IBV_WC_LOC_LEN_ERR && got.wr_id == 1, "the entry that was there all the time: %s", ibv_wc_status_str(got.status));

	/* The limit counts receives taken by messages. */
	for (unsigned i = 0; i < 3; i++)
		tm_recv(&t, 700 + i, 4096 * i, 4096);
	struct ibv_srq_attr at = { .srq_limit = 2 };
	check_eq(ibv_modify_srq(t.srq, &at, IBV_SRQ_LIMIT), 0, "ibv_modify_srq with IBV_SRQ_LIMIT");
	m = (struct message){ .opcode = IBV_TMH_NO_TAG, .len = 10 };
	tm_send(&t, 0, &m, 4);
	tm_expect(&t, seen_whole(&t, 0, 700, &m, IBV_WC_TM_NO_TAG), "one of three receives");
	void *element = NULL;
	tm_send(&t, 0, &m, 5);
	tm_expect(&t, seen_whole(&t, 0, 701, &m, IBV_WC_TM_NO_TAG), "two of three receives");
	int event;
	while ((event = async_event(t.ctx, &element)) == IBV_EVENT_QP_REQ_ERR || event == IBV_EVENT_QP_LAST_WQE_REACHED)
		;
	check(event == IBV_EVENT_SRQ_LIMIT_REACHED && element == t.srq, "the limit event");
	tm_sent(&t, 0, 4);
	tm_sent(&t, 0, 5);
	tm_close(&t);
}

/* ---- the count of unexpected messages ---- */

static void send_tag(int from, uint64_t tag, uint64_t id)
{
	struct message m = { .opcode = IBV_TMH_EAGER, .tag = tag, .len = 20, .seed = (uint32_t)tag };
	tm_send(&t, from, &m, id);
}

static void got_entry(int from, uint64_t id, uint64_t tag, const char *what)
{
	struct message m = { .opcode = IBV_TMH_EAGER, .tag = tag, .len = 20 };
	tm_expect(&t, seen_eager(&t, from, id, &m), "%s", what);
	tm_sent(&t, from, tag);
}

static void got_whole(int from, uint64_t id, uint64_t tag, const char *what)
{
	struct message m = { .opcode = IBV_TMH_EAGER, .tag = tag, .len = 20 };
	tm_expect(&t, seen_whole(&t, from, id, &m, IBV_WC_TM_RECV), "%s", what);
	tm_sent(&t, from, tag);
}

static void mode_sync(void)
{
	struct tm_options o = tm_defaults();
	o.peers = 2;
	tm_open(&t, &o);
	const unsigned sig = IBV_OPS_SIGNALED, sync = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC;
	for (unsigned i = 0; i < 20; i++)
		tm_recv(&t, 900 + i, 1024 * i, 1024);
	tm_add(&t, 1, 10, EXACT, 0, 64, sig, 0);
	tm_expect(&t, seen_op(~1ull, IBV_WC_TM_ADD, 0), "in step: no flag");
	send_tag(0, 11, 11);
	got_whole(0, 900, 11, "the first unexpected message");
	/* Software posts this entry before it has reported the message. */
	tm_add(&t, 2, 11, EXACT, 64, 64, sig, 0);
	tm_expect(&t, seen_op(~2ull, IBV_WC_TM_ADD, IBV_WC_TM_SYNC_REQ), "out of step: IBV_WC_TM_SYNC_REQ");
	uint32_t third = tm_add(&t, 3, 12, EXACT, 64, 64, sig, 0);
	tm_expect(&t, seen_op(~3ull, IBV_WC_TM_ADD, IBV_WC_TM_SYNC_REQ), "and again");
	send_tag(1, 11, 11);
	got_whole(1, 901, 11, "an entry added out of step matches nothing");
	send_tag(1, 10, 10);
	got_entry(1, 1, 10, "one that was there before still does");
	check_eq(tm_del(&t, 4, third, sig), 0, "removing an entry that waits");
	tm_expect(&t, seen_op(4, IBV_WC_TM_DEL, IBV_WC_TM_SYNC_REQ), "its completion, out of step");
	tm_sync(&t, 5, 1, sig);
	tm_expect(&t, seen_op(5, IBV_WC_TM_SYNC, IBV_WC_TM_SYNC_REQ), "one of two reported: still out of step");
	send_tag(0, 11, 11);
	got_whole(0, 902, 11, "and nothing matches");
	/* The count of an operation without the flag does not count. */
	tm_add(&t, 6, 13, EXACT, 128, 64, sig, 3);
	tm_expect(&t, seen_op(~6ull, IBV_WC_TM_ADD, IBV_WC_TM_SYNC_REQ), "unexpected_cnt without IBV_OPS_TM_SYNC");
	send_tag(0, 13, 13);
	got_whole(0, 903, 13, "does not count");
	/* With IBV_OPS_TM_SYNC the count of any operation is valid. */
	tm_add(&t, 7, 11, EXACT, 192, 64, sync, 4);
	tm_expect(&t, seen_op(~7ull, IBV_WC_TM_ADD, 0), "with IBV_OPS_TM_SYNC on an ADD");
	send_tag(0, 13, 13);
	got_entry(0, 6, 13, "what waited matches");
	send_tag(1, 11, 11);
	got_entry(1, 2, 11, "in the order of addition");
	send_tag(0, 11, 11);
	got_entry(0, 7, 11, "to the last");
	send_tag(0, 12, 12);
	got_whole(0, 904, 12, "what was removed while it waited is gone");
	uint32_t handle = tm_add(&t, 8, 14, EXACT, 0, 64, 0, 0);
	struct ibv_ops_wr wr = { .wr_id = 9, .opcode = IBV_WR_TAG_DEL, .flags = (int)sync };
	wr.tm.handle = handle;
	wr.tm.unexpected_cnt = 5;
	check_eq(tm_op(&t, &wr), 0, "IBV_OPS_TM_SYNC on a DEL");
	tm_expect(&t, seen_op(9, IBV_WC_TM_DEL, 0), "is in step");
	/* NO_TAG is not counted. */
	struct message no = { .opcode = IBV_TMH_NO_TAG, .tag = 20 };
	tm_send(&t, 0, &no, 1);
	tm_expect(&t, seen_whole(&t, 0, 905, &no, IBV_WC_TM_NO_TAG), "NO_TAG");
	tm_sent(&t, 0, 1);
	tm_add(&t, 10, 15, EXACT, 0, 64, sig, 0);
	tm_expect(&t, seen_op(~10ull, IBV_WC_TM_ADD, 0), "NO_TAG leaves it in step");
	send_tag(1, 15, 15);
	got_entry(1, 10, 15, "and matching");
	/* The count of unexpected messages is modulo 2^16. */
	tm_sync(&t, 11, 5 + 3 * 65536, sig);
	tm_expect(&t, seen_op(11, IBV_WC_TM_SYNC, 0), "the count is modulo 2^16");
	tm_quiet(&t, "left");
	tm_close(&t);
}

/* ---- failures ---- */

/* Replaces a failed QP and its end. */
static void renew(int i)
{
	if (t.qp[i])
		check_eq(ibv_destroy_qp(t.qp[i]), 0, "ibv_destroy_qp");
	end_close(t.peer[i]);
	struct options e = defaults();
	/* As short as a host allows, because some peers are gone. */
	e.timeout = hosts_differ() ? 14 : 5;
	t.his[i] = end_open(t.peer[i], e);
	tm_make_qp(&t, i);
	tm_connect(&t, i);
	tm_to_rts(&t, i);
}

static void failed(int i, uint64_t id, enum ibv_wc_status status, enum ibv_wc_status there, const char *what)
{
	struct seen s = tm_wait(&t);
	check(s.wr_id == id && s.status == status && s.qp_num == t.qp[i]->qp_num, "%s: %s, id %llu", what, ibv_wc_status_str(s.status),
	      (unsigned long long)s.wr_id);
	if (there != IBV_WC_SUCCESS) {
		struct ibv_wc wc = end_wait(t.peer[i], SENDS);
		check(wc.status == there, "%s: the sender's: %s", what, ibv_wc_status_str(wc.status));
	}
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr ia;
	uint64_t until = now_us() + WAIT_US;
	do
		ibv_query_qp(t.qp[i], &a, IBV_QP_STATE, &ia);
	while (a.qp_state != IBV_QPS_ERR && now_us() < until);
	check_eq(a.qp_state, IBV_QPS_ERR, "%s: the QP", what);
}

static void still_matches(int i)
{
	struct message m = { .opcode = IBV_TMH_EAGER, .tag = 4242, .len = 30, .seed = 3 };
	tm_add(&t, 4242, 4242, EXACT, 0, 30, 0, 0);
	tm_send(&t, i, &m, 9);
	tm_expect(&t, seen_eager(&t, i, 4242, &m), "another QP goes on");
	tm_sent(&t, i, 9);
}

static void mode_errors(void)
{
	struct tm_options o = tm_defaults();
	o.peers = 2;
	tm_open(&t, &o);
	struct message m = { .opcode = IBV_TMH_EAGER, .tag = 1, .len = 101 };
	for (unsigned len = 101; len <= 40001; len += 39900) {
		m.len = len;
		tm_add(&t, 1, 1, EXACT, 0, len - 1, 0, 0);
		tm_send(&t, 0, &m, 1);
		failed(0, 1, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR, "an eager message longer than its entry");
		still_matches(1);
		renew(0);
	}
	/* Longer than the SRQ's receive; the message does not count as unexpected. */
	m = (struct message){ .opcode = IBV_TMH_EAGER, .tag = 2, .len = 101 };
	tm_recv(&t, 2, 0, 100);
	tm_send(&t, 0, &m, 1);
	failed(0, 2, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR, "an unexpected message longer than its receive");
	still_matches(1);
	renew(0);
	/* An entry has an invalid lkey. */
	struct ibv_sge sge = { (uintptr_t)t.buf, 100, t.mr->lkey ^ 0x5000 };
	struct ibv_ops_wr wr = { .opcode = IBV_WR_TAG_ADD };
	wr.tm.add.recv_wr_id = 3;
	wr.tm.add.sg_list = &sge;
	wr.tm.add.num_sge = 1;
	wr.tm.add.tag = 3;
	wr.tm.add.mask = EXACT;
	check_eq(tm_op(&t, &wr), 0, "an entry with a bad lkey");
	m = (struct message){ .opcode = IBV_TMH_EAGER, .tag = 3, .len = 10 };
	tm_send(&t, 0, &m, 1);
	failed(0, 3, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR, "an entry with a bad lkey");
	renew(0);
	/* The same for a rendezvous: first the match is reported, then the failure. */
	check_eq(tm_op(&t, &wr), 0, "an entry with a bad lkey");
	m = (struct message){ .opcode = IBV_TMH_RNDV, .tag = 3, .va = t.his[0].addr, .rkey = t.his[0].rkey, .rlen = 10 };
	tm_send(&t, 0, &m, 1);
	tm_expect(&t, seen_match(&t, 0, 3, &m), "a rendezvous to a bad lkey: matched");
	tm_sent(&t, 0, 1);
	failed(0, 3, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS, "a rendezvous to a bad lkey");
	renew(0);
	/* An invalid rkey. */
	m = (struct message){ .opcode = IBV_TMH_RNDV, .tag = 4, .va = t.his[0].addr, .rkey = t.his[0].rkey ^ 0x4000, .rlen = 10 };
	tm_add(&t, 4, 4, EXACT, 0, 100, 0, 0);
	tm_send(&t, 0, &m, 1);
	tm_expect(&t, seen_match(&t, 0, 4, &m), "a rendezvous with a bad rkey: matched");
	/* On a cable the READ may precede the acknowledgement. If the READ is refused, the QP fails
	 * together with its sends. */
	struct ibv_wc sent = end_wait(t.peer[0], SENDS);
	check(sent.wr_id == 1 && (sent.status == IBV_WC_SUCCESS || (hosts_differ() && sent.status == IBV_WC_WR_FLUSH_ERR)),
	      "a rendezvous with a bad rkey: the message was sent: %s", ibv_wc_status_str(sent.status));
	failed(0, 4, IBV_WC_REM_ACCESS_ERR, IBV_WC_SUCCESS, "a rendezvous with a bad rkey");
	still_matches(1);
	renew(0);
	/* Headers too long: the device said how long they may be. */
	struct ibv_device_attr_ex dev;
	ibv_query_device_ex(t.ctx, NULL, &dev);
	m = (struct message){ .opcode = IBV_TMH_RNDV, .tag = 5, .va = t.his[0].addr, .rkey = t.his[0].rkey, .rlen = 10, .len = dev.tm_caps.max_rndv_hdr_size - HEADERS + 1 };
	uint32_t handle = tm_add(&t, 5, 5, EXACT, 0, 100, 0, 0);
	tm_send(&t, 0, &m, 1);
	struct ibv_wc wc = end_wait(t.peer[0], SENDS);
	check(wc.status == IBV_WC_REM_INV_REQ_ERR, "a request longer than max_rndv_hdr_size: %s", ibv_wc_status_str(wc.status));
	check_eq(tm_del(&t, 6, handle, IBV_OPS_SIGNALED), 0, "its entry");
	tm_expect(&t, seen_op(6, IBV_WC_TM_DEL, 0), "its entry was not taken");
	renew(0);
	/* The QP goes while its peer does not take FIN: the receive completes all the same. */
	m = (struct message){ .opcode = IBV_TMH_RNDV, .tag = 6, .va = t.his[0].addr, .rkey = t.his[0].rkey, .rlen = 10 };
	for (unsigned i = 0; i < 40; i++) {
		tm_add(&t, 60 + i, 6, EXACT, i * 100, 100, 0, 0);
		tm_send(&t, 0, &m, 1);
		tm_expect(&t, seen_match(&t, 0, 60 + i, &m), "a rendezvous without FIN");
		tm_sent(&t, 0, 1);
	}
	tm_quiet(&t, "before FIN is received");
	uint32_t qpn = t.qp[0]->qp_num;
	check_eq(ibv_destroy_qp(t.qp[0]), 0, "ibv_destroy_qp");
	t.qp[0] = NULL;
	unsigned flushed = 0;
	for (unsigned i = 0; i < 40; i++) {
		struct seen s = tm_wait(&t);
		struct seen want = { .wr_id = 60 + i, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_TM_RECV, .qp_num = qpn };
		flushed += tm_same(&s, &want);
		if (!tm_same(&s, &want)) {
			tm_say("is", &s);
			tm_say("should be", &want);
		}
	}
	check_eq(flushed, 40, "destroying the QP completes what was matched");
	still_matches(1);
	renew(0);
	/* In step after all failures: every counted message was reported. */
	tm_add(&t, 99, 99, EXACT, 0, 10, IBV_OPS_SIGNALED, 0);
	tm_expect(&t, seen_op(~99ull, IBV_WC_TM_ADD, 0), "in step");
	tm_close(&t);
}

/* A peer is killed while its message waits: the message keeps no receive and no entry. */
static void mode_kill(void)
{
	struct tm_options o = tm_defaults();
	o.peers = 2;
	tm_open(&t, &o);
	tm_add(&t, 1, 1, EXACT, 0, 2 << 20, 0, 0);
	/* The SRQ has no receive for this message, so the message waits. */
	struct message m = { .opcode = IBV_TMH_EAGER, .tag = 2, .len = 2000000 };
	tm_send(&t, 0, &m, 1);
	tm_quiet(&t, "without a receive");
	end_kill(t.peer[0]);
	still_matches(1);
	tm_recv(&t, 5, 0, 3 << 20);
	struct seen s;
	int came = tm_try(&t, &s, 1500000);
	if (came) {
		check(s.wr_id == 5 && s.status == IBV_WC_SUCCESS, "what had arrived before its sender died");
		tm_sync(&t, 0, 1, 0);
		tm_recv(&t, 5, 0, 3 << 20);
	} else {
		check(1, "what a dead sender offered does not count");
	}
	/* The receive and the entry are still available for messages of another peer. */
	m = (struct message){ .opcode = IBV_TMH_EAGER, .tag = 1, .len = 1000000, .seed = 4 };
	tm_send(&t, 1, &m, 1);
	tm_expect(&t, seen_eager(&t, 1, 1, &m), "the entry goes to another");
	check(verify(t.buf, m.len, m.seed) < 0, "its payload");
	tm_sent(&t, 1, 1);
	m = (struct message){ .opcode = IBV_TMH_NO_TAG, .len = 3000, .seed = 5 };
	tm_send(&t, 1, &m, 2);
	tm_expect(&t, seen_whole(&t, 1, 5, &m, IBV_WC_TM_NO_TAG), "the receive goes to another");
	tm_sent(&t, 1, 2);
	check_eq(ibv_destroy_qp(t.qp[0]), 0, "ibv_destroy_qp");
	end_free(t.peer[0]);
	t.peer[0] = t.peer[1];
	t.his[0] = t.his[1];
	t.qp[0] = t.qp[1];
	t.peers = 1;
	tm_close(&t);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } modes[] = {
		{ "calls", mode_calls }, { "eager", mode_eager }, { "rendezvous", mode_rendezvous }, { "unexpected", mode_unexpected },
		{ "sync", mode_sync }, { "events", mode_events }, { "errors", mode_errors }, { "kill", mode_kill },
	};
	int two = two_processes(argc, argv);
	for (int i = 0; i < MAX_PEERS; i++)
		t.peer[i] = i < 2 ? end_new(two) : NULL;
	for (unsigned i = 0; i < sizeof modes / sizeof *modes; i++)
		if (argc == 3 && !strcmp(argv[1], modes[i].name)) {
			modes[i].run();
			if (modes[i].run != mode_kill)
				end_free(t.peer[0]);
			end_free(t.peer[1]);
			return finish();
		}
	die("usage: tm MODE one|two");
}
