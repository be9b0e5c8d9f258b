/*
 * Memory windows of both types over every data path: access, users and lifetime; bind, unbind and
 * invalidation on either side; every refusal. ibv_alloc_mw(3), ibv_bind_mw(3), ibv_post_send(3),
 * ibv_wr_post(3), ibv_inc_rkey(3).
 *
 * "b" owns the memory and binds; "a" reads and writes by the window's key.
 *
 * Map of this file: open_both connects the pair. The functions from alloc to free_other run in b's
 * process by end_run: they create, bind and invalidate windows, and register regions. remote, works
 * and refused issue a's accesses by a key, and check their statuses. type_1, limits and type_2
 * check rights and bounds; send_inv checks remote invalidation. bad_binds checks binds that
 * complete with an error; bad_posts checks calls that return EINVAL; lives checks the lifetime of
 * windows, regions and QPs. one_qp_only adds a second connection by the functions second and
 * read_by_second; unreliable repeats checks on UC; without_peer binds without a peer; capabilities
 * checks device attributes. main starts the ends, b in another process for the argument "two", and
 * runs all checks.
 */
#include "rig.h"

static struct end *a, *b;
static struct address aa, ba;

enum { MW_ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND };

static void open_both(unsigned mr_access, uint64_t send_ops)
{
	struct options o = defaults();
	o.mr_access = mr_access;
	o.send_ops = send_ops;
	pair_open(a, b, o, &aa, &ba);
}

/* ---- in b's process ---- */

static long alloc(struct parts *p, void *arg)
{
	struct ibv_mw *mw = ibv_alloc_mw(p->pd, *(enum ibv_mw_type *)arg);
	p->own[0] = mw;
	return mw ? (long)mw->rkey : -errno;
}

static long dealloc(struct parts *p, void *arg)
{
	(void)arg;
	int err = ibv_dealloc_mw(p->own[0]);
	p->own[0] = NULL;
	return err;
}

struct binding {
	uint64_t offset, length;
	unsigned access;
	int how;		/* 0: ibv_bind_mw, 1: ibv_post_send, 2: ibv_wr_bind_mw */
	int absolute;		/* the offset is an address */
	int extra_mr;		/* the region in own[1] */
	int low_only;		/* the new key is named by its last eight bits, and others that are not the window's */
	uint32_t rkey;		/* out: the window's */
	struct ibv_wc wc;	/* out */
};

