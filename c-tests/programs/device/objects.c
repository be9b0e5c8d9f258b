/*
 * Devices, ports and objects: results of queries, creation, refused arguments and their errno.
 * ibv_open_device(3) to ibv_destroy_qp(3).
 */
#include "rig.h"
#include <arpa/inet.h>
#include <fcntl.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_device_attr dev;
static struct ibv_port_attr port;

static void devices(void)
{
	int n = -1;
	struct ibv_device **list = ibv_get_device_list(&n), **again = ibv_get_device_list(NULL);
	check(list && n >= 1 && !list[n], "a list of %d devices that ends with NULL", n);
	check(again && again[0] == list[0], "a second list has the same devices");
	struct ibv_device *d = ctx->device;
	check(strlen(ibv_get_device_name(d)) > 0 && strlen(ibv_get_device_name(d)) < IBV_SYSFS_NAME_MAX, "a device has a name");
	check(ibv_get_device_guid(d) != 0, "a device has a GUID");
	check(d->node_type == IBV_NODE_CA && d->transport_type == IBV_TRANSPORT_IB, "it is a channel adapter");
	ibv_free_device_list(again);
	/* A context outlives the list. */
	struct ibv_context *second = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	check(second && second != ctx, "a device can be opened twice");
	check(second && second->num_comp_vectors >= 1 && second->async_fd >= 0, "a context has an event vector and an event descriptor");
	if (second)
		check_eq(ibv_close_device(second), 0, "ibv_close_device");
}

static void queries(void)
{
	check_eq(ibv_query_device(ctx, &dev), 0, "ibv_query_device");
	check(dev.max_qp >= 1000 && dev.max_cq >= 1000 && dev.max_mr >= 1000 && dev.max_pd >= 100, "the device has room: %d QPs, %d CQs, %d MRs, %d PDs", dev.max_qp,
	      dev.max_cq, dev.max_mr, dev.max_pd);
	check(dev.max_qp_wr >= 128 && dev.max_sge >= 1 && dev.max_cqe >= 128 && dev.max_mr_size >= 1u << 30, "its queues are long enough");
	check(dev.max_srq >= 1 && dev.max_srq_wr >= 1 && dev.max_srq_sge >= 1, "it has SRQs");
	check(dev.atomic_cap != IBV_ATOMIC_NONE && dev.max_qp_rd_atom >= 1, "it has atomics");
	check(dev.phys_port_cnt >= 1 && dev.node_guid == ibv_get_device_guid(ctx->device), "it has a port, and one GUID");
	check(memchr(dev.fw_ver, 0, sizeof dev.fw_ver) != NULL, "its firmware version is a string");
	check_eq(ibv_query_port(ctx, 1, &port), 0, "ibv_query_port");
	check_eq(port.state, IBV_PORT_ACTIVE, "port 1 is active");
	check(port.max_mtu >= port.active_mtu && port.active_mtu >= IBV_MTU_256 && port.active_mtu <= IBV_MTU_4096, "its MTU is one");
	check(port.max_msg_sz >= 1u << 30, "it takes messages of 1 GiB (%u)", port.max_msg_sz);
	check(port.gid_tbl_len >= 1 && port.pkey_tbl_len >= 1, "it has tables of GIDs and P_Keys");
	check_eq(port.phys_state, 5, "its link is up");
	check_eq(port.link_layer, IBV_LINK_LAYER_ETHERNET, "its link layer");
	struct ibv_port_attr p;
	check_eq(ibv_query_port(ctx, (uint8_t)(dev.phys_port_cnt + 1), &p), EINVAL, "ibv_query_port of a port that is not there");
	union ibv_gid gid, zero;
	memset(&zero, 0, sizeof zero);
	check_eq(ibv_query_gid(ctx, 1, 0, &gid), 0, "ibv_query_gid");
	check(memcmp(&gid, &zero, sizeof gid) != 0, "GID 0 is not zero");
	check(ibv_query_gid(ctx, 1, port.gid_tbl_len, &gid) != 0, "a GID beyond the table");
	check(ibv_query_gid(ctx, 1, -1, &gid) != 0, "GID -1");
	__be16 pkey = 0;
	check_eq(ibv_query_pkey(ctx, 1, 0, &pkey), 0, "ibv_query_pkey");
	check_eq(ntohs(pkey), 0xffff, "P_Key 0");
	check(ibv_query_pkey(ctx, 1, port.pkey_tbl_len, &pkey) != 0, "a P_Key beyond the table");
	check_eq(ibv_get_pkey_index(ctx, 1, htons(0xffff)), 0, "ibv_get_pkey_index");
	struct ibv_gid_entry e;
	check_eq(ibv_query_gid_ex(ctx, 1, 0, &e, 0), 0, "ibv_query_gid_ex");
	check(e.gid_index == 0 && e.port_num == 1 && e.gid_type == IBV_GID_TYPE_ROCE_V2, "GID 0 is of RoCE v2");
	struct ibv_gid_entry table[256];
	ssize_t n = ibv_query_gid_table(ctx, table, 256, 0);
	check(n >= 1 && n <= port.gid_tbl_len, "ibv_query_gid_table: %zd entries", n);
	struct ibv_device_attr_ex ex;
	memset(&ex, 0, sizeof ex);
	check_eq(ibv_query_device_ex(ctx, NULL, &ex), 0, "ibv_query_device_ex");
	check(!memcmp(&ex.orig_attr.max_qp, &dev.max_qp, sizeof dev.max_qp) && ex.orig_attr.node_guid == dev.node_guid, "it agrees with ibv_query_device");
}

