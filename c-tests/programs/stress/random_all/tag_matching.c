/*
 * Tag matching of random_all.c: several QPs send to one SRQ that matches tags. Entries come and go,
 * messages match or not, and removals race with messages. Both sides keep the same list, search it
 * in full, and predict every completion from it.
 *
 * Messages of different QPs race. Each QP therefore has its own tags, in the upper byte, which
 * every mask includes.
 *
 * Map of this file: `struct tm_list` is the model of the tag list; tm_report, tm_take, tm_insert
 * and tm_find change and search the model. The functions tm_plan_* choose random operations and
 * messages, and tm_plan_race a race of both. On the responder, tm_post_receives and tm_do_ops post
 * receives and operations; tm_check_whole and tm_check_match check one completion; tm_arrivals
 * polls all of them. On the requester, tm_post_fins posts receives for FIN; tm_send posts a
 * message; tm_check_fin and tm_answers check FINs and send completions. tm_make and tm_to_ready
 * create and connect the QPs; tm_batch runs one batch on either side; run_tm is the entry of one
 * side.
 */
#include "random_all.h"

enum { TM_LIST = 24, TM_RECVS = 32, TM_MOST = 20000, TM_ROOM = TM_MOST + 64, TM_MSGS = 8, TM_OPS = 6, TM_FINS = 16, TM_TMH = 16, TM_HEADERS = 32 };
#define TM_ENTRY (1ull << 40)
#define TM_OWN 0xff00000000000000ull

struct tm_entry {
	uint64_t tag, mask, id;
	unsigned place;
	int eligible;
};

enum tm_outcome { O_EAGER, O_RENDEZVOUS, O_INCOMPLETE, O_WHOLE, O_RACE };

struct tm_message {
	int q, opcode, with_imm, state;
	uint64_t tag;
	uint32_t ctx, len, rlen, seed, imm;
	enum tm_outcome outcome;
	struct tm_entry entry;
};

struct tm_op {
	enum ibv_ops_wr_opcode opcode;
	int flags, stale, in_step;
	uint32_t seen;
	struct tm_entry entry;
};

struct tm_list {
	/* The list, the same on both sides. */
	struct tm_entry entry[TM_LIST];
	unsigned count, place[TM_LIST], places;
	uint16_t unexpected, reported;
	uint64_t next_id;
	uint32_t next_ctx;
	int any_stale;
	/* State of the responder. */
	uint32_t handle[TM_LIST], stale;
	unsigned char posted[TM_RECVS];
	unsigned receives;
	/* State of the requester: receives for FIN messages. */
	unsigned fins[TM_QPS], fin_next[TM_QPS], fin_done[TM_QPS];
	/* State of the present batch. */
	struct tm_op op[TM_OPS + TM_MSGS];
	struct tm_message m[TM_MSGS];
	unsigned ops, n, late;
};

/* ---- the list ---- */

static int tm_in_step(const struct tm_list *t) { return t->unexpected == t->reported; }

static void tm_report(struct tm_list *t, uint16_t seen)
{
	t->reported = seen;
	for (unsigned i = 0; tm_in_step(t) && i < t->count; i++)
		t->entry[i].eligible = 1;
}

static struct tm_entry tm_take(struct tm_list *t, unsigned at)
{
	struct tm_entry e = t->entry[at];
	memmove(&t->entry[at], &t->entry[at + 1], (--t->count - at) * sizeof e);
	t->place[t->places++] = e.place;
	t->any_stale = 1;
	return e;
}

static struct tm_entry tm_insert(struct tm_list *t, uint64_t tag, uint64_t mask)
{
	struct tm_entry e = { .tag = tag & mask, .mask = mask, .id = TM_ENTRY | ++t->next_id, .place = t->place[--t->places], .eligible = tm_in_step(t) };
	return t->entry[t->count++] = e;
}

static int tm_find(const struct tm_list *t, uint64_t tag)
{
	for (unsigned i = 0; i < t->count; i++)
		if (t->entry[i].eligible && (tag & t->entry[i].mask) == t->entry[i].tag)
			return (int)i;
	return -1;
}

/* ---- planning ---- */

static uint64_t tm_some_tag(uint64_t *g, int q) { return (uint64_t)(q + 1) << 56 | below(g, 3) | below(g, 3) << 4 | below(g, 3) << 8; }

