/*
 * Two processes exchange data over shared memory, each also connected to a hostile member of the
 * fabric (providers/soft/hostile), which `cargo xtask soak --hostile` and the tests start.
 * Whatever the hostile process writes, the two neither crash nor hang. Memory that is not
 * registered, or registered without the right, keeps its content. The hostile process never gets
 * bytes that the two did not send.
 *
 * attacked_pair SLOT SECONDS own|all SEED: SLOT is the process slot of the hostile process. "own":
 * the hostile process writes only its own segments, so the exchange is complete and without errors.
 * "all": it writes everything it has mapped, so data and connection of the two may suffer, and
 * nothing else.
 *
 * Map of this file: objects of the process; `area` and `unspoilt`, for memory between guard bytes;
 * state changes of QPs. The functions `foe_*` use the QPs to the hostile process; the thread
 * `talk_to_attacker` posts, polls and reconnects them. `done` and `whole` check a request of the
 * two processes; `reconnect` resets their QP. `exchange` executes one SEND, WRITE, READ or atomic
 * between the two processes. `main` forks the partner, starts the thread, exchanges until the time
 * is over and destroys all objects.
 */
#include "partner.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define PAGE 4096u
#define HONEST (256u << 10)
#define GRANTED (64u << 10)
#define FIXED (16u << 10)
#define FOES 6
#define SLOT_BYTES 2048u
#define FOE_RECVS 16
#define QKEY 0x11111111u

/* Registered memory between unregistered pages and inaccessible pages. */
struct area {
	unsigned char *base, *mem;
	size_t len;
	struct ibv_mr *mr;
};

/* A queue pair that is connected to the hostile process. */
struct foe {
	struct ibv_qp *qp;
	enum ibv_qp_type type;
	uint32_t peer;
	int down;
};

static const unsigned char secret[16] = "ferro-secret-byt";
static int strict;
static uint64_t rng;
static atomic_int stop;
static struct ibv_context *ctx;
static struct ibv_port_attr port;
static struct ibv_pd *pd, *foe_pd;
static struct ibv_cq *cq, *foe_cq;
static struct ibv_comp_channel *channel;
static struct ibv_srq *foe_srq;
static struct ibv_qp *qp;
static struct area honest, granted, fixed;
static struct foe foes[FOES];
static struct address mine, other;
static unsigned long long exchanged, spoilt, arrived, from_foe, failed_to_foe, again, refused;

static unsigned char hidden(size_t at)
{
	return secret[at % sizeof secret];
}

/* Registers new memory. The bytes around the registered range are the secret, and inaccessible
 * pages surround both. */
static struct area area(struct ibv_pd *in, size_t len, unsigned access)
{
	struct area a = { .len = len };
	a.base = mmap(NULL, len + 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (a.base == MAP_FAILED || mprotect(a.base + PAGE, len + 2 * PAGE, PROT_READ | PROT_WRITE))
		die("no memory: %s", strerror(errno));
	a.mem = a.base + 2 * PAGE;
	for (size_t i = 0; i < PAGE; i++) {
		a.base[PAGE + i] = hidden(i);
		a.mem[len + i] = hidden(i);
	}
	a.mr = ibv_reg_mr(in, a.mem, len, (int)access);
	if (!a.mr)
		die("ibv_reg_mr: %s", strerror(errno));
	return a;
}

static void unspoilt(const struct area *a, const char *name)
{
	for (size_t i = 0; i < PAGE; i++)
		if (a->base[PAGE + i] != hidden(i) || a->mem[a->len + i] != hidden(i)) {
			check(0, "memory beside the %s region, byte %zu, is as it was", name, i);
			exit(1);
		}
}

static void all_unspoilt(void)
{
	unspoilt(&honest, "honest");
	unspoilt(&granted, "granted");
	unspoilt(&fixed, "read-only");
	if (verify(fixed.mem, FIXED, 77) >= 0) {
		check(0, "a region without the right to write it is as it was");
		exit(1);
	}
}

static int to_init(struct ibv_qp *q, enum ibv_qp_type type, unsigned access)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access, .qkey = QKEY };
	return ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

