/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A layer of Ferroverbs: a shared object between a program and the provider of its device. The
 * variable FERROVERBS_LAYERS names the layers (ferroverbs-layers(7), docs/reference/layers.md). The
 * Rust form is abi/src/layer.rs.
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
	 * next: the functions beneath the layer. No entry is NULL. An entry may change while the
	 * context is open, so read the entry at each call.
	 * mine: all NULL. A function that the layer stores here is called instead of the entry of
	 * next. Calls of entries that stay NULL are passed on.
	 * Both tables live until free_context of next was called. 0, or an errno: the layer is left
	 * out of this context.
	 */
	int (*attach)(struct ibv_context *context, const struct verbs_context_ops *next, struct verbs_context_ops *mine);
	/*
	 * May be NULL. ibv_get_cq_event calls the function before it reads, and perhaps sleeps at,
	 * fd: the descriptor of a completion channel of this context. 0: continue. An errno, EINTR
	 * for example: ibv_get_cq_event fails with it. The thread cannot be cancelled in this
	 * function.
	 */
	int (*awaits)(struct ibv_context *context, int fd);
};

/* Defined by the layer, as data that never changes. */
extern const struct ferroverbs_layer ferroverbs_layer_v1;

#ifdef __cplusplus
}
#endif

#endif
