/*
 * Segmentation on UD QPs (IBV_WR_TSO, ibv_wr_send_tso), as IP over InfiniBand uses it: each segment
 * is a datagram with an adapted header. ibv_post_send(3), ibv_wr_post(3), ibv_create_qp_ex(3),
 * ibv_query_device_ex(3), RFC 4391, RFC 791, RFC 8200, RFC 9293.
 *
 * Map of this file: receive, up, ud_qp and handle create objects; header, segments, segment and
 * is_segment describe a request and its segments. segments_arrive and nothing_arrives check
 * receives. post_ranges and post send a request by a list or by ibv_wr_* calls; sent and quiet
 * check send completions. told checks device attributes; refused checks invalid requests; arriving
 * runs the table `jobs`; at_home sends within one process; to_group sends multicast. among_others
 * mixes requests in a list; waiting and flushed stop the child process while requests wait; failing
 * checks missing receives and invalid keys. open_all and close_all create and destroy all objects;
 * faults checks a fault rule. main forks the child by partner_fork; both processes run all checks.
 */
#include "frames.h"
#include <sys/prctl.h>

#define QKEY 0x5151
#define GROUP_QPN 0xffffff
#define SLOT 4200u		/* room for one datagram */
#define RECEIVES 1000u		/* always posted */
#define DATA (256u * 1024)	/* as much as a request may have (max_tso) */
#define ROOM 64			/* for headers */
#define IPOIB 4u		/* the type, and two reserved bytes */
#define SEQ 0xfffffff0u
#define ID 0xfffeu

static struct ibv_comp_channel *channel;
static struct ibv_cq *scq, *rcq;
static struct ibv_mr *slots_mr, *data_mr;
static unsigned char *slots, *data;
static struct ibv_qp *qp;
static struct ibv_ah *there, *there_by_lid;
/* The QP number of the peer process, and the local GID. */
static uint32_t their_qpn;
static union ibv_gid own;

static void receive(uint64_t id)
{
	struct ibv_sge sg = { (uintptr_t)slots + SLOT * id, SLOT, slots_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &wr, &bad))
		die("ibv_post_recv");
}

static int up(struct ibv_qp *q)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	int err = ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	a.qp_state = IBV_QPS_RTR;
	err = err ? err : ibv_modify_qp(q, &a, IBV_QP_STATE);
	a.qp_state = IBV_QPS_RTS;
	return err ? err : ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static struct ibv_qp *ud_qp(uint16_t max_tso_header, uint32_t receives)
{
	struct ibv_qp_init_attr_ex ia = {
		.send_cq = scq,
		.recv_cq = rcq,
		.cap = { 64, receives, 4, 1, 64 },
		.qp_type = IBV_QPT_UD,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | (max_tso_header ? IBV_QP_INIT_ATTR_MAX_TSO_HEADER : 0),
		.pd = pd,
		.max_tso_header = max_tso_header,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
	};
	struct ibv_qp *q = ibv_create_qp_ex(ctx, &ia);
	int err = q ? up(q) : errno;
	if (err)
		die("a UD QP: %s", strerror(err));
	return q;
}

