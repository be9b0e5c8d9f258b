/*
 * Fault rules (ferroverbs-soft(7), "Faults") over shared memory and between hosts: each kind and
 * each way of counting, with exactly the completions and events of a network or adapter with that
 * fault.
 *
 * Only the first QP of this process has faults, so the place of the peer makes no difference.
 *
 * Map of this file: `begin` sets the rules and connects end `a`, which sends, with end `b`; helpers
 * post requests and check completions. `drops` and `inline_data` test lost messages; `delays` tests
 * late messages. `not_ready` tests RNR NAKs; `refused` tests requests that the responder refuses.
 * `breaks` tests errors of the QP; `overruns` tests CQ overruns; `counting` tests rates, filters
 * and counters. `lists` tests lists of WRITEs; `again` tests a QP after a reset. `main` starts both
 * ends and calls the tests.
 */
#include "rig.h"

#define BIG (1u << 20)

static struct end *a, *b;
static struct address aa, ba;

static void begin(const char *faults, struct options o)
{
	setenv("FERROVERBS_SOFT_FAULTS", faults, 1);
	printf("-- %s\n", faults);
	pair_open(a, b, o, &aa, &ba);
}

static void end(void)
{
	pair_close(a, b);
	unsetenv("FERROVERBS_SOFT_FAULTS");
}

static struct options of_type(enum ibv_qp_type type)
{
	struct options o = defaults();
	o.type = type;
	return o;
}

static struct request request(enum ibv_wr_opcode op, uint64_t id, uint32_t len)
{
	struct request r = one_piece(op, id, 0, len);
	r.flags = IBV_SEND_SIGNALED;
	r.raddr = ba.addr + BIG;
	r.rkey = ba.rkey;
	r.qpn = ba.qpn;
	r.qkey = ba.qkey;
	return r;
}

static void receives(int n)
{
	for (int i = 1; i <= n; i++)
		if (end_recv(b, one_piece(IBV_WR_SEND, 100 + i, 0, 4096)))
			die("ibv_post_recv");
}

static void sends(int from, int to)
{
	for (int i = from; i <= to; i++)
		if (end_send(a, request(IBV_WR_SEND, i, 16)))
			die("ibv_post_send");
}

/* The next completion of the sender is of request `id`. */
static void sent(uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc w = end_wait(a, SENDS);
	check(w.wr_id == id && w.status == status, "request %d: %s (is %d: %s)", (int)id, ibv_wc_status_str(status), (int)w.wr_id,
	      ibv_wc_status_str(w.status));
}

static void all_sent(int from, int to, enum ibv_wc_status status)
{
	for (int i = from; i <= to; i++)
		sent(i, status);
}

/* The next `n` receives of the other end, from number `first` on, succeed. */
static void received(int first, int n)
{
	for (int i = first; i < first + n; i++) {
		struct ibv_wc w = end_wait(b, RECVS);
		check(w.wr_id == (uint64_t)(100 + i) && w.status == IBV_WC_SUCCESS, "receive %d (is %d: %s)", 100 + i, (int)w.wr_id,
		      ibv_wc_status_str(w.status));
	}
}

static void nothing_more(const char *what)
{
	struct ibv_wc w;
	check(!end_try(b, RECVS, &w, QUIET_US), "%s: nothing more arrives", what);
}

/* Whether the peer end has these bytes. On another host, unacknowledged bytes may arrive after the
 * completions. */
static int arrived(uint64_t offset, const unsigned char *wanted, size_t len)
{
	unsigned char bytes[1024];
	uint64_t until = now_us() + (hosts_differ() ? 1000000 : 0);
	do {
		end_read(b, offset, bytes, len);
		if (!memcmp(bytes, wanted, len))
			return 1;
	} while (now_us() < until);
	return 0;
}

/* ---- lost messages ---- */

