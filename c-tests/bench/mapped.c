/*
 * Latency of RDMA WRITE between two processes whose memory is a System V segment, which soft maps
 * on both sides. Both processes poll their memory, as ib_write_lat does. Prints the median over
 * runs in microseconds one way.
 *
 * usage: mapped CPU_A CPU_B BYTES ITERATIONS
 */
#define _GNU_SOURCE
#include "timing.h"
#include <infiniband/verbs.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEGMENT = 1 << 20, RUN = 1000 };

struct place {
	uint64_t addr;
	uint32_t rkey, qpn;
	uint16_t lid;
};

static void connect_qp(struct ibv_qp *qp, const struct place *to)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = to->qpn, .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 12, .ah_attr = { .dlid = to->lid, .port_num = 1 } };
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					  IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
}

/* What the last byte of each message says: never what was there before. */
static unsigned char mark(long i)
{
	return (unsigned char)(1 + i % 200);
}

static void side(int cpu, int other, int first, uint32_t bytes, long n)
{
	int id = shmget(IPC_PRIVATE, SEGMENT, IPC_CREAT | 0600);
	unsigned char *memory = id < 0 ? NULL : shmat(id, NULL, 0);
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	struct ibv_port_attr port;
	struct place own, there;
	cpu_set_t set;
	double *runs = calloc((size_t)(n / RUN), sizeof(*runs));

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) || !runs)
		die("sched_setaffinity");
	if (!memory || memory == (void *)-1 || shmctl(id, IPC_RMID, NULL))
		die("shmget");
	if (!pd || ibv_query_port(ctx, 1, &port))
		die("no device");
	memset(memory, 0, SEGMENT);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SEGMENT, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 8, 1, 1, 1, 0 } };
	struct ibv_qp *qp = mr && cq ? ibv_create_qp(pd, &init) : NULL;

	if (!qp)
		die("no QP");
	own = (struct place){ (uintptr_t)memory, mr->rkey, qp->qp_num, port.lid };
	if (write(other, &own, sizeof(own)) != sizeof(own) || read(other, &there, sizeof(there)) != sizeof(there))
		die("the other process");
	connect_qp(qp, &there);
	if (write(other, "r", 1) != 1 || read(other, &own, 1) != 1)
		die("the other process");

	/* Arrivals lie at the start of the segment, outgoing bytes behind them. */
	volatile unsigned char *flag = memory + bytes - 1;
	unsigned char *out = memory + SEGMENT / 2;
	struct ibv_sge sge = { (uintptr_t)out, bytes, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { there.addr, there.rkey } }, *bad;
	double start = 0;

	for (long i = 0; i < n; i++) {
		struct ibv_wc wc;
		int got;

		if (i % RUN == 0)
			start = now();
		if (!first || i > 0)
			while (*flag != mark(first ? i - 1 : i))
				;
		out[bytes - 1] = mark(i);
		if (ibv_post_send(qp, &wr, &bad))
			die("ibv_post_send");
		do
			got = ibv_poll_cq(cq, 1, &wc);
		while (!got);
		if (got < 0 || wc.status)
			die("ibv_poll_cq");
		if (i % RUN == RUN - 1)
			runs[i / RUN] = (now() - start) / RUN / 2 * 1e6;
	}
	/* Neither goes while the other may still write. */
	if (write(other, "e", 1) != 1 || read(other, &own, 1) != 1)
		die("the other process");
	qsort(runs, (size_t)(n / RUN), sizeof(*runs), by_value);
	if (first)
		printf("%.4f\n", runs[n / RUN / 2]);
}

int main(int argc, char **argv)
{
	int pair[2], status = 0;
	long n = argc > 4 ? atol(argv[4]) / RUN * RUN : 0;
	long bytes = argc > 4 ? atol(argv[3]) : 0;

	if (n <= 0 || bytes <= 0 || bytes > SEGMENT / 2) {
		fprintf(stderr, "usage: mapped CPU_A CPU_B BYTES ITERATIONS\n");
		return 2;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		die("socketpair");
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		side(atoi(argv[2]), pair[1], 0, (uint32_t)bytes, n);
		return 0;
	}
	side(atoi(argv[1]), pair[0], 1, (uint32_t)bytes, n);
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
