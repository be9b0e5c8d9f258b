/*
 * Size and events of a CQ: ibv_resize_cq(3), ibv_modify_cq(3), and overrun, which is an error
 * unless IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN is set.
 *
 * Map of this file: helpers create a QP that is connected to itself, post requests and query its
 * state. `sizes` tests ibv_resize_cq; `moderation` tests delayed events by ibv_modify_cq. `overrun`
 * tests ibv_poll_cq after an overrun; `overrun_iterated` tests the iterator;
 * `overrun_of_a_shared_queue` tests the CQ of an XRC SRQ. `ignored` tests a CQ that ignores
 * overruns. `main` starts the peer end for `moderation` and calls the tests.
 */
#include "rig.h"
#include <fcntl.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static unsigned char buf[65536];
static union ibv_gid gid;
static struct ibv_port_attr port;

static struct ibv_qp *qp_of(struct ibv_cq *scq, struct ibv_cq *rcq, uint32_t depth)
{
	struct ibv_qp_init_attr qa = { .send_cq = scq, .recv_cq = rcq, .qp_type = IBV_QPT_RC, .cap = { depth, depth, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &qa);
	if (!qp)
		die("ibv_create_qp: %s", strerror(errno));
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	if (ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("to INIT");
	return qp;
}

static struct address address_of(struct ibv_qp *qp)
{
	return (struct address){ .qpn = qp->qp_num, .psn = qp->qp_num * 77 & 0xffffff, .lid = port.lid, .gid = gid };
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
	if (ibv_modify_qp(qp, &at,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("to RTR");
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = qp->qp_num * 77 & 0xffffff, .max_rd_atomic = 1, .retry_cnt = 7, .rnr_retry = 7, .timeout = 14 };
	if (ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT))
		die("to RTS");
}

static struct ibv_qp *loop(struct ibv_cq *scq, struct ibv_cq *rcq, uint32_t depth)
{
	struct ibv_qp *qp = qp_of(scq, rcq, depth);
	connect_qp(qp, address_of(qp));
	return qp;
}

static void receive(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sg = { (uintptr_t)buf, 64, mr->lkey };
	struct ibv_recv_wr w = { .wr_id = id, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &w, &bad))
		die("ibv_post_recv");
}

static int send_flags(struct ibv_qp *qp, uint64_t id, unsigned flags)
{
	struct ibv_sge sg = { (uintptr_t)buf + 1024, 16, mr->lkey };
	struct ibv_send_wr w = { .wr_id = id, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags }, *bad;
	return ibv_post_send(qp, &w, &bad);
}

static int send_one(struct ibv_qp *qp, uint64_t id)
{
	return send_flags(qp, id, IBV_SEND_SIGNALED);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr at;
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(qp, &at, IBV_QP_STATE, &init))
		die("ibv_query_qp");
	return at.qp_state;
}

static struct ibv_cq *ignoring(int cqe)
{
	struct ibv_cq_init_attr_ex a = { .cqe = (uint32_t)cqe, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &a);
	if (!cq)
		die("ibv_create_cq_ex: %s", strerror(errno));
	return ibv_cq_ex_to_cq(cq);
}

