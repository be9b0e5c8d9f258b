/*
 * Requests that cannot be posted, for each QP type, by lists and by ibv_wr_* calls: wrong opcode,
 * too many pieces, too much inline data, wrong state. Requests before the refused one are posted
 * and arrive, bad_wr names the refused one, and the rest is not posted. A batch of ibv_wr_* calls
 * is posted completely or not at all. ibv_post_send(3), ibv_post_recv(3), ibv_wr_post(3),
 * ibv_create_qp_ex(3).
 *
 * Map of this file: `s` is the QP under test; receive, arrives and silent serve its peer; good and
 * of_opcode make requests. refused posts three requests, the second invalid. The table `opcodes`
 * lists the opcodes of each QP type; inline_data and by_lists check ibv_post_send; by_builder
 * checks ibv_wr_* calls, with requests from build. states posts in each state of the QP;
 * enhancements checks ibv_set_ece and data in order; all runs these checks for one QP. with_rig
 * makes `s` for RC, UC and UD, xrc for XRC, and frames for RAW_PACKET; creation checks unsupported
 * send operations. main runs with_rig and xrc twice, without and with ibv_wr_* calls. b is in
 * another process for the argument "two".
 */
#include "frames.h"
#include <fcntl.h>

enum { SENT = 0x100, LANDED = 0x2000, LEN = 80, DEPTH = 16, PIECES = 3, INL = 100 };
#define MAC_C 0x020000000c0cULL

/* A QP, the parameters of its requests, and the place where its messages arrive. */
struct subject {
	const char *name;
	enum ibv_qp_type type;
	uint64_t offered;	/* of IBV_QP_EX_WITH_* */
	int built;		/* created for the ibv_wr_* calls */
	struct ibv_qp *qp;
	struct ibv_cq *scq;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	unsigned char *buf;
	/* Where messages go. */
	struct ibv_ah *ah;
	uint32_t qpn, qkey, srqn, max_sge, max_inline;
	uint64_t raddr;
	uint32_t rkey;
};

static struct subject s;
static struct end *a, *b;
static struct address aa, ba;

/* ---- the peer: an end of the rig for RC, UC and UD, objects of this process for the rest ---- */

static struct ibv_cq *arrivals;
static struct ibv_srq *srq;
static struct ibv_xrcd *xrcd;
static struct ibv_qp *xrc_receiver, *frame_receiver;
static struct ibv_flow *flow;

static int has_rig(void) { return s.type == IBV_QPT_RC || s.type == IBV_QPT_UC || s.type == IBV_QPT_UD; }

