/*
 * A peer that is stopped during a one-sided operation, over shared memory. A call that revokes the
 * key waits until the operation is over, because the peer continues the operation when it is
 * continued. Meanwhile the caller sleeps, and a line on stderr names the process.
 *
 * The child writes continuously into memory of the parent. The parent stops the child and revokes a
 * key, and a thread watches.
 */
#include "partner.h"
#include <sys/syscall.h>

enum { LENGTH = 16 << 20, ROUNDS = 200 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

struct offer {
	uint64_t addr;
	uint32_t rkey, qpn, pid;
};

static struct ibv_qp *connected(struct ibv_qp *with_number, uint32_t peer)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
				 .port_num = 1,
				 .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND };
	int bad = ibv_query_port(ctx, 1, &port);
	bad |= ibv_modify_qp(with_number, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 1, .ah_attr = { .dlid = port.lid, .port_num = 1 } };
	bad |= ibv_modify_qp(with_number, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 1, .rnr_retry = 7, .max_rd_atomic = 1 };
	bad |= ibv_modify_qp(with_number, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						      IBV_QP_MAX_QP_RD_ATOMIC);
	if (bad)
		die("ibv_modify_qp");
	return with_number;
}

static struct ibv_qp *new_qp(void)
{
	struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 } };
	struct ibv_qp *made = ibv_create_qp(pd, &qa);
	if (!made)
		die("ibv_create_qp");
	return made;
}

/* ---- the child ---- */

static unsigned char *source;
static struct ibv_mr *source_mr;

/* Writes by the key until it opens nothing any more. */
static void write_until_refused(struct offer at)
{
	struct ibv_sge sg = { (uintptr_t)source, LENGTH, source_mr->lkey };
	struct ibv_send_wr sw = { .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;
	sw.wr.rdma.remote_addr = at.addr;
	sw.wr.rdma.rkey = at.rkey;
	do {
		if (ibv_post_send(qp, &sw, &bad))
			die("ibv_post_send");
		wait_completion(cq, &wc);
	} while (!wc.status);
}

static void child(void)
{
	source = malloc(LENGTH);
	source_mr = ibv_reg_mr(pd, source, LENGTH, 0);
	if (!source_mr)
		die("ibv_reg_mr");
	memset(source, 1, LENGTH);
	for (;;) {
		struct offer mine = { .pid = (uint32_t)getpid() }, his;
		qp = new_qp();
		mine.qpn = qp->qp_num;
		swap(&mine, &his, sizeof mine);
		if (!his.qpn)
			break;
		connected(qp, his.qpn);
		meet();
		swap(&mine, &his, sizeof mine);
		write_until_refused(his);
		ibv_destroy_qp(qp);
	}
	ibv_destroy_qp(qp);
	ibv_dereg_mr(source_mr);
	free(source);
}

/* ---- the parent ---- */

static int real_stderr, pipe_end;
static pid_t child_pid, waiter;
static char line[400];
static int heard, slept, silent, over;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static char state_of(pid_t tid)
{
	char path[100], text[400];
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
	if (f)
		fclose(f);
	text[n] = 0;
	char *at = strrchr(text, ')');
	return at && at[1] ? at[2] : '?';
}

static int is_over(void)
{
	pthread_mutex_lock(&mutex);
	int result = over;
	pthread_mutex_unlock(&mutex);
	return result;
}

/* Waits for the line of the call, or the end of the call; then continues the child. */
static void *look(void *unused)
{
	size_t got = 0;
	for (uint64_t end = now_us() + WAIT_US; !is_over() && !heard && now_us() < end;) {
		if (!readable(pipe_end, 10))
			continue;
		ssize_t n = read(pipe_end, line + got, sizeof line - 1 - got);
		got += n > 0 ? (size_t)n : 0;
		heard = memchr(line, '\n', got) != NULL;
	}
	for (int i = 0; heard && i < 100 && !slept; i++) {
		slept = state_of(waiter) == 'S';
		usleep(1000);
	}
	silent = !heard && !is_over();
	kill(child_pid, SIGCONT);
	return unused;
}

/* Stops the writing child and makes the call; returns whether the call had to wait. */
static int call_while_stopped(const char *name, int (*call)(void *), void *object)
{
	pthread_t thread;
	int status;
	heard = slept = silent = over = 0;
	memset(line, 0, sizeof line);
	waiter = (pid_t)syscall(SYS_gettid);
	/* In the middle of an operation, mostly: the child does nothing else. */
	usleep(1000);
	kill(child_pid, SIGSTOP);
	if (waitpid(child_pid, &status, WUNTRACED) != child_pid || !WIFSTOPPED(status))
		die("the child does not stop");
	pthread_create(&thread, NULL, look, NULL);
	int result = call(object);
	pthread_mutex_lock(&mutex);
	over = 1;
	pthread_mutex_unlock(&mutex);
	pthread_join(thread, NULL);
	if (result)
		die("%s: %s", name, strerror(result));
	return heard || silent;
}

static int dereg(void *mr) { return ibv_dereg_mr(mr); }
static int dealloc_window(void *mw) { return ibv_dealloc_mw(mw); }
static int destroy(void *with_window) { return ibv_destroy_qp(with_window); }

enum how { REGION, WINDOW, QP };

static struct ibv_mw *bound(struct ibv_mr *mr, unsigned char *memory, enum ibv_mw_type type)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, type);
	struct ibv_mw_bind_info info = { mr, (uintptr_t)memory, LENGTH, IBV_ACCESS_REMOTE_WRITE };
	struct ibv_wc wc;
	int bad;
	if (!mw)
		die("ibv_alloc_mw");
	if (type == IBV_MW_TYPE_1) {
		struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
		bad = ibv_bind_mw(qp, mw, &bind);
	} else {
		struct ibv_send_wr sw = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad_wr;
		sw.bind_mw.mw = mw;
		sw.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
		sw.bind_mw.bind_info = info;
		bad = ibv_post_send(qp, &sw, &bad_wr);
		mw->rkey = sw.bind_mw.rkey;
	}
	if (bad)
		die("binding");
	wait_completion(cq, &wc);
	if (wc.status)
		die("binding: %s", ibv_wc_status_str(wc.status));
	return mw;
}

