/*
 * The recording kernel: open, close, read, write, ioctl and stat of the uverbs device, preloaded or
 * linked before libibverbs. The shim records every command in a form without addresses of the
 * library, and answers by the rules of <rdma/rdma_user_ioctl_cmds.h> and <rdma/ib_user_verbs.h>.
 * Responses are patterns, so a field copied from the wrong place is visible.
 *
 * Map of this file: the script (errors, changed and garbled responses) and the record; `note_core`
 * prints requests; `answer` fills responses. The ioctl part has `direction`, a table of output
 * attributes, and `device_ioctl`, which records and answers a call. `device_write` does the same
 * for write commands. The functions that the library calls stand last: `ioctl`, `write`, `close`,
 * the variants of `open` and `stat`, and `socket`.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#define DEVICE "/dev/infiniband/uverbs0"
/* A character device that exists on every machine and accepts open and stat. */
#define STAND_IN "/dev/null"
#define WRITE_EX 0x80000000u

static enum shim_kernel kernel;
static int next_error, always_error;
static struct { size_t offset; uint32_t value; } pokes[8];
static unsigned int poke_count;

static bool is_device[1024];
static uint32_t next_handle = 0x101;

static char record[1 << 20];
static size_t record_len;

void shim_kernel(enum shim_kernel k) { kernel = k; }
void shim_fail_next(int error) { next_error = error; }
void shim_fail_always(int error) { always_error = error; }

static uint64_t garbage;

void shim_garble(uint64_t seed) { garbage = seed; }

static uint32_t random_number(void)
{
	garbage ^= garbage << 13;
	garbage ^= garbage >> 7;
	garbage ^= garbage << 17;
	return (uint32_t)(garbage >> 16);
}

/* Lengths, counts and handles that no kernel gives. */
static void garble(unsigned char *at, size_t len)
{
	static const uint32_t edges[] = { 0, 1, 7, 0xffff, 0x7fffffff, 0x80000000, 0xfffffff8, 0xffffffff };

	for (size_t i = 0; i + sizeof(uint32_t) <= len; i += sizeof(uint32_t)) {
		uint32_t value = random_number() % 2 ? edges[random_number() % 8] : random_number();

		if (random_number() % 3 == 0)
			memcpy(at + i, &value, sizeof(value));
	}
}

void shim_poke(size_t offset, uint32_t value)
{
	if (poke_count < sizeof(pokes) / sizeof(pokes[0])) {
		pokes[poke_count].offset = offset;
		pokes[poke_count++].value = value;
	}
}

static void vnote(const char *format, va_list args)
{
	int saved = errno;
	int len = vsnprintf(record + record_len, sizeof(record) - record_len, format, args);

	if (len > 0)
		record_len += (size_t)len;
	if (record_len >= sizeof(record)) {
		static const char full[] = "kernel-shim: the record is full\n";

		syscall(SYS_write, 2, full, sizeof(full) - 1);
		_exit(3);
	}
	errno = saved;
}

static void note(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vnote(format, args);
	va_end(args);
}

void shim_note(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vnote(format, args);
	va_end(args);
	note("\n");
}

void shim_print(void)
{
	for (size_t done = 0; done < record_len;) {
		long n = syscall(SYS_write, 1, record + done, record_len - done);

		if (n <= 0)
			_exit(3);
		done += (size_t)n;
	}
	record_len = 0;
}

static void note_bytes(const void *bytes, size_t len)
{
	const unsigned char *at = bytes;

	for (size_t i = 0; i < len; i++)
		note("%s%02x", i && i % 8 == 0 ? " " : "", at[i]);
}

/*
 * Clears unused bytes of send requests, which differ: rdma-core sends bytes of its stack. Each
 * request has 56 bytes; 24 of them are common to all.
 */
static void forget_unused(unsigned char *core, size_t len)
{
	struct ib_uverbs_post_send head;

	memcpy(&head, core, sizeof(head));
	for (uint32_t r = 0; r < head.wr_count; r++) {
		unsigned char *request = core + sizeof(head) + r * sizeof(struct ib_uverbs_send_wr);
		struct ib_uverbs_send_wr wr;
		size_t used;

		if (request + sizeof(wr) > core + len)
			return;
		memcpy(&wr, request, sizeof(wr));
		used = wr.opcode == IB_UVERBS_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD ? 52 : 36;
		memset(request + used, 0, sizeof(wr) - used);
	}
}

