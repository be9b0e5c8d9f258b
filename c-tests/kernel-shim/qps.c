/* Queue pairs: creating, opening, changing, reading, destroying. */
#include "program.h"

static struct ibv_rwq_ind_table table;

static void classic(void)
{
	static REQUEST(ibv_create_qp) cmd;
	static REQUEST(ib_uverbs_create_qp_resp) resp;
	static const uint32_t types[] = {
		IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, IBV_QPT_DRIVER, 1,
	};

	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		struct ibv_qp_init_attr attr = {
			.qp_context = &table,
			.send_cq = &cq.cq,
			.recv_cq = &cq.cq,
			.srq = t % 2 ? &srq.srq : NULL,
			.cap = { 10, 11, 12, 13, 14 },
			.qp_type = types[t],
			.sq_sig_all = t % 3 == 0,
		};

		STALE(qp);
		FILL(cmd, 0x80);
		STALE(resp);
		CALL(ibv_cmd_create_qp(&pd, &qp.qp, &attr, &cmd.core, sizeof(cmd), &resp.core, sizeof(resp)));
		DUMP(qp);
		/* Without the padding at the end. */
		dump("attr", &attr, 60);
		DUMP_DRIVER(resp);
	}
}

static struct ibv_qp_init_attr_ex extended(uint32_t type, uint32_t mask, uint32_t flags)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_context = &table,
		.send_cq = &cq.cq,
		.recv_cq = &cq.cq,
		.srq = &srq.srq,
		.cap = { 20, 21, 22, 23, 24 },
		.qp_type = type,
		.sq_sig_all = 1,
		.comp_mask = mask,
		.pd = &pd,
		.xrcd = &xrcd.xrcd,
		.create_flags = flags,
		.max_tso_header = 5,
		.rwq_ind_tbl = &table,
		.source_qpn = 0xabc,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};

	return attr;
}

static void one_extended(int second, struct ibv_qp_init_attr_ex attr)
{
	static REQUEST(ibv_create_qp) cmd;
	static REQUEST(ib_uverbs_create_qp_resp) resp;
	static REQUEST(ibv_create_qp_ex) xcmd;
	static REQUEST(ib_uverbs_ex_create_qp_resp) xresp;
	static struct ibv_qp_init_attr_ex wish;

	wish = attr;
	shim_note("type %u mask %x flags %x", attr.qp_type, attr.comp_mask, attr.create_flags);
	STALE(qp);
	if (second) {
		FILL(xcmd, 0x81);
		STALE(xresp);
		CALL(ibv_cmd_create_qp_ex2(context, &qp, &wish, &xcmd.core, sizeof(xcmd), &xresp.core,
					   sizeof(xresp) SINCE_64(, NULL)));
		DUMP_DRIVER(xresp);
	} else {
		FILL(cmd, 0x82);
		STALE(resp);
		CALL(ibv_cmd_create_qp_ex(context, &qp, &wish, &cmd.core, sizeof(cmd.core), &resp.core, sizeof(resp.core)));
	}
	DUMP(qp);
	/* As far as the library writes. */
	dump("wish", &wish, 64);
}

void new_queue_pairs(void)
{
	static const uint32_t types[] = { IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, 7 };
	static const uint32_t masks[] = {
		0,
		IBV_QP_INIT_ATTR_PD,
		IBV_QP_INIT_ATTR_XRCD,
		IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD,
		IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER | IBV_QP_INIT_ATTR_RX_HASH,
		IBV_QP_INIT_ATTR_PD | 128,
	};
	static const uint32_t flags[] = {
		IBV_QP_CREATE_BLOCK_SELF_MCAST_LB | IBV_QP_CREATE_SCATTER_FCS,
		IBV_QP_CREATE_SOURCE_QPN,
		IBV_QP_CREATE_SOURCE_QPN | IBV_QP_CREATE_CVLAN_STRIPPING | IBV_QP_CREATE_PCI_WRITE_END_PADDING,
		1u << 31,
	};
	struct ibv_qp_init_attr_ex attr;

	table.context = context;
	table.ind_tbl_handle = 0x602;
	classic();
	for (int second = 0; second < 2; second++)
		for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
			for (size_t m = 0; m < sizeof(masks) / sizeof(masks[0]); m++)
				one_extended(second, extended(types[t], masks[m], 0));
	for (size_t f = 0; f < sizeof(flags) / sizeof(flags[0]); f++)
		one_extended(1, extended(IBV_QPT_RC, IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS, flags[f]));

	/* With an indirection table there is no receive queue. */
	attr = extended(IBV_QPT_RAW_PACKET, IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH, 0);
	one_extended(1, attr);
	attr.srq = NULL;
	one_extended(1, attr);
	attr.recv_cq = NULL;
	one_extended(1, attr);
	attr.cap.max_recv_wr = 0;
	one_extended(1, attr);
	attr.cap.max_recv_sge = 0;
	one_extended(1, attr);
	attr.cap.max_send_wr = 0;
	one_extended(1, attr);
	attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	attr.create_flags = IBV_QP_CREATE_SOURCE_QPN;
	one_extended(1, attr);
}

