/*
 * RAW_PACKET: frames as they are, checksum, VLAN and segmentation offloads, and the default rules.
 * ibv_create_qp_ex(3), ibv_create_flow(3), ibv_query_device_ex(3), ibv_wr_post(3).
 *
 * Map of this file: rule creates a steering rule; told checks device attributes; states checks
 * state changes and refused creation. refused checks requests that cannot be posted.
 * defaults_and_sniffers checks which QPs receive a frame by each type of rule, multicast loopback,
 * jumbo frames and short receives. slow checks a receiver with few receives; crc and offloads check
 * checksums, VLAN stripping and the frame check sequence; segments checks TCP segmentation. main
 * forks a child by partner_fork; both processes run all checks, and `role` is 1 in the child.
 */
#include "frames.h"

static struct ibv_flow *rule(struct ibv_qp *qp, enum ibv_flow_attr_type type, uint64_t mac)
{
	struct {
		struct ibv_flow_attr a;
		struct ibv_flow_spec_eth e;
	} f = { .a = { .type = type, .size = sizeof f, .port = 1 } };
	if (type == IBV_FLOW_ATTR_NORMAL) {
		f.a.num_of_specs = 1;
		f.e.type = IBV_FLOW_SPEC_ETH;
		f.e.size = sizeof f.e;
		be(f.e.val.dst_mac, mac, 6);
		memset(f.e.mask.dst_mac, 0xff, 6);
	}
	struct ibv_flow *flow = ibv_create_flow(qp, &f.a);
	if (!flow)
		die("ibv_create_flow: %s", strerror(errno));
	return flow;
}

static void told(void)
{
	struct ibv_device_attr_ex d;
	check_eq(ibv_query_device_ex(ctx, NULL, &d), 0, "ibv_query_device_ex");
	check(d.orig_attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING && d.orig_attr.device_cap_flags & IBV_DEVICE_RAW_IP_CSUM,
	      "the device has steering and checksums");
	check(d.raw_packet_caps == (IBV_RAW_PACKET_CAP_CVLAN_STRIPPING | IBV_RAW_PACKET_CAP_SCATTER_FCS | IBV_RAW_PACKET_CAP_IP_CSUM),
	      "raw_packet_caps: VLAN stripping, FCS, checksums; nothing is dropped late (IBV_RAW_PACKET_CAP_DELAY_DROP)");
	check(d.tso_caps.max_tso >= 65536 && ibv_is_qpt_supported(d.tso_caps.supported_qpts, IBV_QPT_RAW_PACKET), "tso_caps");
	check(!d.packet_pacing_caps.supported_qpts, "no packet pacing");
	check(d.orig_attr.max_raw_ethy_qp > 0, "max_raw_ethy_qp");
}

static int modify(struct ibv_qp *qp, enum ibv_qp_state state, int mask)
{
	struct ibv_qp_attr a = { .qp_state = state, .port_num = 1, .rate_limit = 1000 };
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | mask);
}

static void states(void)
{
	struct ibv_qp_init_attr ia = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RAW_PACKET };
	struct ibv_qp *qp = ibv_create_qp(pd, &ia);
	if (!check(qp != NULL, "ibv_create_qp of RAW_PACKET"))
		return;
	check_eq(modify(qp, IBV_QPS_INIT, 0), EINVAL, "to INIT without a port");
	check_eq(modify(qp, IBV_QPS_INIT, IBV_QP_PORT | IBV_QP_PKEY_INDEX), EINVAL, "to INIT with a P_Key");
	check_eq(modify(qp, IBV_QPS_RTR, 0), EINVAL, "RESET to RTR");
	check_eq(modify(qp, IBV_QPS_INIT, IBV_QP_PORT), 0, "to INIT with a port");
	check_eq(modify(qp, IBV_QPS_RTR, IBV_QP_QKEY), EINVAL, "to RTR with a Q_Key");
	check_eq(modify(qp, IBV_QPS_RTR, 0), 0, "to RTR");
	check_eq(modify(qp, IBV_QPS_RTS, IBV_QP_RATE_LIMIT), EOPNOTSUPP, "to RTS with IBV_QP_RATE_LIMIT: no pacing");
	check_eq(modify(qp, IBV_QPS_RTS, 0), 0, "to RTS");
	struct ibv_qp_rate_limit_attr pace = { .rate_limit = 1000 };
	check_eq(ibv_modify_qp_rate_limit(qp, &pace), EOPNOTSUPP, "ibv_modify_qp_rate_limit");
	check_eq(modify(qp, IBV_QPS_ERR, 0), 0, "to ERR");
	check_eq(modify(qp, IBV_QPS_RESET, 0), 0, "to RESET");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");

	struct ibv_qp_init_attr_ex ex = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RAW_PACKET,
					  .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS, .pd = pd,
					  .create_flags = IBV_QP_CREATE_SOURCE_QPN };
	errno = 0;
	check(!ibv_create_qp_ex(ctx, &ex) && errno == EOPNOTSUPP, "IBV_QP_CREATE_SOURCE_QPN is refused");
	ex.qp_type = IBV_QPT_UD;
	ex.create_flags = IBV_QP_CREATE_CVLAN_STRIPPING;
	errno = 0;
	check(!ibv_create_qp_ex(ctx, &ex) && errno == EOPNOTSUPP, "IBV_QP_CREATE_CVLAN_STRIPPING of a UD QP is refused");
	ex.qp_type = IBV_QPT_RAW_PACKET;
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	ex.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	errno = 0;
	check(!ibv_create_qp_ex(ctx, &ex) && errno == EOPNOTSUPP, "IBV_QP_EX_WITH_RDMA_WRITE is refused");
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	ex.max_tso_header = 60000;
	errno = 0;
	check(!ibv_create_qp_ex(ctx, &ex) && errno == EINVAL, "a TSO header of 60000 bytes is refused");
}

