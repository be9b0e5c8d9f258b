/*
 * Functions of librdmacm since rdma-core 60: events of the program's own, and name resolution for
 * an id. Compiled with the project's headers and linked to the staged library, because older
 * releases lack both. Further checks: a child of fork(2), refused addresses, loopback addresses.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/ib.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

static void check(int ok, const char *what)
{
	printf("%s: %s\n", ok ? "ok" : "FAILED", what);
	failures += !ok;
}

#define CHECK(condition) check((condition), #condition)

static void own_events(struct rdma_event_channel *channel, struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	CHECK(poll(&fd, 1, 0) == 0);
	CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, -7, UINT64_C(0x123456789abcdef0)) == 0);
	CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, 2) == 0);
	CHECK(poll(&fd, 1, 0) == 1);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->event == RDMA_CM_EVENT_USER && event->id == id && event->status == -7);
	CHECK(event->param.arg == UINT64_C(0x123456789abcdef0));
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->param.arg == 2);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0) == -1 && errno == EINVAL);
	CHECK(rdma_write_cm_event(NULL, RDMA_CM_EVENT_USER, 0, 0) == -1 && errno == EINVAL);
	CHECK(poll(&fd, 1, 0) == 0);
}

static void resolved(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	check(event->event == type, rdma_event_str(type));
	CHECK(event->status == 0);
	rdma_ack_cm_event(event);
}

static void names(struct rdma_event_channel *channel, struct rdma_cm_id *id)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_DNS | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *found, *again;
	struct sockaddr_in *to;

	CHECK(rdma_query_addrinfo(id, &found) == -1 && errno == ENOENT);
	CHECK(rdma_resolve_addrinfo(id, NULL, NULL, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addrinfo(id, "no address", "7", &hints) == -1 && errno == ENODEV);
	CHECK(rdma_query_addrinfo(id, &found) == -1 && errno == ENOENT);

	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7", &hints) == 0);
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7", &hints) == -1 && errno == EBUSY);
	resolved(channel, RDMA_CM_EVENT_ADDRINFO_RESOLVED);
	CHECK(rdma_query_addrinfo(id, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_query_addrinfo(id, &found) == 0);
	/* It is the program's now. */
	CHECK(rdma_query_addrinfo(id, &again) == -1 && errno == ENOENT);
	to = (struct sockaddr_in *)found->ai_dst_addr;
	CHECK(found->ai_family == AF_INET && found->ai_dst_len == sizeof(*to) && !found->ai_next);
	CHECK(to->sin_addr.s_addr == htonl(INADDR_LOOPBACK) && to->sin_port == htons(7));
	CHECK(found->ai_qp_type == IBV_QPT_RC && found->ai_port_space == RDMA_PS_TCP);
	CHECK(rdma_resolve_addr(id, NULL, found->ai_dst_addr, 2000) == 0);
	resolved(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	rdma_freeaddrinfo(found);

	hints.ai_flags = RAI_SA;
	CHECK(rdma_resolve_addrinfo(id, NULL, "7", &hints) == -1 && errno == EOPNOTSUPP);
	CHECK(rdma_getaddrinfo(NULL, "7", &hints, &found) == -1 && errno == EOPNOTSUPP);
}

/* Asks for a connection to a port of this host: errno, or 0. */
static int asked(uint16_t port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *to;
	struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	char text[8];
	struct rdma_cm_id *id;

	snprintf(text, sizeof(text), "%u", ntohs(port));
	if (rdma_getaddrinfo("127.0.0.1", text, &hints, &to) || rdma_create_ep(&id, to, NULL, &init))
		return -1;
	rdma_freeaddrinfo(to);
	errno = 0;
	rdma_connect(id, NULL);
	int why = errno;

	rdma_destroy_ep(id);
	return why;
}

