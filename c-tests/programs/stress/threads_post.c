/*
 * Threads of one process post to another process over shared memory, by ibv_post_send lists and by
 * ibv_wr_start to ibv_wr_complete. Threads share QPs, SRQs and CQs; traffic.h describes the
 * account.
 *
 * threads_post [SEED [COUNT]]: COUNT crowds of each transport. TEST_SEED sets the first seed as
 * well.
 */
#include "partner.h"
#include "traffic/traffic.h"

static int both(void *arg)
{
	(void)arg;
	meet();
	return 0;
}

static int alive(void *arg)
{
	(void)arg;
	return 0;
}

int main(int argc, char **argv)
{
	static const char *const types[] = { "RC", "UC", "XRC", "UD", "tag matching" };
	const char *given = argc > 1 ? argv[1] : getenv("TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : 1, count = argc > 2 ? strtoull(argv[2], NULL, 0) : 4;
	struct traffic_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED)
		die("mmap");
	partner_fork();
	struct ibv_context *ctx = open_device();
	for (int type = 0; type < CROWD_TYPES; type++) {
		uint64_t messages = 0, adds = 0, threads = 0;
		for (uint64_t i = 0; i < count; i++) {
			static struct traffic c;
			char name[40];
			snprintf(name, sizeof name, "seed %llu", (unsigned long long)(seed + i));
			meet();
			if (!role)
				memset((void *)board, 0, sizeof *board);
			meet();
			c = (struct traffic){ .board = board, .plan = traffic_plan(seed + i, type, 200), .role = role, .name = name, .ctx = ctx, .together = both, .is_dead = alive };
			traffic_run(&c);
			messages += board->received;
			adds += board->adds;
			threads += (uint64_t)c.plan.posters;
		}
		if (!role)
			check(messages > 0, "%s: seeds %llu to %llu, %llu threads, %llu messages, %llu additions, each once", types[type], (unsigned long long)seed,
			      (unsigned long long)(seed + count - 1), (unsigned long long)threads, (unsigned long long)messages, (unsigned long long)adds);
		else
			check(1, "%s", types[type]);
	}
	check_eq(ibv_close_device(ctx), 0, "ibv_close_device");
	return partner_finish();
}
