/*
 * Fetch-and-add and compare-and-swap: results, wrap-around, and correct sums when several processes
 * and threads add to one counter (IBV_ATOMIC_HCA). ibv_post_send(3).
 */
#define _GNU_SOURCE
#include "rig.h"
#include <fcntl.h>

static struct end *a, *b;
static struct address aa, ba;

static uint64_t atomic_op(enum ibv_wr_opcode op, uint64_t compare_add, uint64_t swap)
{
	uint64_t result = 0xDEADDEADDEADDEAD;
	struct request r = one_piece(op, 1, 64, 8);
	r.raddr = ba.addr + 128;
	r.rkey = ba.rkey;
	r.compare_add = compare_add;
	r.swap = swap;
	end_write(a, 64, &result, 8);
	if (end_send(a, r))
		die("ibv_post_send");
	struct ibv_wc w = end_wait(a, SENDS);
	if (w.status || w.byte_len != 8 || w.opcode != (op == IBV_WR_ATOMIC_FETCH_AND_ADD ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP))
		check(0, "completion: %s, length %u, opcode %d", ibv_wc_status_str(w.status), w.byte_len, w.opcode);
	end_read(a, 64, &result, 8);
	return result;
}

static uint64_t target(void)
{
	uint64_t v;
	end_read(b, 128, &v, 8);
	return v;
}

/* IBTA 1.7 9.4.5. */
static void results(void)
{
	uint64_t around[3] = { 0x1111, 100, 0x3333 };
	pair_open(a, b, defaults(), &aa, &ba);
	end_write(b, 120, around, 24);
	check_eq((long long)atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, 23, 0), 100, "fetch-and-add returns the old value");
	check_eq((long long)target(), 123, "and adds");
	check_eq((long long)atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0), 123, "adding nothing reads");
	check_eq((long long)atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, (uint64_t)-124, 0), 123, "adding a negative number");
	check_eq((long long)target(), -1, "wraps around below zero");
	check_eq((long long)atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0), -1, "adding one to the largest");
	check_eq((long long)target(), 0, "wraps around to zero");
	check_eq((long long)atomic_op(IBV_WR_ATOMIC_CMP_AND_SWP, 0, 0x1122334455667788), 0, "compare-and-swap that matches returns the old value");
	check_eq((long long)target(), 0x1122334455667788, "and swaps");
	check_eq((long long)atomic_op(IBV_WR_ATOMIC_CMP_AND_SWP, 0x1122334455667789, 5), 0x1122334455667788, "one that does not match returns it too");
	check_eq((long long)target(), 0x1122334455667788, "and leaves it alone");
	end_read(b, 120, around, 24);
	check(around[0] == 0x1111 && around[2] == 0x3333, "the neighbours are untouched");
	/* Many in a list, each sees the one before. */
	struct request list[16];
	uint64_t zero = 0, got[16];
	int wrong = 0;
	end_write(b, 128, &zero, 8);
	for (unsigned i = 0; i < 16; i++) {
		list[i] = one_piece(IBV_WR_ATOMIC_FETCH_AND_ADD, i, 1024 + 8 * i, 8);
		list[i].raddr = ba.addr + 128;
		list[i].rkey = ba.rkey;
		list[i].compare_add = 3;
	}
	if (end_send_list(a, list, 16, NULL))
		die("ibv_post_send");
	for (unsigned i = 0; i < 16; i++) {
		struct ibv_wc w = end_wait(a, SENDS);
		wrong += w.status || w.wr_id != i;
	}
	end_read(a, 1024, got, sizeof got);
	for (unsigned i = 0; i < 16; i++)
		wrong += got[i] != 3 * i;
	check_eq(wrong, 0, "16 adds in a list: each sees the one before");
	pair_close(a, b);
}

/* Several adders at once. Each is a QP of its own to a QP of the process that has the counter. */
enum { ADDERS = 3, ADDS = 3000 };

static void add_many(int fd)
{
	struct end *e = end_new(0);
	struct address mine = end_open(e, defaults()), counter;
	if (write(fd, &mine, sizeof mine) != sizeof mine || read(fd, &counter, sizeof counter) != sizeof counter)
		die("exchange");
	end_connect(e, counter);
	char go;
	if (read(fd, &go, 1) != 1)
		die("start");
	int errors = 0;
	uint64_t last = 0;
	for (int i = 0; i < ADDS; i++) {
		struct request r = one_piece(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 8);
		r.raddr = counter.addr;
		r.rkey = counter.rkey;
		r.compare_add = 1;
		if (i % 4 == 3) {
			/* An increment by compare-and-swap, repeated until it succeeds. */
			uint64_t seen = last;
			for (;;) {
				r.op = IBV_WR_ATOMIC_CMP_AND_SWP;
				r.compare_add = seen;
				r.swap = seen + 1;
				end_send(e, r);
				errors += end_wait(e, SENDS).status != IBV_WC_SUCCESS;
				uint64_t old;
				end_read(e, 0, &old, 8);
				if (old == seen || errors)
					break;
				seen = old;
			}
			continue;
		}
		end_send(e, r);
		errors += end_wait(e, SENDS).status != IBV_WC_SUCCESS;
		uint64_t old;
		end_read(e, 0, &old, 8);
		errors += i && old < last;
		last = old;
	}
	check_eq(errors, 0, "errors of one adder");
	if (write(fd, &go, 1) != 1 || read(fd, &go, 1) != 1)
		die("end");
	end_close(e);
	end_free(e);
}

