/*
 * Drives librdmacm over the recording kernel of kernel.c. Prints the kernel's commands, the results
 * of calls and their output. The output must be equal for the system's librdmacm and Ferroverbs'.
 *
 * usage: commands [abi=N] [old] [no-indices] [iwarp] [ece] [fail=COMMAND:ERRNO] [names]
 *        commands where (prints the library's path)
 *
 * Map of this file: `CALL` prints a call and its result; `show` prints an id; `get` prints an
 * event. `tells` and `tells_ud` fill events of the kernel. `options` sets options of an id;
 * `passive` accepts and rejects connection requests; `active` connects to peers. `addresses` tests
 * unreachable and refused addresses; `datagrams` tests UD and multicast; `synchronous` tests ids
 * without a channel. `moves` migrates an id between channels; `names` tests rdma_getaddrinfo.
 * `main` prints the library's path, or reads the options of the recording kernel and calls `names`
 * or `all`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The kernel's header and librdmacm's name the same things. */
#define RDMA_PS_IPOIB CM_PS_IPOIB
#define RDMA_PS_IB CM_PS_IB
#define RDMA_PS_TCP CM_PS_TCP
#define RDMA_PS_UDP CM_PS_UDP
#define RDMA_OPTION_ID CM_OPTION_ID
#define RDMA_OPTION_IB CM_OPTION_IB
#define RDMA_OPTION_ID_TOS CM_OPTION_ID_TOS
#define RDMA_OPTION_ID_REUSEADDR CM_OPTION_ID_REUSEADDR
#define RDMA_OPTION_ID_AFONLY CM_OPTION_ID_AFONLY
#define RDMA_OPTION_ID_ACK_TIMEOUT CM_OPTION_ID_ACK_TIMEOUT
#define RDMA_OPTION_IB_PATH CM_OPTION_IB_PATH
#define RDMA_MC_JOIN_FLAG_FULLMEMBER CM_MC_JOIN_FLAG_FULLMEMBER
#define RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER CM_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
#define RDMA_MC_JOIN_FLAG_RESERVED CM_MC_JOIN_FLAG_RESERVED
#include <infiniband/sa.h>
#include <rdma/rdma_cma.h>
#undef RDMA_PS_IPOIB
#undef RDMA_PS_IB
#undef RDMA_PS_TCP
#undef RDMA_PS_UDP
#undef RDMA_OPTION_ID
#undef RDMA_OPTION_IB
#undef RDMA_OPTION_ID_TOS
#undef RDMA_OPTION_ID_REUSEADDR
#undef RDMA_OPTION_ID_AFONLY
#undef RDMA_OPTION_ID_ACK_TIMEOUT
#undef RDMA_OPTION_IB_PATH
#undef RDMA_MC_JOIN_FLAG_FULLMEMBER
#undef RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
#undef RDMA_MC_JOIN_FLAG_RESERVED
#include "shim.h"

/* Prints a call, its result and errno. errno is 0 before the call, which shows calls that do not
 * set errno. */
