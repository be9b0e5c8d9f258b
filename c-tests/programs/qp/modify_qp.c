/*
 * Every transition of ibv_modify_qp(3) for RC, UC and UD: required attributes (each one left out:
 * EINVAL), allowed attributes (all together: success), and other attributes (each one added:
 * EINVAL). Optional attributes: IBTA 1.7 11.2.5.2.
 */
#include "rig.h"

enum { RESET = IBV_QPS_RESET, INIT = IBV_QPS_INIT, RTR = IBV_QPS_RTR, RTS = IBV_QPS_RTS, SQD = IBV_QPS_SQD, ERR = IBV_QPS_ERR };

#define ACCESS IBV_QP_ACCESS_FLAGS
#define PKEY IBV_QP_PKEY_INDEX
#define RC_RTR (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RC_RTS (IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT)
/* Automatic path migration is a feature of its own: neither demanded nor forbidden here. */
#define APM (IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE)

static const struct rule {
	enum ibv_qp_type type;
	int from, to, required, optional;
} rules[] = {
	{ IBV_QPT_RC, RESET, INIT, PKEY | IBV_QP_PORT | ACCESS, 0 },
	{ IBV_QPT_RC, INIT, INIT, 0, PKEY | IBV_QP_PORT | ACCESS },
	{ IBV_QPT_RC, INIT, RTR, RC_RTR, PKEY | ACCESS | APM },
	{ IBV_QPT_RC, RTR, RTS, RC_RTS, IBV_QP_CUR_STATE | ACCESS | IBV_QP_MIN_RNR_TIMER | APM },
	{ IBV_QPT_RC, RTS, RTS, 0, IBV_QP_CUR_STATE | ACCESS | IBV_QP_MIN_RNR_TIMER | APM },
	{ IBV_QPT_RC, RTS, SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
	{ IBV_QPT_RC, SQD, RTS, 0, IBV_QP_CUR_STATE | ACCESS | IBV_QP_MIN_RNR_TIMER | APM },
	{ IBV_QPT_RC, SQD, SQD, 0,
	  IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
		  IBV_QP_MAX_DEST_RD_ATOMIC | PKEY | ACCESS | IBV_QP_MIN_RNR_TIMER | APM },
	{ IBV_QPT_UC, RESET, INIT, PKEY | IBV_QP_PORT | ACCESS, 0 },
	{ IBV_QPT_UC, INIT, INIT, 0, PKEY | IBV_QP_PORT | ACCESS },
	{ IBV_QPT_UC, INIT, RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, PKEY | ACCESS | APM },
	{ IBV_QPT_UC, RTR, RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | ACCESS | APM },
	{ IBV_QPT_UC, RTS, RTS, 0, IBV_QP_CUR_STATE | ACCESS | APM },
	{ IBV_QPT_UC, RTS, SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
	{ IBV_QPT_UC, SQD, RTS, 0, IBV_QP_CUR_STATE | ACCESS | APM },
	{ IBV_QPT_UC, SQD, SQD, 0, IBV_QP_AV | PKEY | ACCESS | APM },
	{ IBV_QPT_UD, RESET, INIT, PKEY | IBV_QP_PORT | IBV_QP_QKEY, 0 },
	{ IBV_QPT_UD, INIT, INIT, 0, PKEY | IBV_QP_PORT | IBV_QP_QKEY },
	{ IBV_QPT_UD, INIT, RTR, 0, PKEY | IBV_QP_QKEY },
	{ IBV_QPT_UD, RTR, RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY },
	{ IBV_QPT_UD, RTS, RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY },
	{ IBV_QPT_UD, RTS, SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
	{ IBV_QPT_UD, SQD, RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY },
	{ IBV_QPT_UD, SQD, SQD, 0, PKEY | IBV_QP_QKEY },
};
#define RULES (sizeof rules / sizeof *rules)

static const struct {
	int bit;
	const char *name;
} bits[] = {
	{ IBV_QP_CUR_STATE, "CUR_STATE" },
	{ IBV_QP_EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY" },
	{ IBV_QP_ACCESS_FLAGS, "ACCESS_FLAGS" },
	{ IBV_QP_PKEY_INDEX, "PKEY_INDEX" },
	{ IBV_QP_PORT, "PORT" },
	{ IBV_QP_QKEY, "QKEY" },
	{ IBV_QP_AV, "AV" },
	{ IBV_QP_PATH_MTU, "PATH_MTU" },
	{ IBV_QP_TIMEOUT, "TIMEOUT" },
	{ IBV_QP_RETRY_CNT, "RETRY_CNT" },
	{ IBV_QP_RNR_RETRY, "RNR_RETRY" },
	{ IBV_QP_RQ_PSN, "RQ_PSN" },
	{ IBV_QP_MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC" },
	{ IBV_QP_ALT_PATH, "ALT_PATH" },
	{ IBV_QP_MIN_RNR_TIMER, "MIN_RNR_TIMER" },
	{ IBV_QP_SQ_PSN, "SQ_PSN" },
	{ IBV_QP_MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC" },
	{ IBV_QP_PATH_MIG_STATE, "PATH_MIG_STATE" },
	{ IBV_QP_CAP, "CAP" },
	{ IBV_QP_DEST_QPN, "DEST_QPN" },
};
#define BITS (sizeof bits / sizeof *bits)

static const char *state_name(int s)
{
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	return names[s];
}

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid gid;
static struct ibv_port_attr port;

static struct ibv_qp *create(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr a = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &a);
	if (!qp)
		die("ibv_create_qp: %s", strerror(errno));
	return qp;
}

/* Right values for every attribute. */
static struct ibv_qp_attr values(const struct ibv_qp *qp, int from, int to)
{
	return (struct ibv_qp_attr){
		.qp_state = (enum ibv_qp_state)to,
		.cur_qp_state = (enum ibv_qp_state)from,
		.path_mtu = port.active_mtu,
		.path_mig_state = IBV_MIG_MIGRATED,
		.qkey = 0x7531,
		.rq_psn = 0x123456,
		.sq_psn = 0x654321,
		.dest_qp_num = qp->qp_num,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.ah_attr = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 9, .traffic_class = 3, .flow_label = 5 }, .port_num = 1 },
		.max_rd_atomic = 3,
		.max_dest_rd_atomic = 5,
		.min_rnr_timer = 12,
		.port_num = 1,
		.timeout = 14,
		.retry_cnt = 6,
		.rnr_retry = 4,
	};
}

static int modify(struct ibv_qp *qp, int from, int to, int mask)
{
	struct ibv_qp_attr a = values(qp, from, to);
	return ibv_modify_qp(qp, &a, mask);
}

static int state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	memset(&a, 0xFF, sizeof a);
	if (ibv_query_qp(qp, &a, IBV_QP_STATE, &i))
		die("ibv_query_qp");
	return (int)a.qp_state;
}

static const struct rule *find(enum ibv_qp_type type, int from, int to)
{
	for (size_t i = 0; i < RULES; i++)
		if (rules[i].type == type && rules[i].from == from && rules[i].to == to)
			return &rules[i];
	return NULL;
}

/* A QP in the wanted state. */
static struct ibv_qp *in_state(enum ibv_qp_type type, int state)
{
	static const int path[] = { RESET, INIT, RTR, RTS, SQD };
	struct ibv_qp *qp = create(type);
	if (state == ERR) {
		if (modify(qp, RESET, INIT, IBV_QP_STATE | find(type, RESET, INIT)->required) || modify(qp, INIT, ERR, IBV_QP_STATE))
			die("cannot reach ERR");
		return qp;
	}
	for (int i = 0; path[i] != state; i++) {
		int err = modify(qp, path[i], path[i + 1], IBV_QP_STATE | find(type, path[i], path[i + 1])->required);
		if (err)
			die("cannot go from %s to %s: %s", state_name(path[i]), state_name(path[i + 1]), strerror(err));
	}
	return qp;
}

static const char *type_name(enum ibv_qp_type t) { return t == IBV_QPT_RC ? "RC" : t == IBV_QPT_UC ? "UC" : "UD"; }

static void refused(enum ibv_qp_type type, int from, int to, int mask, const char *why)
{
	struct ibv_qp *qp = in_state(type, from);
	check_eq(modify(qp, from, to, mask), EINVAL, "%s %s to %s %s: EINVAL", type_name(type), state_name(from), state_name(to), why);
	check_eq(state_of(qp), from, "%s %s to %s %s: state unchanged", type_name(type), state_name(from), state_name(to), why);
	ibv_destroy_qp(qp);
}

static void accepted(const struct rule *r, int mask, const char *what)
{
	struct ibv_qp *qp = in_state(r->type, r->from);
	check_eq(modify(qp, r->from, r->to, mask), 0, "%s %s to %s %s", type_name(r->type), state_name(r->from), state_name(r->to), what);
	check_eq(state_of(qp), r->to, "%s %s to %s %s: state", type_name(r->type), state_name(r->from), state_name(r->to), what);
	ibv_destroy_qp(qp);
}

static void test_rule(const struct rule *r)
{
	char why[64];
	accepted(r, IBV_QP_STATE | r->required, "with what is required");
	accepted(r, IBV_QP_STATE | r->required | (r->optional & ~APM), "with all that is allowed");
	for (size_t i = 0; i < BITS; i++) {
		if (r->required & bits[i].bit) {
			snprintf(why, sizeof why, "without %s", bits[i].name);
			refused(r->type, r->from, r->to, IBV_QP_STATE | (r->required & ~bits[i].bit), why);
		} else if (!(r->optional & bits[i].bit)) {
			snprintf(why, sizeof why, "with %s", bits[i].name);
			refused(r->type, r->from, r->to, IBV_QP_STATE | r->required | bits[i].bit, why);
		}
	}
}

/* Transitions that do not exist, and transitions from every state. */
static void test_others(enum ibv_qp_type type)
{
	static const int states[] = { RESET, INIT, RTR, RTS, SQD, ERR };
	for (int f = 0; f < 6; f++)
		for (int t = 0; t < 6; t++) {
			if (states[t] == RESET || states[t] == ERR) {
				struct ibv_qp *qp = in_state(type, states[f]);
				if (states[f] == RESET) {
					/* From RESET the specification allows both, Linux allows neither. */
					ibv_destroy_qp(qp);
					continue;
				}
				check_eq(modify(qp, states[f], states[t], IBV_QP_STATE), 0, "%s %s to %s", type_name(type), state_name(states[f]),
					 state_name(states[t]));
				check_eq(state_of(qp), states[t], "%s %s to %s: state", type_name(type), state_name(states[f]), state_name(states[t]));
				ibv_destroy_qp(qp);
			} else if (!find(type, states[f], states[t])) {
				refused(type, states[f], states[t], IBV_QP_STATE, "(no such transition)");
			}
		}
	/* Round twice: RESET forgets everything. */
	struct ibv_qp *qp = in_state(type, RTS);
	check_eq(modify(qp, RTS, RESET, IBV_QP_STATE), 0, "%s RTS to RESET", type_name(type));
	for (int s = RESET; s < RTS; s++)
		check_eq(modify(qp, s, s + 1, IBV_QP_STATE | find(type, s, s + 1)->required), 0, "%s again to %s", type_name(type), state_name(s + 1));
	ibv_destroy_qp(qp);
}

/* ibv_query_qp returns the attributes that were set. */
static void test_query(void)
{
	struct ibv_qp *qp = in_state(IBV_QPT_RC, RTS);
	struct ibv_qp_attr a, v = values(qp, RTR, RTS);
	struct ibv_qp_init_attr i;
	memset(&a, 0, sizeof a);
	memset(&i, 0, sizeof i);
	int all = IBV_QP_STATE | RC_RTR | RC_RTS | PKEY | IBV_QP_PORT | ACCESS | IBV_QP_CAP | IBV_QP_CUR_STATE;
	check_eq(ibv_query_qp(qp, &a, all, &i), 0, "ibv_query_qp");
	check_eq(a.qp_state, IBV_QPS_RTS, "query: qp_state");
	check_eq(a.cur_qp_state, IBV_QPS_RTS, "query: cur_qp_state");
	check_eq(qp->state, IBV_QPS_RTS, "struct ibv_qp: state");
	check_eq(a.path_mtu, v.path_mtu, "query: path_mtu");
	check_eq(a.rq_psn, v.rq_psn, "query: rq_psn");
	check_eq(a.sq_psn, v.sq_psn, "query: sq_psn");
	check_eq(a.dest_qp_num, v.dest_qp_num, "query: dest_qp_num");
	check_eq(a.qp_access_flags, v.qp_access_flags, "query: qp_access_flags");
	/* Devices may round up. */
	check(a.max_rd_atomic >= v.max_rd_atomic, "query: max_rd_atomic");
	check(a.max_dest_rd_atomic >= v.max_dest_rd_atomic, "query: max_dest_rd_atomic");
	check_eq(a.min_rnr_timer, v.min_rnr_timer, "query: min_rnr_timer");
	check_eq(a.port_num, 1, "query: port_num");
	check_eq(a.pkey_index, 0, "query: pkey_index");
	check_eq(a.timeout, v.timeout, "query: timeout");
	check_eq(a.retry_cnt, v.retry_cnt, "query: retry_cnt");
	check_eq(a.rnr_retry, v.rnr_retry, "query: rnr_retry");
	check_eq(a.ah_attr.is_global, 1, "query: is_global");
	check(!memcmp(&a.ah_attr.grh.dgid, &gid, sizeof gid), "query: dgid");
	check_eq(a.ah_attr.grh.traffic_class, 3, "query: traffic_class");
	check_eq(a.ah_attr.port_num, 1, "query: port_num of the path");
	check(a.cap.max_send_wr >= 4 && a.cap.max_recv_wr >= 4 && a.cap.max_send_sge >= 1, "query: cap");
	check(i.send_cq == cq && i.recv_cq == cq && !i.srq && i.qp_type == IBV_QPT_RC && !i.sq_sig_all, "query: init attributes");
	struct ibv_qp_attr pace = { .qp_state = IBV_QPS_RTS, .rate_limit = 1000 };
	check_eq(ibv_modify_qp(qp, &pace, IBV_QP_RATE_LIMIT), EOPNOTSUPP, "a rate limit");
	check_eq(ibv_modify_qp(qp, &pace, IBV_QP_STATE | IBV_QP_RATE_LIMIT), EOPNOTSUPP, "a rate limit with a state");
	/* Without IBV_QP_STATE the state stays. */
	struct ibv_qp_attr m = { .qp_access_flags = IBV_ACCESS_REMOTE_ATOMIC };
	check_eq(ibv_modify_qp(qp, &m, ACCESS), 0, "new rights without a new state");
	ibv_query_qp(qp, &a, ACCESS | IBV_QP_STATE, &i);
	check_eq(a.qp_access_flags, IBV_ACCESS_REMOTE_ATOMIC, "query: the new rights");
	check_eq(a.qp_state, IBV_QPS_RTS, "query: the same state");
	ibv_destroy_qp(qp);
	qp = in_state(IBV_QPT_UD, RTS);
	memset(&a, 0, sizeof a);
	check_eq(ibv_query_qp(qp, &a, IBV_QP_QKEY | IBV_QP_PORT | IBV_QP_SQ_PSN, &i), 0, "ibv_query_qp of UD");
	check(a.qkey == v.qkey && a.port_num == 1 && a.sq_psn == v.sq_psn && i.qp_type == IBV_QPT_UD, "query: Q_Key, port and PSN");
	ibv_destroy_qp(qp);
}

/* Attribute values beyond every device's limits. */
static void test_values(void)
{
	struct ibv_device_attr d;
	if (ibv_query_device(ctx, &d))
		die("ibv_query_device");
	static const char *const what[] = { "port 0", "port beyond the last", "pkey_index beyond the table" };
	for (int k = 0; k < 3; k++) {
		struct ibv_qp *qp = create(IBV_QPT_RC);
		struct ibv_qp_attr a = values(qp, RESET, INIT);
		if (k == 0)
			a.port_num = 0;
		else if (k == 1)
			a.port_num = (uint8_t)(d.phys_port_cnt + 1);
		else
			a.pkey_index = port.pkey_tbl_len;
		check_eq(ibv_modify_qp(qp, &a, IBV_QP_STATE | PKEY | IBV_QP_PORT | ACCESS), EINVAL, "to INIT with %s", what[k]);
		ibv_destroy_qp(qp);
	}
	static const char *const bad_rtr[] = { "path_mtu 0", "path_mtu 6", "sgid_index beyond the table", "max_dest_rd_atomic above the device's" };
	for (int k = 0; k < 4; k++) {
		struct ibv_qp *qp = in_state(IBV_QPT_RC, INIT);
		struct ibv_qp_attr a = values(qp, INIT, RTR);
		if (k < 2)
			a.path_mtu = (enum ibv_mtu)(k * 6);
		else if (k == 2)
			a.ah_attr.grh.sgid_index = 255;
		else if (d.max_qp_rd_atom < 255)
			a.max_dest_rd_atomic = (uint8_t)(d.max_qp_rd_atom + 1);
		else
			a.path_mtu = (enum ibv_mtu)0;
		int err = ibv_modify_qp(qp, &a, IBV_QP_STATE | RC_RTR);
		check(err == EINVAL || (k == 2 && err == ENODATA), "to RTR with %s: EINVAL (%d)", bad_rtr[k], err);
		check_eq(state_of(qp), INIT, "to RTR with %s: state unchanged", bad_rtr[k]);
		ibv_destroy_qp(qp);
	}
}

int main(void)
{
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	if (!pd || !cq || ibv_query_gid(ctx, 1, 0, &gid) || ibv_query_port(ctx, 1, &port))
		die("cannot set up");
	for (size_t i = 0; i < RULES; i++)
		test_rule(&rules[i]);
	test_others(IBV_QPT_RC);
	test_others(IBV_QPT_UC);
	test_others(IBV_QPT_UD);
	test_query();
	test_values();
	check_eq(ibv_destroy_cq(cq), 0, "ibv_destroy_cq");
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	return finish();
}
