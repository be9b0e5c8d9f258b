/*
 * Posts random requests and receives through the unmodified libmlx5, tells the plugin mlx5.c (and
 * so the test) what was posted, and compares each completion with what the test said. Arguments:
 * the plugin's file, a seed, the number of requests of each QP.
 */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER = 4096, INLINE = 200, SGES = 4, WRS = 8 };

static void (*ask_test)(const char *, char *, size_t);
static unsigned char buffer[BUFFER];
static uint64_t state;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_mw *mw;
static struct ibv_cq *cq;
static struct ibv_ah *ah;
static struct ibv_srq *srq;
static char answer[20000];

static uint64_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static void fail(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

#define NEED(value) do { if (!(value)) fail(#value); } while (0)

/* Sends a text, to which a list of memory was added; the answer is in `answer`. */
static void ask(const struct ibv_sge *list, int count, const char *format, ...)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);
	va_list args;

	va_start(args, format);
	vfprintf(out, format, args);
	va_end(args);
	fprintf(out, " %d", count);
	for (int n = 0; n < count; n++)
		fprintf(out, " %lx:%x:%x", (unsigned long)list[n].addr, list[n].length, list[n].lkey);
	fclose(out);
	ask_test(text, answer, sizeof(answer));
	free(text);
}

static int list(struct ibv_sge *list, int most, unsigned longest)
{
	int count = rnd() % (most + 1);

	for (int n = 0; n < count; n++) {
		list[n].length = rnd() % 5 ? rnd() % longest + 1 : 0;
		list[n].addr = (uintptr_t)buffer + rnd() % (BUFFER - list[n].length);
		list[n].lkey = mr->lkey;
	}
	return count;
}

static struct ibv_qp *create(enum ibv_qp_type type, int shared)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = shared ? srq : NULL,
		.qp_type = type,
		.cap = {WRS, WRS, SGES, SGES, INLINE},
	};
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	NEED(qp);
	for (int next = IBV_QPS_INIT; next <= IBV_QPS_RTS; next++) {
		to.qp_state = next;
		NEED(!ibv_modify_qp(qp, &to, IBV_QP_STATE));
	}
	return qp;
}

/* The completion of the test: status, wr_id, opcode, length, immediate or key, flags, QPs. */
static void expect(const struct ibv_qp *qp)
{
	struct ibv_wc wc;
	unsigned long wr_id;
	unsigned status, opcode, length, imm, flags, source;

	if (!strcmp(answer, "none")) {
		NEED(ibv_poll_cq(cq, 1, &wc) == 0);
		return;
	}
	if (sscanf(answer, "%x %lx %x %x %x %x %x", &status, &wr_id, &opcode, &length, &imm, &flags, &source) != 7) {
		printf("the test says: %s\n", answer);
		exit(1);
	}
	memset(&wc, 0, sizeof(wc));
	NEED(ibv_poll_cq(cq, 1, &wc) == 1);
	int good = wc.status == status && wc.wr_id == wr_id && wc.qp_num == qp->qp_num;
	if (good && !status)
		good = wc.opcode == opcode && (!length || wc.byte_len == length) && (wc.wc_flags & ~IBV_WC_WITH_IMM) == (flags & ~IBV_WC_WITH_IMM);
	if (good && !status && opcode & IBV_WC_RECV)
		good = wc.src_qp == source && wc.wc_flags == flags && (!flags || flags == IBV_WC_GRH || wc.imm_data == imm);
	if (!good) {
		printf("%s, found: status %d, wr_id %lx, QP %x, opcode %d, length %x, immediate %x, flags %x, source %x\n", answer,
		       wc.status, (unsigned long)wc.wr_id, wc.qp_num, wc.opcode, wc.byte_len, wc.imm_data, wc.wc_flags, wc.src_qp);
		exit(1);
	}
}

static const int rc[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
			 IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV};
static const int uc[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM};

