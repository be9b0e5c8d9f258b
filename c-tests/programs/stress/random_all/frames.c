/*
 * Ethernet frames of random_all.c. Both sides have RAW_PACKET QPs (one with an SRQ), work queues
 * behind an indirection table with hashed QPs, and steering rules with tags, counters and
 * priorities. Objects come and go, and either side sends. Both sides keep the rules of both, and
 * predict from them the queue, number and tag of each frame.
 *
 * All connections share the segment: each connection has its own destination addresses, and all its
 * rules name them. A frame that finds no receive for long is lost, as on a cable. The batch is then
 * sent again with another number until it arrives complete.
 *
 * Map of this file: The functions fr_make_* create QPs, work queues, tables and rules; fr_counted
 * checks counters; fr_end_rule, fr_forget and fr_destroy_spreading destroy objects.
 * fr_post_receives posts receives; fr_take_receive checks their order; fr_arrived checks the
 * completion and bytes of a frame against the prediction. fr_flush empties a work queue; fr_change
 * makes one random change of objects; fr_send and fr_sent post frames and check send completions.
 * fr_complete decides whether a batch is complete; fr_try runs a batch once; fr_batch changes
 * objects and repeats a batch until it arrives. fr_alone checks this side after the death of the
 * other process; run_frames is the entry of one side. frames_plan.c has the model.
 */
#include "random_all.h"

/* ---- objects ---- */

static void fr_must(const struct side *s, int e, const char *what)
{
	if (e)
		bad(s, "%s: %s", what, strerror(e));
}

static void fr_make_plain(struct side *s, struct frames *x, unsigned i)
{
	uint32_t flags = x->of[s->role].flags[i];
	struct ibv_qp_init_attr_ex a = { .send_cq = s->cq, .recv_cq = s->cq, .cap = { .max_send_wr = DEPTH, .max_send_sge = 4, .max_inline_data = 200 }, .qp_type = IBV_QPT_RAW_PACKET,
					 .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | (s->plan.new_api ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0u), .pd = s->pd,
					 .create_flags = flags, .send_ops_flags = IBV_QP_EX_WITH_SEND, .sq_sig_all = s->plan.sig_all };
	if (i == FR_SHARED && s->srq) {
		a.srq = s->srq;
	} else {
		a.cap.max_recv_wr = FR_RECVS;
		a.cap.max_recv_sge = 1;
	}
	struct ibv_qp *qp = x->qp[i] = ibv_create_qp_ex(s->ctx, &a);
	if (!qp)
		bad(s, "ibv_create_qp_ex of RAW_PACKET: %s", strerror(errno));
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int e = ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PORT);
	for (to.qp_state = IBV_QPS_RTR; !e && to.qp_state <= IBV_QPS_RTS; to.qp_state++)
		e = ibv_modify_qp(qp, &to, IBV_QP_STATE);
	fr_must(s, e, "a RAW_PACKET QP to RTS");
}

static void fr_ready(struct side *s, struct frames *x, unsigned i, enum ibv_wq_state state)
{
	struct ibv_wq_attr a = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = state };
	fr_must(s, ibv_modify_wq(x->wq[i], &a), "ibv_modify_wq");
}

static void fr_make_work(struct side *s, struct frames *x, unsigned i)
{
	uint32_t flags = x->of[s->role].flags[FR_PLAIN + i];
	struct ibv_wq_init_attr a = { .wq_type = IBV_WQT_RQ, .max_wr = FR_RECVS, .max_sge = 1, .pd = s->pd, .cq = s->cq, .comp_mask = IBV_WQ_INIT_ATTR_FLAGS };
	a.create_flags = (flags & IBV_QP_CREATE_CVLAN_STRIPPING ? IBV_WQ_FLAGS_CVLAN_STRIPPING : 0u) | (flags & IBV_QP_CREATE_SCATTER_FCS ? IBV_WQ_FLAGS_SCATTER_FCS : 0u);
	x->wq[i] = ibv_create_wq(s->ctx, &a);
	if (!x->wq[i])
		bad(s, "ibv_create_wq: %s", strerror(errno));
	fr_ready(s, x, i, IBV_WQS_RDY);
}

