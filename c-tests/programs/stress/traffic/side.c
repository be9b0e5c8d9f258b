/* Objects of one side of the traffic: creation, connection, receives, polling of completions. */
#include "traffic.h"

int traffic_queues(const struct traffic *c) { return c->plan.srqs ? c->plan.srqs : c->plan.qps; }

unsigned char *traffic_place(const struct traffic *c, int poster, uint32_t seq) { return c->memory + ((size_t)poster * C_SLOTS + seq % C_SLOTS) * C_ROOM; }

unsigned char *traffic_landing(const struct traffic *c, uint64_t id) { return c->memory + ((size_t)C_POSTERS * C_SLOTS + id) * C_ROOM; }

uint64_t traffic_mask(int poster, uint32_t seq)
{
	return (const uint64_t[]){ UINT64_MAX, UINT64_MAX >> 16, UINT64_MAX << 16 }[((uint32_t)poster + seq % C_SLOTS) % 3];
}

uint64_t traffic_tag(int poster, uint32_t seq) { return (uint64_t)(1 + poster * C_SLOTS + (int)(seq % C_SLOTS)) << 24; }

void traffic_must(const struct traffic *c, int ok, const char *what)
{
	if (!ok)
		traffic_bad(c, "%s: %s", what, strerror(errno));
}

/* ---- objects ---- */

static void traffic_make_cq(struct traffic *c, int i)
{
	if (c->plan.extended[c->role]) {
		struct ibv_cq_init_attr_ex a = { .cqe = C_CQE, .channel = c->channel, .wc_flags = IBV_WC_STANDARD_FLAGS | (c->plan.type == C_TM ? IBV_WC_EX_WITH_TM_INFO : 0) };
		c->cqx[i] = ibv_create_cq_ex(c->ctx, &a);
		c->cq[i] = c->cqx[i] ? ibv_cq_ex_to_cq(c->cqx[i]) : NULL;
	} else {
		c->cq[i] = ibv_create_cq(c->ctx, C_CQE, c, c->channel, 0);
	}
	traffic_must(c, c->cq[i] != NULL, "a completion queue");
}

static void traffic_make_srq(struct traffic *c, int i)
{
	struct ibv_srq_init_attr_ex q = { .attr = { .max_wr = C_RECVS, .max_sge = 1 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, .pd = c->pd, .srq_type = IBV_SRQT_BASIC,
					  .cq = c->cq[i % c->plan.cqs] };
	if (c->plan.type == C_XRC) {
		q.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
		q.srq_type = IBV_SRQT_XRC;
		q.xrcd = c->xrcd;
	} else if (c->plan.type == C_TM) {
		q.comp_mask |= IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
		q.srq_type = IBV_SRQT_TM;
		q.tm_cap.max_num_tags = C_POSTERS * C_SLOTS + C_TAKERS;
		q.tm_cap.max_ops = 256;
	}
	c->srq[i] = ibv_create_srq_ex(c->ctx, &q);
	traffic_must(c, c->srq[i] != NULL, "ibv_create_srq_ex");
	traffic_must(c, c->plan.type != C_XRC || !ibv_get_srq_num(c->srq[i], &c->board->info[1].srqn[i]), "ibv_get_srq_num");
}

static void traffic_make_qp(struct traffic *c, int i)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_XRC_SEND, IBV_QPT_UD, IBV_QPT_RC };
	struct ibv_cq *cq = c->cq[i % c->plan.cqs];
	struct ibv_qp_init_attr_ex a = { .qp_type = types[c->plan.type], .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = c->pd, .send_cq = cq, .recv_cq = cq };
	if (!c->role) {
		a.cap = (struct ibv_qp_cap){ .max_send_wr = C_DEPTH, .max_send_sge = 3, .max_inline_data = 200 };
		if (c->plan.how != C_LISTS) {
			a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
			a.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
			if (c->plan.type != C_UD)
				a.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
			if (c->plan.type != C_UD && c->plan.type != C_UC)
				a.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
		}
	} else if (c->plan.type == C_XRC) {
		a = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = c->xrcd };
	} else if (c->plan.srqs) {
		a.srq = c->srq[i % c->plan.srqs];
		if (c->plan.type == C_TM)
			a.recv_cq = c->cq[0];
	} else {
		a.cap = (struct ibv_qp_cap){ .max_recv_wr = C_RECVS, .max_recv_sge = 1 };
	}
	c->qp[i] = ibv_create_qp_ex(c->ctx, &a);
	traffic_must(c, c->qp[i] != NULL, "ibv_create_qp_ex");
	c->board->info[c->role].qpn[i] = c->qp[i]->qp_num;
}

