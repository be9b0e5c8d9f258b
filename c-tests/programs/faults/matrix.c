/*
 * Every operation of a connection with every kind of error, on each data path: the status of both
 * completions, the arrival of bytes and the states of both QPs. The expected outcomes are those of
 * IBTA 1.7 9.9.2, 9.9.3, table 58; they do not depend on the data path.
 */
#include "rig.h"

/* Errors. The first group concerns the remote memory, the second the sender, the third the receive,
 * the last the peer's QP. */
enum mistake {
	NONE,
	WRONG_RKEY,
	BEYOND_REGION,
	REGION_WITHOUT_RIGHT,
	DEREGISTERED,
	OTHER_PD,
	QP_WITHOUT_RIGHT,
	MISALIGNED,
	EMPTY_WRONG_RKEY,
	WRONG_LKEY,
	BEYOND_LOCAL,
	LOCAL_READ_ONLY,
	NO_RECEIVE,
	SHORT_RECEIVE,
	RECEIVE_WRONG_LKEY,
	RECEIVE_READ_ONLY,
	PEER_RESET,
	PEER_INIT,
	PEER_ERR,
	MISTAKES,
};

static const char *const mistakes[MISTAKES] = {
	[NONE] = "no mistake",
	[WRONG_RKEY] = "a wrong rkey",
	[BEYOND_REGION] = "beyond the region",
	[REGION_WITHOUT_RIGHT] = "a region without the right",
	[DEREGISTERED] = "a deregistered region",
	[OTHER_PD] = "a region of another PD",
	[QP_WITHOUT_RIGHT] = "a QP without the right",
	[MISALIGNED] = "a misaligned remote address",
	[EMPTY_WRONG_RKEY] = "no bytes, a wrong rkey",
	[WRONG_LKEY] = "a wrong lkey",
	[BEYOND_LOCAL] = "beyond the local region",
	[LOCAL_READ_ONLY] = "local memory without LOCAL_WRITE",
	[NO_RECEIVE] = "no receive",
	[SHORT_RECEIVE] = "a receive that is too short",
	[RECEIVE_WRONG_LKEY] = "a receive with a wrong lkey",
	[RECEIVE_READ_ONLY] = "a receive without LOCAL_WRITE",
	[PEER_RESET] = "a peer in RESET",
	[PEER_INIT] = "a peer in INIT",
	[PEER_ERR] = "a peer in ERR",
};