static void receive(void)
{
	struct ibv_sge sg = { (uintptr_t)s.buf + LANDED, 4096, s.mr->lkey };
	struct ibv_recv_wr w = { .wr_id = 1, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (has_rig() ? end_recv(b, one_piece(0, 1, LANDED, 4096)) : srq ? ibv_post_srq_recv(srq, &w, &bad) : ibv_post_recv(frame_receiver, &w, &bad))
		die("a receive");
}

static int arrives(void)
{
	struct ibv_wc w;
	if (has_rig())
		w = end_wait(b, RECVS);
	else
		wait_completion(arrivals, &w);
	return w.status == IBV_WC_SUCCESS && w.byte_len == LEN + (s.type == IBV_QPT_UD ? 40 : 0);
}

static int silent(void)
{
	struct ibv_wc w;
	return !try_completion(s.scq, &w, QUIET_US) && !(has_rig() ? end_try(b, RECVS, &w, 0) : try_completion(arrivals, &w, 0));
}

/* ---- requests ---- */

/* Writes the message to send; for RAW_PACKET, a frame to the receiver's address. */
static void message(void)
{
	fill(s.buf + SENT, LEN, 3);
	if (s.type == IBV_QPT_RAW_PACKET)
		eth(s.buf + SENT, MAC_C, MAC_A, -1, 0x88b5);
}

static struct ibv_sge sg[40];

static struct ibv_send_wr good(uint64_t id)
{
	struct ibv_send_wr w = { .wr_id = id, .sg_list = sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	if (s.type == IBV_QPT_UD) {
		w.wr.ud.ah = s.ah;
		w.wr.ud.remote_qpn = s.qpn;
		w.wr.ud.remote_qkey = s.qkey;
	} else if (s.type == IBV_QPT_XRC_SEND) {
		w.qp_type.xrc.remote_srqn = s.srqn;
	}
	return w;
}

static struct ibv_mw *window;

static struct ibv_send_wr of_opcode(enum ibv_wr_opcode op, uint64_t id)
{
	struct ibv_send_wr w = good(id);
	w.opcode = op;
	if (op == IBV_WR_BIND_MW) {
		w.bind_mw.mw = window;
		w.bind_mw.rkey = ibv_inc_rkey(window->rkey);
		w.bind_mw.bind_info = (struct ibv_mw_bind_info){ s.mr, (uintptr_t)s.buf, 64, IBV_ACCESS_REMOTE_READ };
	} else if (op == IBV_WR_TSO) {
		w.tso.hdr = s.buf;
		w.tso.hdr_sz = 54;
		w.tso.mss = 20;
	} else if (s.type == IBV_QPT_UD) {
		/* For UD the address handle occupies these fields. */
	} else if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		w.wr.atomic.remote_addr = s.raddr;
		w.wr.atomic.rkey = s.rkey;
	} else {
		w.wr.rdma.remote_addr = s.raddr;
		w.wr.rdma.rkey = s.rkey;
	}
	return w;
}

static enum ibv_qp_state state(void)
{
	struct ibv_qp_attr at;
	struct ibv_qp_init_attr i;
	return ibv_query_qp(s.qp, &at, IBV_QP_STATE, &i) ? (enum ibv_qp_state)-1 : at.qp_state;
}

/* Three requests, of which the second is `w`: the first alone is posted. */
static void refused(struct ibv_send_wr w, const char *what)
{
	struct ibv_send_wr first = good(11), last = good(13), *bad = NULL;
	first.next = &w;
	w.next = &last;
	message();
	receive();
	int err = ibv_post_send(s.qp, &first, &bad);
	check(err == EINVAL && bad == &w, "%s, %s: EINVAL, and bad_wr names it (%s)", s.name, what, strerror(err));
	struct ibv_wc c;
	wait_completion(s.scq, &c);
	check(c.wr_id == 11 && c.status == IBV_WC_SUCCESS && arrives(), "what is before it arrives");
	check(silent(), "and nothing else does");
	check_eq(state(), IBV_QPS_RTS, "the state");
}

static const struct {
	enum ibv_wr_opcode op;
	const char *name;
	/* Whether each QP type supports the opcode. */
	int rc, uc, ud, xrc, raw;
} opcodes[] = {
	{ IBV_WR_SEND, "SEND", 1, 1, 1, 1, 1 },
	{ IBV_WR_SEND_WITH_IMM, "SEND_WITH_IMM", 1, 1, 1, 1, 0 },
	{ IBV_WR_RDMA_WRITE, "RDMA_WRITE", 1, 1, 0, 1, 0 },
	{ IBV_WR_RDMA_WRITE_WITH_IMM, "RDMA_WRITE_WITH_IMM", 1, 1, 0, 1, 0 },
	{ IBV_WR_RDMA_READ, "RDMA_READ", 1, 0, 0, 1, 0 },
	{ IBV_WR_ATOMIC_CMP_AND_SWP, "ATOMIC_CMP_AND_SWP", 1, 0, 0, 1, 0 },
	{ IBV_WR_ATOMIC_FETCH_AND_ADD, "ATOMIC_FETCH_AND_ADD", 1, 0, 0, 1, 0 },
	/* An XRC receive QP can neither bind nor be bound to. */
	{ IBV_WR_LOCAL_INV, "LOCAL_INV", 1, 1, 0, 0, 0 },
	{ IBV_WR_BIND_MW, "BIND_MW", 1, 1, 0, 0, 0 },
	{ IBV_WR_SEND_WITH_INV, "SEND_WITH_INV", 1, 1, 0, 0, 0 },
	/* The queue pairs have no room for headers (tso_ud.c, raw_packet.c). */
	{ IBV_WR_TSO, "TSO", 0, 0, 0, 0, 0 },
	{ IBV_WR_ATOMIC_WRITE, "ATOMIC_WRITE", 1, 0, 0, 0, 0 },
	{ IBV_WR_DRIVER1, "DRIVER1", 0, 0, 0, 0, 0 },
	{ (enum ibv_wr_opcode)99, "an unknown opcode", 0, 0, 0, 0, 0 },
};

/* The maximum of inline data: the request owns a copy, so the buffer may change at once. */
static void inline_data(void)
{
	unsigned char whole[LEN], got[LEN];
	int grh = s.type == IBV_QPT_UD ? 40 : 0;
	struct ibv_sge part[2] = { { (uintptr_t)s.buf + SENT, 30, 0 }, { (uintptr_t)s.buf + SENT + 30, LEN - 30, 0 } };
	message();
	memcpy(whole, s.buf + SENT, LEN);
	receive();
	struct ibv_send_wr w = good(14), *bad;
	w.sg_list = part;
	w.num_sge = 2;
	w.send_flags |= IBV_SEND_INLINE;
	check_eq(ibv_post_send(s.qp, &w, &bad), 0, "%s: inline data, without a key", s.name);
	memset(s.buf + SENT, 0xee, LEN);
	struct ibv_wc c;
	wait_completion(s.scq, &c);
	check(c.wr_id == 14 && c.status == IBV_WC_SUCCESS && arrives(), "arrives");
	if (has_rig())
		end_read(b, LANDED + grh, got, LEN);
	else
		memcpy(got, s.buf + LANDED, LEN);
	check(!memcmp(got, whole, LEN), "as it was when it was posted");
}

static void by_lists(void)
{
	int accepted = 0;
	for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
		int has = s.type == IBV_QPT_RC ? opcodes[i].rc : s.type == IBV_QPT_UC ? opcodes[i].uc : s.type == IBV_QPT_UD ? opcodes[i].ud :
			  s.type == IBV_QPT_XRC_SEND ? opcodes[i].xrc : opcodes[i].raw;
		if (!has)
			refused(of_opcode(opcodes[i].op, 12), opcodes[i].name);
		accepted += has;
	}
	check(accepted > 0, "%s has %d of these", s.name, accepted);
	struct ibv_send_wr w = good(12);
	w.num_sge = (int)s.max_sge + 1;
	refused(w, "a piece too many");
	w.num_sge = -1;
	refused(w, "a negative number of pieces");
	struct ibv_sge whole = { (uintptr_t)s.buf, s.max_inline + 1, 0 };
	w = good(12);
	w.sg_list = &whole;
	w.send_flags |= IBV_SEND_INLINE;
	refused(w, "a byte too much inline");
	if (s.type == IBV_QPT_RC || s.type == IBV_QPT_XRC_SEND) {
		w = of_opcode(IBV_WR_RDMA_READ, 12);
		w.send_flags |= IBV_SEND_INLINE;
		refused(w, "an inline READ");
		w = of_opcode(IBV_WR_ATOMIC_FETCH_AND_ADD, 12);
		w.send_flags |= IBV_SEND_INLINE;
		refused(w, "an inline atomic");
	}
	if (s.type == IBV_QPT_UD) {
		w = good(12);
		w.wr.ud.ah = NULL;
		refused(w, "no address handle");
	}
}

