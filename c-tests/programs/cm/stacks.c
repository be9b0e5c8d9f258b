/*
 * The stack that calls need: 8 KiB at most, so threads of 16 KiB (PTHREAD_STACK_MIN) and user-level
 * threads of that size can make the calls. Server and client, two processes, create objects,
 * connect, exchange messages of all kinds and sizes, and end. The argument selects the data path:
 *
 * `near`: shared memory. `copied`: shared memory without cross-memory attach. `far`: RoCE v2 over
 * loopback in a network namespace.
 *
 * Each call is measured: the stack below the caller is painted before the call and inspected after
 * it. Then a thread of 16 KiB makes the same calls.
 *
 * Map of this file: `paint` and `depth` measure the stack; `DEEP` and `MUST` wrap a measured call.
 * `meet` and `exchange` synchronise the two processes; `give_receive`, `give_send` and `poll_for`
 * move data; `converse` exchanges all messages. `serve` and `ask` connect by librdmacm in
 * `connected`; `by_hand` connects by ibv_modify_qp; `all` calls both. `play` measures all calls in
 * one process, then repeats them in a thread with a small stack. `main` chooses the data path by
 * its argument and forks the server; the parent process is the client.
 */
#define _GNU_SOURCE
#include "checks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 8192, AREA = 96 << 10, PAINT = 0x5a, BUFFER = 4 << 20, WIDTH = 64, STACK = 16384, LIMIT = 60 };

/* Whether calls are measured; the thread with a small stack neither paints nor prints. */
static int measures = 1;
static const char *side;

/* The stack below the caller. paint() and depth() use the same bytes. */
static __attribute__((noinline)) void paint(void)
{
	unsigned char area[AREA];

	memset(area, PAINT, sizeof(area));
	__asm__ volatile("" : : "r"(area) : "memory");
}

static __attribute__((noinline)) size_t depth(void)
{
	unsigned char area[AREA];
	unsigned char *at = area;
	size_t untouched = 0;

	/*
	 * Keeps the compiler from assuming the content of the array, which is uninitialised here.
	 */
	__asm__ volatile("" : "+r"(at) : : "memory");
	while (untouched < AREA && at[untouched] == PAINT)
		untouched++;
	return AREA - untouched;
}

static void measured(const char *call, size_t bytes)
{
	/* Each call is printed once, and again when it needs more stack. */
	static struct { const char *call; size_t bytes; } known[256];
	size_t i = 0;

	while (i < 255 && known[i].call && strcmp(known[i].call, call))
		i++;
	if (known[i].call && known[i].bytes >= bytes)
		return;
	known[i].call = call;
	known[i].bytes = bytes;
	printf("%s: %s: %s needs %zu bytes of stack\n", bytes <= MOST ? "ok" : "FAILED", side, call, bytes);
	failures += bytes > MOST;
}