/* Requests that cannot be posted. */
static void refused(void)
{
	static unsigned char frame[FRAME];
	struct ibv_qp *qp = raw_qp(0, 64), *plain = raw_qp(0, 0);
	struct ibv_sge sg = { (uintptr_t)buf, 100, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM }, *bad;
	check_eq(frame_send(qp, frame, 13, 0), EINVAL, "a frame of 13 bytes");
	check_eq(frame_send(qp, frame, FRAME, 0), EINVAL, "a frame of 10000 bytes");
	check_eq(ibv_post_send(qp, &wr, &bad), EINVAL, "IBV_WR_SEND_WITH_IMM");
	wr.opcode = IBV_WR_RDMA_WRITE;
	check_eq(ibv_post_send(qp, &wr, &bad), EINVAL, "IBV_WR_RDMA_WRITE");
	wr.opcode = IBV_WR_TSO;
	wr.tso.hdr = frame;
	wr.tso.hdr_sz = 54;
	wr.tso.mss = 1000;
	check_eq(ibv_post_send(plain, &wr, &bad), EINVAL, "IBV_WR_TSO on a QP without room for headers");
	wr.tso.hdr_sz = 65;
	check_eq(ibv_post_send(qp, &wr, &bad), EINVAL, "a longer header than the QP was made for");
	wr.tso.hdr_sz = 54;
	wr.tso.mss = 0;
	check_eq(ibv_post_send(qp, &wr, &bad), EINVAL, "segments of 0 bytes");
	/* Memory that is not registered: SQE, as on other unreliable QPs. */
	struct ibv_wc wc;
	wr.opcode = IBV_WR_SEND;
	sg.lkey = 0;
	check_eq(ibv_post_send(qp, &wr, &bad), 0, "a wrong key can be posted");
	struct arrival a[2];
	check(frames_arrive(a, 1, 2) == 1 && a[0].status == IBV_WC_LOC_PROT_ERR, "and fails");
	struct ibv_qp_attr q;
	struct ibv_qp_init_attr qi;
	check(!ibv_query_qp(qp, &q, IBV_QP_STATE, &qi) && q.qp_state == IBV_QPS_SQE, "the QP is in SQE");
	(void)wc;
	check_eq(ibv_destroy_qp(qp) | ibv_destroy_qp(plain), 0, "ibv_destroy_qp");
}

