/*
 * One misuse of verbs, and its right variant, for each check of the layer `validate`: misuse ID
 * wrong|right. The layer must report the wrong variant by that id only, and the right variant not
 * at all. JSON in the environment is the layer's output file.
 *
 * Map of this file: a function such as mr_01 is the case MR-01, and `wrong` selects the variant.
 * The functions mr_* misuse regions and windows; qp_* misuse QP attributes, states and destruction;
 * wr_* misuse posted requests. handle and extended create an address handle and a QP for ibv_wr_*
 * calls. The functions cq_* misuse CQs and events: event, finish and arm_and_write serve a CQ with
 * a channel, and iterated creates an extended CQ. cq_05, cq_06, cq_08 and cq_12 start a second
 * thread. The last functions, mr_13 and ob_*, misuse contexts, PDs and SRQs. main lets run_case of
 * pair.c run the entry of `cases` that the first argument names.
 */
#include "pair.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* ---- memory ---- */

static void mr_01(void)
{
	pair();
	want(!receive(b, piece(64)), "a receive");
	struct ibv_sge sge = piece(64);
	if (wrong)
		sge.lkey = mr->rkey;
	post_and_poll(request(IBV_WR_SEND, &sge, 1));
}

static void mr_02(void)
{
	pair();
	struct ibv_sge sge = piece(64);
	sge.addr += SIZE - (wrong ? 32 : 64);
	post_and_poll(request(IBV_WR_RDMA_WRITE, &sge, 1));
}

static void mr_03(void)
{
	pair();
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_mr *elsewhere = ibv_reg_mr(wrong ? other : pd, buf, SIZE, ALL);
	want(elsewhere != NULL, "ibv_reg_mr");
	struct ibv_sge sge = piece(64);
	sge.lkey = elsewhere->lkey;
	post_and_poll(request(IBV_WR_RDMA_WRITE, &sge, 1));
	want(!ibv_dereg_mr(elsewhere) && !ibv_dealloc_pd(other), "the other PD");
}


static void mr_04(void)
{
	pair();
	second = ibv_reg_mr(pd, buf, SIZE, wrong ? 0 : IBV_ACCESS_LOCAL_WRITE);
	want(second != NULL, "ibv_reg_mr");
	struct ibv_sge sge = piece(64);
	sge.lkey = second->lkey;
	receive(b, sge);
}

static void mr_05(void)
{
	struct ibv_mr *more = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_REMOTE_WRITE | (wrong ? 0 : IBV_ACCESS_LOCAL_WRITE));
	if (more)
		ibv_dereg_mr(more);
}

static void mr_06(void)
{
	pair();
	struct ibv_mr *more = ibv_reg_mr(pd, buf, SIZE, ALL);
	want(more != NULL, "ibv_reg_mr");
	struct ibv_sge sge = piece(64), empty = piece(0);
	sge.lkey = empty.lkey = more->lkey;
	want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
	/* A piece of length 0 uses no memory, whatever its key. */
	want(!receive(b, empty), "ibv_post_recv");
	if (!wrong)
		ok(cq);
	want(!ibv_dereg_mr(more), "ibv_dereg_mr");
	if (wrong)
		done(cq);
}

/* Keys differ where FERROVERBS_SOFT_KEYS=distinct. */
static void mr_11(void)
{
	pair();
	want(mr->lkey != mr->rkey, "keys that differ");
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, 1);
	if (wrong)
		wr.wr.rdma.rkey = mr->lkey;
	post_and_poll(wr);
}

/* A limit of adapters; c-tests/layers/faulty_provider.c refuses this length like an adapter. */
static void mr_12(void)
{
	struct rlimit little = { SIZE, SIZE };
	want(!setrlimit(RLIMIT_MEMLOCK, &little), "setrlimit");
	struct ibv_mr *more = ibv_reg_mr(pd, buf, wrong ? 66 * 512 : 65 * 512, ALL);
	want(wrong ? !more && errno == ENOMEM : more != NULL, "ibv_reg_mr");
	if (more)
		want(!ibv_dereg_mr(more), "ibv_dereg_mr");
}