static struct ibv_ah *handle(union ibv_gid gid, int global)
{
	struct ibv_ah_attr a = { .is_global = (uint8_t)global, .grh = { .dgid = gid, .hop_limit = 7 }, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(pd, &a);
	if (!ah)
		die("ibv_create_ah: %s", strerror(errno));
	return ah;
}

/* ---- a request and its segments ---- */

struct job {
	uint16_t type;	/* 0x0800: IPv4, 0x86dd: IPv6; others: no header that an adapter knows */
	uint32_t total, mss, seed;
};

/* The header as the application writes it; its lengths and checksums are arbitrary. */
static uint32_t header(unsigned char *p, const struct job *j)
{
	static const uint8_t src[16] = { 0xfe, 0x80, [15] = 2 }, dst[16] = { 0xfe, 0x80, [15] = 1 };
	unsigned char *at = be(be(p, j->type, 2), 0xa55a, 2);
	if (j->type == 0x86dd) {
		at = ipv6(at, src, dst, 6, 0x12345, 0x7777);
	} else {
		at = ipv4(at, 0x0a000001 + j->seed, 0x0a000002, 6, 0x10, 0x7000);
		be(p + IPOIB + 4, ID, 2);
		be(p + IPOIB + 10, 0x4444, 2);
	}
	/* CWR, ACK, PSH, FIN. */
	at = tcp(at, 1000, 2000, SEQ + j->seed, 0x99);
	be(at - 4, 0x3333, 2);
	return (uint32_t)(at - p);
}

static uint32_t segments(const struct job *j) { return j->total ? (j->total + j->mss - 1) / j->mss : 1; }

/* Builds segment i as it arrives, with zero checksums; returns its length. */
static uint32_t segment(unsigned char *p, const struct job *j, uint32_t i)
{
	static unsigned char whole[DATA];
	uint32_t len = header(p, j), at = i * j->mss, n = j->total - at < j->mss ? j->total - at : j->mss;
	fill(whole, j->total, j->seed);
	memcpy(p + len, whole + at, n);
	if (j->type != 0x0800 && j->type != 0x86dd)
		return len + n;
	if (j->type == 0x86dd) {
		be(p + IPOIB + 4, len - IPOIB - 40 + n, 2);
	} else {
		be(p + IPOIB + 2, len - IPOIB + n, 2);
		be(p + IPOIB + 4, (ID + i) & 0xffff, 2);
		be(p + IPOIB + 10, 0, 2);
	}
	be(p + len - 16, SEQ + j->seed + at, 4);
	p[len - 7] = (unsigned char)(0x10 | (i ? 0 : 0x80) | (at + n == j->total ? 9 : 0));
	be(p + len - 4, 0, 2);
	return len + n;
}

/* Whether the bytes at p are those of segment i. */
static int is_segment(unsigned char *p, uint32_t len, const struct job *j, uint32_t i)
{
	static unsigned char wanted[SLOT];
	int sums = 1;
	if (len != segment(wanted, j, i))
		return 0;
	if (j->type == 0x0800) {
		sums = checksums(p + IPOIB);
		be(p + IPOIB + 10, 0, 2);
		be(p + IPOIB + 20 + 16, 0, 2);
	} else if (j->type == 0x86dd) {
		uint32_t tcp_len = len - IPOIB - 40;
		sums = ones(p + IPOIB + 40, tcp_len, ones(p + IPOIB + 8, 32, 6 + tcp_len)) == 0xffff;
		be(p + IPOIB + 40 + 16, 0, 2);
	}
	return sums && !memcmp(p, wanted, len);
}

/* All segments come, in order; `routed`: behind a route header to `to`. */
static void segments_arrive(const struct job *j, uint32_t src, int routed, const union ibv_gid *to, const char *what)
{
	uint32_t good = 0;
	for (uint32_t i = 0; i < segments(j); i++) {
		struct ibv_wc w;
		wait_completion(rcq, &w);
		if (w.status != IBV_WC_SUCCESS)
			die("a receive: %s", ibv_wc_status_str(w.status));
		unsigned char *p = slots + SLOT * w.wr_id;
		int grh = !routed || (w.wc_flags & IBV_WC_GRH && !memcmp(p + 24, to, 16) && !memcmp(p + 8, &own, 16) && p[7] == 7);
		good += w.opcode == IBV_WC_RECV && w.src_qp == src && w.qp_num == qp->qp_num && !(w.wc_flags & IBV_WC_WITH_IMM) && grh &&
			is_segment(p + 40, w.byte_len - 40, j, i);
		receive(w.wr_id);
	}
	check_eq(good, segments(j), "%s: segments of type %04x with %u bytes, up to %u each", what, j->type, j->total, j->mss);
}

static void nothing_arrives(const char *what)
{
	struct ibv_wc w;
	check(!try_completion(rcq, &w, QUIET_US), "%s: nothing arrives", what);
}

/* ---- sending ---- */

enum way { LIST, BUILT, WAYS };

struct target {
	struct ibv_ah *ah;
	uint32_t qpn;
};

/* Posts `n` ranges for job `j`; the header buffer is invalid after the call. */
static int post_ranges(struct ibv_qp *q, enum way way, struct target to, const struct job *j, struct ibv_sge *sg, int n, uint64_t id, unsigned flags)
{
	unsigned char h[ROOM];
	uint32_t len = header(h, j);
	int err;
	if (way == LIST) {
		struct ibv_send_wr wr = { .wr_id = id, .sg_list = sg, .num_sge = n, .opcode = IBV_WR_TSO, .send_flags = flags,
					  .tso = { h, (uint16_t)len, (uint16_t)j->mss } }, *bad = NULL;
		wr.wr.ud.ah = to.ah;
		wr.wr.ud.remote_qpn = to.qpn;
		wr.wr.ud.remote_qkey = QKEY;
		err = ibv_post_send(q, &wr, &bad);
	} else {
		struct ibv_qp_ex *x = ibv_qp_to_qp_ex(q);
		ibv_wr_start(x);
		x->wr_id = id;
		x->wr_flags = flags;
		ibv_wr_send_tso(x, h, (uint16_t)len, (uint16_t)j->mss);
		memset(h, 0xee, sizeof h);
		ibv_wr_set_ud_addr(x, to.ah, to.qpn, QKEY);
		if (n == 1)
			ibv_wr_set_sge(x, sg->lkey, sg->addr, sg->length);
		else
			ibv_wr_set_sge_list(x, (size_t)n, sg);
		err = ibv_wr_complete(x);
	}
	memset(h, 0xee, sizeof h);
	return err;
}

/* Posts job `j` in two ranges. */
static int post(struct ibv_qp *q, enum way way, struct target to, const struct job *j, uint64_t id, unsigned flags)
{
	uint32_t half = j->total / 3;
	struct ibv_sge sg[2] = { { (uintptr_t)data, half, data_mr->lkey }, { (uintptr_t)data + half, j->total - half, data_mr->lkey } };
	fill(data, j->total, j->seed);
	return post_ranges(q, way, to, j, sg, 2, id, flags);
}

static void sent(uint64_t id, enum ibv_wc_opcode opcode, enum ibv_wc_status status, const char *what)
{
	struct ibv_wc w;
	wait_completion(scq, &w);
	check(w.wr_id == id && w.status == status && (status || w.opcode == opcode) && w.qp_num == qp->qp_num, "%s: the completion of %u (%u, %s)", what,
	      (unsigned)id, (unsigned)w.wr_id, ibv_wc_status_str(w.status));
}

static void quiet(const char *what)
{
	struct ibv_wc w;
	check(!try_completion(scq, &w, 0), "%s: no more completions", what);
}

/* ---- device attributes and refused requests ---- */

static void told(void)
{
	struct ibv_device_attr_ex d;
	check_eq(ibv_query_device_ex(ctx, NULL, &d), 0, "ibv_query_device_ex");
	check_eq(d.tso_caps.max_tso, DATA, "max_tso");
	check(ibv_is_qpt_supported(d.tso_caps.supported_qpts, IBV_QPT_UD) && ibv_is_qpt_supported(d.tso_caps.supported_qpts, IBV_QPT_RAW_PACKET) &&
		      !ibv_is_qpt_supported(d.tso_caps.supported_qpts, IBV_QPT_RC),
	      "tso_caps: UD and RAW_PACKET");
	struct ibv_qp_init_attr_ex ex = { .send_cq = scq, .recv_cq = rcq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_UD,
					  .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER, .pd = pd, .max_tso_header = 60000 };
	errno = 0;
	check(!ibv_create_qp_ex(ctx, &ex) && errno == EINVAL, "a header of 60000 bytes");
	static const enum ibv_qp_type others[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_XRC_SEND };
	ex.max_tso_header = 64;
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		ex.qp_type = others[i];
		errno = 0;
		check(!ibv_create_qp_ex(ctx, &ex) && errno == EOPNOTSUPP, "IBV_QP_INIT_ATTR_MAX_TSO_HEADER, type %d", others[i]);
	}
}

