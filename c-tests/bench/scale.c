/*
 * Costs that grow with the number of QPs, CQs, regions and processes, and the cost of an event.
 * Prints lines of a name and a number.
 *
 * usage: scale count PAIRS ACTIVE OWN_CQS COUNT   one process, to count instructions of measured_*
 *        scale pair QPS OWN_CQS MRS IDLE COUNT    two processes: QPS connections, IDLE unused
 *        scale many PAIRS COUNT                   PAIRS pairs at ping-pong, total CPU time
 *        scale mesh PROCESSES                     each connects to each
 *        scale events COUNT CQS                   sleeping receivers, beside kernel wake-ups
 *        scale idle                               CPU time: idle process, passive target
 *
 * Map of this file: memory that all processes share; clocks and barriers; `pss`, which measures
 * memory. `run` forks the processes of every mode except `count`. The verbs helpers create CQs and
 * QPs, connect them, post requests and poll. One section for each mode follows. `count` has the
 * functions `measured_*`, whose instructions a profiler counts; `pair` measures set-up, memory,
 * ping-pong and tear-down. `many` runs pairs of processes at ping-pong; `mesh` connects each
 * process with each. `events` compares CQ events with eventfd, pipe and futex; `idle` measures CPU
 * time. `main` chooses a mode by the first argument.
 */
#include <infiniband/verbs.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_QPS = 16384, MAX_PROCESSES = 128, DEPTH = 16 };

/* Memory shared by all processes of a run. */
struct shared {
	/* All processes meet at `barrier`, the first two processes at `two`. */
	pthread_barrier_t barrier, two;
	uint32_t qpn[2][MAX_QPS];
	uint32_t mesh[MAX_PROCESSES][MAX_PROCESSES];
	uint64_t addr;
	uint32_t rkey, word;
	double result[MAX_PROCESSES], segments[2];
};

static struct shared *shared;
static int me;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_port_attr port;
static struct ibv_comp_channel *channel;
static struct ibv_qp *qps[2 * MAX_QPS];
/* QP i uses the send CQ and the receive CQ at index `own_cqs ? i : 0`. */
static struct ibv_cq *scq[MAX_QPS], *rcq[MAX_QPS];
static int own_cqs;
static unsigned char memory[8192] __attribute__((aligned(64)));

static void fail(const char *what)
{
	fprintf(stderr, "scale: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu_time(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void together(void)
{
	pthread_barrier_wait(&shared->barrier);
}

static void both(void)
{
	pthread_barrier_wait(&shared->two);
}

/* Kilobytes of Pss: of the process, or of mappings whose name contains `name`. */
static double pss(const char *name)
{
	FILE *f = fopen(name ? "/proc/self/smaps" : "/proc/self/smaps_rollup", "r");
	char line[512];
	int counts = !name;
	double sum = 0;

	if (!f)
		fail("smaps");
	while (fgets(line, sizeof(line), f)) {
		unsigned long from, to, kb;

		if (name && sscanf(line, "%lx-%lx ", &from, &to) == 2)
			counts = strstr(line, name) != NULL;
		else if (counts && sscanf(line, "Pss: %lu", &kb) == 1)
			sum += kb;
	}
	fclose(f);
	return sum;
}

/* Forks `count` processes that call `body`; `me` numbers them from 0. Returns when all processes
 * have ended, and exits if one of them fails. */
static void run(int count, void (*body)(void))
{
	pthread_barrierattr_t attr;
	int bad = 0;

	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&shared->barrier, &attr, count);
	pthread_barrier_init(&shared->two, &attr, 2);
	for (me = 0; me < count; me++) {
		pid_t pid = fork();

		if (pid < 0)
			fail("fork");
		if (!pid) {
			body();
			fflush(stdout);
			exit(0);
		}
	}
	for (int i = 0; i < count; i++) {
		int status;

		if (wait(&status) > 0 && status) {
			/* The remaining processes would wait for ever. */
			if (!bad++) {
				signal(SIGTERM, SIG_IGN);
				kill(0, SIGTERM);
			}
		}
	}
	if (bad)
		exit(1);
}

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	if (!pd || ibv_query_port(ctx, 1, &port))
		fail("no device");
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		fail("ibv_reg_mr");
}

static void make_cqs(int count, int depth)
{
	for (int i = 0; i < count; i++) {
		scq[i] = ibv_create_cq(ctx, depth, NULL, NULL, 0);
		rcq[i] = ibv_create_cq(ctx, depth, (void *)(intptr_t)i, channel, 0);
		if (!scq[i] || !rcq[i])
			fail("ibv_create_cq");
	}
}