static void drops(void)
{
	/* A timeout of about a second: the lost message is missing for a while, and then arrives
	 * before its successors. */
	struct options o = defaults();
	o.timeout = 18;
	begin("drop qp=1 nth=3", o);
	receives(4);
	sends(1, 4);
	all_sent(1, 2, IBV_WC_SUCCESS);
	received(1, 2);
	nothing_more("a lost message");
	all_sent(3, 4, IBV_WC_SUCCESS);
	received(3, 2);
	check_eq(end_state(a), IBV_QPS_RTS, "the state of a QP that lost something");
	end();

	/* A message is lost as often as the retries allow, then once more. */
	o = defaults();
	o.timeout = short_timeout();
	o.retry = 3;
	begin("drop qp=1 every=2 times=3", o);
	receives(6);
	sends(1, 6);
	all_sent(1, 6, IBV_WC_SUCCESS);
	received(1, 6);
	end();
	begin("drop qp=1 nth=2 times=4", o);
	receives(4);
	sends(1, 3);
	sent(1, IBV_WC_SUCCESS);
	sent(2, IBV_WC_RETRY_EXC_ERR);
	sent(3, IBV_WC_WR_FLUSH_ERR);
	received(1, 1);
	nothing_more("retries used up");
	check_eq(end_state(a), IBV_QPS_ERR, "its state");
	check_eq(end_state(b), IBV_QPS_RTS, "the other QP knows nothing");
	end();
	o.retry = 0;
	/* The WRITE before it has no second try. */
	o.timeout = hosts_differ() ? 18 : 4;
	begin("drop qp=1 nth=1 op=read times=all", o);
	end_send(a, request(IBV_WR_RDMA_WRITE, 1, 16));
	end_send(a, request(IBV_WR_RDMA_READ, 2, 16));
	sent(1, IBV_WC_SUCCESS);
	sent(2, IBV_WC_RETRY_EXC_ERR);
	end();

	/* Unreliable transports do not retransmit. */
	enum ibv_qp_type types[] = { IBV_QPT_UC, IBV_QPT_UD };
	for (int i = 0; i < 2; i++) {
		begin("drop qp=1 nth=2; drop qp=1 nth=4", of_type(types[i]));
		receives(5);
		sends(1, 5);
		all_sent(1, 5, IBV_WC_SUCCESS);
		/* Three arrive: 1, 3 and 5. */
		received(1, 3);
		nothing_more("unreliable");
		end();
	}

	/* A lost WRITE changes no memory. */
	begin("drop qp=1 op=write nth=1; drop qp=1 op=write every=3", of_type(IBV_QPT_UC));
	end_fill(a, 0, 64, 7);
	end_fill(b, BIG, 64, 9);
	for (int i = 1; i <= 3; i++)
		end_send(a, request(IBV_WR_RDMA_WRITE, i, 16));
	struct request far = request(IBV_WR_RDMA_WRITE, 4, 16);
	far.raddr += 16;
	end_send(a, far);
	all_sent(1, 4, IBV_WC_SUCCESS);
	check_eq(end_verify(b, BIG + 32, 0, 9), -1, "beyond, nothing changed");
	unsigned char bytes[32];
	fill(bytes, 16, 7);
	memcpy(bytes + 16, bytes, 16);
	check(arrived(BIG, bytes, sizeof bytes), "the second and the fourth WRITE were done");
	end();
}

static void inline_data(void)
{
	struct options o = defaults();
	o.inl = 64;
	o.timeout = short_timeout();
	begin("drop qp=1 nth=1; delay qp=1 nth=2 for=20ms", o);
	receives(2);
	end_fill(a, 0, 64, 3);
	struct request r = request(IBV_WR_SEND, 1, 64);
	r.flags |= IBV_SEND_INLINE;
	/* The rig overwrites the buffer after each post. */
	end_send(a, r);
	sent(1, IBV_WC_SUCCESS);
	received(1, 1);
	check_eq(end_verify(b, 0, 64, 3), -1, "inline data of a message that was sent again");
	end_fill(a, 0, 64, 4);
	r.id = 2;
	end_send(a, r);
	sent(2, IBV_WC_SUCCESS);
	received(2, 1);
	check_eq(end_verify(b, 0, 64, 4), -1, "and of one that was delayed");
	end();
}

/* ---- delayed messages ---- */

