/*
 * A process without free descriptors: a completion channel needs one descriptor, as with a kernel
 * device. Objects that use the channel can be destroyed with unread events.
 */
#include "rig.h"
#include <fcntl.h>
#include <sys/resource.h>

static unsigned char buf[64];

static struct ibv_qp *qp_of(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &a);

	if (!qp)
		die("ibv_create_qp: %m");
	return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t to, uint16_t lid)
{
	int err = rc_to_rts(qp, to, lid, 0);

	if (err)
		die("ibv_modify_qp: %s", strerror(err));
}

/* Opens files until there are no descriptors, then closes `left`. */
static int use_up(int *files, int most, int left)
{
	int n = 0;

	while (n < most && (files[n] = open("/dev/null", O_RDONLY)) >= 0)
		n++;
	if (n == most || errno != EMFILE)
		die("descriptors do not run out");
	while (left-- > 0)
		close(files[--n]);
	return n;
}

static void run(struct ibv_context *ctx, struct ibv_pd *pd, struct ibv_mr *mr, uint16_t lid, int left)
{
	static int files[1024];
	int n = use_up(files, 1024, left);
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);

	if (!check(ch != NULL, "a completion channel with %d descriptor%s left", left, left == 1 ? "" : "s"))
		goto out;
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, ch, 0);
	struct ibv_srq_init_attr sa = { .attr = { 4, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	if (!cq || !srq)
		die("set up: %m");
	struct ibv_qp *a = qp_of(pd, cq, NULL), *b = qp_of(pd, cq, srq);
	connect_to(a, b->qp_num, lid);
	connect_to(b, a->qp_num, lid);
	struct ibv_sge sg = { (uintptr_t)buf, 8, mr->lkey };
	struct ibv_recv_wr rw = { .sg_list = &sg, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr sw = { .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	/* One event is read and acknowledged, the next one stays unread. */
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc;
		if (ibv_req_notify_cq(cq, 0) || ibv_post_srq_recv(srq, &rw, &bad_recv) || ibv_post_send(a, &sw, &bad_send))
			die("post");
		wait_completion(cq, &wc);
		wait_completion(cq, &wc);
		check_eq(wc.status, IBV_WC_SUCCESS, "a message");
		if (i == 0) {
			struct ibv_cq *of;
			void *context;
			if (ibv_get_cq_event(ch, &of, &context) || of != cq)
				die("ibv_get_cq_event: %m");
			ibv_ack_cq_events(cq, 1);
		}
	}
	check(readable(ch->fd, 1000), "an event that nobody reads");
	/* The event IBV_EVENT_QP_LAST_WQE_REACHED of the SRQ's QP stays unread as well. */
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	ibv_modify_qp(b, &err, IBV_QP_STATE);
	check(readable(ctx->async_fd, 1000), "an asynchronous event that nobody reads");
	alarm(20);
	check(!ibv_destroy_qp(a) && !ibv_destroy_qp(b), "QPs are destroyed");
	check(!ibv_destroy_srq(srq), "a shared receive queue is destroyed");
	check(!ibv_destroy_cq(cq), "a completion queue is destroyed");
	alarm(0);
	check(!readable(ch->fd, 0) && !readable(ctx->async_fd, 0), "no event is left of what was destroyed");
	check(!ibv_destroy_comp_channel(ch), "the channel is destroyed");
out:
	while (n > 0)
		close(files[--n]);
}

int main(void)
{
	struct rlimit few = { 200, 200 };

	if (setrlimit(RLIMIT_NOFILE, &few))
		die("setrlimit");
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE) : NULL;
	struct ibv_port_attr port;

	if (!mr || ibv_query_port(ctx, 1, &port))
		die("set up");
	/* A pipe takes two descriptors. */
	for (int left = 1; left <= 3; left++)
		run(ctx, pd, mr, port.lid, left);
	check(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx), "the rest is given back");
	return finish();
}