/* Which QPs receive a frame by normal, default, multicast and sniffer rules. */
static void defaults_and_sniffers(void)
{
	struct ibv_qp *q[4];
	struct ibv_flow *f[4] = { 0 };
	struct arrival a[16];
	static unsigned char frame[FRAME];
	uint32_t len;
	for (int i = 0; i < 4; i++)
		q[i] = raw_qp(0, 0);
	for (uint64_t i = 0; i < 4; i++)
		for (uint64_t k = 0; k < 8; k++)
			frame_recv(q[i], i * 10 + k);
	if (!role) {
		f[0] = rule(q[0], IBV_FLOW_ATTR_NORMAL, MAC_A);
		f[1] = rule(q[1], IBV_FLOW_ATTR_ALL_DEFAULT, 0);
		f[2] = rule(q[2], IBV_FLOW_ATTR_MC_DEFAULT, 0);
		f[3] = rule(q[3], IBV_FLOW_ATTR_SNIFFER, 0);
		check_eq(ibv_destroy_qp(q[0]), EBUSY, "ibv_destroy_qp while a rule names it");
	} else {
		f[0] = rule(q[0], IBV_FLOW_ATTR_NORMAL, MAC_B);
	}
	meet();
	static const struct {
		const char *name;
		uint64_t dst;
		const char *parent, *child;
	} cases[] = {
		{ "to the parent's address", MAC_A, "0 30", "" },
		{ "to the child's address", MAC_B, "31", "0" },
		{ "to nobody's address", MAC_X, "10 32", "" },
		{ "broadcast", BROADCAST, "11 20 33", "" },
		{ "to a group", GROUP, "12 21 34", "" },
	};
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		len = udp_frame(frame, cases[i].dst, MAC_B, -1, 1, 2, 3, 4, 100, i);
		if (role)
			check_eq(frame_send(q[3], frame, len, i & 1 ? IBV_SEND_SIGNALED : 0), 0, "%s: sent", cases[i].name);
		meet();
		const char *wanted = role ? cases[i].child : cases[i].parent;
		int n = frames_arrive(a, 0, 16), many = (int)strlen(wanted) ? 1 : 0;
		for (const char *c = wanted; *c; c++)
			many += *c == ' ';
		if (n < many)
			n += frames_arrive(a + n, many - n, 16 - n);
		const char *got = who(a, n);
		if (role && i & 1) {
			/* The send's completion is among them. */
			check(n > 0 && a[n - 1].id == 99 && a[n - 1].status == IBV_WC_SUCCESS && a[n - 1].opcode == IBV_WC_SEND, "%s: the send completes", cases[i].name);
			n = n > 0 ? n - 1 : 0;
			got = who(a, n);
		}
		check(!strcmp(got, wanted), "%s: receives \"%s\", wanted \"%s\"", cases[i].name, got, wanted);
		for (int k = 0; k < n; k++)
			check(a[k].status == IBV_WC_SUCCESS && a[k].opcode == IBV_WC_RECV && a[k].len == len && a[k].tag == 0 && a[k].cvlan == 0 &&
				      a[k].qpn == q[a[k].id / 10]->qp_num && !memcmp(buf + FRAME * a[k].id, frame, len),
			      "%s: %llu has the frame, %u bytes (%s)", cases[i].name, (unsigned long long)a[k].id, a[k].len, ibv_wc_status_str(a[k].status));
		meet();
	}
	for (int i = 0; i < 4; i++)
		if (f[i])
			check_eq(ibv_destroy_flow(f[i]), 0, "ibv_destroy_flow");
	meet();
	if (role)
		frame_send(q[3], frame, 60, 0);
	meet();
	check_eq(frames_arrive(a, 0, 16), 0, "no rule, no frame");
	/* A QP can exclude the multicast frames that the QP sends. */
	struct ibv_qp *own = raw_qp(IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, 0);
	f[0] = rule(own, IBV_FLOW_ATTR_MC_DEFAULT, 0);
	frame_recv(own, 40);
	meet();
	if (!role) {
		len = udp_frame(frame, GROUP, MAC_A, -1, 1, 2, 3, 4, 1000, 77);
		check_eq(frame_send(own, frame, len, 0), 0, "sent to a group");
	}
	meet();
	check_eq(frames_arrive(a, role, 16), role, "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB: the other's QP gets it");
	meet();
	check_eq(ibv_destroy_flow(f[0]), 0, "ibv_destroy_flow");
	check_eq(ibv_destroy_qp(own), 0, "ibv_destroy_qp");
	/* Gather and scatter. */
	f[0] = rule(q[0], IBV_FLOW_ATTR_NORMAL, MAC_B);
	meet();
	if (!role) {
		len = udp_frame(buf, MAC_B, MAC_A, -1, 1, 2, 3, 4, 9000, 5);
		struct ibv_sge sg[3] = { { (uintptr_t)buf, 10, mr->lkey }, { (uintptr_t)buf + 10, 100, mr->lkey }, { (uintptr_t)buf + 110, len - 110, mr->lkey } };
		struct ibv_send_wr wr = { .wr_id = 99, .sg_list = sg, .num_sge = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		/* Both processes have this rule, so both receive the frame. */
		check_eq(ibv_post_send(q[1], &wr, &bad), 0, "a jumbo frame in three parts");
		check_eq(frames_arrive(a, 2, 16), 2, "received and completed");
	} else {
		len = udp_frame(frame, MAC_B, MAC_A, -1, 1, 2, 3, 4, 9000, 5);
		check_eq(frames_arrive(a, 1, 16), 1, "a jumbo frame");
		check(a[0].len == len && !memcmp(buf + FRAME * a[0].id, frame, len), "all of it");
	}
	meet();
	/* Too small a receive. */
	struct ibv_qp *small = raw_qp(0, 0);
	struct ibv_flow *g = rule(small, IBV_FLOW_ATTR_NORMAL, role ? MAC_X : MAC_X + 1);
	struct ibv_sge sg = { (uintptr_t)buf, 59, mr->lkey };
	struct ibv_recv_wr rw = { .wr_id = 50, .sg_list = &sg, .num_sge = 1 }, *bad;
	check_eq(ibv_post_recv(small, &rw, &bad), 0, "a receive of 59 bytes");
	meet();
	if (!role) {
		udp_frame(frame, MAC_X, MAC_A, -1, 1, 2, 3, 4, 100, 5);
		check_eq(frame_send(q[1], frame, 60, IBV_SEND_INLINE), 0, "an inline frame of 60 bytes");
	} else {
		check(frames_arrive(a, 1, 16) == 1 && a[0].id == 50 && a[0].status == IBV_WC_LOC_LEN_ERR, "a frame that is too long for its receive");
		struct ibv_qp_attr qa;
		struct ibv_qp_init_attr qi;
		check(!ibv_query_qp(small, &qa, IBV_QP_STATE, &qi) && qa.qp_state == IBV_QPS_ERR, "takes the QP to ERR");
	}
	meet();
	check_eq(ibv_destroy_flow(g) | ibv_destroy_flow(f[0]), 0, "ibv_destroy_flow");
	check_eq(ibv_destroy_qp(small), 0, "ibv_destroy_qp");
	for (int i = 0; i < 4; i++)
		check_eq(ibv_destroy_qp(q[i]), 0, "ibv_destroy_qp");
	meet();
}

