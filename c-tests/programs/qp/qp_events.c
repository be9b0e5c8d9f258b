/*
 * Asynchronous events of QPs, and the states that stop the send queue: SQD and its drained event,
 * SQE and the return to RTS, IBV_EVENT_COMM_EST, IBV_EVENT_QP_LAST_WQE_REACHED. Objects with
 * unacknowledged events cannot be destroyed. ibv_modify_qp(3), ibv_get_async_event(3).
 */
#include "rig.h"
#include "asleep.h"

#define BIG (3u << 20)

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static unsigned char *buf;
static union ibv_gid gid;
static struct ibv_port_attr port;
static struct ibv_cq *cq;

static struct ibv_qp *qp_of(enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type, .cap = { 16, 16, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &qa);
	if (!qp)
		die("ibv_create_qp: %s", strerror(errno));
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 9, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	if (ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)))
		die("to INIT");
	return qp;
}

static struct address address_of(struct ibv_qp *qp)
{
	return (struct address){ .qpn = qp->qp_num, .psn = qp->qp_num * 77 & 0xffffff, .qkey = 9, .rkey = mr->rkey, .addr = (uintptr_t)buf, .lid = port.lid, .gid = gid };
}

static void to_rtr(struct ibv_qp *qp, struct address to)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_RTR,
				  .path_mtu = port.active_mtu,
				  .dest_qp_num = to.qpn,
				  .rq_psn = to.psn,
				  .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 1,
				  .ah_attr = { .is_global = 1, .grh = { .dgid = to.gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() }, .port_num = 1 } };
	int mask = IBV_QP_STATE;
	if (qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (ibv_modify_qp(qp, &at, mask))
		die("to RTR");
}

static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_RTS, .sq_psn = qp->qp_num * 77 & 0xffffff, .max_rd_atomic = 1, .retry_cnt = 7, .rnr_retry = 7, .timeout = 14 };
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT;
	if (ibv_modify_qp(qp, &at, mask))
		die("to RTS");
}

static int to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr at = { .qp_state = state };
	return ibv_modify_qp(qp, &at, IBV_QP_STATE);
}

static int to_sqd(struct ibv_qp *qp, int notify)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = (uint8_t)notify };
	return ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
}

static struct ibv_qp_attr query(struct ibv_qp *qp)
{
	struct ibv_qp_attr at;
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(qp, &at, IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY, &init))
		die("ibv_query_qp");
	return at;
}

static void receive(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sg = { (uintptr_t)buf + BIG, 4096, mr->lkey };
	struct ibv_recv_wr w = { .wr_id = id, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &w, &bad))
		die("ibv_post_recv");
}

