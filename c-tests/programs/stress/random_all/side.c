/*
 * One side of a connection of random_all.c: creation, connection, posting, polling, closing.
 *
 * Map of this file: target_register and target_make prepare the responder's memory of each kind;
 * cq_make and qp_make create the queues; side_open creates all objects. to_ready moves the QP to
 * RTS; ah_make creates an address handle; bind_window binds a memory window; side_connect calls
 * them in step with the peer. side_close destroys all objects; post_new posts by ibv_wr_* calls;
 * post_requests posts a batch; post_receives posts its receives. poll_one polls one completion;
 * completion waits for one, by polling or by events; together is the barrier between both sides of
 * a connection.
 */
#include "random_all.h"

int usable(const struct side *s) { return s->plan.transport == T_RC || s->plan.transport == T_UC || s->plan.transport == T_XRC; }

int datagrams(const struct side *s) { return s->plan.transport == T_UD || s->plan.transport == T_MCAST; }

union ibv_gid group(const struct side *s)
{
	return (union ibv_gid){ .raw = { 0xff, 0x0e, [12] = (uint8_t)random_seed, [13] = (uint8_t)(random_seed >> 8), [14] = (uint8_t)random_round, [15] = (uint8_t)(1 + s->link) } };
}

void target_tell(struct side *s)
{
	struct info *i = &s->board->link[s->link].info[RESPONDER];
	i->rkey = s->target_mr->rkey;
	i->addr = s->dm ? 0 : s->iova;
}

void target_register(struct side *s)
{
	int access = RIGHTS;
	if (s->plan.memory == M_ON_DEMAND)
		access |= IBV_ACCESS_ON_DEMAND;
	if (s->plan.window)
		access |= IBV_ACCESS_MW_BIND;
	/* With M_ELSEWHERE the region has an IOVA that differs from its address. */
	s->iova = s->plan.memory == M_ELSEWHERE ? (uintptr_t)s->target + (1ull << 40) : (uintptr_t)s->target;
	if (s->dm)
		s->target_mr = ibv_reg_dm_mr(s->pd, s->dm, 0, TARGET, RIGHTS | IBV_ACCESS_ZERO_BASED);
	else
		s->target_mr = ibv_reg_mr_iova(s->pd, s->target, TARGET, s->iova, access);
	if (!s->target_mr)
		bad(s, "registering the target (memory %d): %s", s->plan.memory, strerror(errno));
	target_tell(s);
}

static void target_make(struct side *s)
{
	int fd = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	if (s->plan.memory == M_DEVICE) {
		struct ibv_alloc_dm_attr a = { .length = TARGET };
		s->dm = ibv_alloc_dm(s->ctx, &a);
		if (!s->dm || ibv_memcpy_to_dm(s->dm, 0, s->model_target, TARGET))
			bad(s, "device memory: %s", strerror(errno));
		return;
	}
	if (s->plan.memory == M_SYSV) {
		s->target = random_sysv[s->link];
	} else {
		if (s->plan.memory == M_SEALED) {
			fd = (int)syscall(SYS_memfd_create, "random_all", 3 /* MFD_CLOEXEC | MFD_ALLOW_SEALING */);
			if (fd < 0 || ftruncate(fd, TARGET) || fcntl(fd, 1033 /* F_ADD_SEALS */, 2 /* F_SEAL_SHRINK */))
				bad(s, "a sealed memory file: %s", strerror(errno));
			flags = MAP_SHARED;
		}
		if (s->plan.memory == M_SHARED)
			flags = MAP_SHARED | MAP_ANONYMOUS;
		s->target = mmap(NULL, TARGET, PROT_READ | PROT_WRITE, flags, fd, 0);
		if (s->target == MAP_FAILED)
			bad(s, "mmap");
		if (fd >= 0)
			close(fd);
	}
	memcpy(s->target, s->model_target, TARGET);
}

