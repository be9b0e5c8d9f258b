/*
 * Steering rules: specifications, priorities, actions, counters, and what is refused.
 * ibv_create_flow(3), ibv_create_counters(3).
 *
 * Map of this file: make, must and refuses create a rule; refused checks invalid rules and
 * counters. The function sent sends a frame from the child, and compares the QPs of the parent that
 * receive it. specifications checks matches by Ethernet, VLAN, IP, port, VXLAN and GRE; labels
 * checks MPLS label stacks. priorities checks priorities, default rules, copies, drops, counters
 * and rules of two processes; many checks two thousand rules. main forks the child by partner_fork;
 * both processes run all checks, and `role` is 1 in the child.
 */
#include "frames.h"
#include "rules.h"

static struct ibv_flow *make(struct ibv_qp *qp, struct rule *r)
{
	errno = 0;
	return ibv_create_flow(qp, &r->attr);
}

static struct ibv_flow *must(struct ibv_qp *qp, struct rule *r)
{
	struct ibv_flow *f = make(qp, r);
	if (!f)
		die("ibv_create_flow: %s", strerror(errno));
	return f;
}

static void refuses(struct ibv_qp *qp, struct rule *r, int err, const char *what)
{
	struct ibv_flow *f = make(qp, r);
	check(!f && errno == err, "%s: %s", what, f ? "accepted" : strerror(errno));
	if (f)
		ibv_destroy_flow(f);
}

static void refused(void)
{
	struct ibv_qp *qp = raw_qp(0, 0);
	struct ibv_qp_init_attr ia = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *rc = ibv_create_qp(pd, &ia);
	ia.qp_type = IBV_QPT_UD;
	struct ibv_qp *ud = ibv_create_qp(pd, &ia);
	struct rule r = rule_start(0);
	eth_spec(&r, 0, MAC_A, 0, 0, -1);
	refuses(rc, &r, EINVAL, "a rule on an RC QP");
	refuses(ud, &r, EOPNOTSUPP, "a rule on a UD QP");
	r.attr.port = 2;
	refuses(qp, &r, EINVAL, "port 2");
	r.attr.port = 1;
	r.attr.comp_mask = 1;
	refuses(qp, &r, EINVAL, "a comp_mask");
	r.attr.comp_mask = 0;
	r.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
	refuses(qp, &r, EOPNOTSUPP, "IBV_FLOW_ATTR_FLAGS_EGRESS");
	r.attr.flags = 1;
	refuses(qp, &r, EINVAL, "an unknown flag");
	r.attr.flags = 0;
	r.attr.type = IBV_FLOW_ATTR_SNIFFER + 1;
	refuses(qp, &r, EINVAL, "an unknown type");
	r.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
	refuses(qp, &r, EINVAL, "a default rule with a specification");
	r = rule_start(0);
	r.attr.type = IBV_FLOW_ATTR_SNIFFER;
	r.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
	refuses(qp, &r, EINVAL, "a sniffer that does not trap");
	r = rule_start(0);
	eth_spec(&r, 0, MAC_A, 0, 0x86dd, -1);
	ipv4_spec(&r, 1, 2, ~0u);
	refuses(qp, &r, EINVAL, "IPv4 in an IPv6 EtherType");
	r = rule_start(0);
	port_spec(&r, IBV_FLOW_SPEC_TCP, 1, 2);
	port_spec(&r, IBV_FLOW_SPEC_UDP, 1, 2);
	refuses(qp, &r, EINVAL, "TCP and UDP");
	r = rule_start(0);
	eth_spec(&r, 0, MAC_A, 0, 0, -1);
	((struct ibv_flow_spec_eth *)r.specs)->size = 8;
	refuses(qp, &r, EINVAL, "a specification that is too short");
	((struct ibv_flow_spec_eth *)r.specs)->size = sizeof(struct ibv_flow_spec_eth);
	((struct ibv_flow_spec_eth *)r.specs)->type = 0x77;
	refuses(qp, &r, EINVAL, "an unknown specification");
	r = rule_start(0);
	struct ibv_flow_spec_esp esp = { .type = IBV_FLOW_SPEC_ESP, .size = sizeof esp, .mask = { .seq = 1 } };
	rule_add(&r, &esp, sizeof esp);
	refuses(qp, &r, EOPNOTSUPP, "an ESP sequence number");
	r = rule_start(0);
	struct ibv_flow_spec_action_handle handle = { .type = IBV_FLOW_SPEC_ACTION_HANDLE, .size = sizeof handle };
	rule_add(&r, &handle, sizeof handle);
	refuses(qp, &r, EOPNOTSUPP, "an action with a handle");
	r = rule_start(0);
	tag_spec(&r, 1 << 24);
	refuses(qp, &r, EINVAL, "a tag of more than 24 bits");
	r = rule_start(0);
	drop_spec(&r);
	r.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
	refuses(qp, &r, EINVAL, "a rule that drops and does not trap");
	check_eq(ibv_destroy_qp(qp) | ibv_destroy_qp(rc) | ibv_destroy_qp(ud), 0, "ibv_destroy_qp: no refused rule holds on to one");

	struct ibv_counters_init_attr ci = { .comp_mask = 1 };
	errno = 0;
	check(!ibv_create_counters(ctx, &ci) && errno == EOPNOTSUPP, "ibv_create_counters with a comp_mask");
	ci.comp_mask = 0;
	struct ibv_counters *c = ibv_create_counters(ctx, &ci);
	if (!check(c != NULL, "ibv_create_counters"))
		return;
	struct ibv_counter_attach_attr at = { .counter_desc = IBV_COUNTER_BYTES + 1 };
	check_eq(ibv_attach_counters_point_flow(c, &at, NULL), ENOTSUP, "an unknown counter description");
	at.counter_desc = IBV_COUNTER_PACKETS;
	at.comp_mask = 1;
	check_eq(ibv_attach_counters_point_flow(c, &at, NULL), EOPNOTSUPP, "ibv_attach_counters_point_flow with a comp_mask");
	at.comp_mask = 0;
	struct ibv_flow dummy = { .context = ctx };
	check_eq(ibv_attach_counters_point_flow(c, &at, &dummy), ENOTSUP, "ibv_attach_counters_point_flow with a flow");
	at.index = 2;
	check_eq(ibv_attach_counters_point_flow(c, &at, NULL), 0, "ibv_attach_counters_point_flow");
	uint64_t v[3] = { 7, 7, 7 };
	check_eq(ibv_read_counters(c, v, 2, 0), EINVAL, "ibv_read_counters with too little room");
	check_eq(ibv_read_counters(c, v, 3, 0), 0, "ibv_read_counters");
	check(!v[0] && !v[1] && !v[2], "nothing is counted yet");
	check_eq(ibv_destroy_counters(c), 0, "ibv_destroy_counters");
}

