/*
 * XRC: a send QP, one receive QP, and SRQs of one domain in one, two or three processes, on each
 * data path. ibv_open_xrcd(3), ibv_create_srq_ex(3), ibv_get_srq_num(3), ibv_create_qp_ex(3),
 * ibv_wr_post(3).
 *
 * Three nodes: SENDER, HOME (receive QP and SRQ) and OTHER (SRQ only). "one": all in this process.
 * "two": the sender is this process. "three": one process for each node, and this process only
 * gives orders. With TEST_HOST (rig.h) and "three" the sender is alone on its host; the process of
 * the receive QP then handles packets and forwards messages for OTHER's SRQ.
 *
 * Map of this file: connect_patiently, connect_all, disconnect and status_of_send serve all checks;
 * domains checks XRC domains and creation errors. data checks each operation by its bytes, and the
 * order of messages; errors checks failing requests, events and destroyed objects. send_to sends
 * one message; ports takes the port of a node down and up; opened checks ibv_open_qp. set_up and
 * close_all open and close all nodes; the functions deaths* kill one process after another. main
 * takes the number of processes as its argument. begin starts the processes; nodes.c executes the
 * calls of `on` there.
 */
#include "nodes.h"

static uint32_t queue[NODES], receiver, sender;
static uint64_t addr[NODES];
static uint32_t rkey[NODES];

static void connect_patiently(unsigned rnr_retry, unsigned timeout)
{
	receiver = on(HOME, RECEIVER).v;
	sender = on(SENDER, SEND_QP).v;
	unsigned long long gid[2][2];
	for (int i = 0; i < 4; i++)
		gid[i / 2][i % 2] = on(i / 2, GID, i % 2).v;
	long long bad = on(HOME, RTR, sender, gid[SENDER][0], gid[SENDER][1]).v | on(SENDER, RTR, receiver, gid[HOME][0], gid[HOME][1]).v | on(HOME, RTS).v | on(SENDER, RTS, rnr_retry, timeout).v;
	check_eq(bad, 0, "an XRC connection to RTS");
}

static void connect_all(unsigned rnr_retry)
{
	connect_patiently(rnr_retry, 0);
}

static void disconnect(void)
{
	check_eq(on(SENDER, DESTROY_QPS).v | on(HOME, DESTROY_QPS).v, 0, "destroying both QPs");
}

/* The status of a request that names no SRQ: RoCE has no NAK code of its own for it. */
static int no_queue(void)
{
	return hosts_differ() ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_INV_RD_REQ_ERR;
}

static int status_of_send(unsigned op, uint64_t id, uint64_t offset, uint64_t len, uint32_t srqn, uint64_t to, uint32_t key, uint64_t operand)
{
	check_eq(on(SENDER, SEND, op, id, offset, len, srqn, to, key, operand).v, 0, "posting request %llu", (unsigned long long)id);
	struct ibv_wc wc = on(SENDER, WAIT).wc;
	check_eq(wc.wr_id, id, "its completion");
	return wc.status;
}

