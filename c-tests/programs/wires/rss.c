/*
 * Work queues, indirection tables, and QPs that spread frames by a Toeplitz hash.
 * ibv_create_wq(3), ibv_create_rwq_ind_table(3), ibv_create_qp_ex(3).
 *
 * Map of this file: `vectors` has published hash values; make_wq, to and post serve work queues.
 * spread creates a hashed QP; rule steers a MAC address to a QP. refused checks attributes,
 * creation errors, states and flushes of work queues, tables and QPs. spreads checks the published
 * vectors, VLAN stripping, and a work queue that fails alone. The table `sets` lists other hash
 * fields; some_flow, packet and queue_of make frames and predict their queue; other_fields checks
 * them. main forks a child by partner_fork; both processes run all checks, the parent receives and
 * the child sends.
 */
#include "frames.h"

enum { QUEUES = 4 };

/* Published vectors of the Toeplitz hash: addresses and ports, the hash of both (four), and the
 * hash of the addresses alone (two). */
static const struct {
	uint32_t src, dst;
	uint16_t sport, dport;
	uint32_t four, two;
} vectors[] = {
	{ 0x420995bb, 0xa18e6450, 2794, 1766, 0x51ccc178, 0x323e8fc2 },
	{ 0xc75c6f02, 0x41458c53, 14230, 4739, 0xc626b0ea, 0xd718262a },
	{ 0x1813c65f, 0x0c16cfb8, 12898, 38024, 0x5c2b394a, 0xd2d0a5de },
	{ 0x261bcd1e, 0xd18ea306, 48228, 2217, 0xafc7327f, 0x82989176 },
	{ 0x9927a3bf, 0xcabc7f02, 44251, 1303, 0x10e828a2, 0x5d1809c5 },
};

static struct ibv_wq *make_wq(uint32_t flags)
{
	struct ibv_wq_init_attr a = { .wq_context = rss_key, .wq_type = IBV_WQT_RQ, .max_wr = 16, .max_sge = 2, .pd = pd, .cq = cq,
				      .comp_mask = flags ? IBV_WQ_INIT_ATTR_FLAGS : 0, .create_flags = flags };
	struct ibv_wq *wq = ibv_create_wq(ctx, &a);
	if (!wq)
		die("ibv_create_wq: %s", strerror(errno));
	return wq;
}

static int to(struct ibv_wq *wq, enum ibv_wq_state state)
{
	struct ibv_wq_attr a = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = state };
	return ibv_modify_wq(wq, &a);
}

static int post(struct ibv_wq *wq, uint64_t id, uint32_t len)
{
	struct ibv_sge sg = { (uintptr_t)buf + FRAME * id, len, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sg, .num_sge = 1 }, *bad;
	return ibv_post_wq_recv(wq, &wr, &bad);
}

static struct ibv_qp *spread(struct ibv_rwq_ind_table *table, uint64_t fields)
{
	struct ibv_qp_init_attr_ex ia = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = pd,
		.rwq_ind_tbl = table,
		.rx_hash_conf = { .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = sizeof rss_key, .rx_hash_key = rss_key, .rx_hash_fields_mask = fields },
	};
	errno = 0;
	return ibv_create_qp_ex(ctx, &ia);
}

static struct ibv_flow *rule(struct ibv_qp *qp, uint64_t mac)
{
	struct {
		struct ibv_flow_attr a;
		struct ibv_flow_spec_eth e;
	} f = { .a = { .size = sizeof f, .port = 1, .num_of_specs = 1 }, .e = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof f.e } };
	be(f.e.val.dst_mac, mac, 6);
	memset(f.e.mask.dst_mac, 0xff, 6);
	struct ibv_flow *flow = ibv_create_flow(qp, &f.a);
	if (!flow)
		die("ibv_create_flow: %s", strerror(errno));
	return flow;
}