#define CALL(call)									\
	({										\
		int result_;								\
											\
		shim_note("%s\n", #call);						\
		errno = 0;								\
		result_ = (call);							\
		shim_note("  = %d", result_);						\
		if (result_)								\
			shim_note(" errno %d", errno);					\
		shim_note("\n");							\
		result_;								\
	})

static struct rdma_event_channel *channel;

static struct sockaddr *v4(const char *text, uint16_t port)
{
	static struct sockaddr_in addresses[4];
	static int next;
	struct sockaddr_in *in = &addresses[next++ % 4];

	memset(in, 0, sizeof(*in));
	in->sin_family = AF_INET;
	in->sin_port = htons(port);
	inet_pton(AF_INET, text, &in->sin_addr);
	return (struct sockaddr *)in;
}

static struct sockaddr *v6(const char *text, uint16_t port)
{
	static struct sockaddr_in6 addresses[4];
	static int next;
	struct sockaddr_in6 *in = &addresses[next++ % 4];

	memset(in, 0, sizeof(*in));
	in->sin6_family = AF_INET6;
	in->sin6_port = htons(port);
	inet_pton(AF_INET6, text, &in->sin6_addr);
	return (struct sockaddr *)in;
}

static void show(const struct rdma_cm_id *id)
{
	shim_note("  id: verbs %d pd %d qp %d ps %#x type %d port %d event %d paths %d source %u destination %u", !!id->verbs, !!id->pd,
		  !!id->qp, id->ps, id->qp_type, id->port_num, !!id->event, id->route.num_paths, ntohs(rdma_get_src_port((void *)id)),
		  ntohs(rdma_get_dst_port((void *)id)));
	shim_bytes("src", &id->route.addr.src_storage, 48);
	shim_bytes("dst", &id->route.addr.dst_storage, 48);
	shim_bytes("gids", &id->route.addr.addr.ibaddr, 34);
	for (int p = 0; id->route.path_rec && p < id->route.num_paths; p++) {
		const struct ibv_sa_path_rec *path = &id->route.path_rec[p];

		shim_bytes("path", path, 46);
		shim_note(" %d %u %#x %u %u %u %u %u %u %u %u", path->reversible, path->numb_path, path->pkey, path->sl,
			  path->mtu_selector, path->mtu, path->rate_selector, path->rate, path->packet_life_time_selector,
			  path->packet_life_time, path->preference);
	}
	shim_note("\n");
}

/* Takes the next event without acknowledging it. */
static struct rdma_cm_event *get(struct rdma_event_channel *from)
{
	struct rdma_cm_event *event = NULL;

	if (CALL(rdma_get_cm_event(from, &event)))
		return NULL;
	shim_note("  event %u status %d listener %d id %d", event->event, event->status, !!event->listen_id, !!event->id);
	if (event->id && event->id->qp_type == IBV_QPT_UD) {
		const struct rdma_ud_param *ud = &event->param.ud;

		shim_note(" qp %#x qkey %#x data %u", ud->qp_num, ud->qkey, ud->private_data_len);
		shim_bytes("dgid", &ud->ah_attr.grh, 24);
		shim_note(" lid %u sl %u port %u", ud->ah_attr.dlid, ud->ah_attr.sl, ud->ah_attr.port_num);
		/* In events of multicast groups, private_data is the program's context without a
		 * length. */
		if (event->event != RDMA_CM_EVENT_MULTICAST_JOIN && event->event != RDMA_CM_EVENT_MULTICAST_ERROR)
			shim_bytes("is", ud->private_data, ud->private_data ? ud->private_data_len : 0);
		else
			shim_note(" context %#lx", (unsigned long)(uintptr_t)ud->private_data);
	} else {
		const struct rdma_conn_param *conn = &event->param.conn;

		shim_note(" qp %#x resources %u depth %u flow %u retry %u rnr %u srq %u data %u", conn->qp_num, conn->responder_resources,
			  conn->initiator_depth, conn->flow_control, conn->retry_count, conn->rnr_retry_count, conn->srq,
			  conn->private_data_len);
		shim_bytes("is", conn->private_data, conn->private_data ? conn->private_data_len : 0);
	}
	shim_note("\n");
	return event;
}

static void get_and_ack(struct rdma_event_channel *from)
{
	struct rdma_cm_event *event = get(from);

	if (event) {
		show(event->id);
		CALL(rdma_ack_cm_event(event));
	}
}

/* Connection parameters that a peer sends. */
static void tells(struct rdma_ucm_event_resp *event)
{
	struct rdma_ucm_conn_param *conn = &event->param.conn;

	memset(conn->private_data, 0x5a, 56);
	conn->private_data_len = 56;
	conn->qp_num = 0x77;
	conn->responder_resources = 20;
	conn->initiator_depth = 3;
	conn->flow_control = 1;
	conn->retry_count = 6;
	conn->rnr_retry_count = 5;
	conn->srq = 1;
	if (shim.ece) {
		event->ece.vendor_id = 0x15b3;
		event->ece.attr_mod = 0x33;
	}
}

static void tells_ud(struct rdma_ucm_event_resp *event)
{
	struct rdma_ucm_ud_param *ud = &event->param.ud;

	memset(&ud->ah_attr, 0x21, sizeof(ud->ah_attr));
	ud->qp_num = 0x88;
	ud->qkey = 0x99;
	memset(ud->private_data, 0x6b, 40);
	ud->private_data_len = 40;
}

static int make_qp(struct rdma_cm_id *id, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = { .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = type };

	if (!id->verbs)
		return -1;
	return CALL(rdma_create_qp(id, NULL, &attr));
}

static struct rdma_cm_id *make(enum rdma_port_space ps)
{
	struct rdma_cm_id *id = NULL;

	CALL(rdma_create_id(channel, &id, (void *)0x55, ps));
	return id;
}

static void destroy(struct rdma_cm_id *id)
{
	if (id->qp) {
		shim_note("rdma_destroy_qp\n");
		rdma_destroy_qp(id);
	}
	CALL(rdma_destroy_id(id));
}

static const char greeting[] = "good day";
static struct rdma_conn_param wanted = { .private_data = greeting, .private_data_len = sizeof(greeting), .responder_resources = 4,
	.initiator_depth = 5, .flow_control = 1, .retry_count = 3, .rnr_retry_count = 2, .srq = 1, .qp_num = 0x4321 };
static struct rdma_conn_param most = { .responder_resources = RDMA_MAX_RESP_RES, .initiator_depth = RDMA_MAX_INIT_DEPTH };
static struct rdma_conn_param too_many = { .responder_resources = 11, .initiator_depth = 1 };

static void options(struct rdma_cm_id *id)
{
	struct ibv_path_data paths[2] = { { .flags = 7, .path = { .service_id = 5, .pkey = 6 } }, { .flags = 8, .path = { .reversible_numpath = 1 } } };
	uint8_t tos = 0x20, timeout = 14;
	int yes = 1;

	CALL(rdma_set_option(id, CM_OPTION_ID, CM_OPTION_ID_TOS, &tos, sizeof(tos)));
	CALL(rdma_set_option(id, CM_OPTION_ID, CM_OPTION_ID_REUSEADDR, &yes, sizeof(yes)));
	CALL(rdma_set_option(id, CM_OPTION_ID, CM_OPTION_ID_AFONLY, &yes, sizeof(yes)));
	CALL(rdma_set_option(id, CM_OPTION_ID, CM_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)));
	CALL(rdma_set_option(id, CM_OPTION_IB, CM_OPTION_IB_PATH, paths, sizeof(paths)));
	/* The kernel refuses unknown options; the library passes them on. */
	CALL(rdma_set_option(id, 9, 8, &yes, 3));
}