void cq_make(struct side *s)
{
	if (s->plan.events[s->role]) {
		s->channel = ibv_create_comp_channel(s->ctx);
		if (!s->channel)
			bad(s, "ibv_create_comp_channel: %s", strerror(errno));
	}
	if (s->plan.extended[s->role]) {
		struct ibv_cq_init_attr_ex a = { .cqe = 4 * DEPTH, .channel = s->channel, .wc_flags = IBV_WC_STANDARD_FLAGS | (s->plan.transport == T_TM ? IBV_WC_EX_WITH_TM_INFO : 0) |
							(s->plan.transport == T_FRAMES ? IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_CVLAN : 0) };
		s->cqx = ibv_create_cq_ex(s->ctx, &a);
		s->cq = s->cqx ? ibv_cq_ex_to_cq(s->cqx) : NULL;
	} else {
		s->cq = ibv_create_cq(s->ctx, 4 * DEPTH, s, s->channel, 0);
	}
	if (!s->cq || (s->channel && ibv_req_notify_cq(s->cq, 0)))
		bad(s, "a completion queue: %s", strerror(errno));
}

static void qp_make(struct side *s)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_XRC_SEND, IBV_QPT_UD, IBV_QPT_UD };
	struct ibv_qp_init_attr_ex a = { .qp_type = types[s->plan.transport], .sq_sig_all = s->plan.sig_all, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = s->pd,
					 .send_cq = s->cq, .recv_cq = s->cq, .cap = { .max_send_wr = DEPTH, .max_send_sge = 4, .max_inline_data = 200 } };
	struct ibv_srq_init_attr_ex q = { .attr = { .max_wr = DEPTH, .max_sge = 4 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, .pd = s->pd, .srq_type = IBV_SRQT_BASIC };
	if (s->plan.transport == T_XRC && s->role == RESPONDER) {
		struct ibv_xrcd_init_attr x = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
		s->xrcd = ibv_open_xrcd(s->ctx, &x);
		q.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
		q.srq_type = IBV_SRQT_XRC;
		q.xrcd = s->xrcd;
		q.cq = s->cq;
		a = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = s->xrcd };
		if (!s->xrcd)
			bad(s, "ibv_open_xrcd: %s", strerror(errno));
	}
	if (s->role == RESPONDER && (s->plan.srq || s->xrcd)) {
		s->srq = ibv_create_srq_ex(s->ctx, &q);
		if (!s->srq)
			bad(s, "ibv_create_srq_ex: %s", strerror(errno));
		if (s->xrcd && ibv_get_srq_num(s->srq, &s->board->link[s->link].info[RESPONDER].srqn))
			bad(s, "ibv_get_srq_num");
		if (!s->xrcd)
			a.srq = s->srq;
	} else if (s->role == RESPONDER) {
		a.cap.max_recv_wr = DEPTH;
		a.cap.max_recv_sge = 4;
	}
	if (s->role == REQUESTER && s->plan.new_api) {
		a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		a.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
		if (usable(s))
			a.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
		if (s->plan.transport == T_RC || s->plan.transport == T_XRC)
			a.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
		if (s->plan.transport == T_RC)
			a.send_ops_flags |= IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE;
	}
	s->qp = ibv_create_qp_ex(s->ctx, &a);
	if (!s->qp)
		bad(s, "ibv_create_qp_ex: %s", strerror(errno));
}

void side_open(struct side *s, struct ibv_mr *counter)
{
	struct info *i = &s->board->link[s->link].info[s->role];
	struct ibv_port_attr port;
	s->pd = ibv_alloc_pd(s->ctx);
	s->area = malloc(LANDING);
	s->model_area = malloc(AREA);
	s->model_target = calloc(1, TARGET);
	s->model_landing = malloc(LANDING);
	s->seen = malloc(LANDING);
	if (!s->pd || !s->area || !s->model_area || !s->model_target || !s->model_landing || !s->seen)
		bad(s, "out of memory");
	memset(s->area, CANARY, LANDING);
	memset(s->model_area, CANARY, AREA);
	memset(s->model_landing, CANARY, LANDING);
	s->mr = ibv_reg_mr(s->pd, s->area, LANDING, IBV_ACCESS_LOCAL_WRITE | (s->plan.transport == T_TM ? IBV_ACCESS_REMOTE_READ : 0));
	s->scratch_mr = ibv_reg_mr(s->pd, &s->scratch, sizeof s->scratch, IBV_ACCESS_LOCAL_WRITE);
	/* A key is valid for QPs of its PD only, so each side registers the counter. */
	s->counter_mr = ibv_reg_mr(s->pd, counter->addr, sizeof(uint64_t), RIGHTS);
	if (!s->mr || !s->scratch_mr || !s->counter_mr || ibv_query_port(s->ctx, 1, &port) || ibv_query_gid(s->ctx, 1, hosts_differ(), &i->gid))
		bad(s, "regions: %s", strerror(errno));
	cq_make(s);
	if (s->plan.transport == T_TM)
		tm_make(s);
	else
		qp_make(s);
	i->rkey = s->mr->rkey;
	i->addr = (uintptr_t)s->area;
	i->qpn = s->qp->qp_num;
	i->lid = port.lid;
	i->counter_addr = (uintptr_t)counter->addr;
	i->counter_key = s->counter_mr->rkey;
	if (s->role == RESPONDER && usable(s)) {
		target_make(s);
		target_register(s);
	}
}

