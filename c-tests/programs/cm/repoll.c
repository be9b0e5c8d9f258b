/*
 * repoll_create, repoll_ctl and repoll_wait of rdma-core 65: rsockets, a pipe, and changes while a
 * thread waits.
 */
#define _GNU_SOURCE
#include "checks.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static int set;

/* Waits for whatever comes; which it was. */
static void *wait_for_one(void *arg)
{
	struct epoll_event event = { 0 };

	(void) arg;
	return (void *) (intptr_t) (repoll_wait(set, &event, 1, 60000) == 1 ? (int) event.data.u64 : -errno);
}

static int add(int fd, unsigned events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };

	return repoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

int main(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	struct epoll_event events[8], event = { .events = EPOLLIN, .data.u64 = 1 };
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), client = rsocket(AF_INET, SOCK_STREAM, 0), server, ends[2];
	pthread_t threads[3];
	void *result;
	char byte;

	CHECK(rbind(listener, (struct sockaddr *) &at, len) == 0 && rlisten(listener, 4) == 0);
	CHECK(rgetsockname(listener, (struct sockaddr *) &at, &len) == 0);
	set = repoll_create(O_CLOEXEC);
	CHECK(set >= 0 && pipe(ends) == 0);
	CHECK(repoll_wait(set, events, 8, 0) == 0 && repoll_wait(set, events, 8, 20) == 0);
	REFUSED(repoll_wait(set, events, 0, 0), EINVAL);
	REFUSED(repoll_wait(listener, events, 8, 0), EBADF);
	REFUSED(repoll_ctl(set, EPOLL_CTL_ADD, set, &event), EINVAL);
	REFUSED(repoll_ctl(set, EPOLL_CTL_MOD, listener, &event), ENOENT);
	REFUSED(repoll_ctl(set, EPOLL_CTL_DEL, listener, NULL), ENOENT);
	REFUSED(repoll_ctl(set, 77, listener, &event), EINVAL);
	CHECK(add(listener, EPOLLIN, 1) == 0);
	REFUSED(add(listener, EPOLLIN, 1), EEXIST);
	CHECK(repoll_wait(set, events, 8, 0) == 0);

	/* A request of a client wakes a thread that waits. */
	CHECK(rfcntl(client, F_SETFL, O_NONBLOCK) == 0);
	pthread_create(&threads[0], NULL, wait_for_one, NULL);
	CHECK(rconnect(client, (struct sockaddr *) &at, sizeof(at)) == 0 || errno == EINPROGRESS);
	pthread_join(threads[0], &result);
	CHECK((intptr_t) result == 1);
	server = raccept(listener, NULL, NULL);
	CHECK(server >= 0 && repoll_ctl(set, EPOLL_CTL_DEL, listener, NULL) == 0);

	/* Members are added while threads wait; each thread gets an event. */
	for (int i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, wait_for_one, NULL);
	CHECK(add(ends[0], EPOLLIN, 3) == 0 && add(server, EPOLLIN, 4) == 0);
	CHECK(add(client, EPOLLOUT, 5) == 0);
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], &result);
		CHECK((intptr_t) result == 5);
	}
	CHECK(repoll_wait(set, events, 8, 0) == 1 && events[0].events == EPOLLOUT);
	event.data.u64 = 6;
	CHECK(repoll_ctl(set, EPOLL_CTL_MOD, client, &event) == 0);
	CHECK(repoll_wait(set, events, 8, 0) == 0);
	CHECK(rsend(client, "x", 1, 0) == 1 && write(ends[1], "y", 1) == 1);
	CHECK(repoll_wait(set, events, 8, 60000) >= 1);
	while (repoll_wait(set, events, 8, 60000) == 1)
		;
	CHECK(events[0].data.u64 + events[1].data.u64 == 7);
	CHECK(repoll_wait(set, events, 1, 0) == 1);
	CHECK(rrecv(server, &byte, 1, 0) == 1 && byte == 'x');
	CHECK(repoll_wait(set, events, 8, 0) == 1 && events[0].data.u64 == 3);
	/* Who is closed is a member no more. */
	close(ends[0]);
	CHECK(repoll_wait(set, events, 8, 0) == 0);
	CHECK(rclose(client) == 0);
	CHECK(repoll_wait(set, events, 8, 60000) == 1 && events[0].data.u64 == 4 && events[0].events & EPOLLHUP);
	CHECK(rclose(server) == 0 && rclose(listener) == 0 && rclose(set) == 0);
	REFUSED(repoll_wait(set, events, 8, 0), EBADF);
	return failures != 0;
}
