/*
 * Measures libfabric's message bandwidth between two hosts, for `cargo xtask bench wire`; Debian
 * has no streaming program for libfabric. The client prints the bandwidth in GB/s and the number of
 * bytes.
 *
 * usage: fabric PROVIDER SIZE -p PORT [SERVER]
 *
 * The two ends meet by TCP at PORT. For half a second the client keeps 64 messages of SIZE bytes,
 * or 64 MiB, in flight, all from one buffer, and then waits for their completion. The result counts
 * the time in which the server received the messages.
 */
#define _GNU_SOURCE
#include "meet.h"
#include "timing.h"
#include <arpa/inet.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <string.h>

#define SECONDS 0.5
/* On a cable with losses, messages in flight may take long. */
#define PATIENCE 30.0
/* Messages under way, and bytes of them. */
#define WINDOW 64
#define UNDER_WAY (64 << 20)
#define MOST (16 << 20)

/* A reliable datagram endpoint and the address of its peer. */
struct end {
	struct fid_ep *endpoint;
	struct fid_cq *queue;
	fi_addr_t peer;
	char *bytes;
	size_t size, window;
};

/* The address of an endpoint as libfabric writes it. */
struct name {
	uint64_t len;
	char bytes[56];
};

/* The server's result. */
struct result {
	double rate, bytes;
};

static void must(long status, const char *what)
{
	if (status < 0) {
		fprintf(stderr, "fabric: %s: %s\n", what, fi_strerror((int)-status));
		exit(1);
	}
}

static void tell(int connection, const void *bytes, size_t len)
{
	if (write(connection, bytes, len) != (ssize_t)len)
		die("fabric: write");
}

static void hear(int connection, void *bytes, size_t len)
{
	if (recv(connection, bytes, len, MSG_WAITALL) != (ssize_t)len)
		die("fabric: the other end");
}

/* Opens an endpoint of the provider at the connection's local address, and exchanges addresses with
 * the peer end. */
