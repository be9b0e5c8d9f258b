/*
 * Two connected QPs of one process, for counting instructions. Each function named measured_* does
 * one thing COUNT times and nothing else, so a profiler that counts inside the function counts that
 * thing.
 *
 * usage: fastpath COUNT
 */
#include "one_process.h"

static struct ibv_cq *scq, *rcq;
static struct ibv_qp *qp[2];
static struct ibv_mr *mr;
static unsigned char memory[8192];

__attribute__((noinline)) void measured_post_recv(int n)
{
	struct ibv_sge sge = { (uintptr_t)memory + 4096, 64, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	for (int i = 0; i < n; i++)
		if (ibv_post_recv(qp[1], &wr, &bad))
			fail("ibv_post_recv");
}

__attribute__((noinline)) void measured_post_send(int n)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	for (int i = 0; i < n; i++)
		if (ibv_post_send(qp[0], &wr, &bad))
			fail("ibv_post_send");
}

__attribute__((noinline)) void measured_post_list(int n)
{
	enum { LIST = 10 };
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr[LIST], *bad;

	for (int i = 0; i < LIST; i++)
		wr[i] = (struct ibv_send_wr){ .next = i + 1 < LIST ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1,
					      .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	for (int i = 0; i < n; i += LIST)
		if (ibv_post_send(qp[0], wr, &bad))
			fail("ibv_post_send");
}

__attribute__((noinline)) void measured_wr_send(int n)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp[0]);

	for (int i = 0; i < n; i++) {
		ibv_wr_start(ex);
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 8);
		if (ibv_wr_complete(ex))
			fail("ibv_wr_complete");
	}
}

/* The completions of a list, taken together. */
__attribute__((noinline)) void measured_poll_many(int n)
{
	struct ibv_wc wc[16];

	while (n) {
		int got = ibv_poll_cq(rcq, 16, wc);

		if (got < 0 || (got && wc[0].status))
			fail("ibv_poll_cq");
		n -= got;
	}
}

__attribute__((noinline)) void measured_poll_recv(int n)
{
	struct ibv_wc wc;

	while (n) {
		int got = ibv_poll_cq(rcq, 1, &wc);

		if (got < 0 || (got && wc.status))
			fail("ibv_poll_cq");
		n -= got;
	}
}

__attribute__((noinline)) void measured_poll_send(int n)
{
	struct ibv_wc wc;

	while (n) {
		int got = ibv_poll_cq(scq, 1, &wc);

		if (got < 0 || (got && wc.status))
			fail("ibv_poll_cq");
		n -= got;
	}
}

__attribute__((noinline)) void measured_poll_empty(int n)
{
	struct ibv_wc wc;

	for (int i = 0; i < n; i++)
		if (ibv_poll_cq(rcq, 1, &wc))
			fail("ibv_poll_cq");
}

/* Acknowledgements of a stream arrive after an idle time; the measurement excludes the wait. */
__attribute__((noinline)) static void settle(void)
{
	struct ibv_wc wc;

	for (int i = 0; i < 20; i++)
		if (ibv_poll_cq(rcq, 1, &wc))
			fail("ibv_poll_cq");
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1000;
	enum { BATCH = 50 };

	open_device();
	scq = ibv_create_cq(ctx, 4 * BATCH, NULL, NULL, 0);
	rcq = ibv_create_cq(ctx, 4 * BATCH, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr_ex init = { .send_cq = scq, .recv_cq = rcq, .qp_type = IBV_QPT_RC, .pd = pd,
						    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
						    .send_ops_flags = IBV_QP_EX_WITH_SEND,
						    .cap = { 2 * BATCH, 2 * BATCH, 1, 1, 64 } };

		qp[i] = ibv_create_qp_ex(ctx, &init);
		if (!qp[i] || !mr)
			fail("no QP");
	}
	connect_qp(qp[0], qp[1]->qp_num);
	connect_qp(qp[1], qp[0]->qp_num);
	for (int done = 0; done < count; done += BATCH) {
		measured_post_recv(BATCH);
		measured_post_send(BATCH);
		measured_poll_recv(BATCH);
		settle();
		measured_poll_send(BATCH);
		measured_poll_empty(BATCH);
		measured_post_recv(BATCH);
		measured_wr_send(BATCH);
		measured_poll_recv(BATCH);
		settle();
		measured_poll_send(BATCH);
		measured_post_recv(BATCH);
		measured_post_list(BATCH);
		measured_poll_many(BATCH);
		settle();
		measured_poll_send(BATCH);
	}
	return 0;
}
