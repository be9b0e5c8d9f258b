/*
 * Threads that sleep in ibv_get_cq_event(3), over shared memory. Each message wakes one of them
 * and, by /proc, not the service thread. All threads get their events. A signal or cancellation
 * ends the sleep as in read(2).
 */
#include "rig.h"
#include <dirent.h>
#include <semaphore.h>
#include <sys/syscall.h>

enum { QUEUES = 64, MESSAGES = 400, THREADS = 4, PER_THREAD = 100, SIZE = 64 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_mr *mr;
static struct ibv_cq *scq, *rcq[QUEUES];
static struct ibv_qp *qp[QUEUES];
static unsigned char buffer[4096];
/* To the other process. */
static int line;

static void say(const void *p, size_t len)
{
	if (write(line, p, len) != (ssize_t)len)
		die("the other process is gone");
}

static void hear(void *p, size_t len)
{
	for (size_t got = 0; got < len;) {
		if (!readable(line, (int)(WAIT_US / 1000)))
			die("the other process says nothing");
		ssize_t n = read(line, (char *)p + got, len - got);
		if (n <= 0)
			die("the other process is gone");
		got += (size_t)n;
	}
}

static void say_so(int n) { say(&n, sizeof n); }

static int hear_number(void)
{
	int n;
	hear(&n, sizeof n);
	return n;
}

/* Makes QUEUES connections with the partner process, each with its own receive CQ on the one
 * channel. */
static void set_up(void)
{
	struct ibv_port_attr port;
	uint32_t mine[QUEUES], his[QUEUES];
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	channel = ibv_create_comp_channel(ctx);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	scq = ibv_create_cq(ctx, 256, NULL, channel, 0);
	if (!pd || !channel || !mr || !scq || ibv_query_port(ctx, 1, &port))
		die("set up");
	for (int i = 0; i < QUEUES; i++) {
		rcq[i] = ibv_create_cq(ctx, 64, (void *)(intptr_t)i, channel, 0);
		struct ibv_qp_init_attr qa = { .send_cq = scq, .recv_cq = rcq[i], .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 } };
		qp[i] = rcq[i] ? ibv_create_qp(pd, &qa) : NULL;
		if (!qp[i])
			die("queue %d", i);
		mine[i] = qp[i]->qp_num;
	}
	say(mine, sizeof mine);
	hear(his, sizeof his);
	for (int i = 0; i < QUEUES; i++) {
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		int bad = ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
		a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = his[i], .max_dest_rd_atomic = 1,
					  .min_rnr_timer = 1, .ah_attr = { .dlid = port.lid, .port_num = 1 } };
		bad |= ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
		a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
		bad |= ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						   IBV_QP_MAX_QP_RD_ATOMIC);
		if (bad)
			die("ibv_modify_qp of %d", i);
	}
	/* Neither side sends before the peer has posted receives. */
	say_so(0);
	hear_number();
}

static void tear_down(void)
{
	int bad = 0;
	for (int i = 0; i < QUEUES; i++)
		bad |= ibv_destroy_qp(qp[i]) | ibv_destroy_cq(rcq[i]);
	bad |= ibv_destroy_cq(scq) | ibv_destroy_comp_channel(channel) | ibv_dereg_mr(mr) | ibv_dealloc_pd(pd) | ibv_close_device(ctx);
	check_eq(bad, 0, "everything is destroyed");
}

static void post_recv(int i)
{
	struct ibv_sge sg = { (uintptr_t)buffer, SIZE, mr->lkey };
	struct ibv_recv_wr rw = { .wr_id = (uint64_t)i, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp[i], &rw, &bad))
		die("ibv_post_recv");
}

