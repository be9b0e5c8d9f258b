/*
 * Datagram rsockets between two sockets of a process: addresses, lengths, waits; and packets from
 * foreign UDP sockets.
 */
#define _GNU_SOURCE
#include "checks.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

static const int WAIT = 20000;

static union address own(int s)
{
	union address it = { 0 };
	socklen_t len = sizeof(it);

	CHECK(rgetsockname(s, &it.any, &len) == 0 && len <= sizeof(it));
	return it;
}

static int same(const union address *a, const union address *b)
{
	if (a->any.sa_family != b->any.sa_family || a->v4.sin_port != b->v4.sin_port)
		return 0;
	if (a->any.sa_family == AF_INET)
		return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
	return memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, 16) == 0;
}

static int comes(int s, int timeout)
{
	struct pollfd fd = { .fd = s, .events = POLLIN };

	return rpoll(&fd, 1, timeout) == 1 && fd.revents == POLLIN;
}

/* The next datagram of `s` is `text`; from whom it is. */
static union address expect(int s, const char *text)
{
	union address from = { 0 };
	socklen_t len = sizeof(from);
	char got[64] = "";

	CHECK(comes(s, WAIT));
	CHECK(rrecvfrom(s, got, sizeof(got), 0, &from.any, &len) == (ssize_t) strlen(text));
	check(strcmp(got, text) == 0, text);
	return from;
}

