/* The oracle of random_all.c: checks completions and memory by the plan, and prints failures. */
#include "random_all.h"

void bad(const struct side *s, const char *format, ...)
{
	char text[400];
	va_list ap;
	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	const struct plan *p = &s->plan;
	static const char *const names[] = { "RC", "UC", "XRC", "UD", "multicast", "traffic", "tag matching", "frames" };
	printf("FAILED: seed %llu, round %u, link %d (%s, process %d to %d; srq %d, new calls %d, memory %d, window %d, extended %d/%d, events %d/%d), %s: %s\n",
	       (unsigned long long)random_seed, random_round, s->link, names[p->transport], p->proc[0], p->proc[1], p->srq, p->new_api, p->memory, p->window, p->extended[0],
	       p->extended[1], p->events[0], p->events[1], s->role == REQUESTER ? "requester" : "responder", text);
	fflush(stdout);
	_exit(2);
}

/* ---- the oracle ---- */

void must_be_dead(struct side *s, const struct ibv_wc *wc, const char *what)
{
	uint64_t end = now_us() + WAIT_US;
	while (!s->board->dead[s->plan.proc[!s->role]]) {
		if (now_us() > end)
			bad(s, "%s %llx: %s (vendor error %u)", what, (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status), wc->vendor_err);
		usleep(1000);
	}
	s->gone = 1;
}

static enum ibv_wc_opcode opcode_of(enum ibv_wr_opcode op)
{
	switch (op) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
	case IBV_WR_ATOMIC_WRITE: return IBV_WC_ATOMIC_WRITE;
	default: return IBV_WC_SEND;
	}
}