static void post_send(int i)
{
	struct ibv_sge sg = { (uintptr_t)buffer + 1024, SIZE, mr->lkey };
	struct ibv_send_wr sw = { .wr_id = (uint64_t)i, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	if (ibv_post_send(qp[i], &sw, &bad))
		die("ibv_post_send");
}

static void arm(struct ibv_cq *cq)
{
	if (ibv_req_notify_cq(cq, 0))
		die("ibv_req_notify_cq");
}

/* Voluntary switches of the adapter's thread, or the state of thread `tid`. */
static unsigned long long look_at(pid_t pid, pid_t tid)
{
	char path[400], text[400];
	unsigned long long found = 0;
	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	DIR *d = opendir(path);
	if (!d)
		die("cannot look at process %d", (int)pid);
	for (struct dirent *e; (e = readdir(d));) {
		int matches = tid && atoi(e->d_name) == tid;
		snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)pid, e->d_name);
		FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
		while (f && fgets(text, sizeof text, f)) {
			if (!tid && !strcmp(text, "Name:\tfv-soft\n"))
				matches = 1;
			if (tid && matches && !strncmp(text, "State:\t", 7))
				found = (unsigned char)text[7];
			if (!tid && matches && !strncmp(text, "voluntary_ctxt_switches:", 24))
				found = strtoull(text + 24, NULL, 10);
		}
		if (f)
			fclose(f);
	}
	closedir(d);
	return found;
}

static void until_asleep(pid_t pid, pid_t tid)
{
	for (uint64_t end = now_us() + WAIT_US; look_at(pid, tid) != 'S';)
		if (now_us() > end)
			die("thread %d does not sleep", (int)tid);
}

/* The queue of the next event, acknowledged. */
static struct ibv_cq *event(void)
{
	struct ibv_cq *cq;
	void *context;
	if (ibv_get_cq_event(channel, &cq, &context))
		return NULL;
	ibv_ack_cq_events(cq, 1);
	return cq;
}

static int number_of(const struct ibv_cq *cq)
{
	return cq == scq ? QUEUES : (int)(intptr_t)cq->cq_context;
}

/* ---- the sleeping side ---- */

/* One thread, all queues. */
static void alone(void)
{
	int wrong = 0;
	for (int i = 0; i < QUEUES; i++) {
		post_recv(i);
		arm(rcq[i]);
	}
	say_so((int)syscall(SYS_gettid));
	for (int n = 0; n < MESSAGES; n++) {
		struct ibv_cq *cq = event();
		struct ibv_wc wc;
		int i = cq ? number_of(cq) : -1;
		if (i != n * 7 % QUEUES) {
			wrong++;
			continue;
		}
		arm(cq);
		wait_completion(cq, &wc);
		wrong += wc.status || wc.wr_id != (uint64_t)i || ibv_poll_cq(cq, 1, &wc);
		post_recv(i);
		say_so(i);
	}
	check_eq(wrong, 0, "events that name another queue, or come without a completion");
}

static sem_t done;
static int taken[QUEUES];

static void *one_of_many(void *unused)
{
	for (int n = 0; n < PER_THREAD; n++) {
		struct ibv_cq *cq = event();
		struct ibv_wc wc;
		if (!cq)
			die("ibv_get_cq_event");
		/* No other thread gets an event of this CQ before it is armed again. */
		int i = number_of(cq);
		wait_completion(cq, &wc);
		taken[i] += !wc.status;
		post_recv(i);
		arm(cq);
		sem_post(&done);
	}
	return unused;
}

/* Several threads on the channel. */
static void together(void)
{
	pthread_t thread[THREADS];
	int sum = 0;
	sem_init(&done, 0, 0);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, one_of_many, NULL);
	say_so(0);
	for (int n = 0; n < THREADS * PER_THREAD; n++) {
		while (sem_wait(&done))
			;
		say_so(n);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < QUEUES; i++)
		sum += taken[i];
	check_eq(sum, THREADS * PER_THREAD, "messages that %d threads took", THREADS);
}

static sem_t begun;
static pid_t sleeper;
static int result, error;

static void *sleeps(void *unused)
{
	sleeper = (pid_t)syscall(SYS_gettid);
	sem_post(&begun);
	struct ibv_cq *cq = event();
	result = cq ? number_of(cq) : -1;
	error = errno;
	return unused;
}

