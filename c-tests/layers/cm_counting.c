/* A layer of librdmacm in C: counts created ids and prints the count when their channel is
 * destroyed. -DNAME names the place of the layer in the chain. */
#include <infiniband-provider/ferroverbs_cm_layer.h>
#include <stdio.h>

static const struct ferroverbs_cm_calls *next;
static unsigned made;

static int create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps)
{
	made++;
	return next->create_id(channel, id, context, ps);
}

static void destroy_event_channel(struct rdma_event_channel *channel)
{
	next->destroy_event_channel(channel);
	printf("%s: %u ids\n", NAME, made);
}

static int attach(const struct ferroverbs_cm_calls *beneath, struct ferroverbs_cm_calls *mine)
{
	next = beneath;
	mine->create_id = create_id;
	mine->destroy_event_channel = destroy_event_channel;
	return 0;
}

const struct ferroverbs_cm_layer ferroverbs_cm_layer_v1 = {
	.size = sizeof(struct ferroverbs_cm_layer),
#ifdef NEWER
	.calls = sizeof(struct ferroverbs_cm_calls) + 8,
#else
	.calls = sizeof(struct ferroverbs_cm_calls),
#endif
	.name = NAME,
	.attach = attach,
};
