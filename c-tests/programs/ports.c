/*
 * The port on request (ferroverbs-soft(7), "Faults"): down and up, by the n-th operation and by a line in the control pipe, with the
 * traffic that stalls meanwhile; its other events; rules that come and go while a process runs; and the end of the device.
 */
#include "rig.h"
#include <sys/stat.h>

#define PIPE "ports-control"

static struct end *a, *b;
static struct address aa, ba;
static struct ibv_context *ctx;

/* In whichever process. */
static long set_env(struct parts *p, void *arg)
{
	(void)p;
	char *value = strchr(arg, '=');
	*value++ = 0;
	return *value ? setenv(arg, value, 1) : unsetenv(arg);
}

static void setting(struct end *e, const char *text)
{
	char arg[RUN_BYTES] = { 0 };
	snprintf(arg, sizeof arg, "%s", text);
	end_run(e, set_env, arg, sizeof arg);
}

/* A line for this process. */
static void tell(const char *line)
{
	char path[64];
	snprintf(path, sizeof path, PIPE "-%d", (int)getpid());
	FILE *f = fopen(path, "w");
	if (!f || fprintf(f, "%s\n", line) < 0 || fclose(f))
		die("%s: %s", path, strerror(errno));
}

static int pipe_is_there(void)
{
	char path[64];
	struct stat st;
	snprintf(path, sizeof path, PIPE "-%d", (int)getpid());
	return stat(path, &st) == 0 && S_ISFIFO(st.st_mode) && (st.st_mode & 0777) == 0600;
}

/* The next event of our device. */
static void event(enum ibv_event_type wanted)
{
	struct ibv_async_event ev = { .event_type = -1 };
	if (!readable(ctx->async_fd, 10000) || ibv_get_async_event(ctx, &ev)) {
		check(0, "%s: no event", ibv_event_type_str(wanted));
		return;
	}
	check(ev.event_type == wanted && ev.element.port_num == 1, "%s of port 1 (is %s)", ibv_event_type_str(wanted),
	      ibv_event_type_str(ev.event_type));
	ibv_ack_async_event(&ev);
}

static void state(enum ibv_port_state wanted)
{
	struct ibv_port_attr port;
	if (ibv_query_port(ctx, 1, &port))
		die("ibv_query_port");
	check(port.state == wanted && port.phys_state == (wanted == IBV_PORT_ACTIVE ? 5 : 3), "the port: %s", ibv_port_state_str(wanted));
}

static struct request request(struct address to, enum ibv_wr_opcode op, uint64_t id)
{
	struct request r = one_piece(op, id, 0, 16);
	r.flags = IBV_SEND_SIGNALED;
	r.raddr = to.addr + 4096;
	r.rkey = to.rkey;
	r.qpn = to.qpn;
	r.qkey = to.qkey;
	return r;
}

static void sent(struct end *e, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc w = end_wait(e, SENDS);
	check(w.wr_id == id && w.status == status, "request %d: %s (is %d: %s)", (int)id, ibv_wc_status_str(status), (int)w.wr_id,
	      ibv_wc_status_str(w.status));
}

static void received(struct end *e, uint64_t id)
{
	struct ibv_wc w = end_wait(e, RECVS);
	check(w.wr_id == id && w.status == IBV_WC_SUCCESS, "receive %d (is %d: %s)", (int)id, (int)w.wr_id, ibv_wc_status_str(w.status));
}

static void quiet(struct end *e, enum which which, const char *what)
{
	struct ibv_wc w;
	check(!end_try(e, which, &w, QUIET_US), "%s", what);
}

static void receives(struct end *e, int n)
{
	for (int i = 1; i <= n; i++)
		end_recv(e, one_piece(IBV_WR_SEND, i, 0, 4096));
}

static void begin(const char *what, struct options o)
{
	printf("-- %s\n", what);
	ctx = open_device();
	pair_open(a, b, o, &aa, &ba);
}

static void end(void)
{
	pair_close(a, b);
	if (ibv_close_device(ctx))
		die("ibv_close_device");
}

