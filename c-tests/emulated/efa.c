/*
 * The unmodified libefa over the emulated EFA adapter: each kind of request that libefa can build
 * reaches the adapter's data path as the program posted it, and each completion comes back. One
 * line for each check that fails.
 */
#include "end.h"
#include <infiniband/efadv.h>
#include <stdint.h>
#include <string.h>

#define DEPTH 16

static struct ibv_comp_channel *channel;

static const struct ibv_qp_cap sizes = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 32};

static struct ibv_qp *srd(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = sizes,
		.qp_type = IBV_QPT_DRIVER,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ,
	};
	struct efadv_qp_init_attr efa = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};

	return ready(efadv_create_qp_ex(context, &attr, &efa, sizeof(efa)));
}

static struct ibv_qp *ud(void)
{
	struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .cap = sizes, .qp_type = IBV_QPT_UD};

	return ready(ibv_create_qp(pd, &attr));
}

/* Bytes before the message in a receive: datagrams have a header. */
static int head_of(struct ibv_qp *qp)
{
	return qp->qp_type == IBV_QPT_UD ? 40 : 0;
}

/*
 * Posts a receive of two segments, of which the first has room for 8 bytes of the message at `at`.
 * The second has 4096 bytes 100 further.
 */
static void post_recv(struct ibv_qp *qp, uint64_t id, int at)
{
	int head = head_of(qp);
	struct ibv_sge sges[] = {{(uintptr_t)memory + at - head, 8 + head, mr->lkey}, {(uintptr_t)memory + at + 100, 4096, mr->lkey}};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = sges, .num_sge = 2}, *bad;

	MUST(!ibv_post_recv(qp, &wr, &bad));
}

/* Takes the two completions of a message, in any order. */
static void take(struct ibv_wc *sent, struct ibv_wc *received)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = completion();

		*(wc.opcode & IBV_WC_RECV ? received : sent) = wc;
	}
}

static void none_left(void)
{
	struct ibv_wc wc;

	CHECK(!ibv_poll_cq(cq, 1, &wc));
}

static void queries(void)
{
	struct ibv_port_attr port;
	struct efadv_device_attr device;
	union ibv_gid gid;

	MUST(!ibv_query_port(context, 1, &port));
	CHECK(port.state == IBV_PORT_ACTIVE && port.gid_tbl_len == 1 && port.link_layer == IBV_LINK_LAYER_UNSPECIFIED);
	CHECK(ibv_query_port(context, 2, &port) == EINVAL);
	MUST(!efadv_query_device(context, &device, sizeof(device)));
	CHECK(device.max_sq_sge == 2 && device.inline_buf_size == 32 && device.device_caps & EFADV_DEVICE_ATTR_CAPS_RDMA_READ);
	MUST(!ibv_query_gid(context, 1, 0, &gid));
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh.dgid = gid};
	MUST(ah = ibv_create_ah(pd, &attr));
	struct efadv_ah_attr vendor;
	MUST(!efadv_query_ah(ah, &vendor, sizeof(vendor)));
	CHECK(vendor.ahn == 0);
}

/* More messages than the queues have entries, by ibv_post_send. */
static void sends(struct ibv_qp *from, struct ibv_qp *to)
{
	for (int i = 0; i < 5 * DEPTH; i++) {
		struct ibv_sge sges[] = {{(uintptr_t)memory, 6, mr->lkey}, {(uintptr_t)memory + 50, 5, mr->lkey}};
		struct ibv_send_wr wr = {.wr_id = 1000 + i, .sg_list = sges, .num_sge = 1 + i % 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
		struct ibv_wc sent, received;

		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = to->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
		if (i % 3 == 1) {
			wr.opcode = IBV_WR_SEND_WITH_IMM;
			wr.imm_data = htobe32(0xabcd0000 + i);
		}
		if (i % 5 == 2)
			wr.send_flags |= IBV_SEND_INLINE;
		snprintf(memory, 50, "%05d", i);
		memcpy(memory + 50, "after", 5);
		memset(memory + 8192, 0, 200);
		post_recv(to, 2000 + i, 8192);
		MUST(!ibv_post_send(from, &wr, &bad));
		take(&sent, &received);
		CHECK(sent.status == IBV_WC_SUCCESS && sent.wr_id == wr.wr_id && sent.qp_num == from->qp_num);
		CHECK(received.status == IBV_WC_SUCCESS && received.wr_id == (uint64_t)(2000 + i));
		CHECK(received.byte_len == (i % 2 ? 11u : 6u) + head_of(to) && received.src_qp == from->qp_num);
		CHECK(!(received.wc_flags & IBV_WC_WITH_IMM) == (i % 3 != 1));
		if (i % 3 == 1)
			CHECK(received.imm_data == wr.imm_data);
		CHECK(atoi(memory + 8192) == i);
		/* The receive's first segment has 8 bytes: 6 and 2 of the second segment of the request. */
		if (i % 2)
			CHECK(!memcmp(memory + 8192 + 6, "af", 2) && !memcmp(memory + 8192 + 100, "ter", 3));
		none_left();
	}
}

/* The functions of ibv_wr_post(3). */
static void extended(struct ibv_qp *from, struct ibv_qp *to)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(from);
	struct ibv_wc sent, received;

	MUST(qp);
	for (int round = 0; round < DEPTH; round++) {
		post_recv(to, 7, 8192);
		strcpy(memory, "by wr_send_imm");
		ibv_wr_start(qp);
		qp->wr_id = 8;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send_imm(qp, htobe32(77));
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 15);
		ibv_wr_set_ud_addr(qp, ah, to->qp_num, QKEY);
		MUST(!ibv_wr_complete(qp));
		take(&sent, &received);
		CHECK(sent.wr_id == 8 && received.wr_id == 7 && received.byte_len == 15 && received.imm_data == htobe32(77));
		CHECK(!memcmp(memory + 8192, "by wr_se", 8) && !strcmp(memory + 8192 + 100, "nd_imm"));

		/* Two requests in one doorbell: a READ, and inline data. */
		post_recv(to, 9, 8192);
		snprintf(memory + 20000, 50, "read %d", round);
		memset(memory + 30000, 0, 50);
		ibv_wr_start(qp);
		qp->wr_id = 10;
		ibv_wr_rdma_read(qp, mr->rkey, (uintptr_t)memory + 20000);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory + 30000, 40);
		ibv_wr_set_ud_addr(qp, ah, to->qp_num, QKEY);
		qp->wr_id = 11;
		ibv_wr_send(qp);
		ibv_wr_set_inline_data(qp, "inline", 7);
		ibv_wr_set_ud_addr(qp, ah, to->qp_num, QKEY);
		MUST(!ibv_wr_complete(qp));
		struct ibv_wc read = completion();
		CHECK(read.status == IBV_WC_SUCCESS && read.wr_id == 10);
		CHECK(!strcmp(memory + 30000, memory + 20000));
		take(&sent, &received);
		CHECK(sent.wr_id == 11 && received.byte_len == 7 && !strcmp(memory + 8192, "inline"));
		none_left();
	}
}