static void mr_15(void)
{
	pair();
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	want(mw != NULL, "ibv_alloc_mw");
	struct ibv_mw_bind bind = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = mr, .addr = (uintptr_t)buf, .length = SIZE, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	want(!ibv_bind_mw(b, mw, &bind), "ibv_bind_mw");
	ok(cq);
	uint32_t before = mw->rkey;
	want(!ibv_bind_mw(b, mw, &bind), "ibv_bind_mw");
	ok(cq);
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, 1);
	wr.wr.rdma.rkey = wrong ? before : mw->rkey;
	post_and_poll(wr);
	want(!ibv_dealloc_mw(mw), "ibv_dealloc_mw");
}

/* ---- queue pairs ---- */

static void qp_01(void)
{
	b = make(IBV_QPT_RC, cq, NULL, 0);
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	to_init(b);
	to_rtr(a, b);
	to_rtr(b, a);
	want(!to_rts(b, 14, 1), "RTS");
	if (!wrong)
		want(!to_rts(a, 14, 1), "RTS");
	struct ibv_sge sge = piece(64);
	post_and_poll(request(IBV_WR_RDMA_WRITE, &sge, 1));
}

static void qp_02(void)
{
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	struct ibv_qp_attr attr = ready(a);
	int result = ibv_modify_qp(a, &attr, rtr_mask(a) & ~(wrong ? IBV_QP_MIN_RNR_TIMER : 0));
	want((result != 0) == wrong, "RTR");
}

static void qp_03(void)
{
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	to_rtr(a, a);
	to_rts(a, wrong ? 64 : 14, 1);
}

static void qp_04(void)
{
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	struct ibv_port_attr port;
	want(!ibv_query_port(ctx, 1, &port), "ibv_query_port");
	struct ibv_qp_attr attr = ready(a);
	attr.path_mtu = wrong ? port.active_mtu + 1 : port.active_mtu;
	ibv_modify_qp(a, &attr, rtr_mask(a));
}

static void qp_08(void)
{
	a = make(IBV_QPT_RC, cq, NULL, 0);
	b = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	to_init(b);
	to_rtr(a, b);
	to_rtr(b, a);
	want(!to_rts(a, 14, wrong ? 0 : 1) && !to_rts(b, 14, 1), "RTS");
	struct ibv_sge sge = piece(64);
	if (!post(a, request(IBV_WR_RDMA_READ, &sge, 1)) && !wrong)
		ok(cq);
}

static void qp_09(void)
{
	b = make(IBV_QPT_RC, cq, NULL, 0);
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (wrong ? 0 : IBV_ACCESS_REMOTE_READ) };
	want(!ibv_modify_qp(b, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	to_rtr(a, b);
	to_rtr(b, a);
	want(!to_rts(a, 14, 1) && !to_rts(b, 14, 1), "RTS");
	struct ibv_sge sge = piece(64);
	post_and_poll(request(IBV_WR_RDMA_READ, &sge, 1));
}

static void qp_12(void)
{
	couple(wrong ? IBV_QPT_UC : IBV_QPT_RC, cq, NULL, 0);
	struct ibv_sge sge = piece(64);
	post_and_poll(request(IBV_WR_RDMA_READ, &sge, 1));
}

static void qp_13(void)
{
	struct ibv_cq *own = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct ibv_qp *qp = make(IBV_QPT_RC, own, NULL, 0);
	if (wrong)
		want(ibv_destroy_cq(own) == EBUSY, "EBUSY");
	want(!ibv_destroy_qp(qp) && !ibv_destroy_cq(own), "destroying in the right order");
}

static void qp_15(void)
{
	struct ibv_device_attr dev;
	want(!ibv_query_device(ctx, &dev), "ibv_query_device");
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	if (wrong)
		init.cap.max_send_wr = dev.max_qp_wr + 1;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	want((qp == NULL) == wrong, "ibv_create_qp");
	if (qp)
		ibv_destroy_qp(qp);
}

/* ---- posting ---- */

static void wr_01(void)
{
	pair();
	struct ibv_sge sge[64];
	for (int i = 0; i < 64; i++)
		sge[i] = piece(8);
	post_and_poll(request(IBV_WR_RDMA_WRITE, sge, (int)cap.max_send_sge + wrong));
}

static void wr_02(void)
{
	pair();
	struct ibv_sge sge = piece(cap.max_inline_data + (uint32_t)wrong);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, 1);
	wr.send_flags |= IBV_SEND_INLINE;
	post_and_poll(wr);
}

