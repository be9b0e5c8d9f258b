/*
 * Calls each inline function of verbs.h on a device, and prints the effects that are equal in each
 * run. Builds with upstream's headers and with Ferroverbs', in C and in C++; the output over one
 * library must be equal. An unsupported verb shows its errno.
 *
 * Map of this file: `INT` and `PTR` print a call and its result; `device` queries device, port,
 * GIDs and clock. `memory` creates memory regions, windows, device memory and parent domains.
 * `completions` polls by the iterator of an extended CQ; `pair` connects two RC QPs and transfers
 * data. `queues` creates SRQs, XRC domains, work queues, a raw packet QP, flows, counters and flow
 * actions. `main` opens the first device and calls these functions in order.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 4096

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static unsigned char *data;
static struct ibv_mr *mr;

static void said(const char *what, int error)
{
	printf("%s: %s\n", what, error ? strerror(error) : "ok");
}

#define INT(call) said(#call, (call))
/* Keeps the object that a call returns, and prints whether the call returned one. */
#define PTR(variable, call) (errno = 0, (variable) = (call), said(#call, (variable) ? 0 : errno ? errno : -1), (variable) != NULL)

static void need(int ok, const char *what)
{
	if (!ok) {
		printf("no %s: %s\n", what, strerror(errno));
		exit(2);
	}
}

/* ---- device and port ---- */

static void device(void)
{
	struct ibv_device_attr_ex attr, part;
	struct ibv_query_device_ex_input input;
	struct verbs_context *vctx = verbs_get_ctx_op(ctx, query_device_ex);
	/* Attribute sizes that programs of older releases ask for: up to the classic attributes, to
	 * odp_caps, and so on. */
	const size_t sizes[] = { offsetof(struct ibv_device_attr_ex, comp_mask), offsetof(struct ibv_device_attr_ex, odp_caps),
				 offsetof(struct ibv_device_attr_ex, completion_timestamp_mask), offsetof(struct ibv_device_attr_ex, tso_caps),
				 offsetof(struct ibv_device_attr_ex, tm_caps), offsetof(struct ibv_device_attr_ex, max_dm_size),
				 offsetof(struct ibv_device_attr_ex, phys_port_cnt_ex), sizeof(attr), 8 };

	/* Padding follows the last member of ibv_device_attr; its content is undefined. */
	const size_t classic = offsetof(struct ibv_device_attr, phys_port_cnt) + sizeof(attr.orig_attr.phys_port_cnt);

	memset(&input, 0, sizeof(input));
	INT(ibv_query_device_ex(ctx, &input, &attr));
	printf("qps %d, sges %d, page sizes %llx, flags %x %llx\n", attr.orig_attr.max_qp, attr.orig_attr.max_sge,
	       (unsigned long long)attr.orig_attr.page_size_cap, attr.orig_attr.device_cap_flags, (unsigned long long)attr.device_cap_flags_ex);
	printf("odp %llx %x, clock %llu mask %llx\n", (unsigned long long)attr.odp_caps.general_caps, attr.odp_caps.per_transport_caps.rc_odp_caps,
	       (unsigned long long)attr.hca_core_clock, (unsigned long long)attr.completion_timestamp_mask);
	printf("tso %u for %x, rss %x, wqs %u, raw %x, tags %u, moderation %u, dm %llu, atomics %x, ports %u\n", attr.tso_caps.max_tso,
	       attr.tso_caps.supported_qpts, attr.rss_caps.supported_qpts, attr.max_wq_type_rq, attr.raw_packet_caps, attr.tm_caps.max_num_tags,
	       attr.cq_mod_caps.max_cq_count, (unsigned long long)attr.max_dm_size, attr.pci_atomic_caps.fetch_add, attr.phys_port_cnt_ex);
	for (int type = 0; type < 16; type++)
		printf("%d", ibv_is_qpt_supported(attr.tso_caps.supported_qpts, (enum ibv_qp_type)type));
	putchar('\n');
	input.comp_mask = 1;
	INT(ibv_query_device_ex(ctx, &input, &attr));
	for (size_t i = 0; vctx && i < sizeof(sizes) / sizeof(*sizes); i++) {
		memset(&part, 0xee, sizeof(part));
		int error = vctx->query_device_ex(ctx, NULL, &part, sizes[i]);
		size_t beyond = 0;
		for (size_t at = sizes[i]; at < sizeof(part); at++)
			beyond += ((unsigned char *)&part)[at] != 0xee;
		printf("%zu bytes: %s, the same: %d, beyond: %zu\n", sizes[i], error ? strerror(error) : "ok",
		       !error && memcmp(&part.orig_attr, &attr.orig_attr, sizes[i] < classic ? sizes[i] : classic) == 0, beyond);
	}

	struct ibv_port_attr port;
	memset(&port, 0xee, sizeof(port));
	INT(ibv_query_port(ctx, 1, &port));
	printf("port: state %d, mtu %d of %d, layer %d, flags %x, caps %x %x, gids %d\n", port.state, port.active_mtu, port.max_mtu, port.link_layer,
	       port.flags, port.port_cap_flags, port.port_cap_flags2, port.gid_tbl_len > 0);
	INT(ibv_query_port(ctx, 99, &port));

	struct ibv_gid_entry entry, entries[64];
	INT(ibv_query_gid_ex(ctx, 1, 0, &entry, 0));
	printf("gid type %u, index %u, port %u\n", entry.gid_type, entry.gid_index, entry.port_num);
	INT(ibv_query_gid_ex(ctx, 1, 0, &entry, 1));
	ssize_t count = ibv_query_gid_table(ctx, entries, 64, 0);
	printf("gids: %d, first the same: %d\n", count > 0, count > 0 && memcmp(&entries[0].gid, &entry.gid, 16) == 0);

	struct ibv_values_ex values;
	memset(&values, 0, sizeof(values));
	values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
	INT(ibv_query_rt_values_ex(ctx, &values));
	printf("clock: %x\n", values.comp_mask);
}

