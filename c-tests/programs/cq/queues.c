/*
 * CQs that no thread polls while their thread waits at another CQ, over shared memory. Their
 * messages make progress, and not only when the service thread wakes. Within one process, between
 * two processes that both wait for their sends first, and with several threads.
 */
#include "partner.h"
#include <dirent.h>

enum { MESSAGES = 4000, PAIRS = 5, THREADS = 2, SIZE = 64 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static uint16_t lid;

struct side {
	struct ibv_cq *scq, *rcq, *idle;
	struct ibv_qp *sender[PAIRS], *receiver[PAIRS];
	struct ibv_mr *mr;
	unsigned char memory[2 * SIZE];
	int wrong;
};

static struct ibv_qp *new_qp(struct ibv_cq *scq, struct ibv_cq *rcq)
{
	struct ibv_qp_init_attr qa = { .send_cq = scq, .recv_cq = rcq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 } };
	struct ibv_qp *made = ibv_create_qp(pd, &qa);
	if (!made)
		die("ibv_create_qp");
	return made;
}

static void connect_qp(struct ibv_qp *q, uint32_t to)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int bad = ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to, .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 1, .ah_attr = { .dlid = lid, .port_num = 1 } };
	bad |= ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	bad |= ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					    IBV_QP_MAX_QP_RD_ATOMIC);
	if (bad)
		die("ibv_modify_qp");
}

static void queues_of(struct side *s)
{
	s->scq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	s->idle = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	s->rcq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	s->mr = ibv_reg_mr(pd, s->memory, sizeof s->memory, IBV_ACCESS_LOCAL_WRITE);
	if (!s->scq || !s->rcq || !s->idle || !s->mr)
		die("queues");
}

static void end_queues(struct side *s)
{
	int bad = 0;
	for (int i = 0; i < PAIRS; i++) {
		bad |= ibv_destroy_qp(s->sender[i]);
		bad |= s->receiver[i] == s->sender[i] ? 0 : ibv_destroy_qp(s->receiver[i]);
	}
	bad |= ibv_destroy_cq(s->scq) | ibv_destroy_cq(s->rcq) | ibv_destroy_cq(s->idle) | ibv_dereg_mr(s->mr);
	check_eq(bad, 0, "everything is destroyed");
}

static void post(struct side *s, int n, int sends)
{
	struct ibv_sge from = { (uintptr_t)s->memory, SIZE, s->mr->lkey }, to = { (uintptr_t)s->memory + SIZE, SIZE, s->mr->lkey };
	struct ibv_recv_wr rw = { .wr_id = (uint64_t)n, .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr sw = { .wr_id = (uint64_t)n, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = (uint32_t)n }, *bad_send;
	if (sends ? ibv_post_send(s->sender[n % PAIRS], &sw, &bad_send) : ibv_post_recv(s->receiver[n % PAIRS], &rw, &bad_recv))
		die("posting");
}

static void take(struct side *s, struct ibv_cq *cq, int n)
{
	struct ibv_wc wc;
	wait_completion(cq, &wc);
	s->wrong += wc.status || wc.wr_id != (uint64_t)n || (cq == s->rcq && wc.imm_data != (uint32_t)n);
}

/* Voluntary switches of the adapter's thread: how often it slept. */
static long sleeps(void)
{
	char path[300], text[300];
	long found = -1;
	DIR *d = opendir("/proc/self/task");
	for (struct dirent *e; d && (e = readdir(d));) {
		int ours = 0;
		snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
		FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
		while (f && fgets(text, sizeof text, f)) {
			ours |= !strcmp(text, "Name:\tfv-soft\n");
			if (ours && !strncmp(text, "voluntary_ctxt_switches:", 24))
				found = atol(text + 24);
		}
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return found;
}

static void *within(void *arg)
{
	struct side *s = arg;
	for (int n = 0; n < MESSAGES; n++) {
		post(s, n, 0);
		post(s, n, 1);
		take(s, s->scq, n);
		take(s, s->rcq, n);
	}
	return NULL;
}

static void in_one_process(int threads)
{
	static struct side side[THREADS];
	pthread_t thread[THREADS];
	for (int t = 0; t < threads; t++) {
		queues_of(&side[t]);
		for (int i = 0; i < PAIRS; i++) {
			side[t].sender[i] = new_qp(side[t].scq, side[t].scq);
			side[t].receiver[i] = new_qp(side[t].rcq, side[t].rcq);
			connect_qp(side[t].sender[i], side[t].receiver[i]->qp_num);
			connect_qp(side[t].receiver[i], side[t].sender[i]->qp_num);
		}
	}
	long before = sleeps(), wrong = 0;
	for (int t = 0; t < threads; t++)
		if (pthread_create(&thread[t], NULL, within, &side[t]))
			die("pthread_create");
	for (int t = 0; t < threads; t++) {
		pthread_join(thread[t], NULL);
		wrong += side[t].wrong;
	}
	long slept = sleeps() - before;
	check_eq(wrong, 0, "wrong completions, %d threads in one process", threads);
	/* The service thread looks at all queues every few milliseconds, however slow the machine
	 * is. */
	check(slept < MESSAGES / 8, "%d threads in one process: the adapter's thread does not carry the messages: %s", threads,
	      slept < MESSAGES / 8 ? "yes" : "it woke too often");
	for (int t = 0; t < threads; t++)
		end_queues(&side[t]);
}

/* Both processes send and wait for their sends first, so each needs the peer process to receive
 * meanwhile. */
static void between_two(void)
{
	struct side s = { 0 };
	uint32_t mine[PAIRS], his[PAIRS];
	queues_of(&s);
	for (int i = 0; i < PAIRS; i++) {
		s.sender[i] = s.receiver[i] = new_qp(s.scq, s.rcq);
		mine[i] = s.sender[i]->qp_num;
	}
	swap(mine, his, sizeof mine);
	for (int i = 0; i < PAIRS; i++)
		connect_qp(s.sender[i], his[i]);
	for (int i = 0; i < PAIRS; i++)
		post(&s, i, 0);
	meet();
	for (int n = 0; n < MESSAGES; n++) {
		post(&s, n, 1);
		take(&s, s.scq, n);
		take(&s, s.rcq, n);
		post(&s, n + PAIRS, 0);
	}
	check_eq(s.wrong, 0, "wrong completions, between two processes");
	meet();
	end_queues(&s);
}

int main(void)
{
	struct ibv_port_attr port;
	partner_fork();
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	if (!pd || ibv_query_port(ctx, 1, &port))
		die("set up");
	lid = port.lid;
	/* In turns: with few processors both processes would only wait for each other. */
	for (int turn = 0; turn < 2; turn++) {
		if (turn == role) {
			in_one_process(1);
			in_one_process(THREADS);
		}
		meet();
	}
	between_two();
	check_eq(ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0, "and the device closed");
	return partner_finish();
}