static struct ibv_qp *make_qp(int i)
{
	struct ibv_qp_init_attr init = { .send_cq = scq[own_cqs ? i : 0], .recv_cq = rcq[own_cqs ? i : 0], .qp_type = IBV_QPT_RC,
					 .cap = { DEPTH, DEPTH, 1, 1, 64 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	if (!qp)
		fail("ibv_create_qp");
	return qp;
}

static void connect_qp(struct ibv_qp *q, uint32_t to)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	if (ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("INIT");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = to, .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 12, .ah_attr = { .dlid = port.lid, .port_num = 1 } };
	if (ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("RTR");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	if (ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					 IBV_QP_MAX_QP_RD_ATOMIC))
		fail("RTS");
}

static void post_recv(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)memory + 4096, 64, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(qp, &wr, &bad))
		fail("ibv_post_recv");
}

static void post_send(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }, *bad;

	if (ibv_post_send(qp, &wr, &bad))
		fail("ibv_post_send");
}

static void take(struct ibv_cq *cq, int n)
{
	struct ibv_wc wc;

	while (n) {
		int got = ibv_poll_cq(cq, 1, &wc);

		if (got < 0 || (got && wc.status))
			fail(got < 0 ? "ibv_poll_cq" : ibv_wc_status_str(wc.status));
		n -= got;
	}
}

/* Takes `n` completions from each CQ. A send may complete only after a poll of the receiver's
 * CQ. */
static void take_both(struct ibv_cq *r, struct ibv_cq *s, int n)
{
	for (int received = n, sent = n; received || sent;) {
		struct ibv_wc wc;
		int got = ibv_poll_cq(r, 1, &wc);

		if (got < 0 || (got && wc.status))
			fail("receiving");
		received -= got;
		got = ibv_poll_cq(s, 1, &wc);
		if (got < 0 || (got && wc.status))
			fail("sending");
		sent -= got;
	}
}

/* count */

static int pairs, active;

/* One message at a time, on all QPs in turn. */
static void alternate(int n)
{
	for (int i = 0; i < n; i++) {
		int at = i % active;

		post_recv(qps[2 * at + 1], 0);
		post_send(qps[2 * at], 0);
		take_both(rcq[own_cqs ? 2 * at + 1 : 0], scq[own_cqs ? 2 * at : 0], 1);
	}
}

__attribute__((noinline)) void measured_alternating(int n)
{
	alternate(n);
}

/* One message on each active QP, then all completions. */
__attribute__((noinline)) void measured_together(int n)
{
	for (int done = 0; done < n; done += active) {
		for (int i = 0; i < active; i++) {
			post_recv(qps[2 * i + 1], 0);
			post_send(qps[2 * i], 0);
		}
		for (int i = 0; i < (own_cqs ? active : 1); i++) {
			take_both(rcq[own_cqs ? 2 * i + 1 : 0], scq[own_cqs ? 2 * i : 0], own_cqs ? 1 : active);
		}
	}
}

/* Polls an empty CQ. */
__attribute__((noinline)) void measured_empty(int n)
{
	struct ibv_wc wc;

	for (int i = 0; i < n; i++)
		if (ibv_poll_cq(rcq[0], 1, &wc))
			fail("ibv_poll_cq");
}

/* Registers and deregisters a memory region. */
__attribute__((noinline)) void measured_region(int n)
{
	for (int i = 0; i < n; i++) {
		struct ibv_mr *r = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);

		if (!r || ibv_dereg_mr(r))
			fail("a region");
	}
}

/* Creates and destroys a QP. */
__attribute__((noinline)) void measured_qp(int n)
{
	for (int i = 0; i < n; i++)
		if (ibv_destroy_qp(make_qp(0)))
			fail("ibv_destroy_qp");
}

static void count(int n)
{
	int polls = 0;

	open_device();
	make_cqs(own_cqs ? 2 * pairs : 1, own_cqs ? 2 * DEPTH : 4 * active + 64);
	for (int i = 0; i < 2 * pairs; i++)
		qps[i] = make_qp(i);
	for (int i = 0; i < 2 * pairs; i++)
		connect_qp(qps[i], qps[i ^ 1]->qp_num);
	/* Warm-up: the service notices the polling process, and one-time work is done. */
	for (struct ibv_wc wc; polls < 200; polls++)
		if (ibv_poll_cq(rcq[0], 1, &wc))
			fail("ibv_poll_cq");
	alternate(active);
	measured_alternating(n);
	measured_together(n);
	measured_empty(n);
	measured_region(n);
	measured_qp(n);
}

