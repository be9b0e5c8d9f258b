/*
 * A plugin that calls every command of the private ABI with distinctive arguments over the
 * recording kernel of shim.c. Prints the kernel's view, the results of calls and their output. The
 * output must be equal for the system's libibverbs and Ferroverbs'.
 *
 * usage: commands ioctl|invoke|methods|write [import] [fail=ERRNO] [garble=SEED]
 *        commands where (prints the library's path)
 *
 * A sysfs tree of the runner (SYSFS_PATH) announces the device. All objects are static and the
 * program is linked at a fixed address, so addresses are equal in each run.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include "program.h"

struct test_context {
	char before[40];
	/* What newer releases have in front of the verbs_context of 44. */
	char newer[OLDER_VERBS_CONTEXT];
	struct verbs_context verbs;
};

struct ibv_context *context;
int knows_methods, knows_wrapper;
struct ibv_pd pd, other_pd;
struct verbs_mr mr;
struct ibv_mw mw;
struct verbs_cq cq;
struct verbs_qp qp;
struct verbs_srq srq;
struct verbs_xrcd xrcd;
unsigned char memory[4096];

static struct verbs_device the_device;

/* Addresses of the library's own memory differ from run to run. */
void dump(const char *name, const void *object, size_t size)
{
	const unsigned char *at = object;
	char text[8192];
	size_t len = 0;

	for (size_t i = 0; i < size && len + 32 < sizeof(text); i += 8) {
		uint64_t word = 0;
		size_t part = size - i < 8 ? size - i : 8;

		memcpy(&word, at + i, part);
		if (word == (uint64_t)(uintptr_t)context)
			len += (size_t)sprintf(text + len, " context");
		else
			len += (size_t)sprintf(text + len, " %0*llx", (int)part * 2, (unsigned long long)word);
	}
	shim_note("  %s%s", name, text);
}

/* --- the device --- */

static bool match_device(struct verbs_sysfs_dev *sysfs_dev)
{
	return strcmp(sysfs_dev->ibdev_name, "recorded0") == 0;
}

static struct verbs_device *alloc_device(struct verbs_sysfs_dev *sysfs_dev)
{
	(void)sysfs_dev;
	return &the_device;
}

static struct verbs_context *begin(struct test_context *ctx)
{
	return (void *)ctx->newer;
}

static void free_context(struct ibv_context *ibctx)
{
	struct test_context *ctx = (void *)((char *)ibctx - offsetof(struct test_context, verbs.context));

	verbs_uninit_context(begin(ctx));
	free(ctx);
}

static struct test_context *new_context(struct ibv_device *device, int cmd_fd)
{
	static struct verbs_context_ops ops;
	struct test_context *ctx = _verbs_init_and_alloc_context(
		device, cmd_fd, sizeof(*ctx), (struct verbs_context *)offsetof(struct test_context, newer), 14);

	if (!ctx)
		return NULL;
	ops.op[OP_FREE_CONTEXT] = free_context;
	verbs_set_ops(begin(ctx), &ops);
	return ctx;
}

static struct verbs_context *alloc_context(struct ibv_device *device, int cmd_fd, void *private_data)
{
	static REQUEST(ibv_get_context) cmd;
	static REQUEST(ib_uverbs_get_context_resp) resp;
	SINCE_57(static int fd[3] = { 7, 8, -9 }; static struct ibv_fd_arr fds = { fd, 3 };)
	struct test_context *ctx = new_context(device, cmd_fd);

	(void)private_data;
	if (!ctx)
		return NULL;
	FILL(cmd, 0x10);
	STALE(resp);
	if (CALL(ibv_cmd_get_context(begin(ctx), &cmd.core, sizeof(cmd) SINCE_57(, &fds), &resp.core, sizeof(resp)))) {
		free_context(&ctx->verbs.context);
		return NULL;
	}
	DUMP_DRIVER(resp);
	return begin(ctx);
}

static struct verbs_context *import_context(struct ibv_device *device, int cmd_fd)
{
	struct test_context *ctx = new_context(device, cmd_fd);

	if (!ctx)
		return NULL;
	if (CALL(ibv_cmd_query_context(&ctx->verbs.context, NULL))) {
		free_context(&ctx->verbs.context);
		return NULL;
	}
	return begin(ctx);
}

static const struct verbs_device_ops device_ops = {
	.name = "recorded",
	.match_min_abi_version = 0,
	.match_max_abi_version = 99,
	.match_device = match_device,
	.alloc_context = alloc_context,
	.import_context = import_context,
	.alloc_device = alloc_device,
};


