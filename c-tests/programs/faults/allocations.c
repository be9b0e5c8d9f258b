/*
 * No failed allocation ends a program: a verb that creates an object fails with ENOMEM, and every
 * other call continues with memory reserved by the libraries. A child opens the device, connects
 * two QPs, sends, polls and closes. The test fails the n-th allocation for each n. With two numbers
 * as arguments the program is such a child, with all allocations from the first to the second
 * number failing.
 *
 * This file defines malloc(3) and its relatives, for the libraries as well.
 */
#define _GNU_SOURCE
#include "rig.h"
#include <sys/mman.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

/* Allocations `first` to `last` fail; counted from 1, while `counts` is set. */
static long first, last, count;
static int counts;

static int fails(void)
{
	if (!__atomic_load_n(&counts, __ATOMIC_RELAXED))
		return 0;
	long n = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
	int now = first <= n && n <= last;
	if (now)
		errno = ENOMEM;
	return now;
}

void *malloc(size_t size)
{
	return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	return fails() ? NULL : __libc_realloc(p, size);
}

void *aligned_alloc(size_t align, size_t size)
{
	return fails() ? NULL : __libc_memalign(align, size);
}

void *memalign(size_t align, size_t size)
{
	return fails() ? NULL : __libc_memalign(align, size);
}

int posix_memalign(void **p, size_t align, size_t size)
{
	void *got = fails() ? NULL : __libc_memalign(align, size);

	if (got)
		*p = got;
	return got ? 0 : ENOMEM;
}

/* ---- the child ---- */

/* Exit statuses of the child: everything worked; a verb returned ENOMEM; a verb returned another
 * error; a successful verb had no effect. */
enum { WORKED, REFUSED, WRONG_ERROR, WRONG };

static unsigned char buf[1 << 16];
static const char *failed_verb;
static int failed_errno;

/* Notes the first failure; returns whether there is none. */
static int is(int good, const char *verb, int err)
{
	if (!good && !failed_verb) {
		failed_verb = verb;
		failed_errno = err;
	}
	return good;
}

static int connected(struct ibv_qp *qp, uint32_t to, uint16_t lid)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	int err = ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .dest_qp_num = to,
				   .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 1,
				   .ah_attr = { .dlid = lid, .port_num = 1 } };
	err = err ? err
		  : ibv_modify_qp(qp, &at,
				  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					  IBV_QP_MIN_RNR_TIMER);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	err = err ? err
		  : ibv_modify_qp(qp, &at,
				  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	return is(err == 0, "ibv_modify_qp", err);
}

/* Posts one request from a to b and takes its `wanted` completions, by events of the channel. */
static int goes(struct ibv_qp *a, struct ibv_qp *b, struct ibv_mr *mr, struct ibv_comp_channel *ch, struct ibv_cq *cq, enum ibv_wr_opcode op)
{
	struct ibv_sge from = { (uintptr_t)buf, 20000, mr->lkey }, to = { (uintptr_t)buf + 30000, 20000, mr->lkey };
	struct ibv_recv_wr rw = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr sw = { .sg_list = &from, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	int wanted = op == IBV_WR_SEND ? 2 : 1, got = 0, err = ibv_req_notify_cq(cq, 0);
	struct ibv_cq *of;
	void *context;

	sw.wr.rdma.remote_addr = (uintptr_t)buf + 30000;
	sw.wr.rdma.rkey = mr->rkey;
	if (op == IBV_WR_SEND && !err)
		err = ibv_post_recv(b, &rw, &bad_recv);
	err = err ? err : ibv_post_send(a, &sw, &bad_send);
	if (!is(err == 0, "post", err))
		return 0;
	if (!is(ibv_get_cq_event(ch, &of, &context) == 0, "ibv_get_cq_event", errno))
		return 0;
	ibv_ack_cq_events(cq, 1);
	for (uint64_t end = now_us() + WAIT_US; got < wanted && now_us() < end;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);
		if (n < 0 || (n == 1 && wc.status))
			exit(WRONG);
		got += n;
	}
	if (got < wanted)
		exit(WRONG);
	return 1;
}

static int child(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = NULL;
	struct ibv_pd *pd = NULL;
	struct ibv_mr *mr = NULL;
	struct ibv_comp_channel *ch = NULL;
	struct ibv_cq *cq = NULL;
	struct ibv_srq *srq = NULL;
	struct ibv_qp *qp[2] = { NULL, NULL };
	struct ibv_port_attr port;

	/* The library reports a plugin that cannot be loaded as a missing plugin. */
	if (!is(list != NULL, "ibv_get_device_list", errno == ENOSYS ? ENOMEM : errno) || !is(list[0] != NULL, "no device", ENOMEM))
		goto out;
	ctx = ibv_open_device(list[0]);
	/* pthread_create(3) reports missing memory by EAGAIN as well. */
	if (!is(ctx != NULL, "ibv_open_device", errno == EAGAIN ? ENOMEM : errno))
		goto out;
	pd = ibv_alloc_pd(ctx);
	if (!is(pd != NULL, "ibv_alloc_pd", errno))
		goto out;
	mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	ch = ibv_create_comp_channel(ctx);
	if (!is(mr != NULL, "ibv_reg_mr", errno) || !is(ch != NULL, "ibv_create_comp_channel", errno))
		goto out;
	cq = ibv_create_cq(ctx, 64, NULL, ch, 0);
	if (!is(cq != NULL, "ibv_create_cq", errno))
		goto out;
	struct ibv_srq_init_attr sa = { .attr = { 4, 1, 0 } };
	srq = ibv_create_srq(pd, &sa);
	if (!is(srq != NULL, "ibv_create_srq", errno))
		goto out;
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 2, 2, 64 } };
		qp[i] = ibv_create_qp(pd, &qa);
		if (!is(qp[i] != NULL, "ibv_create_qp", errno))
			goto out;
	}
	if (!is(ibv_query_port(ctx, 1, &port) == 0, "ibv_query_port", ENOMEM) || !connected(qp[0], qp[1]->qp_num, port.lid) ||
	    !connected(qp[1], qp[0]->qp_num, port.lid))
		goto out;
	if (goes(qp[0], qp[1], mr, ch, cq, IBV_WR_SEND))
		goes(qp[0], qp[1], mr, ch, cq, IBV_WR_RDMA_READ);
