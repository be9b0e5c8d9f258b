/*
 * A process without address space, large files, descriptors or system calls. Each refusal gives an
 * errno and a line with the refused resource; no refusal ends the process by a signal.
 */
#include "partner.h"
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

struct outcome {
	int signal, opened, error;
	char line[600];
};

static void limit(int resource, rlim_t to)
{
	struct rlimit l = { to, to };
	if (setrlimit(resource, &l))
		die("setrlimit");
}

/* System call `call` fails with EPERM; if `command` is not ANY, only with that second argument. */
enum { ANY = -1 };

static void refuse(int call, int command)
{
	/* The lower half of the argument: it is an int. */
	unsigned half = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 4 : 0;
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, args[1]) + half),
		BPF_JUMP(BPF_JMP | (command == ANY ? BPF_JGE : BPF_JEQ) | BPF_K, command == ANY ? 0 : (unsigned)command, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		die("seccomp");
}

static void forbid_calls(long call) { refuse((int)call, ANY); }
static void forbid_fcntl(long command) { refuse(SYS_fcntl, (int)command); }
static void limit_files(long n) { limit(RLIMIT_NOFILE, (rlim_t)n); }
static void limit_size(long mib) { limit(RLIMIT_FSIZE, (rlim_t)mib << 20); }
static void limit_space(long mib) { limit(RLIMIT_AS, (rlim_t)mib << 20); }

/* Limits the address space to the present size plus `mib`; the limit can be changed again. */
static void leave_room(long mib)
{
	struct rlimit l;
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (!f || fscanf(f, "%lu", &pages) != 1 || getrlimit(RLIMIT_AS, &l))
		die("statm");
	fclose(f);
	l.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)mib << 20);
	if (setrlimit(RLIMIT_AS, &l))
		die("setrlimit");
}

/* Opens the device in a process of which something is taken first. */
static struct outcome open_without(void (*take)(long), long arg)
{
	struct outcome o = { 0 };
	int lines[2], answer[2], status;
	size_t got = 0;
	if (pipe(lines) || pipe(answer))
		die("pipe");
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		dup2(lines[1], 2);
		for (int i = 0; i < 2; i++)
			close(lines[i]);
		close(answer[0]);
		take(arg);
		errno = 0;
		struct ibv_device **list = ibv_get_device_list(NULL);
		struct ibv_context *ctx = list && *list ? ibv_open_device(*list) : NULL;
		int said[2] = { ctx != NULL, errno };
		if (write(answer[1], said, sizeof said) != sizeof said)
			_exit(1);
		if (ctx)
			ibv_close_device(ctx);
		_exit(0);
	}
	close(lines[1]);
	close(answer[1]);
	int said[2] = { 0, 0 };
	if (read(answer[0], said, sizeof said) == sizeof said) {
		o.opened = said[0];
		o.error = said[1];
	}
	for (ssize_t n; got < sizeof o.line - 1 && (n = read(lines[0], o.line + got, sizeof o.line - 1 - got)) > 0;)
		got += (size_t)n;
	close(lines[0]);
	close(answer[0]);
	if (waitpid(child, &status, 0) != child)
		die("waitpid");
	o.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	return o;
}

static void is_told(const char *name, struct outcome o, int error, const char *what)
{
	check_eq(o.signal, 0, "%s: the signal that ended it", name);
	check(!o.opened, "%s: the device does not open", name);
	check_eq(o.error, error, "%s: errno", name);
	check(strstr(o.line, "libibverbs: ") && strstr(o.line, what), "%s: a line names it%s%s", name, strstr(o.line, what) ? "" : ": ",
	      strstr(o.line, what) ? "" : o.line);
}

/* With any number of descriptors the device opens, or prints the missing resource. */
static void few_descriptors(void)
{
	int silent = 0, killed = 0, without = 0, opened = 0;
	for (int n = 6; n < 40; n++) {
		struct outcome o = open_without(limit_files, n);
		killed += o.signal != 0;
		opened += o.opened;
		without += !o.opened && !o.error;
		if (!o.opened && !strstr(o.line, "libibverbs: ")) {
			printf("silent with %d descriptors, errno %d\n", n, o.error);
			silent++;
		}
	}
	check_eq(killed, 0, "few descriptors: processes that a signal ended");
	check_eq(silent, 0, "few descriptors: failures without a line");
	check_eq(without, 0, "few descriptors: failures without an errno");
	check(opened > 0, "with more of them it opens");
}

enum { WINDOW = 128, MESSAGES = 200, BYTES = 8000 };

static int to_rtr(struct ibv_qp *qp, uint32_t his, uint16_t lid)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = his, .max_dest_rd_atomic = 1,
				 .min_rnr_timer = 1, .ah_attr = { .dlid = lid, .port_num = 1 } };
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				  IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
}

/* Too little room to meet the process, then for the ring of its QP as well, and at last enough. */
static void enough_at_last(struct ibv_qp *qp, uint32_t his, uint16_t lid)
{
	int error = ENOMEM, refused = 0, misplaced = 0, mib = 0;
	while (error == ENOMEM && mib < 256) {
		struct ibv_qp_attr a;
		struct ibv_qp_init_attr unused;
		leave_room(++mib);
		error = to_rtr(qp, his, lid);
		refused += error != 0;
		misplaced += ibv_query_qp(qp, &a, IBV_QP_STATE, &unused) || a.qp_state != (error ? IBV_QPS_INIT : IBV_QPS_RTR);
	}
	check(refused > 0, "no room for a peer: RTR is refused with ENOMEM");
	check_eq(error, 0, "with %d MiB more of room: RTR", mib);
	check_eq(misplaced, 0, "no room for a peer: times that the QP was in another state than INIT, or RTR at last");
}

