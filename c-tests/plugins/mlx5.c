/*
 * A plugin that plays the kernel for the unmodified libmlx5, as a test tells it: each command goes
 * to the socket MLX5_SOCKET, and the answer comes back. Before it answers, the test reads and
 * writes memory of this process, as an adapter would. The program mlx5-user.c uses the same socket.
 *
 * Each request of the plugin or the program is a line, and so is each request of the test:
 *   read ADDRESS LENGTH     answered with the bytes in hexadecimal digits
 *   write ADDRESS BYTES     answered with "ok"; bytes are stored in order
 *   = ANSWER                ends the request
 */
#define _GNU_SOURCE
#include <infiniband-provider/driver.h>
#include <infiniband/ferroverbs_plugin.h>
#include <pthread.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "stand_in.h"

#define LINE 20000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *from_test, *to_test;

static void connect_to_test(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(address.sun_path, getenv("MLX5_SOCKET"), sizeof(address.sun_path) - 1);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		perror("MLX5_SOCKET");
		exit(1);
	}
	from_test = fdopen(fd, "r");
	to_test = fdopen(dup(fd), "w");
}

static size_t from_hex(const char *text, unsigned char *bytes, size_t max)
{
	unsigned byte;
	size_t n = 0;

	for (; n < max && sscanf(text + 2 * n, "%2x", &byte) == 1; n++)
		bytes[n] = byte;
	return n;
}

static void to_hex(FILE *out, const unsigned char *bytes, size_t len)
{
	if (!len)
		fputc('-', out);
	for (size_t n = 0; n < len; n++)
		fprintf(out, "%02x", bytes[n]);
}

/* Sends a request, serves the test's accesses, and stores the answer behind "= ". */
__attribute__((visibility("default"))) void mlx5_ask(const char *request, char *answer, size_t size)
{
	static char line[LINE];
	unsigned long address, length;
	int at;

	pthread_mutex_lock(&lock);
	if (!to_test)
		connect_to_test();
	fprintf(to_test, "%s\n", request);
	for (;;) {
		fflush(to_test);
		if (!fgets(line, sizeof(line), from_test)) {
			fprintf(stderr, "the test is gone\n");
			exit(1);
		}
		if (sscanf(line, "read %lx %lx", &address, &length) == 2) {
			to_hex(to_test, (const unsigned char *)address, length);
			fputc('\n', to_test);
		} else if (sscanf(line, "write %lx %n", &address, &at) == 1) {
			volatile unsigned char *memory = (unsigned char *)address;
			static unsigned char bytes[LINE];
			size_t len = from_hex(line + at, bytes, sizeof(bytes));

			for (size_t n = 0; n < len; n++)
				memory[n] = bytes[n];
			fprintf(to_test, "ok\n");
		} else {
			break;
		}
	}
	line[strcspn(line, "\n")] = 0;
	snprintf(answer, size, "%s", line[0] == '=' ? line + 2 : line);
	pthread_mutex_unlock(&lock);
}

STAND_IN(mlx5_kernel, "mlx5-kernel", "mlx5_0", IBV_NODE_CA)

static int describe(const struct ferroverbs_device_info *info, struct ferroverbs_vendor_device *device)
{
	(void)info;
	strcpy(device->provider, "mlx5");
	device->abi_version = 1;
	snprintf(device->modalias, sizeof(device->modalias), "%s", getenv("MLX5_MODALIAS"));
	return 1;
}

/* Room for the UAR page, which nobody reads. */
static int open_device(struct ibv_device *device)
{
	int fd = memfd_create(device->name, MFD_CLOEXEC);

	return ftruncate(fd, 1 << 16) ? -errno : fd;
}

static void close_device(int cmd_fd)
{
	close(cmd_fd);
}

static struct ib_uverbs_attr *find(struct ib_uverbs_ioctl_hdr *message, unsigned id)
{
	for (int i = 0; i < message->num_attrs; i++)
		if (message->attrs[i].attr_id == id)
			return &message->attrs[i];
	return NULL;
}

