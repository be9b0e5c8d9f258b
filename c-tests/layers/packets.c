/*
 * Executes each operation once between QPs of this process, with wr_ids and PSNs that the test
 * knows, and prints its QP numbers. "killed": is killed at the end. "killed-now": at once. "child":
 * a child does the same. "many N": sends N messages of 1000 bytes. "small N": the same with a file
 * limit of 200000 bytes. "tiny N": 50000 bytes. "xrc": messages to XRC SRQs, one of them in a
 * child; prints the QP numbers and SRQ numbers.
 */
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FIRST_PSN 0xfffffe
#define REMOTE (buffer + 16384)

static char buffer[65536] __attribute__((aligned(4096)));
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;

static void want(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static struct ibv_qp *make(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 16, 16, 2, 2, 64 }, .qp_type = type };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	want(qp != NULL, "ibv_create_qp");
	return qp;
}

static union ibv_gid own_gid(void)
{
	union ibv_gid gid;
	want(!ibv_query_gid(context, 1, 1, &gid), "ibv_query_gid");
	return gid;
}

static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	int rc = qp->qp_type == IBV_QPT_RC, ud = qp->qp_type == IBV_QPT_UD;
	/* Each queue pair of XRC is half of one of RC. */
	int sends = rc || qp->qp_type == IBV_QPT_XRC_SEND, receives = rc || qp->qp_type == IBV_QPT_XRC_RECV;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1111,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	want(!ibv_modify_qp(qp, &attr, mask), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.rq_psn = attr.sq_psn = FIRST_PSN;
	attr.max_dest_rd_atomic = attr.max_rd_atomic = 4;
	attr.min_rnr_timer = 1;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = own_gid(), .sgid_index = 1, .hop_limit = 9 } };
	mask = IBV_QP_STATE | (ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
	       (receives ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
	want(!ibv_modify_qp(qp, &attr, mask), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN | (sends || receives ? IBV_QP_TIMEOUT : 0) |
	       (sends ? IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
	want(!ibv_modify_qp(qp, &attr, mask), "RTS");
}

/* Takes `count` completions; the test checks their statuses. */
static void await(int count)
{
	struct ibv_wc wc;
	while (count > 0) {
		int found = ibv_poll_cq(cq, 1, &wc);
		want(found >= 0, "ibv_poll_cq");
		count -= found;
	}
}

static void receive(struct ibv_qp *qp, uint64_t id, char *at, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)at, length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	want(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

static void post(struct ibv_qp *qp, struct ibv_send_wr *wr, const char *at, uint32_t length)
{
	/* In two pieces. */
	struct ibv_sge sge[2] = { { (uintptr_t)at, length / 2, mr->lkey }, { (uintptr_t)at + length / 2, length - length / 2, mr->lkey } };
	struct ibv_send_wr *bad;
	int atomic = wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
	if (atomic)
		sge[0].length = length;
	wr->sg_list = sge;
	wr->num_sge = atomic ? 1 : 2;
	wr->send_flags |= IBV_SEND_SIGNALED;
	want(!ibv_post_send(qp, wr, &bad), "ibv_post_send");
}

static void each_operation(void)
{
	struct ibv_qp *a = make(IBV_QPT_RC), *b = make(IBV_QPT_RC), *c = make(IBV_QPT_UC), *d = make(IBV_QPT_UC);
	struct ibv_qp *e = make(IBV_QPT_UD), *f = make(IBV_QPT_UD);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	connect_to(c, d->qp_num);
	connect_to(d, c->qp_num);
	connect_to(e, 0);
	connect_to(f, 0);
	struct ibv_send_wr wr;
#define REQUEST(op, id) (memset(&wr, 0, sizeof(wr)), wr.opcode = (op), wr.wr_id = (id))
#define TO(at) (wr.wr.rdma.remote_addr = (uintptr_t)(at), wr.wr.rdma.rkey = mr->rkey)

	receive(b, 0x201, REMOTE, 64);
	REQUEST(IBV_WR_SEND, 0x101);
	post(a, &wr, "hello", 0);
	await(2);
	memcpy(buffer, "hello", 5);
	receive(b, 0x202, REMOTE, 4096);
	REQUEST(IBV_WR_SEND_WITH_IMM, 0x102);
	wr.imm_data = htobe32(0x01020304);
	wr.send_flags = IBV_SEND_SOLICITED;
	post(a, &wr, buffer, 2500);
	await(2);
	REQUEST(IBV_WR_RDMA_WRITE, 0x103);
	TO(REMOTE);
	post(a, &wr, buffer, 2000);
	await(1);
	receive(b, 0x204, REMOTE, 64);
	REQUEST(IBV_WR_RDMA_WRITE_WITH_IMM, 0x104);
	TO(REMOTE);
	wr.imm_data = htobe32(0x05060708);
	post(a, &wr, buffer, 5);
	await(2);
	REQUEST(IBV_WR_RDMA_READ, 0x105);
	TO(REMOTE);
	post(a, &wr, buffer + 8192, 1025);
	await(1);
	memcpy(REMOTE, (uint64_t[]){ 40 }, 8);
	REQUEST(IBV_WR_ATOMIC_FETCH_AND_ADD, 0x106);
	wr.wr.atomic.remote_addr = (uintptr_t)REMOTE;
	wr.wr.atomic.rkey = mr->rkey;
	wr.wr.atomic.compare_add = 2;
	post(a, &wr, buffer + 8192, 8);
	await(1);
	REQUEST(IBV_WR_ATOMIC_CMP_AND_SWP, 0x107);
	wr.wr.atomic.remote_addr = (uintptr_t)REMOTE;
	wr.wr.atomic.rkey = mr->rkey;
	wr.wr.atomic.compare_add = 42;
	wr.wr.atomic.swap = 7;
	post(a, &wr, buffer + 8192, 8);
	await(1);
	receive(b, 0x208, REMOTE, 64);
	REQUEST(IBV_WR_SEND, 0x108);
	wr.send_flags = IBV_SEND_INLINE;
	post(a, &wr, "inline", 6);
	await(2);
	/* An invalid key: the responder refuses the request, and later requests are flushed. */
	REQUEST(IBV_WR_RDMA_WRITE, 0x109);
	TO(REMOTE);
	wr.wr.rdma.rkey ^= 0x5a5a00;
	post(a, &wr, buffer, 4);
	await(1);
	REQUEST(IBV_WR_SEND, 0x10a);
	post(a, &wr, buffer, 4);
	await(1);

	receive(d, 0x401, REMOTE, 64);
	REQUEST(IBV_WR_SEND, 0x301);
	post(c, &wr, buffer, 5);
	await(2);
	REQUEST(IBV_WR_RDMA_WRITE, 0x302);
	TO(REMOTE);
	post(c, &wr, buffer, 5);
	await(1);

	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = own_gid(), .sgid_index = 1, .hop_limit = 9 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	want(ah != NULL, "ibv_create_ah");
	receive(f, 0x601, REMOTE, 128);
	REQUEST(IBV_WR_SEND_WITH_IMM, 0x501);
	wr.imm_data = htobe32(0x0a0b0c0d);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = f->qp_num;
	wr.wr.ud.remote_qkey = 0x1111;
	post(e, &wr, buffer, 5);
	await(2);
	printf("%u %u %u %u %u %u %llu %u\n", a->qp_num, b->qp_num, c->qp_num, d->qp_num, e->qp_num, f->qp_num, (unsigned long long)(uintptr_t)REMOTE,
	       mr->rkey);
	fflush(stdout);
}

static void many(int count, rlim_t most)
{
	struct ibv_qp *a = make(IBV_QPT_RC), *b = make(IBV_QPT_RC);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	/* Shared memory of the adapter counts, too: it is there by now. */
	struct rlimit limit = { most, most };
	want(!most || !setrlimit(RLIMIT_FSIZE, &limit), "setrlimit");
	for (int i = 0; i < count; i++) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr_id = i };
		receive(b, i, REMOTE, 1024);
		post(a, &wr, buffer, 1000);
		await(2);
	}
	printf("%u %u\n", a->qp_num, b->qp_num);
	fflush(stdout);
}

static struct ibv_xrcd *domain(int file)
{
	struct ibv_xrcd_init_attr attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = file, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &attr);
	want(xrcd != NULL, "ibv_open_xrcd");
	return xrcd;
}

static struct ibv_srq *shared_queue(struct ibv_xrcd *xrcd, uint32_t *number)
{
	struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = 8, .max_sge = 1 },
					     .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
							  IBV_SRQ_INIT_ATTR_CQ,
					     .srq_type = IBV_SRQT_XRC,
					     .pd = pd,
					     .xrcd = xrcd,
					     .cq = cq };
	struct ibv_srq *srq = ibv_create_srq_ex(context, &attr);
	want(srq && !ibv_get_srq_num(srq, number), "a shared receive queue of XRC");
	return srq;
}

