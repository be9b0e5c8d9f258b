/*
 * Requests that fail because of the peer, which is another process: other_end CASE wrong|right. The
 * layer names the peer's fault for the wrong variant, and reports nothing for the right one.
 * Without arguments the program lists the cases. With ADDRESS, an IPv4 address, in the environment
 * the requester takes it for the peer's address, and packets go over the wire between hosts.
 */
#include "pair.h"
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* The numbers and addresses that the sides exchange. */
struct card {
	uint32_t number, lkey, rkey;
	uint64_t addr;
};

static struct card here, there;
static int line;
static pid_t child;
static int is_asking;
static struct ibv_pd *elsewhere;

static int is(const char *name, const char *which)
{
	return wrong && !strcmp(name, which);
}

static void tell(void)
{
	want(write(line, &here, sizeof(here)) == sizeof(here), "telling the other side");
}

static void hear(void)
{
	want(read(line, &there, sizeof(there)) == sizeof(there), "hearing the other side");
}

static void connected(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = ready(peer);
	const char *address = getenv("ADDRESS");
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	if (address && is_asking) {
		union ibv_gid own;
		do
			want(!ibv_query_gid(ctx, 1, ++attr.ah_attr.grh.sgid_index, &own), "a GID of IPv4");
		while (memcmp(own.raw, mapped, 12));
		memcpy(attr.ah_attr.grh.dgid.raw, mapped, 12);
		want(inet_pton(AF_INET, address, attr.ah_attr.grh.dgid.raw + 12) == 1, "ADDRESS");
	}
	want(!ibv_modify_qp(qp, &attr, rtr_mask(qp)), "RTR");
	want(!to_rts(qp, 8, 1), "RTS");
}

/* The responder runs without the layer: reports come from the requester. */
static void answer(const char *name)
{
	struct ibv_qp peer;
	int no_right = is("right", name);
	b = make(IBV_QPT_RC, cq, NULL, 0);
	if (is("domain", name))
		want((elsewhere = ibv_alloc_pd(ctx)) != NULL, "ibv_alloc_pd");
	second = ibv_reg_mr(elsewhere ? elsewhere : pd, buf, SIZE, ALL & ~(no_right ? IBV_ACCESS_REMOTE_WRITE : 0));
	want(second != NULL, "ibv_reg_mr");
	here = (struct card){ b->qp_num, second->lkey, second->rkey, (uintptr_t)buf };
	if (is("key", name)) {
		want(!ibv_dereg_mr(second), "ibv_dereg_mr");
		second = NULL;
	}
	tell();
	hear();
	peer.qp_num = there.number;
	peer.qp_type = IBV_QPT_RC;
	if (is("access", name)) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_READ };
		want(!ibv_modify_qp(b, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	} else {
		to_init(b);
	}
	if (is("stranger", name))
		peer.qp_num = here.number;
	if (!is("receive", name)) {
		struct ibv_sge sge = piece(is("length", name) ? 32 : 64);
		if (is("operation", name))
			sge.lkey ^= 1 << 20;
		want(!receive(b, sge), "ibv_post_recv");
	}
	if (!is("state", name))
		connected(b, &peer);
	if (is("absent", name)) {
		want(!ibv_destroy_qp(b), "ibv_destroy_qp");
		b = NULL;
	}
	tell();
	/* Waits until the requester is done. */
	(void)!read(line, &there, sizeof(there));
	if (elsewhere)
		want(!ibv_dereg_mr(second) && !ibv_dealloc_pd(elsewhere), "ibv_dealloc_pd");
	if (elsewhere)
		second = NULL;
}

/* The end that asks. */
static void ask(const char *name)
{
	struct ibv_qp peer;
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr;
	int sends = !strcmp(name, "receive") || !strcmp(name, "length") || !strcmp(name, "operation");
	a = make(IBV_QPT_RC, cq, NULL, 0);
	here.number = a->qp_num;
	hear();
	tell();
	struct card first = there;
	to_init(a);
	hear();
	peer.qp_num = first.number;
	peer.qp_type = IBV_QPT_RC;
	/* A place that is neither's. */
	while (is("nobody", name) && (!(peer.qp_num >> 14) || peer.qp_num >> 14 == first.number >> 14 || peer.qp_num >> 14 == here.number >> 14))
		peer.qp_num = (peer.qp_num + (1 << 14)) & 0xffffff;
	connected(a, &peer);
	if (is("gone", name))
		want(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child, "an end");
	wr = request(sends ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, &sge, 1);
	wr.wr.rdma.remote_addr = first.addr + (is("range", name) ? SIZE - 32 : 0);
	wr.wr.rdma.rkey = is("lkey", name) ? first.lkey : first.rkey;
	want(!post(a, wr), "ibv_post_send");
	want((done(cq).status == IBV_WC_SUCCESS) == !wrong, "a completion");
	close(line);
	if (!is("gone", name))
		want(waitpid(child, NULL, 0) == child, "the other side's end");
}

static const char *const NAMES[] = { "receive", "nobody", "absent", "gone", "state", "stranger", "lkey", "key", "range", "right", "domain", "access", "length", "operation" };
static const char *chosen;

static void chosen_case(void)
{
	if (is_asking)
		ask(chosen);
	else
		answer(chosen);
}

int main(int argc, char **argv)
{
	static const struct misuse cases[] = { { "END", chosen_case } };
	int lines[2];
	if (argc == 1) {
		for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++)
			puts(NAMES[i]);
		return 0;
	}
	chosen = argv[1];
	want(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, lines), "socketpair");
	child = fork();
	want(child >= 0, "fork");
	is_asking = child != 0;
	line = lines[!is_asking];
	close(lines[is_asking]);
	if (!is_asking)
		unsetenv("FERROVERBS_LAYERS");
	char *args[] = { argv[0], "END", argc > 2 ? argv[2] : "wrong", NULL };
	return run_case(3, args, cases, 1);
}
