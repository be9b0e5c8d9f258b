/*
 * idle_socket [child]: a process that still holds a socket at its host's RoCE port, opened by a
 * destroyed QP, and then polls a CQ for ever without traffic to another host. With `child` the
 * process forks and is killed, and the child lives on.
 */
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("failed: %s\n", #what); exit(1); } } while (0)

int main(int argc, char *argv[])
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && *list);
	struct ibv_context *ctx = ibv_open_device(*list);
	CHECK(ctx);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *used = ibv_create_cq(ctx, 4, NULL, NULL, 0), *unused = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	CHECK(pd && used && unused);
	struct ibv_qp_init_attr init = { .send_cq = used, .recv_cq = used, .qp_type = IBV_QPT_UD, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1 };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	CHECK(!ibv_destroy_qp(qp));
	if (argc > 1 && !strcmp(argv[1], "child")) {
		pid_t parent = getpid(), child = fork();
		CHECK(child >= 0);
		if (child)
			raise(SIGKILL);
		while (getppid() == parent)
			usleep(1000);
		printf("lives\n");
		fflush(stdout);
		for (;;)
			pause();
	}
	printf("polls\n");
	fflush(stdout);
	for (struct ibv_wc wc;;)
		CHECK(!ibv_poll_cq(unused, 1, &wc));
}