static void receive_shared(struct ibv_srq *srq, uint64_t id, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)REMOTE, length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	want(!ibv_post_srq_recv(srq, &wr, &bad), "ibv_post_srq_recv");
}

static void send_to(struct ibv_qp *qp, uint32_t srq, uint64_t id, enum ibv_wr_opcode opcode, uint32_t length)
{
	struct ibv_send_wr wr = { .wr_id = id, .opcode = opcode, .imm_data = htobe32(0x01020304) };
	wr.qp_type.xrc.remote_srqn = srq;
	wr.wr.rdma.remote_addr = (uintptr_t)REMOTE;
	wr.wr.rdma.rkey = mr->rkey;
	post(qp, &wr, buffer, length);
}

/* A child with its own SRQ, which does not know the QP that its message arrives by. */
static void child_of_xrc(int file, int to_parent)
{
	uint32_t number;
	struct ibv_srq *srq = shared_queue(domain(file), &number);
	receive_shared(srq, 0x801, 64);
	want(write(to_parent, &number, sizeof(number)) == sizeof(number), "write");
	await(1);
}

static void xrc(int file, int from_child)
{
	uint32_t number[3];
	struct ibv_xrcd *xrcd = domain(file);
	struct ibv_srq *first = shared_queue(xrcd, &number[0]), *second = shared_queue(xrcd, &number[1]);
	struct ibv_qp *a = make(IBV_QPT_XRC_SEND);
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *b = ibv_create_qp_ex(context, &init);
	want(b != NULL, "ibv_create_qp_ex");
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	memcpy(buffer, "hello", 5);

	receive_shared(first, 0x201, 64);
	receive_shared(second, 0x202, 4096);
	send_to(a, number[1], 0x101, IBV_WR_SEND_WITH_IMM, 2500);
	await(2);
	send_to(a, number[0], 0x102, IBV_WR_SEND, 5);
	await(2);
	receive_shared(first, 0x203, 64);
	send_to(a, number[0], 0x103, IBV_WR_RDMA_WRITE_WITH_IMM, 5);
	await(2);
	/* Two receives with the same wr_id: the completion's owner is ambiguous. */
	receive_shared(first, 0x204, 64);
	receive_shared(second, 0x204, 64);
	send_to(a, number[0], 0x104, IBV_WR_SEND, 5);
	await(2);
	want(read(from_child, &number[2], sizeof(number[2])) == sizeof(number[2]), "read");
	send_to(a, number[2], 0x105, IBV_WR_SEND, 5);
	await(1);
	printf("%u %u %u %u %u\n", a->qp_num, b->qp_num, number[0], number[1], number[2]);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	struct ibv_device **list = ibv_get_device_list(NULL);
	want(list && list[0], "a device");
	pid_t child = -1;
	int pipes[2] = { -1, -1 }, is_xrc = !strcmp(how, "xrc");
	FILE *file = is_xrc ? tmpfile() : NULL;
	want(!is_xrc || (file && !pipe(pipes)), "a file and a pipe");
	if (!strcmp(how, "child") || is_xrc) {
		/* Both processes have the layer and its file before the fork. */
		struct ibv_context *first = ibv_open_device(list[0]);
		want(first != NULL, "ibv_open_device");
		child = fork();
		want(child >= 0, "fork");
	}
	context = ibv_open_device(list[0]);
	want(context != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	want(pd && cq, "a PD and a CQ");
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer),
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	want(mr != NULL, "ibv_reg_mr");
	if (!strcmp(how, "many") || !strcmp(how, "small") || !strcmp(how, "tiny"))
		many(argc > 2 ? atoi(argv[2]) : 1, *how == 's' ? 200000 : *how == 't' ? 50000 : 0);
	else if (is_xrc && child == 0)
		child_of_xrc(fileno(file), pipes[1]);
	else if (is_xrc)
		xrc(fileno(file), pipes[0]);
	else
		each_operation();
	if (child > 0) {
		int status;
		want(waitpid(child, &status, 0) == child && status == 0, "the child");
	}
	if (!strcmp(how, "killed-now"))
		raise(SIGKILL);
	if (!strcmp(how, "killed")) {
		/* docs/guide/capture.md promises: after polling in vain for that time, the file
		 * holds all packets. */
		struct timespec now, begin;
		struct ibv_wc wc;
		long long waited;
		clock_gettime(CLOCK_MONOTONIC, &begin);
		do {
			want(ibv_poll_cq(cq, 1, &wc) == 0, "ibv_poll_cq");
			clock_gettime(CLOCK_MONOTONIC, &now);
			/* Seconds by themselves would make a whole one of the last millisecond before the next. */
			waited = (now.tv_sec - begin.tv_sec) * 1000LL + (now.tv_nsec - begin.tv_nsec) / 1000000;
		} while (waited < 1000);
		raise(SIGKILL);
	}
	return 0;
}
