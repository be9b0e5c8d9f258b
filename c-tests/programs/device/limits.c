/*
 * The limits of ibv_query_device_ex(3) are the enforced limits: each one that a test can reach is
 * reachable, and one more is refused with the errno of hardware providers.
 */
#include "rig.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_device_attr_ex ex;
static struct ibv_device_attr dev;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static unsigned char buf[4096];

static struct ibv_qp *new_qp(enum ibv_qp_type type, struct ibv_qp_cap *cap)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .cap = *cap, .qp_type = type };
	errno = 0;
	struct ibv_qp *q = ibv_create_qp(pd, &a);
	if (q)
		*cap = a.cap;
	return q;
}

static struct ibv_qp_attr to_init(void)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 };
}

enum { INIT_MASK = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT };

static void completion_queues(void)
{
	errno = 0;
	struct ibv_cq *c = ibv_create_cq(ctx, dev.max_cqe, NULL, NULL, 0);
	check(c && c->cqe >= dev.max_cqe, "a CQ of max_cqe, %d (%m)", dev.max_cqe);
	if (c) {
		check_eq(ibv_resize_cq(c, dev.max_cqe + 1), EINVAL, "ibv_resize_cq to one more");
		check_eq(ibv_resize_cq(c, 1), 0, "ibv_resize_cq to 1");
		check_eq(ibv_resize_cq(c, dev.max_cqe), 0, "ibv_resize_cq to max_cqe");
		check_eq(ibv_destroy_cq(c), 0, "ibv_destroy_cq");
	}
	errno = 0;
	check(!ibv_create_cq(ctx, dev.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL, "a CQ of one more: EINVAL (%m)");
	struct ibv_cq_init_attr_ex a = { .cqe = (uint32_t)dev.max_cqe + 1, .wc_flags = IBV_WC_STANDARD_FLAGS };
	errno = 0;
	check(!ibv_create_cq_ex(ctx, &a) && errno == EINVAL, "an extended CQ of one more: EINVAL (%m)");
}

static void queue_pairs(void)
{
	struct ibv_qp_cap most = { (uint32_t)dev.max_qp_wr, (uint32_t)dev.max_qp_wr, (uint32_t)dev.max_sge, (uint32_t)dev.max_sge, 0 }, cap = most;
	struct ibv_qp *q = new_qp(IBV_QPT_UD, &cap);
	if (check(q != NULL, "a QP of max_qp_wr requests, %d, of max_sge elements, %d (%m)", dev.max_qp_wr, dev.max_sge)) {
		check(cap.max_recv_wr >= most.max_recv_wr && cap.max_recv_sge >= most.max_recv_sge, "it says so");
		struct ibv_qp_attr at = to_init();
		at.qkey = 7;
		if (ibv_modify_qp(q, &at, INIT_MASK | IBV_QP_QKEY))
			die("to INIT");
		/* Longer than the queue says, by one element. */
		struct ibv_sge sg[MAX_SGE + 1];
		if (cap.max_recv_sge > MAX_SGE)
			die("max_sge is %u", cap.max_recv_sge);
		for (uint32_t i = 0; i <= cap.max_recv_sge; i++)
			sg[i] = (struct ibv_sge){ (uintptr_t)buf + i, 1, mr->lkey };
		struct ibv_recv_wr w = { .sg_list = sg, .num_sge = (int)cap.max_recv_sge + 1 }, *bad = NULL;
		check_eq(ibv_post_recv(q, &w, &bad), EINVAL, "a receive of one element more");
		check(bad == &w, "it is the bad one");
		w.num_sge = (int)cap.max_recv_sge;
		int result = 0;
		uint32_t n = 0;
		while (n < cap.max_recv_wr && !(result = ibv_post_recv(q, &w, &bad)))
			n++;
		check(!result && n == cap.max_recv_wr, "max_recv_wr receives of max_recv_sge elements: %u (%s)", n, strerror(result));
		check_eq(ibv_post_recv(q, &w, &bad), ENOMEM, "a receive more than the queue takes");
		check_eq(ibv_destroy_qp(q), 0, "ibv_destroy_qp");
	}
	static const char *const what[] = { "max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge" };
	for (int i = 0; i < 4; i++) {
		cap = (struct ibv_qp_cap){ 1, 1, 1, 1, 0 };
		uint32_t *field[] = { &cap.max_send_wr, &cap.max_recv_wr, &cap.max_send_sge, &cap.max_recv_sge };
		*field[i] = (uint32_t)(i < 2 ? dev.max_qp_wr : dev.max_sge) + 1;
		check(!new_qp(IBV_QPT_RC, &cap) && errno == EINVAL, "%s one beyond: EINVAL (%m)", what[i]);
	}
}

/* No query reports the maximum of inline bytes: the limit is what a QP can be created with. */
static void inline_data(void)
{
	uint32_t good = 0, beyond = 1u << 16;
	while (good + 1 < beyond) {
		struct ibv_qp_cap cap = { 1, 1, 1, 1, (good + beyond) / 2 };
		uint32_t asked = cap.max_inline_data;
		struct ibv_qp *q = new_qp(IBV_QPT_UD, &cap);
		if (q && cap.max_inline_data < asked)
			check(0, "max_inline_data %u was asked for and %u given", asked, cap.max_inline_data);
		if (!q && errno != EINVAL)
			check(0, "max_inline_data %u: %m", asked);
		if (q)
			ibv_destroy_qp(q);
		*(q ? &good : &beyond) = asked;
	}
	check(good >= 64 && good < sizeof buf, "the most inline data: %u bytes", good);
	struct ibv_qp_cap cap = { 2, 1, 1, 1, good };
	struct ibv_qp *q = new_qp(IBV_QPT_UD, &cap);
	struct ibv_ah_attr to = { .port_num = 1, .is_global = 1, .grh = { .hop_limit = 1 } };
	if (!q || ibv_query_gid(ctx, 1, 0, &to.grh.dgid))
		die("a QP with inline data");
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	struct ibv_qp_attr at = to_init();
	at.qkey = 7;
	int err = ibv_modify_qp(q, &at, INIT_MASK | IBV_QP_QKEY);
	at.qp_state = IBV_QPS_RTR;
	err = err ? err : ibv_modify_qp(q, &at, IBV_QP_STATE);
	at.qp_state = IBV_QPS_RTS;
	err = err ? err : ibv_modify_qp(q, &at, IBV_QP_STATE | IBV_QP_SQ_PSN);
	if (!ah || err)
		die("to RTS");
	/* Inline data need no key. To nobody: it is lost, and completes. */
	struct ibv_sge sg = { (uintptr_t)buf, cap.max_inline_data, 0 };
	struct ibv_send_wr w = { .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }, *bad;
	w.wr.ud.ah = ah;
	w.wr.ud.remote_qpn = 0xfffffe;
	w.wr.ud.remote_qkey = 7;
	check_eq(ibv_post_send(q, &w, &bad), 0, "a request of max_inline_data");
	struct ibv_wc wc;
	wait_completion(cq, &wc);
	check_eq(wc.status, IBV_WC_SUCCESS, "its completion");
	sg.length++;
	check_eq(ibv_post_send(q, &w, &bad), EINVAL, "a request of one byte more, as with rxe");
	check_eq(ibv_destroy_qp(q), 0, "ibv_destroy_qp");
	check_eq(ibv_destroy_ah(ah), 0, "ibv_destroy_ah");
}

static void shared_receive_queues(void)
{
	struct ibv_srq_init_attr a = { .attr = { .max_wr = (uint32_t)dev.max_srq_wr, .max_sge = (uint32_t)dev.max_srq_sge } }, b;
	b = a;
	errno = 0;
	struct ibv_srq *s = ibv_create_srq(pd, &b);
	if (check(s && b.attr.max_wr >= a.attr.max_wr && b.attr.max_sge >= a.attr.max_sge, "an SRQ of max_srq_wr, %d, and max_srq_sge, %d (%m)", dev.max_srq_wr,
		  dev.max_srq_sge)) {
		struct ibv_sge sg = { (uintptr_t)buf, 1, mr->lkey };
		struct ibv_recv_wr w = { .sg_list = &sg, .num_sge = 1 }, *bad;
		uint32_t n = 0;
		while (n < b.attr.max_wr && !ibv_post_srq_recv(s, &w, &bad))
			n++;
		check_eq(n, b.attr.max_wr, "receives that it takes");
		check_eq(ibv_post_srq_recv(s, &w, &bad), ENOMEM, "one more");
		check_eq(ibv_destroy_srq(s), 0, "ibv_destroy_srq");
	}
	for (int i = 0; i < 2; i++) {
		b = a;
		b.attr.max_wr = i ? 1 : b.attr.max_wr + 1;
		b.attr.max_sge = i ? b.attr.max_sge + 1 : 1;
		errno = 0;
		check(!ibv_create_srq(pd, &b) && errno == EINVAL, "%s one beyond: EINVAL (%m)", i ? "max_srq_sge" : "max_srq_wr");
	}
}

static void outstanding_reads(void)
{
	struct ibv_qp_cap cap = { 1, 1, 1, 1, 0 };
	union ibv_gid gid;
	struct ibv_qp *q = new_qp(IBV_QPT_RC, &cap);
	if (!q || ibv_query_gid(ctx, 1, 0, &gid))
		die("ibv_create_qp");
	if (dev.max_qp_rd_atom >= UINT8_MAX || dev.max_qp_init_rd_atom >= UINT8_MAX) {
		printf("skipped: max_qp_rd_atom is as large as an attribute can be\n");
		ibv_destroy_qp(q);
		return;
	}
	struct ibv_qp_attr at = to_init();
	if (ibv_modify_qp(q, &at, INIT_MASK | IBV_QP_ACCESS_FLAGS))
		die("to INIT");
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .dest_qp_num = q->qp_num,
				   .max_dest_rd_atomic = (uint8_t)(dev.max_qp_rd_atom + 1),
				   .min_rnr_timer = 1,
				   .ah_attr = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 1 }, .port_num = 1 } };
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	check_eq(ibv_modify_qp(q, &at, mask), EINVAL, "max_dest_rd_atomic beyond max_qp_rd_atom");
	at.max_dest_rd_atomic--;
	check_eq(ibv_modify_qp(q, &at, mask), 0, "max_dest_rd_atomic of max_qp_rd_atom, %d", dev.max_qp_rd_atom);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .max_rd_atomic = (uint8_t)(dev.max_qp_init_rd_atom + 1), .timeout = 14 };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT;
	check_eq(ibv_modify_qp(q, &at, mask), EINVAL, "max_rd_atomic beyond max_qp_init_rd_atom");
	at.max_rd_atomic--;
	check_eq(ibv_modify_qp(q, &at, mask), 0, "max_rd_atomic of max_qp_init_rd_atom, %d", dev.max_qp_init_rd_atom);
	check_eq(ibv_destroy_qp(q), 0, "ibv_destroy_qp");
}

