/*
 * Multicast groups over shared memory: receivers of a message, and refused calls.
 * ibv_attach_mcast(3), IBTA 1.7 10.5, A16.4.6.
 */
#include "partner.h"

#define QKEY 0x1234
#define SLOT 4200u
#define GROUP_QPN 0xffffff

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static unsigned char *buf;
static union ibv_gid own;

static struct ibv_qp *make_qp(enum ibv_qp_type type, uint32_t create_flags)
{
	struct ibv_qp_init_attr_ex ia = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 16, 16, 1, 1, 0 },
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (create_flags ? IBV_QP_INIT_ATTR_CREATE_FLAGS : 0),
		.pd = pd,
		.create_flags = create_flags,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(ctx, &ia);
	if (!qp)
		die("ibv_create_qp_ex: %s", strerror(errno));
	if (type != IBV_QPT_UD)
		return qp;
	int err = ud_to_rts(qp, QKEY);
	if (err)
		die("ibv_modify_qp: %s", strerror(err));
	return qp;
}

static union ibv_gid group(unsigned n)
{
	union ibv_gid gid = { .raw = { 0xff, 0x12, 0x40, 0x1b, 0xff, 0xff } };
	gid.raw[14] = (uint8_t)(n >> 8);
	gid.raw[15] = (uint8_t)n;
	return gid;
}

static union ibv_gid group_v4(void)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, [13] = 1, [14] = 2, [15] = 3 } };
	return gid;
}

static void receive(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge sg = { (uintptr_t)buf + SLOT * id, SLOT, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
}

static struct ibv_ah *handle(union ibv_gid gid, uint8_t sgid)
{
	struct ibv_ah_attr a = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 7, .sgid_index = sgid, .flow_label = 0x12345 }, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(pd, &a);
	if (!ah)
		die("ibv_create_ah: %s", strerror(errno));
	return ah;
}

/* Sends and waits for the completion of the send, which comes first or among those of receives. */
static void message(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint32_t len, uint32_t seed)
{
	struct ibv_sge sg = { (uintptr_t)buf + 60 * SLOT, len, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 77, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = seed }, *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = qkey;
	fill(buf + 60 * SLOT, len, seed);
	int err = ibv_post_send(qp, &wr, &bad);
	check_eq(err, 0, "ibv_post_send to a group");
}

static struct ibv_wc got[64];

/* Collects receives until none came for a while; returns how many. */
static int arrivals(int wanted)
{
	int n = 0;
	while (n < 64 && try_completion(cq, &got[n], n < wanted ? WAIT_US : QUIET_US))
		n++;
	return n;
}

static const struct ibv_wc *arrival(int n, uint64_t id)
{
	for (int i = 0; i < n; i++)
		if (got[i].wr_id == id)
			return &got[i];
	return NULL;
}

static void expect(int n, uint64_t id, struct ibv_qp *qp, uint32_t src, union ibv_gid gid, uint32_t len, uint32_t seed)
{
	const struct ibv_wc *w = arrival(n, id);
	const unsigned char *p = buf + SLOT * id;
	if (!check(w != NULL, "receive %d completed", (int)id))
		return;
	check(w->status == IBV_WC_SUCCESS && w->opcode == IBV_WC_RECV && w->byte_len == len + 40 && w->qp_num == qp->qp_num && w->src_qp == src &&
		      (w->wc_flags & (IBV_WC_GRH | IBV_WC_WITH_IMM)) == (IBV_WC_GRH | IBV_WC_WITH_IMM) && w->imm_data == seed && w->pkey_index == 0,
	      "receive %d: completion (%s, %u bytes, from %x)", (int)id, ibv_wc_status_str(w->status), w->byte_len, w->src_qp);
	check(verify(p + 40, len, seed) < 0, "receive %d: data behind the GRH", (int)id);
	if (gid.raw[0] == 0xff) {
		const struct ibv_grh *grh = (const struct ibv_grh *)p;
		check(!memcmp(&grh->dgid, &gid, 16) && !memcmp(&grh->sgid, &own, 16) && grh->hop_limit == 7 && (p[0] >> 4) == 6 &&
			      (p[1] & 15) == 1 && p[2] == 0x23 && p[3] == 0x45,
		      "receive %d: both GIDs, hop limit and flow label in the GRH", (int)id);
	} else {
		check(p[20] == 0x45 && !memcmp(p + 36, gid.raw + 12, 4), "receive %d: the IPv4 group in the last 20 bytes", (int)id);
	}
}