static void fr_make_table(struct side *s, struct frames *x)
{
	const struct fr_model *m = &x->of[s->role];
	struct ibv_wq *list[1 << FR_TABLE];
	for (unsigned i = 0; i < 1u << m->log; i++)
		list[i] = x->wq[m->table[i]];
	x->table = ibv_create_rwq_ind_table(s->ctx, &(struct ibv_rwq_ind_table_init_attr){ .log_ind_tbl_size = m->log, .ind_tbl = list });
	if (!x->table)
		bad(s, "ibv_create_rwq_ind_table: %s", strerror(errno));
}

static void fr_make_spreading(struct side *s, struct frames *x, unsigned i)
{
	struct ibv_qp_init_attr_ex a = { .qp_type = IBV_QPT_RAW_PACKET, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH, .pd = s->pd, .rwq_ind_tbl = x->table,
					 .rx_hash_conf = { IBV_RX_HASH_FUNC_TOEPLITZ, sizeof rss_key, rss_key, fr_fields[x->of[s->role].fields[i]] } };
	x->qp[FR_PLAIN + i] = ibv_create_qp_ex(s->ctx, &a);
	if (!x->qp[FR_PLAIN + i])
		bad(s, "a QP that spreads: %s", strerror(errno));
}

static void fr_make_rule(struct side *s, struct frames *x, struct fr_rule *r)
{
	const struct fr_demand *d = &r->want;
	struct rule to = rule_start((uint16_t)r->priority);
	int addresses = d->src_mask | d->dst_mask || d->v6;
	to.attr.flags = r->spread_thin ? IBV_FLOW_ATTR_FLAGS_DONT_TRAP : 0;
	eth_spec(&to, 0, fr_mac(s, d->mac), 0, addresses ? 0 : (uint16_t)d->type, d->vlan ? (int)d->vlan : -1);
	if (d->src_mask | d->dst_mask)
		ipv4_spec(&to, d->src, d->dst, d->src_mask | d->dst_mask);
	if (d->v6) {
		struct ibv_flow_spec_ipv6 v6 = { .type = IBV_FLOW_SPEC_IPV6, .size = sizeof v6 };
		fr_v6(v6.val.dst_ip, d->v6);
		memset(v6.mask.dst_ip, 0xff, 16);
		rule_add(&to, &v6, sizeof v6);
	}
	if (d->proto)
		port_spec(&to, d->proto == FR_TCP ? IBV_FLOW_SPEC_TCP : IBV_FLOW_SPEC_UDP, (uint16_t)d->sport, (uint16_t)d->dport);
	if (r->tag)
		tag_spec(&to, r->tag);
	if (r->drop)
		drop_spec(&to);
	if (r->counted) {
		struct ibv_counters_init_attr none = { 0 };
		r->counters = ibv_create_counters(s->ctx, &none);
		for (uint32_t i = 0; i < 2; i++) {
			struct ibv_counter_attach_attr a = { .counter_desc = i ? IBV_COUNTER_BYTES : IBV_COUNTER_PACKETS, .index = i };
			if (!r->counters || ibv_attach_counters_point_flow(r->counters, &a, NULL))
				bad(s, "counters: %s", strerror(errno));
		}
		count_spec(&to, r->counters);
	}
	r->flow = ibv_create_flow(x->qp[r->target], &to.attr);
	if (!r->flow)
		bad(s, "ibv_create_flow: %s", strerror(errno));
}

/* Whether the counters of a rule are plausible for the present batch. */
static int fr_counted(const struct side *s, const struct frames *x, const struct fr_rule *r)
{
	uint64_t is[2], least[2] = { r->least[0], r->least[1] };
	if (!r->live || !r->counters)
		return 1;
	for (unsigned i = 0; i < x->n; i++)
		if (fr_gets(r, fr_winner(x, &x->frame[i]), &x->frame[i])) {
			least[0]++;
			least[1] += x->frame[i].len;
		}
	fr_must(s, ibv_read_counters(r->counters, is, 2, 0), "ibv_read_counters");
	if (is[0] > r->most[0] || is[1] > r->most[1])
		bad(s, "a rule counted %llu frames, %llu bytes, of %llu, %llu", (unsigned long long)is[0], (unsigned long long)is[1], (unsigned long long)r->most[0], (unsigned long long)r->most[1]);
	return is[0] >= least[0] && is[1] >= least[1];
}

