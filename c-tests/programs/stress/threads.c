/*
 * Several threads share one QP and one CQ over shared memory: verbs are thread-safe. Each request
 * executes once, and each thread's requests arrive in posting order.
 */
#include "rig.h"

enum { THREADS = 2, EACH = 10000, WINDOW = 32 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *scq, *rcq;
static struct ibv_qp *qp[2];
static uint64_t buf[2][2 * THREADS * WINDOW];
static int window[THREADS];

static void *poster(void *arg)
{
	unsigned me = (unsigned)(uintptr_t)arg;
	for (uint64_t i = 0; i < EACH; i++) {
		while (__atomic_load_n(&window[me], __ATOMIC_ACQUIRE) >= WINDOW)
			;
		__atomic_add_fetch(&window[me], 1, __ATOMIC_ACQ_REL);
		uint64_t *slot = &buf[0][me * WINDOW + i % WINDOW];
		*slot = (uint64_t)me << 32 | i;
		struct ibv_sge sg = { (uintptr_t)slot, 8, mr->lkey };
		struct ibv_send_wr w = { .wr_id = *slot, .sg_list = &sg, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		int err = ibv_post_send(qp[0], &w, &bad);
		if (err)
			die("ibv_post_send: %s", strerror(err));
	}
	return NULL;
}

static int sent[THREADS], wrong;

/* Two threads poll one CQ. */
static void *collector(void *arg)
{
	(void)arg;
	while (__atomic_load_n(&sent[0], __ATOMIC_ACQUIRE) + __atomic_load_n(&sent[1], __ATOMIC_ACQUIRE) < THREADS * EACH) {
		struct ibv_wc w[4];
		int n = ibv_poll_cq(scq, 4, w);
		for (int i = 0; i < n; i++) {
			unsigned t = (unsigned)(w[i].wr_id >> 32);
			if (w[i].status || t >= THREADS)
				die("send completion: %s, id %llx", ibv_wc_status_str(w[i].status), (unsigned long long)w[i].wr_id);
			__atomic_add_fetch(&sent[t], 1, __ATOMIC_ACQ_REL);
			__atomic_sub_fetch(&window[t], 1, __ATOMIC_ACQ_REL);
		}
	}
	return NULL;
}

static void receive(uint64_t i)
{
	uint64_t *slot = &buf[1][i % (2 * THREADS * WINDOW)];
	struct ibv_sge sg = { (uintptr_t)slot, 8, mr->lkey };
	struct ibv_recv_wr w = { .wr_id = i, .sg_list = &sg, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp[1], &w, &bad))
		die("ibv_post_recv");
}

static void connect_to(struct ibv_qp *q, uint32_t other, union ibv_gid gid, enum ibv_mtu mtu)
{
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int err = ibv_modify_qp(q, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				   .path_mtu = mtu,
				   .dest_qp_num = other,
				   .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 1,
				   .ah_attr = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 1 }, .port_num = 1 } };
	err = err ? err
		  : ibv_modify_qp(q, &at,
				  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					  IBV_QP_MIN_RNR_TIMER);
	at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .max_rd_atomic = 1, .retry_cnt = 7, .rnr_retry = 7, .timeout = 14 };
	err = err ? err
		  : ibv_modify_qp(q, &at,
				  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT);
	if (err)
		die("ibv_modify_qp: %s", strerror(err));
}

/* Objects come and go in several threads at once. */
static void *churn(void *arg)
{
	(void)arg;
	for (int i = 0; i < 200; i++) {
		static unsigned char page[4096];
		struct ibv_mr *m = ibv_reg_mr(pd, page, sizeof page, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_cq *c = ibv_create_cq(ctx, 8, NULL, NULL, 0);
		struct ibv_qp_init_attr qa = { .send_cq = c, .recv_cq = c, .qp_type = IBV_QPT_RC, .cap = { 2, 2, 1, 1, 0 } };
		struct ibv_qp *q = c ? ibv_create_qp(pd, &qa) : NULL;
		if (!m || !q || ibv_destroy_qp(q) || ibv_destroy_cq(c) || ibv_dereg_mr(m))
			__atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

int main(void)
{
	union ibv_gid gid;
	struct ibv_port_attr port;
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	scq = ibv_create_cq(ctx, 2 * THREADS * WINDOW, NULL, NULL, 0);
	rcq = ibv_create_cq(ctx, 2 * THREADS * WINDOW, NULL, NULL, 0);
	if (!pd || !mr || !scq || !rcq || ibv_query_gid(ctx, 1, 0, &gid) || ibv_query_port(ctx, 1, &port))
		die("set up");
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr qa = { .send_cq = scq, .recv_cq = rcq, .qp_type = IBV_QPT_RC, .cap = { THREADS * WINDOW, 2 * THREADS * WINDOW, 1, 1, 0 } };
		qp[i] = ibv_create_qp(pd, &qa);
		if (!qp[i])
			die("ibv_create_qp");
	}
	for (int i = 0; i < 2; i++)
		connect_to(qp[i], qp[!i]->qp_num, gid, port.active_mtu);
	for (uint64_t i = 0; i < 2 * THREADS * WINDOW; i++)
		receive(i);
	pthread_t t[THREADS], c[2];
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, poster, (void *)i);
	for (int i = 0; i < 2; i++)
		pthread_create(&c[i], NULL, collector, NULL);
	uint64_t next[THREADS] = { 0 }, end = now_us() + 3 * WAIT_US;
	uint64_t received = 0;
	int out_of_turn = 0;
	while (received < THREADS * EACH && now_us() < end) {
		struct ibv_wc w;
		if (ibv_poll_cq(rcq, 1, &w) != 1)
			continue;
		if (w.status || w.wr_id != received)
			die("receive %llu: %s, id %llu", (unsigned long long)received, ibv_wc_status_str(w.status), (unsigned long long)w.wr_id);
		uint64_t v = buf[1][received % (2 * THREADS * WINDOW)];
		unsigned who = (unsigned)(v >> 32);
		if (who >= THREADS)
			die("message %llu is %llx", (unsigned long long)received, (unsigned long long)v);
		out_of_turn += (v & 0xffffffff) != next[who]++;
		receive(received + 2 * THREADS * WINDOW);
		received++;
	}
	check_eq((long long)received, THREADS * EACH, "messages of %d threads through one QP", THREADS);
	check_eq(out_of_turn, 0, "messages out of their thread's order");
	if (received < THREADS * EACH)
		exit(finish());
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(c[i], NULL);
	check(sent[0] == EACH && sent[1] == EACH, "send completions, collected by two threads: %d and %d", sent[0], sent[1]);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, churn, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	check_eq(wrong, 0, "failures while %d threads create and destroy objects", THREADS);
	ibv_destroy_qp(qp[0]);
	ibv_destroy_qp(qp[1]);
	ibv_destroy_cq(scq);
	ibv_destroy_cq(rcq);
	ibv_dereg_mr(mr);
	check_eq(ibv_dealloc_pd(pd), 0, "ibv_dealloc_pd");
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	return finish();
}