static void delays(void)
{
	begin("delay qp=1 for=1s nth=2", defaults());
	receives(4);
	sends(1, 4);
	received(1, 1);
	sent(1, IBV_WC_SUCCESS);
	nothing_more("a delay");
	received(2, 3);
	all_sent(2, 4, IBV_WC_SUCCESS);
	end();

	/* A delayed message leaves although no thread polls. */
	struct options o = defaults();
	o.channel = 1;
	begin("delay qp=1 for=50ms every=1", o);
	receives(1);
	end_arm(b, 0);
	sends(1, 1);
	check(end_event(b, 10000), "a delayed message wakes who waits for it");
	received(1, 1);
	sent(1, IBV_WC_SUCCESS);
	end();

	/* A delayed message has started, so it completes after the transition to SQD. */
	begin("delay qp=1 for=50ms nth=1", defaults());
	receives(2);
	sends(1, 2);
	check_eq(end_modify(a, IBV_QPS_SQD), 0, "to SQD within a delay");
	sent(1, IBV_WC_SUCCESS);
	received(1, 1);
	nothing_more("SQD");
	check_eq(end_modify(a, IBV_QPS_RTS), 0, "back to RTS");
	sent(2, IBV_WC_SUCCESS);
	received(2, 1);
	end();

	/* The QP goes to ERR during a delay. */
	begin("delay qp=1 for=1s nth=2", defaults());
	receives(2);
	sends(1, 3);
	sent(1, IBV_WC_SUCCESS);
	check_eq(end_modify(a, IBV_QPS_ERR), 0, "to ERR within a delay");
	all_sent(2, 3, IBV_WC_WR_FLUSH_ERR);
	end();

	begin("delay qp=1 for=20ms every=2", of_type(IBV_QPT_UD));
	receives(6);
	sends(1, 6);
	all_sent(1, 6, IBV_WC_SUCCESS);
	received(1, 6);
	end();
}

/* ---- requests that the responder refuses ---- */

static void not_ready(void)
{
	begin("rnr qp=1 op=send every=2 times=3", defaults());
	receives(6);
	sends(1, 6);
	all_sent(1, 6, IBV_WC_SUCCESS);
	received(1, 6);
	end();

	struct options o = defaults();
	o.rnr_retry = 2;
	begin("rnr qp=1 nth=3 times=3; rnr qp=1 nth=2 times=2", o);
	receives(4);
	/* A request that takes no receive is not counted. */
	end_send(a, request(IBV_WR_RDMA_WRITE, 9, 16));
	sends(1, 4);
	sent(9, IBV_WC_SUCCESS);
	all_sent(1, 2, IBV_WC_SUCCESS);
	sent(3, IBV_WC_RNR_RETRY_EXC_ERR);
	sent(4, IBV_WC_WR_FLUSH_ERR);
	received(1, 2);
	nothing_more("no receive");
	check_eq(end_state(a), IBV_QPS_ERR, "the sender's state");
	check_eq(end_state(b), IBV_QPS_RTS, "the receiver's state");
	end();
	o.rnr_retry = 0;
	begin("rnr qp=1 nth=1 times=all", o);
	receives(1);
	struct request r = request(IBV_WR_RDMA_WRITE_WITH_IMM, 1, 16);
	end_send(a, r);
	sent(1, IBV_WC_RNR_RETRY_EXC_ERR);
	end();
	begin("rnr qp=1 nth=1", of_type(IBV_QPT_UD));
	receives(2);
	sends(1, 2);
	all_sent(1, 2, IBV_WC_SUCCESS);
	received(1, 1);
	nothing_more("a datagram without a receive");
	end();
}

