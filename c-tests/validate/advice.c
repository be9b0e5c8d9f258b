/*
 * One case, wrong and right, for each check that is off by default, and for QP-07: advice ID
 * wrong|right. See misuse.c.
 */
#include "pair.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
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

/* A receive and a READ, receives of two queue pairs, and of a shared queue. */
static void mr_09(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_recv_wr wr = { .num_sge = 1 }, *bad;
	struct ibv_sge sge = piece(64), last = piece(64);
	wr.sg_list = &last;
	pair();
	for (int round = 0; round < 2; round++) {
		want(!receive(b, sge), "a receive");
		sge.addr += wrong ? 63 : 64;
		want(!post(a, request(IBV_WR_RDMA_READ, &sge, 1)), "ibv_post_send");
		ok(cq);
		want(!post(a, request(IBV_WR_SEND, &sge, 1)), "ibv_post_send");
		ok(cq);
		ok(cq);
	}
	shared = ibv_create_srq(pd, &init);
	want(shared && !ibv_post_srq_recv(shared, &wr, &bad), "ibv_post_srq_recv");
	last.addr += 64;
	sge.addr = last.addr + 64;
	want(!ibv_post_srq_recv(shared, &wr, &bad) && !receive(b, sge), "receives");
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

/* Nor does every machine have an address: the layer finds this table first. */
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
	(void)context, (void)flags, (void)size;
	static const union ibv_gid gids[] = { { .raw = { 0xfe, 0x80, [15] = 1 } }, { .raw = { [10] = 0xff, 0xff, 192, 0, 2, 1 } } };
	if (index >= 2)
		return ENODATA;
	*entry = (struct ibv_gid_entry){ .gid = gids[index], .gid_index = index, .port_num = port, .gid_type = IBV_GID_TYPE_ROCE_V2 };
	return 0;
}

static struct ibv_qp_attr from(uint8_t index, int v4)
{
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	struct ibv_qp_attr attr = ready(a);
	attr.ah_attr.grh.sgid_index = index;
	attr.ah_attr.grh.dgid = (union ibv_gid){ .raw = { 0xfd, [15] = 2 } };
	if (v4)
		attr.ah_attr.grh.dgid = (union ibv_gid){ .raw = { [10] = 0xff, 0xff, 192, 0, 2, 2 } };
	return attr;
}

static void qp_06(void)
{
	struct ibv_qp_attr attr = from(!wrong, !wrong);
	ibv_modify_qp(a, &attr, rtr_mask(a));
}

static void qp_07(void)
{
	struct ibv_qp_attr attr = from(1, !wrong);
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
	shared = limited();
	below_limit();
	struct pollfd waiting = { .fd = ctx->async_fd, .events = POLLIN };
	want(poll(&waiting, 1, -1) == 1, "poll");
	if (!wrong)
		event_of(IBV_EVENT_SRQ_LIMIT_REACHED);
	want(!ibv_destroy_qp(b), "ibv_destroy_qp");
	b = NULL;
}

/* Two messages, and a wait for each: right is to look once more when the queue is armed. */
static void cq_04(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *evented = channel ? ibv_create_cq(ctx, DEPTH, NULL, channel, 0) : NULL;
	want(evented != NULL, "a CQ with a channel");
	couple(IBV_QPT_RC, evented, NULL, 0);
	struct ibv_sge sge = piece(64);
	for (int i = 0; i < 2; i++) {
		struct ibv_cq *found;
		struct ibv_wc wc;
		void *mine;
		want(!ibv_req_notify_cq(evented, 0), "ibv_req_notify_cq");
		if (!wrong)
			want(!ibv_poll_cq(evented, 1, &wc), "nothing yet");
		want(!post(a, request(IBV_WR_RDMA_WRITE, &sge, 1)), "ibv_post_send");
		want(!ibv_get_cq_event(channel, &found, &mine) && found == evented, "ibv_get_cq_event");
		ibv_ack_cq_events(evented, 1);
		ok(evented);
	}
	want(!ibv_destroy_qp(a) && !ibv_destroy_cq(evented) && !ibv_destroy_comp_channel(channel), "destroying");
	a = NULL;
}

static struct ibv_cq *evented;

static void arm_and_send(void)
{
	struct ibv_sge sge = piece(64);
	want(!ibv_req_notify_cq(evented, 0) && !receive(b, sge), "ibv_req_notify_cq, and a receive");
	want(!post(a, request(IBV_WR_SEND, &sge, 1)), "ibv_post_send");
}

/* A CQ that is armed for solicited completions, and a send that completes in it; with RECEIVES an
 * unsolicited message. */
static void cq_10(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *plain = cq;
	int receives = getenv("RECEIVES") != NULL;
	evented = channel ? ibv_create_cq(ctx, DEPTH, NULL, channel, 0) : NULL;
	want(evented != NULL, "a CQ with a channel");
	if (receives)
		cq = evented;
	couple(IBV_QPT_RC, receives ? plain : evented, NULL, 0);
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(receives ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, &sge, 1);
	if (receives) {
		want(!receive(b, piece(64)), "a receive");
		if (!wrong)
			wr.send_flags |= IBV_SEND_SOLICITED;
	}
	want(!ibv_req_notify_cq(evented, wrong || receives), "ibv_req_notify_cq");
	want(!post(a, wr), "ibv_post_send");
	pthread_t helper;
	if (wrong)
		want(!pthread_create(&helper, NULL, after_report, (void *)arm_and_send), "pthread_create");
	struct ibv_cq *found;
	void *mine;
	want(!ibv_get_cq_event(channel, &found, &mine) && found == evented, "ibv_get_cq_event");
	ibv_ack_cq_events(evented, 1);
	if (wrong)
		pthread_join(helper, NULL);
	cq = plain;
	want(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(evented) && !ibv_destroy_comp_channel(channel), "destroying");
	a = b = NULL;
}

static void ob_04(void)
{
	shared = limited();
	below_limit();
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
	{ "MR-07", mr_07 }, { "MR-08", mr_08 }, { "MR-09", mr_09 }, { "MR-14", mr_14 }, { "QP-06", qp_06 }, { "QP-07", qp_07 }, { "QP-10", qp_10 }, { "QP-11", qp_11 }, { "QP-14", qp_14 },
	{ "QP-16", qp_16 }, { "WR-06", wr_06 }, { "WR-10", wr_10 }, { "CQ-04", cq_04 }, { "CQ-09", cq_09 }, { "CQ-10", cq_10 }, { "OB-04", ob_04 }, { "OB-06", ob_06 },
};

int main(int argc, char **argv)
{
	return run_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