/* A receiver with few receives that is slow for a moment: no frame is lost. A receiver without
 * receives loses frames, and does not delay the sender for long. */
static void slow(void)
{
	enum { COUNT = 600 };
	struct ibv_qp *qp = raw_qp(0, 0), *idle = raw_qp(0, 0);
	struct ibv_flow *f[2] = { 0 };
	struct arrival a[1];
	static unsigned char frame[FRAME];
	if (role) {
		f[0] = rule(qp, IBV_FLOW_ATTR_NORMAL, MAC_B);
		for (uint64_t k = 0; k < 4; k++)
			frame_recv(qp, k);
	}
	for (int way = 0; way < 2; way++) {
		if (role && way)
			f[1] = rule(idle, IBV_FLOW_ATTR_SNIFFER, 0);
		meet();
		if (!role) {
			int sent = 0;
			for (int i = 0; i < COUNT; i++) {
				uint32_t len = udp_frame(frame, MAC_B, MAC_A, -1, 1, 2, 3, (uint16_t)i, 100, (uint32_t)i);
				struct ibv_wc w;
				if (frame_send(qp, frame, len, IBV_SEND_SIGNALED))
					break;
				wait_completion(cq, &w);
				sent += w.status == IBV_WC_SUCCESS;
			}
			check_eq(sent, COUNT, "frames sent");
		} else {
			int good = 0;
			for (int i = 0; i < COUNT; i++) {
				if (frames_arrive(a, 1, 1) != 1 || a[0].status != IBV_WC_SUCCESS)
					break;
				const unsigned char *p = buf + FRAME * a[0].id;
				good += (p[36] << 8 | p[37]) == i && verify(p + 42, 100, (uint32_t)i) < 0;
				if (i % 100 == 0)
					usleep(2000);
				frame_recv(qp, a[0].id);
			}
			check_eq(good, COUNT, "frames received by few receives, in order%s", way ? ", beside a QP that has none" : "");
		}
		meet();
	}
	for (int i = 0; i < 2; i++)
		if (f[i])
			check_eq(ibv_destroy_flow(f[i]), 0, "ibv_destroy_flow");
	check_eq(ibv_destroy_qp(qp) | ibv_destroy_qp(idle), 0, "ibv_destroy_qp");
	meet();
}

