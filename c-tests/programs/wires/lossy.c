/*
 * UC and UD on a path that loses messages: a received message is complete, was sent, and is in
 * order on UC; each byte is checked. SEND, and on UC WRITE, with immediate data that number the
 * messages, of one packet and of several. With TEST_LOSSES some messages must be missing; on one
 * host without it, none may be.
 */
#include "rig.h"

/* A UD receive begins with 40 bytes for the GRH (IBTA 1.7 11.4.1.2). */
enum { LIST = 32, ROUNDS = 10, MESSAGES = LIST * ROUNDS, SLOT = 8192, SRC = 0, DST = LIST * SLOT, RECVS_POSTED = 64, REMOTE = DST + RECVS_POSTED * SLOT, GRH = 40 };

static struct end *a, *b;
static struct address aa, ba;
static uint32_t lens[MESSAGES];
static uint64_t state = 11;

static void post_receive(uint64_t slot)
{
	if (end_recv(b, one_piece(0, slot, DST + slot * SLOT, SLOT)))
		die("ibv_post_recv");
}

static void run(enum ibv_qp_type type, enum ibv_wr_opcode op)
{
	const char *name = type == IBV_QPT_UD ? "UD" : op == IBV_WR_SEND_WITH_IMM ? "UC" : "UC WRITE";
	int ud = type == IBV_QPT_UD, writes = op == IBV_WR_RDMA_WRITE_WITH_IMM;
	struct options o = defaults();
	int came = 0, wrong = 0, disordered = 0;
	long last = -1;

	o.type = type;
	pair_open(a, b, o, &aa, &ba);
	for (uint64_t slot = 0; slot < RECVS_POSTED; slot++)
		post_receive(slot);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		struct request list[LIST];
		struct ibv_wc w;
		for (uint32_t i = 0; i < LIST; i++) {
			uint32_t n = round * LIST + i;
			lens[n] = rnd(&state) % (ud || i % 2 ? 900 : 4000);
			list[i] = one_piece(op, n, SRC + (uint64_t)i * SLOT, lens[n]);
			list[i].imm = n;
			list[i].raddr = ba.addr + REMOTE + (uint64_t)n * SLOT;
			list[i].rkey = ba.rkey;
			list[i].qpn = ba.qpn;
			list[i].qkey = ba.qkey;
			end_fill(a, SRC + (uint64_t)i * SLOT, lens[n], n + 1);
		}
		if (end_send_list(a, list, LIST, NULL))
			die("ibv_post_send");
		for (int i = 0; i < LIST; i++)
			wrong += end_wait(a, SENDS).status != IBV_WC_SUCCESS;
		for (int i = 0; i < LIST && end_try(b, RECVS, &w, QUIET_US); i++) {
			uint32_t n = w.imm_data, grh = ud ? GRH : 0;
			int good = w.status == IBV_WC_SUCCESS && (w.wc_flags & IBV_WC_WITH_IMM) && n < (round + 1) * LIST;
			good = good && w.byte_len == lens[n] + grh && end_verify(b, writes ? REMOTE + (uint64_t)n * SLOT : DST + w.wr_id * SLOT + grh, lens[n], n + 1) < 0;
			wrong += !good;
			disordered += (long)n <= last;
			last = n;
			came++;
			post_receive(w.wr_id);
		}
	}
	check_eq(wrong, 0, "%s: messages that are not as they were sent", name);
	if (!ud)
		check_eq(disordered, 0, "%s: messages that came twice, or before an older one", name);
	if (getenv("TEST_LOSSES"))
		check(came > MESSAGES / 3 && came < MESSAGES, "%s: most came, and not all (%d of %d)", name, came, MESSAGES);
	else
		check(came == MESSAGES || (hosts_differ() && came > MESSAGES / 3), "%s: all came (%d of %d)", name, came, MESSAGES);
	check(end_state(a) == IBV_QPS_RTS && end_state(b) == IBV_QPS_RTS, "%s: both go on", name);
	pair_close(a, b);
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	run(IBV_QPT_UC, IBV_WR_SEND_WITH_IMM);
	run(IBV_QPT_UC, IBV_WR_RDMA_WRITE_WITH_IMM);
	run(IBV_QPT_UD, IBV_WR_SEND_WITH_IMM);
	end_free(b);
	end_free(a);
	return finish();
}
