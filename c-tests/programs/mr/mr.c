/*
 * Memory regions of every kind: accepted registrations, zero-based regions, regions with an IOVA,
 * reregistration, explicit and implicit on-demand regions with changing pages, and the null region.
 * ibv_reg_mr(3), ibv_rereg_mr(3), ibv_advise_mr(3), ibv_alloc_null_mr(3).
 *
 * Map of this file: functions that run in the process of an end, by `end_run`; helpers register a
 * region and access it remotely. `registration` tests rights and ranges; `addresses` tests
 * zero-based and IOVA regions; `stale` tests wrong keys; `changes` tests ibv_rereg_mr. `on_demand`
 * tests RC with missing pages; `on_demand_elsewhere` tests UC, UD and SRQs; `advice` tests
 * ibv_advise_mr. `no_memory` tests the null region; `one_key` forks a process whose regions have
 * equal keys. `main` calls `one_key`, starts both ends and calls the other tests.
 */
#include "rig.h"

static struct end *a, *b;
static struct address aa, ba;

enum {
	ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	ODP = ALL | IBV_ACCESS_ON_DEMAND,
	PAGE = 4096,
};

/* ---- functions that end_run runs; own[1] is the region, own[2] a second PD ---- */

struct region {
	uint64_t offset, length, iova;	/* the offset is from the buffer */
	int access, how;		/* 0: ibv_reg_mr, 1: ibv_reg_mr_iova, 2: the whole address space, 3: a fresh mapping, 4: alloc_null_mr */
	int flags, error;		/* of ibv_rereg_mr */
	uint32_t lkey, rkey;		/* out */
	uint64_t addr;			/* out */
};

static long reg(struct parts *p, void *arg)
{
	struct region *r = arg;
	unsigned char *at = p->buf + r->offset;
	struct ibv_mr *mr;
	errno = 0;
	if (r->how == 1) {
		mr = ibv_reg_mr_iova(p->pd, at, r->length, r->iova, r->access);
	} else if (r->how == 2) {
		mr = ibv_reg_mr(p->pd, NULL, SIZE_MAX, r->access);
	} else if (r->how == 3) {
		at = pages_apart(r->length);
		mr = ibv_reg_mr(p->pd, at, r->length, r->access);
	} else if (r->how == 4) {
		mr = ibv_alloc_null_mr(p->pd);
	} else {
		mr = ibv_reg_mr(p->pd, at, r->length, r->access);
	}
	p->own[1] = mr;
	if (!mr)
		return errno;
	r->lkey = mr->lkey;
	r->rkey = mr->rkey;
	r->addr = (uintptr_t)at;
	return 0;
}

static long dereg(struct parts *p, void *arg)
{
	(void)arg;
	return ibv_dereg_mr(p->own[1]);
}

static long rereg(struct parts *p, void *arg)
{
	struct region *r = arg;
	struct ibv_mr *mr = p->own[1];
	if (r->flags & IBV_REREG_MR_CHANGE_PD && !p->own[2])
		p->own[2] = ibv_alloc_pd(p->ctx);
	errno = 0;
	int result = ibv_rereg_mr(mr, r->flags, r->how ? p->pd : p->own[2], p->buf + r->offset, r->length, r->access);
	r->error = errno;
	r->lkey = mr->lkey;
	r->rkey = mr->rkey;
	return result;
}

static long free_pd(struct parts *p, void *arg)
{
	(void)arg;
	return ibv_dealloc_pd(p->own[2]);
}

static long unmap(struct parts *p, void *arg)
{
	struct region *r = arg;
	(void)p;
	return munmap((void *)(uintptr_t)r->addr, r->length);
}

