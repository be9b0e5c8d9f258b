/*
 * Repeated misuse, for settings that limit reports: repeated_misuse place (a thousand times in one
 * place), repeated_misuse places (in twenty), repeated_misuse follows (two errors of one QP),
 * repeated_misuse warning (an error and a warning).
 */
#include "pair.h"

static const char *chosen;

static void bad(void)
{
	want(!ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_REMOTE_WRITE), "EINVAL");
}

#define FOUR(call) call; call; call; call

static void often(void)
{
	if (!strcmp(chosen, "place"))
		for (int i = 0; i < 1000; i++)
			bad();
	if (!strcmp(chosen, "places")) {
		FOUR(bad());
		FOUR(bad());
		FOUR(bad());
		FOUR(bad());
		FOUR(bad());
	}
	if (!strcmp(chosen, "follows") || !strcmp(chosen, "warning")) {
		struct ibv_sge sge = piece(64);
		pair();
		if (!strcmp(chosen, "follows")) {
			sge.lkey = mr->rkey;
			post_and_poll(request(IBV_WR_SEND, &sge, 1));
			want(to_rts(a, 64, 1), "EINVAL");
		} else {
			/* No receive is posted: that is a warning. */
			post_and_poll(request(IBV_WR_SEND, &sge, 1));
			bad();
		}
	}
}

int main(int argc, char **argv)
{
	static const struct misuse cases[] = { { "OFTEN", often } };
	char *args[] = { argv[0], "OFTEN", "wrong", NULL };
	chosen = argc > 1 ? argv[1] : "";
	return run_case(3, args, cases, 1);
}