struct wrong {
	const char *what;
	uint32_t hdr_sz, mss, len;
	int no_header, inl, no_handle, plain;
};

static int post_wrong(struct ibv_qp *q, enum way way, const struct wrong *c)
{
	static unsigned char h[600];
	struct ibv_sge sg = { (uintptr_t)data, c->len, data_mr->lkey };
	void *hdr = c->no_header ? NULL : h;
	struct ibv_ah *ah = c->no_handle ? NULL : there;
	if (way == LIST) {
		struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_TSO, .send_flags = IBV_SEND_SIGNALED | (c->inl ? IBV_SEND_INLINE : 0),
					  .tso = { hdr, (uint16_t)c->hdr_sz, (uint16_t)c->mss } }, *bad = NULL;
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = their_qpn;
		wr.wr.ud.remote_qkey = QKEY;
		int err = ibv_post_send(q, &wr, &bad);
		return err && bad != &wr ? -1 : err;
	}
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(q);
	ibv_wr_start(x);
	x->wr_id = 1;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_tso(x, hdr, (uint16_t)c->hdr_sz, (uint16_t)c->mss);
	ibv_wr_set_ud_addr(x, ah, their_qpn, QKEY);
	if (c->inl)
		ibv_wr_set_inline_data(x, data, c->len);
	else
		ibv_wr_set_sge(x, sg.lkey, sg.addr, sg.length);
	return ibv_wr_complete(x);
}