/* Maps the range again, at the same place. */
static long map_again(struct parts *p, void *arg)
{
	struct region *r = arg;
	(void)p;
	void *at = mmap((void *)(uintptr_t)r->addr, r->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	return at == MAP_FAILED;
}

struct advice {
	int advice;
	uint32_t flags, lkey, length;
	int count;
	uint64_t addr;
};

static long advise(struct parts *p, void *arg)
{
	struct advice *w = arg;
	struct ibv_sge sg = { .addr = w->addr, .length = w->length, .lkey = w->lkey };
	return ibv_advise_mr(p->pd, (enum ib_uverbs_advise_mr_advice)w->advice, w->flags, &sg, (uint32_t)w->count);
}

/* ---- tests ---- */

static void open_both(void)
{
	pair_open(a, b, defaults(), &aa, &ba);
}

static struct region must(struct end *e, struct region r)
{
	long err = end_run(e, reg, &r, sizeof r);
	if (err)
		die("registration: %s", strerror((int)err));
	return r;
}

static struct ibv_wc remote(enum ibv_wr_opcode op, uint64_t addr, uint32_t len, uint32_t rkey)
{
	return end_access(a, op, 0x2000, len, addr, rkey);
}

/* Writes to and reads from `addr` by `rkey`, which is the buffer of b at `offset`. */
static void works(const char *what, uint64_t addr, uint64_t offset, uint32_t rkey)
{
	end_fill(a, 0x2000, 256, (uint32_t)offset + 1);
	struct ibv_wc w = remote(IBV_WR_RDMA_WRITE, addr, 256, rkey);
	check(w.status == IBV_WC_SUCCESS && end_verify(b, offset, 256, (uint32_t)offset + 1) < 0, "%s: a write arrives (%s)", what, ibv_wc_status_str(w.status));
	end_fill(a, 0x2000, 256, 99);
	w = remote(IBV_WR_RDMA_READ, addr, 256, rkey);
	check(w.status == IBV_WC_SUCCESS && end_verify(a, 0x2000, 256, (uint32_t)offset + 1) < 0, "%s: a read brings it back (%s)", what, ibv_wc_status_str(w.status));
	check_eq(remote(IBV_WR_ATOMIC_FETCH_AND_ADD, addr, 8, rkey).status, IBV_WC_SUCCESS, "%s: an atomic", what);
}

/* IBTA 1.7 10.6. */
static void registration(void)
{
	static const struct {
		const char *what;
		struct region r;
		int wanted;
	} c[] = {
		{ "no right at all", { .length = 64, .access = 0 }, 0 },
		{ "remote write without local", { .length = 64, .access = IBV_ACCESS_REMOTE_WRITE }, EINVAL },
		{ "remote atomics without local write", { .length = 64, .access = IBV_ACCESS_REMOTE_ATOMIC }, EINVAL },
		{ "remote read alone", { .length = 64, .access = IBV_ACCESS_REMOTE_READ }, 0 },
		{ "huge pages allowed", { .length = 64, .access = ALL | IBV_ACCESS_HUGETLB }, 0 },
		{ "relaxed order allowed", { .length = 64, .access = ALL | IBV_ACCESS_RELAXED_ORDERING }, 0 },
		{ "an unknown optional flag", { .length = 64, .access = ALL | 1 << 29 }, 0 },
		{ "an unknown flag", { .length = 64, .access = ALL | 1 << 15 }, EINVAL },
		{ "a range that wraps around", { .length = SIZE_MAX - 4096, .access = 0 }, EINVAL },
		{ "the whole address space, not on demand", { .how = 2, .access = ALL }, EINVAL },
		{ "the whole address space, on demand", { .how = 2, .access = ODP }, 0 },
		{ "more than is mapped", { .offset = 0, .length = 1ull << 40, .access = ALL }, EFAULT },
		{ "more than is mapped, on demand", { .offset = 0, .length = 1ull << 40, .access = ODP }, 0 },
	};
	open_both();
	for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
		struct region r = c[i].r;
		long err = end_run(b, reg, &r, sizeof r);
		check_eq(err, c[i].wanted, "ibv_reg_mr: %s", c[i].what);
		if (!err) {
			check_eq(r.lkey != r.rkey, keys_differ(), "ibv_reg_mr: %s: whether the keys differ", c[i].what);
			check_eq(end_run(b, dereg, NULL, 0), 0, "ibv_dereg_mr");
		}
	}
	pair_close(a, b);
}