static void refused(void)
{
	enum ibv_qp_state other = hosts_differ() ? IBV_QPS_RTS : IBV_QPS_ERR;
	static const struct {
		const char *fault;
		enum ibv_wc_status status;
		int event;
	} kinds[] = {
		{ "access-error qp=1 nth=3", IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR },
		{ "invalid-request qp=1 nth=3", IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR },
		{ "remote-error qp=1 nth=3", IBV_WC_REM_OP_ERR, IBV_EVENT_QP_FATAL },
	};
	for (int i = 0; i < 3; i++) {
		begin(kinds[i].fault, defaults());
		receives(4);
		sends(1, 4);
		all_sent(1, 2, IBV_WC_SUCCESS);
		sent(3, kinds[i].status);
		sent(4, IBV_WC_WR_FLUSH_ERR);
		received(1, 2);
		check_eq(end_state_soon(a, IBV_QPS_ERR), IBV_QPS_ERR, "its own state");
		/* A peer on another host does not learn of the error. */
		check_eq(end_state_soon(b, other), other, "the state of the other end");
		if (other == IBV_QPS_ERR)
			check_eq(end_async(b), kinds[i].event, "the event at the other end");
		for (int k = 3; k <= 4 && other == IBV_QPS_ERR; k++) {
			struct ibv_wc w = end_wait(b, RECVS);
			check(w.wr_id == (uint64_t)(100 + k) && w.status == IBV_WC_WR_FLUSH_ERR, "receive %d is flushed", 100 + k);
		}
		end();
	}
	static const struct {
		const char *fault;
		enum ibv_wr_opcode op;
		enum ibv_wc_opcode done;
	} classes[] = {
		{ "access-error qp=1 op=write nth=2", IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE },
		{ "access-error qp=1 op=read nth=2", IBV_WR_RDMA_READ, IBV_WC_RDMA_READ },
		{ "access-error qp=1 op=atomic nth=2", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD },
	};
	for (int i = 0; i < 3; i++) {
		begin(classes[i].fault, defaults());
		receives(1);
		uint64_t word = 5;
		end_write(b, BIG, &word, 8);
		struct request r = request(classes[i].op, 1, 8);
		r.compare_add = 3;
		end_send(a, r);
		sends(2, 2);
		r.id = 3;
		end_send(a, r);
		all_sent(1, 2, IBV_WC_SUCCESS);
		struct ibv_wc w = end_wait(a, SENDS);
		check(w.wr_id == 3 && w.status == IBV_WC_REM_ACCESS_ERR && w.opcode == classes[i].done, "refused as what it was");
		end_read(b, BIG, &word, 8);
		if (classes[i].op == IBV_WR_ATOMIC_FETCH_AND_ADD)
			check_eq((long long)word, 8, "added once");
		received(1, 1);
		if (other == IBV_QPS_ERR)
			check_eq(end_async(b), IBV_EVENT_QP_ACCESS_ERR, "the event at the other end");
		end();
	}
	/* An unreliable sender gets no error response. */
	begin("access-error qp=1 nth=1", of_type(IBV_QPT_UC));
	receives(2);
	sends(1, 2);
	all_sent(1, 2, IBV_WC_SUCCESS);
	received(1, 1);
	nothing_more("an unreliable one");
	end();
}

/* ---- errors of QPs and CQs ---- */

static void breaks(void)
{
	begin("local-error qp=1 nth=2", defaults());
	receives(3);
	sends(1, 3);
	sent(1, IBV_WC_SUCCESS);
	sent(2, IBV_WC_LOC_PROT_ERR);
	sent(3, IBV_WC_WR_FLUSH_ERR);
	received(1, 1);
	check_eq(end_state(a), IBV_QPS_ERR, "its state");
	end();
	begin("local-error qp=1 nth=2", of_type(IBV_QPT_UC));
	receives(3);
	sends(1, 3);
	sent(1, IBV_WC_SUCCESS);
	sent(2, IBV_WC_LOC_PROT_ERR);
	sent(3, IBV_WC_WR_FLUSH_ERR);
	check_eq(end_state(a), IBV_QPS_SQE, "UC: its state");
	end();

	enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	for (int i = 0; i < 3; i++) {
		begin("qp-error qp=1 nth=4", of_type(types[i]));
		receives(6);
		end_recv(a, one_piece(IBV_WR_SEND, 50, 0, 4096));
		sends(1, 6);
		all_sent(1, 3, IBV_WC_SUCCESS);
		all_sent(4, 6, IBV_WC_WR_FLUSH_ERR);
		struct ibv_wc w = end_wait(a, RECVS);
		check(w.wr_id == 50 && w.status == IBV_WC_WR_FLUSH_ERR, "its receive is flushed");
		check_eq(end_async(a), IBV_EVENT_QP_FATAL, "the event");
		check_eq(end_state(a), IBV_QPS_ERR, "its state");
		received(1, 3);
		nothing_more("a QP that broke");
		end();
	}
}

