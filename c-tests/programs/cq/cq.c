/*
 * Completion queues and channels: events and acknowledgements, objects in use that cannot be
 * destroyed, overflow. ibv_get_cq_event(3), ibv_req_notify_cq(3), ibv_destroy_cq(3).
 */
#include "rig.h"
#include "asleep.h"
#include <fcntl.h>
#include <sys/epoll.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static unsigned char buf[65536];
static union ibv_gid gid;
static struct ibv_port_attr port;

/* A QP that is connected to itself. */
static struct ibv_qp *loop(struct ibv_cq *scq, struct ibv_cq *rcq, uint32_t depth)
{
	struct ibv_qp_init_attr qa = { .send_cq = scq, .recv_cq = rcq, .qp_type = IBV_QPT_RC, .cap = { depth, depth, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &qa);
	if (!qp)
		die("ibv_create_qp: %s", strerror(errno));
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	if (ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("to INIT");
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				   .path_mtu = port.active_mtu,
				   .dest_qp_num = qp->qp_num,
				   .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 1,
				   .ah_attr = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 1 }, .port_num = 1 } };
	if (ibv_modify_qp(qp, &at,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("to RTR");
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .max_rd_atomic = 1, .retry_cnt = 7, .rnr_retry = 7, .timeout = 14 };
	if (ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT))
		die("to RTS");
	return qp;
}

static void receive(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sg = { (uintptr_t)buf, 64, mr->lkey };
	struct ibv_recv_wr w = { .wr_id = id, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &w, &bad))
		die("ibv_post_recv");
}

static int send_one(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sg = { (uintptr_t)buf + 1024, 16, mr->lkey };
	struct ibv_send_wr w = { .wr_id = id, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	return ibv_post_send(qp, &w, &bad);
}

/* Does not come back before all events are acknowledged. */
static int destroy(void *cq)
{
	return ibv_destroy_cq(cq);
}

static void events(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	int x, y;
	if (!ch)
		die("ibv_create_comp_channel");
	struct ibv_cq *one = ibv_create_cq(ctx, 16, &x, ch, 0), *other = ibv_create_cq(ctx, 16, &y, ch, 0), *got;
	void *context;
	if (!one || !other)
		die("ibv_create_cq");
	check(one->channel == ch && one->cq_context == &x && one->cqe >= 16 && one->context == ctx, "the fields of a CQ");
	struct ibv_qp *qp = loop(one, other, 8);
	/* A non-blocking channel. */
	int flags = fcntl(ch->fd, F_GETFL);
	fcntl(ch->fd, F_SETFL, flags | O_NONBLOCK);
	errno = 0;
	check(ibv_get_cq_event(ch, &got, &context) == -1 && errno == EAGAIN, "no event, not blocking: -1 and EAGAIN");
	ibv_req_notify_cq(one, 0);
	ibv_req_notify_cq(other, 0);
	receive(qp, 1);
	send_one(qp, 2);
	int seen_one = 0, seen_other = 0;
	while (seen_one + seen_other < 2) {
		if (!readable(ch->fd, 10000))
			die("two CQs on a channel: an event is missing");
		if (ibv_get_cq_event(ch, &got, &context))
			continue;
		seen_one += got == one && context == &x;
		seen_other += got == other && context == &y;
		ibv_ack_cq_events(got, 1);
	}
	check(seen_one == 1 && seen_other == 1, "one event from each of two CQs, with its context");
	check(!readable(ch->fd, 30), "and no more");
	/* Through epoll. */
	struct ibv_wc w;
	wait_completion(one, &w);
	wait_completion(other, &w);
	int ep = epoll_create1(0);
	struct epoll_event ev = { .events = EPOLLIN };
	epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &ev);
	check_eq(epoll_wait(ep, &ev, 1, 0), 0, "epoll before an event");
	ibv_req_notify_cq(one, 0);
	receive(qp, 3);
	send_one(qp, 4);
	check_eq(epoll_wait(ep, &ev, 1, 10000), 1, "epoll at an event");
	check_eq(ibv_get_cq_event(ch, &got, &context), 0, "ibv_get_cq_event");
	check(got == one, "the event's CQ");
	close(ep);
	/* The event above is not yet acknowledged. */
	wait_completion(one, &w);
	wait_completion(other, &w);
	check_eq(ibv_destroy_cq(one), EBUSY, "destroying a CQ that a QP uses");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	check_eq(ibv_destroy_comp_channel(ch), EBUSY, "destroying a channel that CQs use");
	struct call end = { .make = destroy, .object = one };
	check(call_sleeps(&end), "ibv_destroy_cq waits for the acknowledgement");
	ibv_ack_cq_events(got, 1);
	check_eq(call_result(&end), 0, "and returns after it");
	check_eq(ibv_destroy_cq(other), 0, "ibv_destroy_cq");
	check_eq(ibv_destroy_comp_channel(ch), 0, "ibv_destroy_comp_channel");
}

/* A receiver that arms, polls and then sleeps misses no completion, whatever the timing of the
 * sender. */
enum { MESSAGES = 3000 };

