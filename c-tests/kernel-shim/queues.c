/* Completion queues, shared receive queues and work queues. */
#include <pthread.h>

#include "program.h"

/* Acknowledges events one by one, as an application's event thread does. */
static void *acknowledge(void *events)
{
	for (int i = 0; i < *(int *)events; i++)
		ibv_ack_cq_events(&cq.cq, 1);
	return NULL;
}

void completion_queues(void)
{
	static REQUEST(ibv_create_cq) cmd;
	static REQUEST(ib_uverbs_create_cq_resp) resp;
	static REQUEST(ibv_create_cq_ex) xcmd;
	static REQUEST(ib_uverbs_ex_create_cq_resp) xresp;
	static REQUEST(ibv_resize_cq) rcmd;
	static REQUEST(ib_uverbs_resize_cq_resp) rresp;
	static REQUEST(ibv_modify_cq) mcmd;
	static struct ibv_modify_cq_attr mattr = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 7, 9 } };
	static struct ibv_wc wc[3];
	static const struct { uint64_t wc_flags; uint32_t comp_mask, flags, cmd_flags; } ways[] = {
		{ 0, 0, 0, 0 },
		{ IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, 0, 0, 0 },
		{ IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, 0, 0, CREATE_CQ_CMD_FLAGS_TS_IGNORED_EX },
		{ IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, 1, 3, CREATE_CQ_CMD_FLAGS_TS_IGNORED_EX },
		{ 0, 1, 2, 0 },
		{ 0, 0, 2, 0 },
		{ 0, 2, 1, 0 },
		{ 0, 4, 0, 0 },
	};
	struct ibv_comp_channel *channel;

	shim_note("channel");
	channel = ibv_create_comp_channel(context);
	shim_note("  %s", channel ? "made" : "none");

	STALE(cq);
	FILL(cmd, 0x50);
	STALE(resp);
	CALL(ibv_cmd_create_cq(context, 100, NULL, 2, &cq.cq, &cmd.core, sizeof(cmd.core), &resp.core,
			       sizeof(resp.core)));
	DUMP(cq);
	STALE(cq);
	FILL(cmd, 0x51);
	STALE(resp);
	CALL(ibv_cmd_create_cq(context, -1, channel, -1, &cq.cq, &cmd.core, sizeof(cmd), &resp.core, sizeof(resp)));
	DUMP(cq);
	DUMP_DRIVER(resp);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct ibv_cq_init_attr_ex attr = {
			.cqe = 33,
			.channel = i % 2 ? channel : NULL,
			.comp_vector = 4,
			.wc_flags = ways[i].wc_flags,
			.comp_mask = ways[i].comp_mask,
			.flags = ways[i].flags,
			.parent_domain = &pd,
		};

		STALE(cq);
		FILL(xcmd, 0x52);
		STALE(xresp);
		CALL(ibv_cmd_create_cq_ex(context, &attr SINCE_59(, NULL), &cq, &xcmd.core, sizeof(xcmd), &xresp.core, sizeof(xresp),
					  ways[i].cmd_flags));
		dump("cq", &cq, 32);
		DUMP_DRIVER(xresp);
	}

	verbs_init_cq(&cq.cq, context, channel, &cq);
	shim_note("channel of the queue %s", cq.cq.channel == channel ? "set" : "other");
	cq.cq.channel = NULL;
	cq.cq.handle = 0x401;
	cq.cq.cqe = 63;
	FILL(rcmd, 0x53);
	STALE(rresp);
	CALL(ibv_cmd_resize_cq(&cq.cq, 200, &rcmd.core, sizeof(rcmd), &rresp.core, sizeof(rresp)));
	dump("cq", &cq, 32);
	DUMP(rresp);
	/* rdma-core's form of the request ends before the padding of ours. */
	FILL(rcmd, 0x54);
	CALL(ibv_cmd_resize_cq(&cq.cq, 201, &rcmd.core, sizeof(rcmd.core), &rresp.core, sizeof(rresp.core)));
	FILL(mcmd, 0x55);
	CALL(ibv_cmd_modify_cq(&cq.cq, &mattr, &mcmd.core, sizeof(mcmd)));
	mattr.attr_mask = 2;
	CALL(ibv_cmd_modify_cq(&cq.cq, &mattr, &mcmd.core, sizeof(mcmd)));
	CALL(ibv_cmd_req_notify_cq(&cq.cq, 0));
	CALL(ibv_cmd_req_notify_cq(&cq.cq, 5));
	for (uint32_t count = 0; count < 4; count++) {
		STALE(wc);
		shim_poke(0, count);
		CALL(ibv_cmd_poll_cq(&cq.cq, 3, wc));
		DUMP(wc);
	}
	CALL(ibv_cmd_destroy_cq(&cq.cq));

	/* As many events as the kernel says were acknowledged before. */
	cq.cq.comp_events_completed = 3;
	cq.cq.async_events_completed = 1;
	shim_poke(0, 3);
	shim_poke(4, 1);
	CALL(ibv_cmd_destroy_cq(&cq.cq));

	/* And now some are outstanding: the call returns when the last one is acknowledged. */
	{
		static int events = 5;
		pthread_t thread;

		cq.cq.comp_events_completed = cq.cq.async_events_completed = 0;
		shim_poke(0, (uint32_t)events);
		pthread_create(&thread, NULL, acknowledge, &events);
		CALL(ibv_cmd_destroy_cq(&cq.cq));
		pthread_join(thread, NULL);
		shim_note("acknowledged %u", cq.cq.comp_events_completed);
	}
	if (channel) {
		shim_note("users %d", channel->refcnt);
		shim_note("ibv_destroy_comp_channel = %d", ibv_destroy_comp_channel(channel));
		channel->refcnt = 0;
		shim_note("ibv_destroy_comp_channel = %d", ibv_destroy_comp_channel(channel));
	}
	verbs_init_cq(&cq.cq, context, NULL, &cq);
}