static int to_rts(struct ibv_qp *q, enum ibv_qp_type type, uint32_t peer, uint8_t retries)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer, .rq_psn = 7, .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = { .dlid = port.lid, .port_num = 1 },
	};
	int rc = type == IBV_QPT_RC;
	int err = ibv_modify_qp(q, &a, IBV_QP_STATE | (type == IBV_QPT_UD ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
			        (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
	if (err)
		return err;
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = retries == 7 ? 18 : 8, .retry_cnt = retries, .rnr_retry = retries, .max_rd_atomic = 4 };
	return ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
}

/* ---- queue pairs to the hostile process ---- */

static void foe_receive(struct foe *f, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)granted.mem + (id % FOE_RECVS) * SLOT_BYTES, SLOT_BYTES, granted.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	if (f->qp->srq)
		ibv_post_srq_recv(f->qp->srq, &wr, &bad);
	else
		ibv_post_recv(f->qp, &wr, &bad);
}

static void foe_connect(struct foe *f)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	if (ibv_modify_qp(f->qp, &reset, IBV_QP_STATE) || to_init(f->qp, f->type, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | (f->type == IBV_QPT_RC ? IBV_ACCESS_REMOTE_ATOMIC : 0)))
		die("RESET to INIT: %s", strerror(errno));
	if (!f->qp->srq)
		for (uint64_t i = 0; i < FOE_RECVS; i++)
			foe_receive(f, i);
	/* The hostile process may be absent for a moment, or may have ended. */
	f->down = to_rts(f->qp, f->type, f->peer, 1) != 0;
}

static void foe_send(struct foe *f)
{
	static const enum ibv_wr_opcode rc_ops[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE_WITH_IMM };
	uint32_t n = rnd(&rng);
	enum ibv_wr_opcode op = f->type == IBV_QPT_RC ? rc_ops[n % 6] : f->type == IBV_QPT_UC ? rc_ops[n % 3] : IBV_WR_SEND;
	if (f->type == IBV_QPT_UD)
		return;
	uint32_t len = n & 64 ? n % 48 : n % (GRANTED - FOE_RECVS * SLOT_BYTES);
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD)
		len = 8;
	struct ibv_sge sge = { (uintptr_t)granted.mem + FOE_RECVS * SLOT_BYTES, len, granted.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1000, .opcode = op, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	uint32_t rkey = (1 + rnd(&rng) % 16) << 14;
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.remote_addr = rnd(&rng) & ~7u;
	} else {
		wr.wr.rdma.rkey = rkey;
		wr.wr.rdma.remote_addr = rnd(&rng);
	}
	ibv_post_send(f->qp, &wr, &bad);
}

static void *talk_to_attacker(void *unused)
{
	struct ibv_wc wc[16];
	unsigned round = 0;
	(void)unused;
	while (!stop) {
		if (ibv_req_notify_cq(foe_cq, (int)(round & 1)))
			die("ibv_req_notify_cq: %s", strerror(errno));
		int n = ibv_poll_cq(foe_cq, 16, wc);
		if (n < 0)
			die("ibv_poll_cq: %s", strerror(errno));
		for (int i = 0; i < n; i++) {
			int known = wc[i].wr_id < FOE_RECVS || wc[i].wr_id == 1000;
			if (!known) {
				check(0, "a completion is of a request (%llx)", (unsigned long long)wc[i].wr_id);
				exit(1);
			}
			if (wc[i].wr_id == 1000) {
				failed_to_foe += wc[i].status != IBV_WC_SUCCESS;
				continue;
			}
			from_foe += wc[i].status == IBV_WC_SUCCESS;
			for (int k = 0; k < FOES; k++)
				if (foes[k].qp->qp_num == wc[i].qp_num && wc[i].status == IBV_WC_SUCCESS)
					foe_receive(&foes[k], wc[i].wr_id);
		}
		for (int k = 0; k < FOES; k++) {
			struct ibv_qp_attr a;
			struct ibv_qp_init_attr init;
			if (!ibv_query_qp(foes[k].qp, &a, IBV_QP_STATE, &init) && a.qp_state != IBV_QPS_RTS && (round % 8 == 0 || !foes[k].down)) {
				foe_connect(&foes[k]);
				again++;
			}
			if (round % 4 == (unsigned)k % 4)
				foe_send(&foes[k]);
		}
		if (foe_srq)
			for (int k = 0; k < 4; k++)
				foe_receive(&foes[FOES - 1], (uint64_t)k);
		struct pollfd fd = { channel->fd, POLLIN, 0 };
		if (!n && poll(&fd, 1, 2) > 0) {
			struct ibv_cq *which;
			void *context;
			if (!ibv_get_cq_event(channel, &which, &context))
				ibv_ack_cq_events(which, 1);
		}
		struct ibv_async_event event;
		struct pollfd async = { ctx->async_fd, POLLIN, 0 };
		while (poll(&async, 1, 0) > 0 && !ibv_get_async_event(ctx, &event))
			ibv_ack_async_event(&event);
		round++;
	}
	return NULL;
}

