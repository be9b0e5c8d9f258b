/*
 * group -d DEVICE -p PORT -x GID-INDEX -g GROUP -n COUNT [SERVER]
 *
 * Two ends attach to the multicast group by ibv_attach_mcast alone. The client sends datagrams to
 * the group, and the server sends each back to the group. The ends meet by TCP at PORT. A kernel
 * device filters frames in its adapter and joins no IP group, so the program joins the group by a
 * socket. Each end checks the destination address of a datagram.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)
enum { QKEY = 0x1234, GRH = 40, SLOTS = 32, SLOT = 256, BYTES = 100, TRIES = 20, PATIENCE_MS = 1000, EVERYBODY = 0xffffff };

/* What a datagram begins with. */
struct head {
	uint32_t of_client, n;
};

static const char *name = "", *address;
static unsigned port, gid = 1, count = 20;
static union ibv_gid group;
static unsigned char memory[(SLOTS + 1) * SLOT];
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_ah *everybody;

/* The interface of a device that the kernel has, or 0. */
static unsigned interface(void)
{
	char path[256], text[IF_NAMESIZE + 1] = "";

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/%u", name, gid);
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	CHECK(fgets(text, sizeof(text), file));
	fclose(file);
	text[strcspn(text, "\n")] = 0;
	unsigned index = if_nametoindex(text);
	CHECK(index);
	return index;
}

static int is_mapped(void)
{
	return IN6_IS_ADDR_V4MAPPED((struct in6_addr *)&group);
}

/* The socket stays as long as the program. */
static void join(unsigned index)
{
	if (is_mapped()) {
		struct ip_mreqn request = { .imr_ifindex = (int)index };

		memcpy(&request.imr_multiaddr, group.raw + 12, 4);
		CHECK(!setsockopt(socket(AF_INET, SOCK_DGRAM, 0), IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof(request)));
	} else {
		struct ipv6_mreq request = { .ipv6mr_interface = index };

		memcpy(&request.ipv6mr_multiaddr, &group, sizeof(group));
		CHECK(!setsockopt(socket(AF_INET6, SOCK_DGRAM, 0), IPPROTO_IPV6, IPV6_JOIN_GROUP, &request, sizeof(request)));
	}
}

static void receive(unsigned slot)
{
	struct ibv_sge sge = { (uintptr_t)(memory + slot * SLOT), SLOT, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void open_end(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (; list && *list; list++)
		if (!strcmp(ibv_get_device_name(*list), name))
			context = ibv_open_device(*list);
	CHECK(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 2 * SLOTS, NULL, NULL, 0);
	CHECK(pd && cq);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1 } };
	qp = ibv_create_qp(pd, &init);
	CHECK(mr && qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	for (unsigned slot = 0; slot < SLOTS; slot++)
		receive(slot);
	unsigned index = interface();
	if (index)
		join(index);
	CHECK(!ibv_attach_mcast(qp, &group, 0));
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = group, .sgid_index = (uint8_t)gid, .hop_limit = 1 } };
	everybody = ibv_create_ah(pd, &to);
	CHECK(everybody);
}

/* The other end, when both are attached. */
static int meet(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int on = 1, s = socket(AF_INET, SOCK_STREAM, 0), other = s;
	char ready = 1;

	if (address) {
		CHECK(inet_pton(AF_INET, address, &at.sin_addr) == 1 && !connect(s, (struct sockaddr *)&at, sizeof(at)));
	} else {
		CHECK(!setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
		CHECK(!bind(s, (struct sockaddr *)&at, sizeof(at)) && !listen(s, 1));
		other = accept(s, NULL, NULL);
	}
	CHECK(other >= 0 && send(other, &ready, 1, 0) == 1 && recv(other, &ready, 1, 0) == 1);
	return other;
}

static void say(uint32_t n)
{
	unsigned char *data = memory + SLOTS * SLOT;
	struct head head = { !!address, n };
	struct ibv_sge sge = { (uintptr_t)data, BYTES, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = everybody, .remote_qpn = EVERYBODY, .remote_qkey = QKEY } }, *bad;

	memset(data, (int)n, BYTES);
	memcpy(data, &head, sizeof(head));
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* The number of what has come of the other end, or 0. Each datagram is looked at. */
static uint32_t come(void)
{
	struct ibv_wc wc;
	struct head head;
	uint32_t last = 0;

	while (ibv_poll_cq(cq, 1, &wc) > 0) {
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (!(wc.opcode & IBV_WC_RECV))
			continue;
		const unsigned char *grh = memory + wc.wr_id * SLOT, *data = grh + GRH;
		CHECK(wc.byte_len == GRH + BYTES && wc.wc_flags & IBV_WC_GRH);
		/* An IPv4 header is in the last 20 bytes; either ends with where it was sent to. */
		unsigned from = is_mapped() ? 12 : 0;
		CHECK(!memcmp(grh + 24 + from, group.raw + from, 16 - from));
		memcpy(&head, data, sizeof(head));
		for (unsigned at = sizeof(head); at < BYTES; at++)
			CHECK(data[at] == (unsigned char)head.n);
		/* An end may hear itself. */
		if (head.of_client == !address)
			last = head.n;
		receive((unsigned)wc.wr_id);
	}
	return last;
}

/* Within TRIES seconds; datagrams may be lost. The server answers as often as it is asked. */
static void client(void)
{
	for (uint32_t n = 1; n <= count; n++) {
		int heard = 0;

		for (unsigned tries = 0; tries < TRIES && !heard; tries++) {
			say(n);
			for (unsigned ms = 0; ms < PATIENCE_MS && !(heard = come() == n); ms++)
				usleep(1000);
		}
		if (!heard) {
			printf("nothing came back of datagram %u\n", n);
			exit(1);
		}
	}
	printf("%u datagrams by the group, and as many back\n", count);
}

static void server(int other)
{
	uint32_t most = 0;
	char any;

	while (recv(other, &any, 1, MSG_DONTWAIT) < 0) {
		uint32_t n = come();

		if (n)
			say(n);
		if (n > most)
			most = n;
		usleep(1000);
	}
	if (most < count) {
		printf("only %u datagrams came\n", most);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	for (int c; (c = getopt(argc, argv, "d:p:x:g:n:")) != -1; )
		switch (c) {
		case 'd': name = optarg; break;
		case 'p': port = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'x': gid = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'g': CHECK(inet_pton(AF_INET6, optarg, &group) == 1); break;
		case 'n': count = (unsigned)strtoul(optarg, NULL, 0); break;
		default: return 2;
		}
	address = argv[optind];
	open_end();
	int other = meet();
	if (address)
		client();
	else
		server(other);
	CHECK(!ibv_detach_mcast(qp, &group, 0));
	return 0;
}
