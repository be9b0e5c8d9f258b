/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A layer of Ferroverbs: a shared object between a program and the provider of its device, which
 * FERROVERBS_LAYERS names (ferroverbs-layers(7), docs/reference/layers.md). The Rust form is abi/src/layer.rs.
 */
#ifndef INFINIBAND_FERROVERBS_LAYER_H
#define INFINIBAND_FERROVERBS_LAYER_H

#include <infiniband-provider/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The private generation of driver.h, whose struct verbs_context_ops both tables are. */
#define FERROVERBS_LAYER_GENERATION 65

struct ferroverbs_layer {
	size_t size;		/* of this structure, as the layer knows it */
	uint32_t generation;	/* FERROVERBS_LAYER_GENERATION */
	uint32_t reserved;	/* 0 */
	const char *name;	/* for diagnoses */
	/*
	 * Called once for each context, after the provider made it and before the program has it.
	 * next: what lies beneath. No entry is NULL. An entry may change while the context is open: each call reads it anew.
	 * mine: all NULL. What the layer puts there is called instead of the entry of next; what stays NULL is passed on.
	 * Both tables live until free_context of next was called. 0, or an errno: the layer is left out of this context.
	 */
	int (*attach)(struct ibv_context *context, const struct verbs_context_ops *next, struct verbs_context_ops *mine);
	/*
	 * NULL, or called by ibv_get_cq_event before it reads fd, the descriptor of a completion channel of this context, and maybe
	 * sleeps there. 0: go on; an errno is what the call fails with, EINTR for example. The thread cannot be cancelled in it.
	 */
	int (*awaits)(struct ibv_context *context, int fd);
};

/* Defined by the layer, as data that never changes. */
extern const struct ferroverbs_layer ferroverbs_layer_v1;

#ifdef __cplusplus
}
#endif

#endif
