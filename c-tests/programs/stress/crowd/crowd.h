/*
 * A crowd: threads of one process post to queue pairs of another one, and threads of both take completions, while completion queues and shared
 * receive queues serve several queue pairs, and queue pairs, queues and address handles serve several threads. ibv_post_send lists and
 * ibv_wr_start to ibv_wr_complete, every form drawn from a seed.
 *
 * The account is exact: each signaled request completes once, no other one does; each message arrives once, whole, in a receive that was posted, in
 * the order in which its thread posted it on its queue pair; fetch-and-add gives each value once; READs give what was written.
 */
#ifndef CROWD_H
#define CROWD_H

#include "rig.h"
#include <endian.h>
#include <fcntl.h>
#include <infiniband/tm_types.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum crowd_type { C_RC, C_UC, C_XRC, C_UD, C_TM, CROWD_TYPES };
enum crowd_how { C_LISTS, C_CALLS, C_BOTH };	/* ibv_post_send, ibv_wr_*, by turns */
enum {
	C_QPS = 4, C_POSTERS = 4, C_TAKERS = 3, C_CQS = 2, C_SRQS = 3, C_SLOTS = 8, C_LIST = 4, C_RECVS = 64, C_MOST = 2000, C_QKEY = 0x2468,
	C_HEADER = 32, C_LENGTH = 40000, C_ROOM = C_LENGTH + 64, C_DATAGRAM = 4096, C_DEPTH = C_POSTERS * C_SLOTS + 8, C_CQE = 600, C_ADD_ID = 1 << 20
};

struct crowd_plan {
	uint64_t rng;
	enum crowd_type type;
	enum crowd_how how;
	int qps, posters, takers[2], cqs, srqs;	/* srqs 0: each QP has a receive queue of its own */
	int own_qp;				/* each thread posts to one QP */
	int credits;				/* a place is used again when its message was received */
	int extended[2], events[2], meddle[2], by_gid, mapped;
	unsigned each;				/* requests of a thread */
};

struct crowd_info {
	uint32_t qpn[C_QPS], srqn[C_SRQS], rkey, counter_key;
	uint64_t addr, counter;
	union ibv_gid gid;
	uint16_t lid;
};

/* Shared by both processes. */
struct crowd_board {
	struct crowd_info info[2];
	_Atomic uint32_t credit[C_POSTERS][C_SLOTS];	/* the first request that may not use this place yet */
	_Atomic uint64_t received, sent, adds, finished;
};

struct crowd_slot {
	_Atomic uint32_t busy, completions;
	uint32_t seq, first, len, seed, target_len, target_seed;
	int kind, signaled;
	uint32_t quiet;			/* of a list's last one: bits of those before it that are not signaled */
};

struct crowd {
	struct crowd_board *board;
	struct crowd_plan plan;
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
	struct crowd_slot slot[C_POSTERS][C_SLOTS];
	_Atomic unsigned char seen[C_POSTERS][C_MOST], old[C_POSTERS * C_MOST];
	_Atomic unsigned char posted[C_QPS * C_RECVS];
	_Atomic uint64_t removals;
};

enum crowd_kind { K_SEND, K_SEND_IMM, K_WRITE, K_WRITE_IMM, K_READ, K_ADD, K_KINDS };

struct crowd_thread {
	struct crowd *c;
	int me;
	uint64_t rng;
	struct ibv_ah *ah;
	int64_t last[C_POSTERS][C_QPS][C_SRQS];
	pthread_t thread;
};

enum { C_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC, C_TMH = 16, C_TARGET = C_POSTERS * C_SLOTS * C_LENGTH };

struct crowd_wc {
	struct ibv_wc wc;
	uint64_t tag;
	uint32_t priv;
};

/* ---- run.c ---- */

struct crowd_plan crowd_plan(uint64_t seed, int type, unsigned each);
__attribute__((format(printf, 2, 3), noreturn)) void crowd_bad(const struct crowd *c, const char *format, ...);
/* Whether the peer was killed; its word may come a little later than that of a completion. */
int crowd_gone(struct crowd *c, const char *what, enum ibv_wc_status status);
/* Everything, from the first object to the last; both sides call it at the same time, with the same plan. 1: the other process was killed. */
int crowd_run(struct crowd *c);

/* ---- side.c ---- */

int crowd_queues(const struct crowd *c);
unsigned char *crowd_place(const struct crowd *c, int poster, uint32_t seq);
/* Where a receive lands; those of tags lie before the others. */
unsigned char *crowd_landing(const struct crowd *c, uint64_t id);
uint64_t crowd_mask(int poster, uint32_t seq);
uint64_t crowd_tag(int poster, uint32_t seq);
void crowd_must(const struct crowd *c, int ok, const char *what);
void crowd_receive(struct crowd *c, uint64_t id);
/* The tag entry that a thread's next message with this place will find. */
void crowd_add(struct crowd *c, int poster, uint32_t place);
void crowd_open(struct crowd *c);
void crowd_connect(struct crowd *c);
void crowd_close(struct crowd *c);
/* Some completions; 0 if there are none for now. */
int crowd_next(struct crowd_thread *t, struct crowd_wc *w);

/* ---- work.c ---- */

void *crowd_poster(void *arg);
void *crowd_collector(void *arg);
void *crowd_taker(void *arg);
/* Objects that others use change, and others come and go beside them. */
void *crowd_meddler(void *arg);
/* What both sides did, added up. */
void crowd_account(struct crowd *c);

#endif
