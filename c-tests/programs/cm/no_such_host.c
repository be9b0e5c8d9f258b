/*
 * rdma_resolve_addr to addresses of another host that no machine has. Each id gets an event within
 * its timeout, may try again, and may be destroyed meanwhile. The argument is such an address in a
 * network of an interface.
 */
#include "checks.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>

enum { MANY = 100 };

static struct rdma_event_channel *channel;
static struct sockaddr_in at = { .sin_family = AF_INET };

static struct rdma_cm_id *make(void)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	return id;
}

static int look_for(struct rdma_cm_id *id, int timeout_ms)
{
	return rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, timeout_ms);
}

/* Waits for the next event, which must be RDMA_CM_EVENT_ADDR_ERROR; returns its id. */
static struct rdma_cm_id *absent(void)
{
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event));
	check(event->event == RDMA_CM_EVENT_ADDR_ERROR, rdma_event_str(event->event));
	CHECK(event->status == -ETIMEDOUT || event->status == -EHOSTUNREACH);
	struct rdma_cm_id *id = event->id;

	CHECK(!rdma_ack_cm_event(event));
	return id;
}

int main(int argc, char **argv)
{
	if (argc != 2 || inet_pton(AF_INET, argv[1], &at.sin_addr) != 1) {
		fprintf(stderr, "usage: %s ADDRESS\n", argv[0]);
		return 2;
	}
	at.sin_port = htons(7471);
	channel = rdma_create_event_channel();
	struct rdma_cm_id *id = make(), *other = make(), *many[MANY];

	CHECK(!look_for(id, 300));
	REFUSED(look_for(id, 300), EINVAL);
	REFUSED(rdma_resolve_route(id, 300), EINVAL);
	CHECK(absent() == id);
	CHECK(id->verbs == NULL);
	CHECK(!look_for(id, 0));
	CHECK(absent() == id);

	/* An id that is destroyed meanwhile gets no event. The next event belongs to the id with
	 * the longer timeout. */
	CHECK(!look_for(id, 100));
	CHECK(!look_for(other, 600));
	CHECK(!rdma_destroy_id(id));
	CHECK(absent() == other);
	CHECK(!rdma_destroy_id(other));

	for (int i = 0; i < MANY; i++) {
		many[i] = make();
		CHECK(!look_for(many[i], 200));
	}
	for (int i = 0; i < MANY; i++)
		absent();
	for (int i = 0; i < MANY; i++)
		CHECK(!rdma_destroy_id(many[i]));
	struct pollfd more = { .fd = channel->fd, .events = POLLIN };

	CHECK(poll(&more, 1, 0) == 0);

	/* A synchronous one waits. */
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(look_for(id, 200) == -1 && (errno == ETIMEDOUT || errno == EHOSTUNREACH));
	CHECK(!rdma_destroy_id(id));
	return failures != 0;
}
