/*
 * Port faults (ferroverbs-soft(7), "Faults") over shared memory and between hosts: down and up, by
 * the n-th operation and by a line in the control pipe, with traffic that stalls meanwhile; other
 * port events; rules that change while a process runs; removal of the device.
 *
 * Map of this file: helpers check events, port states and completions; `begin` opens the device and
 * connects ends `a` and `b`. `by_operation` tests rules; `by_request` uses the control pipe;
 * `connected_meanwhile` connects during a fault; `peer_dies` kills the peer process. `events` tests
 * other port events; `rules` changes rules at run time. `addresses` tests new GIDs in a network
 * namespace; `fatal` tests removal of the device. `main` starts the processes of the ends first,
 * then calls the tests; some tests need two processes.
 */
#define _GNU_SOURCE
#include "control.h"
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>


static struct end *a, *b;
static struct address aa, ba;
static struct ibv_context *ctx;

/* Sets an environment variable in the process of an end, or removes it; `arg` is NAME=VALUE. */
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

static int pipe_is_there(void)
{
	struct stat st;
	return stat(control_path(), &st) == 0 && S_ISFIFO(st.st_mode) && (st.st_mode & 0777) == 0600;
}

/* Waits for the next event of the local device, which must be `wanted`. */
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

/* IBTA 1.7 14.2.5.6. */
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
	/* The long timeout keeps the retries from running out on a busy machine. */
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
	o.timeout = short_timeout();
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

	/* The port is down from the start, so no event reports the change. */
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

/* Exchanges message `message` in both directions; receive `receive` takes it. */
static void exchange(int message, int receive)
{
	end_send(a, request(ba, IBV_WR_SEND, message));
	end_send(b, request(aa, IBV_WR_SEND, message));
	sent(a, message, IBV_WC_SUCCESS);
	sent(b, message, IBV_WC_SUCCESS);
	received(a, receive);
	received(b, receive);
}

