/*
 * Fault rules (ferroverbs-soft(7), "Faults") on RAW_PACKET QPs and work queues: each frame behaves
 * as on a cable or adapter with that fault.
 *
 * A process sends frames under the rules, and its partner receives them. Each frame has a number.
 *
 * Map of this file: helpers send numbered frames and check arrivals; `begin` opens a QP in each
 * process. `lost` tests lost frames; `segmented` tests segmented requests; `late` tests delays.
 * `local_error` and `qp_error` test errors of a QP; `overrun` and `work_queue_overrun` test CQ
 * overruns. `port_of_the_sender` and `port_of_the_receiver` test ports that are down. `main` forks
 * the partner and calls the tests.
 */
#include "frames.h"
#include "control.h"
#include "asleep.h"

enum { FRAMES = 5, HEADER = 14 };

static struct ibv_flow *station(struct ibv_qp *qp)
{
	struct {
		struct ibv_flow_attr a;
		struct ibv_flow_spec_eth e;
	} f = { .a = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof f, .num_of_specs = 1, .port = 1 },
		.e = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof f.e } };
	be(f.e.val.dst_mac, MAC_B, 6);
	memset(f.e.mask.dst_mac, 0xff, 6);
	struct ibv_flow *flow = ibv_create_flow(qp, &f.a);
	if (!flow)
		die("ibv_create_flow: %s", strerror(errno));
	return flow;
}

static uint32_t numbered(unsigned char *f, int number)
{
	unsigned char *at = eth(f, MAC_B, MAC_A, -1, 0x88b5);
	fill(be(at, (uint64_t)number, 1), 100, (uint32_t)number);
	return HEADER + 101;
}