static void regions(void)
{
	enum { TRIED = 64 };
	struct ibv_pd *many[TRIED];
	int made = 0;
	while (made < TRIED && made < dev.max_pd && (many[made] = ibv_alloc_pd(ctx)))
		made++;
	check(made == TRIED || made == dev.max_pd, "%d domains of max_pd, %d", made, dev.max_pd);
	while (made)
		ibv_dealloc_pd(many[--made]);
	/* A max_mr_size of the whole address space applies only to implicit on-demand regions. */
	if (dev.max_mr_size == UINT64_MAX && ex.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT) {
		errno = 0;
		struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
		check(all != NULL, "a region of max_mr_size (%m)");
		if (all)
			check_eq(ibv_dereg_mr(all), 0, "ibv_dereg_mr");
	} else {
		errno = 0;
		check(!ibv_reg_mr(pd, buf, (size_t)dev.max_mr_size + 1, IBV_ACCESS_LOCAL_WRITE) && errno != 0, "a region beyond max_mr_size (%m)");
	}
}

static union ibv_gid group(unsigned n)
{
	union ibv_gid gid = { .raw = { 0xff, 0x1e } };
	gid.raw[14] = (uint8_t)(n >> 8);
	gid.raw[15] = (uint8_t)n;
	return gid;
}

