/*
 * A process that changes its user after it opened the device, and then connects to a process of its
 * former user. Runs as root. soft prints the reason of the failed connection on stderr.
 * ibv_open_device(3), setresuid(2).
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

static struct ibv_qp *make_qp(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_cq *cq = context ? ibv_create_cq(context, 8, NULL, NULL, 0) : NULL;
	struct ibv_qp_init_attr wanted = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = pd && cq ? ibv_create_qp(pd, &wanted) : NULL;

	if (!qp || ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) {
		perror("changed_user: no QP");
		exit(2);
	}
	return qp;
}

int main(void)
{
	int number[2], end[2];
	uint32_t peer = 0;
	pid_t child;

	if (pipe(number) || pipe(end))
		return 2;
	child = fork();
	if (child == 0) {
		struct ibv_qp *qp = make_qp();
		char byte;

		close(end[1]);
		if (write(number[1], &qp->qp_num, sizeof(peer)) != sizeof(peer))
			return 2;
		/* The read returns when the parent ends. */
		return read(end[0], &byte, 1) < 0;
	}
	struct ibv_qp *qp = make_qp();
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .rq_psn = 1, .min_rnr_timer = 12, .ah_attr = { .port_num = 1, .dlid = 1 } };

	if (read(number[0], &peer, sizeof(peer)) != sizeof(peer))
		return 2;
	if (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY)) {
		perror("changed_user: setresuid");
		return 2;
	}
	rtr.dest_qp_num = peer;
	ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	close(end[1]);
	waitpid(child, NULL, 0);
	return 0;
}
