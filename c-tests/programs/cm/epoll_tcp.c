/*
 * A TCP program for librspreload: epoll sets with rsockets, level-triggered, edge-triggered and
 * one-shot, with duplicated and closed descriptors and threads that wait meanwhile. A wait for an
 * event has 20 s; a wait that must find none has 0 s.
 */
#define _GNU_SOURCE
#include "checks.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOON 20000

static int set;

/* The data of the only event; 0 without event, negative for several events or an error. */
static int one(int of, int timeout, uint32_t *events)
{
	struct epoll_event found[8];
	int count = epoll_wait(of, found, 8, timeout);

	if (events)
		*events = count == 1 ? found[0].events : 0;
	return count == 1 ? (int) found[0].data.u64 : -count;
}

static int ctl(int op, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };

	return epoll_ctl(set, op, fd, &event);
}

static void *wait_for_one(void *arg)
{
	(void) arg;
	return (void *) (intptr_t) one(set, SOON, NULL);
}

static int told(pthread_t thread)
{
	void *result;

	pthread_join(thread, &result);
	return (int) (intptr_t) result;
}

/* Writes until no more goes; how many bytes went. */
static long fill(int fd)
{
	static char bytes[65536];
	long sum = 0, went;

	while ((went = write(fd, bytes, sizeof(bytes))) > 0)
		sum += went;
	return errno == EAGAIN ? sum : -1;
}

/* Reads so many bytes. */
static int drain(int fd, long count)
{
	static char bytes[65536];

	while (count > 0) {
		long got = read(fd, bytes, sizeof(bytes));

		if (got <= 0)
			return -1;
		count -= got;
	}
	return 0;
}