static int send_key(struct ibv_qp *qp, uint64_t id, uint32_t len, uint32_t lkey, struct ibv_ah *ah, uint32_t qpn)
{
	struct ibv_sge sg = { (uintptr_t)buf, len, lkey };
	struct ibv_send_wr w = { .wr_id = id, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (ah) {
		w.wr.ud.ah = ah;
		w.wr.ud.remote_qpn = qpn;
		w.wr.ud.remote_qkey = 9;
	}
	return ibv_post_send(qp, &w, &bad);
}

static int send_one(struct ibv_qp *qp, uint64_t id, uint32_t len)
{
	return send_key(qp, id, len, mr->lkey, NULL, 0);
}

/* The next event, acknowledged; -1 if none comes within `ms`. */
static int event_of(void *element, int ms)
{
	struct ibv_async_event ev;
	if (!readable(ctx->async_fd, ms) || ibv_get_async_event(ctx, &ev))
		return -1;
	int type = (void *)ev.element.qp == element ? (int)ev.event_type : -2;
	ibv_ack_async_event(&ev);
	return type;
}

static void drain(struct end *e)
{
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, NULL);
	struct address peer = end_open(e, defaults());
	to_rtr(qp, peer);
	to_rts(qp);
	end_connect(e, address_of(qp));
	struct ibv_wc w;
	/* Nothing under way. */
	check_eq(to_sqd(qp, 1), 0, "to SQD with nothing under way");
	check_eq(event_of(qp, 20000), IBV_EVENT_SQ_DRAINED, "the event");
	struct ibv_qp_attr at = query(qp);
	check(at.qp_state == IBV_QPS_SQD && at.cur_qp_state == IBV_QPS_SQD && !at.sq_draining && at.en_sqd_async_notify == 1, "ibv_query_qp in SQD");
	check_eq(to_state(qp, IBV_QPS_RTS), 0, "back to RTS");
	check_eq(to_sqd(qp, 0), 0, "to SQD, event not wanted");
	check_eq(event_of(qp, 50), -1, "no event");
	check_eq(to_state(qp, IBV_QPS_RTS), 0, "back to RTS");
	/* A message without a posted receive. */
	if (send_one(qp, 1, 100))
		die("ibv_post_send");
	check_eq(to_sqd(qp, 1), 0, "to SQD with a message under way");
	check_eq(send_one(qp, 2, 100), 0, "posting in SQD");
	check(query(qp).sq_draining, "ibv_query_qp says that it is draining");
	check_eq(event_of(qp, 50), -1, "and there is no event yet");
	end_recv(e, one_piece(IBV_WR_SEND, 10, 0, 4096));
	end_recv(e, one_piece(IBV_WR_SEND, 11, 0, 4096));
	check_eq(end_wait(e, RECVS).wr_id, 10, "the message arrives");
	wait_completion(cq, &w);
	check(w.wr_id == 1 && w.status == IBV_WC_SUCCESS, "and completes");
	check_eq(event_of(qp, 20000), IBV_EVENT_SQ_DRAINED, "the event");
	check(!query(qp).sq_draining, "ibv_query_qp says that it has drained");
	check(!end_try(e, RECVS, &w, QUIET_US) && !try_completion(cq, &w, QUIET_US), "what was posted in SQD is not sent");
	check_eq(to_state(qp, IBV_QPS_RTS), 0, "back to RTS");
	check_eq(end_wait(e, RECVS).wr_id, 11, "it is sent now");
	wait_completion(cq, &w);
	check(w.wr_id == 2 && w.status == IBV_WC_SUCCESS, "and completes");
	check_eq(event_of(qp, 50), -1, "with no more events");
	/* A large message, begun. */
	fill(buf, BIG, 5);
	end_recv(e, one_piece(IBV_WR_SEND, 12, 0, BIG));
	if (send_one(qp, 3, BIG) || send_one(qp, 4, 10))
		die("ibv_post_send");
	check_eq(to_sqd(qp, 1), 0, "to SQD within a large message");
	check_eq(end_wait(e, RECVS).byte_len, BIG, "it arrives whole");
	check_eq(end_verify(e, 0, BIG, 5), -1, "and right");
	wait_completion(cq, &w);
	check(w.wr_id == 3 && w.status == IBV_WC_SUCCESS, "and completes");
	/* The second one may have been begun as well, and then has no receive. */
	end_recv(e, one_piece(IBV_WR_SEND, 13, 0, 4096));
	check_eq(event_of(qp, 20000), IBV_EVENT_SQ_DRAINED, "the event");
	check_eq(to_state(qp, IBV_QPS_RTS), 0, "back to RTS");
	wait_completion(cq, &w);
	check(w.wr_id == 4 && w.status == IBV_WC_SUCCESS, "the message behind it completes");
	/* From SQD to ERR: what waits is flushed. */
	check_eq(to_sqd(qp, 0), 0, "to SQD");
	send_one(qp, 5, 10);
	check_eq(to_state(qp, IBV_QPS_ERR), 0, "to ERR");
	wait_completion(cq, &w);
	check(w.wr_id == 5 && w.status == IBV_WC_WR_FLUSH_ERR && w.vendor_err != 0, "what waited is flushed");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	end_close(e);
}