/* ---- memory ---- */

static void memory(void)
{
	struct ibv_mr *other;
	int flags = IBV_ACCESS_LOCAL_WRITE;	/* not known to the compiler */
	volatile int optional = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;

	if (PTR(other, ibv_reg_mr(pd, data, SIZE, flags)))
		INT(ibv_dereg_mr(other));
	if (PTR(other, ibv_reg_mr(pd, data, SIZE, optional)))
		INT(ibv_dereg_mr(other));
	if (PTR(other, ibv_reg_mr(pd, data, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING)))
		INT(ibv_dereg_mr(other));
	if (PTR(other, ibv_reg_mr(pd, data, SIZE, IBV_ACCESS_REMOTE_WRITE)))
		INT(ibv_dereg_mr(other));
	if (PTR(other, ibv_reg_mr_iova(pd, data, SIZE, (uintptr_t)data, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)))
		INT(ibv_dereg_mr(other));
	if (PTR(other, ibv_reg_mr_iova(pd, data, SIZE, (uintptr_t)data, optional)))
		INT(ibv_dereg_mr(other));
	if (PTR(other, ibv_alloc_null_mr(pd)))
		INT(ibv_dereg_mr(other));

	struct ibv_sge sge = { (uintptr_t)data, SIZE, mr->lkey };
	INT(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));

	struct ibv_mw *mw;
	for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++)
		if (PTR(mw, ibv_alloc_mw(pd, (enum ibv_mw_type)type)))
			INT(ibv_dealloc_mw(mw));

	struct ibv_alloc_dm_attr attr;
	struct ibv_dm *dm;
	memset(&attr, 0, sizeof(attr));
	attr.length = 256;
	if (PTR(dm, ibv_alloc_dm(ctx, &attr))) {
		char out[8] = "1234567", in[8] = "";
		INT(ibv_memcpy_to_dm(dm, 16, out, sizeof(out)));
		INT(ibv_memcpy_from_dm(in, dm, 16, sizeof(in)));
		printf("copied: %s\n", in);
		if (PTR(other, ibv_reg_dm_mr(pd, dm, 0, 256, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE)))
			INT(ibv_dereg_mr(other));
		INT(ibv_free_dm(dm));
	}

	struct ibv_td_init_attr td_attr;
	struct ibv_parent_domain_init_attr domain_attr;
	struct ibv_td *td;
	struct ibv_pd *domain;
	memset(&td_attr, 0, sizeof(td_attr));
	memset(&domain_attr, 0, sizeof(domain_attr));
	if (PTR(td, ibv_alloc_td(ctx, &td_attr))) {
		domain_attr.pd = pd;
		domain_attr.td = td;
		if (PTR(domain, ibv_alloc_parent_domain(ctx, &domain_attr)))
			INT(ibv_dealloc_pd(domain));
		INT(ibv_dealloc_td(td));
	}
	domain_attr.pd = NULL;
	(void)PTR(domain, ibv_alloc_parent_domain(ctx, &domain_attr));
}