static void domains(int processes)
{
	struct ibv_context *ctx = open_device();
	struct ibv_xrcd_init_attr a = { .comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1, .oflags = O_CREAT };
	check(!ibv_open_xrcd(ctx, &a) && errno == EINVAL, "a domain without flags");
	check(!open_domain(ctx, file, 0) && errno == EAGAIN, "nobody has the domain, and O_CREAT is missing");
	check(!open_domain(ctx, 9999, O_CREAT) && errno == EBADF, "no such file");
	struct ibv_xrcd *own = open_domain(ctx, -1, O_CREAT), *second = open_domain(ctx, -1, O_CREAT | O_EXCL);
	check(own && second && own->context == ctx, "domains without a file");
	struct ibv_xrcd *first = open_domain(ctx, file, O_CREAT | O_EXCL);
	check(first != NULL, "a new domain of a file");
	check(!open_domain(ctx, file, O_CREAT | O_EXCL) && errno == EINVAL, "O_EXCL, and it exists");
	struct ibv_xrcd *again = open_domain(ctx, file, 0);
	check(again != NULL, "the same domain again");
	check_eq(ibv_close_xrcd(first), 0, "ibv_close_xrcd");
	check_eq(on(OTHER, OPEN).v, 0, "another node");
	check_eq(on(OTHER, XRCD, 0).v, 0, "%s knows the domain", processes > 1 ? "another process" : "this process");
	check_eq(on(OTHER, XRCD, O_CREAT | O_EXCL).v, EINVAL, "O_EXCL there");
	check_eq(on(OTHER, CLOSE_XRCD).v, EBUSY, "closing a domain that has a queue");
	check_eq(ibv_close_xrcd(again), 0, "ibv_close_xrcd");
	check(!open_domain(ctx, file, O_CREAT | O_EXCL) && errno == EINVAL, "it exists while somebody has it");
	check_eq(on(OTHER, CLOSE).v, 0, "closing all there");
	check(!open_domain(ctx, file, 0) && errno == EAGAIN, "the last has closed it");

	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct node n = { .ctx = ctx, .pd = pd, .cq = cq };
	struct ibv_srq *srq = xrc_queue(&n, own, 4);
	check(srq && srq->pd == pd && srq->context == ctx, "a queue in a domain without a file");
	uint32_t number = 0;
	check(!ibv_get_srq_num(srq, &number) && number, "ibv_get_srq_num");
	check_eq(ibv_destroy_cq(cq), EBUSY, "destroying the completion queue of an XRC queue");
	struct ibv_srq_init_attr_ex bad = { .attr = { .max_wr = 1, .max_sge = 1 },
					    .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD,
					    .srq_type = IBV_SRQT_XRC,
					    .pd = pd,
					    .xrcd = own };
	check(!ibv_create_srq_ex(ctx, &bad) && errno == EINVAL, "an XRC queue without IBV_SRQ_INIT_ATTR_CQ");
	bad.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ;
	bad.cq = cq;
	check(!ibv_create_srq_ex(ctx, &bad) && errno == EINVAL, "an XRC queue without IBV_SRQ_INIT_ATTR_XRCD");
	struct ibv_qp_init_attr rc = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	check(!ibv_create_qp(pd, &rc) && errno == EINVAL, "an RC QP with an XRC queue");
	struct ibv_qp_init_attr_ex ex = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd };
	check(!ibv_create_qp_ex(ctx, &ex) && errno, "an XRC receive QP without a domain");
	struct ibv_qp *qp = receiving_qp(ctx, own);
	check(qp && qp->qp_type == IBV_QPT_XRC_RECV && !qp->pd && !qp->recv_cq && state_of(qp) == IBV_QPS_RESET, "an XRC receive QP");
	check_eq(ibv_close_xrcd(own), EBUSY, "closing a domain with a queue and a QP");
	check_eq(ibv_destroy_srq(srq), 0, "ibv_destroy_srq");
	check_eq(ibv_close_xrcd(own), EBUSY, "closing a domain with a QP");
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_RTR };
	check_eq(ibv_modify_qp(qp, &at, IBV_QP_STATE), EINVAL, "RESET to RTR");
	check_eq(to_init(qp), 0, "RESET to INIT");
	struct ibv_recv_wr rw = { 0 }, *rbad;
	check(ibv_post_recv(qp, &rw, &rbad), "an XRC receive QP has no receive queue");
	struct ibv_send_wr sw = { .opcode = IBV_WR_SEND }, *sbad;
	check(ibv_post_send(qp, &sw, &sbad), "an XRC receive QP has no send queue");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	check_eq(ibv_close_xrcd(own) | ibv_close_xrcd(second), 0, "ibv_close_xrcd");

	struct ibv_device_attr d;
	check(!ibv_query_device(ctx, &d) && d.device_cap_flags & IBV_DEVICE_XRC, "IBV_DEVICE_XRC");
	check_eq(ibv_destroy_cq(cq) | ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0, "closing all");
}

