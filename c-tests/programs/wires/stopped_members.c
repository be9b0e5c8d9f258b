/*
 * Stopped members of the fabric (SIGSTOP). A process that joins a multicast group waits for no
 * stopped member, and meets the member when the member is continued. librdmacm joins a group at
 * the first rdma_listen(3) or rdma_connect(3) of a process.
 */
#include "rig.h"
#include <sys/prctl.h>

enum { MEMBERS = 48, QKEY = 0x1234, GROUP_QPN = 0xffffff, LIMIT = 60 };

static const union ibv_gid group = { .raw = { 0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, [15] = 9 } };
static unsigned char buf[4096];
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;

/* Written by the parent. */
static volatile int *arrived;

/* A datagram QP that can send and receive. */
static void open_all(void)
{
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	mr = pd ? ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!mr || !cq)
		die("ibv_reg_mr, ibv_create_cq: %m");
	struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 16, 16, 1, 1, 0 } };
	qp = ibv_create_qp(pd, &qa);
	if (!qp)
		die("ibv_create_qp: %m");
	int err = ud_to_rts(qp, QKEY);
	if (err)
		die("ibv_modify_qp: %s", strerror(err));
}

static void send_to_group(struct ibv_ah *ah)
{
	struct ibv_sge sg = { (uintptr_t)buf, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = GROUP_QPN;
	wr.wr.ud.remote_qkey = QKEY;
	if (ibv_post_send(qp, &wr, &bad))
		die("ibv_post_send");
	wait_completion(cq, &wc);
}

/* Sends to the group once, for which it meets all others, and stops. The first member goes on
 * sending when it is continued. */
static void member(int first)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		die("prctl: %m");
	open_all();
	struct ibv_ah_attr at = { .is_global = 1, .grh = { .dgid = group, .hop_limit = 7 }, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(pd, &at);
	if (!ah)
		die("ibv_create_ah: %m");
	send_to_group(ah);
	raise(SIGSTOP);
	while (first && !*arrived) {
		send_to_group(ah);
		usleep(1000);
	}
	_exit(0);
}

int main(void)
{
	pid_t members[MEMBERS];

	arrived = mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (arrived == MAP_FAILED)
		die("mmap: %m");
	/* A process that waits for each stopped member for a second or more does not come to the
	 * end. */
	alarm(LIMIT);
	for (int i = 0; i < MEMBERS; i++) {
		int status;

		fflush(stdout);
		members[i] = fork();
		if (members[i] == 0)
			member(i == 0);
		if (members[i] < 0 || waitpid(members[i], &status, WUNTRACED) != members[i] || !WIFSTOPPED(status))
			die("a member does not come to its stop");
	}
	open_all();
	struct ibv_sge sg = { (uintptr_t)buf, sizeof buf, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
	check_eq(ibv_attach_mcast(qp, &group, 0), 0, "ibv_attach_mcast beside %d stopped members", MEMBERS);
	for (int i = 0; i < MEMBERS; i++)
		kill(members[i], SIGCONT);
	struct ibv_wc wc;
	wait_completion(cq, &wc);
	*arrived = 1;
	check_eq(wc.status, IBV_WC_SUCCESS, "a datagram of a member that is continued arrives");
	for (int i = 0; i < MEMBERS; i++) {
		int status = -1;
		check(waitpid(members[i], &status, 0) == members[i] && status == 0, "member %d ends well", i);
	}
	check_eq(ibv_detach_mcast(qp, &group, 0), 0, "ibv_detach_mcast");
	check(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0,
	      "all is closed");
	return finish();
}
