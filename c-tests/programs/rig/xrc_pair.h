/*
 * Two processes with an extended reliable connection: role 0 sends, role 1 has the receiving QP, its domain and a shared queue.
 */
#ifndef XRC_PAIR_H
#define XRC_PAIR_H

#include "partner.h"
#include <fcntl.h>

enum { SIZE = 1 << 16, LEN = 100, DEPTH = 32 };

/* What each tells the other. */
struct place {
	uint32_t qpn, srqn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

extern struct ibv_context *ctx;
extern struct ibv_pd *pd;
extern struct ibv_cq *cq;
extern struct ibv_mr *mr;
extern unsigned char *buf;
extern struct ibv_xrcd *xrcd;
extern struct ibv_srq *srq;
extern struct ibv_qp *qp;
extern struct place mine, theirs;

void modify(struct ibv_qp_attr at, int mask);
void make(uint64_t send_ops);
/* Two that are connected; the receiver has `receives` in its queue, each of a kibibyte, the first at that offset. */
void xrc_open(uint64_t send_ops, uint8_t timeout, uint8_t retry, uint8_t rnr_retry, int receives);
void xrc_close(void);

#endif
