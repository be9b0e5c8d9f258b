/*
 * Many processes with little address space, as batch systems limit it (ulimit -v 4000000). Each
 * process talks to all others over shared memory, with small, bounced and fetched messages. The
 * test limits the address space that each peer takes.
 */
#include "rig.h"
#include <sys/resource.h>

/*
 * A thread that unmaps a peer's segment may own a malloc(3) arena of 64 MiB, spread over ten peers.
 */
enum { PEER_MIB = 56, PROCESSES = 11, SIZES = 3, ROOM = 1 << 16 };
static const uint32_t size[SIZES] = { 32, 9000, ROOM };
static const rlim_t LIMIT = (rlim_t)4000000 << 10;

static struct shared {
	pthread_barrier_t barrier;
	uint32_t qpn[PROCESSES][PROCESSES];
} *shared;

static void together(void)
{
	int result = pthread_barrier_wait(&shared->barrier);
	if (result && result != PTHREAD_BARRIER_SERIAL_THREAD)
		die("pthread_barrier_wait");
}

/* Address space of this process in MiB. */
static long taken(void)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (!f || fscanf(f, "%lu", &pages) != 1)
		die("statm");
	fclose(f);
	return (long)(pages * (unsigned long)sysconf(_SC_PAGESIZE) >> 20);
}

static int member(int me)
{
	static unsigned char out[ROOM], in[PROCESSES][ROOM];
	struct rlimit limit = { LIMIT, LIMIT };
	struct ibv_qp *qp[PROCESSES] = { NULL };
	struct ibv_port_attr port;
	int refused = 0, bad = 0, wrong = 0;
	alarm(120);
	if (setrlimit(RLIMIT_AS, &limit))
		die("setrlimit");
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	struct ibv_mr *from = ibv_reg_mr(pd, out, sizeof out, 0), *to = ibv_reg_mr(pd, in, sizeof in, IBV_ACCESS_LOCAL_WRITE);
	if (!pd || !cq || !from || !to || ibv_query_port(ctx, 1, &port))
		die("set up");
	for (int i = 0; i < PROCESSES; i++) {
		struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 } };
		qp[i] = i == me ? NULL : ibv_create_qp(pd, &qa);
		if (i != me && !qp[i])
			die("ibv_create_qp");
		shared->qpn[me][i] = i == me ? 0 : qp[i]->qp_num;
	}
	long alone = taken();
	together();
	for (int i = 0; i < PROCESSES; i++) {
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		if (i == me)
			continue;
		bad |= ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
		a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = shared->qpn[i][me],
					  .max_dest_rd_atomic = 1, .min_rnr_timer = 1, .ah_attr = { .dlid = port.lid, .port_num = 1 } };
		refused += !!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
							      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
		a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
		bad |= ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
							IBV_QP_MAX_QP_RD_ATOMIC);
	}
	check_eq(refused, 0, "%d: peers that were refused", me);
	check_eq(bad, 0, "%d: other changes of state", me);
	together();
	for (int s = 0; s < SIZES; s++) {
		int done = 0, failed = 0;
		fill(out, size[s], (uint32_t)(me * SIZES + s));
		for (int i = 0; i < PROCESSES; i++) {
			struct ibv_sge sg = { (uintptr_t)in[i], size[s], to->lkey };
			struct ibv_recv_wr rw = { .wr_id = (uint64_t)i, .sg_list = &sg, .num_sge = 1 }, *bad_wr;
			if (i != me && ibv_post_recv(qp[i], &rw, &bad_wr))
				die("ibv_post_recv");
		}
		together();
		for (int i = 0; i < PROCESSES; i++) {
			struct ibv_sge sg = { (uintptr_t)out, size[s], from->lkey };
			struct ibv_send_wr sw = { .wr_id = 100, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND,
						  .send_flags = IBV_SEND_SIGNALED }, *bad_wr;
			if (i != me && ibv_post_send(qp[i], &sw, &bad_wr))
				die("ibv_post_send");
		}
		for (; done < 2 * (PROCESSES - 1); done++) {
			struct ibv_wc wc;
			wait_completion(cq, &wc);
			failed += wc.status != IBV_WC_SUCCESS;
		}
		for (int i = 0; i < PROCESSES; i++)
			wrong += i != me && verify(in[i], size[s], (uint32_t)(i * SIZES + s)) >= 0;
		check_eq(failed, 0, "%d: failed completions of %u bytes", me, size[s]);
		together();
	}
	check_eq(wrong, 0, "%d: messages with wrong bytes", me);
	long each = (taken() - alone) / (PROCESSES - 1);
	check(each <= PEER_MIB, "%d: %ld MiB of address space, and %ld for each peer, of which %d are allowed", me, alone, each, PEER_MIB);
	for (int i = 0; i < PROCESSES; i++)
		bad |= qp[i] ? ibv_destroy_qp(qp[i]) : 0;
	bad |= ibv_destroy_cq(cq) | ibv_dereg_mr(from) | ibv_dereg_mr(to) | ibv_dealloc_pd(pd) | ibv_close_device(ctx);
	check_eq(bad, 0, "%d: everything is destroyed", me);
	return finish();
}

int main(void)
{
	pthread_barrierattr_t attr;
	int result = 0;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || pthread_barrierattr_init(&attr) || pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED) ||
	    pthread_barrier_init(&shared->barrier, &attr, PROCESSES))
		die("set up");
	fflush(stdout);
	for (int i = 0; i < PROCESSES; i++) {
		pid_t child = fork();
		if (child < 0)
			die("fork");
		if (child == 0)
			exit(member(i));
	}
	for (int i = 0; i < PROCESSES; i++) {
		int status;
		if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
			result = 1;
	}
	return result;
}
