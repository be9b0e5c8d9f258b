/*
 * Connections and disconnections in sequence, as fast as possible, between two threads of one
 * process: 20 000, or the number in the argument. Each succeeds at the first attempt. Each takes
 * two QPs, so QP numbers are reused within seconds.
 */
#include "checks.h"
#include "place.h"

#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdlib.h>

static struct rdma_cm_id *listener;
static int served;
static struct ibv_qp_init_attr attributes = {
	.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	.sq_sig_all = 1,
	.qp_type = IBV_QPT_RC,
};

/* The connection that fails, which ends the program. */
#define EACH(condition, number)                                                              \
	do {                                                                                 \
		if (!(condition)) {                                                          \
			int why = errno;                                                     \
			printf("FAILED: connection %d: %s: %s\n", number, #condition, strerror(why)); \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

/* Receives one message by each connection. A request that the manager repeated under a new name
 * would appear as an additional request. */
static void *serve(void *count)
{
	for (int i = 0; i < *(int *)count; i++) {
		char message[16];
		struct rdma_cm_id *id;
		struct ibv_mr *mr;
		struct ibv_wc wc;

		EACH(!rdma_get_request(listener, &id), i);
		EACH((mr = rdma_reg_msgs(id, message, sizeof(message))) != NULL, i);
		EACH(!rdma_post_recv(id, NULL, message, sizeof(message), mr), i);
		EACH(!rdma_accept(id, NULL), i);
		EACH(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, i);
		EACH(!memcmp(message, &i, sizeof(i)), i);
		EACH(!rdma_disconnect(id), i);
		EACH(!rdma_dereg_mr(mr), i);
		rdma_destroy_ep(id);
		served++;
	}
	return NULL;
}

static struct rdma_addrinfo *address(int flags, const char *port)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *info;

	NEED(!rdma_getaddrinfo(here_text(), port, &hints, &info));
	return info;
}

int main(int count_of_arguments, char **arguments)
{
	int count = count_of_arguments > 1 ? atoi(arguments[1]) : 20000;
	struct rdma_addrinfo *at = address(RAI_PASSIVE, "0");
	struct ibv_qp_init_attr own = attributes;
	pthread_t server;
	char port[8];

	NEED(!rdma_create_ep(&listener, at, NULL, &own) && !rdma_listen(listener, 64));
	rdma_freeaddrinfo(at);
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listener)));
	NEED(!pthread_create(&server, NULL, serve, &count));
	for (int i = 0; i < count; i++) {
		char message[16];
		struct rdma_cm_id *id;
		struct ibv_mr *mr;
		struct ibv_wc wc;

		at = address(0, port);
		own = attributes;
		EACH(!rdma_create_ep(&id, at, NULL, &own), i);
		rdma_freeaddrinfo(at);
		EACH((mr = rdma_reg_msgs(id, message, sizeof(message))) != NULL, i);
		EACH(!rdma_connect(id, NULL), i);
		memcpy(message, &i, sizeof(i));
		EACH(!rdma_post_send(id, NULL, message, sizeof(message), mr, 0), i);
		EACH(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, i);
		EACH(!rdma_disconnect(id), i);
		EACH(!rdma_dereg_mr(mr), i);
		rdma_destroy_ep(id);
	}
	NEED(!pthread_join(server, NULL));
	rdma_destroy_ep(listener);
	CHECK(served == count);
	check(1, "all connections succeed");
	return failures != 0;
}