#define DEEP(call)                                                       \
	({                                                               \
		if (measures)                                            \
			paint();                                         \
		__typeof__(call) result = (call);                        \
		int why = errno;                                         \
		if (measures)                                            \
			measured(#call, depth());                    \
		errno = why;                                             \
		result;                                                  \
	})

/* Measures a call that must succeed; a failure ends the process. */
#define MUST(call)                                                       \
	do {                                                             \
		if (!DEEP(call)) {                                       \
			int why = errno;                                 \
			printf("FAILED: %s: %s: %s\n", side, #call, strerror(why)); \
			exit(1);                                         \
		}                                                        \
	} while (0)

/* The socket to the other process. */
static int other;

static void meet(void)
{
	char byte = 0;

	if (write(other, &byte, 1) != 1 || read(other, &byte, 1) != 1) {
		printf("FAILED: %s: the other side has ended\n", side);
		exit(1);
	}
}

static void exchange(const void *own, void *others, size_t length)
{
	if (write(other, own, length) != (ssize_t)length || read(other, others, length) != (ssize_t)length) {
		printf("FAILED: %s: the other side has ended\n", side);
		exit(1);
	}
}

/* One side's objects. */
struct side {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *id;
	struct rdma_cm_event *event;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *events;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_qp *qp;
	unsigned char *buffer;
	struct where { uint64_t address; uint32_t key, number; union ibv_gid gid; } own, peer;
};
static struct side s;
static struct sockaddr_in at = { .sin_family = AF_INET };

static int expect(enum rdma_cm_event_type type)
{
	MUST(!rdma_get_cm_event(s.channel, &s.event));
	if (s.event->event == type)
		return 1;
	printf("FAILED: %s: %s instead of %s, %d\n", side, rdma_event_str(s.event->event), rdma_event_str(type), s.event->status);
	exit(1);
}

static void acknowledge(void)
{
	MUST(!rdma_ack_cm_event(s.event));
}

static void take(enum rdma_cm_event_type type)
{
	expect(type);
	acknowledge();
}

static void make_objects(struct ibv_context *context)
{
	s.context = context;
	MUST((s.pd = ibv_alloc_pd(context)) != NULL);
	MUST((s.events = ibv_create_comp_channel(context)) != NULL);
	MUST((s.cq = ibv_create_cq(context, 1024, NULL, s.events, 0)) != NULL);
	MUST((s.mr = ibv_reg_mr(s.pd, s.buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)) != NULL);
	s.own.address = (uintptr_t)s.buffer;
	s.own.key = s.mr->rkey;
}

static struct ibv_qp_init_attr wanted(enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr) {
		.send_cq = s.cq, .recv_cq = s.cq, .srq = type == IBV_QPT_RC ? s.srq : NULL, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 256, .max_recv_wr = 256, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64 },
	};
}

static void give_receive(size_t offset, uint32_t length)
{
	struct ibv_sge place = { (uintptr_t)s.buffer + offset, length, s.mr->lkey };
	struct ibv_recv_wr request = { .sg_list = &place, .num_sge = 1 }, *bad;

	if (s.srq && s.qp->qp_type == IBV_QPT_RC)
		MUST(!ibv_post_srq_recv(s.srq, &request, &bad));
	else
		MUST(!ibv_post_recv(s.qp, &request, &bad));
}

static void give_send(enum ibv_wr_opcode opcode, uint32_t length)
{
	/* An atomic uses the first eight bytes of the buffer; any other request has two pieces. */
	int is_atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	struct ibv_sge places[2] = {
		{ (uintptr_t)s.buffer, is_atomic ? 8 : length / 2, s.mr->lkey },
		{ (uintptr_t)s.buffer + length / 2, length - length / 2, s.mr->lkey },
	};
	struct ibv_send_wr request = {
		.sg_list = places, .num_sge = is_atomic ? 1 : 2, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
	}, *bad;

	if (s.qp->qp_type == IBV_QPT_UD) {
		request.wr.ud.ah = s.ah;
		request.wr.ud.remote_qpn = s.peer.number;
		request.wr.ud.remote_qkey = RDMA_UDP_QKEY;
	} else if (is_atomic) {
		request.wr.atomic.remote_addr = s.peer.address;
		request.wr.atomic.rkey = s.peer.key;
	} else {
		request.wr.rdma.remote_addr = s.peer.address;
		request.wr.rdma.rkey = s.peer.key;
	}
	MUST(!ibv_post_send(s.qp, &request, &bad));
}

/* Polls until `sends` completions of sends and `receives` completions of receives have come. */
static void poll_for(int sends, int receives)
{
	struct ibv_wc wc;

	while (sends > 0 || receives > 0) {
		int got = DEEP(ibv_poll_cq(s.cq, 1, &wc));

		if (got < 0 || (got && wc.status)) {
			printf("FAILED: %s: polling: %d, %s\n", side, got, got > 0 ? ibv_wc_status_str(wc.status) : "");
			exit(1);
		}
		if (got && wc.opcode & IBV_WC_RECV)
			receives--;
		else if (got)
			sends--;
	}
}

/* Sleeps until a completion is available. */
static void sleep_for(int sends, int receives)
{
	struct ibv_cq *cq;
	void *context;

	MUST(!ibv_req_notify_cq(s.cq, 0));
	MUST(!ibv_get_cq_event(s.events, &cq, &context));
	DEEP((ibv_ack_cq_events(cq, 1), 0));
	poll_for(sends, receives);
}

