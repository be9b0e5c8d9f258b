/*
 * Measures the cost of connections in sequence, by librdmacm or by TCP, to a server that accepts
 * all clients and serves until it is killed.
 *
 * usage: connect rdma|tcp server ADDRESS PORT
 *        connect rdma|tcp client ADDRESS PORT COUNT
 *
 * The client prints medians in microseconds: `ready` (address, route and QP; TCP: a socket),
 * `connect`, and `all` including the disconnect.
 */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static struct sockaddr_in at;

static void tcp_server(void)
{
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	char byte;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	need(!bind(listener, (struct sockaddr *)&at, sizeof(at)) && !listen(listener, 1024), "listen");
	for (;;) {
		int fd = accept(listener, NULL, NULL);

		/* The client ends it. */
		if (fd >= 0 && read(fd, &byte, 1) >= 0)
			close(fd);
	}
}

static void tcp_client(double *times)
{
	double begin = now_us();
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	times[0] = now_us() - begin;
	need(!connect(fd, (struct sockaddr *)&at, sizeof(at)), "connect");
	times[1] = now_us() - begin - times[0];
	close(fd);
	times[2] = now_us() - begin;
}

/* The completion queue that all queue pairs of a process share. */
static struct ibv_cq *cq;

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };

	if (!cq)
		cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	need(cq != NULL, "ibv_create_cq");
	init.send_cq = init.recv_cq = cq;
	need(!rdma_create_qp(id, NULL, &init), "rdma_create_qp");
}

static void end_id(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
}

static void rdma_server(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;

	need(channel && !rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	need(!rdma_bind_addr(listener, (struct sockaddr *)&at) && !rdma_listen(listener, 1024), "rdma_listen");
	for (;;) {
		need(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type kind = event->event;

		if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
			make_qp(id);
			rdma_accept(id, &param);
		} else if (kind == RDMA_CM_EVENT_DISCONNECTED) {
			rdma_disconnect(id);
		}
		rdma_ack_cm_event(event);
		if (kind == RDMA_CM_EVENT_DISCONNECTED)
			end_id(id);
	}
}

static void rdma_client(double *times)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	double begin = now_us();
	struct rdma_cm_id *id;

	need(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	need(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 5000), "rdma_resolve_addr");
	need(!rdma_resolve_route(id, 5000), "rdma_resolve_route");
	make_qp(id);
	times[0] = now_us() - begin;
	need(!rdma_connect(id, &param), "rdma_connect");
	times[1] = now_us() - begin - times[0];
	rdma_disconnect(id);
	end_id(id);
	times[2] = now_us() - begin;
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "usage: connect rdma|tcp server|client ADDRESS PORT [COUNT]\n");
		return 2;
	}
	int is_tcp = !strcmp(argv[1], "tcp");

	at = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[4])) };
	need(inet_pton(AF_INET, argv[3], &at.sin_addr) == 1, argv[3]);
	if (!strcmp(argv[2], "server"))
		is_tcp ? tcp_server() : rdma_server();
	static const char *const names[] = { "ready", "connect", "all" };
	int count = argc > 5 ? atoi(argv[5]) : 1000;
	double *times = calloc((size_t)count * 3, sizeof(*times)), sum = 0;

	need(count > 0 && times, "memory");
	for (int i = 0; i < count; i++) {
		double one[3];

		(is_tcp ? tcp_client : rdma_client)(one);
		for (int what = 0; what < 3; what++)
			times[what * count + i] = one[what];
		sum += one[2];
	}
	for (int what = 0; what < 3; what++) {
		qsort(times + what * count, (size_t)count, sizeof(*times), by_value);
		printf("%s %.1f\n", names[what], times[what * count + count / 2]);
	}
	printf("rate %.0f\n", count * 1e6 / sum);
	return 0;
}
