/*
 * The number of objects of each kind that a process can have, as ibv_query_device_ex(3) reports it.
 * That many can be created, one more fails with ENOMEM, and destroying one makes room for another.
 */
#include "rig.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_wq *wq;
static struct ibv_ah_attr to;
static unsigned char buf[64];

static void *new_pd(void)
{
	return ibv_alloc_pd(ctx);
}

static int end_pd(void *o)
{
	return ibv_dealloc_pd(o);
}

static void *new_cq(void)
{
	return ibv_create_cq(ctx, 1, NULL, NULL, 0);
}

static int end_cq(void *o)
{
	return ibv_destroy_cq(o);
}

static void *new_mr(void)
{
	return ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
}

static int end_mr(void *o)
{
	return ibv_dereg_mr(o);
}

static void *new_mw(void)
{
	return ibv_alloc_mw(pd, IBV_MW_TYPE_1);
}

static int end_mw(void *o)
{
	return ibv_dealloc_mw(o);
}

static void *new_ah(void)
{
	return ibv_create_ah(pd, &to);
}

static int end_ah(void *o)
{
	return ibv_destroy_ah(o);
}

static void *new_qp(void)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
	return ibv_create_qp(pd, &a);
}

static void *new_raw_qp(void)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RAW_PACKET };
	return ibv_create_qp(pd, &a);
}

static int end_qp(void *o)
{
	return ibv_destroy_qp(o);
}

static void *new_srq(void)
{
	struct ibv_srq_init_attr a = { .attr = { .max_wr = 1, .max_sge = 1 } };
	return ibv_create_srq(pd, &a);
}

static int end_srq(void *o)
{
	return ibv_destroy_srq(o);
}

static void *new_wq(void)
{
	struct ibv_wq_init_attr a = { .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd, .cq = cq };
	return ibv_create_wq(ctx, &a);
}

static int end_wq(void *o)
{
	return ibv_destroy_wq(o);
}

static void *new_table(void)
{
	struct ibv_rwq_ind_table_init_attr a = { .ind_tbl = &wq };
	return ibv_create_rwq_ind_table(ctx, &a);
}

static int end_table(void *o)
{
	return ibv_destroy_rwq_ind_table(o);
}

/* `held`: of the objects above. */
static void reach(const char *what, long long limit, long long held, void *(*make)(void), int (*end)(void *))
{
	if (limit <= 0) {
		printf("skipped: %s is %lld\n", what, limit);
		return;
	}
	long long n = 0, bad = 0, most = limit - held;
	void **all = calloc((size_t)most + 1, sizeof *all);
	if (!all)
		die("calloc");
	errno = 0;
	while (n < most && (all[n] = make()))
		n++;
	check(n == most, "%s, %lld: reached (%lld, %m)", what, limit, n + held);
	errno = 0;
	all[n] = make();
	check(!all[n] && errno == ENOMEM, "%s: one more: ENOMEM (%m)", what);
	if (all[n])
		end(all[n]);
	/* Destroys an object in the middle, so the free entry is not the last. */
	check_eq(end(all[n / 2]), 0, "%s: one goes", what);
	all[n / 2] = make();
	check(all[n / 2] != NULL, "%s: and another one comes (%m)", what);
	errno = 0;
	void *more = make();
	check(!more && errno == ENOMEM, "%s: not two (%m)", what);
	if (more)
		end(more);
	for (long long i = 0; i < n; i++)
		bad += all[i] && end(all[i]);
	check_eq(bad, 0, "%s: all go", what);
	free(all);
}

int main(void)
{
	struct ibv_device_attr_ex ex;
	struct ibv_device_attr *d = &ex.orig_attr;
	ctx = open_device();
	if (ibv_query_device_ex(ctx, NULL, &ex))
		die("ibv_query_device_ex");
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	mr = pd ? ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE) : NULL;
	to = (struct ibv_ah_attr){ .port_num = 1, .is_global = 1, .grh = { .hop_limit = 1 } };
	if (!mr || !cq || ibv_query_gid(ctx, 1, 0, &to.grh.dgid))
		die("set up");
	reach("max_pd", d->max_pd, 1, new_pd, end_pd);
	reach("max_cq", d->max_cq, 1, new_cq, end_cq);
	reach("max_mr", d->max_mr, 1, new_mr, end_mr);
	reach("max_mw", d->max_mw, 0, new_mw, end_mw);
	reach("max_ah", d->max_ah, 0, new_ah, end_ah);
	reach("max_qp", d->max_qp, 0, new_qp, end_qp);
	reach("max_raw_ethy_qp", d->max_raw_ethy_qp, 0, new_raw_qp, end_qp);
	reach("max_srq", d->max_srq, 0, new_srq, end_srq);
	reach("max_wq_type_rq", ex.max_wq_type_rq, 0, new_wq, end_wq);
	wq = new_wq();
	if (!wq)
		die("a work queue");
	reach("max_rwq_indirection_tables", ex.rss_caps.max_rwq_indirection_tables, 0, new_table, end_table);
	check_eq(ibv_destroy_wq(wq), 0, "ibv_destroy_wq");
	check_eq(ibv_dereg_mr(mr) | ibv_destroy_cq(cq) | ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0, "everything is closed");
	return finish();
}
