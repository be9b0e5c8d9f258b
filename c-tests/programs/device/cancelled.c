/*
 * Threads cancelled (pthread_cancel(3)) in calls of the library. A thread that sleeps for an event
 * ends at once, as in read(2). A thread that is busy with messages or objects ends between two
 * calls and leaves no lock held.
 */
#define _GNU_SOURCE
#include "rig.h"
#include <dlfcn.h>

enum { ROUNDS = 200, SIZE = 64 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_mr *mr;
static struct ibv_cq *cq, *armed;
static struct ibv_qp *qp[2];
static unsigned char buffer[4096];

static void set_up(void)
{
	struct ibv_port_attr port;
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	channel = ibv_create_comp_channel(ctx);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	armed = ibv_create_cq(ctx, 256, NULL, channel, 0);
	if (!pd || !channel || !mr || !cq || !armed || ibv_query_port(ctx, 1, &port))
		die("set up");
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 } };
		qp[i] = ibv_create_qp(pd, &qa);
		if (!qp[i])
			die("ibv_create_qp");
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		int bad = ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
		a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp[!i]->qp_num,
					  .max_dest_rd_atomic = 1, .min_rnr_timer = 1, .ah_attr = { .dlid = port.lid, .port_num = 1 } };
		bad |= ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
		a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
		bad |= ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						   IBV_QP_MAX_QP_RD_ATOMIC);
		if (bad)
			die("ibv_modify_qp");
	}
	/* While a queue waits for an event, each message wakes somebody: a system call. */
	if (ibv_req_notify_cq(armed, 0))
		die("ibv_req_notify_cq");
}

static void send_one(void)
{
	struct ibv_sge sg = { (uintptr_t)buffer, SIZE, mr->lkey };
	struct ibv_recv_wr rw = { .sg_list = &sg, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr sw = { .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	if (ibv_post_recv(qp[1], &rw, &bad_recv) || ibv_post_send(qp[0], &sw, &bad_send))
		die("posting");
	for (int got = 0; got < 2;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);
		if (n < 0 || (n && wc.status))
			die("ibv_poll_cq");
		got += n;
	}
}

/* Bodies of the cancelled threads. */

static volatile int begun;

static void *sends(void *unused)
{
	for (;;) {
		send_one();
		begun = 1;
		pthread_testcancel();
	}
	return unused;
}

static void *makes_objects(void *unused)
{
	for (;;) {
		struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
		struct ibv_comp_channel *made = ibv_create_comp_channel(ctx);
		struct ibv_mr *region = ibv_reg_mr(pd, buffer, sizeof buffer, 0);
		struct ibv_qp *queue = ibv_create_qp(pd, &qa);
		if (!made || !region || !queue || ibv_destroy_qp(queue) || ibv_dereg_mr(region) || ibv_destroy_comp_channel(made))
			die("objects");
		begun = 1;
		pthread_testcancel();
	}
	return unused;
}

static void *waits_for_completion(void *unused)
{
	struct ibv_cq *of;
	void *context;
	begun = 1;
	ibv_get_cq_event(channel, &of, &context);
	return unused;
}

/* ibv_get_cq_event@IBVERBS_1.0, as old binaries call it. No event arrives, so the layout of today's
 * CQ does not matter. */
static int (*get_cq_event_1_0)(struct ibv_comp_channel *, struct ibv_cq **, void **);

static void *waits_as_of_old(void *unused)
{
	struct ibv_cq *of;
	void *context;
	begun = 1;
	get_cq_event_1_0(channel, &of, &context);
	return unused;
}

static void *waits_for_event(void *unused)
{
	struct ibv_async_event event;
	begun = 1;
	ibv_get_async_event(ctx, &event);
	return unused;
}

static void *opens(void *unused)
{
	for (;;) {
		struct ibv_context *other = open_device();
		struct ibv_port_attr port;
		if (ibv_query_port(other, 1, &port) || ibv_close_device(other))
			die("opening");
		begun = 1;
		pthread_testcancel();
	}
	return unused;
}

static void cancel(const char *name, void *(*body)(void *))
{
	uint64_t state = 7;
	int cancelled = 0;
	for (int i = 0; i < ROUNDS; i++) {
		pthread_t thread;
		void *end;
		begun = 0;
		if (pthread_create(&thread, NULL, body, NULL))
			die("pthread_create");
		while (!begun)
			sched_yield();
		usleep(rnd(&state) % 300);
		pthread_cancel(thread);
		pthread_join(thread, &end);
		cancelled += end == PTHREAD_CANCELED;
	}
	check_eq(cancelled, ROUNDS, "threads that were cancelled: %s", name);
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc))
		;
	send_one();
	check(1, "%s: messages pass after that", name);
}

int main(void)
{
	set_up();
	cancel("in ibv_get_async_event", waits_for_event);
	cancel("in ibv_get_cq_event", waits_for_completion);
	get_cq_event_1_0 = (int (*)(struct ibv_comp_channel *, struct ibv_cq **, void **))dlvsym(RTLD_DEFAULT, "ibv_get_cq_event", "IBVERBS_1.0");
	if (!get_cq_event_1_0)
		die("no ibv_get_cq_event@IBVERBS_1.0");
	cancel("in ibv_get_cq_event of libibverbs 1.0", waits_as_of_old);
	cancel("sending and polling", sends);
	cancel("making objects", makes_objects);
	cancel("opening the device", opens);
	int bad = ibv_destroy_qp(qp[0]) | ibv_destroy_qp(qp[1]) | ibv_destroy_cq(cq) | ibv_destroy_cq(armed) | ibv_destroy_comp_channel(channel);
	bad |= ibv_dereg_mr(mr) | ibv_dealloc_pd(pd) | ibv_close_device(ctx);
	check_eq(bad, 0, "everything is destroyed");
	return finish();
}
