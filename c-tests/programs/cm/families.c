/*
 * A server with one listener for each address family at one port (RDMA_OPTION_ID_AFONLY), as tgtd
 * has. Each request reaches the listener of its family.
 */
#include "checks.h"
#include "place.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct rdma_event_channel *channel;

/* An address of a family, with a port in network order. */
static struct sockaddr_storage at(int family, const char *ip, in_port_t port)
{
	struct sockaddr_storage address = { .ss_family = (sa_family_t)family };
	struct sockaddr_in *four = (struct sockaddr_in *)&address;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;

	if (family == AF_INET) {
		four->sin_port = port;
		CHECK(inet_pton(family, ip, &four->sin_addr) == 1);
	} else {
		six->sin6_port = port;
		CHECK(inet_pton(family, ip, &six->sin6_addr) == 1);
	}
	return address;
}

/* An id; `only`: with RDMA_OPTION_ID_AFONLY. */
static struct rdma_cm_id *make(int only)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	if (only)
		CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof(only)));
	return id;
}

static int bind_to(struct rdma_cm_id *id, struct sockaddr_storage address)
{
	return rdma_bind_addr(id, (struct sockaddr *)&address);
}

/*
 * The next event, which must be of type `type`; returns the listener or the id, and the id in *id.
 */
static struct rdma_cm_id *next(enum rdma_cm_event_type type, struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event));
	check(event->event == type, rdma_event_str(type));
	struct rdma_cm_id *listener = event->listen_id;

	*id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return listener;
}

/* Asks for a connection with an address; the client's id. */
static struct rdma_cm_id *ask(struct sockaddr_storage address)
{
	static unsigned qpn = 0x800001;
	struct rdma_conn_param param = { .qp_num = qpn++, .retry_count = 7 };
	struct rdma_cm_id *id = make(0), *its;

	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	next(RDMA_CM_EVENT_ADDR_RESOLVED, &its);
	CHECK(!rdma_resolve_route(id, 2000));
	next(RDMA_CM_EVENT_ROUTE_RESOLVED, &its);
	CHECK(!rdma_connect(id, &param));
	return id;
}

/* A client's request comes to `listener`. */
static void comes_to(struct rdma_cm_id *listener, struct sockaddr_storage address)
{
	struct rdma_cm_id *client = ask(address), *server, *its;

	CHECK(next(RDMA_CM_EVENT_CONNECT_REQUEST, &server) == listener);
	CHECK(!rdma_reject(server, NULL, 0));
	CHECK(!rdma_destroy_id(server));
	next(RDMA_CM_EVENT_REJECTED, &its);
	CHECK(its == client);
	CHECK(!rdma_destroy_id(client));
}

int main(void)
{
	struct sockaddr_storage loopback = at(AF_INET6, here6_text(), 0);
	int probe = socket(AF_INET6, SOCK_DGRAM, 0);

	if (probe < 0 || bind(probe, (struct sockaddr *)&loopback, sizeof(struct sockaddr_in6))) {
		printf("skipped: this host has no IPv6\n");
		return 0;
	}
	channel = rdma_create_event_channel();
	struct rdma_cm_id *four = make(0), *six = make(1), *both = make(0), *its;

	/* A port that nobody has. */
	CHECK(!bind_to(both, at(AF_INET, here_text(), 0)));
	in_port_t port = rdma_get_src_port(both);
	CHECK(!rdma_destroy_id(both));
	both = make(0);

	CHECK(!bind_to(four, at(AF_INET, "0.0.0.0", port)));
	REFUSED(bind_to(both, at(AF_INET6, "::", port)), EADDRNOTAVAIL);
	CHECK(!bind_to(six, at(AF_INET6, "::", port)));
	CHECK(!rdma_listen(six, 4));
	struct rdma_cm_id *nobody = ask(at(AF_INET, here_text(), port));
	next(RDMA_CM_EVENT_REJECTED, &its);
	CHECK(its == nobody && !rdma_destroy_id(nobody));
	CHECK(!rdma_listen(four, 4));
	comes_to(four, at(AF_INET, here_text(), port));
	comes_to(six, at(AF_INET6, here6_text(), port));
	CHECK(!rdma_destroy_id(four));
	comes_to(six, at(AF_INET6, here6_text(), port));
	CHECK(!rdma_destroy_id(six));

	CHECK(!bind_to(both, at(AF_INET6, "::", port)));
	CHECK(!rdma_listen(both, 4));
	comes_to(both, at(AF_INET, here_text(), port));
	comes_to(both, at(AF_INET6, here6_text(), port));
	return failures != 0;
}