static struct end open_end(const char *provider, size_t size, int connection)
{
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_CONTEXT, .size = 4 * WINDOW };
	struct fi_av_attr addresses = { .type = FI_AV_TABLE };
	struct name own = { .len = sizeof(own.bytes) }, other;
	struct fi_info *hints = fi_allocinfo(), *info;
	struct end end = { .size = size };
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct sockaddr_in here;
	socklen_t len = sizeof(here);
	char node[INET_ADDRSTRLEN];
	size_t written = sizeof(own.bytes);
	struct fid_av *av;

	end.window = size < UNDER_WAY / WINDOW ? WINDOW : UNDER_WAY / size;
	end.bytes = calloc(1, MOST);
	if (!hints || !end.bytes || getsockname(connection, (struct sockaddr *)&here, &len))
		die("fabric");
	inet_ntop(AF_INET, &here.sin_addr, node, sizeof(node));
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->fabric_attr->prov_name = strdup(provider);
	must(fi_getinfo(FI_VERSION(1, 15), node, NULL, FI_SOURCE, hints, &info), "fi_getinfo");
	must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	must(fi_av_open(domain, &addresses, &av, NULL), "fi_av_open");
	must(fi_cq_open(domain, &queue, &end.queue, NULL), "fi_cq_open");
	must(fi_endpoint(domain, info, &end.endpoint, NULL), "fi_endpoint");
	must(fi_ep_bind(end.endpoint, &av->fid, 0), "fi_ep_bind");
	must(fi_ep_bind(end.endpoint, &end.queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
	must(fi_enable(end.endpoint), "fi_enable");
	must(fi_getname(&end.endpoint->fid, own.bytes, &written), "fi_getname");
	own.len = written;
	tell(connection, &own, sizeof(own));
	hear(connection, &other, sizeof(other));
	if (fi_av_insert(av, other.bytes, 1, &end.peer, 0, NULL) != 1)
		die("fabric: fi_av_insert");
	return end;
}

/* The number of completions since the last call; the call also makes progress. */
static long reap(struct end *end)
{
	struct fi_cq_entry done[WINDOW];
	struct fi_cq_err_entry error = { 0 };
	long count = fi_cq_read(end->queue, done, WINDOW);

	if (count == -FI_EAGAIN)
		return 0;
	if (count == -FI_EAVAIL && fi_cq_readerr(end->queue, &error, 0) > 0)
		must(-error.err, "a completion");
	must(count, "fi_cq_read");
	return count;
}

/* Posts a request, unless the queue is full. */
static int post(struct end *end, int is_send)
{
	ssize_t status = is_send ? fi_send(end->endpoint, end->bytes, end->size, NULL, end->peer, NULL)
				 : fi_recv(end->endpoint, end->bytes, end->size, NULL, FI_ADDR_UNSPEC, NULL);

	if (status == -FI_EAGAIN)
		return 0;
	must(status, is_send ? "fi_send" : "fi_recv");
	return 1;
}

static void take(struct end *end, int connection)
{
	unsigned long posted = 0, taken = 0, first = 0, sent = ~0ul;
	double begun = 0, last = 0;
	struct result result;
	char ready = 0;

	while (posted < 2 * end->window && post(end, 0))
		posted++;
	tell(connection, &ready, 1);
	for (unsigned looks = 0; taken < sent; looks++) {
		unsigned long count = (unsigned long)reap(end);

		if (count) {
			last = now();
			taken += count;
			/* Messages in the first batch began before the measurement. */
			if (!first) {
				first = taken;
				begun = last;
			}
			while (posted < taken + 2 * end->window && post(end, 0))
				posted++;
		} else if (sent == ~0ul && looks % 256 == 0 && has_spoken(connection)) {
			hear(connection, &sent, sizeof(sent));
		}
	}
	result.bytes = (double)taken * (double)end->size;
	result.rate = last > begun ? (double)(taken - first) * (double)end->size / (last - begun) : 0;
	tell(connection, &result, sizeof(result));
}

static void give(struct end *end, int connection)
{
	unsigned long posted = 0, done = 0;
	struct result result;
	double begun;
	char ready;

	hear(connection, &ready, 1);
	begun = now();
	while (now() - begun < SECONDS || done < posted) {
		if (now() - begun > PATIENCE) {
			fprintf(stderr, "fabric: %lu of %lu messages are still under way after %.0f s\n", posted - done, posted, PATIENCE);
			exit(1);
		}
		while (now() - begun < SECONDS && posted < done + end->window && post(end, 1))
			posted++;
		done += (unsigned long)reap(end);
	}
	tell(connection, &posted, sizeof(posted));
	/* The provider may still have to send or retransmit messages. */
	while (!has_spoken(connection)) {
		reap(end);
		if (now() - begun > PATIENCE) {
			fprintf(stderr, "fabric: the server did not get all messages in %.0f s\n", PATIENCE);
			exit(1);
		}
	}
	hear(connection, &result, sizeof(result));
	printf("%f %.0f\n", result.rate / 1e9, result.bytes);
}

int main(int argc, char **argv)
{
	const char *server = argc > 5 ? argv[5] : NULL;
	struct end end;
	int connection;
	size_t size;

	if (argc < 5 || argc > 6 || strcmp(argv[3], "-p")) {
		fprintf(stderr, "usage: fabric PROVIDER SIZE -p PORT [SERVER]\n");
		return 2;
	}
	size = strtoul(argv[2], NULL, 10);
	if (size < 1 || size > MOST) {
		fprintf(stderr, "fabric: %zu bytes\n", size);
		return 2;
	}
	connection = meet(atoi(argv[4]), server);
	end = open_end(argv[1], size, connection);
	if (server)
		give(&end, connection);
	else
		take(&end, connection);
	return 0;
}