/* The body of a plain write command with a response starts with the address of the response. */
static void note_core(uint32_t command, const void *core, size_t len, bool has_response)
{
	unsigned char copy[1024];
	uint64_t response;

	if (command == IB_USER_VERBS_CMD_POST_SEND && len >= sizeof(struct ib_uverbs_post_send) && len <= sizeof(copy)) {
		memcpy(copy, core, len);
		forget_unused(copy, len);
		core = copy;
	}
	if (!has_response || len < sizeof(response)) {
		note_bytes(core, len);
		return;
	}
	memcpy(&response, core, sizeof(response));
	note("%s", response ? "<response>" : "<null>");
	if (len > sizeof(response)) {
		note(" ");
		note_bytes((const char *)core + sizeof(response), len - sizeof(response));
	}
}

/* Fills a response with a pattern and the scripted changes. */
static void answer(void *response, size_t len, unsigned int seed, bool zero)
{
	unsigned char *at = response;

	for (size_t i = 0; i < len; i++)
		at[i] = zero ? 0 : (unsigned char)((seed * 16 + i + 1) & 0x7f);
	for (unsigned int p = 0; p < poke_count; p++)
		if (pokes[p].offset + sizeof(uint32_t) <= len)
			memcpy(at + pokes[p].offset, &pokes[p].value, sizeof(uint32_t));
	/* A zeroed response counts the events of an object and is not garbled. The library
	 * rightly waits until the program acknowledges that many events. */
	if (garbage && !zero)
		garble(at, len);
}

/* The errno of this command by script, or 0. */
static int scripted_error(void)
{
	int error = next_error ? next_error : always_error;

	next_error = 0;
	return error;
}

static int fail(int error)
{
	note("  -> errno %d\n", error);
	poke_count = 0;
	errno = error;
	return -1;
}

/* --- ioctl --- */

enum direction { IN, OUT, OBJECT_OUT, FD_OUT };