static void tm_plan_op(struct side *s, struct tm_list *t)
{
	static const uint64_t masks[] = { UINT64_MAX, UINT64_MAX, TM_OWN | 0xff, TM_OWN | 0xf0, TM_OWN | 0xf00, TM_OWN };
	uint64_t *g = &s->plan.rng;
	struct tm_op *o = &t->op[t->ops];
	uint32_t kind = below(g, 8);
	*o = (struct tm_op){ .opcode = kind < 5 ? IBV_WR_TAG_ADD : kind < 7 ? IBV_WR_TAG_DEL : IBV_WR_TAG_SYNC, .seen = t->unexpected };
	o->flags = (below(g, 2) ? IBV_OPS_SIGNALED : 0) | (below(g, 3) == 0 || kind == 7 ? IBV_OPS_TM_SYNC : 0);
	if (below(g, 8) == 0)
		o->seen--;
	/* Only the lower 16 bits of the count are valid. */
	o->seen = (o->seen & 0xffff) | below(g, 4) << 16;
	o->stale = kind == 5 && t->any_stale && below(g, 2);
	if ((o->opcode == IBV_WR_TAG_ADD && t->count == TM_LIST) || (o->opcode == IBV_WR_TAG_DEL && !o->stale && !t->count))
		return;
	if (o->flags & IBV_OPS_TM_SYNC)
		tm_report(t, (uint16_t)o->seen);
	if (o->opcode == IBV_WR_TAG_ADD)
		o->entry = tm_insert(t, tm_some_tag(g, (int)below(g, TM_QPS)), masks[below(g, 6)]);
	else if (o->opcode == IBV_WR_TAG_DEL && !o->stale)
		o->entry = tm_take(t, below(g, t->count));
	o->in_step = tm_in_step(t);
	t->ops++;
}

static uint32_t tm_some_length(uint64_t *g)
{
	static const uint32_t usual[] = { 0, 1, 15, 16, 17, 31, 32, 33, 200, 4096, 8175, 8176, 8177, 16368, 16369, TM_MOST };
	return below(g, 3) ? usual[below(g, sizeof usual / sizeof *usual)] : below(g, TM_MOST + 1);
}

static struct tm_message *tm_plan_message(struct side *s, struct tm_list *t, int opcode, uint64_t tag, int q)
{
	uint64_t *g = &s->plan.rng;
	struct tm_message *m = &t->m[t->n++];
	*m = (struct tm_message){ .q = q, .opcode = opcode, .tag = tag, .ctx = ++t->next_ctx, .len = tm_some_length(g), .seed = rnd(g), .with_imm = below(g, 4) == 0, .imm = rnd(g) };
	if (opcode == IBV_TMH_RNDV) {
		m->with_imm = 0;
		m->rlen = below(g, 12) ? m->len : TM_ROOM + 1;
		m->len = below(g, 2) * 40;
	}
	return m;
}

static void tm_plan_messages(struct side *s, struct tm_list *t)
{
	static const int opcodes[] = { IBV_TMH_EAGER, IBV_TMH_EAGER, IBV_TMH_EAGER, IBV_TMH_RNDV, IBV_TMH_RNDV, IBV_TMH_NO_TAG };
	uint64_t *g = &s->plan.rng;
	for (unsigned n = below(g, TM_MSGS + 1); n; n--) {
		int q = (int)below(g, TM_QPS), opcode = opcodes[below(g, 6)];
		struct tm_message *m = tm_plan_message(s, t, opcode, tm_some_tag(g, q), q);
		int at = opcode == IBV_TMH_NO_TAG ? -1 : tm_find(t, m->tag);
		if (at < 0) {
			m->outcome = O_WHOLE;
			t->unexpected += opcode != IBV_TMH_NO_TAG;
			continue;
		}
		m->entry = tm_take(t, (unsigned)at);
		m->outcome = opcode == IBV_TMH_EAGER ? O_EAGER : m->rlen <= TM_ROOM ? O_RENDEZVOUS : O_INCOMPLETE;
	}
}