static uint32_t crc(const unsigned char *p, uint32_t len)
{
	uint32_t c = ~0u;
	while (len--) {
		c ^= *p++;
		for (int i = 0; i < 8; i++)
			c = c & 1 ? c >> 1 ^ 0xedb88320 : c >> 1;
	}
	return ~c;
}

/* Checksums, VLAN tags, frame check sequence. */
static void offloads(void)
{
	struct ibv_qp *tx = raw_qp(0, 0), *rx = raw_qp(0, 0), *strip = raw_qp(IBV_QP_CREATE_CVLAN_STRIPPING, 0), *fcs = raw_qp(IBV_QP_CREATE_SCATTER_FCS, 0);
	struct arrival a[16];
	static unsigned char frame[FRAME];
	struct ibv_flow *f[3] = { 0 };
	if (role) {
		f[0] = rule(rx, IBV_FLOW_ATTR_SNIFFER, 0);
		f[1] = rule(strip, IBV_FLOW_ATTR_NORMAL, MAC_B);
		f[2] = rule(fcs, IBV_FLOW_ATTR_NORMAL, MAC_B);
		for (uint64_t k = 0; k < 8; k++) {
			frame_recv(rx, k);
			frame_recv(strip, 10 + k);
			frame_recv(fcs, 20 + k);
		}
	}
	meet();
	uint32_t len = udp_frame(frame, MAC_B, MAC_A, 0x6123, 0x0a000001, 0x0a000002, 1111, 2222, 333, 9);
	if (!role) {
		check_eq(frame_send(tx, frame, len, 0), 0, "without IBV_SEND_IP_CSUM");
		meet();
		check_eq(frame_send(tx, frame, len, IBV_SEND_IP_CSUM), 0, "with IBV_SEND_IP_CSUM");
	} else {
		for (int i = 0; i < 2; i++) {
			check(frames_arrive(a, 3, 16) == 3, "three receives");
			who(a, 3);
			const unsigned char *p = buf + FRAME * a[0].id;
			check(!!(a[0].flags & IBV_WC_IP_CSUM_OK) == i, "IBV_WC_IP_CSUM_OK says so when checksums are right (%d)", i);
			check(checksums(p + 18) == i && !memcmp(p, frame, 28) && verify(p + 18 + 28, 333, 9) < 0 && a[0].len == len, "checksums in the frame (%d)", i);
			check(a[0].cvlan == 0, "the tag is left where it is");
			const unsigned char *s = buf + FRAME * a[1].id;
			check(a[1].len == len - 4 && a[1].cvlan == 0x6123 && !memcmp(s, frame, 12) && s[12] == 8 && s[13] == 0 && !memcmp(s + 14, p + 18, len - 18),
			      "IBV_QP_CREATE_CVLAN_STRIPPING: the tag is in the completion (%x), not in the frame", a[1].cvlan);
			const unsigned char *c = buf + FRAME * a[2].id;
			uint32_t want = crc(p, len), is = c[len] | (uint32_t)c[len + 1] << 8 | (uint32_t)c[len + 2] << 16 | (uint32_t)c[len + 3] << 24;
			check(a[2].len == len + 4 && want == is, "IBV_QP_CREATE_SCATTER_FCS: %x behind the frame, should be %x", is, want);
			if (!i)
				meet();
		}
	}
	meet();
	/* IPv6: the sender fills the TCP checksum; IBV_WC_IP_CSUM_OK is for IPv4 only. */
	static const uint8_t s6[16] = { 0xfe, 0x80, [15] = 1 }, d6[16] = { 0xfe, 0x80, [15] = 2 };
	unsigned char *at = tcp(ipv6(eth(frame, MAC_B, MAC_A, -1, 0x86dd), s6, d6, 6, 7, 20 + 11), 80, 443, 1, 2);
	fill(at, 11, 3);
	len = (uint32_t)(at - frame) + 11;
	if (!role) {
		check_eq(frame_send(tx, frame, len, IBV_SEND_IP_CSUM), 0, "IPv6 with IBV_SEND_IP_CSUM");
	} else {
		check(frames_arrive(a, 3, 16) == 3, "three receives");
		who(a, 3);
		const unsigned char *p = buf + FRAME * a[0].id;
		check(ones(p + 54, 31, ones(p + 22, 32, 6 + 31)) == 0xffff && !(a[0].flags & IBV_WC_IP_CSUM_OK), "the TCP checksum over IPv6");
		check(a[1].len == len && a[1].cvlan == 0, "no tag, nothing stripped");
	}
	meet();
	for (int i = 0; i < 3; i++)
		if (f[i])
			check_eq(ibv_destroy_flow(f[i]), 0, "ibv_destroy_flow");
	check_eq(ibv_destroy_qp(tx) | ibv_destroy_qp(rx) | ibv_destroy_qp(strip) | ibv_destroy_qp(fcs), 0, "ibv_destroy_qp");
	meet();
}

