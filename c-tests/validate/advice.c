/*
 * One case for each check that is off unless somebody asks for it, and its right twin: advice ID wrong|right. See misuse.c.
 */
#include "pair.h"
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* A queue pair that is connected with itself; receives are posted before, as many as wanted. */
static void alone(int receives, uint8_t timeout)
{
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	if (receives)
		want(!receive(a, piece(64)), "a receive");
	to_rtr(a, a);
	want(!to_rts(a, timeout, 1), "RTS");
}

static void mr_07(void)
{
	void *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *of_map = ibv_reg_mr(pd, map, SIZE, ALL);
	want(of_map != NULL, "ibv_reg_mr");
	if (wrong)
		munmap(map, SIZE);
	want(!ibv_dereg_mr(of_map), "ibv_dereg_mr");
}

static void mr_08(void)
{
	pair();
	struct ibv_sge sge = piece(64);
	want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
	if (wrong)
		buf[7]++;
	ok(cq);
	buf[8]++;
}

/* What libibverbs would say depends on the kernel; the layer finds ours first. */
enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return wrong ? IBV_FORK_DISABLED : IBV_FORK_UNNEEDED;
}

static void mr_14(void)
{
	pid_t child = fork();
	if (!child)
		_exit(0);
	want(child > 0 && waitpid(child, NULL, 0) == child, "fork");
}

static void qp_05(void)
{
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	struct ibv_qp_attr attr = ready(a);
	attr.ah_attr.is_global = !wrong;
	ibv_modify_qp(a, &attr, rtr_mask(a));
}

static void qp_10(void)
{
	rnr_retry = wrong ? 7 : 6;
	alone(0, 14);
}

static void qp_11(void)
{
	alone(0, wrong ? 0 : 14);
}

static void qp_14(void)
{
	pair();
	struct ibv_sge sge = piece(64);
	want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
	if (!wrong)
		ok(cq);
	want(!ibv_destroy_qp(a), "ibv_destroy_qp");
	a = NULL;
}

static void qp_16(void)
{
	struct ibv_cq *small = ibv_create_cq(ctx, wrong ? 4 : 4 * DEPTH, NULL, NULL, 0);
	want(small != NULL, "ibv_create_cq");
	a = make(IBV_QPT_RC, small, NULL, 0);
	want(!ibv_destroy_qp(a) && !ibv_destroy_cq(small), "destroying");
	a = NULL;
}

static void wr_06(void)
{
	alone(!wrong, 14);
}

static void wr_10(void)
{
	a = make(IBV_QPT_UD, cq, NULL, 0);
	to_init(a);
	want(!receive(a, piece(wrong ? 40 : 64)), "a receive");
}

static void with_srq(uint32_t limit)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .srq_limit = limit };
	struct ibv_sge sge = piece(64);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	shared = ibv_create_srq(pd, &init);
	want(shared != NULL, "ibv_create_srq");
	for (uint32_t i = 0; i < limit; i++)
		want(!ibv_post_srq_recv(shared, &wr, &bad), "ibv_post_srq_recv");
	if (limit)
		want(!ibv_modify_srq(shared, &attr, IBV_SRQ_LIMIT), "ibv_modify_srq");
	couple(IBV_QPT_RC, cq, shared, 0);
}

static void event_of(enum ibv_event_type type)
{
	struct ibv_async_event event;
	do {
		want(!ibv_get_async_event(ctx, &event), "ibv_get_async_event");
		ibv_ack_async_event(&event);
	} while (event.event_type != type);
}

static void cq_09(void)
{
	with_srq(0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	want(!ibv_modify_qp(b, &attr, IBV_QP_STATE), "ERR");
	struct pollfd waiting = { .fd = ctx->async_fd, .events = POLLIN };
	want(poll(&waiting, 1, -1) == 1, "poll");
	if (!wrong)
		event_of(IBV_EVENT_QP_LAST_WQE_REACHED);
	want(!ibv_destroy_qp(b), "ibv_destroy_qp");
	b = NULL;
}

static void ob_04(void)
{
	with_srq(2);
	struct ibv_sge sge = piece(64);
	want(!post(a, request(IBV_WR_SEND, &sge, 1)), "ibv_post_send");
	ok(cq);
	ok(cq);
	event_of(IBV_EVENT_SRQ_LIMIT_REACHED);
	struct ibv_srq_attr attr = { .srq_limit = 1 };
	if (!wrong)
		want(!ibv_modify_srq(shared, &attr, IBV_SRQ_LIMIT), "ibv_modify_srq");
}

static void ob_06(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	shared = ibv_create_srq(pd, &init);
	struct ibv_qp_init_attr of = { .send_cq = cq, .recv_cq = cq, .srq = shared, .qp_type = IBV_QPT_RC, .cap = { 4, wrong ? 4 : 0, 1, 0, 0 } };
	a = shared ? ibv_create_qp(pd, &of) : NULL;
	want(a != NULL, "ibv_create_qp");
}

static const struct misuse cases[] = {
	{ "MR-07", mr_07 }, { "MR-08", mr_08 }, { "MR-14", mr_14 }, { "QP-05", qp_05 }, { "QP-10", qp_10 }, { "QP-11", qp_11 }, { "QP-14", qp_14 },
	{ "QP-16", qp_16 }, { "WR-06", wr_06 }, { "WR-10", wr_10 }, { "CQ-09", cq_09 }, { "OB-04", ob_04 }, { "OB-06", ob_06 },
};

int main(int argc, char **argv)
{
	return run_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