/* pair */

static int qp_count, mr_count, idle_count, message_count;

static double pss_of_segments(void)
{
	return pss("ferroverbs-rings") + pss("ferroverbs-tables");
}

/* Connects this process with `count` processes from number `first` on. These connections carry no
 * messages. */
static void meet(int first, int count)
{
	make_cqs(1, 4 * DEPTH);
	for (int k = 0; k < count; k++) {
		qps[k] = make_qp(0);
		shared->mesh[me][first + k] = qps[k]->qp_num;
	}
	together();
	for (int k = 0; k < count; k++)
		connect_qp(qps[k], shared->mesh[first + k][me]);
	together();
}

/* The two processes create all QPs, and connect QP i of one with QP i of the other. */
static void make_pairs(void)
{
	for (int i = 0; i < qp_count; i++) {
		qps[i] = make_qp(i);
		shared->qpn[me][i] = qps[i]->qp_num;
	}
	both();
	for (int i = 0; i < qp_count; i++)
		connect_qp(qps[i], shared->qpn[!me][i]);
	both();
}

/* Ping-pong over the first `k` QPs in turn; microseconds there and back. */
static double ping_pong(int k, int count)
{
	double begin;

	both();
	begin = now();
	for (int i = 0; i < count; i++) {
		int at = i % k, cq = own_cqs ? at : 0;

		if (me == 0)
			post_send(qps[at], at);
		take(rcq[cq], 1);
		post_recv(qps[at], at);
		if (me == 1)
			post_send(qps[at], at);
		take(scq[cq], 1);
	}
	begin = now() - begin;
	both();
	return begin * 1e6 / count;
}

/* Measures ping-pong after a warm-up, so one-time work does not count. */
static double settled_ping_pong(int k)
{
	ping_pong(k, message_count / 4 + 200);
	return ping_pong(k, message_count);
}

static void pair(void)
{
	int cqs = own_cqs ? qp_count : 1, wide = own_cqs;
	double t, setup, one, each, teardown, before, segments;

	open_device();
	own_cqs = 0;
	if (me >= 2) {
		meet(0, 2);
		together();
		return;
	}
	meet(2, idle_count);
	own_cqs = wide;
	for (int i = 0; i < mr_count; i++)
		if (!ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE))
			fail("ibv_reg_mr");
	both();
	before = pss(NULL);
	segments = pss_of_segments();
	both();
	t = now();
	make_cqs(cqs, own_cqs ? 2 * DEPTH : 4096);
	make_pairs();
	setup = now() - t;
	shared->result[me] = pss(NULL) - before;
	shared->segments[me] = pss_of_segments() - segments;
	both();
	if (me == 0) {
		printf("set-up_ms %.1f\n", setup * 1e3);
		printf("fresh_kib_per_qp %.2f\n", (shared->result[0] + shared->result[1]) / (2 * qp_count));
		printf("fresh_segments_kib_per_qp %.2f\n", (shared->segments[0] + shared->segments[1]) / (2 * qp_count));
	}
	for (int i = 0; i < qp_count; i++)
		post_recv(qps[i], i);
	one = settled_ping_pong(1);
	each = settled_ping_pong(qp_count);
	shared->result[me] = pss(NULL) - before;
	shared->segments[me] = pss_of_segments() - segments;
	both();
	t = now();
	for (int i = 0; i < qp_count; i++)
		if (ibv_destroy_qp(qps[i]))
			fail("ibv_destroy_qp");
	for (int i = 0; i < cqs; i++)
		if (ibv_destroy_cq(scq[i]) || ibv_destroy_cq(rcq[i]))
			fail("ibv_destroy_cq");
	teardown = now() - t;
	if (me == 0) {
		printf("one_us %.3f\n", one);
		printf("each_us %.3f\n", each);
		printf("used_kib_per_qp %.2f\n", (shared->result[0] + shared->result[1]) / (2 * qp_count));
		printf("used_segments_kib_per_qp %.2f\n", (shared->segments[0] + shared->segments[1]) / (2 * qp_count));
		printf("tear-down_ms %.1f\n", teardown * 1e3);
	}
	together();
}

/* many */