/* ---- a connected pair ---- */

struct side {
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;
	struct ibv_qp_ex *qpx;
};

static struct side sides[2];

static int open_side(struct side *side)
{
	struct ibv_cq_init_attr_ex cq_attr;
	struct ibv_qp_init_attr_ex attr;

	memset(&cq_attr, 0, sizeof(cq_attr));
	cq_attr.cqe = 64;
	cq_attr.wc_flags = IBV_WC_STANDARD_FLAGS;
	if (!PTR(side->cq, ibv_create_cq_ex(ctx, &cq_attr)))
		return 0;
	memset(&attr, 0, sizeof(attr));
	attr.qp_type = IBV_QPT_RC;
	attr.send_cq = ibv_cq_ex_to_cq(side->cq);
	attr.recv_cq = ibv_cq_ex_to_cq(side->cq);
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 32;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 4;
	attr.cap.max_inline_data = 64;
	attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.pd = pd;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
			      IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	if (!PTR(side->qp, ibv_create_qp_ex(ctx, &attr))) {
		attr.comp_mask = IBV_QP_INIT_ATTR_PD;
		if (!PTR(side->qp, ibv_create_qp_ex(ctx, &attr)))
			return 0;
	}
	side->qpx = ibv_qp_to_qp_ex(side->qp);
	printf("builder: %d\n", side->qpx != NULL);
	return 1;
}

