/*
 * Bytes and completions of SEND, RDMA WRITE (both also with immediate) and RDMA READ, in many
 * sizes, gathered and scattered, inline where possible; RC and UC; within one process and between
 * two. ibv_post_send(3), ibv_poll_cq(3).
 */
#include "rig.h"

#define SRC 0x10000u
#define DST 0x80000u
#define REMOTE 0x200000u

static const uint32_t sizes[] = { 0, 1, 2, 47, 48, 49, 64, 65, 255, 4095, 4096, 4097, 8191, 8192, 8193, 65536, (1 << 20) + 3 };
#define SIZES (sizeof sizes / sizeof *sizes)

/*
 * Cuts `len` bytes at `offset` into pieces. The bytes stay contiguous, so one pattern covers them.
 */
static void shape(struct request *r, int kind, uint64_t offset, uint32_t len)
{
	uint32_t a = 0, b = 0;
	switch (kind) {
	case 0: /* one piece */
		r->pieces = 1;
		r->piece[0] = (struct piece){ offset, len, 0 };
		return;
	case 1: /* halves */
		a = len / 2;
		r->pieces = 2;
		r->piece[0] = (struct piece){ offset, a, 0 };
		r->piece[1] = (struct piece){ offset + a, len - a, 0 };
		return;
	case 2: /* one byte, nothing, much, the rest */
		a = len ? 1 : 0;
		b = (len - a) * 3 / 4;
		r->pieces = 4;
		r->piece[0] = (struct piece){ offset, a, 0 };
		r->piece[1] = (struct piece){ offset + 7, 0, 0 };
		r->piece[2] = (struct piece){ offset + a, b, 0 };
		r->piece[3] = (struct piece){ offset + a + b, len - a - b, 0 };
		return;
	default: /* none at all */
		r->pieces = 0;
	}
}

static struct end *a, *b;
static struct address aa, ba;

static void one_message(enum ibv_qp_type type, enum ibv_wr_opcode op, uint32_t len, int from, int to, int inl)
{
	static uint32_t seed = 1;
	static uint64_t id = 1000;
	char name[120];
	static const char *const ops[] = { "WRITE", "WRITE_IMM", "SEND", "SEND_IMM", "READ" };
	int with_imm = op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM;
	int sends = op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM;
	int receives = sends || with_imm;
	snprintf(name, sizeof name, "%s %s %u bytes, shape %d to %d%s", type == IBV_QPT_RC ? "RC" : "UC", ops[op], len, from, to, inl ? ", inline" : "");
	seed++;
	id += 2;
	struct request s = { .id = id, .op = op, .flags = IBV_SEND_SIGNALED | (inl ? IBV_SEND_INLINE : 0u), .imm = 0xA0B0C0D0u + seed };
	struct request r = { .id = id + 1 };
	shape(&s, from, SRC, len);
	/* The receive has room for more than comes. */
	shape(&r, to, DST, to == 3 ? 0 : len + 16);
	s.raddr = ba.addr + REMOTE + 3;
	s.rkey = ba.rkey;
	uint64_t landing = sends ? DST : REMOTE + 3;
	if (op == IBV_WR_RDMA_READ) {
		end_fill(b, REMOTE + 3, len, seed);
		end_fill(a, SRC - 8, len + 24, seed + 7777);
	} else {
		end_fill(a, SRC, len, seed);
		end_fill(b, landing - 8, len + 24, seed + 7777);
	}
	if (receives && end_recv(b, r))
		die("%s: ibv_post_recv", name);
	int err = end_send(a, s);
	if (err) {
		check(0, "%s: ibv_post_send: %s", name, strerror(err));
		return;
	}
	struct ibv_wc w = end_wait(a, SENDS);
	static const enum ibv_wc_opcode done[] = { IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_READ };
	int good = w.status == IBV_WC_SUCCESS && w.opcode == done[op] && w.wr_id == s.id && w.qp_num == aa.qpn;
	if (op == IBV_WR_RDMA_READ)
		good = good && w.byte_len == len;
	if (!good) {
		check(0, "%s: send completion %s, opcode %d, id %llu, length %u", name, ibv_wc_status_str(w.status), w.opcode, (unsigned long long)w.wr_id, w.byte_len);
		return;
	}
	if (receives) {
		w = end_wait(b, RECVS);
		good = w.status == IBV_WC_SUCCESS && w.opcode == (sends ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM) && w.wr_id == r.id && w.qp_num == ba.qpn &&
		       w.byte_len == len && !!(w.wc_flags & IBV_WC_WITH_IMM) == with_imm && (!with_imm || w.imm_data == s.imm);
		if (!good) {
			check(0, "%s: receive completion %s, opcode %d, id %llu, length %u, flags %x, imm %x", name, ibv_wc_status_str(w.status), w.opcode,
			      (unsigned long long)w.wr_id, w.byte_len, w.wc_flags, w.imm_data);
			return;
		}
	}
	long at, before, after;
	unsigned char guard[8], wanted[24];
	if (op == IBV_WR_RDMA_READ) {
		at = end_verify(a, SRC, len, seed);
		end_read(a, SRC - 8, guard, 8);
		fill(wanted, 8, seed + 7777);
		before = memcmp(guard, wanted, 8);
		after = 0;
	} else {
		unsigned char *all = malloc(len + 24), *old = malloc(len + 24);
		/* On one host the completions mean that all bytes are in place, on UC too. Between
		 * hosts UC bytes may arrive later. */
		int late = type == IBV_QPT_UC && !receives && hosts_differ();
		at = late ? end_verify_soon(b, landing, len, seed) : end_verify(b, landing, len, seed);
		end_read(b, landing - 8, all, len + 24);
		fill(old, len + 24, seed + 7777);
		before = memcmp(all, old, 8);
		after = memcmp(all + 8 + len, old + 8 + len, 16);
		free(all);
		free(old);
	}
	check(at < 0 && !before && !after, "%s%s%s%s", name, at >= 0 ? ": wrong bytes" : "", before ? ": bytes before it changed" : "", after ? ": bytes after it changed" : "");
}

static void run(enum ibv_qp_type type, int grh)
{
	struct options o = defaults();
	o.type = type;
	o.grh = grh;
	o.inl = 64;
	pair_open(a, b, o, &aa, &ba);
	check(ba.max_inline >= 64, "64 bytes inline were asked for, %u are there", ba.max_inline);
	for (int op = IBV_WR_RDMA_WRITE; op <= IBV_WR_RDMA_READ; op++) {
		if (type == IBV_QPT_UC && op == IBV_WR_RDMA_READ)
			continue;
		for (size_t i = 0; i < SIZES; i++) {
			for (int from = 0; from < 3; from++)
				one_message(type, (enum ibv_wr_opcode)op, sizes[i], from, (from + (int)i) % 3, 0);
			if (op != IBV_WR_RDMA_READ && sizes[i] <= aa.max_inline)
				for (int from = 0; from < 3; from++)
					one_message(type, (enum ibv_wr_opcode)op, sizes[i], from, from, 1);
		}
		one_message(type, (enum ibv_wr_opcode)op, 0, 3, 3, 0);
		if (op != IBV_WR_RDMA_READ)
			one_message(type, (enum ibv_wr_opcode)op, aa.max_inline, 1, 2, 1);
	}
	pair_close(a, b);
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	run(IBV_QPT_RC, 1);
	run(IBV_QPT_UC, 1);
	if (has_lids())
		run(IBV_QPT_RC, 0);
	end_free(b);
	end_free(a);
	return finish();
}
