/*
 * Options of ids, as the kernel's manager has them: states in which they can be set, and their
 * effect on the QPs of a connection.
 */
#include "events.h"
#include "place.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <string.h>

static struct rdma_event_channel *channel;

static struct rdma_cm_id *make(enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, space));
	return id;
}

static int set(struct rdma_cm_id *id, int name, int value)
{
	return rdma_set_option(id, RDMA_OPTION_ID, name, &value, sizeof(value));
}

/* As set(), for options of one byte. */
static int set_byte(struct rdma_cm_id *id, int name, uint8_t value)
{
	return rdma_set_option(id, RDMA_OPTION_ID, name, &value, sizeof(value));
}

static int bind_to(struct rdma_cm_id *id, int family, uint16_t port)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = port };
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = port };

	return rdma_bind_addr(id, family == AF_INET ? (struct sockaddr *)&four : (struct sockaddr *)&six);
}

/* When an address can be shared: the option can be withdrawn only before the id is bound, and not
 * set on a listener. */
static void sharing(void)
{
	struct rdma_cm_id *one = make(RDMA_PS_TCP), *two = make(RDMA_PS_TCP), *three = make(RDMA_PS_TCP);

	CHECK(!set(one, RDMA_OPTION_ID_REUSEADDR, 1));
	CHECK(!set(one, RDMA_OPTION_ID_REUSEADDR, 0));
	CHECK(!bind_to(one, AF_INET, 0));
	REFUSED(set(one, RDMA_OPTION_ID_REUSEADDR, 0), EINVAL);
	uint16_t port = rdma_get_src_port(one);

	CHECK(!set(two, RDMA_OPTION_ID_REUSEADDR, 1));
	REFUSED(bind_to(two, AF_INET, port), EADDRNOTAVAIL);
	CHECK(!set(one, RDMA_OPTION_ID_REUSEADDR, 1));
	CHECK(!bind_to(two, AF_INET, port));
	/* The first id asked for the port by number. */
	CHECK(!rdma_destroy_id(one));
	REFUSED(bind_to(three, AF_INET, port), EADDRNOTAVAIL);
	CHECK(!rdma_listen(two, 1));
	REFUSED(set(two, RDMA_OPTION_ID_REUSEADDR, 1), EINVAL);
	REFUSED(set(two, RDMA_OPTION_ID_REUSEADDR, 0), EINVAL);
	CHECK(!rdma_destroy_id(two));
	CHECK(!rdma_destroy_id(three));
}

/* A wildcard of IPv6 can be taken off IPv4 until it listens. */
static void families(void)
{
	struct rdma_cm_id *six = make(RDMA_PS_TCP), *four = make(RDMA_PS_TCP);

	CHECK(!bind_to(six, AF_INET6, 0));
	uint16_t port = rdma_get_src_port(six);

	REFUSED(bind_to(four, AF_INET, port), EADDRNOTAVAIL);
	CHECK(!set(six, RDMA_OPTION_ID_AFONLY, 1));
	CHECK(!bind_to(four, AF_INET, port));
	CHECK(!rdma_listen(six, 1));
	REFUSED(set(six, RDMA_OPTION_ID_AFONLY, 0), EINVAL);
	REFUSED(set(six, RDMA_OPTION_ID_AFONLY, 1), EINVAL);
	CHECK(!rdma_destroy_id(six));
	CHECK(!rdma_destroy_id(four));
}

static struct rdma_cm_id *asks(const struct sockaddr_in *address)
{
	struct rdma_cm_id *id = make(RDMA_PS_TCP);

	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)address, 2000));
	CHECK(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED).id == id);
	return id;
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };

	CHECK(!rdma_create_qp(id, NULL, &init));
}

/* The default timeout: of kernel 6.1. Kernel 6.12 has a value lower by two
 * (CMA_IBOE_PACKET_LIFETIME). */
enum { USUAL = 19 };

/* What a queue pair of a connection has. */
static void has(struct rdma_cm_id *id, int traffic_class, int timeout)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(!ibv_query_qp(id->qp, &attr, IBV_QP_AV | IBV_QP_TIMEOUT, &init));
	CHECK(attr.ah_attr.grh.traffic_class == traffic_class);
	if (timeout == USUAL && is_kernels() && attr.timeout == USUAL - 2)
		timeout = USUAL - 2;
	if (attr.timeout != timeout)
		printf("its timeout is %d\n", attr.timeout);
	CHECK(attr.timeout == timeout);
}

/* Both ends have the client's traffic class. Each end has its own timeout; without one the server
 * takes the timeout of the request. */
static void connection(int of_client, int of_server, int client_has, int server_has)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = here() };
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *listener = make(RDMA_PS_TCP);

	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&at));
	CHECK(!rdma_listen(listener, 1));
	at.sin_port = rdma_get_src_port(listener);
	struct rdma_cm_id *client = asks(&at);

	CHECK(!set_byte(client, RDMA_OPTION_ID_TOS, 0x48));
	if (of_client >= 0)
		CHECK(!set_byte(client, RDMA_OPTION_ID_ACK_TIMEOUT, (uint8_t)of_client));
	CHECK(!rdma_resolve_route(client, 2000));
	CHECK(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED).id == client);
	make_qp(client);
	CHECK(!rdma_connect(client, &param));
	struct rdma_cm_id *server = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;

	make_qp(server);
	if (of_server >= 0)
		CHECK(!set_byte(server, RDMA_OPTION_ID_ACK_TIMEOUT, (uint8_t)of_server));
	CHECK(!rdma_accept(server, &param));
	/* In either order. */
	next(channel, RDMA_CM_EVENT_ESTABLISHED);
	next(channel, RDMA_CM_EVENT_ESTABLISHED);
	has(client, 0x48, client_has);
	has(server, 0x48, server_has);
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	CHECK(!rdma_destroy_id(client));
	CHECK(!rdma_destroy_id(server));
	CHECK(!rdma_destroy_id(listener));
}

int main(void)
{
	uint8_t byte = 1;

	channel = rdma_create_event_channel();
	struct rdma_cm_id *datagrams = make(RDMA_PS_UDP);

	REFUSED(set_byte(datagrams, RDMA_OPTION_ID_ACK_TIMEOUT, 12), EINVAL);
	CHECK(!set_byte(datagrams, RDMA_OPTION_ID_TOS, 0x48));
	REFUSED(rdma_set_option(datagrams, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &byte, 1), EINVAL);
	REFUSED(rdma_set_option(datagrams, RDMA_OPTION_ID, 17, &byte, 1), ENOSYS);
	CHECK(!rdma_destroy_id(datagrams));
	sharing();
	families();
	connection(-1, -1, USUAL, USUAL);
	/* The request says more than the way takes: the adapter has a delay of its own. */
	connection(14, -1, 14, 16);
	connection(14, 17, 14, 17);
	/* 0 is for ever, which no request says. */
	connection(0, 16, 0, 16);
	connection(0, -1, 0, USUAL);
	return failures != 0;
}