/* ---- the same refusals, by ibv_wr_* calls ---- */

enum mistake { NONE, MANY_PIECES, LONG_INLINE, INLINE_READ, WRONG_OPCODE };

static void build(enum mistake mistake, uint64_t id)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(s.qp);
	x->wr_id = id;
	x->wr_flags = IBV_SEND_SIGNALED;
	if (mistake == INLINE_READ || (mistake == WRONG_OPCODE && s.type != IBV_QPT_RC))
		ibv_wr_rdma_read(x, s.rkey, s.raddr);
	else if (mistake == WRONG_OPCODE)
		ibv_wr_send_tso(x, s.buf, 54, 20);
	else
		ibv_wr_send(x);
	if (s.type == IBV_QPT_UD)
		ibv_wr_set_ud_addr(x, s.ah, s.qpn, s.qkey);
	if (s.type == IBV_QPT_XRC_SEND)
		ibv_wr_set_xrc_srqn(x, s.srqn);
	if (mistake == MANY_PIECES)
		ibv_wr_set_sge_list(x, s.max_sge + 1, sg);
	else if (mistake == LONG_INLINE)
		ibv_wr_set_inline_data(x, s.buf, s.max_inline + 1);
	else if (mistake == INLINE_READ)
		ibv_wr_set_inline_data(x, s.buf, 8);
	else
		ibv_wr_set_sge(x, sg->lkey, sg->addr, sg->length);
}

