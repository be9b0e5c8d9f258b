/*
 * Actions of random_all.c between batches: reconnects, key and window changes, resizes, group
 * changes.
 */
#include "random_all.h"

/* Flushes receives posted before ERR and requests posted in ERR, in order, then reconnects. Returns
 * 1 if the peer is dead. */
static int reconnect(struct side *s)
{
	struct ibv_sge sge = { (uintptr_t)s->area, 8, s->mr->lkey };
	struct ibv_recv_wr *bad_recv, recv = { .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bad_send, send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	uint64_t n = s->role == RESPONDER && s->srq ? 0 : 3;
	if (datagrams(s)) {
		send.wr.ud.ah = s->ah;
		send.wr.ud.remote_qpn = s->plan.transport == T_MCAST ? 0xffffff : s->peer.qpn;
		send.wr.ud.remote_qkey = QKEY;
	}
	if (s->role == REQUESTER)
		to_state(s, IBV_QPS_ERR);
	for (uint64_t i = 0; i < n; i++) {
		recv.wr_id = send.wr_id = i;
		if (s->role == REQUESTER ? ibv_post_send(s->qp, &send, &bad_send) : ibv_post_recv(s->qp, &recv, &bad_recv))
			bad(s, "posting what will be flushed");
	}
	if (s->role == RESPONDER && n)
		to_state(s, IBV_QPS_ERR);
	for (uint64_t i = 0; i < n; i++) {
		struct ibv_wc wc;
		if (!completion(s, &wc, WAIT_US, 0) || wc.wr_id != i || wc.status != IBV_WC_WR_FLUSH_ERR)
			bad(s, "request %llu was not flushed in order", (unsigned long long)i);
	}
	to_state(s, IBV_QPS_RESET);
	if (together(s))
		return 1;
	s->plan.psn[0] = rnd(&s->plan.rng) & 0xffffff;
	s->plan.psn[1] = rnd(&s->plan.rng) & 0xffffff;
	to_ready(s);
	return together(s);
}

void pause_sends(struct side *s, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = { .qp_state = state };
	struct ibv_wc wc = { .wr_id = (uint64_t)state, .status = IBV_WC_GENERAL_ERR };
	if (ibv_modify_qp(s->qp, &a, IBV_QP_STATE))
		must_be_dead(s, &wc, "to or from SQD, state");
}

void resize(struct side *s, int n)
{
	int e = ibv_resize_cq(s->cq, DEPTH + 20 * n);
	if (e)
		bad(s, "ibv_resize_cq: %s", strerror(e));
}

/* The target's region is made anew, or changed, whichever way. 1: the other is dead. */
static int renew_region(struct side *s)
{
	uint32_t how = below(&s->plan.rng, 5);
	int fixed = s->plan.memory == M_SYSV || s->plan.memory == M_SEALED, e;
	if (s->role == RESPONDER && (how == 0 || s->dm)) {
		if ((e = ibv_dereg_mr(s->target_mr)))
			bad(s, "ibv_dereg_mr: %s", strerror(e));
		target_register(s);
	} else if (s->role == RESPONDER) {
		static const int flags[] = { 0, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_CHANGE_PD,
					     IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD };
		int access = !(flags[how] & IBV_REREG_MR_CHANGE_ACCESS) ? 0 : RIGHTS | (s->plan.memory == M_ON_DEMAND ? IBV_ACCESS_ON_DEMAND : 0) | (how == 4 ? IBV_ACCESS_RELAXED_ORDERING : 0);
		unsigned char *to = s->target;
		if (flags[how] & IBV_REREG_MR_CHANGE_TRANSLATION) {
			/* Elsewhere, where that can be. */
			if (!fixed && !s->dm) {
				to = mmap(NULL, TARGET, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
				if (to == MAP_FAILED)
					bad(s, "mmap");
				memcpy(to, s->target, TARGET);
			}
			s->iova = (uintptr_t)to;
		}
		if (flags[how] & IBV_REREG_MR_CHANGE_PD) {
			/* To another domain, and back. */
			struct ibv_pd *other = ibv_alloc_pd(s->ctx);
			if (!other || (e = ibv_rereg_mr(s->target_mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0)))
				bad(s, "ibv_rereg_mr to another domain");
			if (ibv_dealloc_pd(other) != EBUSY)
				bad(s, "ibv_dealloc_pd of a domain with a region");
			if ((e = ibv_rereg_mr(s->target_mr, flags[how], s->pd, to, TARGET, access)) || (e = ibv_dealloc_pd(other)))
				bad(s, "ibv_rereg_mr back: %d", e);
		} else if ((e = ibv_rereg_mr(s->target_mr, flags[how], NULL, to, TARGET, access))) {
			bad(s, "ibv_rereg_mr (flags %x): %d", flags[how], e);
		}
		if (to != s->target)
			munmap(s->target, TARGET);
		s->target = to;
		target_tell(s);
	}
	if (together(s))
		return 1;
	s->peer = s->board->link[s->link].info[!s->role];
	return 0;
}

/* The requester takes a window of type 2 from the responder. 1: the other is dead. */
static int invalidate_from_afar(struct side *s)
{
	struct ibv_send_wr wr = { .wr_id = 8, .opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = s->peer.rkey };
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 9 };
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	if (s->role == RESPONDER && (s->srq ? ibv_post_srq_recv(s->srq, &recv, &bad_recv) : ibv_post_recv(s->qp, &recv, &bad_recv)))
		bad(s, "posting a receive");
	if (together(s))
		return 1;
	if (s->role == REQUESTER) {
		wc.wr_id = 8;
		wc.status = single(s, wr, IBV_WC_SEND);
		if (wc.status)
			must_be_dead(s, &wc, "invalidation");
	} else if (!completion(s, &wc, WAIT_US, 1) || wc.status) {
		must_be_dead(s, &wc, "receive of an invalidation");
	} else if (wc.wr_id != 9 || !(wc.wc_flags & IBV_WC_WITH_INV) || wc.invalidated_rkey != s->window_key) {
		bad(s, "receive of an invalidation: flags %x, key %x", wc.wc_flags, wc.invalidated_rkey);
	}
	return s->gone;
}

/* The responder invalidates its own window; a type 1 window by a bind of length 0. Returns 1 if the
 * peer is dead. */
static int invalidate_here(struct side *s)
{
	struct ibv_send_wr wr = { .wr_id = 12, .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = s->window_key };
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	if (s->plan.window == 1)
		return bind_window(s, 0);
	wc.wr_id = 12;
	wc.status = single(s, wr, IBV_WC_LOCAL_INV);
	if (wc.status)
		must_be_dead(s, &wc, "IBV_WR_LOCAL_INV");
	return s->gone;
}

/* A window is bound again, under another key. 1: the other is dead. */
static int rebind(struct side *s)
{
	uint32_t how = below(&s->plan.rng, 2);
	if (s->plan.window == 2 && how && invalidate_from_afar(s))
		return 1;
	if (s->role == RESPONDER && ((s->plan.window == 2 && !how && invalidate_here(s)) || bind_window(s, TARGET)))
		return 1;
	if (together(s))
		return 1;
	s->peer = s->board->link[s->link].info[!s->role];
	return 0;
}

/*
 * Revokes the key while WRITEs are in flight. After the revocation no byte changes, and every
 * successful WRITE has its bytes in place. Then the batch starts anew. Returns 1 if the peer is
 * dead.
 */
static int tear(struct side *s)
{
	uint32_t seed = rnd(&s->plan.rng), n = 1 + below(&s->plan.rng, BATCH), len = 1 + below(&s->plan.rng, 120000), done = 0, failed = 0;
	uint64_t own = now_us();
	struct info *told = &s->board->link[s->link].info[REQUESTER];
	if (s->role == REQUESTER)
		fill(s->area, len, seed);
	if (together(s))
		return 1;
	for (uint32_t i = 0; s->role == REQUESTER && i < n; i++) {
		struct ibv_sge sge = { (uintptr_t)s->area, len, s->mr->lkey };
		struct ibv_send_wr *bad_wr, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
		wr.wr.rdma.remote_addr = s->peer.addr + (uint64_t)i * len;
		wr.wr.rdma.rkey = s->peer.rkey;
		int e = ibv_post_send(s->qp, &wr, &bad_wr);
		if (e)
			bad(s, "ibv_post_send: %s", strerror(e));
	}
	for (uint32_t i = 0; s->role == REQUESTER && i < n; i++) {
		struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
		if (!completion(s, &wc, WAIT_US, 0) || wc.wr_id != i)
			bad(s, "WRITE %u of a key that is taken back: no completion, or one of %llx", i, (unsigned long long)wc.wr_id);
		if (wc.status == IBV_WC_SUCCESS && !failed)
			done++;
		else if (wc.status == IBV_WC_RETRY_EXC_ERR || (wc.status == IBV_WC_WR_FLUSH_ERR && !failed))
			must_be_dead(s, &wc, "WRITE");
		else if (wc.status != (failed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_REM_ACCESS_ERR))
			bad(s, "WRITE %u of a key that is taken back: %s", i, ibv_wc_status_str(wc.status));
		failed |= wc.status != IBV_WC_SUCCESS;
	}
	if (s->gone)
		return 1;
	if (s->role == RESPONDER) {
		for (uint32_t spin = rnd(&own) % 200000; spin; spin--)
			__asm__ volatile("");
		int e = s->mw ? 0 : ibv_dereg_mr(s->target_mr);
		if (e)
			bad(s, "ibv_dereg_mr: %s", strerror(e));
		if (s->mw && invalidate_here(s))
			return 1;
		if (!s->mw)
			s->target_mr = NULL;
		if (s->dm && ibv_memcpy_from_dm(s->seen, s->dm, 0, TARGET))
			bad(s, "ibv_memcpy_from_dm");
		if (!s->dm)
			memcpy(s->seen, s->target, TARGET);
	}
	told->srqn = done;
	if (together(s))
		return 1;
	if (s->role == RESPONDER) {
		if (s->dm && ibv_memcpy_from_dm(s->model_target, s->dm, 0, TARGET))
			bad(s, "ibv_memcpy_from_dm");
		same(s, s->dm ? s->model_target : s->target, s->seen, TARGET, "memory whose key was taken back");
		done = told->srqn;
		for (uint32_t i = 0; i < done; i++)
			if (verify(s->seen + (size_t)i * len, len, seed) >= 0)
				bad(s, "WRITE %u of %u succeeded, its bytes are not there", i, done);
	}
	/* As if nothing had been. */
	memcpy(s->area, s->role == REQUESTER ? s->model_area : s->model_landing, s->role == REQUESTER ? AREA : LANDING);
	fill(s->model_target, TARGET, seed + 1);
	to_state(s, IBV_QPS_RESET);
	if (s->role == RESPONDER) {
		if (s->dm && ibv_memcpy_to_dm(s->dm, 0, s->model_target, TARGET))
			bad(s, "ibv_memcpy_to_dm");
		if (!s->dm)
			memcpy(s->target, s->model_target, TARGET);
		if (!s->mw)
			target_register(s);
	}
	if (together(s))
		return 1;
	s->plan.psn[0] = rnd(&s->plan.rng) & 0xffffff;
	s->plan.psn[1] = rnd(&s->plan.rng) & 0xffffff;
	to_ready(s);
	if (together(s) || (s->mw && bind_window(s, TARGET)) || together(s))
		return 1;
	s->peer = s->board->link[s->link].info[!s->role];
	return 0;
}

/*
 * Creates a new address handle, or leaves and rejoins the multicast group. The group member
 * receives nothing meanwhile, or the next batch would find a foreign message. Returns 1 if the peer
 * is dead.
 */
static int move_about(struct side *s)
{
	union ibv_gid g = group(s);
	if (s->role == REQUESTER) {
		int e = ibv_destroy_ah(s->ah);
		if (e)
			bad(s, "ibv_destroy_ah: %s", strerror(e));
		ah_make(s);
	}
	if (s->plan.transport != T_MCAST)
		return 0;
	if (s->role == RESPONDER && ibv_detach_mcast(s->qp, &g, 0))
		bad(s, "ibv_detach_mcast");
	s->attached = 0;
	if (together(s))
		return 1;
	if (s->role == REQUESTER) {
		struct ibv_sge sge = { (uintptr_t)s->area, 8, s->mr->lkey };
		struct ibv_send_wr wr = { .wr_id = 13, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = 0xdead00ff };
		wr.wr.ud.ah = s->ah;
		wr.wr.ud.remote_qpn = 0xffffff;
		wr.wr.ud.remote_qkey = QKEY;
		if (single(s, wr, IBV_WC_SEND))
			bad(s, "a message to a group without members failed");
	}
	if (together(s))
		return 1;
	if (s->role == RESPONDER && ibv_attach_mcast(s->qp, &g, 0))
		bad(s, "ibv_attach_mcast");
	s->attached = s->role == RESPONDER;
	return together(s);
}

int act(struct side *s, const struct batch *b)
{
	switch (b->action) {
	case 0: return usable(s) && !s->plan.window ? renew_region(s) : 0;
	case 1: return !s->plan.window ? reconnect(s) : 0;
	case 2: resize(s, (int)b->n); return 0;
	/* 3 and 7: in the middle. */
	case 4: return s->plan.window ? rebind(s) : 0;
	case 5: return s->plan.transport == T_RC ? tear(s) : 0;
	case 6: return datagrams(s) ? move_about(s) : 0;
	default: return 0;
	}
}

int take_back(struct side *s)
{
	struct ibv_sge sge = { (uintptr_t)s->area, 8, s->mr->lkey };
	struct ibv_send_wr wr;
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	int keep = below(&s->plan.rng, 2);
	if (s->plan.window == 2 && invalidate_from_afar(s))
		return 1;
	if (s->role == RESPONDER) {
		/* A region may stay, without remote rights. */
		int again = keep && !s->mw && !s->dm, e = s->mw ? ibv_dealloc_mw(s->mw) : again ? ibv_rereg_mr(s->target_mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) : ibv_dereg_mr(s->target_mr);
		if (e)
			bad(s, "taking back a key: %s", strerror(e));
		if (s->mw)
			s->mw = NULL;
		else if (!again)
			s->target_mr = NULL;
	}
	if (together(s))
		return 1;
	if (s->role == REQUESTER) {
		wr = (struct ibv_send_wr){ .wr_id = 10, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { s->peer.addr, s->peer.rkey } };
		enum ibv_wc_status first = single(s, wr, IBV_WC_RDMA_WRITE), second = single(s, wr, IBV_WC_RDMA_WRITE);
		wc = (struct ibv_wc){ .wr_id = 10, .status = first };
		if (first == IBV_WC_RETRY_EXC_ERR || first == IBV_WC_WR_FLUSH_ERR)
			must_be_dead(s, &wc, "request");
		else if (first != IBV_WC_REM_ACCESS_ERR || second != IBV_WC_WR_FLUSH_ERR)
			bad(s, "with a key that was taken back: %s, %s", ibv_wc_status_str(first), ibv_wc_status_str(second));
	}
	if (s->gone || together(s))
		return 1;
	check_memory(s);
	return 0;
}
