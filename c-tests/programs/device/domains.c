/*
 * Thread domains and parent domains: valid parts, objects in them, and refused destruction while in
 * use. ibv_alloc_td(3), ibv_alloc_parent_domain(3).
 */
#include "rig.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static unsigned char buf[65536];

static void *give(struct ibv_pd *of, void *pd_context, size_t size, size_t alignment, uint64_t type)
{
	(void)of, (void)pd_context, (void)size, (void)alignment, (void)type;
	return IBV_ALLOCATOR_USE_DEFAULT;
}

static void take(struct ibv_pd *of, void *pd_context, void *ptr, uint64_t type)
{
	(void)of, (void)pd_context, (void)ptr, (void)type;
}

static void refused(struct ibv_parent_domain_init_attr a, const char *what)
{
	errno = 0;
	struct ibv_pd *p = ibv_alloc_parent_domain(ctx, &a);
	check(!p && errno == EINVAL, "%s: %s", what, p ? "allocated" : strerror(errno));
	if (p)
		ibv_dealloc_pd(p);
}

/* Sends a message through a QP of `of` into memory registered in `region_pd`; returns the status of
 * the receive. */
static enum ibv_wc_status message(struct ibv_pd *of, struct ibv_pd *region_pd, struct ibv_cq *cq, int with_srq)
{
	union ibv_gid gid;
	struct ibv_port_attr port;
	if (ibv_query_gid(ctx, 1, 0, &gid) || ibv_query_port(ctx, 1, &port))
		die("ibv_query_gid");
	struct ibv_mr *mr = ibv_reg_mr(region_pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = with_srq ? ibv_create_srq(of, &sa) : NULL;
	struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_UD, .cap = { 8, 8, 1, 1, 64 } };
	struct ibv_qp *qp = ibv_create_qp(of, &qa);
	struct ibv_ah_attr aa = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 1 }, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(of, &aa);
	if (!mr || !qp || !ah || (with_srq && !srq))
		die("objects of a parent domain: %s", strerror(errno));
	check(qp->pd == of && ah->pd == of && mr->pd == region_pd && (!srq || srq->pd == of), "objects name the domain that they were made in");
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5 };
	int bad = ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	at.qp_state = IBV_QPS_RTR;
	bad += ibv_modify_qp(qp, &at, IBV_QP_STATE);
	at.qp_state = IBV_QPS_RTS;
	bad += ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_SQ_PSN);
	struct ibv_sge into = { (uintptr_t)buf, 1000, mr->lkey }, from = { (uintptr_t)"hello", 6, 0 };
	struct ibv_recv_wr r = { .wr_id = 1, .sg_list = &into, .num_sge = 1 }, *bad_r;
	struct ibv_send_wr s = { .wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE,
				 .wr.ud = { .ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = 5 } }, *bad_s;
	bad += srq ? ibv_post_srq_recv(srq, &r, &bad_r) : ibv_post_recv(qp, &r, &bad_r);
	bad += ibv_post_send(qp, &s, &bad_s);
	if (bad)
		die("a QP of a parent domain");
	struct ibv_wc w;
	wait_completion(cq, &w);
	if (w.status == IBV_WC_SUCCESS)
		check(!memcmp(buf + 40, "hello", 6), "the message is there");
	if (of != region_pd || of != pd)
		check_eq(ibv_dealloc_pd(of), EBUSY, "deallocating a domain that objects are in");
	check_eq(ibv_destroy_ah(ah), 0, "ibv_destroy_ah");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	if (srq)
		check_eq(ibv_destroy_srq(srq), 0, "ibv_destroy_srq");
	check_eq(ibv_dereg_mr(mr), 0, "ibv_dereg_mr");
	return w.status;
}

int main(void)
{
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_td_init_attr unknown = { .comp_mask = 1 }, plain = { 0 };
	errno = 0;
	check(!ibv_alloc_td(ctx, &unknown) && errno == EINVAL, "ibv_alloc_td with a comp_mask: %s", strerror(errno));
	struct ibv_td *td = ibv_alloc_td(ctx, &plain);
	if (!pd || !other || !td)
		die("set up");
	check(td->context == ctx, "a thread domain's context");

	refused((struct ibv_parent_domain_init_attr){ .td = td }, "a parent domain without a protection domain");
	refused((struct ibv_parent_domain_init_attr){ .pd = pd, .comp_mask = 1u << 20 }, "a comp_mask that nobody knows");
	refused((struct ibv_parent_domain_init_attr){ .pd = pd, .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, .alloc = give }, "one allocator without the other");

	struct ibv_parent_domain_init_attr a = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &a);
	a = (struct ibv_parent_domain_init_attr){ .pd = pd, .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
						  .alloc = give, .free = take, .pd_context = buf };
	struct ibv_pd *second = ibv_alloc_parent_domain(ctx, &a);
	if (!parent || !second)
		die("ibv_alloc_parent_domain: %s", strerror(errno));
	check(parent->context == ctx && second->context == ctx, "their context");
	check_eq(ibv_dealloc_td(td), EBUSY, "deallocating a thread domain that a parent domain has");
	check_eq(ibv_dealloc_pd(pd), EBUSY, "deallocating a protection domain that parent domains have");

	struct ibv_cq_init_attr_ex ca = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent };
	struct ibv_cq_ex *cq_ex = ibv_create_cq_ex(ctx, &ca);
	if (!cq_ex)
		die("ibv_create_cq_ex in a parent domain: %s", strerror(errno));
	struct ibv_cq *cq = ibv_cq_ex_to_cq(cq_ex);
	check_eq(message(parent, parent, cq, 0), IBV_WC_SUCCESS, "all in the parent domain");
	check_eq(message(parent, pd, cq, 0), IBV_WC_SUCCESS, "memory of the protection domain, QP of the parent domain");
	check_eq(message(second, parent, cq, 1), IBV_WC_SUCCESS, "memory of one parent domain, SRQ and QP of another of the same protection domain");
	check_eq(message(parent, other, cq, 0), IBV_WC_LOC_PROT_ERR, "memory of another protection domain");
	check_eq(ibv_dealloc_pd(parent), EBUSY, "deallocating a parent domain that a CQ is in");
	check_eq(ibv_destroy_cq(cq), 0, "ibv_destroy_cq");

	check_eq(ibv_dealloc_pd(parent), 0, "ibv_dealloc_pd of a parent domain");
	check_eq(ibv_dealloc_td(td), 0, "ibv_dealloc_td");
	check_eq(ibv_dealloc_pd(pd), EBUSY, "the protection domain is still used");
	check_eq(ibv_dealloc_pd(second), 0, "ibv_dealloc_pd of the other");
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_dealloc_pd(other), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	return finish();
}
