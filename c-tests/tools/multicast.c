/*
 * multicast GROUP GID-INDEX: joins the group, sends a datagram to it when the members of all hosts
 * of the cluster have joined, and expects one datagram of each host, its own included, exactly
 * once; then the same with a message of three segments (IBV_WR_TSO). Hosts synchronise by files in
 * the working directory.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("failed: %s\n", #what); exit(1); } } while (0)
enum { QKEY = 0x1234, GRH = 40, MOST = 64, SECONDS = 60, MSS = 16, WHOLE = 40, SEGMENTS = 3 };

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
static int seen[MOST + 1], segments[MOST + 1];

/* Takes one completion if the CQ has one. */
static int take(void)
{
	struct ibv_wc wc;

	if (ibv_poll_cq(cq, 1, &wc) < 1)
		return 0;
	CHECK(wc.status == IBV_WC_SUCCESS);
	if (wc.opcode != IBV_WC_RECV)
		return 1;
	const char *data = memory + wc.wr_id * 128 + GRH;
	int from = *(const int *)data;
	CHECK(wc.wc_flags & IBV_WC_GRH && from >= 1 && from <= hosts);
	if (wc.byte_len == GRH + 4) {
		seen[from]++;
		return 1;
	}
	/* A header, and the next part of the message. */
	int index = data[4], len = index < SEGMENTS - 1 ? MSS : WHOLE - (SEGMENTS - 1) * MSS;
	CHECK(index == segments[from] && wc.byte_len == (unsigned)(GRH + 4 + len));
	for (int i = 0; i < len; i++)
		CHECK(data[4 + i] == index);
	segments[from]++;
	return 1;
}

static void send_segments(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t lkey)
{
	static int header;
	char *data = memory + MOST * 128 + 8;
	struct ibv_sge sge = { (uintptr_t)data, WHOLE, lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_TSO, .send_flags = IBV_SEND_SIGNALED,
		.wr = { .ud = { .ah = ah, .remote_qpn = 0xffffff, .remote_qkey = QKEY } },
		.tso = { .hdr = &header, .hdr_sz = sizeof(header), .mss = MSS } }, *bad;

	header = host;
	for (int i = 0; i < WHOLE; i++)
		data[i] = (char)(i / MSS);
	CHECK(!ibv_post_send(qp, &send, &bad));
	time_t begin = time(NULL);
	for (int missing = 1; missing; ) {
		CHECK(time(NULL) - begin < SECONDS);
		take();
		missing = 0;
		for (int n = 1; n <= hosts; n++)
			missing += segments[n] < SEGMENTS;
	}
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	union ibv_gid group;

	CHECK(context && argc == 3 && inet_pton(AF_INET6, argv[1], &group) == 1);
	host = atoi(getenv("FERROVERBS_HOST"));
	hosts = atoi(getenv("FERROVERBS_HOSTS"));
	CHECK(host >= 1 && hosts >= host && hosts * (2 + SEGMENTS) <= MOST);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 2 * MOST, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .pd = pd, .max_tso_header = 16,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER, .cap = { .max_send_wr = 4, .max_recv_wr = MOST, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
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
	/* All datagrams have arrived; a later datagram is a duplicate. */
	meet("heard");
	while (take())
		;
	for (int n = 1; n <= hosts; n++)
		CHECK(seen[n] == 1);
	send_segments(qp, ah, mr->lkey);
	meet("had segments");
	CHECK(!ibv_detach_mcast(qp, &group, 0));
	meet("left");
	CHECK(!ibv_post_send(qp, &send, &bad));
	meet("sent again");
	while (take())
		;
	for (int n = 1; n <= hosts; n++)
		CHECK(seen[n] == 1 && segments[n] == SEGMENTS);
	printf("host%d heard all %d hosts\n", host, hosts);
	return 0;
}