static pthread_t put_to_sleep(void)
{
	pthread_t thread;
	sem_init(&begun, 0, 0);
	pthread_create(&thread, NULL, sleeps, NULL);
	while (sem_wait(&begun))
		;
	until_asleep(getpid(), sleeper);
	return thread;
}

static int signals;

static void on_signal(int number)
{
	(void)number;
	__atomic_add_fetch(&signals, 1, __ATOMIC_SEQ_CST);
}

/* What else ends a sleep. */
static void disturbed(void)
{
	void *end;
	struct sigaction act = { .sa_handler = on_signal };
	sigaction(SIGUSR1, &act, NULL);
	pthread_t thread = put_to_sleep();
	pthread_kill(thread, SIGUSR1);
	pthread_join(thread, &end);
	check(result == -1 && error == EINTR, "a signal: EINTR");

	act.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &act, NULL);
	thread = put_to_sleep();
	pthread_kill(thread, SIGUSR1);
	for (uint64_t until = now_us() + WAIT_US; __atomic_load_n(&signals, __ATOMIC_SEQ_CST) != 2;)
		if (now_us() > until)
			die("the signal does not arrive");
	until_asleep(getpid(), sleeper);
	pthread_cancel(thread);
	pthread_join(thread, &end);
	check(end == PTHREAD_CANCELED, "a signal that restarts system calls, then a cancellation");

	/* A new thread gets the next event. */
	thread = put_to_sleep();
	say_so(0);
	pthread_join(thread, &end);
	check_eq(result, 5, "the queue of the message after that");
	struct ibv_wc wc;
	wait_completion(rcq[5], &wc);

	/* A send of this process, which completes when the peer has posted its receive. */
	arm(scq);
	post_send(6);
	thread = put_to_sleep();
	say_so(0);
	pthread_join(thread, &end);
	check_eq(result, QUEUES, "the queue of a send that waited for its receive");
	wait_completion(scq, &wc);
	check_eq(wc.status, IBV_WC_SUCCESS, "its status");
}

/* ---- the other side ---- */

static void take_send(void)
{
	struct ibv_wc wc;
	wait_completion(scq, &wc);
	if (wc.status)
		die("a message: %s", ibv_wc_status_str(wc.status));
}

static int wake(pid_t pid)
{
	pid_t tid = hear_number();
	until_asleep(pid, tid);
	unsigned long long before = look_at(pid, 0);
	int wrong = 0;
	for (int n = 0; n < MESSAGES; n++) {
		until_asleep(pid, tid);
		post_send(n * 7 % QUEUES);
		wrong += hear_number() != n * 7 % QUEUES;
		take_send();
	}
	unsigned long long switches = look_at(pid, 0) - before;
	/* On a busy machine the service thread may wake for other reasons. */
	check(switches < MESSAGES / 4, "the adapter's thread sleeps on: %s", switches < MESSAGES / 4 ? "yes" : "it woke too often");
	check_eq(wrong, 0, "messages that were not heard of");
	hear_number();
	for (int n = 0; n < THREADS * PER_THREAD; n += THREADS) {
		for (int i = 0; i < THREADS; i++)
			post_send((n + i) % QUEUES);
		for (int i = 0; i < THREADS; i++) {
			hear_number();
			take_send();
		}
	}
	hear_number();
	post_send(5);
	take_send();
	hear_number();
	post_recv(6);
	struct ibv_wc wc;
	wait_completion(rcq[6], &wc);
	return 0;
}

int main(void)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		die("socketpair");
	fflush(stdout);
	pid_t child = fork();
	line = ends[child != 0];
	close(ends[child == 0]);
	set_up();
	if (!child) {
		alone();
		together();
		disturbed();
	} else {
		wake(child);
	}
	tear_down();
	int status = 0, totals = finish();
	fflush(stdout);
	if (child)
		waitpid(child, &status, 0);
	return totals || status ? 1 : 0;
}