/* Calls of a child on objects of its parent are refused; the child can create its own ids. */
static void child(struct rdma_event_channel *channel)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;
	char said[1000] = "";
	int pipes[2], status;
	size_t lines = 0;
	ssize_t size;
	pid_t pid;

	CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&any) == 0 && rdma_listen(listener, 4) == 0);
	CHECK(pipe(pipes) == 0);
	pid = fork();
	if (pid == 0) {
		struct rdma_cm_id *id;
		int refused = dup2(pipes[1], 2) == 2 && rdma_listen(listener, 1) == -1 && errno == ENODEV &&
			      rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == -1 && errno == ENODEV;

		_exit(!refused ? 1 : asked(rdma_get_src_port(listener)) != ECONNREFUSED ? 2 : 0);
	}
	close(pipes[1]);
	CHECK(rdma_get_cm_event(channel, &event) == 0 && event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_reject(event->id, NULL, 0) == 0 && rdma_destroy_id(event->id) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	size = read(pipes[0], said, sizeof(said) - 1);
	for (ssize_t i = 0; i < size; i++)
		lines += said[i] == '\n';
	CHECK(lines == 1 && strstr(said, "is a fork of"));
	close(pipes[0]);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* Families and spaces of ports that few use. */
static void families(struct rdma_event_channel *channel)
{
	struct sockaddr_in any = { .sin_family = AF_INET }, nobodys = any;
	struct sockaddr_ib infiniband = { .sib_family = AF_IB, .sib_addr.sib_addr32[3] = htonl(1) };
	struct sockaddr other = { .sa_family = AF_UNIX };
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_IB) == 0);
	/* No RoCE port has InfiniBand addresses. */
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&infiniband) == -1 && errno == ENODEV);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&infiniband, 1000) == -1 && errno == ENODEV);
	CHECK(rdma_bind_addr(id, &other) == -1 && errno == EINVAL);
	/* 198.51.100.1 is for documentation (RFC 5737): no interface has it. */
	nobodys.sin_addr.s_addr = htonl(0xc6336401);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&nobodys) == -1 && errno == EADDRNOTAVAIL);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&any) == 0 && rdma_listen(id, 1) == 0);
	/* The id already has an address, so the missing device of this address is not reported. */
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&nobodys) == -1 && errno == EINVAL);
	CHECK(rdma_destroy_id(id) == 0);
}

/* As with the kernel: no device has loopback addresses. A listener at them listens at all devices;
 * a route to them starts at the first device. */
static void loopback(struct rdma_event_channel *channel, int family)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr *address = family == AF_INET ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
	struct rdma_cm_id *listener, *id;

	CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, address) == 0 && rdma_get_src_port(listener));
	CHECK(!listener->verbs && !listener->pd && !listener->port_num);
	CHECK(listener->route.addr.src_addr.sa_family == family && rdma_listen(listener, 1) == 0);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	/* The wildcard as a destination means this host, too. */
	v4.sin_addr.s_addr = htonl(INADDR_ANY);
	v4.sin_port = v6.sin6_port = rdma_get_src_port(listener);
	CHECK(rdma_resolve_addr(id, NULL, address, 1000) == 0);
	resolved(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(id->verbs && id->pd && id->port_num == 1);
	CHECK(!memcmp(&id->route.addr.addr.ibaddr.sgid, &id->route.addr.addr.ibaddr.dgid, 16));
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(listener) == 0);
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id, *synchronous;
	struct rdma_addrinfo *found;

	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)) {
		perror("no id");
		return 2;
	}
	own_events(channel, id);
	child(channel);
	families(channel);
	loopback(channel, AF_INET);
	loopback(channel, AF_INET6);
	names(channel, id);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);

	CHECK(rdma_create_id(NULL, &synchronous, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_resolve_addrinfo(synchronous, "::1", "8", NULL) == 0);
	CHECK(synchronous->event && synchronous->event->event == RDMA_CM_EVENT_ADDRINFO_RESOLVED);
	CHECK(rdma_query_addrinfo(synchronous, &found) == 0 && found->ai_family == AF_INET6);
	rdma_freeaddrinfo(found);
	CHECK(rdma_destroy_id(synchronous) == 0);
	return failures != 0;
}
