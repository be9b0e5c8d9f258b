/*
 * A storm: processes with a thread for each side of each connection, everything drawn from a seed (transports, queues, memory, windows, steering rules,
 * operations, lengths, lists), and an oracle that knows each completion and each byte of each buffer beforehand. Objects come and go while
 * others work; queue pairs are flushed and connected again; processes are killed. Afterwards everything can be destroyed.
 *
 * storm SEED SECONDS: SEED 0 is taken from the clock. The seed is printed; it repeats plans and operations, not the timing. With TEST_HOST (rig.h) every
 * second process is on the other host; the cable has to carry packets of 4096 bytes.
 */
#include "storm.h"
#include "../../tools/refuse_cma.h"

uint64_t storm_seed;
unsigned storm_round;
void *storm_sysv[LINKS];
static struct board *board;

uint32_t below(uint64_t *rng, uint32_t n) { return rnd(rng) % n; }

void bad(const struct side *s, const char *format, ...)
{
	char text[400];
	va_list ap;
	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	const struct plan *p = &s->plan;
	static const char *const names[] = { "RC", "UC", "XRC", "UD", "multicast", "crowd", "tag matching", "frames" };
	printf("FAILED: seed %llu, round %u, link %d (%s, process %d to %d; srq %d, new calls %d, memory %d, window %d, extended %d/%d, events %d/%d), %s: %s\n",
	       (unsigned long long)storm_seed, storm_round, s->link, names[p->transport], p->proc[0], p->proc[1], p->srq, p->new_api, p->memory, p->window, p->extended[0],
	       p->extended[1], p->events[0], p->events[1], s->role == REQUESTER ? "requester" : "responder", text);
	fflush(stdout);
	_exit(2);
}

#include "storm_side.h"

/* Whether the two processes of a link are on different hosts. */
static int is_far(const struct plan *p) { return hosts_differ() && p->proc[0] % 2 != p->proc[1] % 2; }