void to_ready(struct side *s)
{
	int rc = s->plan.transport == T_RC || s->plan.transport == T_XRC || s->plan.transport == T_TM, answers = rc && (s->plan.transport != T_XRC || s->xrcd);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .qp_access_flags = RIGHTS };
	int e = ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | (datagrams(s) ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	struct ibv_qp_attr r = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = s->peer.qpn, .rq_psn = s->plan.psn[!s->role], .max_dest_rd_atomic = 16,
				 .min_rnr_timer = 1, .ah_attr = { .dlid = s->peer.lid, .port_num = 1, .is_global = (uint8_t)s->plan.by_gid } };
	r.ah_attr.grh.dgid = s->peer.gid;
	r.ah_attr.grh.hop_limit = 64;
	r.ah_attr.grh.sgid_index = (uint8_t)hosts_differ();
	e = e ? e : ibv_modify_qp(s->qp, &r, IBV_QP_STATE | (datagrams(s) ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) | (answers ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
	/* The retries take one second in all: the time to detect a dead peer. */
	struct ibv_qp_attr t = { .qp_state = IBV_QPS_RTS, .sq_psn = s->plan.psn[s->role], .max_rd_atomic = 16, .retry_cnt = 7, .rnr_retry = 7, .timeout = 15 };
	if (!s->xrcd)
		e = e ? e : ibv_modify_qp(s->qp, &t, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT : 0));
	if (e)
		bad(s, "to RTS: %s", strerror(e));
}

void ah_make(struct side *s)
{
	struct ibv_ah_attr a = { .dlid = s->peer.lid, .port_num = 1, .is_global = 1, .grh = { .dgid = s->plan.transport == T_MCAST ? group(s) : s->peer.gid, .sgid_index = (uint8_t)hosts_differ(), .hop_limit = 64 } };
	s->ah = ibv_create_ah(s->pd, &a);
	if (!s->ah)
		bad(s, "ibv_create_ah: %s", strerror(errno));
}