/* IBTA 1.7 A14. */
static void data(void)
{
	static const unsigned sizes[] = { 0, 1, 48, 49, 4096, 8193, 70000, 300001 };
	connect_all(7);
	for (unsigned i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
		unsigned size = sizes[i / 2], imm = i % 3 == 1;
		int to = i % 2 ? OTHER : HOME;
		on(SENDER, FILL, 0, size, i);
		on(to, POST, 100 + i, 0, size);
		check_eq(status_of_send(imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, i, 0, size, queue[to], 0, 0, i % 4 == 2 ? 99 : 0), IBV_WC_SUCCESS, "sending %u", size);
		struct ibv_wc wc = on(to, WAIT).wc;
		int good = wc.status == IBV_WC_SUCCESS && wc.wr_id == 100 + i && wc.byte_len == size && wc.qp_num == receiver && wc.opcode == IBV_WC_RECV;
		check(good, "received: %s, id %llu, %u bytes, QP %x", ibv_wc_status_str(wc.status), (unsigned long long)wc.wr_id, wc.byte_len, wc.qp_num);
		int with_imm = imm && !(i % 4 == 2);
		check(!(wc.wc_flags & IBV_WC_WITH_IMM) == !with_imm && (!with_imm || wc.imm_data == htonl(0x1234)), "immediate data");
		check_eq(on(to, VERIFY, 0, size, i).v, -1, "the bytes");

		on(SENDER, FILL, 0, size, i + 50);
		check_eq(status_of_send(IBV_WR_RDMA_WRITE, i, 0, size, queue[to], addr[to], rkey[to], 0), IBV_WC_SUCCESS, "writing %u", size);
		check_eq(on(to, VERIFY, 0, size, i + 50).v, -1, "the bytes");
		on(to, FILL, 0, size, i + 60);
		check_eq(status_of_send(IBV_WR_RDMA_READ, i, 0, size, queue[to], addr[to], rkey[to], 0), IBV_WC_SUCCESS, "reading %u", size);
		check_eq(on(SENDER, VERIFY, 0, size, i + 60).v, -1, "the bytes");
		on(to, POST, 200 + i, 0, 0);
		on(SENDER, FILL, 0, size, i + 70);
		check_eq(status_of_send(IBV_WR_RDMA_WRITE_WITH_IMM, i, 0, size, queue[to], addr[to], rkey[to], 0), IBV_WC_SUCCESS, "writing %u with immediate", size);
		wc = on(to, WAIT).wc;
		check(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wr_id == 200 + i && wc.imm_data == htonl(0x1234), "received");
		check_eq(on(to, VERIFY, 0, size, i + 70).v, -1, "the bytes");
		on(to, SET_WORD, 8, 40);
		check_eq(status_of_send(IBV_WR_ATOMIC_FETCH_AND_ADD, i, 0, 8, queue[to], addr[to] + 8, rkey[to], 2), IBV_WC_SUCCESS, "fetch and add");
		check(on(SENDER, WORD, 0).v == 40 && on(to, WORD, 8).v == 42, "its words");
		check_eq(status_of_send(IBV_WR_ATOMIC_CMP_AND_SWP, i, 0, 8, queue[to], addr[to] + 8, rkey[to], 42), IBV_WC_SUCCESS, "compare and swap");
		check(on(SENDER, WORD, 0).v == 42 && on(to, WORD, 8).v == 43, "its words");
	}
	/* Many messages in flight to both SRQs, in bursts: each SRQ gets its messages in order. */
	unsigned sent = 0, got[NODES] = { 0 }, count[NODES] = { 0 };
	for (unsigned round = 0; round < 20; round++) {
		for (unsigned i = 0; i < 32; i++) {
			int to = (round + i / 4) % 2 ? OTHER : HOME;
			on(to, POST, count[to]++, 1000 * i, 1000);
			on(SENDER, SEND, IBV_WR_SEND, sent++, 1000 * i, i * 17, queue[to]);
		}
		for (unsigned i = 0; i < 32; i++) {
			int to = (round + i / 4) % 2 ? OTHER : HOME;
			struct ibv_wc wc = on(to, WAIT).wc, own = on(SENDER, WAIT).wc;
			if (wc.status || wc.wr_id != got[to]++ || wc.byte_len != i * 17 || own.status || own.wr_id != round * 32 + i) {
				check(0, "message %u: %s, id %llu, %u bytes; %s, id %llu", i, ibv_wc_status_str(wc.status), (unsigned long long)wc.wr_id, wc.byte_len,
				      ibv_wc_status_str(own.status), (unsigned long long)own.wr_id);
				break;
			}
		}
	}
	check(got[HOME] == 320 && got[OTHER] == 320, "messages to both queues arrive in order");
	check(!on(HOME, TRY, QUIET_US).v && !on(OTHER, TRY, 0).v && !on(SENDER, TRY, 0).v, "and nothing else");
	disconnect();
}

