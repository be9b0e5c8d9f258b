/*
 * The recording kernel: open, close, write and socket of the connection manager's device, inside
 * the program.
 *
 * Map of this file: channels, ids and queued events; the functions that shim.h offers to the
 * driving program: the record and new events. `query`, `query_route` and `attributes` fill
 * responses; `forget` removes events; `command` records and executes one command. The functions
 * that librdmacm calls stand last: `write`, `close`, `open`, `open64` and `socket`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim.h"

#define DEVICE "/dev/infiniband/rdma_cm"
/* A character device that exists on every machine. */
#define STAND_IN "/dev/null"
#define MOST 256
/* The node GUID of the device, in network byte order: fe80::1 as a GUID. */
#define GUID 0x0100000000000080ull

struct shim_kernel shim = { .abi = 4, .any_family = 1, .indices = 1, .failing = -1 };

/* The channel number of each descriptor, counted from 1. */
static int channel_of[MOST], channels;
static struct { uint64_t uid; uint32_t reported, owner; int on_device; struct sockaddr_storage address; } objects[MOST];
static uint32_t next_handle = 3;
static struct rdma_ucm_event_resp queue[MOST];
static uint32_t subject[MOST];
static unsigned int head, tail;

void shim_note(const char *format, ...)
{
	char text[4096];
	va_list args;
	int len, saved = errno;

	va_start(args, format);
	len = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (len < 0 || syscall(SYS_write, 1, text, (size_t)len) != len)
		_exit(3);
	errno = saved;
}

void shim_bytes(const char *name, const void *bytes, size_t len)
{
	const unsigned char *at = bytes;

	shim_note(" %s", name);
	for (size_t i = 0; i < len; i++)
		shim_note("%s%02x", i % 8 == 0 ? " " : "", at[i]);
}

uint32_t shim_next_handle(void) { return next_handle; }

struct rdma_ucm_event_resp *shim_event(uint32_t handle, uint32_t kind, int status)
{
	struct rdma_ucm_event_resp *event = &queue[tail % MOST];

	memset(event, 0, sizeof(*event));
	event->event = kind;
	event->status = (uint32_t)status;
	subject[tail++ % MOST] = handle;
	return event;
}

struct rdma_ucm_event_resp *shim_request(uint32_t listener)
{
	struct rdma_ucm_event_resp *event = shim_event(listener, 4 /* CONNECT_REQUEST */, 0);

	event->id = next_handle;
	memset(&objects[next_handle], 0, sizeof(objects[0]));
	objects[next_handle++].on_device = 1;
	return event;
}

static int fail(int error)
{
	shim_note(" -> errno %d\n", error);
	errno = error;
	return -1;
}

static void fill(void *at, size_t len, unsigned int seed)
{
	for (size_t i = 0; i < len; i++)
		((unsigned char *)at)[i] = (unsigned char)((seed * 16 + i + 1) & 0x7f);
}

static void address(void *to, int last, uint16_t port)
{
	unsigned char bytes[16] = { AF_INET, 0, (unsigned char)(port >> 8), (unsigned char)port, 10, 0, 0, (unsigned char)last };

	memcpy(to, bytes, sizeof(bytes));
}

static uint32_t new_object(uint64_t uid, uint32_t owner)
{
	uint32_t handle = next_handle++;

	memset(&objects[handle], 0, sizeof(objects[0]));
	objects[handle].uid = uid;
	objects[handle].owner = owner;
	return handle;
}

/* Answers RDMA_USER_CM_CMD_QUERY: the addresses, GIDs or paths of an id. */
static void query(const struct rdma_ucm_query *ask, void *to, size_t len)
{
	int on_device = objects[ask->id % MOST].on_device;

	if (ask->option == RDMA_USER_CM_QUERY_PATH) {
		struct rdma_ucm_query_path_resp *resp = to;
		unsigned char paths[2 * 72];

		resp->num_paths = 2;
		fill(paths, sizeof(paths), 3);
		memcpy(resp + 1, paths, sizeof(paths) <= len - 8 ? sizeof(paths) : len - 8);
		return;
	}
	struct rdma_ucm_query_addr_resp *resp = to;
	uint32_t index = resp->ibdev_index;

	memset(resp, 0, sizeof(*resp));
	resp->ibdev_index = shim.indices ? 7 : index;
	if (ask->option == RDMA_USER_CM_QUERY_GID) {
		resp->src_size = resp->dst_size = 48;
		fill(&resp->src_addr, 48, 1);
		fill(&resp->dst_addr, 48, 2);
		return;
	}
	if (on_device) {
		resp->node_guid = GUID;
		resp->port_num = 1;
		resp->pkey = 0xffff;
	}
	resp->src_size = resp->dst_size = 16;
	address(&resp->src_addr, 1, 7001);
	address(&resp->dst_addr, 2, 7002);
}