static struct ibv_qp *q[6];

/* The child sends a frame. Compares the QPs of both processes that got it, as "tag:tag ..." sorted
 * by QP. */
static void sent(const char *what, const unsigned char *frame, uint32_t len, const char *wanted)
{
	struct arrival a[32];
	char text[200] = "", *t = text;
	if (role)
		check_eq(frame_send(q[0], frame, len, 0), 0, "%s: sent", what);
	meet();
	int n = role ? 0 : frames_arrive(a, *wanted != 0, 32);
	who(a, n);
	for (int i = 0; i < n; i++) {
		t += sprintf(t, "%s%d", i ? " " : "", (int)a[i].id / 10);
		if (a[i].tag)
			t += sprintf(t, ":%x", a[i].tag);
		if (a[i].status != IBV_WC_SUCCESS || a[i].len != len || memcmp(buf + FRAME * a[i].id, frame, len))
			check(0, "%s: a receive is wrong", what);
		frame_recv(q[a[i].id / 10], a[i].id);
	}
	if (!role)
		check(!strcmp(text, wanted), "%s: received by \"%s\", wanted \"%s\"", what, text, wanted);
	meet();
}

static void specifications(void)
{
	static unsigned char f[FRAME];
	uint32_t len;
	struct ibv_flow *flow[6] = { 0 };
	if (!role) {
		struct rule r = rule_start(0);
		eth_spec(&r, 0, MAC_A, 0, 0, 0x123);
		flow[0] = must(q[0], &r);
		r = rule_start(0);
		ipv4_spec(&r, 0x0a010000, 0, 0xffff0000);
		port_spec(&r, IBV_FLOW_SPEC_UDP, 0, 53);
		tag_spec(&r, 0xabc);
		flow[1] = must(q[1], &r);
		r = rule_start(0);
		struct ibv_flow_spec_ipv4_ext x = { .type = IBV_FLOW_SPEC_IPV4_EXT, .size = sizeof x, .val = { .proto = 6, .tos = 0x20 }, .mask = { .proto = 0xff, .tos = 0xff } };
		rule_add(&r, &x, sizeof x);
		flow[2] = must(q[2], &r);
		r = rule_start(0);
		struct ibv_flow_spec_ipv6 s = { .type = IBV_FLOW_SPEC_IPV6, .size = sizeof s };
		be((unsigned char *)&s.val.flow_label, 0x54321, 4);
		be((unsigned char *)&s.mask.flow_label, 0xfffff, 4);
		s.val.dst_ip[15] = 2;
		s.mask.dst_ip[15] = 0xff;
		s.val.next_hdr = 6;
		s.mask.next_hdr = 0xff;
		rule_add(&r, &s, sizeof s);
		port_spec(&r, IBV_FLOW_SPEC_TCP, 80, 0);
		tag_spec(&r, 0xffffff);
		flow[3] = must(q[3], &r);
		r = rule_start(0);
		struct ibv_flow_spec_tunnel v = { .type = IBV_FLOW_SPEC_VXLAN_TUNNEL, .size = sizeof v };
		be((unsigned char *)&v.val.tunnel_id, 0x123456, 4);
		v.mask.tunnel_id = ~0u;
		rule_add(&r, &v, sizeof v);
		eth_spec(&r, IBV_FLOW_SPEC_INNER, MAC_X, 0, 0, -1);
		flow[4] = must(q[4], &r);
		r = rule_start(0);
		struct ibv_flow_spec_gre g = { .type = IBV_FLOW_SPEC_GRE, .size = sizeof g };
		be((unsigned char *)&g.val.key, 77, 4);
		g.mask.key = ~0u;
		rule_add(&r, &g, sizeof g);
		flow[5] = must(q[5], &r);
	}
	meet();
	len = udp_frame(f, MAC_A, MAC_B, 0x5123, 1, 2, 3, 4, 50, 1);
	sent("address and VLAN", f, len, "0");
	len = udp_frame(f, MAC_A, MAC_B, 0x5124, 1, 2, 3, 4, 50, 1);
	sent("another VLAN", f, len, "");
	len = udp_frame(f, MAC_A, MAC_B, -1, 1, 2, 3, 4, 50, 1);
	sent("no VLAN", f, len, "");
	len = udp_frame(f, MAC_X, MAC_B, 7, 0x0a01ffff, 2, 3, 53, 50, 2);
	sent("a network and a port, with a tag", f, len, "1:abc");
	len = udp_frame(f, MAC_X, MAC_B, -1, 0x0a02ffff, 2, 3, 53, 50, 2);
	sent("another network", f, len, "");
	len = udp_frame(f, MAC_X, MAC_B, -1, 0x0a01ffff, 2, 53, 3, 50, 2);
	sent("the other port", f, len, "");
	unsigned char *at = tcp(ipv4(eth(f, MAC_X, MAC_B, -1, 0x0800), 1, 2, 6, 0x20, 20), 1, 2, 3, 4);
	sent("IPv4_EXT: TCP with a TOS", f, (uint32_t)(at - f), "2");
	f[15] = 0x21;
	sent("another TOS", f, (uint32_t)(at - f), "");
	static const uint8_t s6[16] = { 0xfe, 0x80, [15] = 1 }, d6[16] = { 0xfe, 0x80, [15] = 2 };
	at = tcp(ipv6(eth(f, MAC_X, MAC_B, 3, 0x86dd), s6, d6, 6, 0x54321, 20), 80, 9, 1, 2);
	sent("IPv6: flow label, last byte of the address, port", f, (uint32_t)(at - f), "3:ffffff");
	at = tcp(ipv6(eth(f, MAC_X, MAC_B, 3, 0x86dd), s6, d6, 6, 0x54320, 20), 80, 9, 1, 2);
	sent("another flow label", f, (uint32_t)(at - f), "");
	/* VXLAN: outer UDP to 4789, 8 bytes, a frame. */
	unsigned char inner[200];
	uint32_t in = udp_frame(inner, MAC_X, MAC_B, -1, 9, 8, 7, 6, 30, 4);
	for (int i = 0; i < 2; i++) {
		at = udp(ipv4(eth(f, MAC_B, MAC_B, -1, 0x0800), 5, 6, 17, 0, (uint16_t)(16 + in)), 1, 4789, (uint16_t)(8 + in));
		at = be(be(at, 0x08000000, 4), i ? 0x12345700 : 0x12345600, 4);
		memcpy(at, inner, in);
		sent(i ? "another network" : "VXLAN with an inner address", f, (uint32_t)(at - f) + in, i ? "" : "4");
	}
	for (unsigned key = 77; key < 79; key++) {
		at = ipv4(eth(f, MAC_B, MAC_B, -1, 0x0800), 5, 6, 47, 0, (uint16_t)(8 + in - 14));
		at = be(be(be(at, 0x2000, 2), 0x0800, 2), key, 4);
		memcpy(at, inner + 14, in - 14);
		sent(key == 77 ? "GRE with a key" : "another key", f, (uint32_t)(at - f) + in - 14, key == 77 ? "5" : "");
	}
	for (int i = 0; i < 6; i++)
		if (flow[i])
			check_eq(ibv_destroy_flow(flow[i]), 0, "ibv_destroy_flow");
	meet();
}