static void *add_here(void *fd)
{
	add_many(*(int *)fd);
	return NULL;
}

/*
 * `mixed`: the counter lies in mappable memory, one adder needs the owner's help, and the last
 * adder is the owner itself.
 */
static void sums(int mixed)
{
	pthread_t thread;
	int own_end = -1;
	int fd[ADDERS];
	for (int i = 0; i < ADDERS; i++) {
		int s[2];
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, s))
			die("socketpair");
		fd[i] = s[0];
		if (mixed && i == ADDERS - 1) {
			/* After all forks. */
			own_end = s[1];
			if (pthread_create(&thread, NULL, add_here, &own_end))
				die("pthread_create");
			break;
		}
		fflush(stdout);
		if (!fork()) {
			close(s[0]);
			if (mixed && i == 1)
				setenv("FERROVERBS_SOFT_CMA", "off", 1);
			add_many(s[1]);
			exit(finish());
		}
		close(s[1]);
	}
	/* The process of the counter is idle while the adders run. */
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	int file = memfd_create("counter", MFD_ALLOW_SEALING);
	if (file < 0 || ftruncate(file, 4096) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK))
		die("memfd_create");
	uint64_t *counter = mmap(NULL, 4096, PROT_READ | PROT_WRITE, mixed ? MAP_SHARED : MAP_PRIVATE, file, 0);
	if (counter == MAP_FAILED)
		die("mmap");
	struct ibv_mr *mr = ibv_reg_mr(pd, counter, sizeof *counter, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	union ibv_gid gid;
	struct ibv_port_attr port;
	struct ibv_qp *qp[ADDERS];
	if (!pd || !mr || !cq || ibv_query_gid(ctx, 1, 0, &gid) || ibv_query_port(ctx, 1, &port))
		die("setting up the counter");
	for (int i = 0; i < ADDERS; i++) {
		struct address peer;
		if (read(fd[i], &peer, sizeof peer) != sizeof peer)
			die("exchange");
		struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
		qp[i] = ibv_create_qp(pd, &qa);
		if (!qp[i])
			die("ibv_create_qp");
		struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_ATOMIC };
		if (ibv_modify_qp(qp[i], &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
			die("to INIT");
		at = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
					   .path_mtu = port.active_mtu,
					   .dest_qp_num = peer.qpn,
					   .rq_psn = peer.psn,
					   .max_dest_rd_atomic = 16,
					   .min_rnr_timer = 1,
					   .ah_attr = { .is_global = 1, .grh = { .dgid = peer.gid, .hop_limit = 1 }, .port_num = 1 } };
		if (ibv_modify_qp(qp[i], &at,
				  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					  IBV_QP_MIN_RNR_TIMER))
			die("to RTR");
		struct address mine = { .qpn = qp[i]->qp_num, .psn = qp[i]->qp_num * 77 & 0xffffff, .rkey = mr->rkey, .addr = (uintptr_t)counter, .lid = port.lid, .gid = gid };
		if (write(fd[i], &mine, sizeof mine) != sizeof mine)
			die("exchange");
	}
	char go = 0;
	for (int i = 0; i < ADDERS; i++)
		if (write(fd[i], &go, 1) != 1)
			die("start");
	for (int i = 0; i < ADDERS; i++)
		if (read(fd[i], &go, 1) != 1)
			die("an adder ended early");
	check_eq((long long)*counter, ADDERS * ADDS, "the sum of %d adders%s", ADDERS, mixed ? ": by a mapping, by the ring, the owner" : "");
	for (int i = 0; i < ADDERS; i++) {
		int status;
		if (write(fd[i], &go, 1) != 1)
			die("end");
		if (mixed && i == ADDERS - 1) {
			check_eq(pthread_join(thread, NULL), 0, "the owner's thread ends");
		} else {
			wait(&status);
			check(WIFEXITED(status) && !WEXITSTATUS(status), "an adder ends well");
		}
		ibv_destroy_qp(qp[i]);
	}
	ibv_destroy_cq(cq);
	ibv_dereg_mr(mr);
	ibv_dealloc_pd(pd);
	ibv_close_device(ctx);
	munmap(counter, 4096);
	close(file);
	for (int i = 0; i < ADDERS; i++)
		close(fd[i]);
	close(own_end);
}

int main(int argc, char **argv)
{
	int two = two_processes(argc, argv);
	a = end_new(0);
	b = end_new(two);
	if (two) {
		sums(0);
		sums(1);
	}
	results();
	end_free(b);
	end_free(a);
	return finish();
}