static void set_up_objects(void)
{
	pd.context = other_pd.context = xrcd.xrcd.context = context;
	pd.handle = 0x201;
	other_pd.handle = 0x202;
	xrcd.handle = 0x203;
	verbs_init_cq(&cq.cq, context, NULL, &cq);
	cq.cq.handle = 0x401;
	srq.srq.context = context;
	srq.srq.handle = 0x501;
	qp.qp.context = context;
	qp.qp.handle = 0x601;
}

/*
 * Parses a decimal number. Headers of glibc 2.38 and later turn strtoull into a symbol that the C
 * library of an older release lacks.
 */
static unsigned long long decimal(const char *digits)
{
	unsigned long long number = 0;

	while (*digits >= '0' && *digits <= '9')
		number = number * 10 + (unsigned long long)(*digits++ - '0');
	return number;
}

static struct ibv_context *open_device(int import)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *opened;

	if (!list || !list[0]) {
		fprintf(stderr, "the library does not find the device\n");
		exit(2);
	}
	shim_note("name %s", ibv_get_device_name(list[0]));
	shim_note(import ? "ibv_import_device" : "ibv_open_device");
	opened = import ? ibv_import_device(open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC)) :
			  ibv_open_device(list[0]);
	shim_note("  %s", opened ? "open" : "failed");
	ibv_free_device_list(list);
	return opened;
}

int main(int argc, char **argv)
{
	static const char *const kernels[] = { "ioctl", "invoke", "methods", "write" };
	int kernel = -1, import = 0, error = 0;
	unsigned long long garbage = 0;
	const bool *forgive;

	for (int a = 1; a < argc; a++) {
		for (int k = 0; k < 4; k++)
			if (strcmp(argv[a], kernels[k]) == 0)
				kernel = k;
		if (strcmp(argv[a], "import") == 0)
			import = 1;
		if (strncmp(argv[a], "fail=", 5) == 0)
			error = (int)decimal(argv[a] + 5);
		if (strncmp(argv[a], "garble=", 7) == 0)
			garbage = decimal(argv[a] + 7);
	}
	if (argc == 2 && strcmp(argv[1], "where") == 0) {
		Dl_info info;

		if (!dladdr(dlsym(RTLD_DEFAULT, "ibv_get_device_list"), &info))
			return 2;
		puts(info.dli_fname);
		return 0;
	}
	if (kernel < 0) {
		fprintf(stderr, "usage: commands ioctl|invoke|methods|write [import] [fail=ERRNO] [garble=SEED]\n");
		return 2;
	}
	shim_kernel((enum shim_kernel)kernel);
	knows_wrapper = kernel == SHIM_IOCTL || kernel == SHIM_INVOKE;
	knows_methods = kernel == SHIM_IOCTL || kernel == SHIM_METHODS;
	verbs_register_driver(&device_ops);
	context = open_device(import);
	if (!context) {
		shim_print();
		return 0;
	}
	shim_note("comp vectors %d, core support %llx, event fd %s", context->num_comp_vectors,
		  (unsigned long long)the_device.core_support, context->async_fd >= 0 ? "yes" : "no");
	/* Plugins reach this variable through their table; a program would get a copy. */
	forgive = dlvsym(RTLD_DEFAULT, "verbs_allow_disassociate_destroy", RELEASE >= 65 ? "IBVERBS_PRIVATE_65" : "IBVERBS_PRIVATE_34");
	shim_note("disassociate %d", forgive ? *forgive : -1);
	shim_fail_always(error);
	shim_garble(garbage);
	/* An error that means "no such ioctl" makes the library treat the kernel as an old one. */
	if (error == ENOTTY || error == EPROTONOSUPPORT)
		knows_methods = 0;
	set_up_objects();

	static void (*const parts[])(void) = {
		device,	 gids, domains,     regions,	   device_memory, all_counters, completion_queues, shared_receive_queues,
		work_queues, new_queue_pairs, queue_pairs, posting, addresses, flows, flow_actions, chains, newer,
		/* The last part, because it leaves foreign bytes on the stack, which rdma-core
		 * passes to the kernel in padding. */
		address_helpers,
	};
	for (size_t part = 0; part < sizeof(parts) / sizeof(parts[0]); part++) {
		parts[part]();
		shim_print();
	}
	shim_fail_always(0);
	shim_garble(0);
	shim_note("ibv_close_device = %d", ibv_close_device(context));
	shim_print();
	return 0;
}