static void refused(void)
{
	struct ibv_device_attr_ex d;
	check_eq(ibv_query_device_ex(ctx, NULL, &d), 0, "ibv_query_device_ex");
	check(d.max_wq_type_rq > 0 && d.rss_caps.max_rwq_indirection_table_size >= QUEUES && d.rss_caps.max_rwq_indirection_tables > 0 &&
		      (d.rss_caps.rx_hash_function & IBV_RX_HASH_FUNC_TOEPLITZ) && ibv_is_qpt_supported(d.rss_caps.supported_qpts, IBV_QPT_RAW_PACKET) &&
		      (d.rss_caps.rx_hash_fields_mask & IBV_RX_HASH_SRC_PORT_TCP),
	      "rss_caps and max_wq_type_rq");
	struct ibv_wq_init_attr a = { .wq_type = IBV_WQT_RQ, .max_wr = 0, .max_sge = 1, .pd = pd, .cq = cq };
	errno = 0;
	check(!ibv_create_wq(ctx, &a) && errno == EINVAL, "a work queue without room");
	a.max_wr = 1 << 24;
	errno = 0;
	check(!ibv_create_wq(ctx, &a) && errno == EINVAL, "a work queue that is too large");
	a.max_wr = 1;
	a.wq_type = (enum ibv_wq_type)1;
	errno = 0;
	check(!ibv_create_wq(ctx, &a) && errno == EINVAL, "another type");
	a.wq_type = IBV_WQT_RQ;
	a.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
	a.create_flags = IBV_WQ_FLAGS_DELAY_DROP;
	errno = 0;
	check(!ibv_create_wq(ctx, &a) && errno == EOPNOTSUPP, "IBV_WQ_FLAGS_DELAY_DROP");
	a.create_flags = IBV_WQ_FLAGS_PCI_WRITE_END_PADDING;
	errno = 0;
	check(!ibv_create_wq(ctx, &a) && errno == EOPNOTSUPP, "IBV_WQ_FLAGS_PCI_WRITE_END_PADDING");

	struct ibv_wq *wq = make_wq(0);
	check(wq->context == ctx && wq->wq_context == rss_key && wq->pd == pd && wq->cq == cq && wq->state == IBV_WQS_RESET && wq->wq_type == IBV_WQT_RQ && wq->wq_num,
	      "a work queue's fields");
	check_eq(ibv_destroy_cq(cq), EBUSY, "ibv_destroy_cq while a work queue uses it");
	check_eq(ibv_dealloc_pd(pd), EBUSY, "ibv_dealloc_pd while a work queue is in it");
	check_eq(post(wq, 0, 100), EINVAL, "ibv_post_wq_recv in RESET");
	struct ibv_wq_attr m = { .attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE, .wq_state = IBV_WQS_RDY, .curr_wq_state = IBV_WQS_RDY };
	check_eq(ibv_modify_wq(wq, &m), EINVAL, "ibv_modify_wq with a wrong present state");
	m.curr_wq_state = IBV_WQS_RESET;
	check_eq(ibv_modify_wq(wq, &m), 0, "ibv_modify_wq to IBV_WQS_RDY");
	check_eq(wq->state, IBV_WQS_RDY, "its state");
	m = (struct ibv_wq_attr){ .attr_mask = IBV_WQ_ATTR_FLAGS, .flags = IBV_WQ_FLAGS_SCATTER_FCS, .flags_mask = IBV_WQ_FLAGS_SCATTER_FCS };
	check_eq(ibv_modify_wq(wq, &m), EOPNOTSUPP, "ibv_modify_wq of IBV_WQ_FLAGS_SCATTER_FCS");
	m.attr_mask = 1 << 5;
	check_eq(ibv_modify_wq(wq, &m), EINVAL, "ibv_modify_wq with an unknown bit");
	for (int i = 0; i < 16; i++)
		if (post(wq, (uint64_t)i, 100))
			die("ibv_post_wq_recv");
	check_eq(post(wq, 16, 100), ENOMEM, "one receive too many");
	check_eq(to(wq, IBV_WQS_ERR), 0, "ibv_modify_wq to IBV_WQS_ERR");
	check_eq(to(wq, IBV_WQS_RDY), EINVAL, "and from there to IBV_WQS_RDY");
	struct arrival ar[17];
	int n = frames_arrive(ar, 16, 17);
	int good = 0;
	for (int i = 0; i < n; i++)
		good += ar[i].status == IBV_WC_WR_FLUSH_ERR && ar[i].id == (uint64_t)i && ar[i].qpn == wq->wq_num;
	check(n == 16 && good == 16, "all receives are flushed, in order, with the number of the queue");
	check_eq(post(wq, 3, 100), 0, "ibv_post_wq_recv in ERR");
	check(frames_arrive(ar, 1, 2) == 1 && ar[0].id == 3 && ar[0].status == IBV_WC_WR_FLUSH_ERR, "is flushed");
	check_eq(to(wq, IBV_WQS_RESET), 0, "ibv_modify_wq to IBV_WQS_RESET");
	check_eq(to(wq, IBV_WQS_RDY), 0, "and to IBV_WQS_RDY again");

	struct ibv_wq *list[2] = { wq, NULL };
	struct ibv_rwq_ind_table_init_attr t = { .log_ind_tbl_size = 0, .ind_tbl = list, .comp_mask = 1 };
	errno = 0;
	check(!ibv_create_rwq_ind_table(ctx, &t) && errno == EINVAL, "a table with a comp_mask");
	t.comp_mask = 0;
	t.log_ind_tbl_size = 20;
	errno = 0;
	check(!ibv_create_rwq_ind_table(ctx, &t) && errno == EINVAL, "a table that is too large");
	t.log_ind_tbl_size = 1;
	errno = 0;
	check(!ibv_create_rwq_ind_table(ctx, &t) && errno == EINVAL, "a table with a NULL");
	list[1] = wq;
	struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(ctx, &t);
	if (!check(table != NULL, "a table with the same queue twice"))
		return;
	check_eq(ibv_destroy_wq(wq), EBUSY, "ibv_destroy_wq while a table names it");
	check(!spread(table, IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_SRC_IPV6) && errno == EINVAL, "both versions of IP");
	check(!spread(table, IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_UDP) && errno == EINVAL, "TCP and UDP");
	check(!spread(table, 0) && errno == EINVAL, "nothing to hash");
	check(!spread(table, 1ull << 40) && errno == EINVAL, "an unknown field");
	struct ibv_qp_init_attr_ex ia = { .qp_type = IBV_QPT_RAW_PACKET, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE, .pd = pd, .rwq_ind_tbl = table };
	errno = 0;
	check(!ibv_create_qp_ex(ctx, &ia) && errno == EINVAL, "a table without a hash");
	ia.comp_mask |= IBV_QP_INIT_ATTR_RX_HASH;
	ia.rx_hash_conf = (struct ibv_rx_hash_conf){ IBV_RX_HASH_FUNC_TOEPLITZ, 39, rss_key, IBV_RX_HASH_SRC_IPV4 };
	errno = 0;
	check(!ibv_create_qp_ex(ctx, &ia) && errno == EINVAL, "a key of 39 bytes");
	ia.rx_hash_conf = (struct ibv_rx_hash_conf){ 2, 40, rss_key, IBV_RX_HASH_SRC_IPV4 };
	errno = 0;
	check(!ibv_create_qp_ex(ctx, &ia) && errno == EOPNOTSUPP, "another hash function");
	ia.rx_hash_conf.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
	ia.cap.max_recv_wr = 1;
	errno = 0;
	check(!ibv_create_qp_ex(ctx, &ia) && errno == EINVAL, "receives of its own");
	struct ibv_qp *qp = spread(table, IBV_RX_HASH_SRC_IPV4);
	if (!check(qp != NULL, "a QP that spreads"))
		return;
	check_eq(ibv_destroy_rwq_ind_table(table), EBUSY, "ibv_destroy_rwq_ind_table while a QP uses it");
	struct ibv_qp_attr qa = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	check_eq(ibv_modify_qp(qp, &qa, IBV_QP_STATE | IBV_QP_PORT), EOPNOTSUPP, "ibv_modify_qp of a QP that spreads");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	check_eq(ibv_destroy_rwq_ind_table(table), 0, "ibv_destroy_rwq_ind_table");
	check_eq(ibv_destroy_wq(wq), 0, "ibv_destroy_wq");
}

