/*
 * Fault rules (ferroverbs-soft(7), "Faults") on XRC connections, which behave as on RC with an SRQ.
 * One process sends under the rules; the other one has the receive QP and the SRQ.
 */
#include "xrc_pair.h"

/* Connects both processes under `rules`, which apply to the sender. */
static void begin(const char *rules, uint8_t timeout, uint8_t retry, uint8_t rnr_retry, int receives)
{
	if (!role) {
		setenv("FERROVERBS_SOFT_FAULTS", rules, 1);
		printf("-- %s\n", rules);
	}
	xrc_open(0, timeout, retry, rnr_retry, receives);
}

static void end(void)
{
	xrc_close();
	unsetenv("FERROVERBS_SOFT_FAULTS");
}

static void post(enum ibv_wr_opcode op, uint64_t id)
{
	struct ibv_sge sg = { (uintptr_t)buf + 1024 * id, LEN, mr->lkey };
	struct ibv_send_wr w = { .wr_id = id, .sg_list = &sg, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED }, *bad;
	w.qp_type.xrc.remote_srqn = theirs.srqn;
	w.wr.rdma.remote_addr = theirs.addr;
	w.wr.rdma.rkey = theirs.rkey;
	if (op == IBV_WR_SEND)
		fill(buf + 1024 * id, LEN, (uint32_t)id);
	if (ibv_post_send(qp, &w, &bad))
		die("ibv_post_send");
}

static void sends(int count)
{
	for (int i = 1; i <= count; i++)
		post(IBV_WR_SEND, (uint64_t)i);
}

static void sent(int first, int last, enum ibv_wc_status status)
{
	for (int i = first; i <= last; i++) {
		struct ibv_wc w;
		wait_completion(cq, &w);
		check(w.wr_id == (uint64_t)i && w.status == status, "request %d: %s (is %d: %s)", i, ibv_wc_status_str(status), (int)w.wr_id,
		      ibv_wc_status_str(w.status));
	}
}

/* The next receives have messages first to last. */
static void received(int first, int last, int from)
{
	for (int i = first; i <= last; i++, from++) {
		struct ibv_wc w;
		wait_completion(cq, &w);
		check(w.wr_id == (uint64_t)from && w.status == IBV_WC_SUCCESS && w.byte_len == LEN && verify(buf + 1024 * from, LEN, (uint32_t)i) < 0,
		      "message %d (receive %d: %s)", i, (int)w.wr_id, ibv_wc_status_str(w.status));
	}
}

static void silence(const char *what)
{
	struct ibv_wc w;
	check(!try_completion(cq, &w, QUIET_US), "%s: nothing more", what);
}

static enum ibv_qp_state state(enum ibv_qp_state wanted)
{
	struct ibv_qp_attr at;
	struct ibv_qp_init_attr i;
	uint64_t until = now_us() + 1000000;
	while (!ibv_query_qp(qp, &at, IBV_QP_STATE, &i) && at.qp_state != wanted && now_us() < until)
		usleep(1000);
	return at.qp_state;
}

/* All arrive, in order: what was lost or refused was sent again. */
static void survives(const char *rules)
{
	begin(rules, 4, 3, 7, 6);
	if (role) {
		received(1, 5, 1);
		silence(rules);
	} else {
		sends(5);
		sent(1, 5, IBV_WC_SUCCESS);
		check_eq(state(IBV_QPS_RTS), IBV_QPS_RTS, "the sender's state");
	}
	end();
}

/* The third request fails and the requests before it arrive. The receiver gets `event` (0: no
 * event, and its QP is intact), and its SRQ keeps the receives. */
static void fails(const char *rules, enum ibv_wc_status status, int event)
{
	begin(rules, 4, 3, 2, 6);
	if (role) {
		received(1, 2, 1);
		void *element = NULL;
		if (event) {
			int got = async_event(ctx, &element);
			check(got == event && element == qp, "%s (is %d)", ibv_event_type_str((enum ibv_event_type)event), got);
			check_eq(async_event(ctx, &element), IBV_EVENT_QP_LAST_WQE_REACHED, "and the last");
			check_eq(state(IBV_QPS_ERR), IBV_QPS_ERR, "the receiver's state");
		} else {
			check_eq(state(IBV_QPS_RTS), IBV_QPS_RTS, "the receiver knows nothing");
		}
		silence("the shared queue is not flushed");
	} else {
		sends(4);
		sent(1, 2, IBV_WC_SUCCESS);
		sent(3, 3, status);
		sent(4, 4, IBV_WC_WR_FLUSH_ERR);
		check_eq(state(IBV_QPS_ERR), IBV_QPS_ERR, "the sender's state");
		if (status == IBV_WC_WR_FLUSH_ERR) {
			void *element = NULL;
			check(async_event(ctx, &element) == IBV_EVENT_QP_FATAL && element == qp, "IBV_EVENT_QP_FATAL");
		}
	}
	end();
}

static void late(void)
{
	begin("delay qp=1 nth=2 for=1s", 14, 7, 7, 4);
	if (role) {
		received(1, 1, 1);
		silence("a delay");
		received(2, 3, 2);
	} else {
		sends(3);
		sent(1, 3, IBV_WC_SUCCESS);
	}
	end();
}

/* Rules for reads concern reads. */
static void reads(void)
{
	begin("access-error op=read nth=2", 14, 7, 7, 2);
	if (role) {
		received(1, 1, 1);
		void *element = NULL;
		check(async_event(ctx, &element) == IBV_EVENT_QP_ACCESS_ERR && element == qp, "IBV_EVENT_QP_ACCESS_ERR");
		check_eq(async_event(ctx, &element), IBV_EVENT_QP_LAST_WQE_REACHED, "and the last");
	} else {
		post(IBV_WR_SEND, 1);
		post(IBV_WR_RDMA_READ, 2);
		post(IBV_WR_RDMA_WRITE, 3);
		post(IBV_WR_RDMA_READ, 4);
		post(IBV_WR_RDMA_WRITE, 5);
		sent(1, 3, IBV_WC_SUCCESS);
		sent(4, 4, IBV_WC_REM_ACCESS_ERR);
		sent(5, 5, IBV_WC_WR_FLUSH_ERR);
	}
	end();
}

int main(void)
{
	partner_fork();
	survives("drop qp=1 nth=3; drop qp=1 nth=5 times=3");
	survives("rnr type=xrc every=2 times=2");
	survives("drop type=rc every=1 times=all; drop op=atomic every=1 times=all");
	late();
	reads();
	fails("drop qp=1 nth=3 times=4", IBV_WC_RETRY_EXC_ERR, 0);
	fails("rnr qp=1 nth=3 times=all", IBV_WC_RNR_RETRY_EXC_ERR, 0);
	fails("local-error type=xrc nth=3", IBV_WC_LOC_PROT_ERR, 0);
	fails("qp-error qp=1 nth=3", IBV_WC_WR_FLUSH_ERR, 0);
	fails("access-error qp=1 nth=3", IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	fails("invalid-request qp=1 nth=3", IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
	fails("remote-error qp=1 nth=3", IBV_WC_REM_OP_ERR, IBV_EVENT_QP_FATAL);
	return partner_finish();
}
