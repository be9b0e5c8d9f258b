/*
 * Nanoseconds per message for a thread that waits at its send CQ and then at its receive CQ, with
 * pairs of QPs in one process. Progress of one CQ depends on the wait at the other CQ.
 *
 * usage: queues MESSAGES [one|two] [PAIRS] [THREADS]
 *
 * "one": both QPs of a pair share a CQ. "two", the default: each QP has its own CQ. Each thread has
 * its own pairs and CQs, and uses its pairs in turn.
 */
#include "one_process.h"
#include <pthread.h>
#include <time.h>

enum { MOST = 64 };

static long messages;
static int pairs = 1, threads = 1, one_queue;
static pthread_barrier_t ready;

struct side {
	struct ibv_cq *scq, *rcq;
	struct ibv_qp *sender[MOST], *receiver[MOST];
	struct ibv_mr *mr;
	unsigned char memory[4096];
	double ns;
};

static void set_up(struct side *s)
{
	s->scq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	s->rcq = one_queue ? s->scq : ibv_create_cq(ctx, 256, NULL, NULL, 0);
	s->mr = ibv_reg_mr(pd, s->memory, sizeof s->memory, IBV_ACCESS_LOCAL_WRITE);
	if (!s->scq || !s->rcq || !s->mr)
		fail("queues");
	for (int i = 0; i < pairs; i++) {
		struct ibv_qp_init_attr from = { .send_cq = s->scq, .recv_cq = s->scq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 } };
		struct ibv_qp_init_attr to = { .send_cq = s->rcq, .recv_cq = s->rcq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 } };
		s->sender[i] = ibv_create_qp(pd, &from);
		s->receiver[i] = ibv_create_qp(pd, &to);
		if (!s->sender[i] || !s->receiver[i])
			fail("ibv_create_qp");
		connect_qp(s->sender[i], s->receiver[i]->qp_num);
		connect_qp(s->receiver[i], s->sender[i]->qp_num);
	}
}

/* Takes one completion of this kind; a shared CQ returns completions of both kinds in any order. */
static void await(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	if (n < 0 || wc.status)
		fail("a completion");
}

static void pass(struct side *s, long count)
{
	for (long n = 0; n < count; n++) {
		struct ibv_sge sge = { (uintptr_t)s->memory, 8, s->mr->lkey };
		struct ibv_recv_wr rw = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
		struct ibv_send_wr sw = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;

		if (ibv_post_recv(s->receiver[n % pairs], &rw, &bad_recv) || ibv_post_send(s->sender[n % pairs], &sw, &bad_send))
			fail("posting");
		await(s->scq);
		await(s->rcq);
	}
}

static void *run(void *arg)
{
	struct side *s = arg;
	struct timespec begin, end;

	pass(s, messages / 10 + 1);
	pthread_barrier_wait(&ready);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	pass(s, messages);
	clock_gettime(CLOCK_MONOTONIC, &end);
	s->ns = ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / (double)messages;
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread[MOST];
	static struct side side[MOST];
	double sum = 0;

	messages = argc > 1 ? atol(argv[1]) : 0;
	one_queue = argc > 2 && !strcmp(argv[2], "one");
	pairs = argc > 3 ? atoi(argv[3]) : 1;
	threads = argc > 4 ? atoi(argv[4]) : 1;
	if (messages < 1 || pairs < 1 || pairs > MOST || threads < 1 || threads > MOST) {
		fprintf(stderr, "usage: queues MESSAGES [one|two] [PAIRS] [THREADS]\n");
		return 2;
	}
	open_device();
	pthread_barrier_init(&ready, NULL, (unsigned)threads);
	for (int i = 0; i < threads; i++)
		set_up(&side[i]);
	for (int i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, run, &side[i]))
			fail("pthread_create");
	for (int i = 0; i < threads; i++) {
		pthread_join(thread[i], NULL);
		sum += side[i].ns;
	}
	printf("%.0f\n", sum / threads);
	return 0;
}
