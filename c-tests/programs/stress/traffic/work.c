/*
 * Threads of a traffic: posters, collectors of send completions, takers of receive completions, and
 * the meddler that changes objects in use.
 *
 * Map of this file: traffic_prepare fills the next request of a poster; traffic_calls posts by
 * ibv_wr_* calls. traffic_free waits for a free slot; traffic_ah creates an address handle.
 * traffic_poster is the thread that posts; traffic_done and traffic_sent check finished requests;
 * traffic_collector is the thread that polls send completions. traffic_message and traffic_arrived
 * check a received message; traffic_pass adds and removes a tag entry; traffic_taker is the thread
 * that polls receive completions. traffic_meddler is the thread that creates, changes and destroys
 * objects beside the traffic; traffic_account compares the totals at the end. run.c starts the
 * threads.
 */
#include "traffic.h"

struct traffic_header {
	uint32_t magic, poster, seq, len, seed, qp, queue, kind;
};

/* ---- requests ---- */

static int traffic_receives(const struct traffic_slot *s) { return s->kind == K_SEND || s->kind == K_SEND_IMM || s->kind == K_WRITE_IMM; }

/* Prepares the next request of a thread in its slot; returns the number of pieces. */
static int traffic_prepare(struct traffic_thread *t, uint32_t seq, int q, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	static const int kinds[CROWD_TYPES][8] = {
		[C_RC] = { K_SEND, K_SEND, K_SEND_IMM, K_WRITE, K_WRITE_IMM, K_READ, K_READ, K_ADD },
		[C_UC] = { K_SEND, K_SEND, K_SEND, K_SEND_IMM, K_SEND_IMM, K_WRITE, K_WRITE, K_WRITE_IMM },
		[C_XRC] = { K_SEND, K_SEND, K_SEND_IMM, K_WRITE, K_WRITE_IMM, K_READ, K_READ, K_ADD },
		[C_UD] = { K_SEND, K_SEND_IMM, K_SEND, K_SEND_IMM, K_SEND, K_SEND_IMM, K_SEND, K_SEND_IMM },
		[C_TM] = { K_SEND, K_SEND, K_SEND_IMM, K_SEND, K_SEND, K_WRITE, K_READ, K_ADD },
	};
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	struct traffic *c = t->c;
	const struct traffic_info *peer = &c->board->info[1];
	struct traffic_slot *s = &c->slot[t->me][seq % C_SLOTS];
	unsigned char *at = traffic_place(c, t->me, seq) + C_TMH;
	uint32_t most = c->plan.type == C_UD ? C_DATAGRAM : C_LENGTH, size = rnd(&t->rng) % 4;
	s->seq = seq;
	s->kind = kinds[c->plan.type][rnd(&t->rng) % 8];
	if (s->kind == K_READ && !s->target_len)
		s->kind = K_WRITE;
	s->len = C_HEADER + rnd(&t->rng) % (size == 0 ? 17 : size == 1 ? 160 : size == 2 ? C_DATAGRAM - C_HEADER : most - C_HEADER);
	s->seed = rnd(&t->rng);
	s->completions = 0;
	*wr = (struct ibv_send_wr){ .wr_id = (uint64_t)t->me << 32 | seq, .opcode = opcodes[s->kind], .sg_list = sge };
	if (traffic_receives(s)) {
		struct traffic_header h = { 0xC0DE, (uint32_t)t->me, seq, s->len, s->seed, (uint32_t)q, c->plan.srqs ? seq % (uint32_t)c->plan.srqs : (uint32_t)q, (uint32_t)s->kind };
		if (c->plan.type != C_XRC && c->plan.srqs)
			h.queue = (uint32_t)(q % c->plan.srqs);
		memcpy(at, &h, sizeof h);
		fill(at + C_HEADER, s->len - C_HEADER, s->seed);
		wr->imm_data = (uint32_t)t->me << 24 | seq;
		if (c->plan.type == C_TM) {
			/* One message in eight has no tag. */
			uint64_t mask = traffic_mask(t->me, seq);
			struct ibv_tmh tmh = { .opcode = s->seed % 8 ? IBV_TMH_EAGER : IBV_TMH_NO_TAG, .app_ctx = htobe32(seq),
					       .tag = htobe64((traffic_tag(t->me, seq) & mask) | (rnd(&t->rng) & ~mask)) };
			at -= C_TMH;
			memcpy(at, &tmh, sizeof tmh);
		}
		c->board->sent++;
	} else if (s->kind == K_WRITE) {
		fill(at, s->len, s->seed);
	} else if (s->kind == K_READ) {
		s->len = s->target_len;
		memset(at, 0, s->len);
	} else {
		s->len = 8;
		c->board->adds++;
	}
	uint64_t remote = peer->addr + (size_t)(t->me * C_SLOTS + (int)(seq % C_SLOTS)) * C_LENGTH;
	if (s->kind == K_ADD) {
		wr->wr.atomic.remote_addr = peer->counter;
		wr->wr.atomic.rkey = peer->counter_key;
		wr->wr.atomic.compare_add = 1;
	} else if (c->plan.type == C_UD) {
		wr->wr.ud.ah = t->ah;
		wr->wr.ud.remote_qpn = peer->qpn[q];
		wr->wr.ud.remote_qkey = C_QKEY;
	} else {
		wr->wr.rdma.remote_addr = remote;
		wr->wr.rdma.rkey = peer->rkey;
	}
	if (c->plan.type == C_XRC)
		wr->qp_type.xrc.remote_srqn = peer->srqn[seq % (uint32_t)c->plan.srqs];
	if (s->kind == K_WRITE || s->kind == K_WRITE_IMM) {
		s->target_len = s->len;
		s->target_seed = s->kind == K_WRITE ? s->seed : 0;
		if (s->kind == K_WRITE_IMM)
			s->target_len = 0;
	}
	uint32_t bytes = s->len + (c->plan.type == C_TM && traffic_receives(s) ? C_TMH : 0), offset = 0;
	int pieces = s->kind == K_ADD ? 1 : 1 + (int)(rnd(&t->rng) % 3);
	for (int k = 0; k < pieces; k++) {
		uint32_t part = k == pieces - 1 ? bytes - offset : rnd(&t->rng) % (bytes - offset + 1);
		sge[k] = (struct ibv_sge){ (uintptr_t)at + offset, part, c->mr->lkey };
		offset += part;
	}
	if (bytes <= 200 && s->kind != K_READ && s->kind != K_ADD && rnd(&t->rng) % 2)
		wr->send_flags |= IBV_SEND_INLINE;
	return pieces;
}