int main(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), server, twin, ends[2], same;
	struct epoll_event found[8];
	socklen_t len = sizeof(at);
	struct stat what;
	uint32_t events;
	pthread_t thread;
	sigset_t none;
	char byte;
	long sum;

	sigemptyset(&none);
	CHECK(bind(listener, (struct sockaddr *) &at, len) == 0 && listen(listener, 4) == 0);
	CHECK(getsockname(listener, (struct sockaddr *) &at, &len) == 0);
	/* Otherwise nothing here is of RDMA. */
	CHECK(fstat(listener, &what) == 0 && !S_ISSOCK(what.st_mode));
	set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(set >= 0 && pipe(ends) == 0);
	REFUSED(ctl(EPOLL_CTL_MOD, listener, EPOLLIN, 1), ENOENT);
	REFUSED(epoll_ctl(set, EPOLL_CTL_ADD, listener, NULL), EFAULT);
	REFUSED(epoll_ctl(listener, EPOLL_CTL_ADD, client, found), EINVAL);
	REFUSED(epoll_ctl(1000, EPOLL_CTL_ADD, client, found), EBADF);
	REFUSED(ctl(77, listener, EPOLLIN, 1), EINVAL);

	/* A thread waits already when the set gets its first socket, and then for a client. */
	pthread_create(&thread, NULL, wait_for_one, NULL);
	usleep(20000);
	CHECK(ctl(EPOLL_CTL_ADD, listener, EPOLLIN, 1) == 0);
	REFUSED(ctl(EPOLL_CTL_ADD, listener, EPOLLIN, 1), EEXIST);
	REFUSED(epoll_wait(set, found, 0, 0), EINVAL);
	CHECK(fcntl(client, F_SETFL, O_NONBLOCK) == 0);
	CHECK(connect(client, (struct sockaddr *) &at, sizeof(at)) == 0 || errno == EINPROGRESS);
	CHECK(told(thread) == 1);
	server = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	CHECK(server >= 0 && one(set, 0, NULL) == 0);

	/* Sockets and a pipe, as long as something is there; one event at a time. */
	CHECK(ctl(EPOLL_CTL_ADD, ends[0], EPOLLIN, 2) == 0 && ctl(EPOLL_CTL_ADD, server, EPOLLIN, 3) == 0);
	CHECK(ctl(EPOLL_CTL_ADD, client, EPOLLOUT, 4) == 0 && one(set, SOON, &events) == 4 && events == EPOLLOUT);
	CHECK(ctl(EPOLL_CTL_MOD, client, 0, 4) == 0 && one(set, 0, NULL) == 0);
	CHECK(write(client, "x", 1) == 1 && one(set, SOON, &events) == 3 && events == EPOLLIN);
	CHECK(write(ends[1], "y", 1) == 1 && epoll_pwait(set, found, 8, SOON, &none) == 2);
	for (int i = 0, seen = 0; i < 4; i++) {
		CHECK(epoll_wait(set, found, 1, SOON) == 1);
		seen |= 1 << found[0].data.u64;
		CHECK(i == 0 || seen == (1 << 2 | 1 << 3));
	}
	CHECK(read(server, &byte, 1) == 1 && byte == 'x' && one(set, 0, NULL) == 2);
	CHECK(read(ends[0], &byte, 1) == 1 && byte == 'y' && one(set, 0, NULL) == 0);

	/* By edges: once, until the program has read. */
	CHECK(ctl(EPOLL_CTL_MOD, server, EPOLLIN | EPOLLET, 5) == 0 && write(client, "ab", 2) == 2);
	CHECK(one(set, SOON, NULL) == 5 && one(set, 0, NULL) == 0);
	CHECK(read(server, &byte, 1) == 1 && read(server, &byte, 1) == 1 && byte == 'b');
	REFUSED(read(server, &byte, 1), EAGAIN);
	CHECK(one(set, 0, NULL) == 0);
	pthread_create(&thread, NULL, wait_for_one, NULL);
	CHECK(write(client, "c", 1) == 1 && told(thread) == 5 && read(server, &byte, 1) == 1);

	/* Room by edges: once, and once more after there was none. */
	CHECK(ctl(EPOLL_CTL_MOD, client, EPOLLOUT | EPOLLET, 6) == 0 && one(set, SOON, NULL) == 6 && one(set, 0, NULL) == 0);
	sum = fill(client);
	CHECK(sum > 0 && one(set, SOON, NULL) == 5 && one(set, 0, NULL) == 0);
	pthread_create(&thread, NULL, wait_for_one, NULL);
	usleep(20000);
	CHECK(ctl(EPOLL_CTL_DEL, server, 0, 0) == 0 && drain(server, sum) == 0 && told(thread) == 6);

	/* One-shot: no second event before EPOLL_CTL_MOD. */
	CHECK(write(client, "d", 1) == 1 && ctl(EPOLL_CTL_ADD, server, EPOLLIN | EPOLLONESHOT, 7) == 0);
	CHECK(one(set, SOON, NULL) == 7 && one(set, 0, NULL) == 0);
	CHECK(ctl(EPOLL_CTL_MOD, server, EPOLLIN | EPOLLONESHOT, 8) == 0 && one(set, SOON, NULL) == 8 && read(server, &byte, 1) == 1);
	CHECK(ctl(EPOLL_CTL_MOD, server, EPOLLIN, 9) == 0);

	/* Doubled: the set, and a socket, of which a set tells until both descriptors of it are closed. */
	same = dup(set);
	twin = dup(server);
	CHECK(twin >= 0 && write(client, "e", 1) == 1 && one(same, SOON, NULL) == 9);
	CHECK(close(server) == 0 && one(set, SOON, NULL) == 9);
	CHECK(read(twin, &byte, 1) == 1 && byte == 'e');
	CHECK(dup2(twin, ends[1]) == ends[1] && dup3(twin, 200, O_CLOEXEC) == 200 && fcntl(200, F_GETFD) == FD_CLOEXEC);
	CHECK(write(ends[1], "f", 1) == 1 && close(ends[1]) == 0 && write(200, "g", 1) == 1 && close(200) == 0);
	CHECK(ctl(EPOLL_CTL_DEL, ends[0], 0, 0) == 0 && ctl(EPOLL_CTL_MOD, client, EPOLLIN | EPOLLRDHUP, 10) == 0);
	CHECK(one(set, SOON, &events) == 10 && events == EPOLLIN && read(client, &byte, 1) == 1 && byte == 'f');
	CHECK(read(client, &byte, 1) == 1 && byte == 'g' && one(set, 0, NULL) == 0);
	CHECK(close(set) == 0 && one(same, 0, NULL) == 0);
	set = same;

	/* Closing a socket while a thread waits for it ends the connection for the peer. */
	pthread_create(&thread, NULL, wait_for_one, NULL);
	usleep(20000);
	CHECK(close(twin) == 0 && told(thread) == 10 && one(set, SOON, &events) == 10);
	CHECK(events & EPOLLHUP && events & EPOLLRDHUP && read(client, &byte, 1) == 0);
	CHECK(close(client) == 0 && one(set, 0, NULL) == 0);

	/* Where nobody answers, an ordinary socket takes over, in the set, too. */
	client = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(ctl(EPOLL_CTL_ADD, client, EPOLLIN, 11) == 0 && close(listener) == 0);
	REFUSED(connect(client, (struct sockaddr *) &at, sizeof(at)), ECONNREFUSED);
	CHECK(fstat(client, &what) == 0 && S_ISSOCK(what.st_mode) && one(set, SOON, &events) == 11 && events & EPOLLHUP);
	CHECK(close(client) == 0 && close(set) == 0 && epoll_wait(set, found, 8, 0) == -1 && errno == EBADF);
	return failures != 0;
}
