#include "end.h"
#include <time.h>

int failed;
const char *who = "efa";
struct ibv_context *context;
struct ibv_pd *pd;
struct ibv_mr *mr;
struct ibv_cq *cq;
struct ibv_ah *ah;
char *memory;

void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state, .port_num = 1, .qkey = QKEY};
	int mask = IBV_QP_STATE;

	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	if (state == IBV_QPS_RTS)
		mask |= IBV_QP_SQ_PSN;
	MUST(!ibv_modify_qp(qp, &attr, mask));
}

struct ibv_qp *ready(struct ibv_qp *qp)
{
	MUST(qp);
	to_state(qp, IBV_QPS_INIT);
	to_state(qp, IBV_QPS_RTR);
	to_state(qp, IBV_QPS_RTS);
	return qp;
}

struct ibv_wc completion(void)
{
	struct ibv_wc wc = {.wr_id = ~0ull};
	struct timespec start, now;
	int got;

	clock_gettime(CLOCK_MONOTONIC, &start);
	while (!(got = ibv_poll_cq(cq, 1, &wc))) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		MUST(now.tv_sec - start.tv_sec < 60);
	}
	MUST(got == 1);
	return wc;
}
