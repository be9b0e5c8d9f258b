/* All calls of a small program; see the header. */
#include "rig.h"
#include "first_to_last.h"

enum { LENGTH = 20000, TARGET = 30000 };

static unsigned char buf[1 << 16];
static struct run_failure *failure;

/* Records the first failure; returns `good`. */
static int is(int good, const char *verb, int err)
{
	if (!good && !failure->verb) {
		failure->verb = verb;
		failure->err = err;
	}
	return good;
}

/* Records the first wrong result; returns `good`. */
static int right(int good, const char *what)
{
	if (!good && !failure->wrong)
		failure->wrong = what;
	return good;
}

static int connected(struct ibv_qp *qp, uint32_t to, uint16_t lid)
{
	int err = rc_to_rts(qp, to, lid, IBV_ACCESS_REMOTE_READ);

	return is(err == 0, "ibv_modify_qp", err);
}

/* Posts one request from a to b, waits on the channel, polls the completions, compares the
 * bytes. */
static int goes(struct ibv_qp *a, struct ibv_qp *b, struct ibv_mr *mr, struct ibv_comp_channel *ch, struct ibv_cq *cq, enum ibv_wr_opcode op)
{
	struct ibv_sge from = { (uintptr_t)buf, LENGTH, mr->lkey }, to = { (uintptr_t)buf + TARGET, LENGTH, mr->lkey };
	struct ibv_recv_wr rw = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr sw = { .sg_list = &from, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	int wanted = op == IBV_WR_SEND ? 2 : 1, got = 0, err;
	size_t source = op == IBV_WR_SEND ? 0 : TARGET, target = TARGET - source;
	struct ibv_cq *of;
	void *context;

	fill(buf + source, LENGTH, op + 1);
	memset(buf + target, 0, LENGTH);
	sw.wr.rdma.remote_addr = (uintptr_t)buf + TARGET;
	sw.wr.rdma.rkey = mr->rkey;
	err = ibv_req_notify_cq(cq, 0);
	if (!is(err == 0, "ibv_req_notify_cq", err))
		return 0;
	err = op == IBV_WR_SEND ? ibv_post_recv(b, &rw, &bad_recv) : 0;
	if (!is(err == 0, "ibv_post_recv", err))
		return 0;
	err = ibv_post_send(a, &sw, &bad_send);
	if (!is(err == 0, "ibv_post_send", err))
		return 0;
	if (!is(ibv_get_cq_event(ch, &of, &context) == 0, "ibv_get_cq_event", errno))
		return 0;
	ibv_ack_cq_events(cq, 1);
	for (uint64_t end = now_us() + WAIT_US; got < wanted && now_us() < end;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);
		if (!right(n >= 0, "ibv_poll_cq fails"))
			return 0;
		if (n == 1 && !is(wc.status == IBV_WC_SUCCESS, "a completion", wc.status))
			return 0;
		got += n;
	}
	return right(got == wanted, "a completion is missing") && right(verify(buf + target, LENGTH, op + 1) < 0, "the bytes differ");
}

enum run_result first_to_last(struct run_failure *into)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = NULL;
	struct ibv_pd *pd = NULL;
	struct ibv_mr *mr = NULL;
	struct ibv_comp_channel *ch = NULL;
	struct ibv_cq *cq = NULL;
	struct ibv_srq *srq = NULL;
	struct ibv_qp *qp[2] = { NULL, NULL };
	struct ibv_srq_init_attr sa = { .attr = { 4, 1, 0 } };
	struct ibv_port_attr port;
	int err;

	failure = into;
	if (!is(list != NULL, "ibv_get_device_list", errno))
		goto out;
	/* The library reports a plugin that cannot be loaded as a missing plugin. */
	if (!is(list[0] != NULL, "no device", ENODEV))
		goto out;
	ctx = ibv_open_device(list[0]);
	if (!is(ctx != NULL, "ibv_open_device", errno))
		goto out;
	pd = ibv_alloc_pd(ctx);
	if (!is(pd != NULL, "ibv_alloc_pd", errno))
		goto out;
	mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!is(mr != NULL, "ibv_reg_mr", errno))
		goto out;
	ch = ibv_create_comp_channel(ctx);
	if (!is(ch != NULL, "ibv_create_comp_channel", errno))
		goto out;
	cq = ibv_create_cq(ctx, 64, NULL, ch, 0);
	if (!is(cq != NULL, "ibv_create_cq", errno))
		goto out;
	srq = ibv_create_srq(pd, &sa);
	if (!is(srq != NULL, "ibv_create_srq", errno))
		goto out;
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 2, 2, 64 } };
		qp[i] = ibv_create_qp(pd, &qa);
		if (!is(qp[i] != NULL, "ibv_create_qp", errno))
			goto out;
	}
	err = ibv_query_port(ctx, 1, &port);
	if (!is(err == 0, "ibv_query_port", err) || !connected(qp[0], qp[1]->qp_num, port.lid) || !connected(qp[1], qp[0]->qp_num, port.lid))
		goto out;
	if (goes(qp[0], qp[1], mr, ch, cq, IBV_WR_SEND))
		goes(qp[0], qp[1], mr, ch, cq, IBV_WR_RDMA_READ);
out:
	for (int i = 0; i < 2; i++)
		right(!qp[i] || ibv_destroy_qp(qp[i]) == 0, "ibv_destroy_qp fails");
	right(!srq || ibv_destroy_srq(srq) == 0, "ibv_destroy_srq fails");
	right(!cq || ibv_destroy_cq(cq) == 0, "ibv_destroy_cq fails");
	right(!ch || ibv_destroy_comp_channel(ch) == 0, "ibv_destroy_comp_channel fails");
	right(!mr || ibv_dereg_mr(mr) == 0, "ibv_dereg_mr fails");
	right(!pd || ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd fails");
	right(!ctx || ibv_close_device(ctx) == 0, "ibv_close_device fails");
	if (list)
		ibv_free_device_list(list);
	return failure->wrong ? WRONG : failure->verb ? REFUSED : WORKED;
}
