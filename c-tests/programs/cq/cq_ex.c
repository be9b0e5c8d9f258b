/*
 * Extended CQs: supported and refused options, iteration, each readable field, clocks, and a CQ
 * that several threads or a single thread (IBV_CREATE_CQ_ATTR_SINGLE_THREADED) iterate.
 * ibv_create_cq_ex(3).
 *
 * Map of this file: `creation` tests options of a CQ; the next functions connect a local QP and
 * start an iteration. `reliable` tests fields of RC completions; `datagrams` tests fields of UD
 * completions; `invalidated` tests IBV_WC_WITH_INV. `by_threads` starts threads that run `iterate`
 * on one CQ; `clocks` tests time stamps and hca_core_clock. `main` starts the peer end, in this
 * process or in another one, and calls the tests.
 */
#include "rig.h"

#define CLOCKS (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static unsigned char buf[1 << 16];
static union ibv_gid gid;
static struct ibv_port_attr port;

static struct ibv_cq_ex *create(struct ibv_cq_init_attr_ex a)
{
	errno = 0;
	return ibv_create_cq_ex(ctx, &a);
}

/* ---- creation ---- */

/* The functions that read a field, in the order of their request bits. */
static unsigned present(struct ibv_cq_ex *cq)
{
	void *calls[] = { cq->read_byte_len, cq->read_imm_data,		cq->read_qp_num,	cq->read_src_qp,
			  cq->read_slid,     cq->read_sl,		cq->read_dlid_path_bits, cq->read_completion_ts,
			  cq->read_cvlan,    cq->read_flow_tag,		cq->read_tm_info,	cq->read_completion_wallclock_ns };
	unsigned bits = 0;
	for (unsigned i = 0; i < 12; i++)
		bits |= calls[i] ? 1u << i : 0;
	return bits;
}

static void refused(struct ibv_cq_init_attr_ex a, int err, const char *what)
{
	struct ibv_cq_ex *cq = create(a);
	check(!cq && errno == err, "%s: %s", what, cq ? "created" : strerror(errno));
	if (cq)
		ibv_destroy_cq(ibv_cq_ex_to_cq(cq));
}

static void creation(void)
{
	unsigned wrong = 0;
	for (unsigned bit = 0; bit < 12; bit++) {
		struct ibv_cq_ex *cq = create((struct ibv_cq_init_attr_ex){ .cqe = 8, .wc_flags = 1u << bit });
		if (!cq)
			die("ibv_create_cq_ex with wc_flags 1 << %u: %s", bit, strerror(errno));
		wrong += present(cq) != 1u << bit;
		wrong += !cq->start_poll || !cq->next_poll || !cq->end_poll || !cq->read_opcode || !cq->read_vendor_err || !cq->read_wc_flags;
		wrong += ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) != 0;
	}
	check_eq(wrong, 0, "each field alone: its call is there, the others are not");
	struct ibv_cq_ex *all = create((struct ibv_cq_init_attr_ex){ .cqe = 100,
								     .cq_context = buf,
								     .wc_flags = IBV_CREATE_CQ_SUP_WC_FLAGS,
								     .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
								     .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN });
	check(all && present(all) == 0xfff, "IBV_CREATE_CQ_SUP_WC_FLAGS with both creation flags");
	check(all && all->cqe >= 100 && all->cq_context == buf && all->context == ctx && !all->channel, "the queue's fields");
	check(all && ibv_cq_ex_to_cq(all)->cq_context == buf, "ibv_cq_ex_to_cq");
	check_eq(all ? ibv_destroy_cq(ibv_cq_ex_to_cq(all)) : -1, 0, "ibv_destroy_cq");

	struct ibv_device_attr da;
	if (ibv_query_device(ctx, &da))
		die("ibv_query_device");
	struct ibv_cq_init_attr_ex a = { .cqe = 8 };
	refused((struct ibv_cq_init_attr_ex){ .cqe = 0 }, EINVAL, "no entries");
	refused((struct ibv_cq_init_attr_ex){ .cqe = (uint32_t)da.max_cqe + 1 }, EINVAL, "more entries than max_cqe");
	a.comp_vector = (uint32_t)ctx->num_comp_vectors;
	refused(a, EINVAL, "a vector that is not there");
	a = (struct ibv_cq_init_attr_ex){ .cqe = 8, .wc_flags = 1ull << 40 };
	refused(a, EOPNOTSUPP, "a field that nobody knows");
	a = (struct ibv_cq_init_attr_ex){ .cqe = 8, .comp_mask = 1u << 20 };
	refused(a, EINVAL, "a comp_mask that nobody knows");
	a = (struct ibv_cq_init_attr_ex){ .cqe = 8, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = 1u << 20 };
	refused(a, EINVAL, "a creation flag that nobody knows");
	a = (struct ibv_cq_init_attr_ex){ .cqe = 8, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = pd };
	refused(a, EINVAL, "a parent domain that is a plain domain");
	a = (struct ibv_cq_init_attr_ex){ .cqe = 8, .flags = 1u << 20 };
	struct ibv_cq_ex *cq = create(a);
	check(cq != NULL, "creation flags count only with their bit in comp_mask");
	if (cq)
		ibv_destroy_cq(ibv_cq_ex_to_cq(cq));
}

