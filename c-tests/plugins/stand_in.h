/*
 * The driver of a plugin that stands in for the kernel, and its only device:
 * STAND_IN(symbol, driver, device, type). The driver matches no device of the kernel.
 */
#ifndef STAND_IN_H
#define STAND_IN_H

#include <infiniband-provider/driver.h>
#include <infiniband/ferroverbs_plugin.h>
#include <string.h>

#define STAND_IN(symbol, driver, device, type)                                                   \
	static const struct verbs_match_ent matches[] = {VERBS_MATCH_END};                           \
	static const struct verbs_device_ops device_ops = {                                          \
		.name = driver,                                                                          \
		.match_min_abi_version = 1,                                                              \
		.match_max_abi_version = 1,                                                              \
		.match_table = matches,                                                                  \
	};                                                                                           \
	PROVIDER_DRIVER(symbol, device_ops)                                                          \
	static int announce(int kernel_devices, struct ferroverbs_device_info *out, int max)         \
	{                                                                                            \
		(void)kernel_devices;                                                                    \
		if (max > 0) {                                                                           \
			memset(out, 0, sizeof(*out));                                                        \
			strcpy(out->name, device);                                                           \
			strcpy(out->dev_name, "uverbs0");                                                    \
			out->node_type = type;                                                               \
			out->num_ports = 1;                                                                  \
		}                                                                                        \
		return 1;                                                                                \
	}

#endif