/* The n-th operation takes the port down, for a time. */
static void by_operation(void)
{
	struct options o = defaults();
	/* Patient enough for what the machine may do meanwhile. */
	o.timeout = 20;
	setenv("FERROVERBS_SOFT_FAULTS", "port-down qp=1 nth=3 for=500ms", 1);
	begin("by the third operation, for a time", o);
	receives(b, 4);
	state(IBV_PORT_ACTIVE);
	for (int i = 1; i <= 4; i++)
		end_send(a, request(ba, IBV_WR_SEND, i));
	sent(a, 1, IBV_WC_SUCCESS);
	sent(a, 2, IBV_WC_SUCCESS);
	received(b, 1);
	received(b, 2);
	event(IBV_EVENT_PORT_ERR);
	quiet(b, RECVS, "nothing arrives");
	event(IBV_EVENT_PORT_ACTIVE);
	state(IBV_PORT_ACTIVE);
	sent(a, 3, IBV_WC_SUCCESS);
	sent(a, 4, IBV_WC_SUCCESS);
	received(b, 3);
	received(b, 4);
	end();

	/* It stays down: retries are used up. */
	o.timeout = 4;
	o.retry = 2;
	setenv("FERROVERBS_SOFT_FAULTS", "port-down qp=1 nth=2", 1);
	begin("by the second operation", o);
	receives(b, 4);
	for (int i = 1; i <= 3; i++)
		end_send(a, request(ba, i == 2 ? IBV_WR_RDMA_READ : IBV_WR_SEND, i));
	sent(a, 1, IBV_WC_SUCCESS);
	sent(a, 2, IBV_WC_RETRY_EXC_ERR);
	sent(a, 3, IBV_WC_WR_FLUSH_ERR);
	event(IBV_EVENT_PORT_ERR);
	state(IBV_PORT_DOWN);
	check_eq(end_state_soon(a, IBV_QPS_ERR), IBV_QPS_ERR, "the QP's state");
	end();

	/* From the beginning: no event tells of it, as nobody was there. */
	setenv("FERROVERBS_SOFT_FAULTS", "port-down for=200ms", 1);
	o.timeout = 20;
	begin("from the beginning, for a time", o);
	receives(b, 1);
	end_send(a, request(ba, IBV_WR_SEND, 1));
	event(IBV_EVENT_PORT_ACTIVE);
	sent(a, 1, IBV_WC_SUCCESS);
	received(b, 1);
	end();
	unsetenv("FERROVERBS_SOFT_FAULTS");
}