static void regions(void)
{
	static unsigned char buf[3 * 4096];
	struct ibv_mr *m = ibv_reg_mr(pd, buf + 5, 4097, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	if (check(m != NULL, "ibv_reg_mr of bytes that are not aligned")) {
		check(m->addr == buf + 5 && m->length == 4097 && m->pd == pd && m->context == ctx, "the fields of a region");
		check_eq(m->lkey != m->rkey, keys_differ(), "whether its keys differ");
		check_eq(ibv_dereg_mr(m), 0, "ibv_dereg_mr");
	}
	errno = 0;
	check(!ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL, "remote write without local write: EINVAL");
	errno = 0;
	check(!ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_REMOTE_ATOMIC) && errno == EINVAL, "remote atomic without local write: EINVAL");
	errno = 0;
	check(!ibv_reg_mr(pd, (void *)(uintptr_t)-4096, 8192, IBV_ACCESS_LOCAL_WRITE) && errno != 0, "an end beyond the address space is refused");
	enum { N = 500 };
	static struct ibv_mr *many[N];
	int bad = 0;
	for (int i = 0; i < N; i++) {
		many[i] = ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE);
		if (!many[i])
			die("region %d: %s", i, strerror(errno));
		for (int k = 0; k < i; k++)
			bad += many[k]->rkey == many[i]->rkey || many[k]->lkey == many[i]->lkey;
	}
	check_eq(bad, 0, "keys that two of %d regions share", N);
	check_eq(ibv_dealloc_pd(pd), EBUSY, "deallocating a PD that regions use");
	bad = 0;
	for (int i = 0; i < N; i++)
		bad += !!ibv_dereg_mr(many[i]);
	check_eq(bad, 0, "failed ibv_dereg_mr");
	/* A key is not given out again at once. */
	m = ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	uint32_t key = m ? m->rkey : 0;
	if (m)
		ibv_dereg_mr(m);
	m = ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	check(m && m->rkey != key, "the key of a deregistered region is not the next one given out");
	if (m)
		ibv_dereg_mr(m);
}

