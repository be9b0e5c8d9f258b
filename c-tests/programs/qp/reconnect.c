/*
 * One or both ends of an RC connection start a new connection, in any order and with messages in
 * flight, over shared memory. A received message belongs to the present connection, in order and
 * complete; a message of the old connection fails with IBV_WC_RETRY_EXC_ERR. ibv_modify_qp(3);
 * IBTA 1.7 9.7.5 (packet sequence numbers), 10.3.1.
 */
#include "partner.h"

#define ROUNDS 150
#define MESSAGES 24u
#define AWAITED 8u
#define ROOM 40000u

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static unsigned char *buf;
static union ibv_gid gid;
static uint32_t his_qpn;
static union ibv_gid his_gid;
static uint64_t dice;

/* What a message is like, as both know. */
static uint32_t length_of(unsigned round, unsigned n)
{
	static const uint32_t lengths[] = { 8, 48, 1000, 9000, 40000, 0 };
	return lengths[(round + n * 5) % 6];
}

static uint32_t seed_of(unsigned round, unsigned n, int from)
{
	return round * 1000 + n * 2 + (unsigned)from + 1;
}

static uint32_t psn_of(unsigned round, int from)
{
	return (round * 7919 + (unsigned)from * 13) & 0xffffff;
}

static void to(enum ibv_qp_state state, struct ibv_qp_attr a, int mask)
{
	a.qp_state = state;
	int err = ibv_modify_qp(qp, &a, IBV_QP_STATE | mask);
	if (err)
		die("ibv_modify_qp to %d: %s", state, strerror(err));
}