/* Entries, a message for each, and a removal for most: each entry is found or removed. */
static void tm_plan_race(struct side *s, struct tm_list *t)
{
	uint64_t *g = &s->plan.rng;
	unsigned n = 1 + below(g, TM_MSGS);
	t->op[t->ops++] = (struct tm_op){ .opcode = IBV_WR_TAG_SYNC, .flags = IBV_OPS_TM_SYNC, .seen = t->unexpected, .in_step = 1 };
	tm_report(t, t->unexpected);
	for (unsigned i = 0; i < n && t->count < TM_LIST; i++) {
		int q = (int)below(g, TM_QPS);
		uint64_t tag = (uint64_t)(q + 1) << 56 | 0x777 | 1ull << 32 | (uint64_t)i << 12;
		if (tm_find(t, tag) >= 0)
			continue;
		struct tm_message *m = tm_plan_message(s, t, below(g, 3) ? IBV_TMH_EAGER : IBV_TMH_RNDV, tag, q);
		m->rlen = m->rlen > TM_MOST ? 100 : m->rlen;
		m->outcome = O_RACE;
		m->entry = tm_insert(t, tag, UINT64_MAX);
		t->op[t->ops++] = (struct tm_op){ .opcode = IBV_WR_TAG_ADD, .entry = m->entry, .in_step = 1 };
	}
	/* Each entry leaves the list, by its message or by its removal. */
	for (unsigned i = 0; i < t->n; i++)
		for (unsigned k = 0; k < t->count; k++)
			if (t->entry[k].id == t->m[i].entry.id)
				tm_take(t, k--);
}

/* ---- the responder ---- */

static unsigned char *tm_place(const struct side *s, unsigned place) { return s->area + (size_t)place * TM_ROOM; }

static void tm_post_receives(struct side *s, struct tm_list *t, unsigned wanted)
{
	for (unsigned i = 0; i < TM_RECVS && t->receives < wanted; i++) {
		struct ibv_sge sge = { (uintptr_t)tm_place(s, TM_LIST + i), TM_ROOM, s->mr->lkey };
		struct ibv_recv_wr *bad_wr, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };
		if (t->posted[i])
			continue;
		memset(tm_place(s, TM_LIST + i), CANARY, TM_ROOM);
		int e = ibv_post_srq_recv(s->srq, &wr, &bad_wr);
		if (e)
			bad(s, "ibv_post_srq_recv: %s", strerror(e));
		t->posted[i] = 1;
		t->receives++;
	}
}

static void tm_fill_op(struct side *s, struct tm_list *t, const struct tm_op *o, struct ibv_ops_wr *wr, struct ibv_sge *sge)
{
	*wr = (struct ibv_ops_wr){ .wr_id = ~o->entry.id, .opcode = o->opcode, .flags = o->flags };
	wr->tm.unexpected_cnt = o->seen;
	if (o->opcode == IBV_WR_TAG_ADD) {
		*sge = (struct ibv_sge){ (uintptr_t)tm_place(s, o->entry.place), TM_ROOM, s->mr->lkey };
		memset(tm_place(s, o->entry.place), CANARY, TM_ROOM);
		wr->tm.add.recv_wr_id = o->entry.id;
		wr->tm.add.sg_list = sge;
		wr->tm.add.num_sge = 1;
		wr->tm.add.tag = o->entry.tag;
		wr->tm.add.mask = o->entry.mask;
	} else if (o->opcode == IBV_WR_TAG_DEL) {
		wr->tm.handle = o->stale ? t->stale : t->handle[o->entry.place];
	}
}

