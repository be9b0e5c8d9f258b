/*
 * A tag matching SRQ with RC QPs that are connected to ends of the rig, and complete checks of its
 * completions.
 */
#include "matcher.h"

struct tm_options tm_defaults(void)
{
	return (struct tm_options){ .peers = 1, .tags = 64, .ops = 64, .srq_wr = 64, .cqe = 1024, .size = 4 << 20, .rnr_retry = 7 };
}

void tm_connect(struct matcher *t, int i)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	if (ibv_query_gid(t->ctx, 1, hosts_differ(), &gid) || ibv_query_port(t->ctx, 1, &port))
		die("port or GID");
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int err = ibv_modify_qp(t->qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (err)
		die("to INIT: %s", strerror(err));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				  .path_mtu = port.active_mtu,
				  .dest_qp_num = t->his[i].qpn,
				  .rq_psn = t->his[i].psn,
				  .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 1,
				  .ah_attr = { .is_global = 1, .grh = { .dgid = t->his[i].gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() }, .port_num = 1 } };
	err = ibv_modify_qp(t->qp[i], &a,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER);
	if (err)
		die("to RTR: %s", strerror(err));
	struct address mine = { .qpn = t->qp[i]->qp_num, .psn = t->qp[i]->qp_num * 77 & 0xffffff, .lid = port.lid, .gid = gid };
	end_connect(t->peer[i], mine);
}

void tm_to_rts(struct matcher *t, int i)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .sq_psn = t->qp[i]->qp_num * 77 & 0xffffff, .max_rd_atomic = 1,
				 .retry_cnt = 7, .rnr_retry = 7, .timeout = hosts_differ() ? 18 : 10 };
	int err = ibv_modify_qp(t->qp[i], &a,
				IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT);
	if (err)
		die("to RTS: %s", strerror(err));
}

void tm_make_qp(struct matcher *t, int i)
{
	struct ibv_cq *cq = ibv_cq_ex_to_cq(t->cq);
	struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .srq = t->srq, .qp_type = IBV_QPT_RC };
	t->qp[i] = ibv_create_qp(t->pd, &qa);
	if (!t->qp[i])
		die("ibv_create_qp: %s", strerror(errno));
}