static void fr_end_rule(struct side *s, struct fr_rule *r)
{
	if (r->counters && ibv_destroy_counters(r->counters) != EBUSY)
		bad(s, "ibv_destroy_counters while a rule counts");
	fr_must(s, ibv_destroy_flow(r->flow), "ibv_destroy_flow");
	if (r->counters)
		fr_must(s, ibv_destroy_counters(r->counters), "ibv_destroy_counters");
}

/* Removes all rules that name a target QP. `mine`: this side has the target. */
static void fr_forget(struct side *s, struct frames *x, int role, unsigned target, int mine)
{
	for (int k = 0; k < FR_RULES; k++) {
		struct fr_rule *r = &x->of[role].rule[k];
		if (!r->live || r->target != target)
			continue;
		if (mine && ibv_destroy_qp(x->qp[target]) != EBUSY)
			bad(s, "ibv_destroy_qp while a rule names it");
		if (mine)
			fr_end_rule(s, r);
		r->live = 0;
	}
}

static void fr_destroy_spreading(struct side *s, struct frames *x)
{
	if (ibv_destroy_rwq_ind_table(x->table) != EBUSY)
		bad(s, "ibv_destroy_rwq_ind_table while a QP uses it");
	for (unsigned i = 0; i < FR_RSS; i++)
		fr_must(s, ibv_destroy_qp(x->qp[FR_PLAIN + i]), "ibv_destroy_qp");
	if (ibv_destroy_wq(x->wq[x->of[s->role].table[0]]) != EBUSY)
		bad(s, "ibv_destroy_wq while a table names it");
	fr_must(s, ibv_destroy_rwq_ind_table(x->table), "ibv_destroy_rwq_ind_table");
}

/* ---- receives ---- */

static unsigned char *fr_place(const struct frames *x, unsigned q, unsigned slot) { return x->area + (size_t)(q * FR_RECVS + slot) * FR_ROOM; }

static void fr_post_receives(struct side *s, struct frames *x)
{
	for (unsigned q = 0; q < FR_QUEUES; q++)
		for (unsigned slot = 0; slot < FR_RECVS; slot++) {
			struct ibv_sge sge = { (uintptr_t)fr_place(x, q, slot), FR_ROOM, x->mr->lkey };
			struct ibv_recv_wr *bad_wr, wr = { .wr_id = q << 16 | slot, .sg_list = &sge, .num_sge = 1 };
			if (x->stamp[q][slot])
				continue;
			memset(fr_place(x, q, slot), CANARY, FR_ROOM);
			fr_must(s, q >= FR_PLAIN		     ? ibv_post_wq_recv(x->wq[q - FR_PLAIN], &wr, &bad_wr) :
				   q == FR_SHARED && s->srq ? ibv_post_srq_recv(s->srq, &wr, &bad_wr) :
								     ibv_post_recv(x->qp[q], &wr, &bad_wr),
				"posting a receive");
			x->stamp[q][slot] = ++x->stamps;
		}
}

/* Accounts for a completed receive, which must be the oldest one of its queue. */
static unsigned fr_take_receive(struct side *s, struct frames *x, const struct ibv_wc *wc)
{
	unsigned q = (unsigned)(wc->wr_id >> 16), slot = wc->wr_id & 0xffff;
	if (q >= FR_QUEUES || slot >= FR_RECVS || !x->stamp[q][slot])
		bad(s, "a completion of receive %llx (%s), which is not posted", (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status));
	for (unsigned i = 0; i < FR_RECVS; i++)
		if (x->stamp[q][i] && x->stamp[q][i] < x->stamp[q][slot])
			bad(s, "receive %u of queue %u overtook receive %u", slot, q, i);
	if (wc->qp_num != (q < FR_PLAIN ? x->qp[q]->qp_num : x->wq[q - FR_PLAIN]->wq_num))
		bad(s, "a completion of queue %u with number %x", q, wc->qp_num);
	x->stamp[q][slot] = 0;
	return q;
}

static uint32_t fr_frame_check(const unsigned char *p, uint32_t len)
{
	uint32_t crc = ~0u;
	for (uint32_t i = 0; i < len; i++) {
		crc ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
	}
	return ~crc;
}