static long poll_fails(struct parts *p, void *arg)
{
	(void)arg;
	struct ibv_wc w;
	return ibv_poll_cq(p->scq, 1, &w) < 0;
}

static void overruns(void)
{
	begin("cq-overrun cq=1 nth=3", defaults());
	receives(5);
	/* The CQ is far from full. */
	sends(1, 5);
	check_eq(end_async(a), IBV_EVENT_CQ_ERR, "the event of the queue");
	check_eq(end_async(a), IBV_EVENT_QP_FATAL, "the event of its QP");
	all_sent(1, 2, IBV_WC_SUCCESS);
	check(end_run(a, poll_fails, NULL, 0) == 1, "then polling fails");
	check_eq(end_state_soon(a, IBV_QPS_ERR), IBV_QPS_ERR, "the state of the QP");
	end();
	/* The receive CQ of the same end. */
	begin("cq-overrun cq=2 nth=1", defaults());
	end_recv(a, one_piece(IBV_WR_SEND, 1, 0, 4096));
	end_send(b, one_piece(IBV_WR_SEND, 2, 0, 16));
	check_eq(end_async(a), IBV_EVENT_CQ_ERR, "the event of the receive queue");
	check_eq(end_async(a), IBV_EVENT_QP_FATAL, "the event of its QP");
	end();
}

/* ---- counting ---- */

/* A bit for each of `n` messages that arrives. The immediate data is the message number. */
static uint64_t arrivals(int n)
{
	uint64_t got = 0;
	receives(n);
	for (int i = 0; i < n; i++) {
		struct request r = request(IBV_WR_SEND_WITH_IMM, i, 16);
		r.imm = (uint32_t)i;
		if (end_send(a, r))
			die("ibv_post_send");
		sent(i, IBV_WC_SUCCESS);
	}
	struct ibv_wc w;
	while (end_try(b, RECVS, &w, QUIET_US))
		got |= 1ull << w.imm_data;
	return got;
}

static void counting(void)
{
	/* Operations, from 1, that seed 7 with one in four selects; computed by an independent
	 * program. */
	static const int struck[] = { 2, 7, 10, 17, 21, 32, 35, 38, 39 };
	uint64_t wanted = (1ull << 40) - 1;
	for (size_t i = 0; i < sizeof struck / sizeof *struck; i++)
		wanted &= ~(1ull << (struck[i] - 1));
	for (int i = 0; i < 2; i++) {
		begin("drop qp=1 rate=1/4 seed=7", of_type(IBV_QPT_UC));
		check_eq((long long)arrivals(40), (long long)wanted, "what a seed lets through");
		end();
	}
	begin("drop qp=1 type=uc every=5", of_type(IBV_QPT_UC));
	check_eq((long long)arrivals(12), 0xdef, "all but every fifth");
	end();
	begin("drop qp=1 type=ud every=5", of_type(IBV_QPT_UC));
	check_eq((long long)arrivals(12), 0xfff, "no rule for this type");
	end();
	begin("drop qp=3 every=1", of_type(IBV_QPT_UC));
	check_eq((long long)arrivals(12), 0xfff, "no rule for this QP");
	end();

	/* Two QPs of this process in turns. */
	struct end *c = end_new(0);
	const char *rules[] = { "drop type=uc nth=3 per=device", "drop type=uc nth=3" };
	for (int i = 0; i < 2; i++) {
		setenv("FERROVERBS_SOFT_FAULTS", rules[i], 1);
		printf("-- %s\n", rules[i]);
		struct address ca = end_open(c, of_type(IBV_QPT_UC));
		struct address self = end_open(a, of_type(IBV_QPT_UC));
		end_connect(c, self);
		end_connect(a, ca);
		int got[2] = { 0, 0 };
		for (int k = 0; k < 4; k++) {
			end_recv(a, one_piece(IBV_WR_SEND, k, 0, 64));
			end_recv(c, one_piece(IBV_WR_SEND, k, 0, 64));
		}
		for (int k = 0; k < 4; k++) {
			struct request r = one_piece(IBV_WR_SEND, k, 0, 16);
			r.flags = IBV_SEND_SIGNALED;
			end_send(c, r);
			end_wait(c, SENDS);
			end_send(a, r);
			end_wait(a, SENDS);
		}
		struct ibv_wc w;
		while (end_try(a, RECVS, &w, QUIET_US))
			got[0]++;
		while (end_try(c, RECVS, &w, QUIET_US))
			got[1]++;
		/* The third message of the device is the second one of the first QP. */
		check_eq(got[0], 3, "of the first QP's messages arrive");
		check_eq(got[1], i ? 3 : 4, "of the second QP's messages arrive");
		end_close(c);
		end_close(a);
	}
	unsetenv("FERROVERBS_SOFT_FAULTS");
	end_free(c);
}