/* Sends frame `number`, signalled: its completion has the number. */
static int send_numbered(struct ibv_qp *qp, int number)
{
	unsigned char *at = buf + FRAME * (32 + (unsigned)number);
	struct ibv_sge sg = { (uintptr_t)at, numbered(at, number), mr->lkey };
	struct ibv_send_wr wr = { .wr_id = (uint64_t)number, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	return ibv_post_send(qp, &wr, &bad);
}

static void send_all(struct ibv_qp *qp, int first, int last)
{
	for (int i = first; i <= last; i++)
		if (send_numbered(qp, i))
			die("ibv_post_send");
}

static void sent(int first, int last, enum ibv_wc_status status)
{
	for (int i = first; i <= last; i++) {
		struct ibv_wc w;
		wait_completion(cq, &w);
		check(w.wr_id == (uint64_t)i && w.status == status, "frame %d: %s (is %d: %s)", i, ibv_wc_status_str(status), (int)w.wr_id,
		      ibv_wc_status_str(w.status));
	}
}

/* The numbers of the next `count` frames: "1 3". */
static const char *arrived(int count)
{
	static char text[100];
	char *at = text;
	*at = 0;
	for (int i = 0; i < count; i++) {
		struct ibv_wc w;
		wait_completion(cq, &w);
		const unsigned char *p = buf + FRAME * w.wr_id + HEADER;
		int good = w.status == IBV_WC_SUCCESS && w.byte_len == HEADER + 101 && verify(p + 1, 100, *p) < 0;
		at += sprintf(at, "%s%d%s", i ? " " : "", *p, good ? "" : "?");
	}
	return text;
}

static void silence(const char *what)
{
	struct ibv_wc w;
	check(!try_completion(cq, &w, QUIET_US), "%s: nothing more", what);
}

static enum ibv_qp_state state(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	return ibv_query_qp(qp, &a, IBV_QP_STATE, &i) ? (enum ibv_qp_state)-1 : a.qp_state;
}

static int to(struct ibv_qp *qp, enum ibv_qp_state next)
{
	struct ibv_qp_attr a = { .qp_state = next };
	return ibv_modify_qp(qp, &a, IBV_QP_STATE);
}

static struct ibv_qp *qp;
static struct ibv_flow *flow;

/* Opens the objects of a test. The sending process has the fault rules `rules`; the receiving
 * process has none. */
static void begin(const char *rules)
{
	if (!role) {
		setenv("FERROVERBS_SOFT_FAULTS", rules, 1);
		printf("-- %s\n", rules);
	}
	frames_open();
	qp = raw_qp(0, 64);
	flow = NULL;
	if (role) {
		flow = station(qp);
		for (uint64_t i = 0; i < 24; i++)
			frame_recv(qp, i);
	}
	meet();
}

static void end(void)
{
	meet();
	check_eq((flow && ibv_destroy_flow(flow)) | ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	frames_close();
	unsetenv("FERROVERBS_SOFT_FAULTS");
	meet();
}

/* ---- lost and late frames ---- */

static void lost(const char *rules, int count, const char *wanted)
{
	begin(rules);
	if (!role) {
		send_all(qp, 1, FRAMES);
		sent(1, FRAMES, IBV_WC_SUCCESS);
		check_eq(state(qp), IBV_QPS_RTS, "the state of who lost frames");
	}
	meet();
	if (role) {
		const char *got = arrived(count);
		check(!strcmp(got, wanted), "frames %s arrive (are %s)", wanted, got);
		silence(rules);
	}
	end();
}

/* A request that is segmented into three frames counts once. */
static void segmented(void)
{
	enum { MSS = 100 };
	begin("drop qp=1 op=send nth=2; drop qp=1 op=send nth=4");
	if (!role) {
		unsigned char header[54];
		tcp(ipv4(eth(header, MAC_B, MAC_A, -1, 0x0800), 0x0a000001, 0x0a000002, 6, 0, 0), 1000, 2000, 1, 0x10);
		struct ibv_sge sg = { (uintptr_t)buf, 3 * MSS, mr->lkey };
		struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_TSO, .send_flags = IBV_SEND_SIGNALED,
					  .tso = { header, sizeof header, MSS } }, *bad;
		send_all(qp, 1, 1);
		for (; wr.wr_id <= 3; wr.wr_id++)
			check_eq(ibv_post_send(qp, &wr, &bad), 0, "IBV_WR_TSO");
		send_all(qp, 4, 5);
		sent(1, 5, IBV_WC_SUCCESS);
	}
	meet();
	if (role) {
		const char *got = arrived(1);
		check(!strcmp(got, "1"), "the first arrives (%s)", got);
		for (int i = 0; i < 3; i++) {
			struct ibv_wc w;
			wait_completion(cq, &w);
			check(w.status == IBV_WC_SUCCESS && w.byte_len == 54 + MSS, "segment %d of the third", i);
		}
		got = arrived(1);
		check(!strcmp(got, "5"), "and the fifth (%s)", got);
		silence("the others");
	}
	end();
}

static void late(void)
{
	begin("delay qp=1 nth=2 for=1s");
	if (!role)
		send_all(qp, 1, 3);
	else {
		const char *got = arrived(1);
		check(!strcmp(got, "1"), "the first arrives (%s)", got);
		silence("a delay");
		got = arrived(2);
		check(!strcmp(got, "2 3"), "then the others, in order (%s)", got);
	}
	if (!role)
		sent(1, 3, IBV_WC_SUCCESS);
	end();
}

/* ---- errors of QPs, CQs and work queues ---- */

static void local_error(void)
{
	begin("local-error type=raw nth=3");
	if (!role) {
		send_all(qp, 1, FRAMES);
		sent(1, 2, IBV_WC_SUCCESS);
		sent(3, 3, IBV_WC_LOC_PROT_ERR);
		sent(4, FRAMES, IBV_WC_WR_FLUSH_ERR);
		check_eq(state(qp), IBV_QPS_SQE, "its state");
		check_eq(to(qp, IBV_QPS_RTS), 0, "SQE to RTS");
		send_all(qp, 6, 6);
		sent(6, 6, IBV_WC_SUCCESS);
	} else {
		const char *got = arrived(3);
		check(!strcmp(got, "1 2 6"), "what was sent before and after arrives (%s)", got);
	}
	meet();
	if (role)
		silence("what was flushed");
	end();
}

static void qp_error(void)
{
	begin("qp-error qp=1 nth=4");
	if (!role) {
		frame_recv(qp, 20);
		send_all(qp, 1, FRAMES);
		sent(1, 3, IBV_WC_SUCCESS);
		/* The send queue and the receive queue may be flushed in either order. */
		int sends = 0, receives = 0;
		for (int i = 0; i < 3; i++) {
			struct ibv_wc w;
			wait_completion(cq, &w);
			check_eq(w.status, IBV_WC_WR_FLUSH_ERR, "flushed: %d", (int)w.wr_id);
			if (w.wr_id == 20)
				receives++;
			else
				sends++;
		}
		check(sends == 2 && receives == 1, "two frames and a receive");
		void *element = NULL;
		check(async_event(ctx, &element) == IBV_EVENT_QP_FATAL && element == qp, "IBV_EVENT_QP_FATAL names it");
		check_eq(state(qp), IBV_QPS_ERR, "its state");
	}
	meet();
	if (role) {
		const char *got = arrived(3);
		check(!strcmp(got, "1 2 3"), "what was sent before arrives (%s)", got);
		silence("a QP that broke");
	}
	end();
}

static void overrun(void)
{
	begin("cq-overrun cq=1 nth=3");
	if (!role) {
		send_all(qp, 1, FRAMES);
		void *element = NULL;
		check(async_event(ctx, &element) == IBV_EVENT_CQ_ERR && element == cq, "IBV_EVENT_CQ_ERR names the queue");
		check(async_event(ctx, &element) == IBV_EVENT_QP_FATAL && element == qp, "IBV_EVENT_QP_FATAL its QP");
		sent(1, 2, IBV_WC_SUCCESS);
		struct ibv_wc w;
		check(ibv_poll_cq(cq, 1, &w) < 0, "then polling fails");
		uint64_t until = now_us() + 1000000;
		while (state(qp) != IBV_QPS_ERR && now_us() < until)
			usleep(1000);
		check_eq(state(qp), IBV_QPS_ERR, "the state of the QP");
	}
	end();
}

static int destroy_wq(void *wq)
{
	return ibv_destroy_wq(wq);
}

/* Two work queues in a table; the CQ of one of them overruns. */
static void work_queue_overrun(void)
{
	if (!role) {
		printf("-- work queues: cq-overrun cq=2 nth=2\n");
		setenv("FERROVERBS_SOFT_FAULTS", "cq-overrun cq=2 nth=2", 1);
	}
	frames_open();
	if (role) {
		struct ibv_qp *sender = raw_qp(0, 0);
		meet();
		send_all(sender, 1, 3);
		sent(1, 3, IBV_WC_SUCCESS);
		meet();
		check_eq(ibv_destroy_qp(sender), 0, "ibv_destroy_qp");
		frames_close();
		return;
	}
	struct ibv_cq *own = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_wq *wq[2];
	for (int i = 0; i < 2; i++) {
		struct ibv_wq_init_attr wa = { .wq_type = IBV_WQT_RQ, .max_wr = 8, .max_sge = 1, .pd = pd, .cq = i ? cq : own };
		struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
		wq[i] = ibv_create_wq(ctx, &wa);
		if (!wq[i] || ibv_modify_wq(wq[i], &ready))
			die("a work queue: %s", strerror(errno));
		for (unsigned k = 0; k < 4; k++) {
			struct ibv_sge sg = { (uintptr_t)buf + FRAME * (8u * (unsigned)i + k), FRAME, mr->lkey };
			struct ibv_recv_wr wr = { .wr_id = 8u * (unsigned)i + k, .sg_list = &sg, .num_sge = 1 }, *bad;
			if (ibv_post_wq_recv(wq[i], &wr, &bad))
				die("ibv_post_wq_recv");
		}
	}
	/* Both table entries name the first queue; the second queue is in no table. */
	struct ibv_wq *both[2] = { wq[0], wq[0] };
	struct ibv_rwq_ind_table_init_attr ta = { .log_ind_tbl_size = 1, .ind_tbl = both };
	struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(ctx, &ta);
	static uint8_t key[40] = { 1, 2, 3 };
	struct ibv_qp_init_attr_ex qa = { .qp_type = IBV_QPT_RAW_PACKET, .pd = pd,
					  .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
					  .rwq_ind_tbl = table,
					  .rx_hash_conf = { .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = sizeof key, .rx_hash_key = key,
							    .rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 } };
	struct ibv_qp *spread = table ? ibv_create_qp_ex(ctx, &qa) : NULL;
	if (!spread)
		die("a QP that spreads: %s", strerror(errno));
	struct ibv_flow *f = station(spread);
	meet();
	void *element = NULL;
	struct ibv_async_event fatal = { .event_type = -1 };
	check(async_event(ctx, &element) == IBV_EVENT_CQ_ERR && element == own, "IBV_EVENT_CQ_ERR names the queue");
	if (readable(ctx->async_fd, 10000))
		ibv_get_async_event(ctx, &fatal);
	check(fatal.event_type == IBV_EVENT_WQ_FATAL && fatal.element.wq == wq[0], "IBV_EVENT_WQ_FATAL its work queue");
	check_eq(wq[0]->state, IBV_WQS_RDY, "the state that the application knows stays");
	struct ibv_wc w;
	check(ibv_poll_cq(own, 1, &w) == 1 && w.status == IBV_WC_SUCCESS, "what came before can be polled");
	check(ibv_poll_cq(own, 1, &w) < 0, "then polling fails");
	silence("the other work queue");
	check(!readable(ctx->async_fd, 0), "and no event");
	struct ibv_wq_attr again = { .attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE, .wq_state = IBV_WQS_RESET, .curr_wq_state = IBV_WQS_ERR };
	check_eq(ibv_modify_wq(wq[0], &again), 0, "it was in ERR, and goes to RESET");
	meet();
	check_eq(ibv_destroy_flow(f) | ibv_destroy_qp(spread) | ibv_destroy_rwq_ind_table(table) | ibv_destroy_wq(wq[1]), 0, "all others are destroyed");
	struct call end_of = { .make = destroy_wq, .object = wq[0] };
	check(call_sleeps(&end_of), "ibv_destroy_wq waits for the acknowledgement of its event");
	ibv_ack_async_event(&fatal);
	check_eq(call_result(&end_of) | ibv_destroy_cq(own), 0, "and returns after it");
	frames_close();
	unsetenv("FERROVERBS_SOFT_FAULTS");
}

/* ---- the port ---- */

static void event(enum ibv_event_type wanted)
{
	check(next_of_port(ctx, wanted), "%s", ibv_event_type_str(wanted));
}

/* The third frame takes the sender's port down. */
static void port_of_the_sender(void)
{
	begin("port-down qp=1 nth=3");
	if (!role) {
		send_all(qp, 1, FRAMES);
		sent(1, FRAMES, IBV_WC_SUCCESS);
		event(IBV_EVENT_PORT_ERR);
		control("port-up");
		event(IBV_EVENT_PORT_ACTIVE);
		send_all(qp, 6, 6);
		sent(6, 6, IBV_WC_SUCCESS);
	} else {
		const char *got = arrived(3);
		check(!strcmp(got, "1 2 6"), "frames of a port that was down are lost (%s)", got);
	}
	end();
}

/* The control pipe takes the receiver's port down and up. */
static void port_of_the_receiver(void)
{
	begin("");
	if (role) {
		control("port-down");
		event(IBV_EVENT_PORT_ERR);
	}
	meet();
	if (!role) {
		send_all(qp, 1, 3);
		sent(1, 3, IBV_WC_SUCCESS);
	}
	meet();
	if (role) {
		silence("frames to a port that is down");
		control("port-up");
		event(IBV_EVENT_PORT_ACTIVE);
	}
	meet();
	if (!role) {
		send_all(qp, 4, 5);
		sent(4, 5, IBV_WC_SUCCESS);
	} else {
		const char *got = arrived(2);
		check(!strcmp(got, "4 5"), "frames arrive again (%s)", got);
	}
	end();
}

int main(void)
{
	partner_fork();
	setenv("FERROVERBS_SOFT_CONTROL", "faults_raw-control-%p", 1);
	lost("drop qp=1 nth=3", 4, "1 2 4 5");
	lost("drop type=raw every=2 times=3", 3, "1 3 5");
	lost("rnr qp=1 nth=2", 4, "1 3 4 5");
	lost("access-error qp=1 nth=1; invalid-request qp=1 nth=2; remote-error qp=1 nth=3", 2, "4 5");
	lost("drop type=ud every=1; drop op=write every=1; drop type=xrc every=1", 5, "1 2 3 4 5");
	segmented();
	late();
	local_error();
	qp_error();
	overrun();
	work_queue_overrun();
	port_of_the_sender();
	port_of_the_receiver();
	return partner_finish();
}