static void completion_queues(void)
{
	struct ibv_cq *c = ibv_create_cq(ctx, 1, &dev, NULL, 0);
	if (check(c != NULL, "ibv_create_cq")) {
		check(c->cqe >= 1 && c->cq_context == &dev && !c->channel && c->context == ctx, "the fields of a CQ");
		check_eq(ibv_resize_cq(c, 100), 0, "ibv_resize_cq");
		check(c->cqe >= 100, "the new size");
		check_eq(ibv_destroy_cq(c), 0, "ibv_destroy_cq");
	}
	errno = 0;
	check(!ibv_create_cq(ctx, 0, NULL, NULL, 0) && errno == EINVAL, "a CQ of nothing: EINVAL");
	errno = 0;
	check(!ibv_create_cq(ctx, dev.max_cqe + 1, NULL, NULL, 0) && (errno == EINVAL || errno == ENOMEM), "a CQ larger than the device's largest");
	errno = 0;
	check(!ibv_create_cq(ctx, 4, NULL, NULL, ctx->num_comp_vectors) && errno == EINVAL, "a completion vector that is not there: EINVAL");
}

static void queue_pairs(void)
{
	struct ibv_cq *c = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	if (!c)
		die("ibv_create_cq");
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_init_attr a = { .qp_context = &port, .send_cq = c, .recv_cq = c, .cap = { 5, 6, 2, 3, 40 }, .qp_type = types[i], .sq_sig_all = 1 };
		struct ibv_qp *q = ibv_create_qp(pd, &a);
		if (!check(q != NULL, "ibv_create_qp, type %d", types[i]))
			continue;
		check(a.cap.max_send_wr >= 5 && a.cap.max_recv_wr >= 6 && a.cap.max_send_sge >= 2 && a.cap.max_recv_sge >= 3 && a.cap.max_inline_data >= 40,
		      "it has at least what was asked for");
		check(q->qp_type == types[i] && q->state == IBV_QPS_RESET && q->pd == pd && q->send_cq == c && q->recv_cq == c && q->qp_context == &port &&
			      q->context == ctx && !q->srq && q->qp_num > 1 && q->qp_num <= 0xffffff,
		      "the fields of a QP");
		struct ibv_qp_attr at;
		struct ibv_qp_init_attr in;
		memset(&in, 0, sizeof in);
		check_eq(ibv_query_qp(q, &at, IBV_QP_STATE | IBV_QP_CAP, &in), 0, "ibv_query_qp");
		check(at.qp_state == IBV_QPS_RESET && at.cap.max_send_wr == a.cap.max_send_wr && in.sq_sig_all == 1 && in.qp_type == types[i], "it agrees");
		check_eq(ibv_destroy_cq(c), EBUSY, "destroying a CQ that a QP uses");
		check_eq(ibv_destroy_qp(q), 0, "ibv_destroy_qp");
	}
	struct ibv_qp_init_attr good = { .send_cq = c, .recv_cq = c, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC }, a;
	static const char *const what[] = { "more send requests", "more receives", "more send pieces", "more receive pieces" };
	for (int i = 0; i < 4; i++) {
		a = good;
		uint32_t *field[] = { &a.cap.max_send_wr, &a.cap.max_recv_wr, &a.cap.max_send_sge, &a.cap.max_recv_sge };
		*field[i] = (uint32_t)(i < 2 ? dev.max_qp_wr : dev.max_sge) + 1;
		errno = 0;
		check(!ibv_create_qp(pd, &a) && (errno == EINVAL || errno == ENOMEM), "%s than the device has: refused", what[i]);
	}
	a = good;
	a.qp_type = (enum ibv_qp_type)77;
	errno = 0;
	check(!ibv_create_qp(pd, &a) && (errno == EINVAL || errno == EOPNOTSUPP), "a QP type that is not there: refused");
	a = good;
	a.cap = (struct ibv_qp_cap){ 1, 0, 1, 0, 0 };
	struct ibv_qp *q = ibv_create_qp(pd, &a);
	check(q != NULL, "a QP that never receives");
	if (q)
		ibv_destroy_qp(q);
	check_eq(ibv_destroy_cq(c), 0, "ibv_destroy_cq");
}