static int posts(enum mistake mistake)
{
	ibv_wr_start(ibv_qp_to_qp_ex(s.qp));
	build(NONE, 21);
	build(mistake, 22);
	build(NONE, 23);
	return ibv_wr_complete(ibv_qp_to_qp_ex(s.qp));
}

static void by_builder(void)
{
	static const char *const what[] = { "", "a piece too many", "a byte too much inline", "an inline READ", "a wrong opcode" };
	message();
	for (int i = 0; i < 3; i++)
		receive();
	for (enum mistake mistake = MANY_PIECES; mistake <= WRONG_OPCODE; mistake++) {
		/* Only RC and XRC have READ, which is also the wrong opcode of other types. */
		if ((mistake == INLINE_READ && s.type != IBV_QPT_RC && s.type != IBV_QPT_XRC_SEND) || (mistake == WRONG_OPCODE && s.type == IBV_QPT_XRC_SEND))
			continue;
		int err = posts(mistake);
		check(err == EINVAL, "%s, built, %s: EINVAL (%s)", s.name, what[mistake], strerror(err));
		check(silent(), "nothing is posted");
	}
	ibv_wr_start(ibv_qp_to_qp_ex(s.qp));
	check_eq(ibv_wr_complete(ibv_qp_to_qp_ex(s.qp)), 0, "%s: nothing, built", s.name);
	check_eq(posts(NONE), 0, "%s, built: three that are right", s.name);
	int right = 0;
	for (uint64_t id = 21; id <= 23; id++) {
		struct ibv_wc c;
		wait_completion(s.scq, &c);
		right += c.wr_id == id && c.status == IBV_WC_SUCCESS && arrives();
	}
	check_eq(right, 3, "arrive");
	check(silent(), "and nothing else");
}

/* ---- states ---- */

static int to(enum ibv_qp_state next, int mask)
{
	struct ibv_qp_attr at = { .qp_state = next, .port_num = 1, .qkey = s.qkey };
	return ibv_modify_qp(s.qp, &at, IBV_QP_STATE | mask);
}

static int post_either(void)
{
	struct ibv_send_wr w = good(31), *bad = NULL;
	if (s.built) {
		ibv_wr_start(ibv_qp_to_qp_ex(s.qp));
		build(NONE, 31);
		return ibv_wr_complete(ibv_qp_to_qp_ex(s.qp));
	}
	int err = ibv_post_send(s.qp, &w, &bad);
	return err && bad != &w ? -1 : err;
}

