/*
 * What a side learns when its peer is killed at each step of a connection: request pending, request
 * accepted, connection established, connection ending; and the same for datagram requests. The
 * survivor gets an event, does not wait for ever, and can serve or ask again.
 *
 * Both sides synchronise at a step over TCP, which also tells the survivor about the death. The ids
 * have no QPs, so the program itself reports that a connection is ready.
 *
 * Without arguments both sides run here, step by step. `server STEP` and `client STEP ADDRESS` run
 * one side, at a fixed TCP port. `steps` lists the steps. With NEIGHBOUR in the environment,
 * another process of the victim's host answers for the victim. The victim then dies only after both
 * know each other.
 */
#include "checks.h"
#include "place.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SERVER, CLIENT, PORT = 7740, LIMIT = 30 };

/* Where both meet. */
enum place { ASKED, PATIENT, GRANTED, UNHEARD, CONNECTED, LEAVING, LEFT };

static const char *const sides[] = { "server", "client" };

/* The event that the survivor gets. NOTHING: no certain event, because the host of the victim may
 * not know the acceptance, or because the survivor answers a datagram request. */
enum told { NOTHING, REJECTED, UNREACHABLE, DISCONNECTED };

static const struct step {
	const char *name;
	enum place place;
	int victim;
	enum rdma_port_space ps;
	/* `here`: by the victim's manager or processes of its host. `between`: by surviving
	 * processes of the victim's host, which end the connections that they know. */
	enum told here, between;
} steps[] = {
	{ "asked-server", ASKED, SERVER, RDMA_PS_TCP, REJECTED, REJECTED },
	{ "asked-client", ASKED, CLIENT, RDMA_PS_TCP, DISCONNECTED, DISCONNECTED },
	/* The server has sent MRA with a wait of a minute, which takes seconds. */
	{ "patient-server", PATIENT, SERVER, RDMA_PS_TCP, REJECTED, REJECTED },
	{ "granted-server", GRANTED, SERVER, RDMA_PS_TCP, REJECTED, NOTHING },
	{ "granted-client", GRANTED, CLIENT, RDMA_PS_TCP, DISCONNECTED, DISCONNECTED },
	/* These steps need a cable that drops each RTU. */
	{ "unheard-server", UNHEARD, SERVER, RDMA_PS_TCP, NOTHING, NOTHING },
	{ "unheard-client", UNHEARD, CLIENT, RDMA_PS_TCP, DISCONNECTED, DISCONNECTED },
	{ "connected-server", CONNECTED, SERVER, RDMA_PS_TCP, DISCONNECTED, DISCONNECTED },
	{ "connected-client", CONNECTED, CLIENT, RDMA_PS_TCP, DISCONNECTED, DISCONNECTED },
	/* The victim has disconnected, or has received the peer's disconnect without its own
	 * disconnect. */
	{ "leaving-server", LEAVING, SERVER, RDMA_PS_TCP, DISCONNECTED, DISCONNECTED },
	{ "leaving-client", LEAVING, CLIENT, RDMA_PS_TCP, DISCONNECTED, DISCONNECTED },
	{ "left-server", LEFT, SERVER, RDMA_PS_TCP, DISCONNECTED, DISCONNECTED },
	{ "left-client", LEFT, CLIENT, RDMA_PS_TCP, DISCONNECTED, DISCONNECTED },
	{ "datagram-server", ASKED, SERVER, RDMA_PS_UDP, UNREACHABLE, UNREACHABLE },
	{ "datagram-client", ASKED, CLIENT, RDMA_PS_UDP, NOTHING, NOTHING },
};

enum { STEPS = sizeof(steps) / sizeof(steps[0]) };

static const struct step *step;
static struct rdma_event_channel *channel;
/* The TCP socket to the peer side, and whether the peer is on this host. */
static int word = -1, is_here;
static struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };

/* The id of the next event, which has to be of a type. */
static struct rdma_cm_id *next(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	need(!rdma_get_cm_event(channel, &event), rdma_event_str(type));
	struct rdma_cm_id *id = event->id;

	if (event->event != type)
		printf("FAILED: %s: %s, %d came instead of %s\n", step->name, rdma_event_str(event->event),
		       event->status, rdma_event_str(type));
	failures += event->event != type;
	NEED(!rdma_ack_cm_event(event));
	return id;
}

/* Parameters of the next connection, with a QP number that was not used recently. */
static struct rdma_conn_param *new_queue(void)
{
	static unsigned made;

	param.qp_num = 0x800000 | (unsigned)getpid() % 0x10000 << 4 | made++;
	return &param;
}

/* Whether `pid` has a descriptor of process `wanted` (0: of any other process). The number of that
 * process is returned. */
