/*
 * Further ways to trigger checks than those of misuse.c: more_misuse CASE wrong|right. The first
 * word of a case is its check. Without arguments the program lists the cases.
 */
#include "pair.h"
#include <pthread.h>

static struct ibv_send_wr wr_of(enum ibv_wr_opcode op, struct ibv_sge *sge)
{
	pair();
	return request(op, sge, 1);
}

/* ---- requests ---- */

static void mr_04_read(void)
{
	struct ibv_sge sge = piece(64);
	second = ibv_reg_mr(pd, buf, SIZE, wrong ? 0 : IBV_ACCESS_LOCAL_WRITE);
	want(second != NULL, "ibv_reg_mr");
	sge.lkey = second->lkey;
	post_and_poll(wr_of(IBV_WR_RDMA_READ, &sge));
}

static void mr_04_window(void)
{
	pair();
	second = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_MW_BIND | (wrong ? 0 : IBV_ACCESS_LOCAL_WRITE));
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = second, .addr = (uintptr_t)buf, .length = SIZE, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	want(second && mw, "ibv_alloc_mw");
	if (!ibv_bind_mw(b, mw, &bind))
		done(cq);
	want(!ibv_dealloc_mw(mw), "ibv_dealloc_mw");
}

static void mr_06_rereg(void)
{
	struct ibv_sge sge = piece(64);
	struct ibv_mr *more = ibv_reg_mr(pd, buf, SIZE, ALL);
	want(more != NULL, "ibv_reg_mr");
	sge.lkey = more->lkey;
	want(!post(a, wr_of(IBV_WR_RDMA_WRITE, &sge)), "ibv_post_send");
	if (!wrong)
		ok(cq);
	ibv_rereg_mr(more, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE);
	if (wrong)
		done(cq);
	want(!ibv_dereg_mr(more), "ibv_dereg_mr");
}

static void wr_01_null(void)
{
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = wr_of(IBV_WR_RDMA_WRITE, &sge);
	if (wrong)
		wr.sg_list = NULL;
	post_and_poll(wr);
}

static void wr_01_receive(void)
{
	pair();
	struct ibv_sge sge[3] = { piece(8), piece(8), piece(8) };
	struct ibv_recv_wr wr = { .sg_list = sge, .num_sge = 2 + wrong }, *bad;
	ibv_post_recv(b, &wr, &bad);
}

static void wr_02_read(void)
{
	struct ibv_sge sge = piece(8);
	struct ibv_send_wr wr = wr_of(IBV_WR_RDMA_READ, &sge);
	if (wrong)
		wr.send_flags |= IBV_SEND_INLINE;
	post_and_poll(wr);
}

static void wr_07_length(void)
{
	struct ibv_sge sge = piece(wrong ? 4 : 8);
	struct ibv_send_wr wr = wr_of(IBV_WR_ATOMIC_CMP_AND_SWP, &sge);
	wr.wr.atomic.remote_addr = (uintptr_t)buf + 4096;
	wr.wr.atomic.rkey = mr->rkey;
	post_and_poll(wr);
}

static void wr_12_solicited(void)
{
	struct ibv_sge sge = piece(8);
	struct ibv_send_wr wr = wr_of(wrong ? IBV_WR_RDMA_READ : IBV_WR_SEND, &sge);
	want(!receive(b, piece(64)), "ibv_post_recv");
	wr.send_flags |= IBV_SEND_SOLICITED;
	post_and_poll(wr);
}

static struct ibv_ah *handle(struct ibv_pd *of)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1 };
	want(!ibv_query_gid(ctx, 1, 0, &to.grh.dgid), "ibv_query_gid");
	struct ibv_ah *ah = ibv_create_ah(of, &to);
	want(ah != NULL, "ibv_create_ah");
	return ah;
}

static uint32_t remote_qkey = 7;

