/*
 * Requests of XRC connections by ibv_wr_* calls, each opcode, between two processes over shared
 * memory. ibv_wr_post(3).
 */
#include "xrc_pair.h"
#include <arpa/inet.h>

enum { OPS = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
	     IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD };
/* Offsets of the sender's data and of the target at the peer; receives lie below both. */
enum { SOURCE = 40 << 10, TARGET = 48 << 10 };

static const struct {
	enum ibv_wr_opcode op;
	enum ibv_wc_opcode done;
	const char *name;
	int inlined;
} kinds[] = {
	{ IBV_WR_SEND, IBV_WC_SEND, "ibv_wr_send", 0 },
	{ IBV_WR_SEND, IBV_WC_SEND, "ibv_wr_send, inline", 1 },
	{ IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, "ibv_wr_send_imm", 0 },
	{ IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, "ibv_wr_send_imm, inline", 1 },
	{ IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, "ibv_wr_rdma_write", 0 },
	{ IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, "ibv_wr_rdma_write, inline", 1 },
	{ IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE, "ibv_wr_rdma_write_imm", 0 },
	{ IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE, "ibv_wr_rdma_write_imm, inline", 1 },
	{ IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, "ibv_wr_rdma_read", 0 },
	{ IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD, "ibv_wr_atomic_fetch_add", 0 },
	{ IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP, "ibv_wr_atomic_cmp_swp", 0 },
};
#define KINDS (sizeof kinds / sizeof *kinds)

static int built(size_t k)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(qp);
	uint64_t to = theirs.addr + TARGET;
	int atomic = kinds[k].op == IBV_WR_ATOMIC_FETCH_AND_ADD || kinds[k].op == IBV_WR_ATOMIC_CMP_AND_SWP;
	ibv_wr_start(x);
	x->wr_id = k;
	x->wr_flags = IBV_SEND_SIGNALED;
	switch (kinds[k].op) {
	case IBV_WR_SEND: ibv_wr_send(x); break;
	case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(x, htonl((uint32_t)k)); break;
	case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(x, theirs.rkey, to); break;
	case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(x, theirs.rkey, to, htonl((uint32_t)k)); break;
	case IBV_WR_RDMA_READ: ibv_wr_rdma_read(x, theirs.rkey, to); break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_atomic_fetch_add(x, theirs.rkey, to, 3); break;
	default: ibv_wr_atomic_cmp_swp(x, theirs.rkey, to, 8, 20);
	}
	ibv_wr_set_xrc_srqn(x, theirs.srqn);
	if (kinds[k].inlined) {
		struct ibv_data_buf parts[2] = { { buf + SOURCE, 30 }, { buf + SOURCE + 30, LEN - 30 } };
		ibv_wr_set_inline_data_list(x, 2, parts);
	} else {
		ibv_wr_set_sge(x, mr->lkey, (uintptr_t)buf + SOURCE, atomic ? 8 : LEN);
	}
	return ibv_wr_complete(x);
}

/* Turn by turn: the receiver prepares, the sender posts and waits, the receiver looks. */
static void turn(size_t k, int *receives)
{
	enum ibv_wr_opcode op = kinds[k].op;
	int sends = op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM, imm = op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM;
	int atomic = op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP, reads = op == IBV_WR_RDMA_READ;
	uint32_t seed = (uint32_t)k + 1;
	uint64_t word = op == IBV_WR_ATOMIC_FETCH_AND_ADD ? 5 : 8;
	struct ibv_wc w;
	if (role) {
		fill(buf + TARGET, LEN, reads ? seed : 99);
		if (atomic)
			memcpy(buf + TARGET, &word, 8);
	} else {
		fill(buf + SOURCE, LEN, reads ? 99 : seed);
	}
	meet();
	if (!role) {
		check_eq(built(k), 0, "%s", kinds[k].name);
		if (kinds[k].inlined)
			memset(buf + SOURCE, 0xee, LEN);
		wait_completion(cq, &w);
		check(w.wr_id == k && w.status == IBV_WC_SUCCESS && w.opcode == kinds[k].done, "completes (%s)", ibv_wc_status_str(w.status));
		uint64_t was;
		memcpy(&was, buf + SOURCE, 8);
		check(!reads || verify(buf + SOURCE, LEN, seed) < 0, "what was read");
		check(!atomic || was == word, "what was there");
	}
	meet();
	if (!role)
		return;
	memcpy(&word, buf + TARGET, 8);
	check(!atomic || word == (op == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 20), "%s: what is there", kinds[k].name);
	check(sends || reads || atomic || verify(buf + TARGET, LEN, seed) < 0, "%s: what was written", kinds[k].name);
	if (sends || imm) {
		++*receives;
		wait_completion(cq, &w);
		check(w.wr_id == (uint64_t)*receives && w.status == IBV_WC_SUCCESS && w.byte_len == LEN &&
			      w.opcode == (sends ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM) && !!(w.wc_flags & IBV_WC_WITH_IMM) == imm &&
			      (!imm || w.imm_data == htonl((uint32_t)k)),
		      "%s: is received (%s)", kinds[k].name, ibv_wc_status_str(w.status));
		check(!sends || verify(buf + 1024 * *receives, LEN, seed) < 0, "%s: its bytes", kinds[k].name);
	}
}

int main(void)
{
	int receives = 0;
	partner_fork();
	xrc_open(OPS, 14, 7, 7, 16);
	for (size_t k = 0; k < KINDS; k++)
		turn(k, &receives);
	xrc_close();
	return partner_finish();
}