void shared_receive_queues(void)
{
	static REQUEST(ibv_create_srq) cmd;
	static REQUEST(ib_uverbs_create_srq_resp) resp;
	static REQUEST(ibv_create_xsrq) xcmd;
	static REQUEST(ibv_modify_srq) mcmd;
	static REQUEST(ibv_query_srq) qcmd;
	static struct ibv_srq_init_attr attr;
	static struct ibv_srq_attr sattr = { .max_wr = 17, .max_sge = 18, .srq_limit = 19 };
	static const struct { uint32_t type, comp_mask, tags; } ways[] = {
		{ IBV_SRQT_BASIC, IBV_SRQ_INIT_ATTR_PD, 0 },
		{ IBV_SRQT_XRC, IBV_SRQ_INIT_ATTR_PD, 0 },
		{ IBV_SRQT_BASIC, IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_CQ, 0 },
		{ IBV_SRQT_XRC, IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_CQ, 0 },
		{ IBV_SRQT_XRC, IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD, 0 },
		{ IBV_SRQT_XRC, IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		  0 },
		{ IBV_SRQT_TM, IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_TM, 5 },
		{ IBV_SRQT_TM, IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_TM | IBV_SRQ_INIT_ATTR_CQ, 0 },
		{ IBV_SRQT_TM, IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_TM | IBV_SRQ_INIT_ATTR_CQ, 5 },
		{ 9, IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE, 0 },
		{ IBV_SRQT_BASIC, IBV_SRQ_INIT_ATTR_TYPE, 0 },
		{ IBV_SRQT_BASIC, IBV_SRQ_INIT_ATTR_PD | 32, 0 },
	};

	STALE(srq);
	STALE(attr);
	attr.attr = sattr;
	FILL(cmd, 0x60);
	STALE(resp);
	CALL(ibv_cmd_create_srq(&pd, &srq.srq, &attr, &cmd.core, sizeof(cmd), &resp.core, sizeof(resp)));
	/* The PD is set by newer releases only; ibv_create_srq sets it in all. */
	srq.srq.pd = NULL;
	DUMP(srq);
	dump("attr", &attr, 20);
	DUMP_DRIVER(resp);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct ibv_srq_init_attr_ex ex = {
			.attr = sattr,
			.comp_mask = ways[i].comp_mask,
			.srq_type = ways[i].type,
			.pd = &pd,
			.xrcd = &xrcd.xrcd,
			.cq = &cq.cq,
			.tm_cap = { ways[i].tags, 6 },
		};

		/* rdma-core 44 crashes on these with write commands only: it follows a missing XRC
		 * domain. */
		if (!knows_methods && ways[i].type != IBV_SRQT_BASIC &&
		    (ways[i].type != IBV_SRQT_XRC || !(ways[i].comp_mask & IBV_SRQ_INIT_ATTR_TYPE)))
			continue;
		STALE(srq);
		FILL(xcmd, 0x61);
		STALE(resp);
		CALL(ibv_cmd_create_srq_ex(context, &srq, &ex, &xcmd.core, sizeof(xcmd), &resp.core, sizeof(resp)));
		srq.srq.pd = NULL;
		DUMP(srq);
		/* Up to the padding. */
		dump("ex", &ex, 28);
		DUMP_DRIVER(resp);
	}

	srq.srq.context = context;
	srq.srq.handle = 0x501;
	srq.srq.events_completed = 0;
	FILL(mcmd, 0x62);
	CALL(ibv_cmd_modify_srq(&srq.srq, &sattr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT, &mcmd.core, sizeof(mcmd)));
	FILL(qcmd, 0x63);
	STALE(sattr);
	CALL(ibv_cmd_query_srq(&srq.srq, &sattr, &qcmd.core, sizeof(qcmd)));
	DUMP(sattr);
	CALL(ibv_cmd_destroy_srq(&srq.srq));
	srq.srq.events_completed = 9;
	shim_poke(0, 9);
	CALL(ibv_cmd_destroy_srq(&srq.srq));
}