static void traffic_calls(struct traffic *c, int q, const struct ibv_send_wr *wr)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(c->qp[q]);
	ibv_wr_start(x);
	for (; wr; wr = wr->next) {
		struct ibv_data_buf bufs[3];
		x->wr_id = wr->wr_id;
		x->wr_flags = wr->send_flags & ~(unsigned)IBV_SEND_INLINE;
		switch (wr->opcode) {
		case IBV_WR_SEND: ibv_wr_send(x); break;
		case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(x, wr->imm_data); break;
		case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr); break;
		case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data); break;
		case IBV_WR_RDMA_READ: ibv_wr_rdma_read(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr); break;
		default: ibv_wr_atomic_fetch_add(x, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add); break;
		}
		if (c->plan.type == C_XRC)
			ibv_wr_set_xrc_srqn(x, wr->qp_type.xrc.remote_srqn);
		if (c->plan.type == C_UD)
			ibv_wr_set_ud_addr(x, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
		for (int k = 0; k < wr->num_sge; k++)
			bufs[k] = (struct ibv_data_buf){ (void *)(uintptr_t)wr->sg_list[k].addr, wr->sg_list[k].length };
		if (wr->send_flags & IBV_SEND_INLINE)
			ibv_wr_set_inline_data_list(x, (size_t)wr->num_sge, bufs);
		else if (wr->num_sge == 1)
			ibv_wr_set_sge(x, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
		else
			ibv_wr_set_sge_list(x, (size_t)wr->num_sge, wr->sg_list);
	}
	int e = ibv_wr_complete(x);
	if (e)
		traffic_bad(c, "ibv_wr_complete: %s", strerror(e));
}