/* Down and up as we say; both ends have requests under way. */
static void by_request(enum ibv_qp_type type, int outlasts)
{
	int reliable = type == IBV_QPT_RC;
	char what[100];
	snprintf(what, sizeof what, "on request, %s", !reliable ? type == IBV_QPT_UD ? "UD" : "UC" : outlasts ? "waited for" : "not waited for");
	struct options o = defaults();
	o.type = type;
	o.timeout = outlasts ? 20 : 4;
	o.retry = outlasts ? 7 : 2;
	begin(what, o);
	receives(a, 8);
	receives(b, 8);
	end_send(a, request(ba, IBV_WR_SEND, 1));
	end_send(b, request(aa, IBV_WR_SEND, 1));
	sent(a, 1, IBV_WC_SUCCESS);
	sent(b, 1, IBV_WC_SUCCESS);
	received(a, 1);
	received(b, 1);
	tell("port-down");
	event(IBV_EVENT_PORT_ERR);
	state(IBV_PORT_DOWN);
	for (int i = 2; i <= 3; i++) {
		end_send(a, request(ba, IBV_WR_SEND, i));
		end_send(b, request(aa, reliable && i == 2 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, i));
	}
	if (!reliable) {
		/* Lost, and nobody says so. */
		for (int i = 2; i <= 3; i++) {
			sent(a, i, IBV_WC_SUCCESS);
			sent(b, i, IBV_WC_SUCCESS);
		}
	}
	if (!reliable || outlasts) {
		quiet(a, RECVS, "nothing arrives here");
		quiet(b, RECVS, "nothing arrives there");
	}
	if (reliable && !outlasts) {
		sent(a, 2, IBV_WC_RETRY_EXC_ERR);
		sent(a, 3, IBV_WC_WR_FLUSH_ERR);
		sent(b, 2, IBV_WC_RETRY_EXC_ERR);
		sent(b, 3, IBV_WC_WR_FLUSH_ERR);
		check_eq(end_state_soon(a, IBV_QPS_ERR), IBV_QPS_ERR, "the QP's state here");
		check_eq(end_state_soon(b, IBV_QPS_ERR), IBV_QPS_ERR, "the QP's state there");
	}
	tell("port-up");
	event(IBV_EVENT_PORT_ACTIVE);
	state(IBV_PORT_ACTIVE);
	if (reliable && outlasts) {
		for (int i = 2; i <= 3; i++) {
			sent(a, i, IBV_WC_SUCCESS);
			sent(b, i, IBV_WC_SUCCESS);
			received(b, i);
		}
		received(a, 2);
	}
	if (!reliable) {
		end_send(a, request(ba, IBV_WR_SEND, 4));
		end_send(b, request(aa, IBV_WR_SEND, 4));
		sent(a, 4, IBV_WC_SUCCESS);
		sent(b, 4, IBV_WC_SUCCESS);
		received(a, 2);
		received(b, 2);
	}
	end();
}

/* Connected while the port is down. */
static void connected_meanwhile(void)
{
	struct options o = defaults();
	o.timeout = 20;
	begin("connected meanwhile", o);
	tell("port-down");
	event(IBV_EVENT_PORT_ERR);
	struct end *c = end_new(0);
	struct address ca, self;
	end_close(b);
	end_close(a);
	ca = end_open(c, o);
	self = end_open(a, o);
	end_connect(c, self);
	end_connect(a, ca);
	receives(a, 2);
	end_send(c, request(self, IBV_WR_SEND, 1));
	end_send(c, request(self, IBV_WR_RDMA_WRITE, 2));
	quiet(a, RECVS, "nothing arrives");
	quiet(c, SENDS, "nothing completes");
	tell("port-up");
	event(IBV_EVENT_PORT_ACTIVE);
	sent(c, 1, IBV_WC_SUCCESS);
	sent(c, 2, IBV_WC_SUCCESS);
	received(a, 1);
	end_close(c);
	end_close(a);
	end_free(c);
	ibv_close_device(ctx);
}

static void events(void)
{
	begin("events", defaults());
	tell("gid-change");
	event(IBV_EVENT_GID_CHANGE);
	tell("lid-change; pkey-change\nsm-change;client-reregister");
	event(IBV_EVENT_LID_CHANGE);
	event(IBV_EVENT_PKEY_CHANGE);
	event(IBV_EVENT_SM_CHANGE);
	event(IBV_EVENT_CLIENT_REREGISTER);
	tell("port-up");
	tell("port-down;port-down;port-up;port-up");
	event(IBV_EVENT_PORT_ERR);
	event(IBV_EVENT_PORT_ACTIVE);
	check(!readable(ctx->async_fd, 50), "once each");
	end();
}

