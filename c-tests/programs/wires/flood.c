/*
 * Datagrams to four QPs, unicast and multicast, between two processes that wait for events, over
 * shared memory. No datagram is lost while its receiver has a receive posted. No datagram waits
 * without its event. No sender exceeds the receives of its peer.
 */
#include "partner.h"

#define QPS 4
#define DEPTH 128u	/* receives of a QP */
#define WINDOW 96u	/* datagrams under way to a QP */
#define MESSAGES 6000u	/* to each QP, from each process */
#define QKEY 0x99u
#define GROUP_QPN 0xffffff
#define SLOT (40u + 64u)

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static unsigned char *buf;
static struct ibv_qp *qp[QPS];
static uint32_t theirs[QPS];
static union ibv_gid own, group = { .raw = { 0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, [15] = 0x44 } };

/* Credits by [process][QP]: the number of datagrams that the process received from its peer, and
 * whose receives it posted again. */
static volatile uint32_t (*received)[QPS];

static void receive(int q, unsigned n)
{
	struct ibv_sge sg = { (uintptr_t)buf + ((unsigned)q * DEPTH + n) * SLOT, SLOT, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = (unsigned)q * DEPTH + n, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp[q], &wr, &bad))
		die("ibv_post_recv");
}

static int post(int q, struct ibv_ah *ah, uint32_t qpn, uint32_t number)
{
	struct ibv_sge sg = { (uintptr_t)buf + QPS * DEPTH * SLOT, number % 2 ? 60 : 20, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1 << 20, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = number }, *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = QKEY;
	return ibv_post_send(qp[q], &wr, &bad);
}

static unsigned sends, arrivals, wrong;
static uint32_t next_from[2][QPS];

/* Polls all completions; returns their number. Counts completions out of order. */
static unsigned drain(int to_group)
{
	struct ibv_wc wc[16];
	unsigned all = 0;
	int n;
	while ((n = ibv_poll_cq(cq, 16, wc)) > 0) {
		all += (unsigned)n;
		for (int i = 0; i < n; i++) {
			if (wc[i].status)
				die("%s", ibv_wc_status_str(wc[i].status));
			if (wc[i].wr_id == 1 << 20) {
				sends++;
				continue;
			}
			int q = (int)(wc[i].wr_id / DEPTH);
			int from_us = 0;
			for (int k = 0; k < QPS; k++)
				from_us |= to_group && wc[i].src_qp == qp[k]->qp_num;
			wrong += wc[i].imm_data != next_from[from_us][q];
			next_from[from_us][q] = wc[i].imm_data + 1;
			receive(q, (unsigned)(wc[i].wr_id % DEPTH));
			arrivals++;
			if (!from_us)
				received[role][q] = received[role][q] + 1;
		}
	}
	return all;
}

