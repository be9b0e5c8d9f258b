/*
 * fork(2) after the device is open, as ibv_fork_init(3) promises. The parent continues with its QPs
 * and registered memory, whatever the child does. The child's exit, destructors included, removes
 * nothing of the parent. The child may open the device and talk to its parent. Also while other
 * threads of the parent list, open and close devices, or send and poll: calls of the child on
 * inherited objects are refused or have no effect.
 *
 * Map of this file: the functions `side_*` open, connect, use and close one end of an RC
 * connection; `exchange` sends a message each way. `new_child` forks; `outcome` waits for the
 * child. The tests of single children follow, from `ends_by_itself` to `talks_to_its_parent`. The
 * functions `while_threads_*` fork children while threads list devices, open devices, transfer data
 * or contend for locks. `is_told_why` reads the child's error message. `main` connects two QPs of
 * the parent and calls all tests.
 */
#include "rig.h"

enum { CHILDREN = 30, LISTERS = 100, LEN = 3000, ROUNDS = 50, BUSY = 2, MEETERS = 100 };

/* One process's objects of a connection. */
struct side {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	unsigned char *buf; /* LEN to send from, LEN to receive into */
};

struct name {
	uint32_t qpn;
	union ibv_gid gid;
};

static struct name side_open(struct side *s)
{
	struct name name;
	s->ctx = open_device();
	s->pd = ibv_alloc_pd(s->ctx);
	s->buf = mmap(NULL, 2 * LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	s->mr = s->pd && s->buf != MAP_FAILED ? ibv_reg_mr(s->pd, s->buf, 2 * LEN, IBV_ACCESS_LOCAL_WRITE) : NULL;
	s->cq = ibv_create_cq(s->ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr a = { .send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	s->qp = s->cq && s->pd ? ibv_create_qp(s->pd, &a) : NULL;
	if (!s->mr || !s->qp || ibv_query_gid(s->ctx, 1, 0, &name.gid))
		die("set up: %s", strerror(errno));
	name.qpn = s->qp->qp_num;
	return name;
}

static void side_connect(struct side *s, struct name to)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int err = ibv_modify_qp(s->qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .dest_qp_num = to.qpn,
				   .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 1,
				   .ah_attr = { .is_global = 1, .grh = { .dgid = to.gid, .hop_limit = 1 }, .port_num = 1 } };
	err = err ? err
		  : ibv_modify_qp(s->qp, &at,
				  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					  IBV_QP_MIN_RNR_TIMER);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .max_rd_atomic = 1, .retry_cnt = 7, .rnr_retry = 7, .timeout = 17 };
	err = err ? err
		  : ibv_modify_qp(s->qp, &at,
				  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT);
	if (err)
		die("ibv_modify_qp: %s", strerror(err));
}

static int side_end(struct side *s)
{
	return !!ibv_destroy_qp(s->qp) + !!ibv_destroy_cq(s->cq) + !!ibv_dereg_mr(s->mr);
}

static int side_close(struct side *s)
{
	int bad = side_end(s) + !!ibv_dealloc_pd(s->pd) + !!ibv_close_device(s->ctx);
	munmap(s->buf, 2 * LEN);
	return bad;
}

static void side_receive(struct side *s)
{
	struct ibv_sge sg = { (uintptr_t)s->buf + LEN, LEN, s->mr->lkey };
	struct ibv_recv_wr w = { .wr_id = 2, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(s->qp, &w, &bad))
		die("ibv_post_recv");
}

static void side_send(struct side *s, uint32_t seed)
{
	fill(s->buf, LEN, seed);
	struct ibv_sge sg = { (uintptr_t)s->buf, LEN, s->mr->lkey };
	struct ibv_send_wr w = { .wr_id = 1, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (ibv_post_send(s->qp, &w, &bad))
		die("ibv_post_send");
}

/* Takes n completions. */
static int side_wait(struct side *s, int n)
{
	struct ibv_wc wc;
	int bad = 0;
	while (n--) {
		wait_completion(s->cq, &wc);
		bad += wc.status != IBV_WC_SUCCESS;
	}
	return bad;
}

/* Exchanges a message each way within one process; returns the number of errors. */
static int exchange(struct side *a, struct side *b, uint32_t seed)
{
	side_receive(a);
	side_receive(b);
	side_send(a, seed);
	side_send(b, seed + 1);
	int bad = side_wait(a, 2) + side_wait(b, 2);
	return bad + (verify(a->buf + LEN, LEN, seed + 1) >= 0) + (verify(b->buf + LEN, LEN, seed) >= 0);
}

/* Returns the exit status of a child, or 1000 plus the number of the signal that ended it. */
static int outcome(pid_t pid)
{
	int status = 0;
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static pid_t new_child(void)
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0)
		alarm(200); /* SIGALRM kills a child that hangs; the parent sees the signal */
	return pid;
}

static struct side a, b;

/* Opens a device, connects two QPs, exchanges messages and closes all; returns the number of
 * errors. */
static int own_device(void)
{
	struct side c, d;
	struct name cn = side_open(&c), dn = side_open(&d);
	side_connect(&c, dn);
	side_connect(&d, cn);
	int bad = exchange(&c, &d, 5);
	return bad + side_close(&c) + side_close(&d);
}

static void ends_by_itself(void)
{
	uint32_t seed = 100;
	/* Ways to end: with destructors, without, killed, after another program. */
	for (int way = 0; way < 4; way++) {
		side_receive(&a); /* outstanding while the child comes and goes */
		pid_t pid = new_child();
		if (pid == 0) {
			if (way == 0)
				exit(0);
			if (way == 1)
				_exit(0);
			if (way == 2)
				raise(SIGKILL);
			execlp("true", "true", (char *)NULL);
			_exit(1);
		}
		int bad = 0;
		for (int i = 0; i < ROUNDS; i++) {
			side_send(&b, seed + (uint32_t)i);
			bad += side_wait(&a, 1) + side_wait(&b, 1) + (verify(a.buf + LEN, LEN, seed + (uint32_t)i) >= 0);
			if (i < ROUNDS - 1)
				side_receive(&a);
		}
		check_eq(outcome(pid), way == 2 ? 1000 + SIGKILL : 0, "child %d ends", way);
		check_eq(bad, 0, "mistakes in %d messages of the parent meanwhile", ROUNDS);
		check_eq(exchange(&a, &b, seed), 0, "mistakes in two messages of the parent after the child's end");
	}
}

static void writes_its_memory(void)
{
	pid_t pid = new_child();
	if (pid == 0) {
		/* The child writes to its own memory. If ibv_fork_init excluded pages from the
		 * fork, the parent's device does not see these writes. */
		for (int i = 0; i < 4; i++) {
			unsigned char *p = malloc(1 << 20);
			memset(p, 0xee, 1 << 20);
			free(p);
		}
		exit(0);
	}
	check_eq(exchange(&a, &b, 7), 0, "mistakes in two messages while a child writes");
	check_eq(outcome(pid), 0, "the child ends");
}

static void talks_to_its_parent(void)
{
	int fd[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd))
		die("socketpair");
	pid_t pid = new_child();
	struct side s;
	struct name mine = side_open(&s), theirs;
	int own = fd[pid == 0], other = fd[pid != 0];
	char go = 0;
	close(other);
	if (write(own, &mine, sizeof mine) != sizeof mine || read(own, &theirs, sizeof theirs) != sizeof theirs)
		die("the other process is gone");
	check(mine.qpn != theirs.qpn, "parent and child have QPs of different numbers");
	side_connect(&s, theirs);
	int bad = 0;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		side_receive(&s);
		if (write(own, &go, 1) != 1 || read(own, &go, 1) != 1)
			die("the other process is gone");
		side_send(&s, 2 * i + (pid == 0));
		bad += side_wait(&s, 2) + (verify(s.buf + LEN, LEN, 2 * i + (pid != 0)) >= 0);
	}
	check_eq(bad, 0, "mistakes in %d messages of %s", ROUNDS, pid ? "the child" : "the parent");
	/* Neither side destroys its end before the peer has its last completion. */
	if (write(own, &go, 1) != 1 || read(own, &go, 1) != 1)
		die("the other process is gone");
	bad = side_close(&s);
	check_eq(bad, 0, "failures to destroy and to close, %s", pid ? "parent" : "child");
	close(own);
	if (pid == 0)
		exit(finish());
	check_eq(outcome(pid), 0, "the child's checks");
	check_eq(exchange(&a, &b, 9), 0, "mistakes in two messages of the parent afterwards");
}