out:
	for (int i = 0; i < 2; i++)
		if (qp[i] && ibv_destroy_qp(qp[i]))
			return WRONG;
	if ((srq && ibv_destroy_srq(srq)) || (cq && ibv_destroy_cq(cq)) || (ch && ibv_destroy_comp_channel(ch)))
		return WRONG;
	if ((mr && ibv_dereg_mr(mr)) || (pd && ibv_dealloc_pd(pd)) || (ctx && ibv_close_device(ctx)))
		return WRONG;
	if (list)
		ibv_free_device_list(list);
	if (!failed_verb)
		return WORKED;
	if (failed_errno == ENOMEM)
		return REFUSED;
	__atomic_store_n(&counts, 0, __ATOMIC_RELAXED);
	fprintf(stderr, "%s: %s\n", failed_verb, strerror(failed_errno));
	return WRONG_ERROR;
}

/* What a child printed last. */
static char said[2000];

/* Whether glibc ended the child: glibc ends a process that has no memory for thread-local data, and
 * prints a message. */
static int libc_ended_it(void)
{
	return strstr(said, "cannot allocate memory for thread-local data") || strstr(said, "failed to register TLS destructor");
}

/* Runs a child in which allocations `from` to `to` fail; returns the wait status. `made`: the
 * number of allocations. */
static int run(long from, long to, long *made)
{
	int ends[2];
	long n = 0;

	if (pipe(ends) || ftruncate(2, 0) || lseek(2, 0, SEEK_SET))
		die("pipe: %m");
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		/* SIGALRM ends a child that hangs. */
		alarm(20);
		first = from;
		last = to;
		counts = 1;
		int status = child();
		n = count;
		if (write(ends[1], &n, sizeof n) != sizeof n)
			_exit(WRONG);
		_exit(status);
	}
	int status = -1;
	close(ends[1]);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		die("fork: %m");
	if (made && read(ends[0], made, sizeof *made) != sizeof *made)
		die("a child without faults does not come to its end");
	close(ends[0]);
	off_t size = lseek(2, 0, SEEK_END);
	ssize_t got = pread(2, said, sizeof said - 1, size > (off_t)sizeof said - 1 ? size - (off_t)sizeof said + 1 : 0);
	said[got > 0 ? got : 0] = 0;
	return status;
}

int main(int argc, char **argv)
{
	long all = 0, refused = 0, by_libc = 0, by_threads = 0, bad = 0;
	int file = memfd_create("stderr", 0);

	setenv("FERROVERBS_QUIET", "1", 1);
	setenv("RUST_BACKTRACE", "0", 1);
	if (argc == 3)
		return run(atol(argv[1]), atol(argv[2]), NULL);
	if (file < 0 || dup2(file, 2) < 0)
		die("memfd_create: %m");
	check_eq(run(0, 0, &all), 0, "a program whose allocations all succeed");
	check(all > 50, "it has %ld allocations", all);
	for (long n = 1; n <= all; n++) {
		int status = run(n, n, NULL);
		int good = WIFEXITED(status) && WEXITSTATUS(status) <= REFUSED;
		int libc = !good && libc_ended_it();
		by_libc += libc;
		refused += WIFEXITED(status) && WEXITSTATUS(status) == REFUSED;
		/* Rust's standard library allocates a handle for each thread with malloc(3), and
		 * aborts without memory. */
		int thread = !good && !libc && WIFSIGNALED(status) && strstr(said, "memory allocation of 48 bytes failed");
		by_threads += thread;
		if (!good && !libc && !thread && bad++ < 40)
			printf("allocation %ld: %s %d: %s\n", n, WIFEXITED(status) ? "status" : "signal",
			       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), said);
	}
	check(bad == 0, "%ld runs end badly", bad);
	/* A thread's handle is made when the thread starts, and where a thread is first waited for. */
	check(by_threads < all / 20, "the standard library ends %ld runs for lack of a thread's handle", by_threads);
	check(by_libc < all / 20, "the C library ends %ld runs for lack of thread-local data", by_libc);
	check(refused > 0, "verbs fail with ENOMEM in %ld runs", refused);
	return finish();
}