static void datagram(struct ibv_ah *ah)
{
	struct ibv_sge sge = piece(8);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge, 1);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b->qp_num;
	wr.wr.ud.remote_qkey = remote_qkey;
	post_and_poll(wr);
}

static void wr_08_none(void)
{
	couple(IBV_QPT_UD, cq, NULL, 0);
	struct ibv_ah *ah = handle(pd);
	datagram(wrong ? NULL : ah);
	want(!ibv_destroy_ah(ah), "ibv_destroy_ah");
}

/* Right is to mean it. */
static void wr_08_qkey(void)
{
	couple(IBV_QPT_UD, cq, NULL, 0);
	struct ibv_ah *ah = handle(pd);
	remote_qkey = wrong ? 0x80000007 : 0x80000000;
	datagram(ah);
	want(!ibv_destroy_ah(ah), "ibv_destroy_ah");
}

static void wr_08_domain(void)
{
	couple(IBV_QPT_UD, cq, NULL, 0);
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_ah *ah = handle(wrong ? other : pd);
	datagram(ah);
	want(!ibv_destroy_ah(ah) && !ibv_dealloc_pd(other), "the other PD");
}

static void qp_01_receive(void)
{
	a = make(IBV_QPT_RC, cq, NULL, 0);
	if (!wrong)
		to_init(a);
	receive(a, piece(64));
}

static void qp_12_datagram(void)
{
	couple(wrong ? IBV_QPT_UD : IBV_QPT_UC, cq, NULL, 0);
	struct ibv_ah *ah = handle(pd);
	struct ibv_sge sge = piece(8);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, 1);
	if (wrong)
		wr.wr.ud.ah = ah;
	post_and_poll(wr);
	want(!ibv_destroy_ah(ah), "ibv_destroy_ah");
}

static void mr_15_invalidated(void)
{
	pair();
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = mr, .addr = (uintptr_t)buf, .length = SIZE, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	want(mw && !ibv_bind_mw(b, mw, &bind), "ibv_bind_mw");
	ok(cq);
	uint32_t key = mw->rkey;
	/* Bound to nothing it is bound no more. */
	bind.bind_info.length = 0;
	if (wrong) {
		want(!ibv_bind_mw(b, mw, &bind), "ibv_bind_mw");
		ok(cq);
	}
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, 1);
	wr.wr.rdma.rkey = key;
	post_and_poll(wr);
	want(!ibv_dealloc_mw(mw), "ibv_dealloc_mw");
}

/* ---- queue pairs ---- */

static void out_of_range(void (*change)(struct ibv_qp_attr *attr))
{
	a = make(IBV_QPT_RC, cq, NULL, 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	if (wrong)
		change(&attr);
	int result = ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	want((result != 0) == wrong, "INIT");
}

static void another_port(struct ibv_qp_attr *attr)
{
	attr->port_num = 2;
}

static void another_pkey(struct ibv_qp_attr *attr)
{
	attr->pkey_index = 999;
}

static void qp_03_port(void)
{
	out_of_range(another_port);
}

static void qp_03_pkey(void)
{
	out_of_range(another_pkey);
}

/* A provider may truncate a PSN to 24 bits. */
static void qp_03_psn(void)
{
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	struct ibv_qp_attr attr = ready(a);
	attr.rq_psn = wrong ? 1u << 24 : 0xffffff;
	ibv_modify_qp(a, &attr, rtr_mask(a));
}

static void qp_08_limit(void)
{
	struct ibv_device_attr dev;
	want(!ibv_query_device(ctx, &dev) && dev.max_qp_init_rd_atom < 255, "a limit");
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	to_rtr(a, a);
	to_rts(a, 14, (uint8_t)(dev.max_qp_init_rd_atom + wrong));
}

static void qp_13_shared(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	shared = ibv_create_srq(pd, &init);
	want(shared != NULL, "ibv_create_srq");
	a = make(IBV_QPT_RC, cq, shared, 0);
	if (wrong)
		want(ibv_destroy_srq(shared) == EBUSY, "EBUSY");
}

static void ob_03_attached(void)
{
	struct ibv_qp *qp = make(IBV_QPT_UD, cq, NULL, 0);
	to_init(qp);
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 7 } };
	want(!ibv_attach_mcast(qp, &group, 0), "ibv_attach_mcast");
	if (wrong && !ibv_destroy_qp(qp))
		return;
	want(!ibv_detach_mcast(qp, &group, 0) && !ibv_destroy_qp(qp), "ibv_detach_mcast");
}