/* ---- connections: a local QP with an extended CQ, and an end of the rig ---- */

static struct ibv_qp *qp_of(struct ibv_cq_ex *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr qa = { .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = type, .cap = { 64, 64, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &qa);
	if (!qp)
		die("ibv_create_qp: %s", strerror(errno));
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 77, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	if (ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)))
		die("to INIT");
	return qp;
}

static struct address address_of(struct ibv_qp *qp)
{
	return (struct address){ .qpn = qp->qp_num, .psn = qp->qp_num * 77 & 0xffffff, .qkey = 77, .rkey = mr->rkey, .addr = (uintptr_t)buf, .lid = port.lid, .gid = gid };
}

static void connect_qp(struct ibv_qp *qp, struct address to)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_RTR,
				  .path_mtu = port.active_mtu,
				  .dest_qp_num = to.qpn,
				  .rq_psn = to.psn,
				  .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 1,
				  .ah_attr = { .is_global = 1, .grh = { .dgid = to.gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() }, .port_num = 1 } };
	int connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (ibv_modify_qp(qp, &at, IBV_QP_STATE | (qp->qp_type == IBV_QPT_UD ? 0 : connected)))
		die("to RTR");
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = qp->qp_num * 77 & 0xffffff, .max_rd_atomic = 1, .retry_cnt = 7, .rnr_retry = 7, .timeout = 14 };
	connected = IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT;
	if (ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_SQ_PSN | (qp->qp_type == IBV_QPT_UD ? 0 : connected)))
		die("to RTS");
}

static void receive(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sg = { (uintptr_t)buf, 4096, mr->lkey };
	struct ibv_recv_wr w = { .wr_id = id, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &w, &bad))
		die("ibv_post_recv");
}