/* Waits until the slot of a request is free on both sides. Returns 0 if the peer is dead. */
static int traffic_free(struct traffic_thread *t, uint32_t seq)
{
	struct traffic *c = t->c;
	uint64_t end = now_us() + 3ull * WAIT_US;
	while (c->slot[t->me][seq % C_SLOTS].busy || (c->plan.credits && c->board->credit[t->me][seq % C_SLOTS] <= seq)) {
		if (!c->gone && c->is_dead(c->arg))
			c->gone = 1;
		if (c->gone)
			return 0;
		if (now_us() > end)
			traffic_bad(c, "thread %d, request %u: its place does not become free (busy %u, credit %u)", t->me, seq, c->slot[t->me][seq % C_SLOTS].busy,
				  c->board->credit[t->me][seq % C_SLOTS]);
		sched_yield();
	}
	return 1;
}

static struct ibv_ah *traffic_ah(struct traffic *c)
{
	struct ibv_ah_attr a = { .dlid = c->board->info[1].lid, .port_num = 1, .is_global = 1, .grh = { .dgid = c->board->info[1].gid, .sgid_index = (uint8_t)hosts_differ(), .hop_limit = 64 } };
	struct ibv_ah *ah = ibv_create_ah(c->pd, &a);
	traffic_must(c, ah != NULL, "ibv_create_ah");
	return ah;
}

void *traffic_poster(void *arg)
{
	struct traffic_thread *t = arg;
	struct traffic *c = t->c;
	uint32_t seq = 0;
	while (seq < c->plan.each && !c->gone) {
		struct ibv_send_wr wr[C_LIST], *bad_wr;
		struct ibv_sge sge[C_LIST][3];
		uint32_t n = 1 + rnd(&t->rng) % C_LIST, ready = 0, signaled = 0, quiet = 0;
		int q = c->plan.own_qp ? t->me % c->plan.qps : (int)(rnd(&t->rng) % (unsigned)c->plan.qps);
		if (n > c->plan.each - seq)
			n = c->plan.each - seq;
		while (ready < n && traffic_free(t, seq + ready))
			ready++;
		if (ready < n)
			break;
		if (c->plan.type == C_UD && (!t->ah || rnd(&t->rng) % 8 == 0)) {
			/* An address handle is destroyed only when no request uses it. */
			for (uint32_t i = 0; i < C_SLOTS && traffic_free(t, seq + i); i++)
				;
			int e = t->ah && !c->gone ? ibv_destroy_ah(t->ah) : 0;
			if (e)
				traffic_bad(c, "ibv_destroy_ah: %s", strerror(e));
			if (c->gone)
				break;
			t->ah = traffic_ah(c);
		}
		for (uint32_t i = 0; i < n; i++) {
			struct traffic_slot *s = &c->slot[t->me][(seq + i) % C_SLOTS];
			wr[i].num_sge = 0;
			int pieces = traffic_prepare(t, seq + i, q, &wr[i], sge[i]);
			wr[i].num_sge = pieces;
			wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
			s->signaled = i == n - 1 || rnd(&t->rng) % 2;
			s->first = i == n - 1 ? seq : seq + i;
			s->quiet = i == n - 1 ? quiet : 0;
			if (s->signaled)
				wr[i].send_flags |= IBV_SEND_SIGNALED;
			else
				quiet |= 1u << (n - 1 - i);
			signaled += (uint32_t)s->signaled;
			s->busy = (uint32_t)q + 1;
		}
		c->outstanding += signaled;
		if (c->plan.how == C_CALLS || (c->plan.how == C_BOTH && rnd(&t->rng) % 2)) {
			traffic_calls(c, q, wr);
		} else {
			int e = ibv_post_send(c->qp[q], wr, &bad_wr);
			if (e)
				traffic_bad(c, "ibv_post_send: %s (opcode %d)", strerror(e), bad_wr->opcode);
		}
		seq += n;
	}
	/* Waits for all requests before the address handle is destroyed. */
	while (t->ah && !c->gone && (c->outstanding || c->is_dead(c->arg))) {
		if (c->is_dead(c->arg))
			c->gone = 1;
		sched_yield();
	}
	if (t->ah && ibv_destroy_ah(t->ah))
		traffic_bad(c, "ibv_destroy_ah");
	c->posting--;
	return NULL;
}

