/*
 * Bandwidth and rate of RDMA WRITE and READ with both ends asleep until an event, which perftest
 * lacks for WRITE. The ends connect by librdmacm.
 *
 * usage: one_sided server ADDRESS PORT
 *        one_sided write|read OWN-ADDRESS ADDRESS PORT BYTES COUNT LIST
 *
 * The server serves clients in sequence until it is killed. The client posts COUNT requests in
 * lists of LIST, signals the last request of each list, and prints MB/s and million requests per
 * second.
 */
#include "timing.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <string.h>

/* LISTS of them are under way at a time. */
enum { LISTS = 8, MOST = 32, READS = 16 };
static const size_t MEMORY = 1 << 20;

struct lent {
	uint64_t addr;
	uint32_t rkey;
};

/* An end with memory: a listener at the address, or a client from address `own` to the listener. */
static struct rdma_cm_id *end(const char *own, char *address, char *port, void **memory)
{
	struct sockaddr_in from = { .sin_family = AF_INET };
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = own ? 0 : RAI_PASSIVE }, *found;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = LISTS * MOST, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct rdma_cm_id *id;

	if (own) {
		if (inet_pton(AF_INET, own, &from.sin_addr) != 1)
			die("one_sided: inet_pton");
		hints.ai_src_addr = (struct sockaddr *)&from;
		hints.ai_src_len = sizeof(from);
	}
	if (rdma_getaddrinfo(address, port, &hints, &found) || rdma_create_ep(&id, found, NULL, &init))
		die("one_sided: rdma_create_ep");
	rdma_freeaddrinfo(found);
	*memory = calloc(1, MEMORY);
	if (!*memory)
		die("one_sided: calloc");
	return id;
}

static void serve(char *address, char *port)
{
	struct rdma_cm_event *event;
	void *memory;
	struct rdma_cm_id *listener = end(NULL, address, port, &memory), *id;

	if (rdma_listen(listener, 1))
		die("one_sided: rdma_listen");
	for (;;) {
		if (rdma_get_request(listener, &id))
			die("one_sided: rdma_get_request");
		struct ibv_mr *mr = ibv_reg_mr(id->pd, memory, MEMORY,
					       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
		struct lent lent = { (uintptr_t)memory, mr ? mr->rkey : 0 };
		struct rdma_conn_param param = { .private_data = &lent, .private_data_len = sizeof(lent), .responder_resources = READS,
						 .initiator_depth = READS, .rnr_retry_count = 7 };

		if (!mr || rdma_accept(id, &param))
			die("one_sided: rdma_accept");
		/* The client ends it. */
		if (rdma_get_cm_event(id->channel, &event))
			die("one_sided: rdma_get_cm_event");
		rdma_ack_cm_event(event);
		ibv_dereg_mr(mr);
		rdma_destroy_ep(id);
	}
}

static void wait_for_one(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	if (rdma_get_send_comp(id, &wc) != 1)
		die("one_sided: rdma_get_send_comp");
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "one_sided: %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static void ask(enum ibv_wr_opcode opcode, char **ends, unsigned bytes, unsigned count, unsigned list)
{
	struct rdma_conn_param param = { .responder_resources = READS, .initiator_depth = READS, .retry_count = 7, .rnr_retry_count = 7 };
	struct ibv_send_wr requests[MOST], *bad;
	struct lent lent;
	void *memory;
	struct rdma_cm_id *id = end(ends[0], ends[1], ends[2], &memory);
	struct ibv_mr *mr = ibv_reg_mr(id->pd, memory, MEMORY, IBV_ACCESS_LOCAL_WRITE);

	if (!mr || rdma_connect(id, &param) || id->event->param.conn.private_data_len < sizeof(lent))
		die("one_sided: rdma_connect");
	memcpy(&lent, id->event->param.conn.private_data, sizeof(lent));
	struct ibv_sge sge = { (uintptr_t)memory, bytes, mr->lkey };
	for (unsigned n = 0; n < list; n++)
		requests[n] = (struct ibv_send_wr){ .next = n + 1 < list ? requests + n + 1 : NULL, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
			.send_flags = n + 1 < list ? 0 : IBV_SEND_SIGNALED, .wr.rdma = { lent.addr, lent.rkey } };
	double begin = now();
	for (unsigned n = 0; n < count / list; n++) {
		if (n >= LISTS)
			wait_for_one(id);
		if (ibv_post_send(id->qp, requests, &bad))
			die("one_sided: ibv_post_send");
	}
	for (unsigned n = 0; n < count / list && n < LISTS; n++)
		wait_for_one(id);
	double rate = count / list * list / (now() - begin) / 1e6;
	printf("%f %f\n", rate * bytes, rate);
	rdma_disconnect(id);
	ibv_dereg_mr(mr);
	rdma_destroy_ep(id);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "server"))
		serve(argv[2], argv[3]);
	if (argc != 8)
		return 2;
	unsigned bytes = (unsigned)atoi(argv[5]), count = (unsigned)atoi(argv[6]), list = (unsigned)atoi(argv[7]);
	if (bytes > MEMORY || list < 1 || list > MOST || count < list)
		return 2;
	ask(strcmp(argv[1], "read") ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, argv + 2, bytes, count, list);
	return 0;
}