static void open_queue_pair(void)
{
	static REQUEST(ibv_open_qp) cmd;
	static REQUEST(ib_uverbs_create_qp_resp) resp;
	static const uint32_t masks[] = { 15, 11, 7, 14, 3, 31 };
	static const int sizes[] = { sizeof(struct verbs_qp), sizeof(struct ibv_qp), sizeof(struct verbs_qp) - 8 };

	for (size_t m = 0; m < sizeof(masks) / sizeof(masks[0]); m++) {
		struct ibv_qp_open_attr attr = {
			.comp_mask = masks[m],
			.qp_num = 0x77,
			.xrcd = &xrcd.xrcd,
			.qp_context = &table,
			.qp_type = IBV_QPT_XRC_RECV,
		};

		STALE(qp);
		FILL(cmd, 0x90);
		STALE(resp);
		CALL(ibv_cmd_open_qp(context, &qp, sizes[m % 3], &attr, &cmd.core, sizeof(cmd), &resp.core, sizeof(resp)));
		DUMP(qp);
		DUMP(resp);
	}
}

static struct ibv_qp_attr telling_attributes(void)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	for (size_t i = 0; i < sizeof(attr); i++)
		((unsigned char *)&attr)[i] = (unsigned char)(i + 1);
	return attr;
}

void queue_pairs(void)
{
	static REQUEST(ibv_modify_qp) cmd;
	static REQUEST(ibv_modify_qp_ex) xcmd;
	static REQUEST(ib_uverbs_ex_modify_qp_resp) xresp;
	static REQUEST(ibv_query_qp) qcmd;
	static struct ibv_qp_attr attr;
	static struct ibv_qp_init_attr init;
	static const int masks[] = { 0, 0xff, 0x1fffff, 0x1ffffff, 0x3ffffff, 0x4000000, -1 };

	open_queue_pair();
	memset(&qp, 0, sizeof(qp));
	qp.qp.context = context;
	qp.qp.handle = 0x601;
	qp.qp.qp_context = &init;
	qp.qp.send_cq = qp.qp.recv_cq = &cq.cq;
	qp.qp.srq = &srq.srq;
	qp.qp.qp_type = IBV_QPT_RC;
	attr = telling_attributes();

	for (int bit = 0; bit < 27; bit++) {
		FILL(cmd, 0x91);
		CALL(ibv_cmd_modify_qp(&qp.qp, &attr, 1 << bit, &cmd.core, sizeof(cmd)));
	}
	for (size_t m = 0; m < sizeof(masks) / sizeof(masks[0]); m++) {
		FILL(cmd, 0x92);
		CALL(ibv_cmd_modify_qp(&qp.qp, &attr, masks[m], &cmd.core, sizeof(cmd.core)));
		FILL(xcmd, 0x93);
		STALE(xresp);
		CALL(ibv_cmd_modify_qp_ex(&qp.qp, &attr, masks[m], &xcmd.core, sizeof(xcmd), &xresp.core, sizeof(xresp)));
		DUMP(xresp);
		/* The command of older plugins: without the rate limit, or ending with it. (A write
		 * cannot express the difference.) */
		for (size_t less = 8; knows_wrapper && less <= 8; less -= 4) {
			FILL(xcmd, 0x94);
			shim_note("less %zu", less);
			CALL(ibv_cmd_modify_qp_ex(&qp.qp, &attr, masks[m], &xcmd.core, sizeof(xcmd.core) - less, &xresp.core,
						  sizeof(xresp.core)));
		}
		STALE(attr);
		STALE(init);
		FILL(qcmd, 0x95);
		CALL(ibv_cmd_query_qp(&qp.qp, &attr, masks[m], &init, &qcmd.core, sizeof(qcmd)));
		DUMP(attr);
		DUMP(init);
		shim_note("  state %u", qp.qp.state);
		attr = telling_attributes();
	}
	CALL(ibv_cmd_destroy_qp(&qp.qp));
	qp.qp.events_completed = 6;
	shim_poke(0, 6);
	CALL(ibv_cmd_destroy_qp(&qp.qp));
}