static void spreads(void)
{
	static unsigned char f[FRAME];
	struct ibv_wq *wq[QUEUES] = { 0 };
	struct ibv_rwq_ind_table *table = NULL;
	struct ibv_qp *four = NULL, *two = NULL, *tx = NULL;
	struct ibv_flow *flow[2] = { 0 };
	struct arrival a[8];
	if (!role) {
		for (int i = 0; i < QUEUES; i++) {
			wq[i] = make_wq(i == 3 ? IBV_WQ_FLAGS_SCATTER_FCS : 0);
			check_eq(to(wq[i], IBV_WQS_RDY), 0, "IBV_WQS_RDY");
			for (int k = 0; k < 10; k++)
				if (post(wq[i], (uint64_t)(i * 10 + k), FRAME))
					die("ibv_post_wq_recv");
		}
		struct ibv_rwq_ind_table_init_attr t = { .log_ind_tbl_size = 2, .ind_tbl = wq };
		table = ibv_create_rwq_ind_table(ctx, &t);
		if (!table)
			die("ibv_create_rwq_ind_table");
		four = spread(table, IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP);
		two = spread(table, IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4);
		if (!four || !two)
			die("ibv_create_qp_ex");
		flow[0] = rule(four, MAC_A);
		flow[1] = rule(two, MAC_B);
		check_eq(ibv_destroy_qp(four), EBUSY, "ibv_destroy_qp while a rule names it");
	} else {
		tx = raw_qp(0, 0);
	}
	meet();
	for (unsigned i = 0; i < sizeof vectors / sizeof *vectors; i++)
		for (int kind = 0; kind < 2; kind++) {
			unsigned char *at = ipv4(eth(f, kind ? MAC_B : MAC_A, MAC_X, -1, 0x0800), vectors[i].src, vectors[i].dst, 6, 0, 20);
			uint32_t len = (uint32_t)(tcp(at, vectors[i].sport, vectors[i].dport, i, 2) - f);
			if (role)
				check_eq(frame_send(tx, f, len, IBV_SEND_IP_CSUM), 0, "vector %u", i);
			else {
				unsigned queue = (kind ? vectors[i].two : vectors[i].four) & (QUEUES - 1);
				int n = frames_arrive(a, 1, 2);
				check(n == 1 && a[0].status == IBV_WC_SUCCESS && a[0].id / 10 == queue && a[0].qpn == wq[queue]->wq_num &&
					      a[0].len == len + (queue == 3 ? 4 : 0) && (a[0].flags & IBV_WC_IP_CSUM_OK),
				      "vector %u, %s: queue %u", i, kind ? "addresses" : "addresses and ports", queue);
			}
			meet();
		}
	/* VLAN stripping can be changed while the queue runs. */
	if (!role) {
		struct ibv_wq_attr m = { .attr_mask = IBV_WQ_ATTR_FLAGS, .flags = IBV_WQ_FLAGS_CVLAN_STRIPPING, .flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING };
		for (int i = 0; i < QUEUES; i++)
			check_eq(ibv_modify_wq(wq[i], &m), 0, "IBV_WQ_FLAGS_CVLAN_STRIPPING");
	}
	meet();
	uint32_t len = udp_frame(f, MAC_B, MAC_X, 0x2077, vectors[0].src, vectors[0].dst, 1, 2, 100, 8);
	if (role)
		check_eq(frame_send(tx, f, len, 0), 0, "a tagged frame");
	else
		check(frames_arrive(a, 1, 2) == 1 && a[0].cvlan == 0x2077 && a[0].len == len - 4 && a[0].id / 10 == (vectors[0].two & 3) &&
			      verify(buf + FRAME * a[0].id + 42, 100, 8) < 0,
		      "the tag is in the completion");
	meet();
	/* A receive that is too small stops only its own queue. */
	unsigned queue = vectors[1].two & (QUEUES - 1), other = vectors[4].two & (QUEUES - 1);
	if (!role) {
		check_eq(to(wq[queue], IBV_WQS_RESET), 0, "IBV_WQS_RESET");
		check_eq(to(wq[queue], IBV_WQS_RDY), 0, "IBV_WQS_RDY");
		if (post(wq[queue], 55, 20) || post(wq[queue], 56, FRAME))
			die("ibv_post_wq_recv");
	}
	meet();
	len = udp_frame(f, MAC_B, MAC_X, -1, vectors[1].src, vectors[1].dst, 1, 2, 100, 8);
	if (role) {
		check_eq(frame_send(tx, f, len, 0), 0, "a frame that is too long");
	} else {
		int n = frames_arrive(a, 2, 3);
		check(n == 2 && a[0].id == 55 && a[0].status == IBV_WC_LOC_LEN_ERR && a[1].id == 56 && a[1].status == IBV_WC_WR_FLUSH_ERR, "the queue stops");
		void *element = NULL;
		check(async_event(ctx, &element) == IBV_EVENT_WQ_FATAL && element == wq[queue], "IBV_EVENT_WQ_FATAL names it");
	}
	meet();
	if (role) {
		frame_send(tx, f, len, 0);
		len = udp_frame(f, MAC_B, MAC_X, -1, vectors[4].src, vectors[4].dst, 1, 2, 100, 8);
		frame_send(tx, f, len, 0);
	} else {
		int n = frames_arrive(a, 1, 3);
		check(queue != other && n == 1 && a[0].id / 10 == other, "frames for others go on");
	}
	meet();
	if (!role) {
		check_eq(ibv_destroy_flow(flow[0]) | ibv_destroy_flow(flow[1]), 0, "ibv_destroy_flow");
		check_eq(ibv_destroy_qp(four) | ibv_destroy_qp(two), 0, "ibv_destroy_qp");
		check_eq(ibv_destroy_rwq_ind_table(table), 0, "ibv_destroy_rwq_ind_table");
		for (int i = 0; i < QUEUES; i++)
			check_eq(ibv_destroy_wq(wq[i]), 0, "ibv_destroy_wq");
	} else {
		check_eq(ibv_destroy_qp(tx), 0, "ibv_destroy_qp");
	}
}

