/*
 * The descriptors that a connection takes at its server, as with the kernel's manager: one for each
 * event channel and one for each completion channel. Further descriptors do not depend on the
 * number of connections.
 */
#include "events.h"
#include "place.h"

#include <dirent.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* MANY connections are counted. The FIRST ones before them may open descriptors that the process
 * needs once. */
enum { MANY = 8, FIRST = 3 };

static struct sockaddr_in at = { .sin_family = AF_INET };
static struct ibv_qp_init_attr attributes = {
	.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC,
};

/*
 * Whether `taken` descriptors are `each` for one connection. The agent's thread opens the
 * descriptors of a process once, and closes those of a client that ended, at any time. One more for
 * each connection would be MANY more.
 */
static int is_each(int taken, int each)
{
	return taken > (each - 1) * MANY && taken < (each + 1) * MANY;
}

static int descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	NEED(folder != NULL);
	while (readdir(folder))
		count++;
	closedir(folder);
	/* Without the folder's own, and the two names of folders. */
	return count - 3;
}

/* A client of another process, whose connections stay until the server has counted. */
static pid_t begin_clients(int is_stream)
{
	pid_t client = fork();

	NEED(client >= 0);
	if (client)
		return client;
	for (int i = 0; i < FIRST + MANY; i++) {
		if (is_stream) {
			int socket = rsocket(AF_INET, SOCK_STREAM, 0);

			NEED(socket >= 0 && !rconnect(socket, (struct sockaddr *)&at, sizeof(at)));
			continue;
		}
		struct ibv_qp_init_attr own = attributes;
		struct rdma_cm_id *id;

		NEED(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
		NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000) && !rdma_resolve_route(id, 2000));
		NEED(!rdma_create_qp(id, NULL, &own) && !rdma_connect(id, NULL));
	}
	pause();
	_exit(0);
}

static void end_clients(pid_t client)
{
	NEED(!kill(client, SIGKILL) && waitpid(client, NULL, 0) == client);
}

/* Accepts all, each by `accept_one`. */
static void count(struct rdma_cm_id *listener, int each, const char *what, void (*accept_one)(struct rdma_cm_id *))
{
	at.sin_port = rdma_get_src_port(listener);
	at.sin_addr = here();
	pid_t client = begin_clients(0);
	int before = 0;

	for (int i = 0; i < FIRST + MANY; i++) {
		accept_one(listener);
		if (i == FIRST - 1)
			before = descriptors();
	}
	int taken = descriptors() - before;

	printf("%s: %d descriptors for %d connections\n", what, taken, MANY);
	check(is_each(taken, each), what);
	end_clients(client);
}

/* Accepts an id on an existing event channel, with CQs made by rdma_create_qp. */
static void accept_by_event(struct rdma_cm_id *listener)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr own = attributes;

	/* Those before are established meanwhile. */
	do {
		NEED(!rdma_get_cm_event(listener->channel, &event));
		id = event->event == RDMA_CM_EVENT_CONNECT_REQUEST ? event->id : NULL;
		NEED(!rdma_ack_cm_event(event));
	} while (!id);
	NEED(!rdma_create_qp(id, NULL, &own) && !rdma_accept(id, NULL));
}

/* An id with a completion channel and an event channel of its own. */
static void accept_by_own_channels(struct rdma_cm_id *listener)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_qp_init_attr own = attributes;
	struct ibv_comp_channel *completions;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	NEED(channel && !rdma_get_cm_event(listener->channel, &event));
	check(event->event == RDMA_CM_EVENT_CONNECT_REQUEST, rdma_event_str(event->event));
	id = event->id;
	NEED(!rdma_ack_cm_event(event) && !rdma_migrate_id(id, channel));
	NEED((completions = ibv_create_comp_channel(id->verbs)) != NULL);
	NEED((own.send_cq = own.recv_cq = ibv_create_cq(id->verbs, 8, NULL, completions, 0)) != NULL);
	NEED(!rdma_create_qp(id, NULL, &own) && !rdma_accept(id, NULL));
}

static void accept_by_request(struct rdma_cm_id *listener)
{
	struct ibv_qp_init_attr own = attributes;
	struct rdma_cm_id *id;

	NEED(!rdma_get_request(listener, &id) && !rdma_create_qp(id, NULL, &own) && !rdma_accept(id, NULL));
}

static struct rdma_cm_id *listen_by(struct rdma_event_channel *channel)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr = here() };
	struct rdma_cm_id *listener;

	NEED(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(listener, (struct sockaddr *)&any) && !rdma_listen(listener, FIRST + MANY));
	return listener;
}

static void count_streams(void)
{
	socklen_t length = sizeof(at);
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), before = 0;

	at.sin_port = 0;
	NEED(listener >= 0 && !rbind(listener, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listener, FIRST + MANY));
	NEED(!rgetsockname(listener, (struct sockaddr *)&at, &length));
	struct pollfd idle = { .fd = listener, .events = POLLIN };

	/* The first wait of a thread takes a descriptor, which all later waits of the thread use. */
	NEED(rpoll(&idle, 1, 1) == 0);
	pid_t client = begin_clients(1);

	for (int i = 0; i < FIRST + MANY; i++) {
		NEED(raccept(listener, NULL, NULL) >= 0);
		if (i == FIRST - 1)
			before = descriptors();
	}
	int taken = descriptors() - before;

	printf("rsockets: %d descriptors for %d connections\n", taken, MANY);
	/* The socket itself is one. */
	CHECK(is_each(taken, 3));
	end_clients(client);
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	count(listen_by(rdma_create_event_channel()), 2, "two completion channels", accept_by_event);
	count(listen_by(rdma_create_event_channel()), 2, "an event channel and a completion channel", accept_by_own_channels);
	count(listen_by(NULL), 3, "a synchronous id", accept_by_request);
	count_streams();
	return failures != 0;
}