/* IBTA 1.7 A14.5. */
static void errors(int to)
{
	const char *where = to == HOME ? "at home" : "elsewhere";
	struct ibv_wc wc;
	uint32_t nobody[] = { queue[to] + 77, 0, 0xffffff, on(to, FOREIGN_SRQ).v };
	for (unsigned i = 0; i < 4; i++) {
		connect_all(7);
		check_eq(status_of_send(i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, 5, 0, 8, nobody[i], addr[to], rkey[to], 0), no_queue(), "no queue %06x of the domain", nobody[i]);
		check_eq(on(SENDER, STATE_SOON, IBV_QPS_ERR).v, IBV_QPS_ERR, "the sender's state");
		check_eq(on(HOME, STATE_SOON, IBV_QPS_ERR).v, IBV_QPS_ERR, "the receiver's state");
		check_eq(on(HOME, ASYNC).v, IBV_EVENT_QP_REQ_ERR, "the event");
		check_eq(on(HOME, ASYNC).v, IBV_EVENT_QP_LAST_WQE_REACHED, "and the last");
		disconnect();
	}

	connect_all(7);
	check_eq(status_of_send(IBV_WR_RDMA_READ, 6, 0, 8, queue[to], addr[to], rkey[to] ^ 0x4000, 0), IBV_WC_REM_ACCESS_ERR, "a bad key %s", where);
	check_eq(on(HOME, STATE_SOON, IBV_QPS_ERR).v, IBV_QPS_ERR, "the receiver's state");
	check_eq(on(HOME, ASYNC).v, IBV_EVENT_QP_ACCESS_ERR, "the event");
	check_eq(on(HOME, ASYNC).v, IBV_EVENT_QP_LAST_WQE_REACHED, "and the last");
	disconnect();

	connect_all(7);
	on(to, POST, 1, 0, 10);
	check_eq(status_of_send(IBV_WR_SEND, 7, 0, 11, queue[to], 0, 0, 0), IBV_WC_REM_INV_REQ_ERR, "too long a message %s", where);
	wc = on(to, WAIT).wc;
	check(wc.status == IBV_WC_LOC_LEN_ERR && wc.wr_id == 1, "its receive");
	check_eq(on(HOME, STATE_SOON, IBV_QPS_ERR).v, IBV_QPS_ERR, "the receiver's state");
	check_eq(on(HOME, ASYNC).v, IBV_EVENT_QP_REQ_ERR, "the event");
	check_eq(on(HOME, ASYNC).v, IBV_EVENT_QP_LAST_WQE_REACHED, "and the last");
	disconnect();

	connect_all(0);
	check_eq(status_of_send(IBV_WR_SEND, 8, 0, 11, queue[to], 0, 0, 0), IBV_WC_RNR_RETRY_EXC_ERR, "an empty queue %s", where);
	disconnect();
	connect_all(7);
	check_eq(on(SENDER, SEND, IBV_WR_SEND, 9, 0, 11, queue[to]).v, 0, "posting");
	check(!on(SENDER, TRY, QUIET_US).v, "a message waits for a receive %s", where);
	on(to, POST, 2, 0, 11);
	check_eq(on(to, WAIT).wc.wr_id, 2, "which is posted");
	check_eq(on(SENDER, WAIT).wc.status, IBV_WC_SUCCESS, "and sent");

	/* The limit of an SRQ raises an event. */
	for (unsigned i = 0; i < 4; i++)
		on(to, POST, i, 0, 100);
	check_eq(on(to, LIMIT, 3).v, 0, "ibv_modify_srq");
	for (unsigned i = 0; i < 2; i++) {
		check_eq(status_of_send(IBV_WR_SEND, i, 0, 8, queue[to], 0, 0, 0), IBV_WC_SUCCESS, "sending");
		on(to, WAIT);
	}
	check_eq(on(to, ASYNC).v, IBV_EVENT_SRQ_LIMIT_REACHED, "the limit of a queue %s", where);

	/* The SRQ is destroyed while the connection exists. */
	check_eq(on(to, DESTROY_SRQ).v, 0, "destroying a queue of a domain that a QP receives for");
	check_eq(status_of_send(IBV_WR_SEND, 10, 0, 8, queue[to], 0, 0, 0), no_queue(), "a queue that is gone %s", where);
	check_eq(on(HOME, ASYNC).v, IBV_EVENT_QP_REQ_ERR, "the event");
	check_eq(on(HOME, ASYNC).v, IBV_EVENT_QP_LAST_WQE_REACHED, "and the last");
	disconnect();
	queue[to] = on(to, SRQ_NUM).v;

	/* The receive QP is destroyed: no message arrives, wherever the SRQ is. */
	connect_all(7);
	on(to, POST, 1, 0, 100);
	check_eq(status_of_send(IBV_WR_SEND, 11, 0, 8, queue[to], 0, 0, 0), IBV_WC_SUCCESS, "sending");
	on(to, WAIT);
	on(to, POST, 1, 0, 100);
	check_eq(on(HOME, DESTROY_QPS).v, 0, "destroying the receiving QP");
	check_eq(status_of_send(IBV_WR_SEND, 12, 0, 8, queue[to], 0, 0, 0), IBV_WC_RETRY_EXC_ERR, "a receiver that is gone, queue %s", where);
	check(!on(to, TRY, QUIET_US).v, "the queue receives nothing");
	check_eq(on(SENDER, DESTROY_QPS).v, 0, "destroying the sending QP");
	on(to, DESTROY_SRQ);
	queue[to] = on(to, SRQ_NUM).v;
}