void traffic_receive(struct traffic *c, uint64_t id)
{
	int queue = (int)(id / C_RECVS);
	struct ibv_sge sge = { (uintptr_t)traffic_landing(c, id), C_ROOM, c->mr->lkey };
	struct ibv_recv_wr *bad_wr, wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };
	if (c->posted[id]++)
		traffic_bad(c, "receive %llu twice", (unsigned long long)id);
	int e = c->plan.srqs ? ibv_post_srq_recv(c->srq[queue], &wr, &bad_wr) : ibv_post_recv(c->qp[queue], &wr, &bad_wr);
	if (e)
		traffic_bad(c, "posting a receive: %s", strerror(e));
}

void traffic_add(struct traffic *c, int poster, uint32_t place)
{
	struct ibv_sge sge = { (uintptr_t)traffic_place(c, poster, place), C_ROOM, c->mr->lkey };
	struct ibv_ops_wr *bad_wr, wr = { .opcode = IBV_WR_TAG_ADD };
	wr.tm.add.recv_wr_id = C_ADD_ID | (uint64_t)poster << 8 | place;
	wr.tm.add.sg_list = &sge;
	wr.tm.add.num_sge = 1;
	wr.tm.add.mask = traffic_mask(poster, place);
	wr.tm.add.tag = traffic_tag(poster, place) & wr.tm.add.mask;
	int e = ibv_post_srq_ops(c->srq[0], &wr, &bad_wr);
	if (e)
		traffic_bad(c, "IBV_WR_TAG_ADD: %s", strerror(e));
}