static void addresses(void)
{
	open_both();
	struct region r = must(b, (struct region){ .offset = 0x3008, .length = 0x1000, .access = ALL | IBV_ACCESS_ZERO_BASED });
	works("zero-based", 0, 0x3008, r.rkey);
	works("zero-based, further on", 0x200, 0x3208, r.rkey);
	/* Local use of a zero-based region names offsets, too. */
	end_recv(b, one_piece(0, 1, 0x8000, 0x1000));
	end_fill(b, 0x3008, 100, 5);
	struct request s = one_piece(IBV_WR_RDMA_WRITE, 1, 0 - ba.addr, 100);
	s.piece[0].lkey = r.lkey;
	s.raddr = aa.addr;
	s.rkey = aa.rkey;
	check_eq(end_send(b, s), 0, "a write from a zero-based region");
	check_eq(end_wait(b, SENDS).status, IBV_WC_SUCCESS, "completes");
	check(end_verify(a, 0, 100, 5) < 0, "and has the region's bytes");
	check_eq(remote(IBV_WR_RDMA_WRITE, ba.addr + 0x3008, 8, r.rkey).status, IBV_WC_REM_ACCESS_ERR, "zero-based: not by the address in memory");
	end_run(b, dereg, NULL, 0);
	pair_close(a, b);

	open_both();
	r = must(b, (struct region){ .how = 1, .offset = 0x4010, .length = 0x1000, .iova = 0x7000000010, .access = ALL });
	works("ibv_reg_mr_iova", 0x7000000010, 0x4010, r.rkey);
	works("ibv_reg_mr_iova, its end", 0x7000000010 + 0xf00, 0x4f10, r.rkey);
	check_eq(remote(IBV_WR_RDMA_WRITE, 0x7000000010 + 0xff9, 8, r.rkey).status, IBV_WC_REM_ACCESS_ERR, "ibv_reg_mr_iova: a byte too far");
	end_run(b, dereg, NULL, 0);
	pair_close(a, b);
}

static void stale(void)
{
	open_both();
	struct region r = must(b, (struct region){ .offset = 0x3000, .length = 0x1000, .access = ALL });
	works("a region", ba.addr + 0x3000, 0x3000, r.rkey);
	check_eq(end_run(b, dereg, NULL, 0), 0, "ibv_dereg_mr");
	check_eq(remote(IBV_WR_RDMA_WRITE, ba.addr + 0x3000, 8, r.rkey).status, IBV_WC_REM_ACCESS_ERR, "its key afterwards");
	pair_close(a, b);
	if (!keys_differ())
		return;
	open_both();
	check_eq(remote(IBV_WR_RDMA_WRITE, ba.addr, 8, ba.lkey).status, IBV_WC_REM_ACCESS_ERR, "an lkey is no rkey");
	pair_close(a, b);
	open_both();
	struct request s = one_piece(IBV_WR_SEND, 1, 0, 8);
	s.piece[0].lkey = aa.rkey;
	end_send(a, s);
	check_eq(end_wait(a, SENDS).status, IBV_WC_LOC_PROT_ERR, "an rkey is no lkey");
	pair_close(a, b);
}

