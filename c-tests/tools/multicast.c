/* multicast GROUP GID-INDEX: joins the group, sends one datagram to it when the members of all hosts of the cluster have joined, and wants
 * one of each host, its own included, exactly once. Hosts wait for each other by files of the working directory. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("failed: %s\n", #what); exit(1); } } while (0)
enum { QKEY = 0x1234, GRH = 40, MOST = 64, SECONDS = 60 };

static int host, hosts;

static void meet(const char *where)
{
	char name[64];
	time_t begin = time(NULL);

	snprintf(name, sizeof(name), "%s.%d", where, host);
	FILE *file = fopen(name, "w");
	CHECK(file);
	fclose(file);
	for (int n = 1; n <= hosts; n++) {
		snprintf(name, sizeof(name), "%s.%d", where, n);
		while (access(name, F_OK)) {
			CHECK(time(NULL) - begin < SECONDS);
			usleep(10000);
		}
	}
}

static struct ibv_cq *cq;
static char memory[(MOST + 1) * 128];
static int seen[MOST + 1];

/* Takes one completion, if there is one. */
static int take(void)
{
	struct ibv_wc wc;

	if (ibv_poll_cq(cq, 1, &wc) < 1)
		return 0;
	CHECK(wc.status == IBV_WC_SUCCESS);
	if (wc.opcode != IBV_WC_RECV)
		return 1;
	CHECK(wc.wc_flags & IBV_WC_GRH && wc.byte_len == GRH + 4);
	int from = *(int *)(memory + wc.wr_id * 128 + GRH);
	CHECK(from >= 1 && from <= hosts);
	seen[from]++;
	return 1;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	union ibv_gid group;

	CHECK(context && argc == 3 && inet_pton(AF_INET6, argv[1], &group) == 1);
	host = atoi(getenv("FERROVERBS_HOST"));
	hosts = atoi(getenv("FERROVERBS_HOSTS"));
	CHECK(host >= 1 && hosts >= host && hosts <= MOST / 2);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 2 * MOST, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 4, .max_recv_wr = MOST, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(pd && cq && mr && qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	for (int n = 0; n < MOST; n++) {
		struct ibv_sge sge = { (uintptr_t)(memory + n * 128), 128, mr->lkey };
		struct ibv_recv_wr recv = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(!ibv_post_recv(qp, &recv, &bad));
	}
	CHECK(!ibv_attach_mcast(qp, &group, 0));
	meet("joined");
	struct ibv_ah_attr ah_attr = { .is_global = 1, .port_num = 1,
		.grh = { .dgid = group, .sgid_index = atoi(argv[2]), .hop_limit = 1 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &ah_attr);
	CHECK(ah);
	*(int *)(memory + MOST * 128) = host;
	struct ibv_sge sge = { (uintptr_t)(memory + MOST * 128), 4, mr->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr = { .ud = { .ah = ah, .remote_qpn = 0xffffff, .remote_qkey = QKEY } } }, *bad;
	CHECK(!ibv_post_send(qp, &send, &bad));
	time_t begin = time(NULL);
	for (int missing = 1; missing; ) {
		take();
		missing = 0;
		for (int n = 1; n <= hosts; n++)
			missing += !seen[n];
		if (time(NULL) - begin > SECONDS) {
			for (int n = 1; n <= hosts; n++)
				printf("of host%d: %d\n", n, seen[n]);
			return 1;
		}
	}
	/* All have come everywhere; what comes after that is a second one. */
	meet("heard");
	while (take())
		;
	for (int n = 1; n <= hosts; n++)
		CHECK(seen[n] == 1);
	CHECK(!ibv_detach_mcast(qp, &group, 0));
	meet("left");
	CHECK(!ibv_post_send(qp, &send, &bad));
	meet("sent again");
	while (take())
		;
	for (int n = 1; n <= hosts; n++)
		CHECK(seen[n] == 1);
	printf("host%d heard all %d hosts\n", host, hosts);
	return 0;
}
