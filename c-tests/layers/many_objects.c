/* Creates and destroys many QPs and regions, each with a posted receive, in a process and in its
 * child; then ends as its argument says. */
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void want(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void work(int turns)
{
	static char buffer[4096];
	struct ibv_device **list = ibv_get_device_list(NULL);
	want(list && list[0], "a device");
	struct ibv_context *context = ibv_open_device(list[0]);
	want(context != NULL, "ibv_open_device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	want(pd && cq, "a PD and a CQ");
	for (int turn = 0; turn < turns; turn++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 2, 2, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
		struct ibv_qp *qp = ibv_create_qp(pd, &init);
		want(mr && qp, "a region and a QP");
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
		want(!ibv_modify_qp(qp, &attr, mask), "INIT");
		struct ibv_sge sge = { (uintptr_t)buffer, 64, mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		want(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
		want(!ibv_destroy_qp(qp), "ibv_destroy_qp");
		want(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	}
	/* The device stays open, as in a killed process. */
}

int main(int argc, char **argv)
{
	int turns = argc > 1 ? atoi(argv[1]) : 1, status;
	work(turns);
	fflush(stdout);
	pid_t child = fork();
	want(child >= 0, "fork");
	if (child == 0) {
		work(turns);
		_exit(0);
	}
	want(waitpid(child, &status, 0) == child && status == 0, "the child");
	printf("%d %d\n", (int)getpid(), (int)child);
	fflush(stdout);
	if (argc > 2 && !strcmp(argv[2], "killed"))
		raise(SIGKILL);
	return 0;
}
