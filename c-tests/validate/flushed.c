/*
 * QP-17, a flush without a known cause: flushed QP-17 wrong|right. With BY=peer in the environment
 * the peer end sets the QP to ERR. With BY=other the explaining error is in another CQ, which is
 * polled later. See misuse.c.
 */
#include "pair.h"

static void qp_17(void)
{
	const char *by = getenv("BY");
	struct ibv_sge sge = piece(64);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge, 1);
	if (by && !strcmp(by, "other")) {
		struct ibv_cq *sends = ibv_create_cq(ctx, DEPTH, NULL, NULL, 0);
		want(sends != NULL, "ibv_create_cq");
		couple(IBV_QPT_RC, sends, NULL, 0);
		want(!receive(a, sge), "ibv_post_recv");
		/* It finds no receive. */
		want(!post(a, wr), "ibv_post_send");
		want(done(cq).status == IBV_WC_WR_FLUSH_ERR, "a flush");
		want(done(sends).status == IBV_WC_RNR_RETRY_EXC_ERR, "an error");
		want(!ibv_destroy_qp(a) && !ibv_destroy_cq(sends), "ibv_destroy_cq");
		a = NULL;
		return;
	}
	pair();
	if (by) {
		/* The range lies outside of the region, so b fails and its receives are flushed. */
		want(!receive(b, sge), "ibv_post_recv");
		wr = request(IBV_WR_RDMA_WRITE, &sge, 1);
		wr.wr.rdma.remote_addr = (uintptr_t)buf + SIZE;
		want(!post(a, wr), "ibv_post_send");
		int flushed = 0;
		for (int i = 0; i < 2; i++)
			flushed += done(cq).status == IBV_WC_WR_FLUSH_ERR;
		want(flushed == 1, "a flush");
		return;
	}
	if (!wrong)
		want(!receive(a, sge), "ibv_post_recv");
	want(!ibv_modify_qp(a, &attr, IBV_QP_STATE), "ERR");
	/* In ERR all is taken and nothing carried out. */
	if (wrong)
		want(!post(a, wr), "ibv_post_send");
	want(done(cq).status == IBV_WC_WR_FLUSH_ERR, "a flush");
}

static const struct misuse cases[] = { { "QP-17", qp_17 } };

int main(int argc, char **argv)
{
	return run_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