static void fr_arrived(struct side *s, struct frames *x, const struct ibv_wc *wc)
{
	unsigned slot = wc->wr_id & 0xffff, q = fr_take_receive(s, x, wc);
	struct fr_model *m = &x->of[s->role];
	uint32_t flags = m->flags[q], fcs = flags & IBV_QP_CREATE_SCATTER_FCS ? 4 : 0;
	const unsigned char *at = fr_place(x, q, slot);
	if (wc->status || wc->opcode != IBV_WC_RECV || wc->byte_len < 22 || wc->byte_len > FR_ROOM)
		bad(s, "queue %u: %s, opcode %d, %u bytes", q, ibv_wc_status_str(wc->status), wc->opcode, wc->byte_len);
	const unsigned char *end = at + wc->byte_len - fcs - 8;
	uint32_t epoch = (uint32_t)end[0] << 24 | (uint32_t)end[1] << 16 | (uint32_t)end[2] << 8 | end[3], number = (uint32_t)end[6] << 8 | end[7];
	/* The frame belongs to an earlier batch that was given up. */
	if (epoch != x->epoch && x->lost[epoch % 64] == epoch)
		return;
	if (epoch != x->epoch || number >= x->n)
		bad(s, "queue %u: frame %u of batch %u in batch %u", q, number, epoch, x->epoch);
	const struct fr_frame *f = &x->frame[number];
	struct fr_due *due = NULL;
	for (unsigned i = 0; i < m->dues[q]; i++) {
		struct fr_due *d = &m->due[q][i];
		if (!due && !d->seen && d->frame == number && d->tag == (uint32_t)s->tag)
			due = d;
		if (d->seen && d->frame > number)
			bad(s, "queue %u: frame %u came before %u", q, d->frame, number);
	}
	if (!due)
		bad(s, "queue %u got frame %u with tag %llx: no rule says so", q, number, (unsigned long long)s->tag);
	due->seen = 1;
	uint32_t cut_off = f->tci && flags & IBV_QP_CREATE_CVLAN_STRIPPING ? 4 : 0, check = fr_frame_check(f->bytes, f->len);
	if (wc->byte_len != f->len - cut_off + fcs || s->priv != (cut_off ? f->tci : 0) || wc->wc_flags != (fr_right(f) ? (unsigned)IBV_WC_IP_CSUM_OK : 0u))
		bad(s, "queue %u, frame %u of %u bytes: %u bytes, tag %x of %x, flags %x", q, number, f->len, wc->byte_len, s->priv, f->tci, wc->wc_flags);
	if (memcmp(at, f->bytes, 12) || memcmp(at + 12, f->bytes + 12 + cut_off, f->len - 12 - cut_off) || (fcs && memcmp(at + f->len - cut_off, &check, 4)))
		bad(s, "queue %u, frame %u: other bytes", q, number);
	for (uint32_t i = wc->byte_len; i < FR_ROOM; i++)
		if (at[i] != CANARY)
			bad(s, "queue %u, frame %u: %02x behind it", q, number, at[i]);
}

/* ---- changes ---- */

/* Flushes a work queue: its posted receives complete in order. */
static void fr_flush(struct side *s, struct frames *x, unsigned i)
{
	fr_ready(s, x, i, IBV_WQS_ERR);
	for (unsigned n = 0; n < FR_RECVS; n++) {
		struct ibv_wc wc;
		while (x->stamp[FR_PLAIN + i][n]) {
			if (!completion(s, &wc, WAIT_US, 0))
				bad(s, "work queue %u was not flushed", i);
			/* A frame of the batch before, or a flushed receive of this queue. */
			if (!wc.status)
				fr_arrived(s, x, &wc);
			else if (wc.status != IBV_WC_WR_FLUSH_ERR || fr_take_receive(s, x, &wc) != FR_PLAIN + i)
				bad(s, "flushing work queue %u: %s", i, ibv_wc_status_str(wc.status));
		}
	}
	fr_ready(s, x, i, IBV_WQS_RESET);
	fr_ready(s, x, i, IBV_WQS_RDY);
}

