/*
 * Two listeners at one port with different addresses, as the kernel's manager allows. Each listener
 * gets the requests to its address; neither may coexist with a listener at all addresses. The
 * arguments are two addresses of this host.
 */
#include "events.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct rdma_event_channel *channel;

/* An address as text, with a port in network order. */
static struct sockaddr_storage at(const char *ip, in_port_t port)
{
	struct sockaddr_storage address = { 0 };
	struct sockaddr_in *four = (struct sockaddr_in *)&address;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;

	if (inet_pton(AF_INET, ip, &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		four->sin_port = port;
	} else {
		CHECK(inet_pton(AF_INET6, ip, &six->sin6_addr) == 1);
		six->sin6_family = AF_INET6;
		six->sin6_port = port;
	}
	return address;
}

static struct rdma_cm_id *make(void)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	return id;
}

/* 0, or the errno with which an id is not bound to an address. */
static int bound(struct rdma_cm_id *id, const char *ip, in_port_t port)
{
	struct sockaddr_storage address = at(ip, port);

	return rdma_bind_addr(id, (struct sockaddr *)&address) ? errno : 0;
}

/* As bound(), with a temporary id. */
static int tried(const char *ip, in_port_t port)
{
	struct rdma_cm_id *id = make();
	int why = bound(id, ip, port);

	CHECK(!rdma_destroy_id(id));
	return why;
}

/* Asks for a connection with an address; the client's id. */
static struct rdma_cm_id *ask(const char *ip, in_port_t port)
{
	static unsigned qpn = 0x800001;
	struct rdma_conn_param param = { .qp_num = qpn++, .retry_count = 7 };
	struct sockaddr_storage address = at(ip, port);
	struct rdma_cm_id *id = make();

	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 2000));
	next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_connect(id, &param));
	return id;
}

/* A client's request comes to `listener`; NULL: to nobody. */
static void comes_to(struct rdma_cm_id *listener, const char *ip, in_port_t port)
{
	struct rdma_cm_id *client = ask(ip, port);

	if (listener) {
		struct rdma_cm_event asked = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);

		CHECK(asked.listen_id == listener);
		CHECK(!rdma_reject(asked.id, NULL, 0));
		CHECK(!rdma_destroy_id(asked.id));
	}
	CHECK(next(channel, RDMA_CM_EVENT_REJECTED).id == client);
	CHECK(!rdma_destroy_id(client));
}

/* Binds to a port that an id at address `one` holds are refused. */
static void refusals(const char *one, in_port_t port)
{
	CHECK(tried(one, port) == EADDRINUSE);
	CHECK(tried("0.0.0.0", port) == EADDRNOTAVAIL);
	CHECK(tried("127.0.0.1", port) == EADDRNOTAVAIL);
	CHECK(tried("::", port) == EADDRNOTAVAIL);
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: %s ADDRESS ADDRESS\n", argv[0]);
		return 2;
	}
	const char *one = argv[1], *two = argv[2];
	int status;

	channel = rdma_create_event_channel();
	struct rdma_cm_id *first = make(), *second = make(), *all = make();

	CHECK(!bound(first, one, 0));
	in_port_t port = rdma_get_src_port(first);
	refusals(one, port);
	CHECK(!bound(second, two, port));
	CHECK(rdma_get_src_port(second) == port);
	refusals(two, port);
	CHECK(!rdma_listen(first, 4));
	comes_to(first, one, port);
	comes_to(NULL, two, port);
	CHECK(!rdma_listen(second, 4));
	comes_to(first, one, port);
	comes_to(second, two, port);

	/* The same with the second listener in another process. Both processes name the port by its
	 * number. */
	CHECK(!rdma_destroy_id(second));
	CHECK(!rdma_destroy_id(first));
	first = make();
	CHECK(!bound(first, one, port));
	CHECK(!rdma_listen(first, 4));
	fflush(stdout);
	if (!fork()) {
		channel = rdma_create_event_channel();
		refusals(one, port);
		second = make();
		CHECK(!bound(second, two, port));
		CHECK(!rdma_listen(second, 4));
		comes_to(second, two, port);
		CHECK(!rdma_destroy_id(second));
		fflush(stdout);
		_exit(failures != 0);
	}
	wait(&status);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	comes_to(first, one, port);
	comes_to(NULL, two, port);
	CHECK(bound(all, "::", port) == EADDRNOTAVAIL);
	CHECK(!rdma_destroy_id(first));
	CHECK(!bound(all, "::", port));
	CHECK(tried(two, port) == EADDRNOTAVAIL);
	CHECK(!rdma_listen(all, 4));
	comes_to(all, one, port);
	comes_to(all, two, port);
	return failures != 0;
}