static int send_one(struct ibv_qp *qp, uint64_t id, uint32_t len)
{
	struct ibv_sge sg = { (uintptr_t)buf + 8192, len, mr->lkey };
	struct ibv_send_wr w = { .wr_id = id, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	return ibv_post_send(qp, &w, &bad);
}

/* Calls ibv_start_poll until it finds a completion. */
static int start(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr none = { 0 };
	uint64_t end = now_us() + WAIT_US;
	int err;
	while ((err = ibv_start_poll(cq, &none)) == ENOENT && now_us() < end)
		;
	return err;
}

/* The next completion within an iteration, or in a new one. */
static int next(struct ibv_cq_ex *cq)
{
	int err = ibv_next_poll(cq);
	if (err != ENOENT)
		return err;
	ibv_end_poll(cq);
	return start(cq);
}

static uint64_t raw_clock(void)
{
	struct ibv_values_ex v = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	int err = ibv_query_rt_values_ex(ctx, &v);
	if (err || v.comp_mask != IBV_VALUES_MASK_RAW_CLOCK)
		die("ibv_query_rt_values_ex: %s", strerror(err));
	return (uint64_t)v.raw_clock.tv_sec * 1000000000 + (uint64_t)v.raw_clock.tv_nsec;
}

static uint64_t wallclock(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void reliable(struct end *e)
{
	enum { N = 20 };
	struct ibv_cq_ex *cq = create((struct ibv_cq_init_attr_ex){ .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS | CLOCKS });
	if (!cq)
		die("ibv_create_cq_ex: %s", strerror(errno));
	struct ibv_poll_cq_attr none = { 0 }, unknown = { .comp_mask = 1 };
	check_eq(ibv_start_poll(cq, &none), ENOENT, "starting on an empty queue");
	check_eq(ibv_start_poll(cq, &unknown), EINVAL, "starting with attributes that nobody knows");
	check_eq(ibv_start_poll(cq, &none), ENOENT, "and neither began anything");
	struct ibv_qp *qp = qp_of(cq, IBV_QPT_RC);
	struct options o = defaults();
	struct address peer = end_open(e, o);
	for (unsigned i = 0; i < N; i++)
		receive(qp, 100 + i);
	connect_qp(qp, peer);
	end_connect(e, address_of(qp));
	uint64_t before = raw_clock(), before_wall = wallclock(), last = 0;
	for (unsigned i = 0; i < N; i++) {
		struct request r = one_piece(i % 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, i, 0, 10 * i);
		r.imm = htobe32(0x1000 + i);
		r.flags = IBV_SEND_SIGNALED;
		if (end_send(e, r))
			die("ibv_post_send");
	}
	unsigned wrong = 0, late = 0;
	for (unsigned i = 0; i < N; i++) {
		int err = i ? next(cq) : start(cq);
		if (err)
			die("completion %u: %s", i, strerror(err));
		unsigned imm = i % 2 ? IBV_WC_WITH_IMM : 0;
		wrong += cq->wr_id != 100 + i || cq->status != IBV_WC_SUCCESS || ibv_wc_read_opcode(cq) != IBV_WC_RECV;
		wrong += ibv_wc_read_byte_len(cq) != 10 * i || ibv_wc_read_qp_num(cq) != qp->qp_num || ibv_wc_read_wc_flags(cq) != imm;
		wrong += imm && be32toh(ibv_wc_read_imm_data(cq)) != 0x1000 + i;
		wrong += ibv_wc_read_slid(cq) != 0 || ibv_wc_read_dlid_path_bits(cq) != 0 || ibv_wc_read_vendor_err(cq) != 0;
		uint64_t ts = ibv_wc_read_completion_ts(cq), wall = ibv_wc_read_completion_wallclock_ns(cq);
		late += ts < before || ts < last || ts > raw_clock() || wall < before_wall || wall > wallclock();
		last = ts;
		/* Posting, and even polling, within an iteration does not hang. */
		if (i == 0 && send_one(qp, 999, 8))
			die("ibv_post_send");
	}
	ibv_end_poll(cq);
	check_eq(wrong, 0, "messages iterated over: wr_id, status, opcode, length, QP number, flags, immediate data");
	check_eq(late, 0, "their time stamps lie between the clock before and the clock after, in order");
	struct request r = one_piece(IBV_WR_SEND, 1, 0, 0);
	struct request into = one_piece(IBV_WR_SEND, 5, 0, 64);
	if (end_recv(e, into))
		die("ibv_post_recv");
	check_eq(end_wait(e, RECVS).byte_len, 8, "what was sent within an iteration arrives");
	struct ibv_wc wc;
	wait_completion(ibv_cq_ex_to_cq(cq), &wc);
	check(wc.wr_id == 999 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND, "ibv_poll_cq on the same queue");
	/* A receive that is too short fails: its status and vendor_err. */
	r.id = 7;
	r.pieces = 1;
	r.piece[0].len = 5000;
	receive(qp, 55);
	if (end_send(e, r))
		die("ibv_post_send");
	check_eq(start(cq), 0, "a message that is too long");
	check(cq->wr_id == 55 && cq->status == IBV_WC_LOC_LEN_ERR, "completes with IBV_WC_LOC_LEN_ERR: %s", ibv_wc_status_str(cq->status));
	check(ibv_wc_read_vendor_err(cq) != 0, "and says who found it");
	ibv_end_poll(cq);
	receive(qp, 56);
	check_eq(start(cq), 0, "a receive in ERR");
	check(cq->wr_id == 56 && cq->status == IBV_WC_WR_FLUSH_ERR, "is flushed");
	check_eq(ibv_next_poll(cq), ENOENT, "and is the last");
	ibv_end_poll(cq);
	check_eq(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), EBUSY, "destroying a queue that a QP uses");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	check_eq(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0, "ibv_destroy_cq");
	end_close(e);
}

static void datagrams(struct end *e)
{
	struct ibv_cq_ex *cq = create((struct ibv_cq_init_attr_ex){ .cqe = 64, .wc_flags = IBV_CREATE_CQ_SUP_WC_FLAGS });
	struct ibv_qp *qp = qp_of(cq, IBV_QPT_UD);
	struct options o = defaults();
	o.type = IBV_QPT_UD;
	struct address peer = end_open(e, o);
	receive(qp, 1);
	connect_qp(qp, peer);
	end_connect(e, address_of(qp));
	struct request r = one_piece(IBV_WR_SEND_WITH_IMM, 1, 0, 100);
	r.imm = htobe32(0xabcdef);
	r.qpn = qp->qp_num;
	r.qkey = 77;
	if (end_send(e, r))
		die("ibv_post_send");
	check_eq(start(cq), 0, "a datagram");
	check(ibv_wc_read_src_qp(cq) == peer.qpn && ibv_wc_read_byte_len(cq) == 140 && ibv_wc_read_imm_data(cq) == htobe32(0xabcdef), "its sender, length, and immediate data");
	check_eq(ibv_wc_read_wc_flags(cq), IBV_WC_GRH | IBV_WC_WITH_IMM, "its flags");
	/* RoCE v2 over IPv6 (9) or IPv4 (10): the completion of a datagram says which, as with mlx5. */
	uint8_t kind = ibv_wc_read_sl(cq);
	check((kind == 9 || kind == 10) && ibv_wc_read_cvlan(cq) == 0 && ibv_wc_read_flow_tag(cq) == 0,
	      "kind of packet, VLAN and flow tag of a plain datagram");
	struct ibv_wc_tm_info tm = { .tag = 1, .priv = 1 };
	ibv_wc_read_tm_info(cq, &tm);
	check(tm.tag == 0 && tm.priv == 0, "and no tag");
	ibv_end_poll(cq);
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	check_eq(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0, "ibv_destroy_cq");
	end_close(e);
}

/* A SEND that invalidates a memory window; the iterator reads the invalidated rkey. */
static void invalidated(struct end *e)
{
	struct ibv_cq_ex *cq = create((struct ibv_cq_init_attr_ex){ .cqe = 16, .wc_flags = IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_BYTE_LEN });
	struct ibv_mr *bound = ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!cq || !bound || !mw)
		die("a window: %s", strerror(errno));
	struct ibv_qp *qp = qp_of(cq, IBV_QPT_RC);
	struct address peer = end_open(e, defaults());
	receive(qp, 3);
	receive(qp, 4);
	connect_qp(qp, peer);
	end_connect(e, address_of(qp));
	uint32_t key = ibv_inc_rkey(mw->rkey);
	struct ibv_send_wr w = { .wr_id = 2, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
				 .bind_mw = { mw, key, { bound, (uintptr_t)buf, 64, IBV_ACCESS_REMOTE_READ } } }, *bad;
	check_eq(ibv_post_send(qp, &w, &bad), 0, "IBV_WR_BIND_MW");
	check_eq(start(cq), 0, "its completion");
	check(cq->wr_id == 2 && cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_BIND_MW, "binds");
	ibv_end_poll(cq);
	struct request r = one_piece(IBV_WR_SEND_WITH_INV, 1, 0, 30);
	r.imm = key;
	end_send(e, r);
	check_eq(start(cq), 0, "a message that takes a key back");
	check(cq->wr_id == 3 && cq->status == IBV_WC_SUCCESS && ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_INV && ibv_wc_read_byte_len(cq) == 30, "its flags and length");
	check_eq(ibv_wc_read_invalidated_rkey(cq), key, "ibv_wc_read_invalidated_rkey");
	ibv_end_poll(cq);
	/* The window is invalid, so a second invalidation is refused. */
	end_send(e, r);
	check_eq(start(cq), 0, "the same once more");
	check_eq(cq->status, IBV_WC_REM_INV_REQ_ERR, "is refused: %s", ibv_wc_status_str(cq->status));
	ibv_end_poll(cq);
	check_eq(ibv_destroy_qp(qp) | ibv_dealloc_mw(mw) | ibv_dereg_mr(bound) | ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0, "all is destroyed");
	end_close(e);
}

