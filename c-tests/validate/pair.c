/* What pair.h declares. */
#include "pair.h"

struct ibv_context *ctx;
struct ibv_pd *pd;
struct ibv_cq *cq;
struct ibv_mr *mr;
struct ibv_qp *a, *b;
struct ibv_qp_cap cap;
unsigned char *buf;
int wrong;
uint8_t rnr_retry;
struct ibv_mr *second;
struct ibv_srq *shared;

struct ibv_qp *make(enum ibv_qp_type type, struct ibv_cq *scq, struct ibv_srq *srq, uint32_t inl)
{
	struct ibv_qp_init_attr init = { .send_cq = scq, .recv_cq = cq, .srq = srq, .qp_type = type, .cap = { DEPTH, DEPTH, 2, 2, inl } };
	if (srq)
		init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	want(qp != NULL, "ibv_create_qp");
	cap = init.cap;
	return qp;
}

void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7, .qp_access_flags = ALL & ~IBV_ACCESS_MW_BIND };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	want(!ibv_modify_qp(qp, &attr, mask), "INIT");
}

struct ibv_qp_attr ready(struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1 } };
	want(!ibv_query_gid(ctx, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
	return attr;
}

int rtr_mask(struct ibv_qp *qp)
{
	if (qp->qp_type == IBV_QPT_UD)
		return IBV_QP_STATE;
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	return qp->qp_type == IBV_QPT_UC ? mask : mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
}

int to_rts(struct ibv_qp *qp, uint8_t timeout, uint8_t rd_atomic)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = timeout, .retry_cnt = 7, .rnr_retry = rnr_retry, .max_rd_atomic = rd_atomic };
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(qp, &attr, mask);
}

void to_rtr(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = ready(peer);
	want(!ibv_modify_qp(qp, &attr, rtr_mask(qp)), "RTR");
}

void couple(enum ibv_qp_type type, struct ibv_cq *scq, struct ibv_srq *srq, uint32_t inl)
{
	b = make(type, cq, srq, inl);
	a = make(type, scq, NULL, inl);
	to_init(a);
	to_init(b);
	to_rtr(a, b);
	to_rtr(b, a);
	want(!to_rts(a, 14, 1) && !to_rts(b, 14, 1), "RTS");
}

void pair(void)
{
	couple(IBV_QPT_RC, cq, NULL, 64);
}

struct ibv_sge piece(uint32_t length)
{
	return (struct ibv_sge){ (uintptr_t)buf, length, mr->lkey };
}

struct ibv_send_wr request(enum ibv_wr_opcode op, struct ibv_sge *sge, int n)
{
	struct ibv_send_wr wr = { .wr_id = 7, .opcode = op, .sg_list = sge, .num_sge = n, .send_flags = IBV_SEND_SIGNALED };
	wr.wr.rdma.remote_addr = (uintptr_t)buf + 4096;
	wr.wr.rdma.rkey = mr->rkey;
	return wr;
}

int post(struct ibv_qp *qp, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;
	return ibv_post_send(qp, &wr, &bad);
}

int receive(struct ibv_qp *qp, struct ibv_sge sge)
{
	struct ibv_recv_wr wr = { .wr_id = 9, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_recv(qp, &wr, &bad);
}

struct ibv_wc done(struct ibv_cq *from)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(from, 1, &wc)))
		;
	want(n == 1, "ibv_poll_cq");
	return wc;
}

void ok(struct ibv_cq *from)
{
	want(done(from).status == IBV_WC_SUCCESS, "a completion");
}

struct ibv_srq *limited(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .srq_limit = 2 };
	struct ibv_sge sge = piece(64);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	want(srq != NULL, "ibv_create_srq");
	for (uint32_t i = 0; i < attr.srq_limit; i++)
		want(!ibv_post_srq_recv(srq, &wr, &bad), "ibv_post_srq_recv");
	want(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), "ibv_modify_srq");
	couple(IBV_QPT_RC, cq, srq, 0);
	return srq;
}

void below_limit(void)
{
	struct ibv_sge sge = piece(64);
	want(!post(a, request(IBV_WR_SEND, &sge, 1)), "ibv_post_send");
	ok(cq);
	ok(cq);
}

void post_and_poll(struct ibv_send_wr wr)
{
	if (!post(a, wr))
		done(cq);
}

int run_case(int argc, char **argv, const struct misuse *cases, size_t count)
{
	if (argc == 1) {
		for (size_t i = 0; i < count; i++)
			puts(cases[i].id);
		return 0;
	}
	wrong = argc > 2 && !strcmp(argv[2], "wrong");
	struct ibv_device **list = ibv_get_device_list(NULL);
	want(list && list[0], "a device");
	ctx = ibv_open_device(list[0]);
	want(ctx != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 8 * DEPTH, NULL, NULL, 0);
	buf = aligned_alloc(4096, SIZE);
	memset(buf, 0, SIZE);
	mr = pd ? ibv_reg_mr(pd, buf, SIZE, ALL) : NULL;
	want(mr && cq, "PD, CQ, MR");
	for (size_t i = 0; i < count; i++)
		if (!strcmp(cases[i].id, argv[1]))
			cases[i].run();
	want((!a || !ibv_destroy_qp(a)) && (!b || !ibv_destroy_qp(b)), "ibv_destroy_qp");
	want((!second || !ibv_dereg_mr(second)) && (!shared || !ibv_destroy_srq(shared)), "what a case made");
	want(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx), "destroying");
	ibv_free_device_list(list);
	free(buf);
	return 0;
}
