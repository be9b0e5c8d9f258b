/*
 * Device list, open, close, events and objects from many threads at once: the thread safety that
 * libibverbs(3) promises. Each thread has its own device, and one thread shares a context with all
 * others. The test counts the results; a sanitizer checks the accesses (usage: device_threads
 * [ROUNDS]).
 */
#include "rig.h"

enum { THREADS = 6 };

static int rounds = 40;
static struct ibv_context *shared;
static struct ibv_pd *shared_pd;
static pthread_barrier_t gate;
static int failures, objects, listed;

static int good(int ok, const char *what)
{
	if (!ok) {
		__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
		printf("  %s: %s\n", what, strerror(errno));
	}
	return ok;
}

/* One of everything in a context, and back. */
static void exercise(struct ibv_context *ctx, struct ibv_pd *given)
{
	static __thread unsigned char buf[8192];
	struct ibv_pd *pd = given ? given : ibv_alloc_pd(ctx);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq, *armed;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct ibv_srq *srq;
	struct ibv_ah *ah;
	struct ibv_device_attr dev;
	struct ibv_port_attr port;
	union ibv_gid gid;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr got;
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_ah_attr to = { .port_num = 1, .dlid = 1 };

	if (!good(pd && channel, "PD and channel"))
		return;
	good(ibv_query_device(ctx, &dev) == 0, "ibv_query_device");
	good(ibv_query_port(ctx, 1, &port) == 0, "ibv_query_port");
	good(ibv_query_gid(ctx, 1, 0, &gid) == 0, "ibv_query_gid");
	to.dlid = port.lid;
	cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	armed = ibv_create_cq(ctx, 16, cq, channel, 0);
	mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	srq = ibv_create_srq(pd, &srq_init);
	ah = ibv_create_ah(pd, &to);
	if (good(cq && armed && mr && srq && ah, "CQs, MR, SRQ and AH")) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = armed, .srq = srq, .qp_type = IBV_QPT_RC,
						 .cap = { .max_send_wr = 4, .max_send_sge = 1, .max_recv_wr = 4, .max_recv_sge = 1 } };

		good(ibv_req_notify_cq(armed, 0) == 0, "ibv_req_notify_cq");
		qp = ibv_create_qp(pd, &init);
		if (good(qp != NULL, "ibv_create_qp")) {
			memset(&attr, 0, sizeof(attr));
			attr.qp_state = IBV_QPS_INIT;
			attr.port_num = 1;
			good(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
			     "ibv_modify_qp");
			good(ibv_query_qp(qp, &attr, IBV_QP_STATE, &got) == 0 && attr.qp_state == IBV_QPS_INIT, "ibv_query_qp");
			good(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
			__atomic_add_fetch(&objects, 1, __ATOMIC_RELAXED);
		}
		ibv_ack_cq_events(armed, 0);
	}
	good(!ah || ibv_destroy_ah(ah) == 0, "ibv_destroy_ah");
	good(!srq || ibv_destroy_srq(srq) == 0, "ibv_destroy_srq");
	good(!mr || ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
	good(!armed || ibv_destroy_cq(armed) == 0, "ibv_destroy_cq");
	good(!cq || ibv_destroy_cq(cq) == 0, "ibv_destroy_cq");
	good(ibv_destroy_comp_channel(channel) == 0, "ibv_destroy_comp_channel");
	if (!given)
		good(ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd");
}

static void *life(void *arg)
{
	unsigned me = (unsigned)(uintptr_t)arg;

	pthread_barrier_wait(&gate);
	for (int round = 0; round < rounds; round++) {
		int n = 0;
		struct ibv_device **list = ibv_get_device_list(&n);

		if (!good(list && n > 0, "ibv_get_device_list"))
			return NULL;
		__atomic_add_fetch(&listed, 1, __ATOMIC_RELAXED);
		if ((me + (unsigned)round) % 3) {
			struct ibv_context *ctx = ibv_open_device(list[0]);

			/* The list may go while the device is in use. */
			ibv_free_device_list(list);
			if (good(ctx != NULL, "ibv_open_device")) {
				exercise(ctx, NULL);
				good(ibv_close_device(ctx) == 0, "ibv_close_device");
			}
		} else {
			good(ibv_get_device_name(list[0]) != NULL && ibv_get_device_guid(list[0]) != 0, "name and GUID");
			exercise(shared, shared_pd);
			ibv_free_device_list(list);
		}
		good(ibv_is_fork_initialized() == IBV_FORK_ENABLED, "ibv_is_fork_initialized");
	}
	return NULL;
}

/* Sleeps on the events of the shared context until told to stop; no event arrives here. */
static int stop[2];

static void *listener(void *arg)
{
	struct pollfd fds[2] = { { .fd = shared->async_fd, .events = POLLIN }, { .fd = stop[0], .events = POLLIN } };

	(void)arg;
	while (poll(fds, 2, -1) > 0 && !fds[1].revents) {
		struct ibv_async_event event;

		if (ibv_get_async_event(shared, &event) == 0)
			ibv_ack_async_event(&event);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS], events;

	if (argc > 1 && atoi(argv[1]) > 0)
		rounds = atoi(argv[1]);
	if (ibv_fork_init() || pipe(stop))
		die("ibv_fork_init or pipe: %s", strerror(errno));
	shared = open_device();
	shared_pd = ibv_alloc_pd(shared);
	if (!shared_pd)
		die("ibv_alloc_pd: %s", strerror(errno));
	pthread_barrier_init(&gate, NULL, THREADS);
	pthread_create(&events, NULL, listener, NULL);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, life, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	if (write(stop[1], "", 1) != 1)
		die("write: %s", strerror(errno));
	pthread_join(events, NULL);
	check_eq(failures, 0, "failures");
	check_eq(listed, THREADS * rounds, "device lists");
	check_eq(objects, THREADS * rounds, "sets of objects");
	check_eq(ibv_dealloc_pd(shared_pd), 0, "the shared PD has no users left");
	check_eq(ibv_close_device(shared), 0, "the shared context");
	return finish();
}