/* Posts the planned operations, and checks their completions. Returns 0. */
static int tm_do_ops(struct side *s, struct tm_list *t)
{
	static const enum ibv_wc_opcode opcodes[] = { IBV_WC_TM_ADD, IBV_WC_TM_DEL, IBV_WC_TM_SYNC };
	struct ibv_ops_wr wr[TM_OPS + TM_MSGS], *bad_wr;
	struct ibv_sge sge[TM_OPS + TM_MSGS];
	for (unsigned i = 0; i < t->ops;) {
		/* Only additions form lists, because a removal needs the handle of an addition. */
		unsigned n = 0;
		do
			tm_fill_op(s, t, &t->op[i + n], &wr[n], &sge[n]);
		while (t->op[i + n++].opcode == IBV_WR_TAG_ADD && i + n < t->ops && t->op[i + n].opcode == IBV_WR_TAG_ADD && s->plan.sig_all);
		for (unsigned k = 0; k + 1 < n; k++)
			wr[k].next = &wr[k + 1];
		int e = ibv_post_srq_ops(s->srq, wr, &bad_wr);
		if (e)
			bad(s, "ibv_post_srq_ops: %s (opcode %d)", strerror(e), bad_wr->opcode);
		for (unsigned k = 0; k < n; k++) {
			const struct tm_op *o = &t->op[i + k];
			if (o->opcode == IBV_WR_TAG_ADD)
				t->handle[o->entry.place] = wr[k].tm.handle;
			else if (o->opcode == IBV_WR_TAG_DEL && !o->stale)
				t->stale = wr[k].tm.handle;
		}
		i += n;
	}
	for (unsigned i = 0; i < t->ops; i++) {
		const struct tm_op *o = &t->op[i];
		struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
		if (!(o->flags & IBV_OPS_SIGNALED))
			continue;
		if (!completion(s, &wc, WAIT_US, 0))
			bad(s, "operation %u on tags: no completion", i);
		if (wc.wr_id != ~o->entry.id || wc.status != (o->stale ? IBV_WC_TM_ERR : IBV_WC_SUCCESS) || wc.opcode != opcodes[o->opcode] ||
		    wc.wc_flags != (o->in_step ? 0 : IBV_WC_TM_SYNC_REQ))
			bad(s, "operation %u on tags (opcode %d, stale %d): completion of %llx, opcode %d, %s, flags %x", i, o->opcode, o->stale, (unsigned long long)wc.wr_id, wc.opcode,
			    ibv_wc_status_str(wc.status), wc.wc_flags);
	}
	return 0;
}

static uint32_t tm_head(const struct side *s, const struct tm_message *m, uint64_t va, uint32_t rkey, unsigned char *to)
{
	struct ibv_tmh h = { .opcode = (uint8_t)m->opcode, .app_ctx = htobe32(m->ctx), .tag = htobe64(m->tag) };
	struct ibv_rvh r = { .va = htobe64(va), .rkey = htobe32(rkey), .len = htobe32(m->rlen) };
	(void)s;
	memcpy(to, &h, sizeof h);
	memcpy(to + TM_TMH, &r, sizeof r);
	return m->opcode == IBV_TMH_RNDV ? TM_HEADERS : TM_TMH;
}

/* Where the requester keeps message i, and the data of its rendezvous. */
static size_t tm_message_at(unsigned i) { return (size_t)i * (TM_ROOM + 64); }
static size_t tm_data_at(unsigned i) { return (size_t)(TM_MSGS + i) * (TM_ROOM + 64); }

static void tm_canary(struct side *s, const unsigned char *place, uint32_t from, const char *what)
{
	for (uint32_t i = from; i < TM_ROOM; i++)
		if (place[i] != CANARY)
			bad(s, "%s: %02x behind the message, at %u of %u", what, place[i], i, from);
}

static void tm_check_whole(struct side *s, struct tm_list *t, const struct ibv_wc *wc, unsigned i, const unsigned char *at)
{
	const struct tm_message *m = &t->m[i];
	unsigned char head[TM_HEADERS];
	uint32_t n = tm_head(s, m, s->peer.addr + tm_data_at(i), s->peer.rkey, head);
	if (wc->opcode != (m->opcode == IBV_TMH_NO_TAG ? IBV_WC_TM_NO_TAG : IBV_WC_TM_RECV) || wc->wc_flags != (m->with_imm ? IBV_WC_WITH_IMM : 0u) || wc->byte_len != n + m->len ||
	    (m->with_imm && wc->imm_data != m->imm) || s->tag || s->priv)
		bad(s, "message %u, whole: opcode %d, flags %x, %u bytes, tag %llx", i, wc->opcode, wc->wc_flags, wc->byte_len, (unsigned long long)s->tag);
	if (memcmp(at, head, n) || verify(at + n, m->len, m->seed) >= 0)
		bad(s, "message %u, whole (%u bytes): other bytes", i, n + m->len);
	tm_canary(s, at, n + m->len, "a receive");
}