/* One change of a side's objects. Both sides model the change; the side itself makes it. */
static void fr_change(struct side *s, struct frames *x, int role)
{
	uint64_t *g = &s->plan.rng;
	struct fr_model *m = &x->of[role];
	int mine = (int)s->role == role;
	uint32_t kind = below(g, 16), which = below(g, FR_RULES), strip = IBV_QP_CREATE_CVLAN_STRIPPING;
	static const uint32_t flags[] = { 0, 0, IBV_QP_CREATE_CVLAN_STRIPPING, IBV_QP_CREATE_SCATTER_FCS, IBV_QP_CREATE_CVLAN_STRIPPING | IBV_QP_CREATE_SCATTER_FCS };
	struct fr_rule *r = &m->rule[which];
	unsigned i = which % FR_WORK, p = which % FR_PLAIN, t = which % FR_RSS;
	if (kind < 10) {
		/* Creates a rule in an empty place, or destroys the rule of a place. */
		if (!r->live) {
			fr_plan_rule(s, x, r);
			if (mine)
				fr_make_rule(s, x, r);
		} else if (kind < 5) {
			if (mine)
				fr_end_rule(s, r);
			r->live = 0;
		}
	} else if (kind == 10) {
		if (mine)
			fr_flush(s, x, i);
	} else if (kind == 11) {
		struct ibv_wq_attr a = { .attr_mask = IBV_WQ_ATTR_FLAGS, .flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING };
		m->flags[FR_PLAIN + i] ^= strip;
		a.flags = m->flags[FR_PLAIN + i] & strip ? IBV_WQ_FLAGS_CVLAN_STRIPPING : 0;
		if (mine)
			fr_must(s, ibv_modify_wq(x->wq[i], &a), "IBV_WQ_FLAGS_CVLAN_STRIPPING");
	} else if (kind < 14) {
		fr_forget(s, x, role, p, mine);
		m->flags[p] = flags[below(g, 5)];
		if (mine) {
			fr_must(s, ibv_destroy_qp(x->qp[p]), "ibv_destroy_qp");
			if (p != FR_SHARED || !s->srq)
				memset(x->stamp[p], 0, sizeof x->stamp[p]);
			fr_make_plain(s, x, p);
		}
	} else if (kind == 14) {
		fr_forget(s, x, role, FR_PLAIN + t, mine);
		m->fields[t] = below(g, 4);
		if (mine) {
			fr_must(s, ibv_destroy_qp(x->qp[FR_PLAIN + t]), "ibv_destroy_qp");
			fr_make_spreading(s, x, t);
		}
	} else {
		for (t = 0; t < FR_RSS; t++)
			fr_forget(s, x, role, FR_PLAIN + t, mine);
		if (mine) {
			fr_destroy_spreading(s, x);
			fr_must(s, ibv_destroy_wq(x->wq[i]), "ibv_destroy_wq");
			memset(x->stamp[FR_PLAIN + i], 0, sizeof x->stamp[FR_PLAIN + i]);
		}
		m->flags[FR_PLAIN + i] = flags[below(g, 5)];
		m->log = below(g, FR_TABLE + 1);
		for (unsigned k = 0; k < 1u << FR_TABLE; k++)
			m->table[k] = below(g, FR_WORK);
		if (mine) {
			fr_make_work(s, x, i);
			fr_make_table(s, x);
			for (t = 0; t < FR_RSS; t++)
				fr_make_spreading(s, x, t);
		}
	}
}

/* ---- batches ---- */

static void fr_send(struct side *s, struct frames *x)
{
	unsigned char *room = fr_place(x, FR_QUEUES, 0);
	struct ibv_send_wr wr[FR_FRAMES], *bad_wr;
	struct ibv_sge sge[FR_FRAMES][4];
	struct ibv_qp_ex *ex = s->plan.new_api ? ibv_qp_to_qp_ex(x->qp[0]) : NULL;
	x->next_send = 0;
	for (unsigned i = 0; i < x->n; i++) {
		struct fr_frame *f = &x->frame[i];
		unsigned char *at = room + (size_t)i * FR_ROOM;
		struct ibv_data_buf bufs[4];
		fr_build(s, f, x->epoch, i, 1);
		memcpy(at, f->bytes, f->len);
		fr_build(s, f, x->epoch, i, 0);
		for (int k = 0; k < f->how.pieces; k++) {
			sge[i][k] = (struct ibv_sge){ (uintptr_t)at + f->how.piece[k].offset, f->how.piece[k].len, x->mr->lkey };
			bufs[k] = (struct ibv_data_buf){ (void *)(uintptr_t)sge[i][k].addr, sge[i][k].length };
		}
		wr[i] = (struct ibv_send_wr){ .wr_id = FR_SEND | i, .sg_list = sge[i], .num_sge = f->how.pieces, .opcode = IBV_WR_SEND, .send_flags = f->how.flags };
		if (i)
			wr[i - 1].next = &wr[i];
		if (!ex)
			continue;
		if (!i)
			ibv_wr_start(ex);
		ex->wr_id = FR_SEND | i;
		ex->wr_flags = f->how.flags & ~(unsigned)IBV_SEND_INLINE;
		ibv_wr_send(ex);
		if (f->how.flags & IBV_SEND_INLINE)
			ibv_wr_set_inline_data_list(ex, (size_t)f->how.pieces, bufs);
		else
			ibv_wr_set_sge_list(ex, (size_t)f->how.pieces, sge[i]);
	}
	fr_must(s, ex ? ibv_wr_complete(ex) : ibv_post_send(x->qp[0], wr, &bad_wr), "sending frames");
}