static void post_receive(unsigned n)
{
	struct ibv_sge sg = { (uintptr_t)buf + n * ROOM, ROOM, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
}

static void post_send(unsigned round, unsigned n)
{
	unsigned char *at = buf + (MESSAGES + n) * ROOM;
	uint32_t len = length_of(round, n);
	fill(at, len, seed_of(round, n, role));
	struct ibv_sge sg = { (uintptr_t)at, len, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1000 + n, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = round * 100 + n }, *bad;
	if (ibv_post_send(qp, &wr, &bad))
		die("ibv_post_send");
}

/* Connects with the PSNs of a round, with the timeout given. */
static void connect_for(unsigned round, uint8_t timeout)
{
	struct ibv_qp_attr a = { .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	to(IBV_QPS_INIT, a, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	for (unsigned n = 0; n < MESSAGES; n++)
		post_receive(n);
	a = (struct ibv_qp_attr){ .path_mtu = IBV_MTU_1024,
				  .dest_qp_num = his_qpn,
				  .rq_psn = psn_of(round, !role),
				  .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 1,
				  .ah_attr = { .is_global = 1, .grh = { .dgid = his_gid, .hop_limit = 1 }, .port_num = 1 } };
	to(IBV_QPS_RTR, a,
	   IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	a = (struct ibv_qp_attr){ .sq_psn = psn_of(round, role), .max_rd_atomic = 1, .retry_cnt = 7, .rnr_retry = 7, .timeout = timeout };
	to(IBV_QPS_RTS, a, IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT);
}

static void reset(void)
{
	struct ibv_qp_attr a = { 0 };
	to(IBV_QPS_RESET, a, 0);
}

/* Receives `wanted` messages of a round; returns how many were not as they should be. */
static unsigned take(unsigned round, unsigned wanted)
{
	unsigned got = 0, sent = 0, bad = 0;
	while (got < wanted) {
		struct ibv_wc w;
		wait_completion(cq, &w);
		if (w.status != IBV_WC_SUCCESS) {
			printf("round %u: %s of %d\n", round, ibv_wc_status_str(w.status), (int)w.wr_id);
			return bad + 1;
		}
		if (w.opcode == IBV_WC_SEND) {
			bad += w.wr_id != 1000 + sent;
			sent++;
			continue;
		}
		uint32_t len = length_of(round, got);
		int good = w.wr_id == got && w.imm_data == round * 100 + got && w.byte_len == len &&
			   verify(buf + got * ROOM, len, seed_of(round, got, !role)) < 0;
		if (!good)
			printf("round %u: receive %d is %u, of %u bytes\n", round, (int)w.wr_id, w.imm_data, w.byte_len);
		bad += !good;
		got++;
	}
	return bad;
}

static void both_begin_anew(void)
{
	unsigned bad = 0;
	for (unsigned round = 0; round < ROUNDS; round++) {
		/* The faster side sends to an old connection or to one that does not exist yet. The
		 * timeout is infinite. */
		if (rnd(&dice) % 2)
			usleep(rnd(&dice) % 400);
		reset();
		if (rnd(&dice) % 4 == 0)
			usleep(rnd(&dice) % 400);
		connect_for(round, 0);
		for (unsigned n = 0; n < MESSAGES; n++)
			post_send(round, n);
		bad += take(round, AWAITED);
		/* The others are under way, received or not, when both have enough. */
		meet();
	}
	check_eq(bad, 0, "%d connections, one after the other: each receives what was sent on it, in order", ROUNDS);
}

static void one_begins_anew(void)
{
	meet();
	reset();
	connect_for(1000, 0);
	meet();
	if (!role) {
		for (unsigned n = 0; n < AWAITED; n++)
			post_send(1000, n);
		for (unsigned n = 0; n < AWAITED; n++) {
			struct ibv_wc w;
			wait_completion(cq, &w);
			if (w.status || w.opcode != IBV_WC_SEND)
				die("a send");
		}
		reset();
		connect_for(1000, 10);
		for (unsigned n = 0; n < AWAITED; n++)
			post_send(1000, n);
		unsigned failed = 0, flushed = 0;
		for (unsigned n = 0; n < AWAITED + MESSAGES; n++) {
			struct ibv_wc w;
			wait_completion(cq, &w);
			failed += w.status == IBV_WC_RETRY_EXC_ERR && w.wr_id == 1000;
			flushed += w.status == IBV_WC_WR_FLUSH_ERR;
		}
		check_eq(failed, 1, "the sender alone begins anew: its first send fails with IBV_WC_RETRY_EXC_ERR");
		check_eq(flushed, AWAITED + MESSAGES - 1, "and everything behind it is flushed");
	} else {
		check_eq(take(1000, AWAITED), 0, "messages before");
	}
	meet();
	if (role) {
		struct ibv_wc w;
		check(!try_completion(cq, &w, QUIET_US), "the receiver takes nothing of it");
	}
	meet();
	/* Both, with the wrong PSN on one side. */
	reset();
	connect_for(role ? 2000 : 3000, 10);
	meet();
	if (!role) {
		struct ibv_wc w;
		post_send(2000, 0);
		wait_completion(cq, &w);
		check(w.status == IBV_WC_RETRY_EXC_ERR, "a PSN that the other end does not expect: %s", ibv_wc_status_str(w.status));
	}
	meet();
	reset();
	connect_for(4000, 14);
	for (unsigned n = 0; n < AWAITED; n++)
		post_send(4000, n);
	check_eq(take(4000, AWAITED), 0, "and with the right one all is well");
	meet();
}

int main(void)
{
	partner_fork();
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 4 * MESSAGES, NULL, NULL, 0);
	buf = calloc(2 * MESSAGES, ROOM);
	mr = ibv_reg_mr(pd, buf, 2 * MESSAGES * ROOM, IBV_ACCESS_LOCAL_WRITE);
	if (!pd || !cq || !mr || ibv_query_gid(ctx, 1, 0, &gid))
		die("set up");
	struct ibv_qp_init_attr ia = { .send_cq = cq, .recv_cq = cq, .cap = { MESSAGES, MESSAGES, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	qp = ibv_create_qp(pd, &ia);
	if (!qp)
		die("ibv_create_qp");
	dice = 1234567u + (unsigned)role;
	swap(&qp->qp_num, &his_qpn, sizeof his_qpn);
	swap(&gid, &his_gid, sizeof his_gid);
	both_begin_anew();
	one_begins_anew();
	check_eq(ibv_destroy_qp(qp) | ibv_dereg_mr(mr) | ibv_destroy_cq(cq) | ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0,
		 "everything is closed");
	return partner_finish();
}
