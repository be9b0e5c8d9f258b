/*
 * A TCP program for librspreload with RDMAV_FORK_SAFE, over rsockets: a server whose children serve
 * several clients at once. Each child has a third of the total time limit.
 *
 * Without arguments both sides run here. `server ADDRESS PORT` and `client ADDRESS PORT` run one
 * side. A further word says that librspreload may be upstream's, whose descriptors all look alike
 * and which supports neither dup nor epoll.
 */
#define _GNU_SOURCE
#include "checks.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT_ONCE 4
#define ROUNDS 3
#define CLIENTS (AT_ONCE * ROUNDS)
#define BYTES 100000

static struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = 0x0100007f };
static int is_upstreams;
static unsigned limit = 60;

static int is_tcp(int fd)
{
	struct stat what;

	return fstat(fd, &what) == 0 && S_ISSOCK(what.st_mode);
}

/* Whether the descriptor is still a TCP socket, as far as a program can see. */
static int is_still_tcp(int fd)
{
	return is_upstreams || is_tcp(fd);
}

static int is_rdma(int fd)
{
	return is_upstreams || !is_tcp(fd);
}

/* Each variant waits for data in another way: poll, epoll, two descriptors, or a plain read. */
static int serve(int fd, int how)
{
	static char bytes[BYTES];
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	struct epoll_event event = { .events = EPOLLIN };
	int set = epoll_create1(0), twin = fd;
	long sum = 0, got;

	if (!is_still_tcp(fd))
		return 1;
	if (is_upstreams)
		how = how % 2 ? AT_ONCE : 0;
	if (how == 0 && poll(&entry, 1, -1) != 1)
		return 2;
	if (how == 1 && (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) || epoll_wait(set, &event, 1, -1) != 1))
		return 3;
	if (how == 2)
		twin = dup(fd);
	while ((got = read(fd, bytes, sizeof(bytes))) > 0) {
		if (!is_rdma(fd) || !is_rdma(twin))
			return 4;
		for (long done = 0; done < got;) {
			long went = write(twin, bytes + done, got - done);

			if (went <= 0)
				return 5;
			done += went;
		}
		sum += got;
	}
	/* _exit(2) alone would be an end like a kill's, which comes before what was sent. */
	return got || sum != BYTES || close(fd) || (twin != fd && close(twin)) ? 6 : 0;
}

/* How many children did not serve. */
static int server(int listener)
{
	int bad = 0, status;

	for (int i = 0; i < CLIENTS; i++) {
		int fd = accept(listener, NULL, NULL);

		if (fork() == 0) {
			alarm(limit / 3);
			_exit(close(listener) ? 9 : serve(fd, i % AT_ONCE));
		}
		close(fd);
	}
	for (int i = 0; i < CLIENTS; i++) {
		if (wait(&status) < 0 || status) {
			fprintf(stderr, "child: status %#x\n", status);
			bad++;
		}
	}
	return bad;
}

static void *client(void *arg)
{
	static char bytes[BYTES];
	static __thread char echo[BYTES];
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	long got = 0, more;

	(void) arg;
	if (connect(fd, (struct sockaddr *) &at, sizeof(at)) || !is_still_tcp(fd))
		return "connect";
	if (send(fd, bytes, BYTES / 2, 0) != BYTES / 2 || !is_rdma(fd) || send(fd, bytes, BYTES / 2, 0) != BYTES / 2)
		return "send";
	if (shutdown(fd, SHUT_WR))
		return "shutdown";
	while ((more = recv(fd, echo + got, BYTES - got, 0)) > 0)
		got += more;
	return got == BYTES && !memcmp(bytes, echo, BYTES) && close(fd) == 0 ? NULL : "receive";
}

static void clients(void)
{
	pthread_t threads[AT_ONCE];

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < AT_ONCE; i++)
			pthread_create(&threads[i], NULL, client, NULL);
		for (int i = 0; i < AT_ONCE; i++) {
			void *bad;

			pthread_join(threads[i], &bad);
			CHECK(!bad);
			if (bad)
				printf("%s\n", (char *) bad);
		}
	}
}

/* One side of two, with a time limit for slow machines. */
static int side(int argc, char **argv)
{
	int listener, on = 1;

	limit = 90;
	alarm(limit);
	is_upstreams = argc > 4;
	NEED(inet_pton(AF_INET, argv[2], &at.sin_addr) == 1);
	at.sin_port = htons((uint16_t) atoi(argv[3]));
	if (!strcmp(argv[1], "client")) {
		clients();
		return failures != 0;
	}
	listener = socket(AF_INET, SOCK_STREAM, 0);
	NEED(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
	NEED(bind(listener, (struct sockaddr *) &at, sizeof(at)) == 0 && listen(listener, CLIENTS) == 0);
	return server(listener) != 0;
}

int main(int argc, char **argv)
{
	int listener, fd, status;
	socklen_t len = sizeof(at);

	if (argc > 3)
		return side(argc, argv);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	alarm(limit);
	CHECK(bind(listener, (struct sockaddr *) &at, len) == 0 && listen(listener, CLIENTS) == 0);
	CHECK(getsockname(listener, (struct sockaddr *) &at, &len) == 0);
	if (fork() == 0)
		_exit(server(listener));
	clients();
	CHECK(wait(&status) > 0 && status == 0);
	/* A client that leaves without a word, or speaks only TCP, leaves the acceptor an ordinary
	 * socket. */
	for (int speaks = 0; speaks < 2; speaks++) {
		char byte[5] = { 0 };

		fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK(connect(fd, (struct sockaddr *) &at, sizeof(at)) == 0 || errno == EINPROGRESS);
		int other = accept(listener, NULL, NULL);
		/* No call of a socket. */
		CHECK(!speaks || dprintf(fd, "x") == 1);
		CHECK(speaks || close(fd) == 0);
		CHECK(recv(other, byte, 5, 0) == speaks && is_tcp(other) && close(other) == 0);
		CHECK(!speaks || close(fd) == 0);
	}
	return failures != 0;
}