static unsigned char *label(unsigned char *p, uint32_t number, int last)
{
	return be(p, number << 12 | (last ? 0x100u : 0) | 64, 4);
}

/* Label stacks: over Ethernet and over UDP, by the outermost entry, and by the packet below. */
static void labels(void)
{
	static unsigned char f[FRAME];
	struct ibv_flow *flow[3] = { 0 };
	struct ibv_flow_spec_mpls m = { .type = IBV_FLOW_SPEC_MPLS, .size = sizeof m };
	be((unsigned char *)&m.val.label, 0x12345000, 4);
	be((unsigned char *)&m.mask.label, 0xfffff000, 4);
	if (!role) {
		struct rule r = rule_start(0);
		rule_add(&r, &m, sizeof m);
		flow[0] = must(q[0], &r);
		/* Any label, with an inner address. */
		r = rule_start(0);
		m.mask.label = 0;
		rule_add(&r, &m, sizeof m);
		struct ibv_flow_spec_ipv4_ext x = { .type = IBV_FLOW_SPEC_IPV4_EXT | IBV_FLOW_SPEC_INNER, .size = sizeof x };
		be((unsigned char *)&x.val.dst_ip, 0x0a090807, 4);
		be((unsigned char *)&x.mask.dst_ip, 0xffffffff, 4);
		rule_add(&r, &x, sizeof x);
		flow[1] = must(q[1], &r);
		/* Bottom of stack, TTL and class are bits of the entry like any other. */
		r = rule_start(0);
		be((unsigned char *)&m.val.label, 0x00077100, 4);
		be((unsigned char *)&m.mask.label, 0xfffff100, 4);
		rule_add(&r, &m, sizeof m);
		flow[2] = must(q[2], &r);
		r = rule_start(0);
		m.size -= 4;
		rule_add(&r, &m, sizeof m);
		refuses(q[3], &r, EINVAL, "a specification of MPLS that is too short");
		m.size += 4;
		r = rule_start(0);
		m.type |= IBV_FLOW_SPEC_INNER;
		rule_add(&r, &m, sizeof m);
		refuses(q[3], &r, EOPNOTSUPP, "MPLS within a tunnel");
	}
	meet();
	unsigned char *at = ipv4(label(eth(f, MAC_X, MAC_B, -1, 0x8847), 0x12345, 1), 1, 2, 17, 0, 8);
	at = udp(at, 1, 2, 0);
	sent("a label", f, (uint32_t)(at - f), "0");
	at = udp(ipv4(label(eth(f, MAC_X, MAC_B, 5, 0x8848), 0x12345, 1), 1, 2, 17, 0, 8), 1, 2, 0);
	sent("tagged, with the other type", f, (uint32_t)(at - f), "0");
	at = udp(ipv4(label(eth(f, MAC_X, MAC_B, -1, 0x8847), 0x12346, 1), 1, 2, 17, 0, 8), 1, 2, 0);
	sent("another label", f, (uint32_t)(at - f), "");
	at = udp(ipv4(label(label(eth(f, MAC_X, MAC_B, -1, 0x8847), 0x12346, 0), 0x12345, 1), 1, 2, 17, 0, 8), 1, 2, 0);
	sent("below another one", f, (uint32_t)(at - f), "");
	at = udp(ipv4(label(label(eth(f, MAC_X, MAC_B, -1, 0x8847), 0x54321, 0), 0x54322, 1), 1, 0x0a090807, 17, 0, 8), 1, 2, 0);
	sent("the address of the packet below", f, (uint32_t)(at - f), "1");
	at = udp(ipv4(eth(f, MAC_X, MAC_B, -1, 0x0800), 1, 0x0a090807, 17, 0, 8), 1, 2, 0);
	sent("the same packet without labels", f, (uint32_t)(at - f), "");
	at = udp(ipv4(label(eth(f, MAC_X, MAC_B, -1, 0x8847), 0x77, 1), 1, 2, 17, 0, 8), 1, 2, 0);
	sent("a label at the bottom", f, (uint32_t)(at - f), "2");
	at = udp(ipv4(label(label(eth(f, MAC_X, MAC_B, -1, 0x8847), 0x77, 0), 1, 1), 1, 2, 17, 0, 8), 1, 2, 0);
	sent("and not at the bottom", f, (uint32_t)(at - f), "");
	/* Over UDP (RFC 7510). */
	at = udp(ipv4(eth(f, MAC_X, MAC_B, -1, 0x0800), 3, 4, 17, 0, 8 + 4 + 28), 9, 6635, 4 + 28);
	at = udp(ipv4(label(at, 0x12345, 1), 1, 2, 17, 0, 8), 1, 2, 0);
	sent("a label over UDP", f, (uint32_t)(at - f), "0");
	for (int i = 0; i < 3; i++)
		if (flow[i])
			check_eq(ibv_destroy_flow(flow[i]), 0, "ibv_destroy_flow");
	meet();
}

