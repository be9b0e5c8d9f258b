/*
 * A thousand clients of twenty processes connect to one listener at once; its backlog has room for
 * an eighth of them. Fifty more clients belong to a process that is killed meanwhile. The ids have
 * no QPs: only connections are made and ended.
 */
#include "checks.h"
#include "place.h"
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 20, EACH = 50, BACKLOG = 128, LIMIT = 100 };

static struct sockaddr_in at = { .sin_family = AF_INET };

/* Serves until its input ends and no connection is left. Returns the number of orderly ends; the
 * event ESTABLISHED may be overtaken by DISCONNECTED. */
static int serve(int orders, int answers)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener, *id;
	struct pollfd fds[2];
	int ended = 0, live = 0, more = 1;
	unsigned number = 0x800000;

	NEED(channel && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listener, (struct sockaddr *) &at) == 0 && rdma_listen(listener, BACKLOG) == 0);
	at.sin_port = rdma_get_src_port(listener);
	NEED(write(answers, &at, sizeof(at)) == sizeof(at));
	while (more || live) {
		fds[0] = (struct pollfd) { .fd = channel->fd, .events = POLLIN };
		fds[1] = (struct pollfd) { .fd = more ? orders : -1, .events = POLLIN };
		NEED(poll(fds, 2, -1) > 0);
		if (fds[1].revents)
			more = 0;
		if (!fds[0].revents)
			continue;
		NEED(rdma_get_cm_event(channel, &event) == 0);
		id = event->id;
		int kind = event->event;
		NEED(rdma_ack_cm_event(event) == 0);
		if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
			struct rdma_conn_param param = { .qp_num = number++ };

			live++;
			/* Who asked may be gone already, and is told of by an event, or by this. */
			if (rdma_accept(id, &param)) {
				live--;
				NEED(rdma_destroy_id(id) == 0);
			}
		} else if (kind != RDMA_CM_EVENT_ESTABLISHED && kind != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
			ended += kind == RDMA_CM_EVENT_DISCONNECTED;
			live--;
			NEED(rdma_destroy_id(id) == 0);
		}
	}
	NEED(rdma_destroy_id(listener) == 0);
	return ended;
}

/* Connects all at once, and ends all when all are connected. */
static void ask(unsigned first, int is_killed)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *ids[EACH];
	int connected = 0;

	NEED(channel != NULL);
	for (int i = 0; i < EACH; i++) {
		NEED(rdma_create_id(channel, &ids[i], (void *) (size_t) i, RDMA_PS_TCP) == 0);
		NEED(rdma_resolve_addr(ids[i], NULL, (struct sockaddr *) &at, 2000) == 0);
	}
	while (connected < EACH) {
		struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };

		NEED(rdma_get_cm_event(channel, &event) == 0);
		struct rdma_cm_id *id = event->id;
		int kind = event->event;
		NEED(rdma_ack_cm_event(event) == 0);
		switch (kind) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			NEED(rdma_resolve_route(id, 2000) == 0);
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			param.qp_num = first + (unsigned) (size_t) id->context;
			NEED(rdma_connect(id, &param) == 0);
			break;
		case RDMA_CM_EVENT_CONNECT_RESPONSE:
			NEED(rdma_establish(id) == 0);
			connected++;
			break;
		default:
			printf("FAILED: %s\n", rdma_event_str(kind));
			exit(1);
		}
		if (is_killed && connected == EACH / 2)
			raise(SIGKILL);
	}
	for (int i = 0; i < EACH; i++)
		NEED(rdma_disconnect(ids[i]) == 0);
	for (int i = 0; i < EACH; i++)
		NEED(rdma_destroy_id(ids[i]) == 0);
	exit(0);
}

int main(void)
{
	int orders[2], answers[2], status, well = 0, killed = 0, ended;
	pid_t server;

	at.sin_addr = here();
	NEED(pipe(orders) == 0 && pipe(answers) == 0);
	/* Whatever hangs ends. */
	alarm(LIMIT);
	server = fork();
	if (server == 0) {
		alarm(LIMIT);
		close(orders[1]);
		ended = serve(orders[0], answers[1]);
		return write(answers[1], &ended, sizeof(ended)) != sizeof(ended);
	}
	NEED(read(answers[0], &at, sizeof(at)) == sizeof(at));
	for (int i = 0; i <= PROCESSES; i++) {
		if (fork() == 0) {
			alarm(LIMIT);
			close(orders[1]);
			ask(1 + i * EACH, i == PROCESSES);
		}
	}
	for (int i = 0; i <= PROCESSES; i++) {
		NEED(waitpid(-1, &status, 0) != server);
		well += WIFEXITED(status) && WEXITSTATUS(status) == 0;
		killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	}
	need(well == PROCESSES && killed == 1, "all clients are connected");
	puts("ok: all clients are connected");
	close(orders[1]);
	NEED(read(answers[0], &ended, sizeof(ended)) == sizeof(ended));
	need(ended >= PROCESSES * EACH, "all were served");
	puts("ok: all were served, and ended");
	NEED(waitpid(server, &status, 0) == server && status == 0);
	return 0;
}
