/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The extension of the provider interface by Ferroverbs. A provider plugin announces devices that
 * have no kernel device, and answers the questions that libibverbs otherwise asks sysfs or the
 * kernel. Such a plugin still registers in the usual way, and works with other libraries, which do
 * not look for the symbol. The Rust forms are abi/src/ext.rs and abi/src/emulation.rs.
 */
#ifndef INFINIBAND_FERROVERBS_PLUGIN_H
#define INFINIBAND_FERROVERBS_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ferroverbs_layer;
struct ib_uverbs_ioctl_hdr;
struct ibv_context;
struct ibv_device;
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

/* The device of a vendor that an announced device emulates. Texts end with a zero byte. */
struct ferroverbs_vendor_device {
	size_t size;		/* of the caller's structure; no more bytes are written */
	char provider[64];	/* as *.driver files have it: efa for libefa-rdmav34.so */
	uint32_t driver_id;	/* RDMA_DRIVER_*, by which providers are matched first; 0: unknown */
	uint32_t abi_version;	/* of the uverbs device, between the provider's limits */
	char modalias[512];	/* of the PCI device, matched next; empty: none */
	char ibdev_path[256];	/* ibv_device.ibdev_path; empty: that of a kernel device */
};

/*
 * The functions by which a plugin plays the kernel for devices that the unmodified provider of a
 * vendor serves.
 */
struct ferroverbs_emulation {
	/* sizeof of this struct as the plugin knows it; fields beyond are absent. */
	size_t size;
	/* 1: device is filled; 0: the plugin itself serves the announced device. */
	int (*describe)(const struct ferroverbs_device_info *info, struct ferroverbs_vendor_device *device);
	/* The cmd_fd of a new context, which the provider maps; or -errno. */
	int (*open_device)(struct ibv_device *device);
	/* The end of a context: closes its cmd_fd, and frees the objects that are left. */
	void (*close_device)(int cmd_fd);
	/*
	 * A command in the form of rdma/rdma_user_ioctl_cmds.h. 0 or an errno. A write command is always
	 * wrapped: method UVERBS_METHOD_INVOKE_WRITE. After EPROTONOSUPPORT the write command of a method
	 * follows, if the method has one. Several threads may call at a time.
	 */
	int (*command)(int cmd_fd, struct ib_uverbs_ioctl_hdr *message);
	/* NULL, or a layer (infiniband-provider/ferroverbs_layer.h) directly above the provider. */
	const struct ferroverbs_layer *hook;
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
	/* Whether fd is the cmd_fd of a context of the device, for ibv_import_device(3): 1 or 0. */
	int (*is_cmd_fd)(struct ibv_device *device, int fd);
	/*
	 * Sleeps until the descriptor of a completion channel has a record. 0 or an errno. A cancellation
	 * point.
	 */
	int (*await_comp_event)(struct ibv_context *context, int fd);
	/* For layers of Ferroverbs; abi/src/ext.rs has their types. */
	void *for_layers[4];
	/* NULL, or the functions for announced devices that a vendor's provider serves. */
	const struct ferroverbs_emulation *emulation;
};

extern const struct ferroverbs_plugin_ext ferroverbs_plugin_ext_v1;

#ifdef __cplusplus
}
#endif

#endif