static void foes_open(uint32_t slot)
{
	static const enum ibv_qp_type types[FOES] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_RC };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 64, .max_sge = 1 } };
	foe_srq = ibv_create_srq(foe_pd, &srq);
	channel = ibv_create_comp_channel(ctx);
	foe_cq = channel ? ibv_create_cq(ctx, 8192, NULL, channel, 0) : NULL;
	if (!foe_srq || !foe_cq)
		die("objects for the other side: %s", strerror(errno));
	for (int k = 0; k < FOES; k++) {
		struct ibv_qp_init_attr init = {
			.send_cq = foe_cq, .recv_cq = foe_cq, .srq = k == FOES - 1 ? foe_srq : NULL, .qp_type = types[k], .sq_sig_all = 1,
			.cap = { .max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 48 },
		};
		foes[k] = (struct foe){ ibv_create_qp(foe_pd, &init), types[k], slot << 14 | (uint32_t)(role * 16 + k + 1), 0 };
		if (!foes[k].qp)
			die("ibv_create_qp: %s", strerror(errno));
		foe_connect(&foes[k]);
	}
}

/* ---- the exchange between the two processes ---- */

/* Returns 1 if request `id` completes with success. In mode "all" a request may fail or not
 * complete. */
static int done(uint64_t id, const char *what)
{
	struct ibv_wc wc;
	if (!try_completion(cq, &wc, strict ? WAIT_US : 300000)) {
		if (strict) {
			check(0, "%s completes", what);
			exit(1);
		}
		return 0;
	}
	if (strict && (wc.status || wc.wr_id != id)) {
		check(0, "%s: %s, request %llu rather than %llu", what, ibv_wc_status_str(wc.status), (unsigned long long)wc.wr_id, (unsigned long long)id);
		exit(1);
	}
	return !wc.status && wc.wr_id == id;
}

static void whole(size_t len, uint32_t seed, const char *what)
{
	long at = verify(honest.mem, len, seed);
	arrived++;
	if (at < 0)
		return;
	spoilt++;
	if (strict) {
		check(0, "%s of %zu bytes is whole, at %ld", what, len, at);
		exit(1);
	}
}

static void reconnect(void)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	struct ibv_wc wc;
	if (ibv_modify_qp(qp, &reset, IBV_QP_STATE))
		die("RESET: %s", strerror(errno));
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
	meet();
	if (to_init(qp, IBV_QPT_RC, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC))
		die("RESET to INIT: %s", strerror(errno));
	int err = to_rts(qp, IBV_QPT_RC, other.qpn, 7);
	/* A process that writes all segments may mark the peer as absent. The next exchange then
	 * fails and is repeated. */
	if (err && strict)
		die("connecting again: %s", strerror(err));
	refused += err != 0;
	meet();
}

static int post(enum ibv_wr_opcode op, uint64_t id, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)honest.mem, len, honest.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .opcode = op, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = other.addr + HONEST - 8;
		wr.wr.atomic.rkey = other.rkey;
		wr.wr.atomic.compare_add = 3;
	} else {
		wr.wr.rdma.remote_addr = other.addr;
		wr.wr.rdma.rkey = other.rkey;
	}
	return ibv_post_send(qp, &wr, &bad);
}

