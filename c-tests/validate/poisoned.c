/* MR-10, which needs a program built with -fsanitize=address: reads buffers, one of them before its
 * completion was polled. poisoned MR-10 wrong|right. See misuse.c. */
#include "pair.h"

static volatile unsigned char seen;

static void mr_10(void)
{
	unsigned char *arrives = buf + SIZE / 2;
	struct ibv_sge from = piece(20000), to = from;
	to.addr = (uintptr_t)arrives;
	pair();
	/* Lengths that soft copies in different ways. */
	for (unsigned length = 3; length <= 20000; length *= 9) {
		from.length = to.length = length;
		want(!receive(b, to), "a receive");
		/* The first byte belongs to a word that is entirely in flight. */
		if (wrong && length > 2000)
			seen += arrives[0];
		want(!post(a, request(IBV_WR_SEND, &from, 1)), "ibv_post_send");
		ok(cq);
		ok(cq);
		seen += arrives[0];
		want(!post(a, request(IBV_WR_RDMA_READ, &to, 1)), "ibv_post_send");
		ok(cq);
		seen += arrives[length - 1];
	}
	/* What is taken back is the program's again. */
	want(!receive(b, to) && !ibv_destroy_qp(b), "a receive, and ibv_destroy_qp");
	b = NULL;
	seen += arrives[0];
}

static const struct misuse cases[] = { { "MR-10", mr_10 } };

int main(int argc, char **argv)
{
	return run_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
