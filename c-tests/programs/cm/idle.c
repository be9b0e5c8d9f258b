/*
 * A stream whose peer vanishes while no call is active, between two hosts. SO_KEEPALIVE detects the
 * loss, and the socket's descriptor becomes readable for poll(2).
 *
 * `server FILE` accepts a connection, creates the file, and waits until the connection breaks.
 * `client ADDRESS` connects and does nothing. The port is fixed.
 */
#include "checks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <unistd.h>

enum { PORT = 7742, LIMIT = 180 };

static struct sockaddr_in at = { .sin_family = AF_INET };

static int set(int socket, int level, int name, int value)
{
	return rsetsockopt(socket, level, name, &value, sizeof(value));
}

static int option(int socket, int level, int name)
{
	int value = -1;
	socklen_t length = sizeof(value);

	return rgetsockopt(socket, level, name, &value, &length) ? -1 : value;
}

static int serve(const char *sign)
{
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), socket, calls = 0;
	char c;

	/* An accepted socket inherits the options of the listener. */
	NEED(!set(listener, IPPROTO_TCP, TCP_KEEPIDLE, 1) && !set(listener, SOL_SOCKET, SO_KEEPALIVE, 1));
	NEED(!rbind(listener, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listener, 4));
	socket = raccept(listener, NULL, NULL);
	NEED(socket >= 0 && option(socket, SOL_SOCKET, SO_KEEPALIVE) == 1);
	NEED(rread(socket, &c, 1) == 1 && !rfcntl(socket, F_SETFL, O_NONBLOCK));
	NEED(rread(socket, &c, 1) == -1 && errno == EAGAIN);
	close(creat(sign, 0600));
	for (;;) {
		struct pollfd fd = { .fd = socket, .events = POLLIN };

		/* No rsocket call waits here, because a waiting call would poll the adapter. */
		NEED(poll(&fd, 1, -1) == 1);
		int got = rread(socket, &c, 1);

		/* The event may have been a completion. A call that waits briefly removes it from
		 * the descriptor. */
		if (got == -1 && errno == EAGAIN && ++calls < 1000 && rpoll(&fd, 1, 1) == 0)
			continue;
		check(got == -1 && errno == ECONNRESET, "the connection broke");
		break;
	}
	NEED(!rclose(socket) && !rclose(listener));
	return failures != 0;
}

static _Noreturn void ask(void)
{
	int socket = rsocket(AF_INET, SOCK_STREAM, 0);

	while (rconnect(socket, (struct sockaddr *)&at, sizeof(at))) {
		rclose(socket);
		usleep(10000);
		socket = rsocket(AF_INET, SOCK_STREAM, 0);
	}
	NEED(rwrite(socket, ".", 1) == 1);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	at.sin_port = htons(PORT);
	alarm(LIMIT);
	if (argc == 3 && !strcmp(argv[1], "server"))
		return serve(argv[2]);
	if (argc == 3 && inet_pton(AF_INET, argv[2], &at.sin_addr) == 1)
		ask();
	return 2;
}