/* ---- the builder and the iterator ---- */

static struct ibv_qp_ex *extended(void)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { DEPTH, DEPTH, 2, 2, 0 }, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE };
	a = ibv_create_qp_ex(ctx, &init);
	want(a != NULL, "ibv_create_qp_ex");
	to_init(a);
	to_rtr(a, a);
	want(!to_rts(a, 14, 1), "RTS");
	return ibv_qp_to_qp_ex(a);
}

static void *operation(void *of)
{
	struct ibv_qp_ex *qp = of;
	qp->wr_id = 3;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)buf + 4096);
	return NULL;
}

static void wr_15_thread(void)
{
	struct ibv_qp_ex *qp = extended();
	ibv_wr_start(qp);
	if (wrong) {
		pthread_t other;
		want(!pthread_create(&other, NULL, operation, qp), "pthread_create");
		pthread_join(other, NULL);
	} else {
		operation(qp);
	}
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)buf, 64);
	if (!ibv_wr_complete(qp))
		done(cq);
}

static struct ibv_cq_ex *iterated(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = DEPTH, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_cq_ex *ex = ibv_create_cq_ex(ctx, &init);
	want(ex != NULL, "ibv_create_cq_ex");
	couple(IBV_QPT_RC, ibv_cq_ex_to_cq(ex), NULL, 0);
	struct ibv_sge sge = piece(64);
	want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
	struct ibv_poll_cq_attr attr = { 0 };
	while (ibv_start_poll(ex, &attr))
		;
	return ex;
}

static void gone(struct ibv_cq_ex *ex)
{
	want(!ibv_destroy_qp(a) && !ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), "destroying");
	a = NULL;
}

static void cq_11_read(void)
{
	struct ibv_cq_ex *ex = iterated();
	ibv_wc_read_byte_len(ex);
	ibv_end_poll(ex);
	if (wrong)
		ibv_wc_read_byte_len(ex);
	gone(ex);
}

static void cq_11_over(void)
{
	struct ibv_cq_ex *ex = iterated();
	want(ibv_next_poll(ex) == ENOENT, "ENOENT");
	if (wrong)
		ibv_next_poll(ex);
	ibv_end_poll(ex);
	gone(ex);
}

static const struct misuse cases[] = {
	{ "MR-04 read", mr_04_read }, { "MR-04 window", mr_04_window }, { "MR-06 rereg", mr_06_rereg }, { "MR-15 invalidated", mr_15_invalidated }, { "QP-01 receive", qp_01_receive },
	{ "QP-03 port", qp_03_port }, { "QP-03 pkey", qp_03_pkey }, { "QP-03 psn", qp_03_psn }, { "QP-08 limit", qp_08_limit },
	{ "QP-12 datagram", qp_12_datagram }, { "QP-13 shared", qp_13_shared }, { "WR-01 null", wr_01_null }, { "WR-01 receive", wr_01_receive },
	{ "WR-02 read", wr_02_read }, { "WR-07 length", wr_07_length }, { "WR-08 none", wr_08_none }, { "WR-08 qkey", wr_08_qkey }, { "WR-08 domain", wr_08_domain },
	{ "WR-12 solicited", wr_12_solicited }, { "WR-15 thread", wr_15_thread }, { "CQ-11 read", cq_11_read }, { "CQ-11 over", cq_11_over },
	{ "OB-03 attached", ob_03_attached },
};

int main(int argc, char **argv)
{
	return run_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
