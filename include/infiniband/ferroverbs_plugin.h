/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The extension of the provider interface by Ferroverbs. A provider plugin announces devices that
 * have no kernel device, and answers the questions that libibverbs otherwise asks sysfs or the
 * kernel. Such a plugin still registers in the usual way, and works with other libraries, which do
 * not look for the symbol. The Rust form is abi/src/ext.rs.
 */
#ifndef INFINIBAND_FERROVERBS_PLUGIN_H
#define INFINIBAND_FERROVERBS_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_context;
struct ibv_gid_entry;
struct verbs_device_ops;

/* One announced device. */
struct ferroverbs_device_info {
	char name[64];		/* ibv_get_device_name(3) */
	char dev_name[64];	/* ibv_device.dev_name; a kernel device has uverbsN there */
	uint64_t node_guid;	/* ibv_get_device_guid(3), big endian */
	int node_type;		/* enum ibv_node_type */
	uint32_t num_ports;	/* numbered from 1 */
};

/*
 * The plugin exports this structure as the data symbol ferroverbs_plugin_ext_v1. A NULL function
 * means that the plugin does not support it.
 */
struct ferroverbs_plugin_ext {
	/* sizeof of this struct as the plugin knows it; fields beyond are absent. */
	size_t size;
	/* The very pointer that the plugin registered. */
	const struct verbs_device_ops *device_ops;
	/*
	 * Fills at most max entries of out and returns how many there are, or -errno after having
	 * printed a line of diagnosis. kernel_devices: how many RDMA devices the kernel has.
	 */
	int (*announce)(int kernel_devices, struct ferroverbs_device_info *out, int max);
	/* An entry of a GID table. 0, ENODATA (empty entry) or EINVAL (beyond the table). */
	int (*query_gid)(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry);
	/* An entry of a pkey table, big endian. 0 or an errno. */
	int (*query_pkey)(struct ibv_context *context, uint8_t port, int index, uint16_t *pkey);
	/*
	 * A descriptor from which 8-byte records are read, or -errno. A record is the address of the
	 * ibv_cq with an event.
	 */
	int (*create_comp_channel)(struct ibv_context *context);
	/* Closes such a descriptor. 0 or an errno. */
	int (*destroy_comp_channel)(struct ibv_context *context, int fd);
};

extern const struct ferroverbs_plugin_ext ferroverbs_plugin_ext_v1;

#ifdef __cplusplus
}
#endif

#endif
