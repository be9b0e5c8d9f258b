/*
 * Requests by ibv_wr_* calls: each opcode with one piece, a list of pieces, inline data, inline
 * data of several buffers, and aborted before posting; RC, UC and UD; within one process and
 * between two. ibv_wr_post(3), ibv_create_qp_ex(3), ibv_init_ah_from_wc(3).
 */
#include "rig.h"
#include <arpa/inet.h>

enum { SRC = 0x100, DST = 0x10000, REMOTE = 0x20000, GRH = 40 };
enum data { PIECE, PIECES, INLINE, INLINE_LIST, DATAS };
static const char *const how[] = { "ibv_wr_set_sge", "ibv_wr_set_sge_list", "ibv_wr_set_inline_data", "ibv_wr_set_inline_data_list" };

struct build {
	enum ibv_wr_opcode op;
	enum data data;
	int give_up;
	uint64_t id, raddr, compare_add, swap;
	uint32_t len, rkey, qpn, qkey;
};

static struct end *a, *b;
static struct address aa, ba;

static void set_data(struct ibv_qp_ex *x, struct parts *p, const struct build *w)
{
	unsigned char *at = p->buf + (w->op == IBV_WR_RDMA_READ || w->op == IBV_WR_ATOMIC_FETCH_AND_ADD || w->op == IBV_WR_ATOMIC_CMP_AND_SWP ? DST : SRC);
	uint32_t third = w->len / 3;
	uint32_t len[3] = { third, 0, w->len - third };
	struct ibv_sge piece[3];
	struct ibv_data_buf part[3];
	for (int i = 0; i < 3; i++) {
		unsigned char *from = i == 2 ? at + third : at;
		piece[i] = (struct ibv_sge){ (uintptr_t)from, len[i], p->mr->lkey };
		part[i] = (struct ibv_data_buf){ from, len[i] };
	}
	switch (w->data) {
	case PIECE:
		ibv_wr_set_sge(x, p->mr->lkey, (uintptr_t)at, w->len);
		break;
	case PIECES:
		ibv_wr_set_sge_list(x, 3, piece);
		break;
	case INLINE:
		ibv_wr_set_inline_data(x, at, w->len);
		break;
	default:
		ibv_wr_set_inline_data_list(x, 3, part);
	}
}

static long post(struct parts *p, void *arg)
{
	struct build *w = arg;
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(p->qp);
	ibv_wr_start(x);
	x->wr_id = w->id;
	x->wr_flags = IBV_SEND_SIGNALED;
	switch (w->op) {
	case IBV_WR_SEND:
		ibv_wr_send(x);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(x, htonl((uint32_t)w->id));
		break;
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(x, w->rkey, w->raddr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(x, w->rkey, w->raddr, htonl((uint32_t)w->id));
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(x, w->rkey, w->raddr);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		ibv_wr_atomic_cmp_swp(x, w->rkey, w->raddr, w->compare_add, w->swap);
		break;
	default:
		ibv_wr_atomic_fetch_add(x, w->rkey, w->raddr, w->compare_add);
	}
	if (w->qpn)
		ibv_wr_set_ud_addr(x, p->own[0], w->qpn, w->qkey);
	set_data(x, p, w);
	if (w->give_up) {
		ibv_wr_abort(x);
		return 0;
	}
	return ibv_wr_complete(x);
}

static void moved(struct build w, enum ibv_wc_opcode opcode)
{
	static uint64_t id;
	static uint32_t seed;
	int sends = w.op == IBV_WR_SEND || w.op == IBV_WR_SEND_WITH_IMM;
	int imm = w.op == IBV_WR_SEND_WITH_IMM || w.op == IBV_WR_RDMA_WRITE_WITH_IMM;
	int reads = w.op == IBV_WR_RDMA_READ;
	uint32_t grh = w.qpn ? GRH : 0;
	struct ibv_wc s, r = { 0 };
	w.id = ++id;
	w.raddr = ba.addr + REMOTE;
	w.rkey = ba.rkey;
	seed++;
	end_fill(reads ? b : a, reads ? REMOTE : SRC, w.len, seed);
	end_fill(reads ? a : b, sends ? DST + grh : reads ? DST : REMOTE, w.len + 8, seed + 999);
	if (sends || imm)
		end_recv(b, one_piece(0, w.id, DST, w.len + 8 + grh));
	w.give_up = 1;
	end_run(a, post, &w, sizeof w);
	w.give_up = 0;
	check_eq(end_run(a, post, &w, sizeof w), 0, "opcode %d, %s, %u bytes", w.op, how[w.data], w.len);
	s = end_wait(a, SENDS);
	check(s.status == IBV_WC_SUCCESS && s.wr_id == w.id && s.opcode == opcode, "it completes (%s)", ibv_wc_status_str(s.status));
	if (sends || imm) {
		r = end_wait(b, RECVS);
		check(r.status == IBV_WC_SUCCESS && r.wr_id == w.id && r.byte_len == w.len + grh && r.opcode == (sends ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM),
		      "it is received (%s)", ibv_wc_status_str(r.status));
		check(!!(r.wc_flags & IBV_WC_WITH_IMM) == imm && (!imm || r.imm_data == htonl((uint32_t)w.id)), "its immediate data");
	}
	check(end_verify_soon(reads ? a : b, sends ? DST + grh : reads ? DST : REMOTE, w.len, seed) < 0, "its bytes");
	check(!end_try(a, SENDS, &s, 0), "what was given up does not complete");
}

static const uint32_t sizes[] = { 0, 1, 48, 49, 200 };

static void connected(enum ibv_qp_type type)
{
	static const struct {
		enum ibv_wr_opcode op;
		enum ibv_wc_opcode wc;
	} kinds[] = { { IBV_WR_SEND, IBV_WC_SEND },
		      { IBV_WR_SEND_WITH_IMM, IBV_WC_SEND },
		      { IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE },
		      { IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE },
		      { IBV_WR_RDMA_READ, IBV_WC_RDMA_READ } };
	struct options o = defaults();
	int reliable = type == IBV_QPT_RC;
	o.type = type;
	o.inl = 256;
	o.send_ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
	if (reliable)
		o.send_ops |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	pair_open(a, b, o, &aa, &ba);
	printf("-- %s\n", reliable ? "RC" : "UC");
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds - !reliable; k++)
		for (int data = 0; data < DATAS; data++)
			for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
				if (kinds[k].op != IBV_WR_RDMA_READ || data < INLINE)
					moved((struct build){ .op = kinds[k].op, .data = (enum data)data, .len = sizes[i] }, kinds[k].wc);
	if (!reliable) {
		pair_close(a, b);
		return;
	}
	uint64_t value = 40, seen = 0;
	end_write(b, REMOTE, &value, 8);
	struct build w = { .op = IBV_WR_ATOMIC_FETCH_AND_ADD, .id = 7, .raddr = ba.addr + REMOTE, .rkey = ba.rkey, .len = 8, .compare_add = 2 };
	check_eq(end_run(a, post, &w, sizeof w), 0, "ibv_wr_atomic_fetch_add");
	struct ibv_wc c = end_wait(a, SENDS);
	end_read(a, DST, &seen, 8);
	end_read(b, REMOTE, &value, 8);
	check(c.status == IBV_WC_SUCCESS && c.opcode == IBV_WC_FETCH_ADD && seen == 40 && value == 42, "it adds and fetches");
	w.op = IBV_WR_ATOMIC_CMP_AND_SWP;
	w.compare_add = 42;
	w.swap = 5;
	check_eq(end_run(a, post, &w, sizeof w), 0, "ibv_wr_atomic_cmp_swp");
	c = end_wait(a, SENDS);
	end_read(a, DST, &seen, 8);
	end_read(b, REMOTE, &value, 8);
	check(c.status == IBV_WC_SUCCESS && c.opcode == IBV_WC_COMP_SWAP && seen == 42 && value == 5, "it compares and swaps");
	pair_close(a, b);
}