static int send_to(int to)
{
	on(to, POST, 1, 0, 100);
	int status = status_of_send(IBV_WR_SEND, 1, 0, 8, queue[to], 0, 0, 0);
	if (status == IBV_WC_SUCCESS)
		check(on(to, WAIT).wc.status == IBV_WC_SUCCESS, "received");
	return status;
}

/* The port of node `at` goes down with requests for the SRQ of `to` in flight, and comes up again.
 * The first connection waits for the port; the retries of the second run out. */
static void ports(int at, int to)
{
	connect_patiently(7, hosts_differ() ? 17 : 20);
	check_eq(send_to(to), IBV_WC_SUCCESS, "sending to node %d", to);
	check_eq(on(at, PORT, 1).v, 0, "the port of node %d goes down", at);
	on(to, POST, 20, 0, 100);
	on(SENDER, FILL, 0, 100, 77);
	on(SENDER, SEND, IBV_WR_SEND, 30, 0, 100, queue[to]);
	on(SENDER, SEND, IBV_WR_RDMA_WRITE, 31, 0, 100, queue[to], addr[to] + 4096, rkey[to]);
	check(!on(SENDER, TRY, QUIET_US).v && !on(to, TRY, QUIET_US).v, "nothing completes");
	check_eq(on(at, PORT, 0).v, 0, "up");
	for (int id = 30; id <= 31; id++) {
		struct ibv_wc wc = on(SENDER, WAIT).wc;
		check(wc.wr_id == (uint64_t)id && wc.status == IBV_WC_SUCCESS, "request %d is done", id);
	}
	check(on(to, WAIT).wc.wr_id == 20 && on(to, VERIFY, 0, 100, 77).v < 0 && on(to, VERIFY, 4096, 100, 77).v < 0, "the SEND, and the bytes of both");
	disconnect();

	connect_all(7);
	check_eq(send_to(to), IBV_WC_SUCCESS, "sending to node %d", to);
	check_eq(on(at, PORT, 1).v, 0, "the port goes down");
	check_eq(status_of_send(IBV_WR_SEND, 32, 0, 8, queue[to], 0, 0, 0), IBV_WC_RETRY_EXC_ERR, "not waited for");
	check(on(SENDER, STATE_SOON, IBV_QPS_ERR).v == IBV_QPS_ERR && on(HOME, STATE).v == IBV_QPS_RTS, "the states");
	check_eq(on(at, PORT, 0).v, 0, "up");
	disconnect();
}