static void refused(void)
{
	static const struct wrong cases[] = {
		{ .what = "no header", .hdr_sz = 0, .mss = 100, .len = 200 },
		{ .what = "a header without a link header", .hdr_sz = 3, .mss = 100, .len = 200 },
		{ .what = "a longer header than the QP was made for", .hdr_sz = ROOM + 1, .mss = 100, .len = 200 },
		{ .what = "a header that is nowhere", .hdr_sz = 44, .mss = 100, .len = 200, .no_header = 1 },
		{ .what = "segments of 0 bytes", .hdr_sz = 44, .mss = 0, .len = 200 },
		{ .what = "a byte more than the MTU", .hdr_sz = 44, .mss = 4053, .len = 200 },
		{ .what = "segments of 65535 bytes", .hdr_sz = 44, .mss = 65535, .len = 200 },
		{ .what = "more than max_tso", .hdr_sz = 44, .mss = 1000, .len = DATA + 1 },
		{ .what = "inline data", .hdr_sz = 44, .mss = 10, .len = 40, .inl = 1 },
		{ .what = "no address handle", .hdr_sz = 44, .mss = 100, .len = 200, .no_handle = 1 },
		{ .what = "a QP without room for headers", .hdr_sz = 44, .mss = 100, .len = 200, .plain = 1 },
	};
	struct ibv_qp *plain = ud_qp(0, 1);
	if (!role)
		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
			for (enum way way = LIST; way < WAYS; way++)
				check_eq(post_wrong(cases[i].plain ? plain : qp, way, &cases[i]), EINVAL, "%s, %s", cases[i].what, way == LIST ? "posted" : "built");
	meet();
	if (role)
		nothing_arrives("what was refused");
	else
		quiet("what was refused");
	check_eq(ibv_destroy_qp(plain), 0, "ibv_destroy_qp");
	meet();
}

/* ---- segments that arrive ---- */

static const struct job jobs[] = {
	{ 0x0800, 40000, 2044, 1 },	/* the MTU of IP over InfiniBand, the last one short; identification and sequence number wrap */
	{ 0x86dd, 40000, 2024, 2 },
	{ 0x0800, 3000, 1000, 3 },	/* none is short */
	{ 0x86dd, 3000, 1000, 4 },
	{ 0x0800, 1000, 1000, 5 },	/* one alone */
	{ 0x86dd, 999, 1000, 6 },
	{ 0x0800, 0, 1000, 7 },		/* the header alone */
	{ 0x0800, 50, 1, 8 },
	{ 0x0800, 10000, 4052, 9 },	/* as long as datagrams can be */
	{ 0x86dd, 10000, 4032, 10 },
	{ 0x0800, DATA, 4052, 11 },	/* as much as there can be */
	{ 0x0806, 1000, 300, 12 },	/* no IP */
	{ 0, 1000, 300, 13 },
};