static void put(FILE *out, struct ib_uverbs_ioctl_hdr *message, unsigned id)
{
	struct ib_uverbs_attr *attr = find(message, id);

	fputc(' ', out);
	if (!attr)
		fputc('-', out);
	else
		to_hex(out, attr->len <= 8 ? (void *)&attr->data : (void *)(uintptr_t)attr->data, attr->len);
}

static void take(struct ib_uverbs_ioctl_hdr *message, unsigned id, const char *text)
{
	struct ib_uverbs_attr *attr = find(message, id);
	unsigned char *out = attr ? (void *)(uintptr_t)attr->data : NULL;

	if (attr) {
		memset(out, 0, attr->len);
		from_hex(text, out, attr->len);
	}
}

static int uar(struct ib_uverbs_ioctl_hdr *message, const char *answer)
{
	unsigned long offset;
	unsigned length, page;

	if (sscanf(answer, "%lx %x %x", &offset, &length, &page) != 3)
		return EPROTONOSUPPORT;
	find(message, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE)->data = page;
	memcpy((void *)(uintptr_t)find(message, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET)->data, &offset, 8);
	memcpy((void *)(uintptr_t)find(message, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH)->data, &length, 4);
	memcpy((void *)(uintptr_t)find(message, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID)->data, &page, 4);
	return 0;
}

static int command(int cmd_fd, struct ib_uverbs_ioctl_hdr *message)
{
	char *request = NULL, answer[LINE], core[LINE] = "-", vendor[LINE] = "-";
	size_t size;
	int error = EPROTONOSUPPORT;
	FILE *out = open_memstream(&request, &size);
	int is_write = message->object_id == UVERBS_OBJECT_DEVICE && message->method_id == UVERBS_METHOD_INVOKE_WRITE;

	(void)cmd_fd;
	if (is_write) {
		fprintf(out, "command %llx", (unsigned long long)find(message, UVERBS_ATTR_WRITE_CMD)->data);
		put(out, message, UVERBS_ATTR_CORE_IN);
		put(out, message, UVERBS_ATTR_UHW_IN);
	} else {
		fprintf(out, "ioctl %x %x", message->object_id, message->method_id);
	}
	fclose(out);
	mlx5_ask(request, answer, sizeof(answer));
	if (is_write) {
		sscanf(answer, "%d %19999s %19999s", &error, core, vendor);
		if (!error) {
			take(message, UVERBS_ATTR_CORE_OUT, core);
			take(message, UVERBS_ATTR_UHW_OUT, vendor);
		}
		if (!error && find(message, UVERBS_ATTR_WRITE_CMD)->data == IB_USER_VERBS_CMD_GET_CONTEXT) {
			struct ib_uverbs_get_context_resp *resp = (void *)(uintptr_t)find(message, UVERBS_ATTR_CORE_OUT)->data;

			resp->async_fd = eventfd(0, EFD_CLOEXEC);
		}
	} else if (message->object_id == MLX5_IB_OBJECT_UAR) {
		error = message->method_id == MLX5_IB_METHOD_UAR_OBJ_ALLOC ? uar(message, answer) : 0;
	}
	free(request);
	return error;
}

/* One RoCE v2 address. */
static int query_gid(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry)
{
	(void)context;
	if (port != 1 || index)
		return index < 8 ? ENODATA : EINVAL;
	memset(entry, 0, sizeof(*entry));
	entry->gid.raw[10] = entry->gid.raw[11] = 0xff;
	entry->gid.raw[12] = 10;
	entry->port_num = 1;
	entry->gid_type = IBV_GID_TYPE_ROCE_V2;
	return 0;
}

static const struct ferroverbs_emulation emulation = {
	.size = sizeof(emulation),
	.describe = describe,
	.open_device = open_device,
	.close_device = close_device,
	.command = command,
};

__attribute__((visibility("default"))) const struct ferroverbs_plugin_ext ferroverbs_plugin_ext_v1 = {
	.size = sizeof(struct ferroverbs_plugin_ext),
	.device_ops = &device_ops,
	.announce = announce,
	.query_gid = query_gid,
	.emulation = &emulation,
};