/* Both sides send at once. */
static void cross(enum ibv_wr_opcode opcode, uint32_t length, int count, int receives)
{
	for (int i = 0; i < receives; i++)
		give_receive(BUFFER / 2, BUFFER / 2);
	meet();
	for (int i = 0; i < count; i++)
		give_send(opcode, length);
	poll_for(count, receives);
	meet();
}

static void converse(void)
{
	static const uint32_t lengths[] = { 8, 2000, 60000, 1 << 20 };
	int is_reliable = s.qp->qp_type == IBV_QPT_RC, is_datagram = s.qp->qp_type == IBV_QPT_UD;

	for (int i = 0; i < (is_datagram ? 1 : 4); i++) {
		/* An unreliable transport may lose messages if no thread polls. */
		int many = is_reliable ? lengths[i] > 100000 ? 3 : WIDTH : 1;

		cross(IBV_WR_SEND, lengths[i], many, many);
		if (is_datagram)
			continue;
		cross(IBV_WR_RDMA_WRITE_WITH_IMM, lengths[i], many, many);
		cross(IBV_WR_RDMA_WRITE, lengths[i], many, 0);
		if (is_reliable)
			cross(IBV_WR_RDMA_READ, lengths[i], many, 0);
	}
	if (is_reliable) {
		cross(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 3, 0);
		cross(IBV_WR_ATOMIC_CMP_AND_SWP, 8, 3, 0);
	}
	/* One side sleeps until the peer sends. */
	give_receive(BUFFER / 2, BUFFER / 2);
	meet();
	if (!strcmp(side, "server")) {
		sleep_for(0, 1);
		give_send(IBV_WR_SEND, 8);
		poll_for(1, 0);
	} else {
		give_send(IBV_WR_SEND, 8);
		poll_for(1, 1);
	}
	meet();
}

static void forget_objects(void)
{
	MUST(!ibv_dereg_mr(s.mr));
	if (s.srq)
		MUST(!ibv_destroy_srq(s.srq));
	s.srq = NULL;
	MUST(!ibv_destroy_cq(s.cq));
	MUST(!ibv_destroy_comp_channel(s.events));
	MUST(!ibv_dealloc_pd(s.pd));
}

static void ready(struct rdma_cm_id *id, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init;

	make_objects(id->verbs);
	init = wanted(type);
	MUST(!rdma_create_qp(id, s.pd, &init));
	s.qp = id->qp;
	s.own.number = s.qp->qp_num;
}

static void serve(enum rdma_port_space space)
{
	struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4, .rnr_retry_count = 7 };

	MUST((s.channel = rdma_create_event_channel()) != NULL);
	MUST(!rdma_create_id(s.channel, &s.listener, NULL, space));
	at.sin_port = 0;
	MUST(!rdma_bind_addr(s.listener, (struct sockaddr *)&at));
	at.sin_port = DEEP(rdma_get_src_port(s.listener));
	MUST(!rdma_listen(s.listener, 8));
	if (write(other, &at, sizeof(at)) != sizeof(at))
		exit(1);
	/* The first request is rejected, the second one accepted. */
	expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	s.id = s.event->id;
	acknowledge();
	MUST(!rdma_reject(s.id, NULL, 0));
	MUST(!rdma_destroy_id(s.id));
	expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	s.id = s.event->id;
	acknowledge();
	ready(s.id, space == RDMA_PS_TCP ? IBV_QPT_RC : IBV_QPT_UD);
	MUST(!rdma_accept(s.id, &param));
	if (space == RDMA_PS_TCP)
		take(RDMA_CM_EVENT_ESTABLISHED);
}