/* ---- threads ---- */

enum { MESSAGES = 20000, WINDOW = 32 };
static struct ibv_cq_ex *shared;
static struct ibv_qp *shared_qp;
static unsigned seen[2 * MESSAGES], taken;

static void *iterate(void *unused)
{
	struct ibv_poll_cq_attr none = { 0 };
	while (__atomic_load_n(&taken, __ATOMIC_SEQ_CST) < 2 * MESSAGES) {
		if (ibv_start_poll(shared, &none))
			continue;
		do {
			/* An iteration of another thread would change these fields here. */
			uint64_t id = shared->wr_id;
			int receives = ibv_wc_read_opcode(shared) == IBV_WC_RECV;
			if (shared->status || id >= 2 * MESSAGES || receives != (id >= MESSAGES))
				die("completion %llu: status %d", (unsigned long long)id, shared->status);
			__atomic_fetch_add(&seen[id], 1, __ATOMIC_SEQ_CST);
			__atomic_fetch_add(&taken, 1, __ATOMIC_SEQ_CST);
		} while (!ibv_next_poll(shared));
		ibv_end_poll(shared);
	}
	return unused;
}

static void by_threads(int threads, unsigned flags)
{
	struct ibv_cq_init_attr_ex a = { .cqe = 4 * WINDOW, .wc_flags = IBV_WC_STANDARD_FLAGS, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = flags };
	shared = create(a);
	if (!shared)
		die("ibv_create_cq_ex: %s", strerror(errno));
	shared_qp = qp_of(shared, IBV_QPT_RC);
	connect_qp(shared_qp, address_of(shared_qp));
	memset(seen, 0, sizeof seen);
	taken = 0;
	pthread_t t[4];
	for (int i = 0; i < threads; i++)
		pthread_create(&t[i], NULL, iterate, NULL);
	for (unsigned i = 0; i < MESSAGES; i++) {
		while (2 * i - __atomic_load_n(&taken, __ATOMIC_SEQ_CST) > 2 * WINDOW - 2 && 2 * i > __atomic_load_n(&taken, __ATOMIC_SEQ_CST))
			sched_yield();
		receive(shared_qp, MESSAGES + i);
		if (send_one(shared_qp, i, 16))
			die("ibv_post_send");
	}
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	unsigned wrong = 0;
	for (unsigned i = 0; i < 2 * MESSAGES; i++)
		wrong += seen[i] != 1;
	check_eq(wrong, 0, "iterated by %d thread(s)%s: each completion once", threads, flags ? ", which promised to be alone" : "");
	ibv_destroy_qp(shared_qp);
	check_eq(ibv_destroy_cq(ibv_cq_ex_to_cq(shared)), 0, "ibv_destroy_cq");
}

