/*
 * Device memory, atomic writes and flushes over every data path. ibv_alloc_dm(3),
 * ibv_wr_atomic_write and ibv_wr_flush of ibv_wr_post(3).
 */
#include "rig.h"

static struct end *a, *b;
static struct address aa, ba;

enum {
	ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	ZERO = ALL | IBV_ACCESS_ZERO_BASED,
};

/* New in rdma-core 45; older headers lack these names. Values of <rdma/ib_user_verbs.h>. */
#define FLUSH_ACCESS_GLOBAL (1 << 8)
#define FLUSH_ACCESS_PERSISTENT (1 << 9)
#define FLUSH_OPERATION (1 << 11)
#define FLUSH_COMPLETION 8
#define FLUSH_OPCODE 14
#define FLUSH_GLOBAL 1
#define FLUSH_PERSISTENT 2
#define FLUSH_RANGE 0
#define FLUSH_REGION 1
#define DEVICE_FLUSH_GLOBAL (1ull << 38)
#define DEVICE_ATOMIC_WRITE (1ull << 40)
typedef void flush_function(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t len, uint8_t type, uint8_t level);
/* The member after wr_atomic_write. */
static flush_function *flush_of(struct ibv_qp_ex *qx)
{
	return *(flush_function **)((char *)&qx->wr_atomic_write + sizeof(void *));
}

struct device {
	uint64_t length, offset;
	uint32_t comp_mask, align;
	unsigned access;
	uint32_t lkey, rkey;	/* out */
	uint32_t seed;
	uint64_t size;
};

static long alloc(struct parts *p, void *arg)
{
	struct device *d = arg;
	struct ibv_alloc_dm_attr attr = { .length = d->length, .log_align_req = d->align, .comp_mask = d->comp_mask };
	p->own[0] = ibv_alloc_dm(p->ctx, &attr);
	return p->own[0] ? 0 : errno;
}

static long release(struct parts *p, void *arg)
{
	(void)arg;
	return ibv_free_dm(p->own[0]);
}

static long reg(struct parts *p, void *arg)
{
	struct device *d = arg;
	struct ibv_mr *mr = ibv_reg_dm_mr(p->pd, p->own[0], d->offset, d->length, d->access);
	if (!mr)
		return errno;
	p->own[1] = mr;
	d->lkey = mr->lkey;
	d->rkey = mr->rkey;
	return 0;
}

static long dereg(struct parts *p, void *arg)
{
	(void)arg;
	return ibv_dereg_mr(p->own[1]);
}

static long copy_to(struct parts *p, void *arg)
{
	struct device *d = arg;
	unsigned char *bytes = malloc(d->size);
	fill(bytes, d->size, d->seed);
	int err = ibv_memcpy_to_dm(p->own[0], d->offset, bytes, d->size);
	free(bytes);
	return err;
}

/* 0 if the device memory has the pattern, -1 if it has something else. */
static long copy_from(struct parts *p, void *arg)
{
	struct device *d = arg;
	unsigned char *bytes = malloc(d->size);
	int err = ibv_memcpy_from_dm(bytes, p->own[0], d->offset, d->size);
	if (!err && verify(bytes, d->size, d->seed) >= 0)
		err = -1;
	free(bytes);
	return err;
}

static long second(struct parts *p, void *arg)
{
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	(void)arg;
	struct ibv_dm *dm = ibv_alloc_dm(p->ctx, &attr);
	return dm ? 0 : errno;
}