static int stop;

static void *lists(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		int n = 0;
		struct ibv_device **list = ibv_get_device_list(&n);
		if (!list || n < 1)
			die("ibv_get_device_list: %m");
		ibv_free_device_list(list);
	}
	return NULL;
}

static void *opens_and_closes(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		struct ibv_device **list = ibv_get_device_list(NULL);
		struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
		if (!ctx || ibv_close_device(ctx))
			die("ibv_open_device or ibv_close_device: %m");
		ibv_free_device_list(list);
	}
	return NULL;
}

/* The child lists the devices; returns the number of errors. */
static int lists_once(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	if (!list || n < 1 || !ibv_get_device_name(list[0]))
		return 1;
	ibv_free_device_list(list);
	return 0;
}

/* Starts two threads that run `body` until they are stopped. */
static void begin_threads(pthread_t t[2], void *(*body)(void *), void *of)
{
	__atomic_store_n(&stop, 0, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		if (pthread_create(&t[i], NULL, body, of))
			die("pthread_create");
}

static void end_threads(const pthread_t t[2])
{
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
}

/* Whether child `i` made mistakes. */
static int went_wrong(int i, pid_t pid)
{
	int end = outcome(pid);
	if (end)
		check(0, "child %d: %d (more than 1000: a signal)", i, end);
	return !!end;
}

static void while_threads_list(void)
{
	pthread_t t[2];
	int bad = 0;
	begin_threads(t, lists, NULL);
	for (int i = 0; i < LISTERS && !bad; i++) {
		pid_t pid = new_child();
		if (pid == 0) {
			/* Every tenth child forks a child of its own. */
			if (i % 10 == 0) {
				pid_t own = new_child();
				if (own == 0)
					_exit(lists_once());
				if (outcome(own))
					_exit(2);
			}
			_exit(lists_once());
		}
		bad += went_wrong(i, pid);
	}
	end_threads(t);
	check_eq(bad, 0, "mistakes with %d children that list the devices, forked while threads list them", LISTERS);
}

/* `held`: the process keeps the device open meanwhile; otherwise each open joins the fabric and
 * each close leaves it. */
static void while_threads_open_and_close(int held)
{
	pthread_t t[2];
	int bad = 0;
	begin_threads(t, opens_and_closes, NULL);
	for (int i = 0; i < CHILDREN && !bad; i++) {
		pid_t pid = new_child();
		if (pid == 0)
			exit(own_device() ? 1 : 0);
		if (held)
			bad += exchange(&a, &b, (uint32_t)i);
		bad += went_wrong(i, pid);
	}
	end_threads(t);
	check_eq(bad, 0, "mistakes with %d children, forked while threads open and close%s", CHILDREN, held ? " a device that is open" : "");
}

/* Connections in each of which a thread sends and polls until stopped; the first one also registers
 * memory. */
static struct side busy[BUSY][2];

static void *works(void *of)
{
	struct side *s = of;
	for (uint32_t i = 0; !__atomic_load_n(&stop, __ATOMIC_ACQUIRE); i++) {
		struct ibv_mr *more = s == busy[0] ? ibv_reg_mr(s->pd, s->buf, LEN, IBV_ACCESS_LOCAL_WRITE) : NULL;
		if (exchange(&s[0], &s[1], i) || (more && ibv_dereg_mr(more)))
			die("a thread that works");
	}
	return NULL;
}

/* Calls of a child on inherited objects are refused without harm to the parent. Destroying them
 * succeeds, as destructors without knowledge of fork need. Returns the number of other results. */
static int leaves_alone(void)
{
	int bad = 0;
	for (int i = 0; i < BUSY; i++)
		for (int k = 0; k < 2; k++) {
			struct side *s = &busy[i][k];
			struct ibv_sge sg = { (uintptr_t)s->buf, LEN, s->mr->lkey };
			struct ibv_recv_wr receive = { .wr_id = 3, .sg_list = &sg, .num_sge = 1 }, *bad_receive;
			struct ibv_send_wr send = { .wr_id = 4, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
			struct ibv_wc wc;
			struct ibv_port_attr port;
			struct ibv_device_attr_ex device;
			bad += ibv_post_recv(s->qp, &receive, &bad_receive) != ENODEV;
			bad += ibv_post_send(s->qp, &send, &bad_send) != ENODEV;
			bad += ibv_poll_cq(s->cq, 1, &wc) >= 0;
			bad += ibv_req_notify_cq(s->cq, 0) != ENODEV;
			bad += ibv_query_port(s->ctx, 1, &port) != ENODEV;
			bad += ibv_reg_mr(s->pd, s->buf, LEN, 0) != NULL || errno != ENODEV;
			bad += ibv_query_device_ex(s->ctx, NULL, &device) != 0;
			bad += i ? side_close(s) : side_end(s);
		}
	return bad;
}

static void while_threads_work(void)
{
	pthread_t t[BUSY];
	int bad = 0;
	__atomic_store_n(&stop, 0, __ATOMIC_RELEASE);
	for (int i = 0; i < BUSY; i++) {
		struct name first = side_open(&busy[i][0]), second = side_open(&busy[i][1]);
		side_connect(&busy[i][0], second);
		side_connect(&busy[i][1], first);
		if (pthread_create(&t[i], NULL, works, busy[i]))
			die("pthread_create");
	}
	for (int i = 0; i < CHILDREN && !bad; i++) {
		pid_t pid = new_child();
		if (pid == 0)
			exit(leaves_alone() || own_device() ? 1 : 0);
		bad += went_wrong(i, pid);
	}
	end_threads(t);
	check_eq(bad, 0, "mistakes with %d children that end what they were left, forked while threads work with it", CHILDREN);
	for (int i = 0; i < BUSY; i++)
		check_eq(side_close(&busy[i][0]) + side_close(&busy[i][1]), 0, "failures to destroy and to close");
}

/* Queries a QP until stopped. Threads that query the same QP contend for its lock. */
static void *asks(void *of)
{
	struct side *s = of;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
		if (ibv_query_qp(s->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN, &init))
			die("ibv_query_qp: %m");
	return NULL;
}

/* Threads of a child contend for locks for a moment; `of` is a connection of the child's own. */
static void meet(struct side *of)
{
	pthread_t t[2][2];
	begin_threads(t[0], asks, of);
	begin_threads(t[1], asks, of);
	usleep(3000);
	end_threads(t[0]);
	end_threads(t[1]);
}

static int meets_in_its_own(void)
{
	struct side c, d;
	struct name cn = side_open(&c), dn = side_open(&d);
	side_connect(&c, dn);
	side_connect(&d, cn);
	meet(&c);
	return side_close(&c) + side_close(&d);
}

/* Locks that the parent's threads hold at the fork do not affect a child with its own objects. */
static void while_threads_meet(void)
{
	struct side c, d;
	struct name cn = side_open(&c), dn = side_open(&d);
	pthread_t t[2][2];
	int bad = 0;
	side_connect(&c, dn);
	side_connect(&d, cn);
	begin_threads(t[0], asks, &c);
	begin_threads(t[1], asks, &c);
	for (int i = 0; i < MEETERS && !bad; i++) {
		pid_t pid = new_child();
		if (pid == 0)
			exit(meets_in_its_own() ? 1 : 0);
		bad += went_wrong(i, pid);
	}
	end_threads(t[0]);
	end_threads(t[1]);
	check_eq(bad, 0, "mistakes with %d children whose threads wait for each other, forked while threads do", MEETERS);
	check_eq(side_close(&c) + side_close(&d), 0, "failures to destroy and to close");
}

/* A child whose calls are refused prints one line with the reason, however many calls are
 * refused. */
static void is_told_why(void)
{
	char line[512] = "";
	int said[2], status;
	if (pipe(said))
		die("pipe: %m");
	pid_t pid = new_child();
	if (pid == 0) {
		struct ibv_wc wc;
		setenv("FERROVERBS_QUIET", "0", 1);
		dup2(said[1], STDERR_FILENO);
		int bad = ibv_poll_cq(a.cq, 1, &wc) >= 0;
		bad += ibv_req_notify_cq(a.cq, 0) != ENODEV;
		exit(bad + (ibv_poll_cq(a.cq, 1, &wc) >= 0));
	}
	close(said[1]);
	status = outcome(pid);
	ssize_t length = read(said[0], line, sizeof line - 1);
	close(said[0]);
	check(status == 0 && length > 0 && strstr(line, "is a fork") && strchr(line, '\n') == line + length - 1, "a child that is refused something reads: %s", line);
}

int main(void)
{
	check_eq(ibv_fork_init(), 0, "ibv_fork_init");
	struct name an = side_open(&a), bn = side_open(&b);
	side_connect(&a, bn);
	side_connect(&b, an);
	check_eq(exchange(&a, &b, 1), 0, "mistakes in two messages before any fork");
	ends_by_itself();
	writes_its_memory();
	talks_to_its_parent();
	pid_t pid = new_child();
	if (pid == 0)
		exit(own_device() ? 1 : 0);
	check_eq(outcome(pid), 0, "a child that opens the device for itself");
	is_told_why();
	while_threads_list();
	while_threads_open_and_close(1);
	check_eq(exchange(&a, &b, 11), 0, "mistakes in two messages after all of them");
	check_eq(side_close(&a) + side_close(&b), 0, "failures to destroy and to close");
	while_threads_open_and_close(0);
	while_threads_work();
	while_threads_meet();
	return finish();
}