static int watched_by(int pid, int wanted)
{
	char path[300], line[100];
	int found = 0, watched;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo", pid);
	DIR *folder = opendir(path);
	struct dirent *entry;
	while (folder && !found && (entry = readdir(folder))) {
		snprintf(path, sizeof(path), "/proc/%d/fdinfo/%s", pid, entry->d_name);
		FILE *file = fopen(path, "r");
		while (file && !found && fgets(line, sizeof(line), file))
			if (sscanf(line, "Pid: %d", &watched) == 1 && watched > 0 && watched != pid && (!wanted || watched == wanted))
				found = watched;
		if (file)
			fclose(file);
	}
	if (folder)
		closedir(folder);
	return found;
}

/* This process and another one of its host each have a descriptor of the other, by which they learn
 * of its death (pidfd_open(2)). The alarm of the program bounds the wait. */
static void await_neighbour(void)
{
	int neighbour;

	while (!(neighbour = watched_by(getpid(), 0)) || !watched_by(neighbour, getpid()))
		usleep(10000);
}

/* Both sides are at `place`. The victim stops, and the survivor waits for its death. Returns 1 if a
 * side was killed. */
static int meet(enum place place, int self)
{
	char c = '.';

	if (place != step->place)
		return 0;
	NEED(write(word, &c, 1) == 1 && read(word, &c, 1) == 1);
	if (self == step->victim) {
		if (getenv("NEIGHBOUR"))
			await_neighbour();
		raise(SIGKILL);
	}
	need(read(word, &c, 1) <= 0, "the other one is gone");
	return 1;
}

/* Whether anything more comes: it must not. */
static int is_quiet(void)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 0;
}

static struct rdma_cm_id *routed(struct sockaddr_in *at)
{
	struct rdma_cm_id *id;

	NEED(!rdma_create_id(channel, &id, NULL, step->ps));
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)at, 2000));
	next(RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(id, 2000));
	next(RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

/* The survivor gets its event and no further event. Without an event the survivor can leave as
 * well. `late`: the acceptance had already been withdrawn. */
static void told(struct rdma_cm_id *id, int late)
{
	static const enum rdma_cm_event_type events[] = {
		[REJECTED] = RDMA_CM_EVENT_REJECTED,
		[UNREACHABLE] = RDMA_CM_EVENT_UNREACHABLE,
		[DISCONNECTED] = RDMA_CM_EVENT_DISCONNECTED,
	};
	enum told told = is_here ? step->here : step->between;

	/* The kernel's manager rejects requests that a killed process had not established. */
	if (is_kernels() && step->victim == CLIENT && step->ps == RDMA_PS_TCP && step->place <= GRANTED)
		told = late ? NOTHING : REJECTED;
	if (told)
		need(next(events[told]) == id && is_quiet(), "this id has one event");
	NEED(!rdma_destroy_id(id));
}

/* The request is rejected. */
static void is_turned_away(struct rdma_cm_id *id)
{
	next(step->ps == RDMA_PS_UDP ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED);
	NEED(!rdma_destroy_id(id));
}

/*
 * A further request is sent and rejected, so that earlier messages were forwarded to the other
 * processes of the host. One process receives the packets of the wire, and the victim may be that
 * process.
 */
static void pass_on(struct sockaddr_in *to)
{
	if (is_here || step->place != CONNECTED)
		return;
	if (to) {
		struct rdma_cm_id *id = routed(to);

		NEED(!rdma_connect(id, new_queue()));
		is_turned_away(id);
	} else {
		struct rdma_cm_id *id = next(RDMA_CM_EVENT_CONNECT_REQUEST);

		NEED(!rdma_reject(id, NULL, 0) && !rdma_destroy_id(id));
	}
}

/* Both sides after the connection is established. Returns 1 if a side was killed. */
static int end(struct rdma_cm_id *id, int self)
{
	if (meet(CONNECTED, self))
		return 1;
	if (step->place == LEAVING) {
		if (self == step->victim)
			NEED(!rdma_disconnect(id));
		return meet(LEAVING, self);
	}
	if (self == step->victim)
		next(RDMA_CM_EVENT_DISCONNECTED);
	else
		NEED(!rdma_disconnect(id));
	return meet(LEFT, self);
}

static int serve(int tcp)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	struct rdma_cm_id *listener, *id;
	int late = 0;

	channel = rdma_create_event_channel();
	NEED(channel && !rdma_create_id(channel, &listener, NULL, step->ps));
	NEED(!rdma_bind_addr(listener, (struct sockaddr *)&at) && !rdma_listen(listener, 8));
	at.sin_port = rdma_get_src_port(listener);
	word = accept(tcp, NULL, NULL);
	NEED(word >= 0 && write(word, &at.sin_port, sizeof(at.sin_port)) == sizeof(at.sin_port));

	id = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	if (step->ps == RDMA_PS_UDP) {
		meet(ASKED, SERVER);
		/* The client is dead, and the accept still succeeds. */
		NEED(!rdma_accept(id, new_queue()) && is_quiet());
		NEED(!rdma_destroy_id(id));
	} else {
		int is_over = meet(ASKED, SERVER);

		if (step->place == PATIENT)
			sleep(4);
		meet(PATIENT, SERVER);
		late = rdma_accept(id, new_queue());

		/* The kernel's manager may have taken the request back. */
		NEED(!late || (is_kernels() && is_over && errno == EINVAL));
		if (is_over || meet(GRANTED, SERVER) || meet(UNHEARD, SERVER)) {
			told(id, late);
		} else {
			next(RDMA_CM_EVENT_ESTABLISHED);
			pass_on(NULL);
			end(id, SERVER);
			told(id, late);
		}
	}
	/* It serves the next one. */
	at.sin_addr = here();
	id = routed(&at);
	NEED(!rdma_connect(id, new_queue()));
	struct rdma_cm_id *other = next(RDMA_CM_EVENT_CONNECT_REQUEST);

	NEED(!rdma_reject(other, NULL, 0) && !rdma_destroy_id(other));
	is_turned_away(id);
	NEED(!rdma_destroy_id(listener));
	return failures != 0;
}