/* The control pipe takes the port down and up while both ends have requests in flight. */
static void by_request(enum ibv_qp_type type, int outlasts)
{
	int reliable = type == IBV_QPT_RC;
	char what[100];
	snprintf(what, sizeof what, "on request, %s", !reliable ? type == IBV_QPT_UD ? "UD" : "UC" : outlasts ? "waited for" : "not waited for");
	struct options o = defaults();
	o.type = type;
	o.timeout = outlasts ? 20 : short_timeout();
	o.retry = outlasts ? 7 : 2;
	begin(what, o);
	receives(a, 8);
	receives(b, 8);
	exchange(1, 1);
	control("port-down");
	event(IBV_EVENT_PORT_ERR);
	state(IBV_PORT_DOWN);
	for (int i = 2; i <= 3; i++) {
		end_send(a, request(ba, IBV_WR_SEND, i));
		end_send(b, request(aa, reliable && i == 2 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, i));
	}
	if (!reliable) {
		/* The messages are lost, and their sends succeed. */
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
	control("port-up");
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
	if (!reliable)
		exchange(4, 2);
	end();
}

/* QPs that are connected while the port is down. */
static void connected_meanwhile(void)
{
	struct options o = defaults();
	o.timeout = 20;
	begin("connected meanwhile", o);
	control("port-down");
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
	control("port-up");
	event(IBV_EVENT_PORT_ACTIVE);
	sent(c, 1, IBV_WC_SUCCESS);
	sent(c, 2, IBV_WC_SUCCESS);
	received(a, 1);
	end_close(c);
	end_close(a);
	end_free(c);
	ibv_close_device(ctx);
}

static long says(struct parts *p, void *line)
{
	(void)p;
	control(line);
	return 0;
}

static void order(struct end *e, const char *line)
{
	char arg[RUN_BYTES] = { 0 };
	snprintf(arg, sizeof arg, "%s", line);
	end_run(e, says, arg, sizeof arg);
}

/* The peer process is killed while the local port (`ours`) or its own port is down. */
static void peer_dies(struct end *victim, enum ibv_qp_type type, int ours)
{
	struct end *usual = b;
	struct options o = defaults();
	int reliable = type == IBV_QPT_RC;
	char what[100];
	snprintf(what, sizeof what, "%s, the peer dies while %s port is down", reliable ? "RC" : "UC", ours ? "our" : "its");
	o.type = type;
	/* The retries would take half a minute. Between hosts the timeout alone detects the death,
	 * so it is set to four seconds. */
	o.timeout = hosts_differ() ? 15 : 20;
	o.retry = 7;
	b = victim;
	setting(b, "FERROVERBS_SOFT_CONTROL=ports-control-%p");
	begin(what, o);
	receives(a, 2);
	receives(b, 1);
	exchange(1, 1);
	if (ours) {
		control("port-down");
		event(IBV_EVENT_PORT_ERR);
	} else {
		order(b, "port-down");
		check_eq(end_async(b), IBV_EVENT_PORT_ERR, "its port is down");
	}
	for (int i = 2; i <= 4; i++)
		end_send(a, request(ba, i == 3 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, i));
	for (int i = 2; i <= 4 && !reliable; i++)
		sent(a, i, IBV_WC_SUCCESS);
	quiet(a, SENDS, "nothing completes that waits for an answer");
	end_kill(b);
	end_free(b);
	b = usual;
	if (ours) {
		/* The wait is longer than a notification of the death takes where one is
		 * possible. */
		struct ibv_wc w;
		check(!end_try(a, SENDS, &w, 700000) && !end_try(a, RECVS, &w, 0), "nobody can know of it");
		check_eq(end_state(a), IBV_QPS_RTS, "the QP's state");
		control("port-up");
		event(IBV_EVENT_PORT_ACTIVE);
	}
	if (reliable) {
		sent(a, 2, IBV_WC_RETRY_EXC_ERR);
		sent(a, 3, IBV_WC_WR_FLUSH_ERR);
		sent(a, 4, IBV_WC_WR_FLUSH_ERR);
	}
	if (!reliable && hosts_differ()) {
		quiet(a, RECVS, "of the death of an unreliable peer on another host nobody hears");
		check_eq(end_state(a), IBV_QPS_RTS, "the QP's state");
	} else {
		struct ibv_wc w = end_wait(a, RECVS);
		check(w.wr_id == 2 && w.status == IBV_WC_WR_FLUSH_ERR, "the receive is flushed (is %d: %s)", (int)w.wr_id, ibv_wc_status_str(w.status));
		check_eq(end_state_soon(a, IBV_QPS_ERR), IBV_QPS_ERR, "the QP's state");
	}
	/* The victim's pipe is its own to remove. */
	end_close(a);
	if (ibv_close_device(ctx))
		die("ibv_close_device");
}

/* Results of ibv_query_port and related queries, except the state. */
struct told {
	struct ibv_port_attr port;
	union ibv_gid gid[3];
	int have[3];
	__be16 pkey;
};

static struct told told_by(struct ibv_context *c)
{
	struct told t = { 0 };
	if (ibv_query_port(c, 1, &t.port) || ibv_query_pkey(c, 1, 0, &t.pkey))
		die("ibv_query_port or ibv_query_pkey");
	for (int i = 0; i < 3; i++)
		t.have[i] = !ibv_query_gid(c, 1, i, &t.gid[i]);
	t.port.state = t.port.phys_state = 0;
	return t;
}

static void events(void)
{
	begin("events", defaults());
	struct told before = told_by(ctx);
	check(before.have[0] && before.pkey == 0xffff && !before.port.lid && !before.port.sm_lid && before.port.link_layer == IBV_LINK_LAYER_ETHERNET,
	      "an Ethernet port: no LID, no subnet manager, one P_Key");
	control("gid-change");
	event(IBV_EVENT_GID_CHANGE);
	control("lid-change; pkey-change\nsm-change;client-reregister");
	event(IBV_EVENT_LID_CHANGE);
	event(IBV_EVENT_PKEY_CHANGE);
	event(IBV_EVENT_SM_CHANGE);
	event(IBV_EVENT_CLIENT_REREGISTER);
	control("port-up");
	control("port-down;port-down;port-up;port-up");
	event(IBV_EVENT_PORT_ERR);
	event(IBV_EVENT_PORT_ACTIVE);
	check(!readable(ctx->async_fd, 50), "once each");
	struct told after = told_by(ctx);
	check(!memcmp(&before, &after, sizeof before), "what can be asked of the port is as before: none of that changed");
	state(IBV_PORT_ACTIVE);
	control("port-down");
	event(IBV_EVENT_PORT_ERR);
	state(IBV_PORT_DOWN);
	after = told_by(ctx);
	check(!memcmp(&before, &after, sizeof before), "while it is down, its other attributes stay");
	struct ibv_context *second = open_device();
	struct ibv_port_attr port;
	check(!ibv_query_port(second, 1, &port) && port.state == IBV_PORT_DOWN, "a context that is opened meanwhile finds it down");
	check(!readable(second->async_fd, 0), "without an event");
	control("port-up");
	event(IBV_EVENT_PORT_ACTIVE);
	check_eq(async_event(second, NULL), IBV_EVENT_PORT_ACTIVE, "and hears of its end");
	check_eq(ibv_close_device(second), 0, "ibv_close_device");
	end();
}

/* Rules are added and removed. The event after a rule shows that the rule is in effect. */
static void rules(void)
{
	struct options o = defaults();
	o.type = IBV_QPT_UC;
	begin("rules", o);
	receives(b, 16);
	end_send(a, request(ba, IBV_WR_SEND, 1));
	sent(a, 1, IBV_WC_SUCCESS);
	received(b, 1);
	control("drop qp=1 nth=2; gid-change");
	event(IBV_EVENT_GID_CHANGE);
	control("drop qp=1 every=4; gid-change");
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
	control("delay qp=1 every=1 for=1000s; gid-change");
	event(IBV_EVENT_GID_CHANGE);
	end_send(a, request(ba, IBV_WR_SEND, 6));
	quiet(a, SENDS, "a rule that delays");
	control("clear");
	sent(a, 6, IBV_WC_SUCCESS);
	for (int i = 7; i <= 11; i++) {
		end_send(a, request(ba, IBV_WR_SEND, i));
		sent(a, i, IBV_WC_SUCCESS);
	}
	for (int i = 0; i < 6; i++)
		check_eq(end_wait(b, RECVS).status, IBV_WC_SUCCESS, "without rules all arrive");
	control("cq-overrun cq=1 nth=2; gid-change");
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

/* Replaces the address of an interface by 127.0.0.`last`. */
static void give_address(int s, const char *name, unsigned char last)
{
	struct ifreq r = { 0 };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000u | last) };
	snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
	memcpy(&r.ifr_addr, &a, sizeof a);
	if (ioctl(s, SIOCSIFADDR, &r))
		die("an address for %s: %s", name, strerror(errno));
}