/* ---- clocks ---- */

static void clocks(void)
{
	struct ibv_device_attr_ex da;
	check_eq(ibv_query_device_ex(ctx, NULL, &da), 0, "ibv_query_device_ex");
	check(da.completion_timestamp_mask != 0 && da.hca_core_clock != 0, "completion_timestamp_mask %#llx, hca_core_clock %llu kHz",
	      (unsigned long long)da.completion_timestamp_mask, (unsigned long long)da.hca_core_clock);
	/* The interval is long beside the resolution of both clocks. The wall clock is read before and
	 * after each reading of the other clock, because the scheduler may stop the thread between. */
	uint64_t first = wallclock(), raw = raw_clock(), begin = wallclock();
	usleep(50000);
	uint64_t end = wallclock(), ticks = raw_clock() - raw, last = wallclock();
	/* A tolerance of one half: the check is about the unit, not about precision. */
	double by_clock = (double)ticks * 1e6 / (double)da.hca_core_clock;
	check(by_clock > (double)(end - begin) * 0.5 && by_clock < (double)(last - first) * 1.5, "the clock runs at hca_core_clock");
	struct ibv_values_ex v = { .comp_mask = IBV_VALUES_MASK_RESERVED };
	check_eq(ibv_query_rt_values_ex(ctx, &v), EINVAL, "ibv_query_rt_values_ex for a value that nobody knows");
}

int main(int argc, char **argv)
{
	struct end *e = end_new(two_processes(argc, argv));
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!pd || !mr || ibv_query_gid(ctx, 1, hosts_differ(), &gid) || ibv_query_port(ctx, 1, &port))
		die("set up");
	creation();
	clocks();
	reliable(e);
	datagrams(e);
	invalidated(e);
	by_threads(3, 0);
	by_threads(1, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	check_eq(ibv_dereg_mr(mr), 0, "ibv_dereg_mr");
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	end_free(e);
	return finish();
}
