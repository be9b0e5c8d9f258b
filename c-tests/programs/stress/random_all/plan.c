/* Plans of random_all.c's connections and of their batches of requests, drawn from the seed. */
#include "random_all.h"

uint32_t below(uint64_t *rng, uint32_t n) { return rnd(rng) % n; }

int is_far(const struct plan *p) { return hosts_differ() && p->proc[0] % 2 != p->proc[1] % 2; }

struct plan plan_of(int link)
{
	struct plan p = { .rng = random_seed * 1000003 + random_round * 7919u + (unsigned)link };
	uint64_t *g = &p.rng;
	for (int i = 0; i < 4; i++)
		rnd(g);
	static const enum transport kinds[] = { T_RC, T_RC, T_RC, T_UC, T_XRC, T_XRC, T_UD, T_MCAST, T_CROWD, T_CROWD, T_TM, T_TM, T_FRAMES, T_FRAMES };
	p.transport = kinds[below(g, sizeof kinds / sizeof *kinds)];
	p.proc[0] = (int)below(g, PROCS);
	p.proc[1] = (int)below(g, PROCS);
	/*
	 * Between hosts only these transports are used. UC loses packets when a socket buffer is
	 * full, datagrams get lost with FERROVERBS_SOFT_IMPAIRMENT, and the remaining transports work
	 * on one host only.
	 */
	int arrives = p.transport == T_XRC || (p.transport == T_UD && !getenv("FERROVERBS_SOFT_IMPAIRMENT"));
	if (is_far(&p) && !arrives)
		p.transport = T_RC;
	p.batches = 4 + (int)below(g, 20);
	p.new_api = (int)below(g, 2);
	p.srq = (int)below(g, 3) == 0 && p.transport != T_UC;
	p.by_gid = (int)below(g, 2) || hosts_differ();
	p.sig_all = (int)below(g, 4) == 0;
	p.memory = (enum memory)below(g, MEMORIES);
	p.window = p.transport == T_RC && p.memory != M_DEVICE && p.memory != M_ON_DEMAND ? (int)below(g, 3) : 0;
	for (int i = 0; i < 2; i++) {
		p.extended[i] = (int)below(g, 2) || (i == RESPONDER && p.transport == T_TM) || p.transport == T_FRAMES;
		p.events[i] = (int)below(g, 3) == 0;
		p.psn[i] = below(g, 1 << 24);
	}
	return p;
}

static uint32_t some_length(uint64_t *g, uint32_t most)
{
	static const uint32_t usual[] = { 0, 1, 8, 47, 48, 49, 64, 200, 511, 2048, 4095, 4096, 4097, 8192, 8193, 16384, 16385 };
	uint32_t len = below(g, 3) ? usual[below(g, sizeof usual / sizeof *usual)] : below(g, below(g, 4) ? 20000 : (1 << 20) + 1);
	return len > most ? most : len;
}

void cut(uint64_t *g, struct request *r, uint64_t offset, uint32_t len)
{
	r->pieces = 1 + (int)below(g, 4);
	for (int i = 0; i < r->pieces; i++) {
		uint32_t part = i == r->pieces - 1 ? len : below(g, len + 1);
		r->piece[i] = (struct piece){ offset, part, 0 };
		offset += part;
		len -= part;
	}
}

int is_atomic(enum ibv_wr_opcode op) { return op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_WRITE; }