/* Checks a completion for a tag entry: a matched message or the data of a rendezvous. */
static void tm_check_match(struct side *s, struct tm_list *t, const struct ibv_wc *wc, unsigned i)
{
	struct tm_message *m = &t->m[i];
	const unsigned char *at = tm_place(s, m->entry.place);
	unsigned flags = m->outcome == O_EAGER ? IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID | (m->with_imm ? IBV_WC_WITH_IMM : 0u) :
			 m->outcome == O_INCOMPLETE ? (unsigned)IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID : m->state == 1 ? IBV_WC_TM_DATA_VALID : IBV_WC_TM_MATCH;
	uint32_t len = m->outcome == O_EAGER ? m->len : m->outcome == O_INCOMPLETE ? TM_HEADERS : m->state == 1 ? m->rlen : 0;
	int named = m->state == 0;
	if (wc->status != (m->outcome == O_INCOMPLETE ? IBV_WC_TM_RNDV_INCOMPLETE : IBV_WC_SUCCESS) || wc->opcode != IBV_WC_TM_RECV || wc->wc_flags != flags || wc->byte_len != len ||
	    s->tag != (named ? m->tag : 0) || s->priv != (named ? m->ctx : 0) || (m->outcome == O_EAGER && m->with_imm && wc->imm_data != m->imm))
		bad(s, "message %u (outcome %d, part %d): %s, opcode %d, flags %x instead of %x, %u bytes instead of %u, tag %llx, context %u", i, m->outcome, m->state,
		    ibv_wc_status_str(wc->status), wc->opcode, wc->wc_flags, flags, wc->byte_len, len, (unsigned long long)s->tag, s->priv);
	if (m->outcome == O_EAGER || m->state == 1) {
		if (verify(at, len, m->seed) >= 0)
			bad(s, "message %u (%u bytes, outcome %d): other bytes", i, len, m->outcome);
		tm_canary(s, at, len, "an entry");
	} else if (m->outcome == O_INCOMPLETE) {
		unsigned char head[TM_HEADERS];
		tm_head(s, m, s->peer.addr + tm_data_at(i), s->peer.rkey, head);
		if (memcmp(at, head, TM_HEADERS))
			bad(s, "message %u: other headers", i);
	}
	t->stale = t->handle[m->entry.place];
	m->state++;
}

/* Polls all completions of the messages and of removals that race with messages. Returns 1 if the
 * peer process is dead. */
static int tm_arrivals(struct side *s, struct tm_list *t, unsigned removals)
{
	unsigned left = t->n + removals, got[TM_QPS] = { 0 };
	for (unsigned i = 0; i < t->n; i++)
		left += t->m[i].outcome == O_RENDEZVOUS;
	while (left--) {
		struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
		unsigned i = 0, before = 0;
		if (!completion(s, &wc, WAIT_US, 1)) {
			if (s->board->dead[s->plan.proc[REQUESTER]])
				return s->gone = 1;
			bad(s, "%u completions of %u messages are missing", left + 1, t->n);
		}
		if (wc.opcode == IBV_WC_TM_DEL && (wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_TM_ERR)) {
			while (i < t->n && ~t->m[i].entry.id != wc.wr_id)
				i++;
			if (i == t->n)
				bad(s, "a removal of %llx", (unsigned long long)~wc.wr_id);
			/* IBV_WC_TM_ERR: the message matches. Success: it takes a receive. */
			enum tm_outcome now = wc.status ? t->m[i].opcode == IBV_TMH_EAGER ? O_EAGER : O_RENDEZVOUS : O_WHOLE;
			if (t->m[i].outcome != O_RACE && t->m[i].outcome != now)
				bad(s, "message %u: removed (%s), but its outcome was %d", i, ibv_wc_status_str(wc.status), t->m[i].outcome);
			left += t->m[i].outcome == O_RACE && now == O_RENDEZVOUS;
			t->m[i].outcome = now;
			continue;
		}
		if (wc.status && wc.status != IBV_WC_TM_RNDV_INCOMPLETE) {
			must_be_dead(s, &wc, "tag matching");
			return 1;
		}
		if (wc.wr_id & TM_ENTRY) {
			while (i < t->n && t->m[i].entry.id != wc.wr_id)
				i++;
		} else if (wc.wr_id < TM_RECVS && t->posted[wc.wr_id]) {
			struct ibv_tmh h;
			memcpy(&h, tm_place(s, TM_LIST + (unsigned)wc.wr_id), sizeof h);
			i = be32toh(h.app_ctx) - t->m[0].ctx;
		} else {
			bad(s, "a completion of receive %llx, which is not posted", (unsigned long long)wc.wr_id);
		}
		struct tm_message *m = i < t->n ? &t->m[i] : NULL;
		if (!m || wc.qp_num != s->tm_qp[m->q]->qp_num)
			bad(s, "a completion of %llx on QP %x: of no message", (unsigned long long)wc.wr_id, wc.qp_num);
		int found = (wc.wr_id & TM_ENTRY) != 0;
		if (m->outcome == O_RACE) {
			m->outcome = !found ? O_WHOLE : m->opcode == IBV_TMH_EAGER ? O_EAGER : O_RENDEZVOUS;
			left += m->outcome == O_RENDEZVOUS;
		}
		if (found == (m->outcome == O_WHOLE) || m->state > (m->outcome == O_RENDEZVOUS))
			bad(s, "message %u (opcode %d, tag %llx, outcome %d, part %d): receive %llx", i, m->opcode, (unsigned long long)m->tag, m->outcome, m->state, (unsigned long long)wc.wr_id);
		if (m->state == 0) {
			for (unsigned k = 0; k < i; k++)
				before += t->m[k].q == m->q;
			if (before != got[m->q]++)
				bad(s, "message %u overtook another one", i);
		}
		if (found) {
			tm_check_match(s, t, &wc, i);
		} else {
			tm_check_whole(s, t, &wc, i, tm_place(s, TM_LIST + (unsigned)wc.wr_id));
			t->posted[wc.wr_id] = 0;
			t->receives--;
			m->state++;
		}
	}
	return 0;
}

