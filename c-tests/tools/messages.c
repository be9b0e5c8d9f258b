/*
 * messages -d DEVICE -p PORT -x GID-INDEX -o send|invalidate|write|read -s BYTES -n COUNT [-r
 * RETRIES] [SERVER]
 *
 * An RC connection whose client sends, writes or reads COUNT messages, two in flight at a time.
 * With `invalidate` each message invalidates a type 2 memory window of the server, which binds the
 * window again and returns its key in the answer. The receiver of the data checks each byte. Unlike
 * perftest's, the retries are finite; 7 means infinite on the kernel's rxe. Exit status: 0; the
 * status of the failed completion; DIFFERS; GONE, if the TCP socket was closed.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { perror(#what); exit(DIFFERS); } } while (0)
/* Five times 0.27 s: longer than an emulated processor keeps anybody waiting, and soon over. */
enum { SLOTS = 2, TIMEOUT = 16, RNR_FOREVER = 7, RNR_TIMER = 12, PORT = 1, DIFFERS = 100, GONE = 101, UNDER_WAY = 20, DEPTH = 64 };

struct end {
	uint32_t qpn, psn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

static const char *name = "", *address, *service = "18515", *operation = "send";
static unsigned gid = 1, size = 4096, retries = 4;
static unsigned long count = 100;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
/* Of the server's slots, and their keys. */
static struct ibv_mw *windows[SLOTS];
static uint32_t keys[SLOTS];
static struct end here, there;
static unsigned char *memory;
static unsigned outstanding;
static int tcp;

static int invalidates(void)
{
	return !strcmp(operation, "invalidate");
}

static unsigned char *slot(unsigned long n)
{
	return memory + n % SLOTS * size;
}

/* What message `n` has at `at`: no two neighbours, packets or messages are the same. */
static unsigned char byte(unsigned long n, unsigned at)
{
	return (unsigned char)(n * 31 + at * 7 + (at >> 8) * 13 + (at >> 16) * 5 + 1);
}

static void fill(unsigned long n)
{
	for (unsigned at = 0; at < size; at++)
		slot(n)[at] = byte(n, at);
}

/* The slot of message `n` has the data of message `of`. */
static void verify(unsigned long n, unsigned long of)
{
	for (unsigned at = 0; at < size; at++)
		if (slot(n)[at] != byte(of, at)) {
			printf("message %lu has %#x at %u, not %#x\n", n, slot(n)[at], at, byte(of, at));
			exit(DIFFERS);
		}
}

static void meet(void)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_INET }, *found;
	int on = 1;

	if (address) {
		CHECK(!getaddrinfo(address, service, &hints, &found));
		tcp = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(tcp >= 0 && !connect(tcp, found->ai_addr, found->ai_addrlen));
		return;
	}
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(atoi(service)) };
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(listener >= 0 && !setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	CHECK(!bind(listener, (struct sockaddr *)&any, sizeof(any)) && !listen(listener, 1));
	tcp = accept(listener, NULL, NULL);
	CHECK(tcp >= 0);
}

/* What both have reached. */
static void exchange(const void *mine, void *other, size_t len)
{
	if (send(tcp, mine, len, MSG_NOSIGNAL) != (ssize_t)len || recv(tcp, other, len, MSG_WAITALL) != (ssize_t)len) {
		puts("the other end is gone");
		exit(GONE);
	}
}

static void open_end(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (; list && *list; list++)
		if (!strcmp(ibv_get_device_name(*list), name))
			context = ibv_open_device(*list);
	CHECK(context);
	memory = calloc(SLOTS, size);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	CHECK(memory && pd && cq);
	mr = ibv_reg_mr(pd, memory, (size_t)SLOTS * size,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				(invalidates() && !address ? IBV_ACCESS_MW_BIND : 0));
	for (unsigned n = 0; invalidates() && !address && n < SLOTS; n++) {
		windows[n] = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
		CHECK(windows[n]);
		keys[n] = windows[n]->rkey;
	}
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
	qp = ibv_create_qp(pd, &init);
	CHECK(mr && qp);
	here = (struct end){ .qpn = qp->qp_num, .psn = qp->qp_num * 0x1235 & 0xffffff, .rkey = mr->rkey, .addr = (uintptr_t)memory };
	CHECK(!ibv_query_gid(context, PORT, gid, &here.gid));
}

static void connect_end(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

	exchange(&here, &there, sizeof(here));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = there.qpn, .rq_psn = there.psn,
		.max_dest_rd_atomic = SLOTS, .min_rnr_timer = RNR_TIMER,
		.ah_attr = { .is_global = 1, .port_num = PORT, .grh = { .dgid = there.gid, .sgid_index = gid, .hop_limit = 64 } } };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = TIMEOUT, .retry_cnt = retries, .rnr_retry = RNR_FOREVER,
		.sq_psn = here.psn, .max_rd_atomic = SLOTS };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			     IBV_QP_MAX_QP_RD_ATOMIC));
}