static void changes(void)
{
	open_both();
	struct region r = must(b, (struct region){ .offset = 0x3000, .length = 0x1000, .access = ALL }), first = r;
	r = (struct region){ .flags = IBV_REREG_MR_CHANGE_TRANSLATION, .offset = 0x9000, .length = 0x2000 };
	check_eq(end_run(b, rereg, &r, sizeof r), 0, "ibv_rereg_mr: another range");
	check(r.rkey == first.rkey && r.lkey == first.lkey, "the keys stay");
	works("another range", ba.addr + 0x9000, 0x9000, r.rkey);
	/* The peer must not use cached data of the previous region. */
	for (int i = 0; i < 64; i++) {
		r = (struct region){ .flags = IBV_REREG_MR_CHANGE_TRANSLATION, .offset = i % 2 ? 0x9000 : 0x3000, .length = 0x2000 };
		check_eq(end_run(b, rereg, &r, sizeof r), 0, "ibv_rereg_mr: to and fro");
		for (int n = 0; n < 20; n++)
			works("to and fro", ba.addr + r.offset, r.offset, first.rkey);
	}
	r = (struct region){ .flags = IBV_REREG_MR_CHANGE_ACCESS, .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ };
	check_eq(end_run(b, rereg, &r, sizeof r), 0, "ibv_rereg_mr: other rights");
	check_eq(remote(IBV_WR_RDMA_READ, ba.addr + 0xa000, 64, r.rkey).status, IBV_WC_SUCCESS, "other rights, the same range: reading");
	check(r.rkey == first.rkey && r.lkey == first.lkey, "the keys stay");
	check_eq(remote(IBV_WR_RDMA_WRITE, ba.addr + 0xa000, 64, r.rkey).status, IBV_WC_REM_ACCESS_ERR, "and writing");
	end_run(b, dereg, NULL, 0);
	pair_close(a, b);

	open_both();
	r = must(b, (struct region){ .offset = 0x3000, .length = 0x1000, .access = ALL });
	r = (struct region){ .flags = IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, .offset = 0x5000, .length = 0x1000, .access = ALL };
	check_eq(end_run(b, rereg, &r, sizeof r), 0, "ibv_rereg_mr: everything");
	check_eq(end_run(b, free_pd, NULL, 0), EBUSY, "the new domain is in use");
	r = (struct region){ .how = 1, .flags = IBV_REREG_MR_CHANGE_PD };
	check_eq(end_run(b, rereg, &r, sizeof r), 0, "ibv_rereg_mr: back to the first domain");
	works("back in the first domain", ba.addr + 0x5000, 0x5000, r.rkey);
	r = (struct region){ .flags = IBV_REREG_MR_CHANGE_PD };
	check_eq(end_run(b, rereg, &r, sizeof r), 0, "ibv_rereg_mr: another domain");
	check_eq(remote(IBV_WR_RDMA_WRITE, ba.addr + 0x5000, 64, r.rkey).status, IBV_WC_REM_ACCESS_ERR, "another domain than the QP's");
	r = (struct region){ .how = 1, .flags = 0 };
	end_run(b, dereg, NULL, 0);
	check_eq(end_run(b, free_pd, NULL, 0), 0, "ibv_dealloc_pd");
	pair_close(a, b);

	static const struct {
		const char *what;
		struct region r;
		int wanted;
	} c[] = {
		{ "unknown flags", { .flags = 8 }, IBV_REREG_MR_ERR_INPUT },
		{ "no length", { .flags = IBV_REREG_MR_CHANGE_TRANSLATION }, IBV_REREG_MR_ERR_INPUT },
		{ "rights that contradict", { .flags = IBV_REREG_MR_CHANGE_ACCESS, .access = IBV_ACCESS_REMOTE_WRITE }, IBV_REREG_MR_ERR_CMD },
		{ "rights without their flag", { .flags = IBV_REREG_MR_CHANGE_PD, .access = ALL, .how = 1 }, IBV_REREG_MR_ERR_INPUT },
		{ "a range that is not mapped", { .flags = IBV_REREG_MR_CHANGE_TRANSLATION, .length = 1ull << 40 }, IBV_REREG_MR_ERR_CMD },
	};
	open_both();
	struct region kept = must(b, (struct region){ .offset = 0x3000, .length = 0x1000, .access = ALL });
	for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
		/* With fork support, ibv_rereg_mr may refuse the range before the call gets to
		 * the device. */
		r = c[i].r;
		long result = end_run(b, rereg, &r, sizeof r);
		check(result == c[i].wanted || (c[i].wanted == IBV_REREG_MR_ERR_CMD && result == IBV_REREG_MR_ERR_DONT_FORK_NEW), "ibv_rereg_mr: %s: %ld", c[i].what, result);
		check(r.rkey == kept.rkey && r.lkey == kept.lkey, "and the region is as before");
	}
	works("after refused changes", ba.addr + 0x3000, 0x3000, kept.rkey);
	end_run(b, dereg, NULL, 0);
	pair_close(a, b);
}