/* ---- the requester ---- */

static size_t tm_fin_at(int q, unsigned n) { return (size_t)2 * TM_MSGS * (TM_ROOM + 64) + ((size_t)q * TM_FINS + n % TM_FINS) * 64; }

static void tm_post_fins(struct side *s, struct tm_list *t)
{
	for (int q = 0; q < TM_QPS; q++)
		for (; t->fins[q] < TM_MSGS; t->fins[q]++) {
			unsigned n = t->fin_next[q]++;
			struct ibv_sge sge = { (uintptr_t)s->area + tm_fin_at(q, n), 64, s->mr->lkey };
			struct ibv_recv_wr *bad_wr, wr = { .wr_id = TM_ENTRY | (uint64_t)q << 32 | n, .sg_list = &sge, .num_sge = 1 };
			int e = ibv_post_recv(s->tm_qp[q], &wr, &bad_wr);
			if (e)
				bad(s, "posting a receive for FIN: %s", strerror(e));
		}
}

static void tm_send(struct side *s, struct tm_list *t, unsigned i)
{
	const struct tm_message *m = &t->m[i];
	unsigned char *at = s->area + tm_message_at(i);
	uint32_t n = tm_head(s, m, (uintptr_t)s->area + tm_data_at(i), s->mr->rkey, at), inl = n + m->len <= 200 && m->seed % 2 ? IBV_SEND_INLINE : 0;
	fill(at + n, m->len, m->seed);
	if (m->opcode == IBV_TMH_RNDV && m->rlen <= TM_ROOM)
		fill(s->area + tm_data_at(i), m->rlen, m->seed);
	struct ibv_sge sge = { (uintptr_t)at, n + m->len, s->mr->lkey };
	if (s->plan.new_api && m->seed % 4) {
		struct ibv_qp_ex *x = ibv_qp_to_qp_ex(s->tm_qp[m->q]);
		ibv_wr_start(x);
		x->wr_id = i;
		x->wr_flags = IBV_SEND_SIGNALED;
		if (m->with_imm)
			ibv_wr_send_imm(x, m->imm);
		else
			ibv_wr_send(x);
		if (inl)
			ibv_wr_set_inline_data(x, at, n + m->len);
		else
			ibv_wr_set_sge(x, sge.lkey, sge.addr, sge.length);
		int e = ibv_wr_complete(x);
		if (e)
			bad(s, "ibv_wr_complete: %s", strerror(e));
		return;
	}
	struct ibv_send_wr *bad_wr, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = m->with_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | inl };
	wr.imm_data = m->imm;
	int e = ibv_post_send(s->tm_qp[m->q], &wr, &bad_wr);
	if (e)
		bad(s, "ibv_post_send: %s", strerror(e));
}

