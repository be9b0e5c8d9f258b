/*
 * Two processes with an XRC connection: role 0 sends, role 1 owns the receive QP, XRC domain and
 * SRQ.
 */
#include "xrc_pair.h"

struct ibv_context *ctx;
struct ibv_pd *pd;
struct ibv_cq *cq;
struct ibv_mr *mr;
unsigned char *buf;
struct ibv_xrcd *xrcd;
struct ibv_srq *srq;
struct ibv_qp *qp;
struct place mine, theirs;

void modify(struct ibv_qp_attr at, int mask)
{
	int err = ibv_modify_qp(qp, &at, mask);
	if (err)
		die("ibv_modify_qp: %s", strerror(err));
}

void make(uint64_t send_ops)
{
	struct ibv_xrcd_init_attr xa = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 2 * DEPTH, NULL, NULL, 0);
	buf = calloc(1, SIZE);
	mr = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	if (!cq || !mr)
		die("set up: %s", strerror(errno));
	if (role) {
		xrcd = ibv_open_xrcd(ctx, &xa);
		struct ibv_srq_init_attr_ex sa = { .attr = { .max_wr = DEPTH, .max_sge = 1 },
						   .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
						   .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq };
		struct ibv_qp_init_attr_ex qa = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
		srq = xrcd ? ibv_create_srq_ex(ctx, &sa) : NULL;
		qp = srq ? ibv_create_qp_ex(ctx, &qa) : NULL;
		if (!qp || ibv_get_srq_num(srq, &mine.srqn))
			die("an XRC queue and QP: %s", strerror(errno));
	} else {
		struct ibv_qp_init_attr_ex qa = { .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD | (send_ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0), .pd = pd,
						  .send_cq = cq, .send_ops_flags = send_ops, .cap = { .max_send_wr = DEPTH, .max_send_sge = 3, .max_inline_data = 200 } };
		qp = ibv_create_qp_ex(ctx, &qa);
		if (!qp)
			die("an XRC send QP: %s", strerror(errno));
	}
}

void xrc_open(uint64_t send_ops, uint8_t timeout, uint8_t retry, uint8_t rnr_retry, int receives)
{
	make(send_ops);
	mine.qpn = qp->qp_num;
	mine.addr = (uintptr_t)buf;
	mine.rkey = mr->rkey;
	if (ibv_query_gid(ctx, 1, hosts_differ(), &mine.gid))
		die("ibv_query_gid");
	swap(&mine, &theirs, sizeof mine);
	modify((struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC },
	       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	modify((struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = theirs.qpn, .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
				     .ah_attr = { .is_global = 1, .grh = { .dgid = theirs.gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() }, .port_num = 1 } },
	       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | (role ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
	modify((struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = timeout, .retry_cnt = retry, .rnr_retry = rnr_retry, .max_rd_atomic = 4 },
	       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN | (role ? 0 : IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	for (int i = 1; role && i <= receives; i++) {
		struct ibv_sge sg = { (uintptr_t)buf + 1024 * (unsigned)i, 1024, mr->lkey };
		struct ibv_recv_wr w = { .wr_id = (uint64_t)i, .sg_list = &sg, .num_sge = 1 }, *bad;
		if (ibv_post_srq_recv(srq, &w, &bad))
			die("ibv_post_srq_recv");
	}
	meet();
}

void xrc_close(void)
{
	meet();
	int bad = ibv_destroy_qp(qp);
	if (role)
		bad |= ibv_destroy_srq(srq) | ibv_close_xrcd(xrcd);
	check_eq(bad | ibv_destroy_cq(cq) | ibv_dereg_mr(mr) | ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0, "all is destroyed");
	free(buf);
	meet();
}