/* ibv_open_qp: OTHER opens the receive QP of HOME. */
static void opened(void)
{
	connect_all(7);
	check_eq(on(OTHER, OPEN_QP, receiver, 0, IBV_QPT_RC).v, EINVAL, "opening a QP of another type");
	check_eq(on(OTHER, OPEN_QP, receiver, 1).v, EINVAL, "opening a QP of another domain");
	check_eq(on(OTHER, OPEN_QP, receiver + 9).v, EINVAL, "opening a QP that is not there");
	check_eq(on(OTHER, OPEN_QP, sender).v, EINVAL, "opening a send QP");
	check_eq(on(OTHER, OPEN_QP, receiver).v, 0, "ibv_open_qp");
	check_eq(on(OTHER, OPENED_STATE).v, IBV_QPS_RTS, "its state");
	check_eq(on(OTHER, CLOSE_XRCD).v, EBUSY, "closing the domain of an open QP");
	check_eq(send_to(OTHER), IBV_WC_SUCCESS, "sending to who opened it");
	check_eq(send_to(HOME), IBV_WC_SUCCESS, "sending to who created it");
	check_eq(on(OTHER, CLOSE_QP).v, 0, "closing it");
	check_eq(send_to(HOME), IBV_WC_SUCCESS, "sending after it was closed");
	check_eq(send_to(OTHER), IBV_WC_SUCCESS, "to both");

	check_eq(on(OTHER, OPEN_QP, receiver).v, 0, "opening it again");
	check_eq(on(HOME, DESTROY_QPS).v, 0, "its creator destroys it");
	check_eq(send_to(HOME), IBV_WC_SUCCESS, "it goes on: sending to its creator");
	check_eq(send_to(OTHER), IBV_WC_SUCCESS, "and to who opened it");
	check_eq(on(OTHER, OPENED_STATE).v, IBV_QPS_RTS, "its state");
	check_eq(on(OTHER, CLOSE_QP).v, 0, "the last closes it");
	check_eq(send_to(HOME), IBV_WC_RETRY_EXC_ERR, "then it is gone");
	check_eq(on(SENDER, DESTROY_QPS).v, 0, "destroying the sending QP");
	check_eq(on(HOME, DESTROY_SRQ).v, 0, "a new queue");
	queue[HOME] = on(HOME, SRQ_NUM).v;

	connect_all(7);
	check_eq(on(OTHER, OPEN_QP, receiver).v, 0, "ibv_open_qp");
	check_eq(status_of_send(IBV_WR_SEND, 5, 0, 8, 0xffffff, 0, 0, 0), no_queue(), "an error of it");
	for (int i = HOME; i <= OTHER; i++) {
		check_eq(on(i, ASYNC).v, IBV_EVENT_QP_REQ_ERR, "the event at node %d", i);
		check_eq(on(i, ASYNC).v, IBV_EVENT_QP_LAST_WQE_REACHED, "and the last");
	}
	check_eq(on(OTHER, OPENED_STATE).v, IBV_QPS_ERR, "its state");
	check_eq(on(OTHER, CLOSE_QP).v, 0, "closing it");
	disconnect();
}