static void device_memory(void)
{
	pair_open(a, b, defaults(), &aa, &ba);
	struct device d = { .length = 100000, .align = 6 };
	check_eq(end_run(b, alloc, &d, sizeof d), 0, "ibv_alloc_dm");
	d = (struct device){ .offset = 100, .size = 5000, .seed = 1 };
	check_eq(end_run(b, copy_to, &d, sizeof d), 0, "ibv_memcpy_to_dm");
	check_eq(end_run(b, copy_from, &d, sizeof d), 0, "ibv_memcpy_from_dm has the same");
	d.offset = 95001;
	check_eq(end_run(b, copy_to, &d, sizeof d), EFAULT, "ibv_memcpy_to_dm beyond the end");
	check_eq(end_run(b, copy_from, &d, sizeof d), EFAULT, "ibv_memcpy_from_dm beyond the end");
	for (int i = 0; i < 4; i++) {
		d = i % 2 ? (struct device){ .offset = 4, .size = 4 + i } : (struct device){ .offset = 5 + i, .size = 4 };
		check_eq(end_run(b, copy_to, &d, sizeof d), EINVAL, "ibv_memcpy_to_dm: no words");
		check_eq(end_run(b, copy_from, &d, sizeof d), EINVAL, "ibv_memcpy_from_dm: no words");
	}
	static const struct {
		const char *what;
		struct device d;
	} bad[] = {
		{ "not zero-based", { .length = 64, .access = ALL } },
		{ "beyond the end", { .offset = 99999, .length = 2, .access = ZERO } },
		{ "a range that wraps around", { .offset = ~0ull, .length = 2, .access = ZERO } },
		{ "remote write without local", { .length = 64, .access = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE } },
		{ "on demand", { .length = 64, .access = ZERO | IBV_ACCESS_ON_DEMAND } },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		d = bad[i].d;
		check_eq(end_run(b, reg, &d, sizeof d), EINVAL, "ibv_reg_dm_mr: %s", bad[i].what);
	}
	d = (struct device){ .offset = 96, .length = 50000, .access = ZERO };
	check_eq(end_run(b, reg, &d, sizeof d), 0, "ibv_reg_dm_mr");
	check_eq(end_run(b, release, NULL, 0), EBUSY, "ibv_free_dm while it has a region");
	check_eq(end_access(a, IBV_WR_RDMA_READ, 0x1000, 5000, 4, d.rkey).status, IBV_WC_SUCCESS, "a peer reads it");
	check(end_verify(a, 0x1000, 5000, 1) < 0, "and gets the bytes");
	end_fill(a, 0x1000, 40000, 2);
	check_eq(end_access(a, IBV_WR_RDMA_WRITE, 0x1000, 40000, 8, d.rkey).status, IBV_WC_SUCCESS, "a peer writes it");
	struct device look = { .offset = 104, .size = 40000, .seed = 2 };
	check_eq(end_run(b, copy_from, &look, sizeof look), 0, "and the bytes are there");
	for (int i = 0; i < 10; i++)
		end_access(a, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 40960, d.rkey);
	uint64_t count = 0;
	end_read(a, 0, &count, 8);
	check_eq((long long)count, 9, "ten additions, each sees the one before");
	/* Local use by the owner: as source of a SEND and as target of a receive. */
	struct request s = one_piece(IBV_WR_SEND, 1, 8 - ba.addr, 30000);
	s.piece[0].lkey = d.lkey;
	end_recv(a, one_piece(0, 2, 0x100000, 30000));
	end_send(b, s);
	check_eq(end_wait(b, SENDS).status, IBV_WC_SUCCESS, "a SEND from it");
	check(end_wait(a, RECVS).status == IBV_WC_SUCCESS && end_verify(a, 0x100000, 30000, 2) < 0, "arrives");
	s = one_piece(0, 2, 0 - ba.addr, 30000);
	s.piece[0].lkey = d.lkey;
	end_recv(b, s);
	end_fill(a, 0, 30000, 4);
	end_send(a, one_piece(IBV_WR_SEND, 1, 0, 30000));
	check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "a SEND to it");
	look = (struct device){ .offset = 96, .size = 30000, .seed = 4 };
	check(end_wait(b, RECVS).status == IBV_WC_SUCCESS && end_run(b, copy_from, &look, sizeof look) == 0, "arrives");
	check_eq(end_access(a, IBV_WR_RDMA_READ, 0, 8, 49993, d.rkey).status, IBV_WC_REM_ACCESS_ERR, "a peer reads beyond the region");
	check_eq(end_run(b, dereg, NULL, 0), 0, "ibv_dereg_mr");
	check_eq(end_run(b, release, NULL, 0), 0, "ibv_free_dm");
	struct ibv_context *ctx = open_device();
	struct ibv_device_attr_ex attr;
	if (ibv_query_device_ex(ctx, NULL, &attr))
		die("ibv_query_device_ex");
	ibv_close_device(ctx);
	check(attr.max_dm_size >= 1 << 20, "max_dm_size is a megabyte or more");
	d = (struct device){ .length = attr.max_dm_size + 1 };
	check_eq(end_run(b, alloc, &d, sizeof d), EINVAL, "ibv_alloc_dm of more than that");
	d = (struct device){ .length = 0 };
	check_eq(end_run(b, alloc, &d, sizeof d), EINVAL, "ibv_alloc_dm of nothing");
	d = (struct device){ .length = 64, .comp_mask = 1 };
	check_eq(end_run(b, alloc, &d, sizeof d), EINVAL, "ibv_alloc_dm with unknown attributes");
	d = (struct device){ .length = attr.max_dm_size };
	check_eq(end_run(b, alloc, &d, sizeof d), 0, "ibv_alloc_dm of all there is");
	check_eq(end_run(b, release, NULL, 0), 0, "ibv_free_dm");
	check_eq(end_run(b, alloc, &d, sizeof d), 0, "and again");
	check_eq(end_run(b, second, NULL, 0), ENOMEM, "a second piece beside all there is");
	check_eq(end_run(b, release, NULL, 0), 0, "ibv_free_dm");
	pair_close(a, b);
}