static enum direction direction(unsigned int object, unsigned int method, unsigned int attr)
{
	static const struct { unsigned short object, method, attr; enum direction direction; } known[] = {
		{ UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, UVERBS_ATTR_CORE_OUT, OUT },
		{ UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT, UVERBS_ATTR_QUERY_PORT_RESP, OUT },
		{ UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, OUT },
		{ UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, OUT },
		{ UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT, UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, OUT },
		{ UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT, UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, OUT },
		{ UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, OUT },
		{ UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE, UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, OUT },
		{ UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE, UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, OUT },
		{ UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, UVERBS_ATTR_CREATE_CQ_HANDLE, OBJECT_OUT },
		{ UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, UVERBS_ATTR_CREATE_CQ_RESP_CQE, OUT },
		{ UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY, UVERBS_ATTR_DESTROY_CQ_RESP, OUT },
		{ UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, UVERBS_ATTR_CREATE_QP_HANDLE, OBJECT_OUT },
		{ UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, UVERBS_ATTR_CREATE_QP_RESP_CAP, OUT },
		{ UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, OUT },
		{ UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY, UVERBS_ATTR_DESTROY_QP_RESP, OUT },
		{ UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, UVERBS_ATTR_CREATE_SRQ_HANDLE, OBJECT_OUT },
		{ UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, OUT },
		{ UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, OUT },
		{ UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, OUT },
		{ UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY, UVERBS_ATTR_DESTROY_SRQ_RESP, OUT },
		{ UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_CREATE, UVERBS_ATTR_CREATE_WQ_HANDLE, OBJECT_OUT },
		{ UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_CREATE, UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR, OUT },
		{ UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_CREATE, UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE, OUT },
		{ UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_CREATE, UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM, OUT },
		{ UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_DESTROY, UVERBS_ATTR_DESTROY_WQ_RESP, OUT },
		{ UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG, UVERBS_ATTR_REG_DM_MR_HANDLE, OBJECT_OUT },
		{ UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG, UVERBS_ATTR_REG_DM_MR_RESP_LKEY, OUT },
		{ UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG, UVERBS_ATTR_REG_DM_MR_RESP_RKEY, OUT },
		{ UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR, UVERBS_ATTR_QUERY_MR_RESP_LKEY, OUT },
		{ UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR, UVERBS_ATTR_QUERY_MR_RESP_RKEY, OUT },
		{ UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR, UVERBS_ATTR_QUERY_MR_RESP_LENGTH, OUT },
		{ UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR, UVERBS_ATTR_QUERY_MR_RESP_IOVA, OUT },
		{ UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, UVERBS_ATTR_REG_DMABUF_MR_HANDLE, OBJECT_OUT },
		{ UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, OUT },
		{ UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, OUT },
		{ UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC, UVERBS_ATTR_ALLOC_DM_HANDLE, OBJECT_OUT },
		{ UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_CREATE, UVERBS_ATTR_CREATE_COUNTERS_HANDLE, OBJECT_OUT },
		{ UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_READ, UVERBS_ATTR_READ_COUNTERS_BUFF, OUT },
		{ UVERBS_OBJECT_FLOW_ACTION, UVERBS_METHOD_FLOW_ACTION_ESP_CREATE,
		  UVERBS_ATTR_CREATE_FLOW_ACTION_ESP_HANDLE, OBJECT_OUT },
		{ UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC,
		  UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, FD_OUT },
		/* Newer than the headers of release 44: by number. */
		{ UVERBS_OBJECT_DEVICE, 7 /* QUERY_PORT_SPEED */, 1, OUT },
		{ UVERBS_OBJECT_DEVICE, 8 /* QUERY_COMP_CNTR_CAPS */, 0, OUT },
		{ UVERBS_OBJECT_DEVICE, 8, 1, OUT },
		{ UVERBS_OBJECT_DEVICE, 8, 2, OUT },
		{ UVERBS_OBJECT_MR, 5 /* REG_MR */, 0, OBJECT_OUT },
		{ UVERBS_OBJECT_MR, 5, 9, OUT },
		{ UVERBS_OBJECT_MR, 5, 10, OUT },
		{ 17 /* DMAH */, 0, 0, OBJECT_OUT },
		{ 18 /* DMABUF */, 0, 0, FD_OUT },
		{ 19 /* COMP_CNTR */, 0, 0, OBJECT_OUT },
		{ 19, 3 /* READ */, 2, OUT },
	};

	if (attr == UVERBS_ATTR_UHW_OUT)
		return OUT;
	/* Attributes of drivers: in the test program, even numbers are outputs. */
	if (attr > UVERBS_ATTR_UHW_OUT && attr % 2 == 0)
		return OUT;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].object == object && known[i].method == method && known[i].attr == attr)
			return known[i].direction;
	return IN;
}

/* Objects report a count when they are destroyed. The count must be 0 unless scripted, because the
 * library waits for it. */
static bool is_destroy(unsigned int object, unsigned int method)
{
	return method == 1 && (object == UVERBS_OBJECT_CQ || object == UVERBS_OBJECT_QP || object == UVERBS_OBJECT_SRQ ||
			       object == UVERBS_OBJECT_WQ);
}

static bool is_destroy_command(uint32_t command)
{
	switch (command) {
	case IB_USER_VERBS_CMD_DESTROY_CQ:
	case IB_USER_VERBS_CMD_DESTROY_QP:
	case IB_USER_VERBS_CMD_DESTROY_SRQ:
	case IB_USER_VERBS_CMD_POST_SEND:
	case IB_USER_VERBS_CMD_POST_RECV:
	case IB_USER_VERBS_CMD_POST_SRQ_RECV:
	case IB_USER_VERBS_EX_CMD_DESTROY_WQ | WRITE_EX:
		return true;
	default:
		return false;
	}
}

static int new_fd(void)
{
	int fd = (int)syscall(SYS_openat, AT_FDCWD, STAND_IN, O_RDWR | O_CLOEXEC);

	if (fd < 0 || (size_t)fd >= sizeof(is_device))
		_exit(3);
	is_device[fd] = true;
	return fd;
}