int drain_sends(struct side *s, struct batch *b)
{
	int failed = 0;
	while (b->next_send < b->n) {
		struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
		if (!completion(s, &wc, WAIT_US, 0))
			bad(s, "request %u of %u: no completion", b->next_send, b->n);
		unsigned i = wc.wr_id & 0xff, next = b->next_send;
		if (i < next || i >= b->n || wc.wr_id != b->p[i].r.id)
			bad(s, "request %u: completion of %llx instead, %s", next, (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
		const struct planned *p = &b->p[i];
		for (; next < i; next++)
			if (failed || s->plan.sig_all || b->p[next].r.flags & IBV_SEND_SIGNALED)
				bad(s, "request %u: no completion, but one of %u (%s)", next, i, ibv_wc_status_str(wc.status));
		b->next_send = i + 1;
		if (wc.qp_num != s->qp->qp_num)
			bad(s, "request %u: QP number %x", i, wc.qp_num);
		if (wc.status) {
			if (wc.status != IBV_WC_WR_FLUSH_ERR && (failed || wc.status != IBV_WC_RETRY_EXC_ERR))
				bad(s, "request %u (opcode %d, %u bytes): %s", i, p->r.op, p->len, ibv_wc_status_str(wc.status));
			if (!failed)
				must_be_dead(s, &wc, "request");
			failed = 1;
			continue;
		}
		if (failed)
			bad(s, "request %u: success after a failure", i);
		if (!s->plan.sig_all && !(p->r.flags & IBV_SEND_SIGNALED))
			bad(s, "request %u: a completion nobody asked for", i);
		if (wc.opcode != opcode_of(p->r.op))
			bad(s, "request %u: opcode %d for %d", i, wc.opcode, p->r.op);
		if ((p->r.op == IBV_WR_RDMA_READ || (is_atomic(p->r.op) && p->r.op != IBV_WR_ATOMIC_WRITE)) && wc.byte_len != p->len)
			bad(s, "request %u: length %u, should be %u", i, wc.byte_len, p->len);
		if ((p->r.op == IBV_WR_RDMA_READ || is_atomic(p->r.op)) && memcmp(s->area + p->source, s->model_area + p->source, p->len))
			bad(s, "request %u (opcode %d, %u bytes): other bytes", i, p->r.op, p->len);
		atomic_fetch_add(&s->board->bytes, p->len);
	}
	return s->gone;
}

int drain_receives(struct side *s, struct batch *b, int flushed)
{
	/* Receives of a QP's own queue are flushed when the peer dies; receives in an SRQ stay. A
	 * side that only receives is not told about the death of a peer on another host. */
	int own = s->plan.transport == T_RC && !s->srq && !is_far(&s->plan), failed = 0;
	unsigned last = 0;
	for (; b->next_receive < b->n; b->next_receive++) {
		unsigned i = b->next_receive, from = i;
		struct planned *p = &b->p[i];
		struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
		if (!p->receives)
			continue;
		if (!completion(s, &wc, s->plan.transport == T_MCAST ? 2000000 : WAIT_US, !own && !flushed)) {
			if (s->board->dead[s->plan.proc[REQUESTER]] && !own && !flushed)
				return s->gone = 1;
			/* A multicast sender does not wait for a member without receives. */
			if (s->plan.transport == T_MCAST && !flushed)
				return 2;
			bad(s, "receive %u of %u: no completion", i, b->n);
		}
		if (wc.wr_id != p->r.id || wc.qp_num != s->qp->qp_num)
			bad(s, "receive %llx: completion of %llx, QP %x, %s", (unsigned long long)p->r.id, (unsigned long long)wc.wr_id, wc.qp_num, ibv_wc_status_str(wc.status));
		if (wc.status) {
			if (wc.status != IBV_WC_WR_FLUSH_ERR)
				bad(s, "receive %u: %s", i, ibv_wc_status_str(wc.status));
			if (!flushed && !failed)
				must_be_dead(s, &wc, "receive");
			failed = 1;
			continue;
		}
		if (failed)
			bad(s, "receive %u: success after a failure", i);
		int imm = p->r.op != IBV_WR_SEND, write = p->r.op == IBV_WR_RDMA_WRITE_WITH_IMM;
		uint32_t grh = 0;
		if (datagrams(s)) {
			/* One after the other; some may be missing. */
			from = wc.imm_data & 0xff;
			if (from < last || from >= b->n || wc.imm_data != b->p[from].r.imm)
				bad(s, "datagram %x out of order", wc.imm_data);
			last = from + 1;
			grh = GRH;
			memcpy(s->model_landing + p->landing, s->area + p->landing, GRH);
			memcpy(s->model_landing + p->landing + GRH, b->datagram[from], b->p[from].len);
		}
		if (wc.byte_len != b->p[from].len + grh || wc.opcode != (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) || !!(wc.wc_flags & IBV_WC_WITH_IMM) != imm ||
		    (imm && wc.imm_data != b->p[from].r.imm) || !!(wc.wc_flags & IBV_WC_GRH) != !!grh)
			bad(s, "receive %u: length %u instead of %u, opcode %d, flags %x, immediate %x", i, wc.byte_len, b->p[from].len + grh, wc.opcode, wc.wc_flags, wc.imm_data);
		if (!write && memcmp(s->area + p->landing, s->model_landing + p->landing, wc.byte_len))
			bad(s, "receive %u (%u bytes): other bytes", i, wc.byte_len);
	}
	return s->gone;
}

void same(struct side *s, const unsigned char *is, const unsigned char *should, size_t len, const char *what)
{
	if (!memcmp(is, should, len))
		return;
	size_t at = 0;
	while (is[at] == should[at])
		at++;
	bad(s, "%s differs at %zx: %02x instead of %02x", what, at, is[at], should[at]);
}

void check_memory(struct side *s)
{
	if (s->role == REQUESTER) {
		same(s, s->area, s->model_area, AREA, "the requester's memory");
		return;
	}
	same(s, s->area, s->model_landing, LANDING, "the memory of receives");
	if (s->dm && ibv_memcpy_from_dm(s->seen, s->dm, 0, TARGET))
		bad(s, "ibv_memcpy_from_dm");
	if (usable(s))
		same(s, s->dm ? s->seen : s->target, s->model_target, TARGET, "the target's memory");
}

enum ibv_wc_status single(struct side *s, struct ibv_send_wr wr, enum ibv_wc_opcode opcode)
{
	struct ibv_send_wr *bad_wr;
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	wr.send_flags |= IBV_SEND_SIGNALED;
	if (s->plan.transport == T_XRC)
		wr.qp_type.xrc.remote_srqn = s->peer.srqn;
	int e = ibv_post_send(s->qp, &wr, &bad_wr);
	if (e || !completion(s, &wc, WAIT_US, 0))
		bad(s, "opcode %d: %d, or no completion", wr.opcode, e);
	if (wc.wr_id != wr.wr_id || (!wc.status && wc.opcode != opcode))
		bad(s, "opcode %d: completion of %llx, opcode %d", wr.opcode, (unsigned long long)wc.wr_id, wc.opcode);
	return wc.status;
}

int count(struct side *s, uint64_t delta)
{
	struct ibv_sge sge = { (uintptr_t)&s->scratch, 8, s->scratch_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 7, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &sge, .num_sge = 1 };
	wr.wr.atomic.remote_addr = s->peer.counter_addr;
	wr.wr.atomic.rkey = s->peer.counter_key;
	wr.wr.atomic.compare_add = delta;
	atomic_fetch_add(&s->board->most[s->plan.proc[RESPONDER]], delta);
	struct ibv_wc wc = { .wr_id = 7, .status = single(s, wr, IBV_WC_FETCH_ADD) };
	if (!wc.status)
		atomic_fetch_add(&s->board->least[s->plan.proc[RESPONDER]], delta);
	else if (wc.status != IBV_WC_RETRY_EXC_ERR && wc.status != IBV_WC_WR_FLUSH_ERR)
		bad(s, "counting: %s", ibv_wc_status_str(wc.status));
	else
		must_be_dead(s, &wc, "counting");
	return s->gone;
}

void to_state(struct side *s, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = { .qp_state = state };
	int e = ibv_modify_qp(s->qp, &a, IBV_QP_STATE);
	if (e)
		bad(s, "to state %d: %s", state, strerror(e));
}