static void connect_side(struct side *side, struct side *peer)
{
	struct ibv_gid_entry gid;
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	INT(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	need(ibv_query_gid_ex(ctx, 1, 0, &gid, 0) == 0, "GID");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer->qp->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = gid.gid;
	attr.ah_attr.grh.hop_limit = 1;
	attr.ah_attr.port_num = 1;
	INT(ibv_modify_qp(side->qp, &attr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	INT(ibv_modify_qp(side->qp, &attr,
			  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Completions by the iterator. The loop polls the peer as well, because the peer may have to move
 * data. */
static void completions(int which, int wanted)
{
	struct ibv_poll_cq_attr attr;
	struct ibv_cq_ex *cq = sides[which].cq;
	struct ibv_wc wc;

	memset(&attr, 0, sizeof(attr));
	for (long tries = 0; wanted > 0 && tries < 200000000; tries++) {
		if (ibv_start_poll(cq, &attr))
			continue;
		int more;
		do {
			printf("  side %d: wr %llu, status %d", which, (unsigned long long)cq->wr_id, cq->status);
			if (cq->status == IBV_WC_SUCCESS) {
				enum ibv_wc_opcode opcode = ibv_wc_read_opcode(cq);
				unsigned int flags = ibv_wc_read_wc_flags(cq);
				printf(", opcode %d, flags %x, vendor %u, own qp %d", opcode, flags, ibv_wc_read_vendor_err(cq),
				       ibv_wc_read_qp_num(cq) == sides[which].qp->qp_num);
				if (opcode & IBV_WC_RECV || opcode == IBV_WC_RDMA_READ)
					printf(", %u bytes", ibv_wc_read_byte_len(cq));
				if (flags & IBV_WC_WITH_IMM)
					printf(", imm %x", (unsigned)ibv_wc_read_imm_data(cq));
				if (opcode & IBV_WC_RECV)
					printf(", sl %u, path bits %u", ibv_wc_read_sl(cq), ibv_wc_read_dlid_path_bits(cq));
			}
			putchar('\n');
			wanted--;
			more = ibv_next_poll(cq);
		} while (!more);
		ibv_end_poll(cq);
	}
	if (wanted > 0)
		printf("  side %d: %d completions are missing\n", which, wanted);
	printf("  and by ibv_poll_cq: %d\n", ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc));
}

static void receive(int which, uint64_t id, size_t at, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)data + at, length, mr->lkey };
	struct ibv_recv_wr wr, *bad;

	memset(&wr, 0, sizeof(wr));
	wr.wr_id = id;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	INT(ibv_post_recv(sides[which].qp, &wr, &bad));
}

static void pair(void)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge = { (uintptr_t)data, 100, mr->lkey };

	if (!open_side(&sides[0]) || !open_side(&sides[1]))
		return;
	connect_side(&sides[0], &sides[1]);
	connect_side(&sides[1], &sides[0]);
	for (int i = 0; i < SIZE; i++)
		data[i] = (unsigned char)i;

	/* The unions of a request, each by its members' names. */
	receive(1, 10, 1024, 512);
	memset(&wr, 0, sizeof(wr));
	wr.wr_id = 1;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_SEND_WITH_IMM;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.imm_data = 0x11223344;
	INT(ibv_post_send(sides[0].qp, &wr, &bad));
	completions(1, 1);
	completions(0, 1);
	wr.wr_id = 2;
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = (uintptr_t)data + 2048;
	wr.wr.rdma.rkey = mr->rkey;
	INT(ibv_post_send(sides[0].qp, &wr, &bad));
	completions(0, 1);
	wr.wr_id = 3;
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	sge.length = 8;
	sge.addr = (uintptr_t)data + 3072;
	memset(&wr.wr, 0, sizeof(wr.wr));
	wr.wr.atomic.remote_addr = (uintptr_t)data + 2048;
	wr.wr.atomic.compare_add = 1;
	wr.wr.atomic.rkey = mr->rkey;
	INT(ibv_post_send(sides[0].qp, &wr, &bad));
	completions(0, 1);
	printf("data: %d %d, %02x%02x\n", memcmp(data, data + 1024, 100), memcmp(data + 8, data + 2056, 92), data[2048], data[3072]);

	/* The same operations by the functions ibv_wr_*. */
	struct ibv_qp_ex *qp = sides[0].qpx;
	if (qp) {
		struct ibv_sge list[2] = { { (uintptr_t)data, 10, mr->lkey }, { (uintptr_t)data + 100, 20, mr->lkey } };
		struct ibv_data_buf bufs[2] = { { data, 3 }, { data + 10, 4 } };
		char text[] = "inline";

		for (int i = 0; i < 4; i++)
			receive(1, 20 + (uint64_t)i, 1024 + 64 * (size_t)i, 64);
		ibv_wr_start(qp);
		qp->wr_flags = IBV_SEND_SIGNALED;
		qp->wr_id = 30;
		ibv_wr_send(qp);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)data, 33);
		qp->wr_id = 31;
		ibv_wr_send_imm(qp, 0x55667788);
		ibv_wr_set_sge_list(qp, 2, list);
		qp->wr_id = 32;
		ibv_wr_send(qp);
		ibv_wr_set_inline_data(qp, text, sizeof(text));
		qp->wr_id = 33;
		ibv_wr_send(qp);
		ibv_wr_set_inline_data_list(qp, 2, bufs);
		INT(ibv_wr_complete(qp));
		completions(1, 4);
		completions(0, 4);
		printf("data: %.6s %d %d\n", data + 1024 + 128, data[1024 + 64 + 29], data[1024 + 192 + 6]);
		receive(1, 24, 1024, 64);
		ibv_wr_start(qp);
		qp->wr_id = 40;
		ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)data + 2560);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)data, 16);
		qp->wr_id = 41;
		ibv_wr_rdma_write_imm(qp, mr->rkey, (uintptr_t)data + 2576, 7);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)data, 16);
		qp->wr_id = 42;
		ibv_wr_rdma_read(qp, mr->rkey, (uintptr_t)data + 2560);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)data + 3072, 32);
		qp->wr_id = 43;
		ibv_wr_atomic_cmp_swp(qp, mr->rkey, (uintptr_t)data + 2560, 0, 1);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)data + 3200, 8);
		qp->wr_id = 44;
		ibv_wr_atomic_fetch_add(qp, mr->rkey, (uintptr_t)data + 2568, 1);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)data + 3208, 8);
		INT(ibv_wr_complete(qp));
		completions(1, 1);
		completions(0, 5);
		printf("data: %d %02x %02x\n", memcmp(data + 2576, data + 3088, 16), data[3200], data[3208]);
		ibv_wr_start(qp);
		qp->wr_id = 50;
		ibv_wr_send(qp);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)data, 1);
		ibv_wr_abort(qp);
		printf("aborted\n");
		completions(0, 0);
	}
	struct ibv_modify_cq_attr moderate;
	memset(&moderate, 0, sizeof(moderate));
	moderate.attr_mask = IBV_CQ_ATTR_MODERATE;
	moderate.moderate.cq_count = 1;
	INT(ibv_modify_cq(ibv_cq_ex_to_cq(sides[0].cq), &moderate));
	INT(ibv_req_notify_cq(ibv_cq_ex_to_cq(sides[0].cq), 0));
	struct ibv_qp_rate_limit_attr rate;
	memset(&rate, 0, sizeof(rate));
	INT(ibv_modify_qp_rate_limit(sides[0].qp, &rate));
	for (int i = 0; i < 2; i++) {
		INT(ibv_destroy_qp(sides[i].qp));
		INT(ibv_destroy_cq(ibv_cq_ex_to_cq(sides[i].cq)));
	}
}