static void states(void)
{
	int init = s.type == IBV_QPT_RAW_PACKET ? IBV_QP_PORT :
		   IBV_QP_PKEY_INDEX | IBV_QP_PORT | (s.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	struct ibv_wc c;
	check_eq(to(IBV_QPS_ERR, 0), 0, "%s to ERR", s.name);
	check_eq(post_either(), 0, "a request in ERR is taken");
	do
		wait_completion(s.scq, &c);
	while (c.wr_id != 31);
	check_eq(c.status, IBV_WC_WR_FLUSH_ERR, "and flushed");
	check_eq(to(IBV_QPS_RESET, 0), 0, "to RESET");
	check_eq(post_either(), EINVAL, "%s: a request in RESET", s.name);
	check_eq(to(IBV_QPS_INIT, init), 0, "to INIT");
	check_eq(post_either(), EINVAL, "%s: a request in INIT", s.name);
	if (!has_rig() || s.type == IBV_QPT_UD) {
		struct ibv_qp_attr at = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = s.qpn, .ah_attr = { .port_num = 1, .is_global = 1,
					  .grh = { .dgid = aa.gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() } } };
		check_eq(ibv_modify_qp(s.qp, &at, IBV_QP_STATE | (s.type == IBV_QPT_XRC_SEND ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN : 0)), 0, "to RTR");
	} else {
		struct ibv_qp_attr at = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = ba.qpn, .max_dest_rd_atomic = 1,
					  .ah_attr = { .port_num = 1, .is_global = 1, .grh = { .dgid = ba.gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() } } };
		check_eq(ibv_modify_qp(s.qp, &at, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
							  (s.type == IBV_QPT_RC ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)), 0, "to RTR");
	}
	check_eq(post_either(), EINVAL, "%s: a request in RTR", s.name);
	/* An alternate path is refused, as the kernel refuses it for RoCE. */
	if (s.type != IBV_QPT_UD && s.type != IBV_QPT_RAW_PACKET) {
		struct ibv_qp_attr at = { .alt_ah_attr = { .port_num = 1, .is_global = 1, .grh = { .dgid = aa.gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() } }, .alt_port_num = 1, .qp_state = IBV_QPS_RTS,
					  .path_mig_state = IBV_MIG_REARM };
		int mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_ALT_PATH | (s.type == IBV_QPT_UC ? 0 : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
		check_eq(ibv_modify_qp(s.qp, &at, mask), EINVAL, "%s: an alternate path", s.name);
		check_eq(state(), IBV_QPS_RTR, "leaves the state");
		check_eq(ibv_modify_qp(s.qp, &at, mask & ~IBV_QP_ALT_PATH), 0, "to RTS without it");
	}
	check_eq(to(IBV_QPS_RESET, 0), 0, "to RESET");
	struct ibv_recv_wr w = { 0 }, *bad = NULL;
	if (s.type != IBV_QPT_XRC_SEND)
		check(ibv_post_recv(s.qp, &w, &bad) == EINVAL && bad == &w, "%s: a receive in RESET", s.name);
	else
		check(ibv_post_recv(s.qp, &w, &bad) && bad == &w, "%s: a receive, which it never has", s.name);
}

/* soft has no enhancements: options are accepted, and reduced to none (ibv_set_ece(3)). In-order
 * data are not offered (ibv_query_qp_data_in_order(3)). */
static void enhancements(void)
{
	struct ibv_ece offered = { .options = 9, .comp_mask = 9 }, asked, left = { 0 };
	check(!ibv_query_ece(s.qp, &offered) && offered.vendor_id && !offered.options && !offered.comp_mask, "%s: ibv_query_ece offers nothing in the name of a vendor", s.name);
	/* UCX asks for the most with all bits. */
	asked = (struct ibv_ece){ .vendor_id = offered.vendor_id, .options = ~0u };
	check_eq(ibv_set_ece(s.qp, &asked), 0, "%s: ibv_set_ece accepts options", s.name);
	check(!ibv_query_ece(s.qp, &left) && left.vendor_id == offered.vendor_id && !left.options, "%s: and reduces them to none", s.name);
	check_eq(ibv_set_ece(s.qp, &left), 0, "%s: which is accepted, too", s.name);
	asked = (struct ibv_ece){ .vendor_id = offered.vendor_id, .comp_mask = 1 };
	check_eq(ibv_set_ece(s.qp, &asked), EINVAL, "%s: ibv_set_ece with an unknown member", s.name);
	asked = (struct ibv_ece){ .vendor_id = offered.vendor_id ^ 1 };
	check_eq(ibv_set_ece(s.qp, &asked), EINVAL, "%s: of another vendor", s.name);
	asked.vendor_id = 0;
	check_eq(ibv_set_ece(s.qp, &asked), EOPNOTSUPP, "%s: of no vendor", s.name);
	check_eq(ibv_query_qp_data_in_order(s.qp, IBV_WR_RDMA_WRITE, 0), 0, "%s: ibv_query_qp_data_in_order promises nothing", s.name);
}

/* ---- subjects ---- */

static long parts_of(struct parts *p, void *unused)
{
	(void)unused;
	s.qp = p->qp;
	s.scq = p->scq;
	s.pd = p->pd;
	s.mr = p->mr;
	s.buf = p->buf;
	return 0;
}