/* A list of WRITEs, which would be moved by one system call. */
static void lists(void)
{
	begin("drop qp=1 op=write nth=5; access-error qp=1 op=write nth=9", of_type(IBV_QPT_UC));
	struct request r[12];
	end_fill(a, 0, 12 * 64, 21);
	for (int i = 0; i < 12; i++) {
		r[i] = request(IBV_WR_RDMA_WRITE, i + 1, 64);
		r[i].piece[0].offset = i * 64;
		r[i].raddr += i * 64;
	}
	int bad;
	if (end_send_list(a, r, 12, &bad))
		die("ibv_post_send");
	all_sent(1, 12, IBV_WC_SUCCESS);
	unsigned char wanted[12 * 64];
	fill(wanted, sizeof wanted, 21);
	memset(wanted + 4 * 64, 0, 64);
	memset(wanted + 8 * 64, 0, 64);
	check(arrived(BIG, wanted, sizeof wanted), "all but two of a list of WRITEs were done");
	end();
	begin("access-error qp=1 op=write nth=9", defaults());
	for (int i = 0; i < 12; i++) {
		r[i].raddr = ba.addr + BIG + i * 64;
		r[i].rkey = ba.rkey;
	}
	if (end_send_list(a, r, 12, &bad))
		die("ibv_post_send");
	all_sent(1, 8, IBV_WC_SUCCESS);
	sent(9, IBV_WC_REM_ACCESS_ERR);
	all_sent(10, 12, IBV_WC_WR_FLUSH_ERR);
	end();
}

static long to_init(struct parts *p, void *arg)
{
	(void)arg;
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_RESET };
	if (ibv_modify_qp(p->qp, &at, IBV_QP_STATE))
		return -1;
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 };
	return ibv_modify_qp(p->qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

/* A QP continues its count after a reset; flushed requests count too. */
static void again(void)
{
	begin("qp-error qp=1 nth=2; local-error qp=1 nth=5", defaults());
	receives(2);
	sends(1, 3);
	sent(1, IBV_WC_SUCCESS);
	all_sent(2, 3, IBV_WC_WR_FLUSH_ERR);
	check_eq(end_async(a), IBV_EVENT_QP_FATAL, "the event");
	received(1, 1);
	check_eq(end_run(a, to_init, NULL, 0), 0, "to RESET and INIT");
	check_eq(end_run(b, to_init, NULL, 0), 0, "the other end, too");
	end_connect(a, ba);
	end_connect(b, aa);
	receives(3);
	sends(4, 6);
	sent(4, IBV_WC_SUCCESS);
	sent(5, IBV_WC_LOC_PROT_ERR);
	sent(6, IBV_WC_WR_FLUSH_ERR);
	received(1, 1);
	end();
}

int main(int argc, char **argv)
{
	b = end_new(two_processes(argc, argv));
	a = end_new(0);
	drops();
	inline_data();
	delays();
	not_ready();
	refused();
	breaks();
	overruns();
	counting();
	lists();
	again();
	end_free(a);
	end_free(b);
	return finish();
}
