/* The TCP connection by which the two ends of a benchmark between hosts meet. */
#ifndef BENCH_MEET_H
#define BENCH_MEET_H

#include "timing.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

/* The connection by which both meet: to `server`, or from whoever comes to PORT. */
static int meet(int port, const char *server)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found;
	int on = 1, s = socket(AF_INET, SOCK_STREAM, 0), connection;
	char text[16];

	if (s < 0)
		die("socket");
	if (server) {
		snprintf(text, sizeof(text), "%d", port);
		if (getaddrinfo(server, text, &hints, &found) || connect(s, found->ai_addr, found->ai_addrlen))
			die("connect");
		freeaddrinfo(found);
		return s;
	}
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(s, (struct sockaddr *)&any, sizeof(any)) || listen(s, 1))
		die("listen");
	connection = accept(s, NULL, NULL);
	if (connection < 0)
		die("accept");
	close(s);
	return connection;
}

/* Whether the other end said something, or is gone. */
static int has_spoken(int connection)
{
	char byte;

	return recv(connection, &byte, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || errno != EAGAIN;
}

#endif
