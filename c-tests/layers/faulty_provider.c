/*
 * A layer that behaves like a faulty or limited provider. A completion of wr_id 66 is reported as
 * 67. A request of wr_id 68 finds room only as the first of a list. A region of 66 * 512 bytes
 * exceeds the memlock limit. Fields that libibverbs fills in for regions and address handles are
 * still empty, as with plugins of kernel devices. A path without a GID, or from GID 1 to fd00::2,
 * is refused, as adapters do (GID 1 is an IPv4 address in advice.c). With FILTER_FIRST in the
 * environment, the number of the first QP is written into the settings of the layer `capture`
 * before `capture` reads them.
 */
#include <errno.h>
#include <infiniband-provider/ferroverbs_layer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct verbs_context_ops *next;

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int found = next->poll_cq(cq, n, wc);
	for (int i = 0; i < found; i++)
		if (wc[i].wr_id == 66)
			wc[i].wr_id = 67;
	return found;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	for (struct ibv_send_wr *last = wr; last; last = last->next) {
		struct ibv_send_wr *rest = last->next;
		if (rest && rest->wr_id == 68) {
			last->next = NULL;
			int result = next->post_send(qp, wr, bad);
			last->next = rest;
			if (!result)
				*bad = rest;
			return result ? result : ENOMEM;
		}
	}
	return next->post_send(qp, wr, bad);
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	if (length == 66 * 512) {
		errno = ENOMEM;
		return NULL;
	}
	struct ibv_mr *mr = next->reg_mr(pd, addr, length, iova, access);
	if (mr) {
		mr->context = NULL;
		mr->pd = NULL;
		mr->addr = NULL;
		mr->length = 0;
	}
	return mr;
}

static struct ibv_ah *create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah = next->create_ah(pd, attr);
	if (ah) {
		ah->context = NULL;
		ah->pd = NULL;
	}
	return ah;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	static const union ibv_gid other_family = { .raw = { 0xfd, [15] = 2 } };
	const struct ibv_ah_attr *to = &attr->ah_attr;
	int is_other = to->grh.sgid_index == 1 && !memcmp(&to->grh.dgid, &other_family, sizeof(other_family));
	if (mask & IBV_QP_AV && (!to->is_global || is_other))
		return EINVAL;
	return next->modify_qp(qp, attr, mask);
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	static int is_later;
	struct ibv_qp *qp = next->create_qp(pd, attr);
	const char *settings = getenv("FERROVERBS_CAPTURE");
	char with[512];
	if (qp && settings && !is_later) {
		snprintf(with, sizeof(with), "%s:qp=1,0x%x", settings, qp->qp_num);
		setenv("FERROVERBS_CAPTURE", with, 1);
		is_later = 1;
	}
	return qp;
}

static int attach(struct ibv_context *context, const struct verbs_context_ops *beneath, struct verbs_context_ops *mine)
{
	(void)context;
	next = beneath;
	mine->poll_cq = poll_cq;
	mine->post_send = post_send;
	mine->reg_mr = reg_mr;
	mine->create_ah = create_ah;
	mine->modify_qp = modify_qp;
	if (getenv("FILTER_FIRST"))
		mine->create_qp = create_qp;
	return 0;
}

const struct ferroverbs_layer ferroverbs_layer_v1 = {
	.size = sizeof(struct ferroverbs_layer),
	.generation = FERROVERBS_LAYER_GENERATION,
	.name = "faulty_provider",
	.attach = attach,
};