static void arriving(void)
{
	for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
		for (enum way way = LIST; way < WAYS; way++)
			for (int routed = 0; routed < 2; routed++) {
				const struct job *j = &jobs[i];
				const char *what = way == LIST ? routed ? "posted, routed" : "posted" : routed ? "built, routed" : "built";
				if (!role) {
					check_eq(post(qp, way, (struct target){ routed ? there : there_by_lid, their_qpn }, j, i, IBV_SEND_SIGNALED | (routed ? IBV_SEND_IP_CSUM : 0)), 0,
						 "%s: %u bytes", what, j->total);
					sent(i, IBV_WC_TSO, IBV_WC_SUCCESS, what);
				} else {
					segments_arrive(j, their_qpn, routed, &own, what);
				}
			}
	meet();
	if (role)
		nothing_arrives("all of that");
	else
		quiet("one for each request");
	meet();
}

/* Requests to another QP of the same process, and to the sending QP itself. */
static void at_home(void)
{
	const struct job j = { 0x0800, 900, 400, 21 };
	struct ibv_qp *other = ud_qp(ROOM, 1);
	struct ibv_qp *from[2] = { qp, other };
	for (int i = 0; i < 2; i++) {
		struct ibv_wc w;
		check_eq(post(from[i], (enum way)i, (struct target){ i ? there_by_lid : there, qp->qp_num }, &j, 5, IBV_SEND_SIGNALED), 0, i ? "from a neighbour" : "to itself");
		wait_completion(scq, &w);
		check(w.wr_id == 5 && w.status == IBV_WC_SUCCESS && w.opcode == IBV_WC_TSO && w.qp_num == from[i]->qp_num, "completes");
		segments_arrive(&j, from[i]->qp_num, !i, &own, i ? "from a neighbour" : "to itself");
	}
	check_eq(ibv_destroy_qp(other), 0, "ibv_destroy_qp");
	meet();
}

static void to_group(void)
{
	const struct job j = { 0x86dd, 5000, 1200, 31 };
	union ibv_gid group = { .raw = { 0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, [15] = 0x77 } };
	struct ibv_ah *ah = handle(group, 1);
	uint32_t src = role ? their_qpn : qp->qp_num;
	check_eq(ibv_attach_mcast(qp, &group, 0), 0, "ibv_attach_mcast");
	for (enum way way = LIST; way < WAYS; way++) {
		meet();
		if (!role) {
			check_eq(post(qp, way, (struct target){ ah, GROUP_QPN }, &j, 6, IBV_SEND_SIGNALED), 0, "to a group");
			sent(6, IBV_WC_TSO, IBV_WC_SUCCESS, "to a group");
		}
		segments_arrive(&j, src, 1, &group, role ? "a member" : "the sender, a member");
	}
	meet();
	check_eq(ibv_detach_mcast(qp, &group, 0) | ibv_destroy_ah(ah), 0, "ibv_detach_mcast, ibv_destroy_ah");
	meet();
}