static void sizes(void)
{
	struct ibv_device_attr da;
	if (ibv_query_device(ctx, &da))
		die("ibv_query_device");
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, channel, 0), *from;
	struct ibv_qp *qp = loop(cq, cq, 64);
	struct ibv_wc w;
	void *context;
	ibv_req_notify_cq(cq, 1);
	for (unsigned i = 0; i < 4; i++) {
		receive(qp, 100 + i);
		send_flags(qp, i, IBV_SEND_SIGNALED | (i == 3 ? IBV_SEND_SOLICITED : 0));
	}
	/* Only the last message raises an event. After the event at least four completions are
	 * in the CQ, because no thread has polled. */
	if (!readable(channel->fd, WAIT_US / 1000) || ibv_get_cq_event(channel, &from, &context))
		die("no event of the last message");
	ibv_ack_cq_events(from, 1);
	check_eq(ibv_resize_cq(cq, 0), EINVAL, "a size of 0");
	check_eq(ibv_resize_cq(cq, -1), EINVAL, "a negative size");
	check_eq(ibv_resize_cq(cq, da.max_cqe + 1), EINVAL, "a size above max_cqe");
	wait_completion(cq, &w);
	check_eq(ibv_resize_cq(cq, 1), EINVAL, "a size below what is queued");
	check_eq(ibv_resize_cq(cq, 500), 0, "growing");
	check(cq->cqe >= 500, "the new size is written back: %d", cq->cqe);
	unsigned sends = !(w.opcode & IBV_WC_RECV), recvs = !sends, wrong = 0;
	while (sends + recvs < 8) {
		wait_completion(cq, &w);
		wrong += w.status || w.wr_id != (w.opcode & IBV_WC_RECV ? 100 + recvs : sends);
		*(w.opcode & IBV_WC_RECV ? &recvs : &sends) += 1;
	}
	check_eq(wrong, 0, "what was queued is still there, in order");
	check_eq(ibv_resize_cq(cq, 20), 0, "shrinking");
	check(cq->cqe >= 20 && cq->cqe < 500, "to %d", cq->cqe);
	ibv_destroy_qp(qp);
	check_eq(ibv_destroy_cq(cq), 0, "ibv_destroy_cq");
	ibv_destroy_comp_channel(channel);
}

static int moderate(struct ibv_cq *cq, uint16_t count, uint16_t period)
{
	struct ibv_modify_cq_attr a = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { count, period } };
	return ibv_modify_cq(cq, &a);
}