static void refused(void)
{
	struct ibv_device_attr d;
	check_eq(ibv_query_device(ctx, &d), 0, "ibv_query_device");
	check(d.max_mcast_grp > 0 && d.max_mcast_qp_attach > 0 && d.max_total_mcast_qp_attach >= d.max_mcast_grp, "limits of multicast are told");
	struct ibv_qp *ud = make_qp(IBV_QPT_UD, 0), *rc = make_qp(IBV_QPT_RC, 0);
	union ibv_gid g = group(1), unicast = own, v4 = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1 } };
	check_eq(ibv_attach_mcast(ud, &unicast, 0), EINVAL, "ibv_attach_mcast to a unicast GID");
	check_eq(ibv_attach_mcast(ud, &v4, 0), EINVAL, "ibv_attach_mcast to an IPv4 unicast GID");
	check_eq(ibv_attach_mcast(rc, &g, 0), EINVAL, "ibv_attach_mcast of an RC QP");
	check_eq(ibv_detach_mcast(ud, &g, 0), EINVAL, "ibv_detach_mcast where it is not attached");
	check_eq(ibv_attach_mcast(ud, &g, 0xc001), 0, "ibv_attach_mcast with a multicast LID");
	check_eq(ibv_attach_mcast(ud, &g, 0xc001), 0, "again");
	check_eq(ibv_destroy_qp(ud), EBUSY, "ibv_destroy_qp while attached");
	check_eq(ibv_detach_mcast(ud, &g, 0xc001), 0, "ibv_detach_mcast");
	check_eq(ibv_detach_mcast(ud, &g, 0xc001), EINVAL, "ibv_detach_mcast again: it was attached once");
	int n = 0, err = 0;
	while (n <= d.max_mcast_grp && !(err = ibv_attach_mcast(ud, &(union ibv_gid){ .raw = { 0xff, 2, [12] = (uint8_t)(n >> 16), [13] = 9, [14] = (uint8_t)(n >> 8), [15] = (uint8_t)n } }, 0)))
		n++;
	check_eq(n, d.max_mcast_grp, "groups that a QP can be attached to");
	check_eq(err, ENOMEM, "one more");
	while (n-- > 0)
		if (ibv_detach_mcast(ud, &(union ibv_gid){ .raw = { 0xff, 2, [12] = (uint8_t)(n >> 16), [13] = 9, [14] = (uint8_t)(n >> 8), [15] = (uint8_t)n } }, 0))
			die("ibv_detach_mcast");
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	check_eq(ibv_modify_qp(rc, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0, "RC to INIT");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .ah_attr = { .is_global = 1, .grh.dgid = g, .port_num = 1 } };
	check_eq(ibv_modify_qp(rc, &a,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
		 EINVAL, "a connection to a group");
	check_eq(ibv_destroy_qp(rc), 0, "ibv_destroy_qp");
	check_eq(ibv_destroy_qp(ud), 0, "ibv_destroy_qp");
}

