/*
 * Lists of one-sided requests, which soft may execute together, on each data path: order, bytes,
 * and failure of exactly the failing request. ibv_post_send(3).
 */
#include "rig.h"

static struct end *a, *b;
static struct address aa, ba;

enum { LIST = 32, SLOT = 0x8000, PAGE = 4096 };

static struct request one_sided(enum ibv_wr_opcode op, int i, uint32_t len)
{
	struct request r = one_piece(op, (uint64_t)i, (uint64_t)i * SLOT, len);
	r.raddr = ba.addr + (uint64_t)i * SLOT;
	r.rkey = ba.rkey;
	return r;
}

/* Sizes around all borders: empty, a byte, a cache line, a page, what is no longer small. */
static uint32_t size_of(int i)
{
	static const uint32_t sizes[] = { 8, 1, 0, 64, 63, 4096, 4097, 16384, 16385, 30000, 2, 7 };
	return sizes[i % 12];
}

static void bytes(enum ibv_wr_opcode op, unsigned flags)
{
	struct options o = defaults();
	o.inl = flags & IBV_SEND_INLINE ? 64 : 0;
	pair_open(a, b, o, &aa, &ba);
	struct end *from = op == IBV_WR_RDMA_WRITE ? a : b, *to = from == a ? b : a;
	for (int round = 0; round < 3; round++) {
		struct request list[LIST];
		int bad, wrong = 0;
		end_fill(to, 0, (uint64_t)LIST * SLOT, 1000);
		for (int i = 0; i < LIST; i++) {
			uint32_t len = o.inl ? size_of(i) % 65 : size_of(i + round);
			list[i] = one_sided(op, i, len);
			list[i].flags = flags | (i == LIST - 1 || i % 5 == 0 ? IBV_SEND_SIGNALED : 0);
			if (len > 4 && !o.inl) {
				/* In three pieces. */
				list[i].pieces = 3;
				list[i].piece[0].len = 2;
				list[i].piece[1] = (struct piece){ (uint64_t)i * SLOT + 2, 1, 0 };
				list[i].piece[2] = (struct piece){ (uint64_t)i * SLOT + 3, len - 3, 0 };
			}
			end_fill(from, (uint64_t)i * SLOT, len, (uint32_t)i);
		}
		check_eq(end_send_list(a, list, LIST, &bad), 0, "operation %d, flags %u: a list", op, flags);
		for (int i = 0; i < LIST; i++) {
			if (!(list[i].flags & IBV_SEND_SIGNALED))
				continue;
			struct ibv_wc w = end_wait(a, SENDS);
			wrong += w.status || w.wr_id != (uint64_t)i;
		}
		check_eq(wrong, 0, "completions out of turn or failed");
		for (int i = 0; i < LIST; i++) {
			uint32_t len = 0;
			for (int k = 0; k < list[i].pieces; k++)
				len += list[i].piece[k].len;
			unsigned char got[SLOT], rest[SLOT], want[SLOT];
			end_read(to, (uint64_t)i * SLOT, got, SLOT);
			fill(want, len, (uint32_t)i);
			/* Bytes behind the written range are unchanged. */
			static unsigned char *before;
			if (!before) {
				before = malloc((size_t)LIST * SLOT);
				fill(before, (size_t)LIST * SLOT, 1000);
			}
			memcpy(rest, before + (size_t)i * SLOT, SLOT);
			wrong += memcmp(got, want, len) || memcmp(got + len, rest + len, SLOT - len);
		}
		check_eq(wrong, 0, "operation %d, flags %u: requests whose bytes are wrong", op, flags);
	}
	pair_close(a, b);
}

/* All to one place: the last wins, and each is there before the next begins. */
static void order(void)
{
	pair_open(a, b, defaults(), &aa, &ba);
	int wrong = 0;
	for (int round = 0; round < 50; round++) {
		struct request list[LIST];
		uint64_t value[LIST], got;
		for (int i = 0; i < LIST; i++) {
			value[i] = (uint64_t)round << 32 | (uint64_t)i;
			list[i] = one_piece(i % 8 == 7 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, (uint64_t)i, 8 * (uint64_t)i, 8);
			list[i].raddr = ba.addr + 64;
			list[i].rkey = ba.rkey;
		}
		end_write(a, 0, value, sizeof value);
		if (end_send_list(a, list, LIST, NULL))
			die("ibv_post_send");
		for (int i = 0; i < LIST; i++)
			wrong += end_wait(a, SENDS).wr_id != (uint64_t)i;
		end_read(a, 0, value, sizeof value);
		end_read(b, 64, &got, 8);
		wrong += got != ((uint64_t)round << 32 | 30);
		for (uint64_t i = 7; i < LIST; i += 8)
			wrong += value[i] != ((uint64_t)round << 32 | (i - 1));
	}
	check_eq(wrong, 0, "reads that do not see the write before, or a write that is not the last");
	/* A SEND after WRITEs: the receiver finds the bytes of all WRITEs. */
	for (int round = 0; round < 50; round++) {
		struct request list[LIST];
		end_recv(b, one_piece(0, 1, 0x300000, 64));
		for (int i = 0; i < LIST; i++) {
			list[i] = one_sided(i == LIST - 1 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, i, 100);
			list[i].flags = i == LIST - 1 ? IBV_SEND_SIGNALED : 0;
			end_fill(a, (uint64_t)i * SLOT, 100, (uint32_t)(round * 100 + i));
		}
		list[LIST - 1].piece[0].len = 10;
		if (end_send_list(a, list, LIST, NULL))
			die("ibv_post_send");
		wrong += end_wait(b, RECVS).status != IBV_WC_SUCCESS;
		for (int i = 0; i < LIST - 1; i++)
			wrong += end_verify(b, (uint64_t)i * SLOT, 100, (uint32_t)(round * 100 + i)) >= 0;
		wrong += end_wait(a, SENDS).status != IBV_WC_SUCCESS;
	}
	check_eq(wrong, 0, "writes that a SEND behind them overtook");
	pair_close(a, b);
}

