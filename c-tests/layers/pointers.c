/* Prints the file of each function that inline functions call, for a context, a QP and a CQ with
 * all options. Sends one message to itself, waits for its event, and closes the device. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show(const char *name, void *function)
{
	Dl_info info;
	const char *file = "nobody", *slash;
	if (function && dladdr(function, &info)) {
		file = info.dli_fname;
		slash = strrchr(file, '/');
		if (slash)
			file = slash + 1;
	}
	printf("%s %s\n", name, file);
}

static void want(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

/* The functions of an extended QP and an extended CQ that are set. */
static void show_objects(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_cq_init_attr_ex of_cq = { .cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &of_cq);
	want(cq != NULL, "ibv_create_cq_ex");
	struct ibv_qp_init_attr_ex of_qp = {
		.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .cap = { 2, 2, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_WRITE |
				  IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
				  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &of_qp);
	want(qp != NULL, "ibv_create_qp_ex");
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
#define OF(object, name) \
	if (object->name) \
		show(#name, (void *)object->name)
	OF(ex, wr_start);
	OF(ex, wr_complete);
	OF(ex, wr_abort);
	OF(ex, wr_send);
	OF(ex, wr_send_imm);
	OF(ex, wr_send_inv);
	OF(ex, wr_rdma_write);
	OF(ex, wr_rdma_write_imm);
	OF(ex, wr_rdma_read);
	OF(ex, wr_atomic_cmp_swp);
	OF(ex, wr_atomic_fetch_add);
	OF(ex, wr_local_inv);
	OF(ex, wr_bind_mw);
	OF(ex, wr_set_sge);
	OF(ex, wr_set_sge_list);
	OF(ex, wr_set_inline_data);
	OF(ex, wr_set_inline_data_list);
	OF(cq, start_poll);
	OF(cq, next_poll);
	OF(cq, end_poll);
	OF(cq, read_opcode);
	OF(cq, read_vendor_err);
	OF(cq, read_byte_len);
	OF(cq, read_imm_data);
	OF(cq, read_qp_num);
	OF(cq, read_src_qp);
	OF(cq, read_wc_flags);
	OF(cq, read_slid);
	OF(cq, read_sl);
	OF(cq, read_dlid_path_bits);
	OF(cq, read_completion_ts);
	want(!ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), "destroying");
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	want(list && list[0], "a device");
	struct ibv_context *context = ibv_open_device(list[0]);
	want(context != NULL, "ibv_open_device");
	show("post_send", (void *)context->ops.post_send);
	show("post_recv", (void *)context->ops.post_recv);
	show("post_srq_recv", (void *)context->ops.post_srq_recv);
	show("poll_cq", (void *)context->ops.poll_cq);
	show("req_notify_cq", (void *)context->ops.req_notify_cq);
	show("bind_mw", (void *)context->ops.bind_mw);
	show("create_qp_ex", (void *)verbs_get_ctx(context)->create_qp_ex);
	show("query_device_ex", (void *)verbs_get_ctx(context)->query_device_ex);

	struct ibv_pd *pd = ibv_alloc_pd(context);
	want(pd != NULL, "ibv_alloc_pd");
	show_objects(context, pd);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = channel ? ibv_create_cq(context, 4, NULL, channel, 0) : NULL;
	want(cq != NULL, "a CQ");
	want(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 2, 2, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	want(qp != NULL, "ibv_create_qp");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
	want(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	want(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	want(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1 };
	want(!ibv_query_gid(context, 1, 0, &to.grh.dgid), "ibv_query_gid");
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	want(ah != NULL, "ibv_create_ah");
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .wr.ud = { ah, qp->qp_num, 7 } }, *bad;
	want(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	struct ibv_cq *found;
	void *mine;
	if (ibv_get_cq_event(channel, &found, &mine))
		perror("ibv_get_cq_event");
	else
		ibv_ack_cq_events(found, 1);
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	want(n == 1 && wc.status == IBV_WC_SUCCESS, "the completion");
	want(!ibv_destroy_ah(ah) && !ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd), "destroying");
	want(!ibv_close_device(context), "ibv_close_device");
	ibv_free_device_list(list);
	return 0;
}