static void multicast(void)
{
	struct ibv_qp_cap cap = { 1, 1, 1, 1, 0 };
	int most = dev.max_mcast_grp, n = 0, err = 0;
	struct ibv_qp *q = new_qp(IBV_QPT_UD, &cap);
	struct ibv_qp_attr at = to_init();
	at.qkey = 7;
	if (!q || ibv_modify_qp(q, &at, INIT_MASK | IBV_QP_QKEY))
		die("a UD QP");
	if (most > 4096) {
		printf("skipped: max_mcast_grp is %d, too many to join\n", most);
		most = 16;
	}
	for (; n < most && !err; n += !err) {
		union ibv_gid gid = group((unsigned)n);
		err = ibv_attach_mcast(q, &gid, 0);
	}
	check(n == most, "one QP in max_mcast_grp groups: %d of %d (%s)", n, most, strerror(err));
	if (most == dev.max_mcast_grp) {
		union ibv_gid gid = group((unsigned)most);
		check_eq(ibv_attach_mcast(q, &gid, 0), ENOMEM, "one group more");
	}
	int bad = 0;
	while (n-- > 0) {
		union ibv_gid gid = group((unsigned)n);
		bad += !!ibv_detach_mcast(q, &gid, 0);
	}
	check_eq(bad, 0, "failed ibv_detach_mcast");
	check_eq(ibv_destroy_qp(q), 0, "ibv_destroy_qp");

	enum { MEMBERS = 1024 };
	static struct ibv_qp *member[MEMBERS + 1];
	most = dev.max_mcast_qp_attach;
	if (most > MEMBERS) {
		printf("skipped: max_mcast_qp_attach is %d, too many QPs\n", most);
		return;
	}
	union ibv_gid gid = group(1);
	for (n = 0; n <= most; n++) {
		cap = (struct ibv_qp_cap){ 1, 1, 1, 1, 0 };
		member[n] = new_qp(IBV_QPT_UD, &cap);
		if (!member[n] || ibv_modify_qp(member[n], &at, INIT_MASK | IBV_QP_QKEY))
			die("UD QP %d: %s", n, strerror(errno));
		err = ibv_attach_mcast(member[n], &gid, 0);
		if (n < most ? err : err != ENOMEM)
			check(0, "member %d of max_mcast_qp_attach, %d: %s", n + 1, most, strerror(err));
	}
	check_eq(ibv_detach_mcast(member[0], &gid, 0), 0, "a member leaves");
	check_eq(ibv_attach_mcast(member[most], &gid, 0), 0, "and makes room for the one that was refused");
	bad = 0;
	for (n = 0; n <= most; n++)
		bad += !!(n && ibv_detach_mcast(member[n], &gid, 0)) + !!ibv_destroy_qp(member[n]);
	check_eq(bad, 0, "failed ibv_detach_mcast and ibv_destroy_qp");
}