static void on_demand(void)
{
	open_both();
	struct region r = must(b, (struct region){ .how = 2, .access = ODP });
	works("the whole address space", ba.addr + 0x6000, 0x6000, r.rkey);
	/* Local use as well: b sends from and receives into memory without a registration of its
	 * own. */
	end_fill(b, 0x200000, 70000, 3);
	struct request s = one_piece(IBV_WR_SEND, 1, 0x200000, 70000);
	s.piece[0].lkey = r.lkey;
	end_recv(a, one_piece(0, 2, 0x100000, 70000));
	end_send(b, s);
	check_eq(end_wait(b, SENDS).status, IBV_WC_SUCCESS, "a SEND from it");
	check(end_wait(a, RECVS).status == IBV_WC_SUCCESS && end_verify(a, 0x100000, 70000, 3) < 0, "arrives");
	struct request v = one_piece(0, 3, 0x300000, 70000);
	v.piece[0].lkey = r.lkey;
	end_recv(b, v);
	end_send(a, one_piece(IBV_WR_SEND, 4, 0x100000, 70000));
	check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "a SEND to it");
	check(end_wait(b, RECVS).status == IBV_WC_SUCCESS && end_verify(b, 0x300000, 70000, 3) < 0, "arrives");
	end_run(b, dereg, NULL, 0);
	pair_close(a, b);

	static const enum ibv_wr_opcode ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	for (size_t i = 0; i < 3; i++) {
		open_both();
		r = must(b, (struct region){ .how = 3, .length = 16 * PAGE, .access = ODP });
		check_eq(remote(ops[i], r.addr + PAGE, 8, r.rkey).status, IBV_WC_SUCCESS, "operation %zu on pages that nobody touched before", i);
		end_run(b, unmap, &r, sizeof r);
		end_run(b, map_again, &r, sizeof r);
		check_eq(remote(ops[i], r.addr + 2 * PAGE, 8, r.rkey).status, IBV_WC_SUCCESS, "operation %zu on pages that were mapped anew", i);
		end_run(b, unmap, &r, sizeof r);
		check_eq(remote(ops[i], r.addr + PAGE, 8, r.rkey).status, IBV_WC_REM_OP_ERR, "operation %zu on pages that are not there", i);
		check_eq(end_state_soon(b, IBV_QPS_ERR), IBV_QPS_ERR, "the owner's QP is in error");
		end_run(b, dereg, NULL, 0);
		pair_close(a, b);
	}
	/* Pages of the requester's own region are missing. */
	static const enum ibv_wr_opcode local[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	for (size_t i = 0; i < 3; i++) {
		open_both();
		r = must(a, (struct region){ .how = 3, .length = 16 * PAGE, .access = ODP });
		end_run(a, unmap, &r, sizeof r);
		end_recv(b, one_piece(0, 1, 0, 0x20000));
		s = one_piece(local[i], 1, r.addr - aa.addr, 10 * PAGE);
		s.piece[0].lkey = r.lkey;
		s.raddr = ba.addr;
		s.rkey = ba.rkey;
		end_send(a, s);
		check_eq(end_wait(a, SENDS).status, IBV_WC_LOC_PROT_ERR, "local operation %zu on pages that are not there", i);
		end_run(a, dereg, NULL, 0);
		pair_close(a, b);
	}
	open_both();
	r = must(b, (struct region){ .how = 3, .length = 16 * PAGE, .access = ODP });
	end_run(b, unmap, &r, sizeof r);
	v = one_piece(0, 3, r.addr - ba.addr, PAGE);
	v.piece[0].lkey = r.lkey;
	end_recv(b, v);
	end_send(a, one_piece(IBV_WR_SEND, 4, 0, 100));
	check_eq(end_wait(b, RECVS).status, IBV_WC_LOC_PROT_ERR, "a receive into pages that are not there");
	check_eq(end_wait(a, SENDS).status, IBV_WC_REM_OP_ERR, "and its sender");
	end_run(b, dereg, NULL, 0);
	pair_close(a, b);
}

