/*
 * A pair of QPs of one process over the first device, and a function that runs a case by its name.
 */
#ifndef VALIDATE_PAIR_H
#define VALIDATE_PAIR_H

#include "cases.h"
#include <infiniband/verbs.h>
#include <stdint.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)
#define SIZE 65536
#define DEPTH 128

extern struct ibv_context *ctx;
extern struct ibv_pd *pd;
extern struct ibv_cq *cq;
/* All of `buf`, with the rights ALL. */
extern struct ibv_mr *mr;
/* Two connected QPs: `a` sends, `b` receives. The case makes them; run_case destroys them. */
extern struct ibv_qp *a, *b;
/* The capabilities of the QP made last. */
extern struct ibv_qp_cap cap;
/* SIZE bytes. */
extern unsigned char *buf;
/* Whether the case is to misuse the verb, as its second argument says. */
extern int wrong;
/* What to_rts gives an RC QP. */
extern uint8_t rnr_retry;

/* A QP with room for `inl` bytes inline; its receives come from `srq` where that is not NULL. */
struct ibv_qp *make(enum ibv_qp_type type, struct ibv_cq *scq, struct ibv_srq *srq, uint32_t inl);

/* The attributes that connect a QP to `peer`, for its transition to RTR. */
struct ibv_qp_attr ready(struct ibv_qp *peer);

/* The mask of `ready` for a type of QP. */
int rtr_mask(struct ibv_qp *qp);

/* Moves a QP to RTS and returns what ibv_modify_qp does. */
int to_rts(struct ibv_qp *qp, uint8_t timeout, uint8_t rd_atomic);

/* Transitions that must succeed. */
void to_init(struct ibv_qp *qp);
void to_rtr(struct ibv_qp *qp, struct ibv_qp *peer);

/* Makes `a` and `b` and connects them. The completions of sends of `a` go to `scq`. */
void couple(enum ibv_qp_type type, struct ibv_cq *scq, struct ibv_srq *srq, uint32_t inl);

/* The usual pair: RC, one CQ, 64 bytes inline. */
void pair(void);

/* The first bytes of `buf`. */
struct ibv_sge piece(uint32_t length);

/* A signaled request, with a remote address within `buf`. */
struct ibv_send_wr request(enum ibv_wr_opcode op, struct ibv_sge *sge, int n);

int post(struct ibv_qp *qp, struct ibv_send_wr wr);

/* Posts a receive of one piece. */
int receive(struct ibv_qp *qp, struct ibv_sge sge);

/* Polls until a completion is there. */
struct ibv_wc done(struct ibv_cq *from);

/* Polls a completion that must be a success. */
void ok(struct ibv_cq *from);

/* A pair whose `b` has a shared receive queue with as many receives as its limit. */
struct ibv_srq *limited(void);

/* A message that triggers IBV_EVENT_SRQ_LIMIT_REACHED, which every device has; rxe has no
 * IBV_EVENT_QP_LAST_WQE_REACHED. */
void below_limit(void);

/* Posts; polls what was accepted. */
void post_and_poll(struct ibv_send_wr wr);

/* Further objects of a case, which run_case destroys. */
extern struct ibv_mr *second;
extern struct ibv_srq *shared;

/* A case by its name. */
struct misuse {
	const char *id;
	void (*run)(void);
};

/*
 * Without arguments, prints the names of all cases. Otherwise opens the first device, runs the case
 * that argv[1] names (argv[2] is wrong or right), and destroys everything.
 */
int run_case(int argc, char **argv, const struct misuse *cases, size_t count);

#endif