/* Waits for the GID index of 127.0.0.`last`; 0 without one. */
static int index_of(struct ibv_context *c, unsigned char last)
{
	uint64_t until = now_us() + WAIT_US;
	do {
		struct ibv_gid_entry entry;
		for (uint32_t i = 1; i < 8; i++)
			if (!ibv_query_gid_ex(c, 1, i, &entry, 0) && entry.gid.raw[12] == 127 && entry.gid.raw[15] == last)
				return (int)i;
	} while (now_us() < until);
	return 0;
}

/* Whether the GID index becomes empty within a tenth of WAIT_US. */
static int is_empty(struct ibv_context *c, int index)
{
	uint64_t until = now_us() + WAIT_US / 10;
	struct ibv_gid_entry entry;
	int err;
	do
		err = ibv_query_gid_ex(c, 1, (uint32_t)index, &entry, 0);
	while (!err && now_us() < until);
	return err == ENODATA;
}

/* Addresses come, go and return; each keeps its own index. */
static long indices(struct ibv_context *c, struct ibv_pd *pd, int s)
{
	give_address(s, "lo:2", 2);
	int second = index_of(c, 2);
	long bad = (second < 2 || index_of(c, 1) != 1);
	struct ifreq down = { .ifr_name = "lo:2" };
	if (ioctl(s, SIOCSIFFLAGS, &down))
		die("an address that goes: %s", strerror(errno));
	bad |= !is_empty(c, second) << 1;
	give_address(s, "lo:3", 3);
	int third = index_of(c, 3);
	bad |= (third < 2 || third == second || !is_empty(c, second)) << 2;
	struct ibv_ah_attr from = { .port_num = 1, .is_global = 1, .grh = { .sgid_index = (uint8_t)second, .hop_limit = 1 } };
	bad |= ibv_query_gid(c, 1, 1, &from.grh.dgid) << 3;
	struct ibv_ah *ah = ibv_create_ah(pd, &from);
	bad |= (ah || errno != EINVAL) << 4;
	if (ah)
		ibv_destroy_ah(ah);
	give_address(s, "lo:2", 2);
	bad |= (index_of(c, 2) != second || index_of(c, 3) != third) << 5;
	struct ibv_context *later = open_device();
	bad |= (index_of(later, 2) != second || index_of(later, 3) != third || ibv_close_device(later)) << 6;
	return bad;
}

/* Runs in a process with its own network namespace, whose only interface comes up. The process gets
 * one more GID, and an event reports it. */