static void *sender(void *p)
{
	struct ibv_qp *qp = p;
	uint64_t state = 42;
	for (int i = 0; i < MESSAGES; i++) {
		struct ibv_wc w;
		if (send_one(qp, (uint64_t)i))
			die("ibv_post_send");
		wait_completion(qp->send_cq, &w);
		if (w.status)
			die("send: %s", ibv_wc_status_str(w.status));
		for (volatile uint32_t spin = rnd(&state) % 3000; spin; spin--)
			;
	}
	return NULL;
}

static void nothing_missed(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *scq = ibv_create_cq(ctx, 64, NULL, NULL, 0), *rcq = ibv_create_cq(ctx, 64, NULL, ch, 0), *got;
	struct ibv_qp *qp = loop(scq, rcq, 32);
	void *context;
	int received = 0;
	unsigned unacked = 0;
	for (int i = 0; i < 32; i++)
		receive(qp, (uint64_t)i);
	pthread_t t;
	pthread_create(&t, NULL, sender, qp);
	while (received < MESSAGES) {
		struct ibv_wc w[8];
		int n;
		if (ibv_req_notify_cq(rcq, 0))
			die("ibv_req_notify_cq");
		while ((n = ibv_poll_cq(rcq, 8, w)) > 0)
			for (int i = 0; i < n; i++, received++) {
				if (w[i].status || w[i].wr_id != (uint64_t)(received % 32))
					die("message %d: %s, id %llu", received, ibv_wc_status_str(w[i].status), (unsigned long long)w[i].wr_id);
				receive(qp, (uint64_t)received % 32);
			}
		if (received >= MESSAGES)
			break;
		if (!readable(ch->fd, 20000)) {
			check(0, "an event was missed after %d messages", received);
			exit(finish());
		}
		if (ibv_get_cq_event(ch, &got, &context) || got != rcq)
			die("ibv_get_cq_event");
		if (++unacked == 100) {
			ibv_ack_cq_events(rcq, unacked);
			unacked = 0;
		}
	}
	pthread_join(t, NULL);
	ibv_ack_cq_events(rcq, unacked);
	check_eq(received, MESSAGES, "messages received by arm, poll, sleep");
	ibv_destroy_qp(qp);
	check_eq(ibv_destroy_cq(rcq), 0, "ibv_destroy_cq");
	check_eq(ibv_destroy_cq(scq), 0, "ibv_destroy_cq");
	check_eq(ibv_destroy_comp_channel(ch), 0, "ibv_destroy_comp_channel");
}

static void overflow(void)
{
	struct ibv_cq *scq = ibv_create_cq(ctx, 1024, NULL, NULL, 0), *small = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	if (!scq || !small)
		die("ibv_create_cq");
	unsigned depth = (unsigned)small->cqe + 8;
	struct ibv_qp *qp = loop(scq, small, depth > 1000 ? 1000 : depth);
	struct ibv_wc w;
	for (unsigned i = 0; i < depth; i++)
		receive(qp, i);
	for (unsigned i = 0; i < depth; i++) {
		send_one(qp, i);
		if (!try_completion(scq, &w, WAIT_US) || w.status)
			break; /* the receiver is in error */
	}
	void *element = NULL;
	int type = async_event(ctx, &element);
	check_eq(type, IBV_EVENT_CQ_ERR, "more completions than a CQ holds: the event");
	check(element == small, "more completions than a CQ holds: the event's CQ");
	ibv_destroy_qp(qp);
	check_eq(ibv_destroy_cq(small), 0, "destroying it");
	check_eq(ibv_destroy_cq(scq), 0, "ibv_destroy_cq");
}

static void polling(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	struct ibv_qp *qp = loop(cq, cq, 16);
	struct ibv_wc w[64];
	check_eq(ibv_poll_cq(cq, 64, w), 0, "polling an empty CQ");
	check_eq(ibv_poll_cq(cq, 0, w), 0, "polling for nothing");
	for (unsigned i = 0; i < 10; i++)
		receive(qp, 100 + i);
	for (unsigned i = 0; i < 10; i++)
		send_one(qp, i);
	unsigned sends = 0, recvs = 0, wrong = 0;
	uint64_t end = now_us() + WAIT_US;
	while (sends + recvs < 20 && now_us() < end) {
		int n = ibv_poll_cq(cq, 3, w);
		wrong += n < 0 || n > 3;
		for (int i = 0; i < n; i++) {
			if (w[i].opcode & IBV_WC_RECV)
				wrong += w[i].wr_id != 100 + recvs++ || w[i].status;
			else
				wrong += w[i].wr_id != sends++ || w[i].status;
		}
	}
	check(sends == 10 && recvs == 10 && !wrong, "sends and receives of one QP in one CQ, polled by threes");
	/* What was in the CQ of a destroyed QP does not come up any more as something wrong. */
	receive(qp, 1);
	send_one(qp, 2);
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	int n = ibv_poll_cq(cq, 64, w);
	check(n >= 0 && n <= 2, "polling after the QP is gone");
	check_eq(ibv_destroy_cq(cq), 0, "ibv_destroy_cq");
}

int main(void)
{
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!pd || !mr || ibv_query_gid(ctx, 1, 0, &gid) || ibv_query_port(ctx, 1, &port))
		die("set up");
	polling();
	events();
	nothing_missed();
	overflow();
	check_eq(ibv_dereg_mr(mr), 0, "ibv_dereg_mr");
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	return finish();
}