void traffic_open(struct traffic *c)
{
	struct traffic_info *i = &c->board->info[c->role];
	struct ibv_port_attr port;
	size_t places = (size_t)C_POSTERS * C_SLOTS + (c->role ? (size_t)traffic_queues(c) * C_RECVS : 0);
	int fd = -1;
	c->pd = ibv_alloc_pd(c->ctx);
	c->memory = mmap(NULL, places * C_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	traffic_must(c, c->pd && c->memory != MAP_FAILED && !ibv_query_port(c->ctx, 1, &port) && !ibv_query_gid(c->ctx, 1, hosts_differ(), &i->gid), "set up");
	c->mr = ibv_reg_mr(c->pd, c->memory, places * C_ROOM, C_RIGHTS);
	traffic_must(c, c->mr != NULL, "ibv_reg_mr");
	i->lid = port.lid;
	if (c->plan.events[c->role]) {
		c->channel = ibv_create_comp_channel(c->ctx);
		traffic_must(c, c->channel && !fcntl(c->channel->fd, F_SETFL, O_NONBLOCK), "ibv_create_comp_channel");
	}
	for (int k = 0; k < c->plan.cqs; k++)
		traffic_make_cq(c, k);
	if (c->role) {
		struct ibv_xrcd_init_attr x = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
		if (c->plan.type == C_XRC)
			traffic_must(c, (c->xrcd = ibv_open_xrcd(c->ctx, &x)) != NULL, "ibv_open_xrcd");
		for (int k = 0; k < c->plan.srqs; k++)
			traffic_make_srq(c, k);
		if (c->plan.mapped) {
			fd = (int)syscall(SYS_memfd_create, "traffic", 3 /* MFD_CLOEXEC | MFD_ALLOW_SEALING */);
			traffic_must(c, fd >= 0 && !ftruncate(fd, C_TARGET) && !fcntl(fd, 1033 /* F_ADD_SEALS */, 2 /* F_SEAL_SHRINK */), "a sealed memory file");
		}
		c->target = mmap(NULL, C_TARGET, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
		traffic_must(c, c->target != MAP_FAILED, "mmap");
		if (fd >= 0)
			close(fd);
		c->target_mr = ibv_reg_mr(c->pd, c->target, C_TARGET, C_RIGHTS);
		c->counter_mr = ibv_reg_mr(c->pd, &c->counter, sizeof c->counter, C_RIGHTS);
		traffic_must(c, c->target_mr && c->counter_mr, "ibv_reg_mr");
		i->rkey = c->target_mr->rkey;
		i->addr = (uintptr_t)c->target;
		i->counter = (uintptr_t)&c->counter;
		i->counter_key = c->counter_mr->rkey;
		for (int p = 0; p < C_POSTERS; p++)
			for (uint32_t s = 0; s < C_SLOTS; s++)
				c->board->credit[p][s] = C_SLOTS;
	}
	for (int k = 0; k < c->plan.qps; k++)
		traffic_make_qp(c, k);
}

static void traffic_ready(struct traffic *c, int i)
{
	const struct traffic_info *peer = &c->board->info[!c->role];
	int ud = c->plan.type == C_UD, reliable = !ud && c->plan.type != C_UC, receives = reliable && (c->role || c->plan.type != C_XRC);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = C_QKEY, .qp_access_flags = C_RIGHTS };
	int e = ibv_modify_qp(c->qp[i], &a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer->qpn[i], .rq_psn = peer->qpn[i] * 77 & 0xffffff, .max_dest_rd_atomic = 16,
				  .min_rnr_timer = 1, .ah_attr = { .dlid = peer->lid, .port_num = 1, .is_global = (uint8_t)c->plan.by_gid } };
	a.ah_attr.grh.dgid = peer->gid;
	a.ah_attr.grh.hop_limit = 64;
	a.ah_attr.grh.sgid_index = (uint8_t)hosts_differ();
	e = e ? e : ibv_modify_qp(c->qp[i], &a, IBV_QP_STATE | (ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) | (receives ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = c->qp[i]->qp_num * 77 & 0xffffff, .max_rd_atomic = 16, .retry_cnt = 7, .rnr_retry = 7, .timeout = 15 };
	if (!c->xrcd)
		e = e ? e : ibv_modify_qp(c->qp[i], &a, IBV_QP_STATE | IBV_QP_SQ_PSN | (reliable ? IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT : 0));
	if (e)
		traffic_bad(c, "to RTS: %s", strerror(e));
}

void traffic_connect(struct traffic *c)
{
	for (int i = 0; i < c->plan.qps; i++)
		traffic_ready(c, i);
	if (!c->role)
		return;
	for (uint64_t id = 0; id < (uint64_t)traffic_queues(c) * C_RECVS; id++)
		traffic_receive(c, id);
	for (int p = 0; c->plan.type == C_TM && p < c->plan.posters; p++)
		for (uint32_t s = 0; s < C_SLOTS; s++)
			traffic_add(c, p, s);
}

void traffic_close(struct traffic *c)
{
	size_t places = (size_t)C_POSTERS * C_SLOTS + (c->role ? (size_t)traffic_queues(c) * C_RECVS : 0);
	int e = 0;
#define C_END(what, call) \
	if ((what) && (e = (call))) \
		traffic_bad(c, "%s: %s", #call, strerror(e));
	for (int i = 0; i < c->plan.qps; i++)
		C_END(1, ibv_destroy_qp(c->qp[i]))
	for (int i = 0; i < C_SRQS; i++)
		C_END(c->srq[i], ibv_destroy_srq(c->srq[i]))
	C_END(c->xrcd, ibv_close_xrcd(c->xrcd))
	for (int i = 0; i < c->plan.cqs; i++)
		C_END(1, ibv_destroy_cq(c->cq[i]))
	C_END(c->channel, ibv_destroy_comp_channel(c->channel))
	C_END(c->target_mr, ibv_dereg_mr(c->target_mr))
	C_END(c->counter_mr, ibv_dereg_mr(c->counter_mr))
	C_END(1, ibv_dereg_mr(c->mr))
	C_END(1, ibv_dealloc_pd(c->pd))
	munmap(c->memory, places * C_ROOM);
	if (c->target)
		munmap(c->target, C_TARGET);
}

/* ---- completions ---- */

static int traffic_poll(struct traffic *c, int i, struct traffic_wc *w, int most)
{
	struct ibv_cq_ex *x = c->cqx[i];
	struct ibv_wc wc[4];
	if (!x) {
		int n = ibv_poll_cq(c->cq[i], most, wc);
		if (n < 0)
			traffic_bad(c, "ibv_poll_cq: %d", n);
		for (int k = 0; k < n; k++)
			w[k] = (struct traffic_wc){ .wc = wc[k] };
		return n;
	}
	struct ibv_poll_cq_attr a = { 0 };
	int n = 0, e = ibv_start_poll(x, &a);
	if (e == ENOENT)
		return 0;
	do {
		if (e)
			traffic_bad(c, "polling: %s", strerror(e));
		w[n] = (struct traffic_wc){ .wc = { .wr_id = x->wr_id, .status = x->status, .qp_num = ibv_wc_read_qp_num(x) } };
		struct ibv_wc *one = &w[n++].wc;
		if (one->status)
			continue;
		one->opcode = ibv_wc_read_opcode(x);
		one->byte_len = ibv_wc_read_byte_len(x);
		one->wc_flags = ibv_wc_read_wc_flags(x);
		if (one->wc_flags & IBV_WC_WITH_IMM)
			one->imm_data = ibv_wc_read_imm_data(x);
		if (c->plan.type == C_TM && c->role) {
			struct ibv_wc_tm_info info;
			ibv_wc_read_tm_info(x, &info);
			w[n - 1].tag = info.tag;
			w[n - 1].priv = info.priv;
		}
	} while (n < most && (e = ibv_next_poll(x)) != ENOENT);
	ibv_end_poll(x);
	return n;
}

static int traffic_poll_all(struct traffic_thread *t, struct traffic_wc *w)
{
	int n = 0, first = (int)(rnd(&t->rng) % (unsigned)t->c->plan.cqs);
	for (int i = 0; i < t->c->plan.cqs && !n; i++)
		n = traffic_poll(t->c, (first + i) % t->c->plan.cqs, w, 1 + (int)(rnd(&t->rng) % 4));
	return n;
}

int traffic_next(struct traffic_thread *t, struct traffic_wc *w)
{
	struct traffic *c = t->c;
	int n = traffic_poll_all(t, w);
	if (!c->channel) {
		if (!n)
			sched_yield();
		return n;
	}
	if (n)
		return n;
	for (int i = 0; i < c->plan.cqs; i++)
		if (ibv_req_notify_cq(c->cq[i], 0))
			traffic_bad(c, "ibv_req_notify_cq");
	/*
	 * Polls completions that arrived before the CQ was armed; later completions raise an event.
	 */
	if ((n = traffic_poll_all(t, w)))
		return n;
	/* Waits for the event for up to 3 s without polling, because polling would do the adapter's
	 * work. Stops early when no completion can follow. */
	int woken = 0, done = 0;
	for (uint64_t end = now_us() + 3000000; !woken && !done && now_us() < end; woken = readable(c->channel->fd, 50))
		done = c->board->finished || c->gone || c->is_dead(c->arg) || (!c->role && !c->posting && !c->outstanding);
	if (!woken) {
		n = traffic_poll_all(t, w);
		if (n && c->plan.takers[c->role] == 1 && !readable(c->channel->fd, 5000))
			traffic_bad(c, "a completion (%llx), but no event", (unsigned long long)w->wc.wr_id);
		return n;
	}
	struct ibv_cq *cq;
	void *context;
	while (!ibv_get_cq_event(c->channel, &cq, &context))
		ibv_ack_cq_events(cq, 1);
	return traffic_poll_all(t, w);
}