static void priorities(void)
{
	static unsigned char f[FRAME];
	uint32_t len = udp_frame(f, MAC_A, MAC_B, -1, 0x0a010101, 2, 3, 53, 60, 1);
	struct ibv_flow *wide = NULL, *narrow = NULL, *twin = NULL, *copy = NULL, *all = NULL, *drop = NULL;
	struct ibv_counters *c = NULL;
	if (!role) {
		struct rule r = rule_start(5);
		eth_spec(&r, 0, MAC_A, 0, 0, -1);
		wide = must(q[0], &r);
		struct rule d = rule_start(0);
		d.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
		tag_spec(&d, 9);
		all = must(q[4], &d);
	}
	meet();
	sent("one rule and a default one", f, len, "0");
	if (!role) {
		struct rule r = rule_start(1);
		port_spec(&r, IBV_FLOW_SPEC_UDP, 0, 53);
		narrow = must(q[1], &r);
		twin = must(q[2], &r);
	}
	meet();
	sent("a rule of a higher priority, and its twin", f, len, "1 2");
	if (!role) {
		struct rule r = rule_start(0);
		r.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
		ipv4_spec(&r, 0x0a010101, 0, ~0u);
		tag_spec(&r, 3);
		copy = must(q[3], &r);
	}
	meet();
	sent("IBV_FLOW_ATTR_FLAGS_DONT_TRAP before them", f, len, "1 2 3:3");
	if (!role) {
		check_eq(ibv_destroy_flow(narrow), 0, "ibv_destroy_flow");
		struct ibv_counters_init_attr ci = { 0 };
		c = ibv_create_counters(ctx, &ci);
		struct ibv_counter_attach_attr p = { .counter_desc = IBV_COUNTER_PACKETS, .index = 0 }, b = { .counter_desc = IBV_COUNTER_BYTES, .index = 1 };
		if (!c || ibv_attach_counters_point_flow(c, &p, NULL) || ibv_attach_counters_point_flow(c, &b, NULL))
			die("counters");
		check_eq(ibv_attach_counters_point_flow(c, &b, NULL), EBUSY, "an index that is taken");
		struct rule r = rule_start(0);
		port_spec(&r, IBV_FLOW_SPEC_UDP, 0, 53);
		drop_spec(&r);
		count_spec(&r, c);
		drop = must(q[5], &r);
		check_eq(ibv_destroy_counters(c), EBUSY, "ibv_destroy_counters while a rule counts");
	}
	meet();
	sent("a rule that drops, and counts", f, len, "3:3");
	sent("again", f, len, "3:3");
	len = udp_frame(f, MAC_X, MAC_B, -1, 1, 2, 3, 54, 60, 1);
	sent("to nobody", f, len, "4:9");
	if (!role) {
		uint64_t v[2] = { 0, 0 };
		check_eq(ibv_read_counters(c, v, 2, IBV_READ_COUNTERS_ATTR_PREFER_CACHED), 0, "ibv_read_counters");
		check(v[0] == 2 && v[1] == 2 * len, "2 frames of %u bytes: %d, %d", len, (int)v[0], (int)v[1]);
		check_eq(ibv_destroy_flow(drop) | ibv_destroy_flow(copy) | ibv_destroy_flow(twin) | ibv_destroy_flow(wide) | ibv_destroy_flow(all), 0, "ibv_destroy_flow");
		check_eq(ibv_destroy_counters(c), 0, "ibv_destroy_counters");
	}
	meet();
	/* Rules of two processes compete by their priorities. */
	struct rule r = rule_start(role ? 2 : 3);
	eth_spec(&r, 0, MAC_A, 0, 0, -1);
	wide = must(q[role ? 1 : 0], &r);
	struct arrival a[4];
	meet();
	len = udp_frame(f, MAC_A, MAC_B, -1, 1, 2, 3, 54, 60, 1);
	if (!role)
		frame_send(q[2], f, len, 0);
	meet();
	check_eq(frames_arrive(a, role, 4), role, "the other process's rule comes first");
	meet();
	check_eq(ibv_destroy_flow(wide), 0, "ibv_destroy_flow");
	meet();
}