/* UC, UD and shared receive queues on demand, as far as ibv_query_device_ex says. */
static void on_demand_elsewhere(void)
{
	static const struct {
		enum ibv_qp_type type;
		int srq;
		const char *name;
		/* The sender's status when pages of the receiver are missing, and the state of the
		 * receiver. */
		enum ibv_wc_status sender;
		enum ibv_qp_state receiver;
	} kinds[] = {
		{ IBV_QPT_UC, 0, "UC", IBV_WC_SUCCESS, IBV_QPS_ERR },
		{ IBV_QPT_UD, 0, "UD", IBV_WC_SUCCESS, IBV_QPS_ERR },
		{ IBV_QPT_RC, 1, "RC with a shared queue", IBV_WC_REM_OP_ERR, IBV_QPS_ERR },
	};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		struct options o = defaults();
		uint32_t grh = kinds[i].type == IBV_QPT_UD ? 40 : 0;
		o.type = kinds[i].type;
		o.srq = kinds[i].srq;
		pair_open(a, b, o, &aa, &ba);
		struct region from = must(a, (struct region){ .how = 3, .length = 16 * PAGE, .access = ODP });
		struct region into = must(b, (struct region){ .how = 3, .length = 16 * PAGE, .access = ODP });
		/* Pages that nobody touched before. */
		struct request s = one_piece(IBV_WR_SEND, 1, from.addr - aa.addr, 100), r = one_piece(0, 2, into.addr - ba.addr, 200);
		s.piece[0].lkey = from.lkey;
		s.qpn = ba.qpn;
		s.qkey = ba.qkey;
		r.piece[0].lkey = into.lkey;
		end_fill(a, from.addr - aa.addr, 100, 31);
		end_recv(b, r);
		end_send(a, s);
		check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "%s: a SEND from memory on demand", kinds[i].name);
		struct ibv_wc w = end_wait(b, RECVS);
		check(w.status == IBV_WC_SUCCESS && w.byte_len == 100 + grh && end_verify(b, into.addr - ba.addr + grh, 100, 31) < 0, "%s: arrives there",
		      kinds[i].name);
		if (kinds[i].type == IBV_QPT_UC) {
			s.op = IBV_WR_RDMA_WRITE_WITH_IMM;
			s.raddr = into.addr + 2 * PAGE;
			s.rkey = into.rkey;
			end_recv(b, one_piece(0, 3, 0, 64));
			end_send(a, s);
			check(end_wait(a, SENDS).status == IBV_WC_SUCCESS && end_wait(b, RECVS).status == IBV_WC_SUCCESS &&
				      end_verify(b, into.addr - ba.addr + 2 * PAGE, 100, 31) < 0, "UC: a WRITE to memory on demand");
			s.op = IBV_WR_SEND;
		}
		/* Pages that are missing: at the receiver, then at the sender. */
		end_run(b, unmap, &into, sizeof into);
		end_recv(b, r);
		end_send(a, s);
		check_eq(end_wait(b, RECVS).status, IBV_WC_LOC_PROT_ERR, "%s: a receive into pages that are not there", kinds[i].name);
		check_eq(end_wait(a, SENDS).status, kinds[i].sender, "%s: and its sender", kinds[i].name);
		check_eq(end_state_soon(b, kinds[i].receiver), kinds[i].receiver, "%s: the receiver's state", kinds[i].name);
		end_run(b, dereg, NULL, 0);
		end_run(a, dereg, NULL, 0);
		pair_close(a, b);
		pair_open(a, b, o, &aa, &ba);
		from = must(a, (struct region){ .how = 3, .length = 16 * PAGE, .access = ODP });
		end_run(a, unmap, &from, sizeof from);
		end_recv(b, one_piece(0, 4, 0, 200));
		s = one_piece(IBV_WR_SEND, 5, from.addr - aa.addr, 100);
		s.piece[0].lkey = from.lkey;
		s.qpn = ba.qpn;
		s.qkey = ba.qkey;
		end_send(a, s);
		check_eq(end_wait(a, SENDS).status, IBV_WC_LOC_PROT_ERR, "%s: a SEND of pages that are not there", kinds[i].name);
		enum ibv_qp_state stopped = kinds[i].type == IBV_QPT_RC ? IBV_QPS_ERR : IBV_QPS_SQE;
		check_eq(end_state_soon(a, stopped), stopped, "%s: the sender's state", kinds[i].name);
		end_run(a, dereg, NULL, 0);
		pair_close(a, b);
	}
}

