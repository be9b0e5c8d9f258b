/*
 * Functions newer than the headers of the build, found by name at run time: device buffers, regions
 * by attributes, DMA handles, and calls that soft does not support. ibv_alloc_buf(3),
 * ibv_reg_mr_ex(3), ibv_alloc_dmah(3), ibv_create_comp_cntr(3).
 */
#define _GNU_SOURCE
#include "rig.h"
#include <dlfcn.h>

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, LEN = 100000 };

/* The layout of <infiniband/verbs.h> of rdma-core 64. */
struct newer_region {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};
enum { HAS_IOVA = 1 << 0, HAS_ADDR = 1 << 1, HAS_FD = 1 << 2, HAS_FD_OFFSET = 1 << 3, HAS_DMAH = 1 << 4 };

static void *call(const char *name)
{
	void *f = dlsym(RTLD_DEFAULT, name);
	if (!f)
		die("the library has no %s", name);
	return f;
}

static struct end *a, *b;
static struct address aa, ba;

/* Runs in the end's process. `how` 0: ibv_reg_buf_mr; 1: ibv_reg_mr_ex; 2: with an IOVA. */
struct order {
	int how;
	uint64_t addr, iova;
	uint32_t lkey, rkey;
};

static long make(struct parts *p, void *arg)
{
	struct order *o = arg;
	void *(*alloc)(struct ibv_pd *, size_t, void **) = (void *(*)(struct ibv_pd *, size_t, void **))call("ibv_alloc_buf");
	struct ibv_mr *(*reg_buf)(struct ibv_pd *, void *, void *, size_t, int) =
		(struct ibv_mr *(*)(struct ibv_pd *, void *, void *, size_t, int))call("ibv_reg_buf_mr");
	struct ibv_mr *(*reg)(struct ibv_pd *, struct newer_region *) = (struct ibv_mr *(*)(struct ibv_pd *, struct newer_region *))call("ibv_reg_mr_ex");
	unsigned char *at = alloc(p->pd, LEN, &p->own[0]);
	if (!at)
		return errno;
	memset(at, 0, LEN);
	struct newer_region r = { .length = LEN, .access = ALL, .comp_mask = HAS_ADDR, .addr = at };
	o->addr = o->iova = (uintptr_t)at;
	if (o->how == 2) {
		r.comp_mask |= HAS_IOVA;
		r.iova = o->iova = 0x7000000000 + ((uintptr_t)at & 4095);
	}
	struct ibv_mr *mr = o->how ? reg(p->pd, &r) : reg_buf(p->pd, p->own[0], at, LEN, ALL);
	if (!mr)
		return errno;
	p->own[1] = mr;
	p->own[2] = at;
	o->lkey = mr->lkey;
	o->rkey = mr->rkey;
	return mr->length == LEN ? 0 : -1;
}

static long look(struct parts *p, void *seed)
{
	return verify((unsigned char *)p->own[2] + 100, 50000, *(uint32_t *)seed) < 0 ? 0 : -1;
}

static long release(struct parts *p, void *arg)
{
	(void)arg;
	void (*free_buf)(void *) = (void (*)(void *))call("ibv_free_buf");
	int (*export_fd)(void *) = (int (*)(void *))call("ibv_export_buf_dmabuf_fd");
	/* Plain memory has no descriptor. */
	errno = 0;
	long bad = export_fd(p->own[0]) != -1 || errno != ENODATA;
	bad |= !!ibv_dereg_mr(p->own[1]);
	free_buf(p->own[0]);
	return bad;
}

static struct ibv_wc remote(enum ibv_wr_opcode op, uint64_t at, uint32_t len, uint32_t rkey)
{
	return end_access(a, op, 0, len, at, rkey);
}