int bind_window(struct side *s, uint64_t length)
{
	struct ibv_mw_bind_info info = { .mr = s->target_mr, .addr = s->iova, .length = length, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	uint32_t key = ibv_inc_rkey(s->window_key);
	struct ibv_mw_bind bind = { .wr_id = 5, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
	struct ibv_send_wr *bad_wr, wr = { .wr_id = 5, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED, .bind_mw = { .mw = s->mw, .rkey = key, .bind_info = info } };
	int e = s->plan.window == 1 ? ibv_bind_mw(s->qp, s->mw, &bind) : ibv_post_send(s->qp, &wr, &bad_wr);
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	if (e || !completion(s, &wc, WAIT_US, 0))
		bad(s, "binding a window: %d, or no completion", e);
	if (wc.status != IBV_WC_SUCCESS || wc.wr_id != 5 || wc.opcode != IBV_WC_BIND_MW) {
		if (wc.status == IBV_WC_WR_FLUSH_ERR || wc.status == IBV_WC_RETRY_EXC_ERR) {
			must_be_dead(s, &wc, "binding");
			return 1;
		}
		bad(s, "binding a window: %s", ibv_wc_status_str(wc.status));
	}
	s->window_key = s->plan.window == 1 ? s->mw->rkey : key;
	s->board->link[s->link].info[RESPONDER].rkey = s->window_key;
	return 0;
}

int side_connect(struct side *s)
{
	struct board *b = s->board;
	if (together(s))
		return 1;
	s->peer = b->link[s->link].info[!s->role];
	if (s->plan.transport == T_TM)
		tm_to_ready(s);
	else
		to_ready(s);
	if (datagrams(s)) {
		union ibv_gid g = group(s);
		ah_make(s);
		if (s->plan.transport == T_MCAST && s->role == RESPONDER && ibv_attach_mcast(s->qp, &g, 0))
			bad(s, "ibv_attach_mcast");
		s->attached = s->plan.transport == T_MCAST && s->role == RESPONDER;
	}
	if (together(s))
		return 1;
	if (s->plan.window && s->role == RESPONDER) {
		s->mw = ibv_alloc_mw(s->pd, s->plan.window == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
		if (!s->mw)
			bad(s, "ibv_alloc_mw: %s", strerror(errno));
		s->window_key = s->mw->rkey;
		if (bind_window(s, TARGET))
			return 1;
	}
	if (together(s))
		return 1;
	s->peer = b->link[s->link].info[!s->role];
	return 0;
}

void side_close(struct side *s)
{
	union ibv_gid g = group(s);
	if (s->unacked)
		ibv_ack_cq_events(s->cq, s->unacked);
	int e = 0;
#define END(what, call) \
	if ((what) && (e = (call))) \
		bad(s, "%s: %s", #call, strerror(e));
	END(s->attached, ibv_detach_mcast(s->qp, &g, 0))
	END(s->ah, ibv_destroy_ah(s->ah))
	END(s->mw, ibv_dealloc_mw(s->mw))
	for (int i = 1; i < TM_QPS; i++)
		END(s->tm_qp[i], ibv_destroy_qp(s->tm_qp[i]))
	END(s->qp, ibv_destroy_qp(s->qp))
	END(s->srq, ibv_destroy_srq(s->srq))
	END(s->xrcd, ibv_close_xrcd(s->xrcd))
	END(s->cq, ibv_destroy_cq(s->cq))
	END(s->channel, ibv_destroy_comp_channel(s->channel))
	END(s->target_mr, ibv_dereg_mr(s->target_mr))
	END(s->dm, ibv_free_dm(s->dm))
	END(1, ibv_dereg_mr(s->mr))
	END(1, ibv_dereg_mr(s->scratch_mr))
	END(1, ibv_dereg_mr(s->counter_mr))
	END(1, ibv_dealloc_pd(s->pd))
	if (s->target && s->plan.memory != M_SYSV)
		munmap(s->target, TARGET);
	free(s->area);
	free(s->model_area);
	free(s->model_target);
	free(s->model_landing);
	free(s->seen);
}

/* ---- posting ---- */

static int sges(const struct side *s, const struct request *r, struct ibv_sge *sg)
{
	for (int k = 0; k < r->pieces; k++)
		sg[k] = (struct ibv_sge){ (uintptr_t)s->area + r->piece[k].offset, r->piece[k].len, s->mr->lkey };
	return r->pieces;
}

static void post_new(struct side *s, const struct batch *b)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(s->qp);
	for (unsigned i = 0; i < b->n; i++) {
		const struct request *r = &b->p[i].r;
		uint64_t at = s->peer.addr + b->p[i].at;
		struct ibv_sge sg[4];
		struct ibv_data_buf bufs[4];
		int n = sges(s, r, sg);
		if (i == 0 || !b->list)
			ibv_wr_start(x);
		x->wr_id = r->id;
		x->wr_flags = r->flags & ~(unsigned)IBV_SEND_INLINE;
		switch (r->op) {
		case IBV_WR_SEND: ibv_wr_send(x); break;
		case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(x, r->imm); break;
		case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(x, s->peer.rkey, at); break;
		case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(x, s->peer.rkey, at, r->imm); break;
		case IBV_WR_RDMA_READ: ibv_wr_rdma_read(x, s->peer.rkey, at); break;
		case IBV_WR_ATOMIC_CMP_AND_SWP: ibv_wr_atomic_cmp_swp(x, s->peer.rkey, at, r->compare_add, r->swap); break;
		case IBV_WR_ATOMIC_WRITE: ibv_wr_atomic_write(x, s->peer.rkey, at, &r->swap); break;
		default: ibv_wr_atomic_fetch_add(x, s->peer.rkey, at, r->compare_add); break;
		}
		if (s->plan.transport == T_XRC)
			ibv_wr_set_xrc_srqn(x, s->peer.srqn);
		if (datagrams(s))
			ibv_wr_set_ud_addr(x, s->ah, s->plan.transport == T_MCAST ? 0xffffff : s->peer.qpn, QKEY);
		for (int k = 0; k < n; k++)
			bufs[k] = (struct ibv_data_buf){ (void *)(uintptr_t)sg[k].addr, sg[k].length };
		if (r->op == IBV_WR_ATOMIC_WRITE)
			;
		else if (r->flags & IBV_SEND_INLINE)
			ibv_wr_set_inline_data_list(x, (size_t)n, bufs);
		else if (n == 1)
			ibv_wr_set_sge(x, sg[0].lkey, sg[0].addr, sg[0].length);
		else
			ibv_wr_set_sge_list(x, (size_t)n, sg);
		int e = i == b->n - 1 || !b->list ? ibv_wr_complete(x) : 0;
		if (e)
			bad(s, "ibv_wr_complete: %s", strerror(e));
	}
}

void post_requests(struct side *s, const struct batch *b)
{
	struct ibv_send_wr wr[BATCH], *bad_wr;
	struct ibv_sge sg[BATCH][4];
	memset(wr, 0, sizeof wr);
	if (s->plan.new_api) {
		post_new(s, b);
	} else {
		for (unsigned i = 0; i < b->n; i++) {
			const struct request *r = &b->p[i].r;
			uint64_t at = s->peer.addr + b->p[i].at;
			wr[i] = (struct ibv_send_wr){ .wr_id = r->id, .sg_list = sg[i], .num_sge = sges(s, r, sg[i]), .opcode = r->op, .send_flags = r->flags, .imm_data = r->imm };
			wr[i].next = b->list && i + 1 < b->n ? &wr[i + 1] : NULL;
			if (datagrams(s)) {
				wr[i].wr.ud.ah = s->ah;
				wr[i].wr.ud.remote_qpn = s->plan.transport == T_MCAST ? 0xffffff : s->peer.qpn;
				wr[i].wr.ud.remote_qkey = QKEY;
			} else if (r->op == IBV_WR_ATOMIC_CMP_AND_SWP || r->op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
				wr[i].wr.atomic.remote_addr = at;
				wr[i].wr.atomic.rkey = s->peer.rkey;
				wr[i].wr.atomic.compare_add = r->compare_add;
				wr[i].wr.atomic.swap = r->swap;
			} else {
				wr[i].wr.rdma.remote_addr = at;
				wr[i].wr.rdma.rkey = s->peer.rkey;
			}
			if (s->plan.transport == T_XRC)
				wr[i].qp_type.xrc.remote_srqn = s->peer.srqn;
		}
		for (unsigned i = 0; i < b->n; i += b->list ? b->n : 1) {
			int e = ibv_post_send(s->qp, &wr[i], &bad_wr);
			if (e)
				bad(s, "ibv_post_send: %s (opcode %d)", strerror(e), bad_wr->opcode);
		}
	}
	/* After posting, the program may overwrite inline data. */
	for (unsigned i = 0; i < b->n; i++)
		if (b->p[i].r.flags & IBV_SEND_INLINE)
			memset(s->area + b->p[i].source, 0xEE, b->p[i].len);
}

void post_receives(struct side *s, const struct batch *b)
{
	for (unsigned i = 0; i < b->n; i++) {
		struct ibv_sge sg[4];
		struct ibv_recv_wr *bad_wr, wr = { .wr_id = b->p[i].r.id, .sg_list = sg };
		if (!b->p[i].receives)
			continue;
		wr.num_sge = sges(s, &b->p[i].receive, sg);
		int e = s->srq ? ibv_post_srq_recv(s->srq, &wr, &bad_wr) : ibv_post_recv(s->qp, &wr, &bad_wr);
		if (e)
			bad(s, "posting a receive: %s", strerror(e));
	}
}

/* ---- completions ---- */

static int poll_one(struct side *s, struct ibv_wc *wc)
{
	if (!s->cqx) {
		int n = ibv_poll_cq(s->cq, 1, wc);
		if (n < 0)
			bad(s, "ibv_poll_cq: %d", n);
		return n;
	}
	struct ibv_poll_cq_attr a = { 0 };
	int e = ibv_start_poll(s->cqx, &a);
	if (e == ENOENT)
		return 0;
	if (e)
		bad(s, "ibv_start_poll: %s", strerror(e));
	*wc = (struct ibv_wc){ .wr_id = s->cqx->wr_id, .status = s->cqx->status, .qp_num = ibv_wc_read_qp_num(s->cqx) };
	int tm = s->plan.transport == T_TM;
	if (tm) {
		struct ibv_wc_tm_info info;
		ibv_wc_read_tm_info(s->cqx, &info);
		s->tag = info.tag;
		s->priv = info.priv;
	}
	if (s->plan.transport == T_FRAMES && !wc->status) {
		s->tag = ibv_wc_read_flow_tag(s->cqx);
		s->priv = ibv_wc_read_cvlan(s->cqx);
	}
	if (!wc->status || (tm && (wc->status == IBV_WC_TM_ERR || wc->status == IBV_WC_TM_RNDV_INCOMPLETE))) {
		wc->opcode = ibv_wc_read_opcode(s->cqx);
		wc->byte_len = ibv_wc_read_byte_len(s->cqx);
		wc->wc_flags = ibv_wc_read_wc_flags(s->cqx);
		if (wc->wc_flags & IBV_WC_WITH_IMM)
			wc->imm_data = ibv_wc_read_imm_data(s->cqx);
		if (wc->wc_flags & IBV_WC_WITH_INV)
			wc->invalidated_rkey = ibv_wc_read_invalidated_rkey(s->cqx);
	}
	ibv_end_poll(s->cqx);
	return 1;
}

int completion(struct side *s, struct ibv_wc *wc, unsigned us, int give_up)
{
	uint64_t end = now_us() + us;
	for (;;) {
		int dead = s->board->dead[s->plan.proc[!s->role]];
		if (poll_one(s, wc))
			return 1;
		if ((give_up && dead) || now_us() > end)
			return 0;
		if (!s->channel) {
			sched_yield();
			continue;
		}
		/* The CQ was armed before the poll, so a later completion raises an event. The
		 * death of the peer raises none. */
		int woken;
		do
			woken = readable(s->channel->fd, 50);
		while (!woken && !(give_up && s->board->dead[s->plan.proc[!s->role]]) && now_us() <= end);
		/* A poll before the time limit would do the provider's work, and hide a missing
		 * event. A completion that arrives at the limit has its event soon after. */
		if (!woken && now_us() > end && poll_one(s, wc)) {
			if (!readable(s->channel->fd, WAIT_US / 1000))
				bad(s, "completion of %llx (%s), but nothing woke us", (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status));
			return 1;
		}
		if (!woken)
			continue;
		struct ibv_cq *cq;
		void *context;
		if (ibv_get_cq_event(s->channel, &cq, &context) || cq != s->cq)
			bad(s, "ibv_get_cq_event gave another queue");
		s->unacked++;
		if (ibv_req_notify_cq(s->cq, 0))
			bad(s, "ibv_req_notify_cq");
	}
}

int together(struct side *s)
{
	uint32_t mine = ++s->step;
	uint64_t end = now_us() + 3ull * WAIT_US;
	s->board->link[s->link].step[s->role] = mine;
	while (s->board->link[s->link].step[!s->role] < mine) {
		if (s->board->dead[s->plan.proc[!s->role]]) {
			s->gone = 1;
			return 1;
		}
		if (now_us() > end)
			bad(s, "the other side does not come to step %u (it is at %u)", mine, s->board->link[s->link].step[!s->role]);
		usleep(20);
	}
	return 0;
}
