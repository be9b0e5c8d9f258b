/*
 * Asynchronous calls return at once and report their results by events: rdma_connect to a service
 * without listener, which may get one a moment later, and rdma_resolve_addr between address
 * families, which is refused.
 */
#include "events.h"
#include "place.h"

#include <poll.h>
#include <rdma/rdma_cma.h>

/* Ids that connect at the same time. */
enum { MANY = 32 };

/* Takes a port and does not listen, so that no process listens to the port. */
static struct rdma_cm_id *take_port(enum rdma_port_space space, struct sockaddr_in *at)
{
	struct rdma_cm_id *id;

	*at = (struct sockaddr_in) { .sin_family = AF_INET, .sin_addr = here() };
	NEED(!rdma_create_id(NULL, &id, NULL, space));
	NEED(!rdma_bind_addr(id, (struct sockaddr *)at));
	at->sin_port = rdma_get_src_port(id);
	return id;
}

/* An id with its own event channel and a resolved route to `at`. */
static struct rdma_cm_id *resolved(enum rdma_port_space space, struct sockaddr_in *at)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;

	NEED(channel && !rdma_create_id(channel, &id, NULL, space));
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)at, 2000));
	next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(id, 2000));
	next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static int has_event(struct rdma_cm_id *id)
{
	struct pollfd fd = { .fd = id->channel->fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

static int ask(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = { .qp_num = 7, .retry_count = 7 };

	return rdma_connect(id, &param);
}

static void end(struct rdma_cm_id *id)
{
	struct rdma_event_channel *channel = id->channel;

	NEED(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* A connect to a service without listener fails by an event that arrives after the call returns. */
static void ask_nobody(enum rdma_port_space space, enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_id *ids[MANY], *owner;
	struct sockaddr_in at;
	int before_its_event = 0;

	owner = take_port(space, &at);
	for (int i = 0; i < MANY; i++)
		ids[i] = resolved(space, &at);
	for (int i = 0; i < MANY; i++) {
		NEED(!ask(ids[i]));
		before_its_event += !has_event(ids[i]);
	}
	/* A synchronous call would always have its event on return. An asynchronous call may be
	 * overtaken on a busy machine. */
	CHECK(before_its_event > 0);
	REFUSED(ask(ids[0]), EINVAL);
	REFUSED(rdma_disconnect(ids[0]), EINVAL);
	/* Some are not interested any more. */
	for (int i = MANY / 2; i < MANY; i++)
		end(ids[i]);
	for (int i = 0; i < MANY / 2; i++) {
		struct rdma_cm_event said = next(ids[i]->channel, type);

		CHECK(said.id == ids[i] && said.status == status);
		CHECK(!has_event(ids[i]));
		end(ids[i]);
	}
	/* A synchronous id waits for its event by itself. */
	struct rdma_cm_id *id;

	NEED(!rdma_create_id(NULL, &id, NULL, space));
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000) && !rdma_resolve_route(id, 2000));
	CHECK(ask(id) == -1 && errno == (type == RDMA_CM_EVENT_REJECTED ? ECONNREFUSED : EIO));
	NEED(!rdma_destroy_id(id));
	NEED(!rdma_destroy_id(owner));
}

/* A server that starts to listen after the call gets the request. Whether its listen is early
 * enough depends on the machine; one success of many suffices. */
static void ask_before_the_listener(void)
{
	int served = 0;

	for (int i = 0; i < MANY && !served; i++) {
		struct rdma_event_channel *channel = rdma_create_event_channel();
		struct rdma_cm_id *listener, *id;
		struct rdma_cm_event *event;
		struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = here() };

		NEED(channel && !rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
		NEED(!rdma_bind_addr(listener, (struct sockaddr *)&at));
		at.sin_port = rdma_get_src_port(listener);
		id = resolved(RDMA_PS_TCP, &at);
		NEED(!ask(id) && !rdma_listen(listener, 1));
		/* The request arrives, or was refused before. */
		struct pollfd fds[2] = { { .fd = channel->fd, .events = POLLIN }, { .fd = id->channel->fd, .events = POLLIN } };

		NEED(poll(fds, 2, 10000) > 0);
		served = fds[0].revents != 0;
		if (served) {
			struct rdma_cm_id *server;

			NEED(!rdma_get_cm_event(channel, &event));
			check(event->event == RDMA_CM_EVENT_CONNECT_REQUEST, rdma_event_str(event->event));
			server = event->id;
			NEED(!rdma_ack_cm_event(event));
			NEED(!rdma_reject(server, NULL, 0) && !rdma_destroy_id(server));
			CHECK(next(id->channel, RDMA_CM_EVENT_REJECTED).status == 28);
		}
		end(id);
		end(listener);
	}
	CHECK(served);
}

static void resolve_another_family(void)
{
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(7), .sin_addr = here() }, any = { .sin_family = AF_INET };
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(7) }, any6 = { .sin6_family = AF_INET6 }, mapped = six;
	struct sockaddr_in unspecified = { .sin_family = AF_UNSPEC };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct { struct sockaddr *source, *destination, *own; } cases[] = {
		{ (struct sockaddr *)&any, (struct sockaddr *)&six, (struct sockaddr *)&four },
		{ (struct sockaddr *)&any, (struct sockaddr *)&mapped, (struct sockaddr *)&four },
		{ (struct sockaddr *)&any6, (struct sockaddr *)&four, (struct sockaddr *)&six },
	};
	struct rdma_cm_id *id;

	NEED(channel && inet_pton(AF_INET6, here6_text(), &six.sin6_addr) == 1);
	NEED(inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr) == 1);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
		REFUSED(rdma_resolve_addr(id, cases[i].source, cases[i].destination, 2000), EINVAL);
		/* The id is bound to the source, and has still a way to its own family. */
		CHECK(rdma_get_src_port(id) != 0);
		REFUSED(rdma_bind_addr(id, cases[i].source), EINVAL);
		REFUSED(rdma_resolve_addr(id, NULL, cases[i].destination, 2000), EINVAL);
		CHECK(!rdma_resolve_addr(id, NULL, cases[i].own, 2000));
		next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
		NEED(!rdma_destroy_id(id));
	}
	/* A source of no family is none. */
	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, (struct sockaddr *)&unspecified, (struct sockaddr *)&four, 2000));
	next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	ask_nobody(RDMA_PS_TCP, RDMA_CM_EVENT_REJECTED, 8);
	ask_nobody(RDMA_PS_UDP, RDMA_CM_EVENT_UNREACHABLE, 1);
	ask_before_the_listener();
	resolve_another_family();
	return failures != 0;
}