/* ---- shared receive queues, work queues, and objects of raw packets ---- */

static void queues(void)
{
	struct ibv_srq_init_attr_ex attr;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_xrcd *xrcd = NULL;
	struct ibv_xrcd_init_attr xrcd_attr;
	struct ibv_sge sge = { (uintptr_t)data, 64, mr->lkey };
	struct ibv_recv_wr wr, *bad;
	uint32_t number;

	need(PTR(cq, ibv_create_cq(ctx, 16, NULL, NULL, 0)), "CQ");
	memset(&xrcd_attr, 0, sizeof(xrcd_attr));
	xrcd_attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	xrcd_attr.fd = -1;
	xrcd_attr.oflags = 0100;	/* O_CREAT */
	(void)PTR(xrcd, ibv_open_xrcd(ctx, &xrcd_attr));
	for (int type = IBV_SRQT_BASIC; type <= IBV_SRQT_TM; type++) {
		memset(&attr, 0, sizeof(attr));
		attr.attr.max_wr = 16;
		attr.attr.max_sge = 2;
		attr.srq_type = (enum ibv_srq_type)type;
		attr.pd = pd;
		attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
		if (type == IBV_SRQT_XRC) {
			attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
			attr.xrcd = xrcd;
			attr.cq = cq;
			if (!xrcd)
				continue;
		}
		if (type == IBV_SRQT_TM) {
			attr.comp_mask |= IBV_SRQ_INIT_ATTR_TM | IBV_SRQ_INIT_ATTR_CQ;
			attr.cq = cq;
			attr.tm_cap.max_num_tags = 8;
			attr.tm_cap.max_ops = 4;
		}
		printf("type %d: ", type);
		if (!PTR(srq, ibv_create_srq_ex(ctx, &attr)))
			continue;
		printf("at least as asked: %d %d\n", attr.attr.max_wr >= 16, attr.attr.max_sge >= 2);
		INT(ibv_get_srq_num(srq, &number));
		memset(&wr, 0, sizeof(wr));
		wr.sg_list = &sge;
		wr.num_sge = 1;
		INT(ibv_post_srq_recv(srq, &wr, &bad));

		struct ibv_ops_wr op, *bad_op = NULL;
		memset(&op, 0, sizeof(op));
		op.wr_id = 77;
		op.opcode = IBV_WR_TAG_ADD;
		op.flags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC;
		op.tm.add.recv_wr_id = 78;
		op.tm.add.sg_list = &sge;
		op.tm.add.num_sge = 1;
		op.tm.add.tag = 0x1234;
		op.tm.add.mask = ~0ull;
		INT(ibv_post_srq_ops(srq, &op, &bad_op));
		printf("bad: %d\n", bad_op == &op);
		INT(ibv_destroy_srq(srq));
	}
	if (xrcd) {
		struct ibv_qp_open_attr open_attr;
		struct ibv_qp *qp;
		memset(&open_attr, 0, sizeof(open_attr));
		open_attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
		open_attr.qp_num = 0xffffff;
		open_attr.xrcd = xrcd;
		open_attr.qp_type = IBV_QPT_XRC_RECV;
		(void)PTR(qp, ibv_open_qp(ctx, &open_attr));
		INT(ibv_close_xrcd(xrcd));
	}

	struct ibv_wq_init_attr wq_attr;
	struct ibv_wq *wq;
	memset(&wq_attr, 0, sizeof(wq_attr));
	wq_attr.wq_context = data;
	wq_attr.wq_type = IBV_WQT_RQ;
	wq_attr.max_wr = 8;
	wq_attr.max_sge = 1;
	wq_attr.pd = pd;
	wq_attr.cq = cq;
	if (PTR(wq, ibv_create_wq(ctx, &wq_attr))) {
		struct ibv_wq_attr change;
		printf("context: %d\n", wq->wq_context == data);
		memset(&change, 0, sizeof(change));
		change.attr_mask = IBV_WQ_ATTR_STATE;
		change.wq_state = IBV_WQS_RDY;
		INT(ibv_modify_wq(wq, &change));
		INT(ibv_post_wq_recv(wq, &wr, &bad));
		struct ibv_rwq_ind_table_init_attr table_attr;
		struct ibv_rwq_ind_table *table;
		memset(&table_attr, 0, sizeof(table_attr));
		table_attr.ind_tbl = &wq;
		if (PTR(table, ibv_create_rwq_ind_table(ctx, &table_attr)))
			INT(ibv_destroy_rwq_ind_table(table));
		INT(ibv_destroy_wq(wq));
	}

	struct ibv_qp_init_attr qp_attr;
	struct ibv_qp *qp;
	memset(&qp_attr, 0, sizeof(qp_attr));
	qp_attr.qp_type = IBV_QPT_RAW_PACKET;
	qp_attr.send_cq = qp_attr.recv_cq = cq;
	qp_attr.cap.max_send_wr = qp_attr.cap.max_recv_wr = 4;
	qp_attr.cap.max_send_sge = qp_attr.cap.max_recv_sge = 1;
	if (!PTR(qp, ibv_create_qp(pd, &qp_attr))) {
		qp_attr.qp_type = IBV_QPT_UD;
		need(PTR(qp, ibv_create_qp(pd, &qp_attr)), "QP");
	}
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_action_tag tag;
	} rule;
	struct ibv_flow *flow;
	struct ibv_counters_init_attr counters_attr;
	struct ibv_counters *counters;
	memset(&rule, 0, sizeof(rule));
	rule.attr.type = IBV_FLOW_ATTR_NORMAL;
	rule.attr.size = sizeof(rule);
	rule.attr.num_of_specs = 2;
	rule.attr.port = 1;
	rule.eth.type = IBV_FLOW_SPEC_ETH;
	rule.eth.size = sizeof(rule.eth);
	memset(rule.eth.mask.dst_mac, 0xff, ETHERNET_LL_SIZE);
	rule.tag.type = IBV_FLOW_SPEC_ACTION_TAG;
	rule.tag.size = sizeof(rule.tag);
	rule.tag.tag_id = 5;
	struct ibv_flow_spec spec;
	memset(&spec, 0, sizeof(spec));
	spec.eth = rule.eth;
	printf("any specification: %x %u\n", spec.hdr.type, spec.hdr.size);
	memset(&counters_attr, 0, sizeof(counters_attr));
	if (PTR(flow, ibv_create_flow(qp, &rule.attr))) {
		if (PTR(counters, ibv_create_counters(ctx, &counters_attr))) {
			struct ibv_counter_attach_attr attach;
			uint64_t values[2] = { 0, 0 };
			memset(&attach, 0, sizeof(attach));
			attach.counter_desc = IBV_COUNTER_PACKETS;
			INT(ibv_attach_counters_point_flow(counters, &attach, flow));
			INT(ibv_read_counters(counters, values, 2, IBV_READ_COUNTERS_ATTR_PREFER_CACHED));
			INT(ibv_destroy_counters(counters));
		}
		INT(ibv_destroy_flow(flow));
	}
	struct ibv_flow_action_esp_attr esp;
	struct ibv_flow_action_esp esp_attr;
	struct ibv_flow_action_esp_keymat_aes_gcm keys;
	struct ibv_flow_action *action;
	memset(&esp, 0, sizeof(esp));
	memset(&esp_attr, 0, sizeof(esp_attr));
	memset(&keys, 0, sizeof(keys));
	esp.esp_attr = &esp_attr;
	esp.keymat_proto = IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM;
	esp.keymat_ptr = &keys;
	esp.keymat_len = sizeof(keys);
	if (PTR(action, ibv_create_flow_action_esp(ctx, &esp))) {
		INT(ibv_modify_flow_action_esp(action, &esp));
		INT(ibv_destroy_flow_action(action));
	}
	INT(ibv_destroy_qp(qp));
	INT(ibv_destroy_cq(cq));
#if RELEASE >= 65
	struct ibv_comp_cntr_caps caps;
	INT(ibv_query_comp_cntr_caps(ctx, &caps));
#endif
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	need(list && list[0], "device");
	ctx = ibv_open_device(list[0]);
	need(ctx != NULL, "context");
	ibv_free_device_list(list);
	need(PTR(pd, ibv_alloc_pd(ctx)), "PD");
	data = (unsigned char *)aligned_alloc(4096, SIZE);
	need(data != NULL, "memory");
	memset(data, 0, SIZE);
	need(PTR(mr, ibv_reg_mr(pd, data, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)),
	     "MR");
	printf("== device\n");
	device();
	printf("== memory\n");
	memory();
	printf("== pair\n");
	pair();
	printf("== queues\n");
	queues();
	INT(ibv_dereg_mr(mr));
	INT(ibv_dealloc_pd(pd));
	INT(ibv_close_device(ctx));
	free(data);
	return 0;
}
