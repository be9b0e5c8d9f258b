/*
 * Four threads play ping-pong, each with its own pair of QPs, while the process forks and its child
 * does the same. Each process ends with one refused misuse; the first process ends as its argument
 * says: four_threads ROUNDS [killed]. Prints both process ids.
 */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4

static struct ibv_context *context;
static int rounds;
static atomic_int playing;

static void want(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		_exit(1);
	}
}

static struct ibv_context *opened(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	want(list && list[0], "a device");
	struct ibv_context *made = ibv_open_device(list[0]);
	want(made != NULL, "ibv_open_device");
	ibv_free_device_list(list);
	return made;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	want(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1 } };
	want(!ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
	want(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	want(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void message(struct ibv_qp *from, struct ibv_qp *to, struct ibv_cq *cq, struct ibv_sge sge)
{
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *no_recv;
	struct ibv_send_wr send = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *no_send;
	recv.sg_list = &(struct ibv_sge){ sge.addr + 64, sge.length, sge.lkey };
	want(!ibv_post_recv(to, &recv, &no_recv) && !ibv_post_send(from, &send, &no_send), "posting");
	for (int left = 2; left;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);
		want(n >= 0 && (!n || wc.status == IBV_WC_SUCCESS), "a completion");
		left -= n;
	}
}

static void *play(void *on)
{
	struct ibv_context *device = on;
	unsigned char *buffer = calloc(1, 128);
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_cq *cq = ibv_create_cq(device, 8, NULL, NULL, 0);
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, buffer, 128, IBV_ACCESS_LOCAL_WRITE) : NULL;
	want(mr && cq, "objects");
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	want(a && b, "ibv_create_qp");
	connect_to(a, b);
	connect_to(b, a);
	atomic_fetch_add(&playing, 1);
	struct ibv_sge sge = { (uintptr_t)buffer, 64, mr->lkey };
	for (int round = 0; round < rounds; round++) {
		message(a, b, cq, sge);
		message(b, a, cq, sge);
	}
	want(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd), "destroying");
	free(buffer);
	return NULL;
}

static void misuse(struct ibv_context *device)
{
	static char bytes[64];
	struct ibv_pd *pd = ibv_alloc_pd(device);
	want(pd != NULL, "ibv_alloc_pd");
	want(!ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_REMOTE_WRITE), "EINVAL");
	want(!ibv_dealloc_pd(pd), "ibv_dealloc_pd");
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	int status;
	rounds = argc > 1 ? atoi(argv[1]) : 1;
	context = opened();
	for (int i = 0; i < THREADS; i++)
		want(!pthread_create(&threads[i], NULL, play, context), "a thread");
	while (atomic_load(&playing) < THREADS)
		;
	pid_t child = fork();
	want(child >= 0, "fork");
	if (!child) {
		struct ibv_context *own = opened();
		play(own);
		misuse(own);
		want(!ibv_close_device(own), "ibv_close_device");
		_exit(0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	want(waitpid(child, &status, 0) == child && !status, "the child");
	misuse(context);
	printf("%d %d\n", (int)getpid(), (int)child);
	fflush(stdout);
	if (argc > 2 && !strcmp(argv[2], "killed"))
		raise(SIGKILL);
	want(!ibv_close_device(context), "ibv_close_device");
	return 0;
}
