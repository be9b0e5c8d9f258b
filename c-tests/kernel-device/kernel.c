/* What kernel.h declares. */
#include "kernel.h"

void shell(const char *line)
{
	fflush(stdout);
	if (system(line))
		die("%s", line);
}

struct ibv_device *find(struct ibv_device **list, const char *name)
{
	for (; *list; list++)
		if (!strcmp(ibv_get_device_name(*list), name))
			return *list;
	return NULL;
}

struct ibv_context *open_named(const char *name)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	if (!list)
		die("ibv_get_device_list: %s", strerror(errno));
	struct ibv_device *device = find(list, name);
	if (!device)
		die("no %s among %d", name, n);
	struct ibv_context *ctx = ibv_open_device(device);
	if (!ctx)
		die("ibv_open_device(%s): %s", name, strerror(errno));
	ibv_free_device_list(list);
	return ctx;
}

void port_becomes(struct ibv_context *ctx, enum ibv_port_state wanted)
{
	struct ibv_port_attr attr;
	for (int i = 0; i < 500; i++) {
		if (ibv_query_port(ctx, 1, &attr))
			die("ibv_query_port: %s", strerror(errno));
		if (attr.state == wanted)
			break;
		usleep(10000);
	}
	printf("port: %s, physical state %d\n", ibv_port_state_str(attr.state), attr.phys_state);
}

void loop_open(struct loop *l, struct ibv_context *ctx, int with_srq)
{
	union ibv_gid gid;
	*l = (struct loop){ .ctx = ctx, .pd = ibv_alloc_pd(ctx), .cq = ibv_create_cq(ctx, 64, NULL, NULL, 0) };
	if (!l->pd || !l->cq || ibv_query_gid(ctx, 1, 0, &gid))
		die("objects: %s", strerror(errno));
	if (with_srq) {
		struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
		l->srq = ibv_create_srq(l->pd, &attr);
		if (!l->srq)
			die("ibv_create_srq: %s", strerror(errno));
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = l->cq,
			.recv_cq = l->cq,
			.srq = l->srq,
			.qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		l->qp[i] = ibv_create_qp(l->pd, &init);
		if (!l->qp[i])
			die("ibv_create_qp: %s", strerror(errno));
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
					    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
		if (ibv_modify_qp(l->qp[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
			die("INIT: %s", strerror(errno));
		attr = (struct ibv_qp_attr){
			.qp_state = IBV_QPS_RTR,
			.path_mtu = IBV_MTU_1024,
			.dest_qp_num = l->qp[1 - i]->qp_num,
			.max_dest_rd_atomic = 1,
			.min_rnr_timer = 12,
			.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 0, .hop_limit = 1 } },
		};
		if (ibv_modify_qp(l->qp[i], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
							   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
			die("RTR: %s", strerror(errno));
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
		if (ibv_modify_qp(l->qp[i], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
							   IBV_QP_MAX_QP_RD_ATOMIC))
			die("RTS: %s", strerror(errno));
	}
}

void loop_send(struct loop *l, struct ibv_mr *mr, void *from, uint32_t len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)from, .length = len, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	if (ibv_post_send(l->qp[0], &wr, &bad))
		die("ibv_post_send");
	struct ibv_wc wc[2];
	int got = 0;
	for (int i = 0; i < 5000 && got < 2; i++) {
		int n = ibv_poll_cq(l->cq, 2 - got, wc + got);
		if (n < 0)
			die("ibv_poll_cq");
		got += n;
		if (!n)
			usleep(1000);
	}
	if (got < 2)
		die("%d completions came", got);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc *w = wc[0].wr_id == (uint64_t)(i + 1) ? &wc[0] : &wc[1];
		printf("completion %d: %s, opcode %d\n", (int)w->wr_id, ibv_wc_status_str(w->status), w->opcode);
	}
}

void receive(struct loop *l, struct ibv_mr *mr, void *to, uint32_t len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)to, .length = len, .lkey = mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 };
	if (l->srq ? ibv_post_srq_recv(l->srq, &wr, &bad) : ibv_post_recv(l->qp[1], &wr, &bad))
		die("receive");
}

void loop_close(struct loop *l)
{
	for (int i = 0; i < 2; i++)
		if (l->qp[i])
			printf("ibv_destroy_qp: %d\n", ibv_destroy_qp(l->qp[i]));
	if (l->srq)
		printf("ibv_destroy_srq: %d\n", ibv_destroy_srq(l->srq));
	printf("ibv_destroy_cq: %d\n", ibv_destroy_cq(l->cq));
	printf("ibv_dealloc_pd: %d\n", ibv_dealloc_pd(l->pd));
}
