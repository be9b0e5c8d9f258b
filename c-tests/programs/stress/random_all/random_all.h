/*
 * Connections of random_all.c: the plan that both sides draw from the seed, and the objects of one
 * side.
 */
#ifndef RANDOM_ALL_H
#define RANDOM_ALL_H

#include "../traffic/traffic.h"
#include "rules.h"
#include <sys/shm.h>
#include <sys/syscall.h>
#include <endian.h>
#include <infiniband/tm_types.h>

enum { PROCS = 3, LINKS = 6, BATCH = 8, TARGET = (1 << 20) + 4096, AREA = (1 << 20) + 160 * 1024, LANDING = AREA + BATCH * 128, CANARY = 0xA5, GRH = 40, ONE_DATAGRAM = 4096, TM_QPS = 3 };
enum transport { T_RC, T_UC, T_XRC, T_UD, T_MCAST, T_CROWD, T_TM, T_FRAMES, TRANSPORTS };
enum memory { M_PRIVATE, M_ON_DEMAND, M_SYSV, M_SEALED, M_DEVICE, M_SHARED, M_ELSEWHERE, MEMORIES };
enum role { REQUESTER, RESPONDER };

/* Addresses and keys that a side publishes to the peer side. */
struct info {
	uint32_t qpn, srqn, rkey, counter_key, qpns[TM_QPS];
	uint64_t addr, counter_addr;
	union ibv_gid gid;
	uint16_t lid;
};

/* Memory that all processes share from before the fork. */
struct board {
	_Atomic uint32_t round, stop;
	_Atomic uint32_t done[PROCS], dead[PROCS];
	_Atomic uint64_t least[PROCS], most[PROCS];	/* what the counter of a process can be */
	_Atomic uint64_t requests, bytes, lost, batches, survived;
	struct {
		_Atomic uint32_t step[2];
		struct info info[2];
		struct traffic_board traffic;
	} link[LINKS];
};

/* Drawn from the seed: the same on both sides. */
struct plan {
	uint64_t rng;
	enum transport transport;
	int proc[2], batches, new_api, srq, extended[2], events[2], window, by_gid, sig_all;
	enum memory memory;
	uint32_t psn[2];
};

/* One of a batch's requests; offsets are in the area, the target and the landing place. */
struct planned {
	struct request r;
	uint32_t len, at, source, landing, room;
	int receives;
	struct request receive;
	uint64_t old;
};

struct batch {
	struct planned p[BATCH];
	unsigned n, receives;
	int late, list, action;
	uint32_t used, landed;
	uint64_t delta;		/* for the counter */
	unsigned next_send, next_receive;
	unsigned char datagram[BATCH][ONE_DATAGRAM];
};

struct side {
	struct board *board;
	int link, proc;
	enum role role;
	struct plan plan;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_cq_ex *cqx;
	struct ibv_srq *srq;
	struct ibv_xrcd *xrcd;
	struct ibv_qp *qp, *tm_qp[TM_QPS];
	struct ibv_ah *ah;
	struct ibv_mr *mr, *target_mr, *scratch_mr, *counter_mr;
	struct ibv_dm *dm;
	struct ibv_mw *mw;
	unsigned char *area, *target;			/* area: also the landing place of a responder */
	unsigned char *model_area, *model_target, *model_landing, *seen;
	uint64_t scratch, iova, tag;				/* tag, priv: of the last completion, or its flow and VLAN tags */
	uint32_t step, unacked, priv, window_key;
	struct info peer;
	int attached;					/* to the group */
	int gone;					/* the peer's process was killed */
};

extern uint64_t random_seed;
extern unsigned random_round;
extern void *random_sysv[LINKS];

