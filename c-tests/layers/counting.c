/*
 * A layer in C: counts posts, polls and waits, and prints the counts when the device is closed.
 * -DNAME names the place of the layer in the chain. With -DOLDER the layer's table ends before the
 * member for waits.
 */
#include <infiniband-provider/ferroverbs_layer.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static const struct verbs_context_ops *next;
static unsigned posted, polled, awaited;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	posted++;
	return next->post_send(qp, wr, bad);
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int found = next->poll_cq(cq, n, wc);
	if (found > 0)
		polled += (unsigned)found;
	return found;
}

static void free_context(struct ibv_context *context)
{
	/* The table is invalid after free_context returns. */
	next->free_context(context);
	printf("%s: %u posted, %u polled, %u awaited\n", NAME, posted, polled, awaited);
}

#ifndef OLDER
static int awaits(struct ibv_context *context, int fd)
{
	/* REFUSED is the errno that a wait ends with. */
	awaited += context != NULL && fd >= 0;
	return getenv("REFUSED") ? atoi(getenv("REFUSED")) : 0;
}
#endif

static int attach(struct ibv_context *context, const struct verbs_context_ops *beneath, struct verbs_context_ops *mine)
{
	(void)context;
	next = beneath;
	mine->post_send = post_send;
	mine->poll_cq = poll_cq;
	mine->free_context = free_context;
	return 0;
}

const struct ferroverbs_layer ferroverbs_layer_v1 = {
#ifdef OLDER
	.size = offsetof(struct ferroverbs_layer, awaits),
#else
	.size = sizeof(struct ferroverbs_layer),
	.awaits = awaits,
#endif
#ifdef WRONG_GENERATION
	.generation = 12,
#else
	.generation = FERROVERBS_LAYER_GENERATION,
#endif
	.name = NAME,
	.attach = attach,
};