static void address_handles(void)
{
	struct ibv_ah_attr a = { .port_num = 1, .is_global = 1, .grh = { .hop_limit = 1 } };
	if (ibv_query_gid(ctx, 1, 0, &a.grh.dgid))
		die("ibv_query_gid");
	struct ibv_ah *h = ibv_create_ah(pd, &a);
	check(h && h->pd == pd && h->context == ctx, "ibv_create_ah");
	if (h)
		check_eq(ibv_destroy_ah(h), 0, "ibv_destroy_ah");
	a.port_num = (uint8_t)(dev.phys_port_cnt + 1);
	errno = 0;
	check(!ibv_create_ah(pd, &a) && errno == EINVAL, "an address handle for a port that is not there: EINVAL");
	a.port_num = 1;
	a.grh.sgid_index = 255;
	errno = 0;
	check(!ibv_create_ah(pd, &a) && errno == EINVAL, "an address handle from a GID that is not there: EINVAL");
}

/*
 * A verb that returns an error number also sets errno, because programs print errno by perror(3).
 */
static void both_ways(int result, int wanted, const char *what)
{
	int set = errno;
	check_eq(result, wanted, "%s is refused", what);
	check_eq(set, result, "%s: errno says the same", what);
	errno = 0;
}

#define REFUSED(call, wanted) both_ways((errno = 0, (call)), wanted, #call)

static void error_numbers(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, channel, 0);
	struct ibv_srq_init_attr sa = { .attr = { 4, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	struct ibv_xrcd_init_attr xa = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &xa);
	struct ibv_srq_init_attr_ex xsa = { .attr = { 4, 1, 0 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_XRC, .xrcd = xrcd, .cq = cq, .pd = pd };
	struct ibv_srq *xrc_srq = ibv_create_srq_ex(ctx, &xsa);
	struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { 1, 0, 1, 0, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &qa);
	qa.srq = NULL;
	qa.cap.max_recv_wr = qa.cap.max_recv_sge = 1;
	struct ibv_qp *own = ibv_create_qp(pd, &qa);
	if (!cq || !srq || !xrcd || !xrc_srq || !qp || !own)
		die("objects");
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_RTS, .port_num = 200 };
	struct ibv_modify_cq_attr moderate = { .attr_mask = 1u << 20 };
	struct ibv_port_attr p;
	struct ibv_recv_wr *bad_recv, recv = { .num_sge = 33 };
	struct ibv_send_wr *bad_send, send = { .opcode = IBV_WR_SEND };
	union ibv_gid no_group = { .raw = { 1 } };
	REFUSED(ibv_modify_qp(qp, &at, IBV_QP_STATE), EINVAL);
	REFUSED(ibv_modify_qp(qp, &at, IBV_QP_PORT), EINVAL);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	REFUSED(ibv_destroy_cq(cq), EBUSY);
	REFUSED(ibv_destroy_srq(srq), EBUSY);
	REFUSED(ibv_close_xrcd(xrcd), EBUSY);
	REFUSED(ibv_destroy_comp_channel(channel), EBUSY);
	REFUSED(ibv_resize_cq(cq, 0), EINVAL);
	REFUSED(ibv_modify_cq(cq, &moderate), EINVAL);
	sa.attr.srq_limit = 1000;
	REFUSED(ibv_modify_srq(srq, &sa.attr, IBV_SRQ_LIMIT), EINVAL);
	REFUSED(ibv_query_port(ctx, 200, &p), EINVAL);
	REFUSED(ibv_attach_mcast(qp, &no_group, 0), EINVAL);
	REFUSED(ibv_detach_mcast(qp, &no_group, 0), EINVAL);
	REFUSED(ibv_post_recv(own, &recv, &bad_recv), EINVAL);
	REFUSED(ibv_post_srq_recv(srq, &recv, &bad_recv), EINVAL);
	REFUSED(ibv_post_send(qp, &send, &bad_send), EINVAL);
	check(!(ibv_destroy_qp(own) | ibv_destroy_qp(qp) | ibv_destroy_srq(srq) | ibv_destroy_srq(xrc_srq) | ibv_close_xrcd(xrcd) | ibv_destroy_cq(cq) |
		ibv_destroy_comp_channel(channel)),
	      "then everything is destroyed");
}

int main(void)
{
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	check(pd && pd->context == ctx, "ibv_alloc_pd");
	if (!pd)
		return finish();
	devices();
	queries();
	regions();
	completion_queues();
	queue_pairs();
	address_handles();
	error_numbers();
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	return finish();
}
