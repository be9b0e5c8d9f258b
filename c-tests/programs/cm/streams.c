/*
 * Calls of rsockets for streams: options, scattered memory and messages, half-closed connections,
 * select, and memory that the peer writes.
 */
#define _GNU_SOURCE
#include "checks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LIMIT = 60, MAPPED = 4096 };

static struct sockaddr_in at = { .sin_family = AF_INET };
static int listener, client, server;

static int option(int socket, int level, int name)
{
	int value = -1;
	socklen_t length = sizeof(value);

	return rgetsockopt(socket, level, name, &value, &length) || length != sizeof(value) ? -1 : value;
}

static int set(int socket, int level, int name, int value)
{
	return rsetsockopt(socket, level, name, &value, sizeof(value));
}

/* Options of a socket that is not connected: values set and values read. */
static void options(void)
{
	static const struct {
		int level, name, value, shown;
	} all[] = {
		{ SOL_SOCKET, SO_REUSEADDR, 1, 1 },   { SOL_SOCKET, SO_KEEPALIVE, 1, 1 },     { SOL_SOCKET, SO_OOBINLINE, 1, 1 },
		/* Twice, as with sockets (socket(7)). */
		{ SOL_SOCKET, SO_RCVBUF, 65536, 131072 }, { SOL_SOCKET, SO_SNDBUF, 32768, 65536 }, { IPPROTO_TCP, TCP_NODELAY, 1, 1 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, 77, 77 }, { SOL_RDMA, RDMA_SQSIZE, 100, 100 },     { SOL_RDMA, RDMA_RQSIZE, 200, 200 },
		{ SOL_RDMA, RDMA_INLINE, 32, 32 },     { SOL_RDMA, RDMA_IOMAPSIZE, 8, 8 },
	};
	struct linger linger = { .l_onoff = 1, .l_linger = 3 };
	socklen_t length = sizeof(linger);
	int socket = rsocket(AF_INET, SOCK_STREAM, 0), other = rsocket(AF_INET, SOCK_STREAM, 0), value = 1;

	for (unsigned n = 0; n < sizeof(all) / sizeof(all[0]); n++)
		check(!set(socket, all[n].level, all[n].name, all[n].value) && option(socket, all[n].level, all[n].name) == all[n].shown,
		      "an option is what it was set to");
	CHECK(option(socket, SOL_SOCKET, SO_TYPE) == SOCK_STREAM && option(socket, SOL_SOCKET, SO_ACCEPTCONN) == 0);
	CHECK(option(socket, SOL_SOCKET, SO_ERROR) == 0);
	/* The system's, unless another was asked for; the end of a direction is the end of it. */
	CHECK(option(other, IPPROTO_TCP, TCP_KEEPIDLE) == 0 && !set(other, SOL_SOCKET, SO_KEEPALIVE, 1));
	CHECK(option(other, IPPROTO_TCP, TCP_KEEPIDLE) > 0 && !set(other, SOL_SOCKET, SO_KEEPALIVE, 0));
	CHECK(option(other, SOL_SOCKET, SO_KEEPALIVE) == 0 && !set(socket, SOL_SOCKET, SO_KEEPALIVE, 1));
	CHECK(!rshutdown(socket, SHUT_RDWR) && option(socket, SOL_SOCKET, SO_KEEPALIVE) == 0 && !rclose(other));
	CHECK(!rsetsockopt(socket, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	CHECK(!rgetsockopt(socket, SOL_SOCKET, SO_LINGER, &linger, &length) && length == sizeof(linger) && linger.l_onoff == 1);
	REFUSED(set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 0), EINVAL);
	REFUSED(set(socket, SOL_SOCKET, SO_TYPE, 1), EOPNOTSUPP);
	REFUSED(rsetsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &value, 1), EINVAL);
	REFUSED(rsetsockopt(-1, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof(value)), EBADF);
	CHECK(!rclose(socket));
}