/* Creates a QP and connects it with process `other`. */
static void connect_one(int other, int depth)
{
	make_cqs(1, depth);
	qps[0] = make_qp(0);
	shared->mesh[me][other] = qps[0]->qp_num;
	together();
	connect_qp(qps[0], shared->mesh[other][me]);
	together();
}

static void many(void)
{
	double cpu, t;

	open_device();
	connect_one(me ^ 1, 4 * DEPTH);
	post_recv(qps[0], 0);
	together();
	cpu = cpu_time();
	t = now();
	for (int i = 0; i < message_count; i++) {
		if (me % 2 == 0)
			post_send(qps[0], 0);
		take(rcq[0], 1);
		post_recv(qps[0], 0);
		if (me % 2 == 1)
			post_send(qps[0], 0);
		take(scq[0], 1);
	}
	shared->result[me] = cpu_time() - cpu;
	together();
	t = now() - t;
	if (me == 0) {
		double sum = 0;

		for (int i = 0; i < 2 * pairs; i++)
			sum += shared->result[i];
		printf("cpu_us_per_message %.3f\n", sum * 1e6 / (2.0 * pairs * message_count));
		printf("wall_us_per_message %.3f\n", t * 1e6 / (2.0 * pairs * message_count));
	}
}

/* mesh */

static int processes;

static void mesh(void)
{
	double t, opened, made, connected, ended;

	together();
	t = now();
	open_device();
	make_cqs(1, 4 * DEPTH);
	together();
	opened = now() - t;
	for (int k = 0; k < processes; k++) {
		qps[k] = make_qp(0);
		shared->mesh[me][k] = qps[k]->qp_num;
	}
	together();
	made = now() - t - opened;
	for (int k = 0; k < processes; k++)
		connect_qp(qps[k], shared->mesh[k][me]);
	together();
	connected = now() - t - opened - made;
	for (int k = 0; k < processes; k++)
		if (ibv_destroy_qp(qps[k]))
			fail("ibv_destroy_qp");
	if (ibv_destroy_cq(scq[0]) || ibv_destroy_cq(rcq[0]) || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) || ibv_close_device(ctx))
		fail("closing");
	together();
	ended = now() - t - opened - made - connected;
	if (me == 0)
		printf("open_ms %.1f\ncreate_ms %.1f\nconnect_ms %.1f\nclose_ms %.1f\n", opened * 1e3, made * 1e3, connected * 1e3,
		       ended * 1e3);
}

/* events */

static int wakers[2], pipes[2][2];

static void raw_eventfd(int to_other)
{
	uint64_t one = 1;

	if (to_other ? write(wakers[!me], &one, 8) != 8 : read(wakers[me], &one, 8) != 8)
		fail("eventfd");
}

static void raw_pipe(int to_other)
{
	char c = 0;

	if (to_other ? write(pipes[!me][1], &c, 1) != 1 : read(pipes[me][0], &c, 1) != 1)
		fail("pipe");
}

static void raw_futex(int to_other)
{
	uint32_t *word = &shared->qpn[to_other ? !me : me][0];

	if (to_other) {
		__atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
		syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
		return;
	}
	while (!__atomic_load_n(word, __ATOMIC_SEQ_CST))
		syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
	__atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
}

static int messages_sent;

static void message(int to_other)
{
	struct ibv_cq *cq;
	void *context;

	if (to_other) {
		messages_sent = 1;
		post_send(qps[0], 0);
		return;
	}
	if (ibv_get_cq_event(channel, &cq, &context) || ibv_req_notify_cq(cq, 0))
		fail("an event");
	ibv_ack_cq_events(cq, 1);
	take(rcq[0], 1);
	post_recv(qps[0], 0);
	/* The peer's reply implies that the peer received the message of this process. */
	if (messages_sent) {
		messages_sent = 0;
		take(scq[0], 1);
	}
}

/* Microseconds of wall and processor time one way. */
static void one_way(const char *name, void (*step)(int))
{
	double t, cpu;

	both();
	t = now();
	cpu = cpu_time();
	for (int i = 0; i < message_count; i++) {
		if (me == 0)
			step(1);
		step(0);
		if (me == 1)
			step(1);
	}
	t = now() - t;
	shared->result[me] = cpu_time() - cpu;
	both();
	if (me == 0)
		printf("%s_us %.2f\n%s_cpu_us %.2f\n", name, t * 5e5 / message_count, name,
		       (shared->result[0] + shared->result[1]) * 5e5 / message_count);
	both();
}