/*
 * One connection with a writing child, and one revoking call; returns whether the call had to wait.
 */
static int one_round(enum how how, const char *name)
{
	unsigned char *memory = malloc(LENGTH);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = NULL;
	struct offer mine = { .addr = (uintptr_t)memory }, his;
	if (!mr)
		die("ibv_reg_mr");
	qp = new_qp();
	mine.qpn = qp->qp_num;
	mine.rkey = mr->rkey;
	swap(&mine, &his, sizeof mine);
	connected(qp, his.qpn);
	child_pid = (pid_t)his.pid;
	meet();
	if (how != REGION) {
		mw = bound(mr, memory, how == WINDOW ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
		mine.rkey = mw->rkey;
	}
	swap(&mine, &his, sizeof mine);
	int waited = how == REGION ? call_while_stopped(name, dereg, mr) :
		     how == WINDOW ? call_while_stopped(name, dealloc_window, mw) :
				     call_while_stopped(name, destroy, qp);
	if (how == QP)
		ibv_dealloc_mw(mw);
	if (how != REGION)
		ibv_dereg_mr(mr);
	/* Nobody writes there any more. */
	memset(memory, 0, LENGTH);
	/* That nothing is written cannot be waited for; the child writes all the time. */
	usleep(100);
	int written = 0;
	for (int i = 0; i < LENGTH; i += 4096)
		written += memory[i];
	if (written)
		check(0, "%s: written to after it returned", name);
	if (how != QP)
		ibv_destroy_qp(qp);
	free(memory);
	return waited;
}

static void parent(enum how how, const char *name)
{
	char who[40];
	int waited = 0;
	for (int i = 0; i < ROUNDS && !waited; i++)
		waited = one_round(how, name);
	check(waited && heard, "%s: a line tells that it waits", name);
	snprintf(who, sizeof who, "process %d,", (int)child_pid);
	check(strstr(line, name) != NULL, "%s: the line names the call", name);
	check(strstr(line, who) != NULL, "%s: the line names the process", name);
	check(strchr(line, '\n') == line + strlen(line) - 1, "%s: it is one line", name);
	check(slept, "%s: it sleeps meanwhile", name);
}

int main(void)
{
	int ends[2];
	partner_fork();
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	if (!pd || !cq)
		die("set up");
	if (role) {
		child();
	} else {
		struct offer none = { 0 }, his;
		real_stderr = dup(2);
		if (pipe(ends) || dup2(ends[1], 2) < 0)
			die("pipe");
		pipe_end = ends[0];
		parent(REGION, "ibv_dereg_mr");
		parent(WINDOW, "ibv_dealloc_mw");
		parent(QP, "QP 0x");
		dup2(real_stderr, 2);
		swap(&none, &his, sizeof none);
	}
	int bad = ibv_destroy_cq(cq) | ibv_dealloc_pd(pd) | ibv_close_device(ctx);
	check_eq(bad, 0, "everything is destroyed");
	return partner_finish();
}