static void tm_check_fin(struct side *s, struct tm_list *t, const struct ibv_wc *wc)
{
	int q = (int)(wc->wr_id >> 32 & 0xff);
	unsigned n = (unsigned)wc->wr_id, i = 0;
	unsigned char head[TM_HEADERS];
	if (q >= TM_QPS || n != t->fin_done[q]++ || wc->qp_num != s->tm_qp[q]->qp_num || wc->opcode != IBV_WC_RECV || wc->byte_len != TM_HEADERS || wc->wc_flags)
		bad(s, "FIN %llx: opcode %d, %u bytes, flags %x", (unsigned long long)wc->wr_id, wc->opcode, wc->byte_len, wc->wc_flags);
	t->fins[q]--;
	/* FINs arrive in the order of the rendezvous requests of their QP. */
	while (i < t->n && (t->m[i].q != q || t->m[i].opcode != IBV_TMH_RNDV || t->m[i].state || (t->m[i].outcome != O_RENDEZVOUS && t->m[i].outcome != O_RACE)))
		i++;
	const unsigned char *at = s->area + tm_fin_at(q, n);
	for (;; i++) {
		if (i >= t->n)
			bad(s, "FIN %llx: of no request", (unsigned long long)wc->wr_id);
		struct tm_message fin = t->m[i];
		if (fin.q != q || fin.opcode != IBV_TMH_RNDV || fin.state)
			continue;
		tm_head(s, &fin, (uintptr_t)s->area + tm_data_at(i), s->mr->rkey, head);
		head[0] = IBV_TMH_FIN;
		if (at[0] == head[0] && !memcmp(at + 4, head + 4, TM_HEADERS - 4))
			break;
		/* In a race, the entry of an earlier message may have been removed. */
		if (fin.outcome != O_RACE)
			bad(s, "FIN %llx: not of message %u", (unsigned long long)wc->wr_id, i);
	}
	t->m[i].state = 1;
}