/* More rules than a page of the table holds, made and destroyed out of order. */
static void many(void)
{
	enum { N = 2000 };
	static struct ibv_flow *flow[N];
	static unsigned char f[FRAME];
	struct arrival a[4];
	if (!role) {
		for (int i = 0; i < N; i++) {
			struct rule r = rule_start(0);
			eth_spec(&r, 0, MAC_X + (unsigned)i, 0, 0, -1);
			tag_spec(&r, (uint32_t)i + 1);
			flow[i] = must(q[0], &r);
		}
		for (int i = 0; i < N; i += 2)
			if (ibv_destroy_flow(flow[i]))
				die("ibv_destroy_flow");
	}
	meet();
	int ok = 0;
	for (int i = 0; i < 40; i++) {
		int n = (i * 97) % N;
		uint32_t len = udp_frame(f, MAC_X + (unsigned)n, MAC_B, -1, 1, 2, 3, 4, 50, 1);
		if (role)
			frame_send(q[1], f, len, 0);
		meet();
		if (!role) {
			int got = frames_arrive(a, n & 1, 1);
			ok += got == (n & 1) && (!got || a[0].tag == (uint32_t)n + 1);
			if (got)
				frame_recv(q[0], a[0].id);
		}
		meet();
	}
	if (!role) {
		check_eq(ok, 40, "the right one of two thousand rules");
		for (int i = 1; i < N; i += 2)
			if (ibv_destroy_flow(flow[i]))
				die("ibv_destroy_flow");
	}
	meet();
}

int main(void)
{
	partner_fork();
	frames_open();
	refused();
	for (int i = 0; i < 6; i++) {
		q[i] = raw_qp(0, 0);
		for (uint64_t k = 0; k < 5; k++)
			frame_recv(q[i], (uint64_t)i * 10 + k);
	}
	meet();
	specifications();
	labels();
	priorities();
	many();
	for (int i = 0; i < 6; i++)
		check_eq(ibv_destroy_qp(q[i]), 0, "ibv_destroy_qp");
	frames_close();
	return partner_finish();
}