/* ---- atomic writes and flushes ---- */

struct ask {
	uint64_t addr, value, len;
	uint32_t rkey;
	uint8_t type, level;
	struct ibv_wc wc;
};

static long atomic_write(struct parts *p, void *arg)
{
	struct ask *w = arg;
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(p->qp);
	uint64_t word = w->value;
	ibv_wr_start(qx);
	qx->wr_id = 6;
	qx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_write(qx, w->rkey, w->addr, &word);
	word = 0xBAD;
	int err = ibv_wr_complete(qx);
	if (!err)
		wait_completion(p->scq, &w->wc);
	return err;
}

static long flush(struct parts *p, void *arg)
{
	struct ask *w = arg;
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(p->qp);
	struct ibv_sge sg = { .addr = (uintptr_t)p->buf, .length = 8, .lkey = p->mr->lkey };
	ibv_wr_start(qx);
	/* The purpose of a flush: the WRITE before it is in place when the flush completes. */
	qx->wr_id = 7;
	qx->wr_flags = 0;
	ibv_wr_rdma_write(qx, w->rkey, w->addr);
	ibv_wr_set_sge(qx, sg.lkey, sg.addr, w->len ? 8 : 0);
	qx->wr_id = 8;
	qx->wr_flags = IBV_SEND_SIGNALED;
	flush_of(qx)(qx, w->rkey, w->addr, w->len, w->type, w->level);
	int err = ibv_wr_complete(qx);
	if (!err)
		wait_completion(p->scq, &w->wc);
	return err;
}

static void open_ex(unsigned access)
{
	struct options o = defaults();
	o.mr_access = ALL | access;
	o.access = ALL | access;
	ba = end_open(b, o);
	o.send_ops = IBV_QP_EX_WITH_ATOMIC_WRITE | FLUSH_OPERATION | IBV_QP_EX_WITH_RDMA_WRITE;
	aa = end_open(a, o);
	end_connect(a, ba);
	end_connect(b, aa);
}

static void atomic_writes(void)
{
	open_ex(0);
	uint64_t around[3] = { 1, 2, 3 };
	end_write(b, 120, around, 24);
	struct ask w = { .addr = ba.addr + 128, .rkey = ba.rkey, .value = 0x1122334455667788 };
	check_eq(end_run(a, atomic_write, &w, sizeof w), 0, "ibv_wr_atomic_write");
	check(w.wc.status == IBV_WC_SUCCESS && w.wc.wr_id == 6 && w.wc.opcode == IBV_WC_ATOMIC_WRITE, "completes (%s, opcode %d)", ibv_wc_status_str(w.wc.status), w.wc.opcode);
	end_read(b, 120, around, 24);
	check(around[0] == 1 && around[1] == 0x1122334455667788 && around[2] == 3, "and stores its word and no other");
	/* The same by ibv_post_send. */
	around[1] = 77;
	end_write(a, 256, around + 1, 8);
	struct ibv_wc c = end_access(a, IBV_WR_ATOMIC_WRITE, 256, 8, ba.addr + 128, ba.rkey);
	end_read(b, 128, around, 8);
	check(c.status == IBV_WC_SUCCESS && c.opcode == IBV_WC_ATOMIC_WRITE && around[0] == 77, "IBV_WR_ATOMIC_WRITE (%s)", ibv_wc_status_str(c.status));
	w.addr += 4;
	check_eq(end_run(a, atomic_write, &w, sizeof w), 0, "ibv_wr_atomic_write to an odd address");
	check_eq(w.wc.status, IBV_WC_REM_INV_REQ_ERR, "is refused");
	pair_close(a, b);
	open_ex(0);
	check_eq(end_access(a, IBV_WR_ATOMIC_WRITE, 256, 16, ba.addr + 128, ba.rkey).status, IBV_WC_LOC_LEN_ERR, "sixteen bytes");
	pair_close(a, b);
	open_ex(0);
	struct keys k = end_register(b, 0, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, 0);
	w = (struct ask){ .addr = ba.addr + 128, .rkey = k.rkey };
	end_run(a, atomic_write, &w, sizeof w);
	check_eq(w.wc.status, IBV_WC_REM_ACCESS_ERR, "without the right");
	end_deregister(b);
	pair_close(a, b);
	/* Each replaces all eight bytes. */
	open_ex(0);
	uint64_t ones = ~0ull, zero = 0;
	end_write(b, 128, &zero, 8);
	int torn = 0;
	for (int i = 0; i < 300; i++) {
		w = (struct ask){ .addr = ba.addr + 128, .rkey = ba.rkey, .value = i & 1 ? ones : zero };
		end_run(a, atomic_write, &w, sizeof w);
		end_read(b, 128, around, 8);
		torn += w.wc.status || around[0] != w.value;
	}
	check_eq(torn, 0, "wrong words of three hundred");
	pair_close(a, b);
}