/* Among sends in a list; only what is signaled completes. */
static void among_others(void)
{
	const struct job j = { 0x0800, 700, 300, 41 };
	if (!role) {
		unsigned char h[ROOM];
		struct ibv_sge sg = { (uintptr_t)data, j.total, data_mr->lkey }, small = { (uintptr_t)data, 10, data_mr->lkey };
		struct ibv_send_wr w[4] = { 0 }, *bad;
		uint16_t len = (uint16_t)header(h, &j);
		fill(data, j.total, j.seed);
		for (int i = 0; i < 4; i++) {
			w[i] = (struct ibv_send_wr){ .wr_id = (uint64_t)i, .next = i < 3 ? &w[i + 1] : NULL, .sg_list = i % 2 ? &sg : &small, .num_sge = 1,
						     .opcode = i % 2 ? IBV_WR_TSO : IBV_WR_SEND, .send_flags = i == 2 ? IBV_SEND_SIGNALED : i == 3 ? IBV_SEND_SIGNALED | IBV_SEND_SOLICITED : 0 };
			w[i].wr.ud.ah = there;
			w[i].wr.ud.remote_qpn = their_qpn;
			w[i].wr.ud.remote_qkey = QKEY;
			if (i % 2) {
				w[i].tso.hdr = h;
				w[i].tso.hdr_sz = len;
				w[i].tso.mss = (uint16_t)j.mss;
			}
		}
		meet();
		check_eq(ibv_post_send(qp, w, &bad), 0, "SEND, TSO, SEND, TSO in one list");
		sent(2, IBV_WC_SEND, IBV_WC_SUCCESS, "the first that is signaled");
		sent(3, IBV_WC_TSO, IBV_WC_SUCCESS, "the last");
		quiet("those that are not signaled");
	} else {
		struct ibv_cq *which;
		void *context;
		check_eq(ibv_req_notify_cq(rcq, 1), 0, "ibv_req_notify_cq for what is solicited");
		meet();
		check(readable(channel->fd, (int)(WAIT_US / 1000)) && !ibv_get_cq_event(channel, &which, &context), "a segment is solicited as its request is");
		ibv_ack_cq_events(rcq, 1);
		for (int i = 0; i < 2; i++) {
			struct ibv_wc w;
			wait_completion(rcq, &w);
			check(w.status == IBV_WC_SUCCESS && w.byte_len == 50 && w.src_qp == their_qpn, "a SEND");
			receive(w.wr_id);
			segments_arrive(&j, their_qpn, 1, &own, "behind it");
		}
	}
	meet();
}

/* ---- requests that wait ---- */

static void stop_child(int sig)
{
	int status;
	if (kill(partner_pid, sig) || (sig == SIGSTOP && (waitpid(partner_pid, &status, WUNTRACED) != partner_pid || !WIFSTOPPED(status))))
		die("kill");
}

enum { MANY = 16 };

static struct job waiting_job(unsigned n) { return (struct job){ n % 2 ? 0x86dd : 0x0800, 2000, 45, 50 + n }; }

/*
 * The receiver is stopped while more is posted than fits between both processes. The rest waits
 * with copies of headers and lists, and continues in the middle of a request.
 */
static void waiting(void)
{
	uint32_t all = 0;
	for (unsigned n = 0; n < MANY; n++) {
		struct job j = waiting_job(n);
		all += segments(&j);
	}
	meet();
	if (!role) {
		stop_child(SIGSTOP);
		struct ibv_wc w;
		int done = 0;
		/* Each request has its own data, because unsent data must not change. */
		for (unsigned n = 0; n < MANY; n++) {
			struct job j = waiting_job(n);
			unsigned char *at = data + 4096 * n;
			struct ibv_sge sg = { (uintptr_t)at, j.total, data_mr->lkey };
			fill(at, j.total, j.seed);
			int err = post_ranges(qp, n % 4 < 2 ? LIST : BUILT, (struct target){ there, their_qpn }, &j, &sg, 1, n, IBV_SEND_SIGNALED);
			if (err)
				check_eq(err, 0, "request %u", n);
		}
		while (try_completion(scq, &w, QUIET_US))
			check_eq((long long)w.wr_id, done++, "completes");
		check(done < MANY, "while the receiver stands still %d of %d requests with %u datagrams wait", MANY - done, MANY, all);
		stop_child(SIGCONT);
		for (; done < MANY; done++)
			sent((uint64_t)done, IBV_WC_TSO, IBV_WC_SUCCESS, "once it goes on");
	} else {
		for (unsigned n = 0; n < MANY; n++) {
			struct job j = waiting_job(n);
			segments_arrive(&j, their_qpn, 1, &own, "what waited");
		}
	}
	meet();
}