static void address_handles(void)
{
	enum { TRIED = 10000 };
	static struct ibv_ah *many[TRIED];
	struct ibv_ah_attr a = { .port_num = 1, .is_global = 1, .grh = { .hop_limit = 1 } };
	if (ibv_query_gid(ctx, 1, 0, &a.grh.dgid))
		die("ibv_query_gid");
	int n = 0, bad = 0;
	while (n < TRIED && n < dev.max_ah && (many[n] = ibv_create_ah(pd, &a)))
		n++;
	check(n == TRIED || n == dev.max_ah, "%d address handles of max_ah, %d", n, dev.max_ah);
	while (n)
		bad += !!ibv_destroy_ah(many[--n]);
	check_eq(bad, 0, "failed ibv_destroy_ah");
}

static void device_memory(void)
{
	if (!ex.max_dm_size) {
		printf("skipped: no device memory\n");
		return;
	}
	struct ibv_alloc_dm_attr a = { .length = ex.max_dm_size };
	errno = 0;
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &a);
	check(dm != NULL, "device memory of max_dm_size (%m)");
	if (dm)
		check_eq(ibv_free_dm(dm), 0, "ibv_free_dm");
	a.length++;
	errno = 0;
	dm = ibv_alloc_dm(ctx, &a);
	check(!dm && (errno == EINVAL || errno == ENOMEM), "device memory of one byte more (%m)");
}

int main(void)
{
	ctx = open_device();
	if (ibv_query_device_ex(ctx, NULL, &ex))
		die("ibv_query_device_ex");
	check_eq(ibv_query_device(ctx, &dev), 0, "ibv_query_device");
	check(dev.max_qp_wr == ex.orig_attr.max_qp_wr && dev.max_cqe == ex.orig_attr.max_cqe && dev.max_mr_size == ex.orig_attr.max_mr_size,
	      "both queries report the same");
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	mr = pd ? ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!pd || !cq || !mr)
		die("set up");
	completion_queues();
	queue_pairs();
	inline_data();
	shared_receive_queues();
	outstanding_reads();
	regions();
	multicast();
	address_handles();
	device_memory();
	check_eq(ibv_dereg_mr(mr), 0, "ibv_dereg_mr");
	check_eq(ibv_destroy_cq(cq), 0, "ibv_destroy_cq");
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	return finish();
}