enum packet { UDP4, UDP6, ESP4, ESP6, VXLAN };

/* Every set of fields outside the published vectors, and packets with these fields. */
static const struct {
	const char *what;
	uint64_t fields;
	enum packet packet;
} sets[] = {
	{ "IPv6 addresses", IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6, UDP6 },
	{ "the IPv6 source", IBV_RX_HASH_SRC_IPV6, UDP6 },
	{ "the IPv6 destination", IBV_RX_HASH_DST_IPV6, UDP6 },
	{ "IPv6 addresses and UDP ports", IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP, UDP6 },
	{ "IPv4 addresses and UDP ports", IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP, UDP4 },
	{ "the UDP source port", IBV_RX_HASH_SRC_PORT_UDP, UDP4 },
	{ "the UDP destination port", IBV_RX_HASH_DST_PORT_UDP, UDP6 },
	{ "the index of ESP over IPv4", IBV_RX_HASH_IPSEC_SPI, ESP4 },
	{ "IPv6 addresses and the index of ESP", IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 | IBV_RX_HASH_IPSEC_SPI, ESP6 },
	{ "addresses of a packet in VXLAN", IBV_RX_HASH_INNER | IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4, VXLAN },
	{ "addresses and TCP ports of a packet in VXLAN",
	  IBV_RX_HASH_INNER | IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP, VXLAN },
};