/* Waiting requests are flushed when the QP goes to ERR, and only those. */
static void flushed(void)
{
	struct job j = { 0x0800, 2000, 10, 61 };
	uint32_t whole = 0;
	meet();
	if (!role) {
		stop_child(SIGSTOP);
		for (uint64_t n = 0; n < 4; n++)
			check_eq(post(qp, (enum way)(n % WAYS), (struct target){ there, their_qpn }, &j, n, n % 2 ? 0 : IBV_SEND_SIGNALED), 0, "request %u of 200 segments", (unsigned)n);
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
		check_eq(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0, "to ERR");
		struct ibv_wc w;
		for (uint64_t n = 0; n < 4; n++) {
			/* A successful request has a completion only if it is signaled. */
			wait_completion(scq, &w);
			while (w.wr_id > n && n % 2)
				n++, whole++;
			if (w.status == IBV_WC_SUCCESS)
				whole++;
			if (w.wr_id != n || (w.status && w.status != IBV_WC_WR_FLUSH_ERR))
				check(0, "completion of %u: %u, %s", (unsigned)n, (unsigned)w.wr_id, ibv_wc_status_str(w.status));
		}
		check(w.wr_id == 3 && w.status == IBV_WC_WR_FLUSH_ERR, "the last is flushed");
		quiet("each once");
		/* The local receives are flushed too. */
		for (uint32_t n = 0; n < RECEIVES; n++)
			wait_completion(rcq, &w);
		a.qp_state = IBV_QPS_RESET;
		check_eq(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0, "to RESET");
		check_eq(up(qp), 0, "to RTS");
		for (uint32_t n = 0; n < RECEIVES; n++)
			receive(n);
		stop_child(SIGCONT);
	}
	meet();
	swap(&(uint32_t){ whole }, &whole, sizeof whole);
	if (role) {
		for (uint32_t n = 0; n < whole; n++)
			segments_arrive(&j, their_qpn, 1, &own, "what was sent before");
		struct ibv_wc w;
		uint32_t n = 0, good = 0;
		while (try_completion(rcq, &w, QUIET_US)) {
			good += w.status == IBV_WC_SUCCESS && is_segment(slots + SLOT * w.wr_id + 40, w.byte_len - 40, &j, n++);
			receive(w.wr_id);
		}
		check(n < segments(&j) && good == n, "the first segments of the request that was flushed are segments");
	}
	meet();
	j.seed++;
	if (!role) {
		check_eq(post(qp, LIST, (struct target){ there, their_qpn }, &j, 9, IBV_SEND_SIGNALED), 0, "another");
		sent(9, IBV_WC_TSO, IBV_WC_SUCCESS, "after RESET");
	} else {
		segments_arrive(&j, their_qpn, 1, &own, "after RESET");
	}
	meet();
}

/* ---- requests that fail ---- */

/* A receiver takes datagrams as far as its receives go; an invalid key stops the send queue before
 * any datagram is sent. */
static void failing(void)
{
	const struct job j = { 0x0800, 1000, 100, 71 };
	struct ibv_qp *few = ud_qp(ROOM, 4), *other;
	uint32_t mine = few->qp_num, theirs;
	struct ibv_wc w;
	swap(&mine, &theirs, sizeof mine);
	other = qp;
	qp = few;
	if (role)
		for (uint64_t n = 0; n < 4; n++)
			receive(n);
	meet();
	if (!role) {
		check_eq(post(qp, LIST, (struct target){ there, theirs }, &j, 1, IBV_SEND_SIGNALED), 0, "ten segments for four receives");
		sent(1, IBV_WC_TSO, IBV_WC_SUCCESS, "the sender does not know");
	} else {
		uint32_t good = 0;
		for (uint32_t n = 0; n < 4; n++) {
			wait_completion(rcq, &w);
			good += w.status == IBV_WC_SUCCESS && is_segment(slots + SLOT * w.wr_id + 40, w.byte_len - 40, &j, n);
		}
		check_eq(good, 4, "the first four");
		nothing_arrives("the rest is dropped");
	}
	meet();
	if (role)
		receive(0);
	meet();
	if (!role) {
		unsigned char h[ROOM];
		struct ibv_sge sg = { (uintptr_t)data, 100, data_mr->lkey ^ 0xff00 };
		struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_TSO, .tso = { h, (uint16_t)header(h, &j), 50 } }, *bad;
		wr.wr.ud.ah = there;
		wr.wr.ud.remote_qpn = theirs;
		wr.wr.ud.remote_qkey = QKEY;
		check_eq(ibv_post_send(qp, &wr, &bad), 0, "a wrong key can be posted");
		sent(2, IBV_WC_TSO, IBV_WC_LOC_PROT_ERR, "and fails");
		struct ibv_qp_attr q;
		struct ibv_qp_init_attr qi;
		check(!ibv_query_qp(qp, &q, IBV_QP_STATE, &qi) && q.qp_state == IBV_QPS_SQE, "the QP is in SQE");
	}
	meet();
	if (role)
		nothing_arrives("a wrong key");
	qp = other;
	meet();
	check_eq(ibv_destroy_qp(few), 0, "ibv_destroy_qp");
	meet();
}