static int ask(struct sockaddr_in at)
{
	struct rdma_cm_id *id;

	word = socket(AF_INET, SOCK_STREAM, 0);
	/* It may be there first. */
	while (connect(word, (struct sockaddr *)&at, sizeof(at)))
		usleep(10000);
	NEED(read(word, &at.sin_port, sizeof(at.sin_port)) == sizeof(at.sin_port));
	channel = rdma_create_event_channel();
	NEED(channel != NULL);
	id = routed(&at);
	NEED(!rdma_connect(id, new_queue()));
	if (!meet(ASKED, CLIENT) && !meet(PATIENT, CLIENT)) {
		need(next(RDMA_CM_EVENT_CONNECT_RESPONSE) == id, "the answer is this id's");
		int is_over = meet(GRANTED, CLIENT);

		/* A client that already got the event cannot call rdma_establish. Between hosts it
		 * can. */
		if (!is_over || !is_here)
			NEED(!rdma_establish(id));
		if (!is_over && !meet(UNHEARD, CLIENT)) {
			pass_on(&at);
			end(id, CLIENT);
		}
	}
	told(id, 0);
	/* The server's port is free again. While the kernel removes a process, its listener may
	 * still be visible, and a request at that moment gets no answer. */
	for (int tries = 0; tries < 20; tries++) {
		struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

		id = routed(&at);
		NEED(!rdma_connect(id, new_queue()));
		if (poll(&fd, 1, 3000) == 1) {
			is_turned_away(id);
			return failures != 0;
		}
		NEED(!rdma_destroy_id(id));
	}
	need(0, "somebody answers for it");
	return 1;
}

/* What TCP is listened to; the port is told in `at`. */
static int listen_by_tcp(struct sockaddr_in *at)
{
	int tcp = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	socklen_t length = sizeof(*at);

	NEED(!setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	NEED(!bind(tcp, (struct sockaddr *)at, sizeof(*at)) && !listen(tcp, 1));
	NEED(!getsockname(tcp, (struct sockaddr *)at, &length));
	return tcp;
}

/* Runs both sides on this host. Returns 1 if the victim was killed and the survivor passed. */
static int both(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = here() };
	int tcp = listen_by_tcp(&at), status[2];
	pid_t children[2];

	fflush(stdout);
	for (int side = SERVER; side <= CLIENT; side++) {
		children[side] = fork();
		if (children[side])
			continue;
		alarm(LIMIT);
		failures = 0;
		exit(side == SERVER ? serve(tcp) : ask(at));
	}
	close(tcp);
	for (int side = SERVER; side <= CLIENT; side++)
		waitpid(children[side], &status[side], 0);
	int victim = step->victim, other = 1 - victim;

	if (status[other])
		printf("%s: %s ended with %#x\n", step->name, sides[other], status[other]);
	return WIFSIGNALED(status[victim]) && WTERMSIG(status[victim]) == SIGKILL && status[other] == 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	step = steps;
	if (argc == 2) {
		for (; step < steps + STEPS; step++)
			puts(step->name);
		return 0;
	}
	if (argc == 1) {
		is_here = 1;
		for (; step < steps + STEPS; step++)
			if (step->place != UNHEARD && step->place != PATIENT)
				check(both(), step->name);
		return failures != 0;
	}
	while (step < steps + STEPS && strcmp(step->name, argv[2]))
		step++;
	if (step == steps + STEPS)
		return 2;
	alarm(LIMIT);
	int failed = argc == 3 ? serve(listen_by_tcp(&at)) : inet_pton(AF_INET, argv[3], &at.sin_addr) != 1 || ask(at);

	printf("%s: %s\n", failed ? "FAILED" : "ok", step->name);
	return failed;
}