/* The fields in which successive frames differ. */
struct flow_of {
	uint8_t src[16], dst[16];
	uint16_t sport, dport;
	uint32_t spi;
};

static struct flow_of some_flow(unsigned set, unsigned n)
{
	struct flow_of x = { .src = { 0xfe, 0x80 }, .dst = { 0xfe, 0x80 } };
	uint64_t state = 1000 * set + n + 1;
	for (int i = 8; i < 16; i++) {
		x.src[i] = (uint8_t)rnd(&state);
		x.dst[i] = (uint8_t)rnd(&state);
	}
	/* The last byte of an address of no multicast group, and ports that are no tunnel's. */
	x.sport = (uint16_t)(10000 + rnd(&state) % 10000);
	x.dport = (uint16_t)(20000 + rnd(&state) % 10000);
	x.spi = rnd(&state);
	return x;
}

static uint32_t last_four(const uint8_t *address)
{
	return (uint32_t)address[12] << 24 | (uint32_t)address[13] << 16 | (uint32_t)address[14] << 8 | address[15];
}

static uint32_t packet(unsigned char *f, enum packet kind, const struct flow_of *x)
{
	unsigned char *at;
	uint32_t src = last_four(x->src), dst = last_four(x->dst);
	switch (kind) {
	case UDP4: at = udp(ipv4(eth(f, MAC_A, MAC_X, -1, 0x0800), src, dst, 17, 0, 8), x->sport, x->dport, 0); break;
	case UDP6: at = udp(ipv6(eth(f, MAC_A, MAC_X, -1, 0x86dd), x->src, x->dst, 17, 5, 8), x->sport, x->dport, 0); break;
	case ESP4: at = be(be(ipv4(eth(f, MAC_A, MAC_X, -1, 0x0800), src, dst, 50, 0, 8), x->spi, 4), 1, 4); break;
	case ESP6: at = be(be(ipv6(eth(f, MAC_A, MAC_X, -1, 0x86dd), x->src, x->dst, 50, 0, 8), x->spi, 4), 1, 4); break;
	default:
		/* The tunnel is always the same. */
		at = udp(ipv4(eth(f, MAC_A, MAC_X, -1, 0x0800), 1, 2, 17, 0, 8 + 8 + 14 + 40), 3, 4789, 8 + 14 + 40);
		at = be(be(at, 0x08000000, 4), 0x12345600, 4);
		at = tcp(ipv4(eth(at, MAC_B, MAC_X, -1, 0x0800), src, dst, 6, 0, 20), x->sport, x->dport, 1, 2);
	}
	return (uint32_t)(at - f);
}