/* An exchange from process `from` to its partner; both draw the same parameters. */
static int exchange(uint64_t *common, int from)
{
	uint32_t n = rnd(common), seed = rnd(common);
	uint32_t len = n % 5 == 0 ? n % 49 : n % 5 == 1 ? n % 20000 : n % (HONEST - 64);
	int act = role == from, good = 1;
	static uint64_t sum[2];
	switch (n >> 8 & 3) {
	case 0:
		if (!act) {
			struct ibv_sge sge = { (uintptr_t)honest.mem, HONEST - 64, honest.mr->lkey };
			struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;
			if (ibv_post_recv(qp, &wr, &bad) && strict)
				die("ibv_post_recv: %s", strerror(errno));
			meet();
			good = done(2, "a receive");
			if (good)
				whole(len, seed, "a message");
		} else {
			fill(honest.mem, len, seed);
			meet();
			good = !post(IBV_WR_SEND, 1, len) && done(1, "a send");
		}
		break;
	case 1:
		meet();
		if (act) {
			fill(honest.mem, len, seed);
			good = !post(IBV_WR_RDMA_WRITE, 1, len) && done(1, "a write");
		}
		meet();
		if (!act)
			whole(len, seed, "what was written");
		break;
	case 2:
		if (!act)
			fill(honest.mem, len, seed);
		meet();
		if (act) {
			good = !post(IBV_WR_RDMA_READ, 1, len) && done(1, "a read");
			if (good)
				whole(len, seed, "what was read");
		}
		meet();
		break;
	default:
		if (act) {
			good = !post(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 8) && done(1, "an atomic");
			uint64_t was;
			memcpy(&was, honest.mem, sizeof was);
			if (strict && was != sum[from]) {
				check(0, "an atomic finds %llu", (unsigned long long)sum[from]);
				exit(1);
			}
		}
		sum[from] += 3;
		meet();
	}
	exchanged++;
	char ours = (char)good, theirs;
	swap(&ours, &theirs, 1);
	return good && theirs;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		die("attacked_pair SLOT SECONDS own|all SEED");
	uint32_t slot = (uint32_t)atoi(argv[1]);
	uint64_t seconds = (uint64_t)atoi(argv[2]), common = strtoull(argv[4], NULL, 10) + 1;
	strict = !strcmp(argv[3], "own");
	partner_fork();
	rng = common * 2 + (uint64_t)role;
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	foe_pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	if (!pd || !foe_pd || !cq || ibv_query_port(ctx, 1, &port))
		die("objects: %s", strerror(errno));
	unsigned all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	honest = area(pd, HONEST, all);
	granted = area(foe_pd, GRANTED, all);
	fixed = area(foe_pd, FIXED, IBV_ACCESS_REMOTE_READ);
	fill(fixed.mem, FIXED, 77);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	qp = ibv_create_qp(pd, &init);
	if (!qp)
		die("ibv_create_qp: %s", strerror(errno));
	mine = (struct address){ .qpn = qp->qp_num, .rkey = honest.mr->rkey, .addr = (uintptr_t)honest.mem };
	swap(&mine, &other, sizeof mine);
	reconnect();
	foes_open(slot);
	pthread_t thread;
	if (pthread_create(&thread, NULL, talk_to_attacker, NULL))
		die("pthread_create: %s", strerror(errno));
	uint64_t end = now_us() + seconds * 1000000, connections = 1;
	for (int round = 0;; round++) {
		char over = now_us() >= end, theirs;
		swap(&over, &theirs, 1);
		if (over || theirs)
			break;
		if (!exchange(&common, round & 1)) {
			connections++;
			reconnect();
		}
		if (round % 16 == 0)
			all_unspoilt();
	}
	stop = 1;
	pthread_join(thread, NULL);
	all_unspoilt();
	for (int k = 0; k < FOES; k++)
		check(!ibv_destroy_qp(foes[k].qp), "a queue pair that was attacked is destroyed");
	check(!ibv_destroy_srq(foe_srq), "and its shared queue");
	check(!ibv_destroy_qp(qp), "the other queue pair is destroyed");
	check(!ibv_destroy_cq(foe_cq) && !ibv_destroy_comp_channel(channel) && !ibv_destroy_cq(cq), "queues are destroyed");
	check(!ibv_dereg_mr(honest.mr) && !ibv_dereg_mr(granted.mr) && !ibv_dereg_mr(fixed.mr), "regions are deregistered");
	check(!ibv_dealloc_pd(pd) && !ibv_dealloc_pd(foe_pd) && !ibv_close_device(ctx), "the device is closed");
	printf("ok: process %d: %llu exchanges (%llu checked, %llu spoilt, %llu connections, %llu refused), %llu receives from the hostile one, %llu failures towards it, %llu times connected again\n", role,
	       exchanged, arrived, spoilt, (unsigned long long)connections, refused, from_foe, failed_to_foe, again);
	return partner_finish();
}