static void flood(int to_group)
{
	struct ibv_ah_attr aa = { .is_global = 1, .grh = { .dgid = to_group ? group : own, .hop_limit = 1 }, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(pd, &aa);
	if (!ah)
		die("ibv_create_ah");
	uint32_t sent[QPS] = { 0 }, total = to_group ? MESSAGES / 8 : MESSAGES;
	int lanes = to_group ? 1 : QPS;
	sends = arrivals = wrong = 0;
	memset(next_from, 0, sizeof next_from);
	for (int q = 0; q < QPS; q++)
		received[role][q] = 0;
	meet();
	/* A multicast datagram also reaches the QPs of its sender's process: twice as many
	 * arrive. */
	unsigned wanted = QPS * total * (to_group ? 2 : 1), all = (unsigned)lanes * total;
	int quiet = 0;
	if (ibv_req_notify_cq(cq, 0))
		die("ibv_req_notify_cq");
	while (arrivals < wanted || sends < all) {
		for (int q = 0; q < lanes; q++) {
			uint32_t taken = received[!role][q];
			for (int k = 1; to_group && k < QPS; k++)
				taken = received[!role][k] < taken ? received[!role][k] : taken;
			/* Both processes send to the same receives. Each process therefore takes
			 * half of the window, and also waits for its own copies. */
			for (int k = 0; to_group && k < QPS; k++)
				taken = next_from[1][k] < taken ? next_from[1][k] : taken;
			uint32_t window = to_group ? WINDOW / 2 : WINDOW;
			while (sent[q] < total && sent[q] - taken < window && !post(q, ah, to_group ? GROUP_QPN : theirs[q], sent[q]))
				sent[q]++;
		}
		int done = 1;
		for (int q = 0; q < lanes; q++)
			done &= sent[q] == total;
		/* The peer's credits raise no event, so the process polls for them each
		 * millisecond. */
		int ms = done ? 100 : 1;
		if (!readable(channel->fd, ms)) {
			quiet += ms;
			if (quiet > 10000) {
				unsigned lay = drain(to_group);
				check(0, "%u completions lay there without an event; %u of %u datagrams arrived, %u of %u sent", lay, arrivals, wanted, sends, all);
				return;
			}
			continue;
		}
		struct ibv_cq *which;
		void *context;
		if (ibv_get_cq_event(channel, &which, &context))
			die("ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		if (ibv_req_notify_cq(cq, 0))
			die("ibv_req_notify_cq");
		if (drain(to_group))
			quiet = 0;
	}
	/* Acknowledge left-over events, whose completions are already polled. */
	while (readable(channel->fd, 0)) {
		struct ibv_cq *which;
		void *context;
		if (ibv_get_cq_event(channel, &which, &context))
			die("ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
	}
	check_eq(arrivals, wanted, "datagrams %s: all arrive", to_group ? "to a group" : "to one QP");
	check_eq(wrong, 0, "in the order of each sender");
	check_eq(ibv_destroy_ah(ah), 0, "ibv_destroy_ah");
	meet();
}

int main(void)
{
	received = mmap(NULL, 2 * sizeof *received, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (received == MAP_FAILED)
		die("mmap");
	partner_fork();
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	channel = ibv_create_comp_channel(ctx);
	cq = ibv_create_cq(ctx, 4096, NULL, channel, 0);
	size_t size = (QPS * DEPTH + 1) * SLOT;
	buf = calloc(1, size);
	mr = ibv_reg_mr(pd, buf, size, IBV_ACCESS_LOCAL_WRITE);
	if (!pd || !channel || !cq || !mr || ibv_query_gid(ctx, 1, 0, &own))
		die("set up");
	uint32_t mine[QPS];
	for (int q = 0; q < QPS; q++) {
		struct ibv_qp_init_attr ia = { .send_cq = cq, .recv_cq = cq, .cap = { DEPTH, DEPTH, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
		qp[q] = ibv_create_qp(pd, &ia);
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
		int err = !qp[q] || ibv_modify_qp(qp[q], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
		a.qp_state = IBV_QPS_RTR;
		err = err || ibv_modify_qp(qp[q], &a, IBV_QP_STATE);
		a.qp_state = IBV_QPS_RTS;
		err = err || ibv_modify_qp(qp[q], &a, IBV_QP_STATE | IBV_QP_SQ_PSN);
		if (err)
			die("a QP");
		mine[q] = qp[q]->qp_num;
		for (unsigned n = 0; n < DEPTH; n++)
			receive(q, n);
		if (ibv_attach_mcast(qp[q], &group, 0))
			die("ibv_attach_mcast");
	}
	swap(mine, theirs, sizeof mine);
	flood(0);
	flood(1);
	for (int q = 0; q < QPS; q++)
		check_eq(ibv_detach_mcast(qp[q], &group, 0) | ibv_destroy_qp(qp[q]), 0, "ibv_destroy_qp");
	check_eq(ibv_dereg_mr(mr) | ibv_destroy_cq(cq) | ibv_destroy_comp_channel(channel) | ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0,
		 "everything is closed");
	return partner_finish();
}
