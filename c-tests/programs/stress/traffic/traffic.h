/*
 * Traffic on shared objects: several threads of one process post to QPs of another process, and
 * threads of both processes poll completions. Several QPs share CQs and SRQs; several threads share
 * QPs, queues and address handles. A seed chooses between ibv_post_send lists and ibv_wr_start to
 * ibv_wr_complete.
 *
 * The account is exact. Each signaled request completes once, and no unsignaled request completes.
 * Each message arrives once, complete, in a posted receive, and in the order in which its thread
 * posted it on its QP. Fetch-and-add returns each value once. READs return the written bytes.
 */
#ifndef TRAFFIC_H
#define TRAFFIC_H

#include "rig.h"
#include <endian.h>
#include <fcntl.h>
#include <infiniband/tm_types.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum traffic_type { C_RC, C_UC, C_XRC, C_UD, C_TM, CROWD_TYPES };
enum traffic_how { C_LISTS, C_CALLS, C_BOTH };	/* ibv_post_send, ibv_wr_*, by turns */
enum {
	C_QPS = 4, C_POSTERS = 4, C_TAKERS = 3, C_CQS = 2, C_SRQS = 3, C_SLOTS = 8, C_LIST = 4, C_RECVS = 64, C_MOST = 2000, C_QKEY = 0x2468,
	C_HEADER = 32, C_LENGTH = 40000, C_ROOM = C_LENGTH + 64, C_DATAGRAM = 4096, C_DEPTH = C_POSTERS * C_SLOTS + 8, C_CQE = 600, C_ADD_ID = 1 << 20
};

struct traffic_plan {
	uint64_t rng;
	enum traffic_type type;
	enum traffic_how how;
	int qps, posters, takers[2], cqs, srqs;	/* srqs 0: each QP has a receive queue of its own */
	int own_qp;				/* each thread posts to one QP */
	int credits;				/* a place is used again when its message was received */
	int extended[2], events[2], meddle[2], by_gid, mapped;
	unsigned each;				/* requests of a thread */
};

struct traffic_info {
	uint32_t qpn[C_QPS], srqn[C_SRQS], rkey, counter_key;
	uint64_t addr, counter;
	union ibv_gid gid;
	uint16_t lid;
};

/* Shared by both processes. */
struct traffic_board {
	struct traffic_info info[2];
	_Atomic uint32_t credit[C_POSTERS][C_SLOTS];	/* the first request that may not use this place yet */
	_Atomic uint64_t received, sent, adds, finished;
};

struct traffic_slot {
	_Atomic uint32_t busy, completions;
	uint32_t seq, first, len, seed, target_len, target_seed;
	int kind, signaled;
	uint32_t quiet;			/* of a list's last one: bits of those before it that are not signaled */
};

struct traffic {
	struct traffic_board *board;
	struct traffic_plan plan;
	int role;					/* 0: requests, 1: responds */
	const char *name;				/* what it is and how to repeat it */
	struct ibv_context *ctx;
	int (*together)(void *), (*is_dead)(void *);
	void *arg;
	/* From here on its own. */
	_Atomic uint32_t gone, stop, posting, fetched, outstanding;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq[C_CQS];
	struct ibv_cq_ex *cqx[C_CQS];
	struct ibv_srq *srq[C_SRQS];
	struct ibv_xrcd *xrcd;
	struct ibv_qp *qp[C_QPS];
	struct ibv_mr *mr, *target_mr, *counter_mr;
	unsigned char *memory, *target;
	_Alignas(64) uint64_t counter;
	struct traffic_slot slot[C_POSTERS][C_SLOTS];
	_Atomic unsigned char seen[C_POSTERS][C_MOST], old[C_POSTERS * C_MOST];
	_Atomic unsigned char posted[C_QPS * C_RECVS];
	_Atomic uint64_t removals;
};

enum traffic_kind { K_SEND, K_SEND_IMM, K_WRITE, K_WRITE_IMM, K_READ, K_ADD, K_KINDS };

struct traffic_thread {
	struct traffic *c;
	int me;
	uint64_t rng;
	struct ibv_ah *ah;
	int64_t last[C_POSTERS][C_QPS][C_SRQS];
	pthread_t thread;
};

enum { C_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC, C_TMH = 16, C_TARGET = C_POSTERS * C_SLOTS * C_LENGTH };

struct traffic_wc {
	struct ibv_wc wc;
	uint64_t tag;
	uint32_t priv;
};

/* ---- run.c ---- */

struct traffic_plan traffic_plan(uint64_t seed, int type, unsigned each);
__attribute__((format(printf, 2, 3), noreturn)) void traffic_bad(const struct traffic *c, const char *format, ...);
/* Waits until the peer process is reported dead, which may follow an error completion. Fails the
 * test if the peer lives. */
int traffic_gone(struct traffic *c, const char *what, enum ibv_wc_status status);
/* Runs one side from the first object to the last. Both sides call the function at the same time,
 * with the same plan. Returns 1 if the peer process was killed. */
int traffic_run(struct traffic *c);

/* ---- side.c ---- */

int traffic_queues(const struct traffic *c);
unsigned char *traffic_place(const struct traffic *c, int poster, uint32_t seq);
/* The buffer of receive `id`; buffers of tag entries come first. */
unsigned char *traffic_landing(const struct traffic *c, uint64_t id);
uint64_t traffic_mask(int poster, uint32_t seq);
uint64_t traffic_tag(int poster, uint32_t seq);
void traffic_must(const struct traffic *c, int ok, const char *what);
void traffic_receive(struct traffic *c, uint64_t id);
/* Adds the tag entry for the next message of thread `poster` in slot `place`. */
void traffic_add(struct traffic *c, int poster, uint32_t place);
void traffic_open(struct traffic *c);
void traffic_connect(struct traffic *c);
void traffic_close(struct traffic *c);
/* Polls some completions; 0 if the CQs are empty. */
int traffic_next(struct traffic_thread *t, struct traffic_wc *w);

/* ---- work.c ---- */

void *traffic_poster(void *arg);
void *traffic_collector(void *arg);
void *traffic_taker(void *arg);
/* Thread that changes objects in use, and creates and destroys further objects beside them. */
void *traffic_meddler(void *arg);
/* Compares the totals of both sides. */
void traffic_account(struct traffic *c);

#endif