/* Checks a finished request, and frees its slot. */
static void traffic_done(struct traffic_thread *t, int poster, uint32_t seq)
{
	struct traffic *c = t->c;
	struct traffic_slot *s = &c->slot[poster][seq % C_SLOTS];
	unsigned char *at = traffic_place(c, poster, seq);
	if (s->seq != seq || !s->busy)
		traffic_bad(c, "thread %d, request %u is done, but its place has %u (%u)", poster, seq, s->seq, s->busy);
	if (s->kind == K_READ && verify(at + C_TMH, s->len, s->target_seed) >= 0)
		traffic_bad(c, "thread %d, request %u: a READ of %u bytes gave others", poster, seq, s->len);
	if (s->kind == K_ADD) {
		uint64_t old;
		memcpy(&old, at + C_TMH, 8);
		if (old >= (uint64_t)c->plan.posters * c->plan.each || c->old[old]++)
			traffic_bad(c, "thread %d, request %u: the counter was %llu, for the second time", poster, seq, (unsigned long long)old);
	}
	if (!traffic_receives(s))
		c->board->credit[poster][seq % C_SLOTS] = seq + C_SLOTS + 1;
	s->busy = 0;
}

static void traffic_sent(struct traffic_thread *t, const struct ibv_wc *wc)
{
	static const enum ibv_wc_opcode opcodes[] = { IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_FETCH_ADD };
	struct traffic *c = t->c;
	uint64_t poster = wc->wr_id >> 32;
	uint32_t seq = (uint32_t)wc->wr_id;
	struct traffic_slot *s = &c->slot[poster < C_POSTERS ? poster : 0][seq % C_SLOTS];
	if (poster >= (uint64_t)c->plan.posters || s->seq != seq || !s->busy || s->completions++ || wc->qp_num != c->qp[s->busy - 1]->qp_num)
		traffic_bad(c, "completion of %llx on QP %x, %s: not of a request under way", (unsigned long long)wc->wr_id, wc->qp_num, ibv_wc_status_str(wc->status));
	int signaled = s->signaled;
	if (wc->status) {
		if (wc->status != IBV_WC_WR_FLUSH_ERR && wc->status != IBV_WC_RETRY_EXC_ERR)
			traffic_bad(c, "request %llx (kind %d, %u bytes): %s", (unsigned long long)wc->wr_id, s->kind, s->len, ibv_wc_status_str(wc->status));
		traffic_gone(c, "request", wc->status);
	} else if (!signaled || wc->opcode != opcodes[s->kind] || ((s->kind == K_READ || s->kind == K_ADD) && wc->byte_len != s->len)) {
		traffic_bad(c, "request %llx (kind %d, %u bytes, signaled %d): opcode %d, %u bytes", (unsigned long long)wc->wr_id, s->kind, s->len, signaled, wc->opcode, wc->byte_len);
	} else {
		/* The completion of a list's last request also ends the unsignaled requests before
		 * it. Slots of signaled requests may already be reused. */
		for (uint32_t i = s->first; i < seq; i++)
			if (s->quiet >> (seq - i) & 1)
				traffic_done(t, (int)poster, i);
		traffic_done(t, (int)poster, seq);
	}
	if (signaled)
		c->outstanding--;
}

void *traffic_collector(void *arg)
{
	struct traffic_thread *t = arg;
	struct traffic *c = t->c;
	struct traffic_wc w[4];
	uint64_t end = now_us() + 3ull * WAIT_US;
	while (c->posting || c->outstanding) {
		int n = traffic_next(t, w);
		for (int i = 0; i < n; i++)
			traffic_sent(t, &w[i].wc);
		if (n)
			end = now_us() + 3ull * WAIT_US;
		if (now_us() > end)
			traffic_bad(c, "%u requests do not complete, %u threads still post", c->outstanding, c->posting);
	}
	c->board->finished = 1;
	return NULL;
}

/* ---- receives ---- */