static void query_route(const struct rdma_ucm_query *ask, struct rdma_ucm_query_route_resp *resp)
{
	uint32_t index = resp->ibdev_index;

	memset(resp, 0, sizeof(*resp));
	resp->ibdev_index = shim.indices ? 7 : index;
	fill(resp->ib_route, sizeof(resp->ib_route), 5);
	address(&resp->src_addr, 1, 7001);
	address(&resp->dst_addr, 2, 7002);
	if (objects[ask->id % MOST].on_device) {
		resp->node_guid = GUID;
		resp->port_num = 1;
		resp->num_paths = 2;
	}
}

static void attributes(uint32_t state, struct ib_uverbs_qp_attr *resp)
{
	static const uint32_t masks[] = {
		[1] = 0x1 | 0x8 | 0x10 | 0x20,			      /* INIT */
		[2] = 0x1 | 0x80 | 0x100 | 0x1000 | 0x8000 | 0x20000 | 0x100000 | 0x200000, /* RTR */
		[3] = 0x1 | 0x200 | 0x400 | 0x800 | 0x2000 | 0x10000, /* RTS */
	};

	fill(resp, sizeof(*resp), state);
	resp->qp_state = state;
	resp->qp_attr_mask = state < 4 ? masks[state] : 1;
}

/* Removes the queued events of a destroyed id, and of its multicast groups. */
static void forget(uint32_t handle)
{
	unsigned int kept = head;

	for (unsigned int at = head; at != tail; at++) {
		uint32_t of = subject[at % MOST];

		if (of == handle || objects[of].owner == handle)
			continue;
		subject[kept % MOST] = of;
		queue[kept++ % MOST] = queue[at % MOST];
	}
	tail = kept;
}

/* A field of a command that is an address. */
static void note_address(const char *name, uint64_t address)
{
	shim_note(" <%s%s>", address ? "" : "no ", name);
}

/* Records the body of a command, with addresses as names, and executes the command. */
static int command(uint32_t number, const unsigned char *body, size_t len, size_t room)
{
	union {
		struct rdma_ucm_create_id create;
		struct rdma_ucm_destroy_id destroy;
		struct rdma_ucm_query query;
		struct rdma_ucm_init_qp_attr init;
		struct rdma_ucm_get_event get;
		struct rdma_ucm_migrate_id migrate;
		struct rdma_ucm_set_option option;
		struct rdma_ucm_join_ip_mcast join_ip;
		struct rdma_ucm_join_mcast join;
		struct rdma_ucm_accept accept;
		struct rdma_ucm_bind bind;
		struct rdma_ucm_bind_ip bind_ip;
		struct rdma_ucm_resolve_addr resolve;
		struct rdma_ucm_resolve_ip resolve_ip;
		unsigned char bytes[512];
	} ask;
	size_t addresses = 0;

	memset(&ask, 0, sizeof(ask));
	memcpy(&ask, body, len < sizeof(ask) ? len : sizeof(ask));
	switch (number) {
	case RDMA_USER_CM_CMD_CREATE_ID:
		note_address("uid", ask.create.uid);
		note_address("response", ask.create.response);
		addresses = 16;
		break;
	case RDMA_USER_CM_CMD_ACCEPT:
		note_address("uid", ask.accept.uid);
		addresses = 8;
		break;
	case RDMA_USER_CM_CMD_JOIN_IP_MCAST:
	case RDMA_USER_CM_CMD_JOIN_MCAST:
		note_address("response", ask.join.response);
		note_address("uid", ask.join.uid);
		addresses = 16;
		break;
	case RDMA_USER_CM_CMD_SET_OPTION:
		note_address("value", ask.option.optval);
		shim_bytes("of", (void *)(uintptr_t)ask.option.optval, ask.option.optlen);
		addresses = 8;
		break;
	case RDMA_USER_CM_CMD_MIGRATE_ID:
		note_address("response", ask.migrate.response);
		shim_note(" from channel %d", channel_of[ask.migrate.fd % MOST]);
		addresses = 8;
		len -= 4;
		break;
	case RDMA_USER_CM_CMD_DESTROY_ID:
	case RDMA_USER_CM_CMD_LEAVE_MCAST:
	case RDMA_USER_CM_CMD_QUERY:
	case RDMA_USER_CM_CMD_QUERY_ROUTE:
	case RDMA_USER_CM_CMD_INIT_QP_ATTR:
	case RDMA_USER_CM_CMD_GET_EVENT:
		note_address("response", ask.get.response);
		addresses = 8;
		break;
	default:
		break;
	}
	shim_bytes("", body + addresses, len - addresses);

	if ((int)number == shim.failing && shim.error > 0)
		return fail(shim.error);
	void *to = (void *)(uintptr_t)ask.get.response;

	switch (number) {
	case RDMA_USER_CM_CMD_CREATE_ID:
		*(uint32_t *)(uintptr_t)ask.create.response = new_object(ask.create.uid, 0);
		break;
	case RDMA_USER_CM_CMD_JOIN_IP_MCAST:
		*(uint32_t *)to = new_object(ask.join_ip.uid, ask.join_ip.id);
		break;
	case RDMA_USER_CM_CMD_JOIN_MCAST:
		*(uint32_t *)to = new_object(ask.join.uid, ask.join.id);
		break;
	case RDMA_USER_CM_CMD_DESTROY_ID:
	case RDMA_USER_CM_CMD_LEAVE_MCAST:
	case RDMA_USER_CM_CMD_MIGRATE_ID:
		*(uint32_t *)to = objects[ask.destroy.id % MOST].reported;
		if (number != RDMA_USER_CM_CMD_MIGRATE_ID)
			forget(ask.destroy.id);
		break;
	case RDMA_USER_CM_CMD_ACCEPT:
		if (ask.accept.uid)
			objects[ask.accept.id % MOST].uid = ask.accept.uid;
		break;
	case RDMA_USER_CM_CMD_BIND:
		if (ask.bind.addr.ss_family == 27 && !shim.any_family)
			return fail(EINVAL);
		/* An id with the wildcard address is on no device. */
		objects[ask.bind.id % MOST].on_device = ((char *)&ask.bind.addr)[4] != 0;
		break;
	case RDMA_USER_CM_CMD_BIND_IP:
		objects[ask.bind_ip.id % MOST].on_device = ((char *)&ask.bind_ip.addr)[4] != 0;
		break;
	case RDMA_USER_CM_CMD_RESOLVE_ADDR:
		objects[ask.resolve.id % MOST].on_device = 1;
		break;
	case RDMA_USER_CM_CMD_RESOLVE_IP:
		objects[ask.resolve_ip.id % MOST].on_device = 1;
		break;
	case RDMA_USER_CM_CMD_QUERY:
		query(&ask.query, to, room);
		break;
	case RDMA_USER_CM_CMD_QUERY_ROUTE:
		query_route(&ask.query, to);
		break;
	case RDMA_USER_CM_CMD_INIT_QP_ATTR:
		attributes(ask.init.qp_state, to);
		break;
	case RDMA_USER_CM_CMD_GET_EVENT: {
		uint32_t of = subject[head % MOST];

		if (head == tail)
			return fail(EAGAIN);
		/* The library may set the uid of an id after the script queues the event. The event
		 * therefore takes the present uid. */
		struct rdma_ucm_event_resp *event = &queue[head++ % MOST];

		event->uid = objects[of].uid;
		if (!event->id)
			event->id = objects[of].owner ? objects[of].owner : of;
		memcpy(to, event, room);
		objects[of].reported++;
		if (objects[of].owner)
			objects[objects[of].owner].reported++;
		break;
	}
	default:
		break;
	}
	return 0;
}

