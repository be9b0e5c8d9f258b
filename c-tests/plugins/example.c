/*
 * The smallest plugin: a device without a kernel that can be listed, opened and queried. The plugin
 * uses only headers for plugin authors, and shows that they suffice.
 */
#include <infiniband-provider/driver.h>
#include <infiniband/ferroverbs_plugin.h>
#include <stdlib.h>
#include <unistd.h>

struct example_context {
	struct verbs_context ibv_ctx;
};

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr, size_t attr_size)
{
	(void)context;
	if (input && input->comp_mask)
		return EINVAL;
	memset(attr, 0, attr_size);
	attr->orig_attr.max_qp = 4321;
	return 0;
}

static void free_context(struct ibv_context *context)
{
	struct verbs_context *vctx = verbs_get_ctx(context);

	close(context->async_fd);
	verbs_uninit_context(vctx);
	free(vctx);
}

static const struct verbs_context_ops operations = {
	.free_context = free_context,
	.query_device_ex = query_device_ex,
};

static struct verbs_context *alloc_context(struct ibv_device *device, int cmd_fd, void *private_data)
{
	struct example_context *context = verbs_init_and_alloc_context(device, cmd_fd, context, ibv_ctx, RDMA_DRIVER_UNKNOWN);
	int ends[2];

	(void)private_data;
	if (!context)
		return NULL;
	/* No event ever comes. */
	if (pipe(ends)) {
		verbs_err(&context->ibv_ctx, "no pipe\n");
		verbs_uninit_context(&context->ibv_ctx);
		free(context);
		return NULL;
	}
	close(ends[1]);
	context->ibv_ctx.context.async_fd = ends[0];
	verbs_set_ops(&context->ibv_ctx, &operations);
	return &context->ibv_ctx;
}

static struct verbs_device *alloc_device(struct verbs_sysfs_dev *sysfs_dev)
{
	(void)sysfs_dev;
	return calloc(1, sizeof(struct verbs_device));
}

static void uninit_device(struct verbs_device *device)
{
	free(device);
}

static const struct verbs_match_ent matches[] = {
	VERBS_NAME_MATCH("example", NULL),
	VERBS_PCI_MATCH(0x1234, 0x5678, NULL),
	VERBS_MATCH_END,
};

static const struct verbs_device_ops device_ops = {
	.name = "example",
	.match_min_abi_version = 1,
	.match_max_abi_version = 1,
	.match_table = matches,
	.alloc_context = alloc_context,
	.alloc_device = alloc_device,
	.uninit_device = uninit_device,
};
PROVIDER_DRIVER(example, device_ops)

static int announce(int kernel_devices, struct ferroverbs_device_info *out, int max)
{
	(void)kernel_devices;
	if (max > 0) {
		memset(out, 0, sizeof(*out));
		strcpy(out->name, "example0");
		strcpy(out->dev_name, "example0");
		out->node_guid = 0x0102030405060708;
		out->node_type = IBV_NODE_CA;
		out->num_ports = 1;
	}
	return 1;
}

__attribute__((visibility("default"))) const struct ferroverbs_plugin_ext ferroverbs_plugin_ext_v1 = {
	.size = sizeof(struct ferroverbs_plugin_ext),
	.device_ops = &device_ops,
	.announce = announce,
};
