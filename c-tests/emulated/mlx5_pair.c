/*
 * Two processes with an emulated mlx5 device each, over the unmodified libmlx5. The parent drives
 * RC, UC, UD and RC with an SRQ: SEND with and without immediate and inline data, many segments,
 * WRITE, READ, atomics, a CQ event, and the order of errors. The child answers. One line for each
 * check that fails.
 */
#include "end.h"
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEPTH 32
#define GRH 40
#define WORD 4096
#define INBOX 8192

/* SHARED: RC with an SRQ. */
enum kind { RC, UC, UD, SHARED, KINDS };

struct address {
	union ibv_gid gid;
	uint32_t qpn[KINDS], rkey;
	uint64_t memory;
};

static const enum ibv_qp_type types[KINDS] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RC};
static struct ibv_qp *qps[KINDS];
static struct ibv_srq *srq;
static struct ibv_comp_channel *channel;
static struct address mine, theirs;

static void open_device(void)
{
	open_end("mlx5_0", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	MUST(channel = ibv_create_comp_channel(context));
	MUST(cq = ibv_create_cq(context, 4 * DEPTH, NULL, channel, 0));
	struct ibv_srq_init_attr shared = {.attr = {.max_wr = DEPTH, .max_sge = 2}};
	MUST(srq = ibv_create_srq(pd, &shared));
	for (int kind = 0; kind < KINDS; kind++) {
		struct ibv_qp_init_attr attr = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 100},
			.qp_type = types[kind],
			.srq = kind == SHARED ? srq : NULL,
		};
		struct ibv_qp_init_attr_ex extended = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = attr.cap,
			.qp_type = IBV_QPT_RC,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.pd = pd,
			.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
		};
		MUST(qps[kind] = kind == RC ? ibv_create_qp_ex(context, &extended) : ibv_create_qp(pd, &attr));
		mine.qpn[kind] = qps[kind]->qp_num;
	}
	MUST(!ibv_query_gid(context, 1, 0, &mine.gid));
	mine.rkey = mr->rkey;
	mine.memory = (uintptr_t)memory;
}

