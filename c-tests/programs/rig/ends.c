/*
 * The ends of rig.h, in this process and in agents.
 *
 * Map of this file: `struct objects` has the verbs objects of an end; defaults gives the options.
 * open_objects, connect_objects and close_objects create, connect and destroy the objects.
 * post_sends and post_recvs translate requests into work requests; `struct call` and `struct
 * answer` are the messages between a test and an agent. perform executes a call; agent is the loop
 * of the agent process. The function call executes a call in this process or sends the call to the
 * agent. end_new forks the agent; end_kill and end_free end the agent. The remaining functions are
 * the interface of rig.h, and most make one call.
 */
#define _GNU_SOURCE
#include "rig.h"

/* ---- the verbs objects of an end, in the process that holds them ---- */

struct objects {
	struct options o;
	struct ibv_context *ctx;
	struct ibv_pd *pd, *other_pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *scq, *rcq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr, *extra;
	struct ibv_ah *ah;
	struct ibv_port_attr port;
	union ibv_gid gid;
	unsigned char *buf;
	struct ibv_qp_cap cap;
	void *own[8];
};

struct options defaults(void)
{
	return (struct options){
		.type = IBV_QPT_RC,
		.depth = 64,
		.sge = 4,
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.rnr_retry = 7,
		.retry = 7,
		/* Between hosts an acknowledgement takes longer, and may be lost. */
		.timeout = hosts_differ() ? 18 : 10,
		.rnr_timer = 1,
		.grh = 1,
		.qkey = 0x1234567,
		.size = 4 << 20,
	};
}

/* The index of the GID in an end's address. */
static int gid_index(void)
{
	const char *asked = getenv("TEST_GID");
	return !hosts_differ() ? 0 : asked ? atoi(asked) : 1;
}

static struct address open_objects(struct objects *x, struct options o)
{
	memset(x, 0, sizeof *x);
	x->o = o;
	x->ctx = open_device();
	if (ibv_query_port(x->ctx, 1, &x->port))
		die("ibv_query_port");
	if (ibv_query_gid(x->ctx, 1, gid_index(), &x->gid))
		die("ibv_query_gid");
	x->pd = ibv_alloc_pd(x->ctx);
	if (!x->pd)
		die("ibv_alloc_pd: %s", strerror(errno));
	x->buf = pages_apart(o.size);
	x->mr = ibv_reg_mr(x->pd, x->buf, o.size, (int)o.mr_access);
	if (!x->mr)
		die("ibv_reg_mr: %s", strerror(errno));
	if (o.channel) {
		x->channel = ibv_create_comp_channel(x->ctx);
		if (!x->channel)
			die("ibv_create_comp_channel: %s", strerror(errno));
	}
	x->scq = ibv_create_cq(x->ctx, (int)o.depth, x, NULL, 0);
	x->rcq = ibv_create_cq(x->ctx, (int)o.depth, x, x->channel, 0);
	if (!x->scq || !x->rcq)
		die("ibv_create_cq: %s", strerror(errno));
	if (o.srq) {
		struct ibv_srq_init_attr sa = { .attr = { .max_wr = o.depth, .max_sge = o.sge } };
		x->srq = ibv_create_srq(x->pd, &sa);
		if (!x->srq)
			die("ibv_create_srq: %s", strerror(errno));
	}
	struct ibv_qp_init_attr qa = {
		.send_cq = x->scq,
		.recv_cq = x->rcq,
		.srq = x->srq,
		.cap = { .max_send_wr = o.depth, .max_recv_wr = o.srq ? 0 : o.depth, .max_send_sge = o.sge, .max_recv_sge = o.srq ? 0 : o.sge,
			 .max_inline_data = o.inl },
		.qp_type = o.type,
		.sq_sig_all = o.sig_all,
	};
	struct ibv_qp_init_attr_ex qx = {
		.send_cq = x->scq,
		.recv_cq = x->rcq,
		.srq = x->srq,
		.cap = qa.cap,
		.qp_type = o.type,
		.sq_sig_all = o.sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = x->pd,
		.send_ops_flags = o.send_ops,
	};
	x->qp = o.send_ops ? ibv_create_qp_ex(x->ctx, &qx) : ibv_create_qp(x->pd, &qa);
	if (!x->qp)
		die("ibv_create_qp: %s", strerror(errno));
	x->cap = o.send_ops ? qx.cap : qa.cap;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = o.access, .qkey = o.qkey };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	mask |= o.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	int err = ibv_modify_qp(x->qp, &a, mask);
	if (err)
		die("to INIT: %s", strerror(err));
	return (struct address){
		.qpn = x->qp->qp_num,
		.psn = x->qp->qp_num * 77 & 0xffffff,
		.rkey = x->mr->rkey,
		.lkey = x->mr->lkey,
		.qkey = o.qkey,
		.max_inline = x->cap.max_inline_data,
		.max_send_sge = x->cap.max_send_sge,
		.max_recv_sge = x->cap.max_recv_sge,
		.addr = (uintptr_t)x->buf,
		.lid = x->port.lid,
		.gid = x->gid,
	};
}