static long make_ah(struct parts *p, void *arg)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() } };
	memcpy(&attr.grh.dgid, arg, sizeof attr.grh.dgid);
	p->own[0] = ibv_create_ah(p->pd, &attr);
	return p->own[0] ? 0 : errno;
}

static long drop_ah(struct parts *p, void *arg)
{
	(void)arg;
	int err = ibv_destroy_ah(p->own[0]);
	p->own[0] = NULL;
	return err;
}

struct reply {
	struct ibv_wc wc;
	struct ibv_ah_attr attr;
};

/* The address of the sender of a received message. */
static long who(struct parts *p, void *arg)
{
	struct reply *r = arg;
	return ibv_init_ah_from_wc(p->ctx, 1, &r->wc, (struct ibv_grh *)(p->buf + DST), &r->attr);
}

static void datagrams(void)
{
	struct options o = defaults();
	o.type = IBV_QPT_UD;
	o.grh = 1;
	o.inl = 256;
	o.send_ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	pair_open(a, b, o, &aa, &ba);
	check_eq(end_run(a, make_ah, &ba.gid, sizeof ba.gid), 0, "ibv_create_ah");
	struct build w = { .op = IBV_WR_SEND, .qpn = ba.qpn, .qkey = ba.qkey };
	for (int imm = 0; imm < 2; imm++)
		for (int data = 0; data < DATAS; data++)
			for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
				w.op = imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
				w.data = (enum data)data;
				w.len = sizes[i];
				moved(w, IBV_WC_SEND);
			}
	struct reply r = { 0 };
	w.op = IBV_WR_SEND;
	end_recv(b, one_piece(0, 1, DST, 512));
	check_eq(end_run(a, post, &w, sizeof w), 0, "a datagram to answer");
	end_wait(a, SENDS);
	r.wc = end_wait(b, RECVS);
	check_eq(end_run(b, who, &r, sizeof r), 0, "ibv_init_ah_from_wc");
	check(r.attr.is_global && !memcmp(&r.attr.grh.dgid, &aa.gid, sizeof aa.gid), "it leads back");
	check_eq(end_run(a, drop_ah, NULL, 0), 0, "ibv_destroy_ah");
	pair_close(a, b);
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	connected(IBV_QPT_RC);
	connected(IBV_QPT_UC);
	datagrams();
	end_free(b);
	end_free(a);
	return finish();
}