static void connect_qp(enum kind kind)
{
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = theirs.gid, .hop_limit = 1}};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (kind == UC)
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	MUST(!ibv_modify_qp(qps[kind], &attr, mask | (kind == UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .ah_attr = to, .path_mtu = IBV_MTU_1024, .dest_qp_num = theirs.qpn[kind], .rq_psn = 7, .max_dest_rd_atomic = 4, .min_rnr_timer = 12};
	mask = IBV_QP_STATE;
	if (kind != UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (types[kind] == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	MUST(!ibv_modify_qp(qps[kind], &attr, mask));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (types[kind] == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	MUST(!ibv_modify_qp(qps[kind], &attr, mask));
	if (kind == UD)
		MUST(ah = ibv_create_ah(pd, &to));
}

static void meet(int socket)
{
	exchange(socket, &mine, &theirs, sizeof(mine));
	for (int kind = 0; kind < KINDS; kind++)
		connect_qp(kind);
}

static void post_recv(enum kind kind, uint64_t id, char *at, uint32_t length)
{
	struct ibv_sge sge[2] = {{(uintptr_t)at, length / 2, mr->lkey}, {(uintptr_t)at + length / 2, length - length / 2, mr->lkey}};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = 2}, *bad;

	if (kind == SHARED)
		MUST(!ibv_post_srq_recv(srq, &wr, &bad));
	else
		MUST(!ibv_post_recv(qps[kind], &wr, &bad));
}

/* A request of `segments` equal parts of the bytes at `at`; the id is its opcode. */
static struct ibv_send_wr request(struct ibv_sge *sge, int segments, enum ibv_wr_opcode opcode, char *at, uint32_t length, unsigned flags)
{
	for (int i = 0; i < segments; i++)
		sge[i] = (struct ibv_sge){(uintptr_t)at + i * length / segments, length / segments, mr->lkey};
	return (struct ibv_send_wr){.wr_id = opcode, .sg_list = sge, .num_sge = segments, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED | flags, .imm_data = htobe32(0x01020304)};
}

static void post(enum kind kind, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	if (kind == UD) {
		wr->wr.ud.ah = ah;
		wr->wr.ud.remote_qpn = theirs.qpn[UD];
		wr->wr.ud.remote_qkey = QKEY;
	}
	MUST(!ibv_post_send(qps[kind], wr, &bad));
}

/* Sends a message of each form and takes it back with a number added to each byte. */
static void ping(enum kind kind)
{
	uint32_t head = kind == UD ? GRH : 0;

	for (int i = 0; i < 64; i++) {
		uint32_t length = i % 3 ? 840 : 60;
		struct ibv_sge sge[4];
		struct ibv_send_wr wr = request(sge, 1 + i % 4, i % 2 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM, memory, length, i % 3 ? 0 : IBV_SEND_INLINE);
		int seen = 0;

		memset(memory, i, length);
		memset(memory + INBOX, 0, 1024);
		post_recv(kind, 500, memory + INBOX, 1024);
		post(kind, &wr);
		while (seen != 3) {
			struct ibv_wc wc = completion();

			MUST(wc.status == IBV_WC_SUCCESS && wc.qp_num == qps[kind]->qp_num);
			seen |= wc.opcode & IBV_WC_RECV ? 2 : 1;
			if (!(wc.opcode & IBV_WC_RECV)) {
				CHECK(wc.wr_id == wr.opcode);
				continue;
			}
			CHECK(wc.wr_id == 500 && wc.byte_len == length + head);
			CHECK(kind != UD || (wc.src_qp == theirs.qpn[UD] && wc.wc_flags & IBV_WC_GRH));
			CHECK(wc.wc_flags & IBV_WC_WITH_IMM && be32toh(wc.imm_data) == (i % 2 ? 7 : 0x01020304));
			CHECK(memory[INBOX + head] == i + 1 && memory[INBOX + head + length - 1] == i + 1);
		}
	}
}

static void pong(enum kind kind)
{
	uint32_t head = kind == UD ? GRH : 0;

	for (int i = 0; i < 64; i++) {
		struct ibv_wc wc;
		struct ibv_sge sge[4];

		do
			wc = completion();
		while (wc.status == IBV_WC_SUCCESS && !(wc.opcode & IBV_WC_RECV));
		MUST(wc.status == IBV_WC_SUCCESS);
		for (uint32_t at = 0; at < wc.byte_len - head; at++)
			memory[at] = memory[INBOX + head + at] + 1;
		struct ibv_send_wr wr = request(sge, 1, IBV_WR_SEND_WITH_IMM, memory, wc.byte_len - head, 0);
		wr.imm_data = wc.wc_flags & IBV_WC_WITH_IMM ? wc.imm_data : htobe32(7);
		post_recv(kind, 0, memory + INBOX, 1024);
		post(kind, &wr);
	}
}

/* RC executes each kind of one-sided request: WRITE, READ, and both atomics. */
static void one_sided(void)
{
	struct ibv_sge sge[4];
	struct ibv_send_wr wr = request(sge, 3, IBV_WR_RDMA_WRITE, memory, 300, 0);
	struct ibv_wc wc;

	memset(memory, 'w', 300);
	wr.wr.rdma.remote_addr = theirs.memory + 20000;
	wr.wr.rdma.rkey = theirs.rkey;
	post(RC, &wr);
	wc = completion();
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE);
	/* The same by the builder, whose functions libmlx5 replaces at RTS. */
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(qps[RC]);
	ibv_wr_start(qp);
	qp->wr_id = 77;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, theirs.rkey, theirs.memory + 20300);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 1);
	MUST(!ibv_wr_complete(qp));
	wc = completion();
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 77);
	wr = request(sge, 1, IBV_WR_RDMA_READ, memory + 1000, 301, 0);
	wr.wr.rdma.remote_addr = theirs.memory + 20000;
	wr.wr.rdma.rkey = theirs.rkey;
	post(RC, &wr);
	wc = completion();
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == 301);
	CHECK(memory[1000] == 'w' && memory[1300] == 'w');
	wr = request(sge, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, memory + 2000, 8, 0);
	wr.wr.atomic.remote_addr = theirs.memory + WORD;
	wr.wr.atomic.rkey = theirs.rkey;
	wr.wr.atomic.compare_add = 5;
	post(RC, &wr);
	wc = completion();
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_FETCH_ADD && *(uint64_t *)(memory + 2000) == 100);
	wr = request(sge, 1, IBV_WR_ATOMIC_CMP_AND_SWP, memory + 2000, 8, 0);
	wr.wr.atomic.remote_addr = theirs.memory + WORD;
	wr.wr.atomic.rkey = theirs.rkey;
	wr.wr.atomic.compare_add = 105;
	wr.wr.atomic.swap = 7;
	post(RC, &wr);
	wc = completion();
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_COMP_SWAP && *(uint64_t *)(memory + 2000) == 105);
}