static void all(void)
{
	struct ibv_qp_attr at;
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(s.qp, &at, IBV_QP_CAP, &init))
		die("ibv_query_qp");
	s.max_sge = at.cap.max_send_sge;
	s.max_inline = at.cap.max_inline_data;
	for (int i = 0; i < 40; i++)
		sg[i] = (struct ibv_sge){ (uintptr_t)s.buf + SENT, i ? 1 : LEN, s.mr->lkey };
	window = ibv_alloc_mw(s.pd, IBV_MW_TYPE_2);
	if (!window || s.max_sge >= 40)
		die("set up: %s", strerror(errno));
	by_lists();
	inline_data();
	if (s.built)
		by_builder();
	enhancements();
	states();
	check_eq(ibv_dealloc_mw(window), 0, "ibv_dealloc_mw");
}

static void with_rig(enum ibv_qp_type type, const char *name, uint64_t offered, int built)
{
	struct options o = defaults();
	o.type = type;
	o.grh = 1;
	o.sge = PIECES;
	o.inl = INL;
	ba = end_open(b, o);
	o.send_ops = built ? offered : 0;
	aa = end_open(a, o);
	end_connect(a, ba);
	end_connect(b, aa);
	s = (struct subject){ .name = name, .type = type, .offered = offered, .built = built, .qpn = ba.qpn, .qkey = ba.qkey, .raddr = ba.addr, .rkey = ba.rkey };
	end_run(a, parts_of, NULL, 0);
	struct ibv_ah_attr to_b = { .is_global = 1, .port_num = 1, .grh = { .dgid = ba.gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() } };
	s.ah = ibv_create_ah(s.pd, &to_b);
	all();
	check_eq(ibv_destroy_ah(s.ah), 0, "ibv_destroy_ah");
	pair_close(a, b);
}

static void connect_xrc(struct ibv_qp *qp, uint32_t peer, int sends)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	int err = ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
				   .ah_attr = { .is_global = 1, .grh = { .dgid = aa.gid, .hop_limit = 1, .sgid_index = (uint8_t)hosts_differ() }, .port_num = 1 } };
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	err = err ? err : ibv_modify_qp(qp, &at, mask | (sends ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
	mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN;
	err = err ? err : ibv_modify_qp(qp, &at, mask | (sends ? IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
	if (err)
		die("an XRC connection: %s", strerror(err));
}

static void xrc(int built)
{
	struct ibv_xrcd_init_attr xa = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	uint64_t offered = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ;
	arrivals = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	xrcd = ibv_open_xrcd(ctx, &xa);
	struct ibv_srq_init_attr_ex sa = { .attr = { .max_wr = 64, .max_sge = 1 },
					   .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
					   .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = arrivals };
	srq = xrcd ? ibv_create_srq_ex(ctx, &sa) : NULL;
	struct ibv_qp_init_attr_ex ra = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp_init_attr_ex ta = { .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD | (built ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0), .pd = pd,
					  .send_cq = cq, .cap = { DEPTH, 0, PIECES, 0, INL }, .send_ops_flags = built ? offered : 0 };
	s = (struct subject){ .name = "XRC", .type = IBV_QPT_XRC_SEND, .offered = offered, .built = built, .scq = cq, .pd = pd, .mr = mr, .buf = buf };
	xrc_receiver = srq ? ibv_create_qp_ex(ctx, &ra) : NULL;
	s.qp = ibv_create_qp_ex(ctx, &ta);
	if (!xrc_receiver || !s.qp || ibv_get_srq_num(srq, &s.srqn))
		die("XRC: %s", strerror(errno));
	s.qpn = xrc_receiver->qp_num;
	s.raddr = (uintptr_t)buf;
	s.rkey = mr->rkey;
	connect_xrc(xrc_receiver, s.qp->qp_num, 0);
	connect_xrc(s.qp, s.qpn, 1);
	all();
	check_eq(ibv_destroy_qp(s.qp) | ibv_destroy_qp(xrc_receiver) | ibv_destroy_srq(srq) | ibv_close_xrcd(xrcd) | ibv_destroy_cq(arrivals), 0, "XRC: all is destroyed");
	srq = NULL;
}

static void frames(void)
{
	struct ibv_qp_init_attr_ex ia = { .send_cq = cq, .recv_cq = cq, .cap = { DEPTH, 1, PIECES, 1, INL }, .qp_type = IBV_QPT_RAW_PACKET,
					  .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd, .send_ops_flags = IBV_QP_EX_WITH_SEND };
	struct {
		struct ibv_flow_attr a;
		struct ibv_flow_spec_eth e;
	} f = { .a = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof f, .num_of_specs = 1, .port = 1 }, .e = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof f.e } };
	be(f.e.val.dst_mac, MAC_C, 6);
	memset(f.e.mask.dst_mac, 0xff, 6);
	frame_receiver = raw_qp(0, 0);
	/* Its completions go to a separate CQ. */
	check_eq(ibv_destroy_qp(frame_receiver), 0, "ibv_destroy_qp");
	arrivals = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	struct ibv_qp_init_attr plain = { .send_cq = arrivals, .recv_cq = arrivals, .cap = { 1, 64, 1, 1, 0 }, .qp_type = IBV_QPT_RAW_PACKET };
	frame_receiver = ibv_create_qp(pd, &plain);
	s = (struct subject){ .name = "RAW_PACKET", .type = IBV_QPT_RAW_PACKET, .offered = ia.send_ops_flags, .built = 1, .scq = cq, .pd = pd, .mr = mr, .buf = buf };
	s.qp = ibv_create_qp_ex(ctx, &ia);
	if (!s.qp || !frame_receiver)
		die("RAW_PACKET: %s", strerror(errno));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp *qp = i ? s.qp : frame_receiver;
		struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		int err = ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_PORT);
		at.qp_state = IBV_QPS_RTR;
		err = err ? err : ibv_modify_qp(qp, &at, IBV_QP_STATE);
		at.qp_state = IBV_QPS_RTS;
		if (err || ibv_modify_qp(qp, &at, IBV_QP_STATE))
			die("RAW_PACKET to RTS");
	}
	flow = ibv_create_flow(frame_receiver, &f.a);
	if (!flow)
		die("ibv_create_flow: %s", strerror(errno));
	all();
	check_eq(ibv_destroy_flow(flow) | ibv_destroy_qp(s.qp) | ibv_destroy_qp(frame_receiver) | ibv_destroy_cq(arrivals), 0, "RAW_PACKET: all is destroyed");
}