static void connect_both(void)
{
	socklen_t length = sizeof(at);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	listener = rsocket(AF_INET, SOCK_STREAM, 0);
	client = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rbind(listener, (struct sockaddr *)&at, length) && !rlisten(listener, 4));
	CHECK(option(listener, SOL_SOCKET, SO_ACCEPTCONN) == 1);
	CHECK(!rgetsockname(listener, (struct sockaddr *)&at, &length));
	/* This thread has both ends, so one end must not block. */
	CHECK(!set(client, SOL_RDMA, RDMA_IOMAPSIZE, 8) && !set(listener, SOL_RDMA, RDMA_IOMAPSIZE, 8));
	CHECK(!rfcntl(client, F_SETFL, O_NONBLOCK));
	REFUSED(rconnect(client, (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	server = raccept(listener, NULL, NULL);
	CHECK(server >= 0);
	struct pollfd fd = { .fd = client, .events = POLLOUT };

	CHECK(rpoll(&fd, 1, -1) == 1 && fd.revents == POLLOUT);
	CHECK(!rfcntl(client, F_SETFL, 0));
	REFUSED(set(client, SOL_RDMA, RDMA_SQSIZE, 10), EINVAL);
}

static void pieces(void)
{
	char one[] = "one", two[] = "second", got[2][16] = { "", "" };
	struct iovec out[] = { { one, 3 }, { two, 6 } }, in[] = { { got[0], 5 }, { got[1], 16 } };
	struct msghdr message = { .msg_iov = out, .msg_iovlen = 2 };

	CHECK(rwrite(client, one, 3) == 3 && rread(server, got[0], 16) == 3 && !memcmp(got[0], one, 3));
	CHECK(rwritev(client, out, 2) == 9 && rreadv(server, in, 2) == 9);
	CHECK(!memcmp(got[0], "onese", 5) && !memcmp(got[1], "cond", 4));
	CHECK(rsendmsg(server, &message, 0) == 9);
	message.msg_iov = in;
	CHECK(rrecvmsg(client, &message, 0) == 9 && !memcmp(got[1], "cond", 4));
	message.msg_iov = out;
	message.msg_control = one;
	message.msg_controllen = 3;
	REFUSED(rsendmsg(server, &message, 0), EOPNOTSUPP);
	REFUSED(rread(-1, got[0], 1), EBADF);
	REFUSED(rwrite(-1, got[0], 1), EBADF);
}

/* Rsockets and ordinary descriptors in one fd_set. */
static void select_both(void)
{
	struct timeval now = { 0, 0 }, *ever = NULL;
	int ends[2], most;
	fd_set in, out;
	char c;

	CHECK(pipe(ends) == 0);
	most = (server > ends[0] ? server : ends[0]) + 1;
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(server, &in);
	FD_SET(ends[0], &in);
	CHECK(rselect(most, &in, NULL, NULL, &now) == 0 && !FD_ISSET(server, &in));
	CHECK(rwrite(client, "x", 1) == 1);
	FD_SET(server, &in);
	FD_SET(ends[0], &in);
	CHECK(rselect(most, &in, NULL, NULL, ever) == 1 && FD_ISSET(server, &in) && !FD_ISSET(ends[0], &in));
	CHECK(rread(server, &c, 1) == 1 && c == 'x' && write(ends[1], "y", 1) == 1);
	FD_SET(server, &in);
	FD_SET(ends[0], &in);
	FD_SET(server, &out);
	CHECK(rselect(most, &in, &out, NULL, ever) == 2 && FD_ISSET(ends[0], &in) && !FD_ISSET(server, &in) && FD_ISSET(server, &out));
	close(ends[0]);
	close(ends[1]);
}

/* The client writes into memory of the server, which sees it before the byte that follows. */
static void mapped_memory(void)
{
	static char memory[MAPPED];
	char c;
	off_t place = riomap(server, memory, sizeof(memory), PROT_WRITE, 0, 0x1000);

	CHECK(place == 0x1000);
	/* The peer learns of it before the next byte. */
	CHECK(rwrite(server, "m", 1) == 1 && rread(client, &c, 1) == 1 && c == 'm');
	CHECK(riowrite(client, "there", 5, place + 100, 0) == 5);
	CHECK(riowrite(client, "end", 3, place + MAPPED - 3, 0) == 3);
	/* Writes end at the end of the mapping. */
	CHECK(riowrite(client, "beyond", 6, place + MAPPED, 0) == 0);
	CHECK(rwrite(client, "n", 1) == 1 && rread(server, &c, 1) == 1 && c == 'n');
	CHECK(!memcmp(memory + 100, "there", 5) && !memcmp(memory + MAPPED - 3, "end", 3) && !memory[0]);
	REFUSED(riounmap(server, memory + 1, sizeof(memory)), EINVAL);
	CHECK(!riounmap(server, memory, sizeof(memory)));
	REFUSED(riounmap(server, memory, sizeof(memory)), EINVAL);
	REFUSED(riomap(server, memory, sizeof(memory), PROT_EXEC, 0, -1), EINVAL);
}

/* One side has said all, and hears on. */
static void half_an_end(void)
{
	char c;

	CHECK(rwrite(client, "z", 1) == 1 && !rshutdown(client, SHUT_WR));
	CHECK(rread(server, &c, 1) == 1 && c == 'z' && rread(server, &c, 1) == 0);
	CHECK(rwrite(server, "a", 1) == 1 && rread(client, &c, 1) == 1 && c == 'a');
	CHECK(rsend(client, "b", 1, MSG_NOSIGNAL) == -1);
	CHECK(!rshutdown(server, SHUT_RDWR) && rread(client, &c, 1) == 0);
	REFUSED(rshutdown(-1, SHUT_RDWR), EBADF);
	CHECK(!rclose(client) && !rclose(server) && !rclose(listener));
}

int main(void)
{
	/* Whatever hangs ends. */
	alarm(LIMIT);
	options();
	connect_both();
	pieces();
	select_both();
	mapped_memory();
	half_an_end();
	return failures != 0;
}
