/*
 * Calls that fail for lack of descriptors can be repeated. An id whose listen, connect or reject
 * failed is in its previous state, as with the kernel's manager. Only a request that could not be
 * accepted is over: the kernel rejects it.
 *
 * Each attempt has one descriptor more. So each descriptor that the connection manager and soft's
 * wire need is refused once.
 */
#include "events.h"
#include "place.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Private data that no answer has room for, nor a request. */
static const char much[255];

/* Sets the number of free descriptors of the process; ALL removes the limit. */
enum { ALL = -1 };

static void leave(int free)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	if (free != ALL) {
		int next = fcntl(0, F_DUPFD, 0);

		close(next);
		limit.rlim_cur = (rlim_t)(next + free);
	}
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* Repeats a call with one more free descriptor each time until it succeeds. The call needs `least`
 * descriptors, or more, because some are needed temporarily. The kernel's manager needs none. */
#define AGAIN(call, least)                                                             \
	do {                                                                           \
		int done = -1, left = 0, alike = 1;                                    \
		for (; done && left < (least) + 12; left++) {                           \
			int why;                                                       \
			leave(left);                                                   \
			done = call;                                                   \
			why = errno;                                                   \
			leave(ALL);                                                    \
			alike = alike && (!done || (done == -1 && why == EMFILE));      \
		}                                                                      \
		check(alike, #call " with few descriptors");                           \
		check(!done && (is_kernels() ? left == 1 : left > (least)), #call " with descriptors enough"); \
	} while (0)

/* Descriptors that the port of a later listener needs. */
enum { LATER = 1 };
/* A descriptor that soft can do without: the completion channel then has no own description. */
enum { SPARED = 1 };

static int descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	int there = 0;

	while (readdir(all))
		there++;
	closedir(all);
	return there;
}

/* The number of descriptors that the first listener of a process needs: those of the connection
 * manager and, if available, of soft's wire. */
static int first_needs(void)
{
	int needs[2], said = -1;

	if (pipe(needs) || fflush(stdout))
		abort();
	if (!fork()) {
		struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = here() };
		struct rdma_event_channel *channel = rdma_create_event_channel();
		struct rdma_cm_id *id;

		if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) || rdma_bind_addr(id, (struct sockaddr *)&at))
			abort();
		int before = descriptors();

		if (rdma_listen(id, 1))
			abort();
		said = descriptors() - before;
		_exit(write(needs[1], &said, sizeof(said)) != sizeof(said));
	}
	NEED(read(needs[0], &said, sizeof(said)) == sizeof(said));
	check(is_kernels() ? !said : said > LATER, "what a first listener needs");
	close(needs[0]);
	close(needs[1]);
	wait(NULL);
	return said;
}

static struct rdma_cm_id *routed(struct rdma_event_channel *channel, enum rdma_port_space ps, struct sockaddr_in *to)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, ps));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 2000));
	next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 2000));
	next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

/* The event that a refused requester gets. */
static enum rdma_cm_event_type no(enum rdma_port_space ps)
{
	return ps == RDMA_PS_UDP ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED;
}

/* The requesting process, which has no connection manager before its first connect. */
static int ask(enum rdma_port_space ps, struct sockaddr_in *to, int first)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = { .qp_num = 0x800001, .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_conn_param long_param = { .private_data = much, .private_data_len = sizeof(much) };
	struct rdma_cm_id *id = routed(channel, ps, to);

	REFUSED(rdma_connect(id, &long_param), EINVAL);
	AGAIN(rdma_connect(id, &param), first - LATER - SPARED);
	REFUSED(rdma_connect(id, &param), EINVAL);
	next(channel, ps == RDMA_PS_UDP ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_CONNECT_RESPONSE);
	id = routed(channel, ps, to);
	param.qp_num++;
	CHECK(!rdma_connect(id, &param));
	next(channel, no(ps));
	return failures != 0;
}

static void serve(enum rdma_port_space ps, int least, int first, const char *self)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in at = { .sin_family = AF_INET };
	struct rdma_conn_param param = { .qp_num = 0x800102 };
	struct rdma_conn_param long_param = { .private_data = much, .private_data_len = sizeof(much) };
	struct rdma_cm_id *listener, *other, *server;
	char port[8], space[8], needs[16];
	int one = 1, status;

	CHECK(!rdma_create_id(channel, &listener, NULL, ps));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&at));
	at.sin_port = rdma_get_src_port(listener);
	CHECK(!rdma_create_id(channel, &other, NULL, ps));
	CHECK(!rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)));

	AGAIN(rdma_listen(listener, 1), least);
	REFUSED(rdma_listen(listener, 1), EINVAL);
	REFUSED(rdma_bind_addr(other, (struct sockaddr *)&at), EADDRNOTAVAIL);
	CHECK(!rdma_destroy_id(listener));
	CHECK(!rdma_bind_addr(other, (struct sockaddr *)&at));
	CHECK(!rdma_listen(other, 8));

	snprintf(port, sizeof(port), "%d", ntohs(at.sin_port));
	snprintf(space, sizeof(space), "%d", ps);
	snprintf(needs, sizeof(needs), "%d", first);
	fflush(stdout);
	if (!fork()) {
		execl(self, self, space, port, needs, NULL);
		_exit(127);
	}
	server = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	REFUSED(rdma_reject(server, much, sizeof(much)), EINVAL);
	CHECK(!rdma_accept(server, &param));
	server = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	REFUSED(rdma_accept(server, &long_param), EINVAL);
	REFUSED(rdma_accept(server, &param), EINVAL);
	wait(&status);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	if (argc == 4) {
		struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr = here() };

		to.sin_port = htons((unsigned short)atoi(argv[2]));
		return ask((enum rdma_port_space)atoi(argv[1]), &to, atoi(argv[3]));
	}
	int first = first_needs();

	serve(RDMA_PS_TCP, first - SPARED, first, argv[0]);
	serve(RDMA_PS_UDP, LATER, first, argv[0]);
	return failures != 0;
}