static void resolve(enum rdma_port_space space)
{
	MUST(!rdma_create_id(s.channel, &s.id, NULL, space));
	MUST(!rdma_resolve_addr(s.id, NULL, (struct sockaddr *)&at, 2000));
	take(RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(!rdma_resolve_route(s.id, 2000));
	take(RDMA_CM_EVENT_ROUTE_RESOLVED);
}

static void ask(enum rdma_port_space space)
{
	struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7 };
	int is_stream = space == RDMA_PS_TCP;

	if (read(other, &at, sizeof(at)) != sizeof(at))
		exit(1);
	MUST((s.channel = rdma_create_event_channel()) != NULL);
	resolve(space);
	MUST(!rdma_connect(s.id, &param));
	take(is_stream ? RDMA_CM_EVENT_REJECTED : RDMA_CM_EVENT_UNREACHABLE);
	MUST(!rdma_destroy_id(s.id));
	resolve(space);
	ready(s.id, is_stream ? IBV_QPT_RC : IBV_QPT_UD);
	MUST(!rdma_connect(s.id, &param));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	if (!is_stream)
		MUST((s.ah = ibv_create_ah(s.pd, &s.event->param.ud.ah_attr)) != NULL);
	acknowledge();
}

/* A connection by the connection manager, and its messages. */
static void connected(enum rdma_port_space space)
{
	int is_server = !strcmp(side, "server");

	if (is_server)
		serve(space);
	else
		ask(space);
	if (space == RDMA_PS_UDP && is_server) {
		/* The server takes the client's address from the completion of the first
		 * datagram. */
		struct ibv_wc wc;

		give_receive(BUFFER / 2, 4096);
		exchange(&s.own, &s.peer, sizeof(s.own));
		meet();
		while (!DEEP(ibv_poll_cq(s.cq, 1, &wc)))
			;
		MUST((s.ah = ibv_create_ah_from_wc(s.pd, &wc, (struct ibv_grh *)(s.buffer + BUFFER / 2), 1)) != NULL);
	} else {
		exchange(&s.own, &s.peer, sizeof(s.own));
		if (space == RDMA_PS_UDP) {
			meet();
			give_send(IBV_WR_SEND, 8);
			poll_for(1, 0);
		}
	}
	converse();
	if (space == RDMA_PS_TCP) {
		MUST(!rdma_disconnect(s.id));
		take(RDMA_CM_EVENT_DISCONNECTED);
	} else {
		MUST(!ibv_destroy_ah(s.ah));
	}
	DEEP((rdma_destroy_qp(s.id), 0));
	MUST(!rdma_destroy_id(s.id));
	if (is_server)
		MUST(!rdma_destroy_id(s.listener));
	DEEP((rdma_destroy_event_channel(s.channel), 0));
	forget_objects();
	meet();
}

