/*
 * A server that has a request and does not answer: stopped, slow, or no longer listening. A client
 * may leave at once; a client that waits is served when the server continues. Also a full backlog:
 * refused clients repeat their request until a place is free.
 *
 * `server FILE` is a server that answers its one client when the file exists; `client ADDRESS` is
 * that client. Both meet by TCP at a fixed port.
 */
#include "checks.h"
#include "place.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PORT = 7741, LIMIT = 60, CROWD = 8 };

static struct rdma_event_channel *channel;

static struct rdma_conn_param *new_queue(void)
{
	static struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	static unsigned made;

	param.qp_num = 0x800000 | (unsigned)getpid() % 0x8000 << 5 | made++;
	return &param;
}

static struct rdma_cm_id *next(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	need(!rdma_get_cm_event(channel, &event), rdma_event_str(type));
	struct rdma_cm_id *id = event->id;

	if (event->event != type)
		printf("FAILED: %s, %d came instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
	failures += event->event != type;
	NEED(!rdma_ack_cm_event(event));
	return id;
}

static int is_quiet(void)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 0;
}

static struct rdma_cm_id *listen_at(struct sockaddr_in *at, int backlog)
{
	struct rdma_cm_id *listener;

	channel = rdma_create_event_channel();
	NEED(channel && !rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(listener, (struct sockaddr *)at) && !rdma_listen(listener, backlog));
	at->sin_port = rdma_get_src_port(listener);
	return listener;
}

static struct rdma_cm_id *ask(struct sockaddr_in *at)
{
	struct rdma_cm_id *id;

	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)at, 2000));
	next(RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(id, 2000));
	next(RDMA_CM_EVENT_ROUTE_RESOLVED);
	NEED(!rdma_connect(id, new_queue()));
	return id;
}

/* Answers, and is connected until the client ends it. */
static void serve(struct rdma_cm_id *id)
{
	NEED(!rdma_accept(id, new_queue()));
	NEED(next(RDMA_CM_EVENT_ESTABLISHED) == id && next(RDMA_CM_EVENT_DISCONNECTED) == id);
	NEED(!rdma_disconnect(id) && !rdma_destroy_id(id));
}

static void is_served(struct rdma_cm_id *id)
{
	NEED(next(RDMA_CM_EVENT_CONNECT_RESPONSE) == id && !rdma_establish(id));
	NEED(!rdma_disconnect(id) && next(RDMA_CM_EVENT_DISCONNECTED) == id);
	NEED(!rdma_destroy_id(id));
}

static struct sockaddr_in at = { .sin_family = AF_INET };

/* Starts a process that gets one end of a socket pair; *word is the other end. */
static pid_t start(void run(int word), int *word)
{
	int ends[2];

	NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends) && !fflush(stdout));
	pid_t child = fork();

	if (!child) {
		alarm(LIMIT);
		failures = 0;
		close(ends[0]);
		run(ends[1]);
		exit(failures != 0);
	}
	close(ends[1]);
	*word = ends[0];
	return child;
}

/* Stops itself with a request pending, and later serves a request that arrived while stopped. */
static void stops(int word)
{
	struct rdma_cm_id *listener = listen_at(&at, 8), *id;

	NEED(write(word, &at, sizeof(at)) == sizeof(at));
	id = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(write(word, ".", 1) == 1);
	raise(SIGSTOP);
	/* The second came, and then the first went. */
	struct rdma_cm_id *second = next(RDMA_CM_EVENT_CONNECT_REQUEST);

	serve(second);
	/* The failed accept is the only sign that the first request is gone. */
	REFUSED(rdma_accept(id, new_queue()), EINVAL);
	NEED(!rdma_destroy_id(id) && is_quiet());
	NEED(!rdma_destroy_id(listener));
}

static void stopped(void)
{
	int word, status;
	char c;
	pid_t server = start(stops, &word);

	NEED(read(word, &at, sizeof(at)) == sizeof(at));
	channel = rdma_create_event_channel();
	struct rdma_cm_id *first = ask(&at);

	NEED(read(word, &c, 1) == 1 && waitpid(server, &status, WUNTRACED) == server && WIFSTOPPED(status));
	struct rdma_cm_id *second = ask(&at);

	check(is_quiet(), "nobody is told anything while the server is stopped");
	check(!rdma_destroy_id(first), "a client that waits may go");
	kill(server, SIGCONT);
	is_served(second);
	check(waitpid(server, &status, 0) == server && status == 0, "a server that goes on rejects nobody");
	close(word);
	rdma_destroy_event_channel(channel);
}