/* Creation of a QP fails for each send operation that the QP type lacks. */
static void creation(void)
{
	static const struct {
		enum ibv_qp_type type;
		const char *name;
		uint64_t without;
	} kinds[] = {
		{ IBV_QPT_RC, "RC", IBV_QP_EX_WITH_TSO },
		{ IBV_QPT_UC, "UC", IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_TSO },
		{ IBV_QPT_UD, "UD", ~(uint64_t)(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_TSO) & 0xfff },
		{ IBV_QPT_XRC_SEND, "XRC", IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_TSO },
		{ IBV_QPT_RAW_PACKET, "RAW_PACKET", ~(uint64_t)(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO) & 0xfff },
	};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		int wrong = 0, asked = 0;
		for (int bit = 0; bit < 13; bit++) {
			struct ibv_qp_init_attr_ex ia = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = kinds[i].type, .pd = pd,
							  .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = 1ull << bit };
			/* Bit 11 is the FLUSH operation, which the headers lack (dm.c). */
			if (bit == 11)
				continue;
			errno = 0;
			struct ibv_qp *qp = ibv_create_qp_ex(ctx, &ia);
			int lacks = !!(kinds[i].without >> bit & 1) || (bit == 12 && kinds[i].type != IBV_QPT_RC);
			wrong += lacks ? qp || errno != EOPNOTSUPP : !qp;
			asked++;
			if (qp)
				ibv_destroy_qp(qp);
		}
		check_eq(wrong, 0, "%s: of %d operations that can be asked for one by one, what it does not have is EOPNOTSUPP", kinds[i].name, asked);
	}
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	b = end_new(two);
	a = end_new(0);
	frames_open();
	uint64_t uc = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
	for (int built = 0; built < 2; built++) {
		with_rig(IBV_QPT_RC, "RC", uc | IBV_QP_EX_WITH_RDMA_READ, built);
		with_rig(IBV_QPT_UC, "UC", uc, built);
		with_rig(IBV_QPT_UD, "UD", IBV_QP_EX_WITH_SEND, built);
		xrc(built);
	}
	frames();
	creation();
	frames_close();
	end_free(a);
	end_free(b);
	return finish();
}