static void set_up(void)
{
	for (int i = 0; i < NODES; i++) {
		on(i, OPEN);
		addr[i] = on(i, ADDR).v;
		rkey[i] = on(i, RKEY).v;
		if (i != SENDER)
			queue[i] = on(i, SRQ_NUM).v;
	}
	check(queue[HOME] != queue[OTHER], "numbers of queues differ");
}

static void close_all(void)
{
	for (int i = 0; i < NODES; i++)
		check_eq(on(i, CLOSE).v, 0, "closing node %d", i);
}

/* Each process dies in turn, with messages to both queues done and one more under way. */
static void deaths(void)
{
	for (int victim = 0; victim < NODES; victim++) {
		begin(3);
		set_up();
		connect_all(7);
		for (int to = HOME; to <= OTHER; to++) {
			on(to, POST, 1, 0, 100);
			check_eq(status_of_send(IBV_WR_SEND, 1, 0, 8, queue[to], 0, 0, 0), IBV_WC_SUCCESS, "sending");
			check_eq(on(to, WAIT).wc.status, IBV_WC_SUCCESS, "receiving");
		}
		/* The present receive ring belongs to OTHER, and its SRQ is empty. */
		on(SENDER, SEND, IBV_WR_SEND, 2, 0, 8, queue[OTHER]);
		check(!on(SENDER, TRY, QUIET_US).v, "a message waits");
		kill_node(victim);
		if (victim == SENDER) {
			/* Another host is not told, and packets that had left the sender at its
			 * death still arrive. */
			if (!hosts_differ())
				check_eq(on(HOME, STATE_SOON, IBV_QPS_ERR).v, IBV_QPS_ERR, "the sender dies: the receiver's state");
			on(OTHER, POST, 3, 0, 100);
			struct reply r = on(OTHER, TRY, QUIET_US);
			if (hosts_differ() && r.v)
				check(!r.wc.status && r.wc.wr_id == 3 && r.wc.byte_len == 8, "what had left it is received as a whole");
			else
				check(!r.v, "what it had not finished is not received");
		} else {
			int status = victim == OTHER && hosts_differ() ? no_queue() : IBV_WC_RETRY_EXC_ERR;
			check_eq(on(SENDER, WAIT).wc.status, status, victim == HOME ? "the receiving QP's process dies" : "the queue's process dies");
		}
		for (int i = 0; i < NODES; i++)
			if (i != victim) {
				check_eq(on(i, DESTROY_QPS).v, 0, "destroying the QPs of node %d", i);
				check_eq(on(i, CLOSE).v, 0, "closing node %d", i);
			}
		end();
	}
}

/* Each process dies in turn during messages to an SRQ of OTHER. Complete messages are received in
 * order, and the rest fails. */
