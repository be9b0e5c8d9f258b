/*
 * The setting poison=1: poison wrong|right. Both variants fail a send and count outstanding
 * requests down by completions. The wrong variant takes the queue of a completion from its opcode,
 * which is undefined for failed completions; the right one takes it from wr_id. A wrong count is
 * printed, with exit status 1.
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