/* Connection requests that the program accepts in several ways, or rejects. */
static void passive(void)
{
	uint32_t own = shim_next_handle();
	struct rdma_cm_id *listener = make(CM_PS_TCP);

	if (!listener)
		return;
	options(listener);
	CALL(rdma_bind_addr(listener, v4("10.0.0.1", 7001)));
	show(listener);
	CALL(rdma_listen(listener, 5));
	show(listener);
	for (int way = 0; way < 6; way++) {
		struct rdma_ucm_event_resp *request = shim_request(own);
		struct rdma_cm_event *event;
		struct rdma_cm_id *id;
		uint32_t handle = request->id;

		tells(request);
		event = get(channel);
		if (!event || event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
			if (event)
				CALL(rdma_ack_cm_event(event));
			continue;
		}
		id = event->id;
		shim_note("  context %#lx\n", (unsigned long)(uintptr_t)id->context);
		show(id);
		CALL(rdma_ack_cm_event(event));
		switch (way) {
		case 0:
			if (make_qp(id, IBV_QPT_RC))
				break;
			if (CALL(rdma_accept(id, &wanted)))
				break;
			shim_event(handle, RDMA_CM_EVENT_ESTABLISHED, 0);
			get_and_ack(channel);
			tells(shim_event(handle, RDMA_CM_EVENT_DISCONNECTED, 0));
			get_and_ack(channel);
			CALL(rdma_disconnect(id));
			shim_event(handle, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
			get_and_ack(channel);
			break;
		case 1: /* the most resources that the device and the peer support */
			if (make_qp(id, IBV_QPT_RC))
				break;
			CALL(rdma_accept(id, &most));
			CALL(rdma_notify(id, IBV_EVENT_COMM_EST));
			break;
		case 2: /* the program's own queue pair */
			CALL(rdma_accept(id, &wanted));
			break;
		case 3:
			CALL(rdma_accept(id, &too_many));
			CALL(rdma_reject(id, greeting, sizeof(greeting)));
			break;
		case 4: {
			struct ibv_ece ece = { .vendor_id = 1, .options = 2, .comp_mask = 0 };

			CALL(rdma_get_remote_ece(id, &ece));
			shim_note("  ECE %#x %#x\n", ece.vendor_id, ece.options);
			ece.vendor_id = 0x15b3;
			CALL(rdma_set_local_ece(id, &ece));
			CALL(rdma_reject_ece(id, NULL, 0));
			break;
		}
		case 5: /* events of an id before rdma_accept, so the kernel has no uid of the id */
			shim_event(handle, RDMA_CM_EVENT_ESTABLISHED, 0);
			get_and_ack(channel);
			shim_event(handle, RDMA_CM_EVENT_DISCONNECTED, 0);
			get_and_ack(channel);
			break;
		}
		destroy(id);
	}
	destroy(listener);
}

static struct rdma_cm_id *resolved(uint32_t *handle, int family)
{
	struct rdma_cm_id *id;

	*handle = shim_next_handle();
	id = make(CM_PS_TCP);
	if (!id)
		return NULL;
	if (family == 6 ? CALL(rdma_resolve_addr(id, v6("fd00::1", 0), v6("fd00::2", 7), 900)) :
			  CALL(rdma_resolve_addr(id, NULL, v4("10.0.0.2", 7002), 1000))) {
		destroy(id);
		return NULL;
	}
	shim_event(*handle, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	get_and_ack(channel);
	if (!id->verbs) {
		destroy(id);
		return NULL;
	}
	CALL(rdma_resolve_route(id, 2000));
	shim_event(*handle, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	get_and_ack(channel);
	return id;
}

/* Connections to peers that accept, reject, or are unreachable. */
static void active(void)
{
	for (int way = 0; way < 6; way++) {
		uint32_t handle;
		struct rdma_cm_id *id = resolved(&handle, way == 0 ? 6 : 4);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
		int mask = 0;

		if (!id)
			continue;
		switch (way) {
		case 0:
		case 1:
			if (make_qp(id, IBV_QPT_RC) || CALL(rdma_connect(id, way ? NULL : &wanted)))
				break;
			tells(shim_event(handle, RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
			get_and_ack(channel);
			CALL(rdma_disconnect(id));
			tells(shim_event(handle, RDMA_CM_EVENT_DISCONNECTED, 0));
			get_and_ack(channel);
			break;
		case 2: /* the program's own queue pair */
			CALL(rdma_connect(id, NULL));
			CALL(rdma_connect(id, &too_many));
			CALL(rdma_connect(id, &wanted));
			tells(shim_event(handle, RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
			get_and_ack(channel);
			for (attr.qp_state = IBV_QPS_INIT; attr.qp_state <= IBV_QPS_RTS; attr.qp_state++) {
				CALL(rdma_init_qp_attr(id, &attr, &mask));
				shim_note("  mask %#x state %u mtu %u dest %#x psn %#x timeout %u\n", mask, attr.qp_state, attr.path_mtu,
					  attr.dest_qp_num, attr.rq_psn, attr.timeout);
			}
			CALL(rdma_establish(id));
			break;
		case 3:
			if (make_qp(id, IBV_QPT_RC))
				break;
			CALL(rdma_establish(id));
			CALL(rdma_connect(id, &most));
			tells(shim_event(handle, RDMA_CM_EVENT_REJECTED, 28));
			get_and_ack(channel);
			break;
		case 4: /* a peer of another vendor */
			if (make_qp(id, IBV_QPT_RC) || CALL(rdma_connect(id, &wanted)))
				break;
			shim_event(handle, RDMA_CM_EVENT_CONNECT_RESPONSE, 0)->ece.vendor_id = 0xabc;
			get_and_ack(channel);
			shim_event(handle, RDMA_CM_EVENT_REJECTED, 4);
			shim_event(handle, RDMA_CM_EVENT_DISCONNECTED, 0);
			get_and_ack(channel);
			break;
		case 5:
			shim_event(handle, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
			get_and_ack(channel);
			shim_event(handle, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
			get_and_ack(channel);
			shim_event(handle, RDMA_CM_EVENT_ADDR_CHANGE, 0);
			get_and_ack(channel);
			break;
		}
		destroy(id);
	}
}

/* Kernel answers to unreachable addresses, and arguments that the library refuses. */
static void addresses(void)
{
	uint32_t handle = shim_next_handle();
	struct rdma_cm_id *id = make(CM_PS_TCP);
	struct sockaddr none = { .sa_family = 99 };

	if (!id)
		return;
	CALL(rdma_bind_addr(id, &none));
	CALL(rdma_resolve_addr(id, NULL, &none, 1));
	CALL(rdma_resolve_addr(id, &none, v4("10.0.0.2", 1), 1));
	CALL(rdma_bind_addr(id, v4("0.0.0.0", 0)));
	show(id);
	CALL(rdma_resolve_addr(id, v4("0.0.0.0", 0), v4("10.0.0.9", 1), 1));
	shim_event(handle, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
	get_and_ack(channel);
	shim_event(handle, RDMA_CM_EVENT_ROUTE_ERROR, -ETIMEDOUT);
	get_and_ack(channel);
	get_and_ack(channel);
	destroy(id);
	id = make(CM_PS_TCP);
	if (!id)
		return;
	CALL(rdma_bind_addr(id, v6("fd00::1", 0)));
	show(id);
	destroy(id);
}

static void datagrams(void)
{
	uint32_t handle = shim_next_handle(), group;
	struct rdma_cm_id *id = make(CM_PS_UDP);
	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = CM_MC_JOIN_FLAG_SENDONLY_FULLMEMBER };

	if (!id)
		return;
	CALL(rdma_bind_addr(id, v4("10.0.0.1", 0)));
	if (id->verbs)
		make_qp(id, IBV_QPT_UD);
	group = shim_next_handle();
	CALL(rdma_join_multicast(id, v4("239.1.1.1", 0), (void *)0x77));
	if (group != shim_next_handle()) {
		tells_ud(shim_event(group, RDMA_CM_EVENT_MULTICAST_JOIN, 0));
		get_and_ack(channel);
	}
	group = shim_next_handle();
	attr.addr = v6("ff1e::7", 0);
	CALL(rdma_join_multicast_ex(id, &attr, (void *)0x78));
	if (group != shim_next_handle()) {
		tells_ud(shim_event(group, RDMA_CM_EVENT_MULTICAST_JOIN, 0));
		get_and_ack(channel);
		shim_event(group, RDMA_CM_EVENT_MULTICAST_ERROR, -ENETRESET);
		get_and_ack(channel);
	}
	CALL(rdma_leave_multicast(id, v4("239.1.1.2", 0)));
	CALL(rdma_leave_multicast(id, v4("239.1.1.1", 0)));
	CALL(rdma_leave_multicast(id, v6("ff1e::7", 0)));
	if (id->verbs)
		CALL(rdma_connect(id, &wanted));
	tells_ud(shim_event(handle, RDMA_CM_EVENT_ESTABLISHED, 0));
	get_and_ack(channel);
	tells_ud(shim_event(handle, RDMA_CM_EVENT_UNREACHABLE, 2));
	get_and_ack(channel);
	destroy(id);

	/* A listening UD id that gets a request. */
	handle = shim_next_handle();
	id = make(CM_PS_UDP);
	if (!id)
		return;
	CALL(rdma_bind_addr(id, v4("10.0.0.1", 7)));
	CALL(rdma_listen(id, 0));
	tells_ud(shim_request(handle));
	struct rdma_cm_event *event = get(channel);

	if (event) {
		struct rdma_cm_id *new = event->id;

		CALL(rdma_ack_cm_event(event));
		if (new != id) {
			if (!make_qp(new, IBV_QPT_UD))
				CALL(rdma_accept(new, &wanted));
			destroy(new);
		}
	}
	destroy(id);
}

/* Ids for which the program gives no event channel. */
static void synchronous(void)
{
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC };
	struct rdma_addrinfo info = { .ai_flags = RAI_PASSIVE, .ai_family = AF_INET, .ai_qp_type = IBV_QPT_RC, .ai_port_space = CM_PS_TCP };
	struct rdma_cm_id *id = NULL, *new = NULL;
	/* An id whose QP cannot be created keeps its request in one library and drops the request
	 * in the other. */
	struct ibv_qp_init_attr *template = shim.failing == RDMA_USER_CM_CMD_INIT_QP_ATTR ? NULL : &init;
	uint32_t handle = shim_next_handle();
	char front[] = "in front ";

	info.ai_src_addr = v4("10.0.0.1", 7001);
	info.ai_src_len = sizeof(struct sockaddr_in);
	if (!CALL(rdma_create_ep(&id, &info, NULL, template))) {
		show(id);
		CALL(rdma_listen(id, 0));
		uint32_t asks = shim_next_handle();

		tells(shim_request(handle));
		if (!CALL(rdma_get_request(id, &new))) {
			show(new);
			shim_event(asks, RDMA_CM_EVENT_ESTABLISHED, 0);
			CALL(rdma_accept(new, &wanted));
			show(new);
			shim_event(asks, RDMA_CM_EVENT_DISCONNECTED, 0);
			CALL(rdma_disconnect(new));
			shim_note("rdma_destroy_ep\n");
			rdma_destroy_ep(new);
		}
		CALL(rdma_get_request(id, &new));
		shim_note("rdma_destroy_ep\n");
		rdma_destroy_ep(id);
	}
	memset(&info, 0, sizeof(info));
	info.ai_family = AF_INET;
	info.ai_qp_type = IBV_QPT_RC;
	info.ai_port_space = CM_PS_TCP;
	info.ai_dst_addr = v4("10.0.0.2", 7002);
	info.ai_dst_len = sizeof(struct sockaddr_in);
	info.ai_connect = front;
	info.ai_connect_len = sizeof(front);
	for (int way = 0; way < 4; way++) {
		struct ibv_path_data paths[2] = { { .flags = 7, .path = { .service_id = 5, .pkey = 6 } } };

		/* The last way has a path, as from a path service. */
		info.ai_route = way == 3 ? paths : NULL;
		info.ai_route_len = way == 3 ? sizeof(paths) : 0;
		/* The handle of the next id. */
		handle = shim_next_handle();
		id = NULL;
		shim_event(handle, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
		shim_event(handle, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
		if (CALL(rdma_create_ep(&id, &info, NULL, way == 2 ? NULL : &init)))
			continue;
		tells(shim_event(handle, way == 1 ? RDMA_CM_EVENT_REJECTED : RDMA_CM_EVENT_CONNECT_RESPONSE, way == 1 ? 28 : 0));
		CALL(rdma_connect(id, &wanted));
		show(id);
		shim_note("rdma_destroy_ep\n");
		rdma_destroy_ep(id);
	}
	get_and_ack(channel);
}

/* Migrates an id between event channels. */
static void moves(void)
{
	uint32_t handle = shim_next_handle();
	struct rdma_cm_id *id = make(CM_PS_TCP);
	struct rdma_event_channel *other;

	if (!id)
		return;
	shim_note("rdma_create_event_channel\n");
	other = rdma_create_event_channel();
	if (other) {
		CALL(rdma_migrate_id(id, other));
		shim_event(handle, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH);
		get_and_ack(other);
	}
	CALL(rdma_migrate_id(id, NULL));
	CALL(rdma_migrate_id(id, NULL));
	shim_event(handle, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH);
	CALL(rdma_resolve_addr(id, NULL, v4("10.0.0.2", 7002), 1000));
	show(id);
	CALL(rdma_migrate_id(id, channel));
	show(id);
	CALL(rdma_destroy_id(id));
	if (other) {
		shim_note("rdma_destroy_event_channel\n");
		rdma_destroy_event_channel(other);
	}
}

static void show_address(const char *which, const struct sockaddr *address, socklen_t len, const char *name)
{
	shim_note(" %s %u %s", which, len, name ? name : "-");
	if (address && len)
		shim_bytes("is", address, address->sa_family == AF_INET ? 8 : len);
	else
		shim_note(" none %d", !!address);
}

/* Calls rdma_getaddrinfo for names and addresses that need no name server. */
static void names(void)
{
	static const char *const nodes[] = { NULL, "10.9.8.7", "fd12::7", "not a name" };
	static const char *const services[] = { NULL, "7471", "not a service" };
	static const int flags[] = { 0, RAI_PASSIVE, RAI_NUMERICHOST, RAI_NUMERICHOST | RAI_PASSIVE, RAI_NUMERICHOST | RAI_NOROUTE, RAI_NUMERICHOST | RAI_FAMILY };
	static const int families[] = { 0, AF_INET, AF_INET6, AF_IB };
	/* QP types and port spaces. */
	static const int kinds[][2] = {
		{ 0, 0 }, { IBV_QPT_UD, 0 }, { IBV_QPT_XRC_SEND, RDMA_PS_TCP }, { 0, RDMA_PS_UDP }, { IBV_QPT_UC, RDMA_PS_IB }, { 0, RDMA_PS_IPOIB }, { IBV_QPT_UD, RDMA_PS_TCP },
	};
	enum { NODES = 4, SERVICES = 3, FLAGS = 6, FAMILIES = 4, KINDS = 7, GIVEN = 3 };

	for (unsigned n = 0; n <= NODES * SERVICES * FLAGS * FAMILIES * KINDS * GIVEN; n++) {
		unsigned left = n;
		struct rdma_addrinfo hints = { 0 }, *found = NULL;
		const char *node = nodes[left % NODES], *service = services[left / NODES % SERVICES];

		left /= NODES * SERVICES;
		hints.ai_flags = flags[left % FLAGS];
		hints.ai_family = families[left / FLAGS % FAMILIES];
		left /= FLAGS * FAMILIES;
		hints.ai_qp_type = kinds[left % KINDS][0];
		hints.ai_port_space = kinds[left % KINDS][1];
		if (left / KINDS % GIVEN > 0) {
			hints.ai_dst_addr = v4("10.1.1.1", 1);
			hints.ai_dst_len = sizeof(struct sockaddr_in);
		}
		if (left / KINDS % GIVEN > 1) {
			hints.ai_src_addr = v6("fd12::9", 2);
			hints.ai_src_len = sizeof(struct sockaddr_in6);
		}
		/* Skips names that need a network query, and names that upstream takes for an IPv6
		 * address in any family. */
		if (node == nodes[NODES - 1] && !(hints.ai_flags & RAI_NUMERICHOST))
			continue;
		if (node == nodes[1] && hints.ai_family == AF_IB && hints.ai_flags & RAI_FAMILY)
			continue;
		errno = 0;
		int ret = rdma_getaddrinfo(node, service, n < NODES * SERVICES * FLAGS * FAMILIES * KINDS * GIVEN ? &hints : NULL, &found);

		shim_note("rdma_getaddrinfo %s %s %#x %d %d %#x %d = %d", node ? node : "-", service ? service : "-", hints.ai_flags, hints.ai_family, hints.ai_qp_type,
			  hints.ai_port_space, left / KINDS % GIVEN, ret);
		if (ret == -1)
			shim_note(" errno %d", errno);
		for (struct rdma_addrinfo *one = ret ? NULL : found; one; one = one->ai_next) {
			shim_note(" flags %#x family %d type %d space %#x route %zu connect %zu", one->ai_flags, one->ai_family, one->ai_qp_type, one->ai_port_space,
				  one->ai_route_len, one->ai_connect_len);
			show_address("source", one->ai_src_addr, one->ai_src_len, one->ai_src_canonname);
			show_address("destination", one->ai_dst_addr, one->ai_dst_len, one->ai_dst_canonname);
		}
		shim_note("\n");
		if (!ret)
			rdma_freeaddrinfo(found);
	}
}

static void all(void)
{
	int count = -1;
	struct ibv_context **list;

	shim_note("rdma_get_devices\n");
	list = rdma_get_devices(&count);
	shim_note("  %d\n", count);
	if (list)
		rdma_free_devices(list);
	passive();
	active();
	addresses();
	datagrams();
	synchronous();
	moves();
}

int main(int argc, char **argv)
{
	int only_names = 0;

	if (argc == 2 && strcmp(argv[1], "where") == 0) {
		Dl_info info;

		if (!dladdr(dlsym(RTLD_DEFAULT, "rdma_create_id"), &info))
			return 2;
		puts(info.dli_fname);
		return 0;
	}
	for (int a = 1; a < argc; a++) {
		int command, error;

		if (strncmp(argv[a], "abi=", 4) == 0)
			shim.abi = atoi(argv[a] + 4);
		else if (strcmp(argv[a], "old") == 0)
			shim.any_family = 0;
		else if (strcmp(argv[a], "no-indices") == 0)
			shim.indices = 0;
		else if (strcmp(argv[a], "iwarp") == 0)
			shim.iwarp = 1;
		else if (strcmp(argv[a], "names") == 0)
			only_names = 1;
		else if (strcmp(argv[a], "ece") == 0)
			shim.ece = 1;
		else if (sscanf(argv[a], "fail=%d:%d", &command, &error) == 2) {
			shim.failing = command;
			shim.error = error;
		} else {
			fprintf(stderr, "what is %s?\n", argv[a]);
			return 2;
		}
	}
	/* Limits the wait for a missing acknowledgement. */
	alarm(60);
	shim_note("rdma_create_event_channel\n");
	errno = 0;
	channel = rdma_create_event_channel();
	if (!channel) {
		shim_note("  none, errno %d\n", errno);
		return 0;
	}
	if (only_names)
		names();
	else
		all();
	shim_note("rdma_destroy_event_channel\n");
	rdma_destroy_event_channel(channel);
	return 0;
}