static void advice(void)
{
	open_both();
	struct region r = must(b, (struct region){ .how = 3, .length = 16 * PAGE, .access = ODP });
	struct advice good = { .advice = IBV_ADVISE_MR_ADVICE_PREFETCH, .flags = IBV_ADVISE_MR_FLAG_FLUSH, .lkey = r.lkey, .length = 4 * PAGE, .count = 1, .addr = r.addr };
	struct advice w = good;
	check_eq(end_run(b, advise, &w, sizeof w), 0, "ibv_advise_mr: prefetch");
	w.advice = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	check_eq(end_run(b, advise, &w, sizeof w), 0, "prefetch for writing");
	w.advice = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
	check_eq(end_run(b, advise, &w, sizeof w), 0, "prefetch without faults");
	w.advice = 77;
	check_eq(end_run(b, advise, &w, sizeof w), EOPNOTSUPP, "another advice");
	w = good;
	w.flags = 6;
	check_eq(end_run(b, advise, &w, sizeof w), EINVAL, "other flags");
	w = good;
	w.count = 0;
	check_eq(end_run(b, advise, &w, sizeof w), EINVAL, "an empty list");
	w = good;
	w.lkey = keys_differ() ? r.rkey : r.rkey ^ 1;
	check_eq(end_run(b, advise, &w, sizeof w), ENOENT, "no such lkey");
	w = good;
	w.length = 17 * PAGE;
	check_eq(end_run(b, advise, &w, sizeof w), EINVAL, "beyond the region");
	w = good;
	w.lkey = ba.lkey;
	w.addr = ba.addr;
	check_eq(end_run(b, advise, &w, sizeof w), EINVAL, "a region that is not on demand");
	end_run(b, unmap, &r, sizeof r);
	check_eq(end_run(b, advise, &good, sizeof good), EFAULT, "pages that are not there");
	good.flags = 0;
	check_eq(end_run(b, advise, &good, sizeof good), 0, "the same when nobody waits for it");
	end_run(b, dereg, NULL, 0);
	pair_close(a, b);

	struct ibv_context *ctx = open_device();
	struct ibv_device_attr_ex attr;
	if (ibv_query_device_ex(ctx, NULL, &attr))
		die("ibv_query_device_ex");
	check((attr.odp_caps.general_caps & (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT)) == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT), "the device says that it can");
	uint32_t rc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV;
	check((attr.odp_caps.per_transport_caps.rc_odp_caps & rc) == rc, "with every operation of RC");
	uint32_t ud = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV, uc = ud | IBV_ODP_SUPPORT_WRITE;
	check(attr.odp_caps.per_transport_caps.uc_odp_caps == uc && attr.odp_caps.per_transport_caps.ud_odp_caps == ud, "of UC and of UD");
	ibv_close_device(ctx);
}