/* Binds the window and takes the completion if the request was posted. */
static long bind_it(struct parts *p, void *arg)
{
	struct binding *w = arg;
	struct ibv_mw *mw = p->own[0];
	struct ibv_mw_bind_info info = {
		.mr = w->extra_mr ? p->own[1] : p->mr,
		.addr = w->offset + (w->absolute ? 0 : (uintptr_t)p->buf),
		.length = w->length,
		.mw_access_flags = w->access,
	};
	uint32_t rkey = ibv_inc_rkey(mw->rkey), named = w->low_only ? (rkey & 0xff) | (w->low_only == 2 ? 0xabcdef00 : 0) : rkey;
	int err;
	if (w->how == 0) {
		struct ibv_mw_bind bind = { .wr_id = 77, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
		err = ibv_bind_mw(p->qp, mw, &bind);
		rkey = mw->rkey;
	} else if (w->how == 1) {
		struct ibv_send_wr *bad, wr = { .wr_id = 77, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = named;
		wr.bind_mw.bind_info = info;
		err = ibv_post_send(p->qp, &wr, &bad);
	} else {
		struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(p->qp);
		ibv_wr_start(qx);
		qx->wr_id = 77;
		qx->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_bind_mw(qx, mw, named, &info);
		err = ibv_wr_complete(qx);
	}
	if (err)
		return err;
	wait_completion(p->scq, &w->wc);
	if (w->wc.status == IBV_WC_SUCCESS)
		mw->rkey = rkey;
	w->rkey = mw->rkey;
	return 0;
}

/* Invalidates the window's key by a local request; returns the status of its completion. */
static long local_inv(struct parts *p, void *arg)
{
	struct binding *w = arg;
	struct ibv_wc wc;
	if (w->how == 2) {
		struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(p->qp);
		ibv_wr_start(qx);
		qx->wr_id = 78;
		qx->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_local_inv(qx, w->rkey);
		if (ibv_wr_complete(qx))
			die("ibv_wr_local_inv");
	} else {
		struct ibv_send_wr *bad, wr = { .wr_id = 78, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED };
		wr.invalidate_rkey = w->rkey;
		if (ibv_post_send(p->qp, &wr, &bad))
			die("ibv_post_send(LOCAL_INV)");
	}
	wait_completion(p->scq, &wc);
	if (wc.wr_id != 78 || (!wc.status && wc.opcode != IBV_WC_LOCAL_INV))
		die("another completion: %d", wc.opcode);
	return wc.status;
}

static long dereg(struct parts *p, void *arg)
{
	(void)arg;
	return ibv_dereg_mr(p->own[1]);
}

static long reg(struct parts *p, void *arg)
{
	struct binding *w = arg;
	p->own[1] = ibv_reg_mr(p->pd, p->buf + w->offset, w->length, (int)w->access);
	return p->own[1] ? 0 : errno;
}

/* A window of another domain. */
static long alloc_other(struct parts *p, void *arg)
{
	struct ibv_pd *pd = ibv_alloc_pd(p->ctx);
	p->own[2] = pd;
	p->own[0] = ibv_alloc_mw(pd, *(enum ibv_mw_type *)arg);
	return !p->own[0];
}

static long free_other(struct parts *p, void *arg)
{
	(void)arg;
	long busy = ibv_dealloc_pd(p->own[2]);
	long bad = ibv_dealloc_mw(p->own[0]) | ibv_dealloc_pd(p->own[2]);
	return bad ? -1 : busy;
}

/* ---- in a's process ---- */

static struct ibv_wc remote(enum ibv_wr_opcode op, uint64_t addr, uint32_t len, uint32_t rkey)
{
	return end_access(a, op, 0x2000, len, addr, rkey);
}

static void works(const char *what, uint64_t addr, uint64_t offset, uint32_t rkey)
{
	end_fill(a, 0x2000, 256, (uint32_t)offset);
	struct ibv_wc w = remote(IBV_WR_RDMA_WRITE, addr, 256, rkey);
	check(w.status == IBV_WC_SUCCESS && end_verify(b, offset, 256, (uint32_t)offset) < 0, "%s: a write arrives (%s)", what, ibv_wc_status_str(w.status));
	end_fill(a, 0x2000, 256, 99);
	w = remote(IBV_WR_RDMA_READ, addr, 256, rkey);
	check(w.status == IBV_WC_SUCCESS && end_verify(a, 0x2000, 256, (uint32_t)offset) < 0, "%s: a read brings it back (%s)", what, ibv_wc_status_str(w.status));
	w = remote(IBV_WR_ATOMIC_FETCH_AND_ADD, addr, 8, rkey);
	check_eq(w.status, IBV_WC_SUCCESS, "%s: an atomic", what);
}

static long new_window(enum ibv_mw_type type)
{
	long rkey = end_run(b, alloc, &type, sizeof type);
	if (rkey <= 0)
		die("ibv_alloc_mw: %s", strerror((int)-rkey));
	return rkey;
}

static struct binding bound(int how, uint64_t offset, uint64_t length, unsigned access)
{
	struct binding w = { .offset = offset, .length = length, .access = access, .how = how };
	long err = end_run(b, bind_it, &w, sizeof w);
	if (err)
		die("binding: %s", strerror((int)err));
	return w;
}

static const unsigned ALL = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/* a's request by `rkey` is refused as on hardware; both ends are opened anew. */
static void refused(const char *what, enum ibv_wr_opcode op, uint64_t addr, uint32_t len, uint32_t rkey)
{
	struct ibv_wc w = remote(op, addr, len, rkey);
	check_eq(w.status, IBV_WC_REM_ACCESS_ERR, "%s", what);
	check_eq(end_state_soon(b, IBV_QPS_ERR), IBV_QPS_ERR, "%s: the owner's QP is in error", what);
}

static void type_1(void)
{
	open_both(MW_ALL, 0);
	uint32_t first = (uint32_t)new_window(IBV_MW_TYPE_1);
	struct binding w = bound(0, 0x4000, 0x1000, ALL);
	check(w.wc.status == IBV_WC_SUCCESS && w.wc.opcode == IBV_WC_BIND_MW && w.wc.wr_id == 77, "type 1: ibv_bind_mw completes (%s)", ibv_wc_status_str(w.wc.status));
	check(w.rkey != first && (w.rkey ^ first) >> 8 == 0, "type 1: a new key, of which only the last eight bits changed");
	works("type 1", ba.addr + 0x4000, 0x4000, w.rkey);
	uint32_t old = w.rkey;
	w = bound(0, 0x8000, 0x1000, ALL);
	check(w.rkey != old && !w.wc.status, "type 1: bound anew");
	works("type 1, bound anew", ba.addr + 0x8000, 0x8000, w.rkey);
	w = bound(0, 0, 0, 0);
	check_eq(w.wc.status, IBV_WC_SUCCESS, "type 1: unbound by length 0");
	refused("type 1: the key of an unbound window", IBV_WR_RDMA_WRITE, ba.addr + 0x8000, 8, w.rkey);
	check_eq(end_run(b, dealloc, NULL, 0), 0, "ibv_dealloc_mw");
	pair_close(a, b);

	open_both(MW_ALL, 0);
	new_window(IBV_MW_TYPE_1);
	uint32_t before = bound(0, 0x4000, 0x1000, ALL).rkey;
	bound(0, 0x4000, 0x1000, ALL);
	refused("type 1: the key from before it was bound anew", IBV_WR_RDMA_READ, ba.addr + 0x4000, 8, before);
	end_run(b, dealloc, NULL, 0);
	pair_close(a, b);
}

static void limits(void)
{
	static const struct {
		const char *what;
		unsigned access;
		enum ibv_wr_opcode op;
		uint64_t at;
		uint32_t len;
	} c[] = {
		{ "a byte beyond the window", ALL, IBV_WR_RDMA_WRITE, 0x4000, 0x1001 },
		{ "a byte before the window", ALL, IBV_WR_RDMA_READ, 0x3fff, 8 },
		{ "writing without the right", IBV_ACCESS_REMOTE_READ | IBV_ACCESS_LOCAL_WRITE, IBV_WR_RDMA_WRITE, 0x4000, 8 },
		{ "reading without the right", IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE, IBV_WR_RDMA_READ, 0x4000, 8 },
		{ "an atomic without the right", IBV_ACCESS_REMOTE_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD, 0x4000, 8 },
	};
	for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
		open_both(MW_ALL, 0);
		new_window(i % 2 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
		struct binding w = bound(i % 2 ? 0 : 1, 0x4000, 0x1000, c[i].access);
		refused(c[i].what, c[i].op, ba.addr + c[i].at, c[i].len, w.rkey);
		end_run(b, dealloc, NULL, 0);
		pair_close(a, b);
	}
}

static void type_2(int how)
{
	const char *by = how == 2 ? "ibv_wr_bind_mw" : "IBV_WR_BIND_MW";
	uint64_t ops = how == 2 ? IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_RDMA_WRITE : 0;
	struct options o = defaults();
	o.mr_access = MW_ALL;
	aa = end_open(a, o);
	o.send_ops = ops;
	ba = end_open(b, o);
	end_connect(a, ba);
	end_connect(b, aa);
	new_window(IBV_MW_TYPE_2);
	struct binding w = bound(how, 0x4000, 0x1000, ALL);
	check(w.wc.status == IBV_WC_SUCCESS && w.wc.opcode == IBV_WC_BIND_MW && w.wc.wr_id == 77, "%s completes (%s)", by, ibv_wc_status_str(w.wc.status));
	works(by, ba.addr + 0x4000, 0x4000, w.rkey);
	check_eq(end_run(b, local_inv, &w, sizeof w), IBV_WC_SUCCESS, "%s: then IBV_WR_LOCAL_INV", by);
	w = bound(how, 0, 0x100, ALL | IBV_ACCESS_ZERO_BASED);
	check_eq(w.wc.status, IBV_WC_SUCCESS, "%s: bound again, zero-based", by);
	works("a zero-based window", 0, 0, w.rkey);
	check_eq(end_run(b, local_inv, &w, sizeof w), IBV_WC_SUCCESS, "%s: invalidated again", by);
	for (int low = 1; low <= 2; low++) {
		w = (struct binding){ .offset = 0x6000, .length = 0x1000, .access = ALL, .how = how, .low_only = low };
		check_eq(end_run(b, bind_it, &w, sizeof w), 0, "%s: only the last eight bits of the new key count", by);
		check_eq(w.wc.status, IBV_WC_SUCCESS, "%s: and it completes", by);
		works("a key of which only the last eight bits were given", ba.addr + 0x6000, 0x6000, w.rkey);
		check_eq(end_run(b, local_inv, &w, sizeof w), IBV_WC_SUCCESS, "%s: invalidated again", by);
	}
	refused("an invalidated key", IBV_WR_RDMA_READ, 0, 8, w.rkey);
	check_eq(end_run(b, dealloc, NULL, 0), 0, "%s: ibv_dealloc_mw", by);
	pair_close(a, b);
}

static long post_inv(struct parts *p, void *x)
{
	uint32_t *v = x;
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(p->qp);
	ibv_wr_start(qx);
	qx->wr_id = 9;
	qx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_inv(qx, v[0]);
	ibv_wr_set_sge(qx, p->mr->lkey, (uintptr_t)p->buf + 0x200000, v[1]);
	return ibv_wr_complete(qx);
}

/* SEND with invalidate: the receive completion names the invalidated key. */
static void send_inv(int how)
{
	const char *by = how == 2 ? "ibv_wr_send_inv" : "IBV_WR_SEND_WITH_INV";
	uint32_t sizes[] = { 20, 5000, 300000 };
	for (size_t i = 0; i < 3; i++) {
		struct options o = defaults();
		o.mr_access = MW_ALL;
		o.send_ops = how == 2 ? IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ : 0;
		aa = end_open(a, o);
		o.send_ops = 0;
		ba = end_open(b, o);
		end_connect(a, ba);
		end_connect(b, aa);
		new_window(IBV_MW_TYPE_2);
		struct binding w = bound(1, 0x4000, 0x1000, ALL);
		end_recv(b, one_piece(0, 1, 0x100000, 0x80000));
		end_fill(a, 0x200000, sizes[i], 7);
		struct request s = one_piece(IBV_WR_SEND_WITH_INV, 9, 0x200000, sizes[i]);
		s.imm = w.rkey;
		if (how == 2) {
			struct {
				uint32_t rkey, size;
			} arg = { w.rkey, sizes[i] };
			check_eq(end_run(a, post_inv, &arg, sizeof arg), 0, "%s is posted", by);
		} else {
			check_eq(end_send(a, s), 0, "%s is posted", by);
		}
		struct ibv_wc r = end_wait(b, RECVS), c = end_wait(a, SENDS);
		check(!c.status && c.wr_id == 9 && c.opcode == IBV_WC_SEND, "%s of %u bytes completes (%s)", by, sizes[i], ibv_wc_status_str(c.status));
		check(!r.status && (r.wc_flags & IBV_WC_WITH_INV) && !(r.wc_flags & IBV_WC_WITH_IMM) && r.invalidated_rkey == w.rkey && r.byte_len == sizes[i],
		      "the receiver learns which key is gone (%s, flags %x)", ibv_wc_status_str(r.status), r.wc_flags);
		check(end_verify(b, 0x100000, sizes[i], 7) < 0, "the message is whole");
		refused("a key invalidated by the peer", IBV_WR_RDMA_READ, ba.addr + 0x4000, 8, w.rkey);
		end_run(b, dealloc, NULL, 0);
		pair_close(a, b);
	}
	/* The key is that of a region, not of a window: the receiver's QP goes to ERR. */
	struct options o = defaults();
	o.mr_access = MW_ALL;
	o.timeout = short_timeout();
	o.retry = hosts_differ() ? 2 : 7;
	pair_open(a, b, o, &aa, &ba);
	end_recv(b, one_piece(0, 1, 0x100000, 0x1000));
	struct request s = one_piece(IBV_WR_SEND_WITH_INV, 9, 0x200000, 100);
	s.imm = ba.rkey;
	end_send(a, s);
	check_eq(end_wait(b, RECVS).status, IBV_WC_REM_INV_REQ_ERR, "invalidating a region's key from afar: the receive that it took");
	check_eq(end_state_soon(b, IBV_QPS_ERR), IBV_QPS_ERR, "and the QP");
	check_eq(end_wait(a, SENDS).status, IBV_WC_RETRY_EXC_ERR, "the sender gets no answer");
	pair_close(a, b);
}

/* Bind requests that fail at execution: the QP goes to ERR (IBTA 1.7 10.6.7, 11.2.9). */
static void bad_binds(void)
{
	static const struct {
		const char *what;
		unsigned mr_access, access;
		uint64_t offset, length;
	} c[] = {
		{ "a region without IBV_ACCESS_MW_BIND", IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, 0, 64 },
		{ "remote write where there is no local one", IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_WRITE, 0, 64 },
		{ "remote atomics where there is no local write", IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_ATOMIC, 0, 64 },
		{ "beyond the region", MW_ALL, IBV_ACCESS_REMOTE_READ, 4 << 20, 64 },
		{ "longer than the region", MW_ALL, IBV_ACCESS_REMOTE_READ, 64, 4 << 20 },
		{ "a range that wraps around", MW_ALL, IBV_ACCESS_REMOTE_READ, 64, ~0ull },
	};
	for (size_t i = 0; i < sizeof c / sizeof *c; i++)
		for (int how = 0; how < 2; how++) {
			open_both(c[i].mr_access, 0);
			new_window(how ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
			struct binding w = bound(how, c[i].offset, c[i].length, c[i].access);
			check_eq(w.wc.status, IBV_WC_MW_BIND_ERR, "type %d: %s", how + 1, c[i].what);
			check_eq(end_state_soon(b, IBV_QPS_ERR), IBV_QPS_ERR, "type %d: %s: QP in error", how + 1, c[i].what);
			end_run(b, dealloc, NULL, 0);
			pair_close(a, b);
		}
	/* Type 2 is unbound by invalidating alone. */
	for (int zero = 0; zero < 2; zero++) {
		open_both(MW_ALL, 0);
		new_window(IBV_MW_TYPE_2);
		bound(1, 0, 64, ALL);
		struct binding w = bound(1, 0, zero ? 0 : 64, ALL);
		check_eq(w.wc.status, IBV_WC_MW_BIND_ERR, "type 2: bound again while bound, length %d", zero ? 0 : 64);
		end_run(b, dealloc, NULL, 0);
		pair_close(a, b);
	}
	open_both(MW_ALL, 0);
	new_window(IBV_MW_TYPE_1);
	struct binding w = bound(0, 0, 64, ALL);
	check_eq(end_run(b, local_inv, &w, sizeof w), IBV_WC_MW_BIND_ERR, "IBV_WR_LOCAL_INV of a window of type 1");
	end_run(b, dealloc, NULL, 0);
	pair_close(a, b);
	open_both(MW_ALL, 0);
	w.rkey = ba.rkey;
	check_eq(end_run(b, local_inv, &w, sizeof w), IBV_WC_MW_BIND_ERR, "IBV_WR_LOCAL_INV of a region");
	pair_close(a, b);
	open_both(MW_ALL, 0);
	enum ibv_mw_type two = IBV_MW_TYPE_2;
	check_eq(end_run(b, alloc_other, &two, sizeof two), 0, "a window in another domain");
	w = bound(1, 0, 64, ALL);
	check_eq(w.wc.status, IBV_WC_MW_BIND_ERR, "a window of another domain than the QP's");
	check_eq(end_run(b, free_other, NULL, 0), EBUSY, "ibv_dealloc_pd while it has a window");
	pair_close(a, b);
}

/* Calls that fail with EINVAL at once, and leave the QP as it is. */
static void bad_posts(void)
{
	open_both(MW_ALL, 0);
	enum ibv_mw_type type = 3;
	check_eq(end_run(b, alloc, &type, sizeof type), -EINVAL, "ibv_alloc_mw of type 3");
	new_window(IBV_MW_TYPE_2);
	struct binding w = { .length = 64, .access = ALL };
	check_eq(end_run(b, bind_it, &w, sizeof w), EINVAL, "ibv_bind_mw of a window of type 2");
	end_run(b, dealloc, NULL, 0);
	new_window(IBV_MW_TYPE_1);
	w.how = 1;
	check_eq(end_run(b, bind_it, &w, sizeof w), EINVAL, "IBV_WR_BIND_MW of a window of type 1");
	w.how = 0;
	w.access = ALL | IBV_ACCESS_ZERO_BASED;
	check_eq(end_run(b, bind_it, &w, sizeof w), EINVAL, "a zero-based window of type 1");
	w.access = ALL | IBV_ACCESS_MW_BIND;
	check_eq(end_run(b, bind_it, &w, sizeof w), EINVAL, "a right that no window gives");
	struct binding r = { .offset = 0, .length = 0x1000, .access = MW_ALL | IBV_ACCESS_ZERO_BASED };
	check_eq(end_run(b, reg, &r, sizeof r), 0, "a zero-based region");
	w = (struct binding){ .length = 64, .access = ALL, .extra_mr = 1, .absolute = 1 };
	check_eq(end_run(b, bind_it, &w, sizeof w), EINVAL, "a window on a zero-based region");
	check_eq(end_run(b, dereg, NULL, 0), 0, "ibv_dereg_mr");
	end_run(b, dealloc, NULL, 0);
	check_eq(end_state(b), IBV_QPS_RTS, "none of this disturbs the QP");
	pair_close(a, b);
}

/* Windows keep their region; a type 2 window belongs to one QP and ends with it. */
static void lives(void)
{
	open_both(MW_ALL, 0);
	struct binding r = { .offset = 0x10000, .length = 0x1000, .access = MW_ALL };
	check_eq(end_run(b, reg, &r, sizeof r), 0, "a second region");
	new_window(IBV_MW_TYPE_1);
	struct binding w = { .offset = 0x10000, .length = 64, .access = ALL, .extra_mr = 1 };
	check_eq(end_run(b, bind_it, &w, sizeof w), 0, "bound to it");
	check_eq(end_run(b, dereg, NULL, 0), EBUSY, "ibv_dereg_mr while a window is bound");
	works("after that", ba.addr + 0x10000 - 0, 0x10000, ba.rkey);
	struct ibv_wc c = remote(IBV_WR_RDMA_READ, ba.addr + 0x10000, 64, w.rkey);
	check_eq(c.status, IBV_WC_SUCCESS, "the window still works");
	check_eq(end_run(b, dealloc, NULL, 0), 0, "ibv_dealloc_mw of a bound window");
	check_eq(end_run(b, dereg, NULL, 0), 0, "then ibv_dereg_mr");
	refused("the key of a window that is gone", IBV_WR_RDMA_READ, ba.addr + 0x10000, 8, w.rkey);
	pair_close(a, b);

	open_both(MW_ALL, 0);
	check_eq(end_run(b, reg, &r, sizeof r), 0, "a second region");
	new_window(IBV_MW_TYPE_2);
	w.how = 1;
	check_eq(end_run(b, bind_it, &w, sizeof w), 0, "a window of type 2 bound to it");
	end_destroy_qp(b);
	check_eq(end_run(b, dereg, NULL, 0), 0, "the QP's end unbinds it");
	check_eq(end_run(b, dealloc, NULL, 0), 0, "ibv_dealloc_mw");
	pair_close(a, b);
}

static long second(struct parts *p, void *arg)
{
	struct address *other = arg;
	struct ibv_qp_init_attr qa = { .send_cq = p->scq, .recv_cq = p->rcq, .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 } };
	struct ibv_qp *qp = p->own[3] ? p->own[3] : ibv_create_qp(p->pd, &qa);
	union ibv_gid gid;
	struct ibv_port_attr port;
	if (!qp || ibv_query_gid(p->ctx, 1, hosts_differ(), &gid) || ibv_query_port(p->ctx, 1, &port))
		return -1;
	if (!p->own[3]) {
		p->own[3] = qp;
		other->qpn = qp->qp_num;
		other->gid = gid;
		return 0;
	}
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = MW_ALL & ~IBV_ACCESS_MW_BIND };
	if (ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return -2;
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .dest_qp_num = other->qpn, .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 1, .ah_attr = { .is_global = 1, .grh = { .dgid = other->gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() }, .port_num = 1 } };
	if (ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return -3;
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = defaults().timeout, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	return ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT);
}

static long read_by_second(struct parts *p, void *arg)
{
	struct binding *w = arg;
	struct ibv_sge sg = { .addr = (uintptr_t)p->buf, .length = 8, .lkey = p->mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = 6, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sg, .num_sge = 1 };
	wr.wr.rdma.remote_addr = w->offset;
	wr.wr.rdma.rkey = w->rkey;
	if (ibv_post_send(p->own[3], &wr, &bad))
		return -1;
	wait_completion(p->scq, &w->wc);
	return w->wc.status;
}

static long destroy(struct parts *p, void *arg)
{
	(void)arg;
	return ibv_destroy_qp(p->own[3]);
}

/* A window of type 2 does not serve another QP of the same domain. */
static void one_qp_only(void)
{
	open_both(MW_ALL, 0);
	struct address x, y;
	if (end_run(a, second, &x, sizeof x) || end_run(b, second, &y, sizeof y) || end_run(a, second, &y, sizeof y) || end_run(b, second, &x, sizeof x))
		die("a second connection");
	new_window(IBV_MW_TYPE_2);
	struct binding w = bound(1, 0x4000, 0x1000, ALL);
	works("the QP that it is bound to", ba.addr + 0x4000, 0x4000, w.rkey);
	w.offset = ba.addr + 0x4000;
	check_eq(end_run(a, read_by_second, &w, sizeof w), IBV_WC_REM_ACCESS_ERR, "another QP of the domain");
	check_eq(end_run(a, destroy, NULL, 0) | end_run(b, destroy, NULL, 0), 0, "ibv_destroy_qp");
	check_eq(end_run(b, dealloc, NULL, 0), 0, "ibv_dealloc_mw");
	pair_close(a, b);
}

/* UC supports the same requests, and reports no refusal to the sender. */
static void unreliable(void)
{
	struct options o = defaults();
	o.type = IBV_QPT_UC;
	o.mr_access = MW_ALL;
	pair_open(a, b, o, &aa, &ba);
	new_window(IBV_MW_TYPE_2);
	struct binding w = bound(1, 0x4000, 0x1000, IBV_ACCESS_REMOTE_WRITE);
	check(w.wc.status == IBV_WC_SUCCESS && w.wc.opcode == IBV_WC_BIND_MW, "UC: IBV_WR_BIND_MW (%s)", ibv_wc_status_str(w.wc.status));
	end_fill(a, 0x2000, 256, 1);
	check_eq(remote(IBV_WR_RDMA_WRITE, ba.addr + 0x4000, 256, w.rkey).status, IBV_WC_SUCCESS, "UC: a write by the window's key");
	/* The arrival of the next message shows that the request was executed. */
	end_recv(b, one_piece(0, 1, 0x100000, 0x1000));
	end_recv(b, one_piece(0, 2, 0x101000, 0x1000));
	end_recv(b, one_piece(0, 3, 0x102000, 0x1000));
	struct request s = one_piece(IBV_WR_SEND_WITH_INV, 9, 0x200000, 40);
	s.imm = w.rkey;
	end_send(a, s);
	struct ibv_wc r, c = end_wait(a, SENDS);
	if (hosts_differ()) {
		/* RoCE has no UC packet for SEND with invalidate. */
		check_eq(c.status, IBV_WC_LOC_QP_OP_ERR, "UC: IBV_WR_SEND_WITH_INV to another host");
		check_eq(end_state(a), IBV_QPS_SQE, "UC: the sender's state after that");
		check_eq(end_modify(a, IBV_QPS_RTS), 0, "UC: from SQE to RTS");
		/* UC completes a send when it has left. The key must stay valid until the WRITE has
		 * arrived. */
		end_send(a, one_piece(IBV_WR_SEND, 9, 0x200000, 40));
		check(end_wait(b, RECVS).status == IBV_WC_SUCCESS && !end_wait(a, SENDS).status, "UC: what follows arrives");
		check_eq(end_run(b, local_inv, &w, sizeof w), IBV_WC_SUCCESS, "UC: the owner invalidates the key itself");
	} else {
		r = end_wait(b, RECVS);
		check(!r.status && r.wr_id == 1 && (r.wc_flags & IBV_WC_WITH_INV) && r.invalidated_rkey == w.rkey && !c.status, "UC: IBV_WR_SEND_WITH_INV (%s)",
		      ibv_wc_status_str(r.status));
	}
	check(end_verify(b, 0x4000, 256, 1) < 0, "UC: the write arrived before");
	end_fill(a, 0x2000, 256, 2);
	check_eq(remote(IBV_WR_RDMA_WRITE, ba.addr + 0x4000, 256, w.rkey).status, IBV_WC_SUCCESS, "UC: a write by a key that is gone");
	end_send(a, one_piece(IBV_WR_SEND, 10, 0x200000, 40));
	check(end_wait(b, RECVS).status == IBV_WC_SUCCESS && !end_wait(a, SENDS).status, "UC: what follows arrives");
	check(end_verify(b, 0x4000, 256, 1) < 0, "UC: it changed nothing");
	w = bound(1, 0x8000, 0x1000, IBV_ACCESS_REMOTE_WRITE);
	check_eq(w.wc.status, IBV_WC_SUCCESS, "UC: bound again");
	check_eq(end_run(b, local_inv, &w, sizeof w), IBV_WC_SUCCESS, "UC: IBV_WR_LOCAL_INV");
	check_eq(end_run(b, local_inv, &w, sizeof w), IBV_WC_MW_BIND_ERR, "UC: the same key again");
	check_eq(end_state_soon(b, IBV_QPS_SQE), IBV_QPS_SQE, "UC: the state after that");
	check_eq(end_run(b, dealloc, NULL, 0), 0, "ibv_dealloc_mw");
	pair_close(a, b);
}

/*
 * Binds and local invalidations need no peer: they work before the peer exists and after its death.
 */
static void without_peer(int two)
{
	enum ibv_mw_type type = IBV_MW_TYPE_2;
	struct options o = defaults();
	o.mr_access = MW_ALL;
	aa = end_open(a, o);
	ba = end_open(b, o);
	check(end_run(a, alloc, &type, sizeof type) > 0, "a window");
	struct address nobody = ba;
	nobody.qpn = 0xfffffe;
	end_connect(a, nobody);
	for (int gone = 0; gone <= two; gone++) {
		struct binding w = { .offset = 0x4000, .length = 0x1000, .access = ALL, .how = 1 };
		if (gone) {
			end_close(a);
			aa = end_open(a, o);
			end_connect(a, ba);
			end_connect(b, aa);
			check(end_run(a, alloc, &type, sizeof type) > 0, "a window");
			struct request r = one_piece(IBV_WR_RDMA_WRITE, 1, 0, 8);
			r.raddr = ba.addr;
			r.rkey = ba.rkey;
			end_send(a, r);
			check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "a peer that lives");
			end_kill(b);
		}
		check_eq(end_run(a, bind_it, &w, sizeof w), 0, "posting to %s", gone ? "a killed peer" : "nobody");
		check_eq(w.wc.status, IBV_WC_SUCCESS, "binding a window on a QP that is connected to %s", gone ? "a killed peer" : "nobody");
		check_eq(end_run(a, local_inv, &w, sizeof w), IBV_WC_SUCCESS, "taking its key back");
		check_eq(end_run(a, dealloc, NULL, 0), 0, "ibv_dealloc_mw");
		if (!gone && two) {
			end_close(b);
			ba = end_open(b, o);
		}
	}
	end_close(a);
	if (!two)
		end_close(b);
}

static void capabilities(void)
{
	struct ibv_context *ctx = open_device();
	struct ibv_device_attr attr;
	if (ibv_query_device(ctx, &attr))
		die("ibv_query_device");
	check(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW && attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B &&
		      !(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A) && attr.max_mw > 0,
	      "windows of type 1 and 2B, up to %d", attr.max_mw);
	ibv_close_device(ctx);
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	capabilities();
	type_1();
	type_2(1);
	type_2(2);
	limits();
	send_inv(1);
	send_inv(2);
	bad_binds();
	bad_posts();
	lives();
	one_qp_only();
	unreliable();
	without_peer(two);
	end_free(b);
	end_free(a);
	return finish();
}