static void wr_03(void)
{
	/* The sends wait for ever for a receive. */
	rnr_retry = 7;
	pair();
	struct ibv_sge sge = piece(8);
	unsigned posted = 0;
	while ((wrong || posted < cap.max_send_wr) && !post(a, request(IBV_WR_SEND, &sge, 1)))
		posted++;
	want(posted >= cap.max_send_wr, "a full send queue");
}

static void wr_04(void)
{
	pair();
	struct ibv_sge sge = piece(8);
	for (unsigned i = 0; i < cap.max_send_wr; i++) {
		struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, 1);
		if (wrong || i + 1 < cap.max_send_wr)
			wr.send_flags = 0;
		want(!post(a, wr), "ibv_post_send");
	}
	if (!wrong)
		ok(cq);
}

static void wr_05(void)
{
	pair();
	unsigned posted = 0;
	while ((wrong || posted < cap.max_recv_wr) && !receive(b, piece(8)))
		posted++;
}

static void wr_07(void)
{
	pair();
	struct ibv_sge sge = piece(8);
	struct ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, 1);
	wr.wr.atomic.remote_addr = (uintptr_t)buf + 4096 + (wrong ? 4 : 0);
	wr.wr.atomic.rkey = mr->rkey;
	wr.wr.atomic.compare_add = 1;
	post_and_poll(wr);
}

/* A layer beneath, c-tests/layers/faulty_provider.c, has no room for the wr_id 68 in a list. */
static void wr_13(void)
{
	pair();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr list[4], *bad;
	for (unsigned i = 0; i < 4; i++) {
		list[i] = request(IBV_WR_RDMA_WRITE, &sge, 1);
		list[i].wr_id = i == 2 ? 68 : i;
		list[i].next = i < 3 ? &list[i + 1] : NULL;
	}
	want(ibv_post_send(a, list, &bad) == ENOMEM && bad == &list[2], "a list that is refused in its middle");
	if (wrong)
		want(ibv_post_send(a, list, &bad) == ENOMEM, "the list once more");
	else
		want(!ibv_post_send(a, bad, &bad), "the rest");
	for (unsigned i = 0; i < 4; i++)
		ok(cq);
}

static struct ibv_ah *handle(void)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1 };
	want(!ibv_query_gid(ctx, 1, 0, &to.grh.dgid), "ibv_query_gid");
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	want(ah != NULL, "ibv_create_ah");
	return ah;
}

static void wr_08(void)
{
	couple(IBV_QPT_UD, cq, NULL, 0);
	struct ibv_port_attr port;
	want(!ibv_query_port(ctx, 1, &port), "ibv_query_port");
	struct ibv_ah *ah = handle();
	struct ibv_sge sge = piece((128u << port.active_mtu) + (uint32_t)wrong);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge, 1);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b->qp_num;
	wr.wr.ud.remote_qkey = 7;
	post_and_poll(wr);
	want(!ibv_destroy_ah(ah), "ibv_destroy_ah");
}