static void post(struct ibv_qp *qp, uint64_t wr_id, int signaled)
{
	int datagram = qp->qp_type == IBV_QPT_UD;
	int opcode = qp->qp_type == IBV_QPT_RC ? rc[rnd() % 10] : uc[rnd() % (datagram ? 2 : 4)];
	int atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	int window = opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
	int arrives = atomic || opcode == IBV_WR_RDMA_READ;
	struct ibv_sge sges[SGES], packed = {.addr = (uintptr_t)buffer};
	struct ibv_send_wr *bad, wr = {.wr_id = wr_id, .opcode = opcode, .sg_list = sges};
	unsigned long remote = rnd(), compare = rnd(), swap = rnd();
	unsigned rkey = rnd();
	int is_inline = !arrives && !window && rnd() % 2;

	wr.num_sge = list(sges, window ? 0 : atomic ? 1 : SGES, is_inline ? INLINE / SGES : 1000);
	wr.send_flags = (signaled ? IBV_SEND_SIGNALED : 0) | (rnd() % 2 ? IBV_SEND_SOLICITED : 0) | (rnd() % 2 ? IBV_SEND_FENCE : 0) | (is_inline ? IBV_SEND_INLINE : 0);
	wr.imm_data = rnd();
	if (atomic) {
		wr.num_sge = 1;
		sges[0] = (struct ibv_sge){(uintptr_t)buffer + 8, 8, mr->lkey};
		wr.wr.atomic.remote_addr = remote;
		wr.wr.atomic.compare_add = compare;
		wr.wr.atomic.swap = swap;
		wr.wr.atomic.rkey = rkey;
	} else if (datagram) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = remote & 0xffffff;
		wr.wr.ud.remote_qkey = rkey;
	} else if (opcode == IBV_WR_BIND_MW) {
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = mw->rkey + 1;
		wr.bind_mw.bind_info.mr = mr;
		wr.bind_mw.bind_info.addr = remote = (uintptr_t)buffer + rnd() % 100;
		wr.bind_mw.bind_info.length = swap = rnd() % 1000 + 1;
		wr.bind_mw.bind_info.mw_access_flags = compare = rnd() % 2 ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED;
		rkey = mw->rkey + 1;
	} else {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = rkey;
	}
	NEED(!ibv_post_send(qp, &wr, &bad));
	/* The bytes of inline data, as one range that a later post leaves alone. */
	if (is_inline) {
		static unsigned char copy[INLINE];

		packed.addr = (uintptr_t)copy;
		for (int n = 0; n < wr.num_sge; n++) {
			memcpy(copy + packed.length, (void *)(uintptr_t)sges[n].addr, sges[n].length);
			packed.length += sges[n].length;
		}
	}
	ask(is_inline ? &packed : sges, is_inline ? 1 : wr.num_sge, "post %x %lx %x %x %x %lx %x %lx %lx", qp->qp_num, (unsigned long)wr_id, opcode,
	    wr.send_flags, wr.imm_data, remote, rkey, compare, swap);
	expect(qp);
}

static void receive(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sges[SGES];
	struct ibv_recv_wr *bad, wr = {.wr_id = wr_id, .sg_list = sges};

	wr.num_sge = list(sges, SGES, 1000);
	if (qp->srq)
		NEED(!ibv_post_srq_recv(qp->srq, &wr, &bad));
	else
		NEED(!ibv_post_recv(qp, &wr, &bad));
	ask(sges, wr.num_sge, "receive %x %lx", qp->qp_num, (unsigned long)wr_id);
	expect(qp);
}

int main(int argc, char **argv)
{
	int rounds = argc > 3 ? atoi(argv[3]) : 0, n;
	void *plugin;
	struct ibv_device **devices;
	struct ibv_context *context;
	struct ibv_srq_init_attr shared = {.attr = {.max_wr = WRS, .max_sge = SGES}};
	struct ibv_ah_attr address = {.is_global = 1, .port_num = 1, .sl = 3, .grh = {.flow_label = 0x12345, .hop_limit = 64, .traffic_class = 8}};

	state = strtoul(argv[2], NULL, 16) | 1;
	for (n = 0; n < BUFFER; n++)
		buffer[n] = rnd();
	devices = ibv_get_device_list(&n);
	NEED(devices && n == 1);
	plugin = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD);
	NEED(plugin);
	*(void **)&ask_test = dlsym(plugin, "mlx5_ask");
	NEED(ask_test);
	context = ibv_open_device(devices[0]);
	NEED(context);
	pd = ibv_alloc_pd(context);
	NEED(pd);
	mr = ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
	NEED(mr);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	NEED(mw);
	cq = ibv_create_cq(context, 3, NULL, NULL, 0);
	NEED(cq);
	srq = ibv_create_srq(pd, &shared);
	NEED(srq);
	memset(address.grh.dgid.raw, 0xfe, 16);
	ah = ibv_create_ah(pd, &address);
	NEED(ah);

	struct ibv_qp *qps[] = {create(IBV_QPT_RC, 0), create(IBV_QPT_UC, 0), create(IBV_QPT_UD, 0), create(IBV_QPT_RC, 1)};
	for (int round = 0; round < rounds; round++)
		for (n = 0; n < 4; n++) {
			uint64_t wr_id = (uint64_t)n << 32 | round;

			/* An unsignalled request completes with the next one. */
			if (rnd() % 3 == 0)
				post(qps[n], wr_id | 1 << 30, 0);
			post(qps[n], wr_id, 1);
			receive(qps[n], wr_id | 1ul << 40);
			if (rnd() % 8 == 0) {
				int solicited = rnd() % 2;

				NEED(!ibv_req_notify_cq(cq, solicited));
				ask(NULL, 0, "arm %x", solicited);
				NEED(!strcmp(answer, "good"));
			}
			if (rnd() % 16 == 0)
				NEED(!ibv_resize_cq(cq, cq->cqe > 8 ? 3 : 20));
		}
	for (n = 0; n < 4; n++)
		NEED(!ibv_destroy_qp(qps[n]));
	NEED(!ibv_destroy_ah(ah) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_dealloc_mw(mw) && !ibv_dereg_mr(mr));
	NEED(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	ibv_free_device_list(devices);
	printf("done\n");
	return 0;
}