/* IBTA 1.7 11.6.3. */
static void local_error(struct end *e, enum ibv_qp_type type)
{
	const char *name = type == IBV_QPT_UD ? "UD" : "UC";
	struct ibv_qp *qp = qp_of(type, NULL);
	struct options o = defaults();
	o.type = type;
	o.qkey = 9;
	struct address peer = end_open(e, o);
	to_rtr(qp, peer);
	to_rts(qp);
	end_connect(e, address_of(qp));
	struct ibv_ah_attr aa = { .is_global = 1, .grh = { .dgid = peer.gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() }, .port_num = 1 };
	struct ibv_ah *ah = type == IBV_QPT_UD ? ibv_create_ah(pd, &aa) : NULL;
	struct ibv_wc w;
	end_recv(e, one_piece(IBV_WR_SEND, 10, 0, 4096));
	if (send_key(qp, 1, 16, mr->lkey + 1, ah, peer.qpn))
		die("ibv_post_send");
	wait_completion(cq, &w);
	check(w.wr_id == 1 && w.status == IBV_WC_LOC_PROT_ERR && w.vendor_err != 0, "%s: a wrong lkey: %s", name, ibv_wc_status_str(w.status));
	check_eq(query(qp).qp_state, IBV_QPS_SQE, "%s: the state", name);
	check_eq(send_key(qp, 2, 16, mr->lkey, ah, peer.qpn), 0, "%s: posting in SQE", name);
	wait_completion(cq, &w);
	check(w.wr_id == 2 && w.status == IBV_WC_WR_FLUSH_ERR, "%s: is flushed", name);
	/* Receiving goes on. */
	receive(qp, 20);
	struct request r = one_piece(IBV_WR_SEND, 3, 0, 16);
	r.qpn = qp->qp_num;
	r.qkey = 9;
	end_send(e, r);
	wait_completion(cq, &w);
	check(w.wr_id == 20 && w.status == IBV_WC_SUCCESS, "%s: receiving in SQE", name);
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE };
	check_eq(ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_CUR_STATE), 0, "%s: back to RTS", name);
	check_eq(send_key(qp, 4, 16, mr->lkey, ah, peer.qpn), 0, "%s: posting", name);
	wait_completion(cq, &w);
	check(w.wr_id == 4 && w.status == IBV_WC_SUCCESS, "%s: completes", name);
	check_eq(end_wait(e, RECVS).wr_id, 10, "%s: arrives, and nothing before it did", name);
	if (ah)
		check_eq(ibv_destroy_ah(ah), 0, "ibv_destroy_ah");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	end_close(e);
}

/* IBTA 1.7 11.6.3.1. */
static void established(struct end *e, enum ibv_qp_type type)
{
	const char *name = type == IBV_QPT_RC ? "RC" : "UC";
	struct ibv_qp *qp = qp_of(type, NULL);
	struct options o = defaults();
	o.type = type;
	struct address peer = end_open(e, o);
	struct ibv_wc w;
	receive(qp, 1);
	receive(qp, 2);
	receive(qp, 3);
	to_rtr(qp, peer);
	end_connect(e, address_of(qp));
	check_eq(event_of(qp, 50), -1, "%s: no event before something arrives", name);
	for (int i = 1; i <= 2; i++) {
		end_send(e, one_piece(IBV_WR_SEND, 1, 0, 16));
		wait_completion(cq, &w);
		check(w.wr_id == (uint64_t)i && w.status == IBV_WC_SUCCESS, "%s: message %d arrives in RTR", name, i);
	}
	check_eq(event_of(qp, 20000), IBV_EVENT_COMM_EST, "%s: the event", name);
	check_eq(event_of(qp, 50), -1, "%s: once", name);
	to_rts(qp);
	end_send(e, one_piece(IBV_WR_SEND, 1, 0, 16));
	wait_completion(cq, &w);
	check_eq(event_of(qp, 50), -1, "%s: none in RTS", name);
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	end_close(e);
}

/* Destroying waits for acknowledgements: a thread of its own for each kind of object. */
static int destroy_qp(void *p)
{
	return ibv_destroy_qp(p);
}

static int destroy_srq(void *p)
{
	return ibv_destroy_srq(p);
}

static int destroy_cq(void *p)
{
	return ibv_destroy_cq(p);
}

static void blocks(int (*destroy)(void *), void *object, struct ibv_async_event *ev, const char *what)
{
	struct call end = { .make = destroy, .object = object };
	check(call_sleeps(&end), "%s waits for the acknowledgement of an event", what);
	ibv_ack_async_event(ev);
	check_eq(call_result(&end), 0, "and returns after it");
}