static void wr_09(void)
{
	couple(IBV_QPT_UD, cq, NULL, 0);
	struct ibv_ah *ah = handle();
	struct ibv_sge sge = piece(8);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge, 1);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b->qp_num;
	wr.wr.ud.remote_qkey = 7;
	want(!post(a, wr), "ibv_post_send");
	if (!wrong)
		ok(cq);
	want(!ibv_destroy_ah(ah), "ibv_destroy_ah");
	if (wrong)
		done(cq);
}

static void wr_11(void)
{
	pair();
	struct ibv_sge sge = piece(8);
	struct ibv_recv_wr wr[100], *bad;
	for (int i = 0; i < 100; i++)
		wr[i] = (struct ibv_recv_wr){ .sg_list = &sge, .num_sge = 1, .next = i < 99 ? &wr[i + 1] : wrong ? &wr[0] : NULL };
	ibv_post_recv(b, wr, &bad);
}

static void wr_12(void)
{
	pair();
	struct ibv_sge sge = piece(8);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, 1);
	if (wrong)
		wr.send_flags |= 0x80;
	post_and_poll(wr);
}

/* The bytes of a READ are sent on before the READ has completed. */
static void wr_14(void)
{
	pair();
	struct ibv_sge sge = piece(64);
	want(!post(a, request(IBV_WR_RDMA_READ, &sge, 1)), "ibv_post_send");
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, 1);
	sge.addr += 63;
	wr.wr.rdma.remote_addr += 4096;
	if (!wrong)
		wr.send_flags |= IBV_SEND_FENCE;
	want(!post(a, wr), "ibv_post_send");
	ok(cq);
	ok(cq);
	/* The READ has completed, so its bytes may be sent without a fence. */
	sge.addr -= 63;
	wr.send_flags &= ~(unsigned)IBV_SEND_FENCE;
	post_and_poll(wr);
	want(!post(a, request(IBV_WR_RDMA_READ, &sge, 1)), "ibv_post_send");
	/* The WRITE sends bytes beside those that the READ changes. */
	sge.addr += 64;
	want(!post(a, wr), "ibv_post_send");
	ok(cq);
	ok(cq);
}

static void wr_16(void)
{
	pair();
	if (!wrong)
		want(!receive(b, piece(64)), "a receive");
	struct ibv_sge sge = piece(64);
	post_and_poll(request(IBV_WR_RDMA_WRITE_WITH_IMM, &sge, 1));
}

static struct ibv_qp_ex *extended(void)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { DEPTH, DEPTH, 2, 2, 0 }, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE };
	a = ibv_create_qp_ex(ctx, &init);
	want(a != NULL, "ibv_create_qp_ex");
	b = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	to_init(b);
	to_rtr(a, b);
	to_rtr(b, a);
	want(!to_rts(a, 14, 1) && !to_rts(b, 14, 1), "RTS");
	return ibv_qp_to_qp_ex(a);
}

static void wr_15(void)
{
	struct ibv_qp_ex *qp = extended();
	ibv_wr_start(qp);
	qp->wr_id = 3;
	qp->wr_flags = IBV_SEND_SIGNALED;
	if (wrong)
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)buf, 64);
	ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)buf + 4096);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)buf, 64);
	if (!ibv_wr_complete(qp))
		done(cq);
}

static void wr_17(void)
{
	pair();
	struct ibv_port_attr port;
	want(!ibv_query_port(ctx, 1, &port), "ibv_query_port");
	/* Two pieces exceed max_msg_sz; a small machine can lock one of them. */
	size_t size = port.max_msg_sz / 2 + 4096u;
	void *big = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	want(big != MAP_FAILED, "mmap");
	struct ibv_mr *all = ibv_reg_mr(pd, big, size, IBV_ACCESS_LOCAL_WRITE);
	want(all != NULL, "ibv_reg_mr");
	struct ibv_sge sge[2] = { { (uintptr_t)big, (uint32_t)size, all->lkey }, { (uintptr_t)big, (uint32_t)size, all->lkey } };
	if (!wrong)
		sge[0].length = sge[1].length = 64;
	post_and_poll(request(IBV_WR_RDMA_WRITE, sge, 2));
	want(!ibv_dereg_mr(all) && !munmap(big, size), "ibv_dereg_mr");
}

