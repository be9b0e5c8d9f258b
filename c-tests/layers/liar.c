/* A layer that changes a completion: of wr_id 66 it says that it was 67, as a faulty provider might. */
#include <infiniband-provider/ferroverbs_layer.h>

static const struct verbs_context_ops *next;

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int found = next->poll_cq(cq, n, wc);
	for (int i = 0; i < found; i++)
		if (wc[i].wr_id == 66)
			wc[i].wr_id = 67;
	return found;
}

static int attach(struct ibv_context *context, const struct verbs_context_ops *beneath, struct verbs_context_ops *mine)
{
	(void)context;
	next = beneath;
	mine->poll_cq = poll_cq;
	return 0;
}

const struct ferroverbs_layer ferroverbs_layer_v1 = {
	.size = sizeof(struct ferroverbs_layer),
	.generation = FERROVERBS_LAYER_GENERATION,
	.name = "liar",
	.attach = attach,
};
