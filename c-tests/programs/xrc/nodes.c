/* The nodes of xrc.c: their operations and processes. */
#include "nodes.h"

struct node node[NODES];
int file;
static int channel[NODES];	/* to the process that has the node; -1: this one */
static pid_t process[NODES];

struct ibv_xrcd *open_domain(struct ibv_context *ctx, int fd, int flags)
{
	struct ibv_xrcd_init_attr a = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = flags };
	return ibv_open_xrcd(ctx, &a);
}

struct ibv_srq *xrc_queue(struct node *n, struct ibv_xrcd *xrcd, uint32_t depth)
{
	struct ibv_srq_init_attr_ex a = { .attr = { .max_wr = depth, .max_sge = 2 },
					  .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
					  .srq_type = IBV_SRQT_XRC,
					  .pd = n->pd,
					  .xrcd = xrcd,
					  .cq = n->cq };
	return ibv_create_srq_ex(n->ctx, &a);
}

struct ibv_qp *receiving_qp(struct ibv_context *ctx, struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex a = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	return ibv_create_qp_ex(ctx, &a);
}

int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
				 .port_num = 1,
				 .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int send_one(struct node *n, const unsigned long long *a)
{
	enum ibv_wr_opcode op = a[0];
	struct ibv_sge sge = { (uintptr_t)n->buf + a[2], a[3], n->mr->lkey };
	struct ibv_send_wr w = { .wr_id = a[1], .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0x1234) }, *bad;
	w.qp_type.xrc.remote_srqn = a[4];
	if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		w.wr.atomic.remote_addr = a[5];
		w.wr.atomic.rkey = a[6];
		w.wr.atomic.compare_add = a[7];
		w.wr.atomic.swap = a[7] + 1;
	} else {
		w.wr.rdma.remote_addr = a[5];
		w.wr.rdma.rkey = a[6];
	}
	if (a[7] != 99)
		return ibv_post_send(n->sender, &w, &bad);
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(n->sender);
	ibv_wr_start(x);
	x->wr_id = a[1];
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(x);
	ibv_wr_set_xrc_srqn(x, a[4]);
	ibv_wr_set_sge(x, sge.lkey, sge.addr, sge.length);
	return ibv_wr_complete(x);
}

enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	return ibv_query_qp(qp, &a, IBV_QP_STATE, &i) ? 99 : a.qp_state;
}

/*
 * Takes the port of this process down or up; returns the number of its contexts without an event.
 */
static int port(int down)
{
	int bad = 0;
	control(down ? "port-down" : "port-up");
	for (int i = 0; i < NODES; i++)
		bad += node[i].ctx && !next_of_port(node[i].ctx, down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE);
	return bad;
}

