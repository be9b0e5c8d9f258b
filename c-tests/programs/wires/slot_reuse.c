/*
 * Processes that come and go, each in the process slot of its predecessor, over shared memory. A
 * process that stays exchanges datagrams and RC messages with every one.
 */
#include "partner.h"
#include <fcntl.h>
#include <glob.h>

#define COMERS 5
#define MESSAGES 20
#define QKEY 0x77u
#define SIZE 2000u

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static unsigned char *buf;

struct ends {
	struct ibv_qp *ud, *rc;
};

struct known {
	uint32_t ud, rc;
	union ibv_gid gid;
};

static void open_all(void)
{
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	buf = calloc(2, SIZE);
	mr = ibv_reg_mr(pd, buf, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE);
	if (!pd || !cq || !mr)
		die("set up");
}

static void close_all(void)
{
	check_eq(ibv_dereg_mr(mr) | ibv_destroy_cq(cq) | ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0, "everything is closed");
}

static void post_receive(struct ibv_qp *qp)
{
	struct ibv_sge sg = { (uintptr_t)buf, SIZE, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
}

/*
 * Makes a new process take the slot of its predecessor, as after a thousand other processes. The
 * first word of the fabric's slot file says where the search for a free slot starts. Call before
 * the device is open: closing the file drops the record locks of the process. Without such a file
 * there is nothing to do.
 */
static void same_place(void)
{
	char pattern[4096];
	uint64_t place = 2;
	const char *dir = getenv("FERROVERBS_FABRIC_DIR");
	glob_t found;
	if (!dir || snprintf(pattern, sizeof pattern, "%s/*/slots", dir) >= (int)sizeof pattern || glob(pattern, 0, NULL, &found))
		return;
	int fd = open(found.gl_pathv[0], O_WRONLY);
	if (fd < 0 || pwrite(fd, &place, sizeof place, 0) != sizeof place)
		die("%s", found.gl_pathv[0]);
	close(fd);
	globfree(&found);
}

static struct ends make(struct known *mine)
{
	struct ends e;
	struct ibv_qp_init_attr ia = { .send_cq = cq, .recv_cq = cq, .cap = { 64, 64, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
	e.ud = ibv_create_qp(pd, &ia);
	ia.qp_type = IBV_QPT_RC;
	e.rc = ibv_create_qp(pd, &ia);
	if (!e.ud || !e.rc || ibv_query_gid(ctx, 1, 0, &mine->gid))
		die("ibv_create_qp");
	mine->ud = e.ud->qp_num;
	mine->rc = e.rc->qp_num;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	int err = ibv_modify_qp(e.ud, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	err |= ibv_modify_qp(e.rc, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	a.qp_state = IBV_QPS_RTR;
	err |= ibv_modify_qp(e.ud, &a, IBV_QP_STATE);
	a.qp_state = IBV_QPS_RTS;
	err |= ibv_modify_qp(e.ud, &a, IBV_QP_STATE | IBV_QP_SQ_PSN);
	for (int i = 0; i < MESSAGES; i++) {
		post_receive(e.ud);
		post_receive(e.rc);
	}
	if (err)
		die("ibv_modify_qp");
	return e;
}

static void connect_rc(struct ibv_qp *qp, const struct known *to)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR,
				 .path_mtu = IBV_MTU_1024,
				 .dest_qp_num = to->rc,
				 .rq_psn = 5,
				 .max_dest_rd_atomic = 1,
				 .min_rnr_timer = 1,
				 .ah_attr = { .is_global = 1, .grh = { .dgid = to->gid, .hop_limit = 1 }, .port_num = 1 } };
	int err = ibv_modify_qp(qp, &a,
				IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					IBV_QP_MIN_RNR_TIMER);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 5, .max_rd_atomic = 1, .retry_cnt = 7, .rnr_retry = 7, .timeout = 18 };
	err |= ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT);
	if (err)
		die("ibv_modify_qp");
}

static void send_one(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t len)
{
	struct ibv_sge sg = { (uintptr_t)buf + SIZE, len, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = qpn;
		wr.wr.ud.remote_qkey = QKEY;
	}
	if (ibv_post_send(qp, &wr, &bad))
		die("ibv_post_send");
}

/*
 * Both sides of the exchange with one process. Returns the number of missing or failed completions.
 */
static int exchange(void)
{
	struct known mine, his;
	struct ends e = make(&mine);
	swap(&mine, &his, sizeof mine);
	connect_rc(e.rc, &his);
	struct ibv_ah_attr aa = { .is_global = 1, .grh = { .dgid = his.gid, .hop_limit = 1 }, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(pd, &aa);
	if (!ah)
		die("ibv_create_ah");
	meet();
	for (int i = 0; i < MESSAGES; i++) {
		send_one(e.ud, ah, his.ud, (uint32_t)i * 50);
		send_one(e.rc, NULL, 0, (uint32_t)i * 100);
	}
	int bad = 0;
	for (int i = 0; i < 4 * MESSAGES; i++) {
		struct ibv_wc w;
		if (!try_completion(cq, &w, WAIT_US)) {
			bad += 4 * MESSAGES - i;
			break;
		}
		bad += w.status != IBV_WC_SUCCESS;
	}
	meet();
	check_eq(ibv_destroy_ah(ah) | ibv_destroy_qp(e.ud) | ibv_destroy_qp(e.rc), 0, "ibv_destroy_qp");
	return bad;
}

int main(void)
{
	int ready[2], status;
	if (pipe(ready))
		die("pipe");
	for (int i = 0; i < COMERS; i++) {
		partner_fork();
		if (role) {
			char c;
			if (read(ready[0], &c, 1) != 1)
				die("read");
			same_place();
			open_all();
			check_eq(exchange(), 0, "comer %d: all is sent and received", i);
			if (i % 2)
				close_all();
			/* Later processes exit without closing. */
			fflush(stdout);
			_exit(finish());
		}
		if (i == 0)
			open_all();
		if (write(ready[1], "x", 1) != 1)
			die("write");
		check_eq(exchange(), 0, "who stays, with comer %d", i);
		if (waitpid(partner_pid, &status, 0) != partner_pid || status)
			check(0, "comer %d", i);
		close(partner_fd);
	}
	close_all();
	return finish();
}