/* QPs that the program connects without the connection manager, by the address in `at`. */
static void by_hand(struct ibv_context *context, enum ibv_qp_type type, int shares)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 256, .max_sge = 4 } };
	struct ibv_qp_init_attr init;
	union ibv_gid own = { .raw = { [10] = 0xff, [11] = 0xff } };
	int index = 0, reliable = type == IBV_QPT_RC;

	memcpy(own.raw + 12, &at.sin_addr, 4);
	make_objects(context);
	if (shares)
		MUST((s.srq = ibv_create_srq(s.pd, &shared)) != NULL);
	init = wanted(type);
	MUST((s.qp = ibv_create_qp(s.pd, &init)) != NULL);
	while (DEEP(ibv_query_gid(context, 1, index, &s.own.gid)) == 0 && memcmp(&s.own.gid, &own, sizeof(own)))
		index++;
	s.own.number = s.qp->qp_num;
	exchange(&s.own, &s.peer, sizeof(s.own));
	MUST(!ibv_modify_qp(s.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = s.peer.number, .max_dest_rd_atomic = 4,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = s.peer.gid, .sgid_index = index, .hop_limit = 64 } },
	};
	MUST(!ibv_modify_qp(s.qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
	MUST(!ibv_modify_qp(s.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
	meet();
	if (reliable)
		converse();
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_ERR };
	MUST(!ibv_modify_qp(s.qp, &attr, IBV_QP_STATE));
	MUST(!ibv_query_qp(s.qp, &attr, IBV_QP_STATE, &init));
	MUST(!ibv_destroy_qp(s.qp));
	forget_objects();
	meet();
}

static void all(struct ibv_context *context)
{
	struct ibv_port_attr port;
	struct ibv_device_attr device;
	struct sockaddr_in own = at;

	MUST(!ibv_query_port(context, 1, &port));
	MUST(!ibv_query_device(context, &device));
	by_hand(context, IBV_QPT_RC, 0);
	by_hand(context, IBV_QPT_RC, 1);
	by_hand(context, IBV_QPT_UC, 0);
	connected(RDMA_PS_TCP);
	at = own;
	connected(RDMA_PS_UDP);
	at = own;
}

static void *with_small_stack(void *context)
{
	all(context);
	return NULL;
}

/* Opens and closes the device. */
static void *opening(void *device)
{
	struct ibv_context *context = ibv_open_device(device);

	NEED(context != NULL);
	NEED(!ibv_close_device(context));
	return context;
}

/* The first address of an interface that the device has. */
static void find_address(struct ibv_context *context)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	union ibv_gid gid;

	for (int index = 0; ibv_query_gid(context, 1, index, &gid) == 0; index++)
		if (!memcmp(gid.raw, mapped, sizeof(mapped))) {
			memcpy(&at.sin_addr, gid.raw + 12, 4);
			return;
		}
	need(0, "an IPv4 address of an interface");
}

static int play(const char *name, int socket)
{
	struct ibv_context *context;
	struct ibv_device **list;
	pthread_attr_t attributes;
	pthread_t thread;

	side = name;
	other = socket;
	s.buffer = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(s.buffer != MAP_FAILED);
	/* ibv_get_device_list loads plugins. It is not measured, because the dynamic linker
	 * determines its stack. */
	NEED((list = ibv_get_device_list(NULL)) != NULL && list[0]);
	NEED(!pthread_attr_init(&attributes) && !pthread_attr_setstacksize(&attributes, STACK));
	NEED(!pthread_create(&thread, &attributes, opening, list[0]) && !pthread_join(thread, NULL));
	printf("ok: %s: a thread of 16 KiB can open and close the device\n", side);
	MUST(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	find_address(context);
	all(context);
	measures = 0;
	NEED(!pthread_attr_init(&attributes) && !pthread_attr_setstacksize(&attributes, STACK));
	NEED(!pthread_create(&thread, &attributes, with_small_stack, context) && !pthread_join(thread, NULL));
	printf("ok: %s: a thread of 16 KiB can do all of that\n", side);
	return failures != 0;
}

static void write_to(const char *file, const char *format, unsigned id)
{
	int fd = open(file, O_WRONLY);

	NEED(fd >= 0 && dprintf(fd, format, id, id) > 0 && !close(fd));
}

/* Enters a network namespace with only a loopback interface and an address that a device can have.
 * No other process uses the UDP port there. */
static void leave_network(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a630001) };
	unsigned user = geteuid(), group = getegid();
	int fd;

	if (unshare(CLONE_NEWNET)) {
		NEED(!unshare(CLONE_NEWUSER | CLONE_NEWNET));
		write_to("/proc/self/setgroups", "deny", 0);
		write_to("/proc/self/uid_map", "%u %u 1", user);
		write_to("/proc/self/gid_map", "%u %u 1", group);
	}
	NEED((fd = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	NEED(!ioctl(fd, SIOCGIFFLAGS, &request));
	request.ifr_flags |= IFF_UP;
	NEED(!ioctl(fd, SIOCSIFFLAGS, &request));
	strcpy(request.ifr_name, "lo:1");
	memcpy(&request.ifr_addr, &own, sizeof(own));
	NEED(!ioctl(fd, SIOCSIFADDR, &request) && !close(fd));
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "near";
	int sockets[2], status = 1;
	pid_t server;

	if (!strcmp(mode, "copied"))
		NEED(!setenv("FERROVERBS_SOFT_CMA", "off", 1));
	NEED(!setenv("FERROVERBS_SOFT_WIRE", strcmp(mode, "far") ? "off" : "always", 1));
	if (!strcmp(mode, "far"))
		leave_network();
	alarm(LIMIT);
	setvbuf(stdout, NULL, _IOLBF, 1 << 12);
	NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	NEED((server = fork()) >= 0);
	close(sockets[server != 0]);
	if (!server) {
		NEED(!prctl(PR_SET_PDEATHSIG, SIGKILL));
		return play("server", sockets[1]);
	}
	failures = play("client", sockets[0]);
	CHECK(waitpid(server, &status, 0) == server && status == 0);
	return failures != 0;
}