static void note_attr(const struct ib_uverbs_ioctl_hdr *hdr, const struct ib_uverbs_attr *attr, uint32_t command,
		      bool has_response)
{
	bool invoke = hdr->object_id == UVERBS_OBJECT_DEVICE && hdr->method_id == UVERBS_METHOD_INVOKE_WRITE;

	note("  %#x len %u flags %u elem %u reserved %u ", attr->attr_id, attr->len, attr->flags,
	     attr->attr_data.enum_data.elem_id, attr->attr_data.enum_data.reserved);
	switch (direction(hdr->object_id, hdr->method_id, attr->attr_id)) {
	case OUT:
		note("out");
		break;
	case OBJECT_OUT:
	case FD_OUT:
		note("new %#llx", (unsigned long long)attr->data);
		break;
	case IN:
		if (invoke && attr->attr_id == UVERBS_ATTR_CORE_IN)
			note_core(command, attr->len > 8 ? (void *)(uintptr_t)attr->data : &attr->data, attr->len, has_response);
		else if (attr->len > 8)
			note_bytes((void *)(uintptr_t)attr->data, attr->len);
		else
			note("%#llx", (unsigned long long)attr->data);
		break;
	}
	note("\n");
}

static int device_ioctl(unsigned long request, void *arg)
{
	struct ib_uverbs_ioctl_hdr *hdr = arg;
	bool invoke, core_out = false, plain = true, zero;
	uint32_t command = UINT32_MAX;
	int error;

	if (request != RDMA_VERBS_IOCTL) {
		note("ioctl %#lx\n", request);
		return fail(ENOTTY);
	}
	invoke = hdr->object_id == UVERBS_OBJECT_DEVICE && hdr->method_id == UVERBS_METHOD_INVOKE_WRITE;
	zero = is_destroy(hdr->object_id, hdr->method_id);
	note("ioctl %u.%u length %u attrs %u driver %u reserved %llu %u\n", hdr->object_id, hdr->method_id, hdr->length,
	     hdr->num_attrs, hdr->driver_id, (unsigned long long)hdr->reserved1, hdr->reserved2);
	for (unsigned int i = 0; invoke && i < hdr->num_attrs; i++) {
		const struct ib_uverbs_attr *attr = &hdr->attrs[i];

		core_out |= attr->attr_id == UVERBS_ATTR_CORE_OUT;
		if (attr->attr_id == UVERBS_ATTR_WRITE_CMD) {
			command = (uint32_t)attr->data;
			plain = !(command & WRITE_EX);
			zero = is_destroy_command(command);
		}
	}
	for (unsigned int i = 0; i < hdr->num_attrs; i++)
		note_attr(hdr, &hdr->attrs[i], command, core_out && plain);

	if (kernel == SHIM_WRITE)
		return fail(ENOTTY);
	if (invoke ? kernel == SHIM_METHODS : kernel == SHIM_INVOKE)
		return fail(EPROTONOSUPPORT);
	if (invoke && hdr->num_attrs == 1)
		return fail(ENOSPC);	/* the probe: no room for an answer */
	error = scripted_error();
	if (error)
		return fail(error > 0 ? error : EIO);

	for (unsigned int i = 0; i < hdr->num_attrs; i++) {
		struct ib_uverbs_attr *attr = &hdr->attrs[i];

		switch (direction(hdr->object_id, hdr->method_id, attr->attr_id)) {
		case OUT:
			answer((void *)(uintptr_t)attr->data, attr->len, attr->attr_id, zero);
			/* The library closes the descriptor in this response, and a garbled
			 * number could be a descriptor of the program. */
			if (garbage && (command == IB_USER_VERBS_CMD_GET_CONTEXT || command == IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL) &&
			    attr->len >= sizeof(int)) {
				int fd = new_fd();

				memcpy((void *)(uintptr_t)attr->data, &fd, sizeof(fd));
			}
			if (!garbage || random_number() % 4)
				attr->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
			break;
		case OBJECT_OUT:
			attr->data = next_handle++;
			break;
		case FD_OUT:
			attr->data = (uint64_t)new_fd();
			break;
		case IN:
			break;
		}
	}
	poke_count = 0;
	note("  -> 0\n");
	return 0;
}

/* --- write --- */

