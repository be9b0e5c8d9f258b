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

/* A call that libibverbs refused because of an argument. */
struct ferroverbs_refusal {
	size_t size;		/* of this structure, as libibverbs knows it */
	const char *call;	/* the name of the call: ibv_create_srq */
	const char *argument;	/* the argument, or a member of it: attr->wc_flags */
	const char *problem;	/* what is wrong; follows the argument's name: is NULL */
	const char *remedy;	/* what the program should do */
	uint64_t value;		/* the argument's value, if has_value is not 0 */
	uint32_t has_value;
	int error;		/* the errno that the call fails with */
};

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
	/*
	 * May be NULL. Called when libibverbs itself refuses a call because of an argument, so that
	 * no operation is called. The refusal is valid during the call. The thread cannot be
	 * cancelled in this function.
	 */
	void (*refused)(const struct ferroverbs_refusal *refusal);
};

/* Defined by the layer, as data that never changes. */
extern const struct ferroverbs_layer ferroverbs_layer_v1;

#ifdef __cplusplus
}
#endif

#endif