/* Polls completions of `sends` messages and of FINs. Returns 1 if the peer process is dead. */
static int tm_answers(struct side *s, struct tm_list *t, unsigned sends, unsigned fins, unsigned *early)
{
	while (sends || fins > *early) {
		struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
		if (!completion(s, &wc, WAIT_US, 0))
			bad(s, "%u messages and %u FINs are missing", sends, fins - *early);
		if (wc.status) {
			if (wc.status != IBV_WC_RETRY_EXC_ERR && wc.status != IBV_WC_WR_FLUSH_ERR)
				bad(s, "message %llx: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
			must_be_dead(s, &wc, "message");
			return 1;
		}
		if (wc.wr_id & TM_ENTRY) {
			tm_check_fin(s, t, &wc);
			++*early;
		} else if (!sends-- || wc.wr_id >= t->n || wc.opcode != IBV_WC_SEND || wc.qp_num != s->tm_qp[t->m[wc.wr_id].q]->qp_num) {
			bad(s, "completion of message %llx, opcode %d", (unsigned long long)wc.wr_id, wc.opcode);
		}
	}
	return 0;
}

/* ---- both sides ---- */

void tm_make(struct side *s)
{
	struct ibv_srq_init_attr_ex q = { .attr = { .max_wr = TM_RECVS, .max_sge = 1 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
					  .pd = s->pd, .srq_type = IBV_SRQT_TM, .cq = s->cq, .tm_cap = { .max_num_tags = TM_LIST, .max_ops = 64 } };
	struct ibv_qp_init_attr_ex a = { .qp_type = IBV_QPT_RC, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = s->pd, .send_cq = s->cq, .recv_cq = s->cq };
	if (s->role == RESPONDER) {
		/* The SRQ itself sends the READs and FINs of a rendezvous; the QP needs no send
		 * queue. */
		a.srq = s->srq = ibv_create_srq_ex(s->ctx, &q);
		if (!s->srq)
			bad(s, "ibv_create_srq_ex: %s", strerror(errno));
	} else {
		a.cap = (struct ibv_qp_cap){ .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 200 };
		if (s->plan.new_api) {
			a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
			a.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
		}
	}
	for (int i = 0; i < TM_QPS; i++) {
		s->tm_qp[i] = ibv_create_qp_ex(s->ctx, &a);
		if (!s->tm_qp[i])
			bad(s, "ibv_create_qp_ex: %s", strerror(errno));
		s->board->link[s->link].info[s->role].qpns[i] = s->tm_qp[i]->qp_num;
	}
	s->qp = s->tm_qp[0];
}

void tm_to_ready(struct side *s)
{
	for (int i = TM_QPS; i-- > 0;) {
		s->qp = s->tm_qp[i];
		s->peer.qpn = s->peer.qpns[i];
		to_ready(s);
	}
}

/* Runs one batch. Returns 1 if the other process is dead. */
static int tm_batch(struct side *s, struct tm_list *t, int race)
{
	unsigned early = 0, fins = 0, wholes = 0, removals = 0;
	struct info *told = &s->board->link[s->link].info[RESPONDER];
	t->ops = t->n = 0;
	if (race) {
		tm_plan_race(s, t);
	} else {
		for (unsigned i = below(&s->plan.rng, TM_OPS + 1); i; i--)
			tm_plan_op(s, t);
		tm_plan_messages(s, t);
	}
	t->late = !race && below(&s->plan.rng, 4) == 0;
	for (unsigned i = 0; i < t->n; i++) {
		wholes += t->m[i].outcome == O_WHOLE || t->m[i].outcome == O_RACE;
		fins += t->m[i].outcome == O_RENDEZVOUS;
	}
	if (s->role == RESPONDER) {
		if (tm_do_ops(s, t))
			return 1;
		if (!t->late)
			tm_post_receives(s, t, wholes);
	} else {
		tm_post_fins(s, t);
	}
	if (together(s))
		return 1;
	for (unsigned i = 0; s->role == REQUESTER && i < t->n; i++)
		tm_send(s, t, i);
	if (t->late) {
		if (together(s))
			return 1;
		if (s->role == RESPONDER)
			tm_post_receives(s, t, wholes);
	}
	if (s->role == RESPONDER) {
		uint64_t own = now_us();
		for (unsigned spin = (unsigned)(rnd(&own) % 20000); race && spin; spin--)
			__asm__ volatile("");
		for (unsigned i = t->n; race && i-- > 0;) {
			struct ibv_ops_wr *bad_wr, wr = { .wr_id = ~t->m[i].entry.id, .opcode = IBV_WR_TAG_DEL, .flags = IBV_OPS_SIGNALED };
			wr.tm.handle = t->handle[t->m[i].entry.place];
			if (t->m[i].seed % 8 == 0)
				continue;
			int e = ibv_post_srq_ops(s->srq, &wr, &bad_wr);
			if (e)
				bad(s, "IBV_WR_TAG_DEL: %s", strerror(e));
			removals++;
		}
		if (tm_arrivals(s, t, removals))
			return 1;
		for (unsigned i = 0; race && i < t->n; i++)
			t->unexpected += t->m[i].outcome == O_WHOLE;
		if (race)
			fins = 0;
		for (unsigned i = 0; race && i < t->n; i++) {
			fins += t->m[i].outcome == O_RENDEZVOUS;
			t->stale = t->handle[t->m[i].entry.place];
		}
		told->srqn = t->unexpected;
		told->counter_key = fins;
	} else if (tm_answers(s, t, t->n, race ? 0 : fins, &early)) {
		return 1;
	}
	if (together(s))
		return 1;
	if (s->role == REQUESTER) {
		t->unexpected = (uint16_t)told->srqn;
		if (race && tm_answers(s, t, 0, told->counter_key, &early))
			return 1;
		atomic_fetch_add(&s->board->requests, t->n);
		atomic_fetch_add(&s->board->batches, 1);
	}
	return together(s);
}

void run_tm(struct side *s)
{
	struct tm_list *t = calloc(1, sizeof *t);
	if (!t)
		bad(s, "out of memory");
	while (t->places < TM_LIST) {
		t->place[t->places] = t->places;
		t->places++;
	}
	side_open(s, s->counter_mr);
	int dead = side_connect(s);
	for (int n = 0; n < 2 * s->plan.batches && !dead; n++)
		dead = tm_batch(s, t, below(&s->plan.rng, 4) == 0);
	if (dead)
		atomic_fetch_add(&s->board->survived, 1);
	side_close(s);
	free(t);
}