static void unacknowledged(struct end *e)
{
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, srq);
	struct address peer = end_open(e, defaults());
	to_rtr(qp, peer);
	to_rts(qp);
	end_connect(e, address_of(qp));
	struct ibv_srq_attr limit = { .srq_limit = 1 };
	struct ibv_async_event limit_event, last;
	check_eq(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0, "a limit");
	struct ibv_sge sg = { (uintptr_t)buf, 100, mr->lkey };
	struct ibv_recv_wr r = { .wr_id = 1, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_srq_recv(srq, &r, &bad))
		die("ibv_post_srq_recv");
	end_send(e, one_piece(IBV_WR_SEND, 1, 0, 16));
	struct ibv_wc w;
	wait_completion(cq, &w);
	if (!readable(ctx->async_fd, 20000) || ibv_get_async_event(ctx, &limit_event))
		die("no limit event");
	check(limit_event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && limit_event.element.srq == srq, "the limit event");
	check_eq(to_state(qp, IBV_QPS_ERR), 0, "a QP of a shared receive queue to ERR");
	if (!readable(ctx->async_fd, 20000) || ibv_get_async_event(ctx, &last))
		die("no last WQE event");
	check(last.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && last.element.qp == qp, "IBV_EVENT_QP_LAST_WQE_REACHED");
	check_eq(ibv_destroy_srq(srq), EBUSY, "destroying a queue that a QP uses");
	blocks(destroy_qp, qp, &last, "ibv_destroy_qp");
	blocks(destroy_srq, srq, &limit_event, "ibv_destroy_srq");
	end_close(e);
	/* A CQ that overran; its QP is destroyed first. */
	struct ibv_cq *keep = cq, *small = cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	qp = qp_of(IBV_QPT_RC, NULL);
	to_rtr(qp, address_of(qp));
	to_rts(qp);
	for (int i = 0; i < small->cqe + 1; i++) {
		receive(qp, 1);
		send_one(qp, 1, 16);
	}
	struct ibv_async_event ev, overrun = { 0 };
	while (readable(ctx->async_fd, 20000) && !ibv_get_async_event(ctx, &ev)) {
		if (ev.event_type == IBV_EVENT_CQ_ERR) {
			overrun = ev;
			break;
		}
		ibv_ack_async_event(&ev);
	}
	check(overrun.element.cq == small, "IBV_EVENT_CQ_ERR");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp with events that nobody has got");
	blocks(destroy_cq, small, &overrun, "ibv_destroy_cq");
	cq = keep;
	check_eq(event_of(NULL, 50), -1, "and nothing is heard of destroyed objects");
}

/* No thread polls: a message of many chunks arrives, and wakes the thread that waits for it. */
static void asleep(struct end *e)
{
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, NULL);
	struct options o = defaults();
	o.channel = 1;
	struct address peer = end_open(e, o);
	to_rtr(qp, peer);
	to_rts(qp);
	end_connect(e, address_of(qp));
	int missed = 0;
	for (int i = 0; i < 20; i++) {
		struct ibv_wc w;
		end_recv(e, one_piece(IBV_WR_SEND, 1, 0, BIG));
		end_arm(e, 0);
		/* Time for the service threads of both processes to fall asleep. If the time is too
		 * short, the case is easier. */
		usleep(10000);
		if (send_one(qp, 1, BIG))
			die("ibv_post_send");
		missed += !end_event(e, 3000);
		if (end_wait(e, RECVS).status)
			die("the message failed");
		wait_completion(cq, &w);
	}
	check_eq(missed, 0, "large messages between two that sleep");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	end_close(e);
}

int main(int argc, char **argv)
{
	struct end *e = end_new(two_processes(argc, argv));
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	buf = mmap(NULL, 2 * BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mr = ibv_reg_mr(pd, buf, 2 * BIG, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	if (!pd || !mr || !cq || ibv_query_gid(ctx, 1, hosts_differ(), &gid) || ibv_query_port(ctx, 1, &port))
		die("set up");
	drain(e);
	local_error(e, IBV_QPT_UD);
	local_error(e, IBV_QPT_UC);
	established(e, IBV_QPT_RC);
	established(e, IBV_QPT_UC);
	unacknowledged(e);
	asleep(e);
	check_eq(ibv_destroy_cq(cq), 0, "ibv_destroy_cq");
	check_eq(ibv_dereg_mr(mr), 0, "ibv_dereg_mr");
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	end_free(e);
	return finish();
}