struct region {
	uint64_t addr;
	uint32_t rkey;
};

/* A region on demand of sixteen pages, of which the last eight are gone. */
static long half(struct parts *p, void *arg)
{
	struct region *r = arg;
	unsigned char *at = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(p->pd, at, 16 * PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND);
	if (!mr)
		return errno;
	p->own[1] = mr;
	*r = (struct region){ (uintptr_t)at, mr->rkey };
	return munmap(at + 8 * PAGE, 8 * PAGE);
}

static long dereg(struct parts *p, void *arg)
{
	(void)arg;
	return ibv_dereg_mr(p->own[1]);
}

enum fault { BAD_RKEY, BEYOND, BAD_LKEY, GONE };

/*
 * Request `at` of a list fails: earlier requests are done, later ones are flushed without effect.
 */
static void fails(enum ibv_wr_opcode op, enum fault fault, int at)
{
	static const char *names[] = { "a wrong rkey", "a range beyond the region", "a wrong lkey", "pages that are gone" };
	pair_open(a, b, defaults(), &aa, &ba);
	struct region r = { 0, 0 };
	if (fault == GONE && end_run(b, half, &r, sizeof r))
		die("half a region");
	struct request list[LIST];
	end_fill(b, 0, (uint64_t)LIST * SLOT, 5);
	end_fill(a, 0, (uint64_t)LIST * SLOT, 6);
	for (int i = 0; i < LIST; i++) {
		list[i] = one_sided(op, i, 64);
		if (fault == GONE) {
			list[i].rkey = r.rkey;
			list[i].raddr = r.addr + (i < at ? (uint64_t)i * 64 : 8 * PAGE + (uint64_t)i * 64);
		}
	}
	if (fault == BAD_RKEY)
		list[at].rkey = ba.lkey;
	if (fault == BEYOND)
		list[at].raddr = ba.addr + (4 << 20) - 8;
	if (fault == BAD_LKEY)
		list[at].piece[0].lkey = ba.rkey;
	int bad;
	check_eq(end_send_list(a, list, LIST, &bad), 0, "%s in request %d of a list: posted", names[fault], at);
	int wanted = fault == BAD_LKEY ? IBV_WC_LOC_PROT_ERR : fault == GONE ? IBV_WC_REM_OP_ERR : IBV_WC_REM_ACCESS_ERR;
	int wrong = 0;
	for (int i = 0; i < LIST; i++) {
		struct ibv_wc w = end_wait(a, SENDS);
		wrong += w.wr_id != (uint64_t)i || (int)w.status != (i < at ? IBV_WC_SUCCESS : i == at ? wanted : IBV_WC_WR_FLUSH_ERR);
	}
	check_eq(wrong, 0, "%s in request %d: completions that are not as they should be", names[fault], at);
	if (fault != GONE) {
		struct end *to = op == IBV_WR_RDMA_WRITE ? b : a;
		static unsigned char from[LIST * SLOT], before[LIST * SLOT], got[64];
		fill(from, sizeof from, to == b ? 6 : 5);
		fill(before, sizeof before, to == b ? 5 : 6);
		for (int i = 0; i < LIST; i++) {
			end_read(to, (uint64_t)i * SLOT, got, 64);
			wrong += memcmp(got, (i < at ? from : before) + (size_t)i * SLOT, 64) != 0;
		}
		check_eq(wrong, 0, "%s in request %d: what is done is done, and nothing else", names[fault], at);
	}
	if (fault == GONE)
		end_run(b, dereg, NULL, 0);
	pair_close(a, b);
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	bytes(IBV_WR_RDMA_WRITE, 0);
	bytes(IBV_WR_RDMA_WRITE, IBV_SEND_INLINE);
	bytes(IBV_WR_RDMA_READ, 0);
	order();
	for (int fault = BAD_RKEY; fault <= GONE; fault++)
		for (int at = 0; at < LIST; at += 7) {
			fails(IBV_WR_RDMA_WRITE, (enum fault)fault, at);
			fails(IBV_WR_RDMA_READ, (enum fault)fault, at);
		}
	end_free(b);
	end_free(a);
	return finish();
}
