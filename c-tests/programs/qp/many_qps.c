/* A thousand connections between two processes, all in use at once, with one CQ on each side. QP
 * numbers are not predictable from known numbers. */
#include "rig.h"

enum { QPS = 1000 };

struct card {
	uint32_t qpn, rkey;
	uint64_t addr;
	uint16_t lid;
	union ibv_gid gid;
};

static void exchange(int fd, const void *mine, void *his, size_t len)
{
	/* Small enough for both directions to fit into the socket's buffers. */
	if (write(fd, mine, len) != (ssize_t)len || recv(fd, his, len, MSG_WAITALL) != (ssize_t)len)
		die("the other process is gone");
}

static int side(int fd, unsigned me)
{
	static uint64_t out[QPS], in[QPS], written[QPS];
	static struct ibv_qp *qp[QPS];
	static struct card his[QPS];
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 3 * QPS, NULL, NULL, 0);
	struct ibv_mr *mo = ibv_reg_mr(pd, out, sizeof out, 0);
	struct ibv_mr *mi = ibv_reg_mr(pd, in, sizeof in, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *mw = ibv_reg_mr(pd, written, sizeof written, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	union ibv_gid gid;
	struct ibv_port_attr port;
	int counted = 0;
	if (!pd || !cq || !mo || !mi || !mw || ibv_query_gid(ctx, 1, 0, &gid) || ibv_query_port(ctx, 1, &port))
		die("set up");
	for (int i = 0; i < QPS; i++) {
		struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 2, 1, 1, 1, 0 } };
		qp[i] = ibv_create_qp(pd, &qa);
		if (!qp[i])
			die("ibv_create_qp %d: %s", i, strerror(errno));
		counted += i && qp[i]->qp_num - qp[i - 1]->qp_num + 8 <= 16;
		struct card mine = { qp[i]->qp_num, mw->rkey, (uintptr_t)&written[i], port.lid, gid };
		exchange(fd, &mine, &his[i], sizeof mine);
		for (int k = 0; k < i; k += 97)
			if (qp[k]->qp_num == qp[i]->qp_num)
				die("two QPs have one number");
		struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
		int err = ibv_modify_qp(qp[i], &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
		at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
					   .path_mtu = port.active_mtu,
					   .dest_qp_num = his[i].qpn,
					   .max_dest_rd_atomic = 1,
					   .min_rnr_timer = 1,
					   .ah_attr = { .is_global = 1, .grh = { .dgid = his[i].gid, .hop_limit = 1 }, .port_num = 1 } };
		err = err ? err
			  : ibv_modify_qp(qp[i], &at,
					  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
						  IBV_QP_MIN_RNR_TIMER);
		struct ibv_sge sg = { (uintptr_t)&in[i], 8, mi->lkey };
		struct ibv_recv_wr rw = { .wr_id = (uint64_t)i, .sg_list = &sg, .num_sge = 1 }, *bad;
		err = err ? err : ibv_post_recv(qp[i], &rw, &bad);
		at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .max_rd_atomic = 1, .retry_cnt = 7, .rnr_retry = 7, .timeout = 14 };
		err = err ? err
			  : ibv_modify_qp(qp[i], &at,
					  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT);
		if (err)
			die("connecting QP %d: %s", i, strerror(err));
	}
	char ready = 1;
	exchange(fd, &ready, &ready, 1);
	for (unsigned k = 0; k < QPS; k++) {
		unsigned i = me ? k : QPS - 1 - k;
		out[i] = (uint64_t)me << 32 | (i + 1);
		struct ibv_sge sg = { (uintptr_t)&out[i], 8, mo->lkey };
		struct ibv_send_wr w[2] = { { .wr_id = 10000 + i, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED },
					    { .wr_id = 20000 + i, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED } },
				   *bad;
		w[0].next = &w[1];
		w[0].wr.rdma.remote_addr = his[i].addr;
		w[0].wr.rdma.rkey = his[i].rkey;
		int err = ibv_post_send(qp[i], w, &bad);
		if (err)
			die("ibv_post_send on QP %u: %s", i, strerror(err));
	}
	int wrong = 0, kinds[3] = { 0 };
	for (int n = 0; n < 3 * QPS; n++) {
		struct ibv_wc w;
		wait_completion(cq, &w);
		unsigned i = (unsigned)(w.wr_id % 10000);
		if (w.status || i >= QPS || w.qp_num != qp[i]->qp_num) {
			wrong++;
			continue;
		}
		kinds[w.wr_id / 10000]++;
		if (w.wr_id < 10000) {
			uint64_t wanted = (uint64_t)!me << 32 | (i + 1);
			/* The WRITE was posted before the SEND, so its bytes are in place when the
			 * SEND arrives. */
			wrong += in[i] != wanted || written[i] != wanted;
		}
	}
	check(counted < 10, "process %u: a number is rarely near the one before: %d are", me, counted);
	check_eq(wrong, 0, "process %u: wrong completions or data on %d QPs", me, QPS);
	check(kinds[0] == QPS && kinds[1] == QPS && kinds[2] == QPS, "process %u: each request completed once", me);
	exchange(fd, &ready, &ready, 1);
	int bad = 0;
	for (int i = 0; i < QPS; i++)
		bad += !!ibv_destroy_qp(qp[i]);
	bad += !!ibv_destroy_cq(cq) + !!ibv_dereg_mr(mo) + !!ibv_dereg_mr(mi) + !!ibv_dereg_mr(mw) + !!ibv_dealloc_pd(pd) + !!ibv_close_device(ctx);
	check_eq(bad, 0, "process %u: failed destroys", me);
	return finish();
}

int main(void)
{
	int fd[2], status = 1;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd))
		die("socketpair");
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		close(fd[0]);
		return side(fd[1], 1);
	}
	close(fd[1]);
	int mine = side(fd[0], 0);
	waitpid(child, &status, 0);
	return mine || !WIFEXITED(status) || WEXITSTATUS(status);
}