static void talk(int family, const char *host)
{
	union address at = { .any.sa_family = family }, from, name, none = { .any.sa_family = AF_UNSPEC };
	socklen_t len = family == AF_INET ? sizeof(at.v4) : sizeof(at.v6);
	int server = rsocket(family, SOCK_DGRAM, 0), client = rsocket(family, SOCK_DGRAM, IPPROTO_UDP), other;
	char bytes[4096] = "";
	struct iovec piece = { .iov_base = bytes, .iov_len = 3 };
	struct msghdr message = { .msg_name = &name, .msg_namelen = sizeof(name), .msg_iov = &piece, .msg_iovlen = 1 };

	CHECK(server >= 0 && client >= 0);
	inet_pton(family, host, family == AF_INET ? (void *) &at.v4.sin_addr : (void *) &at.v6.sin6_addr);
	CHECK(rbind(server, &at.any, len) == 0);
	at = own(server);
	CHECK(at.v4.sin_port != 0);
	REFUSED(rlisten(server, 1), EOPNOTSUPP);
	REFUSED(raccept(server, NULL, NULL), EOPNOTSUPP);
	REFUSED(rsend(client, "x", 1, 0), EDESTADDRREQ);
	REFUSED(rrecv(server, bytes, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(!comes(server, 0));
	REFUSED(rsendto(client, bytes, 3000, 0, &at.any, len), EMSGSIZE);

	/* The first goes by UDP, and later ones by queue pairs. */
	CHECK(rsendto(client, "one", 3, 0, &at.any, len) == 3);
	from = expect(server, "one");
	name = own(client);
	CHECK(from.v4.sin_port == name.v4.sin_port);
	CHECK(!comes(client, 0));
	for (int i = 0; i < 3; i++) {
		CHECK(rsendto(client, "more", 4, 0, &at.any, len) == 4);
		name = expect(server, "more");
		CHECK(same(&name, &from));
		CHECK(rsendto(server, "answer", 6, 0, &from.any, len) == 6);
		name = expect(client, "answer");
		CHECK(same(&name, &at));
	}

	/* One call takes one datagram; bytes beyond the buffer are lost. */
	CHECK(rsendto(client, "longer", 6, 0, &at.any, len) == 6);
	CHECK(rsendto(client, "", 0, 0, &at.any, len) == 0);
	CHECK(comes(server, WAIT));
	CHECK(rrecv(server, bytes, 2, MSG_PEEK) == 2);
	CHECK(rrecv(server, bytes, 2, MSG_PEEK | MSG_TRUNC) == 6);
	CHECK(rrecvmsg(server, &message, 0) == 3 && memcmp(bytes, "lon", 3) == 0);
	CHECK(message.msg_flags == MSG_TRUNC && message.msg_namelen == len && same(&name, &from));
	CHECK(rrecv(server, bytes, 2, 0) == 0);

	/* A connected socket receives only from its peer, and sends without an address. */
	other = rsocket(family, SOCK_DGRAM, 0);
	CHECK(rconnect(client, &at.any, len) == 0);
	len = sizeof(name);
	CHECK(rgetpeername(client, &name.any, &len) == 0 && same(&name, &at));
	REFUSED(rgetpeername(other, &name.any, &len), ENOTCONN);
	CHECK(rsendto(other, "stranger", 8, 0, &from.any, len) == 8);
	CHECK(rsend(client, "mine", 4, 0) == 4);
	expect(server, "mine");
	CHECK(rsendto(server, "yours", 5, 0, &from.any, len) == 5);
	expect(client, "yours");
	CHECK(!comes(client, 50));
	CHECK(rconnect(client, &none.any, len) == 0);
	REFUSED(rsend(client, "x", 1, 0), EDESTADDRREQ);
	CHECK(rclose(other) == 0 && rclose(client) == 0 && rclose(server) == 0);
	REFUSED(rrecv(server, bytes, 1, 0), EBADF);
}

/* An ordinary UDP socket sends valid and invalid packets of the datagram rsocket protocol. */
static void foreign_datagrams(void)
{
	static const unsigned char notice[] = { 0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0xff, 0xff, 0xff, 127, 0, 0, 1, 'h', 'i' };
	union address at = { .v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) } }, from;
	int server = rsocket(AF_INET, SOCK_DGRAM, 0), forger = socket(AF_INET, SOCK_DGRAM, 0);
	unsigned char bytes[sizeof(notice)], answer[sizeof(notice)];
	int kind = 0;
	socklen_t len = sizeof(kind);

	CHECK(rbind(server, &at.any, sizeof(at.v4)) == 0);
	CHECK(rgetsockopt(server, SOL_SOCKET, SO_TYPE, &kind, &len) == 0 && kind == SOCK_DGRAM);
	at = own(server);
	CHECK(connect(forger, &at.any, sizeof(at.v4)) == 0);
	for (size_t n = 0; n < 16; n++)
		send(forger, notice, n, 0);
	for (size_t n = 0; n < 7; n++) {
		memcpy(bytes, notice, sizeof(bytes));
		bytes[n] ^= 0x20;
		send(forger, bytes, sizeof(bytes), 0);
	}
	CHECK(!comes(server, 50));
	/* A valid packet is received and answered. */
	CHECK(send(forger, notice, sizeof(notice), 0) == sizeof(notice));
	expect(server, "hi");
	CHECK(recv(forger, answer, sizeof(answer), 0) == 16 && answer[4] == 4 && answer[5] == 7 && answer[6] == 16);
	/* A packet that claims the server's own QP makes the server send to itself. */
	memcpy(bytes, notice, sizeof(bytes));
	memcpy(bytes + 8, answer + 8, 4);
	CHECK(send(forger, bytes, sizeof(bytes), 0) == sizeof(bytes));
	from = expect(server, "hi");
	for (int i = 0; i < 1000; i++)
		if (rsendto(server, "x", 1, 0, &from.any, sizeof(from.v4)) != 1)
			CHECK(!"all are sent");
	from = expect(server, "x");
	CHECK(same(&from, &at));
	CHECK(rclose(server) == 0);
	close(forger);
}

int main(void)
{
	talk(AF_INET, "127.0.0.1");
	talk(AF_INET6, "::1");
	foreign_datagrams();
	REFUSED(rsocket(AF_INET, SOCK_SEQPACKET, 0), EOPNOTSUPP);
	REFUSED(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), EOPNOTSUPP);
	return failures != 0;
}