/* Segmentation: by ibv_post_send and by ibv_wr_send_tso. */
static void segments(void)
{
	enum { TOTAL = 40000, MSS = 1460, COUNT = (TOTAL + MSS - 1) / MSS };
	struct ibv_qp *qp = raw_qp(0, 128);
	struct ibv_flow *f = NULL;
	struct arrival a[1];
	unsigned char header[54];
	tcp(ipv4(eth(header, MAC_B, MAC_A, -1, 0x0800), 0x0a000001, 0x0a000002, 6, 0, 0), 1000, 2000, 0xfffffff0u, 0x99);
	if (role) {
		f = rule(qp, IBV_FLOW_ATTR_NORMAL, MAC_B);
		for (uint64_t k = 0; k < 32; k++)
			frame_recv(qp, k);
	}
	for (int way = 0; way < 2; way++) {
		meet();
		if (!role) {
			unsigned char *data = buf;
			fill(data, TOTAL, 42);
			struct ibv_sge sg = { (uintptr_t)data, TOTAL, mr->lkey };
			if (way == 0) {
				struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_TSO, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM,
							  .tso = { header, sizeof header, MSS } }, *bad;
				check_eq(ibv_post_send(qp, &wr, &bad), 0, "IBV_WR_TSO");
			} else {
				struct ibv_qp_ex *x = ibv_qp_to_qp_ex(qp);
				unsigned char copy[54];
				memcpy(copy, header, 54);
				ibv_wr_start(x);
				x->wr_id = 5;
				x->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
				ibv_wr_send_tso(x, copy, sizeof copy, MSS);
				ibv_wr_set_sge(x, sg.lkey, sg.addr, sg.length);
				memset(copy, 0xee, 54);
				check_eq(ibv_wr_complete(x), 0, "ibv_wr_send_tso");
			}
			check(frames_arrive(a, 1, 1) == 1 && a[0].id == 5 && a[0].status == IBV_WC_SUCCESS && a[0].opcode == IBV_WC_TSO, "completion of the send");
		} else {
			int good = 0;
			static unsigned char whole[TOTAL];
			for (int i = 0; i < COUNT; i++) {
				if (frames_arrive(a, 1, 1) != 1 || a[0].status != IBV_WC_SUCCESS)
					break;
				const unsigned char *p = buf + FRAME * a[0].id;
				uint32_t n = i + 1 < COUNT ? MSS : TOTAL - MSS * (COUNT - 1);
				uint32_t seq = 0xfffffff0u + (uint32_t)i * MSS, is = (uint32_t)p[38] << 24 | (uint32_t)p[39] << 16 | (uint32_t)p[40] << 8 | p[41];
				uint8_t flags = 0x10 | (i ? 0 : 0x80) | (i + 1 == COUNT ? 9 : 0);
				good += a[0].len == 54 + n && (uint32_t)(p[16] << 8 | p[17]) == 40 + n && (uint32_t)(p[18] << 8 | p[19]) == 0x1234u + (uint32_t)i && seq == is &&
					p[47] == flags && checksums(p + 14) && (a[0].flags & IBV_WC_IP_CSUM_OK);
				memcpy(whole + MSS * i, p + 54, n);
				frame_recv(qp, a[0].id);
			}
			check_eq(good, COUNT, "segments with the right lengths, identification, sequence number, flags and checksums");
			check(verify(whole, TOTAL, 42) < 0, "all of the data");
		}
	}
	meet();
	if (f)
		check_eq(ibv_destroy_flow(f), 0, "ibv_destroy_flow");
	check_eq(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
	meet();
}

int main(void)
{
	partner_fork();
	frames_open();
	told();
	states();
	refused();
	meet();
	defaults_and_sniffers();
	slow();
	offloads();
	segments();
	frames_close();
	return partner_finish();
}