static void buffers(void)
{
	static const char *const how[] = { "ibv_alloc_buf and ibv_reg_buf_mr", "ibv_reg_mr_ex", "ibv_reg_mr_ex with an address of its own" };
	for (uint32_t i = 0; i < 3; i++) {
		pair_open(a, b, defaults(), &aa, &ba);
		struct order o = { .how = (int)i };
		check_eq(end_run(b, make, &o, sizeof o), 0, "%s", how[i]);
		check(o.addr % 4096 == 0 && (o.lkey != o.rkey) == keys_differ(), "whole pages, and keys");
		uint32_t seed = 40 + i;
		end_fill(a, 0, 50000, seed);
		check_eq(remote(IBV_WR_RDMA_WRITE, o.iova + 100, 50000, o.rkey).status, IBV_WC_SUCCESS, "a peer writes it");
		check_eq(end_run(b, look, &seed, sizeof seed), 0, "the bytes are there");
		end_fill(a, 0, 50000, 1);
		check_eq(remote(IBV_WR_RDMA_READ, o.iova + 100, 50000, o.rkey).status, IBV_WC_SUCCESS, "a peer reads it");
		check(end_verify(a, 0, 50000, seed) < 0, "and gets them");
		check_eq(remote(IBV_WR_RDMA_WRITE, o.iova + LEN - 7, 8, o.rkey).status, IBV_WC_REM_ACCESS_ERR, "a byte too far");
		check_eq(end_run(b, release, NULL, 0), 0, "no DMA-BUF; ibv_dereg_mr and ibv_free_buf");
		pair_close(a, b);
	}
}

/* The layout of <infiniband/verbs.h> of rdma-core 60. */
struct hints {
	uint32_t comp_mask, cpu_id;
	uint8_t ph, tph_mem_type;
};
enum { HAS_CPU = 1 << 0, HAS_PH = 1 << 1, HAS_MEM_TYPE = 1 << 2 };

/* DMA handles: hints are checked and have no effect. */
static void dma_handles(void)
{
	struct ibv_context *ctx = open_device(), *other = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx), *others = ibv_alloc_pd(other);
	static unsigned char page[4096];
	void *(*alloc)(struct ibv_context *, struct hints *) = (void *(*)(struct ibv_context *, struct hints *))call("ibv_alloc_dmah");
	int (*dealloc)(void *) = (int (*)(void *))call("ibv_dealloc_dmah");
	struct ibv_mr *(*reg)(struct ibv_pd *, struct newer_region *) = (struct ibv_mr *(*)(struct ibv_pd *, struct newer_region *))call("ibv_reg_mr_ex");
	static const struct {
		const char *what;
		struct hints hints;
	} wrong[] = {
		{ "processor 0xffffff", { HAS_CPU, 0xffffff, 0, 0 } },
		{ "processing hint 4", { HAS_PH, 0, 4, 0 } },
		{ "memory of type 2", { HAS_MEM_TYPE, 0, 0, 2 } },
		{ "an unknown member", { 1 << 3, 0, 0, 0 } },
	};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct hints hints = wrong[i].hints;
		errno = 0;
		check(!alloc(ctx, &hints) && errno == EINVAL, "ibv_alloc_dmah: %s: EINVAL (%s)", wrong[i].what, strerror(errno));
	}
	struct hints hints = { HAS_CPU | HAS_PH | HAS_MEM_TYPE, 0, 3, 1 }, none = { .ph = 9 };
	void *idle = alloc(ctx, &none), *used = alloc(ctx, &hints);
	check(idle && used, "ibv_alloc_dmah: no hints, and all");
	struct newer_region r = { .length = 4096, .access = ALL | IBV_ACCESS_ON_DEMAND, .comp_mask = HAS_ADDR | HAS_DMAH, .addr = page, .dmah = used };
	errno = 0;
	check(!reg(pd, &r) && errno == EINVAL, "a region on demand with a handle: EINVAL (%s)", strerror(errno));
	r.access = ALL;
	errno = 0;
	check(!reg(others, &r) && errno == EINVAL, "a handle of another context: EINVAL (%s)", strerror(errno));
	struct ibv_mr *mr = reg(pd, &r), *more = reg(pd, &r);
	check(mr && more && mr->addr == page && mr->length == 4096, "ibv_reg_mr_ex with a handle, twice");
	check_eq(dealloc(idle), 0, "ibv_dealloc_dmah: a handle without regions");
	check_eq(dealloc(used), EBUSY, "with two");
	check_eq(ibv_dereg_mr(mr), 0, "ibv_dereg_mr");
	check_eq(dealloc(used), EBUSY, "with one");
	check_eq(ibv_dereg_mr(more), 0, "ibv_dereg_mr");
	check_eq(dealloc(used), 0, "and with none left");
	check_eq(ibv_dealloc_pd(pd) | ibv_dealloc_pd(others) | ibv_close_device(ctx) | ibv_close_device(other), 0, "all is closed");
}