static void fr_sent(struct side *s, struct frames *x, const struct ibv_wc *wc)
{
	unsigned i = wc->wr_id & 0xff;
	if (wc->wr_id != (FR_SEND | i) || i < x->next_send || i >= x->n || wc->status || wc->opcode != IBV_WC_SEND || wc->qp_num != x->qp[0]->qp_num)
		bad(s, "frame %u of %u: completion of %llx, %s, opcode %d", x->next_send, x->n, (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status), wc->opcode);
	for (; x->next_send < i; x->next_send++)
		if (s->plan.sig_all || x->frame[x->next_send].how.flags & IBV_SEND_SIGNALED)
			bad(s, "frame %u: no completion, but one of %u", x->next_send, i);
	if (!s->plan.sig_all && !(x->frame[i].how.flags & IBV_SEND_SIGNALED))
		bad(s, "frame %u: a completion nobody asked for", i);
	x->next_send++;
}

static int fr_complete(const struct side *s, const struct frames *x)
{
	const struct fr_model *m = &x->of[s->role];
	for (unsigned q = 0; q < FR_QUEUES; q++)
		for (unsigned i = 0; i < m->dues[q]; i++)
			if (!m->due[q][i].seen)
				return 0;
	for (int k = 0; k < FR_RULES; k++)
		if (!fr_counted(s, x, &m->rule[k]))
			return 0;
	return x->sender != s->role || x->next_send == x->n;
}

/* Sends and receives the planned batch under a new number. Returns 0 if a frame did not arrive. */
static int fr_try(struct side *s, struct frames *x)
{
	struct ibv_wc wc;
	uint64_t end = now_us() + FR_LOST_US;
	if (x->sender == s->role)
		fr_send(s, x);
	while (!fr_complete(s, x)) {
		int dead = s->board->dead[s->plan.proc[!s->role]] && !s->gone && (x->sender != s->role || x->next_send == x->n);
		if (completion(s, &wc, 1000, 0)) {
			if (wc.wr_id & FR_SEND)
				fr_sent(s, x, &wc);
			else
				fr_arrived(s, x, &wc);
			end = now_us() + FR_LOST_US;
		} else if (dead || now_us() > end) {
			break;
		}
	}
	if (x->sender == s->role && x->next_send < x->n)
		bad(s, "frame %u of %u: no completion", x->next_send, x->n);
	return fr_complete(s, x);
}

/* Gives the batch a new number, and marks all its frames as not received. */
static void fr_begin(const struct side *s, struct frames *x)
{
	x->epoch++;
	fr_count(x, 0);
	for (unsigned i = 0; i < x->n; i++)
		fr_build(s, &x->frame[i], x->epoch, i, 0);
	for (unsigned q = 0; q < FR_QUEUES; q++)
		for (unsigned i = 0; i < FR_DUES; i++)
			x->of[s->role].due[q][i].seen = 0;
}