static long with_own_network(struct parts *p, void *arg)
{
	(void)p, (void)arg;
	struct ifreq r = { .ifr_name = "lo" };
	union ibv_gid gid;
	struct ibv_gid_entry entry;
	if (unshare(CLONE_NEWNET)) {
		/* A process that is not root needs a user namespace, in which it keeps its user. */
		char map[40];
		int len = sprintf(map, "%u %u 1", getuid(), getuid());
		if (unshare(CLONE_NEWUSER | CLONE_NEWNET))
			return -errno;
		int f = open("/proc/self/uid_map", O_WRONLY);
		if (f < 0 || write(f, map, (size_t)len) != len)
			return -EPERM;
		close(f);
	}
	setenv("FERROVERBS_SOFT_CONTROL", "ports-control-%p", 1);
	struct ibv_context *own = open_device();
	long bad = (ibv_query_gid_ex(own, 1, 0, &entry, 0) != 0) | (ibv_query_gid_ex(own, 1, 1, &entry, 0) != ENODATA) << 1;
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	r.ifr_flags = IFF_UP;
	if (s < 0 || ioctl(s, SIOCSIFFLAGS, &r))
		die("an interface that comes up: %s", strerror(errno));
	/* No program action is needed. The table may change before or after the event. */
	bad |= !next_of_port(own, IBV_EVENT_GID_CHANGE) << 2;
	static const unsigned char localhost[16] = { [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1 };
	bad |= (ibv_query_gid(own, 1, 1, &gid) || memcmp(gid.raw, localhost, 16)) << 4;
	bad |= (ibv_query_gid_ex(own, 1, 1, &entry, 0) || entry.gid_index != 1 || entry.gid_type != IBV_GID_TYPE_ROCE_V2) << 5;
	/* An address handle can now use the new GID. */
	struct ibv_pd *pd = ibv_alloc_pd(own);
	struct ibv_ah_attr to = { .port_num = 1, .is_global = 1, .grh = { .sgid_index = 1, .hop_limit = 1, .dgid = gid } };
	struct ibv_ah *ah = pd ? ibv_create_ah(pd, &to) : NULL;
	bad |= !ah << 6;
	if (ah)
		ibv_destroy_ah(ah);
	control("gid-change");
	bad |= !next_of_port(own, IBV_EVENT_GID_CHANGE) << 3;
	bad |= indices(own, pd, s) << 8;
	close(s);
	bad |= (ibv_dealloc_pd(pd) || ibv_close_device(own)) << 7;
	return bad;
}

static void addresses(struct end *e)
{
	printf("-- addresses\n");
	long bad = end_run(e, with_own_network, NULL, 0);
	if (bad < 0)
		printf("skipped: no network namespace here (%s)\n", strerror((int)-bad));
	else
		check_eq(bad, 0, "mistakes (bits) with an address that came: it is found after IBV_EVENT_GID_CHANGE");
	end_free(e);
}

static void fatal(void)
{
	begin("device", defaults());
	receives(a, 1);
	receives(b, 1);
	end_send(a, request(ba, IBV_WR_SEND, 1));
	sent(a, 1, IBV_WC_SUCCESS);
	control("device-fatal");
	event(IBV_EVENT_DEVICE_FATAL);
	check_eq(end_async(a), IBV_EVENT_DEVICE_FATAL, "every context hears of it");
	struct ibv_wc w = end_wait(a, RECVS);
	check(w.wr_id == 1 && w.status == IBV_WC_WR_FLUSH_ERR, "receives are flushed");
	check_eq(end_state_soon(a, IBV_QPS_ERR), IBV_QPS_ERR, "the QP's state");
	/* The fault has no lasting effect: a new connection works. */
	state(IBV_PORT_ACTIVE);
	pair_close(a, b);
	pair_open(a, b, defaults(), &aa, &ba);
	receives(b, 1);
	end_send(a, request(ba, IBV_WR_SEND, 1));
	sent(a, 1, IBV_WC_SUCCESS);
	received(b, 1);
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
	struct end *victim[4];
	for (int i = 0; i < 4 && two; i++)
		victim[i] = end_new(1);
	struct end *moved = end_new(1);
	a = end_new(0);
	by_operation();
	setting(a, "FERROVERBS_SOFT_CONTROL=ports-control-%p");
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
	for (int i = 0; i < 4 && two; i++)
		peer_dies(victim[i], i & 2 ? IBV_QPT_UC : IBV_QPT_RC, i & 1);
	addresses(moved);
	connected_meanwhile();
	events();
	rules();
	fatal();
	check(!pipe_is_there(), "no pipe is left");
	end_free(a);
	end_free(b);
	return finish();
}