/* ---- completions and events ---- */

static void cq_01(void)
{
	struct ibv_cq *small = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	want(small != NULL, "ibv_create_cq");
	couple(IBV_QPT_RC, small, NULL, 0);
	want((unsigned)small->cqe < cap.max_send_wr, "a CQ smaller than the send queue");
	struct ibv_sge sge = piece(8);
	for (int i = 0; i < small->cqe + wrong; i++)
		want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
	if (!wrong)
		for (int i = 0; i < small->cqe; i++)
			ok(small);
	want(!ibv_destroy_qp(a) && !ibv_destroy_cq(small), "destroying");
	a = NULL;
}

static void cq_03(void)
{
	pair();
	if (!wrong)
		want(!receive(b, piece(64)), "a receive");
	struct ibv_sge sge = piece(64);
	post_and_poll(request(IBV_WR_SEND, &sge, 1));
	/* The second one of the two completions, of the send and of the receive. */
	if (!wrong)
		done(cq);
}

static struct ibv_cq *evented;

static void ack(void)
{
	ibv_ack_cq_events(evented, 1);
}

/* Creates a CQ and receives its first event; returns the channel of the CQ. */
static struct ibv_comp_channel *event(int early)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	evented = channel ? ibv_create_cq(ctx, DEPTH, NULL, channel, 0) : NULL;
	want(evented != NULL, "a CQ with a channel");
	couple(IBV_QPT_RC, evented, NULL, 0);
	want(!ibv_req_notify_cq(evented, 0), "ibv_req_notify_cq");
	if (early)
		ack();
	struct ibv_sge sge = piece(64);
	want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
	struct ibv_cq *found;
	void *mine;
	want(!ibv_get_cq_event(channel, &found, &mine) && found == evented, "ibv_get_cq_event");
	ok(evented);
	return channel;
}

static void finish(struct ibv_comp_channel *channel)
{
	want(!ibv_destroy_qp(a) && !ibv_destroy_cq(evented) && !ibv_destroy_comp_channel(channel), "destroying");
	a = NULL;
}

static void arm_and_write(void)
{
	struct ibv_sge sge = piece(64);
	want(!ibv_req_notify_cq(evented, 0), "ibv_req_notify_cq");
	want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
}

/* Another thread could arm the CQ while this thread waits. */
static void cq_05(void)
{
	struct ibv_comp_channel *channel = event(0);
	pthread_t helper;
	want(!pthread_create(&helper, NULL, wrong ? after_report : after_delay, (void *)arm_and_write), "pthread_create");
	struct ibv_cq *found;
	void *mine;
	want(!ibv_get_cq_event(channel, &found, &mine) && found == evented, "ibv_get_cq_event");
	pthread_join(helper, NULL);
	ok(evented);
	ibv_ack_cq_events(evented, 2);
	finish(channel);
}

static void cq_06(void)
{
	struct ibv_comp_channel *channel = event(0);
	pthread_t helper;
	/* ibv_destroy_cq waits for the acknowledgement. */
	want(!pthread_create(&helper, NULL, wrong ? after_report : after_delay, (void *)ack), "pthread_create");
	finish(channel);
	pthread_join(helper, NULL);
}

static void cq_07(void)
{
	struct ibv_comp_channel *channel = event(wrong);
	if (!wrong)
		ack();
	finish(channel);
}

static struct ibv_async_event last;

static void ack_last(void)
{
	ibv_ack_async_event(&last);
}

static void cq_08(void)
{
	struct ibv_srq *srq = limited();
	below_limit();
	do
		want(!ibv_get_async_event(ctx, &last), "ibv_get_async_event");
	while (last.event_type != IBV_EVENT_SRQ_LIMIT_REACHED && (ack_last(), 1));
	pthread_t helper;
	want(!pthread_create(&helper, NULL, wrong ? after_report : after_delay, (void *)ack_last), "pthread_create");
	want(!ibv_destroy_qp(b) && !ibv_destroy_srq(srq), "destroying");
	b = NULL;
	pthread_join(helper, NULL);
}