/* Stops listening with a request pending, is stopped, then accepts the request. */
static void leaves(int word)
{
	struct rdma_cm_id *listener = listen_at(&at, 8), *id;

	NEED(write(word, &at, sizeof(at)) == sizeof(at));
	id = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(!rdma_destroy_id(listener) && write(word, ".", 1) == 1);
	raise(SIGSTOP);
	serve(id);
}

static void left_port(void)
{
	int word, status;
	char c;
	pid_t server = start(leaves, &word);

	NEED(read(word, &at, sizeof(at)) == sizeof(at));
	channel = rdma_create_event_channel();
	struct rdma_cm_id *id = ask(&at);

	NEED(read(word, &c, 1) == 1 && waitpid(server, &status, WUNTRACED) == server && WIFSTOPPED(status));
	/* The client repeats its request meanwhile, and other processes of the host see no
	 * listener. */
	usleep(1800000);
	check(is_quiet(), "nobody takes a request away from who has it, and listens no more");
	kill(server, SIGCONT);
	is_served(id);
	check(waitpid(server, &status, 0) == server && status == 0, "who listens no more grants what it has");
	close(word);
	rdma_destroy_event_channel(channel);
}

/* Has more requests than its backlog holds, and reads none before it is told to. */
static void is_full(int word)
{
	struct rdma_cm_id *listener = listen_at(&at, 1);
	char c;

	NEED(write(word, &at, sizeof(at)) == sizeof(at) && read(word, &c, 1) == 1);
	for (int connected = 0; connected < CROWD;) {
		struct rdma_cm_event *event;

		NEED(!rdma_get_cm_event(channel, &event));
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type type = event->event;

		NEED(!rdma_ack_cm_event(event));
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
			NEED(!rdma_accept(id, new_queue()));
		connected += type == RDMA_CM_EVENT_ESTABLISHED;
	}
	NEED(write(word, ".", 1) == 1 && read(word, &c, 1) == 1 && listener);
}

static void full(void)
{
	struct rdma_cm_id *ids[CROWD];
	int word, status, connected = 0;
	char c;
	pid_t server = start(is_full, &word);

	NEED(read(word, &at, sizeof(at)) == sizeof(at));
	channel = rdma_create_event_channel();
	for (int n = 0; n < CROWD; n++)
		ids[n] = ask(&at);
	check(is_quiet(), "who finds a full backlog is not rejected");
	NEED(write(word, ".", 1) == 1);
	for (; connected < CROWD; connected++)
		NEED(!rdma_establish(next(RDMA_CM_EVENT_CONNECT_RESPONSE)));
	check(read(word, &c, 1) == 1, "all are served once there is room");
	for (int n = 0; n < CROWD; n++)
		NEED(!rdma_disconnect(ids[n]) && !rdma_destroy_id(ids[n]));
	NEED(write(word, ".", 1) == 1 && waitpid(server, &status, 0) == server);
	check(status == 0, "the server ends");
}

/* Between hosts: answers once the file exists. */
static int serves_late(const char *file)
{
	int tcp = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct rdma_cm_id *listener = listen_at(&at, 8), *id;

	NEED(!setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	NEED(!bind(tcp, (struct sockaddr *)&here, sizeof(here)) && !listen(tcp, 1));
	int word = accept(tcp, NULL, NULL);

	NEED(write(word, &at.sin_port, sizeof(at.sin_port)) == sizeof(at.sin_port));
	id = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	while (access(file, F_OK))
		usleep(10000);
	serve(id);
	NEED(!rdma_destroy_id(listener));
	check(is_quiet(), "its client asked once");
	return failures != 0;
}

static int waits(const char *address)
{
	int word = socket(AF_INET, SOCK_STREAM, 0);

	at.sin_port = htons(PORT);
	NEED(inet_pton(AF_INET, address, &at.sin_addr) == 1);
	/* It may be there first. */
	while (connect(word, (struct sockaddr *)&at, sizeof(at)))
		usleep(10000);
	NEED(read(word, &at.sin_port, sizeof(at.sin_port)) == sizeof(at.sin_port));
	channel = rdma_create_event_channel();
	is_served(ask(&at));
	check(1, "a server that is slow has served its client");
	return failures != 0;
}

int main(int argc, char **argv)
{
	/* Whatever hangs ends. */
	alarm(LIMIT);
	if (argc == 3)
		return strcmp(argv[1], "server") ? waits(argv[2]) : serves_late(argv[2]);
	at.sin_addr = here();
	stopped();
	left_port();
	at.sin_port = 0;
	full();
	return failures != 0;
}