static void traffic_message(struct traffic_thread *t, const struct traffic_header *h, const unsigned char *data, const struct ibv_wc *wc)
{
	struct traffic *c = t->c;
	if (h->poster >= (uint32_t)c->plan.posters || h->seq >= c->plan.each || h->qp >= (uint32_t)c->plan.qps || h->queue >= C_SRQS + C_QPS)
		traffic_bad(c, "a message of thread %u, number %u, QP %u", h->poster, h->seq, h->qp);
	if (c->seen[h->poster][h->seq]++)
		traffic_bad(c, "message %u of thread %u came twice", h->seq, h->poster);
	if (wc->qp_num != c->qp[h->qp]->qp_num)
		traffic_bad(c, "message %u of thread %u came on QP %x instead of %x", h->seq, h->poster, wc->qp_num, c->qp[h->qp]->qp_num);
	if (data && (h->magic != 0xC0DE || h->len < C_HEADER || verify(data, h->len - C_HEADER, h->seed) >= 0))
		traffic_bad(c, "message %u of thread %u (%u bytes): other bytes", h->seq, h->poster, h->len);
	int64_t *last = &t->last[h->poster][h->qp][c->plan.type == C_XRC ? h->queue : 0];
	/* Messages without tag take another queue, and their order is independent. */
	if (*last >= (int64_t)h->seq)
		traffic_bad(c, "message %u of thread %u came after %lld", h->seq, h->poster, (long long)*last);
	*last = h->seq;
}

static void traffic_arrived(struct traffic_thread *t, const struct traffic_wc *w)
{
	struct traffic *c = t->c;
	const struct ibv_wc *wc = &w->wc;
	uint64_t id = wc->wr_id;
	struct traffic_header h;
	if (id & C_ADD_ID) {
		int poster = (int)(id >> 8 & 0xff);
		uint32_t place = id & 0xff;
		if (wc->status)
			traffic_bad(c, "tag entry %llx: %s", (unsigned long long)id, ibv_wc_status_str(wc->status));
		if (wc->opcode == IBV_WC_TM_DEL) {
			c->removals--;
			return;
		}
		unsigned char *at = traffic_place(c, poster, place);
		memcpy(&h, at, sizeof h);
		if (wc->opcode != IBV_WC_TM_RECV || (wc->wc_flags & ~(unsigned)IBV_WC_WITH_IMM) != (IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID) || wc->byte_len != h.len || h.poster != (uint32_t)poster ||
		    h.seq % C_SLOTS != place || w->priv != h.seq || (w->tag & traffic_mask(poster, place)) != (traffic_tag(poster, place) & traffic_mask(poster, place)))
			traffic_bad(c, "tag entry %llx: opcode %d, flags %x, %u bytes, tag %llx, context %u; message %u of thread %u", (unsigned long long)id, wc->opcode, wc->wc_flags, wc->byte_len,
				  (unsigned long long)w->tag, w->priv, h.seq, h.poster);
		traffic_message(t, &h, at + C_HEADER, wc);
		traffic_add(c, poster, place);
	} else {
		if (id >= (uint64_t)traffic_queues(c) * C_RECVS || c->posted[id]-- != 1)
			traffic_bad(c, "a completion of receive %llu, which is not posted", (unsigned long long)id);
		if (wc->status) {
			if (wc->status != IBV_WC_WR_FLUSH_ERR || c->plan.srqs)
				traffic_bad(c, "receive %llu: %s", (unsigned long long)id, ibv_wc_status_str(wc->status));
			traffic_gone(c, "receive", wc->status);
			return;
		}
		unsigned char *at = traffic_landing(c, id) + (c->plan.type == C_UD ? 40 : c->plan.type == C_TM ? C_TMH : 0);
		memcpy(&h, at, sizeof h);
		if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
			h = (struct traffic_header){ .poster = wc->imm_data >> 24, .seq = wc->imm_data & 0xffffff, .queue = (uint32_t)(id / C_RECVS), .kind = K_WRITE_IMM, .len = wc->byte_len };
			while (h.qp + 1 < (uint32_t)c->plan.qps && c->qp[h.qp]->qp_num != wc->qp_num)
				h.qp++;
			traffic_message(t, &h, NULL, wc);
		} else {
			uint32_t more = c->plan.type == C_UD ? 40 : c->plan.type == C_TM ? C_TMH : 0;
			enum ibv_wc_opcode should = c->plan.type == C_TM ? IBV_WC_TM_NO_TAG : IBV_WC_RECV;
			if (wc->opcode != should || wc->byte_len != h.len + more || h.queue != id / C_RECVS)
				traffic_bad(c, "receive %llu: opcode %d, %u bytes instead of %u, queue %u", (unsigned long long)id, wc->opcode, wc->byte_len, h.len + more, h.queue);
			traffic_message(t, &h, at + C_HEADER, wc);
		}
		traffic_receive(c, id);
	}
	int imm = h.kind == K_SEND_IMM || h.kind == K_WRITE_IMM;
	if (imm != !!(wc->wc_flags & IBV_WC_WITH_IMM) || (imm && wc->imm_data != (h.poster << 24 | h.seq)))
		traffic_bad(c, "message %u of thread %u: immediate %x, flags %x", h.seq, h.poster, wc->imm_data, wc->wc_flags);
	c->board->credit[h.poster][h.seq % C_SLOTS] = h.seq + C_SLOTS + 1;
	c->board->received++;
}