static void events(void)
{
	open_device();
	channel = ibv_create_comp_channel(ctx);
	if (!channel)
		fail("ibv_create_comp_channel");
	own_cqs = 1;
	make_cqs(qp_count, 4 * DEPTH);
	make_pairs();
	post_recv(qps[0], 0);
	for (int i = 0; i < qp_count; i++)
		if (ibv_req_notify_cq(rcq[i], 0))
			fail("ibv_req_notify_cq");
	one_way("verbs_event", message);
	if (me == 0)
		shared->qpn[0][0] = shared->qpn[1][0] = 0;
	one_way("eventfd", raw_eventfd);
	one_way("pipe", raw_pipe);
	one_way("futex", raw_futex);
}

/* idle */

static void idle(void)
{
	struct rusage before, after;
	volatile uint64_t *word = (uint64_t *)memory;

	open_device();
	channel = ibv_create_comp_channel(ctx);
	if (!channel)
		fail("ibv_create_comp_channel");
	connect_one(me ^ 1, 4 * DEPTH);
	if (me == 1) {
		shared->addr = (uintptr_t)memory;
		shared->rkey = mr->rkey;
		if (ibv_req_notify_cq(rcq[0], 0))
			fail("ibv_req_notify_cq");
	}
	both();
	/* Both processes sleep; process 1 has requested an event of its CQ. */
	getrusage(RUSAGE_SELF, &before);
	sleep(1);
	getrusage(RUSAGE_SELF, &after);
	if (me == 1)
		printf("idle_cpu_us %ld\nidle_switches %ld\n",
		       (after.ru_utime.tv_usec - before.ru_utime.tv_usec) + (after.ru_stime.tv_usec - before.ru_stime.tv_usec) +
			       1000000 * (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec),
		       after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw);
	fflush(stdout);
	both();
	if (me == 0) {
		struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
					  .wr.rdma = { shared->addr, shared->rkey } }, *bad;

		for (*word = 1; *word <= 10000; ++*word) {
			if (ibv_post_send(qps[0], &wr, &bad))
				fail("ibv_post_send");
			take(scq[0], 1);
		}
	} else {
		getrusage(RUSAGE_SELF, &before);
	}
	both();
	if (me == 1) {
		getrusage(RUSAGE_SELF, &after);
		if (*word != 10000)
			fail("the writes");
		printf("target_cpu_us %ld\n",
		       (after.ru_utime.tv_usec - before.ru_utime.tv_usec) + (after.ru_stime.tv_usec - before.ru_stime.tv_usec) +
			       1000000 * (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec));
	}
}

int main(int argc, char **argv)
{
	struct rlimit files;
	int number[8] = { 0 };
	const char *what = argc > 1 ? argv[1] : "";

	for (int i = 2; i < argc && i < 8; i++)
		number[i - 2] = atoi(argv[i]);
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	setpgid(0, 0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail("mmap");
	if (!strcmp(what, "count") && argc == 6 && number[0] <= MAX_QPS / 2) {
		pairs = number[0];
		active = number[1];
		own_cqs = number[2];
		count(number[3]);
	} else if (!strcmp(what, "pair") && argc == 7 && number[0] <= MAX_QPS && number[3] + 2 <= MAX_PROCESSES) {
		qp_count = number[0];
		own_cqs = number[1];
		mr_count = number[2];
		idle_count = number[3];
		message_count = number[4];
		run(2 + idle_count, pair);
	} else if (!strcmp(what, "many") && argc == 4 && 2 * number[0] <= MAX_PROCESSES) {
		pairs = number[0];
		message_count = number[1];
		run(2 * pairs, many);
	} else if (!strcmp(what, "mesh") && argc == 3 && number[0] <= MAX_PROCESSES) {
		processes = number[0];
		run(processes, mesh);
	} else if (!strcmp(what, "events") && argc == 4 && number[1] <= MAX_QPS) {
		message_count = number[0];
		qp_count = number[1];
		for (int i = 0; i < 2; i++) {
			wakers[i] = eventfd(0, 0);
			if (wakers[i] < 0 || pipe(pipes[i]))
				fail("eventfd or pipe");
		}
		run(2, events);
	} else if (!strcmp(what, "idle") && argc == 2) {
		run(2, idle);
	} else {
		fprintf(stderr, "usage: scale count|pair|many|mesh|events|idle NUMBERS: see its source\n");
		return 1;
	}
	return 0;
}
