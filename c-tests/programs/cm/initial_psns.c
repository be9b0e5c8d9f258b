/*
 * The initial packet sequence numbers of connections: REQ and REP each name the PSN that their
 * sender expects first, as with other managers. The test reads the messages by its own QP in the
 * multicast group that stands for QP 1. Earlier numbers do not predict the next ones.
 */
#include "events.h"
#include "place.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <string.h>

enum { CONNECTIONS = 5, NEAR = 16 };
enum { HEADER = 40, MAD = 256, RECEIVES = 16, ATTRIBUTE = HEADER + 16, REQUEST = 0x10, REPLY = 0x13 };
/* Where both messages have the number. */
enum { IN_REQUEST = HEADER + 24 + 44, IN_REPLY = HEADER + 24 + 20 };

static unsigned char messages[RECEIVES][HEADER + MAD];
static struct ibv_cq *cq;

/* Receives all messages to QP 1 of this host from now on. */
static void listen_in(struct rdma_cm_id *id)
{
	static const union ibv_gid group = { .raw = { 0xff, 0x11, [12] = 'F', 'V', 0, 1 } };
	struct ibv_qp_init_attr init = { .cap = { 1, RECEIVES, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x80010000 };
	struct ibv_mr *mr = ibv_reg_mr(id->pd, messages, sizeof(messages), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_recv_wr *bad;

	cq = init.send_cq = init.recv_cq = ibv_create_cq(id->verbs, RECEIVES, NULL, NULL, 0);
	struct ibv_qp *qp = ibv_create_qp(id->pd, &init);

	NEED(mr && qp && !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE) && !ibv_attach_mcast(qp, &group, 0));
	for (unsigned n = 0; n < RECEIVES; n++) {
		struct ibv_sge place = { (uintptr_t)messages[n], sizeof(messages[n]), mr->lkey };
		struct ibv_recv_wr receive = { .wr_id = n, .sg_list = &place, .num_sge = 1 };

		NEED(!ibv_post_recv(qp, &receive, &bad));
	}
}

/* The number in the next message of a kind. */
static unsigned told(unsigned kind, unsigned at)
{
	struct ibv_wc wc;

	for (unsigned heard = 0; heard < RECEIVES;) {
		if (!ibv_poll_cq(cq, 1, &wc))
			continue;
		const unsigned char *message = messages[wc.wr_id];

		heard++;
		if ((message[ATTRIBUTE] << 8 | message[ATTRIBUTE + 1]) == (int)kind)
			return message[at] << 16 | message[at + 1] << 8 | message[at + 2];
	}
	return ~0u;
}

/* With which numbers an id has its queue pair receive and send. */
static void numbers(struct rdma_cm_id *id, unsigned *receive, unsigned *send)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int mask;

	CHECK(!rdma_init_qp_attr(id, &attr, &mask));
	*receive = attr.rq_psn;
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!rdma_init_qp_attr(id, &attr, &mask));
	*send = attr.sq_psn;
}

/* The two ends of a connection. */
struct ends {
	struct rdma_cm_id *client, *server;
};

/* An id that asks next. */
static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, struct sockaddr_in *at)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(id, NULL, (struct sockaddr *)at, 2000));
	next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 2000));
	next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static struct ends connected(struct rdma_event_channel *channel, struct rdma_cm_id *client, unsigned qpn)
{
	struct rdma_conn_param param = { .qp_num = qpn, .retry_count = 7, .rnr_retry_count = 7 };
	struct ends ends = { .client = client };

	CHECK(!rdma_connect(client, &param));
	ends.server = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	param.qp_num++;
	CHECK(!rdma_accept(ends.server, &param));
	CHECK(next(channel, RDMA_CM_EVENT_CONNECT_RESPONSE).id == client);
	return ends;
}

/* How many of some numbers of 24 bits are near another one. */
static unsigned together(const unsigned *number, unsigned count)
{
	unsigned found = 0;

	for (unsigned a = 0; a < count; a++)
		for (unsigned b = 0; b < a; b++)
			found += ((number[a] - number[b] + NEAR) & 0xffffff) <= 2 * NEAR;
	return found;
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = here() };
	struct rdma_cm_id *listener, *client;
	unsigned receive[2], send[2], all[2 * CONNECTIONS];

	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&at) && !rdma_listen(listener, CONNECTIONS));
	at.sin_port = rdma_get_src_port(listener);
	client = resolved(channel, &at);
	/* The messages of the kernel's manager cannot be received. */
	if (!is_kernels())
		listen_in(client);
	for (unsigned n = 0; n < CONNECTIONS; n++) {
		struct ends ends = connected(channel, n ? resolved(channel, &at) : client, 0x800001 + 2 * n);

		numbers(ends.client, &receive[0], &send[0]);
		numbers(ends.server, &receive[1], &send[1]);
		if (!n) {
			CHECK(is_kernels() || told(REQUEST, IN_REQUEST) == receive[0]);
			CHECK(is_kernels() || told(REPLY, IN_REPLY) == receive[1]);
		}
		CHECK(receive[0] == send[1] && receive[1] == send[0]);
		all[2 * n] = receive[0];
		all[2 * n + 1] = receive[1];
	}
	/* By chance two of them are, once in ten thousand runs. */
	CHECK(together(all, 2 * CONNECTIONS) < 3);
	return failures != 0;
}
