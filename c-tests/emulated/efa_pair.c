/*
 * Two processes with an emulated EFA device each: SRD and UD in both directions, RDMA READ and
 * WRITE, errors that concern one request, and a peer that is killed. The parent drives the test;
 * the child answers. One line for each check that fails.
 */
#include "end.h"
#include <infiniband/efadv.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEPTH 16
#define MESSAGES 200
#define GRH 40

static int can_write;

struct address {
	union ibv_gid gid;
	uint32_t srd, ud, rkey;
	uint64_t memory;
};

static struct ibv_qp *srd, *ud;
static struct address mine, theirs;

static const struct ibv_qp_cap cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 32};

/* An SRD QP in RESET, or NULL. */
static struct ibv_qp *new_srd(int with_write)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = cap,
		.qp_type = IBV_QPT_DRIVER,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ,
	};
	struct efadv_qp_init_attr efa = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};

	if (with_write)
		attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE;
	return efadv_create_qp_ex(context, &attr, &efa, sizeof(efa));
}

static void open_device(void)
{
	open_end("efa_0", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	MUST(cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0));
	/* libefa has RDMA WRITE since rdma-core 47. */
	srd = new_srd(1);
	can_write = srd != NULL;
	srd = ready(srd ? srd : new_srd(0));
	struct ibv_qp_init_attr plain = {.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_UD};
	ud = ready(ibv_create_qp(pd, &plain));
	CHECK(srd->qp_num <= 0xffff && ud->qp_num <= 0xffff && srd->qp_num != ud->qp_num);
	MUST(!ibv_query_gid(context, 1, 0, &mine.gid));
	mine.srd = srd->qp_num;
	mine.ud = ud->qp_num;
	mine.rkey = mr->rkey;
	mine.memory = (uintptr_t)memory;
}

static void meet(int socket)
{
	exchange(socket, &mine, &theirs, sizeof(mine));
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh.dgid = theirs.gid};
	MUST(ah = ibv_create_ah(pd, &attr));
}

static void post_recv(struct ibv_qp *qp, uint64_t id, char *at, uint32_t length)
{
	struct ibv_sge sge = {(uintptr_t)at, length, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;

	MUST(!ibv_post_recv(qp, &wr, &bad));
}

static void post_send(struct ibv_qp *qp, uint32_t to, uint64_t id, const void *data, uint32_t length, unsigned flags)
{
	struct ibv_sge sge = {(uintptr_t)data, length, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED | flags, .imm_data = htobe32(id)}, *bad;

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = to;
	wr.wr.ud.remote_qkey = QKEY;
	MUST(!ibv_post_send(qp, &wr, &bad));
}

/* Each message goes over and comes back with its number in front. */
static void ping(struct ibv_qp *qp, uint32_t to, uint32_t head)
{
	for (int i = 0; i < MESSAGES; i++) {
		uint32_t length = i % 4 ? 8 + i * 10 : 8;
		int seen = 0;

		memset(memory + 8192, 0, 8192);
		snprintf(memory, 8, "%d", i);
		memory[length - 1] = 'z';
		post_recv(qp, 5000 + i, memory + 8192, 8192);
		post_send(qp, to, i, memory, length, i % 4 ? 0 : IBV_SEND_INLINE);
		while (seen != 3) {
			struct ibv_wc wc = completion();

			MUST(wc.status == IBV_WC_SUCCESS && wc.qp_num == qp->qp_num);
			if (!(wc.opcode & IBV_WC_RECV)) {
				CHECK(wc.wr_id == (uint64_t)i);
				seen |= 1;
				continue;
			}
			CHECK(wc.wr_id == (uint64_t)(5000 + i) && wc.src_qp == to && wc.byte_len == length + head);
			CHECK(wc.wc_flags & IBV_WC_WITH_IMM && be32toh(wc.imm_data) == (uint32_t)i + 1);
			CHECK(atoi(memory + 8192 + head) == i && memory[8192 + head + length - 1] == 'z');
			seen |= 2;
		}
	}
}

static void pong(struct ibv_qp *qp, uint32_t to, uint32_t head)
{
	for (int i = 0; i < MESSAGES; i++) {
		struct ibv_wc wc;

		do
			wc = completion();
		while (!(wc.opcode & IBV_WC_RECV) && wc.status == IBV_WC_SUCCESS);
		MUST(wc.status == IBV_WC_SUCCESS);
		CHECK(wc.src_qp == to && be32toh(wc.imm_data) == (uint32_t)i);
		memcpy(memory + 24576, memory + 16384 + head, wc.byte_len - head);
		post_recv(qp, i, memory + 16384, 8192);
		post_send(qp, to, i + 1, memory + 24576, wc.byte_len - head, 0);
	}
	for (struct ibv_wc wc = {.wr_id = 0}; wc.wr_id != MESSAGES; wc = completion())
		;
}

static void rdma_of(struct ibv_qp *from, uint32_t qkey, uint32_t rkey, int is_write, uint64_t id, uint64_t offset, char *local, uint32_t length)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(from);

	ibv_wr_start(qp);
	qp->wr_id = id;
	qp->wr_flags = IBV_SEND_SIGNALED;
	if (is_write)
		ibv_wr_rdma_write(qp, rkey, theirs.memory + offset);
	else
		ibv_wr_rdma_read(qp, rkey, theirs.memory + offset);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)local, length);
	ibv_wr_set_ud_addr(qp, ah, theirs.srd, qkey);
	MUST(!ibv_wr_complete(qp));
}