static void take_event(struct ibv_comp_channel *ch, struct ibv_cq *cq)
{
	struct ibv_cq *got;
	void *context;
	if (ibv_get_cq_event(ch, &got, &context) || got != cq)
		die("ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
}

static void messages(struct ibv_qp *qp, unsigned n)
{
	struct ibv_wc w;
	for (unsigned i = 0; i < n; i++) {
		receive(qp, i);
		if (send_one(qp, i))
			die("ibv_post_send");
		wait_completion(qp->send_cq, &w);
	}
}

static void moderation(struct end *e)
{
	struct ibv_device_attr_ex da;
	check_eq(ibv_query_device_ex(ctx, NULL, &da), 0, "ibv_query_device_ex");
	check(da.cq_mod_caps.max_cq_count > 0 && da.cq_mod_caps.max_cq_period > 0, "moderation is offered");
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *scq = ibv_create_cq(ctx, 64, NULL, NULL, 0), *rcq = ibv_create_cq(ctx, 64, NULL, ch, 0);
	struct ibv_qp *qp = loop(scq, rcq, 32);
	struct ibv_modify_cq_attr unknown = { .attr_mask = IBV_CQ_ATTR_RESERVED };
	struct ibv_wc w;
	check_eq(ibv_modify_cq(rcq, &unknown), EINVAL, "an attribute that nobody knows");
	/* Five completions raise the event long before the period ends. */
	check_eq(moderate(rcq, 5, 65535), 0, "an event for five completions, or after 65 ms");
	uint64_t begin = now_us();
	ibv_req_notify_cq(rcq, 0);
	messages(qp, 4);
	int early = readable(ch->fd, 0);
	check(!early || now_us() - begin > 65535, "four of five completions: no event");
	messages(qp, 1);
	check(readable(ch->fd, 20000), "five: an event");
	take_event(ch, rcq);
	check(!readable(ch->fd, 100), "and one only");
	for (int i = 0; i < 5; i++)
		wait_completion(rcq, &w);
	/* Fewer completions than cq_count: the timer raises the event without a poll. */
	ibv_req_notify_cq(rcq, 0);
	begin = now_us();
	messages(qp, 1);
	check(readable(ch->fd, 20000), "one of five completions: an event when the time is over");
	check(now_us() - begin >= 65000, "and not before");
	take_event(ch, rcq);
	wait_completion(rcq, &w);
	/* Moderation is off: each completion raises an event. */
	check_eq(moderate(rcq, 0, 0), 0, "no moderation");
	ibv_req_notify_cq(rcq, 0);
	messages(qp, 1);
	check(readable(ch->fd, 20000), "an event for one completion");
	take_event(ch, rcq);
	wait_completion(rcq, &w);
	/* An event that is held back is not lost by turning moderation off. */
	moderate(rcq, 100, 65535);
	ibv_req_notify_cq(rcq, 0);
	messages(qp, 1);
	check_eq(moderate(rcq, 0, 0), 0, "turning it off while an event is held back");
	check(readable(ch->fd, 20000), "gives the event");
	take_event(ch, rcq);
	wait_completion(rcq, &w);
	ibv_destroy_qp(qp);
	/* From another process, whose polling does not wake this process. */
	qp = qp_of(scq, rcq, 32);
	struct options o = defaults();
	struct address peer = end_open(e, o);
	for (int i = 0; i < 10; i++)
		receive(qp, (uint64_t)i);
	connect_qp(qp, peer);
	end_connect(e, address_of(qp));
	moderate(rcq, 4, 50000);
	ibv_req_notify_cq(rcq, 0);
	for (unsigned i = 0; i < 4; i++) {
		struct request r = one_piece(IBV_WR_SEND, i, 0, 16);
		r.flags = IBV_SEND_SIGNALED;
		if (end_send(e, r))
			die("ibv_post_send");
	}
	check(readable(ch->fd, 20000), "four messages from the other end: an event");
	take_event(ch, rcq);
	for (int i = 0; i < 4; i++)
		check_eq(end_wait(e, SENDS).status, IBV_WC_SUCCESS, "message %d", i);
	ibv_destroy_qp(qp);
	end_close(e);
	check_eq(ibv_destroy_cq(rcq), 0, "ibv_destroy_cq");
	check_eq(ibv_destroy_cq(scq), 0, "ibv_destroy_cq");
	check_eq(ibv_destroy_comp_channel(ch), 0, "ibv_destroy_comp_channel");
}

/* Waits at most `ms` for an event of `type` about `element`; returns 1 if the event comes. The
 * function ignores other events. */
static unsigned events_of(void *element, int type, unsigned ms)
{
	unsigned found = 0;
	uint64_t end = now_us() + ms * 1000ull;
	while (!found && now_us() < end) {
		struct ibv_async_event ev;
		if (!readable(ctx->async_fd, 10))
			continue;
		if (ibv_get_async_event(ctx, &ev))
			die("ibv_get_async_event");
		found += ev.event_type == (unsigned)type && (void *)ev.element.qp == element;
		ibv_ack_async_event(&ev);
	}
	return found;
}

static void overrun(void)
{
	struct ibv_cq *scq = ibv_create_cq(ctx, 64, NULL, NULL, 0), *small = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	unsigned room = (unsigned)small->cqe;
	struct ibv_qp *qp = loop(scq, small, 64);
	for (unsigned i = 0; i < room + 4; i++)
		receive(qp, i);
	for (unsigned i = 0; i < room + 1; i++)
		send_flags(qp, i, 0);
	check_eq(events_of(small, IBV_EVENT_CQ_ERR, 20000), 1, "one completion too many: IBV_EVENT_CQ_ERR");
	check_eq(events_of(qp, IBV_EVENT_QP_FATAL, 20000), 1, "IBV_EVENT_QP_FATAL for its QP");
	uint64_t end = now_us() + WAIT_US;
	while (state_of(qp) != IBV_QPS_ERR && now_us() < end)
		;
	check_eq(state_of(qp), IBV_QPS_ERR, "which is in ERR");
	struct ibv_wc w[64];
	unsigned got = 0, wrong = 0;
	int n;
	while ((n = ibv_poll_cq(small, 3, w)) > 0)
		for (int i = 0; i < n; i++, got++)
			wrong += w[i].wr_id != got || w[i].status;
	check_eq(got, room, "what the queue held can be polled");
	check_eq(wrong, 0, "in order");
	check(n < 0, "and then polling fails");
	check(ibv_poll_cq(small, 1, w) < 0, "again and again");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	check_eq(ibv_destroy_cq(small), 0, "ibv_destroy_cq");
	check_eq(ibv_destroy_cq(scq), 0, "ibv_destroy_cq");
}

/* Overrun of an extended CQ that the iterator polls. */
static void overrun_iterated(void)
{
	struct ibv_cq_init_attr_ex a = { .cqe = 4, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_cq_ex *small = ibv_create_cq_ex(ctx, &a);
	struct ibv_cq *scq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	unsigned room = (unsigned)small->cqe, got = 0;
	struct ibv_qp *qp = loop(scq, ibv_cq_ex_to_cq(small), 64);
	for (unsigned i = 0; i < room + 1; i++)
		receive(qp, i);
	for (unsigned i = 0; i < room + 1; i++)
		send_flags(qp, i, 0);
	check_eq(events_of(small, IBV_EVENT_CQ_ERR, 20000), 1, "an extended queue overruns: IBV_EVENT_CQ_ERR");
	struct ibv_poll_cq_attr none = { 0 };
	int err = ibv_start_poll(small, &none);
	if (err)
		die("ibv_start_poll: %s", strerror(err));
	do
		got += small->wr_id == got && small->status == IBV_WC_SUCCESS;
	while (!(err = ibv_next_poll(small)));
	ibv_end_poll(small);
	check_eq(got, room, "what it held can be iterated over");
	check(err != ENOENT, "then ibv_next_poll fails: %s", strerror(err));
	err = ibv_start_poll(small, &none);
	check(err && err != ENOENT, "and ibv_start_poll: %s", strerror(err));
	ibv_destroy_qp(qp);
	check_eq(ibv_destroy_cq(ibv_cq_ex_to_cq(small)), 0, "ibv_destroy_cq");
	check_eq(ibv_destroy_cq(scq), 0, "ibv_destroy_cq");
}

/* An XRC SRQ has its own CQ. When that CQ overruns, the SRQ is in error. */
static void overrun_of_a_shared_queue(void)
{
	struct ibv_cq *scq = ibv_create_cq(ctx, 64, NULL, NULL, 0), *small = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_xrcd_init_attr xa = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &xa);
	struct ibv_srq_init_attr_ex sa = { .attr = { .max_wr = 64, .max_sge = 1 },
					   .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
					   .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = small };
	struct ibv_srq *srq = xrcd ? ibv_create_srq_ex(ctx, &sa) : NULL;
	uint32_t number;
	if (!srq || ibv_get_srq_num(srq, &number))
		die("an XRC queue: %s", strerror(errno));
	struct ibv_qp_init_attr_ex ra = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp_init_attr_ex ta = { .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd, .send_cq = scq, .cap = { 64, 0, 1, 0, 0 } };
	struct ibv_qp *rx = ibv_create_qp_ex(ctx, &ra), *tx = ibv_create_qp_ex(ctx, &ta);
	if (!rx || !tx)
		die("XRC QPs: %s", strerror(errno));
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	if (ibv_modify_qp(rx, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	    ibv_modify_qp(tx, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("to INIT");
	connect_qp(rx, address_of(tx));
	connect_qp(tx, address_of(rx));
	unsigned room = (unsigned)small->cqe;
	struct ibv_sge sg = { (uintptr_t)buf, 64, mr->lkey };
	for (unsigned i = 0; i < room + 4; i++) {
		struct ibv_recv_wr w = { .wr_id = i, .sg_list = &sg, .num_sge = 1 }, *bad;
		if (ibv_post_srq_recv(srq, &w, &bad))
			die("ibv_post_srq_recv");
	}
	for (unsigned i = 0; i < room + 1; i++) {
		struct ibv_sge out = { (uintptr_t)buf + 1024, 16, mr->lkey };
		struct ibv_send_wr w = { .wr_id = i, .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
		w.qp_type.xrc.remote_srqn = number;
		if (ibv_post_send(tx, &w, &bad))
			die("ibv_post_send");
	}
	check_eq(events_of(small, IBV_EVENT_CQ_ERR, 20000), 1, "the completion queue of an XRC queue overruns: IBV_EVENT_CQ_ERR");
	check_eq(events_of(srq, IBV_EVENT_SRQ_ERR, 20000), 1, "IBV_EVENT_SRQ_ERR for the XRC queue");
	struct ibv_wc w[64];
	unsigned got = 0;
	int n;
	while ((n = ibv_poll_cq(small, 3, w)) > 0)
		for (int i = 0; i < n; i++)
			got += w[i].wr_id == got && w[i].status == IBV_WC_SUCCESS;
	check_eq(got, room, "what the completion queue held can be polled");
	check(n < 0, "and then polling fails");
	check_eq(ibv_destroy_qp(tx), 0, "ibv_destroy_qp of the sender");
	check_eq(ibv_destroy_qp(rx), 0, "ibv_destroy_qp of the receiver");
	check_eq(ibv_destroy_srq(srq), 0, "ibv_destroy_srq");
	check_eq(ibv_close_xrcd(xrcd), 0, "ibv_close_xrcd");
	check_eq(ibv_destroy_cq(small), 0, "ibv_destroy_cq");
	check_eq(ibv_destroy_cq(scq), 0, "ibv_destroy_cq");
}

static void ignored(void)
{
	struct ibv_cq *scq = ibv_create_cq(ctx, 64, NULL, NULL, 0), *small = ignoring(4);
	struct ibv_qp *qp = loop(scq, small, 64);
	struct ibv_wc w[64];
	unsigned sent = 0;
	for (unsigned i = 0; i < 1000; i++) {
		receive(qp, i);
		if (send_one(qp, i))
			die("ibv_post_send");
		struct ibv_wc s;
		wait_completion(scq, &s);
		sent += s.status == IBV_WC_SUCCESS;
	}
	check_eq(sent, 1000, "a thousand messages into a queue of %d that ignores overruns", small->cqe);
	check_eq(state_of(qp), IBV_QPS_RTS, "the QP works");
	check(!readable(ctx->async_fd, 30), "and there is no event");
	int n = ibv_poll_cq(small, 64, w), orderly = 1;
	for (int i = 1; i < n; i++)
		orderly &= w[i].wr_id > w[i - 1].wr_id && w[i].status == IBV_WC_SUCCESS;
	check(n > 0 && n <= small->cqe && orderly && w[n - 1].wr_id == 999, "the newest completions are there");
	check_eq(ibv_poll_cq(small, 64, w), 0, "and polling goes on");
	ibv_destroy_qp(qp);
	check_eq(ibv_destroy_cq(small), 0, "ibv_destroy_cq");
	check_eq(ibv_destroy_cq(scq), 0, "ibv_destroy_cq");
}

int main(int argc, char **argv)
{
	struct end *e = end_new(two_processes(argc, argv));
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	if (!pd || !mr || ibv_query_gid(ctx, 1, hosts_differ(), &gid) || ibv_query_port(ctx, 1, &port))
		die("set up");
	sizes();
	moderation(e);
	overrun();
	overrun_iterated();
	overrun_of_a_shared_queue();
	ignored();
	check_eq(ibv_dereg_mr(mr), 0, "ibv_dereg_mr");
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	end_free(e);
	return finish();
}
