/*
 * What soft refuses in strict mode and takes otherwise: strict CASE wrong|right, with
 * FERROVERBS_SOFT_STRICT=1. Without arguments the program lists the cases.
 */
#include "pair.h"

static void mr_16(void)
{
	second = ibv_reg_mr(pd, buf, wrong ? 0 : 64, ALL);
	want(wrong ? !second && errno == EINVAL : second != NULL, "ibv_reg_mr");
}

static void mr_17(void)
{
	second = ibv_reg_mr_iova(pd, buf, 64, wrong ? 8 : 0x10000, ALL);
	want(wrong ? !second && errno == EINVAL : second != NULL, "ibv_reg_mr_iova");
}

static void mr_18(void)
{
	int result = wrong ? ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) : ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL);
	want(wrong ? result && errno == EINVAL : !result, "ibv_rereg_mr");
}

static void qp_05(void)
{
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	struct ibv_qp_attr attr = ready(a);
	attr.ah_attr.is_global = !wrong;
	int result = ibv_modify_qp(a, &attr, rtr_mask(a));
	want(result == (wrong ? EINVAL : 0), "ibv_modify_qp");
}

/* As pair(), with the path MTU, the depth of READs and the first PSN of `a`. */
static void pair_with(enum ibv_mtu mtu, uint8_t depth, uint32_t psn)
{
	b = make(IBV_QPT_RC, cq, NULL, 0);
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	to_init(b);
	struct ibv_qp_attr attr = ready(b);
	attr.path_mtu = mtu;
	want(!ibv_modify_qp(a, &attr, rtr_mask(a)), "RTR");
	to_rtr(b, a);
	want(!to_rts(b, 14, 1), "RTS");
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 8, .retry_cnt = 1, .sq_psn = psn, .max_rd_atomic = depth };
	want(!ibv_modify_qp(a, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void completes(enum ibv_wc_status status)
{
	struct ibv_wc wc = done(cq);
	if (wc.status != (wrong ? status : IBV_WC_SUCCESS)) {
		fprintf(stderr, "strict: %s\n", ibv_wc_status_str(wc.status));
		exit(2);
	}
}

static void qp_18(void)
{
	pair_with(wrong ? IBV_MTU_512 : IBV_MTU_1024, 1, 0);
	struct ibv_sge sge = piece(512);
	want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
	ok(cq);
	sge = piece(513);
	want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
	completes(IBV_WC_REM_INV_REQ_ERR);
}

static void qp_19(void)
{
	pair_with(IBV_MTU_1024, wrong ? 2 : 1, 0);
	struct ibv_sge sge = piece(64);
	want(!post(a, request(IBV_WR_RDMA_READ, &sge, 1)) && !post(a, request(IBV_WR_RDMA_READ, &sge, 1)), "ibv_post_send");
	ok(cq);
	completes(IBV_WC_REM_INV_REQ_ERR);
}

static void qp_20(void)
{
	pair_with(IBV_MTU_1024, 1, wrong ? 7 : 0);
	struct ibv_sge sge = piece(64);
	want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
	completes(IBV_WC_RETRY_EXC_ERR);
}

static const struct misuse cases[] = {
	{ "MR-16", mr_16 }, { "MR-17", mr_17 }, { "MR-18", mr_18 }, { "QP-05", qp_05 }, { "QP-18", qp_18 }, { "QP-19", qp_19 }, { "QP-20", qp_20 },
};

int main(int argc, char **argv)
{
	return run_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