/* A CQ that is armed has one event, and the channel names the CQ. */
static void event(void)
{
	struct ibv_sge sge[4];
	struct ibv_send_wr wr = request(sge, 1, IBV_WR_RDMA_WRITE, memory, 8, 0);
	struct ibv_cq *of;
	void *with;

	MUST(!ibv_req_notify_cq(cq, 0));
	wr.wr.rdma.remote_addr = theirs.memory + 20000;
	wr.wr.rdma.rkey = theirs.rkey;
	post(RC, &wr);
	MUST(!ibv_get_cq_event(channel, &of, &with));
	CHECK(of == cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(completion().status == IBV_WC_SUCCESS);
}

/* A wrong rkey fails its request; earlier requests succeed, later ones and receives are flushed. */
static void errors(void)
{
	static const enum ibv_wc_status expected[] = {IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR};
	struct ibv_sge sge[4];
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int sent = 0, received = 0;

	post_recv(RC, 900, memory + INBOX, 100);
	for (int i = 0; i < 4; i++) {
		struct ibv_send_wr wr = request(sge, 1, IBV_WR_RDMA_WRITE, memory, 8, 0);

		wr.wr_id = 700 + i;
		wr.wr.rdma.remote_addr = theirs.memory + 20000;
		wr.wr.rdma.rkey = i == 1 ? theirs.rkey ^ 0x5a5a00 : theirs.rkey;
		post(RC, &wr);
	}
	for (int i = 0; i < 5; i++) {
		struct ibv_wc wc = completion();

		if (wc.wr_id == 900) {
			CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
			received++;
			continue;
		}
		CHECK(wc.wr_id == 700 + (uint64_t)sent && wc.status == expected[sent]);
		sent++;
	}
	CHECK(sent == 4 && received == 1);
	MUST(!ibv_query_qp(qps[RC], &attr, IBV_QP_STATE, &init));
	CHECK(attr.qp_state == IBV_QPS_ERR);
}

static void close_device(void)
{
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	for (int kind = 0; kind < KINDS; kind++)
		CHECK(!ibv_destroy_qp(qps[kind]));
	CHECK(!ibv_destroy_srq(srq));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_destroy_comp_channel(channel));
	close_end();
}

static int child(int socket)
{
	who = "child";
	open_device();
	*(uint64_t *)(memory + WORD) = 100;
	meet(socket);
	for (int kind = 0; kind < KINDS; kind++) {
		post_recv(kind, 0, memory + INBOX, 1024);
		step(socket);
		pong(kind);
		step(socket);
	}
	step(socket);
	CHECK(*(uint64_t *)(memory + WORD) == 7);
	fflush(stdout);
	close_device();
	return failed;
}

int main(void)
{
	int status;
	pid_t pid;

	who = "parent";
	int socket = start_child(child, &pid);
	open_device();
	meet(socket);
	for (int kind = 0; kind < KINDS; kind++) {
		step(socket);
		ping(kind);
		step(socket);
	}
	one_sided();
	event();
	errors();
	step(socket);
	MUST(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	close_device();
	if (!failed)
		printf("done\n");
	return failed;
}