static struct ibv_cq_ex *iterated(uint32_t flags)
{
	struct ibv_cq_init_attr_ex init = { .cqe = DEPTH, .wc_flags = IBV_WC_EX_WITH_QP_NUM, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = flags };
	struct ibv_cq_ex *ex = ibv_create_cq_ex(ctx, &init);
	want(ex != NULL, "ibv_create_cq_ex");
	return ex;
}

/* The first completion of the CQ is that of a flushed request, and has no opcode. */
static void cq_02(void)
{
	struct ibv_cq_ex *ex = iterated(0);
	couple(IBV_QPT_RC, ibv_cq_ex_to_cq(ex), NULL, 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	want(!ibv_modify_qp(a, &attr, IBV_QP_STATE), "ERR");
	struct ibv_sge sge = piece(64);
	want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
	struct ibv_poll_cq_attr polled = { 0 };
	while (ibv_start_poll(ex, &polled))
		;
	want(ex->status == IBV_WC_WR_FLUSH_ERR && ibv_wc_read_qp_num(ex) == a->qp_num, "a flush");
	if (wrong)
		ibv_wc_read_opcode(ex);
	ibv_end_poll(ex);
	want(!ibv_destroy_qp(a) && !ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), "destroying");
	a = NULL;
}

static void cq_11(void)
{
	struct ibv_cq_ex *ex = iterated(0);
	struct ibv_poll_cq_attr attr = { 0 };
	int result = ibv_start_poll(ex, &attr);
	want(result == ENOENT, "ENOENT");
	/* The provider's own function may rely on a non-empty CQ, so the wrong variant calls it on
	 * an empty one. */
	if (wrong)
		ibv_next_poll(ex);
	want(!ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), "ibv_destroy_cq");
}

static atomic_int beside;

static void *poll_beside(void *cq_ex)
{
	struct ibv_poll_cq_attr attr = { 0 };
	beside = 1;
	if (!ibv_start_poll(cq_ex, &attr))
		ibv_end_poll(cq_ex);
	return NULL;
}

static void cq_12(void)
{
	struct ibv_cq_ex *ex = iterated(IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	couple(IBV_QPT_RC, ibv_cq_ex_to_cq(ex), NULL, 0);
	struct ibv_sge sge = piece(64);
	want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
	struct ibv_poll_cq_attr attr = { 0 };
	while (ibv_start_poll(ex, &attr))
		;
	if (!wrong)
		ibv_end_poll(ex);
	pthread_t other;
	want(!pthread_create(&other, NULL, poll_beside, ex), "pthread_create");
	if (wrong) {
		/* A provider may hold a lock until ibv_end_poll, as rxe's does. The second thread
		 * then waits for the lock, so the first one must not wait for the second. */
		while (!beside)
			;
		nanosleep(&(struct timespec){ 0, 300000000 }, NULL);
		ibv_end_poll(ex);
	}
	pthread_join(other, NULL);
	want(!ibv_destroy_qp(a) && !ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), "destroying");
	a = NULL;
}

/* A layer beneath, c-tests/layers/faulty_provider.c, changes the wr_id 66. */
static void cq_13(void)
{
	pair();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, 1);
	wr.wr_id = wrong ? 66 : 65;
	want(!post(a, wr), "ibv_post_send");
	ok(cq);
}

/* ---- objects ---- */