static void not_offered(void)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	static unsigned char page[4096];
	struct ibv_mr *(*reg)(struct ibv_pd *, struct newer_region *) = (struct ibv_mr *(*)(struct ibv_pd *, struct newer_region *))call("ibv_reg_mr_ex");
	struct newer_region r = { .length = 64, .access = ALL, .addr = page };
	errno = 0;
	check(!reg(pd, &r) && errno == EINVAL, "a region of nothing: EINVAL (%s)", strerror(errno));
	r.comp_mask = HAS_ADDR | 1ull << 40;
	errno = 0;
	check(!reg(pd, &r) && errno, "of attributes that nobody knows (%s)", strerror(errno));
	r.comp_mask = HAS_FD | HAS_FD_OFFSET | HAS_IOVA;
	r.fd = -1;
	errno = 0;
	check(!reg(pd, &r) && errno == EOPNOTSUPP, "of descriptor -1: EOPNOTSUPP (%s)", strerror(errno));
	r.fd = memfd_create("newer", MFD_CLOEXEC);
	if (r.fd < 0 || ftruncate(r.fd, 4096))
		die("memfd_create");
	struct ibv_mr *mr = reg(pd, &r);
	check(mr && mr->length == 64, "of a memory file");
	check_eq(mr ? ibv_dereg_mr(mr) : -1, 0, "ibv_dereg_mr");
	r.comp_mask = HAS_FD | HAS_IOVA;
	errno = 0;
	check(!reg(pd, &r) && errno == EINVAL, "of a file without an offset: EINVAL (%s)", strerror(errno));
	r.comp_mask = HAS_FD | HAS_FD_OFFSET | HAS_IOVA | HAS_ADDR;
	errno = 0;
	check(!reg(pd, &r) && errno == EINVAL, "of a file and memory: EINVAL (%s)", strerror(errno));
	close(r.fd);

	uint64_t nothing[8] = { 0 };
	void *(*create)(struct ibv_context *, void *) = (void *(*)(struct ibv_context *, void *))call("ibv_create_comp_cntr");
	errno = 0;
	check(!create(ctx, nothing) && errno == EOPNOTSUPP, "ibv_create_comp_cntr: EOPNOTSUPP (%s)", strerror(errno));
	int (*export_dm)(struct ibv_dm *) = (int (*)(struct ibv_dm *))call("ibv_dm_export_dmabuf_fd");
	struct ibv_alloc_dm_attr da = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &da);
	errno = 0;
	check(dm && export_dm(dm) == -1 && errno == EOPNOTSUPP, "ibv_dm_export_dmabuf_fd: EOPNOTSUPP (%s)", strerror(errno));
	check_eq(ibv_free_dm(dm), 0, "ibv_free_dm");
	int (*speed)(struct ibv_context *, uint32_t, uint64_t *) = (int (*)(struct ibv_context *, uint32_t, uint64_t *))call("ibv_query_port_speed");
	uint64_t got = 0;
	int err = speed(ctx, 1, &got);
	/* 100 Gbit/s in units of 100 Mbit/s, in agreement with width and speed of
	 * ibv_query_port(3). */
	check(!err && got == 1000, "ibv_query_port_speed: 100 Gbit/s (%d, %llu)", err, (unsigned long long)got);
	check_eq(speed(ctx, 2, &got), EINVAL, "of a port that is not there");
	void *(*alloc)(struct ibv_pd *, size_t, void **) = (void *(*)(struct ibv_pd *, size_t, void **))call("ibv_alloc_buf");
	void *buf;
	errno = 0;
	check(!alloc(pd, ~(size_t)0 - 8192, &buf) && errno == ENOMEM, "ibv_alloc_buf of more than there is: ENOMEM (%s)", strerror(errno));
	check_eq(ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0, "all is closed");
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	buffers();
	dma_handles();
	not_offered();
	end_free(b);
	end_free(a);
	return finish();
}
