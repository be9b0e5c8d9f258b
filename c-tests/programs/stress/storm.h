/*
 * Connections of storm.c: what both sides of one know (its plan, drawn from the seed by both alike) and the objects of one side.
 */
#ifndef STORM_H
#define STORM_H

#include "crowd.h"
#include <sys/shm.h>

enum { PROCS = 3, LINKS = 6, BATCH = 8, TARGET = (1 << 20) + 4096, AREA = (1 << 20) + 160 * 1024, LANDING = AREA + BATCH * 128, CANARY = 0xA5, GRH = 40, ONE_DATAGRAM = 4096, TM_QPS = 3 };
enum transport { T_RC, T_UC, T_XRC, T_UD, T_MCAST, T_CROWD, T_TM, T_FRAMES, TRANSPORTS };
enum memory { M_PRIVATE, M_ON_DEMAND, M_SYSV, M_SEALED, M_DEVICE, M_SHARED, M_ELSEWHERE, MEMORIES };
enum role { REQUESTER, RESPONDER };

/* What a side tells the other. */
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
		struct crowd_board crowd;
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

extern uint64_t storm_seed;
extern unsigned storm_round;
extern void *storm_sysv[LINKS];

/* Says what, on which link, how to repeat it; ends the process. */
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
/* Of tag matching: the queue and its QPs; to RTS. */
static void tm_make(struct side *s);
static void tm_to_ready(struct side *s);
void post_requests(struct side *s, const struct batch *b);
void post_receives(struct side *s, const struct batch *b);
/* One completion, however this side gets its own. 0: none within `us`, or, if `give_up` is set, the peer is dead and none is there. */
int completion(struct side *s, struct ibv_wc *wc, unsigned us, int give_up);
/* An error is right only if the other process was killed; its word may come a little later than ours. */
static void must_be_dead(struct side *s, const struct ibv_wc *wc, const char *what);
uint32_t below(uint64_t *rng, uint32_t n);
#endif