static void deaths_in_the_middle(void)
{
	enum { COUNT = 16, LEN = 60000 };
	for (int victim = 0; victim < NODES; victim++) {
		begin(3);
		set_up();
		connect_all(7);
		for (int i = 0; i < COUNT; i++)
			on(OTHER, POST, i, i * LEN, LEN);
		on(SENDER, FILL, 0, LEN, 5);
		for (int i = 0; i < COUNT; i++)
			check_eq(on(SENDER, SEND, IBV_WR_SEND, i, 0, LEN, queue[OTHER]).v, 0, "posting message %d", i);
		/* Some messages have arrived, others are in flight. */
		int got = 0;
		for (; got < COUNT / 4; got++)
			check_eq(on(OTHER, WAIT).wc.wr_id, got, "message %d is there", got);
		kill_node(victim);
		int done = 0, failed = 0;
		for (int i = 0; i < COUNT && victim != SENDER; i++) {
			struct ibv_wc wc = on(SENDER, WAIT).wc;
			check(wc.wr_id == (uint64_t)i && (!wc.status || !failed || wc.status == IBV_WC_WR_FLUSH_ERR), "request %d: %s", i, ibv_wc_status_str(wc.status));
			done += !wc.status;
			failed += !!wc.status;
			check(!wc.status || failed == i - done + 1, "none is done behind one that failed");
		}
		if (victim != OTHER) {
			struct reply r;
			while (r = on(OTHER, TRY, QUIET_US), r.v) {
				check(!r.wc.status && r.wc.wr_id == (uint64_t)got && r.wc.byte_len == LEN, "message %d is whole", got);
				got++;
			}
			check(victim == SENDER || got >= done, "%d are there and %d done", got, done);
			for (int i = 0; i < got; i++)
				check(on(OTHER, VERIFY, i * LEN, LEN, 5).v == -1, "its bytes");
		}
		for (int i = 0; i < NODES; i++)
			if (i != victim) {
				check_eq(on(i, DESTROY_QPS).v, 0, "destroying the QPs of node %d", i);
				check_eq(on(i, CLOSE).v, 0, "closing node %d", i);
			}
		end();
	}
}

/* A QP outlives the death of any process that has it open. */
static void deaths_of_an_open_qp(void)
{
	for (int victim = HOME; victim <= OTHER; victim++) {
		begin(3);
		set_up();
		connect_all(7);
		check_eq(on(OTHER, OPEN_QP, receiver).v, 0, "ibv_open_qp");
		check_eq(send_to(HOME), IBV_WC_SUCCESS, "sending to who created it");
		check_eq(send_to(OTHER), IBV_WC_SUCCESS, "sending to who opened it");
		if (victim == OTHER)
			check_eq(on(HOME, DESTROY_QPS).v, 0, "its creator destroys it");
		int survivor = victim == HOME ? OTHER : HOME;
		if (victim == OTHER)
			check_eq(send_to(HOME), IBV_WC_SUCCESS, "it goes on");
		kill_node(victim);
		if (victim == HOME && hosts_differ()) {
			check_eq(send_to(OTHER), IBV_WC_RETRY_EXC_ERR, "its creator dies, and with it the way to the other host");
			check_eq(on(OTHER, CLOSE_QP).v, 0, "the last closes it");
		} else if (victim == HOME) {
			for (int i = 0; i < 3; i++)
				check_eq(send_to(OTHER), IBV_WC_SUCCESS, "its creator dies: it goes on");
			check_eq(on(OTHER, OPENED_STATE).v, IBV_QPS_RTS, "its state");
			check_eq(on(OTHER, CLOSE_QP).v, 0, "the last closes it");
			check_eq(send_to(OTHER), IBV_WC_RETRY_EXC_ERR, "then it is gone");
		} else {
			check_eq(send_to(HOME), IBV_WC_RETRY_EXC_ERR, "who had it open dies: it is gone");
		}
		check_eq(on(SENDER, DESTROY_QPS).v | on(SENDER, CLOSE).v | on(survivor, CLOSE).v, 0, "closing all");
		end();
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int processes = !strcmp(mode, "one") ? 1 : !strcmp(mode, "two") ? 2 : !strcmp(mode, "three") ? 3 : 0;
	if (!processes)
		die("one, two or three processes?");
	char name[] = "xrc-XXXXXX";
	file = mkstemp(name);
	if (file < 0)
		die("mkstemp: %s", strerror(errno));
	unlink(name);
	setenv("FERROVERBS_SOFT_CONTROL", "xrc-control-%p", 1);
	begin(processes);
	if (processes < 3)
		domains(processes);
	set_up();
	data();
	errors(HOME);
	errors(OTHER);
	opened();
	for (int at = SENDER; at <= OTHER; at++)
		for (int to = HOME; to <= OTHER && processes > 1; to++)
			if (at != OTHER || to == OTHER)
				ports(at, to);
	close_all();
	end();
	if (processes == 3) {
		deaths();
		deaths_in_the_middle();
		deaths_of_an_open_qp();
	}
	return finish();
}