/* Rules that come and go. The event behind a rule tells that it is known. */
static void rules(void)
{
	struct options o = defaults();
	o.type = IBV_QPT_UC;
	begin("rules", o);
	receives(b, 16);
	end_send(a, request(ba, IBV_WR_SEND, 1));
	sent(a, 1, IBV_WC_SUCCESS);
	received(b, 1);
	tell("drop qp=1 nth=2; gid-change");
	event(IBV_EVENT_GID_CHANGE);
	tell("drop qp=1 every=4; gid-change");
	event(IBV_EVENT_GID_CHANGE);
	for (int i = 1; i <= 5; i++) {
		struct request r = request(ba, IBV_WR_SEND_WITH_IMM, i);
		r.imm = (uint32_t)i;
		end_send(a, r);
		sent(a, i, IBV_WC_SUCCESS);
	}
	int wanted[] = { 1, 3, 5 };
	for (int i = 0; i < 3; i++)
		check_eq(end_wait(b, RECVS).imm_data, wanted[i], "what is not lost");
	quiet(b, RECVS, "and nothing else");
	tell("delay qp=1 every=1 for=1000s; gid-change");
	event(IBV_EVENT_GID_CHANGE);
	end_send(a, request(ba, IBV_WR_SEND, 6));
	quiet(a, SENDS, "a rule that delays");
	tell("clear");
	sent(a, 6, IBV_WC_SUCCESS);
	for (int i = 7; i <= 11; i++) {
		end_send(a, request(ba, IBV_WR_SEND, i));
		sent(a, i, IBV_WC_SUCCESS);
	}
	for (int i = 0; i < 6; i++)
		check_eq(end_wait(b, RECVS).status, IBV_WC_SUCCESS, "without rules all arrive");
	tell("cq-overrun cq=1 nth=2; gid-change");
	event(IBV_EVENT_GID_CHANGE);
	end_send(a, request(ba, IBV_WR_SEND, 12));
	sent(a, 12, IBV_WC_SUCCESS);
	end_send(a, request(ba, IBV_WR_SEND, 13));
	check_eq(end_async(a), IBV_EVENT_GID_CHANGE, "the QP's own context had the events of the port, too");
	for (int i = 0; i < 2; i++)
		end_async(a);
	check_eq(end_async(a), IBV_EVENT_GID_CHANGE, "all four");
	check_eq(end_async(a), IBV_EVENT_CQ_ERR, "a completion queue that overruns");
	check_eq(end_async(a), IBV_EVENT_QP_FATAL, "and takes its QP with it");
	end();
}

static void fatal(void)
{
	begin("device", defaults());
	receives(a, 1);
	receives(b, 1);
	end_send(a, request(ba, IBV_WR_SEND, 1));
	sent(a, 1, IBV_WC_SUCCESS);
	tell("device-fatal");
	event(IBV_EVENT_DEVICE_FATAL);
	check_eq(end_async(a), IBV_EVENT_DEVICE_FATAL, "every context hears of it");
	struct ibv_wc w = end_wait(a, RECVS);
	check(w.wr_id == 1 && w.status == IBV_WC_WR_FLUSH_ERR, "receives are flushed");
	check_eq(end_state_soon(a, IBV_QPS_ERR), IBV_QPS_ERR, "the QP's state");
	end();
	setenv("FERROVERBS_SOFT_FAULTS", "device-fatal qp=1 nth=2", 1);
	begin("device, by operation", defaults());
	receives(b, 3);
	for (int i = 1; i <= 3; i++)
		end_send(a, request(ba, IBV_WR_SEND, i));
	sent(a, 1, IBV_WC_SUCCESS);
	sent(a, 2, IBV_WC_WR_FLUSH_ERR);
	sent(a, 3, IBV_WC_WR_FLUSH_ERR);
	event(IBV_EVENT_DEVICE_FATAL);
	end();
	unsetenv("FERROVERBS_SOFT_FAULTS");
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	b = end_new(two);
	a = end_new(0);
	by_operation();
	setting(a, "FERROVERBS_SOFT_CONTROL=" PIPE "-%p");
	struct ibv_context *open = open_device();
	check(pipe_is_there(), "the pipe is there while a device is open, for its owner alone");
	ibv_close_device(open);
	check(!pipe_is_there(), "and then not");
	if (two) {
		by_request(IBV_QPT_RC, 1);
		by_request(IBV_QPT_RC, 0);
		by_request(IBV_QPT_UC, 0);
		by_request(IBV_QPT_UD, 0);
	}
	connected_meanwhile();
	events();
	rules();
	fatal();
	check(!pipe_is_there(), "no pipe is left");
	end_free(a);
	end_free(b);
	return finish();
}