/* Completions of each kind: those that succeed come first. */
static void count(struct ibv_cq *cq, enum ibv_wc_status *first_bad, int *good)
{
	*good = 0;
	*first_bad = IBV_WC_SUCCESS;
	for (int i = 0; i < MESSAGES; i++) {
		struct ibv_wc wc;
		wait_completion(cq, &wc);
		*good += wc.status == IBV_WC_SUCCESS;
		if (*first_bad == IBV_WC_SUCCESS)
			*first_bad = wc.status;
	}
}

/*
 * No address space for a peer's segments: the connection is refused, and a line gives the reason.
 * With room for the first bounce buffers only, a message in the others breaks the connection.
 */
static void a_peer_too_many(void)
{
	static char buffer[BYTES];
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, MESSAGES, NULL, NULL, 0);
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE) : NULL;
	struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { MESSAGES, MESSAGES, 1, 1, 0 } };
	struct ibv_qp *qp = mr && cq ? ibv_create_qp(pd, &qa) : NULL;
	struct ibv_port_attr port;
	enum ibv_wc_status bad;
	uint32_t mine, his;
	int good;
	if (!qp || ibv_query_port(ctx, 1, &port))
		die("set up");
	struct ibv_sge sg = { (uintptr_t)buffer, BYTES, mr->lkey };
	struct ibv_recv_wr rw = { .sg_list = &sg, .num_sge = 1 }, *bad_rw;
	struct ibv_send_wr sw = { .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_sw;
	mine = qp->qp_num;
	swap(&mine, &his, sizeof mine);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT");
	if (role) {
		char line[1200] = "";
		int lines[2], kept = dup(2);
		if (pipe(lines))
			die("pipe");
		dup2(lines[1], 2);
		enough_at_last(qp, his, port.lid);
		meet();
		to_rts(qp);
		for (int i = 0; i < MESSAGES; i++)
			if (ibv_post_recv(qp, &rw, &bad_rw))
				die("ibv_post_recv");
		leave_room(1);
		meet();
		count(cq, &bad, &good);
		dup2(kept, 2);
		close(lines[1]);
		if (read(lines[0], line, sizeof line - 1) < 0)
			die("read");
		check(strstr(line, "(ulimit -v, ulimit -n)") != NULL, "no room for a peer: a line tells why");
		check(strstr(line, "bounce buffers") != NULL, "no room for more of a peer: a line tells why");
		check_eq(good, WINDOW, "no room for more of a peer: receives that were complete before");
	} else {
		int status;
		/* The peer connects later and finds the segments attached. */
		meet();
		if (to_rtr(qp, his, port.lid))
			die("RTR");
		to_rts(qp);
		meet();
		/* A stopped process returns no bounce buffer before all are in use. */
		if (kill(partner_pid, SIGSTOP) || waitpid(partner_pid, &status, WUNTRACED) != partner_pid || !WIFSTOPPED(status))
			die("SIGSTOP");
		for (int i = 0; i < MESSAGES; i++)
			if (ibv_post_send(qp, &sw, &bad_sw))
				die("ibv_post_send");
		kill(partner_pid, SIGCONT);
		count(cq, &bad, &good);
		check_eq(good, WINDOW, "no room for more of a peer: messages that came before");
		check_eq(bad, IBV_WC_REM_INV_REQ_ERR, "no room for more of a peer: the status of the first that did not");
	}
	meet();
	check_eq(ibv_destroy_qp(qp) | ibv_destroy_cq(cq) | ibv_dereg_mr(mr) | ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0,
		 "everything is destroyed");
}

int main(void)
{
	/* The test reads the lines, so it undoes a harness's FERROVERBS_QUIET. */
	setenv("FERROVERBS_QUIET", "0", 1);
	/* A thread's first arena maps 128 MiB and returns half of it. Room that is counted in
	 * between is 64 MiB too large, so the service thread shares the first arena here. */
	mallopt(M_ARENA_MAX, 1);
	partner_fork();
	if (!role) {
		is_told("ulimit -f", open_without(limit_size, 100), EFBIG, "ulimit -f");
		is_told("ulimit -v", open_without(limit_space, 300), ENOMEM, "ulimit -v");
		is_told("memfd_create", open_without(forbid_calls, SYS_memfd_create), EPERM, "memfd_create");
		is_told("eventfd2", open_without(forbid_calls, SYS_eventfd2), EPERM, "eventfd2");
		/* Without a descriptor for asynchronous events, which is a duplicate: the open
		 * fails, instead of a device with async_fd -1. */
		is_told("fcntl", open_without(forbid_fcntl, F_DUPFD_CLOEXEC), EPERM, "asynchronous events");
		is_told("epoll_create1", open_without(forbid_calls, SYS_epoll_create1), EPERM, "epoll_create1");
		few_descriptors();
	}
	meet();
	a_peer_too_many();
	return partner_finish();
}