static const struct operation {
	const char *name;
	enum ibv_wr_opcode code;
	int names_memory;	/* of the peer */
	int takes_receive;
	int returns_data;
} operations[] = {
	{ "SEND", IBV_WR_SEND, 0, 1, 0 },
	{ "SEND with immediate", IBV_WR_SEND_WITH_IMM, 0, 1, 0 },
	{ "WRITE", IBV_WR_RDMA_WRITE, 1, 0, 0 },
	{ "WRITE with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, 1, 1, 0 },
	{ "READ", IBV_WR_RDMA_READ, 1, 0, 1 },
	{ "fetch-and-add", IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 1 },
	{ "compare-and-swap", IBV_WR_ATOMIC_CMP_AND_SWP, 1, 0, 1 },
};

static int is_atomic(const struct operation *op)
{
	return op->code >= IBV_WR_ATOMIC_CMP_AND_SWP;
}

/* Whether a mistake can be made in an operation. */
static int applies(const struct operation *op, enum mistake m)
{
	if (m >= WRONG_RKEY && m <= EMPTY_WRONG_RKEY)
		return op->names_memory && !(m == EMPTY_WRONG_RKEY && is_atomic(op));
	if (m == LOCAL_READ_ONLY)
		return op->returns_data;
	if (m == NO_RECEIVE)
		return op->takes_receive;
	if (m >= SHORT_RECEIVE && m <= RECEIVE_READ_ONLY)
		return op->takes_receive && !op->names_memory;
	return 1;
}

/* No completion comes. */
#define SILENCE -1

struct outcome {
	int sender, receiver;	/* statuses, or SILENCE */
	int arrives;		/* what is sent is in the peer's memory */
	enum ibv_qp_state of_sender, of_receiver;
};

/* On UC the responder drops a request that it cannot execute, and the sender sees only its own
 * errors. */
static struct outcome unreliable(const struct operation *op, enum mistake m)
{
	struct outcome o = { IBV_WC_SUCCESS, op->takes_receive ? IBV_WC_SUCCESS : SILENCE, 1, IBV_QPS_RTS, IBV_QPS_RTS };
	switch (m) {
	case WRONG_LKEY:
	case BEYOND_LOCAL:
		return (struct outcome){ IBV_WC_LOC_PROT_ERR, SILENCE, 0, IBV_QPS_SQE, IBV_QPS_RTS };
	case WRONG_RKEY:
	case BEYOND_REGION:
	case REGION_WITHOUT_RIGHT:
	case DEREGISTERED:
	case OTHER_PD:
	case QP_WITHOUT_RIGHT:
	case NO_RECEIVE:
		o.receiver = SILENCE;
		o.arrives = m == NO_RECEIVE && op->names_memory ? -1 : 0;
		break;
	case SHORT_RECEIVE:
		return (struct outcome){ IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, 0, IBV_QPS_RTS, IBV_QPS_ERR };
	case RECEIVE_WRONG_LKEY:
	case RECEIVE_READ_ONLY:
		return (struct outcome){ IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR, 0, IBV_QPS_RTS, IBV_QPS_ERR };
	case PEER_RESET:
		return (struct outcome){ IBV_WC_SUCCESS, SILENCE, 0, IBV_QPS_RTS, IBV_QPS_RESET };
	case PEER_INIT:
		return (struct outcome){ IBV_WC_SUCCESS, SILENCE, 0, IBV_QPS_RTS, IBV_QPS_INIT };
	case PEER_ERR:
		return (struct outcome){ IBV_WC_SUCCESS, SILENCE, 0, IBV_QPS_RTS, IBV_QPS_ERR };
	default:
		break;
	}
	return o;
}

static struct outcome reliable(const struct operation *op, enum mistake m)
{
	/* A responder that finds an error of the requester flushes its receives. */
	struct outcome refused = { IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, 0, IBV_QPS_ERR, IBV_QPS_ERR };
	struct outcome own = { IBV_WC_LOC_PROT_ERR, SILENCE, 0, IBV_QPS_ERR, IBV_QPS_RTS };
	struct outcome alone = { IBV_WC_RETRY_EXC_ERR, SILENCE, 0, IBV_QPS_ERR, IBV_QPS_RESET };
	switch (m) {
	case WRONG_RKEY:
	case BEYOND_REGION:
	case REGION_WITHOUT_RIGHT:
	case DEREGISTERED:
	case OTHER_PD:
		/* IBTA 1.7 11.6.2: the receive of a WRITE with immediate has a status of its own. */
		if (op->takes_receive)
			refused.receiver = IBV_WC_LOC_ACCESS_ERR;
		return refused;
	case QP_WITHOUT_RIGHT:
		refused.sender = IBV_WC_REM_INV_REQ_ERR;
		return refused;
	case MISALIGNED:
		if (is_atomic(op)) {
			refused.sender = IBV_WC_REM_INV_REQ_ERR;
			return refused;
		}
		break;
	case WRONG_LKEY:
	case BEYOND_LOCAL:
	case LOCAL_READ_ONLY:
		return own;
	case NO_RECEIVE:
		return (struct outcome){ IBV_WC_RNR_RETRY_EXC_ERR, SILENCE, op->names_memory ? -1 : 0, IBV_QPS_ERR, IBV_QPS_RTS };
	case SHORT_RECEIVE:
		return (struct outcome){ IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, 0, IBV_QPS_ERR, IBV_QPS_ERR };
	case RECEIVE_WRONG_LKEY:
	case RECEIVE_READ_ONLY:
		return (struct outcome){ IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, 0, IBV_QPS_ERR, IBV_QPS_ERR };
	case PEER_RESET:
		return alone;
	case PEER_INIT:
		alone.of_receiver = IBV_QPS_INIT;
		return alone;
	case PEER_ERR:
		alone.of_receiver = IBV_QPS_ERR;
		return alone;
	default:
		break;
	}
	return (struct outcome){ IBV_WC_SUCCESS, op->takes_receive ? IBV_WC_SUCCESS : SILENCE, 1, IBV_QPS_RTS, IBV_QPS_RTS };
}

/*
 * Between hosts a long message arrives in packets, and the responder decides for each packet.
 * Packets before the error are placed already. A WRITE whose first packet is refused has not taken
 * a receive.
 */
static struct outcome in_packets(struct outcome o, enum mistake m)
{
	if (m == SHORT_RECEIVE)
		o.arrives = -1;
	if (o.receiver == IBV_WC_LOC_ACCESS_ERR)
		o.receiver = IBV_WC_WR_FLUSH_ERR;
	return o;
}

static struct end *a, *b;

#define SEED 7u
/* Where a receive puts a message: a WRITE goes to the begin of the buffer. */
#define RECEIVED (1u << 20)

static void post_receives(enum mistake m, uint32_t len, uint32_t lkey)
{
	for (int i = 0; i < 2; i++) {
		struct request r = one_piece(0, 70 + i, RECEIVED, m == SHORT_RECEIVE ? len - 1 : 300000);
		r.piece[0].lkey = lkey;
		end_recv(b, r);
	}
}

/* The key of memory of the peer that has the mistake, if the mistake is there. */
static uint32_t remote_key(enum mistake m, uint32_t rkey)
{
	const unsigned all = defaults().mr_access;
	switch (m) {
	case WRONG_RKEY:
	case EMPTY_WRONG_RKEY: return rkey ^ 0x10101;
	case REGION_WITHOUT_RIGHT: return end_register(b, 0, 1 << 20, IBV_ACCESS_LOCAL_WRITE, 0).rkey;
	case DEREGISTERED:
		rkey = end_register(b, 0, 1 << 20, all, 0).rkey;
		end_deregister(b);
		return rkey;
	case OTHER_PD: return end_register(b, 0, 1 << 20, all, 1).rkey;
	default: return rkey;
	}
}

static long take_rights(struct parts *p, void *arg)
{
	struct ibv_qp_attr attr = { .qp_access_flags = 0 };
	(void)arg;
	return ibv_modify_qp(p->qp, &attr, IBV_QP_ACCESS_FLAGS);
}

static long back_to_init(struct parts *p, void *arg)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = defaults().access };
	(void)arg;
	return ibv_modify_qp(p->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int extra_region(enum mistake m)
{
	return m == REGION_WITHOUT_RIGHT || m == OTHER_PD || m == RECEIVE_READ_ONLY;
}

static int next_status(struct end *e, enum which w, unsigned us)
{
	struct ibv_wc wc;
	return end_try(e, w, &wc, us) ? (int)wc.status : SILENCE;
}

static void try_one(enum ibv_qp_type type, const struct operation *op, enum mistake m, uint32_t bytes)
{
	struct options o = defaults();
	struct address aa, ba;
	struct ibv_wc wc;
	const char *name = mistakes[m];
	uint32_t len = m == EMPTY_WRONG_RKEY ? 0 : is_atomic(op) ? 8 : bytes;
	uint32_t lkey = 0, receive_lkey = 0;
	o.type = type;
	o.retry = o.rnr_retry = 1;
	o.timeout = short_timeout();
	pair_open(a, b, o, &aa, &ba);
	end_fill(a, 0, 300000, SEED);
	end_fill(b, 0, 300000, SEED + 1);
	end_fill(b, RECEIVED, 300000, SEED + 1);
	if (m == QP_WITHOUT_RIGHT && end_run(b, take_rights, NULL, 0))
		die("ibv_modify_qp takes no rights");
	if (m == RECEIVE_WRONG_LKEY)
		receive_lkey = ba.lkey ^ 0x777;
	if (m == RECEIVE_READ_ONLY)
		receive_lkey = end_register(b, 0, 4 << 20, IBV_ACCESS_REMOTE_READ, 0).lkey;
	if (m != NO_RECEIVE)
		post_receives(m, len, receive_lkey);
	if (m == PEER_RESET || m == PEER_ERR)
		end_modify(b, m == PEER_RESET ? IBV_QPS_RESET : IBV_QPS_ERR);
	if (m == PEER_INIT) {
		end_modify(b, IBV_QPS_RESET);
		if (end_run(b, back_to_init, NULL, 0))
			die("ibv_modify_qp to INIT");
	}
	if (m == PEER_ERR)
		while (end_try(b, RECVS, &wc, QUIET_US))
			;
	if (m == WRONG_LKEY)
		lkey = aa.lkey ^ 0x777;
	if (m == LOCAL_READ_ONLY)
		lkey = end_register(a, 0, 1 << 20, 0, 0).lkey;
	struct request r = one_piece(op->code, 5, m == BEYOND_LOCAL ? (4u << 20) - len + 8 : 0, len);
	r.piece[0].lkey = lkey;
	r.imm = 9;
	r.compare_add = 1;
	r.rkey = remote_key(m, ba.rkey);
	r.raddr = m == BEYOND_REGION ? ba.addr + (4u << 20) - len + 8 : m == MISALIGNED ? ba.addr + 3 : ba.addr;
	struct outcome want = type == IBV_QPT_RC ? reliable(op, m) : unreliable(op, m);
	if (hosts_differ() && len > 4096)
		want = in_packets(want, m);
	char what[160];
	snprintf(what, sizeof what, "%s %s of %u bytes, %s", type == IBV_QPT_RC ? "RC" : "UC", op->name, len, name);
	check_eq(end_send(a, r), 0, "%s: ibv_post_send", what);
	check_eq(next_status(a, SENDS, WAIT_US), want.sender, "%s: the sender", what);
	check_eq(next_status(b, RECVS, want.receiver == SILENCE ? QUIET_US : WAIT_US), want.receiver, "%s: the receiver", what);
	uint64_t place = op->names_memory ? (m == MISALIGNED ? 3 : 0) : RECEIVED;
	if (!op->returns_data && want.arrives >= 0 && len) {
		long differs = want.arrives ? end_verify_soon(b, place, len, SEED) : end_verify(b, place, len, SEED + 1);
		/* The pattern depends on the position, which a misaligned WRITE moves. */
		if (m != MISALIGNED)
			check(differs < 0, "%s: %s", what, want.arrives ? "all bytes arrive" : "no byte arrives");
	}
	check_eq(end_state(a), want.of_sender, "%s: the sender's QP", what);
	check_eq(end_state_soon(b, want.of_receiver), want.of_receiver, "%s: the receiver's QP", what);
	if (extra_region(m))
		end_deregister(b);
	if (m == LOCAL_READ_ONLY)
		end_deregister(a);
	pair_close(a, b);
}

int main(int argc, char **argv)
{
	static const uint32_t lengths[] = { 64, 20000 };
	int two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	for (int l = 0; l < 2; l++)
		for (unsigned op = 0; op < sizeof operations / sizeof *operations; op++)
			for (int m = NONE; m < MISTAKES; m++) {
				if (!applies(&operations[op], m) || (l && is_atomic(&operations[op])))
					continue;
				try_one(IBV_QPT_RC, &operations[op], m, lengths[l]);
				if (!operations[op].returns_data)
					try_one(IBV_QPT_UC, &operations[op], m, lengths[l]);
			}
	end_free(a);
	end_free(b);
	return finish();
}