/* IBTA 1.7 10.5.2. */
static void delivered(void)
{
	struct ibv_qp *q[3] = { make_qp(IBV_QPT_UD, 0), make_qp(IBV_QPT_UD, 0), make_qp(IBV_QPT_UD, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB) };
	uint32_t mine[3] = { q[0]->qp_num, q[1]->qp_num, q[2]->qp_num }, theirs[3];
	union ibv_gid g = group(5), h = group(6), v4 = group_v4();
	swap(mine, theirs, sizeof mine);
	/* The parent's first two QPs and the child's first QP are in the group, the child's second
	 * QP is in another group. */
	check_eq(ibv_attach_mcast(q[0], &g, 0), 0, "ibv_attach_mcast");
	check_eq(ibv_attach_mcast(q[1], role ? &h : &g, 0), 0, "ibv_attach_mcast");
	for (uint64_t i = 0; i < 3; i++)
		for (uint64_t k = 0; k < 4; k++)
			receive(q[i], i * 10 + k);
	struct ibv_ah *to = handle(g, 0), *to_other = handle(group(999), 0);
	meet();
	if (!role) {
		message(q[0], to, GROUP_QPN, QKEY, 1000, 11);
		check_eq(arrivals(3), 3, "completions: the send's, two receives' of the sender's process");
		expect(3, 0, q[0], mine[0], g, 1000, 11);
		expect(3, 10, q[1], mine[0], g, 1000, 11);
		check(arrival(3, 77) && arrival(3, 77)->status == IBV_WC_SUCCESS, "the send's completion");
	} else {
		check_eq(arrivals(1), 1, "one receive in the other process");
		expect(1, 0, q[0], theirs[0], g, 1000, 11);
	}
	meet();
	/* No QP receives these messages. */
	if (role) {
		message(q[0], to, GROUP_QPN, QKEY + 1, 100, 1);
		message(q[0], to, theirs[0], QKEY, 100, 2);
		message(q[0], to_other, GROUP_QPN, QKEY, 100, 3);
		check_eq(arrivals(3), 3, "wrong Q_Key, wrong QP number, wrong group: only the sends complete");
	}
	meet();
	if (!role)
		check_eq(arrivals(0), 0, "and nobody receives them");
	/* The Q_Key of the sending QP; the smallest and the largest message. */
	meet();
	if (role) {
		message(q[1], to, GROUP_QPN, 0x80000000, 0, 4);
		check_eq(arrivals(2), 2, "a sender outside of the group: its completion, and the member's beside it");
		expect(2, 1, q[0], mine[1], g, 0, 4);
		message(q[1], to, GROUP_QPN, QKEY, 4096, 5);
		check_eq(arrivals(2), 2, "the largest message");
		expect(2, 2, q[0], mine[1], g, 4096, 5);
	} else {
		check_eq(arrivals(4), 4, "two messages for two members");
		expect(4, 1, q[0], theirs[1], g, 0, 4);
		expect(4, 11, q[1], theirs[1], g, 0, 4);
		expect(4, 2, q[0], theirs[1], g, 4096, 5);
		expect(4, 12, q[1], theirs[1], g, 4096, 5);
	}
	meet();
	/* A QP that does not receive its own messages. */
	check_eq(ibv_attach_mcast(q[2], &g, 0), 0, "ibv_attach_mcast");
	check_eq(ibv_detach_mcast(q[0], &g, 0), 0, "ibv_detach_mcast");
	meet();
	if (!role) {
		message(q[2], to, GROUP_QPN, QKEY, 64, 6);
		check_eq(arrivals(2), 2, "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB: the send, and the other QP of the process");
		expect(2, 13, q[1], mine[2], g, 64, 6);
	} else {
		check_eq(arrivals(1), 1, "the other process's QP with the same flag receives it");
		expect(1, 20, q[2], theirs[2], g, 64, 6);
	}
	meet();
	/* IPv4 groups are groups too. */
	union ibv_gid mapped;
	int index = -1;
	for (int i = 0; i < 32 && index < 0; i++)
		if (!ibv_query_gid(ctx, 1, i, &mapped) && mapped.raw[10] == 0xff && mapped.raw[11] == 0xff && !mapped.raw[0])
			index = i;
	if (index < 0) {
		check(1, "no IPv4 address here: IPv4 groups are not tried");
	} else {
		check_eq(ibv_attach_mcast(q[0], &v4, 0), 0, "ibv_attach_mcast to an IPv4 group");
		meet();
		if (!role) {
			struct ibv_ah *ah = handle(v4, (uint8_t)index);
			message(q[2], ah, GROUP_QPN, QKEY, 10, 7);
			check_eq(arrivals(2), 2, "to an IPv4 group");
			expect(2, 3, q[0], mine[2], v4, 10, 7);
			check_eq(ibv_destroy_ah(ah), 0, "ibv_destroy_ah");
		} else {
			check_eq(arrivals(1), 1, "from an IPv4 group");
			expect(1, 3, q[0], theirs[2], v4, 10, 7);
		}
		meet();
		check_eq(ibv_detach_mcast(q[0], &v4, 0), 0, "ibv_detach_mcast");
	}
	meet();
	check_eq(ibv_detach_mcast(q[1], role ? &h : &g, 0), 0, "ibv_detach_mcast");
	check_eq(ibv_detach_mcast(q[2], &g, 0), 0, "ibv_detach_mcast");
	meet();
	if (!role) {
		message(q[0], to, GROUP_QPN, QKEY, 10, 8);
		check_eq(arrivals(1), 1, "to a group without members");
	}
	meet();
	if (role)
		check_eq(arrivals(0), 0, "nothing arrives any more");
	check_eq(ibv_destroy_ah(to) | ibv_destroy_ah(to_other), 0, "ibv_destroy_ah");
	for (int i = 0; i < 3; i++)
		check_eq(ibv_destroy_qp(q[i]), 0, "ibv_destroy_qp");
}

int main(void)
{
	partner_fork();
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	buf = calloc(64, SLOT);
	mr = ibv_reg_mr(pd, buf, 64 * SLOT, IBV_ACCESS_LOCAL_WRITE);
	if (!pd || !cq || !mr || ibv_query_gid(ctx, 1, 0, &own))
		die("set up");
	refused();
	delivered();
	check_eq(ibv_dereg_mr(mr) | ibv_destroy_cq(cq) | ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0, "everything is closed");
	return partner_finish();
}
