/*
 * A plugin that plays the kernel for the unmodified libefa: the device vendor0 can be opened and
 * queried, and has protection domains. The plugin uses only headers for plugin authors and those of
 * the kernel. The program vendor-user.c reads its counts of calls.
 */
#define _GNU_SOURCE
#include <infiniband-provider/driver.h>
#include <infiniband-provider/ferroverbs_layer.h>
#include <infiniband/ferroverbs_plugin.h>
#include <rdma/efa-abi.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stand_in.h"

__attribute__((visibility("default"))) int vendor_opened, vendor_closed, vendor_commands, vendor_hooked;

STAND_IN(vendor, "vendor", "vendor0", IBV_NODE_UNSPECIFIED)

/* VENDOR_PROVIDER names another provider, for the test of a missing one. */
static int describe(const struct ferroverbs_device_info *info, struct ferroverbs_vendor_device *device)
{
	const char *provider = getenv("VENDOR_PROVIDER");

	if (strcmp(info->name, "vendor0") || device->size < sizeof(*device))
		return 0;
	strncpy(device->provider, provider ? provider : "efa", sizeof(device->provider) - 1);
	device->abi_version = 1;
	strcpy(device->modalias, provider ? "" : "pci:v00001D0Fd0000EFA1sv00001D0Fsd0000EFA1bc02sc00i00");
	strcpy(device->ibdev_path, "/nowhere/infiniband/vendor0");
	return 1;
}

static int open_device(struct ibv_device *device)
{
	vendor_opened++;
	return strcmp(device->name, "vendor0") ? -EINVAL : memfd_create("vendor", MFD_CLOEXEC);
}

static void close_device(int cmd_fd)
{
	vendor_closed++;
	close(cmd_fd);
}

static struct ib_uverbs_attr *find(struct ib_uverbs_ioctl_hdr *message, unsigned id)
{
	for (int i = 0; i < message->num_attrs; i++)
		if (message->attrs[i].attr_id == id)
			return &message->attrs[i];
	return NULL;
}

/* Stores a response, as far as the attribute has room. */
static void answer(struct ib_uverbs_ioctl_hdr *message, unsigned id, const void *bytes, size_t len)
{
	struct ib_uverbs_attr *attr = find(message, id);

	if (attr)
		memcpy((void *)(uintptr_t)attr->data, bytes, len < attr->len ? len : attr->len);
}

static int command(int cmd_fd, struct ib_uverbs_ioctl_hdr *message)
{
	(void)cmd_fd;
	vendor_commands++;
	if (message->object_id != UVERBS_OBJECT_DEVICE || message->method_id != UVERBS_METHOD_INVOKE_WRITE)
		return EPROTONOSUPPORT;
	switch (find(message, UVERBS_ATTR_WRITE_CMD)->data) {
	case IB_USER_VERBS_CMD_GET_CONTEXT: {
		struct ib_uverbs_get_context_resp core = {eventfd(0, EFD_CLOEXEC), 1};
		struct efa_ibv_alloc_ucontext_resp vendor = {
			.cmds_supp_udata_mask = EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
			.sub_cqs_per_cq = 1,
			.inline_buf_size = 32,
			.max_llq_size = 65536,
			.max_tx_batch = 64,
		};
		answer(message, UVERBS_ATTR_CORE_OUT, &core, sizeof(core));
		answer(message, UVERBS_ATTR_UHW_OUT, &vendor, sizeof(vendor));
		return 0;
	}
	case IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED: {
		struct ib_uverbs_ex_query_device_resp core = {.response_length = sizeof(core)};
		struct efa_ibv_ex_query_device_resp vendor = {.max_sq_wr = 512, .max_rq_wr = 512, .max_sq_sge = 2, .max_rq_sge = 2};
		core.base.max_qp = 77;
		core.base.phys_port_cnt = 1;
		answer(message, UVERBS_ATTR_CORE_OUT, &core, sizeof(core));
		answer(message, UVERBS_ATTR_UHW_OUT, &vendor, sizeof(vendor));
		return 0;
	}
	case IB_USER_VERBS_CMD_ALLOC_PD: {
		struct ib_uverbs_alloc_pd_resp core = {.pd_handle = 5};
		struct efa_ibv_alloc_pd_resp vendor = {.pdn = 9};
		answer(message, UVERBS_ATTR_CORE_OUT, &core, sizeof(core));
		answer(message, UVERBS_ATTR_UHW_OUT, &vendor, sizeof(vendor));
		return 0;
	}
	case IB_USER_VERBS_CMD_DEALLOC_PD:
		return 0;
	default:
		return EOPNOTSUPP;
	}
}

static const struct verbs_context_ops *beneath;

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	vendor_hooked++;
	return beneath->alloc_pd(context);
}

static int attach(struct ibv_context *context, const struct verbs_context_ops *next, struct verbs_context_ops *mine)
{
	(void)context;
	beneath = next;
	mine->alloc_pd = alloc_pd;
	return 0;
}

static const struct ferroverbs_layer hook = {
	.size = sizeof(hook),
	.generation = FERROVERBS_LAYER_GENERATION,
	.name = "vendor",
	.attach = attach,
};

static const struct ferroverbs_emulation emulation = {
	.size = sizeof(emulation),
	.describe = describe,
	.open_device = open_device,
	.close_device = close_device,
	.command = command,
	.hook = &hook,
};

__attribute__((visibility("default"))) const struct ferroverbs_plugin_ext ferroverbs_plugin_ext_v1 = {
	.size = sizeof(struct ferroverbs_plugin_ext),
	.device_ops = &device_ops,
	.announce = announce,
	.emulation = &emulation,
};