ssize_t write(int fd, const void *buffer, size_t len)
{
	struct rdma_ucm_cmd_hdr hdr;

	if (fd < 0 || fd >= MOST || !channel_of[fd])
		return syscall(SYS_write, fd, buffer, len);
	if (len < sizeof(hdr))
		return fail(EINVAL);
	memcpy(&hdr, buffer, sizeof(hdr));
	shim_note("  channel %d: %zu bytes, command %u in %u out %u:", channel_of[fd], len, hdr.cmd, hdr.in, hdr.out);
	if (command(hdr.cmd, (const unsigned char *)buffer + sizeof(hdr), len - sizeof(hdr), hdr.out))
		return -1;
	if ((int)hdr.cmd == shim.failing && shim.error < 0) {
		shim_note(" -> short\n");
		return (ssize_t)len - 1;
	}
	shim_note("\n");
	return (ssize_t)len;
}

int close(int fd)
{
	if (fd >= 0 && fd < MOST && channel_of[fd]) {
		shim_note("  close channel %d\n", channel_of[fd]);
		channel_of[fd] = 0;
	}
	return (int)syscall(SYS_close, fd);
}

static int open_at(int dir, const char *path, int flags, unsigned int mode)
{
	int fd;

	if (strcmp(path, DEVICE) != 0)
		return (int)syscall(SYS_openat, dir, path, flags, mode);
	shim_note("  open %s %#x", path, flags & ~O_LARGEFILE);
	if (shim.failing == -2)
		return fail(shim.error);
	fd = (int)syscall(SYS_openat, AT_FDCWD, STAND_IN, O_RDWR | O_CLOEXEC);
	if (fd < 0 || fd >= MOST)
		_exit(3);
	channel_of[fd] = ++channels;
	shim_note(" -> channel %d\n", channels);
	return fd;
}

#define OPEN(name)								\
	int name(const char *path, int flags, ...)				\
	{									\
		va_list args;							\
		unsigned int mode;						\
										\
		va_start(args, flags);						\
		mode = va_arg(args, unsigned int);				\
		va_end(args);							\
		return open_at(AT_FDCWD, path, flags, mode);			\
	}

OPEN(open)
OPEN(open64)

/* This kernel has no RDMA netlink; sysfs holds the version. */
int socket(int domain, int type, int protocol)
{
	if (domain == AF_NETLINK && protocol == NETLINK_RDMA) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	return (int)syscall(SYS_socket, domain, type, protocol);
}