static void receive(unsigned long n, unsigned len)
{
	struct ibv_sge sge = { (uintptr_t)slot(n), len, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = !!len }, *bad;

	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void request(enum ibv_wr_opcode opcode, unsigned long n, unsigned len)
{
	struct ibv_sge sge = { (uintptr_t)slot(n), len, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = !!len, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl((uint32_t)n), .wr.rdma = { there.addr + n % SLOTS * size, there.rkey } }, *bad;

	if (opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = keys[n % SLOTS];
	else if (opcode == IBV_WR_SEND_WITH_IMM)
		wr.imm_data = htonl(keys[n % SLOTS]);
	CHECK(!ibv_post_send(qp, &wr, &bad));
	outstanding++;
}

/* Binds the window of a slot with a new key. Requests posted after the bind find it bound. */
static void bind_window(unsigned long n)
{
	unsigned of = n % SLOTS;
	struct ibv_send_wr wr = { .wr_id = n, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { .mw = windows[of], .rkey = ibv_inc_rkey(keys[of]),
			     .bind_info = { mr, (uintptr_t)slot(n), size, IBV_ACCESS_REMOTE_WRITE } } }, *bad;

	CHECK(!ibv_post_send(qp, &wr, &bad));
	keys[of] = wr.bind_mw.rkey;
	/* By which rxe's plugin names the window to its kernel, the next time. */
	windows[of]->rkey = keys[of];
	outstanding++;
}

/* The next completion. An end that waits without an outstanding request, which could fail, also
 * watches the socket; a client then repeats its request. */
static struct ibv_wc next(void)
{
	struct ibv_wc wc;
	char any;

	for (unsigned tries = 1; ibv_poll_cq(cq, 1, &wc) < 1; tries++) {
		if (outstanding || tries % 4096 || recv(tcp, &any, 1, MSG_PEEK | MSG_DONTWAIT))
			continue;
		if (!address) {
			puts("the other end is gone");
			exit(GONE);
		}
		request(IBV_WR_SEND, 0, 0);
	}
	if (wc.status != IBV_WC_SUCCESS) {
		printf("message %lu: %s\n", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
		exit(wc.status);
	}
	outstanding -= !(wc.opcode & IBV_WC_RECV);
	return wc;
}

static void begin(enum ibv_wr_opcode opcode, unsigned long n)
{
	if (opcode == IBV_WR_RDMA_READ) {
		memset(slot(n), 0, size);
	} else {
		fill(n);
		receive(n, 0);
	}
	request(opcode, n, size);
}

/* A slot is used again when its request is done, and the server has said that it saw the data. */
static void client(enum ibv_wr_opcode opcode)
{
	int missing[SLOTS];
	int most = opcode == IBV_WR_RDMA_READ ? 1 : 2;

	for (unsigned long n = 0; n < SLOTS && n < count; n++) {
		missing[n] = most;
		begin(opcode, n);
	}
	for (unsigned long done = 0; done < count; ) {
		struct ibv_wc wc = next();
		unsigned long n = wc.wr_id;

		if (wc.opcode & IBV_WC_RECV && invalidates())
			keys[n % SLOTS] = ntohl(wc.imm_data);
		if (--missing[n % SLOTS])
			continue;
		if (opcode == IBV_WR_RDMA_READ)
			/* The server's slots stay as they are. */
			verify(n, n % SLOTS);
		if (++done == UNDER_WAY)
			puts("under way");
		if (n + SLOTS < count) {
			missing[n % SLOTS] = most;
			begin(opcode, n + SLOTS);
		}
	}
}

static void server(enum ibv_wr_opcode opcode)
{
	unsigned long seen = 0;

	for (unsigned long n = 0; n < count; ) {
		struct ibv_wc wc = next();

		if (wc.opcode & IBV_WC_RECV) {
			CHECK(wc.wr_id == seen && wc.byte_len == size);
			CHECK(opcode != IBV_WR_RDMA_WRITE_WITH_IMM || ntohl(wc.imm_data) == (uint32_t)seen);
			/* rxe has the kernel's value for it, which is IBV_WC_IP_CSUM_OK's. */
			CHECK(!invalidates() || (wc.wc_flags & (IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK) && wc.invalidated_rkey == keys[seen % SLOTS]));
			verify(seen, seen);
			receive(seen + SLOTS, opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? 0 : size);
			seen++;
		}
		/* rxe would repeat a bind behind a retransmitted request, and stop. So requests
		 * before a bind complete first. */
		for (; n < seen && !(invalidates() && outstanding); n++) {
			if (invalidates())
				bind_window(n);
			request(invalidates() ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, n, 0);
		}
	}
}

int main(int argc, char **argv)
{
	for (int c; (c = getopt(argc, argv, "d:p:x:o:s:n:r:")) != -1; )
		switch (c) {
		case 'd': name = optarg; break;
		case 'p': service = optarg; break;
		case 'x': gid = strtoul(optarg, NULL, 0); break;
		case 'o': operation = optarg; break;
		case 's': size = strtoul(optarg, NULL, 0); break;
		case 'n': count = strtoul(optarg, NULL, 0); break;
		case 'r': retries = strtoul(optarg, NULL, 0); break;
		default: return DIFFERS;
		}
	address = argv[optind];
	enum ibv_wr_opcode opcode = !strcmp(operation, "read") ? IBV_WR_RDMA_READ :
		!strcmp(operation, "write") ? IBV_WR_RDMA_WRITE_WITH_IMM : invalidates() ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND;
	setvbuf(stdout, NULL, _IOLBF, 0);
	open_end();
	meet();
	connect_end();
	char ready = 1, other;
	for (unsigned long n = 0; !address && n < SLOTS; n++) {
		if (opcode == IBV_WR_RDMA_READ)
			fill(n);
		else
			receive(n, opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? 0 : size);
		if (invalidates())
			bind_window(n);
	}
	while (outstanding)
		next();
	exchange(&ready, &other, 1);
	uint32_t theirs[SLOTS];
	exchange(keys, theirs, sizeof(keys));
	if (address)
		memcpy(keys, theirs, sizeof(keys));
	if (address)
		client(opcode);
	else if (opcode != IBV_WR_RDMA_READ)
		server(opcode);
	/* No side exits before its peer is done. */
	exchange(&ready, &other, 1);
	for (unsigned n = 0; n < SLOTS; n++)
		CHECK(!windows[n] || !ibv_dealloc_mw(windows[n]));
	return 0;
}