static ssize_t device_write(const void *buffer, size_t len)
{
	struct ib_uverbs_cmd_hdr hdr;
	struct ib_uverbs_ex_cmd_hdr ex;
	const char *body = (const char *)buffer + sizeof(hdr);
	size_t response_len, body_len;
	uint64_t response = 0;
	int error;

	if (len < sizeof(hdr)) {
		note("write of %zu bytes\n", len);
		return fail(EINVAL);
	}
	memcpy(&hdr, buffer, sizeof(hdr));
	body_len = len - sizeof(hdr);
	note("write %zu command %#x words %u %u\n", len, hdr.command, hdr.in_words, hdr.out_words);
	if (hdr.command & WRITE_EX) {
		if (body_len < sizeof(ex))
			return fail(EINVAL);
		memcpy(&ex, body, sizeof(ex));
		body += sizeof(ex);
		body_len -= sizeof(ex);
		response = ex.response;
		response_len = (hdr.out_words + ex.provider_out_words) * 8u;
		note("  provider %u %u reserved %u %s\n", ex.provider_in_words, ex.provider_out_words, ex.cmd_hdr_reserved,
		     response ? "<response>" : "<null>");
		note("  ");
		note_bytes(body, body_len);
	} else {
		response_len = hdr.out_words * 4u;
		if (response_len && body_len >= sizeof(response))
			memcpy(&response, body, sizeof(response));
		note("  ");
		note_core(hdr.command, body, body_len, response_len != 0);
	}
	note("\n");

	error = scripted_error();
	if (error < 0) {
		note("  -> short\n");
		poke_count = 0;
		return (ssize_t)len - 1;
	}
	if (error)
		return fail(error);
	if (response_len) {
		if (!response)
			return fail(EFAULT);
		answer((void *)(uintptr_t)response, response_len, hdr.command & 0xff, is_destroy_command(hdr.command));
		if (hdr.command == IB_USER_VERBS_CMD_GET_CONTEXT || hdr.command == IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL) {
			uint32_t fd = (uint32_t)new_fd();

			memcpy((void *)(uintptr_t)response, &fd, sizeof(fd));
		}
	}
	poke_count = 0;
	note("  -> %zu\n", len);
	if (garbage && random_number() % 16 == 0)
		return (ssize_t)(random_number() % (len + 1));
	return (ssize_t)len;
}

/* --- functions that the library calls --- */

static bool ours(int fd)
{
	return fd >= 0 && (size_t)fd < sizeof(is_device) && is_device[fd];
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (ours(fd))
		return device_ioctl(request, arg);
	return (int)syscall(SYS_ioctl, fd, request, arg);
}

ssize_t write(int fd, const void *buffer, size_t len)
{
	if (ours(fd))
		return device_write(buffer, len);
	return syscall(SYS_write, fd, buffer, len);
}

int close(int fd)
{
	if (ours(fd)) {
		note("close\n");
		is_device[fd] = false;
	}
	return (int)syscall(SYS_close, fd);
}

static int open_at(int dir, const char *path, int flags, unsigned int mode)
{
	if (strcmp(path, DEVICE) == 0) {
		note("open %s flags %#x\n", path, flags);
		return new_fd();
	}
	return (int)syscall(SYS_openat, dir, path, flags, mode);
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

#define OPENAT(name)								\
	int name(int dir, const char *path, int flags, ...)			\
	{									\
		va_list args;							\
		unsigned int mode;						\
										\
		va_start(args, flags);						\
		mode = va_arg(args, unsigned int);				\
		va_end(args);							\
		return open_at(dir, path, flags, mode);				\
	}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

static const char *instead(const char *path)
{
	return path && strcmp(path, DEVICE) == 0 ? STAND_IN : path;
}

int stat(const char *path, struct stat *st)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, instead(path), st, 0);
}

int stat64(const char *path, struct stat64 *st)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, instead(path), st, 0);
}

int statx(int dir, const char *path, int flags, unsigned int mask, struct statx *stx)
{
	return (int)syscall(SYS_statx, dir, instead(path), flags, mask, stx);
}

/* This kernel has no RDMA netlink: the library finds the device in the test's sysfs tree. */
int socket(int domain, int type, int protocol)
{
	if (domain == AF_NETLINK && protocol == NETLINK_RDMA) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	return (int)syscall(SYS_socket, domain, type, protocol);
}
