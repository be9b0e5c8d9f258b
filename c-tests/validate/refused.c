/*
 * Attributes that ibv_modify_qp refuses by EINVAL and that no check covers: refused CASE
 * wrong|right. QP-03 prints the attributes, the likely culprit first. Without arguments the program
 * lists the cases.
 */
#include "pair.h"

static const char *chosen;

static int is(const char *which)
{
	return wrong && !strcmp(chosen, which);
}

static void change(void)
{
	int alternate = !strcmp(chosen, "alternate"), failed = !strcmp(chosen, "failed");
	a = make(IBV_QPT_RC, cq, NULL, 0);
	to_init(a);
	struct ibv_qp_attr attr = ready(a);
	int mask = rtr_mask(a);
	if (is("family"))
		memcpy(attr.ah_attr.grh.dgid.raw, (unsigned char[16]){ [12] = 10, [15] = 1 }, 16);
	if (is("group"))
		memset(attr.ah_attr.grh.dgid.raw, 0xff, 16);
	if (is("empty"))
		attr.ah_attr.grh.sgid_index = 31;
	if (alternate && wrong) {
		attr.alt_ah_attr = attr.ah_attr;
		attr.alt_port_num = 7;
		mask |= IBV_QP_ALT_PATH;
	}
	if (failed && wrong) {
		want(!ibv_modify_qp(a, &attr, mask) && !to_rts(a, 8, 1), "RTS");
		/* The QP fails by itself: the peer's WRITE names memory outside of the region. */
		struct ibv_sge sge = piece(64);
		struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, 1);
		wr.wr.rdma.remote_addr = (uintptr_t)buf + SIZE;
		want(!post(a, wr), "ibv_post_send");
		struct ibv_qp_init_attr init;
		do
			want(!ibv_query_qp(a, &attr, IBV_QP_STATE, &init), "ibv_query_qp");
		while (attr.qp_state != IBV_QPS_ERR);
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .min_rnr_timer = 1 };
		mask = IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER;
	}
	int result = ibv_modify_qp(a, &attr, mask);
	want(wrong ? result == (is("family") ? EHOSTUNREACH : EINVAL) : !result, "ibv_modify_qp");
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "family", "group", "empty", "alternate", "failed" };
	static const struct misuse cases[] = { { "REFUSED", change } };
	if (argc == 1) {
		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
			puts(names[i]);
		return 0;
	}
	chosen = argv[1];
	char *args[] = { argv[0], "REFUSED", argc > 2 ? argv[2] : "wrong", NULL };
	return run_case(3, args, cases, 1);
}