static void plan_one(struct side *s, struct batch *b, unsigned i, unsigned number, int *fence)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
						  IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE };
	uint64_t *g = &s->plan.rng;
	struct planned *p = &b->p[i];
	struct request *r = &p->r;
	int many = s->plan.transport == T_UC ? 4 : s->plan.transport == T_RC && s->plan.new_api ? 8 : 7;
	r->op = datagrams(s) ? IBV_WR_SEND_WITH_IMM : ops[below(g, (uint32_t)many)];
	r->id = (uint64_t)number << 8 | i;
	r->flags = i == b->n - 1 || below(g, 2) ? IBV_SEND_SIGNALED : 0;
	r->imm = datagrams(s) ? number << 8 | i : rnd(g);
	uint32_t most = b->used + 300 < AREA ? AREA - 300 - b->used : 0;
	p->len = is_atomic(r->op) ? 8 : some_length(g, datagrams(s) ? ONE_DATAGRAM : most);
	p->at = is_atomic(r->op) ? 8 * below(g, TARGET / 8) : below(g, TARGET - p->len);
	p->source = b->used + below(g, 13);
	b->used = p->source + p->len + 8;
	for (uint32_t k = 0; k < p->len; k += 4) {
		uint32_t v = rnd(g);
		memcpy(s->model_area + p->source + k, &v, p->len - k < 4 ? p->len - k : 4);
	}
	if (s->role == REQUESTER)
		memcpy(s->area + p->source, s->model_area + p->source, p->len);
	unsigned char *from = s->model_area + p->source, *to = s->model_target + p->at;
	if (is_atomic(r->op)) {
		r->pieces = 1;
		r->piece[0] = (struct piece){ p->source, 8, 0 };
	} else {
		cut(g, r, p->source, p->len);
	}
	if (r->op != IBV_WR_RDMA_READ && !is_atomic(r->op) && p->len <= 200 && below(g, 2))
		r->flags |= IBV_SEND_INLINE;
	/*
	 * A request after a READ or atomic is fenced, because the model executes requests in order.
	 */
	if (*fence)
		r->flags |= IBV_SEND_FENCE;
	int sends = r->op == IBV_WR_SEND || r->op == IBV_WR_SEND_WITH_IMM;
	if (sends || r->op == IBV_WR_RDMA_WRITE_WITH_IMM) {
		p->receives = 1;
		b->receives++;
		p->landing = b->landed + below(g, 7);
		p->room = datagrams(s) ? GRH + ONE_DATAGRAM : sends ? p->len + below(g, 64) : 0;
		b->landed = p->landing + p->room + 8;
		cut(g, &p->receive, p->landing, p->room);
	}
	uint64_t old;
	switch (r->op) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		if (datagrams(s))
			memcpy(b->datagram[i], from, p->len);
		else
			memcpy(s->model_landing + p->landing, from, p->len);
		break;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM: memcpy(to, from, p->len); break;
	case IBV_WR_RDMA_READ:
		memcpy(from, to, p->len);
		*fence = 1;
		break;
	case IBV_WR_ATOMIC_WRITE:
		r->swap = (uint64_t)rnd(g) << 32 | rnd(g);
		memcpy(to, &r->swap, 8);
		break;
	default:
		memcpy(&old, to, 8);
		memcpy(from, &old, 8);
		r->compare_add = below(g, 2) ? old : rnd(g);
		r->swap = (uint64_t)rnd(g) << 32 | rnd(g);
		if (r->op == IBV_WR_ATOMIC_FETCH_AND_ADD)
			old += r->compare_add;
		else if (old == r->compare_add)
			old = r->swap;
		memcpy(to, &old, 8);
		*fence = 1;
	}
	if (r->flags & IBV_SEND_INLINE)
		memset(from, 0xEE, p->len);
}

void plan_batch(struct side *s, struct batch *b)
{
	static _Thread_local unsigned number;
	uint64_t *g = &s->plan.rng;
	int fence = 0;
	number = number % 250 + 1;
	memset(b, 0, sizeof *b);
	b->n = 1 + below(g, BATCH);
	b->late = !datagrams(s) && s->plan.transport != T_UC && !below(g, 5);
	b->list = (int)below(g, 2);
	b->action = (int)below(g, 8);
	b->delta = below(g, 2) ? 1 + below(g, 1000) : 0;
	for (unsigned i = 0; i < b->n; i++)
		plan_one(s, b, i, number, &fence);
}