/* Prints the failure, the link and the seed; ends the process. */
void bad(const struct side *s, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
struct plan plan_of(int link);
/* The next batch; changes the three models as its operations do. */
void plan_batch(struct side *s, struct batch *b);
/* All of a side's objects, and the connection. 1: the peer died meanwhile. */
void side_open(struct side *s, struct ibv_mr *counter);
int side_connect(struct side *s);
void side_close(struct side *s);
/* The QP from RESET to RTS. */
void to_ready(struct side *s);
void target_register(struct side *s);
/* Both sides come here; 1 if the peer is dead. */
int together(struct side *s);
void post_requests(struct side *s, const struct batch *b);
void post_receives(struct side *s, const struct batch *b);
/* Returns 1 with one completion, polled or by event. Returns 0 after `us` microseconds, or, with
 * `give_up`, when the peer is dead and the CQ is empty. */
int completion(struct side *s, struct ibv_wc *wc, unsigned us, int give_up);
uint32_t below(uint64_t *rng, uint32_t n);

/* The remote access of both kinds of region. */
enum { RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC, DEPTH = 64, QKEY = 0x1357 };

enum { FR_PLAIN = 2, FR_WORK = 4, FR_QUEUES = FR_PLAIN + FR_WORK, FR_RSS = 2, FR_TARGETS = FR_PLAIN + FR_RSS, FR_RULES = 8, FR_RECVS = 32, FR_DUES = 24, FR_ROOM = 9300 };
enum { FR_FRAMES = 6, FR_TRIES = 6, FR_LOST_US = 2000000, FR_SHARED = 1, FR_TABLE = 3, FR_V4 = 0x0800, FR_V6 = 0x86dd, FR_OTHER = 0x88b5, FR_TCP = 6, FR_UDP = 17 };
#define FR_SEND (1ull << 32)

/* What a rule demands; 0: nothing. v6: the destination's number, from 1 on. */
struct fr_demand {
	uint32_t mac, vlan, type, src, src_mask, dst, dst_mask, v6, proto, sport, dport;
};

struct fr_rule {
	struct fr_demand want;
	int live, spread_thin, drop, counted;		/* spread_thin: takes a copy, and stops nothing */
	unsigned target;
	uint32_t priority, tag;
	uint64_t born, least[2], most[2];		/* packets and bytes that its counters can have */
	struct ibv_flow *flow;
	struct ibv_counters *counters;
};

struct fr_frame {
	uint32_t mac, tci, type, src, dst, v6src, v6dst, proto, sport, dport, payload, seed;
	enum { C_WRONG, C_ABSENT, C_OFFLOADED, C_BY_HAND } checksums;	/* absent: of TCP and UDP */
	struct request how;				/* pieces and flags */
	unsigned char bytes[FR_ROOM];
	uint32_t len;
};

/* One frame in one queue. */
struct fr_due {
	unsigned frame;
	uint32_t tag;
	int seen;
};

/* The model of one side, kept by both sides. */
struct fr_model {
	uint32_t flags[FR_QUEUES];			/* of ibv_create_qp_ex and ibv_create_wq */
	unsigned fields[FR_RSS], log, table[1 << FR_TABLE];
	struct fr_rule rule[FR_RULES];
	struct fr_due due[FR_QUEUES][FR_DUES];
	unsigned dues[FR_QUEUES];
};

struct frames {
	struct fr_model of[2];
	struct fr_frame frame[FR_FRAMES];
	unsigned n, sender;
	uint64_t births;
	uint32_t epoch, lost[64];			/* numbers under which batches were lost */
	/* This side's. */
	struct ibv_qp *qp[FR_TARGETS];
	struct ibv_wq *wq[FR_WORK];
	struct ibv_rwq_ind_table *table;
	struct ibv_mr *mr;
	unsigned char *area;
	uint64_t stamp[FR_QUEUES][FR_RECVS], stamps;	/* when a receive was posted; 0: it is not */
	unsigned next_send;
};

extern const uint64_t fr_fields[];

/* ---- plan.c ---- */

/* Whether the two processes of a link are on different hosts. */
int is_far(const struct plan *p);
/* Random cuts of a contiguous range. */
void cut(uint64_t *g, struct request *r, uint64_t offset, uint32_t len);
int is_atomic(enum ibv_wr_opcode op);

/* ---- oracle.c ---- */

/* Accepts an error completion only if the peer process was killed. The death may be published after
 * the completion. */
void must_be_dead(struct side *s, const struct ibv_wc *wc, const char *what);
/* Polls all completions of the requests; 1 if they ended because of a death. */
int drain_sends(struct side *s, struct batch *b);
/* Polls all completions of the receives; 1 if they ended because of a death. `flushed`: the caller
 * set the QP to ERR. */
int drain_receives(struct side *s, struct batch *b, int flushed);
void same(struct side *s, const unsigned char *is, const unsigned char *should, size_t len, const char *what);
void check_memory(struct side *s);
/* One request outside of batches; its status. */
enum ibv_wc_status single(struct side *s, struct ibv_send_wr wr, enum ibv_wc_opcode opcode);
/* Adds `delta` to the counter of the peer process, which all its requesters share. Returns 1 if the
 * process is dead. */
int count(struct side *s, uint64_t delta);
void to_state(struct side *s, enum ibv_qp_state state);

/* ---- side.c ---- */

int usable(const struct side *s);
int datagrams(const struct side *s);
union ibv_gid group(const struct side *s);
void target_tell(struct side *s);
void cq_make(struct side *s);
void ah_make(struct side *s);
/* Binds the responder's window to the first `length` bytes of the target and publishes the key.
 * Returns 1 if the peer is dead. */
int bind_window(struct side *s, uint64_t length);

/* ---- acts.c ---- */

/* Sets the QP to SQD, or back to RTS. A QP that lost its peer is in neither state. */
void pause_sends(struct side *s, enum ibv_qp_state state);
void resize(struct side *s, int n);
/* An action between two batches. Returns 1 if the peer is dead. */
int act(struct side *s, const struct batch *b);
/* Revokes the key of all operations, by the requester if possible, and checks that the key no
 * longer works. Returns 1 if the peer is dead. */
int take_back(struct side *s);

/* ---- frames_plan.c ---- */

/* Contains the round number, so that a late frame of an earlier round matches no rule. */
uint64_t fr_mac(const struct side *s, uint32_t n);
void fr_v6(uint8_t *to, uint32_t n);
/* The rule that stops a frame: the first by priority, then by age; NULL: none. */
const struct fr_rule *fr_winner(const struct frames *x, const struct fr_frame *f);
int fr_gets(const struct fr_rule *r, const struct fr_rule *winner, const struct fr_frame *f);
/* Adds the batch to the upper bounds of the counters; `done`: also to the lower bounds. */
void fr_count(struct frames *x, int done);
/* Whether a completion reports correct checksums. */
int fr_right(const struct fr_frame *f);
/* Builds a frame as it arrives; `sent`: as it is posted. The last bytes hold the numbers of batch
 * and frame. */
void fr_build(const struct side *s, struct fr_frame *f, uint32_t epoch, unsigned number, int sent);
void fr_plan_rule(struct side *s, struct frames *x, struct fr_rule *r);
void fr_plan_batch(struct side *s, struct frames *x);

/* ---- frames.c ---- */

void run_frames(struct side *s);

/* ---- tag_matching.c ---- */

void tm_make(struct side *s);
void tm_to_ready(struct side *s);
void run_tm(struct side *s);

#endif