static void rdma(uint32_t rkey, int is_write, uint64_t id, uint64_t offset, char *local, uint32_t length)
{
	rdma_of(srd, QKEY, rkey, is_write, id, offset, local, length);
}

/* A wrong Q_Key fails the requests that have it, also while the QP has no connection yet. */
static void wrong_keys_at_first(void)
{
	struct ibv_qp *fresh = ready(new_srd(0));
	int good = 0, bad = 0;

	for (int i = 0; i < 8; i++)
		rdma_of(fresh, i % 2 ? QKEY : QKEY + 2, theirs.rkey, 0, 600 + i, 40000, memory + 100, 9);
	for (int i = 0; i < 8; i++) {
		struct ibv_wc wc = completion();

		if (wc.wr_id % 2) {
			CHECK(wc.status == IBV_WC_SUCCESS);
			good++;
		} else {
			CHECK(wc.status != IBV_WC_SUCCESS && wc.vendor_err == 9);
			bad++;
		}
	}
	CHECK(good == 4 && bad == 4);
	/* The connection to the same QP is still there. */
	rdma(theirs.rkey, 0, 620, 40000, memory + 100, 9);
	CHECK(completion().status == IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_qp(fresh));
}

/* An error concerns its request alone: those behind it are executed. */
static void errors(void)
{
	int good = 0, bad = 0;

	memset(memory, 0, 100);
	for (int i = 0; i < 5; i++)
		rdma(i == 2 ? theirs.rkey ^ 0x5a5a00 : theirs.rkey, 0, 100 + i, 40000, memory + 10 * i, 9);
	for (int i = 0; i < 5; i++) {
		struct ibv_wc wc = completion();

		if (wc.wr_id == 102) {
			CHECK(wc.status != IBV_WC_SUCCESS && wc.vendor_err == 7);
			bad++;
		} else {
			CHECK(wc.status == IBV_WC_SUCCESS);
			good++;
		}
	}
	CHECK(good == 4 && bad == 1);
	for (int i = 0; i < 5; i++)
		CHECK(!strcmp(memory + 10 * i, i == 2 ? "" : "to read!"));
	/* A wrong Q_Key reaches no QP. */
	struct ibv_sge sge = {(uintptr_t)memory, 4, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 110, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad_wr;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = theirs.srd;
	wr.wr.ud.remote_qkey = QKEY + 1;
	MUST(!ibv_post_send(srd, &wr, &bad_wr));
	CHECK(completion().vendor_err == 9);
}

static void close_device(void)
{
	CHECK(!ibv_destroy_qp(srd));
	CHECK(!ibv_destroy_qp(ud));
	CHECK(!ibv_destroy_cq(cq));
	close_end();
}

static int child(int socket)
{
	who = "child";
	open_device();
	strcpy(memory + 40000, "to read!");
	post_recv(srd, 0, memory + 16384, 8192);
	meet(socket);
	step(socket);
	pong(srd, theirs.srd, 0);
	post_recv(ud, 0, memory + 16384, 8192);
	step(socket);
	pong(ud, theirs.ud, GRH);
	step(socket);
	/* The parent reads and writes. */
	step(socket);
	CHECK(!can_write || !strcmp(memory + 50000, "was written"));
	fflush(stdout);
	step(socket);
	/* The parent ends this process. */
	if (failed)
		return 1;
	for (;;)
		pause();
}

int main(void)
{
	int status;
	pid_t pid;

	who = "parent";
	int socket = start_child(child, &pid);
	open_device();
	meet(socket);
	step(socket);
	ping(srd, theirs.srd, 0);
	step(socket);
	ping(ud, theirs.ud, GRH);
	step(socket);
	strcpy(memory, "was written");
	if (can_write) {
		rdma(theirs.rkey, 1, 90, 50000, memory, 12);
		CHECK(completion().status == IBV_WC_SUCCESS);
	}
	errors();
	wrong_keys_at_first();
	step(socket);
	step(socket);
	kill(pid, SIGKILL);
	MUST(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status));
	/* Requests to a process that is gone fail, and others go on. */
	post_send(srd, theirs.srd, 200, memory, 4, 0);
	CHECK(completion().status != IBV_WC_SUCCESS);
	post_send(srd, theirs.srd, 201, memory, 4, 0);
	CHECK(completion().status != IBV_WC_SUCCESS);
	post_recv(srd, 300, memory + 8192, 100);
	post_send(srd, srd->qp_num, 301, memory, 4, 0);
	CHECK(completion().status == IBV_WC_SUCCESS && completion().status == IBV_WC_SUCCESS);
	close_device();
	if (!failed)
		printf("done\n");
	return failed;
}
