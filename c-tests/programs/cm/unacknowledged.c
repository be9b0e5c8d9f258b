/*
 * rdma_destroy_id and rdma_migrate_id wait for unacknowledged events of the id, and print the call,
 * the id and the events. The wait ends with the acknowledgement.
 */
#include "checks.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the library says. */
static int said;
/* What it said last. */
static char line[512];

static struct rdma_event_channel *channel;
static struct rdma_cm_event *event;

/* An id with an event that the program got. */
static struct rdma_cm_id *with_event(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000));
	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	return id;
}

/* Acknowledges once the line is printed. */
static void *after_the_line(void *unused)
{
	(void)unused;
	memset(line, 0, sizeof(line));
	struct pollfd there = { .fd = said, .events = POLLIN };

	CHECK(poll(&there, 1, 60000) == 1);
	CHECK(read(said, line, sizeof(line) - 1) > 0);
	CHECK(!rdma_ack_cm_event(event));
	return NULL;
}

/* Acknowledges after the time in which a line would be printed. The absence of a line shows only by
 * waiting. */
static void *after_a_while(void *unused)
{
	(void)unused;
	sleep(3);
	CHECK(!rdma_ack_cm_event(event));
	return NULL;
}

/* The output is one line with the call, the id and the events. */
static void says(const char *call, uintptr_t id)
{
	char of[64];

	snprintf(of, sizeof(of), "of id %#lx", (unsigned long)id);
	CHECK(strchr(line, '\n') == line + strlen(line) - 1);
	check(strstr(line, call) != NULL, call);
	CHECK(strstr(line, of) != NULL);
	CHECK(strstr(line, "1 event ") != NULL);
	CHECK(strstr(line, "RDMA_CM_EVENT_ADDR_RESOLVED") != NULL);
	CHECK(strstr(line, "rdma_ack_cm_event") != NULL);
}

/* Nothing more was said. */
static int is_silent(void)
{
	struct pollfd there = { .fd = said, .events = POLLIN };

	return poll(&there, 1, 0) == 0;
}

int main(void)
{
	int ends[2], status;
	pthread_t thread;

	if (pipe(ends) || dup2(ends[1], STDERR_FILENO) < 0)
		return 2;
	said = ends[0];
	channel = rdma_create_event_channel();
	struct rdma_event_channel *other = rdma_create_event_channel();

	struct rdma_cm_id *id = with_event();
	uintptr_t was = (uintptr_t)id;
	CHECK(!pthread_create(&thread, NULL, after_the_line, NULL));
	CHECK(!rdma_migrate_id(id, other));
	CHECK(!pthread_join(thread, NULL));
	says("rdma_migrate_id", was);
	CHECK(!rdma_destroy_id(id));
	CHECK(is_silent());

	id = with_event();
	was = (uintptr_t)id;
	CHECK(!pthread_create(&thread, NULL, after_the_line, NULL));
	CHECK(!rdma_destroy_id(id));
	CHECK(!pthread_join(thread, NULL));
	says("rdma_destroy_id", was);

	fflush(stdout);
	if (!fork()) {
		setenv("FERROVERBS_QUIET", "1", 1);
		channel = rdma_create_event_channel();
		id = with_event();
		CHECK(!pthread_create(&thread, NULL, after_a_while, NULL));
		CHECK(!rdma_destroy_id(id));
		CHECK(!pthread_join(thread, NULL));
		CHECK(is_silent());
		fflush(stdout);
		_exit(failures != 0);
	}
	wait(&status);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	return failures != 0;
}
