/*
 * Limits of plain sockets between two hosts, for `cargo xtask bench wire`; the client prints one
 * number.
 *
 * usage: wire MODE SIZE -p PORT [SERVER]
 *
 * The two ends meet by TCP at PORT; datagrams use the same port.
 *
 *   latency    half a round trip of datagrams of SIZE bytes, both ends spinning: median, us
 *   connected  the same with connected sockets, which skip the route lookup
 *   datagrams  datagrams of SIZE bytes, one in each call: GB/s received
 *   offloads   the same with UDP_SEGMENT and UDP_GRO, many datagrams in each call: GB/s received
 *   tcp        one stream, SIZE bytes a call: GB/s
 */
#define _GNU_SOURCE
#include "meet.h"
#include "timing.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#define UDP_GRO 104
#endif

#define SECONDS 0.5
#define ROUNDS 1000000
/* Of a datagram, or a send that is cut into some. */
#define MOST 65000
#define SEGMENTS 64
#define BUFFER (8 << 20)

/* A socket for datagrams at the address of the connection's end; `peer` is the other one. */
static int datagrams(int connection, int port, int is_server, struct sockaddr_in *peer)
{
	struct sockaddr_in own;
	socklen_t len = sizeof(own);
	int s = socket(AF_INET, SOCK_DGRAM, 0), size = BUFFER;
	char ready = 0;

	if (s < 0 || getsockname(connection, (struct sockaddr *)&own, &len))
		die("wire: socket");
	len = sizeof(*peer);
	if (getpeername(connection, (struct sockaddr *)peer, &len))
		die("wire: getpeername");
	own.sin_port = htons((uint16_t)(port + !is_server));
	peer->sin_port = htons((uint16_t)(port + is_server));
	setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	setsockopt(s, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
	if (bind(s, (struct sockaddr *)&own, sizeof(own)))
		die("wire: bind");
	/* Both have their socket. */
	if (write(connection, &ready, 1) != 1 || read(connection, &ready, 1) != 1)
		die("wire: the other end");
	return s;
}

/* Returns 1 with a datagram, 0 if the peer end has sent a word on the connection. */
static int take(int s, int connection, char *bytes)
{
	for (unsigned looks = 1; recv(s, bytes, MOST, MSG_DONTWAIT) < 0; looks++)
		if (looks % 4096 == 0 && has_spoken(connection))
			return 0;
	return 1;
}

static void latency(int s, int connection, const struct sockaddr_in *peer, size_t size, int is_server, int connects)
{
	static double times[ROUNDS];
	static char bytes[MOST];
	const struct sockaddr *to = connects ? NULL : (const struct sockaddr *)peer;
	socklen_t len = connects ? 0 : sizeof(*peer);
	double start = now();
	int count = 0;

	if (connects && connect(s, (const struct sockaddr *)peer, sizeof(*peer)))
		die("wire: connect");
	while (count < ROUNDS && (is_server || now() - start < SECONDS)) {
		double begun = now();

		if (!is_server && sendto(s, bytes, size, 0, to, len) < 0)
			die("wire: sendto");
		if (!take(s, connection, bytes)) {
			if (is_server)
				return;
			die("wire: a datagram was lost");
		}
		if (is_server) {
			if (sendto(s, bytes, size, 0, to, len) < 0)
				die("wire: sendto");
		} else {
			times[count++] = (now() - begun) / 2;
		}
	}
	qsort(times, (size_t)count, sizeof(times[0]), by_value);
	printf("%f\n", times[count / 2] * 1e6);
}

/* Receives until the peer end has no more data, and sends it the rate. */
static void sink(int s, int connection)
{
	static char bytes[1 << 20];
	double begun = 0, last = 0, rate, sum = 0;
	int is_stream = s == connection;
	unsigned looks = 0;

	for (;;) {
		ssize_t len = recv(s, bytes, sizeof(bytes), is_stream ? 0 : MSG_DONTWAIT);

		if (len > 0) {
			last = now();
			begun = begun ? begun : last;
			sum += (double)len;
		} else if (is_stream || (++looks % 4096 == 0 && has_spoken(connection))) {
			break;
		}
	}
	rate = last > begun ? sum / (last - begun) : 0;
	if (write(connection, &rate, sizeof(rate)) != sizeof(rate))
		die("wire: write");
}

static void stream(int s, int connection, const struct sockaddr_in *peer, size_t size, size_t call)
{
	static char bytes[1 << 20];
	int segment = (int)size;
	double begun = now(), rate = 0;
	char end = 0;

	if (call > size && s != connection && setsockopt(s, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)))
		die("wire: UDP_SEGMENT");
	while (now() - begun < SECONDS) {
		if (s == connection) {
			if (send(s, bytes, call, 0) < 0)
				die("wire: send");
		} else if (sendto(s, bytes, call, 0, (const struct sockaddr *)peer, sizeof(*peer)) < 0 && errno != ENOBUFS) {
			die("wire: sendto");
		}
	}
	if (s == connection)
		shutdown(s, SHUT_WR);
	else if (write(connection, &end, 1) != 1)
		die("wire: write");
	if (read(connection, &rate, sizeof(rate)) != sizeof(rate))
		die("wire: the other end");
	printf("%f\n", rate / 1e9);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "", *server = argc > 5 ? argv[5] : NULL;
	int port, connection, s, on = 1, merges = !strcmp(mode, "offloads");
	struct sockaddr_in peer;
	size_t size, segments;

	if (argc < 5 || argc > 6 || strcmp(argv[3], "-p")) {
		fprintf(stderr, "usage: wire MODE SIZE -p PORT [SERVER]\n");
		return 2;
	}
	size = strtoul(argv[2], NULL, 10);
	port = atoi(argv[4]);
	if (size < 1 || size > (strcmp(mode, "tcp") ? MOST : 1 << 20)) {
		fprintf(stderr, "wire: %zu bytes\n", size);
		return 2;
	}
	connection = meet(port, server);
	if (!strcmp(mode, "tcp")) {
		if (server)
			stream(connection, connection, NULL, size, size);
		else
			sink(connection, connection);
		return 0;
	}
	s = datagrams(connection, port, !server, &peer);
	if (!strcmp(mode, "latency") || !strcmp(mode, "connected")) {
		latency(s, connection, &peer, size, !server, mode[0] == 'c');
	} else if (server) {
		segments = MOST / size < SEGMENTS ? MOST / size : SEGMENTS;
		stream(s, connection, &peer, size, merges ? size * segments : size);
	} else {
		if (merges && setsockopt(s, IPPROTO_UDP, UDP_GRO, &on, sizeof(on)))
			die("wire: UDP_GRO");
		sink(s, connection);
	}
	return 0;
}