/* Armed, and polled once more before the message comes. */
static void events(struct ibv_qp *from, struct ibv_qp *to)
{
	for (int round = 0; round < 6; round++) {
		struct ibv_sge sge = {(uintptr_t)memory, 4, mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
		struct ibv_wc sent, received;
		struct ibv_cq *of;
		void *about;

		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = to->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
		MUST(!ibv_req_notify_cq(cq, 0));
		none_left();
		post_recv(to, 1, 8192);
		MUST(!ibv_post_send(from, &wr, &bad));
		MUST(!ibv_get_cq_event(channel, &of, &about));
		CHECK(of == cq && about == &failed);
		take(&sent, &received);
		ibv_ack_cq_events(cq, 1);
	}
}

static void errors(struct ibv_qp *from, struct ibv_qp *to)
{
	struct ibv_sge sge = {(uintptr_t)memory, 4, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 999;
	wr.wr.ud.remote_qkey = QKEY;
	MUST(!ibv_post_send(from, &wr, &bad));
	struct ibv_wc wc = completion();
	CHECK(wc.status != IBV_WC_SUCCESS && wc.vendor_err == 9 && wc.wr_id == 5);
	/* The QP goes on. */
	post_recv(to, 6, 8192);
	wr.wr.ud.remote_qpn = to->qp_num;
	MUST(!ibv_post_send(from, &wr, &bad));
	struct ibv_wc received;
	take(&wc, &received);
	CHECK(wc.status == IBV_WC_SUCCESS && received.status == IBV_WC_SUCCESS);
	/* A receive that is too short. */
	struct ibv_sge small = {(uintptr_t)memory + 8192, 3, mr->lkey};
	struct ibv_recv_wr recv = {.wr_id = 7, .sg_list = &small, .num_sge = 1}, *bad_recv;
	MUST(!ibv_post_recv(to, &recv, &bad_recv));
	MUST(!ibv_post_send(from, &wr, &bad));
	wc = completion();
	received = completion();
	CHECK(wc.vendor_err + received.vendor_err == 6 + 11);
	/* Receives are flushed, and a QP begins anew after RESET. */
	post_recv(to, 12, 8192);
	to_state(to, IBV_QPS_ERR);
	wc = completion();
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 12 && wc.vendor_err == 1);
	to_state(to, IBV_QPS_RESET);
	ready(to);
	post_recv(to, 13, 8192);
	MUST(!ibv_post_send(from, &wr, &bad));
	take(&wc, &received);
	CHECK(wc.status == IBV_WC_SUCCESS && received.wr_id == 13);
	none_left();
}

int main(void)
{
	open_end("efa_0", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	MUST(channel = ibv_create_comp_channel(context));
	MUST(cq = ibv_create_cq(context, 3 * DEPTH, &failed, channel, 0));
	CHECK(cq->cqe == 64);
	queries();
	struct ibv_qp *a = srd(), *b = srd(), *c = ud(), *d = ud();
	sends(a, b);
	sends(b, b);
	sends(c, d);
	extended(a, b);
	events(a, b);
	errors(a, b);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	MUST(!ibv_query_qp(a, &attr, IBV_QP_STATE | IBV_QP_CAP, &init));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.cap.max_send_wr == DEPTH && attr.cap.max_inline_data == 32);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	struct ibv_qp *all[] = {a, b, c, d};
	for (int i = 0; i < 4; i++)
		CHECK(!ibv_destroy_qp(all[i]));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_destroy_comp_channel(channel));
	close_end();
	printf("done\n");
	return failed;
}