static void no_memory(void)
{
	open_both();
	struct region r = must(a, (struct region){ .how = 4 });
	uint32_t sizes[] = { 8, 40, 5000, 70000, 3000000 };
	for (size_t i = 0; i < 5; i++) {
		/* The null region discards the data of a READ, and gives zeros to a WRITE or
		 * SEND. */
		struct request s = one_piece(IBV_WR_RDMA_READ, 1, 0 - aa.addr, sizes[i]);
		s.piece[0].lkey = r.lkey;
		s.raddr = ba.addr;
		s.rkey = ba.rkey;
		end_fill(b, 0, sizes[i], 9);
		end_send(a, s);
		check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "%u bytes read into nothing", sizes[i]);
		s.op = IBV_WR_RDMA_WRITE;
		end_send(a, s);
		check_eq(end_wait(a, SENDS).status, IBV_WC_SUCCESS, "%u bytes written from nothing", sizes[i]);
		unsigned char *got = malloc(sizes[i]);
		uint32_t other = 0;
		end_read(b, 0, got, sizes[i]);
		for (uint32_t k = 0; k < sizes[i]; k++)
			other += got[k] != 0;
		free(got);
		check_eq(other, 0, "are zeros");
		struct request v = one_piece(0, 3, 12345 - aa.addr, sizes[i]);
		v.piece[0].lkey = r.lkey;
		end_recv(a, v);
		end_send(b, one_piece(IBV_WR_SEND, 4, 0, sizes[i]));
		struct ibv_wc w = end_wait(a, RECVS);
		check(w.status == IBV_WC_SUCCESS && w.byte_len == sizes[i], "%u bytes received into nothing", sizes[i]);
		end_wait(b, SENDS);
	}
	/* Part of a message is skipped. */
	struct request v = one_piece(0, 3, 0x1000, 100);
	v.pieces = 3;
	v.piece[1] = (struct piece){ 0, 50, r.lkey };
	v.piece[2] = (struct piece){ 0x1064, 100, 0 };
	end_recv(a, v);
	end_fill(b, 0, 250, 11);
	end_fill(a, 0x1000, 200, 0);
	end_send(b, one_piece(IBV_WR_SEND, 4, 0, 250));
	check_eq(end_wait(a, RECVS).status, IBV_WC_SUCCESS, "a message with a hole");
	end_wait(b, SENDS);
	unsigned char whole[250], got[200];
	fill(whole, 250, 11);
	end_read(a, 0x1000, got, 200);
	check(!memcmp(got, whole, 100) && !memcmp(got + 100, whole + 150, 100), "both sides of the hole are there");
	check_eq(end_run(a, dereg, NULL, 0), 0, "ibv_dereg_mr");
	pair_close(a, b);

	open_both();
	r = must(b, (struct region){ .how = 4 });
	check_eq(remote(IBV_WR_RDMA_WRITE, 0, 8, r.rkey).status, IBV_WC_REM_ACCESS_ERR, "it is for local use");
	end_run(b, dereg, NULL, 0);
	pair_close(a, b);
}

/* Without the setting a region has one key, as on adapters in use: lkey and rkey are equal. */
static void one_key(int two)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		unsetenv("FERROVERBS_SOFT_KEYS");
		a = end_new(0);
		b = end_new(two);
		open_both();
		check(aa.lkey == aa.rkey && ba.lkey == ba.rkey, "one key");
		works("by the lkey", ba.addr + 0x3000, 0x3000, ba.lkey);
		end_fill(a, 0, 100, 8);
		struct request r = one_piece(IBV_WR_SEND, 1, 0, 100), s = r;
		r.piece[0].lkey = ba.rkey;
		s.piece[0].lkey = aa.rkey;
		end_recv(b, r);
		end_send(a, s);
		check(!end_wait(b, RECVS).status && !end_wait(a, SENDS).status && end_verify(b, 0, 100, 8) < 0, "a message by the rkeys");
		pair_close(a, b);
		end_free(b);
		end_free(a);
		int failed = finish();
		fflush(stdout);
		_exit(failed);
	}
	int status = -1;
	check(waitpid(child, &status, 0) == child && status == 0, "with one key (status %d)", status);
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	one_key(two);
	a = end_new(0);
	b = end_new(two);
	registration();
	addresses();
	stale();
	changes();
	on_demand();
	on_demand_elsewhere();
	advice();
	no_memory();
	end_free(b);
	end_free(a);
	return finish();
}