/* Executes a call for a node of this process. */
static struct reply perform(struct call c)
{
	struct node *n = &node[c.node];
	struct reply r = { 0 };
	const unsigned long long *a = c.a;
	switch (c.op) {
	case OPEN: {
		n->ctx = open_device();
		n->pd = ibv_alloc_pd(n->ctx);
		n->cq = ibv_create_cq(n->ctx, 256, NULL, NULL, 0);
		n->buf = calloc(1, SIZE);
		n->mr = ibv_reg_mr(n->pd, n->buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
		if (!n->mr || !n->cq)
			die("set up");
		if (c.node == SENDER)
			break;
		n->xrcd = open_domain(n->ctx, file, O_CREAT);
		n->srq = n->xrcd ? xrc_queue(n, n->xrcd, DEPTH) : NULL;
		if (!n->srq)
			die("an XRC queue: %s", strerror(errno));
		break;
	}
	case CLOSE:
		r.v |= n->srq && ibv_destroy_srq(n->srq);
		r.v |= n->foreign && ibv_destroy_srq(n->foreign);
		r.v |= n->strange && ibv_close_xrcd(n->strange);
		r.v |= n->xrcd && ibv_close_xrcd(n->xrcd);
		r.v |= ibv_destroy_cq(n->cq) || ibv_dereg_mr(n->mr) || ibv_dealloc_pd(n->pd) || ibv_close_device(n->ctx);
		free(n->buf);
		memset(n, 0, sizeof *n);
		break;
	case XRCD: {
		struct ibv_xrcd *x = open_domain(n->ctx, file, a[0]);
		r.v = x ? 0 : errno;
		if (x && ibv_close_xrcd(x))
			r.v = -1;
		break;
	}
	case CLOSE_XRCD:
		r.v = ibv_close_xrcd(n->xrcd);
		break;
	case SRQ_NUM: {
		uint32_t number = 0;
		r.v = ibv_get_srq_num(n->srq, &number) ? -1 : (long long)number;
		break;
	}
	case FOREIGN_SRQ: {
		uint32_t number = 0;
		n->strange = open_domain(n->ctx, -1, O_CREAT);
		n->foreign = n->strange ? xrc_queue(n, n->strange, 4) : NULL;
		r.v = !n->foreign || ibv_get_srq_num(n->foreign, &number) ? -1 : (long long)number;
		break;
	}
	case RECEIVER:
		n->receiver = receiving_qp(n->ctx, n->xrcd);
		if (!n->receiver || to_init(n->receiver))
			die("an XRC receive QP: %s", strerror(errno));
		r.v = n->receiver->qp_num;
		break;
	case SEND_QP: {
		struct ibv_qp_init_attr_ex q = { .send_cq = n->cq,
						 .qp_type = IBV_QPT_XRC_SEND,
						 .cap = { .max_send_wr = DEPTH, .max_send_sge = 2, .max_inline_data = 64 },
						 .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
						 .send_ops_flags = IBV_QP_EX_WITH_SEND,
						 .pd = n->pd };
		n->sender = ibv_create_qp_ex(n->ctx, &q);
		if (!n->sender || to_init(n->sender))
			die("an XRC send QP: %s", strerror(errno));
		r.v = n->sender->qp_num;
		break;
	}
	case RTR: {
		union ibv_gid gid;
		ibv_query_gid(n->ctx, 1, 0, &gid);
		if (hosts_differ())
			memcpy(&gid, &a[1], sizeof gid);
		struct ibv_qp_attr q = { .qp_state = IBV_QPS_RTR,
					 .path_mtu = IBV_MTU_1024,
					 .dest_qp_num = a[0],
					 .max_dest_rd_atomic = 4,
					 .min_rnr_timer = 1,
					 .ah_attr = { .is_global = 1, .grh = { .dgid = gid, .sgid_index = hosts_differ(), .hop_limit = 1 }, .port_num = 1 } };
		int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
		if (c.node == SENDER)
			r.v = ibv_modify_qp(n->sender, &q, mask);
		else
			r.v = ibv_modify_qp(n->receiver, &q, mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
		break;
	}
	case RTS: {
		struct ibv_qp_attr q = { .qp_state = IBV_QPS_RTS, .timeout = a[1] ? a[1] : hosts_differ() ? 15 : 8, .retry_cnt = hosts_differ() ? 2 : 1, .rnr_retry = a[0], .max_rd_atomic = 4 };
		if (c.node == SENDER)
			r.v = ibv_modify_qp(n->sender, &q,
					    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
		else
			r.v = ibv_modify_qp(n->receiver, &q, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN);
		break;
	}
	case POST: {
		struct ibv_sge s = { (uintptr_t)n->buf + a[1], a[2], n->mr->lkey };
		struct ibv_recv_wr w = { .wr_id = a[0], .sg_list = &s, .num_sge = 1 }, *bad;
		r.v = ibv_post_srq_recv(n->srq, &w, &bad);
		break;
	}
	case SEND:
		r.v = send_one(n, a);
		break;
	case WAIT:
		wait_completion(n->cq, &r.wc);
		break;
	case TRY:
		r.v = try_completion(n->cq, &r.wc, a[0]);
		break;
	case FILL:
		fill(n->buf + a[0], a[1], a[2]);
		break;
	case VERIFY:
		r.v = verify(n->buf + a[0], a[1], a[2]);
		break;
	case WORD:
		memcpy(&r.v, n->buf + a[0], 8);
		break;
	case SET_WORD:
		memcpy(n->buf + a[0], &a[1], 8);
		break;
	case ADDR:
		r.v = (uintptr_t)n->buf;
		break;
	case RKEY:
		r.v = n->mr->rkey;
		break;
	case ASYNC:
		r.v = async_event(n->ctx, NULL);
		break;
	case STATE:
		r.v = state_of(c.node == SENDER ? n->sender : n->receiver);
		break;
	case STATE_SOON:
		for (int i = 0; i < 1000; i++) {
			r.v = state_of(c.node == SENDER ? n->sender : n->receiver);
			if (r.v == (long long)a[0])
				break;
			usleep(1000);
		}
		break;
	case DESTROY_QPS:
		if (n->sender)
			r.v |= ibv_destroy_qp(n->sender);
		if (n->receiver)
			r.v |= ibv_destroy_qp(n->receiver);
		n->sender = n->receiver = NULL;
		break;
	case DESTROY_SRQ:
	case DESTROY_SRQ_ONLY:
		r.v = ibv_destroy_srq(n->srq);
		n->srq = c.op == DESTROY_SRQ ? xrc_queue(n, n->xrcd, DEPTH) : NULL;
		break;
	case LIMIT: {
		struct ibv_srq_attr s = { .srq_limit = a[0] };
		r.v = ibv_modify_srq(n->srq, &s, IBV_SRQ_LIMIT);
		break;
	}
	case OPEN_QP: {
		/* By number, in the domain of the node or (1) in another one, as type a[2]. */
		struct ibv_xrcd *own = a[1] ? open_domain(n->ctx, -1, O_CREAT) : n->xrcd;
		struct ibv_qp_open_attr q = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
					      .qp_num = a[0],
					      .xrcd = own,
					      .qp_context = n,
					      .qp_type = a[2] ? (enum ibv_qp_type)a[2] : IBV_QPT_XRC_RECV };
		struct ibv_qp *qp = ibv_open_qp(n->ctx, &q);
		r.v = qp ? 0 : errno;
		if (qp) {
			n->opened = qp;
			if (qp->qp_num != a[0] || qp->qp_type != IBV_QPT_XRC_RECV || qp->qp_context != n || qp->context != n->ctx)
				r.v = -1;
		}
		if (a[1] && ibv_close_xrcd(own))
			r.v = -2;
		break;
	}
	case CLOSE_QP:
		r.v = ibv_destroy_qp(n->opened);
		n->opened = NULL;
		break;
	case OPENED_STATE:
		r.v = state_of(n->opened);
		break;
	case PORT:
		r.v = port(a[0]);
		break;
	case GID: {
		union ibv_gid gid;
		ibv_query_gid(n->ctx, 1, hosts_differ(), &gid);
		memcpy(&r.v, gid.raw + 8 * a[0], 8);
		break;
	}
	case NOTHING:
		break;
	}
	return r;
}

static void serve(int fd)
{
	struct call c;
	while (read(fd, &c, sizeof c) == sizeof c) {
		struct reply r = perform(c);
		if (write(fd, &r, sizeof r) != sizeof r)
			break;
	}
	_exit(0);
}

struct reply on_(int at, enum op op, const unsigned long long *a)
{
	struct call c = { .node = at, .op = op };
	memcpy(c.a, a, sizeof c.a);
	if (channel[at] < 0)
		return perform(c);
	struct reply r;
	if (write(channel[at], &c, sizeof c) != sizeof c || read(channel[at], &r, sizeof r) != sizeof r)
		die("the process of node %d is gone", at);
	return r;
}

void begin(int processes)
{
	for (int i = 0; i < NODES; i++) {
		channel[i] = -1;
		if (processes == 1 || (processes == 2 && i == SENDER))
			continue;
		if (processes == 2 && i == OTHER) {
			channel[i] = channel[HOME];
			continue;
		}
		int fds[2];
		if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds))
			die("socketpair");
		process[i] = fork();
		if (!process[i]) {
			for (int j = 0; j < i; j++)
				close(channel[j]);
			close(fds[0]);
			if (i == SENDER)
				go_to_host();
			serve(fds[1]);
		}
		close(fds[1]);
		channel[i] = fds[0];
	}
}

void end(void)
{
	int status;
	for (int i = 0; i < NODES; i++)
		if (process[i]) {
			close(channel[i]);
			check(waitpid(process[i], &status, 0) == process[i] && WIFEXITED(status) && !WEXITSTATUS(status), "process %d ends well", i);
			process[i] = 0;
		}
}

void kill_node(int at)
{
	kill(process[at], SIGKILL);
	waitpid(process[at], NULL, 0);
	close(channel[at]);
	process[at] = 0;
}