/* Adds and removes a tag entry that no message matches. */
static void traffic_pass(struct traffic_thread *t)
{
	struct traffic *c = t->c;
	struct ibv_ops_wr *bad_wr, wr = { .opcode = IBV_WR_TAG_ADD };
	wr.tm.add.tag = (uint64_t)(1000 + t->me) << 24;
	wr.tm.add.mask = rnd(&t->rng) % 2 ? UINT64_MAX : UINT64_MAX >> 8;
	int e = ibv_post_srq_ops(c->srq[0], &wr, &bad_wr);
	if (e)
		traffic_bad(c, "IBV_WR_TAG_ADD: %s", strerror(e));
	wr.opcode = IBV_WR_TAG_DEL;
	wr.flags = IBV_OPS_SIGNALED;
	wr.wr_id = C_ADD_ID;
	c->removals++;
	if ((e = ibv_post_srq_ops(c->srq[0], &wr, &bad_wr)))
		traffic_bad(c, "IBV_WR_TAG_DEL: %s", strerror(e));
}

void *traffic_taker(void *arg)
{
	struct traffic_thread *t = arg;
	struct traffic *c = t->c;
	struct traffic_wc w[4];
	uint64_t last = now_us();
	while (!c->gone) {
		int n = traffic_next(t, w);
		for (int i = 0; i < n; i++)
			traffic_arrived(t, &w[i]);
		if (n)
			last = now_us();
		if (c->plan.type == C_TM && n && rnd(&t->rng) % 4 == 0 && c->removals < 64)
			traffic_pass(t);
		if (n)
			continue;
		if (c->is_dead(c->arg))
			c->gone = 1;
		if (c->board->finished && c->board->received >= c->board->sent && !c->removals)
			break;
		if (now_us() > last + 3ull * WAIT_US)
			traffic_bad(c, "%llu of %llu messages came, finished %d, %llu removals", (unsigned long long)c->board->received, (unsigned long long)c->board->sent, (int)c->board->finished,
				  (unsigned long long)c->removals);
	}
	return NULL;
}

/* ---- changes to objects beside the traffic ---- */