struct plan plan_of(int link)
{
	struct plan p = { .rng = storm_seed * 1000003 + storm_round * 7919u + (unsigned)link };
	uint64_t *g = &p.rng;
	for (int i = 0; i < 4; i++)
		rnd(g);
	static const enum transport kinds[] = { T_RC, T_RC, T_RC, T_UC, T_XRC, T_XRC, T_UD, T_MCAST, T_CROWD, T_CROWD, T_TM, T_TM, T_FRAMES, T_FRAMES };
	p.transport = kinds[below(g, sizeof kinds / sizeof *kinds)];
	p.proc[0] = (int)below(g, PROCS);
	p.proc[1] = (int)below(g, PROCS);
	/* Others are of one host alone, or may get lost: UC wherever a socket's buffer is full, datagrams where the weather is bad. */
	int arrives = p.transport == T_XRC || (p.transport == T_UD && !getenv("FERROVERBS_SOFT_WEATHER"));
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

/* Random cuts of a contiguous range. */
static void cut(uint64_t *g, struct request *r, uint64_t offset, uint32_t len)
{
	r->pieces = 1 + (int)below(g, 4);
	for (int i = 0; i < r->pieces; i++) {
		uint32_t part = i == r->pieces - 1 ? len : below(g, len + 1);
		r->piece[i] = (struct piece){ offset, part, 0 };
		offset += part;
		len -= part;
	}
}

static int is_atomic(enum ibv_wr_opcode op) { return op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_WRITE; }

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
	/* What follows a READ or an atomic waits for it, as the model does. */
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

/* ---- the oracle ---- */

/* An error is right only if the other process was killed; its word may come a little later than ours. */
static void must_be_dead(struct side *s, const struct ibv_wc *wc, const char *what)
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

/* All completions of the requests; 1 if they ended because of a death. */
static int drain_sends(struct side *s, struct batch *b)
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

/* All completions of the receives; 1 if they ended because of a death. `flushed`: we took the QP to ERR ourselves. */
static int drain_receives(struct side *s, struct batch *b, int flushed)
{
	/* The receives of a queue of its own are flushed when the peer dies; those of others stay. Who only receives hears nothing of another host. */
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
			/* What is for many does not wait for one who has no room for long. */
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

static void same(struct side *s, const unsigned char *is, const unsigned char *should, size_t len, const char *what)
{
	if (!memcmp(is, should, len))
		return;
	size_t at = 0;
	while (is[at] == should[at])
		at++;
	bad(s, "%s differs at %zx: %02x instead of %02x", what, at, is[at], should[at]);
}

static void check_memory(struct side *s)
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

/* One request outside of batches; its status. */
static enum ibv_wc_status single(struct side *s, struct ibv_send_wr wr, enum ibv_wc_opcode opcode)
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

/* Adds to the counter of the other process, as all its requesters do. 1: it is dead. */
static int count(struct side *s, uint64_t delta)
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

static void to_state(struct side *s, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = { .qp_state = state };
	int e = ibv_modify_qp(s->qp, &a, IBV_QP_STATE);
	if (e)
		bad(s, "to state %d: %s", state, strerror(e));
}

#include "storm_acts.h"

/* The other process is dead: what was posted ends, and nothing more succeeds. */
static void aftermath(struct side *s, struct batch *b, int posted)
{
	int reliable = s->plan.transport == T_RC || s->plan.transport == T_XRC;
	atomic_fetch_add(&s->board->survived, 1);
	if (s->role == REQUESTER) {
		if (posted)
			drain_sends(s, b);
		struct ibv_sge sge = { (uintptr_t)s->area, 8, s->mr->lkey };
		struct ibv_send_wr wr = { .wr_id = 11, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
		/* It may have happened while we were not connected. */
		struct ibv_qp_attr a;
		struct ibv_qp_init_attr made;
		int e = ibv_query_qp(s->qp, &a, IBV_QP_STATE, &made);
		if (e)
			bad(s, "ibv_query_qp: %s", strerror(e));
		int connected = a.qp_state == IBV_QPS_RTS || a.qp_state == IBV_QPS_ERR;
		enum ibv_wc_status status = reliable && connected ? single(s, wr, IBV_WC_SEND) : IBV_WC_WR_FLUSH_ERR;
		if (status != IBV_WC_RETRY_EXC_ERR && status != IBV_WC_WR_FLUSH_ERR)
			bad(s, "to a process that was killed: %s", ibv_wc_status_str(status));
	} else if (posted && !s->srq) {
		int told = reliable && !is_far(&s->plan);
		if (!told)
			to_state(s, IBV_QPS_ERR);
		drain_receives(s, b, !told);
	}
}

#include "storm_tm.h"
#include "storm_frames.h"

static int crowd_together(void *s) { return together(s); }

static int crowd_is_dead(void *arg)
{
	const struct side *s = arg;
	return s->board->dead[s->plan.proc[!s->role]] != 0;
}

/* Threads by the dozen instead of one on each side. */
static void run_crowd(struct side *s)
{
	char name[100];
	struct crowd *c = calloc(1, sizeof *c);
	snprintf(name, sizeof name, "seed %llu, round %u, link %d (process %d to %d)", (unsigned long long)storm_seed, storm_round, s->link, s->plan.proc[0], s->plan.proc[1]);
	if (!c)
		bad(s, "out of memory");
	*c = (struct crowd){ .board = &s->board->link[s->link].crowd, .plan = crowd_plan(s->plan.rng, -1, 10 + below(&s->plan.rng, 150)), .role = s->role, .name = name, .ctx = s->ctx,
			     .together = crowd_together, .is_dead = crowd_is_dead, .arg = s };
	if (crowd_run(c))
		atomic_fetch_add(&s->board->survived, 1);
	else if (s->role == REQUESTER)
		atomic_fetch_add(&s->board->requests, (uint64_t)c->plan.posters * c->plan.each);
	free(c);
}

static void *run_side(void *arg)
{
	struct side *s = arg;
	if (s->plan.transport == T_CROWD) {
		run_crowd(s);
		return NULL;
	}
	if (s->plan.transport == T_TM) {
		run_tm(s);
		return NULL;
	}
	if (s->plan.transport == T_FRAMES) {
		run_frames(s);
		return NULL;
	}
	static _Thread_local struct batch b;
	int posted = 0, reliable = s->plan.transport == T_RC || s->plan.transport == T_XRC, lost = 0;
	side_open(s, s->counter_mr);
	int dead = side_connect(s);
	for (int n = 0; n < s->plan.batches && !dead && !lost; n++) {
		plan_batch(s, &b);
		posted = 0;
		if (s->role == RESPONDER && !b.late) {
			post_receives(s, &b);
			posted = 1;
		}
		if ((dead = together(s)))
			break;
		if (s->role == REQUESTER) {
			if (b.action == 7)
				pause_sends(s, IBV_QPS_SQD);
			post_requests(s, &b);
			posted = 1;
			if (b.action == 7)
				pause_sends(s, IBV_QPS_RTS);
		}
		if (b.late && (dead = together(s)))
			break;
		if (s->role == RESPONDER && b.late) {
			post_receives(s, &b);
			posted = 1;
		}
		if (b.action == 3)
			resize(s, (int)b.n);
		if (s->role == REQUESTER)
			dead = drain_sends(s, &b);
		else if (!datagrams(s))
			dead = drain_receives(s, &b, 0);
		if (dead || (dead = together(s)))
			break;
		if (s->role == RESPONDER && datagrams(s)) {
			int r = drain_receives(s, &b, 0);
			dead = r == 1;
			/* Its receives stay posted: what came later would not find its own. */
			s->board->link[s->link].info[RESPONDER].srqn = r == 2;
		}
		if (dead || (dead = together(s)))
			break;
		posted = 0;
		lost = datagrams(s) && s->board->link[s->link].info[RESPONDER].srqn;
		check_memory(s);
		if (s->role == REQUESTER) {
			atomic_fetch_add(&s->board->requests, b.n);
			atomic_fetch_add(&s->board->batches, 1);
			atomic_fetch_add(&s->board->lost, (unsigned)lost);
			if (reliable && b.delta && (dead = count(s, b.delta)))
				break;
		}
		if (!lost && ((dead = together(s)) || (dead = act(s, &b))))
			break;
	}
	if (!dead && s->plan.transport == T_RC)
		dead = take_back(s);
	if (!dead)
		dead = together(s);
	if (dead)
		aftermath(s, &b, posted);
	side_close(s);
	return NULL;
}

/* ---- processes ---- */

static void round_of(int proc)
{
	static struct side sides[2 * LINKS];
	static _Alignas(64) uint64_t counter[8];
	pthread_t thread[2 * LINKS];
	struct ibv_mr over = { .addr = counter };
	int n = 0;
	memset(counter, 0, sizeof counter);
	struct ibv_context *ctx = open_device();
	for (int l = 0; l < LINKS; l++)
		for (int role = REQUESTER; role <= RESPONDER; role++) {
			struct plan p = plan_of(l);
			if (p.proc[role] != proc)
				continue;
			sides[n] = (struct side){ .board = board, .link = l, .proc = proc, .role = (enum role)role, .plan = p, .ctx = ctx, .counter_mr = &over };
			if (pthread_create(&thread[n], NULL, run_side, &sides[n]))
				die("pthread_create");
			n++;
		}
	for (int i = 0; i < n; i++)
		pthread_join(thread[i], NULL);
	if (ibv_close_device(ctx))
		die("seed %llu, round %u: ibv_close_device of process %d", (unsigned long long)storm_seed, storm_round, proc);
	uint64_t least = board->least[proc], most = board->most[proc];
	if (counter[0] < least || counter[0] > most)
		die("seed %llu, round %u: the counter of process %d is %llu, should be %llu to %llu", (unsigned long long)storm_seed, storm_round, proc,
		    (unsigned long long)counter[0], (unsigned long long)least, (unsigned long long)most);
}

static void process(int proc)
{
	for (uint32_t done = board->done[proc]; !board->stop;) {
		uint32_t round = board->round;
		if (round == done) {
			usleep(200);
			continue;
		}
		storm_round = round;
		round_of(proc);
		board->done[proc] = done = round;
	}
	fflush(stdout);
	_exit(0);
}

static pid_t pid[PROCS];

/* Which way data takes: to and from this process cross-memory attach works, is switched off, or is refused to it. */
static void choose_path(uint64_t rng)
{
	static const char *const eager[] = { "0", "1000", "8192", "100000" };
	for (int i = 0; i < 4; i++)
		rnd(&rng);
	uint32_t path = below(&rng, 6), size = below(&rng, 8);
	if (size < 4 && setenv("FERROVERBS_SOFT_EAGER", eager[size], 1))
		die("setenv");
	if (path == 0 && setenv("FERROVERBS_SOFT_CMA", "off", 1))
		die("setenv");
	if (path == 1 && refuse_cma())
		die("refusing cross-memory attach: %s", strerror(errno));
}

static void start(int proc)
{
	static uint64_t lives;
	lives++;
	fflush(stdout);
	pid[proc] = fork();
	if (pid[proc] < 0)
		die("fork");
	if (!pid[proc]) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		choose_path(storm_seed * 31 + lives);
		if (proc % 2)
			go_to_host();
		process(proc);
	}
}

static void stop_all(void)
{
	for (int i = 0; i < PROCS; i++)
		if (pid[i] > 0)
			kill(pid[i], SIGKILL);
	for (int i = 0; i < PROCS; i++)
		if (pid[i] > 0)
			waitpid(pid[i], NULL, 0);
}

/* Until all have done the round; `victim` is killed `after` us. */
static void wait_round(uint32_t round, int victim, unsigned after)
{
	uint64_t begin = now_us();
	for (;;) {
		int all = 1;
		if (victim >= 0 && pid[victim] > 0 && now_us() - begin >= after) {
			int status;
			kill(pid[victim], SIGKILL);
			waitpid(pid[victim], &status, 0);
			pid[victim] = 0;
			board->dead[victim] = 1;
		}
		for (int i = 0; i < PROCS; i++) {
			int status;
			if (!pid[i])
				continue;
			all &= board->done[i] == round;
			if (waitpid(pid[i], &status, WNOHANG) == pid[i]) {
				pid[i] = 0;
				stop_all();
				die("seed %llu, round %u: process %d ended with status %x", (unsigned long long)storm_seed, round, i, (unsigned)status);
			}
		}
		if (all && (victim < 0 || !pid[victim]))
			return;
		if (now_us() - begin > 6ull * WAIT_US) {
			stop_all();
			die("seed %llu, round %u: it does not end", (unsigned long long)storm_seed, round);
		}
		usleep(200);
	}
}

int main(int argc, char **argv)
{
	if (argc != 3)
		die("usage: storm SEED SECONDS");
	storm_seed = strtoull(argv[1], NULL, 0);
	if (!storm_seed)
		storm_seed = (uint64_t)time(NULL) << 8 ^ (uint64_t)getpid();
	uint64_t end = now_us() + strtoull(argv[2], NULL, 0) * 1000000, rng = storm_seed, told = now_us();
	printf("seed %llu\n", (unsigned long long)storm_seed);
	fflush(stdout);
	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED)
		die("mmap");
	/* Made and marked for removal here, so that no death leaves one behind. */
	for (int i = 0; i < LINKS; i++) {
		int id = shmget(IPC_PRIVATE, TARGET, 0600);
		storm_sysv[i] = id < 0 ? (void *)-1 : shmat(id, NULL, 0);
		if (id >= 0)
			shmctl(id, IPC_RMID, NULL);
		if (storm_sysv[i] == (void *)-1)
			die("a System V segment: %s", strerror(errno));
	}
	for (int i = 0; i < PROCS; i++)
		start(i);
	unsigned kills = 0;
	uint32_t round = 0;
	for (int last = 0; !last;) {
		/* Nobody is killed in the last one: whoever leaves last cleans up. */
		last = now_us() >= end;
		for (int i = 0; i < PROCS; i++)
			board->least[i] = board->most[i] = 0;
		memset((void *)board->link, 0, sizeof board->link);
		int victim = !below(&rng, 3) && !last ? (int)below(&rng, PROCS) : -1;
		unsigned after = below(&rng, 150000);
		board->round = ++round;
		wait_round(round, victim, after);
		if (victim >= 0) {
			kills++;
			board->dead[victim] = 0;
			board->done[victim] = round;
			start(victim);
		}
		if (now_us() - told > 60000000) {
			told = now_us();
			printf("%u rounds, %u kills, %llu requests\n", round, kills, (unsigned long long)board->requests);
			fflush(stdout);
		}
	}
	board->stop = 1;
	for (int i = 0; i < PROCS; i++) {
		int status = 0;
		if (waitpid(pid[i], &status, 0) != pid[i] || status)
			die("process %d ended with status %x", i, (unsigned)status);
	}
	check(1, "%u rounds, %u kills, %llu connections that lost a process, %llu batches, %llu requests, %llu MiB, %llu connections lost datagrams", round, kills,
	      (unsigned long long)board->survived, (unsigned long long)board->batches, (unsigned long long)board->requests, (unsigned long long)board->bytes >> 20,
	      (unsigned long long)board->lost);
	return finish();
}
