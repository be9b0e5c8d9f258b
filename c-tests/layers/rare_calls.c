/* Makes rare calls with arguments that are recognisable in the trace. The support of the device
 * makes no difference. */
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EACH(call) \
	do {       \
		if (call) \
			refused++; \
	} while (0)

static int refused;
static char memory[4096];

static void connections(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *found = NULL;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL;
	struct ibv_ece ece = { .vendor_id = 0x1234, .options = 0x5678 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	uint8_t tos = 8;
	int mask = 0, count = 0;

	EACH(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found));
	if (found)
		rdma_freeaddrinfo(found);
	EACH(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	EACH(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
	EACH(rdma_set_local_ece(id, &ece));
	EACH(rdma_init_qp_attr(id, &attr, &mask));
	EACH(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	struct ibv_context **list = rdma_get_devices(&count);
	if (list)
		rdma_free_devices(list);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_cq *cq = pd ? ibv_create_cq(context, 4, NULL, NULL, 0) : NULL;
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND) : NULL;
	if (!cq || !mr) {
		perror("a device");
		return 1;
	}

	struct ibv_td_init_attr of_td = { 0 };
	struct ibv_td *td = ibv_alloc_td(context, &of_td);
	struct ibv_parent_domain_init_attr of_domain = { .pd = pd, .td = td };
	struct ibv_pd *domain = ibv_alloc_parent_domain(context, &of_domain);
	EACH(domain && ibv_dealloc_pd(domain));
	EACH(td && ibv_dealloc_td(td));

	struct ibv_modify_cq_attr of_moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 11, 22 } };
	EACH(ibv_modify_cq(cq, &of_moderation));

	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .sl = 3, .grh = { .traffic_class = 44, .hop_limit = 55, .flow_label = 0x66 } };
	ibv_query_gid(context, 1, 0, &to.grh.dgid);
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	EACH(ah && ibv_destroy_ah(ah));

	struct ibv_xrcd_init_attr of_xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &of_xrcd);
	struct ibv_srq_init_attr_ex of_srq = { .attr = { .max_wr = 7, .max_sge = 1, .srq_limit = 2 }, .pd = pd, .xrcd = xrcd, .cq = cq, .srq_type = IBV_SRQT_XRC,
					       .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *srq = ibv_create_srq_ex(context, &of_srq);
	EACH(srq && ibv_destroy_srq(srq));
	struct ibv_qp_open_attr of_open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE, .qp_num = 0xabc, .xrcd = xrcd,
					    .qp_type = IBV_QPT_XRC_RECV };
	EACH(!ibv_open_qp(context, &of_open));
	EACH(xrcd && ibv_close_xrcd(xrcd));

	struct ibv_qp_init_attr_ex of_qp = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd, .cap = { 2, 2, 1, 1, 0 }, .sq_sig_all = 1,
					     .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_READ };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &of_qp);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .wr_id = 0x77, .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { .mr = mr, .addr = (uintptr_t)memory, .length = 88, .mw_access_flags = IBV_ACCESS_REMOTE_READ } };
	if (qp && mw)
		EACH(ibv_bind_mw(qp, mw, &bind));
	struct ibv_qp_attr of_path = { .qp_state = IBV_QPS_INIT, .ah_attr = { .sl = 4, .grh = { .traffic_class = 99 } }, .path_mig_state = IBV_MIG_REARM, .rate_limit = 1000 };
	EACH(qp && ibv_modify_qp(qp, &of_path, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MIG_STATE | IBV_QP_RATE_LIMIT));
	struct { struct ibv_flow_attr attr; struct ibv_flow_spec_eth eth; } flow = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(flow), .priority = 5, .num_of_specs = 1, .port = 1 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(flow.eth) },
	};
	struct ibv_flow *rule = qp ? ibv_create_flow(qp, &flow.attr) : NULL;
	EACH(rule && ibv_destroy_flow(rule));
	EACH(mw && ibv_dealloc_mw(mw));
	EACH(qp && ibv_destroy_qp(qp));

	struct ibv_wq_init_attr of_wq = { .wq_type = IBV_WQT_RQ, .max_wr = 13, .max_sge = 1, .pd = pd, .cq = cq };
	struct ibv_wq *wq = ibv_create_wq(context, &of_wq);
	EACH(wq && ibv_destroy_wq(wq));
	struct ibv_alloc_dm_attr of_dm = { .length = 64, .log_align_req = 6 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &of_dm);
	EACH(dm && ibv_free_dm(dm));
	EACH(ibv_dereg_mr(mr));
	EACH(ibv_destroy_cq(cq));
	EACH(ibv_dealloc_pd(pd));
	EACH(ibv_close_device(context));
	ibv_free_device_list(list);
	connections();
	printf("%d of them refused\n", refused);
	return 0;
}