void *traffic_meddler(void *arg)
{
	struct traffic_thread *t = arg;
	struct traffic *c = t->c;
	struct ibv_qp_init_attr ua = { .send_cq = c->cq[0], .recv_cq = c->cq[0], .qp_type = IBV_QPT_UD, .cap = { 1, 1, 1, 1, 0 } };
	union ibv_gid g = { .raw = { 0xff, 0x0e, [8] = (uint8_t)c->role, [9] = (uint8_t)getpid(), [10] = (uint8_t)(getpid() >> 8), [15] = 1 } };
	struct ibv_qp *ud = ibv_create_qp(c->pd, &ua), *qp;
	traffic_must(c, ud != NULL, "a UD QP");
	struct ibv_qp_attr ia = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = C_QKEY };
	if (ibv_modify_qp(ud, &ia, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		traffic_bad(c, "a UD QP to INIT");
	while (!c->stop) {
		struct ibv_qp_init_attr qa = { .send_cq = c->cq[0], .recv_cq = c->cq[0], .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
		struct ibv_qp_attr a;
		struct ibv_srq_attr sa = { .max_wr = C_RECVS + rnd(&t->rng) % C_RECVS };
		struct ibv_ah *ah;
		struct ibv_mr *mr;
		struct ibv_mw *mw;
		int e = 0;
		const char *what = "";
		switch (rnd(&t->rng) % 10) {
		case 0:
			what = "ibv_resize_cq";
			e = ibv_resize_cq(c->cq[rnd(&t->rng) % (unsigned)c->plan.cqs], C_CQE + (int)(rnd(&t->rng) % 1000));
			break;
		case 1:
			what = "ibv_rereg_mr beside";
			mr = ibv_reg_mr(c->pd, c->memory, 4096, IBV_ACCESS_LOCAL_WRITE);
			traffic_must(c, mr != NULL, "ibv_reg_mr");
			e = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL, c->memory, 8192, IBV_ACCESS_REMOTE_READ);
			e = e ? e : ibv_dereg_mr(mr);
			break;
		case 2:
			what = "an address handle";
			ah = traffic_ah(c);
			e = ibv_destroy_ah(ah);
			break;
		case 3:
			what = "a QP beside";
			if (c->role && c->plan.srqs && c->plan.type != C_XRC)
				qa.srq = c->srq[0];
			qp = ibv_create_qp(c->pd, &qa);
			traffic_must(c, qp != NULL, "ibv_create_qp");
			e = ibv_destroy_qp(qp);
			break;
		case 4:
			what = "a group";
			e = ibv_attach_mcast(ud, &g, 0);
			e = e ? e : ibv_detach_mcast(ud, &g, 0);
			break;
		case 5:
			what = "ibv_modify_srq";
			if (c->role && c->plan.srqs && c->plan.type != C_XRC && c->plan.type != C_TM)
				e = ibv_modify_srq(c->srq[0], &sa, IBV_SRQ_MAX_WR);
			break;
		case 6:
			what = "ibv_query_srq";
			if (c->role && c->plan.srqs && ((e = ibv_query_srq(c->srq[0], &sa)) || sa.max_wr < C_RECVS))
				traffic_bad(c, "ibv_query_srq: %d, %u", e, sa.max_wr);
			break;
		case 8:
			what = "a parent domain";
			struct ibv_td *td = ibv_alloc_td(c->ctx, &(struct ibv_td_init_attr){ 0 });
			struct ibv_pd *parent = td ? ibv_alloc_parent_domain(c->ctx, &(struct ibv_parent_domain_init_attr){ .pd = c->pd, .td = td }) : NULL;
			qp = parent ? ibv_create_qp(parent, &qa) : NULL;
			traffic_must(c, qp != NULL, "a QP in a parent domain");
			e = ibv_destroy_qp(qp);
			e = e ? e : ibv_dealloc_pd(parent);
			e = e ? e : ibv_dealloc_td(td);
			break;
		case 7:
			what = "a window";
			mw = ibv_alloc_mw(c->pd, IBV_MW_TYPE_1);
			traffic_must(c, mw != NULL, "ibv_alloc_mw");
			e = ibv_dealloc_mw(mw);
			break;
		default: {
			struct ibv_qp_init_attr was;
			what = "ibv_query_qp";
			e = ibv_query_qp(c->qp[0], &a, IBV_QP_STATE, &was);
			if (!e && a.qp_state != (c->xrcd ? IBV_QPS_RTR : IBV_QPS_RTS))
				traffic_gone(c, "the state of a QP", IBV_WC_WR_FLUSH_ERR);
		}
		}
		if (e)
			traffic_bad(c, "%s: %s", what, strerror(e));
		usleep(rnd(&t->rng) % 1000);
	}
	if (ibv_destroy_qp(ud))
		traffic_bad(c, "ibv_destroy_qp");
	return NULL;
}

void traffic_account(struct traffic *c)
{
	if (!c->role)
		return;
	if (c->counter != c->board->adds)
		traffic_bad(c, "the counter is %llu, should be %llu", (unsigned long long)c->counter, (unsigned long long)c->board->adds);
	/* UD messages are complete as well: a receive is posted for each, and shared memory loses
	 * none. */
	if (c->board->received != c->board->sent)
		traffic_bad(c, "%llu messages came of %llu", (unsigned long long)c->board->received, (unsigned long long)c->board->sent);
}