static void flushes(void)
{
	open_ex(FLUSH_ACCESS_GLOBAL);
	for (uint8_t level = FLUSH_RANGE; level <= FLUSH_REGION; level++) {
		uint64_t word = 0x7777 + level, got;
		end_write(a, 0, &word, 8);
		struct ask w = { .addr = ba.addr + 512, .rkey = ba.rkey, .len = 64, .type = FLUSH_GLOBAL, .level = level };
		check_eq(end_run(a, flush, &w, sizeof w), 0, "ibv_wr_flush, level %d", level);
		check(w.wc.status == IBV_WC_SUCCESS && w.wc.wr_id == 8 && (int)w.wc.opcode == FLUSH_COMPLETION, "completes (%s)", ibv_wc_status_str(w.wc.status));
		end_read(b, 512, &got, 8);
		check(got == word, "what was written before is there");
	}
	struct ask w = { .addr = ba.addr, .rkey = ba.rkey, .len = 64 };
	check_eq(end_run(a, flush, &w, sizeof w), EINVAL, "to nowhere");
	w.type = FLUSH_PERSISTENT << 1;
	check_eq(end_run(a, flush, &w, sizeof w), EINVAL, "to what nobody knows");
	for (uint8_t type = FLUSH_PERSISTENT; type <= (FLUSH_PERSISTENT | FLUSH_GLOBAL); type++) {
		w = (struct ask){ .addr = ba.addr, .rkey = ba.rkey, .len = 64, .type = type };
		check_eq(end_run(a, flush, &w, sizeof w), 0, "to persistent memory, which there is not: posted");
		check_eq(w.wc.status, IBV_WC_REM_INV_REQ_ERR, "and refused by the responder, whose QP cannot have the right");
		check_eq(end_state_soon(b, IBV_QPS_ERR), IBV_QPS_ERR, "whose QP is in error");
		pair_close(a, b);
		open_ex(FLUSH_ACCESS_GLOBAL);
	}
	w = (struct ask){ .addr = ba.addr + (4 << 20) - 32, .rkey = ba.rkey, .len = 64, .type = FLUSH_GLOBAL };
	w.len = 64;
	check_eq(end_run(a, flush, &w, sizeof w), 0, "beyond the region");
	check_eq(w.wc.status, IBV_WC_REM_ACCESS_ERR, "is refused");
	pair_close(a, b);
	open_ex(FLUSH_ACCESS_GLOBAL);
	struct keys k = end_register(b, 0, 4096, ALL, 0);
	w = (struct ask){ .addr = ba.addr, .rkey = k.rkey, .len = 64, .type = FLUSH_GLOBAL };
	end_run(a, flush, &w, sizeof w);
	check_eq(w.wc.status, IBV_WC_REM_ACCESS_ERR, "a region without the right");
	end_deregister(b);
	pair_close(a, b);
	open_ex(0);
	k = end_register(b, 0, 4096, ALL | FLUSH_ACCESS_GLOBAL, 0);
	w.rkey = k.rkey;
	w.addr = ba.addr;
	end_run(a, flush, &w, sizeof w);
	check_eq(w.wc.status, IBV_WC_REM_INV_REQ_ERR, "a QP without the right");
	end_deregister(b);
	struct request r = one_piece((enum ibv_wr_opcode)FLUSH_OPCODE, 1, 0, 0);
	check_eq(end_send(b, r), EINVAL, "by ibv_post_send, which has no room for it");
	pair_close(a, b);

	struct ibv_context *ctx = open_device();
	struct ibv_device_attr_ex attr;
	if (ibv_query_device_ex(ctx, NULL, &attr))
		die("ibv_query_device_ex");
	check((attr.device_cap_flags_ex & (DEVICE_FLUSH_GLOBAL | DEVICE_ATOMIC_WRITE)) == (DEVICE_FLUSH_GLOBAL | DEVICE_ATOMIC_WRITE), "the device says that it can");
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	errno = 0;
	check(!ibv_reg_mr(pd, &attr, sizeof attr, ALL | FLUSH_ACCESS_PERSISTENT) && errno == EINVAL, "no memory of a process is persistent");
	ibv_dealloc_pd(pd);
	ibv_close_device(ctx);
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	device_memory();
	atomic_writes();
	flushes();
	end_free(b);
	end_free(a);
	return finish();
}
