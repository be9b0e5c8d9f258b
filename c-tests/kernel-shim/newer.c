/* Commands, and arguments of commands, that came after release 44. */
#include "program.h"

#if RELEASE >= 54
static void regions_with_attributes(void)
{
	STALE(mr);
	CALL(ibv_cmd_reg_dmabuf_mr(&pd, 1, 2, 3, 4, 5, &mr, driver_chain(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR)));
	dump("mr", &mr, 52);
	dump_chain();
}

static void queues_with_attributes(void)
{
	static REQUEST(ibv_create_cq_ex) cmd;
	static REQUEST(ib_uverbs_ex_create_cq_resp) resp;
	struct ibv_cq_init_attr_ex attr = { .cqe = 33, .comp_vector = 4 };

	STALE(cq);
	FILL(cmd, 0xa0);
	STALE(resp);
	CALL(ibv_cmd_create_cq_ex2(context, &attr SINCE_59(, NULL), &cq, &cmd.core, sizeof(cmd), &resp.core, sizeof(resp), 0,
				   driver_chain(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE)));
	dump("cq", &cq, 32);
	DUMP_DRIVER(resp);
	dump_chain();
	CALL(ibv_cmd_create_cq_ex2(context, &attr SINCE_59(, NULL), &cq, &cmd.core, sizeof(cmd), &resp.core, sizeof(resp), 0,
				   NULL));
}
#endif

#if RELEASE >= 65
static void queues_with_memory(void)
{
	static REQUEST(ibv_create_cq_ex) cmd;
	static REQUEST(ib_uverbs_ex_create_cq_resp) resp;
	static struct verbs_create_cq_prov_attr va = { .length = 0x1234, .ptr = memory };
	static struct verbs_create_cq_prov_attr dmabuf = { .length = 0x5678, .dmabuf = { 0x9abc, 7 } };
	struct ibv_cq_init_attr_ex attr = { .cqe = 33, .comp_vector = 4, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };

	for (uint32_t flags = 0; flags < 8; flags++) {
		STALE(cq);
		FILL(cmd, 0xa1);
		STALE(resp);
		CALL(ibv_cmd_create_cq_ex(context, &attr, flags == 2 || flags == 6 ? &va : flags >= 4 ? &dmabuf : NULL, &cq,
					  &cmd.core, sizeof(cmd), &resp.core, sizeof(resp), flags));
		dump("cq", &cq, 32);
	}
}

static void queue_pairs_with_attributes(void)
{
	static REQUEST(ibv_create_qp_ex) cmd;
	static REQUEST(ib_uverbs_ex_create_qp_resp) resp;
	static struct ibv_qp_init_attr_ex attr;

	attr.send_cq = attr.recv_cq = &cq.cq;
	attr.qp_type = IBV_QPT_RC;
	attr.comp_mask = IBV_QP_INIT_ATTR_PD;
	attr.pd = &pd;
	cq.cq.handle = 0x401;
	STALE(qp);
	FILL(cmd, 0xa2);
	STALE(resp);
	CALL(ibv_cmd_create_qp_ex2(context, &qp, &attr, &cmd.core, sizeof(cmd), &resp.core, sizeof(resp),
				   driver_chain(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE)));
	DUMP(qp);
	dump_chain();
	qp.qp.context = context;
	qp.qp.handle = 0x601;
}

static void dma_handles(void)
{
	static struct verbs_dmah dmah;

	for (uint32_t mask = 0; mask < 8; mask++) {
		struct ibv_dmah_init_attr attr = { mask, 0x11, 0x22, 1 };

		STALE(dmah);
		CALL(ibv_cmd_alloc_dmah(context, &dmah, &attr));
		DUMP(dmah);
	}
	dmah.context = context;
	dmah.handle = 0x901;
	for (uint64_t mask = 0; mask < 32; mask++) {
		static struct ibv_mr_init_attr attr;

		attr = (struct ibv_mr_init_attr){ .length = 0x500, .access = 7, .comp_mask = mask, .iova = 0x9999, .addr = memory,
						  .fd = 6, .fd_offset = 0x77, .dmah = &dmah };
		shim_note("mask %llx", (unsigned long long)mask);
		STALE(mr);
		CALL(ibv_cmd_reg_mr_ex(&pd, &mr, &attr));
		DUMP(mr);
		attr.access = IBV_ACCESS_ON_DEMAND;
		attr.length = SIZE_MAX;
		STALE(mr);
		CALL(ibv_cmd_reg_mr_ex(&pd, &mr, &attr));
		attr.addr = NULL;
		CALL(ibv_cmd_reg_mr_ex(&pd, &mr, &attr));
		DUMP(mr);
	}
	CALL(ibv_cmd_free_dmah(&dmah));
}

static void completion_counters(void)
{
	static struct ibv_comp_cntr counter;
	static struct ibv_comp_cntr_caps caps;
	static uint64_t value;

	STALE(counter);
	CALL(ibv_cmd_create_comp_cntr(context, &counter, NULL));
	DUMP(counter);
	STALE(counter);
	CALL(ibv_cmd_create_comp_cntr(context, &counter, driver_chain(OBJECT_COMP_CNTR, 0)));
	DUMP(counter);
	dump_chain();
	counter.context = context;
	counter.handle = 0x902;
	CALL(ibv_cmd_set_comp_cntr(&counter, 0x1122334455667788));
	CALL(ibv_cmd_set_err_comp_cntr(&counter, 1));
	CALL(ibv_cmd_inc_comp_cntr(&counter, 2));
	CALL(ibv_cmd_inc_err_comp_cntr(&counter, 3));
	STALE(value);
	CALL(ibv_cmd_read_comp_cntr(&counter, &value));
	DUMP(value);
	STALE(value);
	CALL(ibv_cmd_read_err_comp_cntr(&counter, &value));
	DUMP(value);
	for (uint32_t mask = 1; mask; mask <<= 3) {
		struct ibv_qp_attach_comp_cntr_attr attr = { 0, mask | mask >> 1 };

		CALL(ibv_cmd_qp_attach_comp_cntr(&qp.qp, &counter, &attr));
	}
	STALE(caps);
	CALL(ibv_cmd_query_comp_cntr_caps(context, &caps, sizeof(caps)));
	DUMP(caps);
	CALL(ibv_cmd_query_comp_cntr_caps(context, &caps, sizeof(caps) - 1));
	CALL(ibv_cmd_destroy_comp_cntr(&counter));
}

static void exports(void)
{
	static uint64_t speed;
	int fd = CALL(ibv_cmd_export_dmabuf_fd(context, 0x123000));

	shim_note("  %s", fd < 0 ? "none" : "a descriptor");
	STALE(speed);
	CALL(ibv_cmd_query_port_speed(context, 3, &speed));
	DUMP(speed);
}
#endif

void newer(void)
{
#if RELEASE >= 54
	regions_with_attributes();
	queues_with_attributes();
#endif
#if RELEASE >= 65
	queues_with_memory();
	queue_pairs_with_attributes();
	dma_handles();
	completion_counters();
	exports();
#endif
}
