/*
 * What poison=1 does: poison wrong|right. Both fail a send and count what is outstanding down by completions. The wrong one asks the opcode which queue a
 * completion is of, also of failed ones, where it is undefined; the right one knows that from wr_id. It prints what it counted wrong, and exits with 1 then.
 */
#include "pair.h"

static int result;

static void count(void)
{
	int sends = 2, receives = 1;
	struct ibv_sge sge = piece(64);
	pair();
	want(!receive(b, sge), "ibv_post_recv");
	want(!post(a, request(IBV_WR_SEND, &sge, 1)), "ibv_post_send");
	while (sends + receives) {
		struct ibv_wc wc = done(cq);
		int sent = wrong ? wc.opcode == IBV_WC_SEND : wc.wr_id == 7;
		int received = wrong ? wc.opcode == IBV_WC_RECV && wc.byte_len <= 64 : wc.wr_id == 9;
		if (!sent && !received) {
			printf("status %d, opcode %#x, byte_len %#x, sl %#x\n", wc.status, (unsigned)wc.opcode, wc.byte_len, wc.sl);
			result = 1;
			break;
		}
		sends -= sent;
		receives -= received;
		/* The second finds no receive. */
		if (sends == 1 && !receives)
			want(!post(a, request(IBV_WR_SEND, &sge, 1)), "ibv_post_send");
	}
}

int main(int argc, char **argv)
{
	static const struct misuse cases[] = { { "POISON", count } };
	char *args[] = { argv[0], "POISON", argc > 1 ? argv[1] : "wrong", NULL };
	int ended = run_case(3, args, cases, 1);
	return ended ? ended : result;
}
