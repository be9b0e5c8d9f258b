/*
 * A process forks while its threads use rsockets and epoll sets. Its children make their own
 * sockets, and calls on sockets of the parent are refused. Each child has 20 s, because a child
 * that waits for a lock of a missing thread waits for ever.
 */
#define _GNU_SOURCE
#include "checks.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 300

static atomic_int ended;
static int listener, set, pair[2];

/* Looks for sockets. */
static void *look(void *arg)
{
	while (!ended)
		rfcntl(listener, F_GETFL);
	return arg;
}

/* Makes sets, and ends them. */
static void *make(void *arg)
{
	while (!ended)
		rclose(repoll_create(0));
	return arg;
}

static int at_loopback(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	return fd < 0 || rbind(fd, (struct sockaddr *) &at, sizeof(at)) || rlisten(fd, 4) ? -1 : fd;
}

/* Connected sockets, one of which does not wait. */
static int connect_to(int from, int ends[2])
{
	struct sockaddr_in at;
	socklen_t len = sizeof(at);
	char byte = 0;

	if (rgetsockname(from, (struct sockaddr *) &at, &len))
		return -1;
	ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	if (rfcntl(ends[0], F_SETFL, O_NONBLOCK) || (rconnect(ends[0], (struct sockaddr *) &at, len) && errno != EINPROGRESS))
		return -1;
	ends[1] = raccept(from, NULL, NULL);
	/* The connecting side speaks first: a child has no thread that would work for a side that
	 * waits. */
	return ends[1] >= 0 && rfcntl(ends[0], F_SETFL, 0) == 0 && rsend(ends[0], "x", 1, 0) == 1 &&
	       rrecv(ends[1], &byte, 1, 0) == 1 && byte == 'x' ? 0 : -1;
}

static int refused(int result)
{
	return result == -1 && errno == ENODEV;
}

/* Returns the number of the first failed step. `talks`: also opens its own device and exchanges
 * data. */
static int child(int talks)
{
	struct pollfd parents = { .fd = listener, .events = POLLIN };
	struct epoll_event event = { .events = EPOLLIN };
	int own, ends[2], pipes[2];
	char byte;

	if (!refused(rsend(pair[0], "y", 1, 0)) || !refused(rrecv(pair[1], &byte, 1, MSG_DONTWAIT)) || !refused(rpoll(&parents, 1, 0)))
		return 1;
	if (!refused(repoll_ctl(set, EPOLL_CTL_DEL, listener, NULL)) || !refused(repoll_wait(set, &event, 1, 0)))
		return 2;
	/* The child closes its own copies of the descriptors; the parent's stay open. */
	if (rclose(listener) || fcntl(listener, F_GETFD) != -1 || rclose(pair[1]) || rclose(set) || fcntl(set, F_GETFD) != -1)
		return 3;
	if (!(rclose(listener) == -1 && errno == EBADF))
		return 4;
	own = repoll_create(0);
	if (own < 0 || pipe(pipes) || repoll_ctl(own, EPOLL_CTL_ADD, pipes[0], &event) || repoll_wait(own, &event, 1, 0) != 0)
		return 5;
	if (write(pipes[1], "z", 1) != 1 || repoll_wait(own, &event, 1, -1) != 1 || rclose(own))
		return 6;
	if (!talks)
		return 0;
	own = at_loopback();
	if (own < 0 || connect_to(own, ends))
		return 7;
	return rclose(ends[1]) || rclose(ends[0]) || rclose(own) ? 8 : 0;
}

/* The number of children that failed; prints the first failure. */
static int children(int count, int talks)
{
	int bad = 0;

	for (int i = 0; i < count; i++) {
		int status;
		pid_t pid = fork();

		if (pid == 0) {
			int null = open("/dev/null", O_WRONLY);

			alarm(20);
			_exit(dup2(null, 2) != 2 ? 9 : child(talks));
		}
		if (waitpid(pid, &status, 0) != pid || status) {
			if (!bad++)
				printf("child %d: status %#x\n", i, status);
			/* Each takes its twenty seconds. */
			if (WIFSIGNALED(status))
				break;
		}
	}
	return bad;
}

int main(void)
{
	pthread_t threads[2];
	char byte = 0;

	listener = at_loopback();
	set = repoll_create(0);
	CHECK(listener >= 0 && set >= 0 && connect_to(listener, pair) == 0);
	CHECK(children(3, 1) == 0);
	pthread_create(&threads[0], NULL, look, NULL);
	pthread_create(&threads[1], NULL, make, NULL);
	CHECK(children(CHILDREN, 0) == 0);
	ended = 1;
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	/* The children closed only their own copies. */
	CHECK(rsend(pair[1], "w", 1, 0) == 1 && rrecv(pair[0], &byte, 1, 0) == 1 && byte == 'w');
	CHECK(rclose(pair[0]) == 0 && rclose(pair[1]) == 0 && rclose(set) == 0 && rclose(listener) == 0);
	return failures != 0;
}