void tm_open(struct matcher *t, const struct tm_options *o)
{
	t->peers = o->peers;
	t->ctx = open_device();
	t->pd = ibv_alloc_pd(t->ctx);
	t->size = o->size;
	t->buf = mmap(NULL, o->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	t->mr = ibv_reg_mr(t->pd, t->buf, t->size, IBV_ACCESS_LOCAL_WRITE);
	t->channel = o->channel ? ibv_create_comp_channel(t->ctx) : NULL;
	struct ibv_cq_init_attr_ex ca = {
		.cqe = o->cqe,
		.channel = t->channel,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_TM_INFO,
	};
	t->cq = ibv_create_cq_ex(t->ctx, &ca);
	if (!t->pd || t->buf == MAP_FAILED || !t->mr || !t->cq)
		die("set up: %s", strerror(errno));
	struct ibv_srq_init_attr_ex sa = {
		.srq_context = t,
		.attr = { .max_wr = o->srq_wr, .max_sge = 2 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
		.srq_type = IBV_SRQT_TM,
		.pd = t->pd,
		.cq = ibv_cq_ex_to_cq(t->cq),
		.tm_cap = { .max_num_tags = o->tags, .max_ops = o->ops },
	};
	t->srq = ibv_create_srq_ex(t->ctx, &sa);
	if (!t->srq)
		die("ibv_create_srq_ex: %s", strerror(errno));
	for (int i = 0; i < t->peers; i++) {
		struct options e = defaults();
		e.rnr_retry = o->rnr_retry;
		e.depth = 256;
		t->his[i] = end_open(t->peer[i], e);
		tm_make_qp(t, i);
		tm_connect(t, i);
		tm_to_rts(t, i);
	}
}

void tm_close(struct matcher *t)
{
	for (int i = 0; i < t->peers; i++) {
		if (t->qp[i])
			check_eq(ibv_destroy_qp(t->qp[i]), 0, "ibv_destroy_qp");
		end_close(t->peer[i]);
	}
	check_eq(ibv_destroy_srq(t->srq), 0, "ibv_destroy_srq");
	check_eq(ibv_destroy_cq(ibv_cq_ex_to_cq(t->cq)), 0, "ibv_destroy_cq");
	if (t->channel)
		check_eq(ibv_destroy_comp_channel(t->channel), 0, "ibv_destroy_comp_channel");
	check_eq(ibv_dereg_mr(t->mr), 0, "ibv_dereg_mr");
	check_eq(ibv_dealloc_pd(t->pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(t->ctx), 0, "ibv_close_device");
	munmap(t->buf, t->size);
}

/* ---- completions ---- */

int tm_try(struct matcher *t, struct seen *s, unsigned us)
{
	uint64_t until = now_us() + us;
	struct ibv_poll_cq_attr pa = { 0 };
	int err;
	while ((err = ibv_start_poll(t->cq, &pa)) == ENOENT)
		if (now_us() >= until)
			return 0;
	if (err)
		die("ibv_start_poll: %s", strerror(err));
	*s = (struct seen){ .wr_id = t->cq->wr_id, .status = t->cq->status, .opcode = ibv_wc_read_opcode(t->cq), .qp_num = ibv_wc_read_qp_num(t->cq) };
	if (s->status == IBV_WC_SUCCESS || s->status == IBV_WC_TM_RNDV_INCOMPLETE || s->status == IBV_WC_TM_ERR) {
		struct ibv_wc_tm_info info;
		ibv_wc_read_tm_info(t->cq, &info);
		s->tag = info.tag;
		s->priv = info.priv;
		s->flags = ibv_wc_read_wc_flags(t->cq);
		s->byte_len = ibv_wc_read_byte_len(t->cq);
		if (s->flags & IBV_WC_WITH_IMM)
			s->imm = ibv_wc_read_imm_data(t->cq);
	}
	ibv_end_poll(t->cq);
	return 1;
}

struct seen tm_wait(struct matcher *t)
{
	struct seen s;
	if (!tm_try(t, &s, WAIT_US))
		die("no completion came");
	return s;
}

int tm_same(const struct seen *got, const struct seen *want)
{
	return got->wr_id == want->wr_id && got->status == want->status && got->opcode == want->opcode && got->flags == want->flags &&
	       got->byte_len == want->byte_len && got->qp_num == want->qp_num && got->imm == want->imm && got->tag == want->tag &&
	       got->priv == want->priv;
}

void tm_say(const char *which, const struct seen *s)
{
	printf("  %s: wr_id %#llx, %s, opcode %d, flags %#x, length %u, QP %#x, imm %#x, tag %#llx, priv %#x\n", which,
	       (unsigned long long)s->wr_id, ibv_wc_status_str(s->status), (int)s->opcode, s->flags, s->byte_len, s->qp_num, s->imm,
	       (unsigned long long)s->tag, s->priv);
}

__attribute__((format(printf, 3, 4))) int tm_expect(struct matcher *t, struct seen want, const char *format, ...)
{
	char text[200];
	va_list ap;
	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	struct seen got;
	if (!tm_try(t, &got, WAIT_US))
		return check(0, "%s: no completion came", text);
	if (!check(tm_same(&got, &want), "%s", text)) {
		tm_say("is", &got);
		tm_say("should be", &want);
		return 0;
	}
	return 1;
}

void tm_quiet(struct matcher *t, const char *when)
{
	struct seen got;
	if (!check(!tm_try(t, &got, QUIET_US), "no completion %s", when))
		tm_say("but", &got);
}

struct seen seen_op(uint64_t id, enum ibv_wc_opcode opcode, unsigned flags)
{
	return (struct seen){ .wr_id = id, .opcode = opcode, .flags = flags };
}

struct seen seen_eager(struct matcher *t, int i, uint64_t id, const struct message *m)
{
	return (struct seen){ .wr_id = id, .opcode = IBV_WC_TM_RECV, .flags = MATCHED | (m->with_imm ? IBV_WC_WITH_IMM : 0), .byte_len = m->len,
			      .qp_num = t->qp[i]->qp_num, .imm = m->with_imm ? m->imm : 0, .tag = m->tag, .priv = m->app_ctx };
}

struct seen seen_match(struct matcher *t, int i, uint64_t id, const struct message *m)
{
	return (struct seen){ .wr_id = id, .opcode = IBV_WC_TM_RECV, .flags = IBV_WC_TM_MATCH, .qp_num = t->qp[i]->qp_num, .tag = m->tag,
			      .priv = m->app_ctx };
}

struct seen seen_data(struct matcher *t, int i, uint64_t id, const struct message *m)
{
	return (struct seen){ .wr_id = id, .opcode = IBV_WC_TM_RECV, .flags = IBV_WC_TM_DATA_VALID, .qp_num = t->qp[i]->qp_num,
			      .byte_len = m->rlen };
}

static inline uint32_t message_bytes(const struct message *m)
{
	return (m->opcode == IBV_TMH_RNDV || m->opcode == IBV_TMH_FIN ? HEADERS : TMH_BYTES) + m->len;
}

struct seen seen_whole(struct matcher *t, int i, uint64_t id, const struct message *m, enum ibv_wc_opcode opcode)
{
	return (struct seen){ .wr_id = id, .opcode = opcode, .flags = m->with_imm ? IBV_WC_WITH_IMM : 0, .byte_len = message_bytes(m),
			      .qp_num = t->qp[i]->qp_num, .imm = m->with_imm ? m->imm : 0 };
}

/* ---- operations ---- */

int tm_op(struct matcher *t, struct ibv_ops_wr *wr)
{
	struct ibv_ops_wr *bad = NULL;
	int err = ibv_post_srq_ops(t->srq, wr, &bad);
	if (err && bad != wr)
		die("ibv_post_srq_ops: bad_wr");
	return err;
}

uint32_t tm_add(struct matcher *t, uint64_t id, uint64_t tag, uint64_t mask, uint64_t offset, uint32_t len, unsigned flags, uint32_t seen)
{
	struct ibv_sge sge = { (uintptr_t)t->buf + offset, len, t->mr->lkey };
	struct ibv_ops_wr wr = { .wr_id = ~id, .opcode = IBV_WR_TAG_ADD, .flags = (int)flags };
	wr.tm.unexpected_cnt = seen;
	wr.tm.add.recv_wr_id = id;
	wr.tm.add.sg_list = &sge;
	wr.tm.add.num_sge = 1;
	wr.tm.add.tag = tag;
	wr.tm.add.mask = mask;
	int err = tm_op(t, &wr);
	if (err)
		die("IBV_WR_TAG_ADD: %s", strerror(err));
	return wr.tm.handle;
}

int tm_del(struct matcher *t, uint64_t id, uint32_t handle, unsigned flags)
{
	struct ibv_ops_wr wr = { .wr_id = id, .opcode = IBV_WR_TAG_DEL, .flags = (int)flags };
	wr.tm.handle = handle;
	return tm_op(t, &wr);
}

void tm_sync(struct matcher *t, uint64_t id, uint32_t seen, unsigned flags)
{
	struct ibv_ops_wr wr = { .wr_id = id, .opcode = IBV_WR_TAG_SYNC, .flags = (int)(flags | IBV_OPS_TM_SYNC) };
	wr.tm.unexpected_cnt = seen;
	int err = tm_op(t, &wr);
	if (err)
		die("IBV_WR_TAG_SYNC: %s", strerror(err));
}

void tm_recv(struct matcher *t, uint64_t id, uint64_t offset, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)t->buf + offset, len, t->mr->lkey };
	struct ibv_recv_wr w = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	int err = ibv_post_srq_recv(t->srq, &w, &bad);
	if (err)
		die("ibv_post_srq_recv: %s", strerror(err));
}

/* ---- the sending side ---- */

void put_headers(const struct message *m, unsigned char *p)
{
	struct ibv_tmh h = { .opcode = m->opcode, .app_ctx = htobe32(m->app_ctx), .tag = htobe64(m->tag) };
	struct ibv_rvh r = { .va = htobe64(m->va), .rkey = htobe32(m->rkey), .len = htobe32(m->rlen) };
	/* Receivers ignore these. */
	memset(h.reserved, 0xee, sizeof h.reserved);
	memcpy(p, &h, sizeof h);
	memcpy(p + TMH_BYTES, &r, sizeof r);
}

void tm_send(struct matcher *t, int i, const struct message *m, uint64_t id)
{
	unsigned char headers[HEADERS];
	uint32_t bytes = message_bytes(m);
	put_headers(m, headers);
	end_write(t->peer[i], m->offset, headers, bytes - m->len);
	end_fill(t->peer[i], m->offset + bytes - m->len, m->len, m->seed);
	struct request r = one_piece(m->with_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, id, m->offset, bytes);
	r.imm = m->imm;
	int err = end_send(t->peer[i], r);
	if (err)
		die("end_send: %s", strerror(err));
}

void tm_sent(struct matcher *t, int i, uint64_t id)
{
	struct ibv_wc wc = end_wait(t->peer[i], SENDS);
	if (wc.status != IBV_WC_SUCCESS || wc.wr_id != id)
		check(0, "the message was sent: %s, id %llu, should be %llu", ibv_wc_status_str(wc.status), (unsigned long long)wc.wr_id,
		      (unsigned long long)id);
}

int is_message(const struct message *m, const unsigned char *p)
{
	unsigned char headers[HEADERS];
	uint32_t bytes = message_bytes(m);
	put_headers(m, headers);
	return !memcmp(p, headers, bytes - m->len) && verify(p + bytes - m->len, m->len, m->seed) < 0;
}

int is_fin(struct matcher *t, int i, const struct message *m, uint64_t id, uint64_t at)
{
	struct ibv_wc wc = end_wait(t->peer[i], RECVS);
	unsigned char got[HEADERS], want[HEADERS];
	end_read(t->peer[i], at, got, HEADERS);
	struct message fin = *m;
	fin.opcode = IBV_TMH_FIN;
	put_headers(&fin, want);
	/* Reserved bytes are not looked at. */
	memset(got + 1, 0, 3);
	memset(want + 1, 0, 3);
	return wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == id && wc.byte_len == HEADERS && wc.wc_flags == 0 &&
	       !memcmp(got, want, HEADERS);
}