static void connect_objects(struct objects *x, const struct address *peer)
{
	const struct options *o = &x->o;
	struct ibv_ah_attr ah = { .dlid = peer->lid, .port_num = 1 };
	if (o->grh) {
		ah.is_global = 1;
		ah.grh.dgid = peer->gid;
		ah.grh.sgid_index = (uint8_t)gid_index();
		ah.grh.hop_limit = 64;
	}
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = x->port.active_mtu,
		.dest_qp_num = peer->qpn,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = o->rnr_timer,
		.ah_attr = ah,
	};
	int mask = IBV_QP_STATE;
	if (o->type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (o->type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	int err = ibv_modify_qp(x->qp, &a, mask);
	if (err)
		die("to RTR: %s", strerror(err));
	struct ibv_qp_attr b = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = x->qp->qp_num * 77 & 0xffffff,
		.max_rd_atomic = 16,
		.retry_cnt = o->retry,
		.rnr_retry = o->rnr_retry,
		.timeout = o->timeout,
	};
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (o->type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT;
	err = ibv_modify_qp(x->qp, &b, mask);
	if (err)
		die("to RTS: %s", strerror(err));
	if (o->type == IBV_QPT_UD) {
		x->ah = ibv_create_ah(x->pd, &ah);
		if (!x->ah)
			die("ibv_create_ah: %s", strerror(errno));
	}
}

static int close_objects(struct objects *x)
{
	int bad = 0;
	if (x->ah)
		bad += !!ibv_destroy_ah(x->ah);
	if (x->qp)
		bad += !!ibv_destroy_qp(x->qp);
	if (x->srq)
		bad += !!ibv_destroy_srq(x->srq);
	bad += !!ibv_destroy_cq(x->scq);
	bad += !!ibv_destroy_cq(x->rcq);
	if (x->channel)
		bad += !!ibv_destroy_comp_channel(x->channel);
	if (x->extra)
		bad += !!ibv_dereg_mr(x->extra);
	bad += !!ibv_dereg_mr(x->mr);
	if (x->other_pd)
		bad += !!ibv_dealloc_pd(x->other_pd);
	bad += !!ibv_dealloc_pd(x->pd);
	bad += !!ibv_close_device(x->ctx);
	munmap(x->buf, x->o.size);
	memset(x, 0, sizeof *x);
	return bad;
}

static void sges(struct objects *x, const struct request *r, struct ibv_sge *sg)
{
	for (int i = 0; i < r->pieces; i++)
		sg[i] = (struct ibv_sge){
			.addr = (uintptr_t)x->buf + r->piece[i].offset,
			.length = r->piece[i].len,
			.lkey = r->piece[i].lkey ? r->piece[i].lkey : x->mr->lkey,
		};
}

#define MAX_LIST 32

static int post_sends(struct objects *x, const struct request *r, int n, int *bad)
{
	struct ibv_sge sg[MAX_LIST][MAX_SGE];
	struct ibv_send_wr wr[MAX_LIST], *bad_wr = NULL;
	memset(wr, 0, sizeof wr);
	for (int i = 0; i < n; i++) {
		sges(x, &r[i], sg[i]);
		wr[i].wr_id = r[i].id;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = sg[i];
		wr[i].num_sge = r[i].pieces;
		wr[i].opcode = r[i].op;
		wr[i].send_flags = r[i].flags;
		wr[i].imm_data = r[i].imm;
		if (x->o.type == IBV_QPT_UD) {
			wr[i].wr.ud.ah = x->ah;
			wr[i].wr.ud.remote_qpn = r[i].qpn;
			wr[i].wr.ud.remote_qkey = r[i].qkey;
		} else if (r[i].op == IBV_WR_ATOMIC_CMP_AND_SWP || r[i].op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr[i].wr.atomic.remote_addr = r[i].raddr;
			wr[i].wr.atomic.rkey = r[i].rkey;
			wr[i].wr.atomic.compare_add = r[i].compare_add;
			wr[i].wr.atomic.swap = r[i].swap;
		} else {
			wr[i].wr.rdma.remote_addr = r[i].raddr;
			wr[i].wr.rdma.rkey = r[i].rkey;
		}
	}
	int err = ibv_post_send(x->qp, wr, &bad_wr);
	*bad = err && bad_wr >= wr && bad_wr < wr + n ? (int)(bad_wr - wr) : -1;
	/* Inline data belongs to the caller again as soon as the call returns. */
	for (int i = 0; i < n; i++)
		if (r[i].flags & IBV_SEND_INLINE)
			for (int k = 0; k < r[i].pieces; k++)
				memset((void *)(uintptr_t)sg[i][k].addr, 0xEE, err ? 0 : sg[i][k].length);
	return err;
}

static int post_recvs(struct objects *x, const struct request *r, int n, int *bad)
{
	struct ibv_sge sg[MAX_LIST][MAX_SGE];
	struct ibv_recv_wr wr[MAX_LIST], *bad_wr = NULL;
	memset(wr, 0, sizeof wr);
	for (int i = 0; i < n; i++) {
		sges(x, &r[i], sg[i]);
		wr[i].wr_id = r[i].id;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = sg[i];
		wr[i].num_sge = r[i].pieces;
	}
	int err = x->srq ? ibv_post_srq_recv(x->srq, wr, &bad_wr) : ibv_post_recv(x->qp, wr, &bad_wr);
	*bad = err && bad_wr >= wr && bad_wr < wr + n ? (int)(bad_wr - wr) : -1;
	return err;
}

/* ---- calls of an end: executed here, or sent to its agent process ---- */

enum op {
	OP_OPEN, OP_CONNECT, OP_CLOSE, OP_SEND, OP_RECV, OP_TRY, OP_FILL, OP_VERIFY, OP_WRITE, OP_READ, OP_MODIFY, OP_STATE,
	OP_DESTROY_QP, OP_REGISTER, OP_DEREGISTER, OP_ARM, OP_EVENT, OP_ASYNC, OP_RUN, OP_QUIT
};

struct call {
	enum op op;
	struct options o;
	struct address peer;
	int n, which, flag;
	unsigned us;
	uint64_t offset, len;
	uint32_t seed;
	/* The agent is a fork of this process, so function addresses are equal in both. */
	long (*f)(struct parts *, void *);
	unsigned char arg[RUN_BYTES];
	struct request r[MAX_LIST];
};

struct answer {
	struct address address;
	int value, bad;
	long at;
	struct ibv_wc wc;
	struct keys keys;
	unsigned char arg[RUN_BYTES];
};

struct end {
	struct objects x;
	int fd;		/* to the agent; -1: local */
	pid_t agent;
};

static void all(int fd, void *p, size_t len, int write_it)
{
	unsigned char *at = p;
	while (len) {
		ssize_t n = write_it ? send(fd, at, len, MSG_NOSIGNAL) : read(fd, at, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			die("the other process is gone");
		at += n;
		len -= (size_t)n;
	}
}

/* `data`: the bytes of OP_WRITE and OP_READ. */
static void perform(struct objects *x, const struct call *c, struct answer *a, void *data)
{
	memset(a, 0, sizeof *a);
	switch (c->op) {
	case OP_OPEN: a->address = open_objects(x, c->o); break;
	case OP_CONNECT: connect_objects(x, &c->peer); break;
	case OP_CLOSE: a->value = close_objects(x); break;
	case OP_SEND: a->value = post_sends(x, c->r, c->n, &a->bad); break;
	case OP_RECV: a->value = post_recvs(x, c->r, c->n, &a->bad); break;
	case OP_TRY: a->value = try_completion(c->which == SENDS ? x->scq : x->rcq, &a->wc, c->us); break;
	case OP_FILL: fill(x->buf + c->offset, c->len, c->seed); break;
	case OP_VERIFY: a->at = verify(x->buf + c->offset, c->len, c->seed); break;
	case OP_WRITE: memcpy(x->buf + c->offset, data, c->len); break;
	case OP_READ: memcpy(data, x->buf + c->offset, c->len); break;
	case OP_MODIFY: {
		struct ibv_qp_attr q = { .qp_state = (enum ibv_qp_state)c->flag };
		a->value = ibv_modify_qp(x->qp, &q, IBV_QP_STATE);
		break;
	}
	case OP_STATE: {
		struct ibv_qp_attr q;
		struct ibv_qp_init_attr i;
		if (ibv_query_qp(x->qp, &q, IBV_QP_STATE, &i))
			die("ibv_query_qp");
		a->value = (int)q.qp_state;
		break;
	}
	case OP_DESTROY_QP:
		a->value = ibv_destroy_qp(x->qp);
		x->qp = NULL;
		break;
	case OP_REGISTER:
		if (c->flag && !x->other_pd)
			x->other_pd = ibv_alloc_pd(x->ctx);
		x->extra = ibv_reg_mr(c->flag ? x->other_pd : x->pd, x->buf + c->offset, c->len, c->n);
		if (!x->extra)
			die("ibv_reg_mr: %s", strerror(errno));
		a->keys = (struct keys){ x->extra->lkey, x->extra->rkey };
		break;
	case OP_DEREGISTER:
		a->value = ibv_dereg_mr(x->extra);
		x->extra = NULL;
		break;
	case OP_ARM: a->value = ibv_req_notify_cq(x->rcq, c->flag); break;
	case OP_EVENT:
		if (readable(x->channel->fd, c->flag)) {
			struct ibv_cq *cq;
			void *context;
			if (ibv_get_cq_event(x->channel, &cq, &context) || cq != x->rcq || context != x)
				die("ibv_get_cq_event gave another CQ");
			ibv_ack_cq_events(cq, 1);
			a->value = 1;
		}
		break;
	case OP_RUN: {
		struct parts p = { .ctx = x->ctx, .pd = x->pd, .scq = x->scq, .rcq = x->rcq, .qp = x->qp, .mr = x->mr, .buf = x->buf };
		memcpy(p.own, x->own, sizeof p.own);
		memcpy(a->arg, c->arg, sizeof a->arg);
		a->at = c->f(&p, a->arg);
		memcpy(x->own, p.own, sizeof p.own);
		break;
	}
	case OP_ASYNC: a->value = async_event(x->ctx, NULL); break;
	case OP_QUIT: break;
	}
}

static void agent(int fd)
{
	static struct call c;
	struct objects x;
	memset(&x, 0, sizeof x);
	for (;;) {
		struct answer a;
		all(fd, &c, sizeof c, 0);
		if (c.op == OP_QUIT)
			exit(0);
		void *data = c.op == OP_WRITE || c.op == OP_READ ? malloc(c.len) : NULL;
		if (c.op == OP_WRITE)
			all(fd, data, c.len, 0);
		perform(&x, &c, &a, data);
		all(fd, &a, sizeof a, 1);
		if (c.op == OP_READ)
			all(fd, data, c.len, 1);
		free(data);
	}
}

static struct answer call(struct end *e, struct call *c, void *data)
{
	struct answer a;
	if (e->fd < 0) {
		perform(&e->x, c, &a, data);
		return a;
	}
	all(e->fd, c, sizeof *c, 1);
	if (c->op == OP_WRITE)
		all(e->fd, data, c->len, 1);
	all(e->fd, &a, sizeof a, 0);
	if (c->op == OP_READ)
		all(e->fd, data, c->len, 0);
	return a;
}

struct end *end_new(int remote)
{
	struct end *e = calloc(1, sizeof *e);
	int fds[2];
	if (!e)
		die("calloc");
	e->fd = -1;
	if (!remote)
		return e;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		die("socketpair");
	fflush(stdout);
	e->agent = fork();
	if (e->agent < 0)
		die("fork");
	if (!e->agent) {
		close(fds[0]);
		go_to_host();
		agent(fds[1]);
	}
	close(fds[1]);
	e->fd = fds[0];
	return e;
}

void end_kill(struct end *e)
{
	kill(e->agent, SIGKILL);
	waitpid(e->agent, NULL, 0);
	close(e->fd);
	e->agent = 0;
	e->fd = -1;
}

void end_free(struct end *e)
{
	if (e->fd >= 0) {
		static struct call c = { .op = OP_QUIT };
		int status = 0;
		all(e->fd, &c, sizeof c, 1);
		waitpid(e->agent, &status, 0);
		check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process ends well");
		close(e->fd);
	}
	free(e);
}

struct address end_open(struct end *e, struct options o)
{
	struct call c = { .op = OP_OPEN, .o = o };
	return call(e, &c, NULL).address;
}

void end_connect(struct end *e, struct address peer)
{
	struct call c = { .op = OP_CONNECT, .peer = peer };
	call(e, &c, NULL);
}

void end_close(struct end *e)
{
	struct call c = { .op = OP_CLOSE };
	int bad = call(e, &c, NULL).value;
	if (bad)
		check(0, "destroying an end's objects: %d calls failed", bad);
}

void pair_open(struct end *a, struct end *b, struct options o, struct address *aa, struct address *ba)
{
	*aa = end_open(a, o);
	*ba = end_open(b, o);
	end_connect(a, *ba);
	end_connect(b, *aa);
}

void pair_close(struct end *a, struct end *b)
{
	end_close(a);
	end_close(b);
}

static int post(struct end *e, enum op op, const struct request *r, int n, int *bad)
{
	static _Thread_local struct call c;
	if (n > MAX_LIST)
		die("list too long");
	c.op = op;
	c.n = n;
	memcpy(c.r, r, (size_t)n * sizeof *r);
	struct answer a = call(e, &c, NULL);
	if (bad)
		*bad = a.bad;
	return a.value;
}

int end_send_list(struct end *e, const struct request *r, int n, int *bad) { return post(e, OP_SEND, r, n, bad); }
int end_recv_list(struct end *e, const struct request *r, int n, int *bad) { return post(e, OP_RECV, r, n, bad); }
int end_send(struct end *e, struct request r) { return post(e, OP_SEND, &r, 1, NULL); }
int end_recv(struct end *e, struct request r) { return post(e, OP_RECV, &r, 1, NULL); }

int end_try(struct end *e, enum which w, struct ibv_wc *wc, unsigned us)
{
	struct call c = { .op = OP_TRY, .which = (int)w, .us = us };
	struct answer a = call(e, &c, NULL);
	*wc = a.wc;
	return a.value;
}

struct ibv_wc end_wait(struct end *e, enum which w)
{
	struct ibv_wc wc;
	if (!end_try(e, w, &wc, WAIT_US))
		die("no %s completion came", w == SENDS ? "send" : "receive");
	return wc;
}

void end_fill(struct end *e, uint64_t offset, uint64_t len, uint32_t seed)
{
	struct call c = { .op = OP_FILL, .offset = offset, .len = len, .seed = seed };
	call(e, &c, NULL);
}

long end_verify(struct end *e, uint64_t offset, uint64_t len, uint32_t seed)
{
	struct call c = { .op = OP_VERIFY, .offset = offset, .len = len, .seed = seed };
	return call(e, &c, NULL).at;
}

long end_verify_soon(struct end *e, uint64_t offset, uint64_t len, uint32_t seed)
{
	uint64_t until = now_us() + 5000000;
	long at;
	while ((at = end_verify(e, offset, len, seed)) >= 0 && now_us() < until)
		;
	return at;
}

void end_write(struct end *e, uint64_t offset, const void *p, uint64_t len)
{
	struct call c = { .op = OP_WRITE, .offset = offset, .len = len };
	call(e, &c, (void *)(uintptr_t)p);
}

void end_read(struct end *e, uint64_t offset, void *p, uint64_t len)
{
	struct call c = { .op = OP_READ, .offset = offset, .len = len };
	call(e, &c, p);
}

int end_modify(struct end *e, enum ibv_qp_state state)
{
	struct call c = { .op = OP_MODIFY, .flag = (int)state };
	return call(e, &c, NULL).value;
}

enum ibv_qp_state end_state(struct end *e)
{
	struct call c = { .op = OP_STATE };
	return (enum ibv_qp_state)call(e, &c, NULL).value;
}

enum ibv_qp_state end_state_soon(struct end *e, enum ibv_qp_state wanted)
{
	uint64_t until = now_us() + WAIT_US;
	enum ibv_qp_state s;
	while ((s = end_state(e)) != wanted && now_us() < until)
		usleep(1000);
	return s;
}

void end_destroy_qp(struct end *e)
{
	struct call c = { .op = OP_DESTROY_QP };
	check_eq(call(e, &c, NULL).value, 0, "ibv_destroy_qp");
}

struct keys end_register(struct end *e, uint64_t offset, uint64_t len, unsigned access, int other_pd)
{
	struct call c = { .op = OP_REGISTER, .offset = offset, .len = len, .n = (int)access, .flag = other_pd };
	return call(e, &c, NULL).keys;
}

void end_deregister(struct end *e)
{
	struct call c = { .op = OP_DEREGISTER };
	check_eq(call(e, &c, NULL).value, 0, "ibv_dereg_mr");
}

int end_arm(struct end *e, int solicited)
{
	struct call c = { .op = OP_ARM, .flag = solicited };
	return call(e, &c, NULL).value;
}

int end_event(struct end *e, int ms)
{
	struct call c = { .op = OP_EVENT, .flag = ms };
	return call(e, &c, NULL).value;
}

int end_async(struct end *e)
{
	struct call c = { .op = OP_ASYNC };
	return call(e, &c, NULL).value;
}

long end_run(struct end *e, long (*f)(struct parts *parts, void *arg), void *arg, size_t len)
{
	struct call c = { .op = OP_RUN, .f = f };
	if (len > RUN_BYTES)
		die("argument too long");
	if (len)
		memcpy(c.arg, arg, len);
	struct answer a = call(e, &c, NULL);
	if (len)
		memcpy(arg, a.arg, len);
	return a.at;
}

struct request one_piece(enum ibv_wr_opcode op, uint64_t id, uint64_t offset, uint32_t len)
{
	return (struct request){ .id = id, .op = op, .flags = IBV_SEND_SIGNALED, .pieces = 1, .piece = { { offset, len, 0 } } };
}

struct ibv_wc end_access(struct end *e, enum ibv_wr_opcode op, uint64_t offset, uint32_t len, uint64_t addr, uint32_t rkey)
{
	struct request r = one_piece(op, 5, offset, len);
	r.raddr = addr;
	r.rkey = rkey;
	r.compare_add = 1;
	if (end_send(e, r))
		die("ibv_post_send");
	return end_wait(e, SENDS);
}