/* ---- set up ---- */

static void open_all(void)
{
	frames_open();
	channel = ibv_create_comp_channel(ctx);
	slots = calloc(RECEIVES, SLOT);
	data = calloc(1, DATA + 1);
	if (!channel || !slots || !data || ibv_query_gid(ctx, 1, 0, &own))
		die("set up");
	scq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	rcq = ibv_create_cq(ctx, 2 * RECEIVES, NULL, channel, 0);
	slots_mr = ibv_reg_mr(pd, slots, RECEIVES * SLOT, IBV_ACCESS_LOCAL_WRITE);
	data_mr = ibv_reg_mr(pd, data, DATA + 1, 0);
	if (!scq || !rcq || !slots_mr || !data_mr)
		die("set up: %s", strerror(errno));
	qp = ud_qp(ROOM, RECEIVES);
	for (uint32_t i = 0; i < RECEIVES; i++)
		receive(i);
	there = handle(own, 1);
	there_by_lid = handle(own, 0);
	uint32_t mine = qp->qp_num;
	swap(&mine, &their_qpn, sizeof mine);
}

static void close_all(void)
{
	check_eq(ibv_destroy_ah(there) | ibv_destroy_ah(there_by_lid) | ibv_destroy_qp(qp) | ibv_dereg_mr(slots_mr) | ibv_dereg_mr(data_mr), 0, "all is destroyed");
	check_eq(ibv_destroy_cq(scq) | ibv_destroy_cq(rcq) | ibv_destroy_comp_channel(channel), 0, "ibv_destroy_cq");
	frames_close();
	free(slots);
	free(data);
	meet();
}

/* A fault rule counts a segmented request once. */
static void faults(void)
{
	if (!role)
		setenv("FERROVERBS_SOFT_FAULTS", "drop op=send type=ud nth=2", 1);
	open_all();
	for (uint64_t n = 1; n <= 3; n++) {
		const struct job j = { 0x0800, 500, 100, 80 + (uint32_t)n };
		if (!role) {
			check_eq(post(qp, LIST, (struct target){ there, their_qpn }, &j, n, IBV_SEND_SIGNALED), 0, "five segments");
			sent(n, IBV_WC_TSO, IBV_WC_SUCCESS, n == 2 ? "which is dropped" : "which is sent");
		} else if (n != 2) {
			segments_arrive(&j, their_qpn, 1, &own, "what is not dropped");
		}
	}
	meet();
	if (role)
		nothing_arrives("what is dropped");
	unsetenv("FERROVERBS_SOFT_FAULTS");
	close_all();
}

int main(void)
{
	partner_fork();
	/* The child may be stopped when the parent fails; the kernel then kills the child. */
	if (role && prctl(PR_SET_PDEATHSIG, SIGKILL))
		die("prctl");
	open_all();
	told();
	refused();
	arriving();
	at_home();
	to_group();
	among_others();
	waiting();
	flushed();
	failing();
	close_all();
	faults();
	return partner_finish();
}