/* Two regions of a context that is closed. */
static void mr_13(void)
{
	struct ibv_context *other = ibv_open_device(ctx->device);
	struct ibv_pd *theirs = other ? ibv_alloc_pd(other) : NULL;
	struct ibv_mr *left[2];
	want(theirs != NULL, "another context");
	for (int i = 0; i < 2; i++) {
		left[i] = ibv_reg_mr(theirs, buf, SIZE, 0);
		want(left[i] != NULL, "ibv_reg_mr");
	}
	/* With EXIT the process ends with live objects, for the setting leaks. */
	if (getenv("EXIT"))
		exit(0);
	if (!wrong)
		want(!ibv_dereg_mr(left[0]) && !ibv_dereg_mr(left[1]) && !ibv_dealloc_pd(theirs), "destroying");
	want(!ibv_close_device(other), "ibv_close_device");
}

static void ob_01(void)
{
	struct ibv_context *other = ibv_open_device(ctx->device);
	struct ibv_cq *theirs = other ? ibv_create_cq(other, 8, NULL, NULL, 0) : NULL;
	want(theirs != NULL, "another context");
	struct ibv_qp_init_attr init = { .send_cq = wrong ? theirs : cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (qp)
		ibv_destroy_qp(qp);
	want(!ibv_destroy_cq(theirs) && !ibv_close_device(other), "the other context");
}

static void ob_02(void)
{
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_mr *held = ibv_reg_mr(other, buf, SIZE, 0);
	want(held != NULL, "ibv_reg_mr");
	if (wrong)
		want(ibv_dealloc_pd(other) == EBUSY, "EBUSY");
	want(!ibv_dereg_mr(held) && !ibv_dealloc_pd(other), "destroying");
}

static void ob_03(void)
{
	a = make(wrong ? IBV_QPT_RC : IBV_QPT_UD, cq, NULL, 0);
	to_init(a);
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 7 } };
	if (!ibv_attach_mcast(a, &group, 0))
		want(!ibv_detach_mcast(a, &group, 0), "ibv_detach_mcast");
}


static void ob_05(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	shared = ibv_create_srq(pd, &init);
	want(shared != NULL, "ibv_create_srq");
	a = make(IBV_QPT_RC, cq, shared, 0);
	to_init(a);
	struct ibv_sge sge = piece(64);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	if (wrong)
		ibv_post_recv(a, &wr, &bad);
	else
		want(!ibv_post_srq_recv(shared, &wr, &bad), "ibv_post_srq_recv");
}

static const struct misuse cases[] = {
	{ "MR-01", mr_01 }, { "MR-02", mr_02 }, { "MR-03", mr_03 }, { "MR-04", mr_04 }, { "MR-05", mr_05 }, { "MR-06", mr_06 },
	{ "MR-11", mr_11 }, { "MR-12", mr_12 }, { "MR-13", mr_13 }, { "MR-15", mr_15 }, { "QP-01", qp_01 }, { "QP-02", qp_02 }, { "QP-03", qp_03 }, { "QP-04", qp_04 }, { "QP-08", qp_08 }, { "QP-09", qp_09 },
	{ "QP-12", qp_12 }, { "QP-13", qp_13 }, { "QP-15", qp_15 }, { "WR-01", wr_01 }, { "WR-02", wr_02 }, { "WR-03", wr_03 },
	{ "WR-04", wr_04 }, { "WR-05", wr_05 }, { "WR-07", wr_07 }, { "WR-08", wr_08 }, { "WR-09", wr_09 }, { "WR-11", wr_11 },
	{ "WR-12", wr_12 }, { "WR-13", wr_13 }, { "WR-14", wr_14 }, { "WR-15", wr_15 }, { "WR-16", wr_16 }, { "WR-17", wr_17 }, { "CQ-01", cq_01 }, { "CQ-02", cq_02 }, { "CQ-03", cq_03 }, { "CQ-05", cq_05 }, { "CQ-06", cq_06 },
	{ "CQ-07", cq_07 }, { "CQ-08", cq_08 }, { "CQ-11", cq_11 }, { "CQ-12", cq_12 }, { "CQ-13", cq_13 }, { "OB-01", ob_01 },
	{ "OB-02", ob_02 }, { "OB-03", ob_03 }, { "OB-05", ob_05 },
};

int main(int argc, char **argv)
{
	return run_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