/* Runs one batch. Returns 1 if the other process is dead. */
static int fr_batch(struct side *s, struct frames *x, int first)
{
	struct info *told = s->board->link[s->link].info;
	for (int role = 0; role < 2; role++) {
		for (uint32_t n = first ? 8 : below(&s->plan.rng, 4); n; n--)
			fr_change(s, x, role);
		if (together(s))
			return 1;
	}
	fr_plan_batch(s, x);
	x->sender = below(&s->plan.rng, 2);
	for (int tries = 0; tries < FR_TRIES; tries++) {
		fr_begin(s, x);
		fr_post_receives(s, x);
		if (together(s))
			return 1;
		told[s->role].srqn = (uint32_t)fr_try(s, x);
		if (together(s))
			return 1;
		int there = told[0].srqn && told[1].srqn;
		if (!there)
			x->lost[x->epoch % 64] = x->epoch;
		if (together(s))
			return 1;
		if (there) {
			fr_count(x, 1);
			return 0;
		}
		if (s->role == REQUESTER)
			atomic_fetch_add(&s->board->lost, 1);
	}
	bad(s, "%u frames from %u were lost %d times", x->n, x->sender, FR_TRIES);
}

/* After the death of the other process its rules affect no frame of this side. */
static void fr_alone(struct side *s, struct frames *x)
{
	atomic_fetch_add(&s->board->survived, 1);
	for (int k = 0; k < FR_RULES; k++)
		x->of[!s->role].rule[k].live = 0;
	x->sender = s->role;
	for (int tries = 0; tries < FR_TRIES; tries++) {
		x->lost[x->epoch % 64] = x->epoch;
		if (!tries)
			fr_plan_batch(s, x);
		fr_begin(s, x);
		fr_post_receives(s, x);
		if (fr_try(s, x))
			return;
	}
	bad(s, "the other process is dead, and %u frames were lost %d times", x->n, FR_TRIES);
}

void run_frames(struct side *s)
{
	struct frames *x = calloc(1, sizeof *x);
	size_t bytes = (size_t)(FR_QUEUES * FR_RECVS + FR_FRAMES) * FR_ROOM;
	int dead = 0;
	s->pd = ibv_alloc_pd(s->ctx);
	if (!x || !s->pd || !(x->area = malloc(bytes)) || !(x->mr = ibv_reg_mr(s->pd, x->area, bytes, IBV_ACCESS_LOCAL_WRITE)))
		bad(s, "out of memory");
	cq_make(s);
	if (s->plan.srq) {
		s->srq = ibv_create_srq(s->pd, &(struct ibv_srq_init_attr){ .attr = { .max_wr = FR_RECVS, .max_sge = 1 } });
		if (!s->srq)
			bad(s, "ibv_create_srq: %s", strerror(errno));
	}
	for (unsigned i = 0; i < FR_PLAIN; i++)
		fr_make_plain(s, x, i);
	for (unsigned i = 0; i < FR_WORK; i++)
		fr_make_work(s, x, i);
	fr_make_table(s, x);
	for (unsigned i = 0; i < FR_RSS; i++)
		fr_make_spreading(s, x, i);
	for (int n = 0; n < 2 * s->plan.batches && !dead; n++) {
		dead = fr_batch(s, x, !n);
		if (!dead && s->role == REQUESTER) {
			atomic_fetch_add(&s->board->requests, x->n);
			atomic_fetch_add(&s->board->batches, 1);
		}
	}
	if (dead)
		fr_alone(s, x);
	for (int k = 0; k < FR_RULES; k++)
		if (x->of[s->role].rule[k].live)
			fr_end_rule(s, &x->of[s->role].rule[k]);
	fr_destroy_spreading(s, x);
	for (unsigned i = 0; i < FR_WORK; i++)
		fr_must(s, ibv_destroy_wq(x->wq[i]), "ibv_destroy_wq");
	for (unsigned i = 0; i < FR_PLAIN; i++)
		fr_must(s, ibv_destroy_qp(x->qp[i]), "ibv_destroy_qp");
	if (s->srq)
		fr_must(s, ibv_destroy_srq(s->srq), "ibv_destroy_srq");
	if (s->unacked)
		ibv_ack_cq_events(s->cq, s->unacked);
	fr_must(s, ibv_destroy_cq(s->cq), "ibv_destroy_cq");
	if (s->channel)
		fr_must(s, ibv_destroy_comp_channel(s->channel), "ibv_destroy_comp_channel");
	fr_must(s, ibv_dereg_mr(x->mr), "ibv_dereg_mr");
	fr_must(s, ibv_dealloc_pd(s->pd), "ibv_dealloc_pd");
	free(x->area);
	free(x);
}