void work_queues(void)
{
	static struct ibv_wq wq, second;
	static struct ibv_rwq_ind_table table;
	static REQUEST(ibv_create_wq) cmd;
	static REQUEST(ib_uverbs_ex_create_wq_resp) resp;
	static REQUEST(ibv_modify_wq) mcmd;
	static REQUEST(ib_uverbs_ex_create_rwq_ind_table_resp) tresp;
	static struct ibv_wq *wqs[4];
	static const uint32_t masks[] = { 0, 1, 1, 2 }, flags[] = { 8, 5, 16, 0 };
	struct ibv_rwq_ind_table_init_attr tattr = { .log_ind_tbl_size = 0, .ind_tbl = wqs };

	for (size_t i = 0; i < 4; i++) {
		struct ibv_wq_init_attr attr = {
			.wq_context = &wq,
			.wq_type = IBV_WQT_RQ,
			.max_wr = 21,
			.max_sge = 22,
			.pd = &pd,
			.cq = &cq.cq,
			.comp_mask = masks[i],
			.create_flags = flags[i],
		};

		STALE(wq);
		FILL(cmd, 0x70);
		STALE(resp);
		CALL(ibv_cmd_create_wq(context, &attr, &wq, &cmd.core, sizeof(cmd), &resp.core, sizeof(resp)));
		DUMP(wq);
		/* Up to the padding. */
		dump("attr", &attr, 20);
		DUMP_DRIVER(resp);
	}
	memset(&wq, 0, sizeof(wq));
	wq.context = context;
	wq.handle = 0x502;
	second.handle = 0x503;
	for (uint32_t mask = 0; mask < 9; mask++) {
		struct ibv_wq_attr attr = { mask, IBV_WQS_RDY, IBV_WQS_RESET, 3, 7 };

		FILL(mcmd, 0x71);
		CALL(ibv_cmd_modify_wq(&wq, &attr, &mcmd.core, sizeof(mcmd)));
		shim_note("  state %u", wq.state);
	}
	wqs[0] = wqs[2] = wqs[3] = &wq;
	wqs[1] = &second;
	for (uint32_t log = 0; log < 3; log++) {
		tattr.log_ind_tbl_size = log;
		STALE(table);
		STALE(tresp);
		CALL(ibv_cmd_create_rwq_ind_table(context, &tattr, &table, &tresp.core, sizeof(tresp.core)));
		DUMP(table);
	}
	/* A short answer; rdma-core 44 crashes on it with write commands. */
	if (knows_wrapper)
		CALL(ibv_cmd_create_rwq_ind_table(context, &tattr, &table, &tresp.core, 12));
	tattr.comp_mask = 1;
	CALL(ibv_cmd_create_rwq_ind_table(context, &tattr, &table, &tresp.core, sizeof(tresp.core)));
	table.context = context;
	table.ind_tbl_handle = 0x602;
	CALL(ibv_cmd_destroy_rwq_ind_table(&table));
	CALL(ibv_cmd_destroy_wq(&wq));
	wq.events_completed = 4;
	/* By the form of the answer: the ioctl's and the write command's. */
	shim_poke(0, 4);
	shim_poke(8, 4);
	CALL(ibv_cmd_destroy_wq(&wq));
}