static unsigned queue_of(uint64_t fields, const struct flow_of *x)
{
	uint8_t data[40], *p = data;
	if (fields & IBV_RX_HASH_SRC_IPV4)
		p = be(p, last_four(x->src), 4);
	if (fields & IBV_RX_HASH_SRC_IPV6)
		p = (uint8_t *)memcpy(p, x->src, 16) + 16;
	if (fields & IBV_RX_HASH_DST_IPV4)
		p = be(p, last_four(x->dst), 4);
	if (fields & IBV_RX_HASH_DST_IPV6)
		p = (uint8_t *)memcpy(p, x->dst, 16) + 16;
	if (fields & (IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_SRC_PORT_TCP))
		p = be(p, x->sport, 2);
	if (fields & (IBV_RX_HASH_DST_PORT_UDP | IBV_RX_HASH_DST_PORT_TCP))
		p = be(p, x->dport, 2);
	if (fields & IBV_RX_HASH_IPSEC_SPI)
		p = be(p, x->spi, 4);
	return toeplitz(rss_key, data, (unsigned)(p - data)) & (QUEUES - 1);
}

static void other_fields(void)
{
	enum { FRAMES = 8 };
	static unsigned char f[FRAME];
	struct ibv_wq *wq[QUEUES] = { 0 };
	struct ibv_rwq_ind_table *table = NULL;
	struct ibv_qp *tx = NULL;
	if (role) {
		tx = raw_qp(0, 0);
	} else {
		for (int i = 0; i < QUEUES; i++) {
			wq[i] = make_wq(0);
			check_eq(to(wq[i], IBV_WQS_RDY), 0, "IBV_WQS_RDY");
		}
		struct ibv_rwq_ind_table_init_attr t = { .log_ind_tbl_size = 2, .ind_tbl = wq };
		table = ibv_create_rwq_ind_table(ctx, &t);
		if (!table)
			die("ibv_create_rwq_ind_table");
	}
	for (unsigned set = 0; set < sizeof sets / sizeof *sets; set++) {
		struct ibv_qp *qp = NULL;
		struct ibv_flow *flow = NULL;
		unsigned used = 0, right = 0;
		if (!role) {
			qp = spread(table, sets[set].fields);
			if (!check(qp != NULL, "a QP that spreads by %s (%m)", sets[set].what))
				exit(2);
			flow = rule(qp, MAC_A);
		}
		for (unsigned n = 0; n < FRAMES; n++) {
			struct flow_of x = some_flow(set, n);
			uint32_t len = packet(f, sets[set].packet, &x);
			unsigned queue = queue_of(sets[set].fields, &x);
			/* One receive on each queue, so the next frame finds a fresh receive on any
			 * queue. */
			for (unsigned i = 0; !role && !n && i < QUEUES * FRAMES; i++)
				if (post(wq[i / FRAMES], i / FRAMES * 10 + i % FRAMES, FRAME))
					die("ibv_post_wq_recv");
			meet();
			if (role) {
				check_eq(frame_send(tx, f, len, 0), 0, "%s: frame %u", sets[set].what, n);
			} else {
				struct arrival a[2];
				int got = frames_arrive(a, 1, 1);
				used |= 1u << queue;
				right += got == 1 && a[0].status == IBV_WC_SUCCESS && a[0].id / 10 == queue && a[0].qpn == wq[queue]->wq_num && a[0].len == len;
			}
		}
		if (!role) {
			check_eq(right, FRAMES, "%s: frames in their queues", sets[set].what);
			check((used & (used - 1)) != 0, "%s: not all in one", sets[set].what);
			check_eq(ibv_destroy_flow(flow), 0, "ibv_destroy_flow");
			check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
			/* RESET discards the receives that no frame took. */
			for (int i = 0; i < QUEUES; i++)
				check(!to(wq[i], IBV_WQS_RESET) && !to(wq[i], IBV_WQS_RDY), "a queue is emptied");
		}
		meet();
	}
	if (role) {
		check_eq(ibv_destroy_qp(tx), 0, "ibv_destroy_qp");
	} else {
		check_eq(ibv_destroy_rwq_ind_table(table), 0, "ibv_destroy_rwq_ind_table");
		for (int i = 0; i < QUEUES; i++)
			check_eq(ibv_destroy_wq(wq[i]), 0, "ibv_destroy_wq");
	}
}

int main(void)
{
	partner_fork();
	frames_open();
	refused();
	meet();
	spreads();
	meet();
	other_fields();
	frames_close();
	return partner_finish();
}
